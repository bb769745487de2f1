//! Terminal output: tables, JSON, notes and errors.
//!
//! Results go to standard output, notes and errors to standard error. Control characters are
//! removed from untrusted text, so that a name cannot move the cursor. Output is colored only on a
//! terminal, and only if `NO_COLOR` is not set.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use comfy_table::{
    Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets,
};
use ratatui::crossterm::terminal;
use serde::Serialize;

/// Number of spaces between two columns of a table.
const COLUMN_GAP: u16 = 2;
/// The gap before each heading and cell if a row takes several lines.
const PAIR_GAP: &str = "  ";
/// Minimum width of a column whose cells contain several words.
const PROSE_MIN: u16 = 20;

/// Prints the result of one command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output {
    json: bool,
}

/// A column: its heading, and whether it contains text or numbers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Column {
    Text(&'static str),
    Number(&'static str),
}

impl Output {
    pub(super) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Prints `value` as JSON if `--json` is set, otherwise as the table.
    pub(super) fn show<T: Serialize>(
        &self,
        value: &T,
        columns: &[Column],
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> anyhow::Result<()> {
        if self.json {
            return json(value);
        }
        raw(table(columns, rows, in_colour(&std::io::stdout()), screen_width()).as_bytes())
    }

    /// Returns whether `--json` is set.
    pub(super) const fn is_json(&self) -> bool {
        self.json
    }
}

/// Prints `value` as indented JSON.
pub(super) fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    let text =
        serde_json::to_string_pretty(value).context("the answer cannot be written as JSON")?;
    raw(format!("{}\n", escaped(&text)).as_bytes())
}

/// Escapes the characters in JSON text that a terminal would interpret. These characters occur only
/// in JSON strings, where serde_json already escapes characters below U+0020.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '\n' => text.push(letter),
            letter if is_command(letter) => {
                text.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            letter => text.push(letter),
        }
    }
    text
}

/// Writes bytes to standard output.
pub(super) fn raw(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context("standard output cannot be written")
}

/// Streams untrusted text to standard output, without terminal escape sequences.
pub(super) fn text(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(visible(text).as_bytes())?;
    out.flush()
}

/// Writes a line that may contain untrusted text to standard output.
pub(super) fn line(text: &str) -> anyhow::Result<()> {
    raw(format!("{}\n", visible(text)).as_bytes())
}

/// Returns the text without control characters, except line breaks and tabs, and without
/// bidirectional controls.
pub(super) fn visible(text: &str) -> String {
    let is_shown = |letter: &char| matches!(letter, '\n' | '\t') || !is_command(*letter);
    text.chars().filter(is_shown).collect()
}

/// Returns whether a terminal interprets the character or reorders the text around it.
fn is_command(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns a path inside the current folder as a relative path, such as `./orrery-data`. Other
/// paths stay unchanged.
pub(super) fn short(path: &Path) -> PathBuf {
    let here = std::env::current_dir().ok();
    let inside = here.and_then(|here| path.strip_prefix(here).ok());
    inside.map_or_else(|| path.to_path_buf(), |inside| Path::new(".").join(inside))
}

/// Writes a note to standard error. Write errors are ignored.
pub(super) fn note(text: &str) {
    drop(writeln!(std::io::stderr().lock(), "{}", visible(text)));
}

/// Prints an error with all its causes.
pub(super) fn error(error: &anyhow::Error) {
    let red = in_colour(&std::io::stderr());
    let (start, end) = if red { ("\u{1b}[1;31m", "\u{1b}[0m") } else { ("", "") };
    let text = visible(&chain(error));
    drop(writeln!(std::io::stderr().lock(), "{start}error:{end} {text}"));
    if !rustix::process::geteuid().is_root() && is_refused_by_system(error) {
        note("  run it with sudo, or as the user of the service");
    }
}

/// Returns whether the operating system denied access that another user may have.
fn is_refused_by_system(error: &anyhow::Error) -> bool {
    let refused = std::io::Error::from(std::io::ErrorKind::PermissionDenied).to_string();
    error.chain().any(|cause| cause.to_string().to_lowercase().contains(&refused))
}

/// Formats an error and its causes, one per line.
pub(super) fn chain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
}

