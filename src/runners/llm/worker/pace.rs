//! How many tokens are computed at once. A batch cannot be interrupted, so a step is made as large as this machine
//! computes in a moment: an answer that nobody waits for any more ends with its step.

use std::time::Duration;

/// How long a step should take.
const STEP: Duration = Duration::from_millis(400);
/// Tokens of the first step.
const FIRST: usize = 64;
/// Below it, a step is hardly faster.
const LEAST: usize = 16;

/// The size of the next step.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    tokens: usize,
    most: usize,
}

impl Pace {
    /// Of steps with at most so many tokens.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { tokens: FIRST.min(most), most }
    }

    /// Tokens of the next step.
    #[must_use]
    pub const fn tokens(self) -> usize {
        self.tokens
    }

    /// Records how long a step took, and sizes the next one: at most twice as large. A quick step that was
    /// smaller than allowed changes nothing.
    pub fn note(&mut self, tokens: usize, took: Duration) {
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
        assert_eq!(pace.tokens(), 256, "a small step");
        pace.note(256, STEP * 4);
        assert_eq!(pace.tokens(), 64);
        pace.note(64, STEP * 100);
        assert_eq!(pace.tokens(), 16);
        assert_eq!(Pace::new(4).tokens(), 4);
    }
}
