//! Request ids: the client's own id if it is safe to echo, otherwise a new one.

use hyper::HeaderMap;

use orrery_domain::ids::RequestId;
use orrery_runtime::new_id;

/// Maximum length of an id that is echoed, in characters.
const LENGTH_MAX: usize = 128;

/// Returns the request's id: the client's `X-Request-Id` if it is 1 to 128 visible ASCII
/// characters, otherwise a new UUIDv7 (`docs/spec/hosts.md`, "Request ids").
#[must_use]
pub fn of(headers: &HeaderMap) -> String {
    given(headers).map_or_else(|| new_id::<RequestId>().to_string(), str::to_owned)
}

/// Returns the client's own id, if it is safe to echo.
#[must_use]
pub fn given(headers: &HeaderMap) -> Option<&str> {
    let given = headers.get("x-request-id").and_then(|value| value.to_str().ok());
    given.filter(|id| {
        (1..=LENGTH_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_id_is_echoed_if_valid_and_replaced_otherwise() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-request-id", value.parse().unwrap());
            super::of(&headers)
        };
        assert_eq!(of("abc-1"), "abc-1");
        assert_eq!(of(&"a".repeat(128)), "a".repeat(128));
        for bad in ["", "a b", &"a".repeat(129)] {
            let fresh = of(bad);
            assert_ne!(fresh, bad);
            assert!(fresh.parse::<RequestId>().is_ok(), "{fresh}");
        }
    }
}
