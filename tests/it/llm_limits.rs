//! Limits on the work for one request to a local model: chat templates made to exhaust memory or
//! time, clients that disconnect before the answer begins, and deadlines.

use std::time::Duration;

use orrery_runtime as runtime;
use serde_json::{Value, json};

use crate::support::gguf::Entry;
use crate::support::{Service, gguf};

const TEMPLATE: &str = "tokenizer.chat_template";
/// A template that takes minutes if triggered: each search of the list is one instruction.
const SEARCH: &str = "{% if hostile %}{% set v = range(100000) | list %}\
    {% for a in range(100000) %}{% if 'zz' in v %}{% endif %}{% endfor %}{% endif %}\
    {% for m in messages %}{{ m.content }}{% endfor %}";

async fn service(entries: &[(&'static str, Entry<'_>)], more: &str) -> Service {
    let service = Service::start().await;
    let file = service.models().join("small.gguf");
    gguf::write_with(&file, &gguf::SMALL, "Small", 7, entries);
    service.manifest(&format!(
        "slug = 'small'\n[runner]\ntype = 'llm'\nfile = 'small.gguf'\nthreads = 1\n{more}\n"
    ));
    service
}

fn ask() -> Value {
    let messages = [json!({"role": "user", "content": "x"})];
    json!({"model": "small", "max_tokens": 2, "seed": 3, "messages": messages})
}

/// Like [`ask`], but triggers the hostile part of the template.
fn hostile() -> Value {
    let mut body = ask();
    body["chat_template_kwargs"] = json!({"hostile": true});
    body
}

async fn served(service: &Service) {
    service.post("/v1/chat/completions", &ask()).send().await.expect(200);
}

/// Sends a request and disconnects after a while.
async fn leave(service: &Service, body: &Value, after: Duration) {
    let asked = service.post("/v1/chat/completions", body);
    let left = tokio::time::timeout(after, asked.send()).await;
    assert!(left.is_err(), "it was answered");
}

#[tokio::test]
async fn template_work_of_disconnected_clients_ends_and_others_are_served() {
    let service = service(&[(TEMPLATE, Entry::Text(SEARCH))], "").await;
    served(&service).await;
    // Two requests, the number that the model parses concurrently.
    let (slow, second) = (hostile(), Duration::from_secs(1));
    tokio::join!(leave(&service, &slow, second), leave(&service, &slow, second));
    let begun = runtime::monotonic_now();
    served(&service).await;
    // The template alone would take thirty seconds, its time limit.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // A request that was already being generated is not lost: its answer is generated again.
    let z = 259 + u32::from('z') - u32::from('!') + 1;
    let mut long = ask();
    long["max_tokens"] = 1500.into();
    long["logit_bias"] = json!({ z.to_string(): 100 });
    let written = service.post("/v1/chat/completions", &long).send();
    let (written, ()) = tokio::join!(written, leave(&service, &slow, second));
    let text = written.expect(200)["choices"][0]["message"]["content"].clone();
    assert_eq!(text, "z".repeat(1500));
    // The model has not failed.
    let model = service.running.services.catalog.get("small").unwrap();
    assert_eq!((model.health_word(), model.failing()), ("ok", None));
}

#[tokio::test]
async fn template_work_ends_at_deadline_and_others_are_repeated() {
    let template = [(TEMPLATE, Entry::Text(SEARCH))];
    let service = Service::start().await;
    gguf::write_with(&service.models().join("small.gguf"), &gguf::SMALL, "Small", 7, &template);
    service.manifest(
        "slug = 'small'\ntimeout = '5s'\n[runner]\ntype = 'llm'\nfile = 'small.gguf'\nthreads = 1\n",
    );
    served(&service).await;
    let mut stream = hostile();
    stream["stream"] = true.into();
    for body in [hostile(), stream] {
        let late = service.post("/v1/chat/completions", &body).send().await;
        let error = late.expect(504)["error"].clone();
        assert_eq!(error["message"], "the model 'small' did not answer in time");
        served(&service).await;
    }
}

