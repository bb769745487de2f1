//! Events that steps wait for: sent early and late, with keys, through links and by people; exactly
//! one takes effect.

use http_body_util::BodyExt;
use hyper::Method;
use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Ask, Service, until};

fn steps(event: Value) -> Value {
    json!([
        {"step_id": "first", "type": "pass", "result": "{{ask.resume_url}}"},
        {"step_id": "ask", "type": "wait", "event": event},
        {"step_id": "end", "type": "pass",
         "result": {"said": "{{ask.output}}", "by": "{{ask.event.source}}"}},
    ])
}

/// Starts an execution that waits for `approval`.
async fn waiting(service: &Service, event: Value) -> (String, Value) {
    let workflow = service.workflow(steps(event)).await;
    let execution = service.trigger(&workflow, json!({"inputs": {}})).await;
    let seen = until("wait for the event", async || {
        let seen = service.execution(&execution).await;
        (seen["waiting_for"][0]["reason"] == "event").then_some(seen)
    })
    .await;
    (execution, seen)
}

async fn send(service: &Service, execution: &str, name: &str, payload: Value) -> (u16, Value) {
    let path = format!("/executions/{execution}/events/{name}");
    let ask = service.flows(Method::POST, &path).json(&json!({"payload": payload}));
    let answer = ask.send().await;
    (answer.status, answer.json())
}

/// Returns the path and query of a link.
fn local(link: &str) -> String {
    let (_, path) = link.split_once("://").unwrap().1.split_once('/').unwrap();
    format!("/{path}")
}

#[tokio::test]
async fn event_answers_waiting_step_once() {
    let service = Service::start().await;
    let (execution, seen) = waiting(&service, json!({"name": "approval"})).await;
    let waits = &seen["waiting_for"][0];
    assert_eq!((&waits["step_id"], &waits["event"]), (&json!("ask"), &json!("approval")));
    let (status, taken) = send(&service, &execution, "approval", json!({"ok": true})).await;
    let expected = json!({"execution_id": execution, "event": "approval", "accepted": true});
    assert_eq!((status, taken), (202, expected));
    let ended = service.completed(&execution).await;
    assert_eq!(ended["output"], json!({"said": {"ok": true}, "by": "api"}), "{ended}");
    assert_eq!(ended["step_outputs"]["ask"]["metadata"]["event_source"], "api");
    let (status, _) = send(&service, &execution, "approval", json!({"ok": false})).await;
    assert_eq!(status, 409);
}

#[tokio::test]
async fn event_of_many_senders_is_accepted_from_one() {
    let service = Service::start().await;
    let (execution, _) = waiting(&service, json!({"name": "approval"})).await;
    let senders = (0..20).map(|n| send(&service, &execution, "approval", json!(n)));
    let answers = futures_util::future::join_all(senders).await;
    let taken: Vec<usize> = answers
        .iter()
        .enumerate()
        .filter(|(_, (status, _))| *status == 202)
        .map(|(n, _)| n)
        .collect();
    assert_eq!(taken.len(), 1, "{answers:?}");
    assert!(answers.iter().all(|(status, _)| [202, 409].contains(status)), "{answers:?}");
    let ended = service.completed(&execution).await;
    assert_eq!(ended["output"]["said"], json!(taken[0]));
}

#[tokio::test]
async fn early_event_is_kept_across_restart() {
    let service = Service::start().await;
    let workflow = service
        .workflow(json!([
            {"step_id": "one", "type": "wait", "event": {"name": "one"}},
            {"step_id": "two", "type": "wait", "event": {"name": "two"}},
        ]))
        .await;
    let execution = service.trigger(&workflow, json!({"inputs": {}})).await;
    assert_eq!(send(&service, &execution, "two", json!(2)).await.0, 202);
    assert_eq!(send(&service, &execution, "two", json!(3)).await.0, 409);
    let service = service.restart().await;
    assert_eq!(send(&service, &execution, "one", json!(1)).await.0, 202);
    let ended = service.completed(&execution).await;
    assert_eq!((&ended["output"], &ended["status"]), (&json!(2), &json!("completed")));
}

#[tokio::test]
async fn event_wakes_suspended_execution() {
    let service = Service::start().await;
    let (execution, _) = waiting(&service, json!({"name": "approval"})).await;
    // An execution that waits for a long time is suspended.
    until("execution to be put aside", async || {
        (service.engine().totals() == (0, 0)).then_some(())
    })
    .await;
    let service = service.restart().await;
    assert_eq!(send(&service, &execution, "approval", json!("late")).await.0, 202);
    let ended = service.completed(&execution).await;
    assert_eq!(ended["output"]["said"], "late");
}

