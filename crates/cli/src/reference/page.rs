//! A Markdown page with wrapped paragraphs, and tables with escaped cells.

/// Maximum line length of a paragraph, in characters.
const WIDTH: usize = 118;

pub(super) struct Page(String);

impl Page {
    /// Starts a page that is generated from `source`.
    pub(super) fn new(title: &str, source: &str) -> Self {
        let mut page = Self(String::new());
        page.heading(1, title);
        page.text(&format!(
            "<!-- Generated from {source}: see crates/cli/src/reference/mod.rs. -->"
        ));
        page
    }

    pub(super) fn heading(&mut self, level: usize, text: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(&format!("{} {}\n", "#".repeat(level), outside_code(text, &escape)));
    }

    /// Adds text. Empty lines separate paragraphs.
    pub(super) fn text(&mut self, text: &str) {
        for paragraph in text.split("\n\n").filter(|text| !text.trim().is_empty()) {
            self.0.push('\n');
            let mut width = 0;
            for word in paragraph.split_whitespace() {
                let length = word.chars().count();
                if width > 0 {
                    let fits = width + 1 + length <= WIDTH;
                    self.0.push(if fits { ' ' } else { '\n' });
                    width = if fits { width + 1 } else { 0 };
                }
                self.0.push_str(word);
                width += length;
            }
            self.0.push('\n');
        }
    }

    pub(super) fn list(&mut self, items: impl IntoIterator<Item = String>) {
        self.0.push('\n');
        for item in items {
            self.0.push_str(&format!("- {item}\n"));
        }
    }

    /// Adds a table, if it has rows. Empty columns are left out.
    pub(super) fn table<const N: usize>(&mut self, head: [&str; N], rows: &[[String; N]]) {
        if rows.is_empty() {
            return;
        }
        let columns: Vec<usize> =
            (0..N).filter(|at| rows.iter().any(|row| !row[*at].is_empty())).collect();
        let line = |cells: &[String; N]| {
            let cells: Vec<&str> = columns.iter().map(|at| cells[*at].as_str()).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        self.0.push('\n');
        self.0.push_str(&line(&head.map(str::to_owned)));
        self.0.push_str(&format!("|{}\n", "---|".repeat(columns.len())));
        for row in rows {
            self.0.push_str(&line(&row.clone().map(|text| cell(&text))));
        }
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// Returns text as a table cell.
fn cell(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace('|', "\\|")
}

/// Escapes characters that Markdown would interpret as HTML.
pub(super) fn escape(text: &str) -> String {
    text.replace('<', "&lt;")
}

/// Applies a function to the parts of a text that are not in code style.
pub(super) fn outside_code(text: &str, change: &dyn Fn(&str) -> String) -> String {
    let parts = text.split('`').enumerate();
    let parts = parts.map(|(at, part)| if at % 2 == 0 { change(part) } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("`")
}

/// Returns the anchor of a heading, as GitHub and mdBook derive it.
pub(super) fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}
