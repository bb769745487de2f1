//! Adapts the number of tokens per step to the speed of the machine. A batch cannot be interrupted,
//! so steps are kept short: an abandoned generation stops only after its current step.

use std::time::Duration;

/// Target time of a step.
const STEP: Duration = Duration::from_millis(400);
/// Number of tokens in the first step.
const FIRST: usize = 64;
/// Minimum number of tokens per step, because smaller steps are hardly faster.
const LEAST: usize = 16;

/// The size of the next step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    tokens: usize,
    most: usize,
}

impl Pace {
    /// Starts with steps of at most this many tokens.
    #[must_use]
    pub(super) fn new(most: usize) -> Self {
        Self { tokens: FIRST.min(most), most }
    }

    /// Returns the number of tokens of the next step.
    #[must_use]
    pub(super) const fn tokens(self) -> usize {
        self.tokens
    }

    /// Records the time of a step and resizes the next one, to at most twice as large. A fast step
    /// that was smaller than allowed changes nothing.
    pub(super) fn note(&mut self, tokens: usize, took: Duration) {
        if took <= STEP && tokens < self.tokens {
            return;
        }
        let fitting = (tokens as u128).saturating_mul(STEP.as_micros());
        let fitting = fitting / took.as_micros().max(1);
        let fitting = usize::try_from(fitting).unwrap_or(usize::MAX);
        let most = self.tokens.saturating_mul(2).min(self.most);
        self.tokens = fitting.clamp(LEAST.min(most), most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_follows_the_machine_within_its_limits() {
        let mut pace = Pace::new(256);
        assert_eq!(pace.tokens(), 64);
        pace.note(64, STEP / 100);
        pace.note(128, STEP / 2);
        assert_eq!(pace.tokens(), 256);
        pace.note(256, Duration::ZERO);
        assert_eq!(pace.tokens(), 256);
        pace.note(3, STEP / 2);
        assert_eq!(pace.tokens(), 256, "a small fast step");
        pace.note(256, STEP * 4);
        assert_eq!(pace.tokens(), 64);
        pace.note(64, STEP * 100);
        assert_eq!(pace.tokens(), 16);
        assert_eq!(Pace::new(4).tokens(), 4);
    }
}
