//! Embeddings, and the list of callable models.

use serde_json::{Value, json};

use crate::support::{Service, Upstream};

#[tokio::test]
async fn embeddings_are_passed_on_with_their_cost() {
    let up = Upstream::start().await;
    let near = Upstream::start().await;
    let price = "prices = [{ model = 'far', per_million_input_tokens = 100.0, \
                 per_million_output_tokens = 0.0 }]\n";
    let service = Service::configured(&up.config(price)).await;
    service.manifest(&near.manifest("near", "embeddings", ""));
    let answer = r#"{"object":"list","data":[{"embedding":[0.12345678901234567890]}],"usage":{"prompt_tokens":50,"total_tokens":50}}"#;
    for (model, server, cost) in [("far", &up, "0.005"), ("near", &near, "0.0")] {
        server.answers(200, answer);
        let body = json!({"model": model, "input": ["a", "b"], "encoding_format": "float"});
        let said = service.post("/v1/embeddings", &body).send().await;
        let expected = answer.replace("50}}", &format!("50,\"cost\":{cost}}}}}"));
        said.expect_text(200, &expected);
        assert_eq!(server.newest()["encoding_format"], "float");
        assert_eq!(server.requests()[0].uri().path(), "/v1/embeddings");
    }
    let rows = service.get("/v2/executions?type=chat").await.expect(200);
    let call = &rows["executions"][1]["chat"];
    let found = (&call["operation"], &call["input_tokens"], &call["output_tokens"]);
    assert_eq!(found, (&json!("embeddings"), &json!(50), &json!(0)));
    let wrong = service.post("/v1/embeddings", &json!({"model": "far", "input": []}));
    let error = wrong.undocumented().send().await.expect(400);
    assert_eq!(error["error"]["param"], "input");
}

#[tokio::test]
async fn cached_and_reasoning_tokens_have_their_own_prices() {
    let up = Upstream::start().await;
    let price = "prices = [{ model = 'far', per_million_input_tokens = 100.0, \
                 per_million_output_tokens = 1000.0, per_million_cached_input_tokens = 10.0, \
                 per_million_reasoning_tokens = 2000.0 }]\n";
    let service = Service::configured(&up.config(price)).await;
    let usage = json!({"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 4}});
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": "Hi"},
        "finish_reason": "stop"});
    let answer = json!({"object": "chat.completion", "choices": [choice], "usage": usage});
    up.answers(200, answer.to_string());
    let asked = json!({"model": "far", "messages": [{"role": "user", "content": "Hello"}]});
    let said = service.post("/v1/chat/completions", &asked).send().await.expect(200);
    // 40 * 100 + 60 * 10 + 6 * 1000 + 4 * 2000 dollars for a million.
    assert_eq!(said["usage"]["cost"], 0.0186);
    let rows = service.get("/v2/executions?type=chat").await.expect(200);
    let call = &rows["executions"][0]["chat"];
    let counted = json!([call["cached_input_tokens"], call["reasoning_tokens"]]);
    assert_eq!(counted, json!([60, 4]));
    up.answers(200, r#"{"data":[{"id":"far"}]}"#);
    let list = service.get("/v1/llm-router/model-catalog").await.expect(200);
    let far = list["data"].as_array().unwrap().iter().find(|model| model["id"] == "far");
    assert_eq!(far.unwrap()["pricing"]["per_million_cached_input_tokens"], 10.0);
}

#[tokio::test]
async fn router_catalog_lists_local_and_upstream_models() {
    let up = Upstream::start().await;
    let near = Upstream::start().await;
    let price = "platform_fee = 1.0\nprices = [{ model = 'far', per_million_input_tokens = 1.0, \
                 per_million_output_tokens = 2.0 }]\n";
    let service = Service::configured(&up.config(price)).await;
    service.manifest(&near.manifest("near", "chat", ""));
    service.manifest(&near.manifest("vectors", "embeddings", ""));
    service.manifest(&near.manifest("pictures", "images", ""));
    let far = json!({"id": "far", "created": 7, "owned_by": "them"});
    up.answers(200, json!({"data": [far, {"id": "near"}]}).to_string());
    let list = service.get("/v1/llm-router/model-catalog").await.expect(200);
    let models: Vec<(&str, &str, &Value)> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| {
            (model["id"].as_str().unwrap(), model["source"].as_str().unwrap(), &model["kind"])
        })
        .collect();
    let expected = [
        ("near", "local", &json!("chat")),
        ("pictures", "local", &json!("images")),
        ("vectors", "local", &json!("embeddings")),
        ("far", "upstream", &Value::Null),
    ];
    assert_eq!(models, expected);
    let pricing = json!({
        "per_answer": null, "per_second": null, "per_million_input_tokens": 2.0,
        "per_million_output_tokens": 4.0,
    });
    assert_eq!(list["data"][3]["pricing"], pricing, "with the fee");
    assert_eq!((&list["upstream"]["stale"], up.requests().len()), (&json!(false), 1));
    let again = service.get("/v1/llm-router/model-catalog").await.expect(200);
    assert_eq!((again, up.requests().len()), (list, 1), "the list is kept");
}

