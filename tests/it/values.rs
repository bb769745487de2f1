//! Values on their way in and out: times, numbers and character sets are read as they were meant, or refused in
//! words, and what was accepted can be read back.

use hyper::Method;
use orrery::api::Role;
use serde_json::{Value, json};

use crate::support::Service;

const JSON_IN_LATIN_1: &[u8] =
    b"{\"model\":\"text-template\",\"version\":\"1\",\"input\":{\"template\":\"caf\xe9\"}}";

fn utf_16(text: &str) -> Vec<u8> {
    std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect()
}

#[tokio::test]
async fn request_bodies_in_other_character_sets_are_read() {
    let service = Service::start().await;
    let text = r#"{"model":"text-template","version":"1","input":{"template":"café"}}"#;
    let big_endian: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
    for (content_type, body) in [
        ("application/json; charset=ISO-8859-1", JSON_IN_LATIN_1.to_vec()),
        ("application/json;charset=\"windows-1252\"", JSON_IN_LATIN_1.to_vec()),
        ("application/json", utf_16(text)),
        ("application/json; charset=utf-16", utf_16(text)),
        ("text/plain; charset=utf-16be", big_endian),
        ("application/json; charset=utf8", text.as_bytes().to_vec()),
        ("application/json; charset=unheard-of", text.as_bytes().to_vec()),
        ("application/json", format!("\u{feff}{text}").into_bytes()),
    ] {
        let ask = service.ask(Role::Base, Method::POST, "/v1/prediction/run").key(&service.key);
        // The checks against the document read bodies in UTF-8 alone.
        let ask = ask.header("content-type", content_type).body(body).undocumented();
        let answer = ask.send().await.expect(200);
        assert_eq!(answer["output"], "café", "{content_type}: {answer}");
    }
    let ask = service.ask(Role::Base, Method::POST, "/v1/prediction/run").key(&service.key);
    let ask = ask.header("content-type", "application/json; charset=utf-32");
    let refused = ask.body(JSON_IN_LATIN_1.to_vec()).undocumented().send().await.expect(400);
    let said = refused["error"].as_str().unwrap();
    assert!(said.contains("the charset 'utf-32', which is not supported"), "{said}");
}

#[tokio::test]
async fn request_bodies_of_other_notations_are_refused_in_words() {
    let service = Service::start().await;
    for (body, said) in [
        ("model=x&input=y", "this looks like a form"),
        ("--b\r\nContent-Disposition: form-data\r\n", "this looks like multipart form data"),
        ("name: mood\n", "this looks like YAML"),
        ("{\"a\": NaN}", "NaN is not a JSON value"),
        ("{\"a\": \"\\udc00\"}", "half of a character"),
    ] {
        for (role, path) in [
            (Role::Base, "/v1/prediction"),
            (Role::Base, "/v1/secrets/x"),
            (Role::Workflows, "/api/v1/workflows"),
        ] {
            let method = if path.contains("secrets") { Method::PUT } else { Method::POST };
            let ask = service.ask(role, method, path).key(&service.key);
            let refused = ask.body(body.as_bytes().to_vec()).send().await.expect(400);
            assert_eq!(refused["error"], "invalid JSON body", "{path}: {refused}");
            let message = refused["details"]["message"].as_str().unwrap();
            assert!(message.contains(said), "{path}: {message}");
        }
    }
}

#[tokio::test]
async fn whole_numbers_of_requests_may_have_a_decimal_point() {
    let service = Service::start().await;
    let text = "One cat. Two dogs. Three birds. Four fish.";
    let body =
        json!({"model": "text-summary", "version": "1", "input": {"text": text, "sentences": 1.0}});
    let answer = service.post("/v1/prediction/run", &body).send().await.expect(200);
    assert_eq!(answer["output"].as_str().unwrap().matches('.').count(), 1, "{answer}");
    let announce = json!({"content_type": "text/plain", "expires_in_seconds": 3600.0, "size": 3e0});
    service.post("/v1/upload/presign", &announce).send().await.expect(200);
    let announce = json!({"content_type": "text/plain", "expires_in_seconds": 3600.5});
    service.post("/v1/upload/presign", &announce).send().await.expect(400);
}

#[tokio::test]
async fn workflow_with_an_invalid_schema_is_refused_at_its_place() {
    let service = Service::start().await;
    let schema = json!({"type": "object", "properties": {"good": {}, "x": {"type": "float"}}});
    let body = json!({"name": "m", "description": "x", "definition": {
        "input_schema": schema, "steps": [{"step_id": "p", "type": "pass", "result": 1}]}});
    let refused = service.post("/v1/workflows", &body).send().await.expect(400);
    assert_eq!(refused["details"][0]["path"], "/input_schema/properties/x/type", "{refused}");
    let message = refused["details"][0]["message"].as_str().unwrap();
    assert!(message.contains("did you mean number?"), "{message}");
}

#[tokio::test]
async fn workflow_names_hold_any_script_and_no_control_characters() {
    let service = Service::start().await;
    let made = |name: &str| {
        let body: Value = json!({"name": name, "description": "x",
            "definition": {"steps": [{"step_id": "p", "type": "pass", "result": 1}]}});
        body
    };
    for (name, slug) in
        [("Ärger", "arger"), ("日本語の流れ 2", "ri-ben-yu-noliu-re-2"), ("Привет", "privet")]
    {
        let answer = service.post("/v1/workflows", &made(name)).send().await.expect(201);
        assert_eq!((&answer["slug"], &answer["name"]), (&json!(slug), &json!(name)));
        service.get(&format!("/v1/workflows/{slug}")).await.expect(200);
    }
    for name in ["a\u{0}b", "two\nlines", "bell\u{7}"] {
        let refused = service.post("/v1/workflows", &made(name)).send().await.expect(400);
        assert_eq!(refused["error"], "name must not contain control characters");
    }
}
