//! Parses the fenced blocks of a document, each with its mark.
//!
//! A hidden comment on the line before a block marks it:
//!
//! | comment | meaning |
//! |---|---|
//! | `<!-- not run: REASON -->` | not run in a test; the reason must be in a list |
//! | `<!-- file: PATH -->` | the reader saves the block in this file |
//! | `<!-- configuration -->` | the configuration of the document's service |
//! | `<!-- answer -->` | the expected output of the previous block |

use std::fs;
use std::path::Path;

/// The mark in the comment before a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mark {
    NotRun(String),
    File(String),
    Configuration,
    Answer,
}

/// One fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// The line of its opening fence, from 1.
    pub line: usize,
    pub language: String,
    pub text: String,
    pub mark: Option<Mark>,
}

/// One command of a `console` block, and its sample output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub line: String,
    pub shown: String,
}

/// Returns the blocks of the document at a path of the repository.
pub(crate) fn of(path: &str) -> Vec<Block> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    read(&fs::read_to_string(file).unwrap())
}

/// Parses the blocks of a document.
///
/// # Panics
///
/// Panics on a comment that resembles a mark but is invalid, and on an unterminated block.
pub(crate) fn read(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut before = "";
    let mut lines = (1..).zip(text.lines());
    while let Some((line, content)) = lines.next() {
        if let Some(language) = content.strip_prefix("```") {
            let mut text = String::new();
            loop {
                let (_, inside) = lines.next().unwrap_or_else(|| panic!("line {line} has no end"));
                if inside == "```" {
                    break;
                }
                text.push_str(inside);
                text.push('\n');
            }
            blocks.push(Block { line, language: language.to_owned(), text, mark: mark(before) });
        }
        before = content;
    }
    blocks
}

fn mark(line: &str) -> Option<Mark> {
    let said = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    Some(match said.split_once(": ") {
        Some(("not run", reason)) => Mark::NotRun(reason.to_owned()),
        Some(("file", path)) => Mark::File(path.to_owned()),
        None if said == "configuration" => Mark::Configuration,
        None if said == "answer" => Mark::Answer,
        _ => panic!("{line}: not a mark of a block"),
    })
}

impl Block {
    /// Returns whether the block runs as shell commands or as a program.
    pub(crate) fn is_run(&self) -> bool {
        let is_code = matches!(self.language.as_str(), "sh" | "console" | "python" | "js");
        is_code && !matches!(self.mark, Some(Mark::NotRun(_) | Mark::File(_)))
    }

    /// Returns the commands of a `console` block.
    pub(crate) fn commands(&self) -> Vec<Command> {
        let mut commands: Vec<Command> = Vec::new();
        let mut continues = false;
        for line in self.text.lines() {
            if continues {
                let command = commands.last_mut().unwrap();
                command.line.push('\n');
                command.line.push_str(line);
            } else if let Some(line) = line.strip_prefix("$ ") {
                commands.push(Command { line: line.to_owned(), shown: String::new() });
            } else {
                let at = self.line;
                let command = commands.last_mut();
                let command = command.unwrap_or_else(|| panic!("line {at}: no `$` before {line}"));
                command.shown.push_str(line);
                command.shown.push('\n');
                continue;
            }
            continues = line.ends_with('\\');
        }
        commands
    }
}

#[test]
fn blocks_have_their_marks_and_commands() {
    let text = "a\n<!-- file: b/c.toml -->\n```toml\nd = 1\n```\n<!-- none\n```console\n\
                $ e \\\n    f\ng\n$ h\n```\n<!-- not run: needs root -->\n```sh\ni\n```\n";
    let found = read(text);
    assert_eq!(found.len(), 3);
    let (line, toml) = (found[0].line, found[0].text.as_str());
    assert_eq!((line, toml, &found[0].mark), (3, "d = 1\n", &Some(Mark::File("b/c.toml".into()))));
    let command = |line: &str, shown: &str| Command { line: line.into(), shown: shown.into() };
    assert_eq!(found[1].commands(), [command("e \\\n    f", "g\n"), command("h", "")]);
    assert!(found[1].is_run() && !found[0].is_run() && !found[2].is_run());
    assert_eq!(found[2].mark, Some(Mark::NotRun("needs root".into())));
}