/// Returns whether the reader of standard output has closed the pipe, as `head` does.
pub(super) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Returns whether to color the output on this stream.
pub(super) fn in_colour(stream: &impl std::io::IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns whether standard output is a terminal.
pub(super) fn on_a_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Returns the width of the terminal on standard output; `None` for a pipe or a file.
pub(super) fn screen_width() -> Option<u16> {
    let size = on_a_terminal().then(terminal::size)?;
    size.ok().map(|(width, _height)| width).filter(|width| *width > 0)
}

/// Lays out rows under their headings, and ends each line with a line break. Cells with several
/// words wrap if the table is wider than the screen. If the table is still too wide, each row takes
/// several lines.
pub(super) fn table(
    columns: &[Column],
    rows: impl IntoIterator<Item = Vec<String>>,
    in_colour: bool,
    screen: Option<u16>,
) -> String {
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.iter().map(|text| plain(text)).collect()).collect();
    let least = least_widths(columns, &rows);
    let total: u16 = least.iter().map(|width| width.saturating_add(COLUMN_GAP)).sum();
    if let Some(screen) = screen.filter(|screen| total > *screen) {
        return rows.iter().map(|row| paragraph(columns, row, in_colour, screen)).collect();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if in_colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table.set_header(columns.iter().map(|column| {
        let (Column::Text(head) | Column::Number(head)) = column;
        Cell::new(head).add_attribute(Attribute::Bold)
    }));
    table.add_rows(rows);
    if let Some(screen) = screen {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(screen);
        for (column, least) in table.column_iter_mut().zip(least) {
            let lower = Width::Fixed(least.saturating_add(COLUMN_GAP));
            column.set_constraint(ColumnConstraint::LowerBoundary(lower));
        }
    }
    for (column, kind) in table.column_iter_mut().zip(columns) {
        column.set_padding((0, COLUMN_GAP));
        if matches!(kind, Column::Number(_)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Formats a row for a narrow screen: its title on the first line, its other cells with their
/// headings on the next lines. A word that is longer than the screen is not split, so that an id
/// can be copied.
fn paragraph(columns: &[Column], row: &[String], in_colour: bool, screen: u16) -> String {
    let (bold, end) = if in_colour { ("\u{1b}[1m", "\u{1b}[0m") } else { ("", "") };
    let heads = columns.iter().map(|(Column::Text(head) | Column::Number(head))| *head);
    // A first column that contains a sign has no heading.
    let title = if heads.clone().next() == Some("") { 2 } else { 1 };
    let mut text = format!("{bold}{}{end}", row.get(..title).unwrap_or(row).join(" "));
    let mut used = usize::from(screen);
    for (head, cell) in heads.zip(row).skip(title) {
        let pair = PAIR_GAP.len() + head.chars().count() + 1 + cell.chars().count();
        let mut gap = if used + pair > usize::from(screen) { "\n  " } else { PAIR_GAP };
        for (place, word) in std::iter::once(head).chain(cell.split(' ')).enumerate() {
            let letters = word.chars().count();
            if place > 0 {
                gap = if used + 1 + letters > usize::from(screen) { "\n  " } else { " " };
            }
            used = if gap.starts_with('\n') { PAIR_GAP.len() } else { used + gap.len() } + letters;
            let (start, end) = if place == 0 { (bold, end) } else { ("", "") };
            text.push_str(&[gap, start, word, end].concat());
        }
    }
    text + "\n"
}

/// Returns the minimum width of each column. Ids and numbers are never split; cells with several
/// words wrap.
fn least_widths(columns: &[Column], rows: &[Vec<String>]) -> Vec<u16> {
    let heads = columns.iter().map(|(Column::Text(head) | Column::Number(head))| *head);
    let width = |text: &str| u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
    let of_column = |(index, head): (usize, &str)| {
        let cells = || rows.iter().filter_map(|row| row.get(index)).map(String::as_str);
        let is_prose = cells().any(|cell| cell.contains(' '));
        let words = || cells().flat_map(|cell| cell.split(' '));
        let widest = words().map(width).max().unwrap_or(0);
        let least = if is_prose { widest.min(PROSE_MIN) } else { widest };
        least.max(width(head))
    };
    heads.enumerate().map(of_column).collect()
}

/// Returns the text without control characters; a dash if the text is empty.
pub(super) fn plain(text: &str) -> String {
    match text {
        "" => "-".to_owned(),
        text => text.chars().map(|c| if is_command(c) { '\u{fffd}' } else { c }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_text_has_no_terminal_commands() {
        for (text, expect) in [
            ("a\u{1b}[2Jb", "a[2Jb"),
            ("a\u{9b}2Jb\u{7f}\r\u{8}", "a2Jb"),
            ("a\u{202e}b\u{2066}c", "abc"),
            ("a\u{200f}b\u{200e}c", "abc"),
            ("é日\n\tx", "é日\n\tx"),
        ] {
            assert_eq!(visible(text), expect);
        }
        assert_eq!(plain("a\u{1b}[2J\u{202e}b\n"), "a\u{fffd}[2J\u{fffd}b\u{fffd}");
    }

    #[test]
    fn json_has_no_terminal_commands() {
        for value in
            ["\u{9b}31m", "\u{202e}b\u{2066}c", "\u{7f}\u{85}", "\u{1b}[2J\n", "é日\u{1f600}"]
        {
            let json = serde_json::to_string_pretty(&[value]).unwrap();
            let shown = escaped(&json);
            assert!(shown.chars().all(|letter| letter == '\n' || !is_command(letter)), "{shown:?}");
            assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap(), [value]);
        }
    }

    #[test]
    fn cli_table_aligns_and_strips_control_characters() {
        let columns = [Column::Text("NAME"), Column::Number("RUNNING"), Column::Text("NOTE")];
        let rows = [
            vec!["caption".to_owned(), "12".to_owned(), String::new()],
            vec!["b\u{1b}[2J".to_owned(), "3".to_owned(), "slow".to_owned()],
        ];
        insta::assert_snapshot!(table(&columns, rows.clone(), false, None), @"
        NAME     RUNNING  NOTE
        caption       12  -
        b�[2J          3  slow
        ");
        let coloured = table(&columns, rows, true, None);
        assert!(coloured.contains("\u{1b}[1m") && !coloured.contains("\u{1b}[2J"), "{coloured:?}");
    }

    #[test]
    fn cli_table_wraps_prose_to_the_screen_and_keeps_ids() {
        let columns = [Column::Text(""), Column::Text("WHAT"), Column::Text("FOUND")];
        let id = "0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e";
        let found = "45 of 270 GB are free (16 %); below 12900 MiB new work is refused";
        let rows = [vec!["!".to_owned(), "disk".to_owned(), found.to_owned()]];
        insta::assert_snapshot!(table(&columns, rows.clone(), false, Some(50)), @"
           WHAT  FOUND
        !  disk  45 of 270 GB are free (16 %); below
                 12900 MiB new work is refused
        ");
        assert_eq!(table(&columns, rows.clone(), false, Some(300)).lines().count(), 2);
        assert_eq!(table(&columns, rows, false, None).lines().count(), 2, "a pipe has no width");
        let rows = [vec!["!".to_owned(), id.to_owned(), found.to_owned()]];
        for (screen, widest) in [(80, 80), (66, 66)] {
            let text = table(&columns, rows.clone(), false, Some(screen));
            assert!(text.lines().all(|line| line.chars().count() <= widest), "{text}");
            assert!(text.contains(id), "{text}");
        }
        insta::assert_snapshot!(table(&columns, rows, false, Some(40)), @r"
        ! 0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e
          FOUND 45 of 270 GB are free (16 %);
          below 12900 MiB new work is refused
        ");
    }

    #[test]
    fn cli_table_puts_rows_on_several_lines_on_a_narrow_screen() {
        let columns = [
            Column::Text("MODEL"),
            Column::Text("TITLE"),
            Column::Text("OUTPUT"),
            Column::Text("RUNNER"),
            Column::Text("HEALTH"),
            Column::Number("RUNNING"),
            Column::Number("QUEUED"),
            Column::Number("LIMIT"),
        ];
        let row = |text: &str| text.split('|').map(str::to_owned).collect::<Vec<_>>();
        let rows = [
            row("text-sentiment|How a text sounds|object|builtin|ok|0|0|2"),
            row(
                "a-model-of-a-company|A title of many words that goes on|array|command|failing|12|3|1",
            ),
        ];
        insta::assert_snapshot!(table(&columns, rows.clone(), false, Some(60)), @r"
        text-sentiment
          TITLE How a text sounds  OUTPUT object  RUNNER builtin
          HEALTH ok  RUNNING 0  QUEUED 0  LIMIT 2
        a-model-of-a-company
          TITLE A title of many words that goes on  OUTPUT array
          RUNNER command  HEALTH failing  RUNNING 12  QUEUED 3
          LIMIT 1
        ");
        for screen in 24..140 {
            let text = table(&columns, rows.clone(), false, Some(screen));
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= usize::from(screen), "{screen}:\n{text}");
            for word in rows.iter().flatten().flat_map(|cell| cell.split(' ')) {
                assert!(text.split_whitespace().any(|found| found == word), "{word}:\n{text}");
            }
        }
        assert!(table(&columns, rows, true, Some(60)).contains("\u{1b}[1mHEALTH\u{1b}[0m failing"));
    }

    #[test]
    fn cli_error_shows_its_causes() {
        let error = anyhow::anyhow!("no such file").context("the store cannot be opened");
        assert_eq!(chain(&error), "the store cannot be opened\n  no such file");
    }

    #[test]
    fn cli_recognizes_permission_denied_by_the_system() {
        let refused = || std::io::Error::from_raw_os_error(13);
        let error = anyhow::Error::new(refused()).context("/var/lib/orrery/control.sock");
        assert!(is_refused_by_system(&error));
        let in_words = anyhow::anyhow!("/etc/orrery/config.toml cannot be read: {}", refused());
        assert!(is_refused_by_system(&in_words));
        assert!(!is_refused_by_system(&anyhow::anyhow!("the key does not exist")));
    }

    #[test]
    fn cli_closed_pipe_is_not_an_error() {
        let closed = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(is_closed_pipe(&anyhow::Error::new(closed).context("written")));
        assert!(!is_closed_pipe(&anyhow::anyhow!("broken pipe")));
    }
}
