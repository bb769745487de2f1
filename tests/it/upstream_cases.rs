//! The cases of LiteLLM's and OpenRouter's documentation for fallbacks, cool-downs, retries,
//! weights, order and wildcards. Each test names the document and section of its example:
//! `litellm` is `docs/my-website/docs` of github.com/BerriAI/litellm, `openrouter` is
//! `guides/routing` of github.com/OpenRouterTeam/docs (openrouter.ai/docs/guides/routing).

use serde_json::{Value, json};

use crate::chat::Reading;
use crate::support::{Answer, Service, Upstream, until};
use crate::upstreams::{answers_as, chat, fails, request, said, table};

/// Starts servers, and a service whose upstreams they are. Each server answers with its name.
async fn start<const N: usize>(
    more: &str,
    tables: [(&'static str, &str); N],
) -> (Service, [Upstream; N]) {
    let mut ups = Vec::new();
    let mut lines = more.to_owned();
    for (name, keys) in tables {
        let up = Upstream::start().await;
        answers_as(&up, name);
        lines.push_str(&table(name, &up.url(), keys));
        ups.push(up);
    }
    let Ok(ups) = ups.try_into() else { panic!("one server per table") };
    (Service::configured(&lines).await, ups)
}

/// Returns how many requests each server has received.
fn counts<const N: usize>(ups: &[Upstream; N]) -> [usize; N] {
    std::array::from_fn(|index| ups[index].requests().len())
}

fn error(message: &str, code: &str) -> String {
    let kind = "invalid_request_error";
    json!({"error": {"message": message, "type": kind, "code": code}}).to_string()
}

fn chain(model: &str, models: &[&str]) -> Value {
    let mut body = request(model);
    body["models"] = json!(models);
    body
}

/// Sends a body with fields that the OpenAPI document does not have.
async fn ask(service: &Service, path: &str, body: &Value) -> Answer {
    service.post(path, body).undocumented().send().await
}

/// Lets an upstream fail until it is left out.
async fn leave_out(service: &Service, index: usize, model: &str) {
    until("the upstream is left out", async || {
        chat(service, &request(model)).await;
        let states = service.running.services.chat.upstream_states();
        (!states[index].is_used).then_some(())
    })
    .await;
}

/// litellm `wildcard_routing.md`, steps 1 and 3: all models of a provider, without naming them.
#[tokio::test]
async fn wildcard_routes_all_models_of_a_provider() {
    let (service, ups) =
        start("", [("anthropic", "prefix = 'anthropic/'"), ("groq", "prefix = 'groq/'")]).await;
    for (index, id, sent) in [
        (0, "anthropic/claude-3-sonnet-20240229", "claude-3-sonnet-20240229"),
        (1, "groq/llama3-8b-8192", "llama3-8b-8192"),
    ] {
        let answer = chat(&service, &request(id)).await.expect(200);
        assert_eq!(answer["model"], id);
        assert_eq!(ups[index].newest()["model"], sent);
    }
    assert_eq!(chat(&service, &request("claude-3-sonnet-20240229")).await.status, 404);
    assert_eq!(counts(&ups), [1, 1]);
}

/// litellm `wildcard_routing.md`, `fo::*:static::*`, with the one `*` that a pattern may have.
#[tokio::test]
async fn wildcard_stands_in_the_middle_of_an_id() {
    let (service, ups) = start("", [("static", "models = ['fo::*:static::hi']")]).await;
    assert_eq!(said(&service, "fo::hi:static::hi").await, "static");
    assert_eq!(ups[0].newest()["model"], "fo::hi:static::hi");
    // github.com/BerriAI/litellm/pull/42090: a pattern matches the complete id.
    for id in ["fo::hi:static::hi2", "xfo::hi:static::hi", "fo::hi"] {
        assert_eq!(chat(&service, &request(id)).await.status, 404, "{id}");
    }
}

/// litellm `proxy/configs.md`, "Default models" (`model_name: "*"`): here, the priority makes an
/// upstream the one for all other ids.
#[tokio::test]
async fn catch_all_upstream_is_behind_the_named_ones() {
    let tables = [("all", "priority = 1"), ("claude", "models = ['claude-3-haiku']")];
    let (service, ups) = start("", tables).await;
    for _ in 0..3 {
        assert_eq!(said(&service, "claude-3-haiku").await, "claude");
        assert_eq!(said(&service, "claude-2.1").await, "all");
    }
    assert_eq!(counts(&ups), [3, 3]);
}

/// litellm `proxy/reliability.md`, "Setting Fallbacks for Wildcard Models".
#[tokio::test]
async fn fallback_may_be_an_id_of_a_wildcard() {
    let (service, ups) =
        start("", [("openai", "models = ['gpt-4o']"), ("azure", "prefix = 'azure/'")]).await;
    fails(&ups[0], 500);
    let mut body = chain("gpt-4o", &["azure/gpt-4o"]);
    body["max_tokens"] = 300.into();
    let answer = chat(&service, &body).await.expect(200);
    assert_eq!(answer["model"], "azure/gpt-4o");
    let sent = ups[1].newest();
    assert_eq!((&sent["model"], &sent["max_tokens"]), (&json!("gpt-4o"), &json!(300)));
}

/// litellm `routing.md`, "Weighted Deployments" (1 and 2), "Weight-based shuffling" (9 and 1), and
/// "RPM-based shuffling" (900 and 10), whose numbers are weights here.
#[tokio::test]
async fn weights_are_shares() {
    for (weights, calls, shares) in
        [((1, 2), 30, [10, 20]), ((9, 1), 20, [18, 2]), ((900, 10), 91, [90, 1])]
    {
        let one = format!("weight = {}", weights.0);
        let two = format!("weight = {}", weights.1);
        let (service, ups) = start("", [("one", &one), ("two", &two)]).await;
        for _ in 0..calls {
            said(&service, "o1").await;
        }
        let found = counts(&ups);
        let is_near = found[0].abs_diff(shares[0]) <= 1;
        assert!(is_near && found[0] + found[1] == calls, "{weights:?}: {found:?}");
    }
}

/// litellm `routing.md`, "Deployment Ordering (Priority)": order 2 is used when order 1 fails, and
/// deployments of the same order share the calls.
#[tokio::test]
async fn order_is_the_priority() {
    let tables = [
        ("fallback", "priority = 2"),
        ("first", "priority = 1"),
        ("second", "priority = 1"),
        ("last", "priority = 3"),
    ];
    let (service, ups) = start("", tables).await;
    for _ in 0..4 {
        said(&service, "gpt-4").await;
    }
    assert_eq!(counts(&ups), [0, 2, 2, 0]);
    fails(&ups[1], 500);
    fails(&ups[2], 503);
    assert_eq!(said(&service, "gpt-4").await, "fallback");
    assert_eq!(counts(&ups), [1, 3, 3, 0], "each of the same order was tried");
    fails(&ups[0], 429);
    assert_eq!(said(&service, "gpt-4").await, "last");
}

/// litellm `proxy/load_balancing.md`, "Test - Loadbalancing", and `routing.md`, "Real-World
/// Example": a deployment that answers 429 rests, and the other one has the calls meanwhile.
#[tokio::test]
async fn limited_deployment_rests_and_the_other_answers() {
    let (service, ups) = start("", [("anthropic", "key = 'sk-a'"), ("vertex", "")]).await;
    ups[0].answers_with(429, ("retry-after", "600"), &error("slow down", "rate_limit_exceeded"));
    for _ in 0..5 {
        assert_eq!(said(&service, "sonnet-4").await, "vertex");
    }
    assert_eq!(counts(&ups), [1, 5]);
    let states = service.running.services.chat.upstream_states();
    assert_eq!((states[0].resting_keys, states[0].is_used, states[1].resting_keys), (1, true, 0));
}

/// litellm `routing.md`, "Cooldowns", "Expected Response": LiteLLM answers itself that no
/// deployment is available. Here the upstreams are tried, and the caller gets their own answer.
#[tokio::test]
async fn call_is_tried_although_all_deployments_rest() {
    let (service, ups) = start("", [("one", ""), ("two", "priority = 1")]).await;
    for up in &ups {
        up.answers_with(429, ("retry-after", "600"), &error("slow down", "limit"));
    }
    let answer = chat(&service, &request("m")).await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, "600"));
    assert_eq!(said(&service, "m").await, "one");
}

