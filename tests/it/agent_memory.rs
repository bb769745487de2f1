//! Conversations that exceed the model's context: the agent summarizes each conversation once and
//! stores the summary. Also tests what counts toward the memory, and exchanges that are unfinished
//! when the service stops and continue at the next start.

use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use crate::agent::{
    AGENT, PRICE, calls, completion, events, host, kinds, memory, prompt, says, script,
};
use crate::support::{Service, Upstream};

/// A context of 4,096 tokens is about 16 KiB, of which instructions and tools take about 6 KiB.
const CONTEXT: &str = "context_tokens = 4096\n";
/// Three quarters of the context, plus the overhead of the fields around messages and tools.
const REQUEST_MAX: usize = 12 * 1024 + 256;

/// Returns whether a request asks for a summary, in which case it offers no tools.
fn is_summary(request: &Value) -> bool {
    request.get("tools").is_none()
}

async fn start() -> (Upstream, Service) {
    let up = Upstream::start().await;
    let service = Service::configured(&(up.config(PRICE) + AGENT + CONTEXT)).await;
    (up, service)
}

/// Returns the charged amount in micro-dollars.
async fn charged(service: &Service) -> i64 {
    service.ledger().await.iter().map(|entry| entry.amount.micros()).sum()
}

#[tokio::test]
async fn agent_summarizes_conversation_that_fills_three_quarters_of_context() {
    let (up, service) = start().await;
    up.follows(|request| {
        if !is_summary(request) {
            return (200, completion(&says("ok")));
        }
        let asked = request["messages"][1]["content"].as_str().unwrap();
        let earlier = asked.contains("Summary until here:\n");
        let count = asked.matches("User: question").count();
        (200, completion(&says(&format!(" They asked {count} more, after some: {earlier}. "))))
    });
    let mut tasks = Vec::new();
    for number in 0..14 {
        let text = format!("question {number} {}", "word ".repeat(200));
        let before = up.requests().len();
        let said = prompt(&service, "s", &text).send().await.expect(200);
        assert!(up.newest().to_string().len() <= REQUEST_MAX, "{number}");
        if up.requests().len() == before + 2 {
            tasks.push(said["task_id"].as_str().unwrap().to_owned());
        }
    }
    assert!(tasks.len() >= 2, "{tasks:?}");
    let path = format!("/v1/tasks/{}/events", tasks[0]);
    let events = events(&host(&service, Method::GET, &path).send().await);
    assert_eq!(kinds(&events), ["status", "message", "complete"]);
    let remembered = memory(&service, "s").await;
    assert_eq!(remembered["conversation_history"].as_array().unwrap().len(), 14);
    let summary = remembered["summary"].as_str().unwrap();
    assert!(summary.starts_with("They asked ") && summary.ends_with("some: true."), "{summary}");
    let newest = up.newest();
    let messages = newest["messages"].as_array().unwrap();
    assert_eq!(
        (&messages[2]["role"], &messages[2]["content"]),
        (&json!("assistant"), &json!(summary))
    );
    let shown = newest["messages"].to_string();
    assert!(shown.contains("question 13 ") && shown.contains("question 12 "));
    assert!(!shown.contains("question 0 "), "it is summarized");
    assert_eq!(charged(&service).await, -10_000 * i64::try_from(up.requests().len()).unwrap());
    let service = service.restart().await;
    assert_eq!(memory(&service, "s").await["summary"], summary, "it is on the disk");
    host(&service, Method::DELETE, "/memory?session_id=s").send().await.expect(200);
    assert_eq!(memory(&service, "s").await["summary"], Value::Null);
}

