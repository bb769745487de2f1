//! Tests of deliveries to endpoints: each delivery is signed with every valid secret, and the
//! commits of attempts update the endpoint's state.

use super::endpoints::{Endpoints, Error};
use super::simulation_tests::{Behaviour, Fixture};
use super::*;
use orrery_domain::delivery::{Delivery, Status, Webhook};
use orrery_domain::ids::ExecutionId;
use orrery_domain::payload::Payload;
use orrery_domain::signature;
use orrery_domain::webhook_endpoint::{ENDPOINTS_MAX, Endpoint, Event, Reason, Scheme};
use orrery_runtime::new_id;
use orrery_storage::Table;

const DAY: Duration = Duration::from_secs(24 * 3600);
const URL: &str = "http://hooks.example/";

fn endpoint(fixture: &Fixture) -> Endpoint {
    let now = fixture.clock.now();
    Endpoint {
        id: new_id(),
        organization: fixture.organization,
        name: None,
        url: URL.to_owned(),
        events: Vec::new(),
        models: Vec::new(),
        workflows: Vec::new(),
        scheme: Scheme::V1,
        secret: String::new(),
        send_plain_secret: false,
        public_key: None,
        replaced: None,
        disabled: None,
        failing_since: None,
        created_at: now,
        updated_at: now,
    }
}

fn delivery(fixture: &Fixture, endpoint: &Endpoint) -> Delivery {
    let webhook = Webhook::unsigned(endpoint.url.clone());
    let body = Payload::Inline(serde_json::from_str("{}").unwrap());
    let now = fixture.clock.now();
    Delivery::new(new_id(), fixture.organization, new_id(), webhook, body, now)
        .to(endpoint.id, Event::PredictionCompleted)
}

/// Sends a delivery and waits for its first attempt. Returns the delivery's row id.
async fn attempt(fixture: &Fixture, endpoint: &Endpoint) -> ExecutionId {
    let delivery = delivery(fixture, endpoint);
    let row = delivery.row();
    fixture.send_delivery(delivery).await;
    fixture.until_attempts(row, 1).await;
    fixture.until_idle().await;
    row
}

/// Restarts the outbox on the same store; the endpoints are loaded before anything is sent.
async fn restart(fixture: &mut Fixture) {
    fixture.reopen();
    fixture.outbox.endpoints().load().await.unwrap();
    fixture.outbox.start(&fixture.tasks);
}

async fn stored(endpoints: &Endpoints, endpoint: &Endpoint) -> Endpoint {
    endpoints.find(endpoint.organization, endpoint.id).await.unwrap()
}

#[tokio::test]
async fn endpoint_delivery_is_signed_by_each_valid_secret() {
    let fixture = Fixture::started(Options::default());
    let endpoints = fixture.outbox.endpoints();
    let (made, first) = endpoints.create(endpoint(&fixture)).await.unwrap();
    let (_, second) =
        endpoints.rotate(made.organization, made.id, Duration::from_secs(60)).await.unwrap();
    let secrets = [second.unwrap(), first.unwrap()];
    let row = attempt(&fixture, &made).await;
    let at = fixture.clock.now().unix_seconds();
    let seen = fixture.script.seen("hooks.example");
    let header = |index: usize| seen[index].headers["webhook-signature"].to_str().unwrap();
    let id = row.to_string();
    assert_eq!(seen[0].headers["webhook-id"], id.as_str());
    assert_eq!(header(0).split(' ').count(), 2);
    for secret in &secrets {
        assert!(signature::verify_standard(secret, &id, at, b"{}", header(0)), "{secret}");
    }
    assert!(!seen[0].headers.contains_key("x-webhook-secret"));
    fixture.clock.advance(Duration::from_secs(60));
    let row = attempt(&fixture, &made).await.to_string();
    let at = fixture.clock.now().unix_seconds();
    let seen = fixture.script.seen("hooks.example");
    let last = seen[1].headers["webhook-signature"].to_str().unwrap();
    assert!(signature::verify_standard(&secrets[0], &row, at, b"{}", last));
    assert!(!signature::verify_standard(&secrets[1], &row, at, b"{}", last));
}

#[tokio::test]
async fn endpoint_with_public_key_signs_by_ed25519() {
    let fixture = Fixture::started(Options::default());
    let endpoints = fixture.outbox.endpoints();
    let asked = Endpoint { scheme: Scheme::V1a, ..endpoint(&fixture) };
    let (made, secret) = endpoints.create(asked).await.unwrap();
    assert_eq!(secret, None);
    let row = attempt(&fixture, &made).await;
    let public = made.public_key.unwrap();
    let decode = |text: &str| {
        base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).unwrap()
    };
    let seen = fixture.script.seen("hooks.example");
    let signed = seen[0].headers["webhook-signature"].to_str().unwrap();
    let signed = decode(signed.strip_prefix("v1a,").unwrap());
    let key = decode(public.strip_prefix("whpk_").unwrap());
    let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, key);
    let message = format!("{row}.{}.{{}}", fixture.clock.now().unix_seconds());
    key.verify(message.as_bytes(), &signed).unwrap();
}

