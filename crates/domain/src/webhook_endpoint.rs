//! Webhook endpoints, which are notified of events in an organization's predictions and workflows,
//! regardless of who submitted them. An endpoint has an event filter and a signature scheme.
//!
//! Nothing here sends or stores anything: `webhooks::endpoints` stores the endpoints, and the
//! outbox delivers to them.

use serde::{Deserialize, Serialize};

use super::execution::{Execution, Status, Work};
use super::ids::{EndpointId, OrganizationId, WorkflowId};
use super::time::Timestamp;

/// Maximum number of endpoints per organization; lists are not paginated.
pub const ENDPOINTS_MAX: usize = 50;
/// Maximum number of models, and maximum workflows, in an endpoint's filter.
pub const FILTER_MAX: usize = 100;
/// Maximum length of a name, in characters.
pub const NAME_MAX: usize = 64;

/// An event of which an endpoint can be notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Event {
    #[serde(rename = "prediction.started")]
    PredictionStarted,
    #[serde(rename = "prediction.completed")]
    PredictionCompleted,
    #[serde(rename = "prediction.failed")]
    PredictionFailed,
    #[serde(rename = "workflow.started")]
    WorkflowStarted,
    #[serde(rename = "workflow.completed")]
    WorkflowCompleted,
    #[serde(rename = "workflow.failed")]
    WorkflowFailed,
    /// Sent on request, regardless of the endpoint's filter.
    #[serde(rename = "endpoint.test")]
    EndpointTest,
}

impl Event {
    /// The events to which an endpoint can subscribe.
    pub const ALL: [Self; 6] = [
        Self::PredictionStarted,
        Self::PredictionCompleted,
        Self::PredictionFailed,
        Self::WorkflowStarted,
        Self::WorkflowCompleted,
        Self::WorkflowFailed,
    ];

    /// Returns the name that is used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PredictionStarted => "prediction.started",
            Self::PredictionCompleted => "prediction.completed",
            Self::PredictionFailed => "prediction.failed",
            Self::WorkflowStarted => "workflow.started",
            Self::WorkflowCompleted => "workflow.completed",
            Self::WorkflowFailed => "workflow.failed",
            Self::EndpointTest => "endpoint.test",
        }
    }

    /// Returns the start event of an accepted execution; `None` for work without endpoint events.
    #[must_use]
    pub const fn of_start(execution: &Execution) -> Option<Self> {
        match &execution.work {
            Work::Prediction(_) => Some(Self::PredictionStarted),
            Work::Workflow(_) => Some(Self::WorkflowStarted),
            Work::Chat(_) | Work::Decision(_) | Work::Agent(_) => None,
        }
    }

    /// Returns the end event of an execution; `None` if it was cancelled or has not ended.
    #[must_use]
    pub const fn of_end(execution: &Execution) -> Option<Self> {
        match (&execution.work, execution.status) {
            (Work::Prediction(_), Status::Success) => Some(Self::PredictionCompleted),
            (Work::Prediction(_), Status::Error) => Some(Self::PredictionFailed),
            (Work::Workflow(_), Status::Success) => Some(Self::WorkflowCompleted),
            (Work::Workflow(_), Status::Error) => Some(Self::WorkflowFailed),
            (
                Work::Prediction(_)
                | Work::Workflow(_)
                | Work::Chat(_)
                | Work::Decision(_)
                | Work::Agent(_),
                _,
            ) => None,
        }
    }
}

/// The signature scheme of an endpoint, named as in Standard Webhooks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// HMAC-SHA256 with a secret shared with the receiver.
    #[default]
    V1,
    /// Ed25519, where the receiver has only the public key.
    V1a,
}

impl Scheme {
    pub const ALL: [Self; 2] = [Self::V1, Self::V1a];

    /// Returns the name that is used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1a => "v1a",
        }
    }
}

/// Why an endpoint is disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Disabled on request.
    Request,
    /// The endpoint's deliveries failed for too long.
    Failures,
}

impl Reason {
    pub const ALL: [Self; 2] = [Self::Request, Self::Failures];

    /// Returns the name that is used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Failures => "failures",
        }
    }
}

/// A replaced secret that is still used for signing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    /// The sealed secret.
    pub secret: String,
    pub until: Timestamp,
}

/// When and why an endpoint was disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disabled {
    pub at: Timestamp,
    pub reason: Reason,
}

/// A stored endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    pub id: EndpointId,
    pub organization: OrganizationId,
    /// The name; if set, it is unique within the organization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub url: String,
    /// An empty list means all events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    /// The models whose predictions the endpoint is notified of; an empty list means all models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// The workflows whose executions the endpoint is notified of; an empty list means all
    /// workflows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workflows: Vec<WorkflowId>,
    #[serde(default)]
    pub scheme: Scheme,
    /// The sealed signing secret.
    pub secret: String,
    /// Whether deliveries also carry the secret itself. Only with [`Scheme::V1`]: the secret of the
    /// other scheme is a private key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub send_plain_secret: bool,
    /// The public key for verification, if the scheme has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Replaced>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<Disabled>,
    /// When the current series of failed attempts began, on the steady clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Endpoint {
    /// Returns whether the endpoint is notified of this event in this execution.
    #[must_use]
    pub fn wants(&self, event: Event, execution: &Execution) -> bool {
        let is_chosen = match &execution.work {
            Work::Prediction(prediction) => {
                let first = prediction.chain.first().map(|candidate| &candidate.model);
                self.models.is_empty() || first.is_some_and(|model| self.models.contains(model))
            }
            Work::Workflow(run) => {
                self.workflows.is_empty() || self.workflows.contains(&run.workflow)
            }
            Work::Chat(_) | Work::Decision(_) | Work::Agent(_) => false,
        };
        is_chosen
            && self.disabled.is_none()
            && (self.events.is_empty() || self.events.contains(&event))
    }

    /// Returns the sealed secrets with which to sign at `now`, newest first.
    pub fn secrets(&self, now: Timestamp) -> impl Iterator<Item = &str> {
        let replaced = self.replaced.as_ref().filter(move |replaced| now < replaced.until);
        std::iter::once(self.secret.as_str()).chain(replaced.map(|one| one.secret.as_str()))
    }
}