#[tokio::test]
async fn router_catalog_is_cached_while_upstream_is_down() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("catalog_ttl = '1s'\n")).await;
    up.answers(200, r#"{"data":[{"id":"far"}]}"#);
    let list = service.get("/v1/llm-router/model-catalog").await.expect(200);
    assert_eq!(list["upstream"]["stale"], false);
    for _ in 0..100 {
        up.answers(500, "down");
    }
    let stale = crate::support::until("stale list", async || {
        let list = service.get("/v1/llm-router/model-catalog").await.expect(200);
        (list["upstream"]["stale"] == true).then_some(list)
    })
    .await;
    assert_eq!(stale["data"], list["data"]);
    assert_eq!(stale["upstream"]["error"], "the upstream answered 500");
    assert_eq!(stale["upstream"]["fetched_at"], list["upstream"]["fetched_at"]);
}

#[tokio::test]
async fn router_catalog_without_upstream_is_local() {
    let service = Service::start().await;
    let list = service.get("/v1/llm-router/model-catalog").await;
    list.expect_text(200, r#"{"object":"list","data":[],"upstream":null}"#);
}

/// Returns the events in a stream's text, without `[DONE]`.
fn events(text: &str) -> Vec<Value> {
    let data = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn chat(model: &str, is_stream: bool) -> Value {
    json!({"model": model, "stream": is_stream, "messages": [{"role": "user", "content": "hi"}]})
}

#[tokio::test]
async fn router_never_sends_a_local_slug_to_the_upstream() {
    let up = Upstream::start().await;
    let near = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    service.manifest(&near.manifest("talks", "chat", ""));
    service.manifest(&near.manifest("vectors", "embeddings", ""));
    let embeddings = |model: &str| json!({"model": model, "input": "secret"});
    let decision = json!({"model": "vectors", "state": "x", "questions": {"q":
        {"type": "noul", "instructions": "is it?"}}});
    for (path, body, word) in [
        ("/v1/embeddings", embeddings("talks"), "chat completions"),
        ("/v1/embeddings", embeddings("text-sentiment"), "predictions"),
        ("/v1/chat/completions", chat("vectors", false), "embeddings"),
        ("/v1/chat/completions", chat("text-sentiment", true), "predictions"),
        ("/v1/decisions", decision, "embeddings"),
    ] {
        let answer = service.post(path, &body).send().await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        assert!(answer.text.contains(word), "{path}: {}", answer.text);
    }
    assert_eq!((up.requests().len(), near.requests().len()), (0, 0));
}

#[tokio::test]
async fn router_without_upstream_names_the_local_models() {
    let near = Upstream::start().await;
    let service = Service::start().await;
    let names = async |expect: &str, path: &str, body: Value| {
        let answer = service.post(path, &body).send().await.expect(404);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("no upstream is configured"), "{message}");
        let named = message.rsplit_once("local models that can answer: ").map(|(_, named)| named);
        assert_eq!(named, Some(expect), "{path}: {message}");
    };
    let chats = async |expect: &str| {
        names(expect, "/v1/chat/completions", chat("gpt-4o", false)).await;
    };
    let embeds = async |expect: &str| {
        let body = json!({"model": "text-embedding-3-small", "input": "a"});
        names(expect, "/v1/embeddings", body).await;
    };
    chats("none").await;
    service.manifest_file("broken.gguf", "GGUF and no more");
    service.manifest(&near.manifest("vectors", "embeddings", ""));
    chats("none").await;
    embeds("vectors").await;
    // The port was just released, so nothing listens on it.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mute = near.manifest("mute", "chat", "").replace(&near.url(), &format!("http://{gone}/v1"));
    service.manifest(&mute);
    chats("mute").await;
    // Failures take the model's only server out of rotation.
    let model = service.running.services.catalog.get("mute").unwrap();
    for _ in 0..10 {
        service.post("/v1/chat/completions", &chat("mute", false)).send().await;
    }
    assert!(model.failing().is_some(), "the server stays in rotation");
    chats("none").await;
    service.manifest(&near.manifest("talks", "chat", ""));
    chats("talks").await;
    embeds("vectors").await;
}

#[tokio::test]
async fn router_converts_whole_answer_to_stream_events() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let whole = json!({"id": "x", "usage": {"prompt_tokens": 3, "completion_tokens": 4},
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "four"}}]});
    for (kind, text) in [
        ("application/json", whole.to_string()),
        ("text/event-stream", format!(" {whole}\n")),
        ("text/plain", format!("\u{feff}{whole}")),
        (
            "Text/Event-Stream; charset=utf-8",
            "data: {\"choices\":[{\"delta\":{\"content\":\"four\"}}]}\n\n\
             data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
                .to_owned(),
        ),
        (
            "text/event-stream",
            "data: {\"choices\":[{\"message\":{\"content\":\"four\"}}]}\n\n\
             data: {\"choices\":[{\"message\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
                .to_owned(),
        ),
        (
            "application/octet-stream",
            ": hi\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"four\"},\
             \"finish_reason\":\"stop\"}]}\n\n"
                .to_owned(),
        ),
        ("text/event-stream", format!("data: {whole}\n\ndata: [DONE]\n\n")),
    ] {
        up.answers_with(200, ("content-type", kind), &text);
        let answer = service.post("/v1/chat/completions", &chat("far", true)).send().await;
        assert_eq!(answer.header("content-type"), "text/event-stream", "{kind}: {}", answer.text);
        let events = events(&answer.text);
        assert_eq!(events[0]["choices"][0]["delta"]["content"], "four", "{kind}");
        assert!(answer.text.ends_with("data: [DONE]\n\n"), "{kind}: {}", answer.text);
        if text != format!("data: {whole}\n\ndata: [DONE]\n\n") {
            assert!(!answer.text.contains("usage"), "nobody asked for it: {}", answer.text);
        }
    }
    // The opposite case: a stream in response to a call that did not request one.
    let stream = "data: {\"id\":\"x\",\"choices\":[{\"delta\":{\"content\":\"fo\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"ur\"},\"finish_reason\":\"length\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4,\"total_tokens\":7}}\n\ndata: [DONE]\n\n";
    for kind in ["text/event-stream", "Text/Event-Stream; charset=utf-8", "text/plain"] {
        up.answers_with(200, ("content-type", kind), stream);
        let answer =
            service.post("/v1/chat/completions", &chat("far", false)).send().await.expect(200);
        let choice = &answer["choices"][0];
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!("four"), &json!("length"))
        );
        assert_eq!(
            (&answer["object"], &answer["usage"]["prompt_tokens"]),
            (&json!("chat.completion"), &json!(3))
        );
    }
}

