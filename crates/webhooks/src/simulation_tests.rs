//! Tests of the outbox with a real store, scripted receivers, and a clock that only the test
//! advances: deliveries, stored state, and restarts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hyper::{HeaderMap, Request};
use tempfile::TempDir;

use super::rows;
use super::*;
use orrery_domain::delivery::{Delivery, Status, Webhook};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::payload::Payload;
use orrery_domain::signature;
use orrery_domain::time::Timestamp;
use orrery_runtime::{Clock, Tasks, new_id};
use orrery_storage::{Commit, Key, Page, Sealer, Store, Table};

const BODY: &str = r#"{"status":"completed",  "output":1.50}"#;
/// Time limit for every wait in a test.
const PATIENCE: Duration = Duration::from_secs(60);

/// The behaviour of a scripted receiver.
#[derive(Debug, Clone)]
pub(super) enum Behaviour {
    Answers(u16),
    /// Responds with this `Retry-After`.
    AsksToWait(u16, &'static str),
    Refuses,
    Hangs,
    Panics,
    /// Responds after a delay.
    Slow,
    /// Simulates that this machine lacks the resources to send.
    Starves,
}

/// Receivers by host, and all requests that they received.
#[derive(Debug, Default)]
pub(super) struct Script {
    behaviour: Mutex<HashMap<String, Behaviour>>,
    seen: Mutex<Vec<Seen>>,
    /// The current and the maximum number of requests in flight to slow receivers.
    slow: Mutex<(usize, usize)>,
}

#[derive(Debug, Clone)]
pub(super) struct Seen {
    host: String,
    pub(super) headers: HeaderMap,
    body: Bytes,
}

impl Script {
    pub(super) fn set(&self, host: &str, behaviour: Behaviour) {
        self.behaviour.lock().unwrap().insert(host.to_owned(), behaviour);
    }

    pub(super) fn seen(&self, host: &str) -> Vec<Seen> {
        self.seen.lock().unwrap().iter().filter(|seen| seen.host == host).cloned().collect()
    }
}

impl Transport for Script {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response, SendError>> {
        Box::pin(async move {
            let host = request.uri().host().unwrap().to_owned();
            let (head, body) = request.into_parts();
            let behaviour = self.behaviour.lock().unwrap().get(&host).cloned();
            self.seen.lock().unwrap().push(Seen { host, headers: head.headers, body });
            let answer =
                |status| Response { status, body: Bytes::from("noted"), ..Response::default() };
            match behaviour.unwrap_or(Behaviour::Answers(200)) {
                Behaviour::Answers(status) => Ok(answer(status)),
                Behaviour::AsksToWait(status, wait) => {
                    let mut answer = answer(status);
                    answer.headers.insert("retry-after", wait.parse().unwrap());
                    Ok(answer)
                }
                Behaviour::Refuses => {
                    Err(SendError::Receiver("the connection was refused".to_owned()))
                }
                Behaviour::Hangs => std::future::pending().await,
                Behaviour::Panics => panic!("scripted"),
                Behaviour::Slow => {
                    {
                        let mut slow = self.slow.lock().unwrap();
                        slow.0 += 1;
                        slow.1 = slow.1.max(slow.0);
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    self.slow.lock().unwrap().0 -= 1;
                    Ok(answer(200))
                }
                Behaviour::Starves => Err(SendError::Local("Too many open files".to_owned())),
            }
        })
    }
}

/// An outbox and its environment.
pub(super) struct Fixture {
    folder: TempDir,
    pub(super) store: Store,
    sealer: Sealer,
    pub(super) clock: Clock,
    pub(super) script: Arc<Script>,
    options: Options,
    pub(super) outbox: Outbox,
    pub(super) tasks: Tasks,
    pub(super) organization: OrganizationId,
}

impl Fixture {
    pub(super) fn new(options: Options) -> Self {
        let folder = TempDir::new().unwrap();
        let open =
            orrery_storage::Options { folder: folder.path().to_path_buf(), inline_bytes: 65_536 };
        let store = Store::open(&open).unwrap();
        let sealer = Sealer::open(folder.path()).unwrap();
        let clock = Clock::scripted("2026-11-20T09:30:00Z".parse().unwrap());
        let script = Arc::new(Script::default());
        let transport: Arc<dyn Transport> = Arc::clone(&script) as Arc<dyn Transport>;
        let shared = store.clone();
        let time = clock.clone();
        let outbox = Outbox::over(shared, sealer.clone(), transport, time, options.clone());
        let organization = new_id();
        let tasks = Tasks::new();
        Self { folder, store, sealer, clock, script, options, outbox, tasks, organization }
    }

