//! Replicate's API below `/replicate/v1`: predictions, files, models, the account and errors.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{Text, Time, pattern};
use orrery_domain::delivery::URL_BYTES_MAX;
use orrery_domain::execution::{self, Execution, Status};
use orrery_domain::file::{self, METADATA_BYTES_MAX};
use orrery_domain::ids::{ExecutionId, FileId};
use orrery_domain::replicate::{self, owner_and_name, version_of};

/// The path prefix of Replicate's API on the base host.
pub const PLACE: &str = "/replicate";
/// The path of a prediction, without its ID.
const PREDICTIONS: &str = "/replicate/v1/predictions/";
/// The version of Cog whose schema format this service follows: the first version in which an array
/// is a stream of items only if its schema says so.
pub const COG_VERSION: &str = "0.3.9";

/// A prediction to create with a version.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ReplicateNewPrediction")]
#[schemars(example = json!({
    "version": "local/text-template",
    "input": {"template": "Hello {{ name }}!", "values": {"name": "Ada"}},
}))]
pub struct NewPrediction {
    /// The ID of a version, `owner/name`, or `owner/name:id`.
    #[schemars(length(min = 1))]
    pub version: String,
    #[serde(flatten)]
    pub run: NewRun,
}

/// A prediction to create with the model in the path.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ReplicateNewRun")]
#[schemars(example = json!({
    "input": {"template": "Hello {{ name }}!", "values": {"name": "Ada"}},
}))]
pub struct NewRun {
    /// The model's input. Must match `components.schemas.Input` of the version's schema.
    pub input: Map<String, Value>,
    /// The URL to notify of the events in `webhook_events_filter`. An empty string means no
    /// webhook.
    #[schemars(length(max = URL_BYTES_MAX), transform = pattern::optional_web_url)]
    pub webhook: Option<String>,
    /// An older field for a webhook: the URL to notify only of the end of the prediction. Ignored
    /// if `webhook` is set.
    #[schemars(length(max = URL_BYTES_MAX), transform = pattern::optional_web_url)]
    pub webhook_completed: Option<String>,
    /// The events of which the webhook is notified. Defaults to `output` and `completed`.
    #[schemars(length(max = 16))]
    pub webhook_events_filter: Option<Vec<WebhookEvent>>,
    /// Accepted and ignored, because every prediction can be streamed.
    pub stream: Option<bool>,
}

/// An event of a prediction.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ReplicateWebhookEvent")]
pub enum WebhookEvent {
    Start,
    Output,
    Logs,
    Completed,
}

impl From<WebhookEvent> for replicate::Event {
    fn from(event: WebhookEvent) -> Self {
        match event {
            WebhookEvent::Start => Self::Start,
            WebhookEvent::Output => Self::Output,
            WebhookEvent::Logs => Self::Logs,
            WebhookEvent::Completed => Self::Completed,
        }
    }
}

/// The status of a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ReplicateStatus")]
pub enum PredictionStatus {
    Starting,
    Processing,
    Succeeded,
    Failed,
    Canceled,
}

impl From<Status> for PredictionStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Created => Self::Starting,
            Status::Processing => Self::Processing,
            Status::Success => Self::Succeeded,
            Status::Error => Self::Failed,
            Status::Cancelled => Self::Canceled,
        }
    }
}

/// A prediction, as Replicate's API and its webhooks show it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReplicatePrediction")]
pub struct Prediction<'a> {
    /// The ID of the prediction.
    pub id: ExecutionId,
    /// The requested model, as `owner/name`.
    pub model: String,
    /// The ID of the model's version.
    pub version: String,
    /// The status of the prediction.
    pub status: PredictionStatus,
    /// The input, with the defaults of the model's schema filled in. Null if the input is hidden
    /// or no longer stored.
    pub input: Option<Box<RawValue>>,
    /// The output. Null until the prediction has succeeded, except in updates of a webhook.
    pub output: Option<Box<RawValue>>,
    /// The log output of all attempts.
    pub logs: String,
    /// Why the prediction failed. Null otherwise.
    pub error: Option<&'a str>,
    /// Durations in seconds.
    pub metrics: Metrics,
    /// Always `api`.
    #[schemars(extend("const" = "api"))]
    pub source: &'static str,
    /// Whether the input is no longer stored.
    pub data_removed: bool,
    /// When the prediction was created.
    pub created_at: Time,
    /// When the first attempt started. Null until then.
    pub started_at: Option<Time>,
    /// When the prediction ended. Null until then.
    pub completed_at: Option<Time>,
    /// URLs of this prediction.
    pub urls: Urls,
}

