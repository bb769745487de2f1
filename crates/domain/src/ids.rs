//! Typed identifiers: one type for each kind of id, so that the compiler rejects, for example, a
//! key's id in place of an execution's id.
//!
//! All ids are UUIDs. Ids created by this service are of version 7 (see `runtime::new_id`), so that
//! they sort by time. This file creates no ids.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::time::Timestamp;

/// The common interface of all id types, which lets `runtime::new_id` create an id of any type.
pub trait Id: Copy + From<Uuid> {
    /// Returns the sixteen bytes, big-endian, so that version 7 ids sort by time.
    fn bytes(&self) -> [u8; 16];

    /// Returns the creation time in a version 7 id, whose first 48 bits are milliseconds.
    fn made_at(&self) -> Timestamp {
        let millis =
            self.bytes().iter().take(6).fold(0, |millis, byte| millis << 8 | i64::from(*byte));
        Timestamp::from_micros(millis.saturating_mul(1000))
    }
}

/// The string is not a UUID in its hyphenated form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a UUID")]
pub struct Invalid;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl Id for $name {
            fn bytes(&self) -> [u8; 16] {
                self.0.into_bytes()
            }
        }
        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }
        impl From<[u8; 16]> for $name {
            fn from(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }
        }
        impl FromStr for $name {
            type Err = Invalid;
            /// Accepts only the 36-character form. If this function also accepted the braced,
            /// simple and URN forms, one resource would be available under several paths.
            fn from_str(text: &str) -> Result<Self, Invalid> {
                if text.len() != 36 {
                    return Err(Invalid);
                }
                Uuid::try_parse(text).map(Self).map_err(|_not_a_uuid| Invalid)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0.hyphenated())
            }
        }
    )+};
}

ids! {
    /// An organization: the owner of keys, executions, files and money.
    OrganizationId,
    /// A member of an organization: a person who uses the dashboard.
    MemberId,
    /// A link with which a person sets up, joins or regains access to the dashboard. This id is not
    /// the link's token.
    LinkId,
    /// An API key's public id, as opposed to the key itself.
    KeyId,
    /// An execution: predictions, workflow executions and other work share one history and one kind
    /// of id.
    ExecutionId,
    /// A workflow, with all of its versions.
    WorkflowId,
    /// The definition of a version at one point in time; immutable.
    RevisionId,
    /// A schedule.
    ScheduleId,
    /// A group of executions that were triggered together.
    BulkId,
    /// A bulk job.
    JobId,
    /// A job for a worker: a run of a model that a worker on another machine claims.
    WorkerJobId,
    /// A batch of requests.
    BatchId,
    /// A webhook delivery, with all of its attempts and redeliveries.
    DeliveryId,
    /// A webhook endpoint of an organization.
    EndpointId,
    /// A ledger entry.
    EntryId,
    /// A file of an organization.
    FileId,
    /// A payload stored as a separate file.
    PayloadId,
    /// The owner of the payloads of a stored response. Clients know a response by its execution.
    ResponseId,
    /// A session of the agent.
    SessionId,
    /// An alert to the operator, from the time when it is raised until it is resolved.
    AlertId,
    /// One request, for logs and the `X-Request-Id` header.
    RequestId,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn id_parses_only_hyphenated_form() {
        let id = "0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e";
        assert_eq!(id.parse::<KeyId>().map(|id| id.to_string()), Ok(id.to_owned()));
        for text in
            ["", "x", "0192f0c18a527c3b9d1e2f3a4b5c6d7e", "{0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e}"]
        {
            assert_eq!(text.parse::<KeyId>(), Err(Invalid), "{text}");
        }
    }

    proptest! {
        #[test]
        fn id_display_and_parse_are_inverse(bytes: [u8; 16]) {
            let id = ExecutionId::from(bytes);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(id.bytes(), bytes);
        }

        #[test]
        fn id_parse_never_panics(text in ".*") {
            let parsed = text.parse::<ExecutionId>();
            prop_assert!(parsed.is_err() || text.len() == 36);
        }
    }
}
