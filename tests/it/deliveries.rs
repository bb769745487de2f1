//! Webhook deliveries: their history, redelivery, and test deliveries.

use hyper::Method;
use orrery_api::Role;
use orrery_domain::signature;
use serde_json::{Value, json};

use crate::support::{Answer, Provider, Receiver, Service, until};

const SECRET: &str = "a secret of theirs";

/// Creates a prediction with a webhook to `url`; returns its id.
async fn announce(service: &Service, url: &str) -> String {
    let fields = json!({
        "input": {"template": "hello"}, "webhook_url": url, "webhook_secret": SECRET,
    });
    service.create_with("text-template", fields).await
}

async fn record(service: &Service, id: &str) -> Value {
    service.get(&format!("/v1/webhooks/{id}")).await.expect(200)
}

/// Waits until the delivery has that status, and returns it.
async fn standing(service: &Service, id: &str, status: &str) -> Value {
    until(status, async || {
        let answer = service.get(&format!("/v1/webhooks/{id}")).await;
        let record = (answer.status == 200).then(|| answer.json())?;
        (record["status"] == status).then_some(record)
    })
    .await
}

async fn redeliver(service: &Service, id: &str) -> Answer {
    service.post(&format!("/v1/webhooks/{id}/redeliver"), &json!({})).send().await
}

async fn list(service: &Service, query: &str) -> Value {
    service.get(&format!("/v1/webhooks?{query}")).await.expect(200)
}

#[tokio::test]
async fn delivery_record_shows_attempts_and_no_secret() {
    let service = Service::configured("webhooks.schedule = ['1ms', '1h']\n").await;
    let mut receiver = Receiver::answering([500, 503]).await;
    let id = announce(&service, &receiver.url()).await;
    let sent = receiver.next().await;
    receiver.next().await;
    let waits = until("second attempt", async || {
        let record = service.get(&format!("/v1/webhooks/{id}")).await.json();
        // The attempt becomes durable shortly before the delivery stops counting as in flight.
        let is_done = record["attempts"].as_array()?.len() == 2 && record["status"] == "pending";
        is_done.then_some(record)
    })
    .await;
    assert_eq!(waits["redeliverable"], true);
    assert!(waits["next_attempt_at"].is_string());
    assert_eq!((&waits["execution_id"], &waits["source"]), (&json!(id), &json!("api")));
    assert_eq!(waits["execution_type"], "prediction");
    assert_eq!(waits["url"], receiver.url());
    assert_eq!(waits["request"].as_str().unwrap().as_bytes(), sent.bytes());
    assert_eq!(waits["headers"]["X-Webhook-Delivery-Id"], waits["delivery_id"]);
    assert_eq!(waits["headers"]["X-Webhook-Secret"], "********");
    let first = &waits["attempts"][0];
    for (field, value) in [
        ("number", json!(1)),
        ("status", json!("FAILED")),
        ("status_code", json!(500)),
        ("response", json!("thanks")),
        ("error_message", json!("the receiver answered 500 Internal Server Error")),
        ("redelivery", json!(false)),
    ] {
        assert_eq!(first[field], value, "{field}");
    }
    assert!(first["duration_ms"].is_u64() && first["created_at"].is_string());
    assert!(!waits.to_string().contains(SECRET));
    // Other organizations cannot see it.
    let path = format!("/v1/webhooks/{id}");
    let other = service.ask(Role::Base, Method::GET, &path).key(&service.other_key);
    other.send().await.expect_error(404, "webhook not found");
    let other = service.ask(Role::Base, Method::POST, &format!("{path}/redeliver"));
    other.key(&service.other_key).send().await.expect_error(404, "webhook not found");
    service.get("/v1/webhooks/17").await.expect_error(404, "webhook not found");
}

#[tokio::test]
async fn redelivery_before_the_next_attempt_is_sent_now() {
    let lines = "webhooks.schedule = ['1h']\nwebhooks.redelivery_cooldown = '1h'\n";
    let service = Service::configured(lines).await;
    let mut receiver = Receiver::held([500, 500]).await;
    let id = announce(&service, &receiver.url()).await;
    let first = receiver.next().await;
    redeliver(&service, &id).await.expect_error(409, "delivery in flight");
    receiver.let_go();
    let waits = until("delivery that waits", async || {
        let record = record(&service, &id).await;
        (record["status"] == "pending" && record["redeliverable"] == true).then_some(record)
    })
    .await;
    redeliver(&service, &id).await.expect(202);
    let again = receiver.next().await;
    assert_eq!(again.bytes(), first.bytes());
    assert_eq!(again.header("x-webhook-redelivery"), Some("true"));
    receiver.let_go();
    let done = until("end of the attempt", async || {
        let record = record(&service, &id).await;
        (record["attempts"].as_array()?.len() == 2 && record["status"] == "pending")
            .then_some(record)
    })
    .await;
    assert_eq!(done["delivery_id"], waits["delivery_id"]);
    assert_eq!(
        (&done["attempts"][1]["redelivery"], &done["redeliverable"]),
        (&json!(true), &json!(false))
    );
    // The delivery is pending again and in its cooldown: both responses report when the next
    // redelivery is allowed.
    let cools = service.get(&format!("/v1/webhooks/{id}")).await;
    assert!(cools.header("retry-after").parse::<u64>().unwrap() > 3000);
    assert_eq!(redeliver(&service, &id).await.status, 429);
}

