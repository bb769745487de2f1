//! Models: the list, the details on both routes, and the OpenAPI document of each model.

use hyper::Method;
use orrery_api::Role;
use orrery_runners::builtin;
use serde_json::{Value, json};

use crate::support::{Answer, Ask, Provider, Service, Upstream};

const UNKNOWN: &str = r#"{"error":"Failed to fetch model: model not found"}"#;

const SCHEMA: &str = r#"
description = 'Says what an image shows.'
[request_schema]
"$schema" = "https://json-schema.org/draft/2020-12/schema"
type = 'object'
required = ['image']
properties.image = { type = 'string', format = 'uri' }
properties.tone = { const = 'plain' }
properties.words = { type = ['integer', 'null'], exclusiveMinimum = 0 }
[cost]
type = 'fixed'
amount = 0.002
"#;

async fn open(service: &Service, path: &str) -> Answer {
    service.ask(Role::Base, Method::GET, path).send().await
}

#[tokio::test]
async fn model_list_is_an_array_with_total_in_header() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("Vendor/Caption", "/echo", "title = 'What is SHOWN'"));
    service.manifest(&provider.manifest("zoom", "/echo", ""));
    let total = builtin::ALL.len() + 2;
    let answer = open(&service, "/v1/models").await;
    let all = answer.expect(200);
    assert_eq!(all.as_array().unwrap().len(), total);
    assert_eq!(answer.header("x-total-count"), total.to_string());
    for (query, expected, count) in [
        ("name=vendor/CAP", vec!["Vendor/Caption"], 1),
        ("name=is%20shown", vec!["Vendor/Caption"], 1),
        ("name=nobody", vec![], 0),
        ("limit=1", vec!["Vendor/Caption"], total),
        // The built-in models come last.
        ("limit=3", vec!["Vendor/Caption", "zoom", "html-to-text"], total),
        ("limit=2&offset=2", vec!["html-to-text", "image-qr"], total),
        ("offset=1000", vec![], total),
        ("limit=500&name=image-", vec!["image-qr", "image-resize"], 2),
        ("group=models", vec!["Vendor/Caption", "zoom"], 2),
        ("group=utilities&limit=1", vec!["html-to-text"], total - 2),
        ("group=models&name=image-", vec![], 0),
    ] {
        let answer = open(&service, &format!("/v1/models?{query}")).await;
        let page = answer.expect(200);
        let slugs: Vec<&str> =
            page.as_array().unwrap().iter().map(|model| model["slug"].as_str().unwrap()).collect();
        assert_eq!(slugs, expected, "{query}");
        assert_eq!(answer.header("x-total-count"), count.to_string(), "{query}");
    }
}

#[tokio::test]
async fn model_list_out_of_range_page_names_the_range() {
    let service = Service::start().await;
    for limit in ["0", "501", "-1", "many", "", "1.5", "99999999999999999999"] {
        let answer = open(&service, &format!("/v1/models?limit={limit}")).await;
        answer.expect_error(400, "limit must be a whole number from 1 to 500");
    }
    let answer = open(&service, "/v1/models?group=toys").await;
    answer.expect_error(400, "group must be one of models, utilities");
    for offset in ["-1", "x", ""] {
        let answer = open(&service, &format!("/v1/models?offset={offset}")).await;
        answer.expect_error(400, "offset must be a whole number from 0 to 4294967295");
    }
}

#[tokio::test]
async fn model_detail_is_complete_and_equal_on_both_routes() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("vendor/caption", "/echo", SCHEMA));
    let usage = "[cost]\ntype = 'usage_based'\n";
    service.manifest(&provider.manifest("by-use", "/echo", usage));
    let usage = "[cost]\ntype = 'usage_based'\nestimate = '$0.10 a second'\nper_second = 0.1\n";
    service.manifest(&provider.manifest("by-second", "/echo", usage));

    let detail = open(&service, "/v1/models/vendor/caption").await.expect(200);
    let disclaimer = "Pricing is an estimate and may change as rates are updated.";
    let expected = json!({
        "title": "vendor/caption",
        "slug": "vendor/caption",
        "version": "0.0.1",
        "output_type": "object",
        "request_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "required": ["image"],
            "properties": {
                "image": {"type": "string", "format": "uri"},
                "tone": {"const": "plain"},
                "words": {"type": ["integer", "null"], "exclusiveMinimum": 0},
            },
        },
        "cost": {
            "currency": "USD",
            "type": "fixed",
            "amount": 0.002,
            "unit": "execution",
            "estimate": "$0.002 per execution",
            "description": disclaimer,
        },
    });
    assert_eq!(detail, expected);
    for (slug, estimate) in [("by-use", "Usage-based pricing"), ("by-second", "$0.10 a second")] {
        let cost = &open(&service, &format!("/v1/models/{slug}")).await.expect(200)["cost"];
        let expected = json!({
            "currency": "USD",
            "type": "usage_based",
            "amount": null,
            "unit": null,
            "estimate": estimate,
            "description": disclaimer,
        });
        assert_eq!(*cost, expected);
    }
    let unpriced = open(&service, "/v1/models/text-template").await.expect(200);
    assert_eq!(unpriced.get("cost"), Some(&Value::Null));

    let by_query = open(&service, "/v1/model?slug=vendor/caption").await;
    assert_eq!(by_query.expect(200), expected);
    assert_eq!(by_query.header("deprecation"), "true");
    let link = "</v1/models/vendor/caption>; rel=\"successor-version\"";
    assert_eq!(by_query.header("link"), link);
}