#[tokio::test]
async fn agent_summarizes_once_across_restart() {
    let (up, service) = start().await;
    for text in ["ok", "They met."] {
        up.answers(200, completion(&says(text)).to_string());
    }
    up.is_silent();
    prompt(&service, "s", &"long ".repeat(2000)).send().await.expect(200);
    let body = json!({"message": "go on", "session_id": "s"});
    let open = host(&service, Method::POST, "/chat").json(&body).open().await;
    let task = open.headers()["x-task-id"].to_str().unwrap().to_owned();
    // The requests for the first answer, for the summary, and for the answer that never arrives.
    up.arrived(3).await;
    drop(open);
    assert!(!is_summary(&up.newest()));
    script(&up, vec![says("Done.")]);
    let service = service.restart().await;
    let path = format!("/v1/tasks/{task}/events");
    let events = events(&host(&service, Method::GET, &path).send().await);
    assert_eq!(kinds(&events), ["status", "message", "complete"]);
    assert_eq!(up.requests().len(), 4, "no second summary");
    let shown = up.newest()["messages"].clone();
    assert_eq!(shown[2]["content"], "They met.");
    let remembered = memory(&service, "s").await;
    assert_eq!(
        (&remembered["summary"], &remembered["total_exchanges"]),
        (&json!("They met."), &json!(2))
    );
    assert_eq!(charged(&service).await, -30_000, "what was cut off costs nothing");
}

#[tokio::test]
async fn agent_continues_without_failed_summary() {
    let (up, service) = start().await;
    up.follows(
        |request| {
            if is_summary(request) { (500, json!({})) } else { (200, completion(&says("ok"))) }
        },
    );
    prompt(&service, "s", &"long ".repeat(2000)).send().await.expect(200);
    let said = prompt(&service, "s", "go on").send().await.expect(200);
    assert_eq!(said["choices"][0]["message"]["content"], "ok");
    assert_eq!(
        up.newest()["messages"].as_array().unwrap().len(),
        2,
        "what does not fit is left out"
    );
    assert_eq!(memory(&service, "s").await["summary"], Value::Null);
}

#[tokio::test]
async fn agent_memory_counts_cancelled_and_answered_exchanges() {
    let up = Upstream::start().await;
    let service = Service::configured(&(up.config(PRICE) + AGENT)).await;
    up.answers(200, completion(&says("first")).to_string());
    prompt(&service, "s", "one").send().await.expect(200);
    up.is_silent();
    let body = json!({"message": "two", "session_id": "s"});
    let open = host(&service, Method::POST, "/chat").json(&body).open().await;
    let task = open.headers()["x-task-id"].to_str().unwrap().to_owned();
    up.arrived(2).await;
    let cancel = format!("/v1/tasks/{task}/cancel");
    host(&service, Method::POST, &cancel).send().await.expect(200);
    let counted = async |total: u64| {
        let memory = memory(&service, "s").await;
        assert_eq!(memory["total_exchanges"], total, "{memory}");
        memory["conversation_history"].as_array().unwrap().len()
    };
    assert_eq!(counted(2).await, 2);
    up.follows(|_request| (200, completion(&says("again"))));
    for number in 0..49 {
        prompt(&service, "s", &number.to_string()).send().await.expect(200);
    }
    assert_eq!(counted(51).await, 50);
    prompt(&service, "s", "the cancelled one is not kept any more").send().await.expect(200);
    assert_eq!(counted(52).await, 50);
}

#[tokio::test]
async fn agent_exchange_answered_during_stop_resumes_at_next_start() {
    let up = Upstream::start().await;
    let service = Service::configured(&(up.config(PRICE) + AGENT)).await;
    let feed = up.streams();
    let body = json!({"message": "go", "session_id": "s"});
    let open = host(&service, Method::POST, "/chat").json(&body).open().await;
    let task = open.headers()["x-task-id"].to_str().unwrap().to_owned();
    up.arrived(1).await;
    drop(open);
    script(&up, vec![says("It is asked again where its answer came too late."), says("Done.")]);
    let answer = async {
        // Answer within the grace period. The agent rejects this tool immediately, so it would
        // normally call the model again.
        tokio::time::sleep(Duration::from_millis(50)).await;
        feed.raw(&completion(&calls("no_such_tool", json!({}))).to_string());
        drop(feed);
    };
    let (service, ()) = tokio::join!(service.restart(), answer);
    let path = format!("/v1/tasks/{task}/events");
    let said = host(&service, Method::GET, &path).send().await.text;
    assert!(!said.contains("is stopping") && !said.contains("error_code"), "{said}");
    assert_eq!(memory(&service, "s").await["total_exchanges"], 1);
}
