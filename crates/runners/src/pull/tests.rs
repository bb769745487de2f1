//! Tests jobs, leases and limits with a paused clock.

use std::future::Future;

use serde_json::json;

use super::jobs::{Jobs, POLLS_MAX, Refused};
use super::*;
use crate::{RecordingProgress, Success};
use orrery_domain::classify::ErrorClass;
use orrery_runtime::{monotonic_now, new_id, turns};

const TIMEOUT: Duration = Duration::from_secs(100);
const LEASE: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::ZERO;

fn runner(jobs: &Arc<Jobs>) -> PullRunner {
    let options = Options { lease: LEASE, organization: DEFAULT_ORGANIZATION.to_owned() };
    let model = Model::of_test("far", TIMEOUT);
    PullRunner { options: Arc::new(options), model, jobs: Arc::clone(jobs) }
}

/// Runs one job while `worker` acts as its worker; returns the result and the progress.
async fn with<F: Future<Output = ()>>(
    worker: impl FnOnce(PullRunner, KeyId) -> F,
) -> (Result<Success, crate::Error>, Arc<RecordingProgress>) {
    let jobs = Arc::<Jobs>::default();
    let progress = Arc::<RecordingProgress>::default();
    let runner_of_run = runner(&jobs);
    let run = runner_of_run.run(progress.job(json!({"n": 1})));
    let run = turns::on_behalf_of(None, turns::timeout(TIMEOUT, run));
    let (outcome, ()) = tokio::join!(run, worker(runner(&jobs), new_id()));
    (outcome.expect("the engine's time limit has passed"), progress)
}

async fn claimed(runner: &PullRunner, key: KeyId) -> (String, u32) {
    let claim = runner.claim(key, "w", TIMEOUT * 10).await.unwrap().expect("a job");
    assert_eq!((*claim.input).clone(), json!({"n": 1}));
    assert_eq!(claim.lease, LEASE);
    (claim.job.to_string(), claim.attempt)
}

#[tokio::test(start_paused = true)]
async fn job_is_completed_by_its_worker_only_once() {
    let (outcome, progress) = with(async |runner, key| {
        let (job, attempt) = claimed(&runner, key).await;
        let jobs = &runner.jobs;
        jobs.log(&job, key, attempt, "started").unwrap();
        jobs.part(&job, key, attempt, &json!("a")).unwrap();
        let stranger = jobs.heartbeat(&job, new_id(), attempt + 1);
        assert!(matches!(stranger, Err(Refused::Unknown(_))));
        tokio::time::sleep(LEASE / 2).await;
        let metrics = json!({"cost": 0.5, "input_tokens": 3}).as_object().cloned();
        jobs.complete(&job, key, attempt, json!("ab"), metrics).unwrap();
        let again = jobs.complete(&job, key, attempt, json!("ab"), None);
        assert!(matches!(again, Err(Refused::Unknown(_))));
    })
    .await;
    let success = outcome.unwrap();
    assert_eq!(success.output, json!("ab"));
    assert_eq!(success.usage.input_tokens, Some(3));
    assert_eq!(success.usage.cost.map(|cost| cost.dollars()), Some(0.5));
    assert_eq!(success.usage.run_time, LEASE / 2);
    assert_eq!(*progress.logs.lock().unwrap(), ["started"]);
    assert_eq!(*progress.parts.lock().unwrap(), [json!("a")]);
}

#[tokio::test(start_paused = true)]
async fn job_whose_lease_ends_goes_to_next_attempt() {
    let (outcome, progress) = with(async |runner, key| {
        let (job, first) = claimed(&runner, key).await;
        let jobs = &runner.jobs;
        jobs.part(&job, key, first, &json!("x")).unwrap();
        tokio::time::sleep(LEASE - Duration::from_secs(1)).await;
        jobs.heartbeat(&job, key, first).unwrap();
        tokio::time::sleep(LEASE - Duration::from_secs(1)).await;
        jobs.heartbeat(&job, key, first).unwrap();
        tokio::time::sleep(LEASE).await;
        assert_eq!(jobs.heartbeat(&job, key, first), Err(Refused::Stale { attempt: first }));
        let (same, second) = claimed(&runner, key).await;
        assert_eq!((same.as_str(), first, second), (job.as_str(), 1, 2));
        let stale = jobs.complete(&job, key, first, json!("old"), None);
        assert_eq!(stale, Err(Refused::Stale { attempt: first }));
        jobs.part(&job, key, second, &json!("y")).unwrap();
        jobs.fail(&job, key, second, "no", ErrorClass::ContentModeration).unwrap();
    })
    .await;
    let failure = outcome.unwrap_err().failure;
    assert_eq!(failure.message, "the model 'far': no");
    assert_eq!(failure.class, ErrorClass::ContentModeration);
    assert_eq!(*progress.parts.lock().unwrap(), [json!("x")], "parts of one attempt only");
}

#[tokio::test(start_paused = true)]
async fn job_fails_if_no_worker_calls() {
    let started = monotonic_now();
    let (outcome, _) = with(async |runner, _key| {
        tokio::time::sleep(TIMEOUT / 2).await;
        // A worker whose claim returns no job has also called.
        let other = super::super::options::Model::of_test("other", TIMEOUT);
        let other = PullRunner { model: other, ..self::runner(&runner.jobs) };
        assert!(other.claim(new_id(), "w", NOW).await.unwrap().is_none());
        assert!(matches!(runner.health(), Health::Failing(_)));
    })
    .await;
    let failure = outcome.unwrap_err().failure;
    assert_eq!(failure.message, "the model 'far': no worker has called within 100s");
    assert_eq!(failure.class, ErrorClass::ProviderUnavailable);
    assert_eq!(started.elapsed(), TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn dropped_run_and_dropped_claim_leave_nothing() {
    let jobs = Arc::<Jobs>::default();
    let (runner, key) = (runner(&jobs), new_id());
    let progress = Arc::<RecordingProgress>::default();
    let waiting = tokio::time::timeout(LEASE / 2, runner.claim(key, "w", TIMEOUT)).await;
    assert!(waiting.is_err(), "the claim was dropped");
    let run = runner.run(progress.job(json!({"n": 1})));
    assert!(tokio::time::timeout(LEASE / 2, run).await.is_err(), "the run was dropped");
    let expected = Situation { workers: 1, ..Situation::default() };
    assert_eq!(runner.situation(), expected);
    let (outcome, ()) = tokio::join!(runner.run(progress.job(json!({"n": 1}))), async {
        let (job, attempt) = claimed(&runner, key).await;
        assert_eq!(runner.situation(), Situation { leased: 1, ..expected });
        jobs.complete(&job, key, attempt, json!(1), None).unwrap();
    });
    assert_eq!(outcome.unwrap().output, json!(1));
}

#[tokio::test(start_paused = true)]
async fn claims_of_a_key_are_limited() {
    let jobs = Arc::<Jobs>::default();
    let (runner, key) = (runner(&jobs), new_id());
    let all = (0..POLLS_MAX).map(|_| runner.claim(key, "w", TIMEOUT));
    let all = futures_util::future::join_all(all);
    let (all, ()) = tokio::join!(all, async {
        assert_eq!(runner.claim(key, "w", NOW).await.unwrap_err(), Refused::Polls);
        assert!(runner.claim(new_id(), "w", NOW).await.unwrap().is_none());
    });
    assert!(all.into_iter().all(|claim| claim.unwrap().is_none()));
    assert!(runner.claim(key, "w", NOW).await.unwrap().is_none());
}
