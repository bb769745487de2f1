//! A runner whose failures are counted: how a model on somebody else's server is, is known by
//! whether it answers.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Health, Job, Run, Runner};
use crate::domain::classify::ErrorClass;

/// Runs in a row that got no answer before a model counts as failing.
const MISSES_MAX: u32 = 3;

/// Another runner, watched.
#[derive(Debug)]
pub struct Watched {
    runner: Arc<dyn Runner>,
    /// How many runs in a row got no answer, and what was said of the last.
    missed: Mutex<(u32, String)>,
}

impl Watched {
    /// Watches `runner`.
    #[must_use]
    pub fn new(runner: Arc<dyn Runner>) -> Self {
        Self { runner, missed: Mutex::default() }
    }
}

impl Runner for Watched {
    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let result = self.runner.run(job).await;
            let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
            match &result {
                Err(error) if error.failure.class == ErrorClass::ProviderUnavailable => {
                    *missed = (missed.0.saturating_add(1), error.failure.message.clone());
                }
                Ok(_) | Err(_) => *missed = (0, String::new()),
            }
            drop(missed);
            result
        })
    }

    fn health(&self) -> Health {
        let missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, said) = &*missed;
        if *count < MISSES_MAX {
            return Health::Good;
        }
        Health::Failing(format!("it gave no answer the last {count} times: {said}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::attempt::Failure;
    use crate::domain::model::Usage;
    use crate::runners::{Heard, Success};

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
    async fn no_answer_three_times_in_a_row_is_failing_and_any_answer_is_good() {
        let watched = Watched::new(Arc::new(Fickle));
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
            let _either = watched.run(Arc::<Heard>::default().job(json!(input))).await;
            assert_eq!(watched.health() == Health::Good, is_good, "{input}");
        }
    }
}