#[tokio::test]
async fn redelivery_sends_same_bytes_with_new_signature() {
    let service =
        Service::configured("webhooks.schedule = []\nwebhooks.redelivery_cooldown = '1h'\n").await;
    let mut receiver = Receiver::answering([410, 200]).await;
    let id = announce(&service, &receiver.url()).await;
    let first = receiver.next().await;
    assert_eq!(first.header("x-webhook-redelivery"), None);
    let failed = standing(&service, &id, "failed").await;
    assert_eq!(failed["redeliverable"], true);
    let said = "the receiver answered 410 Gone; nothing more is sent";
    assert_eq!(failed["attempts"][0]["error_message"], said);
    let taken = redeliver(&service, &id).await.expect(202);
    assert_eq!(taken, json!({"delivery_id": failed["delivery_id"], "status": "pending"}));
    let again = receiver.next().await;
    assert_eq!(again.bytes(), first.bytes());
    assert_eq!(again.header("x-webhook-redelivery"), Some("true"));
    let ids = (again.header("x-webhook-delivery-id"), first.header("x-webhook-delivery-id"));
    assert_eq!(ids.0, ids.1);
    let time: i64 = again.header("x-webhook-timestamp").unwrap().parse().unwrap();
    let signed = again.header("x-webhook-signature").unwrap();
    assert!(signature::verify(SECRET, time, again.bytes(), signed));
    let done = standing(&service, &id, "delivered").await;
    assert_eq!(done["attempts"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&done["attempts"][1]["redelivery"], &done["attempts"][1]["number"]),
        (&json!(true), &json!(2))
    );
    assert_eq!(done["redeliverable"], false, "it cools down");
    let refused = redeliver(&service, &id).await;
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((3500..=3600).contains(&wait), "{wait}");
    assert!(receiver.is_empty());
    // The cooldown survives a restart.
    let service = service.restart().await;
    assert_eq!(redeliver(&service, &id).await.status, 429);
}

#[tokio::test]
async fn redelivery_without_payload_returns_410() {
    let service = Service::configured("engine.payload_inline_bytes = 1024\n").await;
    let mut receiver = Receiver::start().await;
    let input = json!({"template": "x".repeat(5000)});
    let fields = json!({"input": input, "webhook_url": receiver.url()});
    let id = service.create_with("text-template", fields).await;
    receiver.next().await;
    standing(&service, &id, "delivered").await;
    // Delete the files, not their folders: payloads in a missing folder do not count as deleted.
    for shard in std::fs::read_dir(service.folder.path().join("data/payloads")).unwrap() {
        for file in std::fs::read_dir(shard.unwrap().path()).unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
    }
    redeliver(&service, &id).await.expect_error(410, "payload no longer stored");
    let record = record(&service, &id).await;
    assert_eq!((&record["request"], &record["redeliverable"]), (&Value::Null, &json!(false)));
}

