//! The event stream of a prediction: what a follower receives, even if its connection breaks or it
//! connects late, and who has no access.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Method, Response};
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Ask, Provider, Service, until, within};

/// A stream of events, read one at a time.
struct Stream {
    answer: Response<Incoming>,
    read: String,
}

/// One event: its id, its name, its data.
type Event = (String, String, Value);

impl Stream {
    async fn open(ask: Ask) -> Self {
        let answer = ask.open().await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        assert_eq!(answer.headers()["cache-control"], "no-store");
        Self { answer, read: String::new() }
    }

    /// Returns the next event; `None` at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((text, rest)) = self.read.split_once("\n\n") {
                let text = text.to_owned();
                let rest = rest.to_owned();
                self.read = rest;
                let field = |name: &str| {
                    text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
                };
                if let Some(data) = field("data: ") {
                    let data = serde_json::from_str(&data).unwrap();
                    return Some((field("id: ").unwrap(), field("event: ").unwrap(), data));
                }
                continue;
            }
            let frame = within("event", self.answer.body_mut().frame()).await?.unwrap();
            let data: Bytes = frame.into_data().unwrap();
            self.read.push_str(std::str::from_utf8(&data).unwrap());
        }
    }

    async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

fn follow(service: &Service, id: &str) -> Ask {
    service.ask(Role::Base, Method::GET, &format!("/v1/prediction/{id}/events")).key(&service.key)
}

/// Returns the content of events, without times.
fn contents(events: &[Event]) -> Vec<Value> {
    let content = |(_, name, data): &Event| match name.as_str() {
        "status" => data["status"].clone(),
        "output" => data["part"].clone(),
        _ => json!(name),
    };
    events.iter().map(content).collect()
}

fn manifest(provider: &Provider, path: &str) -> String {
    let url = provider.url(path);
    format!(
        "slug = 'chat'\noutput_type = 'string'\n\
         [runner]\ntype = 'openai'\nkind = 'chat'\nmodel = 'm'\nurl = '{url}'\n"
    )
}

#[tokio::test]
async fn event_stream_resumes_without_duplicates_after_reconnect() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&manifest(&provider, "/stream"));
    let id = service.create("chat", json!({"prompt": "p"})).await;
    let mut first = Stream::open(follow(&service, &id)).await;
    let mut seen = Vec::new();
    provider.say("one");
    while !seen.iter().any(|(_, name, _): &Event| name == "output") {
        seen.push(first.next().await.unwrap());
    }
    assert_eq!(contents(&seen), [json!("created"), json!("processing"), json!("one")]);
    assert_eq!(seen[1].2["model"], "chat");
    assert_eq!(seen[2].2["attempt"], 1);
    drop(first);

    // More output arrives in the meantime; the reconnected follower misses none of it.
    provider.say(" two");
    let last = seen.last().unwrap().0.clone();
    let mut second = Stream::open(follow(&service, &id).header("last-event-id", &last)).await;
    let again = second.next().await.unwrap();
    assert_eq!(contents(std::slice::from_ref(&again)), [json!(" two")]);
    provider.finish();
    let rest = second.rest().await;
    assert_eq!(contents(&rest), ["end"]);
    assert_eq!(rest[0].2, service.ended(&id).await, "the end shows the prediction whole");
    assert_eq!(rest[0].2["output"], "one two");

    // A browser sends no key: the responses to create and get contain a link that works without
    // one.
    let link = service.get(&format!("/v1/prediction/{id}")).await;
    let link = link.header("link").to_owned();
    let (url, rel) = link.strip_prefix('<').unwrap().split_once('>').unwrap();
    assert_eq!(rel, "; rel=\"monitor\"");
    let path = url.split_once("/v1").unwrap().1;
    let open = |path: &str| service.ask(Role::Base, Method::GET, &format!("/v1{path}"));
    let mut by_link = Stream::open(open(path)).await;
    assert_eq!(by_link.next().await.unwrap().2["status"], "created");
    let other = path.replace(&id, "01990000-0000-7000-8000-000000000000");
    for wrong in [&path[..path.len() - 1], &other, path.split_once('?').unwrap().0] {
        open(wrong).send().await.expect_text(401, r#"{"error":"Invalid or missing API key"}"#);
    }

    // The prediction has ended: a 204 keeps the browser from reconnecting.
    let done = follow(&service, &id).header("last-event-id", &rest[0].0).send().await;
    assert_eq!((done.status, done.text.as_str()), (204, ""));
    // A follower that lost the connection just before the end receives only the end.
    let again = follow(&service, &id).header("last-event-id", &again.0);
    let late = Stream::open(again).await.rest().await;
    assert_eq!(contents(&late), ["end"]);
    // A late follower receives all events; with the id of another feed, it starts from the
    // beginning.
    let all = ["created", "processing", "one", " two", "end"];
    let late = Stream::open(follow(&service, &id)).await.rest().await;
    assert_eq!(contents(&late), all);
    let foreign = follow(&service, &id).header("last-event-id", "0000-2");
    let late = Stream::open(foreign).await.rest().await;
    assert_eq!(contents(&late), [&["reset"], &all[..]].concat());
}