#[tokio::test]
async fn model_unknown_or_missing_slug_has_specified_text() {
    let service = Service::start().await;
    for path in [
        "/v1/models/of-nobody",
        "/v1/models/of/nobody/",
        "/v1/models/of-nobody/schemas/openapi",
        "/v1/models/a%20b",
        "/v1/models/%2e%2e/%2e%2e/etc/passwd",
        "/v1/model?slug=of-nobody",
    ] {
        open(&service, path).await.expect_text(404, UNKNOWN);
    }
    for path in ["/v1/model", "/v1/model?slug="] {
        open(&service, path).await.expect_error(400, "slug parameter is required");
    }
    let other = open(&service, "/v1/model?name=text-template").await;
    other.expect_error(400, "unknown query parameter name: expected one of slug");
    open(&service, "/v1/models/%ff").await.expect_error(400, "the path is not UTF-8");
}

#[tokio::test]
async fn model_openapi_document_uses_3_0_schema_keywords() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("vendor/caption", "/echo", SCHEMA));
    let path = "/v1/models/vendor/caption/schemas/openapi";
    let document = open(&service, path).await.expect(200);
    assert_eq!(document["openapi"], "3.0.3");
    assert_eq!(document["info"]["title"], "vendor/caption");
    let post = &document["paths"]["/v1/prediction/"]["post"];
    let body = &post["requestBody"]["content"]["application/json"]["schema"];
    assert_eq!(body["properties"]["model"]["enum"], json!(["vendor/caption"]));
    assert_eq!(body["properties"]["input"], json!({"$ref": "#/components/schemas/Input"}));
    assert_eq!(body["required"], json!(["model", "version", "input"]));
    for field in ["version", "webhook_url", "webhook_secret", "fallback_selector"] {
        assert_eq!(body["properties"][field]["type"], "string", "{field}");
    }
    let schemas = &document["components"]["schemas"];
    let input = json!({
        "type": "object",
        "required": ["image"],
        "properties": {
            "image": {"type": "string", "format": "uri"},
            "tone": {"enum": ["plain"]},
            "words": {
                "type": "integer", "nullable": true, "minimum": 0, "exclusiveMinimum": true,
            },
        },
    });
    assert_eq!(schemas["Input"], input);
    assert_eq!(schemas["Output"]["type"], "object");
}

#[tokio::test]
async fn builtin_models_match_their_documents() {
    let service = Service::start().await;
    let text = "Orrery is a wonderful machine. It shows how the planets move around the sun.";
    let pixel = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAUwAOw==";
    let inputs = [
        ("html-to-text", json!({"html": "<h1>Title</h1><p>words</p>"})),
        ("image-qr", json!({"text": "https://example.com"})),
        ("image-resize", json!({"image": pixel, "width": 2, "height": 2})),
        ("json-query", json!({"document": {"a": [1, 2]}, "expression": "a"})),
        ("text-keywords", json!({"text": text})),
        ("text-language", json!({"text": text})),
        ("text-sentiment", json!({"text": text})),
        ("text-summary", json!({"text": text, "sentences": 1})),
        ("text-template", json!({"template": "Hello {{ name }}", "values": {"name": "Ada"}})),
    ];
    let tried: Vec<&str> = inputs.iter().map(|(slug, _)| *slug).collect();
    let all: Vec<&str> = builtin::ALL.iter().map(|builtin| builtin.slug).collect();
    assert_eq!(tried, all);
    for (slug, input) in inputs {
        let id = service.create(slug, input).await;
        let prediction = service.ended(&id).await;
        assert_eq!(prediction["status"], "success", "{prediction}");
        let kind = &open(&service, &format!("/v1/models/{slug}")).await.expect(200)["output_type"];
        let output = &prediction["output"];
        let fits = match kind.as_str().unwrap() {
            "string" | "image" => output.is_string(),
            "array" => output.is_array(),
            "object" => output.is_object(),
            "number" => output.is_number(),
            "boolean" => output.is_boolean(),
            other => panic!("{other}"),
        };
        assert!(fits, "{slug} gives {kind}: {output}");
    }
}

