//! Requests the usage at the end of a stream (`stream_options.include_usage`), and retries without
//! this option if the server rejects it.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::failure::Failure;
use orrery_runtime as runtime;

/// How long requests omit `stream_options` after a server has rejected it.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The `stream_options` of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamOptions {
    /// `include_usage`, and the client's own options.
    AsSent,
    /// Only `include_usage`.
    UsageOnly,
    /// No options: the token usage is estimated.
    Omitted,
}

/// Whether a server has recently rejected `stream_options`.
#[derive(Debug, Default)]
pub struct Refusal {
    until: Mutex<Option<Instant>>,
}

impl Refusal {
    fn is_remembered(&self) -> bool {
        self.lock().is_some_and(|until| runtime::monotonic_now() < until)
    }

    fn remember(&self) {
        *self.lock() = runtime::monotonic_now().checked_add(REMEMBERED);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a request with `stream_options`, and again with fewer options if the server rejects them.
/// Only a rejection of `include_usage` alone is remembered, because a client's own options do not
/// affect other requests.
///
/// # Errors
/// [`Failure`]
pub async fn ask_with_options<T, F>(
    refusal: &Refusal,
    has_own_options: bool,
    ask: impl Fn(StreamOptions) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    if refusal.is_remembered() {
        return ask(StreamOptions::Omitted).await;
    }
    let is_refused =
        |answer: &Result<T, Failure>| answer.as_ref().is_err_and(Failure::names_stream_options);
    if has_own_options {
        let answer = ask(StreamOptions::AsSent).await;
        if !is_refused(&answer) {
            return answer;
        }
    }
    let answer = ask(StreamOptions::UsageOnly).await;
    if !is_refused(&answer) {
        return answer;
    }
    let answer = ask(StreamOptions::Omitted).await?;
    refusal.remember();
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::StreamOptions::{AsSent, Omitted, UsageOnly};
    use super::*;
    use orrery_domain::classify::ErrorClass;

    /// Returns the options sent to a server that accepts only these options.
    async fn asked(refusal: &Refusal, own: bool, taken: &[StreamOptions]) -> Vec<StreamOptions> {
        let asked = RefCell::new(Vec::new());
        let ask = |options| {
            asked.borrow_mut().push(options);
            let message = "unknown parameter: stream_options";
            let mut refused = Failure::new(400, ErrorClass::InvalidUserInput, message);
            refused.read_text(message);
            std::future::ready(if taken.contains(&options) { Ok(()) } else { Err(refused) })
        };
        let _answer = ask_with_options(refusal, own, ask).await;
        asked.into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn stream_options_are_omitted_for_a_while_after_rejection() {
        let refusal = Refusal::default();
        assert_eq!(
            asked(&refusal, false, &[]).await,
            [UsageOnly, Omitted],
            "the request itself is invalid"
        );
        assert_eq!(asked(&refusal, false, &[Omitted]).await, [UsageOnly, Omitted]);
        assert_eq!(asked(&refusal, true, &[Omitted]).await, [Omitted]);
        tokio::time::advance(REMEMBERED).await;
        assert_eq!(asked(&refusal, false, &[UsageOnly]).await, [UsageOnly]);
    }

    #[tokio::test]
    async fn stream_options_of_client_do_not_affect_others() {
        let refusal = Refusal::default();
        assert_eq!(asked(&refusal, true, &[UsageOnly, Omitted]).await, [AsSent, UsageOnly]);
        assert_eq!(asked(&refusal, true, &[AsSent]).await, [AsSent]);
        assert_eq!(asked(&refusal, false, &[UsageOnly]).await, [UsageOnly]);
    }
}
