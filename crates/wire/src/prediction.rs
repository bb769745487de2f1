//! Predictions: the request, the view, and the webhook.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{AttemptStatus, ExecutionStatus, PredictionStatus, Text, Time, pattern};
use orrery_domain::attempt::Attempt;
use orrery_domain::classify::ErrorClass;
use orrery_domain::delivery::URL_BYTES_MAX;
use orrery_domain::execution::{self, Execution, Status};
use orrery_domain::ids::ExecutionId;
use orrery_domain::model::VERSION;
use orrery_domain::signature::SECRET_BYTES_MAX;

/// A prediction to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(example = json!({
    "model": "text-template",
    "version": VERSION,
    "input": {"template": "Hello {{ name }}!", "values": {"name": "Ada"}},
}))]
pub struct NewPrediction {
    /// The slug of the model.
    #[schemars(length(min = 1))]
    pub model: String,
    /// Any string, which is stored with the prediction.
    #[schemars(length(min = 1))]
    pub version: String,
    /// The model's input. Must match the model's `request_schema`.
    pub input: Map<String, Value>,
    /// The URL to notify when the prediction ends. An empty string means no webhook.
    #[schemars(length(max = URL_BYTES_MAX), transform = pattern::optional_web_url)]
    pub webhook_url: Option<String>,
    /// The secret that signs the webhook.
    #[schemars(length(max = SECRET_BYTES_MAX), transform = pattern::line)]
    pub webhook_secret: Option<String>,
    /// Whether the webhook also carries the secret itself, in `X-Webhook-Secret`. Defaults to the
    /// service's `webhooks.send_plain_secret`. Null means the default.
    pub webhook_send_plain_secret: Option<bool>,
    /// The name of a fallback chain of this model.
    pub fallback_selector: Option<String>,
}

/// A prediction that was created, is still running, or was cancelled.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PredictionAccepted")]
#[schemars(example = json!({
    "status": "success",
    "message": "Prediction created successfully",
    "predictionID": "0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
}))]
pub struct Accepted<'a> {
    /// `success` if the prediction was created, `cancelled` if it was cancelled.
    #[schemars(extend("enum" = ["success", "cancelled"]))]
    pub status: &'a str,
    /// A message for people.
    pub message: &'a str,
    /// The ID of the prediction.
    #[serde(rename = "predictionID")]
    pub prediction_id: ExecutionId,
}

/// A prediction that has ended.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PredictionEnded")]
pub struct Ended<'a> {
    /// How the prediction ended.
    #[schemars(extend("enum" = ["success", "failed", "cancelled"]))]
    pub status: &'a str,
    /// A message for people.
    pub message: &'a str,
    /// The ID of the prediction.
    #[serde(rename = "predictionID")]
    pub prediction_id: ExecutionId,
    /// The output. Null if there is none.
    pub output: Option<Box<RawValue>>,
    /// Why the output is missing or damaged on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
    /// Why the prediction failed. Empty otherwise.
    pub error: &'a str,
}

/// A prediction.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(example = example())]
pub struct Prediction<'a> {
    /// The ID of the prediction.
    pub id: ExecutionId,
    /// The requested model.
    pub model: &'a str,
    /// The status of the prediction.
    pub status: PredictionStatus,
    /// The input, with the defaults of the model's schema filled in. Null if the input is hidden.
    pub input: Option<Box<RawValue>>,
    /// Why the input is missing or damaged on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_error: Option<String>,
    /// The output. Null until the prediction has succeeded.
    pub output: Option<Box<RawValue>>,
    /// Why the output is missing or damaged on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
    /// Log output of the attempts. While the prediction is queued, its position.
    pub logs: Option<String>,
    /// Why the prediction failed.
    pub error: Option<&'a str>,
    /// The class of the error.
    pub error_classification: Option<ErrorClass>,
    /// Cost and durations.
    pub metrics: Metrics,
    /// URLs of this prediction.
    pub urls: Urls,
    /// When the prediction was created.
    pub created_at: Time,
    /// When the first attempt started. Null until then.
    pub started_at: Option<Time>,
    /// When the prediction ended. Null until then.
    pub completed_at: Option<Time>,
    /// The attempts in order, including those of fallback models.
    pub attempts: Vec<Tried<'a>>,
}

fn example() -> Value {
    json!({
        "id": "0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
        "model": "text-template",
        "status": "success",
        "input": {"template": "Hello {{ name }}!", "values": {"name": "Ada"}},
        "output": "Hello Ada!",
        "logs": null,
        "error": null,
        "error_classification": null,
        "metrics": {"predict_time": 0.004, "queue_time": 0.001, "cost": 0.0},
        "urls": {
            "get": "http://127.0.0.1:8080/v1/prediction/0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
            "cancel":
                "http://127.0.0.1:8080/v1/prediction/0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e/cancel",
        },
        "created_at": "2026-11-20T09:30:00.123Z",
        "started_at": "2026-11-20T09:30:00.124Z",
        "completed_at": "2026-11-20T09:30:00.128Z",
        "attempts": [{
            "model": "text-template",
            "status": "success",
            "error": null,
            "error_classification": null,
            "started_at": "2026-11-20T09:30:00.124Z",
            "completed_at": "2026-11-20T09:30:00.128Z",
        }],
    })
}

