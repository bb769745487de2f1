//! Deliveries that are sent again because somebody asks for it, and does not wait for the answer.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use super::simulation_tests::{Behaviour, Fixture};
use super::*;
use crate::domain::delivery::{Delivery, Status, Webhook};
use crate::domain::ids::ExecutionId;
use crate::domain::payload::Payload;
use crate::runtime::new_id;
use crate::storage::faults::Point;

/// An outbox that makes one attempt, and a delivery that has failed at it.
async fn failed() -> (Fixture, ExecutionId) {
    let fixture = Fixture::started(Options { schedule: Vec::new(), ..Options::default() });
    fixture.script.set("a.example", Behaviour::Answers(500));
    let webhook = Webhook { url: "http://a.example/".to_owned(), secret: None };
    let body = Payload::Inline(serde_json::from_str("{}").unwrap());
    let now = fixture.clock.now();
    let delivery = Delivery::new(new_id(), fixture.organization, new_id(), webhook, body, now);
    let row = fixture.send_delivery(delivery).await;
    let failed = fixture.until_attempts(row, 1).await;
    assert_eq!(failed.progress.status, Status::Failed);
    fixture.until_idle().await;
    fixture.script.set("a.example", Behaviour::Answers(200));
    (fixture, row)
}

/// Drops the caller while its commit is on its way to the disk.
async fn hang_up<T>(fixture: &Fixture, asking: impl Future<Output = T>) {
    let (reached, at_sync) = mpsc::channel();
    let (go_on, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    fixture.store.faults().at_points(move |point| {
        if point == Point::Sync {
            let _dropped = reached.send(());
            let _dropped = held.lock().unwrap().recv();
        }
    });
    let mut asking = Box::pin(asking);
    while at_sync.try_recv().is_err() {
        assert!(futures_util::poll!(asking.as_mut()).is_pending());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop((asking, go_on));
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