#[tokio::test]
async fn hostile_template_of_file_is_rejected_and_others_are_served() {
    let shown = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let template_of = |what: &str| format!("{{% if hostile %}}{what}{{% endif %}}{shown}");
    let set = "{% set ns = namespace(x=";
    for (what, said) in [
        (
            format!(
                "{set}'xxxxxxxx') %}}{{% for i in range(60) %}}{{% set ns.x = ns.x ~ ns.x %}}{{% endfor %}}"
            ),
            "512 MiB",
        ),
        (
            format!(
                "{set}[1, 2]) %}}{{% for i in range(60) %}}{{% set ns.x = ns.x + ns.x %}}{{% endfor %}}"
            ),
            "512 MiB",
        ),
        (
            format!(
                "{set}'aaaaaaaa') %}}{{% for i in range(60) %}}{{% set ns.x = ns.x | replace('a', ns.x) %}}{{% endfor %}}"
            ),
            "512 MiB",
        ),
        (
            "{% for i in range(100000) %}{{ messages[0].content }}{{ 'x' * 1000 }}{% endfor %}"
                .to_owned(),
            "longer than",
        ),
    ] {
        let template = template_of(&what);
        let service = service(&[(TEMPLATE, Entry::Text(&template))], "").await;
        served(&service).await;
        let refused = service.post("/v1/chat/completions", &hostile()).send().await;
        assert!(refused.status >= 400, "{what}");
        let body = &refused.text;
        // If the machine is under load, the time limit may come first.
        assert!(body.contains(said) || body.contains("longer than"), "{what}: {body}");
        served(&service).await;
    }
}

#[tokio::test]
async fn embedding_errors_mention_texts_and_tokens() {
    let pooling = [("llama.pooling_type", Entry::Whole(1))];
    let service = service(&pooling, "context = 64").await;
    for (input, said) in [
        (
            json!([[15339]]),
            "input has the token 15339, which is not in this model's vocabulary of 3",
        ),
        (json!([5, 15339]), "input has the token 15339"),
        (json!("x".repeat(500)), "but this model's context has 64"),
    ] {
        let refused = service.post("/v1/embeddings", &json!({"model": "small", "input": input}));
        let error = refused.send().await.expect(400)["error"].clone();
        assert_eq!(error["param"], "input");
        assert!(error["message"].as_str().unwrap().contains(said), "{error}");
    }
    service
        .post("/v1/embeddings", &json!({"model": "small", "input": "x"}))
        .send()
        .await
        .expect(200);
}

#[tokio::test]
async fn prompt_of_disconnected_client_is_abandoned() {
    // The prompt takes seconds to evaluate.
    let shape =
        gguf::Shape { embedding: 512, layers: 6, heads: 8, feed_forward: 2048, ..gguf::SMALL };
    let service = Service::start().await;
    gguf::write(&service.models().join("small.gguf"), &shape, "Small", 7);
    let runner = "type = 'llm'\nfile = 'small.gguf'\nthreads = 1\nbatch = 2048\nparallel = 2";
    service.manifest(&format!("slug = 'small'\n[runner]\n{runner}\n"));
    served(&service).await;
    let long = |letter: &str| {
        let mut body = ask();
        body["messages"][0]["content"] = letter.repeat(1900).into();
        body
    };
    let begun = runtime::monotonic_now();
    service.post("/v1/chat/completions", &long("a")).send().await.expect(200);
    let whole = begun.elapsed();
    leave(&service, &long("b"), whole / 4).await;
    served(&service).await;
    let answer = service.post("/v1/chat/completions", &long("b")).send().await.expect(200);
    let usage = &answer["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached < usage["prompt_tokens"].as_u64().unwrap(), "{usage} after {whole:?}");
    assert!(cached < 1800, "{usage} after {whole:?}");
}
