//! The models that come with the service, so that a box does real work with nothing else installed.
//!
//! Each is a thin adapter over a well-kept crate: a request schema and a pure function. None keeps
//! state or reads a file. All of them run in worker processes of this binary (see `pool` and
//! `worker`), even those that parse no format: their crates walk through text that clients choose,
//! and one way for all is simpler than two. A worker can open nothing, and has a limit on memory and
//! time, so a run that crashes, grows or hangs costs itself alone. The service itself only fetches
//! the images that inputs name.
//!
//! A bounded number of runs work at once. Each is weighed before it starts, by the memory that it
//! takes at most, against one budget for all of them ([`MEMORY_MAX`]): it waits its turn, or is
//! refused when it alone is larger. Its worker may take no more than that.

mod html_to_text;
mod image_qr;
mod image_resize;
mod images;
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

use serde_json::{Map, Value};

use self::pool::Request;
use self::weight::Budget;
use super::options::{self, Dependencies, Model, Type};
use super::{Job, Maintenance, Run, Runner, Success};
use crate::config::reader::Section;
use crate::config::values::one_of;
use crate::domain::attempt::Failure;
use crate::domain::classify::ErrorClass;
use crate::domain::json_object::whole_number;
use crate::domain::model::{OutputType, Usage};
use crate::files::Files;
use crate::http::client::Client;
use crate::http::egress::Policy;
use crate::runtime;
use crate::runtime::turns::Turns;

pub use self::pool::Workers;
pub use self::weight::MEMORY_MAX;

/// Built-in runs that work at once, over all built-in models. Organizations take turns, and one alone
/// has half of them: one for each core of a small box and some that wait for memory.
pub const RUNS_MAX: usize = 8;
/// Images that runs hold, or are fetching, at once: those that wait for their place included.
const IMAGES_MAX: usize = 32;
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

impl Builtin {
    /// What the model answers to an input that fits its schema, computed in this process and
    /// without its limits: for workers, tests and benchmarks. `image` holds the bytes of the image
    /// that the input names, where the model works on one.
    ///
    /// # Errors
    /// What the model finds wrong with the input.
    pub fn compute(&self, input: &Value, image: &[u8]) -> Result<Value, Failure> {
        match self.work {
            Work::Pure { run, .. } => run(input),
            Work::OnImage { run, .. } => run(input, image),
        }
    }

    /// Bytes of memory that [`Builtin::compute`] takes at most.
    fn weigh(&self, input: &Value, image: &[u8]) -> Result<u64, Failure> {
        match self.work {
            Work::Pure { weigh, .. } => Ok(weigh(input)),
            Work::OnImage { weigh, .. } => weigh(input, image),
        }
    }
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

/// Runs of one built-in model at once, unless its manifest says otherwise.
pub const CONCURRENCY: usize = 64;

/// What the runs of all built-in models share.
#[derive(Debug, Clone)]
pub struct BuiltinContext {
    workers: Workers,
    places: Arc<Turns>,
    images: Arc<Turns>,
    budget: Budget,
    client: Client,
    policy: Arc<Policy>,
    /// Where our own URLs are read without HTTP.
    files: Option<Files>,
}

impl BuiltinContext {
    /// `policy` judges the image URLs that inputs name, but for those of `files`.
    #[must_use]
    pub fn new(policy: Policy, files: Option<Files>, workers: Workers) -> Self {
        Self {
            workers,
            places: Turns::new(RUNS_MAX),
            images: Turns::new(IMAGES_MAX),
            budget: Budget::new(MEMORY_MAX),
            client: Client::guarded(policy.clone()),
            policy: Arc::new(policy),
            files,
        }
    }

    /// The runner of a built-in model.
    #[must_use]
    pub fn runner(&self, builtin: &'static Builtin) -> Arc<dyn Runner> {
        Arc::new(BuiltinRunner { builtin, context: self.clone() })
    }
}

/// What manifests say of a runner of this type.
pub const TYPE: Type =
    Type { name: "builtin", read: |section, _folder| Some(Arc::new(Options::read(section)?)) };

/// The built-in model that a manifest names.
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
            let BuiltinContext { places, images, budget, workers, .. } = &self.context;
            let (image, _held) = match self.builtin.work {
                Work::Pure { .. } => (Vec::new(), None),
                Work::OnImage { .. } => {
                    let held = images.take(1).await;
                    let url = text(&job.input, "image");
                    (self::images::load(&self.context, url).await?, Some(held))
                }
            };
            // Before the memory: a job that has memory needs nothing else to go on.
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

/// A run as its worker takes it. An image goes as its bytes, and not in the input too.
fn request(builtin: &Builtin, input: &Value, image: Vec<u8>) -> Result<Request, Failure> {
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
            // The worker holds the text of the input while it parses it.
            let text = json.len() as u64;
            (json, Some(weight.saturating_add(text)))
        }
    };
    let reading = worker::reading(image.len());
    Ok(Request { model: builtin.slug, weight, reading, input, image })
}

/// A text field that the schema has checked; empty when it is absent.
fn text<'a>(input: &'a Value, field: &str) -> &'a str {
    input.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// A number field that the schema has checked.
fn number(input: &Value, field: &str, default: u32) -> u32 {
    input.get(field).and_then(whole_number).unwrap_or(default)
}

/// The input is at fault, in a sentence.
fn refuse(sentence: impl Into<String>) -> Failure {
    Failure::new(ErrorClass::InvalidUserInput, sentence)
}

#[cfg(test)]
mod tests;
