//! The display state, and the effect of each key on it. The caller passes in samples, keys and
//! times, and `draw` renders the state.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::figures::{Figures, History, LaneFigures};
use orrery_wire::activity::Activity;

/// The sort order of the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The busiest lanes first.
    Busy,
    Rate,
    P99,
    Name,
}

impl Order {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Rate => "rate",
            Self::P99 => "p99",
            Self::Name => "name",
        }
    }

    const fn next(self) -> Self {
        match self {
            Self::Busy => Self::Rate,
            Self::Rate => Self::P99,
            Self::P99 => Self::Name,
            Self::Name => Self::Busy,
        }
    }
}

/// Whether the service responds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Contact {
    /// No response has arrived yet.
    Asking,
    Answers,
    Away {
        /// The reason as a sentence.
        reason: String,
        /// Seconds since the last response, or since the first request.
        seconds: u64,
    },
}

/// The result of a key press.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Nothing,
    Quit,
}

#[derive(Debug)]
pub(super) struct State {
    /// The service's data folder.
    pub(super) place: String,
    pub(super) contact: Contact,
    pub(super) figures: Option<Figures>,
    pub(super) history: History,
    pub(super) order: Order,
    /// Number of lanes above the visible range.
    pub(super) scrolled: usize,
    /// Number of lanes that fit in the last frame.
    pub(super) room: usize,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    answered_at: f64,
}

impl State {
    pub(super) fn new(place: String) -> Self {
        Self {
            place,
            contact: Contact::Asking,
            figures: None,
            history: History::default(),
            order: Order::Busy,
            scrolled: 0,
            room: 1,
            is_paused: false,
            shows_help: false,
            answered_at: 0.0,
        }
    }

    /// Records a sample, or the error that prevented it. `at` is in seconds on the caller's clock.
    pub(super) fn take(&mut self, at: f64, answer: Result<Activity, String>) {
        match answer {
            Ok(activity) => {
                self.answered_at = at;
                self.contact = Contact::Answers;
                self.history.take(at, activity);
                if !self.is_paused {
                    self.refresh();
                }
            }
            Err(reason) => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "seconds of a terminal session"
                )]
                let seconds = (at - self.answered_at).max(0.0) as u64;
                self.contact = Contact::Away { reason, seconds };
            }
        }
    }

    fn refresh(&mut self) {
        self.figures = self.history.figures();
        self.sort();
    }

    fn sort(&mut self) {
        let order = self.order;
        if let Some(figures) = &mut self.figures {
            figures.lanes.sort_by(|one, other| {
                let by_name = || (&one.name, &one.kind).cmp(&(&other.name, &other.kind));
                let work = |lane: &LaneFigures| lane.running + lane.queued;
                let p99 = |lane: &LaneFigures| lane.p99.unwrap_or(-1.0);
                let busy = || work(other).cmp(&work(one));
                let rate = || other.rate.total_cmp(&one.rate);
                let first = match order {
                    Order::Busy => busy().then_with(rate).then_with(|| other.ended.cmp(&one.ended)),
                    Order::Rate => rate().then_with(busy),
                    Order::P99 => p99(other).total_cmp(&p99(one)),
                    Order::Name => std::cmp::Ordering::Equal,
                };
                first.then_with(by_name)
            });
        }
        self.scroll_to(self.scrolled);
    }

    /// Returns the lanes in sort order.
    pub(super) fn lanes(&self) -> &[LaneFigures] {
        self.figures.as_ref().map_or(&[], |figures| &figures.lanes)
    }

    fn scroll_to(&mut self, line: usize) {
        self.scrolled = line.min(self.lanes().len().saturating_sub(self.room));
    }

    /// Sets the number of lanes that fit in the frame.
    pub(super) fn set_room(&mut self, room: usize) {
        self.room = room.max(1);
        self.scroll_to(self.scrolled);
    }

    /// Handles a key press.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most keys do nothing")]
    pub(super) fn press(&mut self, key: KeyEvent) -> Act {
        if key.kind == KeyEventKind::Release {
            return Act::Nothing;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let leaves = match key.code {
            KeyCode::Char('c' | 'd') if is_control => true,
            KeyCode::Char('q' | 'Q') => true,
            // Esc closes the help if the help is open.
            KeyCode::Esc => !self.shows_help,
            _ => false,
        };
        if leaves {
            return Act::Quit;
        }
        if is_control {
            return Act::Nothing;
        }
        if self.shows_help {
            self.shows_help = false;
            return Act::Nothing;
        }
        match key.code {
            KeyCode::Down | KeyCode::Char('j') => self.scroll_to(self.scrolled + 1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll_to(self.scrolled.saturating_sub(1)),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll_to(self.scrolled + self.room),
            KeyCode::PageUp => self.scroll_to(self.scrolled.saturating_sub(self.room)),
            KeyCode::Home | KeyCode::Char('g') => self.scroll_to(0),
            KeyCode::End | KeyCode::Char('G') => self.scroll_to(usize::MAX),
            KeyCode::Char('s') => {
                self.order = self.order.next();
                self.scrolled = 0;
                self.sort();
            }
            KeyCode::Char('p') => {
                self.is_paused = !self.is_paused;
                if !self.is_paused && self.history.figures().is_some() {
                    self.refresh();
                }
            }
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.shows_help = true,
            _ => {}
        }
        Act::Nothing
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
