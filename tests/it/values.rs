//! Input and output values: the service either interprets times, numbers and character sets as
//! intended or rejects them with a clear error, and clients can read accepted values back
//! unchanged.

use std::io::Write as _;

use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::Service;

const JSON_IN_LATIN_1: &[u8] =
    b"{\"model\":\"text-template\",\"version\":\"1\",\"input\":{\"template\":\"caf\xe9\"}}";

fn utf_16(text: &str) -> Vec<u8> {
    std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect()
}

#[tokio::test]
async fn request_bodies_in_other_character_sets_are_decoded() {
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
        // The conformance checks only read UTF-8 bodies, so skip them.
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

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn request_bodies_are_decompressed_up_to_the_limit() {
    let service = Service::start().await;
    let text = r#"{"model":"text-template","version":"1","input":{"template":"café"}}"#;
    let ask = async |coding: &str, body: Vec<u8>| {
        let ask = service.ask(Role::Base, Method::POST, "/v1/prediction/run").key(&service.key);
        ask.header("content-encoding", coding).body(body).undocumented().send().await
    };
    for (coding, body) in [
        ("gzip", gzip(text.as_bytes())),
        ("X-GZIP", gzip(text.as_bytes())),
        ("gzip, identity", gzip(text.as_bytes())),
        ("gzip", gzip(&utf_16(text))),
        ("Identity", text.as_bytes().to_vec()),
    ] {
        assert_eq!(ask(coding, body).await.expect(200)["output"], "café", "{coding}");
    }
    let damaged = ask("gzip", text.as_bytes().to_vec()).await.expect(400);
    assert_eq!(damaged["error"], "the body is not valid gzip, which its Content-Encoding names");
    let unknown = ask("br", text.as_bytes().to_vec()).await;
    assert_eq!(unknown.header("accept-encoding"), "gzip, deflate");
    let said = "the body has the content coding 'br', which is not supported";
    assert!(unknown.expect(415)["error"].as_str().unwrap().starts_with(said));
    let bomb = gzip(&vec![b' '; 64 << 20]);
    assert!(bomb.len() < 1 << 20);
    ask("gzip", bomb).await.expect(413);
}

#[tokio::test]
async fn times_in_a_query_may_have_a_plain_plus() {
    let service = Service::start().await;
    for path in ["/v2/executions", "/v1/webhooks"] {
        for time in ["2026-11-20T10:30:00+01:00", "2026-11-20T10:30:00%2B01:00"] {
            service.get(&format!("{path}?from={time}")).await.expect(200);
        }
        let refused = service.get(&format!("{path}?from=yesterday")).await;
        refused.expect_error(400, "from must be a time such as 2026-11-20T09:30:00Z");
    }
}

#[tokio::test]
async fn key_in_body_of_public_trigger_is_decoded_from_other_character_sets() {
    let service = Service::start().await;
    let workflow =
        service.workflow(json!([{"step_id": "a", "type": "pass", "result": "{{inputs.x}}"}])).await;
    let shared = json!({"version_id": "v1", "allowed_to_share": true,
        "definition": {"steps": [{"step_id": "a", "type": "pass", "result": "{{inputs.x}}"}]}});
    let path = format!("/workflows/{workflow}/versions/v1");
    service.flows(Method::PUT, &path).json(&shared).send().await.expect(200);
    let path = format!("/v1/public/{workflow}/versions/v1/trigger");
    // The read limit for a long body falls in the middle of a character.
    for long in [0, 70_000] {
        let text =
            json!({"api_key": service.key, "inputs": {"x": "café".repeat(1 + long)}}).to_string();
        let big_endian: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
        for (content_type, body) in [
            ("application/json", text.clone().into_bytes()),
            ("application/json", format!("\u{feff}{text}").into_bytes()),
            ("application/json", utf_16(&text)),
            ("text/plain; charset=utf-16be", big_endian),
            ("application/json; charset=unheard-of", text.clone().into_bytes()),
        ] {
            let ask = service.ask(Role::Base, Method::POST, &path);
            let ask = ask.header("content-type", content_type).body(body).undocumented();
            ask.send().await.expect(202);
        }
    }
    let text = json!({"api_key": "smk_no", "inputs": {"x": 1}}).to_string();
    let refused = service.ask(Role::Base, Method::POST, &path).body(utf_16(&text)).undocumented();
    assert_eq!(refused.send().await.status, 401);
}

#[tokio::test]
async fn request_bodies_in_other_formats_are_rejected_with_clear_error() {
    let service = Service::start().await;
    for (body, said) in [
        ("model=x&input=y", "this looks like a form"),
        ("--b\r\nContent-Disposition: form-data\r\n", "this looks like multipart form data"),
        ("name: mood\n", "this looks like YAML"),
        ("---\nname: mood\n", "this looks like YAML"),
        ("name = \"mood\"\n", "this looks like TOML"),
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
        // The errors of these routes have no details. Chat passes texts on without parsing them.
        for (role, path) in [
            (Role::Base, "/v1/chat/completions"),
            (Role::Base, "/v1/embeddings"),
            (Role::Base, "/v1/decisions"),
            (Role::Agent, "/v1/chat/completions"),
            (Role::Agent, "/chat"),
            (Role::Agent, "/mcp"),
        ] {
            let ask = service.ask(role, Method::POST, path).key(&service.key);
            let ask = ask.body(body.as_bytes().to_vec()).undocumented();
            let refused = ask.send().await.expect(400);
            let message = refused["error"]["message"].as_str().unwrap();
            if !said.contains("half") {
                let place = " at line 1 column ";
                assert!(message.starts_with("invalid JSON body: "), "{path}: {message}");
                assert!(message.contains(said) && message.contains(place), "{path}: {message}");
                // The example in the hint comes last.
                let (_, behind) = message.split_once(place).unwrap();
                let behind = behind.trim_start_matches(|c: char| c.is_ascii_digit());
                assert!(behind.is_empty() || behind.starts_with(": "), "{path}: {message}");
            }
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
async fn workflow_with_invalid_schema_is_rejected_with_its_place() {
    let service = Service::start().await;
    let schema = json!({"type": "object", "properties": {"good": {}, "x": {"type": "float"}}});
    let body = json!({"name": "m", "description": "x", "definition": {
        "input_schema": schema, "steps": [{"step_id": "p", "type": "pass", "result": 1}]}});
    let refused = service.post("/v1/workflows", &body).send().await.expect(400);
    assert_eq!(refused["details"][0]["path"], "/input_schema/properties/x/type", "{refused}");
    let message = refused["details"][0]["message"].as_str().unwrap();
    assert!(message.contains("did you mean number?"), "{message}");
    for (property, inside) in [
        (json!({"type": "float"}), "/type"),
        (json!({"enum": 1}), "/enum"),
        (json!({"$ref": "#/nowhere"}), "/$ref"),
    ] {
        let event = json!({"name": "e", "schema": {"properties": {"good": {}, "x": property}}});
        let body = json!({"name": "m", "description": "x", "definition": {
            "steps": [{"step_id": "w", "type": "wait", "event": event}]}});
        let refused = service.post("/v1/workflows", &body).send().await.expect(400);
        let path = format!("/steps/0/event/schema/properties/x{inside}");
        assert_eq!(refused["details"][0]["path"], path, "{refused}");
    }
}

#[tokio::test]
async fn workflow_names_allow_any_script_but_no_control_characters() {
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
