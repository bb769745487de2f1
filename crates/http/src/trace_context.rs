//! Trace context and request ids in headers: parses them from requests and adds them to outgoing
//! calls.

use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};

use super::request_id;
use orrery_domain::trace::{Call, Origin};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Returns the origin from a request's headers; `None` if the headers have no valid origin. Two
/// `traceparent` headers count as invalid.
#[must_use]
pub fn of(headers: &HeaderMap) -> Option<Arc<Origin>> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let parent = parents.next().and_then(|value| value.to_str().ok());
    let parent = parent.filter(|_| parents.next().is_none());
    let states: Option<Vec<&str>> =
        headers.get_all(TRACESTATE).iter().map(|value| value.to_str().ok()).collect();
    let state = states.map(|states| states.join(","));
    Origin::read(parent, state.as_deref(), request_id::given(headers))
}

/// Adds a call's trace context and request id to its headers. Existing headers are not replaced.
/// `tracestate` is added only together with Orrery's own `traceparent`.
pub fn pass_on(headers: &mut HeaderMap, call: &Call) {
    if !headers.contains_key(TRACEPARENT) && !headers.contains_key(TRACESTATE) {
        insert(headers, TRACEPARENT, &call.traceparent());
        if let Some(state) = call.tracestate() {
            insert(headers, TRACESTATE, state);
        }
    }
    if !headers.contains_key(X_REQUEST_ID) {
        insert(headers, X_REQUEST_ID, &call.request_id());
    }
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // Both values were validated when they were read.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_domain::trace::Trace;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn origin_of_headers_takes_one_traceparent_and_joins_states() {
        let found = of(&headers(&[
            ("traceparent", PARENT),
            ("tracestate", "a=1"),
            ("tracestate", "b=2"),
            ("x-request-id", "r-1"),
        ]));
        let found = found.unwrap();
        assert_eq!(found.parent.unwrap().to_string(), PARENT);
        assert_eq!(
            (found.state.as_deref(), found.request_id.as_deref()),
            (Some("a=1,b=2"), Some("r-1"))
        );
        assert_eq!(of(&headers(&[("traceparent", PARENT), ("traceparent", PARENT)])), None);
        assert_eq!(of(&headers(&[("traceparent", "nonsense"), ("x-request-id", "a b")])), None);
        assert_eq!(of(&HeaderMap::new()), None);
    }

    #[test]
    fn headers_set_by_author_take_precedence() {
        let origin = of(&headers(&[("traceparent", PARENT), ("tracestate", "a=1")]));
        let call = Trace::new([7; 16].into(), origin).call("a");
        let mut plain = HeaderMap::new();
        pass_on(&mut plain, &call);
        assert_eq!(plain[&TRACEPARENT], call.traceparent().as_str());
        assert_eq!(plain[&TRACESTATE], "a=1");
        assert_eq!(plain[&X_REQUEST_ID], "07070707-0707-0707-0707-070707070707");
        let mut own = headers(&[("traceparent", "mine"), ("x-request-id", "r-2")]);
        let before = own.clone();
        pass_on(&mut own, &call);
        assert_eq!(own, before);
        let mut state = headers(&[("tracestate", "b=2")]);
        pass_on(&mut state, &call);
        assert!(!state.contains_key(TRACEPARENT) && state[&TRACESTATE] == "b=2");
    }
}
