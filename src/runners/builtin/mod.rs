//! The models that come with the service, so that a box does real work with nothing else installed.
//!
//! Each is a thin adapter over a well-kept crate: a request schema and a pure function. They run on
//! blocking threads, a bounded number at once; since a blocking thread cannot be stopped, each
//! schema bounds its input so that any run is short. Each run is weighed before it starts, by the
//! memory that it takes at most, against one budget for all of them ([`MEMORY_MAX`]): it waits its
//! turn, or is refused when it alone is larger. None keeps state or reads a file.

mod html_to_text;
mod image_qr;
mod image_resize;
mod images;
mod json_query;
mod query_bounds;
mod template_bounds;
mod template_filters;
mod text_keywords;
mod text_language;
mod text_sentiment;
mod text_summary;
mod text_template;
mod weight;
mod words;

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use tokio::sync::Semaphore;

use self::weight::Budget;
use super::{Job, Run, Runner, Success};
use crate::domain::attempt::Failure;
use crate::domain::classify::ErrorClass;
use crate::domain::model::{OutputType, Usage};
use crate::files::Files;
use crate::http::client::Client;
use crate::http::egress::Policy;

pub use self::weight::MEMORY_MAX;

/// Built-in runs that work at once, over all built-in models: one for each core of a small box and
/// some that wait for memory.
pub const AT_ONCE: usize = 4;
/// The longest text that a built-in model takes, in characters.
pub const TEXT_MAX: u64 = 1_000_000;

/// What a built-in model does with an input that fits its schema. Both functions of a kind are pure:
/// `weigh` says how many bytes of memory `run` takes at most, without taking them.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// Computes on the input alone.
    Pure { weigh: fn(&Value) -> u64, run: fn(&Value) -> Result<Value, Failure> },
    /// Computes on the input and the image that its field `image` names.
    OnImage {
        weigh: fn(&Value, &[u8]) -> Result<u64, Failure>,
        run: fn(&Value, &[u8]) -> Result<Value, Failure>,
    },
}

impl Work {
    fn weigh(self, input: &Value, image: &[u8]) -> Result<u64, Failure> {
        match self {
            Self::Pure { weigh, .. } => Ok(weigh(input)),
            Self::OnImage { weigh, .. } => weigh(input, image),
        }
    }

    fn run(self, input: &Value, image: &[u8]) -> Result<Value, Failure> {
        match self {
            Self::Pure { run, .. } => run(input),
            Self::OnImage { run, .. } => run(input, image),
        }
    }
}

/// A model that comes with the service.
#[derive(Debug, Clone, Copy)]
pub struct Builtin {
    pub slug: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    pub output_type: OutputType,
    /// The request schema.
    pub schema: fn() -> Value,
    work: Work,
}

/// All of them, by slug.
pub const ALL: &[Builtin] = &[
    html_to_text::MODEL,
    image_qr::MODEL,
    image_resize::MODEL,
    json_query::MODEL,
    text_keywords::MODEL,
    text_language::MODEL,
    text_sentiment::MODEL,
    text_summary::MODEL,
    text_template::MODEL,
];

/// The built-in model of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Builtin> {
    ALL.iter().find(|builtin| builtin.slug == name)
}

/// What the runs of all built-in models share.
#[derive(Debug, Clone)]
pub struct Bench {
    places: Arc<Semaphore>,
    budget: Budget,
    client: Client,
    policy: Arc<Policy>,
    /// Where our own URLs are read without HTTP.
    files: Option<Files>,
}

impl Bench {
    /// `policy` judges the image URLs that inputs name, but for those of `files`.
    #[must_use]
    pub fn new(policy: Policy, files: Option<Files>) -> Self {
        Self {
            places: Arc::new(Semaphore::new(AT_ONCE)),
            budget: Budget::new(MEMORY_MAX),
            client: Client::guarded(policy.clone()),
            policy: Arc::new(policy),
            files,
        }
    }

    /// The runner of a built-in model.
    #[must_use]
    pub fn runner(&self, builtin: &'static Builtin) -> Arc<dyn Runner> {
        Arc::new(BuiltinRunner { builtin, bench: self.clone() })
    }
}

#[derive(Debug)]
struct BuiltinRunner {
    builtin: &'static Builtin,
    bench: Bench,
}

impl Runner for BuiltinRunner {
    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let work = self.builtin.work;
            let image = match work {
                Work::Pure { .. } => Vec::new(),
                Work::OnImage { .. } => {
                    images::load(&self.bench, text(&job.input, "image")).await?
                }
            };
            let input = Arc::clone(&job.input);
            let weighed = (Arc::clone(&input), image);
            let (weight, image) = self
                .off_thread(move || {
                    let (input, image) = weighed;
                    work.weigh(&input, &image).map(|weight| (weight, image))
                })
                .await??;
            let memory = self.bench.budget.take(weight).await?;
            let stopped = |_stopped| Failure::new(ErrorClass::InternalError, "the service stops");
            let place = Arc::clone(&self.bench.places).acquire_owned().await.map_err(stopped)?;
            let started = Instant::now();
            let output = self
                .off_thread(move || {
                    // Both are free again when the work is done, also when nobody waits for it or
                    // it panics.
                    let _held = (memory, place);
                    work.run(&input, &image)
                })
                .await??;
            let usage = Usage { run_time: started.elapsed(), ..Usage::default() };
            Ok(Success::new(output, usage))
        })
    }
}

impl BuiltinRunner {
    /// Runs a function of the model on a blocking thread. A panic fails this run and nothing else.
    async fn off_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        tokio::task::spawn_blocking(work).await.map_err(|_panic| {
            let sentence = format!("the model '{}' panicked", self.builtin.slug);
            Failure::new(ErrorClass::InternalError, sentence)
        })
    }
}

/// A text field that the schema has checked; empty when it is absent.
fn text<'a>(input: &'a Value, field: &str) -> &'a str {
    input.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// A number field that the schema has checked.
fn number(input: &Value, field: &str, default: u32) -> u32 {
    let number = input.get(field).and_then(Value::as_u64);
    number.and_then(|number| u32::try_from(number).ok()).unwrap_or(default)
}

/// The input is at fault, in a sentence.
fn refuse(sentence: impl Into<String>) -> Failure {
    Failure::new(ErrorClass::InvalidUserInput, sentence)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
