//! Several upstreams of the chat router: choice, fail-over, keys that rest, prefixes, prices and
//! chains of ids.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use hyper::Method;
use orrery_api::Role;
use orrery_domain::chain::Entry;
use orrery_domain::key_policy::KeyPolicy;
use orrery_domain::money::Usd;
use orrery_runtime::Tasks;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::{Answer, Service, Upstream, until, within};

/// Returns the table of an upstream in the configuration.
pub(crate) fn table(name: &str, url: &str, more: &str) -> String {
    format!("[[router.upstreams]]\nname = '{name}'\nurl = '{url}'\n{more}\n")
}

/// Returns a URL on which nothing listens.
fn nowhere() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    format!("http://{address}/v1")
}

pub(crate) fn request(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hi"}]})
}

pub(crate) async fn chat(service: &Service, body: &Value) -> Answer {
    service.post("/v1/chat/completions", body).send().await
}

/// Returns the text of an answer.
pub(crate) async fn said(service: &Service, model: &str) -> String {
    let answer = chat(service, &request(model)).await.expect(200);
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

/// Lets a server answer every request with its name.
pub(crate) fn answers_as(up: &Upstream, name: &'static str) {
    up.follows(move |request| {
        let message = json!({"role": "assistant", "content": name});
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        let usage = json!({"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20});
        (200, json!({"model": request["model"], "choices": [choice], "usage": usage}))
    });
}

pub(crate) fn fails(up: &Upstream, status: u16) {
    up.follows(move |_| (status, json!({"error": {"message": "no", "type": "x"}})));
}

fn authorization(up: &Upstream, index: usize) -> String {
    up.requests()[index].headers()["authorization"].to_str().unwrap().to_owned()
}

/// LiteLLM's routing: the pattern decides, a prefix is removed, and the answer has the client's id.
#[tokio::test]
async fn upstream_is_chosen_by_pattern_and_prefix() {
    let (gpt, claude, rest) =
        (Upstream::start().await, Upstream::start().await, Upstream::start().await);
    let lines = [
        "[router]\n".to_owned(),
        format!("upstream_url = '{}'\n", rest.url()),
        table("gpt", &gpt.url(), "models = ['gpt-*']\nprefix = 'openai/'\nkey = 'sk-gpt'"),
        table("claude", &claude.url(), "models = ['claude-*', '*-haiku']\nkey = 'sk-claude'"),
    ];
    let service = Service::configured(&lines.concat()).await;
    for (up, name) in [(&gpt, "gpt"), (&claude, "claude"), (&rest, "rest")] {
        answers_as(up, name);
    }
    for (id, name, sent) in [
        ("openai/gpt-4o", "gpt", "gpt-4o"),
        ("claude-sonnet", "claude", "claude-sonnet"),
        ("my-haiku", "claude", "my-haiku"),
        ("gpt-4o", "rest", "gpt-4o"),
        ("openai/o3", "rest", "openai/o3"),
    ] {
        let answer = chat(&service, &request(id)).await.expect(200);
        assert_eq!(answer["choices"][0]["message"]["content"], name, "{id}");
        assert_eq!(answer["model"], id);
        let up = [("gpt", &gpt), ("claude", &claude), ("rest", &rest)];
        let (_, up) = up.into_iter().find(|(one, _)| *one == name).unwrap();
        assert_eq!(up.newest()["model"], sent);
    }
    assert_eq!(authorization(&gpt, 0), "Bearer sk-gpt");
    assert_eq!(authorization(&claude, 0), "Bearer sk-claude");
    assert!(!rest.requests()[0].headers().contains_key("authorization"));
    let rows = service.get("/v2/executions?type=chat").await.expect(200);
    assert_eq!(rows["executions"][4]["model"], "openai/gpt-4o");
}

/// The ids that clients see are those that they can call.
#[tokio::test]
async fn upstream_lists_are_joined_with_their_prefixes() {
    let (one, two) = (Upstream::start().await, Upstream::start().await);
    let price = "prices = [{ model = 'gpt-a', per_million_input_tokens = 1.0, \
                 per_million_output_tokens = 2.0 }]";
    let azure = "kind = 'azure'\napi_version = '2024-10-21'\nmodels = ['deployed']";
    let lines = [
        table("one", &one.url(), &format!("models = ['gpt-*', 'extra']\nprefix = 'o/'\n{price}")),
        table("two", &two.url(), ""),
        table("three", &nowhere().replace("/v1", ""), azure),
    ];
    let service = Service::configured(&lines.concat()).await;
    one.answers(200, r#"{"data":[{"id":"gpt-a","owned_by":"them"},{"id":"whisper"}]}"#);
    two.answers(200, r#"{"data":[{"id":"b"},{"id":"o/gpt-a"}]}"#);
    let list = service.get("/v1/llm-router/model-catalog").await.expect(200);
    let models = list["data"].as_array().unwrap();
    let ids: Vec<_> = models.iter().map(|model| (&model["id"], &model["owned_by"])).collect();
    let pair = |id: &str, owner: &str| (json!(id), json!(owner));
    let expected = [
        pair("o/gpt-a", "them"),
        pair("o/extra", "one"),
        pair("b", "two"),
        pair("deployed", "three"),
    ];
    let expected: Vec<_> = expected.iter().map(|(id, owner)| (id, owner)).collect();
    assert_eq!(ids, expected);
    assert_eq!(models[0]["pricing"]["per_million_output_tokens"], 2.0);
    assert_eq!(list["upstream"]["stale"], false);
}

#[tokio::test]
async fn upstream_without_the_id_is_not_called() {
    let up = Upstream::start().await;
    let service = Service::configured(&table("one", &up.url(), "models = ['gpt-*']")).await;
    let error = chat(&service, &request("claude")).await.expect(404);
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("no upstream is configured for this id"), "{message}");
    assert_eq!(up.requests().len(), 0);
}

/// The failures of LiteLLM's and OpenRouter's documentation: connection, 429, 5xx, time-out, an
/// answer that is none.
#[tokio::test]
async fn upstream_that_fails_before_its_answer_gives_way() {
    let (bad, good) = (Upstream::start().await, Upstream::start().await);
    let lines = [
        table("bad", &bad.url(), "first_byte_timeout = '200ms'"),
        table("good", &good.url(), "priority = 1"),
    ];
    let service = Service::configured(&lines.concat()).await;
    answers_as(&good, "good");
    let fail: [(&str, &dyn Fn()); 7] = [
        ("500", &|| bad.answers(500, r#"{"error":{"message":"no"}}"#)),
        ("503", &|| bad.answers(503, "no")),
        ("529", &|| bad.answers(529, "overloaded")),
        ("408", &|| bad.answers(408, "late")),
        ("page", &|| bad.answers(200, "<html>log in</html>")),
        ("none", &|| bad.answers(200, r#"{"id":"x"}"#)),
        ("silence", &|| bad.is_silent()),
    ];
    for (index, (what, fail)) in fail.into_iter().enumerate() {
        for is_stream in [false, true] {
            let mut body = request("m");
            body["stream"] = is_stream.into();
            fail();
            let answer = chat(&service, &body).await;
            assert_eq!(answer.status, 200, "{what}: {}", answer.text);
            assert!(answer.text.contains("good"), "{what}: {}", answer.text);
            // A success, so that the circuit stays closed.
            bad.says("fine", 1, 1);
            until("the circuit is closed", async || {
                (said(&service, "m").await == "fine").then_some(())
            })
            .await;
        }
        assert_eq!(good.requests().len() / 2, index + 1, "{what}");
    }
    // One execution per call, whatever was tried.
    let rows = service.get("/v2/executions?type=chat&limit=100").await.expect(200);
    let rows = rows["executions"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["status"] == "success"), "{rows:?}");
}

/// The caller's own faults are answered by the first upstream.
#[tokio::test]
async fn callers_errors_do_not_fail_over() {
    let (one, two) = (Upstream::start().await, Upstream::start().await);
    let lines = [table("one", &one.url(), ""), table("two", &two.url(), "priority = 1")];
    let service = Service::configured(&lines.concat()).await;
    answers_as(&two, "two");
    for status in [400, 422] {
        fails(&one, status);
        assert_eq!(chat(&service, &request("m")).await.status, status);
    }
    assert_eq!(two.requests().len(), 0);
    fails(&one, 404);
    assert_eq!(said(&service, "m").await, "two", "the other may have the model");
}

/// Our key is not the caller's: another key or upstream may be accepted.
#[tokio::test]
async fn rejected_key_gives_way_and_rests() {
    let (one, two) = (Upstream::start().await, Upstream::start().await);
    let lines = [
        table("one", &one.url(), "keys = ['sk-old', 'sk-new']"),
        table("two", &two.url(), "priority = 1"),
    ];
    let service = Service::configured(&lines.concat()).await;
    one.answers(401, r#"{"error":{"message":"Incorrect API key provided: sk-old"}}"#);
    answers_as(&one, "one");
    answers_as(&two, "two");
    assert_eq!(said(&service, "m").await, "one");
    assert_eq!(authorization(&one, 0), "Bearer sk-old");
    for index in 1..5 {
        assert_eq!(authorization(&one, index), "Bearer sk-new");
        assert_eq!(said(&service, "m").await, "one");
    }
    fails(&one, 403);
    assert_eq!(said(&service, "m").await, "two");
}

/// LiteLLM's cool-down: a key rests as long as `Retry-After` says.
#[tokio::test]
async fn limited_key_rests_for_its_retry_after() {
    let (one, two) = (Upstream::start().await, Upstream::start().await);
    let lines = [
        table("one", &one.url(), "keys = ['sk-a', 'sk-b']"),
        table("two", &two.url(), "priority = 1"),
    ];
    let service = Service::configured(&lines.concat()).await;
    answers_as(&one, "one");
    answers_as(&two, "two");
    one.answers_with(429, ("retry-after", "600"), r#"{"error":{"message":"slow down"}}"#);
    for _ in 0..4 {
        assert_eq!(said(&service, "m").await, "one");
    }
    let keys: Vec<_> = (0..5).map(|index| authorization(&one, index)).collect();
    assert_eq!(keys, ["Bearer sk-a", "Bearer sk-b", "Bearer sk-b", "Bearer sk-b", "Bearer sk-b"]);
    one.answers_with(429, ("retry-after-ms", "500"), "{}");
    for _ in 0..3 {
        assert_eq!(said(&service, "m").await, "two", "both keys rest");
    }
    assert_eq!(one.requests().len(), 6);
    until("the key wakes", async || (said(&service, "m").await == "one").then_some(())).await;
    let states = service.running.services.chat.upstream_states();
    assert_eq!((states[0].keys, states[0].resting_keys), (2, 1));
}

/// With a single upstream, the caller learns when to try again.
#[tokio::test]
async fn limit_of_the_only_upstream_reaches_the_caller() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    for _ in 0..2 {
        up.answers_with(429, ("retry-after", "7"), r#"{"error":{"message":"slow down"}}"#);
        let answer = chat(&service, &request("m")).await;
        assert_eq!((answer.status, answer.header("retry-after")), (429, "7"));
    }
    up.says("again", 1, 1);
    assert_eq!(said(&service, "m").await, "again");
}

/// LiteLLM's allowed_fails and cooldown_time: an upstream that keeps failing is left out, then
/// probed by one call.
#[tokio::test]
async fn failing_upstream_cools_down_and_returns() {
    let (one, two) = (Upstream::start().await, Upstream::start().await);
    let lines = [table("cool", &one.url(), ""), table("spare", &two.url(), "priority = 1")];
    let service = Service::configured(&lines.concat()).await;
    fails(&one, 500);
    answers_as(&two, "two");
    for _ in 0..6 {
        assert_eq!(said(&service, "m").await, "two");
    }
    let tried = one.requests().len();
    assert!((3..6).contains(&tried), "left out after three failures: {tried}");
    let owner = service.owner().await;
    let loads = service.asks(&owner, Method::GET, "/models").send().await.expect(200);
    let shown = &loads["upstreams"][0];
    assert_eq!((&shown["name"], &shown["state"]), (&json!("cool"), &json!("left out")), "{loads}");
    assert!(
        shown.get("spend").is_none(),
        "an organization must not see the spend of all organizations: {shown}"
    );
    let text = service.ask(Role::Metrics, Method::GET, "/metrics").send().await.text;
    for line in [
        "orrery_upstream_used{upstream=\"cool\"} 0",
        "orrery_upstream_used{upstream=\"spare\"} 1",
        "orrery_upstream_requests_total{upstream=\"spare\",outcome=\"answered\"} 6",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let found = orrery_api::findings(&service.running.services).await.unwrap();
    let found = found.iter().find(|finding| finding.subject == "upstream").unwrap();
    assert_eq!(found.detail, "1 of 2 upstreams does not answer: cool");
    answers_as(&one, "one");
    until("upstream returns", async || (said(&service, "m").await == "one").then_some(())).await;
}

/// A listener that accepts connections and never answers.
#[tokio::test]
async fn black_hole_upstream_costs_its_first_byte_timeout_only() {
    // The kernel accepts connections, and nobody reads them.
    let hole = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", hole.local_addr().unwrap());
    let good = Upstream::start().await;
    let lines = [
        table("hole", &url, "first_byte_timeout = '100ms'"),
        table("good", &good.url(), "priority = 1"),
    ];
    let service = Service::configured(&lines.concat()).await;
    answers_as(&good, "good");
    let calls = (0..10).map(|_| said(&service, "m"));
    let answers = within("answers", join_all(calls)).await;
    assert!(answers.iter().all(|said| said == "good"), "{answers:?}");
    let states = service.running.services.chat.upstream_states();
    assert!(!states[0].is_used, "{states:?}");
    assert!(states[0].failed >= 3, "{states:?}");
}

/// One of two upstreams dies in the middle of a load.
#[tokio::test]
async fn no_call_fails_when_an_upstream_dies_under_load() {
    let dying = Dying::start().await;
    let good = Upstream::start().await;
    let lines = [table("dying", &dying.url(), ""), table("good", &good.url(), "")];
    let service = Service::configured(&lines.concat()).await;
    answers_as(&good, "good");
    let mut answered = 0;
    for round in 0..13 {
        if round == 5 {
            dying.kill().await;
        }
        let calls = (0..16).map(|_| said(&service, "m"));
        answered += within("answers", join_all(calls)).await.len();
    }
    assert_eq!(answered, 208);
    let share = dying.answered.load(Ordering::Relaxed);
    assert!(share >= 20, "it took its share: {share}");
    let rows = service.get("/v2/executions?type=chat&status=error").await.expect(200);
    assert_eq!(rows["executions"], json!([]));
}

/// A server whose connections break when it is killed.
struct Dying {
    address: SocketAddr,
    alive: watch::Sender<bool>,
    answered: Arc<AtomicUsize>,
    tasks: Tasks,
}

impl Dying {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (alive, killed) = watch::channel(true);
        let answered = Arc::new(AtomicUsize::new(0));
        let tasks = Tasks::new();
        let (count, connections) = (Arc::clone(&answered), tasks.clone());
        tasks.spawn(async move {
            let mut dead = killed.clone();
            loop {
                let stream = tokio::select! {
                    _ = dead.wait_for(|alive| !alive) => return,
                    accepted = listener.accept() => accepted.unwrap().0,
                };
                let (mut dead, count) = (killed.clone(), Arc::clone(&count));
                connections.spawn(async move {
                    tokio::select! {
                        _ = dead.wait_for(|alive| !alive) => {}
                        () = answer_all(stream, &count) => {}
                    }
                });
            }
        });
        Self { address, alive, answered, tasks }
    }

    fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    async fn kill(&self) {
        self.alive.send_replace(false);
        let refused = async || TcpStream::connect(self.address).await.err();
        until("the server is dead", refused).await;
        let _kept_until_the_end = &self.tasks;
    }
}

async fn answer_all(mut stream: TcpStream, count: &AtomicUsize) {
    let message = json!({"role": "assistant", "content": "dying"});
    let choice = json!({"index": 0, "finish_reason": "stop", "message": message});
    let body = json!({"choices": [choice]}).to_string();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut read = vec![0; 64 * 1024];
    while stream.read(&mut read).await.is_ok_and(|bytes| bytes > 0) {
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A call is charged once, at the price of the upstream that answered, and within the budget.
#[tokio::test]
async fn call_is_charged_once_although_two_upstreams_were_tried() {
    let (one, two) = (Upstream::start().await, Upstream::start().await);
    let price = |output: f64| {
        format!(
            "prices = [{{ model = 'm', per_million_input_tokens = 0.0, \
             per_million_output_tokens = {output:?} }}]"
        )
    };
    let lines = [
        table("one", &one.url(), &price(9000.0)),
        table("two", &two.url(), &format!("priority = 1\n{}", price(1000.0))),
    ];
    let service = Service::configured(&lines.concat()).await;
    let policy =
        KeyPolicy { max_budget: Some(Usd::from_micros(1_000_000)), ..KeyPolicy::default() };
    let accounts = &service.running.services.accounts;
    let organization = service.organization.id;
    let made = accounts.create_key_with(organization, "limited", "test", None, policy).await;
    let (_, key) = made.unwrap();
    fails(&one, 500);
    answers_as(&two, "two");
    let mut body = request("m");
    body["max_tokens"] = 10.into();
    for calls in 1..=3 {
        let ask = service.ask(Role::Base, Method::POST, "/v1/chat/completions").key(&key);
        let answer = ask.json(&body).send().await.expect(200);
        assert_eq!(answer["usage"]["cost"], 0.01);
        let info = service.ask(Role::Base, Method::GET, "/v1/key/info").key(&key).send().await;
        let spend = info.expect(200)["spend"].as_f64().unwrap();
        assert!((spend - 0.01 * f64::from(calls)).abs() < 1e-9, "{spend}");
    }
    let states = service.running.services.chat.upstream_states();
    assert_eq!((states[0].spend, states[1].spend), (Usd::ZERO, Usd::from_micros(30_000)));
    // The dearest upstream is reserved before the call: 10 tokens at 9000 USD per million.
    body["max_tokens"] = 200.into();
    let ask = service.ask(Role::Base, Method::POST, "/v1/chat/completions").key(&key);
    assert_eq!(ask.json(&body).send().await.status, 402);
}

/// OpenRouter's `models`: the next id is tried if one fails.
#[tokio::test]
async fn models_of_a_request_are_a_chain_of_ids() {
    let (one, two) = (Upstream::start().await, Upstream::start().await);
    let lines = [
        table("one", &one.url(), "models = ['a']"),
        table("two", &two.url(), "models = ['b', 'c']"),
    ];
    let service = Service::configured(&lines.concat()).await;
    fails(&one, 500);
    answers_as(&two, "two");
    let mut body = request("a");
    body["models"] = json!(["a", "b"]);
    let answer = chat(&service, &body).await.expect(200);
    assert_eq!((&answer["model"], &two.newest()["model"]), (&json!("b"), &json!("b")));
    assert_eq!(two.newest().get("models"), None);
    let rows = service.get("/v2/executions?type=chat").await.expect(200);
    let row = &rows["executions"][0];
    assert_eq!((&row["model"], &row["requested_model"]), (&json!("b"), &json!("a")));
    let chain = json!({"models": ["a", "c"], "messages": body["messages"]});
    let answer = service.post("/v1/chat/completions", &chain).undocumented().send().await;
    assert_eq!(answer.expect(200)["model"], "c");

    body["models"] = json!(["b", "nowhere"]);
    let error = chat(&service, &body).await.expect(404);
    assert!(error["error"]["message"].as_str().unwrap().contains("'nowhere'"), "{error}");
    body["models"] = json!(vec!["b"; 9]);
    let many = service.post("/v1/chat/completions", &body).undocumented().send().await;
    assert_eq!(many.expect(400)["error"]["param"], "models");

    let policy = KeyPolicy { models: Some(vec!["a".to_owned()]), ..KeyPolicy::default() };
    let accounts = &service.running.services.accounts;
    let organization = service.organization.id;
    let made = accounts.create_key_with(organization, "limited", "test", None, policy).await;
    let (_, key) = made.unwrap();
    body["models"] = json!(["b"]);
    let ask = service.ask(Role::Base, Method::POST, "/v1/chat/completions").key(&key);
    let error = ask.json(&body).send().await.expect(403);
    assert!(error["error"]["message"].as_str().unwrap().contains("'b'"), "{error}");
}

/// A chain of the organization may begin at an upstream's id.
#[tokio::test]
async fn chain_of_an_upstreams_id_ends_at_local_models() {
    let (up, near) = (Upstream::start().await, Upstream::start().await);
    let service = Service::configured(&up.config("")).await;
    service.manifest(&near.manifest("near", "chat", ""));
    fails(&up, 503);
    answers_as(&near, "near");
    assert_eq!(chat(&service, &request("far")).await.status, 503);
    let entries: Vec<Entry> = serde_json::from_value(json!([{"model": "near"}])).unwrap();
    let schema_of = |_: &str| Ok(json!({}));
    let chains = &service.running.services.chains;
    let organization = service.organization.id;
    chains.create(organization, "far", "safe", entries, &schema_of).await.unwrap();
    assert_eq!(said(&service, "far").await, "near");
    let mut named = request("far");
    named["fallback_selector"] = "safe".into();
    assert_eq!(chat(&service, &named).await.status, 200);
    named["fallback_selector"] = "other".into();
    let error = chat(&service, &named).await.expect(400);
    assert_eq!(error["error"]["param"], "fallback_selector");
}

/// Embeddings, reranking, completions and media pass the same way.
#[tokio::test]
async fn all_operations_fail_over() {
    let (one, two) = (Upstream::start().await, Upstream::start().await);
    let lines = [table("one", &one.url(), ""), table("two", &two.url(), "priority = 1")];
    let service = Service::configured(&lines.concat()).await;
    let embedding =
        json!({"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 1, "total_tokens": 1}});
    let text = json!({"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]});
    let image = json!({"data": [{"b64_json": "aGk="}]});
    let rerank = json!({"results": [{"index": 0, "relevance_score": 0.5}]});
    for (path, body, answer) in [
        ("/v1/embeddings", json!({"model": "m", "input": "a"}), embedding),
        ("/v1/completions", json!({"model": "m", "prompt": "a"}), text),
        ("/v1/rerank", json!({"model": "m", "query": "q", "documents": ["a"]}), rerank),
        ("/v1/images/generations", json!({"model": "m", "prompt": "a"}), image),
    ] {
        one.answers(500, "no");
        two.answers(200, answer.to_string());
        let said = service.post(path, &body).send().await;
        assert_eq!(said.status, 200, "{path}: {}", said.text);
        let sent = two.requests().last().unwrap().uri().path().to_owned();
        assert_eq!(sent, path, "{path}");
        // The circuit closes again.
        one.says("fine", 1, 1);
        until("closed", async || (said_by(&service).await == "fine").then_some(())).await;
    }
}

async fn said_by(service: &Service) -> String {
    let answer = chat(service, &request("m")).await;
    let answer: Value = serde_json::from_str(&answer.text).unwrap_or_default();
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

/// The operator's URL may be on a loopback address, which organizations cannot reach.
#[tokio::test]
async fn upstream_urls_are_not_subject_to_the_egress_guard() {
    let up = Upstream::start().await;
    let guard = "egress.deny = ['127.0.0.0/8']\n";
    let service = Service::configured(&(guard.to_owned() + &table("near", &up.url(), ""))).await;
    answers_as(&up, "near");
    assert_eq!(said(&service, "m").await, "near");
}

/// Without `stream_options`, a server that knows none is asked once per stream.
#[tokio::test]
async fn stream_options_follow_the_configuration() {
    let (always, never) = (Upstream::start().await, Upstream::start().await);
    let lines = [
        table("always", &always.url(), "models = ['a']\nstream_options = 'always'"),
        table("never", &never.url(), "models = ['n']\nstream_options = 'never'"),
    ];
    let service = Service::configured(&lines.concat()).await;
    always.answers(400, r#"{"error":{"message":"unknown field stream_options"}}"#);
    let body = |model: &str| {
        let mut body = request(model);
        body["stream"] = true.into();
        body
    };
    assert_eq!(chat(&service, &body("a")).await.status, 400);
    assert_eq!(always.requests().len(), 1);
    let feed = never.streams();
    feed.say("x");
    feed.finish(1, 1);
    assert_eq!(chat(&service, &body("n")).await.status, 200);
    assert_eq!(never.newest().get("stream_options"), None);
}

/// Weights split the calls among upstreams of the same priority.
#[tokio::test]
async fn weights_split_calls_among_equals() {
    let (big, small) = (Upstream::start().await, Upstream::start().await);
    let lines = [table("big", &big.url(), "weight = 3"), table("small", &small.url(), "")];
    let service = Service::configured(&lines.concat()).await;
    answers_as(&big, "big");
    answers_as(&small, "small");
    for _ in 0..20 {
        said(&service, "m").await;
    }
    assert_eq!((big.requests().len(), small.requests().len()), (15, 5));
}

/// A server's error may repeat the request's headers, also with a success status or in a stream.
#[tokio::test]
async fn secrets_of_an_upstream_are_masked_in_every_error() {
    let up = Upstream::start().await;
    let lines = format!(
        "[[router.upstreams]]\nname = 'a'\nurl = '{}'\nkey = 'sk-secret-key'\nmodels = ['*']\n\
         headers = {{ x-gateway = 'gateway-secret' }}\n",
        up.url()
    );
    let service = Service::configured(&lines).await;
    let said = r#"{"error":{"message":"bad Bearer sk-secret-key, gateway-secret","code":"sk-secret-key","type":"x"}}"#;
    let escaped =
        said.replace("sk-secret", r"sk-\u0073ecret").replace("gateway-", r"gateway\u002d");
    for (status, body, is_stream) in [
        (200, said.to_owned(), false),
        (200, escaped.clone(), true),
        (400, said.to_owned(), false),
        (400, escaped, false),
        (200, format!("data: {said}\n\n"), true),
    ] {
        up.answers(status, body.clone());
        let mut ask = request("far");
        ask["stream"] = json!(is_stream);
        let answer = service.post("/v1/chat/completions", &ask).undocumented().send().await;
        for secret in ["sk-secret-key", "gateway-secret"] {
            assert!(!answer.text.contains(secret), "{status} {body}: {}", answer.text);
        }
        assert!(answer.text.contains('…'), "{}", answer.text);
    }
    let rows = service.get("/v2/executions?type=chat").await.expect(200).to_string();
    assert!(!rows.contains("sk-secret-key") && !rows.contains("gateway-secret"), "{rows}");
}
