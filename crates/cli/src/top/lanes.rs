//! Draws the table of lanes and, if there is room, the table of hosts next to it.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use unicode_segmentation::UnicodeSegmentation as _;

use super::figures::{Figures, LaneFigures};
use super::state::State;
use super::theme::{Theme, bars};
use crate::measures::{amount, grouped, time_or_none};
use crate::output::plain;

/// Width of the table of hosts.
pub(super) const HOSTS_WIDTH: u16 = 52;
/// Minimum width of a name, and the minimum table width at which `NAME_MIN_WIDE` applies.
const NAME_MIN: usize = 14;
const WIDE: usize = 100;
const NAME_MIN_WIDE: usize = 26;
const NAME_MAX: usize = 48;
const GAP: usize = 1;

/// A column of the lanes: its heading and its width. A column that does not fit is dropped together
/// with all less important columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Running,
    Queued,
    Rate,
    P99,
    P50,
    Failed,
    Bar,
    Ended,
    Trend,
}

/// The columns in order of importance.
const BY_WEIGHT: [Column; 9] = [
    Column::Running,
    Column::Queued,
    Column::Rate,
    Column::P99,
    Column::P50,
    Column::Failed,
    Column::Trend,
    Column::Bar,
    Column::Ended,
];
/// The columns in display order.
const BY_PLACE: [Column; 9] = [
    Column::Running,
    Column::Bar,
    Column::Queued,
    Column::Rate,
    Column::Trend,
    Column::P50,
    Column::P99,
    Column::Failed,
    Column::Ended,
];

impl Column {
    const fn head(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Bar => "",
            Self::Queued => "QUEUED",
            Self::Rate => "RATE/S",
            Self::Trend => "TREND",
            Self::P50 => "P50",
            Self::P99 => "P99",
            Self::Failed => "FAILED",
            Self::Ended => "ENDED",
        }
    }

    const fn width(self) -> usize {
        match self {
            Self::Running => 9,
            Self::Bar => 8,
            Self::Trend => 16,
            Self::Ended => 10,
            Self::Queued | Self::Rate | Self::P50 | Self::P99 | Self::Failed => 7,
        }
    }
}

/// Returns the columns that fit next to the name.
fn columns(width: usize) -> Vec<Column> {
    let name = if width < WIDE { NAME_MIN } else { NAME_MIN_WIDE };
    let mut left = width.saturating_sub(name + 2);
    let fits = BY_WEIGHT.iter().take_while(|column| {
        let needed = column.width() + GAP;
        let fits = needed <= left;
        left = left.saturating_sub(needed);
        fits
    });
    let fits: Vec<Column> = fits.copied().collect();
    BY_PLACE.into_iter().filter(|column| fits.contains(column)).collect()
}

/// Truncates text to this many columns, with an ellipsis.
fn cut(text: &str, width: usize) -> String {
    let text = plain(text);
    if Span::raw(text.as_str()).width() <= width {
        return text;
    }
    let mut kept = String::new();
    for letter in text.graphemes(true) {
        let wider = format!("{kept}{letter}…");
        if Span::raw(wider).width() > width {
            break;
        }
        kept.push_str(letter);
    }
    kept + "…"
}

/// Draws the lanes in the visible range.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &mut State, theme: Theme) {
    state.set_room(usize::from(area.height.saturating_sub(1)));
    let width = usize::from(area.width);
    let columns = columns(width);
    let taken: usize = columns.iter().map(|column| column.width() + GAP).sum();
    let name = width.saturating_sub(taken + 2).clamp(NAME_MIN.min(width), NAME_MAX);
    let mut head = format!(" {:<name$}", "LANE");
    for column in &columns {
        let width = column.width();
        let is_drawn = matches!(column, Column::Trend | Column::Bar);
        let text = column.head();
        head += &if is_drawn { format!(" {text:<width$}") } else { format!(" {text:>width$}") };
    }
    let mut lines = vec![Line::styled(head, theme.strong())];
    if state.lanes().is_empty() {
        lines.push(Line::styled(" nothing has run yet", theme.faint()));
    }
    for lane in state.lanes().iter().skip(state.scrolled).take(state.room) {
        let mut spans = vec![name_of(lane, name, theme)];
        for column in &columns {
            spans.push(Span::raw(" "));
            spans.extend(cell(*column, lane, state, theme));
        }
        lines.push(Line::from(spans));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn name_of(lane: &LaneFigures, width: usize, theme: Theme) -> Span<'static> {
    let (sign, style) = match (&lane.failing, lane.kind.as_str()) {
        (Some(_), _) => ("!", theme.alarm()),
        (None, "workflow") => ("»", theme.colour(Color::Cyan)),
        (None, "agent") => ("@", theme.colour(Color::Magenta)),
        (None, _) => (" ", Style::new()),
    };
    let kind = if lane.kind == "agent" { "agent " } else { "" };
    let text = cut(&format!("{kind}{}", lane.shown_name()), width.saturating_sub(1));
    let text = format!("{sign}{text}");
    let missing = (width + 1).saturating_sub(Span::raw(text.as_str()).width());
    Span::styled(text + &" ".repeat(missing), style)
}