#[tokio::test]
async fn event_link_answers_without_key_and_gives_no_other_access() {
    let service = Service::start().await;
    let schema = json!({"type": "object", "required": ["approved"],
        "properties": {"approved": {"type": "boolean", "title": "Approve <it>"},
            "amount": {"type": "number"}}});
    let (execution, seen) = waiting(&service, json!({"name": "approval", "schema": schema})).await;
    let link = seen["waiting_for"][0]["resume_url"].as_str().unwrap();
    // The previous step received the same link.
    let given = seen["step_outputs"]["first"]["output"].as_str().unwrap();
    assert_eq!(local(given).split_once('?').unwrap().0, local(link).split_once('?').unwrap().0);
    let path = local(link);
    let ask = |method, path: &str| service.ask(Role::Base, method, path);
    let page = ask(Method::GET, &path).send().await;
    assert_eq!((page.status, page.header("referrer-policy")), (200, "no-referrer"));
    assert!(page.text.contains("Approve &lt;it&gt;") && page.text.contains("name=\"amount\""));
    assert!(page.header("content-security-policy").starts_with("default-src 'none'"));

    let other = path.replace("/approval?", "/other?");
    assert_eq!(ask(Method::POST, &other).json(&json!({})).send().await.status, 401);
    let mut forged = path.clone();
    forged.pop();
    assert_eq!(ask(Method::POST, &forged).json(&json!({})).send().await.status, 401);
    let theirs = ask(Method::POST, path.split_once('?').unwrap().0).key(&service.other_key);
    assert_eq!(theirs.json(&json!({})).send().await.status, 404);
    let invalid = ask(Method::POST, &path).json(&json!({"payload": {"approved": "yes"}}));
    assert_eq!(invalid.send().await.status, 400);

    let form = ask(Method::POST, &path).body("approved=true&amount=2.5");
    let form = form.header("content-type", "application/x-www-form-urlencoded").undocumented();
    let answered = form.send().await;
    assert!(answered.status == 200 && answered.text.contains("Your answer was recorded"));
    let ended = service.completed(&execution).await;
    let said = json!({"said": {"approved": true, "amount": 2.5}, "by": "link"});
    assert_eq!(ended["output"], said);
    let again = ask(Method::POST, &path).json(&json!({"payload": {"approved": true}}));
    assert_eq!(again.send().await.status, 409);
    let page = ask(Method::GET, &path).send().await;
    assert!(page.text.contains("This execution has ended"), "{}", page.text);
}

#[tokio::test]
async fn missing_event_fails_step_or_uses_its_default() {
    let service = Service::start().await;
    let event = json!({"name": "approval", "timeout_seconds": 0.05, "default": {"ok": false}});
    let workflow = service.workflow(steps(event)).await;
    let execution = service.trigger(&workflow, json!({"inputs": {}})).await;
    let ended = service.completed(&execution).await;
    assert_eq!(ended["output"], json!({"said": {"ok": false}, "by": "default"}));
    let event = json!({"name": "approval", "timeout_seconds": 0.05});
    let workflow = service.workflow(steps(event)).await;
    let execution = service.trigger(&workflow, json!({"inputs": {}})).await;
    let ended = service.completed(&execution).await;
    assert_eq!((&ended["status"], &ended["error"]), (&json!("failed"), &json!("StepTimeout")));
    let cause = ended["error_cause"].as_str().unwrap();
    assert!(cause.contains("step 'ask': event 'approval' did not arrive within"), "{cause}");
    assert_eq!(send(&service, &execution, "approval", json!(1)).await.0, 409);
}

#[tokio::test]
async fn events_of_an_execution_are_bounded() {
    let service = Service::start().await;
    let (execution, _) = waiting(&service, json!({"name": "approval"})).await;
    for n in 0..100 {
        assert_eq!(send(&service, &execution, &format!("e{n}"), json!(n)).await.0, 202);
    }
    assert_eq!(send(&service, &execution, "e100", json!(1)).await.0, 409);
    assert_eq!(send(&service, &execution, "a.b", json!(1)).await.0, 400);
    let large = send(&service, &execution, "large", json!("x".repeat(70_000))).await;
    assert_eq!(large.0, 413);
    // Events for waiting steps never count against the limit.
    assert_eq!(send(&service, &execution, "approval", json!(1)).await.0, 202);
    let unknown = "0192f0c1-7a1b-7c3d-8e4f-5a6b7c8d9e0f";
    assert_eq!(send(&service, unknown, "approval", json!(1)).await.0, 404);
}

/// Returns a request that answers an event, with a missing or wrong content type.
fn raw(service: &Service, role: Role, path: &str, kind: &str, body: &str) -> Ask {
    let ask = service.ask(role, Method::POST, path).header("content-type", kind);
    ask.body(body.to_owned()).undocumented()
}

