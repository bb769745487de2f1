//! Replicate's API: the names of models and versions, and the events that its webhooks announce
//! (`docs/spec/replicate.md`, "Models and versions").

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::execution::Status;
use super::hex::hex;

/// The owner of models whose slugs have no `/`.
pub const LOCAL_OWNER: &str = "local";

/// Returns the owner and the name of the model with this slug.
#[must_use]
pub fn owner_and_name(slug: &str) -> (&str, &str) {
    slug.split_once('/').unwrap_or((LOCAL_OWNER, slug))
}

/// Returns the ID of a model's only version: 64 hexadecimal digits that depend only on the slug.
/// Clients can name the version without the model, and a change of the manifest does not invalidate
/// the ID.
#[must_use]
pub fn version_of(slug: &str) -> String {
    let hash = Sha256::new().chain_update(b"replicate version\0").chain_update(slug);
    hex(&hash.finalize())
}

/// An event of a prediction that a webhook announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    Start,
    Output,
    Logs,
    Completed,
}

impl Event {
    /// The default events, for a request without `webhook_events_filter`.
    pub const DEFAULT: [Self; 2] = [Self::Output, Self::Completed];

    /// Returns whether the event is announced when a prediction ends with this status. A run may
    /// end before an update with its output or logs is due, so the delivery at the end is the last
    /// update.
    #[must_use]
    pub fn is_announced_at_end(self, status: Status) -> bool {
        match self {
            Self::Start => false,
            Self::Output => status == Status::Success,
            Self::Logs | Self::Completed => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slug_without_owner_is_local() {
        for (slug, parts) in [
            ("text-template", ("local", "text-template")),
            ("black-forest/flux", ("black-forest", "flux")),
            ("a/b/c", ("a", "b/c")),
        ] {
            assert_eq!(owner_and_name(slug), parts);
        }
    }

    #[test]
    fn versions_of_models_differ_and_never_change() {
        assert_eq!(
            version_of("a"),
            "556b8d923d4f71df842546795c3de263dff656f89019d9e3b4f0cdc807a6aeea"
        );
        assert_ne!(version_of("a"), version_of("local/a"));
    }

    #[test]
    fn end_is_the_last_update() {
        let announced = |status| {
            let all = [Event::Start, Event::Output, Event::Logs, Event::Completed];
            all.map(|event| event.is_announced_at_end(status))
        };
        assert_eq!(announced(Status::Success), [false, true, true, true]);
        assert_eq!(announced(Status::Error), [false, false, true, true]);
        assert_eq!(announced(Status::Cancelled), [false, false, true, true]);
    }
}