#[tokio::test]
async fn event_stream_reports_chain_attempts_and_cancellation() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", "concurrency = 1"));
    let first = service.create("held", json!({})).await;
    provider.arrived(1).await;
    let id = service.create("held", json!({})).await;
    let mut waits = Stream::open(follow(&service, &id)).await;
    assert_eq!(contents(&[waits.next().await.unwrap()]), ["created"]);
    let mut runs = Stream::open(follow(&service, &first)).await;
    service.cancel(&first).await.expect(200);
    let events = runs.rest().await;
    assert_eq!(contents(&events), ["created", "processing", "end"]);
    assert_eq!(events[2].2["status"], "cancelled");
    provider.arrived(2).await;
    provider.release(2);
    assert_eq!(contents(&waits.rest().await), ["processing", "end"]);
    // The run's task drops the feed a moment after sending the end.
    until("nobody follows any more", async || (service.engine().in_memory() == 0).then_some(()))
        .await;
}

#[tokio::test]
async fn event_stream_resets_after_restart() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    service.manifest(&provider.manifest("held", "/hold", ""));
    let id = service.create("held", json!({})).await;
    provider.arrived(1).await;
    let mut stream = Stream::open(follow(&service, &id)).await;
    let (last, ..) = stream.next().await.unwrap();
    let service = service.restart().await;
    // The stream ended when the service stopped, before the prediction ended.
    assert!(stream.rest().await.iter().all(|(_, name, _)| name != "end"));
    let again = follow(&service, &id).header("last-event-id", &last);
    let mut stream = Stream::open(again).await;
    assert_eq!(stream.next().await.unwrap().1, "reset");
    provider.arrived(2).await;
    provider.release(2);
    assert_eq!(stream.rest().await.last().unwrap().2["status"], "success");
}

#[tokio::test]
async fn event_stream_of_other_organization_returns_404() {
    let service = Service::start().await;
    let id = service.create("text-sentiment", json!({"text": "good"})).await;
    service.ended(&id).await;
    let path = format!("/v1/prediction/{id}/events");
    let other = service.ask(Role::Base, Method::GET, &path).key(&service.other_key);
    other.send().await.expect_error(404, "Prediction not found");
    follow(&service, "17").send().await.expect_error(404, "Prediction not found");
    let no_key = service.ask(Role::Base, Method::GET, &path).send().await;
    no_key.expect_text(401, r#"{"error":"Invalid or missing API key"}"#);
}

#[tokio::test]
async fn event_stream_of_execution_reports_steps_waits_pauses_and_end() {
    let service = Service::start().await;
    let steps = json!([
        {"step_id": "a", "type": "pass", "result": 1},
        {"step_id": "w", "type": "wait", "event": {"name": "e"}},
        {"step_id": "b", "type": "model", "model": "text-template",
            "params": {"template": "said {{w.output}}"}},
    ]);
    let workflow = service.workflow(steps).await;
    let id = service.trigger(&workflow, json!({})).await;
    let path = format!("/executions/{id}/events");
    let ask = || service.flows(Method::GET, &path);
    let mut first = Stream::open(ask()).await;
    let mut seen = Vec::new();
    while !seen.iter().any(|(_, name, _): &Event| name == "wait") {
        seen.push(first.next().await.unwrap());
    }
    assert_eq!(seen[0].2["status"], "queued");
    assert!(seen.iter().any(|(_, _, data)| data["step_id"] == "a" && data["output"] == 1));
    drop(first);
    for act in ["pause", "resume"] {
        let path = format!("/executions/{id}/{act}");
        service.flows(Method::POST, &path).json(&json!({})).send().await.expect(200);
    }
    let send = format!("/executions/{id}/events/e");
    service.flows(Method::POST, &send).json(&json!({"payload": 5})).send().await.expect(202);
    // The feed was dropped together with its last follower, so it restarts from the beginning and
    // announces this.
    let last = seen.last().unwrap().0.clone();
    let rest = Stream::open(ask().header("last-event-id", &last)).await.rest().await;
    let (end_id, name, data) = rest.last().unwrap();
    assert_eq!((name.as_str(), data), ("end", &service.completed(&id).await));
    let said = |(_, name, data): &Event| name == "step" && data["output"] == "said 5";
    assert!(rest.iter().any(said), "{rest:#?}");
    let numbers: Vec<u64> =
        rest.iter().filter_map(|(id, ..)| id.rsplit_once('-')?.1.parse().ok()).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    let done = ask().header("last-event-id", end_id).send().await;
    assert_eq!(done.status, 204);
    let late = Stream::open(ask()).await.rest().await;
    assert_eq!(late.last().unwrap().1, "end");
    // Other kinds of executions and other organizations have no such events.
    let prediction = format!("/v1/prediction/{id}/events");
    service.get(&prediction).await.expect_error(404, "Prediction not found");
    let nothing = "/executions/0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e/events";
    service.flows(Method::GET, nothing).send().await.expect_error(404, "execution not found");
}

#[tokio::test]
async fn event_stream_of_changes_reports_topics_of_own_organization_until_session_ends() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let ask = |topics: &str| service.asks(&owner, Method::GET, &format!("/events{topics}"));
    ask("?topics=runs,needed").send().await.expect_error(
        400,
        "topics must be one or more of runs, webhooks, files, needs, status, workflows, members, \
         keys, secrets, balance, session, not 'needed'",
    );
    service
        .page_asks(Method::GET, "/events")
        .send()
        .await
        .expect_error(401, "you are not logged in");
    let mut all = Stream::open(ask("")).await;
    let mut files = Stream::open(ask("?topics=files")).await;
    // The stream reports no events of another organization: the first event belongs to the
    // organization's own run.
    let run = json!({"model": "text-template", "version": "0.0.1", "input": {"template": "x"}});
    let other = service.ask(Role::Base, Method::POST, "/v1/prediction/run").key(&service.other_key);
    other.json(&run).send().await.expect(200);
    let id = service.create("text-template", json!({"template": "x"})).await;
    service.ended(&id).await;
    let (_, name, data) = all.next().await.unwrap();
    assert_eq!(
        (name.as_str(), &data),
        ("changed", &json!({"topics": ["runs", "status"]})),
        "a run without a webhook"
    );
    let text = "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\nhello\r\n--b--\r\n";
    let upload = service.ask(Role::Base, Method::POST, "/v1/files").key(&service.key);
    let upload = upload.header("content-type", "multipart/form-data; boundary=b").body(text);
    upload.send().await.expect(201);
    assert_eq!(files.next().await.unwrap().2, json!({"topics": ["files"]}));
    let mut records = Stream::open(ask("?topics=workflows,members,keys,secrets,balance")).await;
    let mut reports = async |topic: &str| {
        assert_eq!(records.next().await.unwrap().2, json!({"topics": [topic]}));
    };
    service.workflow(json!([{"step_id": "a", "type": "pass", "result": 1}])).await;
    reports("workflows").await;
    service.asks(&owner, Method::POST, "/invitations").json(&json!({})).send().await.expect(201);
    reports("members").await;
    let key = json!({"name": "web shop"});
    service.asks(&owner, Method::POST, "/keys").json(&key).send().await.expect(201);
    reports("keys").await;
    let secret = service.ask(Role::Base, Method::PUT, "/v1/secrets/SHOP").key(&service.key);
    secret.json(&json!({"value": "x"})).send().await;
    reports("secrets").await;
    let dollar = orrery_domain::money::Usd::from_micros(1_000_000);
    service.running.services.billing.top_up(service.organization.id, dollar).await.unwrap();
    reports("balance").await;
    service.asks(&owner, Method::DELETE, "/session").send().await;
    files.rest().await;
    all.rest().await;
}

