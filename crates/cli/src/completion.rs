//! Shell completions. The completion script calls this program for candidates, because only the
//! running service can list the names of models, workflows and organizations.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::Command;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};

use super::admin::Admin;
use super::chain::query;
use super::{output, parse, place};

/// The environment variable that a completion script sets to request candidates. The variable's
/// value is the name of the shell.
const VARIABLE: &str = "ORRERY_COMPLETE";
/// Time limit for the service's response. Without a response, there are no candidates.
const PATIENCE: Duration = Duration::from_secs(2);

/// The kinds of names that the service can list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Models,
    Workflows,
    Organizations,
}

/// The kind of names for each placeholder in the help.
const PLACEHOLDERS: [(&str, Names); 4] = [
    ("MODEL", Names::Models),
    ("SLUG", Names::Models),
    ("WORKFLOW", Names::Workflows),
    ("ORGANIZATION", Names::Organizations),
];

/// If a completion script requests candidates, prints them and exits.
pub(super) fn answer() {
    CompleteEnv::with_factory(commands).var(VARIABLE).complete();
}

/// `orrery completions`
pub(super) fn print(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    if let Some(completer) = Shells::builtins().completer(&shell.to_string()) {
        completer.write_registration(VARIABLE, "orrery", "orrery", "orrery", &mut script)?;
    }
    if shell == clap_complete::Shell::Zsh {
        // Zsh loads a script from its completion folder at the first completion, so the script must
        // also handle that completion.
        script.extend_from_slice(
            b"[ \"$funcstack[1]\" = \"_orrery\" ] && _clap_dynamic_completer_orrery \"$@\"\n",
        );
    }
    output::raw(&script)
}

/// Returns the visible commands, with candidates for the names that the service can list.
fn commands() -> Command {
    with_names(parse::visible_commands())
}

fn with_names(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let placeholder = argument.get_value_names().and_then(|names| names.first());
        let names = placeholder.and_then(|name| {
            PLACEHOLDERS.iter().find(|(known, _)| *known == name.as_str()).map(|(_, names)| *names)
        });
        match names {
            Some(names) => argument
                .add(ArgValueCompleter::new(move |current: &OsStr| candidates(names, current))),
            None => argument,
        }
    });
    command.mut_subcommands(with_names)
}

/// Returns the names that begin with `current`; returns no names if no service runs.
fn candidates(names: Names, current: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let Some(current) = current.to_str() else { return Vec::new() };
    let found = super::block_on(async {
        let asked = tokio::time::timeout(PATIENCE, ask(names, &words)).await;
        Ok(asked.ok().flatten().unwrap_or_default())
    });
    let found = found.unwrap_or_default().into_iter();
    found.filter(|name| name.starts_with(current)).map(CompletionCandidate::new).collect()
}

async fn ask(names: Names, words: &[OsString]) -> Option<Vec<String>> {
    let file = option(words, "--config").map(PathBuf::from);
    let file = file.or_else(|| std::env::var_os("ORRERY_CONFIG").map(PathBuf::from));
    let config = place::of_service_or_defaults(file.as_deref()).ok()?;
    let mut admin = Admin::running(&config).await?;
    let (path, list, field) = match names {
        Names::Models => ("/admin/models".to_owned(), "models", "slug"),
        Names::Organizations => ("/admin/organizations".to_owned(), "organizations", "name"),
        Names::Workflows => {
            if let Some(organization) = option(words, "--org").and_then(OsStr::to_str) {
                admin.act_for(organization);
            }
            let query = query(&[("limit", "100"), ("sort_key", "updated_at")]);
            (format!("/api/workflows/api/v1/workflows?{query}"), "workflows", "slug")
        }
    };
    let answer = admin.get(&path).await.ok()?;
    let names = answer.get(list)?.as_array()?.iter().filter_map(|one| one.get(field)?.as_str());
    Some(names.map(str::to_owned).collect())
}

/// Returns the value of an option on the command line that is being completed.
fn option<'w>(words: &'w [OsString], name: &str) -> Option<&'w OsStr> {
    let mut words = words.iter().map(OsString::as_os_str);
    while let Some(word) = words.next() {
        if word == name {
            return words.next();
        }
        let value = word.to_str().and_then(|word| word.strip_prefix(name)?.strip_prefix('='));
        if let Some(value) = value {
            return Some(OsStr::new(value));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_in_the_help_of_commands() {
        let mut found = Vec::new();
        let mut waiting: Vec<Command> = vec![commands()];
        while let Some(command) = waiting.pop() {
            for argument in command.get_arguments() {
                let names = argument.get_value_names().unwrap_or_default().iter();
                found.extend(names.map(|name| name.to_string()));
            }
            waiting.extend(command.get_subcommands().cloned());
        }
        for (placeholder, _) in PLACEHOLDERS {
            assert!(found.iter().any(|name| name == placeholder), "{placeholder}");
        }
    }

    #[test]
    fn option_is_found_in_both_forms() {
        let words: Vec<OsString> =
            ["orrery", "--config=a.toml", "model", "--org", "b"].map(OsString::from).to_vec();
        assert_eq!(option(&words, "--config"), Some(OsStr::new("a.toml")));
        assert_eq!(option(&words, "--org"), Some(OsStr::new("b")));
        assert_eq!(option(&words, "--model"), None);
    }
}
