//! Misbehaving workers, simulated by shell scripts.

use std::path::Path;

use futures_util::FutureExt as _;
use rustix::process::{Pid, test_kill_process};
use tempfile::TempDir;

use super::*;

/// A pool whose workers run this script, with a directory as `$1`.
struct Scripted {
    workers: Workers,
    folder: TempDir,
}

impl Scripted {
    fn new(script: &str) -> Self {
        Self::within(script, Duration::from_secs(30))
    }

    fn within(script: &str, time_max: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("echo $$ >> \"$1/pids\"; {script}");
        let arguments =
            vec!["-c".into(), script.into(), "worker".into(), folder.path().as_os_str().into()];
        let workers = Workers::with("/bin/sh".into(), arguments, time_max, None);
        Self { workers, folder }
    }

    async fn run(&self) -> Result<Value, Failure> {
        self.run_weighing(Some(MIB)).await
    }

    async fn run_weighing(&self, weight: Option<u64>) -> Result<Value, Failure> {
        self.workers.run(request(weight), &Budget::new(MEMORY_MAX)).await
    }

    /// Returns the ids of the started processes, in order.
    fn pids(&self) -> Vec<i32> {
        let lines = std::fs::read_to_string(self.folder.path().join("pids")).unwrap_or_default();
        lines.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Waits until all started processes have exited.
    async fn all_end(&self) {
        let ending = async {
            for pid in self.pids() {
                let pid = Pid::from_raw(pid).unwrap();
                while test_kill_process(pid).is_ok() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), ending).await.expect("all workers exit");
    }
}

fn request(weight: Option<u64>) -> Request {
    let input = b"{}".to_vec();
    let image = b"bytes".to_vec();
    Request { model: "m", weight, reading: MIB, input, image: image.into() }
}

/// Returns a shell command that responds with this line.
fn say(answer: &str) -> String {
    format!("read job; echo '{answer}'; ")
}

async fn failure(script: &str) -> (ErrorClass, String) {
    let scripted = Scripted::new(script);
    let Failure { class, message } = scripted.run().await.unwrap_err();
    scripted.all_end().await;
    (class, message)
}

#[tokio::test]
async fn worker_exit_fails_its_run_with_a_reason() {
    use ErrorClass::{InternalError, InvalidUserInput};
    for (script, class, expect) in [
        (
            "echo 'memory allocation of 99 bytes failed' >&2; kill -ABRT $$",
            InvalidUserInput,
            "the run exceeds its memory limit of 1 MiB",
        ),
        (
            "echo \"thread 'main' has overflowed its stack\" >&2; kill -SEGV $$",
            InvalidUserInput,
            "the input nests too deeply",
        ),
        ("kill -XCPU $$", InvalidUserInput, "more than 10 s of processor time"),
        ("kill -ABRT $$", InternalError, "the model 'm': its worker ended without an answer (sig"),
        ("kill -KILL $$", InternalError, "SIGKILL"),
        ("exit 3", InternalError, "exit status: 3"),
        ("read job; echo nonsense", InternalError, "its worker's answer cannot be read"),
        ("read job; echo '{\"weight\":1}'", InternalError, "its worker's answer cannot be read"),
        ("read job; echo '\"panicked\"'", InternalError, "the model 'm' panicked"),
        ("read job; printf '{\"output\":'", InternalError, "ended without an answer"),
    ] {
        let (seen, message) = failure(script).await;
        assert_eq!(seen, class, "{script}: {message}");
        assert!(message.contains(expect), "{script}: {message}");
    }
}

#[tokio::test]
async fn worker_is_replaced_after_kill() {
    let script = format!("{}read job; kill -KILL $$", say(r#"{"output":1}"#).repeat(2));
    let scripted = Scripted::new(&script);
    assert_eq!(scripted.run().await, Ok(1.into()));
    assert_eq!(scripted.run().await, Ok(1.into()));
    assert_eq!(scripted.pids().len(), 1, "the second run reuses the worker of the first");
    let Failure { class, .. } = scripted.run().await.unwrap_err();
    assert_eq!(class, ErrorClass::InternalError);
    assert_eq!(scripted.run().await, Ok(1.into()));
    assert_eq!(scripted.pids().len(), 2);
}

#[tokio::test]
async fn worker_that_hangs_is_killed_after_timeout() {
    let scripted = Scripted::within("exec sleep 1000", Duration::from_millis(300));
    let failure = scripted.run().await.unwrap_err();
    assert_eq!(failure.class, ErrorClass::InvalidUserInput);
    assert_eq!(failure.message, "the run takes too long: make the input smaller");
    scripted.all_end().await;
    assert!(scripted.pids().len() <= 1);
}

#[tokio::test]
async fn worker_of_dropped_run_is_killed() {
    let scripted = Scripted::new("exec sleep 1000");
    let budget = Budget::new(MIB);
    {
        let mut run = std::pin::pin!(scripted.workers.run(request(Some(MIB)), &budget));
        while scripted.pids().is_empty() {
            assert!(run.as_mut().now_or_never().is_none());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    scripted.all_end().await;
    assert!(budget.take(MIB).now_or_never().is_some(), "the memory of the dropped run is free");
}

#[tokio::test]
async fn worker_idle_too_long_is_retired() {
    let scripted = Scripted::new(&format!("{}read next", say(r#"{"output":1}"#)));
    scripted.run().await.unwrap();
    scripted.workers.retire(IDLE_MAX);
    assert_eq!(scripted.workers.idle().len(), 1);
    scripted.workers.retire(Duration::ZERO);
    scripted.all_end().await;
    assert_eq!(scripted.workers.idle().len(), 0);
}

#[tokio::test]
async fn worker_of_large_run_is_not_reused() {
    let scripted = Scripted::new(&format!("{}read next", say(r#"{"output":1}"#)));
    scripted.run_weighing(Some(KEPT_MEMORY_MAX + 1)).await.unwrap();
    scripted.all_end().await;
    assert_eq!(scripted.workers.idle().len(), 0);
}

#[tokio::test]
async fn worker_memory_request_for_image_is_granted_or_rejected() {
    let script = format!(
        "{}read granted; echo \"{{\\\"output\\\":$granted}}\"",
        say(&format!(r#"{{"weight":{}}}"#, 5 * MIB))
    );
    // `read` consumes the job's head; the bytes of the input and the image precede the grant.
    let scripted = Scripted::new(&script);
    let failure = scripted.workers.run(request(None), &Budget::new(MIB)).await.unwrap_err();
    assert!(failure.message.starts_with("the run would take 5 MiB"), "{}", failure.message);
    scripted.all_end().await;
    let mut request = request(None);
    (request.input, request.image) = (Vec::new(), Bytes::new());
    let granted = scripted.workers.run(request, &Budget::new(5 * MIB)).await;
    assert_eq!(granted, Ok((5 * MIB).into()));
}

#[tokio::test]
async fn worker_that_fails_to_enter_sandbox_fails_no_run() {
    let once = "if [ ! -e \"$1/tried\" ]; then : > \"$1/tried\"; exit 125; fi; ";
    let scripted = Scripted::new(&format!("{once}{}", say(r#"{"output":1}"#)));
    assert_eq!(scripted.run().await, Ok(1.into()));
    assert_eq!(scripted.pids().len(), 2);
    let never = Scripted::within("exit 125", Duration::from_millis(200));
    assert!(never.run().await.is_err(), "retries stop at the time limit");
}

#[tokio::test]
async fn worker_that_cannot_start_is_provider_unavailable() {
    let workers = Workers::new(Path::new("/nowhere/at/all").into(), None);
    let failure = workers.run(request(Some(MIB)), &Budget::new(MIB)).await.unwrap_err();
    assert_eq!(failure.class, ErrorClass::ProviderUnavailable);
    assert!(failure.message.starts_with("the model 'm': its worker cannot be started: "));
}

#[test]
fn worker_response_with_too_many_values_is_rejected() {
    let line = format!("{{\"output\":[{}1]}}\n", "1,".repeat(JSON_VALUES_MAX));
    let Ok(Message::Failed(failure)) = parse(line.as_bytes()) else { panic!() };
    assert_eq!(failure.message, "the result holds more than 1000000 JSON values");
    assert_eq!(parse(b"{\"output\":[1,2]}\n").unwrap(), Message::Output(serde_json::json!([1, 2])));
}
