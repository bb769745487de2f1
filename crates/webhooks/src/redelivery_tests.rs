//! Tests of updates and of redeliveries, including redeliveries whose caller disconnects before the
//! response.

use std::time::Duration;

use super::simulation_tests::{Behaviour, Fixture};
use super::*;
use orrery_domain::delivery::{Delivery, Status, Webhook};
use orrery_domain::ids::ExecutionId;
use orrery_domain::payload::Payload;
use orrery_runtime::new_id;
use orrery_storage::Table;

fn delivery(fixture: &Fixture) -> Delivery {
    let webhook = Webhook::unsigned("http://a.example/".to_owned());
    let body = Payload::Inline(serde_json::from_str("{}").unwrap());
    let now = fixture.clock.now();
    Delivery::new(new_id(), fixture.organization, new_id(), webhook, body, now)
}

/// Returns an outbox that makes one attempt, and a delivery that has failed.
async fn failed() -> (Fixture, ExecutionId) {
    let fixture = Fixture::started(Options { schedule: Vec::new(), ..Options::default() });
    fixture.script.set("a.example", Behaviour::Answers(500));
    let row = fixture.send_delivery(delivery(&fixture)).await;
    let failed = fixture.until_attempts(row, 1).await;
    assert_eq!(failed.progress.status, Status::Failed);
    fixture.until_idle().await;
    fixture.script.set("a.example", Behaviour::Answers(200));
    (fixture, row)
}

/// Drops the caller while its commit is in progress.
async fn hang_up<T>(fixture: &Fixture, asking: impl Future<Output = T>) {
    drop(fixture.store.faults().hold_at_sync(asking).await);
}

/// Returns an outbox, and a delivery that waits an hour for its second attempt.
async fn waiting() -> (Fixture, ExecutionId) {
    let hour = Duration::from_secs(3600);
    let fixture = Fixture::started(Options { schedule: vec![hour], ..Options::default() });
    fixture.script.set("a.example", Behaviour::Answers(500));
    let row = fixture.send_delivery(delivery(&fixture)).await;
    let waits = fixture.until_attempts(row, 1).await;
    assert_eq!(waits.progress.status, Status::Pending);
    fixture.until("idle", async || fixture.outbox.metrics().borrow().held == 0).await;
    (fixture, row)
}

#[tokio::test]
async fn redelivery_of_a_waiting_delivery_replaces_its_next_attempt() {
    let (fixture, row) = waiting().await;
    fixture.script.set("a.example", Behaviour::Answers(200));
    fixture.outbox.redeliver(fixture.organization, row).await.unwrap();
    let delivered = fixture.until_attempts(row, 2).await;
    assert_eq!(delivered.progress.status, Status::Delivered);
    fixture.until_idle().await;
    fixture.advance(Duration::from_secs(2 * 3600));
    fixture.check_standings().await;
    assert_eq!(fixture.script.seen("a.example").len(), 2);
}

#[tokio::test]
async fn redelivery_counts_when_an_attempt_begins_before_it_is_durable() {
    let (fixture, row) = waiting().await;
    fixture.script.set("a.example", Behaviour::Answers(200));
    let redelivery = fixture.outbox.redeliver(fixture.organization, row);
    let (asking, go_on) = fixture.store.faults().hold_at_sync(redelivery).await;
    fixture.advance(Duration::from_secs(2 * 3600));
    fixture.until("the next attempt", async || fixture.script.seen("a.example").len() == 2).await;
    drop(go_on);
    asking.await.unwrap();
    let delivered = fixture.until_attempts(row, 2).await;
    assert_eq!(delivered.progress.status, Status::Delivered);
    let attempts = &delivered.progress.attempts;
    assert_eq!((attempts.len(), attempts[1].redelivery), (2, true));
    fixture.until_idle().await;
    fixture.check_standings().await;
    assert_eq!(fixture.script.seen("a.example").len(), 3);
}

#[tokio::test]
async fn redelivery_is_sent_after_its_caller_is_dropped() {
    let (fixture, row) = failed().await;
    hang_up(&fixture, fixture.outbox.redeliver(fixture.organization, row)).await;
    let delivered = fixture.until_attempts(row, 2).await;
    assert_eq!(delivered.progress.status, Status::Delivered);
    fixture.check_standings().await;
}

#[tokio::test]
async fn replay_is_sent_after_its_caller_is_dropped() {
    let (fixture, row) = failed().await;
    let now = fixture.clock.now();
    let to = now.plus(Duration::from_secs(1));
    hang_up(&fixture, fixture.outbox.replay(fixture.organization, now, to)).await;
    let delivered = fixture.until_attempts(row, 2).await;
    assert_eq!(delivered.progress.status, Status::Delivered);
    fixture.check_standings().await;
}

#[tokio::test]
async fn update_is_neither_retried_nor_replayed_and_is_deleted_with_its_rows() {
    let hour = Duration::from_secs(3600);
    let fixture = Fixture::started(Options { schedule: vec![hour], ..Options::default() });
    fixture.script.set("a.example", Behaviour::Answers(500));
    let end = delivery(&fixture);
    let update = || Delivery { execution: end.execution, ..delivery(&fixture) }.update();
    let (update, late) = (fixture.send_delivery(update()).await, update());
    assert_eq!(fixture.until_attempts(update, 1).await.progress.status, Status::Failed);
    let (end, late) = (fixture.send_delivery(end).await, fixture.send_delivery(late).await);
    assert_ne!(end, update, "they have rows of their own");
    // An update is not sent after the end.
    let late = fixture.until_attempts(late, 1).await.progress;
    let said = late.attempts.last().and_then(|attempt| attempt.error.as_deref());
    assert_eq!((late.status, said), (Status::Failed, Some("the prediction has ended")));
    assert_eq!(fixture.until_attempts(end, 1).await.progress.status, Status::Pending);
    let filter = Filter { execution: Some(end), ..Filter::default() };
    let listed = fixture.outbox.list(fixture.organization, &filter, 0, 10).await.unwrap().0;
    assert_eq!(listed.len(), 3);
    let now = fixture.clock.now();
    let (from, to) = (now.before(hour).unwrap(), now.plus(hour));
    assert_eq!(fixture.outbox.replay(fixture.organization, from, to).await.unwrap(), 0);
    // A redelivery is at the client's own request.
    fixture.script.set("a.example", Behaviour::Answers(200));
    fixture.outbox.redeliver(fixture.organization, update).await.unwrap();
    assert_eq!(fixture.until_attempts(update, 2).await.progress.status, Status::Delivered);
    assert_eq!(fixture.rows(Table::EndpointDelivery).await, 2);
    assert_eq!(fixture.outbox.purge_before(fixture.organization, to).await.unwrap(), 2);
    assert_eq!(fixture.rows(Table::EndpointDelivery).await, 0);
    fixture.check_standings().await;
}