/// litellm `routing.md`, "When are deployments cooled down?", high failure rate: here, failures
/// count if they follow each other.
#[tokio::test]
async fn every_other_failure_leaves_an_upstream_in_use() {
    let (service, ups) = start("", [("one", ""), ("two", "priority = 1")]).await;
    for _ in 0..5 {
        ups[0].answers(500, "no");
        assert_eq!(said(&service, "m").await, "two");
        assert_eq!(said(&service, "m").await, "one");
    }
    assert_eq!(counts(&ups), [10, 5]);
}

/// litellm `routing.md`, the same table: 404 and invalid requests. They say nothing about the
/// server, and a client that sends such requests must not take it from others.
#[tokio::test]
async fn rejected_requests_do_not_cool_an_upstream_down() {
    let (service, ups) = start("", [("one", ""), ("two", "priority = 1\nmodels = ['m']")]).await;
    for status in [400, 413, 422] {
        for _ in 0..4 {
            ups[0].answers(status, error("no", "invalid"));
            assert_eq!(chat(&service, &request("m")).await.status, status);
        }
    }
    assert_eq!(ups[1].requests().len(), 0, "the caller's faults do not fail over");
    for _ in 0..4 {
        ups[0].answers(404, error("no such model", "model_not_found"));
        assert_eq!(said(&service, "m").await, "two");
        ups[0].answers(400, error("flagged", "content_policy_violation"));
        assert_eq!(said(&service, "m").await, "two");
    }
    assert_eq!(said(&service, "other").await, "one");
    assert!(service.running.services.chat.upstream_states()[0].is_used);
}