    pub(super) fn started(options: Options) -> Self {
        let fixture = Self::new(options);
        fixture.outbox.start(&fixture.tasks);
        fixture
    }

    /// Stops the outbox with all its attempts in flight, as in a crash, and starts another outbox
    /// on the same store.
    pub(super) fn restart(&mut self) {
        self.reopen();
        self.outbox.start(&self.tasks);
    }

    pub(super) fn reopen(&mut self) {
        self.tasks.stop();
        self.tasks = Tasks::new();
        let transport: Arc<dyn Transport> = Arc::clone(&self.script) as Arc<dyn Transport>;
        let store = self.store.clone();
        let clock = self.clock.clone();
        let options = self.options.clone();
        self.outbox = Outbox::over(store, self.sealer.clone(), transport, clock, options);
    }

    fn delivery(&self, url: &str, secret: Option<&str>) -> Delivery {
        let secret = secret.map(|secret| self.sealer.seal(secret).unwrap());
        let webhook = Webhook { secret, ..Webhook::unsigned(url.to_owned()) };
        let body = Payload::Inline(serde_json::from_str(BODY).unwrap());
        let now = self.clock.now();
        Delivery::new(new_id(), self.organization, new_id(), webhook, body, now)
    }

    /// Commits a delivery as the engine does, and hands it over.
    async fn send(&self, url: &str) -> ExecutionId {
        self.send_delivery(self.delivery(url, None)).await
    }

    pub(super) async fn send_delivery(&self, delivery: Delivery) -> ExecutionId {
        let execution = delivery.row();
        let mut commit = Commit::new();
        enqueue(&mut commit, &delivery).unwrap();
        self.store.commit(commit).await.unwrap();
        self.outbox.wake(delivery);
        execution
    }

    pub(super) async fn load(&self, execution: ExecutionId) -> Delivery {
        load(&self.store, self.organization, execution).await.unwrap().unwrap()
    }

    /// Waits until `holds` returns true; calls `holds` whenever the outbox has changed.
    pub(super) async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let mut figures = self.outbox.metrics();
        let waiting = async {
            loop {
                figures.mark_unchanged();
                if holds().await {
                    return;
                }
                // A hanging attempt changes no metric, so the condition is also polled.
                let pause = Duration::from_millis(20);
                let _either = tokio::time::timeout(pause, figures.changed()).await;
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            panic!("never: {what}; {:?}", self.outbox);
        }
    }

    pub(super) async fn until_attempts(&self, execution: ExecutionId, count: usize) -> Delivery {
        self.until(&format!("{count} attempts"), async || {
            self.load(execution).await.progress.attempts.len() >= count
        })
        .await;
        self.load(execution).await
    }

    pub(super) async fn until_idle(&self) {
        self.until("idle", async || {
            self.outbox.metrics().borrow().held == 0 && self.rows(Table::Due).await == 0
        })
        .await;
    }

    /// Waits until the index and its counters match the deliveries; an attempt may start or end in
    /// the meantime.
    pub(super) async fn check_standings(&self) {
        self.until("standings agree", async || self.standings_agree().await).await;
    }

