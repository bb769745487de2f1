//! Converts `config.example.toml` to the sections of `orrery.toml(5)`. A test compares the example
//! with the keys and defaults of the service.

use clap_mangen::roff::{Inline, Roff, bold, roman};

const EXAMPLE: &str = include_str!("../../../../config.example.toml");

/// A line of the example.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Blank,
    Comment(&'a str),
    Section(&'a str),
    /// A key with its default value.
    Key(&'a str),
    /// A key that is off by default, with an example value.
    Off(&'a str),
    /// A continuation line of a value.
    More,
}

fn line(text: &str) -> Line<'_> {
    let is_key = |text: &str| {
        let name = text.split(" = ").next().filter(|_| text.contains(" = ")).unwrap_or_default();
        let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.".contains(c);
        !name.is_empty() && name.chars().all(is_letter)
    };
    match text.strip_prefix('#') {
        None if text.trim().is_empty() => Line::Blank,
        None if text.starts_with('[') && text.ends_with(']') => Line::Section(text),
        None if is_key(text) => Line::Key(text),
        None => Line::More,
        Some(off) if off.starts_with('[') && off.ends_with(']') => Line::Section(off),
        Some(off) if is_key(off) => Line::Off(off),
        Some(comment) => Line::Comment(comment.strip_prefix(' ').unwrap_or(comment)),
    }
}

/// A part of the example.
#[derive(Debug)]
pub(crate) enum Block {
    Section(&'static str),
    Text(Vec<&'static str>),
    /// Keys that share one comment. The flag is true for a key that is off by default.
    Keys {
        keys: Vec<(&'static str, bool)>,
        comment: Vec<&'static str>,
    },
}

/// Splits the complete example into parts.
pub(crate) fn blocks() -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    let mut keys: Vec<(&str, bool)> = Vec::new();
    let mut is_off = false;
    for text in EXAMPLE.lines().chain([""]) {
        let found = line(text);
        // The comment before a key does not apply to later keys that are off by default.
        let continues = match found {
            Line::Key(_) => !is_off,
            Line::Off(_) => is_off,
            Line::More => true,
            Line::Blank | Line::Comment(_) | Line::Section(_) => false,
        };
        if found != Line::More {
            is_off = matches!(found, Line::Off(_));
        }
        if !keys.is_empty() && !continues {
            let (keys, comment) = (std::mem::take(&mut keys), std::mem::take(&mut comment));
            blocks.push(Block::Keys { keys, comment });
        }
        match found {
            Line::Comment(text) => comment.push(text),
            Line::Key(key) => keys.push((key, false)),
            Line::Off(key) => keys.push((key, true)),
            Line::More => {}
            Line::Blank => blocks.push(Block::Text(std::mem::take(&mut comment))),
            Line::Section(name) => {
                blocks.push(Block::Section(name));
                blocks.push(Block::Text(std::mem::take(&mut comment)));
            }
        }
    }
    blocks
}

/// Adds the complete example: comments as text, keys as the terms of a list.
pub(super) fn sections(roff: &mut Roff) {
    roff.control("SH", ["DESCRIPTION"]);
    let mut has_keys = false;
    for block in blocks() {
        match block {
            Block::Section(name) => {
                if !std::mem::replace(&mut has_keys, true) {
                    roff.control("SH", ["SECTIONS"]);
                }
                roff.control("SS", [name]);
            }
            Block::Text(comment) => paragraph(roff, &comment),
            Block::Keys { keys, comment } => {
                let term = |(key, is_off): (&'static str, bool)| {
                    let note = is_off.then(|| roman(" (off unless it is set)"));
                    [bold(key)].into_iter().chain(note).collect()
                };
                entry(roff, keys.into_iter().map(term).collect(), &comment);
            }
        }
    }
}

/// Adds keys that share one explanation.
fn entry(roff: &mut Roff, terms: Vec<Vec<Inline>>, comment: &[&str]) {
    for (place, term) in terms.into_iter().enumerate() {
        roff.control(if place == 0 { "TP" } else { "TQ" }, []);
        roff.text(term);
    }
    lines(roff, comment);
}

fn paragraph(roff: &mut Roff, comment: &[&str]) {
    if !comment.is_empty() {
        roff.control("PP", []);
        lines(roff, comment);
    }
}

/// Adds a comment as filled text, except before a value that the comment explains.
fn lines(roff: &mut Roff, comment: &[&str]) {
    for text in comment {
        if text.starts_with(['"', '{', '[']) {
            roff.control("br", []);
        }
        roff.text([roman(text.trim())]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_lines_are_told_apart() {
        for (text, expected) in [
            ("", Line::Blank),
            ("# A comment.", Line::Comment("A comment.")),
            ("# such = is prose", Line::Comment("such = is prose")),
            ("[hosts.base]", Line::Section("[hosts.base]")),
            ("keep = 7", Line::Key("keep = 7")),
            ("#every = \"24h\"", Line::Off("every = \"24h\"")),
            ("  { name = \"a\" },", Line::More),
        ] {
            assert_eq!(line(text), expected);
        }
    }

    #[test]
    fn configuration_page_has_every_key() {
        let mut roff = Roff::new();
        sections(&mut roff);
        let page = roff.to_roff().replace("\\-", "-");
        for text in EXAMPLE.lines() {
            let expected = match line(text) {
                Line::Section(name) => name,
                Line::Key(key) | Line::Off(key) => key.split(" = ").next().unwrap(),
                Line::Blank | Line::Comment(_) | Line::More => continue,
            };
            assert!(page.contains(expected), "{expected}");
        }
    }
}
