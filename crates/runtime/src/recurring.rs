//! A rate limit for recurring log messages: a state is logged when it changes, and then hourly
//! while it lasts.

use std::time::Duration;

use tokio::time::Instant;

use super::monotonic_now;

/// How often a lasting state is logged.
const AGAIN: Duration = Duration::from_secs(3600);

/// The last state that was logged.
#[derive(Debug, Default)]
pub struct Recurring {
    last: Option<(String, Instant)>,
}

impl Recurring {
    /// Whether to log this state now: it differs from the last logged state, or an hour has passed.
    pub fn is_news(&mut self, state: &str) -> bool {
        if let Some((last, at)) = &self.last
            && last == state
            && at.elapsed() < AGAIN
        {
            return false;
        }
        self.last = Some((state.to_owned(), monotonic_now()));
        true
    }

    /// Ends the current state, so that the next state is logged. Returns whether there was a
    /// current state.
    pub fn end(&mut self) -> bool {
        self.last.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn recurring_state_is_logged_on_change_and_hourly() {
        let mut state = Recurring::default();
        assert!(state.is_news("disk away"));
        for _minute in 0..59 {
            tokio::time::advance(Duration::from_secs(60)).await;
            assert!(!state.is_news("disk away"));
        }
        assert!(state.is_news("disk full"));
        assert!(state.is_news("disk away"));
        tokio::time::advance(AGAIN).await;
        assert!(state.is_news("disk away"));
        assert!(state.end() && !state.end());
        assert!(state.is_news("disk away"));
    }
}
