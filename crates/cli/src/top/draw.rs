//! Draws the state on a terminal of any size; a small terminal shows only the most important parts.
//! The output depends only on the state and the size.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Clear, Paragraph};

use super::figures::{Curve, Figures};
use super::lanes;
use super::state::{Contact, State};
use super::theme::{Theme, bars};
use crate::measures::{amount, bytes, grouped, span, time, time_or_none};
use crate::output::plain;

/// Minimum width of the terminal.
const WIDTH_MIN: u16 = 36;
const HEIGHT_MIN: u16 = 8;
/// Minimum height at which curves are drawn.
const HEIGHT_OF_TILES: u16 = 18;
const WIDTH_OF_TILES: u16 = 66;
/// Minimum height at which tall curves and the list of hosts are drawn.
const HEIGHT_OF_MUCH: u16 = 34;
/// Minimum width at which webhooks have a curve.
const WIDTH_OF_MUCH: u16 = 110;
/// Number of rows of a tall tile, and the maximum number of extra rows of a tile.
const HIGH_TILES: u16 = 9;
const GROWTH_MAX: u16 = 8;
/// Maximum number of warnings shown at once.
const WARNINGS_MAX: usize = 3;
/// Width of a gauge, in columns.
const GAUGE: usize = 9;
const GAUGE_WIDE: usize = 24;

const HELP: [(&str, &str); 8] = [
    ("q, Esc, Ctrl-C", "quit"),
    ("↑ ↓, j k", "scroll the lanes"),
    ("PgUp PgDn", "scroll by a page"),
    ("g G, Home End", "to the first, to the last"),
    ("s", "sort by: busy, rate, p99, name"),
    ("p", "freeze the display"),
    ("?, h", "this help"),
    ("» @ !", "a workflow, the agent, a model that is failing"),
];

/// Draws the complete screen. `clock` is the time of day.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State, theme: Theme, clock: &str) {
    let area = frame.area();
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let text = format!("a terminal of {WIDTH_MIN}x{HEIGHT_MIN} or more is needed");
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let notices = notices(state, theme);
    let notices_height = u16::try_from(notices.len()).unwrap_or(0);
    let [header, above, body, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(notices_height),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    line(frame, header, self::header(state, theme, clock));
    frame.render_widget(Paragraph::new(notices), above);
    match state.figures.clone() {
        None => waiting(frame, body, state, theme),
        Some(figures) => draw_body(frame, body, state, &figures, theme),
    }
    line(frame, footer, self::footer(state, theme));
    if state.shows_help {
        help(frame, area, theme);
    }
}

/// A line with a left part and a right part. If the line is too narrow, the right part is dropped.
type Sides = (Vec<Span<'static>>, Vec<Span<'static>>);

fn line(frame: &mut Frame<'_>, area: Rect, (left, right): Sides) {
    let (left, right) = (Line::from(left), Line::from(right).right_aligned());
    let has_room = left.width() + right.width() < usize::from(area.width);
    frame.render_widget(Paragraph::new(left), area);
    if has_room {
        frame.render_widget(Paragraph::new(right), area);
    }
}

fn header(state: &State, theme: Theme, clock: &str) -> Sides {
    let mut left = vec![Span::styled(" orrery", theme.strong())];
    if let Some(figures) = &state.figures {
        left.push(Span::styled(format!(" {}", plain(&figures.version)), theme.faint()));
    }
    left.push(Span::raw("  "));
    left.push(match (&state.contact, &state.figures) {
        (Contact::Asking, _) => Span::styled("○ asking", theme.faint()),
        (Contact::Away { .. }, _) => Span::styled("● away", theme.alarm()),
        (Contact::Answers, Some(figures)) if figures.warnings.is_empty() => {
            Span::styled("● ready", theme.good())
        }
        (Contact::Answers, figures) => {
            let count = figures.as_ref().map_or(0, |figures| figures.warnings.len());
            let plural = if count == 1 { "" } else { "s" };
            Span::styled(format!("● {count} warning{plural}"), theme.warning())
        }
    });
    if state.is_paused {
        left.push(Span::styled("  paused", theme.warning().add_modifier(Modifier::BOLD)));
    }
    left.push(Span::styled(format!("  {}", plain(&state.place)), theme.faint()));
    let mut right = Vec::new();
    if let Some(figures) = &state.figures {
        right.push(Span::styled("up ", theme.faint()));
        right.push(Span::raw(span(figures.uptime)));
    }
    right.push(Span::styled(format!("  {clock} "), theme.faint()));
    (left, right)
}

