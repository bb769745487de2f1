//! A runner whose failures are counted: how a model on somebody else's server is, is known by
//! whether it answers.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Health, Job, Run, Runner, Server};
use crate::domain::attempt::Failure;
use crate::domain::chat::Operation;
use crate::domain::classify::ErrorClass;

/// Runs in a row that got no answer before a model counts as failing.
const MISSES_MAX: u32 = 3;

/// Another runner, with its failures counted.
#[derive(Debug)]
pub struct HealthTracked {
    runner: Arc<dyn Runner>,
    /// How many runs in a row got no answer, and what was said of the last.
    misses: Mutex<(u32, String)>,
}

impl HealthTracked {
    /// Tracks the health of `runner`.
    #[must_use]
    pub fn new(runner: Arc<dyn Runner>) -> Self {
        Self { runner, misses: Mutex::default() }
    }
}

impl Runner for HealthTracked {
    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let result = self.runner.run(job).await;
            self.note_call(result.as_ref().err().map(|error| &error.failure));
            result
        })
    }

    fn server(&self, operation: Operation) -> Option<Server> {
        self.runner.server(operation)
    }

    fn note_call(&self, failure: Option<&Failure>) {
        let mut misses = self.misses.lock().unwrap_or_else(PoisonError::into_inner);
        *misses = match failure {
            Some(failure) if failure.class == ErrorClass::ProviderUnavailable => {
                (misses.0.saturating_add(1), failure.message.clone())
            }
            Some(_) | None => (0, String::new()),
        };
    }

    fn health(&self) -> Health {
        let misses = self.misses.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, said) = &*misses;
        if *count < MISSES_MAX {
            return Health::Good;
        }
        Health::Failing(format!("it did not answer the last {count} times: {said}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::model::Usage;
    use crate::runners::{RecordingProgress, Success};

    #[derive(Debug)]
    struct Fickle;

    impl Runner for Fickle {
        fn run(&self, job: Job) -> Run<'_> {
            let result = match job.input.as_str().and_then(|class| class.parse().ok()) {
                None => Ok(Success::new(Value::Null, Usage::default())),
                Some(class) => Err(Failure::new(class, "no").into()),
            };
            Box::pin(std::future::ready(result))
        }
    }

    #[tokio::test]
    async fn runner_health_fails_after_three_missing_responses_in_a_row() {
        let tracked = HealthTracked::new(Arc::new(Fickle));
        for (input, is_good) in [
            ("provider_unavailable", true),
            ("provider_unavailable", true),
            ("fine", true),
            ("provider_unavailable", true),
            ("provider_unavailable", true),
            ("provider_unavailable", false),
            ("provider_unavailable", false),
            ("provider_error", true),
        ] {
            let _either = tracked.run(Arc::<RecordingProgress>::default().job(json!(input))).await;
            assert_eq!(tracked.health() == Health::Good, is_good, "{input}");
        }
    }
}
