//! Tests of the result cache: the predictions, steps and calls that reuse a result, the cost of a
//! hit, and the cases in which a result must not be reused.

use hyper::Method;
use orrery_api::Role;
use orrery_domain::chain::Entry;
use orrery_domain::key_policy::KeyPolicy;
use serde_json::{Value, json};

use crate::chat::{Reading, newest_row, request};
use crate::support::{Answer, Ask, Provider, Service, Upstream, until};

const CACHE: &str = "[cache]\nttl = '1h'\n";
const PRICED: &str = "[cost]\ntype = 'fixed'\namount = 0.5\n[cache]\nttl = '1h'\n";

fn run(service: &Service, key: &str, input: &Value) -> Ask {
    let body = json!({"model": "m", "version": "1", "input": input});
    service.ask(Role::Base, Method::POST, "/v1/prediction/run").key(key).json(&body)
}

/// Runs the model `m` and checks where its output comes from.
#[track_caller]
fn expect(answer: &Answer, outcome: &str) -> Value {
    let body = answer.expect(200);
    assert_eq!(answer.header("x-orrery-cache"), outcome, "{body}");
    body
}

async fn record(service: &Service, ended: &Value) -> Value {
    service.ended(ended["predictionID"].as_str().unwrap()).await
}

#[tokio::test]
async fn cache_hit_costs_nothing_and_calls_no_model() {
    let (service, provider) = (Service::start().await, Provider::start().await);
    service.manifest(&provider.manifest("m", "/echo", PRICED));
    let (one, same) =
        (json!({"a": 1, "b": {"c": 2, "d": 3}}), json!({"b": {"d": 3, "c": 2}, "a": 1}));
    let missed = expect(&run(&service, &service.key, &one).send().await, "miss");
    let hit = expect(&run(&service, &service.key, &same).send().await, "hit");
    assert_eq!((&hit["output"], &hit["status"]), (&missed["output"], &json!("success")));
    assert_eq!(provider.requests().len(), 1);
    let (missed, hit) = (record(&service, &missed).await, record(&service, &hit).await);
    assert_eq!(
        (&missed["metrics"]["cost"], &missed["metrics"]["cached"]),
        (&json!(0.5), &Value::Null)
    );
    assert_eq!((&hit["metrics"]["cost"], &hit["metrics"]["cached"]), (&json!(0.0), &json!(true)));
    assert_eq!(service.ledger().await.len(), 1);
    expect(&run(&service, &service.key, &json!({"a": 2})).send().await, "miss");
    let metrics = service.ask(Role::Metrics, Method::GET, "/metrics").send().await;
    let counted = "orrery_cache_lookups_total{kind=\"prediction\",outcome=\"hit\"} 1";
    assert!(metrics.text.contains(counted), "{}", metrics.text);
}

#[tokio::test]
async fn cache_survives_restart() {
    let (service, provider) = (Service::start().await, Provider::start().await);
    service.manifest(&provider.manifest("m", "/echo", CACHE));
    expect(&run(&service, &service.key, &json!({})).send().await, "miss");
    let service = service.restart().await;
    expect(&run(&service, &service.key, &json!({})).send().await, "hit");
}

#[tokio::test]
async fn cache_is_not_used_without_table() {
    let (service, provider) = (Service::start().await, Provider::start().await);
    service.manifest(&provider.manifest("m", "/echo", ""));
    for _ in 0..2 {
        expect(&run(&service, &service.key, &json!({})).send().await, "");
    }
    assert_eq!(provider.requests().len(), 2);
}

#[tokio::test]
async fn cache_no_cache_runs_the_model_and_stores_the_result() {
    let (service, provider) = (Service::start().await, Provider::start().await);
    service.manifest(&provider.manifest("m", "/echo", CACHE));
    let input = json!({"a": 1});
    for value in ["no-cache", "max-age=0, No-Cache"] {
        let fresh = run(&service, &service.key, &input).header("cache-control", value);
        expect(&fresh.send().await, "miss");
    }
    assert_eq!(provider.requests().len(), 2);
    expect(&run(&service, &service.key, &input).send().await, "hit");
}