#[tokio::test]
async fn router_repairs_answers_that_are_almost_json() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    service.manifest(&up.manifest("near", "chat", ""));
    let choice = |text: &str| {
        format!(
            "{{\"choices\":[{{\"{text}\":{{\"content\":\"a\\ud83d\"}},\"finish_reason\":\"stop\",\
                 \"logprobs\":{{\"content\":[{{\"token\":\"a\",\"logprob\":NaN}}]}}}}]}}"
        )
    };
    let stream = format!("data: {}\n\n", choice("delta")).repeat(2) + "data: [DONE]\n\n";
    up.answers_with(200, ("content-type", "text/event-stream"), &stream);
    let answer = service.post("/v1/chat/completions", &chat("far", true)).send().await;
    let events = events(&answer.text);
    assert_eq!(events.len(), 2, "{}", answer.text);
    for event in events {
        assert_eq!(event["choices"][0]["delta"]["content"], "a\u{fffd}");
        assert_eq!(event["choices"][0]["logprobs"]["content"][0]["logprob"], -9999.0);
    }
    up.answers(200, choice("message"));
    let whole = service.post("/v1/chat/completions", &chat("far", false)).send().await.expect(200);
    assert_eq!(whole["choices"][0]["logprobs"]["content"][0]["logprob"], -9999.0);
    let body = json!({"model": "near", "version": "1", "input": {"prompt": "hi"}});
    for text in [stream, choice("message")] {
        up.answers(200, text);
        let run = service.post("/v1/prediction/run", &body).send().await.expect(200);
        assert!(run["output"].as_str().unwrap().starts_with("a\u{fffd}"), "{run}");
    }
}

