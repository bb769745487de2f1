//! JSON Schemas of ids and of the enumerations that are serialized under their stored names.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::agent::{Behavior, Mode};
use crate::classify::ErrorClass;
use crate::execution::Source;
use crate::file::FileSource;
use crate::key_policy::Scope;
use crate::member::{LinkKind, MemberRole};
use crate::model::OutputType;
use crate::schedule::Overlap;
use crate::waits_for::WaitsFor;
use crate::{batch, bulk, ids, step, webhook_endpoint, workflow};

macro_rules! ids {
    ($($name:ident),+ $(,)?) => {$(
        impl JsonSchema for ids::$name {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "format": "uuid"})
            }
        }
    )+};
}

ids!(
    BulkId,
    DeliveryId,
    EndpointId,
    ExecutionId,
    FileId,
    JobId,
    KeyId,
    LinkId,
    MemberId,
    OrganizationId,
    ScheduleId,
    WorkerJobId,
    WorkflowId,
);

/// Enumerations that are serialized under their stored names.
macro_rules! enumerations {
    ($($name:literal: $domain:path [$($variant:ident),+] = $about:literal;)+) => {$(
        impl JsonSchema for $domain {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                use $domain as Of;
                const fn name(value: Of) -> &'static str {
                    match value {
                        $(Of::$variant => value.as_str(),)+
                    }
                }
                json_schema!({
                    "type": "string",
                    "enum": [$(name(Of::$variant)),+],
                    "description": $about,
                })
            }
        }
    )+};
}

enumerations! {
    "AgentMode": Mode [Max, Eco]
        = "`max` uses the agent's model, `eco` the cheaper model and a quarter of the steps.";
    "AgentBehavior": Behavior [Agent, Plan, Ask]
        = "`agent` uses all tools, `plan` answers with steps and costs, `ask` only reads.";
    "ErrorClassification": ErrorClass [
        ContentModeration, ExecutionTimeout, InvalidUserInput, InvalidModelConfig, ProviderAuth,
        ProviderError, ProviderRateLimit, ProviderUnavailable, InternalError, Unknown
    ]
        = "The class of an error: who or what caused it.";
    "ExecutionSource": Source [Api, Dashboard, Agent, Schedule, Workflow]
        = "What started an execution: an API key, a member in the dashboard, the agent, a \
         schedule, or a step of a workflow.";
    "KeyScope": Scope [Predict, Chat, WorkflowRun, WorkflowWrite, Files, Read, Secrets, Worker]
        = "A group of operations that an API key may be restricted to.";
    "LinkKind": LinkKind [Setup, Invitation, Reset]
        = "What a link is for: creating the Owner, joining as a member, or setting a new \
         password.";
    "MemberRole": MemberRole [Owner, Editor, Operator, Viewer]
        = "The role of a member. Each organization has one `owner`. An `editor` changes workflows, \
         chains, schedules, secrets and webhook endpoints, an `operator` runs and repeats, and a \
         `viewer` reads.";
    "FileSource": FileSource [Upload, Output]
        = "Whether a file was uploaded, or is the output of a model.";
    "BatchEndpoint": batch::Endpoint [ChatCompletions, Responses, Embeddings, Completions]
        = "The route that answers the lines of a batch.";
    "BatchStatus": batch::Status [
        Validating, Failed, InProgress, Finalizing, Completed, Expired, Cancelling, Cancelled
    ] = "The status of a batch.";
    "BulkJobAction": bulk::Action [Cancel, Redrive, Pause, Resume, Delete]
        = "What a bulk job does with each execution.";
    "BulkJobStatus": bulk::Status [Running, Completed, Cancelled]
        = "The status of a bulk job.";
    "ScheduleOverlap": Overlap [Skip, Queue, CancelOther, Allow]
        = "What to do if a schedule fires while its previous run is unfinished: skip the new run, \
         queue it until the previous one ends, cancel the previous one, or run both.";
    "WebhookEvent": webhook_endpoint::Event [
        PredictionStarted, PredictionCompleted, PredictionFailed, WorkflowStarted, WorkflowCompleted,
        WorkflowFailed, EndpointTest
    ]
        = "An event that webhook endpoints are notified of. `started` means accepted.";
    "WebhookSignature": webhook_endpoint::Scheme [V1, V1a]
        = "`v1` signs with HMAC-SHA256 and a shared secret, `v1a` with Ed25519 and a key pair.";
    "WebhookDisabledReason": webhook_endpoint::Reason [Request, Failures]
        = "Why an endpoint is disabled: on request, or because its deliveries kept failing.";
    "OutputType": OutputType [
        String, Array, Object, Number, Boolean, Image, Audio, Video, File
    ]
        = "The type of a model's output. For `image`, `audio`, `video` and `file`, the output is \
         the URL of a file, or an array of URLs.";
    "EventSource": step::EventSource [Api, Link, Default]
        = "Who sent an event: a client with an API key, a person with the step's link, or nobody, \
         so that the default applied.";
    "StepStatus": step::Status [Queued, Running, Completed, Failed, Cancelled, Skipped]
        = "The status of a step. The last four are final.";
    "WaitsFor": WaitsFor [Event, Resume]
        = "What an execution needs to continue: an event (`event`) or a resume request (`paused`).";
    "WorkflowStatus": workflow::Status [Active, Archived, Deleted]
        = "The status of a workflow. An archived workflow cannot be triggered.";
}
