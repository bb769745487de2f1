//! Text completions and rerank: passed on, streamed, charged, and refused.

use serde_json::{Value, json};

use crate::chat::newest_row;
use crate::support::{Service, Upstream};

const PRICE: &str = "prices = [{ model = 'far', per_million_input_tokens = 100.0, \
                     per_million_output_tokens = 1000.0 }]\n";
const COST: &str = "[cost]\ntype = 'usage_based'\nper_million_input_tokens = 100.0\n\
                    per_million_output_tokens = 1000.0\n";

fn text_answer(text: &str) -> Value {
    json!({
        "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "x",
        "choices": [{"index": 0, "text": text, "logprobs": null, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    })
}

fn chunk(text: &str, reason: Value) -> Value {
    json!({
        "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "x",
        "choices": [{"index": 0, "text": text, "finish_reason": reason}],
    })
}

/// Returns the events in a stream's text, without `[DONE]`.
fn events(text: &str) -> Vec<Value> {
    let data = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// Returns a service with the models `texts` and `ranks` on one server, and an upstream.
async fn start() -> (Upstream, Upstream, Service) {
    let up = Upstream::start().await;
    let near = Upstream::start().await;
    let service = Service::configured(&up.config(&format!("keep_content = true\n{PRICE}"))).await;
    let priced = |slug: &str, kind: &str| {
        near.manifest(slug, kind, "").replace("[runner]", &format!("{COST}[runner]"))
    };
    service.manifest(&priced("texts", "completions"));
    service.manifest(&priced("ranks", "rerank"));
    (up, near, service)
}

#[tokio::test]
async fn completion_is_passed_on_with_its_cost() {
    let (up, near, service) = start().await;
    for (model, server, path) in
        [("far", &up, "/v1/completions"), ("texts", &near, "/openai/v1/completions")]
    {
        server.answers(200, text_answer("2, 3").to_string());
        let body = json!({
            "model": model, "prompt": "1, ", "suffix": ", 4", "echo": true, "logprobs": 2,
            "max_tokens": -1, "seed": 7,
        });
        let said = service.post(path, &body).send().await.expect(200);
        assert_eq!(said["choices"][0]["text"], "2, 3");
        assert_eq!(said["usage"]["cost"], 0.0043);
        let sent = server.newest();
        assert_eq!((&sent["seed"], &sent["suffix"]), (&json!(7), &json!(", 4")));
        assert_eq!((&sent["max_tokens"], &sent["echo"]), (&Value::Null, &json!(true)));
        assert_eq!(server.requests()[0].uri().path(), "/v1/completions");
    }
    let row = newest_row(&service, 2).await;
    assert_eq!(
        (&row["model"], &row["chat"]["operation"]),
        (&json!("texts"), &json!("completions"))
    );
    assert_eq!(row["output"], r#"{"role":"assistant","content":"2, 3"}"#);
}

#[tokio::test]
async fn completion_is_streamed_in_its_own_form() {
    let (up, _near, service) = start().await;
    let body = json!({
        "model": "far", "prompt": ["1, "], "stream": true, "stream_options": {"include_usage": true},
    });
    let feed = up.streams();
    feed.event(&chunk("2, ", Value::Null));
    feed.event(&chunk("3", json!("stop")));
    feed.raw("data: [DONE]\n\n");
    drop(feed);
    let streamed = service.post("/v1/completions", &body).send().await;
    let all = events(&streamed.text);
    assert_eq!((&all[0], &all[1]), (&chunk("2, ", Value::Null), &chunk("3", json!("stop"))));
    assert_eq!((&all[2]["object"], &all[2]["choices"]), (&json!("text_completion"), &json!([])));
    assert_eq!(all[2]["usage"]["estimated"], true);
    assert!(streamed.text.ends_with("data: [DONE]\n\n"), "{}", streamed.text);
    // A server that does not stream, and one that streams without being asked.
    up.answers(200, text_answer("2, 3").to_string());
    let converted = service.post("/v1/completions", &body).send().await;
    let all = events(&converted.text);
    assert_eq!(all[0]["choices"][0]["text"], "2, 3");
    assert_eq!(all[1]["usage"]["total_tokens"], 7);
    let text = format!(
        "data: {}\n\ndata: {}\n\ndata: [DONE]\n\n",
        chunk("2, ", Value::Null),
        chunk("3", json!("length"))
    );
    up.answers_with(200, ("content-type", "text/event-stream"), &text);
    let whole = json!({"model": "far", "prompt": "1, "});
    let said = service.post("/v1/completions", &whole).send().await.expect(200);
    assert_eq!(said["object"], "text_completion");
    let expected = json!({"index": 0, "text": "2, 3", "finish_reason": "length", "logprobs": null});
    assert_eq!(said["choices"][0], expected);
}

#[tokio::test]
async fn completion_of_disconnected_client_is_cancelled_and_charged() {
    let (up, _near, service) = start().await;
    let feed = up.streams();
    feed.event(&chunk("2, 3, 4, 5", Value::Null));
    let body = json!({"model": "far", "prompt": "1, ", "stream": true, "max_tokens": 8});
    let answer = service.post("/v1/completions", &body).open().await;
    let mut stream = answer.into_body();
    http_body_util::BodyExt::frame(&mut stream).await.unwrap().unwrap();
    drop(stream);
    up.hung_up(1).await;
    let row = newest_row(&service, 1).await;
    assert_eq!((&row["status"], &row["chat"]["output_tokens"]), (&json!("cancelled"), &json!(3)));
    drop(feed);
}

#[tokio::test]
async fn completion_limits_are_named() {
    let (up, near, service) = start().await;
    for (body, param) in [
        (json!({"model": "far"}), "prompt"),
        (json!({"model": "far", "prompt": []}), "prompt"),
        (json!({"model": "far", "prompt": vec!["a"; 129]}), "prompt"),
        (json!({"model": "far", "prompt": "a", "n": 129}), "n"),
        (json!({"model": "far", "prompt": ["a", "b"], "n": 65}), "n"),
        (json!({"model": "far", "prompt": vec!["a"; 65], "best_of": 2}), "n"),
        (json!({"model": "far", "prompt": "a", "max_tokens": 0}), "max_tokens"),
    ] {
        let answer = service.post("/v1/completions", &body).undocumented().send().await;
        let error = answer.expect(400);
        assert_eq!(error["error"]["param"], param, "{error}");
    }
    for (path, model, words) in [
        ("/v1/completions", "ranks", "supports rerank (POST /v1/rerank), not text completions"),
        ("/v1/rerank", "texts", "supports text completions (POST /v1/completions), not rerank"),
        ("/v1/completions", "orrery/beta", "is the agent"),
    ] {
        let body = json!({"model": model, "prompt": "a", "query": "a", "documents": ["b"]});
        let error = service.post(path, &body).send().await.expect(400);
        assert!(error["error"]["message"].as_str().unwrap().contains(words), "{error}");
    }
    assert_eq!((up.requests().len(), near.requests().len()), (0, 0));
}

#[tokio::test]
async fn rerank_sorts_documents_and_returns_them() {
    let (up, near, service) = start().await;
    let given = json!([{"index": 0, "relevance_score": 0.1}, {"index": 1, "relevance_score": 0.8}]);
    for (model, server, path) in [
        ("far", &up, "/v1/rerank"),
        ("ranks", &near, "/rerank"),
        ("ranks", &near, "/openai/v1/rerank"),
    ] {
        server.answers(200, json!({"results": given, "usage": {"total_tokens": 20}}).to_string());
        let body = json!({
            "model": model, "query": "q", "documents": ["one", {"text": "two"}], "top_n": 1,
            "return_documents": true,
        });
        let said = service.post(path, &body).send().await.expect(200);
        let expected = json!([{"index": 1, "relevance_score": 0.8, "document": {"text": "two"}}]);
        assert_eq!(said["results"], expected);
        assert_eq!(said["usage"], json!({"total_tokens": 20, "cost": 0.002}));
        let sent = server.newest();
        assert_eq!(sent["documents"], json!(["one", "two"]));
        assert_eq!((&sent["return_documents"], &sent["top_n"]), (&Value::Null, &json!(1)));
        assert_eq!(server.requests()[0].uri().path(), "/v1/rerank");
    }
    let row = newest_row(&service, 3).await;
    let call = &row["chat"];
    assert_eq!((&call["operation"], &call["input_tokens"]), (&json!("rerank"), &json!(20)));
    near.answers(200, r#"[{"index":7,"score":1}]"#);
    let body = json!({"model": "ranks", "query": "q", "documents": ["one"]});
    let error = service.post("/v1/rerank", &body).send().await.expect(502);
    assert!(error["error"]["message"].as_str().unwrap().contains("document 7"), "{error}");
    for (body, param) in [
        (json!({"model": "far", "query": "q", "documents": []}), "documents"),
        (json!({"model": "far", "query": "q", "documents": vec!["a"; 1001]}), "documents"),
        (json!({"model": "far", "query": "", "documents": ["a"]}), "query"),
        (json!({"model": "far", "query": "q", "documents": ["a"], "top_n": 0}), "top_n"),
    ] {
        let answer = service.post("/v1/rerank", &body).undocumented().send().await;
        assert_eq!(answer.expect(400)["error"]["param"], param);
    }
}

#[tokio::test]
async fn rerank_falls_back_along_its_chain() {
    let (up, near, service) = start().await;
    let second = Upstream::start().await;
    service.manifest(&second.manifest("second", "rerank", ""));
    crate::router::add_chain(&service, "ranks", "second").await;
    near.answers(500, "down");
    second.answers(200, r#"{"results":[{"index":0,"relevance_score":0.5}]}"#);
    let body = json!({"model": "ranks", "query": "q", "documents": ["one"]});
    let said = service.post("/v1/rerank", &body).send().await.expect(200);
    assert_eq!(said["results"][0]["relevance_score"], 0.5);
    assert_eq!(newest_row(&service, 1).await["model"], "second");
    assert_eq!(up.requests().len(), 0);
}

#[tokio::test]
async fn predictions_complete_texts_and_sort_documents() {
    let (_up, near, service) = start().await;
    let feed = near.streams();
    feed.event(&chunk("2, ", Value::Null));
    feed.event(&chunk("3", json!("stop")));
    feed.raw("data: [DONE]\n\n");
    drop(feed);
    let body = json!({"model": "texts", "version": "1", "input": {"prompt": "1, "}});
    let run = service.post("/v1/prediction/run", &body).send().await.expect(200);
    assert_eq!(run["output"], "2, 3", "{run}");
    assert_eq!(near.newest()["prompt"], "1, ");
    near.answers(200, r#"{"results":[{"index":1,"score":0.5,"document":"x"}]}"#);
    let input = json!({"query": "q", "documents": ["a", "b"]});
    let body = json!({"model": "ranks", "version": "1", "input": input});
    let run = service.post("/v1/prediction/run", &body).send().await.expect(200);
    assert_eq!(run["output"], json!([{"index": 1, "relevance_score": 0.5}]), "{run}");
}

#[tokio::test]
async fn models_of_new_kinds_are_listed_with_their_kind() {
    let (up, _near, service) = start().await;
    up.answers(200, r#"{"data":[]}"#);
    let list = service.get("/openai/v1/models").await.expect(200);
    let kinds: Vec<(&str, &str)> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["id"].as_str().unwrap(), one["kind"].as_str().unwrap()))
        .collect();
    assert_eq!(kinds, [("ranks", "rerank"), ("texts", "completions")]);
    let anthropic = service.get("/v1/models?format=anthropic").await.expect(200);
    assert_eq!(anthropic["data"], json!([]), "they cannot converse");
}

#[cfg(feature = "llama")]
mod local {
    use super::*;
    use crate::support::gguf;

    async fn start() -> Service {
        let service = Service::start().await;
        gguf::write(&service.models().join("small.gguf"), &gguf::SMALL, "Small", 7);
        service
            .manifest("slug = 'small'\n[runner]\ntype = 'llm'\nfile = 'small.gguf'\nthreads = 1\n");
        service
    }

    fn ask(prompt: Value, more: Value) -> Value {
        let mut body = json!({"model": "small", "prompt": prompt, "max_tokens": 6, "seed": 11});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    }

    async fn complete(service: &Service, body: &Value) -> Value {
        service.post("/v1/completions", body).send().await.expect(200)
    }

    #[tokio::test]
    async fn local_model_continues_texts_and_tokens() {
        let service = start().await;
        let one = complete(&service, &ask(json!("hello"), json!({}))).await;
        assert_eq!((&one["object"], &one["model"]), (&json!("text_completion"), &json!("small")));
        let text = one["choices"][0]["text"].as_str().unwrap();
        assert!(!text.is_empty() && one["choices"][0]["logprobs"].is_null(), "{one}");
        let prompt = one["usage"]["prompt_tokens"].as_u64().unwrap();
        // The characters, without a template around them.
        assert!((5..=7).contains(&prompt), "{one}");
        let body = ask(json!("hello"), json!({"stream": true, "echo": true}));
        let streamed = service.post("/v1/completions", &body).send().await;
        let texts = events(&streamed.text);
        assert!(texts.iter().all(|event| event["object"] == "text_completion"), "{texts:?}");
        let parts = texts.iter().filter_map(|event| event["choices"][0]["text"].as_str());
        assert_eq!(parts.collect::<String>(), format!("hello{text}"));
        let last = &texts.last().unwrap()["choices"][0]["finish_reason"];
        assert!(last == "length" || last == "stop", "{texts:?}");
        let many = ask(json!(["hello", "a"]), json!({"n": 2, "logprobs": 2}));
        let many = complete(&service, &many).await;
        let choices = many["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 4);
        for (index, choice) in choices.iter().enumerate() {
            let logprobs = &choice["logprobs"];
            let count = logprobs["tokens"].as_array().unwrap().len();
            assert_eq!(choice["index"], index);
            assert!(count > 0 && logprobs["text_offset"][0] == 0, "{choice}");
            assert_eq!(logprobs["token_logprobs"].as_array().unwrap().len(), count);
            assert!(!logprobs["top_logprobs"][0].as_object().unwrap().is_empty());
        }
        let both = many["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(both > prompt && both < 2 * prompt, "each prompt counts once: {many}");
        let tokens = complete(&service, &ask(json!([1, 5, 6]), json!({}))).await;
        assert_eq!(tokens["usage"]["prompt_tokens"], 3);
        let lists = complete(&service, &ask(json!([[1, 5], [1, 6]]), json!({"stop": "e"}))).await;
        assert_eq!(lists["choices"].as_array().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn local_model_refuses_what_it_cannot_complete() {
        let service = start().await;
        for (prompt, more, param) in [
            (json!("a"), json!({"suffix": "b"}), "suffix"),
            (json!([1]), json!({"suffix": "b"}), "suffix"),
            (json!([999_999]), json!({}), "prompt"),
            (json!("x".repeat(10_000)), json!({}), "prompt"),
            (json!("a"), json!({"best_of": 2}), "best_of"),
            (json!("a"), json!({"echo": true, "logprobs": 1}), "logprobs"),
        ] {
            let answer = service.post("/v1/completions", &ask(prompt, more)).send().await;
            assert_eq!(answer.expect(400)["error"]["param"], param);
        }
        let body = json!({"model": "small", "query": "q", "documents": ["a"]});
        let error = service.post("/v1/rerank", &body).send().await.expect(400);
        let message = error["error"]["message"].as_str().unwrap();
        let can = "supports chat completions (POST /v1/chat/completions) and text completions";
        assert!(message.contains(can), "{message}");
    }
}
