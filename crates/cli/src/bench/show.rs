//! Renders a report as text: a table and bar charts.

use super::figure::{Figure, Report, Unit};
use crate::measures::{NONE, grouped};
use crate::output::{Column, table};

/// Width of the longest bar, in columns.
const BAR: usize = 40;
/// Block characters, from one eighth of a column to a full column.
const EIGHTHS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
/// If the spread of the rounds exceeds this fraction of their median, the result is reported as
/// unreliable.
const UNSTEADY: f64 = 0.25;

/// Renders the whole report.
pub(super) fn report(report: &Report, earlier: Option<&Report>, in_colour: bool) -> String {
    let rounds = match report.rounds {
        1 => "one round of each".to_owned(),
        rounds => format!("medians of {rounds} rounds"),
    };
    let date = report.measured_at.get(..10).unwrap_or_default();
    let mut text = format!(
        "{}\norrery {}, {date}, {rounds}, {:.0} s in all\n",
        report.machine.line(),
        report.version,
        report.seconds
    );
    if let Some(earlier) = earlier {
        let date = earlier.measured_at.get(..10).unwrap_or_default();
        text += &format!("before: {} ({}, {date})\n", earlier.machine.line(), earlier.version);
    }
    text.push('\n');
    match earlier {
        None => {
            let columns = [
                Column::Text("WHAT"),
                Column::Number("FIGURE"),
                Column::Number("SPREAD OF ROUNDS"),
            ];
            text += &table(&columns, report.figures.iter().map(own_row), in_colour, None);
            text += "\nPer second, on a logarithmic scale:\n\n";
            text += &rates(&report.figures);
        }
        Some(earlier) => {
            let columns = [
                Column::Text("WHAT"),
                Column::Number("BEFORE"),
                Column::Number("NOW"),
                Column::Number("SPEED"),
            ];
            let rows = report.figures.iter().map(|figure| compared_row(figure, earlier));
            text += &table(&columns, rows, in_colour, None);
            text += "\nSpeed: relative to the earlier report; above 1 is better in every line.\n\n";
            text += &speeds(&report.figures, earlier);
        }
    }
    for note in notes(report, earlier) {
        text += &format!("\nnote: {note}\n");
    }
    text
}

fn own_row(figure: &Figure) -> Vec<String> {
    let differ = spread(figure).map_or_else(String::new, |part| format!("{:.0} %", part * 100.0));
    vec![figure.name.clone(), figure.unit.show(figure.value), differ]
}

/// Returns the spread of the rounds as a fraction of their median.
fn spread(figure: &Figure) -> Option<f64> {
    (figure.high > figure.low && figure.value > 0.0)
        .then(|| (figure.high - figure.low) / figure.value)
}

fn before<'r>(figure: &Figure, earlier: &'r Report) -> Option<&'r Figure> {
    earlier.figures.iter().find(|one| one.id == figure.id)
}

fn compared_row(figure: &Figure, earlier: &Report) -> Vec<String> {
    let before = before(figure, earlier);
    let speed = before.and_then(|before| figure.speed_against(before));
    vec![
        figure.name.clone(),
        before.map_or_else(|| NONE.to_owned(), |before| before.unit.show(before.value)),
        figure.unit.show(figure.value),
        speed.map_or_else(|| NONE.to_owned(), |speed| format!("{speed:.2}")),
    ]
}

/// Draws a bar that fills the fraction `part` of the width.
fn bar(part: f64, width: usize) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the width")]
    let eighths = (part.clamp(0.0, 1.0) * (width * 8) as f64).round() as usize;
    let mut text = "█".repeat(eighths / 8);
    if let Some(last) = (eighths % 8).checked_sub(1).and_then(|at| EIGHTHS.get(at)) {
        text.push(*last);
    }
    text
}

fn width_of_names<'f>(figures: impl Iterator<Item = &'f Figure>) -> usize {
    figures.map(|figure| figure.name.chars().count()).max().unwrap_or(0)
}