#[tokio::test]
async fn endpoint_failing_for_days_is_disabled_in_the_last_attempts_commit() {
    let options = Options { schedule: Vec::new(), circuit_failures: 1000, ..Options::default() };
    let mut fixture = Fixture::started(options);
    fixture.script.set("hooks.example", Behaviour::Answers(500));
    let endpoints = fixture.outbox.endpoints().clone();
    let (made, _) = endpoints.create(endpoint(&fixture)).await.unwrap();
    attempt(&fixture, &made).await;
    assert!(stored(&endpoints, &made).await.failing_since.is_some());
    fixture.advance(4 * DAY);
    attempt(&fixture, &made).await;
    assert_eq!(stored(&endpoints, &made).await.disabled, None);
    // After a success, the time until the endpoint is disabled starts again at the next failure.
    fixture.script.set("hooks.example", Behaviour::Answers(204));
    attempt(&fixture, &made).await;
    assert_eq!(stored(&endpoints, &made).await.failing_since, None);
    fixture.script.set("hooks.example", Behaviour::Answers(404));
    attempt(&fixture, &made).await;
    fixture.advance(4 * DAY);
    attempt(&fixture, &made).await;
    restart(&mut fixture).await;
    let endpoints = fixture.outbox.endpoints().clone();
    fixture.advance(DAY);
    attempt(&fixture, &made).await;
    let disabled = stored(&endpoints, &made).await;
    assert_eq!(disabled.disabled.map(|disabled| disabled.reason), Some(Reason::Failures));
    let audit = orrery_records::audit::Audit::new(fixture.store.clone(), fixture.clock.clone());
    let acts = audit.list(&orrery_records::audit::Filter::default(), 10).await.unwrap();
    assert_eq!(acts[0].action, "webhook_endpoint.disable");
    assert!(acts[0].subject.starts_with(&made.id.to_string()), "{}", acts[0].subject);
    assert_eq!(acts[0].actor, "service");
    // Waiting deliveries fail without being sent.
    let sent = fixture.script.seen("hooks.example").len();
    let row = attempt(&fixture, &made).await;
    let failed = fixture.load(row).await;
    assert_eq!(failed.progress.status, Status::Failed);
    let said = failed.progress.attempts[0].error.as_deref();
    assert_eq!(said, Some("the webhook endpoint is disabled"));
    assert_eq!(fixture.script.seen("hooks.example").len(), sent);
    let refused = fixture.outbox.redeliver(fixture.organization, row).await;
    assert!(matches!(refused, Err(Refusal::NoEndpoint(_))), "{refused:?}");
    // When the endpoint is enabled again, its failures are reset, and the same delivery is sent.
    let enable = |endpoint: &mut Endpoint| endpoint.disabled = None;
    let enabled = endpoints.change(made.organization, made.id, enable).await.unwrap();
    assert_eq!(enabled.failing_since, None);
    fixture.outbox.redeliver(fixture.organization, row).await.unwrap();
    fixture.until_attempts(row, 2).await;
    assert_eq!(fixture.script.seen("hooks.example").len(), sent + 1);
    fixture.check_standings().await;
}

#[tokio::test]
async fn endpoint_delivery_expired_behind_a_circuit_counts_as_failed() {
    let options = Options { circuit_failures: 1, ..Options::default() };
    let mut fixture = Fixture::started(options);
    fixture.script.set("hooks.example", Behaviour::Refuses);
    let (made, _) = fixture.outbox.endpoints().create(endpoint(&fixture)).await.unwrap();
    for _ in 0..10 {
        fixture.send_delivery(delivery(&fixture, &made)).await;
    }
    fixture.until("parked", async || fixture.rows(Table::Parked).await >= 7).await;
    // Simulates that the service was off for six days.
    fixture.tasks.stop();
    fixture.clock.advance(6 * DAY);
    restart(&mut fixture).await;
    let endpoints = fixture.outbox.endpoints();
    fixture.until("disabled", async || stored(endpoints, &made).await.disabled.is_some()).await;
}

#[tokio::test]
async fn endpoint_limit_and_names_are_exact_under_parallel_requests() {
    let fixture = Fixture::new(Options::default());
    let endpoints = fixture.outbox.endpoints();
    let named = |name: String| Endpoint { name: Some(name), ..endpoint(&fixture) };
    let both =
        futures_util::future::join_all((0..8).map(|_| endpoints.create(named("same".to_owned()))))
            .await;
    assert_eq!(both.iter().filter(|made| made.is_ok()).count(), 1, "{both:?}");
    for _ in 0..ENDPOINTS_MAX - 2 {
        endpoints.create(endpoint(&fixture)).await.unwrap();
    }
    let last =
        futures_util::future::join_all((0..8).map(|_| endpoints.create(endpoint(&fixture)))).await;
    assert_eq!(last.iter().filter(|made| made.is_ok()).count(), 1);
    assert!(last.iter().any(|made| matches!(made, Err(Error::TooMany))), "{last:?}");
    let other = endpoints.list(fixture.organization).await.unwrap().pop().unwrap();
    let rename = |endpoint: &mut Endpoint| endpoint.name = Some("same".to_owned());
    let taken = endpoints.change(fixture.organization, other.id, rename).await;
    assert!(matches!(taken, Err(Error::NameTaken(_))), "{taken:?}");
}

#[tokio::test]
async fn endpoint_cache_matches_the_store() {
    let mut fixture = Fixture::new(Options::default());
    let endpoints = fixture.outbox.endpoints().clone();
    let (made, _) = endpoints.create(endpoint(&fixture)).await.unwrap();
    let known = |endpoints: &Endpoints| endpoints.known(made.organization, made.id);
    assert_eq!(known(&endpoints).as_deref(), Some(&made));
    fixture.restart();
    let again = fixture.outbox.endpoints().clone();
    assert_eq!(known(&again), None);
    again.load().await.unwrap();
    assert_eq!(known(&again).as_deref(), Some(&made));
    again.delete(made.organization, made.id).await.unwrap();
    assert_eq!(known(&again), None);
    let gone = again.delete(made.organization, made.id).await;
    assert!(matches!(gone, Err(Error::NotFound)), "{gone:?}");
}