/// litellm `routing.md`, "Retries" (`num_retries`), `completion/reliable_completions.md`,
/// "Completion with Retries": here, clients repeat a call, and no server gets a request twice.
#[tokio::test]
async fn only_upstream_gets_a_request_once() {
    let (service, ups) = start("", [("one", "keys = ['sk-a', 'sk-b']")]).await;
    ups[0].answers(500, error("broken", "x"));
    let answer = chat(&service, &request("m")).await;
    assert_eq!((answer.status, counts(&ups)), (500, [1]));
    // With another key, a limited request is repeated.
    ups[0].answers_with(429, ("retry-after", "600"), "{}");
    assert_eq!(said(&service, "m").await, "one");
    assert_eq!(counts(&ups), [3]);
}

/// litellm `proxy/reliability.md`, "Fallbacks + Retries + Timeouts + Cooldowns": three servers of
/// one model, then another model.
#[tokio::test]
async fn fallback_model_follows_all_deployments_of_the_first() {
    let zephyr = "models = ['zephyr-beta']\nfirst_byte_timeout = '200ms'";
    let tables = [("a", zephyr), ("b", zephyr), ("c", zephyr), ("gpt", "models = ['gpt-*']")];
    let (service, ups) = start("", tables).await;
    fails(&ups[0], 429);
    fails(&ups[1], 500);
    ups[2].is_silent();
    let answer = chat(&service, &chain("zephyr-beta", &["gpt-3.5-turbo"])).await.expect(200);
    assert_eq!(answer["model"], "gpt-3.5-turbo");
    assert_eq!(counts(&ups), [1, 1, 1, 1]);
}

