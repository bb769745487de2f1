//! The language of everything that a person reads: a short list of phrasings that are not plain,
//! modern English, each with what to write instead. Code, comments, messages, tests, documents, the
//! example configuration and the status page are all held to it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::tree::files_below;

/// Phrasings to avoid, and what to write instead.
struct Rule {
    phrases: &'static [&'static str],
    /// Longer phrases that contain one of `phrases` and are good English.
    except: &'static [&'static str],
    instead: &'static str,
}

const fn rule(phrases: &'static [&'static str], instead: &'static str) -> Rule {
    Rule { phrases, except: &[], instead }
}

const RULES: &[Rule] = &[
    Rule {
        phrases: &["is no", "are no", "was no", "were no"],
        except: &[
            "is no longer",
            "are no longer",
            "was no longer",
            "were no longer",
            "there is no",
            "there are no",
            "there was no",
            "there were no",
        ],
        instead: "\"is not a\", or \"must be a\" in an error",
    },
    Rule {
        phrases: &["stand", "stands"],
        except: &[
            "stand for",
            "stand in for",
            "stand still",
            "stands for",
            "stands in for",
            "stands still",
        ],
        instead: "\"is\", \"is stored\" or \"the status of\"",
    },
    rule(&["whoever"], "\"anyone who\", or name the actor"),
    rule(&["for ever"], "\"permanently\" or \"without a limit\""),
    rule(&["told"], "\"notified\", \"reported\" or \"returned\""),
    rule(&["anew"], "\"again\", or a verb such as \"rewrite\" or \"restart\""),
    rule(&["meanwhile"], "\"in the meantime\" or \"at the same time\""),
    rule(&["of late"], "\"recently\""),
    rule(&["by way of"], "\"through\""),
    rule(&["hence", "whence"], "\"so\" or \"therefore\""),
    rule(&["upon"], "\"on\""),
    rule(&["whilst", "amongst"], "\"while\", \"among\""),
    rule(&["thereof", "therein", "wherein"], "\"of it\", \"in it\", \"in which\""),
    rule(&["lest"], "\"so that ... does not\""),
    rule(&["is gone", "are gone"], "\"is deleted\", \"has ended\" or \"no longer exists\""),
    rule(
        &["give back", "gives back", "given back", "gave back"],
        "\"return\", \"release\" or \"free\"",
    ),
];

/// Texts that keep a phrasing: the file, the phrasing, and why.
const ALLOWED: &[(&str, &str, &str)] =
    &[("src/runners/builtin/tests.rs", "stands", "a sample sentence whose sentiment is measured")];

const FILES: &[&str] =
    &["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "config.example.toml"];
const FOLDERS: &[&str] = &["src", "tests", "benches", "docs", "fuzz", "static"];
const ENDINGS: &[&str] = &["rs", "md", "toml", "snap", "html", "js", "css"];
/// This file names what it looks for.
const OWN: &str = "tests/tidy/prose.rs";

struct Word {
    /// In lower case.
    text: String,
    /// From 1.
    line: usize,
    /// Only white space, or the start of a comment's next line, separates it from the word before.
    follows: bool,
}

/// The words of a text. A sentence may continue on the next line of a comment or a string.
fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut follows = false;
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.trim_start().trim_start_matches(['/', '!', '#', '*', '>', '-']);
        let mut word = String::new();
        for c in content.trim_end_matches('\\').chars().chain([' ']) {
            if c.is_alphanumeric() || c == '_' || (c == '-' && !word.is_empty()) {
                word.extend(c.to_lowercase());
                continue;
            }
            if !word.is_empty() {
                words.push(Word { text: std::mem::take(&mut word), line, follows });
                follows = true;
            }
            follows &= c.is_whitespace();
        }
    }
    words
}