/// Returns whether a name is valid: 1 to 64 characters of `a-zA-Z0-9._-`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execution::{Candidate, Prediction, Source, WorkflowRun};
    use crate::ids::{ExecutionId, KeyId, RevisionId};
    use crate::money::Usd;
    use crate::payload::Payload;

    fn endpoint() -> Endpoint {
        Endpoint {
            id: EndpointId::from([1; 16]),
            organization: OrganizationId::from([2; 16]),
            name: None,
            url: "https://example.com/".to_owned(),
            events: Vec::new(),
            models: Vec::new(),
            workflows: Vec::new(),
            scheme: Scheme::V1,
            secret: "new".to_owned(),
            send_plain_secret: false,
            public_key: None,
            replaced: None,
            disabled: None,
            failing_since: None,
            created_at: Timestamp::from_micros(1),
            updated_at: Timestamp::from_micros(1),
        }
    }

    fn execution(work: Work, status: Status) -> Execution {
        Execution {
            id: ExecutionId::from([3; 16]),
            organization: OrganizationId::from([2; 16]),
            key: KeyId::from([4; 16]),
            source: Source::Api,
            status,
            input: Payload::nothing(),
            work,
            output: None,
            fault: None,
            cost: Usd::ZERO,
            reserved: Usd::ZERO,
            webhook: None,
            created_at: Timestamp::from_micros(1),
            started_at: None,
            completed_at: None,
            origin: None,
        }
    }

    fn prediction(model: &str) -> Work {
        let chain = vec![Candidate::new(model), Candidate::new("fallback")];
        Work::Prediction(Prediction::new("1".to_owned(), chain))
    }

    fn workflow(id: u8) -> Work {
        let revision = RevisionId::from([5; 16]);
        let run = WorkflowRun::new(WorkflowId::from([id; 16]), "v1".to_owned(), revision, None);
        Work::Workflow(run)
    }

    #[test]
    fn endpoint_event_follows_work_and_outcome() {
        for (work, status, event) in [
            (prediction("a"), Status::Success, Some(Event::PredictionCompleted)),
            (prediction("a"), Status::Error, Some(Event::PredictionFailed)),
            (prediction("a"), Status::Cancelled, None),
            (prediction("a"), Status::Processing, None),
            (workflow(1), Status::Success, Some(Event::WorkflowCompleted)),
            (workflow(1), Status::Error, Some(Event::WorkflowFailed)),
            (workflow(1), Status::Cancelled, None),
        ] {
            let execution = execution(work, status);
            assert_eq!(Event::of_end(&execution), event, "{execution:?}");
        }
        let of_workflow = execution(workflow(1), Status::Created);
        assert_eq!(Event::of_start(&of_workflow), Some(Event::WorkflowStarted));
        for event in Event::ALL {
            assert_eq!(serde_json::to_value(event).unwrap(), event.as_str());
        }
    }

    #[test]
    fn endpoint_filters_apply_only_to_their_kind_of_work() {
        let event = Event::PredictionCompleted;
        let of = |work| execution(work, Status::Success);
        let all = endpoint();
        assert!(all.wants(event, &of(prediction("a"))));
        let some = Endpoint { models: vec!["a".to_owned()], ..endpoint() };
        assert!(
            some.wants(event, &of(prediction("a"))) && !some.wants(event, &of(prediction("b")))
        );
        assert!(some.wants(Event::WorkflowCompleted, &of(workflow(1))));
        assert!(!some.wants(event, &of(prediction("fallback"))));
        let one = Endpoint { workflows: vec![WorkflowId::from([1; 16])], ..endpoint() };
        assert!(one.wants(Event::WorkflowFailed, &of(workflow(1))));
        assert!(!one.wants(Event::WorkflowFailed, &of(workflow(2))));
        let failed = Endpoint { events: vec![Event::PredictionFailed], ..endpoint() };
        assert!(!failed.wants(event, &of(prediction("a"))));
        let off = Disabled { at: Timestamp::from_micros(1), reason: Reason::Request };
        let off = Endpoint { disabled: Some(off), ..endpoint() };
        assert!(!off.wants(event, &of(prediction("a"))));
    }

    #[test]
    fn endpoint_replaced_secret_signs_until_it_expires() {
        let until = Timestamp::from_micros(10);
        let replaced = Some(Replaced { secret: "old".to_owned(), until });
        let endpoint = Endpoint { replaced, ..endpoint() };
        let at = |micros| endpoint.secrets(Timestamp::from_micros(micros)).collect::<Vec<_>>();
        assert_eq!((at(9), at(10)), (vec!["new", "old"], vec!["new"]));
    }

    #[test]
    fn endpoint_names_are_plain() {
        for name in ["a", "orders.eu-1_x", &"x".repeat(64)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a b", "ä", "a/b", &"x".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