/// Durations in seconds.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReplicateMetrics")]
pub struct Metrics {
    /// Seconds from the start of the first attempt to the end of the prediction. Absent until the
    /// prediction has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predict_time: Option<f64>,
    /// Seconds from the creation to the end of the prediction. Absent until the prediction has
    /// ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_time: Option<f64>,
}

/// The URLs of a prediction.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReplicateUrls")]
pub struct Urls {
    /// The URL of this prediction.
    pub get: String,
    /// The URL to cancel this prediction with a POST.
    pub cancel: String,
    /// The URL of the event stream, which works without an API key for a day.
    pub stream: String,
}

impl Urls {
    /// Returns the URLs below `base`, the public URL of the base host. `stream` is a link to
    /// [`stream_path`].
    #[must_use]
    pub fn of(base: &str, id: ExecutionId, stream: String) -> Self {
        let get = format!("{base}{PREDICTIONS}{id}");
        Self { cancel: format!("{get}/cancel"), get, stream }
    }
}

/// Returns the path of a prediction's event stream.
#[must_use]
pub fn stream_path(id: ExecutionId) -> String {
    format!("{PREDICTIONS}{id}/stream")
}

/// The parts of a prediction's view that the execution record does not contain.
#[derive(Debug)]
pub struct Shown {
    pub input: Text,
    pub output: Option<Box<RawValue>>,
    pub logs: Option<String>,
    pub urls: Urls,
}

impl<'a> Prediction<'a> {
    /// Returns the view of `execution`, whose work is `prediction`.
    #[must_use]
    pub fn of(execution: &'a Execution, prediction: &execution::Prediction, shown: Shown) -> Self {
        let slug = prediction.requested_model();
        let total = execution.completed_at.map(|end| end.since(execution.created_at));
        Self {
            id: execution.id,
            model: name_of(slug),
            version: version_of(slug),
            status: execution.status.into(),
            data_removed: shown.input.error.is_some(),
            input: shown.input.text,
            output: shown.output,
            logs: shown.logs.unwrap_or_default(),
            error: execution.fault.as_ref().map(|fault| fault.cause.as_str()),
            metrics: Metrics {
                predict_time: execution.run_time().map(|span| span.as_secs_f64()),
                total_time: total.map(|span| span.as_secs_f64()),
            },
            source: "api",
            created_at: execution.created_at.into(),
            started_at: execution.started_at.map(Time::from),
            completed_at: execution.completed_at.map(Time::from),
            urls: shown.urls,
        }
    }
}

/// Returns the name of a model with its owner.
fn name_of(slug: &str) -> String {
    let (owner, name) = owner_and_name(slug);
    format!("{owner}/{name}")
}

/// A page of a list.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReplicatePageOf{T}")]
pub struct Page<T> {
    /// The URL of the previous page. Null on the first page.
    pub previous: Option<String>,
    /// The URL of the next page. Null on the last page.
    pub next: Option<String>,
    /// The items of this page.
    pub results: Vec<T>,
}

/// The data of an event in the stream of a prediction: text for `output` and `logs`, JSON for
/// `error` and `done`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ReplicateEvent")]
pub enum EventData {
    /// `output` and `logs`: a part of the text.
    #[schemars(title = "ReplicateTextEvent")]
    Text(String),
    /// `error`: the reason why the stream ends without the whole output.
    #[schemars(title = "ReplicateErrorEvent")]
    Error {
        /// A message for people.
        detail: String,
    },
    /// `done`: the prediction has ended.
    #[schemars(title = "ReplicateDoneEvent")]
    Done {
        /// Absent if the prediction has succeeded.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<DoneReason>,
    },
}

/// Why a prediction ended without success.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ReplicateDoneReason")]
pub enum DoneReason {
    Canceled,
    Error,
}