#[tokio::test]
async fn prediction_that_only_thought_fails_and_costs_nothing() {
    let near = Upstream::start().await;
    let service = Service::start().await;
    service.manifest(&near.manifest("talks", "chat", "[cost]\ntype = 'fixed'\namount = 1.0\n"));
    let body = json!({"model": "talks", "version": "1", "input": {"prompt": "hi"}});
    for (delta, reason, status) in [
        ("{\"reasoning_content\":\"hm\"}", "length", "failed"),
        ("{\"reasoning\":\"hm\",\"content\":\"\"}", "length", "failed"),
        ("{\"reasoning_content\":\"hm\"}", "stop", "success"),
        ("{\"reasoning_content\":\"hm\",\"content\":\"a\"}", "length", "success"),
    ] {
        let text = format!(
            "data: {{\"choices\":[{{\"delta\":{delta},\"finish_reason\":\"{reason}\"}}]}}\n\ndata: [DONE]\n\n"
        );
        near.answers_with(200, ("content-type", "text/event-stream"), &text);
        let run = service.post("/v1/prediction/run", &body).send().await.expect(200);
        assert_eq!(run["status"], status, "{delta} {reason}: {run}");
        assert_eq!(
            run["error"].as_str().unwrap().contains("raise max_tokens"),
            status == "failed",
            "{run}"
        );
    }
    assert_eq!(service.ledger().await.len(), 2, "a failure costs nothing");
}