#[tokio::test]
async fn cache_of_organization_is_shared_by_its_keys_only() {
    let (service, provider) = (Service::start().await, Provider::start().await);
    service.manifest(&provider.manifest("m", "/echo", CACHE));
    let accounts = &service.running.services.accounts;
    let created = accounts.create_key(service.organization.id, "second", "test", None).await;
    let second = created.unwrap().1;
    let input = json!({"secret": "x"});
    expect(&run(&service, &service.key, &input).send().await, "miss");
    expect(&run(&service, &second, &input).send().await, "hit");
    expect(&run(&service, &service.other_key, &input).send().await, "miss");
    assert_eq!(provider.requests().len(), 2);
}

#[tokio::test]
async fn cache_of_key_is_its_own() {
    let (service, provider) = (Service::start().await, Provider::start().await);
    let own = format!("{CACHE}scope = 'key'\n");
    service.manifest(&provider.manifest("m", "/echo", &own));
    let accounts = &service.running.services.accounts;
    let created = accounts.create_key(service.organization.id, "second", "test", None).await;
    let second = created.unwrap().1;
    for (key, outcome) in
        [(&service.key, "miss"), (&second, "miss"), (&service.key, "hit"), (&second, "hit")]
    {
        expect(&run(&service, key, &json!({})).send().await, outcome);
    }
    assert_eq!(provider.requests().len(), 2);
}

#[tokio::test]
async fn cache_of_edited_manifest_is_empty() {
    let (service, provider) = (Service::start().await, Provider::start().await);
    let manifest = provider.manifest("m", "/echo", CACHE);
    service.manifest(&manifest);
    expect(&run(&service, &service.key, &json!({})).send().await, "miss");
    service.manifest(&format!("{manifest}# a comment\n"));
    expect(&run(&service, &service.key, &json!({})).send().await, "hit");
    service.manifest(&format!("{manifest}headers = {{ X-Version = '2' }}\n"));
    expect(&run(&service, &service.key, &json!({})).send().await, "miss");
    service.manifest(&manifest);
    expect(&run(&service, &service.key, &json!({})).send().await, "hit");
}

#[tokio::test]
async fn cache_result_is_gone_after_its_ttl() {
    let (service, provider) = (Service::start().await, Provider::start().await);
    service.manifest(&provider.manifest("m", "/echo", "[cache]\nttl = '1s'\n"));
    expect(&run(&service, &service.key, &json!({})).send().await, "miss");
    until("expiry", async || {
        let answer = run(&service, &service.key, &json!({})).send().await;
        (answer.header("x-orrery-cache") == "miss").then_some(())
    })
    .await;
    assert_eq!(provider.requests().len(), 2);
}

#[tokio::test]
async fn cache_never_has_failed_runs() {
    let (service, provider) = (Service::start().await, Provider::start().await);
    service.manifest(&provider.manifest("m", "/do", PRICED));
    for _ in 0..2 {
        let ended =
            expect(&run(&service, &service.key, &json!({"do": "fail"})).send().await, "miss");
        assert_eq!(ended["status"], "failed");
    }
    assert_eq!(provider.requests().len(), 2);
}

#[tokio::test]
async fn cache_of_files_is_refused() {
    let (service, provider) = (Service::start().await, Provider::start().await);
    let manifest = provider.manifest("m", "/echo", CACHE).replace("'object'", "'image'");
    service.manifest_file("m.toml", &manifest);
    let report = service.running.services.catalog.reload();
    let errors: Vec<String> = report.errors.iter().map(ToString::to_string).collect();
    assert!(
        errors[0].ends_with(
            "m.toml:3:1: `cache`: outputs that are files are not cached, because files expire"
        ),
        "{errors:?}"
    );
}

#[tokio::test]
async fn cache_serves_steps_of_workflows() {
    let (service, provider) = (Service::start().await, Provider::start().await);
    service.manifest(&provider.manifest("m", "/echo", PRICED));
    let steps = json!([{"step_id": "a", "type": "model", "model": "m", "params": {"x": 1}}]);
    let workflow = service.workflow(steps).await;
    for (cost, cached) in [(0.5, Value::Null), (0.0, json!(true))] {
        let id = service.trigger(&workflow, json!({})).await;
        let execution = service.completed(&id).await;
        assert_eq!(execution["metrics"]["cost"], cost, "{execution}");
        let step = &execution["step_outputs"]["a"];
        assert_eq!(step["output"], json!({"x": 1}));
        let prediction = service.ended(step["metadata"]["prediction_id"].as_str().unwrap()).await;
        assert_eq!(prediction["metrics"]["cached"], cached);
    }
    expect(&run(&service, &service.key, &json!({"x": 1})).send().await, "hit");
    assert_eq!(provider.requests().len(), 1);
}

