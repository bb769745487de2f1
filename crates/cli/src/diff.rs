//! Creates unified diffs, colored on a terminal.

use std::fmt::Write as _;

use similar::{ChangeTag, TextDiff};

use super::output::visible;

/// Number of context lines around a change.
const CONTEXT_LINES: usize = 3;

/// A resource before and after a change, as YAML; empty if there are no fields to show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Texts {
    pub(super) before: String,
    pub(super) after: String,
}

/// Returns the diff from `old` to `new`, labeled with their names; empty if both are equal.
pub(super) fn unified(
    old_name: &str,
    old: &str,
    new_name: &str,
    new: &str,
    in_colour: bool,
) -> String {
    let diff = TextDiff::from_lines(old, new);
    let mut text = String::new();
    let (red, green, end) =
        if in_colour { ("\u{1b}[31m", "\u{1b}[32m", "\u{1b}[0m") } else { ("", "", "") };
    for hunk in diff.unified_diff().context_radius(CONTEXT_LINES).iter_hunks() {
        if text.is_empty() {
            // Here and below: writing to a String cannot fail.
            let (old_name, new_name) = (visible(old_name), visible(new_name));
            let _infallible = write!(text, "--- {old_name}\n+++ {new_name}\n");
        }
        let _infallible = writeln!(text, "{}", hunk.header());
        for change in hunk.iter_changes() {
            let (colour, sign) = match change.tag() {
                ChangeTag::Delete => (red, '-'),
                ChangeTag::Insert => (green, '+'),
                ChangeTag::Equal => ("", ' '),
            };
            let line = change.value().trim_end_matches('\n');
            let shown = visible(line);
            let end = if colour.is_empty() { "" } else { end };
            let _infallible = writeln!(text, "{colour}{sign}{shown}{end}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diff_shows_changed_lines_with_context() {
        let old = "a\nb\nc\nd\ne\nf\n";
        let shown = unified("old", old, "new", "a\nb\nc\nD\u{1b}[2J\ne\nf\n", false);
        assert_eq!(shown, "--- old\n+++ new\n@@ -1,6 +1,6 @@\n a\n b\n c\n-d\n+D[2J\n e\n f\n");
        let hostile = unified("a\u{1b}c", "x\n", "b", "\tx\u{202e}y\u{9b}2J\n", false);
        assert_eq!(hostile, "--- ac\n+++ b\n@@ -1 +1 @@\n-x\n+\txy2J\n");
        assert!(unified("a", old, "b", "x\n", true).contains("\u{1b}[32m+x\u{1b}[0m\n"));
        assert_eq!(unified("a", old, "b", old, true), "");
    }
}
