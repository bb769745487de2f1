//! Memory budget for the responses to outgoing requests, while they arrive and while they are
//! parsed. A response waits for its share of the budget; organizations take turns. A response never
//! fails because other responses are large.
//!
//! Each response takes one arrival share for its entire body, and then a parsing share. Parsing
//! never waits for a share that another arriving response holds, so responses cannot deadlock.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;

use super::request::count_values;
use orrery_runtime::turns::{Turn, Turns};

/// The default budget for all responses, in bytes; [`set_limit`] changes it.
const LIMIT: usize = 192 * 1024 * 1024;
/// Responses that are arriving or waiting to be parsed may take 1/`ARRIVING_SHARE` of the limit.
/// The rest is for responses that have been parsed but not yet stored.
const ARRIVING_SHARE: usize = 3;
/// Responses of up to this size are not counted while they arrive: hyper's own buffers are as
/// large.
pub(super) const SMALL: usize = 64 * 1024;
/// Responses of up to this size are not counted while they are parsed.
const TINY: usize = 4 * 1024;
/// Responses above this size are parsed on a blocking thread.
const QUICK: usize = 256 * 1024;
/// Estimated bytes per parsed JSON value, including the field name and the unused capacity of
/// arrays that grow by doubling.
const VALUE_BYTES: usize = 72;
/// Maximum number of JSON values in a model's response: enough for the tensors and embeddings
/// returned for a full request. Such a response takes at most 288 MB.
pub const MODEL_VALUES_MAX: usize = 4_000_000;

static ARRIVING: LazyLock<Arc<Turns>> = LazyLock::new(|| Turns::new(parts(LIMIT).0));
static PARSED: LazyLock<Arc<Turns>> = LazyLock::new(|| Turns::new(parts(LIMIT).1));

/// Splits the limit into the bytes for arriving responses and the bytes for parsed responses.
const fn parts(limit: usize) -> (usize, usize) {
    let arriving = limit / ARRIVING_SHARE;
    (arriving, limit.saturating_sub(arriving))
}

/// Sets the number of bytes that all responses may take together (`limits.answers_in_flight`).
/// Shares that are already taken are not affected.
pub fn set_limit(bytes: usize) {
    let (arriving, parsed) = parts(bytes);
    ARRIVING.set_limit(arriving);
    PARSED.set_limit(parsed);
}

/// Parsing the response would take too much memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the response contains more than {0} JSON values")]
pub struct TooManyValues(usize);

/// Waits until a response of up to `bytes` may arrive. Returns `None` for a small response, which
/// needs no share.
pub(super) async fn arrive(bytes: usize) -> Option<Turn> {
    if bytes <= SMALL { None } else { Some(ARRIVING.take(bytes).await) }
}

/// Returns the same bytes, which keep their share until the last clone of the bytes is dropped.
pub(super) fn bind(bytes: Bytes, turn: Option<Turn>) -> Bytes {
    let Some(mut turn) = turn else { return bytes };
    turn.shrink_to(bytes.len());
    Bytes::from_owner(Held { bytes, _turn: turn })
}

/// Counts the JSON values of a response and waits until the values fit into the budget. The caller
/// keeps the returned [`Room`] until the parsed value is stored.
///
/// # Errors
/// [`TooManyValues`] if the response has more than `most` values.
pub async fn room(text: &[u8], most: usize) -> Result<Room, TooManyValues> {
    // Only arrays and objects contain other values; a string may contain any number of commas.
    let is_nested = matches!(text.trim_ascii_start().first(), Some(b'[' | b'{'));
    let values = if is_nested { count_values(text) } else { 1 };
    if values > most {
        return Err(TooManyValues(most));
    }
    if text.len() <= TINY {
        return Ok(Room(None));
    }
    // When the response is stored, its text is written a second time.
    let bytes = values.saturating_mul(VALUE_BYTES).saturating_add(text.len().saturating_mul(2));
    Ok(Room(Some(Arc::new(PARSED.take(bytes).await))))
}

/// Parses a response of `bytes` bytes, on a blocking thread if it is large. Returns `None` if the
/// parser panics.
pub async fn parse_aside<T: Send + 'static>(
    bytes: usize,
    parse: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if bytes <= QUICK {
        return Some(parse());
    }
    tokio::task::spawn_blocking(parse).await.ok()
}

/// A share of the budget for a parsed response.
#[derive(Debug, Clone, Default)]
pub struct Room(Option<Arc<Turn>>);

/// Equality between responses ignores their room.
impl PartialEq for Room {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Room {
    /// Returns whether the response counts toward the budget.
    #[must_use]
    pub const fn is_counted(&self) -> bool {
        self.0.is_some()
    }
}

struct Held {
    bytes: Bytes,
    _turn: Turn,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use orrery_domain::ids::OrganizationId;
    use orrery_runtime::{new_id, turns};

    #[test]
    fn answers_have_the_whole_limit() {
        for limit in [0, 1, 16 << 20, LIMIT, usize::MAX] {
            let (arriving, parsed) = parts(limit);
            assert_eq!((arriving, arriving + parsed), (limit / 3, limit));
        }
    }

    #[tokio::test]
    async fn answers_that_are_long_are_parsed_on_other_threads() {
        let own = std::thread::current().id();
        let thread = move || std::thread::current().id();
        for (bytes, is_own) in [(0, true), (QUICK, true), (QUICK + 1, false), (1 << 24, false)] {
            let parsed_on = parse_aside(bytes, thread).await.unwrap();
            assert_eq!(parsed_on == own, is_own, "{bytes}");
        }
        let panicked = parse_aside(QUICK + 1, || assert_ne!(1, 1, "as scripted")).await;
        assert_eq!(panicked, None);
    }

    #[tokio::test]
    async fn answers_wait_for_room_and_other_organizations_pass() {
        let [greedy, other]: [OrganizationId; 2] = [new_id(), new_id()];
        let large = format!("[{}0]", "0,".repeat(900_000));
        let ask = |who, text: &str| {
            turns::on_behalf_of(who, room(text.as_bytes(), 1_000_000)).now_or_never()
        };
        let held = ask(greedy, &large).expect("the first large answer is parsed").unwrap();
        assert!(held.is_counted());
        assert!(ask(greedy, &large).is_none(), "the next one waits");
        assert!(ask(other, &large[..100_000]).is_some());
        drop(held);
        assert!(ask(greedy, &large).is_some());
        let most = turns::on_behalf_of(greedy, room(large.as_bytes(), 100)).await;
        assert_eq!(
            most.unwrap_err().to_string(),
            "the response contains more than 100 JSON values"
        );
        assert!(!ask(greedy, "[]").unwrap().unwrap().is_counted());
    }

    #[tokio::test]
    async fn answers_arriving_hold_their_length() {
        assert!(arrive(SMALL).await.is_none());
        let turn = arrive(1024 * 1024).await;
        let before = ARRIVING.used();
        let bytes = bind(Bytes::from_static(b"0123456789"), turn);
        assert_eq!(before - ARRIVING.used(), 1024 * 1024 - 10);
        let part = bytes.slice(2..4);
        drop(bytes);
        assert_eq!(&part[..], b"23");
    }
}