/// Starts a service with a chat model `near` that has a cache and a price.
async fn chat() -> (Service, Upstream) {
    let (service, near) = (Service::start().await, Upstream::start().await);
    service.manifest(&near.manifest("near", "chat", PRICED));
    near.follows(|asked| {
        let count = asked["messages"].as_array().map_or(0, Vec::len);
        let message = json!({"role": "assistant", "content": format!("said {count}")});
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        let usage = json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5});
        (200, json!({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}))
    });
    (service, near)
}

fn greedy(more: Value) -> Value {
    let mut body = request("near");
    body["temperature"] = json!(0);
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn ask(service: &Service, key: &str, body: &Value) -> Ask {
    service.ask(Role::Base, Method::POST, "/v1/chat/completions").key(key).json(body)
}

#[tokio::test]
async fn cache_hit_of_chat_costs_nothing_and_is_recorded() {
    let (service, near) = chat().await;
    let missed = expect(&ask(&service, &service.key, &greedy(json!({}))).send().await, "miss");
    assert_eq!(missed["usage"]["cost"], 0.5);
    let answer = ask(&service, &service.key, &greedy(json!({}))).send().await;
    let hit = expect(&answer, "hit");
    assert_eq!(hit["choices"], missed["choices"]);
    assert_eq!((&hit["usage"]["cost"], &hit["usage"]["total_tokens"]), (&json!(0.0), &json!(5)));
    assert_eq!(near.requests().len(), 1);
    let row = newest_row(&service, 2).await;
    assert_eq!(row["id"], answer.header("x-execution-id"));
    assert_eq!(row["chat"]["cached"], true);
    let shown =
        json!([row["model"], row["execution_cost"], row["chat"]["input_tokens"], row["status"]]);
    assert_eq!(shown, json!(["near", 0.0, 0, "success"]));
    assert_eq!(service.ledger().await.len(), 1);
    expect(&ask(&service, &service.other_key, &greedy(json!({}))).send().await, "miss");
    let fresh = ask(&service, &service.key, &greedy(json!({}))).header("cache-control", "no-cache");
    expect(&fresh.send().await, "miss");
    assert_eq!(near.requests().len(), 3);
}

#[tokio::test]
async fn cache_of_chat_needs_temperature_zero_or_seed() {
    let (service, near) = chat().await;
    let bodies = [
        (request("near"), ["", ""]),
        (greedy(json!({"temperature": 0.1})), ["", ""]),
        (greedy(json!({"temperature": null, "seed": 7})), ["miss", "hit"]),
        (greedy(json!({"temperature": 0.0, "seed": 8})), ["miss", "hit"]),
        (greedy(json!({"seed": 9})), ["miss", "hit"]),
    ];
    for (body, outcomes) in bodies {
        for outcome in outcomes {
            expect(&ask(&service, &service.key, &body).undocumented().send().await, outcome);
        }
    }
    assert_eq!(near.requests().len(), 7);
}

#[tokio::test]
async fn cache_hit_is_streamed_and_streams_are_not_cached() {
    let (service, near) = chat().await;
    let body = greedy(json!({"stream": true}));
    for _ in 0..2 {
        let answer = ask(&service, &service.key, &body).open().await;
        assert_eq!(answer.headers()["x-orrery-cache"], "miss");
        assert!(Reading::of(answer).rest().await.contains("said 1"));
    }
    assert_eq!(near.requests().len(), 2);
    expect(&ask(&service, &service.key, &greedy(json!({}))).send().await, "miss");
    let answer = ask(&service, &service.key, &body).open().await;
    assert_eq!(answer.headers()["x-orrery-cache"], "hit");
    let events = Reading::of(answer).rest().await;
    assert!(events.contains("\"content\":\"said 1\"") && !events.contains("usage"), "{events}");
    assert!(events.ends_with("data: [DONE]\n\n"), "{events}");
    let with_usage = greedy(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events = Reading::open(ask(&service, &service.key, &with_usage)).await.rest().await;
    assert!(events.contains("\"cost\":0.0"), "{events}");
    assert_eq!(near.requests().len(), 3);
    let row = newest_row(&service, 5).await;
    assert_eq!((&row["chat"]["stream"], &row["execution_cost"]), (&json!(true), &json!(0.0)));
}

#[tokio::test]
async fn cache_of_chat_excludes_answers_of_fallbacks() {
    let (service, near) = chat().await;
    service.manifest(&near.manifest("spare", "chat", ""));
    let services = &service.running.services;
    let entries = vec![Entry { model: "spare".to_owned(), input_map: None }];
    let schema_of = |slug: &str| {
        services.catalog.get(slug).map(|one| one.schema.text().clone()).ok_or_else(String::new)
    };
    let organization = service.organization.id;
    services.chains.create(organization, "near", "safe", entries, &schema_of).await.unwrap();
    near.answers(503, "busy");
    near.says("from the spare model", 1, 1);
    let first = expect(&ask(&service, &service.key, &greedy(json!({}))).send().await, "miss");
    assert_eq!(first["choices"][0]["message"]["content"], "from the spare model");
    let second = expect(&ask(&service, &service.key, &greedy(json!({}))).send().await, "miss");
    assert_eq!(second["choices"][0]["message"]["content"], "said 1");
}

#[tokio::test]
async fn cache_hit_is_refused_to_key_without_the_model() {
    let (service, near) = chat().await;
    expect(&ask(&service, &service.key, &greedy(json!({}))).send().await, "miss");
    let accounts = &service.running.services.accounts;
    let policy = KeyPolicy { models: Some(vec!["other".to_owned()]), ..KeyPolicy::default() };
    let made = accounts.create_key_with(service.organization.id, "narrow", "test", None, policy);
    let (_, narrow) = made.await.unwrap();
    let refused = ask(&service, &narrow, &greedy(json!({}))).send().await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert_eq!(near.requests().len(), 1);
}

#[tokio::test]
async fn cache_serves_embeddings_and_responses() {
    let (service, near) = chat().await;
    let vectors = Upstream::start().await;
    service.manifest(&vectors.manifest("vectors", "embeddings", CACHE));
    let data = json!([{"object": "embedding", "index": 0, "embedding": [0.5]}]);
    vectors.answers(200, json!({"object": "list", "data": data}).to_string());
    let body = json!({"model": "vectors", "input": "hello"});
    let missed = expect(&service.post("/v1/embeddings", &body).send().await, "miss");
    let hit = expect(&service.post("/v1/embeddings", &body).send().await, "hit");
    assert_eq!(hit["data"], missed["data"]);
    let body = json!({"model": "near", "input": "hello", "temperature": 0});
    let missed = expect(&service.post("/v1/responses", &body).send().await, "miss");
    let hit = expect(&service.post("/v1/responses", &body).send().await, "hit");
    assert_eq!(near.requests().len(), 1);
    assert_ne!(hit["id"], missed["id"]);
    assert_eq!(hit["usage"]["cost"], 0.0);
    let stored = service.get(&format!("/v1/responses/{}", hit["id"].as_str().unwrap())).await;
    let text = |response: &Value| response["output"][0]["content"][0]["text"].clone();
    assert_eq!(text(&stored.expect(200)), text(&missed));
}

#[tokio::test]
async fn cache_is_not_used_by_steps_of_another_organizations_workflow() {
    let (service, provider) = (Service::start().await, Provider::start().await);
    service.manifest(&provider.manifest("m", "/echo", CACHE));
    let steps = json!([{"step_id": "a", "type": "model", "model": "m", "params": {"x": 1}}]);
    let workflow = service.workflow(steps.clone()).await;
    let version = json!({
        "version_id": "v1", "allowed_to_share": true, "definition": {"steps": steps},
    });
    let put = service.flows(Method::PUT, &format!("/workflows/{workflow}/versions/v1"));
    put.json(&version).send().await.expect(200);
    let path = format!("/api/v1/public/{workflow}/versions/v1/trigger");
    let theirs = json!({"api_key": service.other_key, "inputs": {}});
    for count in 1..=2 {
        let trigger = service.ask(Role::Workflows, Method::POST, &path).json(&theirs);
        let id = trigger.send().await.expect(202)["execution_id"].clone();
        let path = format!("/api/v1/executions/{}?timeout=15", id.as_str().unwrap());
        let ended = service.ask(Role::Workflows, Method::GET, &path).key(&service.other_key);
        assert_eq!(ended.send().await.expect(200)["status"], "completed");
        assert_eq!(provider.requests().len(), count);
    }
    // Nobody can confirm a guess of the hidden input.
    expect(&run(&service, &service.other_key, &json!({"x": 1})).send().await, "miss");
}