/// litellm `proxy/reliability.md`, "Explanation" (fallbacks are done in order), and
/// `completion/reliable_completions.md`, "Completion with Fallbacks" (`bad-model` first).
#[tokio::test]
async fn fallbacks_are_tried_in_order() {
    let (service, ups) = start("", [("one", "")]).await;
    ups[0].follows(|request| match request["model"].as_str() {
        Some("command-nightly") => {
            let message = json!({"role": "assistant", "content": "hi"});
            let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
            (200, json!({"model": "command-nightly-03", "choices": [choice]}))
        }
        _ => (404, json!({"error": {"message": "no such model", "code": "model_not_found"}})),
    });
    let body = chain("bad-model", &["gpt-3.5-turbo", "command-nightly", "llama2"]);
    assert_eq!(chat(&service, &body).await.expect(200)["model"], "command-nightly");
    let sent: Vec<Value> = ups[0]
        .requests()
        .iter()
        .map(|sent| serde_json::from_slice::<Value>(sent.body()).unwrap()["model"].clone())
        .collect();
    assert_eq!(sent, ["bad-model", "gpt-3.5-turbo", "command-nightly"]);
}

/// litellm `proxy/reliability.md`, "Context Window Exceeded Fallback", and openrouter
/// `model-fallbacks.mdx`, "Fallback behavior": a prompt that is too long for one model.
#[tokio::test]
async fn longer_context_is_a_fallback() {
    let tables =
        [("small", "models = ['small']"), ("large", "models = ['large', 'small']\npriority = 1")];
    let (service, ups) = start("", tables).await;
    for message in [
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Input is too long for requested model.",
        "This endpoint's maximum context length is 4096 tokens.",
    ] {
        ups[0].answers(400, json!({"error": {"message": message, "code": 400}}).to_string());
        assert_eq!(said(&service, "small").await, "large", "{message}");
        ups[0].answers(400, json!({"error": {"message": message}}).to_string());
        ups[1].answers(400, error("too long", "context_length_exceeded"));
        let answer = chat(&service, &chain("small", &["large"])).await.expect(200);
        assert_eq!(answer["model"], "large", "{message}");
    }
}

/// litellm `proxy/reliability.md`, "Content Policy Violation Fallback", and openrouter
/// `model-fallbacks.mdx`, "Fallback behavior" (moderation flags); the errors are those of OpenAI,
/// Azure, Anthropic and OpenRouter (openrouter.ai/docs/api/reference/errors-and-debugging).
#[tokio::test]
async fn refused_content_is_a_reason_for_the_next_model() {
    let tables = [
        ("strict", "models = ['strict']\nkeys = ['sk-a', 'sk-b']"),
        ("other", "models = ['other']"),
    ];
    let (service, ups) = start("", tables).await;
    let metadata = json!({"reasons": ["violence"], "flagged_input": "hi", "provider_name": "x"});
    let flagged = json!({"error": {"code": 403, "message": "flagged", "metadata": metadata}});
    let filtered = "The response was filtered due to the prompt triggering Azure OpenAI's content \
                    management policy.";
    let blocked = json!({"error": {"type": "invalid_request_error",
        "message": "Output blocked by content filtering policy"}});
    for (status, refusal) in [
        (400, error("no", "content_policy_violation")),
        (400, error(filtered, "content_filter")),
        (400, blocked.to_string()),
        (403, flagged.to_string()),
    ] {
        let before = ups[0].requests().len();
        ups[0].answers(status, refusal.clone());
        let answer = chat(&service, &chain("strict", &["other"])).await;
        assert_eq!(answer.status, 200, "{refusal}: {}", answer.text);
        assert!(answer.text.contains("other"), "{refusal}: {}", answer.text);
        assert_eq!(ups[0].requests().len(), before + 1, "not with the other key: {refusal}");
    }
    assert_eq!(service.running.services.chat.upstream_states()[0].resting_keys, 0);
}