#[tokio::test]
async fn delivery_list_is_filtered_and_counted_exactly() {
    let service = Service::configured("webhooks.schedule = ['1h']\n").await;
    let mut good = Receiver::start().await;
    let mut gone = Receiver::answering([410, 410, 410]).await;
    let mut busy = Receiver::answering([500; 2]).await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(announce(&service, &good.url()).await);
        good.next().await;
    }
    for _ in 0..3 {
        ids.push(announce(&service, &gone.url()).await);
        gone.next().await;
    }
    for _ in 0..2 {
        ids.push(announce(&service, &busy.url()).await);
        busy.next().await;
    }
    for (id, status) in
        ids.iter().zip(["delivered"; 4].into_iter().chain(["failed"; 3]).chain(["pending"; 2]))
    {
        standing(&service, id, status).await;
    }
    let host = |receiver: &Receiver| {
        let url = receiver.url();
        url.strip_prefix("http://").unwrap().split('/').next().unwrap().to_owned()
    };
    let middle = record(&service, &ids[4]).await["created_at"].as_str().unwrap().to_owned();
    for (query, total) in [
        (String::new(), 9),
        ("status=delivered".to_owned(), 4),
        ("status=failed".to_owned(), 3),
        ("status=pending".to_owned(), 2),
        ("status=delivering".to_owned(), 0),
        (format!("host={}", host(&good)), 4),
        ("host=127.0.0.1".to_owned(), 9),
        ("host=localhost".to_owned(), 0),
        (format!("host={}&status=failed", host(&good)), 0),
        (format!("execution={}", ids[5]), 1),
        (format!("execution={}&status=delivered", ids[5]), 0),
        (format!("from={middle}"), 5),
        (format!("to={middle}"), 4),
        (format!("from={middle}&status=failed"), 3),
        ("from=2001-01-01T00:00:00Z&to=2002-01-01T00:00:00Z".to_owned(), 0),
    ] {
        let page = list(&service, &format!("{query}&limit=100")).await;
        assert_eq!(page["total_count"], total, "{query}");
        assert_eq!(
            page["webhooks"].as_array().unwrap().len(),
            usize::try_from(total).unwrap(),
            "{query}"
        );
    }
    check_pages(&service, ids).await;
    let other = service.ask(Role::Base, Method::GET, "/v1/webhooks").key(&service.other_key);
    assert_eq!(other.send().await.expect(200)["total_count"], 0);
    for (query, says) in [
        ("status=lost", "status must be one of pending, delivering, delivered, failed"),
        ("status=", "status must be one of pending, delivering, delivered, failed"),
        ("from=", "from must be a time such as 2026-11-20T09:30:00Z"),
        ("execution=17", "execution must be a UUID"),
        ("from=yesterday", "from must be a time such as 2026-11-20T09:30:00Z"),
        ("limit=101", "limit must be a whole number from 1 to 100"),
    ] {
        service.get(&format!("/v1/webhooks?{query}")).await.expect_error(400, says);
    }
}

#[tokio::test]
async fn delivery_record_names_the_type_of_its_execution() {
    let service = Service::start().await;
    let mut receiver = Receiver::start().await;
    let steps = json!([{"step_id": "say", "type": "pass", "result": 1}]);
    let flow = service.workflow_of(json!({"steps": steps})).await;
    let run = service.trigger(&flow, json!({"webhook_url": receiver.url()})).await;
    receiver.next().await;
    let prediction = announce(&service, &receiver.url()).await;
    receiver.next().await;
    let listed = list(&service, "").await;
    for (id, kind) in [(run, "workflow"), (prediction, "prediction")] {
        assert_eq!(standing(&service, &id, "delivered").await["execution_type"], kind);
        let rows = listed["webhooks"].as_array().unwrap();
        let row = rows.iter().find(|row| row["execution_id"] == id).unwrap();
        assert_eq!(row["execution_type"], kind, "{row}");
    }
}

/// Checks that the pages list the deliveries newest first, each once.
async fn check_pages(service: &Service, mut ids: Vec<String>) {
    let mut paged = Vec::new();
    for offset in 0..5 {
        let page = list(service, &format!("limit=2&offset={}", 2 * offset)).await;
        assert_eq!((&page["limit"], &page["offset"]), (&json!(2), &json!(2 * offset)));
        for one in page["webhooks"].as_array().unwrap() {
            assert!(one.get("attempts").is_none());
            paged.push(one["execution_id"].as_str().unwrap().to_owned());
        }
    }
    ids.reverse();
    assert_eq!(paged, ids);
}