/// Returns notices about problems, one per line.
fn notices(state: &State, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Contact::Away { reason, seconds } = &state.contact {
        let since = span(*seconds as f64);
        let text = format!(" {} Retrying; last answer {since} ago.", sentence(reason));
        lines.push(Line::styled(text, theme.alarm()));
    }
    let warnings = state.figures.as_ref().map_or(&[][..], |figures| &figures.warnings);
    let shown = if warnings.len() > WARNINGS_MAX { WARNINGS_MAX - 1 } else { warnings.len() };
    for warning in warnings.iter().take(shown) {
        lines.push(Line::styled(format!(" ▲ {}", plain(warning)), theme.warning()));
    }
    if warnings.len() > shown {
        let more = format!(" ▲ and {} more: `orrery doctor` lists them", warnings.len() - shown);
        lines.push(Line::styled(more, theme.warning()));
    }
    lines
}

fn sentence(text: &str) -> String {
    let text = plain(text.lines().next().unwrap_or_default());
    if text.ends_with('.') { text } else { format!("{text}.") }
}

fn footer(state: &State, theme: Theme) -> Sides {
    let mut left = vec![Span::raw(" ")];
    let sort = format!("sort: {}", state.order.as_str());
    let pause = if state.is_paused { "resume" } else { "pause" };
    for (key, does) in [("q", "quit"), ("↑↓", "scroll"), ("s", &sort), ("p", pause), ("?", "help")]
    {
        left.push(Span::styled(key.to_owned(), theme.strong()));
        left.push(Span::styled(format!(" {does}   "), theme.faint()));
    }
    let count = state.lanes().len();
    let total = state.figures.as_ref().map_or(count, |figures| figures.lanes_total).max(count);
    let last = (state.scrolled + state.room).min(count);
    let right = match count {
        0 => String::new(),
        _ if last - state.scrolled == total => format!("{total} lanes "),
        _ => format!("{} to {last} of {total} lanes ", state.scrolled + 1),
    };
    (left, vec![Span::styled(right, theme.faint())])
}

fn waiting(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme) {
    let text = match &state.contact {
        Contact::Away { .. } => {
            "Waiting for the service. `orrery serve` or `systemctl start orrery` starts it."
        }
        Contact::Asking | Contact::Answers => "Querying the service.",
    };
    let [_, middle, _] =
        Layout::vertical([Constraint::Fill(1), Constraint::Length(1), Constraint::Fill(1)])
            .areas(area);
    frame.render_widget(Paragraph::new(Line::styled(text, theme.faint()).centered()), middle);
}

fn draw_body(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &mut State,
    figures: &Figures,
    theme: Theme,
) {
    let has_much = area.height >= HEIGHT_OF_MUCH;
    let has_tiles = area.height + 3 >= HEIGHT_OF_TILES && area.width >= WIDTH_OF_TILES;
    let is_wide = area.width >= WIDTH_OF_MUCH;
    let tiles_height = match (has_tiles, has_much) {
        (false, _) => 3,
        (true, false) => 6,
        (true, true) => HIGH_TILES + growth(area.height, state.lanes().len()),
    };
    let [_, tiles, webhooks, gauges, _, table] = Layout::vertical([
        Constraint::Length(u16::from(has_tiles)),
        Constraint::Length(tiles_height),
        Constraint::Length(u16::from(!(has_tiles && is_wide))),
        Constraint::Length(if area.width >= WIDTH_OF_TILES { 2 } else { 4 }),
        Constraint::Length(u16::from(has_tiles)),
        Constraint::Fill(1),
    ])
    .areas(area);
    if has_tiles {
        draw_tiles(frame, tiles, state, figures, theme, is_wide);
    } else {
        let lines: Vec<Line<'_>> =
            tile_texts(figures, theme).into_iter().take(3).map(short).collect();
        frame.render_widget(Paragraph::new(lines), tiles);
    }
    draw_webhooks(frame, webhooks, state, figures, theme);
    draw_gauges(frame, gauges, figures, theme);
    if is_wide && has_much {
        let [left, _, right] = Layout::horizontal([
            Constraint::Fill(1),
            Constraint::Length(2),
            Constraint::Length(lanes::HOSTS_WIDTH),
        ])
        .areas(table);
        lanes::draw(frame, left, state, theme);
        lanes::draw_hosts(frame, right, state, figures, theme);
    } else {
        lanes::draw(frame, table, state, theme);
    }
}

