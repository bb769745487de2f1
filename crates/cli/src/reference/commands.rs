//! The page about the commands: the usage, arguments and examples of each command, from clap and
//! from the manual pages.

use clap::{Arg, Command, CommandFactory as _};

use super::page::{Page, escape, outside_code};
use crate::Arguments;
use crate::groups::GROUPS;
use crate::manual::{ENVIRONMENT, EXAMPLES, EXIT_STATUS, FAILURES};

pub(super) fn page() -> String {
    let mut root = Arguments::command().disable_help_subcommand(true);
    root.build();
    let mut page = Page::new("Command reference", "the grammar of the command line");
    page.text(
        "`orrery COMMAND --help` prints the same text, and `orrery man FOLDER` writes it as manual \
         pages. Without `--config FILE`, a command uses the service in the current folder, or else \
         the installed service (`/etc/orrery/config.toml`), and prints which one it uses. Only \
         `serve` creates a new store. All commands accept `--config`, and commands that print a \
         table accept `--json`, before or after the command.",
    );
    for (heading, names) in GROUPS {
        let rows = names.iter().filter_map(|name| root.find_subcommand(name)).map(|command| {
            let words = words(command);
            [format!("[`{words}`](#{})", words.replace(' ', "-")), about(command)]
        });
        page.text(&format!("**{heading}**"));
        page.table(["command", "effect"], &rows.collect::<Vec<_>>());
    }
    page.heading(2, "Options of all commands");
    page.table(["option", "meaning"], &arguments(&root, true));
    let rows = ENVIRONMENT.iter().map(|term| [format!("`{}`", term.path), prose(term.text)]);
    page.table(["environment variable", "meaning"], &rows.collect::<Vec<_>>());
    let rows = EXIT_STATUS.iter().map(|(code, text)| [(*code).to_owned(), prose(text)]);
    page.table(["exit code", "meaning"], &rows.collect::<Vec<_>>());
    for name in GROUPS.iter().flat_map(|(_, names)| *names) {
        show(&mut page, root.find_subcommand(name).unwrap(), 2);
    }
    page.finish()
}

fn show(page: &mut Page, command: &Command, level: usize) {
    let words = words(command);
    page.heading(level, words);
    page.text(&format!("{}.", about(command).trim_end_matches('.')));
    let long = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    if let Some((_, rest)) = long.split_once("\n\n") {
        page.text(&prose(rest));
    }
    let mut plain = command.clone();
    let usage = plain.render_usage().to_string();
    page.text(&format!(
        "`{}`",
        usage.trim_start_matches("Usage: ").trim().replace("\n       ", "`, `")
    ));
    page.table(["argument", "meaning"], &arguments(command, false));
    let name = words.strip_prefix("orrery ").unwrap_or(words);
    for (_, text) in FAILURES.iter().filter(|(of, _)| *of == name) {
        page.text(&format!("Exit code 1: {}", prose(text)));
    }
    let is_leaf = visible(command).next().is_none();
    let examples = EXAMPLES.iter().filter(|(_, line)| is_leaf && is_of(line, words));
    let examples: Vec<String> = examples.map(|(text, line)| format!("{text}: `{line}`")).collect();
    if !examples.is_empty() {
        page.list(examples);
    }
    for one in visible(command) {
        show(page, one, level + 1);
    }
}

/// Returns whether a line runs the command with these words.
fn is_of(line: &str, words: &str) -> bool {
    let mut rest = line.split(' ').filter(|word| !matches!(*word, "--config" | "config.toml"));
    words.split(' ').all(|word| rest.next() == Some(word))
}

/// Returns the words of a command, such as `orrery key create`.
fn words(command: &Command) -> &str {
    command.get_bin_name().unwrap_or_else(|| command.get_name())
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|one| !one.is_hide_set())
}

fn about(command: &Command) -> String {
    command.get_about().map(|text| prose(&text.to_string())).unwrap_or_default()
}

/// Returns the table rows for a command's arguments: either its global options, or its own
/// arguments.
fn arguments(command: &Command, is_global: bool) -> Vec<[String; 2]> {
    let shown = command.get_arguments().filter(|one| {
        !one.is_hide_set()
            && (is_global || !(one.is_global_set() || matches!(one.get_id().as_str(), "help")))
    });
    shown.map(|one| [format!("`{}`", name_of(one)), meaning(one)]).collect()
}

/// Returns the argument as users write it: `--name <NAME>`.
fn name_of(argument: &Arg) -> String {
    let values = argument.get_action().takes_values();
    let names = argument.get_value_names().unwrap_or_default();
    let id = argument.get_id().as_str().to_uppercase();
    let value = match names {
        [] => id,
        names => names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" "),
    };
    match (argument.get_long(), argument.get_short()) {
        (Some(long), Some(short)) if values => format!("-{short}, --{long} {value}"),
        (Some(long), None) if values => format!("--{long} {value}"),
        (Some(long), Some(short)) => format!("-{short}, --{long}"),
        (Some(long), None) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => value,
    }
}

fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let mut text = help.map(|text| prose(&text.to_string())).unwrap_or_default();
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set() && argument.get_action().takes_values())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !values.is_empty() {
        text.push_str(&format!(" ({})", values.join(", ")));
    }
    if let Some(variable) = argument.get_env().and_then(|name| name.to_str()) {
        text.push_str(&format!(" [`{variable}`]"));
    }
    let defaults: Vec<_> =
        argument.get_default_values().iter().filter_map(|one| one.to_str()).collect();
    if !defaults.is_empty() && argument.get_action().takes_values() {
        text.push_str(&format!(" [default: `{}`]", defaults.join(" ")));
    }
    if argument.is_required_set() {
        text.push_str(" [required]");
    }
    text.trim().to_owned()
}

fn prose(text: &str) -> String {
    outside_code(text, &escape)
}
