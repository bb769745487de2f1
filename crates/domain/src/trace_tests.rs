//! Trace context: parsing, propagation, and the stability of derived ids.

use proptest::prelude::*;

use super::*;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn trace(origin: Option<Arc<Origin>>) -> Trace {
    Trace::new([7; 16].into(), origin)
}

fn state(text: &str) -> Option<String> {
    Origin::read(Some(PARENT), Some(text), None).unwrap().state.clone()
}

#[test]
fn traceparent_is_parsed_as_specified() {
    for (text, flags) in [
        (PARENT.to_owned(), "01"),
        (PARENT.replace("-01", "-00"), "00"),
        (PARENT.replace("-01", "-03"), "03"),
        // Undefined flags are not propagated.
        (PARENT.replace("-01", "-ff"), "03"),
        (PARENT.replace("00-4", "01-4"), "01"),
        (format!("{}-what-later-versions-add", PARENT.replace("00-4", "cc-4")), "01"),
    ] {
        let parent: Parent = text.parse().unwrap();
        assert_eq!(parent.to_string(), PARENT.replace("-01", &format!("-{flags}")), "{text}");
    }
    for text in [
        "".to_owned(),
        PARENT[..54].to_owned(),
        format!("{PARENT}0"),
        format!("{PARENT}-more"),
        format!("{}0", PARENT.replace("00-4", "01-4")),
        PARENT.replace("00-4", "ff-4"),
        PARENT.replace("00-4", "0x-4"),
        PARENT.to_uppercase(),
        PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
        PARENT.replace("00f067aa0ba902b7", &"0".repeat(16)),
        PARENT.replace("-00f067aa", "_00f067aa"),
        PARENT.replace("-4bf92f", ".4bf92f"),
        PARENT.replace("-01", "-0g"),
        PARENT.replace("-01", ".01"),
        PARENT.replace("00f067aa", "00f0é7aa"),
    ] {
        assert_eq!(text.parse::<Parent>(), Err(Invalid), "{text}");
    }
}

#[test]
fn tracestate_is_checked_and_bounded() {
    assert_eq!(state(" a=1 ,\tb@c=2,,d=x y").as_deref(), Some("a=1,b@c=2,d=x y"));
    for invalid in
        ["", " , ", "a", "=1", "a=", "A=1", "a=1=2", "a=1,a=2", "-a=1", "a=é", "a b=1", "a=\u{1}"]
    {
        assert_eq!(state(invalid), None, "{invalid}");
    }
    assert_eq!(state(&format!("{}=1", "k".repeat(257))), None);
    assert_eq!(state(&format!("k={}", "v".repeat(257))), None);
    let entries =
        |count: usize| (0..count).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
    assert_eq!(state(&entries(32)), Some(entries(32)));
    assert_eq!(state(&entries(33)), None);
    // Long entries are dropped first, then the last ones.
    let long = format!("long={}", "v".repeat(200));
    let short: Vec<String> = (0..8).map(|n| format!("k{n}={}", "v".repeat(60))).collect();
    let kept = state(&format!("{long},{}", short.join(","))).unwrap();
    assert_eq!(kept, short[..8].join(","));
    let more: Vec<String> = (0..20).map(|n| format!("k{n:02}={}", "v".repeat(60))).collect();
    let kept = state(&more.join(",")).unwrap();
    assert!(kept.len() <= STATE_CHARS_MAX && kept.starts_with("k00="), "{kept}");
    // A `tracestate` is ignored without a valid `traceparent`.
    assert_eq!(Origin::read(Some("nonsense"), Some("a=1"), None), None);
}

#[test]
fn origin_matches_golden_bytes() {
    let golden = format!(r#"{{"parent":"{PARENT}","state":"a=1","request_id":"r-1"}}"#);
    let origin = Origin::read(Some(PARENT), Some("a=1"), Some("r-1")).unwrap();
    assert_eq!(serde_json::to_string(&origin).unwrap(), golden);
    assert_eq!(serde_json::from_str::<Origin>(&golden).unwrap(), *origin);
    let only = Origin::read(None, Some("a=1"), Some("r-1")).unwrap();
    assert_eq!(serde_json::to_string(&only).unwrap(), r#"{"request_id":"r-1"}"#);
}

/// Exported ids must match the ids sent before an upgrade.
#[test]
fn derived_ids_are_stable() {
    let own = trace(None);
    assert_eq!(own.id().to_string(), "07".repeat(16));
    assert_eq!(own.root().to_string(), "f95341213369bb62");
    let call = own.call("07070707-0707-0707-0707-070707070707:step:1");
    assert_eq!(call.traceparent(), format!("00-{}-218f3ae055d682b7-01", "07".repeat(16)));
    assert_eq!(call.request_id(), "07070707-0707-0707-0707-070707070707");
    assert!(own.is_sampled() && own.caller().is_none() && call.tracestate().is_none());
}

#[test]
fn call_continues_the_trace_of_the_caller() {
    let unsampled = PARENT.replace("-01", "-00");
    let origin = Origin::read(Some(&unsampled), Some("a=1"), Some("r-1"));
    let asked = trace(origin);
    assert!(!asked.is_sampled());
    let call = asked.call("a");
    let expected = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-00", SpanId::of("a"));
    assert_eq!(call.traceparent(), expected);
    assert_eq!((call.tracestate(), call.request_id().as_str()), (Some("a=1"), "r-1"));
    assert_ne!(asked.call("b").traceparent(), expected);
    let child = Trace::new([8; 16].into(), Some(call.origin()));
    assert_eq!(child.caller().unwrap().to_string(), expected);
    assert_eq!((child.id(), child.state()), (asked.id(), Some("a=1")));
    assert_eq!(child.call("c").request_id(), "r-1");
}

#[test]
fn successor_stays_in_the_trace_unless_requested_from_another() {
    let failed = trace(None);
    let successor = Trace::new([8; 16].into(), Some(failed.of_successor(None)));
    assert_eq!((successor.id(), successor.caller().unwrap().span), (failed.id(), failed.root()));
    let named = Origin::read(None, None, Some("r-2"));
    let named = Trace::new([8; 16].into(), Some(failed.of_successor(named.as_deref())));
    assert_eq!((named.id(), named.call("").request_id().as_str()), (failed.id(), "r-2"));
    let asked = Origin::read(Some(PARENT), None, None);
    let other = Trace::new([8; 16].into(), Some(failed.of_successor(asked.as_deref())));
    assert_eq!(other.caller().unwrap().to_string(), PARENT);
}

proptest! {
    #[test]
    fn traceparent_never_panics(text in ".{0,70}", bytes in "[0-9a-f-]{55,60}") {
        for text in [text, bytes] {
            if let Ok(parent) = text.parse::<Parent>() {
                prop_assert_eq!(parent.to_string().parse::<Parent>(), Ok(parent));
            }
        }
    }

    #[test]
    fn tracestate_that_is_propagated_is_valid(text in "[a-z0-9=, @v]{0,700}") {
        if let Some(kept) = state(&text) {
            prop_assert!(kept.len() <= STATE_CHARS_MAX);
            prop_assert_eq!(state(&kept), Some(kept));
        }
    }
}