/// Returns the number of extra rows for the curves: half of the rows that the lanes do not need,
/// within bounds.
fn growth(height: u16, lanes: usize) -> u16 {
    let lanes = u16::try_from(lanes).unwrap_or(u16::MAX);
    let taken = (HIGH_TILES + 6).saturating_add(lanes);
    (height.saturating_sub(taken) / 2).min(GROWTH_MAX)
}

/// The contents of a tile: its name, its rate, the text next to the rate, and lines of values.
struct Tile {
    name: &'static str,
    rate: f64,
    beside: String,
    lines: [Vec<Span<'static>>; 2],
    colour: Color,
}

/// Formats alternating labels and values.
fn pairs(theme: Theme, pairs: &[(&'static str, String, Style)]) -> Vec<Span<'static>> {
    let mut spans = Vec::new();
    for (word, figure, style) in pairs {
        if !spans.is_empty() {
            spans.push(Span::raw("  "));
        }
        spans.push(Span::styled(format!("{word} "), theme.faint()));
        spans.push(Span::styled(figure.clone(), *style));
    }
    spans
}

fn tile_texts(figures: &Figures, theme: Theme) -> [Tile; 4] {
    [
        requests_tile(figures, theme),
        executions_tile(figures, theme),
        commits_tile(figures, theme),
        webhooks_tile(figures, theme),
    ]
}

fn times(theme: Theme, p50: Option<f64>, p99: Option<f64>) -> Vec<Span<'static>> {
    let plain = Style::new();
    pairs(theme, &[("p50", time_or_none(p50), plain), ("p99", time_or_none(p99), plain)])
}

fn requests_tile(Figures { requests, .. }: &Figures, theme: Theme) -> Tile {
    let refused = if requests.refused_rate < 0.05 { theme.faint() } else { theme.warning() };
    let failed = theme.should_be_zero(requests.failed_rate);
    let answers = [
        ("4xx", amount(requests.refused_rate) + "/s", refused),
        ("5xx", amount(requests.failed_rate) + "/s", failed),
    ];
    Tile {
        name: "Requests",
        rate: requests.rate,
        beside: format!("{} in flight", requests.in_flight),
        lines: [times(theme, requests.p50, requests.p99), pairs(theme, &answers)],
        colour: Color::Cyan,
    }
}

fn executions_tile(Figures { executions, .. }: &Figures, theme: Theme) -> Tile {
    let queued = [("queued", grouped(executions.queued as f64), Style::new())];
    let retrying = executions.retrying as f64;
    let failed = theme.should_be_zero(executions.failed_rate);
    let troubled = [
        ("failed", amount(executions.failed_rate) + "/s", failed),
        ("retrying", grouped(retrying), theme.should_be_zero(retrying)),
    ];
    Tile {
        name: "Executions",
        rate: executions.rate,
        beside: format!("{} running", grouped(executions.running as f64)),
        lines: [pairs(theme, &queued), pairs(theme, &troubled)],
        colour: Color::Green,
    }
}

fn commits_tile(Figures { commits, .. }: &Figures, theme: Theme) -> Tile {
    let sizes = [
        ("store", bytes(commits.store_bytes), Style::new()),
        ("log", bytes(commits.log_bytes), Style::new()),
    ];
    Tile {
        name: "Commits",
        rate: commits.rate,
        beside: commits.grouped.map_or_else(String::new, |each| format!("{each:.1} a flush")),
        lines: [times(theme, commits.p50, commits.p99), pairs(theme, &sizes)],
        colour: Color::Magenta,
    }
}

fn webhooks_tile(figures: &Figures, theme: Theme) -> Tile {
    let deliveries = &figures.deliveries;
    let mut waiting = vec![
        ("queued", at_least(figures, deliveries.queued), Style::new()),
        ("retrying", at_least(figures, deliveries.retrying), Style::new()),
    ];
    waiting.extend(lag(deliveries.lag, theme));
    let open = deliveries.open_circuits as f64;
    let failed = theme.should_be_zero(deliveries.failed_rate);
    let troubled = [
        ("failed", amount(deliveries.failed_rate) + "/s", failed),
        ("circuits open", grouped(open), theme.should_be_zero(open)),
    ];
    Tile {
        name: "Webhooks",
        rate: deliveries.rate,
        beside: format!("{} in flight", deliveries.in_flight),
        lines: [pairs(theme, &waiting), pairs(theme, &troubled)],
        colour: Color::Yellow,
    }
}

/// Returns how long the oldest due delivery has waited, if the wait is at least one second.
fn lag(seconds: f64, theme: Theme) -> Option<(&'static str, String, Style)> {
    (seconds >= 1.0).then(|| ("lag", time(seconds), theme.warning()))
}

/// Formats a count of deliveries, followed by `+` if the count is only a lower bound.
fn at_least(figures: &Figures, count: usize) -> String {
    let more = if figures.deliveries.is_capped && count >= 1000 { "+" } else { "" };
    grouped(count as f64) + more
}

/// Draws a tile as one line, for small terminals.
fn short(tile: Tile) -> Line<'static> {
    let mut spans = vec![
        Span::raw(format!(" {:<10} ", tile.name)),
        Span::styled(
            format!("{:>7}/s  ", amount(tile.rate)),
            Style::new().add_modifier(Modifier::BOLD),
        ),
    ];
    let [first, _] = tile.lines;
    spans.extend(first);
    Line::from(spans)
}

fn draw_tiles(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &State,
    figures: &Figures,
    theme: Theme,
    is_wide: bool,
) {
    let count = if is_wide { 4 } else { 3 };
    let columns = Layout::horizontal(vec![Constraint::Fill(1); count]).spacing(2);
    let inner = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    let curves = &state.history.curves;
    let curves = [&curves.requests, &curves.executions, &curves.commits, &curves.deliveries];
    let places = columns.split(inner);
    for ((tile, curve), place) in
        tile_texts(figures, theme).into_iter().zip(curves).zip(places.iter())
    {
        draw_tile(frame, *place, tile, curve, theme);
    }
}

fn draw_tile(frame: &mut Frame<'_>, area: Rect, tile: Tile, curve: &Curve, theme: Theme) {
    let width = usize::from(area.width);
    let rows = usize::from(area.height.saturating_sub(4));
    let rule = "─".repeat(width.saturating_sub(tile.name.len() + 1));
    let colour = theme.colour(tile.colour);
    let title = [
        Span::styled(tile.name, colour.add_modifier(Modifier::BOLD)),
        Span::styled(format!(" {rule}"), theme.faint()),
    ];
    let rate =
        vec![Span::styled(amount(tile.rate), theme.strong()), Span::styled("/s", theme.faint())];
    let [first, second] = tile.lines;
    let mut lines = vec![Line::from(title.to_vec()), Line::default()];
    lines.extend(bars(Some(curve), width, rows).into_iter().map(|bar| Line::styled(bar, colour)));
    lines.extend([Line::from(first), Line::from(second)]);
    frame.render_widget(Paragraph::new(lines), area);
    let beside = vec![Span::styled(tile.beside, theme.faint())];
    line(frame, Rect { y: area.y + 1, height: 1, ..area }, (rate, beside));
}

/// Draws the webhooks as one line, if there is no room for their tile.
fn draw_webhooks(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &State,
    figures: &Figures,
    theme: Theme,
) {
    if area.height == 0 {
        return;
    }
    let deliveries = &figures.deliveries;
    let curve = bars(Some(&state.history.curves.deliveries), 10, 1).pop().unwrap_or_default();
    let colour = theme.colour(Color::Yellow);
    let mut left = vec![
        Span::styled(" Webhooks  ", colour.add_modifier(Modifier::BOLD)),
        Span::styled(amount(deliveries.rate), theme.strong()),
        Span::styled("/s ", theme.faint()),
        Span::styled(curve, colour),
        Span::raw("  "),
    ];
    let open = deliveries.open_circuits as f64;
    let mut waiting = vec![
        ("in flight", grouped(deliveries.in_flight as f64), Style::new()),
        ("queued", at_least(figures, deliveries.queued), Style::new()),
        ("retrying", at_least(figures, deliveries.retrying), Style::new()),
        ("open", grouped(open), theme.should_be_zero(open)),
    ];
    waiting.extend(lag(deliveries.lag, theme));
    left.extend(pairs(theme, &waiting));
    line(frame, area, (left, Vec::new()));
}

fn draw_gauges(frame: &mut Frame<'_>, area: Rect, figures: &Figures, theme: Theme) {
    let Figures { disk, process, machine, .. } = figures;
    let cores = machine.cores.max(1) as f64;
    let part = |used: u64, whole: u64| if whole == 0 { 0.0 } else { used as f64 / whole as f64 };
    let used_memory = machine.memory_bytes.saturating_sub(machine.memory_available_bytes);
    let is_wide = area.width >= WIDTH_OF_MUCH;
    let load = if is_wide { format!(", load {:.2}", machine.load) } else { String::new() };
    let own = bytes(process.resident_bytes);
    let open = grouped(process.open_files as f64);
    let gauges = [
        (
            "cpu",
            process.cpu / cores,
            format!("{:.0} % of {} cores{load}", process.cpu * 100.0 / cores, machine.cores),
        ),
        (
            "memory",
            part(used_memory, machine.memory_bytes),
            format!("{own}, {} left", bytes(machine.memory_available_bytes)),
        ),
        (
            "disk",
            part(disk.total.saturating_sub(disk.free), disk.total),
            format!("{} of {} free", bytes(disk.free), bytes(disk.total)),
        ),
        (
            "files",
            part(process.open_files, process.open_files_max),
            format!("{open} of {} open", grouped(process.open_files_max as f64)),
        ),
    ];
    let width = if is_wide { GAUGE_WIDE } else { GAUGE };
    let texts = gauges.map(|(name, part, text)| {
        let mut spans = vec![Span::styled(format!(" {name:<7}"), theme.faint())];
        spans.extend(theme.gauge(part, width));
        spans.push(Span::raw(format!(" {text}")));
        Line::from(spans)
    });
    let per_line = if area.height >= 4 { 1 } else { 2 };
    let columns = Layout::horizontal(vec![Constraint::Fill(1); per_line]).split(area);
    let [cpu, memory, disk, files] = texts;
    let parts = match per_line {
        1 => vec![vec![cpu, memory, disk, files]],
        _ => vec![vec![cpu, disk], vec![memory, files]],
    };
    for (lines, place) in parts.into_iter().zip(columns.iter()) {
        frame.render_widget(Paragraph::new(lines), *place);
    }
}

fn help(frame: &mut Frame<'_>, area: Rect, theme: Theme) {
    let about = [
        "Rates cover the last 5 seconds, times the last minute.",
        "A lane is a model or a workflow. Its times include the time",
        "in the queue. `failed` counts failed executions per second.",
    ];
    let width = 66.min(area.width);
    let height = u16::try_from(HELP.len() + about.len() + 2).unwrap_or(0).min(area.height);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let keys = HELP.iter().map(|(key, does)| {
        Line::from(vec![
            Span::styled(format!("  {key:<16}"), theme.strong()),
            Span::raw((*does).to_owned()),
        ])
    });
    let about = about.iter().map(|text| Line::styled(format!("  {text}"), theme.faint()));
    let lines: Vec<Line<'_>> = keys.chain(about).collect();
    let block = Block::bordered().border_type(BorderType::Rounded).title(" orrery top ");
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(block), place);
}

/// The time of day on test screens.
#[cfg(test)]
pub(super) const NOON: &str = "12:00:00 UTC";

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