fn has_phrase(words: &[Word], at: usize, phrase: &str) -> bool {
    phrase.split(' ').enumerate().all(|(offset, expected)| {
        let word = words.get(at + offset);
        word.is_some_and(|word| word.text == expected && (offset == 0 || word.follows))
    })
}

/// Whether the phrase at `at` is part of a longer one that is good English.
fn is_excepted(words: &[Word], at: usize, rule: &Rule) -> bool {
    rule.except.iter().any(|longer| {
        let length = longer.split(' ').count();
        (at.saturating_sub(length - 1)..=at).any(|start| has_phrase(words, start, longer))
    })
}

/// Every banned phrase with its rule, by its first word: most words of a text begin none.
fn phrases_by_first_word() -> BTreeMap<&'static str, Vec<(&'static str, &'static Rule)>> {
    let mut phrases = BTreeMap::<_, Vec<_>>::new();
    for rule in RULES {
        for phrase in rule.phrases {
            phrases.entry(phrase.split(' ').next().unwrap()).or_default().push((*phrase, rule));
        }
    }
    phrases
}

/// Each banned phrasing in `text`: its line, the phrasing, and what to write instead.
fn findings(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let words = words(text);
    let phrases = phrases_by_first_word();
    let mut findings = Vec::new();
    for (at, word) in words.iter().enumerate() {
        for (phrase, rule) in phrases.get(word.text.as_str()).into_iter().flatten() {
            if has_phrase(&words, at, phrase) && !is_excepted(&words, at, rule) {
                findings.push((word.line, *phrase, rule.instead));
            }
        }
    }
    findings
}

#[test]
fn texts_are_written_in_plain_english() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<PathBuf> = FILES.iter().map(|file| root.join(file)).collect();
    files.extend(FOLDERS.iter().flat_map(|folder| files_below(&root.join(folder), ENDINGS)));
    assert!(files.len() > 300, "only {} files found", files.len());
    let mut unused = ALLOWED.to_vec();
    let mut found = Vec::new();
    for file in files {
        let path = file.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        if path == OWN {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
        for (line, phrase, instead) in findings(&text) {
            let is_allowance =
                |&(file, allowed, _): &(&str, &str, &str)| file == path && allowed == phrase;
            if ALLOWED.iter().any(is_allowance) {
                unused.retain(|one| !is_allowance(one));
            } else {
                found.push(format!("{path}:{line}: \"{phrase}\": write {instead}"));
            }
        }
    }
    assert!(found.is_empty(), "{} phrasings to replace:\n{}", found.len(), found.join("\n"));
    assert!(unused.is_empty(), "no longer needed in ALLOWED: {unused:?}");
}

#[test]
fn banned_phrasing_is_found_wherever_it_is_written() {
    for (text, expected) in [
        ("//! It is no text.", vec![(1, "is no")]),
        ("a\n/// It is\n/// no text.", vec![(2, "is no")]),
        ("let a = \"x is \\\n    no text\";", vec![(1, "is no")]),
        ("Whoever asks is TOLD.", vec![(1, "whoever"), (1, "told")]),
        ("let told = 1;", vec![(1, "told")]),
        ("* of\n* late", vec![(1, "of late")]),
        ("The row stands\nthere.", vec![(1, "stands")]),
        ("There is no text, and none are\n// no longer there.", vec![]),
        ("There is. No text is\n\nstored", vec![]),
        ("let is_no_text = stands_for(\"stands for\");", vec![]),
        ("This is: no text", vec![]),
        ("A stand-in is no-op.", vec![]),
    ] {
        let found: Vec<_> =
            findings(text).into_iter().map(|(line, phrase, _)| (line, phrase)).collect();
        assert_eq!(found, expected, "{text}");
    }
    for rule in RULES {
        for phrase in rule.phrases {
            assert_eq!(findings(&format!("It {phrase} x.")).len(), 1, "{phrase}");
        }
        for longer in rule.except {
            assert!(findings(&format!("It, {longer} x.")).is_empty(), "{longer}");
        }
    }
}
