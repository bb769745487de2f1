//! The rows of responses in the store.

use serde::{Deserialize, Serialize};

use orrery_domain::ids::{ExecutionId, OrganizationId, ResponseId};
use orrery_domain::payload::Payload;
use orrery_domain::time::Timestamp;
use orrery_storage::{Key, Record, Table};

/// A stored response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    /// The owner of the payloads.
    pub owner: ResponseId,
    pub created_at: Timestamp,
    /// The response that it continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<ExecutionId>,
    /// The items of its own input.
    pub input: Payload,
    pub response: Payload,
    /// `None` once the response has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<Open>,
}

/// A response that is created in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Open {
    /// Whether `encrypted_content` repeats the text of reasoning.
    pub shows_reasoning: bool,
}

impl Record for Stored {
    const NAME: &'static str = "response";
}

/// Returns the prefix of an organization's responses, oldest first.
pub(crate) fn responses_of(organization: OrganizationId) -> Key {
    Key::table(Table::Response).id(organization)
}

/// Returns the row of a response.
pub(crate) fn response(organization: OrganizationId, id: ExecutionId) -> Key {
    responses_of(organization).id(id)
}

/// Returns the counter of an organization's responses.
pub(crate) fn count(organization: OrganizationId) -> Key {
    Key::table(Table::ResponseCount).id(organization)
}
