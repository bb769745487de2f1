//! Groups the commands for `orrery --help` and the manual page. Clap itself can group only options.

use clap::{Command, CommandFactory as _};

use super::Arguments;

/// Clap's style for headings. Clap removes it if the output is a pipe.
const HEADING: &str = "\u{1b}[1m\u{1b}[4m";
const END: &str = "\u{1b}[0m";

/// The groups: their headings, and their commands in the order of the help.
pub(super) const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Run the service",
        &["serve", "config", "check", "doctor", "alerts", "top", "bench", "reload"],
    ),
    ("Manage access", &["org", "key", "owner", "member", "secret", "usage", "balance", "audit"]),
    (
        "Work",
        &[
            "model",
            "chat",
            "agent",
            "decide",
            "workflow",
            "schedule",
            "execution",
            "chain",
            "file",
            "endpoint",
            "webhooks",
            "apply",
            "worker",
        ],
    ),
    (
        "Keep the data",
        &["backup", "verify", "restore", "resume", "upgrade", "compact", "salvage", "seal"],
    ),
    ("Install", &["service", "schema", "completions", "man"]),
];

/// Returns the command-line definition, with the commands grouped in the help of `orrery`.
pub(super) fn grouped() -> Command {
    let all = Arguments::command();
    let mut template = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in GROUPS {
        let commands = names.iter().filter_map(|name| all.find_subcommand(name)).cloned();
        let commands = commands.enumerate().map(|(place, command)| command.display_order(place));
        let mut group = Command::new("orrery")
            .disable_help_flag(true)
            .disable_help_subcommand(true)
            .max_term_width(100)
            .help_template("{subcommands}")
            .subcommands(commands);
        let commands = group.render_help().ansi().to_string();
        template.push_str(&format!("\n{HEADING}{heading}:{END}\n{}\n", commands.trim_end()));
    }
    template.push_str(&format!("\n{HEADING}Options:{END}\n{{options}}{{after-help}}"));
    all.help_template(template)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_visible_command_is_in_one_group() {
        let all = Arguments::command();
        let visible = all.get_subcommands().filter(|command| !command.is_hide_set());
        let visible: BTreeSet<&str> = visible.map(Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let as_set: BTreeSet<&str> = grouped.iter().copied().collect();
        assert_eq!(as_set, visible, "add the command to GROUPS");
        assert_eq!(grouped.len(), as_set.len(), "a command is in two groups");
    }

    #[test]
    fn help_lists_commands_in_groups() {
        let help = grouped().render_help().to_string();
        for (heading, names) in GROUPS {
            let from = help.find(&format!("\n{heading}:\n")).unwrap_or_else(|| panic!("{help}"));
            let until = help[from + 1..].find("\n\n").map_or(help.len(), |at| from + 1 + at);
            for name in names {
                let is_line = |line: &str| line.trim_start().split(' ').next() == Some(*name);
                assert!(help[from..until].lines().any(is_line), "{heading} {name}: {help}");
            }
        }
        for hidden in ["guard", "fence", "llm-worker", "whisper-worker", "onnx-worker"] {
            assert!(!help.contains(&format!("  {hidden} ")), "{help}");
        }
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
        assert!(help.contains("\nOptions:\n") && help.contains("--config <FILE>"), "{help}");
    }
}
