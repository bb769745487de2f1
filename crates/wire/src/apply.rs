//! The files of `orrery apply` and `orrery workflow push`.
//!
//! The service checks the fields of resources. Here, the fields can be any JSON; their schemas are
//! the same as in the service's requests.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::chain::Entry;
use super::definition::Definition;
use super::key_policy::KeyPolicyChange;
use super::limits::LimitsChange;
use super::schedule::{AnyTarget, Common};
use super::webhook_endpoint::EndpointChange;
use orrery_domain::chain::ENTRIES_MAX;

/// A file of `orrery apply`: organizations by name, each with its resources by name.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ApplyDocument")]
pub struct Document {
    #[serde(default)]
    pub organizations: BTreeMap<String, Organization>,
}

/// An organization. Resources that are not listed are left unchanged. Null counts as empty.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ApplyOrganization")]
pub struct Organization {
    #[schemars(with = "Option<LimitsChange>")]
    pub limits: Option<Map<String, Value>>,
    /// API keys, by name. Keys that do not exist are created.
    pub keys: Option<BTreeMap<String, Option<Key>>>,
    /// Secrets, with the sources of their values.
    pub secrets: Option<BTreeMap<String, Source>>,
    /// Fallback chains.
    #[schemars(with = "Option<BTreeMap<String, Chain>>")]
    pub chains: Option<BTreeMap<String, Map<String, Value>>>,
    /// Workflows by their slugs.
    #[schemars(with = "Option<BTreeMap<String, WorkflowOrFile>>")]
    pub workflows: Option<BTreeMap<String, Map<String, Value>>>,
    #[schemars(with = "Option<BTreeMap<String, Schedule>>")]
    pub schedules: Option<BTreeMap<String, Map<String, Value>>>,
    #[schemars(with = "Option<BTreeMap<String, EndpointChange>>")]
    pub webhook_endpoints: Option<BTreeMap<String, Map<String, Value>>>,
}

/// The properties of an API key. Omitted restrictions stay unchanged.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "ApplyKey", deny_unknown_fields)]
pub struct Key {
    /// The lifetime of a new key, such as `90d`. Existing keys keep their expiry.
    pub expires: Option<String>,
    #[serde(flatten)]
    #[schemars(with = "KeyPolicyChange")]
    pub policy: Map<String, Value>,
}

/// The source of a secret's value: an environment variable or a file. The document itself never
/// contains a value.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[schemars(rename = "ApplySecret")]
pub enum Source {
    Env(String),
    File(PathBuf),
}

/// A fallback chain.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "ApplyChain", deny_unknown_fields)]
pub struct Chain {
    /// The primary model.
    pub model: String,
    pub enabled: Option<bool>,
    #[schemars(length(min = 1, max = ENTRIES_MAX))]
    pub entries: Option<Vec<Entry>>,
}

/// A workflow, or the file that contains it.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "ApplyWorkflow", untagged)]
pub enum WorkflowOrFile {
    File(WorkflowFile),
    Workflow(Box<Workflow>),
}

/// The path of a file, relative to this file's folder.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "ApplyWorkflowFile", deny_unknown_fields)]
pub struct WorkflowFile {
    pub file: PathBuf,
}

/// A workflow. Omitted fields keep their values.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "WorkflowFile", deny_unknown_fields)]
pub struct Workflow {
    pub name: String,
    pub description: String,
    /// The slugs of the workflow's categories.
    pub categories: Option<Vec<String>>,
    pub tags: Option<Vec<String>>,
    pub locked: Option<bool>,
    pub production: Option<bool>,
    /// Whether other organizations may run this version.
    pub allowed_to_share: Option<bool>,
    pub definition: Definition,
}

/// A schedule of a workflow or a model.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "ApplySchedule", deny_unknown_fields)]
pub struct Schedule {
    /// The workflow's slug. Only for the schedule of a workflow.
    pub workflow: Option<String>,
    #[schemars(flatten)]
    pub target: AnyTarget,
    #[schemars(flatten)]
    pub common: Common,
}
