//! Alerts: the doctor's findings reach the operator's receiver exactly once, even across restarts
//! and outages of the receiver.

use std::time::Duration;

use orrery_api::Finding;
use orrery_domain::signature::verify_standard;
use serde_json::Value;

use crate::support::{Received, Receiver, Service, until};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Configures alerts to `receiver`. Unless `every` is short, the test itself passes in the
/// findings.
fn lines(receiver: &Receiver, every: &str) -> String {
    let url = receiver.url();
    format!("[alerts]\nurl = {url:?}\nsecret = {SECRET:?}\nevery = {every:?}\n")
}

/// Returns the body of a message whose signature is valid.
fn signed(received: &Received) -> Value {
    let header = |name: &str| received.header(name).unwrap();
    let seconds = header("webhook-timestamp").parse().unwrap();
    let (id, body) = (header("webhook-id"), received.bytes());
    assert!(verify_standard(SECRET, id, seconds, body, header("webhook-signature")));
    let body = received.json();
    assert_eq!(
        id,
        format!("{}.{}", body["data"]["id"].as_str().unwrap(), body["type"].as_str().unwrap())
    );
    body
}

/// Returns the next message about this subject.
async fn about(receiver: &mut Receiver, subject: &str) -> Value {
    loop {
        let body = signed(&receiver.next().await);
        if body["data"]["subject"] == subject {
            return body;
        }
    }
}

fn low(gigabytes: u32) -> Finding {
    Finding::warning("disk", format!("{gigabytes} GB are free")).mended_by("orrery compact")
}

#[tokio::test]
async fn alert_of_a_real_check_is_raised_and_mended() {
    let mut receiver = Receiver::start().await;
    let service = Service::configured(&lines(&receiver, "1s")).await;
    service.manifest_file("broken.toml", "slug = 'broken'\n");
    let raised = about(&mut receiver, "model").await;
    assert_eq!(raised["type"], "alert.raised");
    let data = &raised["data"];
    assert_eq!(data["severity"], "error");
    assert!(data["about"].as_str().unwrap().ends_with("/broken.toml"), "{data}");
    assert!(data["detail"].as_str().unwrap().contains("broken.toml"), "{data}");
    assert!(data["service"].as_str().unwrap().starts_with("http"), "{data}");
    std::fs::remove_file(service.models().join("broken.toml")).unwrap();
    let mended = about(&mut receiver, "model").await;
    assert_eq!(mended["type"], "alert.mended");
    assert_eq!(mended["data"]["id"], data["id"]);
}

#[tokio::test]
async fn alert_is_sent_once_across_restarts() {
    let mut receiver = Receiver::start().await;
    let service = Service::configured(&lines(&receiver, "1d")).await;
    service.running.services.alerts.observe(&[low(3)], true).await;
    let raised = signed(&receiver.next().await);
    assert_eq!(raised["data"]["fix"], "orrery compact");
    until("the outcome is stored", async || {
        let file = service.running.services.store.folder().join("alerts.json");
        std::fs::read_to_string(file).unwrap().contains("\"told\":\"warning\"").then_some(())
    })
    .await;
    let service = service.restart().await;
    let alerts = &service.running.services.alerts;
    alerts.observe(&[low(2)], true).await;
    alerts.observe(&[], true).await;
    alerts.observe(&[], true).await;
    let mended = signed(&receiver.next().await);
    assert_eq!(
        (&mended["type"], &mended["data"]["id"]),
        (&"alert.mended".into(), &raised["data"]["id"])
    );
    assert!(mended["data"].get("fix").is_none(), "{mended}");
    assert!(receiver.is_empty());
}

#[tokio::test]
async fn receiver_that_was_away_gets_the_newest_state() {
    let mut receiver = Receiver::answering([503, 503]).await;
    let service = Service::configured(&lines(&receiver, "1s")).await;
    let alerts = &service.running.services.alerts;
    let first = signed(&receiver.next().await);
    assert_eq!(first["type"], "alert.raised");
    // The same message is sent until it is acknowledged, followed by the others.
    for _ in 0..2 {
        assert_eq!(signed(&receiver.next().await)["data"]["id"], first["data"]["id"]);
    }
    until("the receiver is back", async || (!alerts.finding().concern).then_some(())).await;
}

#[tokio::test]
async fn finding_about_alerts_tells_of_the_failure() {
    let mut receiver = Receiver::answering([500; 100]).await;
    let service = Service::configured(&lines(&receiver, "1d")).await;
    let alerts = &service.running.services.alerts;
    let found = alerts.finding();
    assert!(
        !found.concern && found.detail.ends_with("as webhooks; checks run every 1d"),
        "{found:?}"
    );
    assert!(!found.detail.contains("/hook"), "the path is a secret: {found:?}");
    alerts.observe(&[low(3)], true).await;
    receiver.next().await;
    let found =
        until("the failure", async || Some(alerts.finding()).filter(|one| one.concern)).await;
    assert!(
        found.detail.contains("the receiver answered 500 Internal Server Error: thanks"),
        "{found:?}"
    );
    // The finding about alerts never becomes an alert itself.
    let own = alerts.finding();
    alerts.observe(&[low(3), own], true).await;
    let file = service.running.services.store.folder().join("alerts.json");
    let stored: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(stored["alerts"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn test_alert_in_the_form_of_ntfy() {
    let mut receiver = Receiver::saying("{\"id\":\"x\"}").await;
    let lines = format!("[alerts]\nurl = {:?}\nformat = 'ntfy'\n", receiver.url());
    let service = Service::configured(&lines).await;
    let sent =
        tokio::time::timeout(Duration::from_secs(60), service.running.services.alerts.test());
    let sent = sent.await.unwrap().unwrap();
    assert_eq!((sent.status, sent.error), (Some(200), None));
    assert_eq!(sent.answer.as_deref(), Some("{\"id\":\"x\"}"));
    let received = receiver.next().await;
    assert_eq!(received.header("tags"), Some("bell"));
    // The last part of the address depends on whether all hosts share one port.
    let title = received.header("title").unwrap();
    assert!(title.starts_with("Test on 127.0.0.") && title.ends_with(": test"), "{title}");
    assert_eq!(received.bytes(), b"This is a test of alerts: nothing is wrong.");
}