/// A model.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReplicateModel")]
pub struct Model {
    /// The URL of the model in the service's own API.
    pub url: String,
    /// The part of the slug before the first `/`, or `local`.
    pub owner: String,
    /// The part of the slug after the first `/`, or the whole slug if it contains no `/`.
    pub name: String,
    /// A description for people.
    pub description: String,
    /// Always `private`: the models belong to this service.
    #[schemars(extend("const" = "private"))]
    pub visibility: &'static str,
    /// Always 0: this API does not count the runs of a model.
    #[schemars(extend("const" = 0))]
    pub run_count: u32,
    /// The model's only version.
    pub latest_version: Version,
}

impl Model {
    /// Returns the view of the model `slug`; `url` is the model's URL in the service's own API.
    #[must_use]
    pub fn of(slug: &str, description: &str, url: String, latest_version: Version) -> Self {
        let (owner, name) = owner_and_name(slug);
        Self {
            url,
            owner: owner.to_owned(),
            name: name.to_owned(),
            description: description.to_owned(),
            visibility: "private",
            run_count: 0,
            latest_version,
        }
    }
}

/// A version of a model.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReplicateVersion")]
pub struct Version {
    /// The ID of the version, which is unique among all models.
    pub id: String,
    /// When the service was started.
    pub created_at: Time,
    /// The version of Cog whose schema format `openapi_schema` has.
    pub cog_version: &'static str,
    /// An OpenAPI document with the schemas `Input` and `Output`.
    pub openapi_schema: Map<String, Value>,
}

/// An uploaded file, or an output of a model.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReplicateFile")]
pub struct File {
    /// The ID of the file.
    pub id: FileId,
    /// The name of the file.
    pub name: String,
    /// The content type.
    pub content_type: String,
    /// The size in bytes.
    pub size: u64,
    /// The SHA-256 hash, as 64 hexadecimal digits.
    pub etag: String,
    /// Hashes of the content by algorithm.
    pub checksums: BTreeMap<&'static str, String>,
    /// The metadata that the file was uploaded with.
    pub metadata: Map<String, Value>,
    /// When the file was created.
    pub created_at: Time,
    /// When the file is deleted.
    pub expires_at: Time,
    /// URLs of this file.
    pub urls: FileUrls,
}

/// The URLs of a file.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReplicateFileUrls")]
pub struct FileUrls {
    /// The URL of the content, which works without an API key and as a model's input.
    pub get: String,
}

impl File {
    /// Returns the view of a file whose content is at `url`.
    #[must_use]
    pub fn of(file: &file::File, url: String) -> Self {
        let metadata = file.metadata.as_deref().map(serde_json::from_str);
        let hash = file.sha256.to_string();
        Self {
            id: file.id,
            name: file.filename.clone().unwrap_or_else(|| "file".to_owned()),
            content_type: file.content_type.clone(),
            size: file.size,
            etag: hash.clone(),
            checksums: BTreeMap::from([("sha256", hash)]),
            metadata: metadata.and_then(Result::ok).unwrap_or_default(),
            created_at: file.created_at.into(),
            expires_at: file.expires_at.into(),
            urls: FileUrls { get: url },
        }
    }
}

/// A form with a file.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "ReplicateFileForm")]
pub struct FileForm {
    /// The content, with a content type and a filename.
    #[schemars(extend("format" = "binary"))]
    pub content: String,
    /// A JSON object that the record of the file contains.
    #[schemars(length(max = METADATA_BYTES_MAX))]
    pub metadata: Option<String>,
}

/// The organization of the API key.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReplicateAccount")]
pub struct Account {
    /// Always `organization`.
    #[serde(rename = "type")]
    #[schemars(extend("const" = "organization"))]
    pub kind: &'static str,
    /// The name of the organization.
    pub username: String,
    /// The name of the organization.
    pub name: String,
}

/// The secret that signs webhooks.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReplicateWebhookSecret")]
pub struct WebhookSecret {
    /// The secret in the form of Standard Webhooks, `whsec_` and Base64.
    pub key: String,
}

/// An error (RFC 9457).
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReplicateError")]
pub struct Problem<'a> {
    /// The meaning of the status.
    pub title: &'a str,
    /// A message for people.
    pub detail: &'a str,
    /// The HTTP status.
    pub status: u16,
    /// The fields of the input that do not match the schema. Absent for other errors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub invalid_fields: Vec<InvalidField<'a>>,
}

/// A field of the input that does not match the schema.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReplicateInvalidField")]
pub struct InvalidField<'a> {
    /// The field as a JSON pointer.
    pub field: &'a str,
    /// What is wrong with the field.
    pub description: &'a str,
}
