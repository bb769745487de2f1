//! Built-in models, which are useful without any other installation.
//!
//! Each model is a thin adapter over a well-maintained crate: a request schema and a pure function.
//! No model has state or reads files. All of them run in worker processes of this binary (see
//! `pool` and `worker`), even those that parse no binary format: their crates process
//! client-supplied text, and one mechanism for all is simpler than two. A worker can open no file
//! or socket and has memory and time limits, so a run that crashes, grows or hangs affects only
//! itself. The service itself only fetches the images that inputs refer to.
//!
//! The number of concurrent runs is bounded. Before a run starts, its peak memory is estimated and
//! reserved from one budget for all runs ([`MEMORY_MAX`]): the run waits for its share, or is
//! rejected if it exceeds the whole budget. The run's worker may use no more than that share.

mod html_to_text;
mod image_qr;
mod image_resize;
pub(crate) mod images;
mod json_numbers;
mod json_query;
mod pool;
mod text_keywords;
mod text_language;
mod text_sentiment;
mod text_summary;
mod text_template;
mod weight;
mod words;
pub mod worker;

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

use self::pool::Request;
use self::weight::Budget;
use super::options::{self, Dependencies, Model, Type};
use super::source::Sources;
use super::{Job, Maintenance, Run, Runner, Success};
use orrery_config::reader::Section;
use orrery_config::values::one_of;
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::json_object::whole_number;
use orrery_domain::model::{OutputType, Usage};
use orrery_runtime as runtime;
use orrery_runtime::turns::Turns;

pub use self::pool::Workers;
pub use self::weight::MEMORY_MAX;

/// Maximum number of concurrent runs of all built-in models combined: one per core of a small
/// machine, plus some that wait for memory. Organizations take turns, and a single organization may
/// use half of the runs.
pub const RUNS_MAX: usize = 8;
/// Maximum number of images held or being fetched by runs, including queued runs.
const IMAGES_MAX: usize = 32;
/// Maximum length of a built-in model's input text, in characters.
pub const TEXT_MAX: u64 = 1_000_000;

/// The implementation of a built-in model, for input that is valid under its schema. Both functions
/// of a variant are pure: `weigh` estimates the peak memory of `run` in bytes, without using that
/// much itself.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// Computes the output from the input alone.
    Pure { weigh: fn(&Value) -> u64, run: fn(&Value) -> Result<Value, Failure> },
    /// Computes the output from the input and the image that its field `image` refers to.
    OnImage {
        weigh: fn(&Value, &[u8]) -> Result<u64, Failure>,
        run: fn(&Value, &[u8]) -> Result<Value, Failure>,
    },
}

/// A built-in model.
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

impl Builtin {
    /// Runs the model in this process without limits; used by workers, tests and benchmarks. The
    /// input must be valid under its schema; `image` contains the bytes of the image that the input
    /// refers to, if the model uses one.
    ///
    /// # Errors
    /// Fails if the model rejects the input.
    pub fn compute(&self, input: &Value, image: &[u8]) -> Result<Value, Failure> {
        match self.work {
            Work::Pure { run, .. } => run(input),
            Work::OnImage { run, .. } => run(input, image),
        }
    }

    /// Returns an upper bound of the memory of [`Builtin::compute`], in bytes.
    fn weigh(&self, input: &Value, image: &[u8]) -> Result<u64, Failure> {
        match self.work {
            Work::Pure { weigh, .. } => Ok(weigh(input)),
            Work::OnImage { weigh, .. } => weigh(input, image),
        }
    }
}

/// All built-in models, sorted by slug.
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

/// Returns the built-in model with this slug.
#[must_use]
pub fn find(name: &str) -> Option<&'static Builtin> {
    ALL.iter().find(|builtin| builtin.slug == name)
}

/// Default concurrency of one built-in model.
pub const CONCURRENCY: usize = 64;

/// State shared by the runs of all built-in models.
#[derive(Debug, Clone)]
pub struct BuiltinContext {
    workers: Workers,
    places: Arc<Turns>,
    images: Arc<Turns>,
    budget: Budget,
    /// Reads the images to which inputs refer.
    sources: Sources,
}

impl BuiltinContext {
    /// Creates the shared state.
    #[must_use]
    pub fn new(sources: Sources, workers: Workers) -> Self {
        Self {
            workers,
            places: Turns::new(RUNS_MAX),
            images: Turns::new(IMAGES_MAX),
            budget: Budget::new(MEMORY_MAX),
            sources,
        }
    }

