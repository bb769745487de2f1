//! Colors and bars. The screen uses only the terminal's sixteen colors, so that the terminal's
//! theme determines their look. Without colors, font weight and words express the same information.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use super::figures::Curve;

/// Bars of increasing height, in eighths.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The levels above which a gauge shows a warning or an alarm.
const GAUGE_WARNS: f64 = 0.75;
const GAUGE_ALARMS: f64 = 0.9;

/// The style of the screen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Theme {
    /// Whether to use colors.
    pub(super) has_colour: bool,
}

impl Theme {
    pub(super) fn colour(self, colour: Color) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new() }
    }

    /// Returns the style for labels.
    pub(super) fn faint(self) -> Style {
        if self.has_colour { Style::new().fg(Color::DarkGray) } else { Style::new() }
    }

    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn good(self) -> Style {
        self.colour(Color::Green)
    }

    pub(super) fn warning(self) -> Style {
        self.colour(Color::Yellow)
    }

    pub(super) fn alarm(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Returns the style of a number that should be 0.
    pub(super) fn should_be_zero(self, value: f64) -> Style {
        if value < 0.05 { self.faint() } else { self.alarm() }
    }

    /// Draws a fill level as a bar of this width.
    pub(super) fn gauge(self, part: f64, width: usize) -> [Span<'static>; 2] {
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        let full = filled(part, width);
        let style = match part {
            part if part >= GAUGE_ALARMS => self.alarm(),
            part if part >= GAUGE_WARNS => self.warning(),
            _ => self.good(),
        };
        let rest = width.saturating_sub(full);
        [Span::styled("━".repeat(full), style), Span::styled("─".repeat(rest), self.faint())]
    }
}

/// Returns the number of full cells; at least one if the value is above 0.
fn filled(part: f64, width: usize) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the width")]
    let full = (part * width as f64).round() as usize;
    if part > 0.0 { full.clamp(1, width.max(1)) } else { 0 }
}

/// Draws the newest points of a curve as rows of bars, top row first. The highest point fills all
/// rows.
pub(super) fn bars(curve: Option<&Curve>, width: usize, rows: usize) -> Vec<String> {
    let empty = Curve::new();
    let curve = curve.unwrap_or(&empty);
    let points: Vec<f64> = curve.iter().skip(curve.len().saturating_sub(width)).copied().collect();
    let highest = points.iter().copied().fold(0.0, f64::max);
    let eighths = rows * 8;
    let heights: Vec<usize> = points
        .iter()
        .map(|point| if highest > 0.0 { filled(point / highest, eighths) } else { 0 })
        .collect();
    (0..rows)
        .rev()
        .map(|row| {
            let bar = |height: &usize| {
                // The bottom row is never empty, so that idle time looks different from missing
                // data.
                let own = height.saturating_sub(row * 8).min(8).max(usize::from(row == 0));
                BARS.get(own).copied().unwrap_or(' ')
            };
            let line: String = heights.iter().map(bar).collect();
            format!("{line:>width$}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_grow_with_the_points_and_show_the_newest() {
        let curve: Curve = [0.0, 1.0, 2.0, 4.0, 8.0].into_iter().collect();
        assert_eq!(bars(Some(&curve), 5, 1), ["▁▁▂▄█"]);
        assert_eq!(bars(Some(&curve), 7, 2), ["      █", "  ▁▂▄██"]);
        assert_eq!(bars(Some(&curve), 2, 1), ["▄█"]);
        assert_eq!(bars(None, 3, 1), ["   "]);
        let still: Curve = [0.0; 3].into_iter().collect();
        assert_eq!(bars(Some(&still), 4, 1), [" ▁▁▁"]);
    }

    #[test]
    fn gauges_have_their_width_at_any_part() {
        for has_colour in [false, true] {
            for part in [f64::NAN, -1.0, 0.0, 0.001, 0.5, 0.95, 7.0] {
                let gauge = Theme { has_colour }.gauge(part, 10);
                assert_eq!(gauge.iter().map(Span::width).sum::<usize>(), 10, "{part}");
                assert!(has_colour || gauge.iter().all(|span| span.style.fg.is_none()));
            }
        }
    }
}