#[tokio::test]
async fn router_passes_on_events_of_any_kind_up_to_their_limit() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let image = "x".repeat(2 * 1024 * 1024);
    let event =
        json!({"choices": [{"delta": {"images": [{"url": image}]}, "finish_reason": "stop"}]});
    up.answers_with(
        200,
        ("content-type", "text/event-stream"),
        &format!("data: {event}\n\ndata: [DONE]\n\n"),
    );
    let answer = service.post("/v1/chat/completions", &chat("far", true)).send().await;
    assert_eq!(events(&answer.text), [event]);
    assert!(answer.text.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn router_ends_stream_with_the_failure_in_any_dialect() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let begun = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n";
    for failure in [
        "event: error\ndata: {\"code\":\"x\"}",
        "data: {\"code\":500,\"msg\":\"boom\"}",
        "data: {\"error_code\":336,\"error_msg\":\"boom\"}",
        "data: {\"choices\":null,\"base_resp\":{\"status_code\":1004,\"status_msg\":\"boom\"}}",
        "data: [{\"error\":{\"code\":400,\"message\":\"boom\"}}]",
        "data: {\"fault\":{\"faultstring\":\"boom\"}}",
        "data: \"boom\"",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"error\"}]}",
    ] {
        let text = format!("{begun}{failure}\n\ndata: [DONE]\n\n");
        up.answers_with(200, ("content-type", "text/event-stream"), &text);
        let answer = service.post("/v1/chat/completions", &chat("far", true)).send().await;
        let events = events(&answer.text);
        assert_eq!(events[0]["choices"][0]["delta"]["content"], "hi");
        assert!(events[1]["error"]["message"].is_string(), "{failure}: {}", answer.text);
        let rows = service.get("/v2/executions?type=chat&limit=1").await.expect(200);
        assert_eq!(rows["executions"][0]["status"], "error", "{failure}");
    }
}

/// Starts a service with the models `first`, which has a price, and `second`, its fallback.
async fn chained(first: &Upstream, second: &Upstream) -> Service {
    let service = Service::start().await;
    service.manifest(&first.manifest("first", "chat", "[cost]\ntype = 'fixed'\namount = 1.0\n"));
    service.manifest(&second.manifest("second", "chat", ""));
    add_chain(&service, "first", "second").await;
    service
}

/// Creates a fallback chain with one entry.
pub(crate) async fn add_chain(service: &Service, model: &str, second: &str) {
    let entries = serde_json::from_value(json!([{"model": second}])).unwrap();
    let models = service.running.services.catalog.clone();
    let schema = |slug: &str| {
        models.get(slug).map(|model| model.schema.text().clone()).ok_or_else(String::new)
    };
    let chains = &service.running.services.chains;
    chains.create(service.organization.id, model, "a", entries, &schema).await.unwrap();
}