    async fn standings_agree(&self) -> bool {
        let prefix = Key::table(Table::Delivery);
        let page = Page { prefix, after: None, before: None, limit: 10_000 };
        let mut counted = HashMap::new();
        for (key, _) in self.store.page(page).await.unwrap() {
            let execution = key.last_id_inverted().unwrap();
            let found = self.outbox.find(self.organization, execution).await.unwrap().unwrap();
            *counted.entry(found.state.as_str()).or_insert(0) += 1;
        }
        let mut agree = true;
        for standing in DeliveryState::ALL {
            let count = counted.get(standing.as_str()).copied().unwrap_or(0);
            // The total is obtained twice: from the counter, and by scanning the index.
            let far = "2100-01-01T00:00:00Z".parse().unwrap();
            for to in [None, Some(far)] {
                let filter = Filter { state: Some(standing), to, ..Filter::default() };
                let found = self.outbox.list(self.organization, &filter, 0, 1).await;
                agree &= found.unwrap().1 == count;
            }
        }
        agree
    }

    pub(super) async fn rows(&self, table: Table) -> usize {
        let prefix = Key::table(table);
        self.store
            .page(Page { prefix, after: None, before: None, limit: 10_000 })
            .await
            .unwrap()
            .len()
    }

    pub(super) fn advance(&self, span: Duration) {
        self.clock.advance(span);
        self.outbox.rescan();
    }