/// Maximum number of change streams per member.
const STREAMS_MAX: usize = 8;

#[tokio::test]
async fn event_streams_of_changes_are_limited_per_member() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let grace = service.member(&owner, "grace@example.com").await;
    let open = async |person| Stream::open(service.asks(person, Method::GET, "/events")).await;
    let mut of_grace = open(&grace).await;
    let mut streams = Vec::new();
    for _ in 0..=STREAMS_MAX {
        streams.push(open(&owner).await);
    }
    // The service closes the oldest stream, with an event that contains the time to wait before
    // reconnecting.
    let replaced = streams.remove(0).rest().await;
    let last = (replaced[0].1.as_str(), &replaced[0].2);
    assert_eq!((replaced.len(), last), (1, ("replaced", &json!({"retry_after": 60}))));
    // A freed slot is reused without closing another stream.
    drop(streams.pop());
    let text = "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\nhello\r\n--b--\r\n";
    let upload = service.ask(Role::Base, Method::POST, "/v1/files").key(&service.key);
    let upload = upload.header("content-type", "multipart/form-data; boundary=b").body(text);
    upload.send().await.expect(201);
    for stream in streams.iter_mut().chain([&mut of_grace]) {
        assert_eq!(stream.next().await.unwrap().2, json!({"topics": ["files"]}));
    }
}

#[tokio::test]
async fn event_stream_of_changes_reports_current_permissions_of_member() {
    let service = Service::start().await;
    let owner = service.owner().await;
    let grace = service.member(&owner, "grace@example.com").await;
    let alan = service.member(&owner, "alan@example.com").await;
    let topics = "/events?topics=session,files";
    let mut of_grace = Stream::open(service.asks(&grace, Method::GET, topics)).await;
    let mut of_alan = Stream::open(service.asks(&alan, Method::GET, topics)).await;
    for (person, stream) in [("grace", &mut of_grace), ("alan", &mut of_alan)] {
        let id = service.id_of(&owner, &format!("{person}@example.com")).await;
        let change = service.asks(&owner, Method::PATCH, &format!("/members/{id}"));
        change.json(&json!({"api_key_access": true})).send().await.expect(200);
        assert_eq!(stream.next().await.unwrap().2, json!({"topics": ["session"]}), "{person}");
    }
}