/// The URLs to read and to cancel a prediction.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PredictionUrls")]
pub struct Urls {
    /// The URL of this prediction.
    pub get: String,
    /// The URL to cancel this prediction with a POST.
    pub cancel: String,
}

/// An attempt of a prediction.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PredictionAttempt")]
pub struct Tried<'a> {
    /// The model that ran.
    pub model: &'a str,
    /// The status of the attempt.
    pub status: AttemptStatus,
    /// Why the attempt failed.
    pub error: Option<&'a str>,
    /// The class of the error.
    pub error_classification: Option<ErrorClass>,
    /// When the attempt started.
    pub started_at: Time,
    /// When the attempt ended. Null until then.
    pub completed_at: Option<Time>,
}

/// Durations in seconds and cost in US dollars.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "PredictionMetrics")]
pub struct Metrics {
    /// Seconds from the first attempt to the end.
    pub predict_time: Option<f64>,
    /// Seconds from the creation to the first attempt.
    pub queue_time: Option<f64>,
    /// The cost so far, in US dollars.
    pub cost: f64,
    /// True if the output comes from the result cache of the model. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached: Option<bool>,
}

/// The parts of a prediction's view that the execution record does not contain.
#[derive(Debug)]
pub struct Shown {
    pub input: Text,
    pub output: Text,
    pub logs: Option<String>,
    pub urls: Urls,
}

impl<'a> Prediction<'a> {
    /// Returns the view of `execution`, whose work is `prediction`.
    #[must_use]
    pub fn of(
        execution: &'a Execution,
        prediction: &'a execution::Prediction,
        shown: Shown,
    ) -> Self {
        let fault = execution.fault.as_ref();
        Self {
            id: execution.id,
            model: prediction.requested_model(),
            status: execution.status.into(),
            input: shown.input.text,
            input_error: shown.input.error,
            output: shown.output.text,
            output_error: shown.output.error,
            logs: shown.logs,
            error: fault.map(|fault| fault.cause.as_str()),
            error_classification: fault.map(|fault| fault.class),
            metrics: Metrics::from(execution),
            urls: shown.urls,
            created_at: execution.created_at.into(),
            started_at: execution.started_at.map(Time::from),
            completed_at: execution.completed_at.map(Time::from),
            attempts: prediction.attempts.iter().map(Tried::from).collect(),
        }
    }
}

impl<'a> From<&'a Attempt> for Tried<'a> {
    fn from(attempt: &'a Attempt) -> Self {
        let failure = attempt.failure.as_ref();
        Self {
            model: &attempt.model,
            status: attempt.outcome.into(),
            error: failure.map(|failure| failure.message.as_str()),
            error_classification: failure.map(|failure| failure.class),
            started_at: attempt.started_at.into(),
            completed_at: attempt.completed_at.map(Time::from),
        }
    }
}

impl From<&Execution> for Metrics {
    /// Returns the metrics so far.
    fn from(execution: &Execution) -> Self {
        Self {
            predict_time: execution.run_time().map(|span| span.as_secs_f64()),
            queue_time: execution.queue_time().map(|span| span.as_secs_f64()),
            cost: execution.cost.dollars(),
            cached: execution.prediction().filter(|one| one.is_cached).map(|_| true),
        }
    }
}

/// The body of a prediction's webhook (`docs/spec/predictions.md`, "Webhook body").
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PredictionWebhook")]
pub struct Announcement<'a> {
    /// The ID of the prediction.
    pub execution_id: ExecutionId,
    /// The same as `execution_id`.
    pub exec_id: ExecutionId,
    /// Always null, because a prediction belongs to no workflow.
    pub flow_id: Option<String>,
    /// Whether the prediction completed or failed.
    pub status: ExecutionStatus,
    /// The output. Null if the prediction failed.
    pub output: Option<&'a RawValue>,
    /// The name of the error. Empty if there is none.
    pub error: &'a str,
    /// The cause of the error. Null if there is none.
    pub error_cause: Option<&'a str>,
    /// When the prediction started.
    pub started_at: Time,
    /// Cost and durations.
    pub metrics: Metrics,
    /// Set in test deliveries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<bool>,
}

impl<'a> Announcement<'a> {
    /// Returns the webhook body of an execution that has ended, with the text of its output.
    #[must_use]
    pub fn of(execution: &'a Execution, output: Option<&'a RawValue>) -> Self {
        let fault = execution.fault.as_ref();
        Self {
            execution_id: execution.id,
            exec_id: execution.id,
            flow_id: None,
            status: execution.status.into(),
            output: output.filter(|_| execution.status == Status::Success),
            error: fault.map_or("", |fault| fault.name.as_str()),
            error_cause: fault.map(|fault| fault.cause.as_str()),
            started_at: execution.started_at.unwrap_or(execution.created_at).into(),
            metrics: Metrics::from(execution),
            test: None,
        }
    }
}