#[tokio::test]
async fn delivery_replay_resends_failures_of_a_time_window() {
    let service = Service::configured("webhooks.schedule = []\n").await;
    let mut receiver = Receiver::answering([400, 400, 400]).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(announce(&service, &receiver.url()).await);
        receiver.next().await;
    }
    let delivered = announce(&service, &receiver.url()).await;
    receiver.next().await;
    standing(&service, &delivered, "delivered").await;
    for id in &ids {
        standing(&service, id, "failed").await;
    }
    let since = record(&service, &ids[1]).await["created_at"].clone();
    let replay = async |body: Value| service.post("/v1/webhooks/replay", &body).send().await;
    let body = json!({"from": since, "to": "2100-01-01T00:00:00Z", "status": "failed"});
    assert_eq!(replay(body.clone()).await.expect(202), json!({"count": 2}));
    for id in &ids[1..] {
        standing(&service, id, "delivered").await;
    }
    assert_eq!(record(&service, &ids[0]).await["status"], "failed");
    let again = [receiver.next().await.json(), receiver.next().await.json()];
    let again: Vec<_> = again.iter().map(|body| body["execution_id"].clone()).collect();
    assert!(ids[1..].iter().all(|id| again.contains(&json!(id))), "{again:?}");
    assert_eq!(replay(body).await.expect(202), json!({"count": 0}), "nothing failed is left there");
    for (body, says) in [
        (json!({}), "from is required"),
        (json!({"from": since}), "to is required"),
        (
            json!({"from": "x", "to": "y"}),
            "from is not an RFC 3339 time such as 2026-11-20T09:30:00Z",
        ),
        (json!({"from": since, "to": since}), "to must be later than from"),
        (
            json!({"from": "2001-01-01T00:00:00Z", "to": since, "status": "delivered"}),
            "status must be failed: nothing else is sent again",
        ),
    ] {
        replay(body).await.expect_error(400, says);
    }
}

#[tokio::test]
async fn delivery_test_reports_receiver_response() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::start().await;
    let test = async |body: Value| service.post("/v1/webhooks/test", &body).send().await;
    let body = json!({"url": receiver.url(), "webhook_secret": SECRET});
    let answer = test(body).await.expect(200);
    let sent = receiver.next().await;
    assert_eq!((&answer["status"], &answer["status_code"]), (&json!("SUCCESS"), &json!(200)));
    assert_eq!((&answer["response"], &answer["error_message"]), (&json!("thanks"), &Value::Null));
    assert_eq!(answer["request"].as_str().unwrap().as_bytes(), sent.bytes());
    assert_eq!(sent.json()["test"], true);
    let time: i64 = sent.header("x-webhook-timestamp").unwrap().parse().unwrap();
    let signed = sent.header("x-webhook-signature").unwrap();
    assert!(signature::verify(SECRET, time, sent.bytes(), signed));
    assert!(!answer.to_string().contains(SECRET));
    let answer = test(json!({"url": provider.url("/status/503")})).await.expect(200);
    assert_eq!((&answer["status"], &answer["status_code"]), (&json!("FAILED"), &json!(503)));
    let answer = test(json!({"url": "http://127.0.0.1:1/"})).await.expect(200);
    assert_eq!(answer["error_message"], "the host cannot be reached");
    test(json!({})).await.expect_error(400, "url is required");
    let refused = test(json!({"url": "http://169.254.169.254/"})).await.expect(400);
    assert!(refused["error"].as_str().unwrap().starts_with("url "), "{refused}");
    assert_eq!(list(&service, "").await["total_count"], 0, "nothing of it is kept");
}

#[tokio::test]
async fn delivery_to_paused_receiver_shows_when_the_receiver_is_tried_again() {
    let lines = "webhooks.schedule = ['1ms', '1h']\nwebhooks.circuit_failures = 2\nwebhooks.circuit_open = '1h'\n";
    let service = Service::configured(lines).await;
    let mut receiver = Receiver::answering([500; 20]).await;
    let owner = service.owner().await;
    let endpoint = json!({"url": receiver.url(), "events": ["prediction.completed"]});
    announce(&service, &receiver.url()).await;
    for _ in 0..2 {
        receiver.next().await;
    }
    let probe = until("open circuit", async || {
        let path = "/webhooks/receivers";
        let found = service.asks(&owner, Method::GET, path).send().await.expect(200);
        found["receivers"][0]["next_probe_at"].as_str().map(str::to_owned)
    })
    .await;
    // Deliveries that are due now wait for the receiver's probe: the run's own delivery, and an
    // endpoint's.
    let own = announce(&service, &receiver.url()).await;
    service.ended(&own).await;
    service.post("/v1/webhook-endpoints", &endpoint).send().await.expect(201);
    let other = service.create("text-template", json!({"template": "x"})).await;
    for (id, count) in [(&own, 1), (&other, 1)] {
        let found = until("deliveries", async || {
            let found = list(&service, &format!("execution={id}")).await;
            let all = found["webhooks"].as_array()?.clone();
            (all.len() == count && all.iter().all(|one| one["status"] == "pending")).then_some(all)
        })
        .await;
        for one in found {
            assert_eq!(one["next_attempt_at"], probe, "{one}");
            assert_eq!(one["redeliverable"], false, "{one}");
        }
    }
    // A receiver that works is not affected: its next attempt delivers.
    let works = Receiver::answering([500]).await;
    let id = announce(&service, &works.url()).await;
    standing(&service, &id, "delivered").await;
}
