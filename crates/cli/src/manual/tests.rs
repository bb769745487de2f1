//! Tests that every page has its sections, and that every example is a valid command.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::*;
use crate::parse::understood;

fn pages() -> BTreeMap<String, String> {
    let pages = all().unwrap().into_iter();
    pages.map(|(name, text)| (name, String::from_utf8(text).unwrap().replace("\\-", "-"))).collect()
}

#[test]
fn manual_pages_have_all_sections() {
    let pages = pages();
    for (name, text) in pages.iter().filter(|(name, _)| name.ends_with(".1")) {
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "FILES", "ENVIRONMENT"] {
            assert!(text.contains(&format!("\n.SH {section}\n")), "{name} {section}");
        }
        for section in ["\"EXIT STATUS\"", "\"SEE ALSO\""] {
            assert!(text.contains(&format!("\n.SH {section}\n")), "{name} {section}: {text}");
        }
        let title = text.lines().find(|line| line.starts_with(".TH ")).unwrap();
        let upper = name.trim_end_matches(".1").to_uppercase();
        assert!(title.starts_with(&format!(".TH \"{upper}\" \"1\" \"")), "{title}");
        assert!(title.ends_with("\" \"Orrery manual\"") && !title.contains(" \" "), "{title}");
    }
    let root = &pages["orrery.1"];
    for (heading, names) in GROUPS {
        assert!(
            root.contains(&format!("\n.SS \"{heading}\"\n"))
                || root.contains(&format!("\n.SS {heading}\n")),
            "{heading}"
        );
        for name in names {
            assert!(root.contains(&format!("orrery-{name}")), "{name}");
            assert!(pages.contains_key(&format!("orrery-{name}.1")), "{name}");
        }
    }
    for hidden in
        ["guard", "fence", "builtin-worker", "llm-worker", "whisper-worker", "onnx-worker"]
    {
        assert!(!pages.contains_key(&format!("orrery-{hidden}.1")), "{hidden}");
        assert!(!root.contains(hidden), "{hidden}");
    }
    assert!(pages["orrery-doctor.1"].contains("At least one problem"));
    assert!(pages["orrery-key-create.1"].contains("orrery key create --name laptop"));
    assert!(pages["orrery.toml.5"].contains(".SH NAME\norrery.toml - "));
}

#[test]
fn manual_examples_are_valid_and_every_command_has_one() {
    for (text, line) in EXAMPLES {
        assert!(!text.ends_with('.'), "{text}");
        let words = shell_words(line);
        understood(words).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    for name in GROUPS.iter().flat_map(|(_, names)| *names) {
        let is_of = |(_, line): &&(&str, &str)| {
            line.split(' ').skip(1).find(|word| *word == *name).is_some()
        };
        assert!(EXAMPLES.iter().any(|example| is_of(&example)), "{name} has no example");
    }
    for (words, _) in FAILURES {
        assert!(find(words).is_some(), "{words}");
    }
    for term in FILES.iter().chain(&ENVIRONMENT) {
        term.commands.iter().for_each(|words| assert!(find(words).is_some(), "{words}"));
    }
}

fn find(words: &str) -> Option<Command> {
    words
        .split(' ')
        .try_fold(Arguments::command(), |command, word| command.find_subcommand(word).cloned())
}

/// Splits a line at spaces outside single quotes.
fn shell_words(line: &str) -> Vec<OsString> {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for letter in line.chars() {
        match letter {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            letter => words.last_mut().unwrap().push(letter),
        }
    }
    words.into_iter().map(OsString::from).collect()
}