fn by_bearer(service: &Service, path: &str) -> Ask {
    let key = format!("Bearer {}", service.key);
    service.ask(Role::Base, Method::GET, path).header("authorization", key)
}

fn ids(list: &Value) -> Vec<&str> {
    list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn model_list_for_openai_clients_has_callable_models() {
    let up = Upstream::start().await;
    let near = Upstream::start().await;
    let service = Service::configured(&(up.config("") + "[agent]\nmodel = 'far'\n")).await;
    service.manifest(&near.manifest("near", "chat", ""));
    service.manifest(&near.manifest("vectors", "embeddings", ""));
    up.answers(200, r#"{"data":[{"id":"far","created":7,"owned_by":"them"},{"id":"a/b:free"}]}"#);
    let all = ["near", "vectors", "orrery/beta", "far", "a/b:free"];
    let list = by_bearer(&service, "/v1/models").send().await.expect(200);
    assert_eq!((&list["object"], ids(&list)), (&json!("list"), all.to_vec()));
    let kinds: Vec<&Value> =
        list["data"].as_array().unwrap().iter().map(|one| &one["kind"]).collect();
    let chat = json!("chat");
    assert_eq!(kinds, [&chat, &json!("embeddings"), &chat, &Value::Null, &Value::Null]);
    assert_eq!(list["data"][3]["created"], 7);
    let by_format = service.get("/v1/models?format=openai").await.expect(200);
    assert_eq!(ids(&by_format), all);
    for id in all {
        let model = by_bearer(&service, &format!("/v1/models/{id}")).send().await.expect(200);
        assert_eq!((&model["id"], &model["object"]), (&json!(id), &json!("model")));
    }
    // All other clients get the full catalog, and so does a client that requests it.
    for catalog in [
        service.get("/v1/models").await,
        open(&service, "/v1/models").await,
        by_bearer(&service, "/v1/models?format=catalog").send().await,
    ] {
        assert!(catalog.expect(200).is_array());
    }
    let detail = by_bearer(&service, "/v1/models/near?format=catalog").send().await.expect(200);
    assert_eq!(detail["slug"], "near");
}

#[tokio::test]
async fn model_unknown_to_openai_clients_is_404_in_their_form() {
    let service = Service::start().await;
    for (id, message) in [
        ("gpt-nowhere", "the model 'gpt-nowhere' does not exist"),
        ("text-summary", "supports predictions (POST /v1/prediction/run), not chat completions"),
        ("orrery/beta", "is the agent"),
    ] {
        let answer = by_bearer(&service, &format!("/v1/models/{id}")).send().await;
        let error = answer.expect(404);
        let error = &error["error"];
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
        assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
    }
}

#[tokio::test]
async fn model_of_an_upstream_without_a_list_is_503() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    up.answers(500, "down");
    let answer = by_bearer(&service, "/v1/models/far").send().await.expect(503);
    let expected = "the upstream may have the model 'far', but the upstream answered 500";
    assert_eq!(answer["error"]["message"], expected);
}

#[tokio::test]
async fn model_routes_reject_wrong_keys_and_forms() {
    let service = Service::start().await;
    for path in ["/v1/models", "/v1/models/text-summary"] {
        let ask = || service.ask(Role::Base, Method::GET, path);
        for asked in [ask().key("smk_wrong"), ask().header("authorization", "Bearer smk_wrong")] {
            asked.send().await.expect_text(401, r#"{"error":"Invalid or missing API key"}"#);
        }
        open(&service, &format!("{path}?format=openai")).await.expect(401);
        let wrong = open(&service, &format!("{path}?format=json")).await;
        wrong.expect_error(400, "format must be one of catalog, openai, anthropic");
    }
}

#[tokio::test]
async fn model_error_suggests_similar_name() {
    let service = Service::start().await;
    let hint = |answer: Answer| answer.expect(404)["details"]["hint"].clone();
    for slug in ["text-sumary", "Text-Summary", "TEXT-SUMMARY"] {
        let expected = json!("did you mean text-summary?");
        assert_eq!(hint(open(&service, &format!("/v1/models/{slug}")).await), expected);
        let body = json!({"model": slug, "version": "1", "input": {}});
        assert_eq!(hint(service.post("/v1/prediction", &body).send().await), expected);
    }
    // The field may have been sent under another name.
    let body = json!({"model": "text-summary", "version": "1", "inputs": {"text": "a"}});
    let error = service.post("/v1/prediction", &body).send().await.expect(400);
    assert_eq!(error["error"], "input field is required");
    assert_eq!(error["details"]["hint"], "unknown field inputs: did you mean input?");
}
