//! Typed identifiers: one type for each thing that has an id, so that a key's id cannot be handed
//! to a function that wants an execution's.
//!
//! All are UUIDs, version 7 where they are made here (see `runtime::new_id`), so that keys arrive
//! in the order of time. No id is ever made in this file.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::time::Timestamp;

/// What every typed id can do; lets `runtime::new_id` make any of them.
pub trait Id: Copy + From<Uuid> {
    /// The sixteen bytes, big-endian: ids of version 7 sort by time.
    fn bytes(&self) -> [u8; 16];

    /// When an id of version 7 was made: it begins with whole milliseconds.
    fn made_at(&self) -> Timestamp {
        let millis =
            self.bytes().iter().take(6).fold(0, |millis, byte| millis << 8 | i64::from(*byte));
        Timestamp::from_micros(millis.saturating_mul(1000))
    }
}

/// The text was not a UUID in its hyphenated form.
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
            /// Takes the 36-character form only: the braced, simple and URN forms of the same id
            /// would make one resource answer under several paths.
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
    /// A link that lets a person set up, join or get back into the dashboard; never its token.
    LinkId,
    /// An API key's public id; never the key itself.
    KeyId,
    /// A prediction or an execution of a workflow: one history, one kind of id.
    ExecutionId,
    /// A workflow, over all of its versions.
    WorkflowId,
    /// A definition as one version had it at one time; never changed.
    RevisionId,
    /// A schedule.
    ScheduleId,
    /// What was triggered together.
    BulkId,
    /// A bulk job.
    JobId,
    /// A webhook delivery; the same over all of its attempts and redeliveries.
    DeliveryId,
    /// A webhook endpoint of an organization.
    EndpointId,
    /// One line of the ledger.
    EntryId,
    /// A file of an organization.
    FileId,
    /// A payload kept as a file of its own.
    PayloadId,
    /// A session of the agent.
    SessionId,
    /// One request, for logs and the header `X-Request-Id`.
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
