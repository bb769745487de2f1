//! References to secrets: which steps may use them, and how plans list them.

use serde_json::{Value, json};

use super::problems_of;
use crate::definition::{Plan, SECRETS_MAX};

fn request(id: &str, url: &str) -> Value {
    json!({"step_id": id, "type": "http", "url": url})
}

#[test]
fn definition_secrets_are_listed_with_first_position() {
    let mut first = request("a", "https://h/{{secrets.one}}");
    first["headers"] = json!({"X-A": "{{secrets.one}}", "X-B": "Bearer {{secrets.two}}"});
    first["fallback"] = request("", "{{secrets.three}}");
    first["fallback"].as_object_mut().unwrap().retain(|name, _| name == "url");
    let second = request("b", "https://h/{{secrets.one}}");
    let definition = json!({"steps": [first, second]});
    let plan = Plan::compile(Some(&definition), &|_| true).unwrap();
    let uses = plan.secrets().iter().map(|one| (one.name.as_str(), one.path.as_str()));
    assert_eq!(
        uses.collect::<Vec<_>>(),
        [
            ("one", "/steps/0/url"),
            ("one", "/steps/1/url"),
            ("three", "/steps/0/fallback/url"),
            ("two", "/steps/0/headers/X-B"),
        ]
    );
    let of_second = plan.secrets_of(plan.step("b").unwrap().position);
    assert_eq!(of_second, ["one"]);
}

#[test]
fn definition_secret_outside_of_requests_is_rejected() {
    let secret = "{{secrets.a}}";
    for steps in [
        json!([{"step_id": "p", "type": "pass", "result": secret}]),
        json!([{"step_id": "m", "type": "model", "model": "caption", "params": {"x": secret}}]),
        json!([{"step_id": "w", "type": "wait", "seconds": secret}]),
        json!([{"step_id": "m", "type": "map", "items": secret,
            "steps": [{"step_id": "p", "type": "pass"}]}]),
        json!([{"step_id": "m", "type": "map", "items": "{{inputs.list}}", "output": secret,
            "steps": [request("h", "https://h/")]}]),
        json!([{"step_id": "c", "type": "choice",
            "condition": {"expression": secret, "operator": "exists"},
            "condition_met_branch": {"steps": []}}]),
    ] {
        let said = problems_of(steps);
        assert!(said.contains("refers to a secret, which only http steps can use"), "{said}");
    }
    let mapped = json!({"steps": [request("h", "https://h/")],
        "metadata": {"output_mapping": {"x": secret}}});
    let refused = Plan::compile(Some(&mapped), &|_| true).unwrap_err().to_string();
    assert!(refused.contains("which only http steps can use"), "{refused}");
    let said = problems_of(json!([request("secrets", "https://h/")]));
    assert!(said.contains("'secrets' is reserved in references"), "{said}");
}

#[test]
fn definition_limits_number_of_secrets() {
    let headers = |count: usize| {
        let mut step = request("a", "https://h/");
        let secrets =
            (0..count).map(|n| (format!("X-{n}"), json!(format!("{{{{secrets.s{n}}}}}"))));
        step["headers"] = secrets.collect();
        json!([step])
    };
    let most = json!({"steps": headers(SECRETS_MAX)});
    assert_eq!(Plan::compile(Some(&most), &|_| true).unwrap().secrets().len(), SECRETS_MAX);
    let said = problems_of(headers(SECRETS_MAX + 1));
    assert!(said.contains("exceeds the limit of 50 secrets per definition"), "{said}");
}