    /// Moves the clock to the time at which the next attempt is due.
    fn advance_to(&self, due: Timestamp) {
        self.advance(due.since(self.clock.now()));
    }
}

#[tokio::test]
async fn delivery_is_signed_sent_and_acknowledged() {
    let fixture = Fixture::started(Options::default());
    let secret = "a secret — 秘密";
    let delivery = fixture.delivery("https://shop.example/hooks?a=b#c", Some(secret));
    let id = delivery.id.to_string();
    let execution = fixture.send_delivery(delivery).await;
    let delivered = fixture.until_attempts(execution, 1).await;
    assert_eq!(delivered.progress.status, Status::Delivered);
    assert_eq!(delivered.progress.next_attempt_at, None);
    let attempt = &delivered.progress.attempts[0];
    assert_eq!((attempt.number, attempt.status_code, attempt.redelivery), (1, Some(200), false));
    assert_eq!((attempt.response.as_deref(), attempt.error.as_deref()), (Some("noted"), None));
    fixture.until_idle().await;

    let seen = fixture.script.seen("shop.example");
    let [Seen { headers, body, .. }] = &seen[..] else { panic!("sent {} times", seen.len()) };
    let header = |name: &str| std::str::from_utf8(headers[name].as_bytes()).unwrap();
    assert_eq!(body, BODY.as_bytes());
    assert_eq!(header("content-type"), "application/json");
    assert_eq!(header("user-agent"), concat!("orrery/", env!("CARGO_PKG_VERSION")));
    assert_eq!(header("x-webhook-delivery-id"), id);
    let at = fixture.clock.now().unix_seconds();
    assert_eq!(header("x-webhook-timestamp"), at.to_string());
    assert!(signature::verify(secret, at, body, header("x-webhook-signature")));
    assert_eq!((header("webhook-id"), header("webhook-timestamp")), (&*id, &*at.to_string()));
    assert!(signature::verify_standard(secret, &id, at, body, header("webhook-signature")));
    assert_eq!(header("x-webhook-secret"), secret);
    assert!(!headers.contains_key("x-webhook-redelivery"));
}

#[tokio::test]
async fn delivery_without_secret_is_unsigned() {
    let fixture = Fixture::started(Options { send_plain_secret: false, ..Options::default() });
    let unsigned = fixture.delivery("http://a.example", None);
    let signed = fixture.delivery("http://b.example", Some("s"));
    for delivery in [unsigned, signed] {
        let execution = fixture.send_delivery(delivery).await;
        fixture.until_attempts(execution, 1).await;
    }
    let unsigned = fixture.script.seen("a.example");
    let signed = fixture.script.seen("b.example");
    for name in ["x-webhook-timestamp", "x-webhook-signature", "webhook-signature", "webhook-id"] {
        assert!(!unsigned[0].headers.contains_key(name), "{name}");
        assert!(signed[0].headers.contains_key(name), "{name}");
    }
    assert!(unsigned[0].headers.contains_key("x-webhook-delivery-id"));
    assert!(!signed[0].headers.contains_key("x-webhook-secret"));
}

#[tokio::test]
async fn delivery_schedule_runs_to_its_end_across_restart() {
    let mut fixture = Fixture::started(Options::default());
    fixture.script.set("a.example", Behaviour::Answers(500));
    let delivery = fixture.delivery("http://a.example/", Some("s"));
    let execution = fixture.send_delivery(delivery).await;
    let schedule: Vec<f64> = [5, 30, 120, 600, 1800, 7200, 21_600].map(f64::from).to_vec();
    for (made, delay) in schedule.iter().enumerate() {
        let delivery = fixture.until_attempts(execution, made + 1).await;
        assert_eq!(delivery.progress.status, Status::Pending);
        let due = delivery.progress.next_attempt_at.unwrap();
        let wait = due.since(fixture.clock.now()).as_secs_f64();
        assert!((wait - delay).abs() <= 0.1 * delay, "{wait} s where the schedule has {delay} s");
        if made == 3 {
            fixture.restart();
        }
        // One second before the due time, nothing happens.
        fixture.advance_to(Timestamp::from_micros(due.micros() - 1_000_000));
        assert_eq!(fixture.load(execution).await.progress.attempts.len(), made + 1);
        fixture.advance_to(due);
    }
    let failed = fixture.until_attempts(execution, 8).await;
    assert_eq!(failed.progress.status, Status::Failed);
    let numbers: Vec<u32> = failed.progress.attempts.iter().map(|a| a.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
    let error = failed.progress.attempts[7].error.as_deref();
    assert_eq!(error, Some("the receiver answered 500 Internal Server Error"));
    fixture.until_idle().await;
    fixture.advance(Duration::from_secs(86_400));
    fixture.until_idle().await;

    let seen = fixture.script.seen("a.example");
    assert_eq!(seen.len(), 8);
    let mut signatures = Vec::new();
    for Seen { headers, body, .. } in &seen {
        let text = |name: &str| headers[name].to_str().unwrap().to_owned();
        let at = text("x-webhook-timestamp").parse().unwrap();
        assert_eq!((body, text("webhook-id")), (&seen[0].body, failed.id.to_string()));
        assert!(signature::verify("s", at, body, &text("x-webhook-signature")));
        signatures.push(text("x-webhook-signature"));
    }
    signatures.dedup();
    assert_eq!(signatures.len(), 8, "each attempt is signed at its own time");
    fixture.check_standings().await;
}

#[tokio::test]
async fn delivery_outcome_depends_on_response() {
    use Behaviour::{Answers, AsksToWait, Panics, Refuses};
    let options = Options {
        schedule: vec![Duration::from_secs(100)],
        circuit_failures: 99,
        ..Options::default()
    };
    let fixture = Fixture::started(options);
    let done = |status| (status, None);
    let within = |low: u64, high: u64| (Status::Pending, Some((low, high)));
    for (number, (behaviour, (status, wait), error)) in [
        (Answers(200), done(Status::Delivered), ""),
        (Answers(204), done(Status::Delivered), ""),
        (Answers(301), within(90, 110), "301 Moved Permanently; redirects are not followed"),
        (Answers(400), within(90, 110), "the receiver answered 400 Bad Request"),
        (Answers(404), within(90, 110), "404 Not Found"),
        (Answers(410), done(Status::Failed), "410 Gone; nothing more is sent"),
        (Answers(429), within(90, 110), "429 Too Many Requests"),
        (AsksToWait(429, "500"), within(500, 500), "429 Too Many Requests"),
        (AsksToWait(503, "99999"), within(3600, 3600), "503 Service Unavailable"),
        (AsksToWait(503, "Fri, 20 Nov 2026 09:40:00 GMT"), within(600, 600), "503"),
        (AsksToWait(503, "1"), within(90, 110), "503 Service Unavailable"),
        (AsksToWait(500, "500"), within(90, 110), "500 Internal Server Error"),
        (Answers(599), within(90, 110), "the receiver answered 599"),
        (Refuses, within(90, 110), "the connection was refused"),
        (Panics, within(90, 110), "the service failed while sending"),
    ]
    .into_iter()
    .enumerate()
    {
        let host = format!("r{number}.example");
        fixture.script.set(&host, behaviour.clone());
        let execution = fixture.send(&format!("http://{host}/")).await;
        let progress = fixture.until_attempts(execution, 1).await.progress;
        assert_eq!(progress.status, status, "{behaviour:?}");
        let text = progress.attempts[0].error.clone().unwrap_or_default();
        assert!(
            text.contains(error) && text.is_empty() == error.is_empty(),
            "{behaviour:?}: {text}"
        );
        let delay = progress.next_attempt_at.map(|due| due.since(fixture.clock.now()).as_secs());
        match (delay, wait) {
            (None, None) => {}
            (Some(delay), Some((low, high))) => {
                assert!((low..=high).contains(&delay), "{behaviour:?}: {delay} s");
            }
            (delay, wait) => panic!("{behaviour:?}: {delay:?} instead of {wait:?}"),
        }
    }
}

#[tokio::test]
async fn delivery_in_flight_at_crash_is_retried() {
    let mut fixture = Fixture::started(Options::default());
    fixture.script.set("a.example", Behaviour::Hangs);
    let execution = fixture.send("http://a.example/").await;
    fixture.until("sent", async || fixture.script.seen("a.example").len() == 1).await;
    assert!(fixture.load(execution).await.progress.attempts.is_empty());
    fixture.script.set("a.example", Behaviour::Answers(200));
    fixture.restart();
    let delivered = fixture.until_attempts(execution, 1).await;
    assert_eq!(delivered.progress.status, Status::Delivered);
    assert_eq!(delivered.progress.attempts[0].number, 1);
    fixture.restart();
    fixture.until_idle().await;
    let bodies: Vec<Bytes> =
        fixture.script.seen("a.example").into_iter().map(|seen| seen.body).collect();
    assert_eq!(bodies, [BODY, BODY], "not again after the success");
}

#[tokio::test]
async fn delivery_times_out_and_shutdown_waits_for_it() {
    let fixture = Fixture::started(Options { timeout: Duration::ZERO, ..Options::default() });
    fixture.script.set("a.example", Behaviour::Hangs);
    let execution = fixture.send("http://a.example/").await;
    fixture.until("sent", async || fixture.script.seen("a.example").len() == 1).await;
    fixture.tasks.stop();
    assert!(fixture.tasks.ended(PATIENCE).await);
    let progress = fixture.load(execution).await.progress;
    assert_eq!(progress.attempts[0].error.as_deref(), Some("no complete answer within 0s"));
    assert_eq!(progress.status, Status::Pending);
}

#[tokio::test]
async fn delivery_concurrency_per_endpoint_is_capped() {
    let options = Options { in_flight_per_receiver: 3, ..Options::default() };
    let fixture = Fixture::started(options);
    // The receiver responds a few times, which increases its slots, then hangs.
    for _ in 0..5 {
        let execution = fixture.send("http://a.example:81/").await;
        fixture.until_attempts(execution, 1).await;
    }
    fixture.script.set("a.example", Behaviour::Hangs);
    for _ in 0..40 {
        fixture.send("http://a.example:81/").await;
    }
    fixture.until("in flight", async || fixture.outbox.metrics().borrow().in_flight == 3).await;
    fixture.until("parked", async || fixture.rows(Table::Parked).await == 40 - 3 - 12).await;
    assert_eq!(fixture.script.seen("a.example").len(), 5 + 3);
    assert_eq!(fixture.outbox.metrics().borrow().in_flight, 3);
}

#[tokio::test]
async fn circuit_opens_probes_closes_and_survives_restart() {
    let options = Options { circuit_failures: 3, in_flight_per_receiver: 1, ..Options::default() };
    let mut fixture = Fixture::started(options.clone());
    fixture.script.set("a.example", Behaviour::Refuses);
    let mut executions = Vec::new();
    for _ in 0..20 {
        executions.push(fixture.send("http://a.example/").await);
    }
    let open = async |fixture: &Fixture| fixture.outbox.metrics().borrow().open_circuits == 1;
    fixture.until("open", async || open(&fixture).await).await;
    fixture.until("written", async || fixture.rows(Table::Circuit).await == 1).await;
    fixture.until("parked", async || fixture.rows(Table::Parked).await >= 15).await;
    fixture.until("quiet", async || fixture.outbox.metrics().borrow().held == 0).await;
    let before = fixture.script.seen("a.example").len();
    assert_eq!(before, 3, "open at the third failure");

    fixture.restart();
    fixture.until("still open", async || open(&fixture).await).await;
    let fresh = fixture.send("http://a.example/").await;
    fixture.until("parked", async || fixture.rows(Table::Parked).await + before == 21).await;
    assert!(fixture.load(fresh).await.progress.attempts.is_empty(), "waiting uses up no attempt");
    assert_eq!(fixture.script.seen("a.example").len(), before);

    fixture.advance(options.circuit_open);
    fixture.until("one probe", async || fixture.script.seen("a.example").len() == before + 1).await;
    fixture.until("open again", async || fixture.outbox.metrics().borrow().in_flight == 0).await;

    fixture.script.set("a.example", Behaviour::Answers(200));
    fixture.advance(options.circuit_open);
    fixture
        .until("delivered", async || {
            fixture.rows(Table::Parked).await == 0 && fixture.rows(Table::Due).await == 0
        })
        .await;
    fixture.until("forgotten", async || fixture.rows(Table::Circuit).await == 0).await;
    for execution in executions {
        assert_eq!(fixture.load(execution).await.progress.status, Status::Delivered);
    }
    fixture.check_standings().await;
}

#[tokio::test]
async fn delivery_behind_open_circuit_expires() {
    let mut fixture = Fixture::started(Options { circuit_failures: 1, ..Options::default() });
    fixture.script.set("a.example", Behaviour::Refuses);
    let mut executions = Vec::new();
    for _ in 0..10 {
        executions.push(fixture.send("http://a.example/").await);
    }
    fixture.until("parked", async || fixture.rows(Table::Parked).await >= 7).await;
    // Simulates that the service was off for three days.
    fixture.tasks.stop();
    let parked = fixture.rows(Table::Parked).await;
    fixture.clock.advance(Duration::from_secs(73 * 3600));
    fixture.restart();
    let given_up = async || {
        let mut count = 0;
        for execution in &executions {
            let progress = fixture.load(*execution).await.progress;
            let last = progress.attempts.last().and_then(|attempt| attempt.error.clone());
            let says_so = last.is_some_and(|error| error.starts_with("abandoned"));
            assert_eq!(says_so, progress.status == Status::Failed);
            count += usize::from(says_so);
        }
        count
    };
    // All deliveries expire except the delivery that is sent as a probe.
    fixture.until("given up", async || given_up().await >= parked - 1).await;
    fixture.check_standings().await;
}

/// Commits deliveries without handing them over: the outbox finds them when it starts.
async fn backlog(fixture: &Fixture, count: usize, host: impl Fn(usize) -> String) {
    for beginning in (0..count).step_by(1000) {
        let mut commit = Commit::new();
        for number in beginning..count.min(beginning + 1000) {
            let url = format!("http://{}/", host(number));
            enqueue(&mut commit, &fixture.delivery(&url, None)).unwrap();
        }
        fixture.store.commit(commit).await.unwrap();
    }
}

#[tokio::test]
async fn backlog_of_dead_endpoint_blocks_no_other_and_stays_on_disk() {
    let fixture = Fixture::new(Options::default());
    fixture.script.set("dead.example", Behaviour::Hangs);
    backlog(&fixture, 100_000, |_number| "dead.example".to_owned()).await;
    fixture.advance(Duration::from_secs(1));
    let behind: Vec<Delivery> =
        (0..50).map(|_| fixture.delivery("http://living.example/", None)).collect();
    for delivery in &behind {
        let mut commit = Commit::new();
        enqueue(&mut commit, delivery).unwrap();
        fixture.store.commit(commit).await.unwrap();
    }
    fixture.outbox.start(&fixture.tasks);
    fixture.until("delivered", async || fixture.script.seen("living.example").len() == 50).await;
    fixture.until("parked", async || fixture.rows(Table::Due).await <= 10).await;
    fixture.until("committed", async || fixture.outbox.metrics().borrow().in_flight == 2).await;
    assert_eq!(fixture.script.seen("dead.example").len(), 2);
    let most_held = fixture.outbox.metrics().borrow().most_held;
    assert!(most_held <= 4096, "{most_held}");
}

#[tokio::test]
async fn backlog_of_many_endpoints_is_delivered_exactly_once() {
    let fixture = Fixture::new(Options::default());
    backlog(&fixture, 5000, |number| format!("r{}.example", number % 37)).await;
    fixture.outbox.start(&fixture.tasks);
    fixture.until("delivered", async || fixture.script.seen.lock().unwrap().len() >= 5000).await;
    fixture.until_idle().await;
    assert_eq!(fixture.rows(Table::Parked).await, 0);
    assert_eq!(fixture.script.seen.lock().unwrap().len(), 5000);
    fixture.check_standings().await;
    assert!(fixture.outbox.metrics().borrow().most_held <= 4096);
}

#[tokio::test]
async fn delivery_retention_removes_only_old_finished_deliveries() {
    let fixture = Fixture::new(Options { schedule: vec![], ..Options::default() });
    fixture.script.set("broken.example", Behaviour::Answers(500));
    fixture.script.set("dead.example", Behaviour::Hangs);
    backlog(&fixture, 300, |number| format!("r{}.example", number % 7)).await;
    fixture.outbox.start(&fixture.tasks);
    fixture.send("http://broken.example/").await;
    fixture.until("sent", async || fixture.script.seen.lock().unwrap().len() == 301).await;
    fixture.until_idle().await;
    let waits = fixture.send("http://dead.example/").await;
    fixture.advance(Duration::from_secs(3600));
    let late = fixture.send("http://late.example/").await;
    fixture.until_attempts(late, 1).await;
    let now = fixture.clock.now();
    let before = Timestamp::from_micros(now.micros() - 1_000_000);
    let organization = fixture.organization;
    assert_eq!(fixture.outbox.purge_before(organization, before).await.unwrap(), 301);
    assert_eq!(fixture.outbox.purge_before(organization, before).await.unwrap(), 0);
    assert_eq!(fixture.rows(Table::Delivery).await, 2);
    assert_eq!(fixture.load(late).await.progress.status, Status::Delivered);
    assert_eq!(fixture.load(waits).await.progress.status, Status::Pending);
    fixture.check_standings().await;
}

#[tokio::test]
async fn delivery_with_stale_row_or_lost_payload_is_cleaned_up() {
    let fixture = Fixture::new(Options::default());
    // The payload counts as lost, because the payload's folder exists but its file does not.
    std::fs::create_dir_all(fixture.folder.path().join("payloads/00")).unwrap();
    let lost: Payload = serde_json::from_str(
        r#"{"file":{"id":"0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e","bytes":9,"crc32":1}}"#,
    )
    .unwrap();
    let mut delivery = fixture.delivery("http://a.example/", None);
    delivery.body = lost;
    // The due index has a leftover row, whose delivery is deleted, and a malformed row.
    let mut commit = Commit::new();
    enqueue(&mut commit, &fixture.delivery("http://a.example/", None)).unwrap();
    let gone = fixture.delivery("http://a.example/", None);
    enqueue(&mut commit, &gone).unwrap();
    commit.delete(delivery_key(gone.organization, gone.execution));
    let damaged = rows::due(Timestamp::from_micros(1), gone.organization, gone.execution);
    commit.put_bytes(damaged, b"?".to_vec());
    fixture.store.commit(commit).await.unwrap();
    fixture.outbox.start(&fixture.tasks);
    let execution = fixture.send_delivery(delivery).await;
    fixture.until_idle().await;
    assert_eq!(fixture.script.seen("a.example").len(), 1);
    let progress = fixture.load(execution).await.progress;
    assert_eq!(progress.status, Status::Failed);
    let error = progress.attempts[0].error.as_deref();
    assert_eq!(error, Some("the payload is no longer stored"));
    assert!(fixture.folder.path().exists());
}

#[tokio::test]
async fn delivery_found_by_scan_is_not_sent_again_on_wake() {
    let fixture = Fixture::new(Options::default());
    let delivery = fixture.delivery("http://a.example/", None);
    let mut commit = Commit::new();
    enqueue(&mut commit, &delivery).unwrap();
    fixture.store.commit(commit).await.unwrap();
    fixture.outbox.start(&fixture.tasks);
    fixture.until_attempts(delivery.execution, 1).await;
    fixture.until_idle().await;
    fixture.outbox.wake(delivery.clone());
    let later = fixture.send("http://a.example/").await;
    fixture.until_attempts(later, 1).await;
    fixture.until_idle().await;
    assert_eq!(fixture.script.seen("a.example").len(), 2);
    assert_eq!(fixture.load(delivery.execution).await.progress.attempts.len(), 1);
}

#[tokio::test]
async fn delivery_local_shortage_uses_no_attempt_and_opens_no_circuit() {
    let options = Options { circuit_failures: 1, ..Options::default() };
    let fixture = Fixture::started(options);
    fixture.script.set("a.example", Behaviour::Starves);
    let execution = fixture.send("http://a.example/").await;
    fixture.until("a first try", async || !fixture.script.seen("a.example").is_empty()).await;
    fixture.until("released", async || fixture.outbox.metrics().borrow().in_flight == 0).await;
    let waiting = fixture.load(execution).await;
    assert_eq!((waiting.progress.status, waiting.progress.attempts.len()), (Status::Pending, 0));
    assert_eq!(fixture.outbox.metrics().borrow().open_circuits, 0);
    fixture.script.set("a.example", Behaviour::Answers(200));
    let delivered = fixture.until_attempts(execution, 1).await;
    assert_eq!(delivered.progress.status, Status::Delivered);
    fixture.until_idle().await;
}

#[tokio::test]
async fn test_deliveries_respect_endpoint_limits() {
    let options = Options { in_flight_per_receiver: 3, circuit_failures: 1, ..Options::default() };
    let fixture = Fixture::started(options);
    fixture.script.set("slow.example", Behaviour::Slow);
    let try_out = |host: &str| {
        let webhook = Webhook::unsigned(format!("http://{host}/"));
        fixture.outbox.send_test(fixture.organization, webhook, BODY.to_owned())
    };
    let tried = futures_util::future::join_all((0..60).map(|_| try_out("slow.example"))).await;
    let (sent, refused): (Vec<_>, Vec<_>) = tried.into_iter().partition(Result::is_ok);
    assert_eq!(fixture.script.seen("slow.example").len(), sent.len());
    assert!(sent.iter().flatten().all(|trial| trial.attempt.status_code == Some(200)));
    assert!(sent.len() >= 3 && refused.len() >= 30, "{} sent", sent.len());
    assert!(refused.into_iter().all(|one| matches!(one, Err(Refusal::Busy { .. }))));
    let peak = fixture.script.slow.lock().unwrap().1;
    assert!(peak <= 3, "{peak} at once");
    // A failing test delivery counts as a failure: the circuit opens, and the next test is refused.
    fixture.script.set("dead.example", Behaviour::Refuses);
    let failed = try_out("dead.example").await.unwrap();
    assert_eq!(failed.attempt.error.as_deref(), Some("the connection was refused"));
    assert!(matches!(try_out("dead.example").await, Err(Refusal::Busy { .. })));
    fixture.until_idle().await;
}
