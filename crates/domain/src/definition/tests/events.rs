//! Steps that wait for events: valid settings, and references to them.

use serde_json::json;

use super::{plan_of, problems_of};

#[test]
fn definition_event_is_parsed_with_its_fields() {
    let plan = plan_of(json!([
        {"step_id": "tell", "type": "pass", "result": "{{ask.resume_url}}"},
        {"step_id": "ask", "type": "wait", "event": {"name": "approval", "timeout_seconds": 60,
            "schema": {"type": "object"}, "default": {"approved": false}}},
        {"step_id": "end", "type": "pass", "result": "{{ask.event.source}} {{ask.output.approved}}"},
    ]));
    let (step, event) = plan.event("approval").unwrap();
    assert_eq!((step.id.as_str(), event.limit().as_secs()), ("ask", 60));
    assert_eq!(event.default, Some(json!({"approved": false})));
    assert!(plan.event("other").is_none());
    // The link exists before the step starts, so a step that refers to it does not wait.
    let tell = plan.step("tell").unwrap();
    assert_eq!(plan.waits_for(tell).count(), 0);
}

#[test]
fn definition_event_problems_are_named() {
    let wait =
        |id: &str, event: serde_json::Value| json!({"step_id": id, "type": "wait", "event": event});
    let both = json!([{"step_id": "w", "type": "wait", "seconds": 1, "event": {"name": "a"}}]);
    let in_map = json!([{"step_id": "m", "type": "map", "items": [1],
        "steps": [wait("w", json!({"name": "a"}))]}]);
    let field = json!([{"step_id": "p", "type": "pass"},
        {"step_id": "q", "type": "pass", "result": "{{p.resume_url}}"}]);
    for (steps, message) in [
        (both, "a wait needs exactly one of seconds, until and event"),
        (json!([wait("w", json!({}))]), "event/name is required"),
        (json!([wait("w", json!({"name": "a b"}))]), "event/name must have 1 to 64 characters"),
        (json!([wait("w", json!({"name": "a", "nam": 1}))]), "nam"),
        (
            json!([wait("w", json!({"name": "a", "default": "{{inputs.x}}"}))]),
            "event/default must not have references in it",
        ),
        (
            json!([wait("w", json!({"name": "a"})), wait("v", json!({"name": "a"}))]),
            "the step 'w' already waits for the event 'a'",
        ),
        (in_map, "a step inside a map cannot wait for an event"),
        (field, "refers to a field that a step of type pass does not have"),
    ] {
        let said = problems_of(steps);
        assert!(said.contains(message), "{said}");
    }
}
