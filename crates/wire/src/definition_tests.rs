//! Tests that the published schema and the compiler of definitions agree.

use std::collections::BTreeSet;

use orrery_domain::definition::Plan;
use serde_json::{Value, json};

use super::Definition;
use crate::schemas;

fn compiled() -> jsonschema::Validator {
    jsonschema::validator_for(&schemas::of_type::<Definition>()).unwrap()
}

/// Returns the compiler's problems, as one text.
fn problems(definition: &Value) -> String {
    match Plan::compile(Some(definition), &|_| true) {
        Ok(_) => String::new(),
        Err(error) => {
            error.problems().map(|one| format!("{}: {}\n", one.path, one.message)).collect()
        }
    }
}

/// Returns one step of each type, with all of its fields.
fn steps() -> Vec<Value> {
    let common = json!({
        "step_id": "s", "id": "s", "name": "N", "depends_on": [], "continue_on_error": true,
        "timeout_seconds": 5,
    });
    let retried = json!({
        "retry": {"max_attempts": 2, "initial_delay_seconds": 0.5, "backoff_multiplier": 2,
            "max_delay_seconds": 60, "retry_on": ["provider_error"]},
        "on_exhausted": "pause",
    });
    let inner = |id: &str| json!([{"step_id": id, "type": "pass", "result": 1}]);
    let condition = json!({"and": [
        {"or": [{"expression": "{{inputs.a}}", "operator": "equals", "value": 1}]},
        {"not": {"expression": "$.inputs.a", "operator": "exists"}},
    ]});
    let request = json!({
        "url": "https://a.example/", "method": "post", "headers": {"A": "b", "C": 1},
        "query_params": {"q": ["a", 1, true], "r": "s"}, "body": {"a": [null]},
    });
    let mut http = request.clone();
    http["fallback"] = merged(&[&request, &json!({"enabled": true})]);
    let own = [
        json!({"type": "model", "model": "m", "version": "1", "params": {"a": 1},
            "fallback": {"enabled": true, "model": "n", "version": 1, "params": {}}}),
        merged(&[
            &http,
            &json!({"type": "http", "timeout": 7, "fail_when": [404],
            "auth": {"type": "api_key", "name": "X-Key", "value": "v", "in": "header"}}),
        ]),
        json!({"type": "parallel", "branches": [{"name": "b", "steps": inner("t")}]}),
        json!({"type": "choice", "condition": condition,
            "condition_met_branch": {"steps": inner("t")}, "default_branch": {"steps": []}}),
        json!({"type": "map", "items": [1, 2], "item_name": "one", "max_concurrency": 3,
            "steps": inner("t"), "output": "{{one}}"}),
        json!({"type": "wait", "seconds": 1.5, "until": null, "event": null}),
        json!({"type": "wait", "seconds": null, "until": null, "event": {
            "name": "go", "schema": {"type": "object"}, "timeout_seconds": 9, "default": {"a": 1}}}),
        json!({"type": "pass", "result": {"a": "{{inputs.a}}"}}),
        json!({"type": "workflow", "workflow": "w", "version_id": "v1", "inputs": {}, "wait": false}),
    ];
    own.iter()
        .map(|own| {
            let kind = own["type"].as_str().unwrap();
            let is_retried = ["model", "http", "workflow"].contains(&kind);
            merged(&[&common, if is_retried { &retried } else { &Value::Null }, own])
        })
        .collect()
}

fn merged(parts: &[&Value]) -> Value {
    let fields = parts.iter().filter_map(|part| part.as_object()).flatten();
    Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect())
}

fn definition(step: &Value) -> Value {
    let schema = json!({"type": "object", "properties": {"a": {}}});
    json!({"steps": [step], "input_schema": schema, "version": "1", "metadata": {"x": 1}})
}

#[test]
fn schema_accepts_each_type_of_step_with_all_fields() {
    let schema = compiled();
    for step in steps() {
        let whole = definition(&step);
        assert_eq!(problems(&whole), "", "{step}");
        assert!(schema.is_valid(&whole), "{step}");
        // An optional field that is null counts as absent.
        for name in step.as_object().unwrap().keys() {
            let mut step = step.clone();
            step[name] = Value::Null;
            let changed = definition(&step);
            if problems(&changed).is_empty() {
                assert!(schema.is_valid(&changed), "{name}: {step}");
            }
        }
    }
}

