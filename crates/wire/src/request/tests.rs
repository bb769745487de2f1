//! Tests the messages about bodies that do not match their schemas.

use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::{chat, decision, pattern, trigger};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only the types of most fields count here")]
struct Sample {
    #[schemars(length(max = 4), transform = pattern::name)]
    name: String,
    count: Option<u32>,
    #[schemars(range(min = 0, max = 1))]
    share: Option<f64>,
    #[schemars(length(max = 2), inner(length(max = 3)))]
    tags: Option<Vec<String>>,
    nested: Option<Vec<Nested>>,
    at: Option<crate::Time>,
    flag: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only the types of most fields count here")]
struct Nested {
    id: orrery_domain::ids::ExecutionId,
}

fn refused<T: DeserializeOwned + JsonSchema + std::fmt::Debug + 'static>(body: Value) -> String {
    read::<T>(body).unwrap_err().to_string()
}

#[test]
fn request_mismatch_names_place_and_limit() {
    for (body, expected) in [
        (json!([]), "the request body must be a JSON object"),
        (json!(null), "the request body must be a JSON object"),
        (json!({}), "name is required"),
        (json!({"name": null}), "name is required"),
        (json!({"name": " "}), "name is required"),
        (json!({"name": 7}), "name must be a string"),
        (json!({"name": "abcde"}), "name must have at most 4 characters"),
        (json!({"name": "a\u{7}"}), "name must not contain control characters"),
        (json!({"name": "a", "nme": 1}), "unknown field nme: did you mean name?"),
        (json!({"name": "a", "count": -1}), "count must be a whole number from 0 to 4294967295"),
        (json!({"name": "a", "count": 1.5}), "count must be a whole number from 0 to 4294967295"),
        (json!({"name": "a", "share": 2}), "share must be a number from 0 to 1"),
        (json!({"name": "a", "tags": "b"}), "tags must be an array of strings"),
        (json!({"name": "a", "tags": ["b", 1]}), "tags[1] must be a string"),
        (json!({"name": "a", "tags": ["b", "c", "d"]}), "tags must have at most 2 items"),
        (json!({"name": "a", "tags": ["abcd"]}), "tags[0] must have at most 3 characters"),
        (json!({"name": "a", "nested": [{}]}), "nested[0].id is required"),
        (json!({"name": "a", "nested": [{"id": "x"}]}), "nested[0].id must be a UUID"),
        (json!({"name": "a", "nested": [[]]}), "nested[0] must be an object"),
        (json!({"name": "a", "flag": "yes"}), "flag must be true or false"),
        (
            json!({"name": "a", "at": "noon"}),
            "at is not an RFC 3339 time such as 2026-11-20T09:30:00Z",
        ),
    ] {
        assert_eq!(refused::<Sample>(body), expected);
    }
}

#[test]
fn request_whole_numbers_are_read_in_any_notation() {
    let sample: Sample = read(json!({"name": "a", "count": 2.0, "tags": null})).unwrap();
    assert_eq!((sample.count, sample.tags), (Some(2), None));
    // Payloads are passed on as they are.
    let trigger: trigger::Trigger = read(json!({"inputs": {"n": 2.0}})).unwrap();
    assert!(trigger.run.inputs.unwrap()["n"].is_f64());
}

#[test]
fn request_alternatives_are_told_apart_by_type_and_tag() {
    let embed =
        |input: Value| refused::<chat::EmbeddingsRequest>(json!({"model": "m", "input": input}));
    assert_eq!(embed(json!(7)), "input must be a string or an array");
    assert_eq!(embed(json!("")), "input must not be empty");
    assert_eq!(embed(json!(["a", 1])), "input[1] must be a string");
    let ask = |question: Value| {
        let body = json!({"model": "m", "state": "s", "questions": {"q": question}});
        refused::<decision::Request>(body)
    };
    assert_eq!(ask(json!({})), "questions.q.type is required");
    let unknown = json!({"type": "bool"});
    assert_eq!(ask(unknown), "questions.q.type must be one of oul, noul, choice, score");
    let empty = json!({"type": "score", "instructions": "?", "criteria": ["a", " "]});
    assert_eq!(ask(empty), "questions.q.criteria[1] is required");
}