#[tokio::test]
async fn event_by_key_is_json_whatever_the_content_type() {
    let service = Service::start().await;
    let kinds = [
        "application/x-www-form-urlencoded",
        "Application/X-WWW-Form-URLencoded; charset=utf-8",
        "multipart/form-data; boundary=x",
        "text/plain",
    ];
    for (role, start) in [(Role::Workflows, "/api/v1"), (Role::Base, "/v1/workflows")] {
        for kind in kinds {
            let (execution, _) = waiting(&service, json!({"name": "approval"})).await;
            let path = format!("{start}/executions/{execution}/events/approval");
            let send = |body: &str| raw(&service, role, &path, kind, body).key(&service.key).send();
            for body in ["approved=true", "payload=1", "", " ", "[]", "{}"] {
                assert_eq!(send(body).await.status, 400, "{kind}: {body}");
            }
            assert_eq!(send(r#"{"payload": {"approved": true}}"#).await.status, 202, "{kind}");
            let ended = service.completed(&execution).await;
            assert_eq!(ended["output"]["said"], json!({"approved": true}), "{kind}");
        }
    }
}

#[tokio::test]
async fn event_without_a_payload_answers_nothing() {
    let service = Service::start().await;
    let (execution, _) = waiting(&service, json!({"name": "approval", "default": 1})).await;
    let path = format!("/executions/{execution}/events/approval");
    for (body, message) in [
        (json!({"approved": true}), "payload field is required"),
        (json!({"Payload": 1}), "payload field is required"),
        (json!({"payload": 1, "comment": "x"}), "unknown field comment: expected one of payload"),
        (json!({"payload": 1, "paylod": 2}), "unknown field paylod: did you mean payload?"),
    ] {
        let answer = service.flows(Method::POST, &path).json(&body).undocumented().send().await;
        let error = answer.expect(400)["error"].clone();
        assert!(error.as_str().unwrap().starts_with(message), "{error}");
    }
    assert_eq!(send(&service, &execution, "approval", Value::Null).await.0, 202);
    assert_eq!(service.completed(&execution).await["output"]["said"], Value::Null);
}

#[tokio::test]
async fn event_form_with_missing_fields_shows_page_again() {
    let service = Service::start().await;
    let schema = json!({"type": "object", "required": ["approved", "amount"],
        "properties": {"approved": {"type": "boolean"}, "amount": {"type": "integer"}}});
    let form = "application/x-www-form-urlencoded";
    for (event, wrong, right, said) in [
        (
            json!({"name": "approval"}),
            ["", "comment=hi", "approved=maybe"],
            "approved=true",
            json!({"approved": true}),
        ),
        (
            json!({"name": "approval", "schema": schema}),
            ["", "other=1", "approved=true&amount=<lots>"],
            "approved=false&approved=true&amount=3",
            json!({"approved": true, "amount": 3}),
        ),
    ] {
        let (execution, seen) = waiting(&service, event).await;
        let path = local(seen["waiting_for"][0]["resume_url"].as_str().unwrap());
        for body in wrong {
            let page = raw(&service, Role::Base, &path, form, body).open().await;
            let kind = page.headers()["content-type"].to_str().unwrap().to_owned();
            assert_eq!((page.status().as_u16(), &kind[..9]), (400, "text/html"), "{body}");
            let text = page.into_body().collect().await.unwrap().to_bytes();
            let text = String::from_utf8(text.to_vec()).unwrap();
            assert!(text.contains("role=\"alert\"") && text.contains("<form"), "{text}");
            assert!(!text.contains("<lots>"), "{text}");
        }
        let answered = raw(&service, Role::Base, &path, form, right).open().await;
        assert_eq!(answered.status(), 200);
        assert_eq!(service.completed(&execution).await["output"]["said"], said);
        // Somebody else has already answered, and the page says so.
        let late = raw(&service, Role::Base, &path, form, right).open().await;
        assert_eq!(late.status(), 409);
        assert!(late.headers()["content-type"].to_str().unwrap().starts_with("text/html"));
    }
}

#[tokio::test]
async fn event_link_accepts_json_and_foreign_parameters() {
    let service = Service::start().await;
    let (execution, seen) = waiting(&service, json!({"name": "approval"})).await;
    let path = local(seen["waiting_for"][0]["resume_url"].as_str().unwrap());
    for added in ["utm_source=mail", "fbclid=1", "_=1"] {
        let page = service.ask(Role::Base, Method::GET, &format!("{path}&{added}")).send().await;
        assert_eq!(page.status, 200, "{added}");
    }
    // If the caller has a key, the route rejects unknown parameters.
    let bare = path.split_once('?').unwrap().0;
    let by_key = service.ask(Role::Base, Method::GET, &format!("{bare}?_=1")).key(&service.key);
    assert_eq!(by_key.send().await.status, 400);
    let path = format!("{path}&utm_source=mail");
    let kind = "application/x-www-form-urlencoded";
    let body = " {\"payload\": {\"approved\": true}}";
    assert_eq!(raw(&service, Role::Base, &path, kind, body).send().await.status, 202);
    let ended = service.completed(&execution).await;
    assert_eq!(ended["output"]["said"], json!({"approved": true}));
}