fn cell(column: Column, lane: &LaneFigures, state: &State, theme: Theme) -> Vec<Span<'static>> {
    let width = column.width();
    let quiet = |is_quiet: bool| if is_quiet { theme.faint() } else { Style::new() };
    let right = |text: String, style: Style| vec![Span::styled(format!("{text:>width$}"), style)];
    match column {
        Column::Running if lane.cap == 0 => right(lane.running.to_string(), quiet(true)),
        Column::Running => {
            right(format!("{}/{}", lane.running, lane.cap), quiet(lane.running == 0))
        }
        Column::Bar => {
            let part = lane.running as f64 / lane.cap.max(1) as f64;
            theme.gauge(part, width).to_vec()
        }
        Column::Queued => right(grouped(lane.queued as f64), quiet(lane.queued == 0)),
        Column::Rate => right(amount(lane.rate), quiet(lane.rate < 0.05)),
        Column::Trend => {
            let name = (lane.kind.clone(), lane.name.clone());
            let curve = state.history.curves.lanes.get(&name);
            let bars = bars(curve, width, 1).pop().unwrap_or_default();
            vec![Span::styled(bars, theme.colour(Color::Green))]
        }
        Column::P50 => right(time_or_none(lane.p50), quiet(lane.p50.is_none())),
        Column::P99 => right(time_or_none(lane.p99), quiet(lane.p99.is_none())),
        Column::Failed => right(amount(lane.failed_rate), theme.should_be_zero(lane.failed_rate)),
        Column::Ended => right(grouped(lane.ended as f64), quiet(true)),
    }
}

/// Draws the hosts with their request rates and latencies.
pub(super) fn draw_hosts(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &State,
    figures: &Figures,
    theme: Theme,
) {
    let head = format!(
        "{:<10}{:>8} {:<9}{:>8}{:>8}{:>8}",
        "HOST", "RATE/S", " TREND", "P50", "P99", "5XX/S"
    );
    let mut lines = vec![Line::styled(head, theme.strong())];
    for host in &figures.hosts {
        let curve = state.history.curves.hosts.get(&host.host);
        let bars = bars(curve, 8, 1).pop().unwrap_or_default();
        let requests = &host.requests;
        let style = if requests.rate < 0.05 { theme.faint() } else { Style::new() };
        lines.push(Line::from(vec![
            Span::styled(format!("{:<10}", cut(&host.host, 10)), style),
            Span::styled(format!("{:>8}  ", amount(requests.rate)), style),
            Span::styled(bars, theme.colour(Color::Cyan)),
            Span::styled(format!("{:>8}", time_or_none(requests.p50)), style),
            Span::styled(format!("{:>8}", time_or_none(requests.p99)), style),
            Span::styled(
                format!("{:>8}", amount(requests.failed_rate)),
                theme.should_be_zero(requests.failed_rate),
            ),
        ]));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_dropped_by_weight_and_keep_their_order() {
        assert_eq!(columns(20), []);
        assert_eq!(columns(36), [Column::Running, Column::Queued]);
        let of_80 = [
            Column::Running,
            Column::Queued,
            Column::Rate,
            Column::P50,
            Column::P99,
            Column::Failed,
        ];
        assert_eq!(columns(80), of_80);
        assert_eq!(columns(160), BY_PLACE);
        for width in 0..200 {
            let taken: usize = columns(width).iter().map(|column| column.width() + GAP).sum();
            assert!(taken <= width, "{width}");
        }
    }

    #[test]
    fn names_are_cut_between_letters_and_lose_control_characters() {
        assert_eq!(cut("caption", 7), "caption");
        assert_eq!(cut("caption-small", 7), "captio…");
        assert_eq!(cut("a\u{1b}[2J", 9), "a\u{fffd}[2J");
        assert_eq!(cut("模型模型", 5), "模型…");
        assert_eq!(cut("e\u{301}e\u{301}e\u{301}", 2), "e\u{301}…");
    }
}
