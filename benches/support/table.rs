//! Tables on standard output: aligned columns, the first column left-aligned, figures
//! right-aligned.

/// A header and the rows of text below it.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these columns.
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|&text| text.to_owned()).collect()] }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints the table.
    pub(crate) fn print(&self) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
            if index == 0 {
                println!(
                    "{}",
                    "-".repeat(widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1))
                );
            }
        }
    }
}

/// Formats a whole number with thousands separators.
pub(crate) fn number(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a ratio.
pub(crate) fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

/// Formats bytes as mebibytes with this many decimals.
pub(crate) fn mebibytes<const DECIMALS: usize>(bytes: f64) -> String {
    format!("{:.DECIMALS$} MiB", bytes / (1024.0 * 1024.0))
}

/// Formats seconds as milliseconds with this many decimals.
pub(crate) fn milliseconds<const DECIMALS: usize>(seconds: f64) -> String {
    format!("{:.DECIMALS$} ms", seconds * 1000.0)
}

/// Formats the minimum and maximum of the samples; a dash if there are none.
pub(crate) fn spread(samples: &[f64], show: &dyn Fn(f64) -> String) -> String {
    let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
    let most = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if samples.is_empty() { "-".to_owned() } else { format!("{} to {}", show(least), show(most)) }
}
