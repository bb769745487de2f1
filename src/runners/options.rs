//! The `[runner]` table of a manifest: which type of runner it names, and that type's own options.
//!
//! A new type of runner is a file with its `Options` and its `TYPE`, a line for the module and a line
//! in [`TYPES`]. Its options are read strictly: a key that the type does not ask for is refused.

use std::any::Any;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
use serde_json::Value;

use super::builtin::{BuiltinContext, Workers};
use super::command::GuardConfig;
use super::endpoints::{Address, Pool, Registry, Settings};
use super::llm::Room;
use super::{Runner, builtin, cog, command, http, llm, oip, openai};
use crate::config::reader::{Parsed, Section};
use crate::config::values::{self, one_of, problem};
use crate::http::client::Client;
use crate::http::egress::Policy;
use crate::runtime::Tasks;

/// Every type of runner that a manifest can name.
const TYPES: &[Type] =
    &[builtin::TYPE, http::TYPE, command::TYPE, openai::TYPE, cog::TYPE, llm::TYPE, oip::TYPE];

/// A type of runner.
#[derive(Debug, Clone, Copy)]
pub struct Type {
    /// As manifests spell it.
    pub name: &'static str,
    /// Reads its options from the `[runner]` table of a manifest in the folder.
    pub read: fn(&mut Section<'_>, &Path) -> Option<Arc<dyn Options>>,
}

/// The options of one model's runner, read and checked.
pub trait Options: Debug + Send + Sync + Comparable {
    /// The request schema of a manifest that gives none, where the options decide it.
    fn schema(&self) -> Option<Value> {
        None
    }

    /// Whether the model itself reports its request schema and its output type.
    fn is_self_describing(&self) -> bool {
        false
    }

    /// The model's file, which is not a second model by itself.
    fn model_file(&self) -> Option<&Path> {
        None
    }

    /// The files that it runs as programs.
    fn programs(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// What it needs on this machine and is not there. Only `orrery check` asks: a program may come later, and
    /// a model that fails says why.
    fn missing(&self) -> Option<String> {
        None
    }

    /// Runs at once where the manifest says nothing; `None`: as for any model.
    fn concurrency(&self) -> Option<usize> {
        None
    }

    /// What the file calls the model.
    fn title(&self) -> Option<&str> {
        None
    }

    /// The runner of `model`. Starts nothing.
    fn runner(self: Arc<Self>, model: Model, dependencies: &Dependencies) -> Arc<dyn Runner>;
}

/// What a manifest says of its model, whatever its runner is.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Its slug, for messages.
    pub name: String,
    /// Runs at once.
    pub concurrency: usize,
    /// The most that one run may take.
    pub timeout: Duration,
    /// JSON pointer to a cost in an answer.
    pub cost_report: String,
    /// Whether its outputs are files.
    pub gives_files: bool,
}

impl Model {
    /// Its servers. `is_probed`: they are asked how they are, with `starts_unknown` before they count as
    /// usable.
    pub(super) fn servers(
        &self,
        addresses: &[Address],
        is_probed: bool,
        starts_unknown: bool,
        dependencies: &Dependencies,
    ) -> Pool {
        let model = &self.name;
        let settings =
            Settings { model, addresses, patience: self.timeout, is_probed, starts_unknown };
        Pool::new(&settings, &dependencies.endpoints)
    }
}

/// What runners are made with.
#[derive(Debug, Clone)]
pub struct Dependencies {
    /// For the built-in models.
    pub builtins: BuiltinContext,
    /// For the operator's own URLs.
    pub client: Client,
    /// For the operator's own programs, and for this one started again.
    pub guard: GuardConfig,
    /// What models that are run here share.
    pub room: Arc<Room>,
    /// The servers of models elsewhere, which outlive the runners that use them.
    pub endpoints: Arc<Registry>,
}

impl Dependencies {
    /// For checking manifests: no program can be started.
    #[must_use]
    pub fn none() -> Self {
        let guard = GuardConfig {
            program: PathBuf::new(),
            work: PathBuf::new(),
            hidden: Vec::new(),
            models: PathBuf::new(),
            groups: None,
            tasks: Tasks::new(),
        };
        let workers = Workers::new(PathBuf::new(), None);
        let builtins = BuiltinContext::new(Policy::default(), None, workers);
        let client = Client::trusted();
        let endpoints = Arc::default();
        Self { builtins, client, guard, room: Arc::default(), endpoints }
    }
}

/// The runner that a manifest asks for.
#[derive(Debug, Clone)]
pub struct Config {
    /// As manifests spell the type.
    pub type_name: &'static str,
    pub options: Arc<dyn Options>,
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        self.options.equals(&*other.options)
    }
}

impl Config {
    /// What runs a model file that has no manifest.
    #[must_use]
    pub fn of_model_file(file: &Path) -> Self {
        let options = llm::Options::of_file(file.to_path_buf());
        Self { type_name: llm::TYPE.name, options: Arc::new(options) }
    }
}

/// Reads the `[runner]` table of a manifest in `folder`; faults are noted in the section.
pub fn read(section: &mut Section<'_>, folder: &Path) -> Option<Config> {
    let Some(found) = section.required("type", one_of(TYPES, |kind| kind.name)) else {
        // Which keys are right depends on the type.
        section.ignore_others();
        return None;
    };
    let options = (found.read)(section, folder)?;
    Some(Config { type_name: found.name, options })
}

/// Compares options of any types.
pub trait Comparable: Any {
    /// Whether `other` is of the same type and equal.
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<T: Any + PartialEq> Comparable for T {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

/// The value of a header: `prefix` and then a text with its secrets replaced. It is marked as
/// sensitive, so that nothing prints it.
pub(super) fn secret_header(
    value: &values::Value<'_>,
    prefix: &str,
    folder: &Path,
) -> Parsed<HeaderValue> {
    let secret = values::secret(folder)(value)?;
    let header = HeaderValue::from_str(&format!("{prefix}{}", secret.expose()));
    let mut header = header.map_err(|_hidden| {
        problem(value, "a header cannot carry some of its characters".to_owned())
    })?;
    header.set_sensitive(true);
    Ok(header)
}

/// The URL of a server, without a slash at its end.
pub(super) fn base_url(value: &values::Value<'_>) -> Parsed<String> {
    values::url(value).map(|url| url.trim_end_matches('/').to_owned())
}

#[cfg(test)]
impl Model {
    /// A model of a test, whose runs may take `timeout`.
    pub fn of_test(name: &str, timeout: Duration) -> Self {
        Self {
            name: name.to_owned(),
            concurrency: 1,
            timeout,
            cost_report: "/metrics/cost".to_owned(),
            gives_files: false,
        }
    }
}
