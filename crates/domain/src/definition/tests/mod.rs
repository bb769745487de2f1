//! Definitions: the compiled plans, and the message of every problem.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::classify::ErrorClass;

mod events;
mod generated;
mod named_secrets;
mod targets;
mod waits;

/// Returns the model catalog of these tests.
fn exists(model: &str) -> bool {
    ["caption", "openai/draw", "upscale"].contains(&model)
}

fn compile(definition: &Value) -> Result<Plan, Error> {
    Plan::compile(Some(definition), &exists)
}

#[track_caller]
fn plan(definition: &Value) -> Plan {
    compile(definition).unwrap_or_else(|error| panic!("{error}\n{definition:#}"))
}

#[track_caller]
fn plan_of(steps: Value) -> Plan {
    plan(&json!({"steps": steps}))
}

/// Returns all problems, one per line.
#[track_caller]
fn problems(definition: &Value) -> String {
    let error = match compile(definition) {
        Ok(plan) => panic!("there is no problem in {definition:#}\n{}", outline(&plan)),
        Err(error) => error,
    };
    assert_eq!(error.to_string(), error.problems().next().unwrap().message);
    error.problems().map(|problem| format!("{} | {}\n", problem.path, problem.message)).collect()
}

#[track_caller]
fn problems_of(steps: Value) -> String {
    problems(&json!({"steps": steps}))
}

/// Returns a readable form of a plan: each step with its block and dependencies.
fn outline(plan: &Plan) -> String {
    let mut text = String::new();
    for step in plan.steps() {
        let mut depth = 0;
        let mut parent = step.parent;
        while let Some(above) = parent {
            depth += 1;
            parent = plan.at(above.step).unwrap().parent;
        }
        let block = step.parent.map(|parent| format!("{}: ", parent.block)).unwrap_or_default();
        let waits: Vec<_> = plan.waits_for(step).map(|other| other.id.as_str()).collect();
        let indent = "  ".repeat(depth);
        let kind = step.kind.as_str();
        write!(text, "{indent}{block}{} ({kind})", step.id).unwrap();
        if !waits.is_empty() {
            write!(text, " after {}", waits.join(", ")).unwrap();
        }
        text.push('\n');
    }
    text
}

/// Returns a model step whose prompt contains a reference.
fn model(id: &str, prompt: &str) -> Value {
    json!({"step_id": id, "type": "model", "model": "caption", "params": {"prompt": prompt}})
}

fn http(id: &str) -> Value {
    json!({"step_id": id, "type": "http", "url": "https://api.example/"})
}

/// Adds a field to a step.
fn with(mut step: Value, name: &str, value: Value) -> Value {
    step[name] = value;
    step
}