/// Draws the rates per second as bars on a logarithmic scale, so that the service's rates can be
/// compared with the rates of the disk and of loopback requests.
fn rates(figures: &[Figure]) -> String {
    let mut rates: Vec<&Figure> = figures
        .iter()
        .filter(|figure| figure.unit == Unit::PerSecond && figure.value > 0.0)
        .collect();
    rates.sort_by(|one, other| other.value.total_cmp(&one.value));
    let highest = rates.first().map_or(1.0, |figure| figure.value.log10()).ceil().max(1.0);
    let names = width_of_names(rates.iter().copied());
    let mut text = String::new();
    for figure in rates {
        let bar = bar(figure.value.log10() / highest, BAR);
        text += &format!("  {:<names$}  {bar} {}\n", figure.name, grouped(figure.value));
    }
    let mut axis = String::new();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few divisions")]
    let divisions = highest as usize;
    for division in 0..=divisions {
        let at = BAR * division / divisions.max(1);
        let label = match division {
            0..=2 => grouped(10_f64.powi(i32::try_from(division).unwrap_or(0))),
            3..=5 => format!("{}k", grouped(10_f64.powi(i32::try_from(division - 3).unwrap_or(0)))),
            _ => format!("{}M", grouped(10_f64.powi(i32::try_from(division - 6).unwrap_or(0)))),
        };
        axis = format!("{axis:<at$}{label}");
    }
    text + &format!("  {:<names$}  {axis}\n", "")
}

/// Draws the speedups as bars, with a mark at 1.
fn speeds(figures: &[Figure], earlier: &Report) -> String {
    let speeds: Vec<(&Figure, f64)> = figures
        .iter()
        .filter_map(|figure| Some((figure, figure.speed_against(before(figure, earlier)?)?)))
        .collect();
    let highest = speeds.iter().map(|(_, speed)| *speed).fold(2.0, f64::max);
    let names = width_of_names(speeds.iter().map(|(figure, _)| *figure));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the width")]
    let mark = (BAR as f64 / highest).round() as usize;
    let mut text = String::new();
    for (figure, speed) in speeds {
        let mut cells: Vec<char> = format!("{:<BAR$}", bar(speed / highest, BAR)).chars().collect();
        if let Some(cell) = cells.get_mut(mark).filter(|cell| **cell == ' ') {
            *cell = '┊';
        }
        let bar: String = cells.into_iter().collect();
        text += &format!("  {:<names$}  {} {speed:.2}\n", figure.name, bar);
    }
    text
}

/// Lists the reasons why the results may be unreliable.
fn notes(report: &Report, earlier: Option<&Report>) -> Vec<String> {
    let mut notes = Vec::new();
    if !report.is_optimized || earlier.is_some_and(|earlier| !earlier.is_optimized) {
        notes.push(
            "measured with an unoptimized build, whose figures are meaningless: use a release build"
                .to_owned(),
        );
    }
    let load = report.machine.load_before;
    if load > 0.5 * report.machine.cores as f64 {
        notes.push(format!(
            "the box was busy beforehand (load {load:.1}): measure while nothing else runs"
        ));
    }
    let unsteady =
        report.figures.iter().filter(|figure| spread(figure).is_some_and(|part| part > UNSTEADY));
    let unsteady: Vec<&str> = unsteady.map(|figure| figure.name.as_str()).collect();
    if !unsteady.is_empty() {
        notes.push(format!(
            "the rounds vary widely for: {}; something else may be using the box",
            unsteady.join("; ")
        ));
    }
    if let Some(earlier) = earlier {
        let cpu = (&report.machine.cpu, report.machine.cores);
        if cpu != (&earlier.machine.cpu, earlier.machine.cores) {
            notes.push(
                "another processor: compare the speeds with those of SHA-256 and loopback"
                    .to_owned(),
            );
        }
    }
    notes
}

#[cfg(test)]
#[path = "show_tests.rs"]
mod tests;
