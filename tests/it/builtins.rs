//! The worker processes of built-in models: which resources they cannot access, and what happens if
//! a run uses too much memory, hangs, or loses its worker.

use std::path::PathBuf;

use orrery_runners::builtin::RUNS_MAX;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Service, signal, until};

/// A service whose workers can be recognized by a special name of its binary.
struct Watched {
    service: Service,
    program: PathBuf,
    _folder: TempDir,
}

impl Watched {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("orrery");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_orrery"), &program).unwrap();
        let service = Service::adjusted("", |config| config.program.clone_from(&program)).await;
        Self { service, program, _folder: folder }
    }

    /// Returns the process ids of the live workers.
    fn workers(&self) -> Vec<u32> {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_worker = |pid: &u32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(self.program.to_str().unwrap())
        };
        pids.filter(is_worker).collect()
    }

    async fn run(&self, model: &str, input: Value) -> Value {
        let id = self.service.create(model, input).await;
        self.service.ended(&id).await
    }

    /// Starts a run that takes many seconds; returns its id and its worker's process id.
    async fn long_run(&self) -> (String, u32) {
        let template = "{% for i in range(9000) %}{{ long | upper | lower | length }}{% endfor %}";
        let input = json!({"template": template, "values": {"long": "x".repeat(1_000_000)}});
        let id = self.service.create("text-template", input).await;
        let worker = until("a worker", async || {
            // The process changes its name when it becomes the worker.
            let workers = self.workers();
            let status = |pid| std::fs::read_to_string(format!("/proc/{pid}/status")).ok();
            workers
                .into_iter()
                .find(|pid| status(*pid).is_some_and(|s| s.contains("NoNewPrivs:\t1")))
        });
        (id, worker.await)
    }

    async fn assert_well(&self) {
        let ended = self.run("text-template", json!({"template": "well"})).await;
        assert_eq!(ended["output"], "well", "{ended}");
    }
}

/// Returns a field's values in a `/proc` file of a process.
fn field(pid: u32, file: &str, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test]
async fn builtin_worker_has_no_files_privileges_or_environment() {
    let watched = Watched::start().await;
    watched.assert_well().await;
    let workers = watched.workers();
    assert_eq!(workers.len(), 1, "one run after the other needs one worker");
    let pid = workers[0];
    assert_eq!(field(pid, "limits", "Max open files")[..2], ["0", "0"]);
    assert_eq!(field(pid, "limits", "Max processes")[..2], ["0", "0"]);
    assert_eq!(field(pid, "limits", "Max file size")[..2], ["0", "0"]);
    assert_eq!(field(pid, "status", "CapPrm:"), ["0000000000000000"]);
    assert_eq!(field(pid, "status", "CapEff:"), ["0000000000000000"]);
    assert_eq!(field(pid, "status", "NoNewPrivs:"), ["1"]);
    assert_eq!(field(pid, "status", "Threads:"), ["1"]);
    assert_eq!(std::fs::read(format!("/proc/{pid}/environ")).unwrap(), b"");
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let targets = files.map(|entry| std::fs::read_link(entry.path()).unwrap());
    for target in targets {
        let shown = target.display().to_string();
        assert!(shown.starts_with("pipe:") || shown.ends_with("/statm"), "{shown}");
    }
}

#[tokio::test]
async fn builtin_run_over_memory_limit_fails_alone() {
    let watched = Watched::start().await;
    let doubled = format!("{{% set a = 'x' * 1000 %}}{}", "{% set a = a ~ a %}".repeat(40));
    let listed = format!("{{% set a = [1, 2] %}}{}{{{{ a }}}}", "{% set a = [a, a] %}".repeat(60));
    let query = format!("{}@", "map(&[@,@][], [@,@])[]|".repeat(20));
    for (model, input, expect) in [
        ("text-template", json!({"template": doubled}), "exceeds its memory limit of"),
        (
            "text-template",
            json!({"template": "{{ 'x' * 99999999 }}"}),
            "exceeds its memory limit of",
        ),
        ("text-template", json!({"template": listed}), "longer than 4194304 bytes"),
        (
            "json-query",
            json!({"expression": query, "document": [1]}),
            "exceeds its memory limit of",
        ),
    ] {
        let ended = watched.run(model, input).await;
        assert_eq!(ended["status"], "error", "{model}: {ended}");
        assert_eq!(ended["error_classification"], "invalid_user_input", "{ended}");
        assert!(ended["error"].as_str().unwrap().contains(expect), "{ended}");
        assert_eq!(ended["attempts"].as_array().unwrap().len(), 1, "it is not tried again");
    }
    watched.assert_well().await;
}

#[tokio::test]
async fn builtin_input_exhausting_the_stack_fails_alone() {
    let watched = Watched::start().await;
    for chain in ["~a", "|e", ".a", "[0]", " and a", " if a else a", "**2"] {
        let template = format!("{{{{ a{} }}}}", chain.repeat(90_000 / chain.len()));
        let input = json!({"template": template, "values": {"a": 1}});
        let ended = watched.run("text-template", input).await;
        let class = &ended["error_classification"];
        assert!(ended["status"] == "success" || class == "invalid_user_input", "{chain}: {ended}");
    }
    watched.assert_well().await;
}

#[tokio::test]
async fn builtin_killed_worker_fails_only_its_run() {
    let watched = Watched::start().await;
    let (id, worker) = watched.long_run().await;
    assert!(signal(worker, Signal::KILL));
    let ended = watched.service.ended(&id).await;
    assert_eq!(ended["error_classification"], "internal_error", "{ended}");
    let said = ended["error"].as_str().unwrap();
    assert!(said.contains("its worker ended without an answer (signal: 9 (SIGKILL))"), "{said}");
    watched.assert_well().await;
    assert!(!watched.workers().contains(&worker));
}

#[tokio::test]
async fn builtin_cancelled_run_ends_its_worker_at_once() {
    let watched = Watched::start().await;
    let (id, worker) = watched.long_run().await;
    watched.service.cancel(&id).await.expect(200);
    until("the worker ends", async || (!watched.workers().contains(&worker)).then_some(())).await;
    watched.assert_well().await;
}

#[tokio::test]
async fn builtin_runs_share_few_workers() {
    let watched = Watched::start().await;
    let (first, other) = tokio::join!(watched.long_run(), watched.long_run());
    assert_ne!(first.0, other.0);
    let mut ids = Vec::new();
    for number in 0..40 {
        let input = json!({"template": "{{ n }}", "values": {"n": number}});
        ids.push(watched.service.create("text-template", input).await);
    }
    let mut most = 0;
    for (number, id) in ids.iter().enumerate() {
        let ended = watched.service.ended(id).await;
        assert_eq!(ended["output"], number.to_string(), "{ended}");
        most = most.max(watched.workers().len());
    }
    // In addition to the completed runs, both long runs are still in progress.
    assert!((3..=RUNS_MAX).contains(&most), "{most}");
    for (id, _) in [first, other] {
        watched.service.cancel(&id).await.expect(200);
    }
}