#[test]
fn definition_from_specification_compiles() {
    let definition = json!({
        "version": "v1",
        "input_schema": {
            "type": "object",
            "required": ["prompt"],
            "properties": {"prompt": {"type": "string"}}
        },
        "steps": [
            {
                "step_id": "draw", "type": "model", "model": "openai/draw",
                "params": {"prompt": "{{inputs.prompt}}", "n": 2},
                "fallback": {
                    "enabled": true, "model": "caption",
                    "params": {"text": "{{inputs.prompt}}"}
                }
            },
            {
                "step_id": "enlarge", "type": "model", "model": "upscale",
                "params": {"image": "{{draw.primary}}", "all": "{{ draw.output }}"}
            }
        ],
        "metadata": {"output_mapping": {"image": "{{enlarge.output}}"}, "color": "blue"}
    });
    let plan = plan(&definition);
    insta::assert_snapshot!(outline(&plan), @r"
    draw (model)
    enlarge (model) after draw
    ");
    assert_eq!(plan.input_schema(), Some(&definition["input_schema"]));
    assert!(matches!(plan.output(), Output::Mapping(_)));
    let Kind::Model(draw) = &plan.step("draw").unwrap().kind else { panic!("no model") };
    assert_eq!(draw.slug, "openai/draw");
    assert_eq!(draw.fallback.as_ref().unwrap().slug, "caption");
    // The definition is stored as JSON and compiled from it again.
    let again: Value = serde_json::from_str(&definition.to_string()).unwrap();
    assert_eq!(outline(&Plan::compile(Some(&again), &|_| true).unwrap()), outline(&plan));
}

#[test]
fn definition_error_texts_match_specification() {
    let first =
        |definition: Option<&Value>| Plan::compile(definition, &exists).unwrap_err().to_string();
    assert_eq!(first(None), "definition is required");
    assert_eq!(first(Some(&json!(null))), "definition is required");
    assert_eq!(first(Some(&json!([]))), "definition must be an object");
    for definition in [json!({}), json!({"steps": []}), json!({"steps": null})] {
        assert_eq!(first(Some(&definition)), "definition must include at least one step");
    }
}

#[test]
fn definition_model_steps_wait_only_for_referenced_steps() {
    let diamond = plan_of(json!([
        model("top", "x"),
        model("left", "{{top.output}}"),
        model("right", "{{top.output.a[0]}} {{top.status}}"),
        model("bottom", "{{right.output}} {{left.output}}"),
        model("apart", "x"),
        with(model("joined", "x"), "depends_on", json!(["apart", "left"])),
        with(
            model("fallen", "x"),
            "fallback",
            json!({
                "model": "upscale", "params": {"a": "{{joined.output}}"}
            })
        ),
    ]));
    insta::assert_snapshot!(outline(&diamond), @r"
    top (model)
    left (model) after top
    right (model) after top
    bottom (model) after left, right
    apart (model)
    joined (model) after left, apart
    fallen (model) after joined
    ");
    let Output::LastStep(last) = *diamond.output() else { panic!("no last step") };
    assert_eq!(diamond.at(last).unwrap().id, "fallen");
}

#[test]
fn definition_other_steps_are_barriers_without_depends_on() {
    let plan = plan_of(json!([
        model("a", "x"),
        model("b", "x"),
        http("call"),
        model("c", "{{a.output}}"),
        http("next"),
        http("last"),
        model("d", "x"),
    ]));
    insta::assert_snapshot!(outline(&plan), @r"
    a (model)
    b (model)
    call (http) after a, b
    c (model) after a, call
    next (http) after call, c
    last (http) after next
    d (model) after last
    ");
    let plan = plan_of(json!([
        with(http("one"), "depends_on", json!([])),
        with(http("two"), "depends_on", json!([])),
        with(http("three"), "depends_on", json!(["one"])),
        model("a", "{{two.body}}"),
        {"id": "pause", "type": "wait", "seconds": 1},
        with(http("four"), "depends_on", json!(["one"])),
    ]));
    insta::assert_snapshot!(outline(&plan), @r"
    one (http)
    two (http)
    three (http) after one
    a (model) after two
    pause (wait) after one, two, three, a
    four (http) after one, pause
    ");
}

#[test]
fn definition_depends_on_may_reorder_steps() {
    let plan = plan_of(json!([
        with(model("a", "{{b.output}}"), "depends_on", json!(["b"])),
        model("b", "x"),
    ]));
    insta::assert_snapshot!(outline(&plan), @r"
    a (model) after b
    b (model)
    ");
}

#[test]
fn definition_nested_steps_see_enclosing_scope() {
    let plan = plan_of(json!([
        model("first", "x"),
        {"step_id": "fork", "type": "parallel", "depends_on": [], "branches": [
            {"name": "l", "steps": [model("l1", "{{first.output}}"), model("l2", "{{l1.output}}")]},
            {"name": "r", "steps": [http("r1"), model("r2", "{{r1.headers.etag}}")]},
        ]},
        {"step_id": "pick", "type": "choice",
         "condition": {"expression": "{{l2.output}}", "operator": "exists"},
         "condition_met_branch": {"steps": [model("yes", "{{l2.output}}")]},
         "default_branch": {"steps": [
            {"step_id": "each", "type": "map", "items": "{{r2.output}}", "item_name": "row",
             "steps": [model("cell", "{{row.name}} {{first.output}}"), model("deep", "{{cell.output}}")],
             "output": {"name": "{{row}}", "text": "{{deep.output}}"}},
         ]}},
        model("end", "{{yes.status}} {{each.output}} {{pick.output}} {{r1.status_code}}"),
    ]));
    insta::assert_snapshot!(outline(&plan), @r"
    first (model)
    fork (parallel) after first
      0: l1 (model)
      0: l2 (model) after l1
      1: r1 (http)
      1: r2 (model) after r1
    pick (choice) after first, fork
      0: yes (model)
      1: each (map)
        0: cell (model)
        0: deep (model) after cell
    end (model) after fork, pick
    ");
    assert_eq!(plan.block(plan.root()).count(), 4);
    let Kind::Map(map) = &plan.step("each").unwrap().kind else { panic!("no map") };
    assert_eq!((map.item_name.as_str(), map.max_concurrency), ("row", 10));
    for step in plan.steps() {
        for (index, block) in step.kind.blocks().into_iter().enumerate() {
            for inner in plan.block(block) {
                assert_eq!(inner.parent, Some(Parent { step: step.position, block: index }));
            }
        }
    }
}

#[test]
fn definition_unresolvable_references_are_refused() {
    let map = |steps: Value, output: &str| {
        json!({"step_id": "m", "type": "map", "items": "{{inputs.list}}", "item_name": "it",
               "steps": steps, "output": output})
    };
    let fork = |left: Value, right: Value| json!({"step_id": "f", "type": "parallel", "branches": [{"steps": [left]}, {"steps": [right]}]});
    let said: String = [
        json!([model("a", "{{b.output}}"), model("b", "x")]),
        json!([model("a", "{{a.output}}")]),
        json!([model("a", "{{ghost.output}} {{input.x}} {{steps.a.output}}")]),
        json!([model("a", "x"), model("b", "{{a}} {{a.result}} {{a[0]}} {{a.body}}")]),
        json!([http("h"), model("b", "{{h.text}}")]),
        json!([fork(model("a", "x"), model("b", "{{a.output}}"))]),
        json!([fork(model("a", "{{f.output}}"), model("b", "x")), model("c", "{{a.output}}")]),
        json!([{"id": "c", "type": "choice", "condition_met_branch": {"steps": [model("y", "x")]},
                "default_branch": {"steps": [model("n", "{{y.output}}")]},
                "condition": {"expression": "$.n.output", "operator": "exists"}}]),
        json!([map(json!([model("a", "{{it}}")]), "{{a.output}}"), model("z", "{{a.output}} {{it}}")]),
        json!([map(json!([model("a", "{{z.output}}")]), "{{m.output}}"), model("z", "x")]),
        json!([with(http("h"), "headers", json!({"X-A": "{{later.output}}"})), model("later", "x")]),
        json!([with(http("h"), "fallback", json!({"url": "{{later.output}}"})), model("later", "x")]),
        json!([
            with(http("h"), "auth", json!({"type": "bearer", "token": "{{later.output}}"})),
            model("later", "x"),
        ]),
        json!([{"id": "p", "type": "pass", "result": [{"a/b": "{{later.output}}"}]}, model("later", "x")]),
        json!([{"id": "w", "type": "wait", "until": "{{later.output}}"}, model("later", "x")]),
        json!([{"id": "m", "type": "map", "items": "{{a.output}}", "steps": [model("a", "x")]}]),
    ]
    .into_iter()
    .map(|steps| format!("{}\n", problems_of(steps)))
    .collect();
    insta::assert_snapshot!(said);
    insta::assert_snapshot!(
        "output_mapping",
        problems(&json!({
            "steps": [map(json!([model("a", "x")]), "{{it}}")],
            "metadata": {"output_mapping": {"good": "{{m.output}}", "bad": ["{{a.output}}", "{{x.y}}"]}},
        }))
    );
}

#[test]
fn definition_inputs_are_checked_against_schema() {
    let refer = |schema: Value| json!({"input_schema": schema, "steps": [model("a", "{{inputs.size.w}} {{inputs}}")]});
    for open in [
        json!(null),
        json!({}),
        json!({"type": "object"}),
        json!({"type": ["object", "null"]}),
        json!({"properties": {"size": {}}}),
        json!({"properties": {}, "additionalProperties": true}),
        json!({"properties": {}, "additionalProperties": {"type": "string"}}),
        json!({"properties": {}, "patternProperties": {"^s": {}}}),
        json!({"properties": {}, "allOf": [{}]}),
    ] {
        plan(&refer(open));
    }
    let said: String = [
        json!({"properties": {"sise": {}}}),
        json!({"properties": {}, "additionalProperties": false}),
        json!({"type": "array"}),
        json!({"required": "size"}),
        json!({"required": [1]}),
        json!({"properties": []}),
        json!("none"),
    ]
    .into_iter()
    .map(|schema| problems(&refer(schema)))
    .collect();
    insta::assert_snapshot!(said);
}

#[test]
fn definition_cycles_are_reported() {
    let depends = |id: &str, on: Value| with(model(id, "x"), "depends_on", on);
    let said: String = [
        json!([depends("a", json!(["a"]))]),
        json!([depends("a", json!(["b"])), depends("b", json!(["c"])), depends("c", json!(["b"]))]),
        json!([depends("a", json!(["b"])), model("b", "{{a.output}}")]),
        // The barrier in the middle waits for the first step and blocks the last one.
        json!([depends("a", json!(["c"])), http("b"), model("c", "x")]),
        json!([depends("a", json!(["ghost"])), depends("b", json!([7]))]),
        json!([
            {"id": "m", "type": "map", "items": [], "steps": [depends("in", json!(["out"]))]},
            model("out", "x"), depends("late", json!(["in"])),
        ]),
    ]
    .into_iter()
    .map(problems_of)
    .collect();
    insta::assert_snapshot!(said);
}

#[test]
fn definition_invalid_fields_are_named() {
    let said: String = [
        json!("steps"),
        json!([7, "x", null]),
        json!([{}]),
        json!([{"type": "model", "model": "caption"}]),
        json!([{"step_id": "a"}]),
        json!([{"step_id": "a", "type": "script"}]),
        json!([{"step_id": "a b", "type": "pass"}, {"step_id": "", "type": "pass"}]),
        json!([{"step_id": "inputs", "type": "pass"}, {"step_id": "x".repeat(65), "type": "pass"}]),
        json!([{"step_id": "a", "id": "b", "type": "pass"}]),
        json!([model("a", "x"), {"step_id": "p", "type": "parallel", "branches": [
            {"steps": [model("a", "x")]}]}]),
        json!([{"step_id": "a", "type": "model"}]),
        json!([{"step_id": "a", "type": "model", "model": "gone", "modle": 1, "params": []}]),
        json!([with(model("a", "{{inputs..x}} "), "depends_on", json!("b"))]),
        json!([with(model("a", "{{"), "continue_on_error", json!("yes"))]),
        json!([with(model("a", "x"), "fallback", json!({"model": "gone", "parms": {}}))]),
        json!([with(model("a", "x"), "fallback", json!({}))]),
        json!([with(model("a", "x"), "timeout_seconds", json!(0))]),
        json!([with(model("a", "x"), "timeout_seconds", json!("5"))]),
        json!([with(model("a", "x"), "name", json!(5))]),
    ]
    .into_iter()
    .map(problems_of)
    .collect();
    insta::assert_snapshot!(said);
}

#[test]
fn definition_nested_steps_are_validated_strictly() {
    let condition = json!({"expression": "$.inputs.a", "operator": "exists"});
    let said: String = [
        json!({"type": "parallel"}),
        json!({"type": "parallel", "branches": []}),
        json!({"type": "parallel", "branches": [{"steps": []}, 7, {"name": "x", "stps": []}]}),
        json!({"type": "parallel", "branches": [
            {"name": "x", "steps": [model("b", "x")]}, {"name": "x", "steps": [model("c", "x")]}]}),
        json!({"type": "choice"}),
        json!({"type": "choice", "condition": {}, "condition_met_branch": {"steps": [7]}}),
        json!({"type": "choice", "condition": {"not": {"expression": "x"}}, "condition_met_branch": []}),
        json!({"type": "choice", "condition": condition,
               "condition_met_branch": {"step": []}, "default_branch": {"steps": {}}}),
        json!({"type": "map"}),
        json!({"type": "map", "items": "a {{inputs.a}}", "steps": [model("b", "x")], "max_concurrency": 0}),
        json!({"type": "map", "items": 5, "item_name": "a.b", "steps": [model("b", "x")]}),
        json!({"type": "map", "items": [1], "item_name": "b", "steps": [model("b", "x")]}),
        json!({"type": "map", "items": [], "steps": [
            {"id": "b", "type": "map", "items": "{{item}}", "steps": [model("c", "x")]}]}),
        json!({"type": "wait"}),
        json!({"type": "wait", "seconds": 1, "until": "2026-11-20T09:30:00Z"}),
        json!({"type": "wait", "seconds": -1}),
        json!({"type": "wait", "seconds": 1e300}),
        json!({"type": "wait", "until": "tomorrow"}),
        json!({"type": "wait", "seconds": 1, "retry": {}}),
        json!({"type": "pass", "result": "{{a"}),
    ]
    .into_iter()
    .map(|step| problems_of(json!([with(step, "step_id", json!("a"))])))
    .collect();
    insta::assert_snapshot!(said);
}

#[test]
fn definition_http_steps_are_validated_strictly() {
    let said: String = [
        json!({"url": null}),
        json!({"url": "ftp://x/"}),
        json!({"url": "/relative"}),
        json!({"url": "httpx://{{inputs.a}}"}),
        json!({"url": "localhost:{{inputs.a}}"}),
        json!({"method": "BREW"}),
        json!({"headers": {"a b": "x", "Host": "x", "X-Ok": ["x"], "X-Line": "a\r\nb"}}),
        json!({"headers": {"Content-Type": "a/b", "content-type": "c/d", "X-A": 1, "CONTENT-TYPE": "e/f"}}),
        json!({"fallback": {"url": "https://b.example", "headers": {"x-a": 1, "X-A": "{{inputs.a}}"}}}),
        json!({"headers": []}),
        json!({"query_params": {"a": {"b": 1}, "c": "{{"}}),
        json!({"timeout_seconds": 301}),
        json!({"timeout_seconds": -1}),
        json!({"fail_when": "always"}),
        json!({"fail_when": [200, 99]}),
        json!({"fail_when": [600.5]}),
        json!({"auth": {}}),
        json!({"auth": {"type": "digest"}}),
        json!({"auth": {"type": "basic", "username": "u"}}),
        json!({"auth": {"type": "bearer", "token": "", "key": 1}}),
        json!({"auth": {"type": "api_key", "value": "k", "in": "cookie"}}),
        json!({"auth": {"type": "api_key", "value": "k", "name": "Connection"}}),
        json!({"fallback": {"enabled": true, "method": "GET"}}),
        json!({"fallback": {"url": "https://b.example", "auth": {"type": "bearer", "token": "x"}}}),
        json!({"query": {}}),
    ]
    .into_iter()
    .map(|fields| {
        let mut step = http("a");
        step.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        problems_of(json!([step]))
    })
    .collect();
    insta::assert_snapshot!(said);
}

/// Returns the HTTP step `a` with additional fields.
fn http_step(fields: &Value) -> (Step, Http) {
    let mut step = http("a");
    step.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let step = plan_of(json!([step])).step("a").unwrap().clone();
    let Kind::Http(http) = step.kind.clone() else { panic!("no http step") };
    (step, *http)
}

#[test]
fn definition_reference_in_field_name_is_rejected() {
    let names = json!({"x": [{"{{inputs.k}}": 1}]});
    let http = |field: &str, value: &Value| {
        let mut step =
            json!({"step_id": "s", "type": "http", "method": "POST", "url": "https://h/"});
        step[field] = value.clone();
        step
    };
    let choice = |operator: &str, value: &Value| {
        json!({"step_id": "s", "type": "choice", "condition_met_branch": {"steps": []},
            "condition": {"expression": "{{inputs.n}}", "operator": operator, "value": value}})
    };
    let entries = json!({"{{nothere.x}}": 2});
    let api_key = json!({"type": "api_key", "name": "{{secrets.t}}", "value": "v", "in": "query"});
    for (step, path) in [
        (
            json!({"step_id": "s", "type": "pass", "result": names}),
            "/steps/0/result/x/0/{{inputs.k}}",
        ),
        (
            json!({"step_id": "s", "type": "model", "model": "caption", "params": names}),
            "/steps/0/params/x/0/{{inputs.k}}",
        ),
        (http("body", &names), "/steps/0/body/x/0/{{inputs.k}}"),
        (http("query_params", &entries), "/steps/0/query_params/{{nothere.x}}"),
        (http("auth", &api_key), "/steps/0/auth/name"),
        (
            http("fallback", &json!({"url": "https://h/", "query_params": entries})),
            "/steps/0/fallback/query_params/{{nothere.x}}",
        ),
        (json!({"step_id": "s", "type": "pass", "result": {"a{{": 1}}), "/steps/0/result/a{{"),
        (choice("equals", &json!({"{{inputs.k}}": 1})), "/steps/0/condition/value/{{inputs.k}}"),
        (
            choice("contains", &json!({"a": [{"{{nope.x}}": 1}]})),
            "/steps/0/condition/value/a/0/{{nope.x}}",
        ),
        (choice("in", &json!([{"{{inputs.k}}": 1}])), "/steps/0/condition/value/0/{{inputs.k}}"),
    ] {
        let definition = json!({"steps": [step]});
        let problems = problems(&definition);
        assert!(problems.starts_with(&format!("{path} | ")), "{problems}");
        assert!(problems.contains("references are not resolved"), "{problems}");
        assert!(Plan::load(Some(&definition)).is_ok(), "{definition}");
    }
    let mapping = json!({"steps": [{"step_id": "s", "type": "pass", "result": {r"\{{": 1}}],
        "metadata": {"output_mapping": {"{{s.output}}": 1}}});
    assert!(problems(&mapping).starts_with("/metadata/output_mapping/{{s.output}} | "));
}

#[test]
fn definition_http_steps_have_defaults() {
    let (step, http) = http_step(&json!({}));
    assert_eq!(step.timeout, Some(Duration::from_secs(30)));
    assert_eq!(step.retry.attempts(), 1);
    assert_eq!((http.request.method, &http.fail_when), (Method::Get, &FailWhen::ConnectionError));
    assert!(http.request.body.is_none() && http.fallback.is_none() && http.request.auth.is_none());
    for (written, seconds) in [(0.0, 5.0), (4.9, 5.0), (5.5, 5.5), (300.0, 300.0)] {
        let (step, _) = http_step(&json!({"timeout_seconds": written}));
        assert_eq!(step.timeout, Some(Duration::from_secs_f64(seconds)), "{written}");
        let (step, _) = http_step(&json!({"timeout": written}));
        assert_eq!(step.timeout, Some(Duration::from_secs_f64(seconds)), "timeout {written}");
        let (step, _) = http_step(&json!({"timeout": 90, "timeout_seconds": written}));
        assert_eq!(step.timeout, Some(Duration::from_secs_f64(seconds)), "both {written}");
    }
    let (_, http) = http_step(&json!({
        "method": "post", "url": "HTTPS://a.example/{{inputs.id}}", "body": "as is",
        "headers": {"X-B": "{{inputs.b}}", "X-A": 5}, "query_params": {"n": [1, "{{inputs.n}}"]},
        "fallback": {"enabled": false, "url": "https://b.example/"},
    }));
    assert_eq!(http.request.method, Method::Post);
    assert_eq!(
        http.request.headers.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        ["X-B", "X-A"]
    );
    assert!(http.fallback.is_none());
}

#[test]
fn definition_http_step_fail_when_selects_statuses() {
    for (written, failing) in [
        (json!("connection_error"), vec![]),
        (json!([]), vec![]),
        (json!("non_2xx"), vec![199, 304, 404, 500]),
        (json!([500, 404, 404]), vec![404, 500]),
    ] {
        let (_, http) = http_step(&json!({"fail_when": written}));
        let failed = [199, 200, 204, 299, 304, 404, 500].into_iter();
        assert_eq!(
            failed.filter(|status| http.fail_when.is_failure(*status)).collect::<Vec<_>>(),
            failing
        );
    }
}

#[test]
fn definition_credentials_are_never_printed() {
    for auth in [
        json!({"type": "basic", "username": "user-hush", "password": "hush"}),
        json!({"type": "bearer", "token": "hush"}),
        json!({"type": "api_key", "value": "hush", "in": "query", "name": "key"}),
    ] {
        let (step, http) = http_step(&json!({"auth": auth}));
        assert!(http.request.auth.is_some());
        assert!(!format!("{step:?}").contains("hush"), "{step:?}");
    }
}

#[test]
fn definition_retry_policy_has_defaults() {
    let retry = |written: Value| {
        let plan = plan_of(json!([with(model("a", "x"), "retry", written)]));
        plan.step("a").unwrap().retry.clone()
    };
    let delays = |written: Value, class| {
        let policy = retry(written);
        let delays = (1..).map_while(|number| policy.delay_after(number, class));
        delays.map(|delay| delay.as_secs_f64()).collect::<Vec<_>>()
    };
    assert_eq!(delays(json!({}), ErrorClass::ProviderError), [1.0, 2.0]);
    assert_eq!(delays(json!({}), ErrorClass::InvalidUserInput), [0.0; 0]);
    let long = json!({"max_attempts": 3, "initial_delay_seconds": 90});
    assert_eq!(delays(long, ErrorClass::ProviderError), [90.0, 90.0]);
    let own = json!({
        "max_attempts": 4, "initial_delay_seconds": 0.5, "backoff_multiplier": 3,
        "max_delay_seconds": 2, "retry_on": ["internal_error"]
    });
    assert_eq!(delays(own.clone(), ErrorClass::InternalError), [0.5, 1.5, 2.0]);
    assert_eq!(delays(own, ErrorClass::ProviderError), [0.0; 0]);
    insta::assert_snapshot!(problems_of(json!([with(
        model("a", "x"),
        "retry",
        json!({
            "max_attempts": 0, "initial_delay_seconds": -1, "backoff_multiplier": 0.5,
            "max_delay_seconds": 1e9, "retry_on": ["sometimes"], "jitter": true
        })
    )])));
}

#[test]
fn definition_disabled_fallback_is_not_checked() {
    let off = json!({"enabled": false, "model": "gone"});
    let plan = plan_of(json!([with(model("a", "x"), "fallback", off)]));
    let Kind::Model(a) = &plan.step("a").unwrap().kind else { panic!("no model") };
    assert!(a.fallback.is_none());
    let own = json!({"model": "upscale"});
    let plan = plan_of(json!([with(model("a", "x"), "fallback", own)]));
    let Kind::Model(a) = &plan.step("a").unwrap().kind else { panic!("no model") };
    assert_eq!(a.fallback.as_ref().unwrap().params, a.params);
}

#[test]
fn definition_limits_are_enforced() {
    let nest = |levels: usize| {
        (1..levels).fold(model("leaf", "x"), |inner, level| {
            json!({"step_id": format!("p{level}"), "type": "parallel", "branches": [{"steps": [inner]}]})
        })
    };
    plan_of(json!([nest(DEPTH_MAX)]));
    assert!(problems_of(json!([nest(DEPTH_MAX + 1)])).contains("nest deeper than 16 levels"));

    let many = |count: usize| (0..count).map(|n| http(&format!("h{n}"))).collect::<Value>();
    assert_eq!(plan_of(many(STEPS_MAX)).steps().count(), STEPS_MAX);
    assert!(problems_of(many(STEPS_MAX + 1)).contains("more than 500 steps"));

    let large = |bytes: usize| json!([model("a", &"x".repeat(bytes))]);
    plan_of(large(DEFINITION_BYTES_MAX - 200));
    assert!(problems_of(large(DEFINITION_BYTES_MAX)).contains("larger than 1048576 bytes"));

    let test = json!({"expression": "$.inputs.a", "operator": "matches", "value": "a+"});
    let choice = |id: &str, tests: usize| {
        json!({"step_id": id, "type": "choice", "condition": {"or": vec![&test; tests]},
               "condition_met_branch": {"steps": []}})
    };
    plan_of(json!([choice("a", PATTERNS_MAX)]));
    assert!(
        problems_of(json!([choice("a", PATTERNS_MAX), choice("b", 1)])).contains("100 patterns")
    );

    let wrong: Value = (0..100).map(|n| json!({"step_id": format!("s{n}")})).collect();
    assert_eq!(problems_of(wrong).lines().count(), PROBLEMS_MAX);
}

#[test]
fn definition_error_messages_stay_short() {
    let long = "x".repeat(100_000);
    for steps in [
        json!([{"step_id": long, "type": long, long.clone(): 1}]),
        json!([model("a", &format!("{{{{{long}}}}}"))]),
        json!([with(model("a", "x"), "depends_on", json!([long]))]),
        json!([{"id": "a", "type": "pass", "result": {long.clone(): "{{b.output}}"}}]),
        json!([with(http("a"), "headers", json!({long.clone(): []}))]),
        json!([with(http("a"), "method", json!(long))]),
        json!([{"id": "a", "type": "model", "model": long}]),
    ] {
        assert!(problems_of(steps).len() < 2000);
    }
    let said = problems(&json!({"steps": [model("a", "x")], long: 1, "stepz": 1, "version": 1}));
    assert!(said.len() < 2000, "{said}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the domain has no clock; this test measures")]
fn definition_compiles_hostile_input_in_linear_time() {
    let references = "{{a.output}}".repeat(80_000);
    let names: Vec<_> = (0..100_000).map(|_| "a").collect();
    let fields: Map<_, _> = (0..80_000).map(|n| (format!("f{n}"), json!("{{b.output}}"))).collect();
    let key = "k".repeat(500_000);
    for steps in [
        json!([model("a", "x"), model("b", &references)]),
        json!([model("a", "x"), with(model("b", "x"), "depends_on", json!(names))]),
        json!([{"id": "a", "type": "pass", "result": fields}]),
        json!([{"id": "a", "type": "pass", "result": {key: vec!["{{b.output}}"; 30_000]}}]),
        json!([with(model("a", "x"), "params", json!(null)), fields]),
        json!([with(http("a"), "fail_when", json!(vec![500; 200_000]))]),
    ] {
        let definition = json!({"steps": steps});
        let began = std::time::Instant::now();
        let outcome = compile(&definition).map(|plan| plan.steps().count());
        // Quadratic work on a mebibyte would take hours.
        assert!(began.elapsed().as_secs() < 20, "{outcome:?}");
    }
}
