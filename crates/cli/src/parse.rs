//! Parses the command line. This module adds features that clap lacks: `--json` before the command,
//! and suggestions and completions without hidden commands.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _, Parser as _};

use super::Arguments;
use super::groups::grouped;
use orrery_domain::spelling::nearest;

/// Parses a command line. `--json` may also precede the command.
pub(super) fn understood(
    words: impl IntoIterator<Item = OsString>,
) -> Result<Arguments, clap::Error> {
    let words = with_json_last(words.into_iter().collect());
    let parsed = Arguments::try_parse_from(words.clone());
    parsed.map_err(|error| {
        if error.kind() == ErrorKind::DisplayHelp {
            return grouped().try_get_matches_from(words).err().unwrap_or(error);
        }
        with_near_command(error)
    })
}

/// Moves a `--json` that precedes the command to a position where the command accepts it.
fn with_json_last(mut words: Vec<OsString>) -> Vec<OsString> {
    let mut at = 1;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()) {
        match word {
            "--json" => {
                let json = words.remove(at);
                let has_command =
                    words.iter().skip(at).any(|word| !word.as_encoded_bytes().starts_with(b"-"));
                let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
                words.insert(if has_command { end } else { at }, json);
                break;
            }
            "--config" => at += 2,
            option if option.starts_with('-') => at += 1,
            _command => break,
        }
    }
    words
}

/// Commands that users know from other programs, and the equivalents in this program. None of these
/// words is a likely misspelling of a real command such as `restore`.
const ELSEWHERE: [(&str, &str); 5] = [
    (
        "start",
        "`orrery serve` starts the service in this terminal; `systemctl start orrery` starts an installed service",
    ),
    (
        "stop",
        "`systemctl stop orrery` stops an installed service; Ctrl+C stops a service in a terminal",
    ),
    ("logs", "`journalctl --unit orrery` shows the log of an installed service"),
    ("restart", "`systemctl restart orrery` restarts an installed service"),
    (
        "status",
        "`orrery service status` shows the status of an installed service; `orrery doctor` finds its problems",
    ),
];

/// Replaces clap's suggestions with the most similar visible command, if any.
fn with_near_command(mut error: clap::Error) -> clap::Error {
    let unknown = error.get(ContextKind::InvalidSubcommand).map(ToString::to_string);
    let suggested = error.remove(ContextKind::SuggestedSubcommand);
    let is_it = |(command, _): &&(&str, &str)| unknown.as_deref() == Some(command);
    if let Some((_, tip)) = ELSEWHERE.iter().find(is_it) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*tip).into()]));
        return error;
    }
    if let (Some(unknown), Some(ContextValue::Strings(suggested))) = (unknown, suggested) {
        let all = Arguments::command();
        let is_hidden = |name: &str| all.find_subcommand(name).is_some_and(Command::is_hide_set);
        let visible = suggested.iter().map(String::as_str).filter(|name| !is_hidden(name));
        if let Some(near) = nearest(&unknown, &visible.collect::<Vec<_>>()) {
            let near = ContextValue::Strings(vec![near.to_owned()]);
            error.insert(ContextKind::SuggestedSubcommand, near);
        }
    }
    // clap prints an empty line before its tips, even if there are no tips.
    if let Some(ContextValue::StyledStrs(tips)) = error.get(ContextKind::Suggested)
        && tips.is_empty()
    {
        error.remove(ContextKind::Suggested);
    }
    error
}

/// Returns the command-line definition without hidden commands, which people never type.
pub(super) fn visible_commands() -> Command {
    let all = Arguments::command();
    let visible = all.get_subcommands().filter(|command| !command.is_hide_set());
    Command::new("orrery")
        .args(all.get_arguments())
        .subcommands(visible)
        .version(env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(line: &str) -> String {
        understood(line.split(' ').map(OsString::from)).unwrap_err().to_string()
    }

    #[test]
    fn cli_suggests_only_near_commands() {
        for (line, near) in [
            ("orrery keys", "key"),
            ("orrery modle list", "model"),
            ("orrery upgrades", "upgrade"),
            ("orrery executions", "execution"),
            ("orrery chats", "chat"),
            ("orrery worklfow push", "workflow"),
            ("orrery key lst", "list"),
            ("orrery files list", "file"),
        ] {
            let said = refusal(line);
            assert!(said.contains(&format!("a similar subcommand exists: '{near}'")), "{said}");
            assert!(!said.contains("\n\n\n"), "{said}");
        }
        for line in [
            "orrery logs",
            "orrery key frobnicate",
            "orrery restart",
            "orrery stop",
            "orrery guards",
            "orrery llm-workers",
        ] {
            let said = refusal(line);
            assert!(!said.contains("similar") && !said.contains("\n\n\n"), "{said}");
        }
    }

    #[test]
    fn cli_names_the_command_for_service_verbs() {
        for (verb, tip) in ELSEWHERE {
            assert!(refusal(&format!("orrery {verb}")).contains(tip), "{verb}");
        }
    }
}
