//! JSON Schemas of ids and of the enumerations that are serialized under their stored names.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::agent::{Behavior, Mode};
use crate::classify::ErrorClass;
use crate::execution::Source;
use crate::file::FileSource;
use crate::member::{LinkKind, MemberRole};
use crate::model::OutputType;
use crate::schedule::Overlap;
use crate::{bulk, ids, step, webhook_endpoint, workflow};

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
    WorkflowId,
);

/// Enumerations that are serialized under their stored names.
macro_rules! enumerations {
    ($($name:literal: $domain:path [$($variant:ident),+];)+) => {$(
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
                json_schema!({"type": "string", "enum": [$(name(Of::$variant)),+]})
            }
        }
    )+};
}

enumerations! {
    "AgentMode": Mode [Max, Eco];
    "AgentBehavior": Behavior [Agent, Plan, Ask];
    "ErrorClassification": ErrorClass [
        ContentModeration, ExecutionTimeout, InvalidUserInput, InvalidModelConfig, ProviderAuth,
        ProviderError, ProviderRateLimit, ProviderUnavailable, InternalError, Unknown
    ];
    "ExecutionSource": Source [Api, Dashboard, Agent, Schedule, Workflow];
    "LinkKind": LinkKind [Setup, Invitation, Reset];
    "MemberRole": MemberRole [Owner, Member];
    "FileSource": FileSource [Upload, Output];
    "BulkJobAction": bulk::Action [Cancel, Redrive, Pause, Resume, Delete];
    "BulkJobStatus": bulk::Status [Running, Completed, Cancelled];
    "ScheduleOverlap": Overlap [Skip, Queue, CancelOther, Allow];
    "WebhookEvent": webhook_endpoint::Event [
        PredictionStarted, PredictionCompleted, PredictionFailed, WorkflowStarted, WorkflowCompleted,
        WorkflowFailed, EndpointTest
    ];
    "WebhookSignature": webhook_endpoint::Scheme [V1, V1a];
    "WebhookDisabledReason": webhook_endpoint::Reason [Request, Failures];
    "OutputType": OutputType [
        String, Array, Object, Number, Boolean, Image, Audio, Video, File
    ];
    "EventSource": step::EventSource [Api, Link, Default];
    "StepStatus": step::Status [Queued, Running, Completed, Failed, Cancelled, Skipped];
    "WorkflowStatus": workflow::Status [Active, Archived, Deleted];
}