/// litellm `proxy/load_balancing.md`, `model_group_alias`: an alias has all deployments.
#[tokio::test]
async fn alias_has_all_deployments_of_its_model() {
    let router = "[router]\naliases = { 'gpt-4' = 'gpt-3.5-turbo' }\n";
    let models = "models = ['gpt-3.5-turbo']";
    let (service, ups) = start(router, [("one", models), ("two", models)]).await;
    for up in &ups {
        up.answers(200, r#"{"data":[]}"#);
    }
    service.get("/v1/llm-router/model-catalog").await.expect(200);
    for _ in 0..2 {
        assert_eq!(chat(&service, &request("gpt-4")).await.expect(200)["model"], "gpt-4");
    }
    fails(&ups[0], 500);
    for _ in 0..2 {
        assert_eq!(said(&service, "gpt-4").await, "two");
    }
    assert_eq!(ups[1].newest()["model"], "gpt-3.5-turbo");
}

/// github.com/BerriAI/litellm/issues/5512 and 6957 (an overloaded server says so in its stream)
/// and 40404 (a stream breaks off after its first words).
#[tokio::test]
async fn stream_falls_back_before_its_first_words_only() {
    let (service, ups) = start("", [("one", ""), ("two", "priority = 1")]).await;
    let mut body = request("m");
    body["stream"] = true.into();
    let feed = ups[0].streams();
    feed.event(&json!({"choices": [{"index": 0, "delta": {"role": "assistant"}}]}));
    feed.event(&json!({"error": {"type": "overloaded_error", "message": "Overloaded"}}));
    drop(feed);
    let answer = chat(&service, &body).await;
    assert!(answer.text.contains("two") && answer.text.contains("[DONE]"), "{}", answer.text);
    assert!(!answer.text.contains("Overloaded"), "{}", answer.text);
    let feed = ups[0].streams();
    feed.say("Once upon");
    let mut reading = Reading::open(service.post("/v1/chat/completions", &body)).await;
    reading.until("Once upon").await;
    feed.cut();
    let rest = reading.rest().await;
    assert!(rest.contains(r#"{"error":"#) && !rest.contains("[DONE]"), "{rest}");
    assert_eq!(counts(&ups), [2, 1]);
}

/// openrouter `model-fallbacks.mdx`, "Fallback behavior": if the last model fails too, its error is
/// the answer.
#[tokio::test]
async fn error_of_the_last_model_is_the_answer() {
    let (service, ups) = start("", [("a", "models = ['a']"), ("b", "models = ['b']")]).await;
    ups[0].answers(500, error("a is broken", "x"));
    ups[1].answers(503, error("b is down", "y"));
    let said = chat(&service, &chain("a", &["b"])).await.expect(503);
    assert_eq!(
        (&said["error"]["message"], &said["error"]["code"]),
        (&json!("b is down"), &json!("y"))
    );
    let rows = service.get("/v2/executions?type=chat&status=error").await.expect(200);
    assert_eq!(rows["executions"].as_array().unwrap().len(), 1);
}

/// openrouter `model-fallbacks.mdx`, "Using with the Anthropic Messages API": `fallbacks` is not
/// evaluated here.
#[tokio::test]
async fn fallbacks_of_messages_are_ignored() {
    let (service, ups) = start("", [("a", "models = ['a']"), ("b", "models = ['b']")]).await;
    let mut body = request("a");
    body["max_tokens"] = 1024.into();
    body["fallbacks"] = json!([{"model": "b"}]);
    ups[0].answers(503, error("a is down", "x"));
    assert_eq!(ask(&service, "/v1/messages", &body).await.status, 503);
    assert_eq!(ask(&service, "/v1/messages", &body).await.status, 200);
    assert_eq!((counts(&ups), ups[0].newest().get("fallbacks")), ([2, 0], None));
}

/// openrouter `model-fallbacks.mdx`, "Pricing" and "Using with the OpenAI SDK": the call costs what
/// the model that answered costs, and `model` of the answer names it.
#[tokio::test]
async fn fallback_is_charged_at_its_own_price() {
    let prices = "models = ['gpt', 'claude', 'mythomax']\nprices = [\
    { model = 'claude', per_million_input_tokens = 0.0, per_million_output_tokens = 9000.0 },\
    { model = 'mythomax', per_million_input_tokens = 0.0, per_million_output_tokens = 1000.0 }]";
    let (service, ups) = start("", [("one", prices)]).await;
    ups[0].answers(429, "{}");
    ups[0].answers(502, "{}");
    let answer = chat(&service, &chain("gpt", &["claude", "mythomax"])).await.expect(200);
    assert_eq!(answer["model"], "mythomax");
    assert_eq!(answer["usage"]["cost"], 0.01);
}

/// openrouter `provider-selection.mdx`, "A Load Balancing Example": providers for 1, 2 and 3 USD,
/// of which the second had outages. The weights are the inverse squares of the prices.
#[tokio::test]
async fn upstream_with_outages_is_tried_last() {
    let tables = [("a", "weight = 36"), ("b", "weight = 9"), ("c", "weight = 4")];
    let (service, ups) = start("", tables).await;
    fails(&ups[1], 500);
    leave_out(&service, 1, "m").await;
    let before = counts(&ups);
    for _ in 0..20 {
        let answer = said(&service, "m").await;
        assert!(answer == "a" || answer == "c", "{answer}");
    }
    let [a, _, c] = counts(&ups);
    let (a, c) = (a - before[0], c - before[2]);
    assert!(a >= 16 && (1..=4).contains(&c), "nine to one: {a} to {c}");
    answers_as(&ups[1], "b");
    fails(&ups[0], 500);
    fails(&ups[2], 500);
    assert_eq!(said(&service, "m").await, "b", "what is left out is tried if nothing else is left");
}

/// openrouter `provider-selection.mdx`, "Specifying providers with fallbacks": OpenAI does not have
/// the model, Together is tried, then all others.
#[tokio::test]
async fn provider_without_the_model_is_skipped() {
    let tables = [
        ("openai", "models = ['openai/*']"),
        ("together", "priority = 1\nmodels = ['mistralai/*']"),
        ("others", "priority = 2"),
    ];
    let (service, ups) = start("", tables).await;
    let model = "mistralai/mixtral-8x7b-instruct";
    assert_eq!(said(&service, model).await, "together");
    fails(&ups[1], 503);
    assert_eq!(said(&service, model).await, "others");
    assert_eq!(counts(&ups), [0, 2, 1]);
}

/// openrouter `provider-selection.mdx` (`provider`, `:nitro`, `:floor`) and
/// npmjs.com/package/@openrouter/schemas (`route`): OpenRouter's own fields reach OpenRouter,
/// except `models`, which this service follows itself. So do LiteLLM's `fallbacks` and
/// `disable_fallbacks` (litellm `proxy/reliability.md`), which mean nothing here.
#[tokio::test]
async fn fields_of_openrouter_pass_to_it() {
    let (service, ups) = start("", [("openrouter", "prefix = 'openrouter/'")]).await;
    let provider = json!({"order": ["openai", "together"], "allow_fallbacks": false,
        "only": ["azure"], "ignore": ["deepinfra"], "sort": {"by": "price", "partition": "none"}});
    let mut body = request("openrouter/meta-llama/llama-3.3-70b-instruct:nitro");
    body["provider"] = provider.clone();
    body["route"] = "fallback".into();
    body["fallbacks"] = json!(["gpt-3.5-turbo"]);
    body["disable_fallbacks"] = true.into();
    body["models"] = json!(["openrouter/meta-llama/llama-3.3-70b-instruct:floor"]);
    ups[0].answers(502, "{}");
    let answer = ask(&service, "/v1/chat/completions", &body).await.expect(200);
    assert_eq!(answer["model"], "openrouter/meta-llama/llama-3.3-70b-instruct:floor");
    let sent = ups[0].newest();
    assert_eq!(sent["model"], "meta-llama/llama-3.3-70b-instruct:floor");
    assert_eq!((&sent["provider"], &sent["route"]), (&provider, &json!("fallback")));
    assert_eq!(sent["fallbacks"], json!(["gpt-3.5-turbo"]));
    assert_eq!((&sent["disable_fallbacks"], sent.get("models")), (&json!(true), None));
}

/// litellm `routing.md`, "How Cooldowns Work" (a deployment has one model): here, all models of a
/// key rest, because `Retry-After` does not say what is limited.
#[tokio::test]
async fn limited_key_rests_for_all_its_models() {
    let (service, ups) = start("", [("one", "key = 'sk-a'"), ("two", "priority = 1")]).await;
    ups[0].answers_with(429, ("retry-after", "600"), "{}");
    assert_eq!(said(&service, "a").await, "two");
    assert_eq!(said(&service, "b").await, "two");
    assert_eq!(counts(&ups), [1, 2]);
}