    /// Creates a runner of a built-in model.
    #[must_use]
    pub fn runner(&self, builtin: &'static Builtin) -> Arc<dyn Runner> {
        Arc::new(BuiltinRunner { builtin, context: self.clone() })
    }
}

/// The manifest section of this runner type.
pub const TYPE: Type =
    Type { name: "builtin", read: |section, _folder| Some(Arc::new(Options::read(section)?)) };

/// The built-in model named by a manifest.
#[derive(Debug)]
struct Options {
    builtin: &'static Builtin,
}

impl Options {
    fn read(section: &mut Section<'_>) -> Option<Self> {
        let builtin = section.required("name", one_of(ALL, |builtin| builtin.slug))?;
        Some(Self { builtin: find(builtin.slug)? })
    }
}

impl PartialEq for Options {
    fn eq(&self, other: &Self) -> bool {
        self.builtin.slug == other.builtin.slug
    }
}

impl options::Options for Options {
    fn concurrency(&self) -> Option<usize> {
        Some(CONCURRENCY)
    }

    fn runner(self: Arc<Self>, _model: Model, dependencies: &Dependencies) -> Arc<dyn Runner> {
        dependencies.builtins.runner(self.builtin)
    }
}

#[derive(Debug)]
struct BuiltinRunner {
    builtin: &'static Builtin,
    context: BuiltinContext,
}

impl Runner for BuiltinRunner {
    fn run(&self, job: Job) -> Run<'_> {
        Box::pin(async move {
            let BuiltinContext { places, images, budget, workers, sources } = &self.context;
            let (image, _held) = match self.builtin.work {
                Work::Pure { .. } => (Bytes::new(), None),
                Work::OnImage { .. } => {
                    let held = images.take(1).await;
                    let url = text(&job.input, "image");
                    (read_image(sources, url).await?, Some(held))
                }
            };
            // Acquire a permit before memory, so that a run that has memory never waits for
            // anything else.
            let _place = places.take(1).await;
            let builtin = self.builtin;
            let input = Arc::clone(&job.input);
            let request = tokio::task::spawn_blocking(move || request(builtin, &input, image));
            let request = request.await.map_err(|_panic| {
                Failure::new(ErrorClass::InternalError, "the input cannot be sent to its worker")
            })??;
            let started = runtime::monotonic_now();
            let output = workers.run(request, budget).await?;
            let usage = Usage { run_time: started.elapsed(), ..Usage::default() };
            Ok(Success::new(output, usage))
        })
    }

    fn has_places(&self) -> bool {
        true
    }

    fn maintain(&self) -> Maintenance<'_> {
        self.context.workers.retire(pool::IDLE_MAX);
        Box::pin(std::future::ready(()))
    }
}

/// Builds the request for a worker. The image is sent as bytes and removed from the input.
fn request(builtin: &Builtin, input: &Value, image: Bytes) -> Result<Request, Failure> {
    let no_json = |error| {
        let sentence = format!("the input cannot be written as JSON: {error}");
        Failure::new(ErrorClass::InternalError, sentence)
    };
    let (input, weight) = match (builtin.work, input) {
        (Work::OnImage { .. }, Value::Object(fields)) => {
            let others = fields.iter().filter(|(name, _)| *name != "image");
            let others: Map<_, _> = others.map(|(k, v)| (k.clone(), v.clone())).collect();
            (serde_json::to_vec(&others).map_err(no_json)?, None)
        }
        _ => {
            let weight = builtin.weigh(input, &image)?;
            let json = serde_json::to_vec(input).map_err(no_json)?;
            // While parsing, the worker also holds the text of the input.
            let text = json.len() as u64;
            (json, Some(weight.saturating_add(text)))
        }
    };
    let reading = worker::reading(image.len());
    Ok(Request { model: builtin.slug, weight, reading, input, image })
}

/// Returns a text field that the schema has validated, or an empty string if the field is absent.
fn text<'a>(input: &'a Value, field: &str) -> &'a str {
    input.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Returns a number field that the schema has validated.
fn number(input: &Value, field: &str, default: u32) -> u32 {
    input.get(field).and_then(whole_number).unwrap_or(default)
}

/// Reads an image to which an input refers.
async fn read_image(sources: &Sources, source: &str) -> Result<Bytes, Failure> {
    let read = sources.read(source, images::FILE_MAX).await;
    read.map(|image| image.bytes).map_err(|error| refuse(format!("image: {error}")))
}

/// Returns an `invalid_user_input` failure with this message.
fn refuse(sentence: impl Into<String>) -> Failure {
    Failure::new(ErrorClass::InvalidUserInput, sentence)
}

#[cfg(test)]
mod tests;