#[tokio::test]
async fn router_falls_back_along_chain_after_unusable_answer() {
    let first = Upstream::start().await;
    let second = Upstream::start().await;
    let service = chained(&first, &second).await;
    let sse = ("content-type", "text/event-stream");
    for (is_stream, header, text) in [
        (false, ("x-kind", "html"), "<html>"),
        (false, ("x-kind", "empty"), ""),
        (false, ("x-kind", "error"), "{\"error\":{\"message\":\"no\"}}"),
        (false, ("x-kind", "vllm"), "{\"object\":\"error\",\"message\":\"no\"}"),
        (false, ("x-kind", "choices"), "{\"choices\":[]}"),
        (false, ("content-encoding", "gzip"), "{\"choices\":[{\"message\":{}}]}"),
        (false, ("content-encoding", "br"), "{\"choices\":[{\"message\":{}}]}"),
        (true, ("content-encoding", "zstd"), "data: {\"choices\":[{\"delta\":{}}]}\n\n"),
        (false, sse, "data: {\"choices\":[]}\n\n"),
        (false, sse, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"),
        (
            false,
            ("x-kind", "choice"),
            "{\"choices\":[{\"message\":{},\"finish_reason\":\"error\"}]}",
        ),
        (
            true,
            sse,
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n\
                     data: {\"error\":{\"message\":\"no\"}}\n\n",
        ),
        (
            true,
            sse,
            "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\nevent: error\ndata: {}\n\n",
        ),
        (
            true,
            sse,
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        ),
        (true, sse, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n"),
        (true, sse, ": k\n\n"),
        (true, sse, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"error\"}]}\n\n"),
        (true, sse, "data: {\"object\":\"error\",\"message\":\"no\"}\n\ndata: [DONE]\n\n"),
        (true, sse, "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"no\"}}\n\n"),
        (true, sse, "data: {\"detail\":\"no\"}\n\n"),
        (true, sse, ": hi\n\ndata: [DONE]\n\n"),
        (true, sse, "data: <html>\n\n"),
        (true, sse, "{\"error\":\"no\"}"),
        (true, sse, "<html>"),
    ] {
        first.answers_with(200, header, text);
        second.says("hi", 1, 1);
        let answer = service.post("/v1/chat/completions", &chat("first", is_stream)).send().await;
        assert_eq!(answer.status, 200, "{text}: {}", answer.text);
        assert!(answer.text.contains("\"hi\""), "{text}: {}", answer.text);
    }
    assert!(service.ledger().await.is_empty(), "nothing was charged");
}

#[tokio::test]
async fn router_falls_back_after_errors_that_concern_only_one_model() {
    let first = Upstream::start().await;
    let second = Upstream::start().await;
    let service = chained(&first, &second).await;
    for (status, message) in [
        (404, "no such model"),
        (400, "the request exceeds the available context size"),
        (400, "m does not support tools"),
    ] {
        first.answers(status, format!("{{\"error\":{{\"message\":\"{message}\"}}}}"));
        second.says("hi", 1, 1);
        service.post("/v1/chat/completions", &chat("first", false)).send().await.expect(200);
    }
    assert!(service.ledger().await.is_empty(), "nothing was charged");
}

#[tokio::test]
async fn router_omits_stream_options_if_server_rejects_them() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let refusals = [
        json!({"error": {"message": "Extra inputs are not permitted"}}),
        json!({"error": "Bad Request", "detail": "Unknown field stream_options"}),
        json!({"object": "error", "message": {"detail": [{
            "type": "extra_forbidden", "loc": ["body", "stream_options"]}]}}),
    ];
    for refusal in &refusals {
        let other = Upstream::start().await;
        let service = Service::configured(&other.config("")).await;
        other.answers(400, refusal.to_string());
        other.says("hi", 1, 1);
        let answer = service.post("/v1/chat/completions", &chat("far", true)).send().await;
        assert_eq!((answer.status, other.requests().len()), (200, 2), "{refusal}: {}", answer.text);
    }
    up.answers(422, refusals[2].to_string());
    up.says("hi", 1, 1);
    for count in [2, 3] {
        let answer = service.post("/v1/chat/completions", &chat("far", true)).send().await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(up.requests().len(), count);
        assert_eq!(up.newest().get("stream_options"), None);
        up.says("hi", 1, 1);
    }
    let mut asks = chat("far", true);
    asks["stream_options"] = json!({"include_usage": true});
    let answer = service.post("/v1/chat/completions", &asks).send().await;
    assert_eq!(events(&answer.text).last().unwrap()["usage"]["prompt_tokens"], 1);
}

#[tokio::test]
async fn prediction_of_openai_model_has_tool_calls_and_omits_stream_options() {
    let near = Upstream::start().await;
    let service = Service::start().await;
    service.manifest(&near.manifest("talks", "chat", "[cost]\ntype = 'fixed'\namount = 1.0\n"));
    let body = json!({"model": "talks", "version": "1", "input": {"prompt": "hi"}});
    let run = async || service.post("/v1/prediction/run", &body).send().await.expect(200);
    let call = json!({"id": "c", "type": "function",
        "function": {"name": "f", "arguments": "{}"}});
    let mut part = call.clone();
    part["index"] = json!(0);
    let chunk = json!({"choices": [{"delta": {"tool_calls": [part]},
        "finish_reason": "tool_calls"}]});
    near.answers(400, "{\"error\":{\"message\":\"Unknown parameter: stream_options\"}}");
    for count in [2, 3] {
        let sse = ("content-type", "text/plain");
        near.answers_with(200, sse, &format!("data: {chunk}\n\ndata: [DONE]\n\n"));
        let answer = run().await;
        let expected = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        assert_eq!((&answer["status"], &answer["output"]), (&json!("success"), &expected));
        assert_eq!(near.requests().len(), count, "the refusal is remembered");
        assert_eq!(near.newest().get("stream_options"), None);
    }
    // The router uses the same servers.
    near.says("hi", 1, 1);
    service.post("/v1/chat/completions", &chat("talks", true)).send().await;
    assert_eq!(near.newest().get("stream_options"), None);
    let charged = service.ledger().await.len();
    for text in ["", "<html>", "data: [DONE]\n\n", "{\"choices\":[]}", "{\"detail\":\"no\"}"] {
        near.answers(200, text);
        assert_eq!(run().await["status"], "failed", "{text}");
    }
    assert_eq!(service.ledger().await.len(), charged, "a failure costs nothing");
}

#[tokio::test]
async fn router_answers_503_if_model_file_cannot_be_loaded() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let file = |name: &str, text: &str| service.manifest_file(name, text);
    file("a.toml", "slug = 'private'\noutput_type = 'string'\nsurprise = 'hunter2'\n");
    file("b.toml", "slug = \"broken\"\nfile = 'weights.gguf'\n[runner\nkey = \"hunter2\"");
    file("nameless.toml", "= ]");
    file("weights.gguf", "nothing");
    let report = service.running.services.catalog.reload();
    assert!(!report.errors.is_empty());
    let decision = |model: &str| {
        json!({"model": model, "state": "x", "questions": {"q":
        {"type": "noul", "instructions": "is it?"}}})
    };
    for model in ["private", "broken", "nameless", "weights"] {
        let embeddings = json!({"model": model, "input": "secret"});
        for (path, body) in [
            ("/v1/chat/completions", chat(model, false)),
            ("/v1/chat/completions", chat(model, true)),
            ("/v1/embeddings", embeddings),
            ("/v1/decisions", decision(model)),
        ] {
            let error = service.post(path, &body).send().await.expect(503);
            let message = error["error"]["message"].as_str().unwrap();
            assert!(message.contains("cannot be loaded"), "{path}: {message}");
            assert!(!message.contains("hunter2"), "{path}: {message}");
            assert_eq!(error["error"]["type"], "upstream_error");
        }
    }
    assert!(up.requests().is_empty());
    up.answers(200, json!({"data": [{"id": "private"}, {"id": "far"}]}).to_string());
    let list = service.get("/v1/llm-router/model-catalog").await.expect(200);
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, ["far"]);
    up.says("hi", 1, 1);
    service.post("/v1/chat/completions", &chat("far", false)).send().await.expect(200);
}

#[tokio::test]
async fn router_error_suggests_similar_model() {
    let near = Upstream::start().await;
    let service = Service::start().await;
    service.manifest(&near.manifest("llama", "chat", ""));
    service.manifest(&near.manifest("vectors", "embeddings", ""));
    let messages = json!([{"role": "user", "content": "hi"}]);
    for (path, id, meant) in [
        ("/v1/chat/completions", "lama", Some("llama")),
        ("/v1/chat/completions", "Llama", Some("llama")),
        ("/v1/chat/completions", "orrery/betta", Some("orrery/beta")),
        ("/v1/chat/completions", "vector", None),
        ("/v1/embeddings", "vector", Some("vectors")),
        ("/v1/embeddings", "gpt-4o", None),
    ] {
        let body = json!({"model": id, "messages": messages, "input": "a"});
        let error = service.post(path, &body).send().await.expect(404);
        let said = error["error"]["message"].as_str().unwrap();
        let hint = meant.map(|meant| format!("does not exist (did you mean '{meant}'?): "));
        let expected = hint.unwrap_or_else(|| "does not exist: ".to_owned());
        assert!(said.contains(&expected), "{said}");
    }
}