#[test]
fn schema_has_exactly_the_fields_that_the_compiler_reads() {
    let schema = schemas::of_type::<Definition>();
    let variants = schema["$defs"]["WorkflowStep"]["oneOf"].as_array().unwrap();
    let mut seen = 0;
    for variant in variants {
        let kind = &variant["properties"]["type"]["const"];
        let Some(step) = steps().into_iter().find(|step| step["type"] == *kind) else { continue };
        let unknown = merged(&[&step, &json!({"no_such_field": 1})]);
        let said = problems(&definition(&unknown));
        let known = said.trim_end().split_once(" may have ").unwrap().1;
        let known: BTreeSet<&str> = known.split(", ").collect();
        let fields = variant["properties"].as_object().unwrap();
        let fields: BTreeSet<&str> = fields.keys().map(String::as_str).collect();
        assert_eq!(fields, known, "{kind}");
        seen += 1;
    }
    assert_eq!(seen, 8, "types of steps");
}

/// Calls `see` with copies of `whole` in which one value, at `pointer` or nested in it, is changed.
fn each_change(whole: &Value, pointer: &str, see: &mut dyn FnMut(&Value, &str)) {
    let strange = [
        json!({"no_such_field": []}),
        json!([null]),
        json!(true),
        json!(-1),
        json!(1e12),
        json!(""),
    ];
    for value in strange {
        let mut changed = whole.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        see(&changed, pointer);
    }
    match whole.pointer(pointer).unwrap() {
        Value::Object(fields) => {
            for name in fields.keys() {
                let mut without = whole.clone();
                let place = without.pointer_mut(pointer).unwrap();
                place.as_object_mut().unwrap().shift_remove(name);
                see(&without, &format!("{pointer}/{name} removed"));
                each_change(whole, &format!("{pointer}/{name}"), see);
            }
        }
        Value::Array(items) => {
            for index in 0..items.len() {
                each_change(whole, &format!("{pointer}/{index}"), see);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn schema_refuses_nothing_that_the_compiler_accepts() {
    let schema = compiled();
    let mut refused = 0;
    for step in steps() {
        each_change(&definition(&step), "/steps/0", &mut |changed, place| {
            if !schema.is_valid(changed) {
                refused += 1;
                assert_ne!(problems(changed), "", "{place}: {changed}");
            }
        });
    }
    assert!(refused > 400, "only {refused} changes were refused");
}

#[test]
fn schema_and_compiler_refuse_the_same_mistakes() {
    let schema = compiled();
    for (kind, field, value) in [
        ("model", "no_such_field", json!(1)),
        ("model", "params", json!([])),
        ("model", "timeout_seconds", json!(86_401)),
        ("model", "retry", json!({"max_attempts": 21})),
        ("model", "retry", json!({"retry_on": ["never"]})),
        ("http", "timeout_seconds", json!(301)),
        ("http", "method", json!("FETCH")),
        ("http", "fail_when", json!([99])),
        ("http", "auth", json!({"type": "basic"})),
        ("http", "headers", json!({"A": []})),
        ("choice", "condition", json!({"expression": "{{inputs.a}}", "operator": "is"})),
        ("choice", "condition", json!({"and": []})),
        ("choice", "default_branch", json!({"step": []})),
        ("map", "max_concurrency", json!(1001)),
        ("map", "steps", json!([])),
        ("map", "steps", json!([{"step_id": "t", "type": "mdoel"}])),
        ("parallel", "branches", json!([{"name": "x"}])),
        ("wait", "event", json!({"schema": {}})),
        ("pass", "step_id", json!("a b")),
        ("workflow", "wait", json!("yes")),
    ] {
        let mut step = steps().into_iter().find(|step| step["type"] == kind).unwrap();
        step[field] = value;
        let whole = definition(&step);
        assert_ne!(problems(&whole), "", "{step}");
        assert!(!schema.is_valid(&whole), "{kind} {field}");
    }
}
