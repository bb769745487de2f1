//! `orrery bench` with the real binary: the format of its report, a comparison, invalid arguments,
//! and that no files or processes remain, even after an interruption.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{eventually, signal};

const BINARY: &str = env!("CARGO_BIN_EXE_orrery");
/// Figures of a run without a language model.
const FIGURES: [&str; 15] = [
    "cpu_sha256",
    "loopback_64",
    "fsync_p50",
    "fsync_p99",
    "disk_groups",
    "start",
    "create_1",
    "create_64",
    "run_1",
    "run_64",
    "workflow_1",
    "workflow_64",
    "delivery",
    "upload",
    "download",
];

/// Creates a folder on the build disk, because the system's temporary folder may be in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn bench(dir: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("bench").arg("--dir").arg(dir).args(more).stdin(Stdio::null());
    // The operator's service must not be touched.
    command.env("ORRERY_CONFIG", "/no/such/config.toml");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn bench_reports_compares_and_leaves_nothing() {
    let (folder, reports) = (folder(), folder());
    let short = ["--round", "0.03", "--json"];
    let before = done(&bench(folder.path(), &short).output().unwrap());
    assert!(is_empty(folder.path()));
    let report: Value = serde_json::from_str(&before).unwrap();
    let ids: Vec<&str> = report["figures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, FIGURES);
    for figure in report["figures"].as_array().unwrap() {
        let value = |field: &str| figure[field].as_f64().unwrap();
        assert!(value("value") > 0.0 && value("low") <= value("high"), "{figure}");
        assert!(figure["unit"].is_string() && figure["name"].is_string(), "{figure}");
    }
    let machine = &report["machine"];
    for field in ["cpu", "kernel", "disk"] {
        assert!(!machine[field].as_str().unwrap().is_empty(), "{field}: {machine}");
    }
    assert!(
        machine["cores"].as_u64().unwrap() > 0 && machine["memory_bytes"].as_u64().unwrap() > 0
    );
    assert_eq!((report["format"].as_u64(), report["version"].as_str()), (Some(1), Some("0.1.0")));
    let file = reports.path().join("before.json");
    fs::write(&file, before).unwrap();
    let mut second = bench(folder.path(), &["--round", "0.03", "--compare"]);
    second.arg(&file);
    if cfg!(feature = "llama") {
        let model = reports.path().join("small.gguf");
        crate::support::gguf::write(&model, &crate::support::gguf::SMALL, "Small", 7);
        second.arg("--model").arg(model);
    }
    let shown = done(&second.output().unwrap());
    assert!(
        shown.contains("BEFORE") && shown.contains("durable creates, 64 connections"),
        "{shown}"
    );
    assert_eq!(shown.contains("a language model writes"), cfg!(feature = "llama"), "{shown}");
    assert!(is_empty(folder.path()));
}

#[test]
fn bench_rejects_memory_and_invalid_reports() {
    let refused = bench(Path::new("/dev/shm"), &[]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(said.contains("/dev/shm is in memory") && said.contains("--dir FOLDER"), "{said}");
    let folder = folder();
    let file = folder.path().join("x.json");
    fs::write(&file, "[]").unwrap();
    let mut wrong = bench(folder.path(), &["--compare"]);
    let said = text(&wrong.arg(&file).output().unwrap().stderr);
    assert!(said.contains("is not a report: write one with"), "{said}");
}

#[test]
fn bench_interrupted_stops_its_service_and_deletes_its_folder() {
    let folder = folder();
    let mut running = bench(folder.path(), &["--round", "0.2"]);
    let mut child = running.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let own = || fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
    eventually("its service has a store", || own().find(|path| path.join("data/store").is_dir()));
    let of_folder = folder.path().to_str().unwrap();
    let services = || {
        let ids = fs::read_dir("/proc").unwrap().flatten();
        let lines = ids.filter_map(|id| fs::read(id.path().join("cmdline")).ok());
        lines.filter(|line| text(line).contains(of_folder) && text(line).contains("serve")).count()
    };
    assert_eq!(services(), 1);
    assert!(signal(child.id(), Signal::INT));
    let status = eventually("it ends", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(1));
    let said = text(&child.wait_with_output().unwrap().stderr);
    assert!(said.contains("interrupted"), "{said}");
    assert!(is_empty(folder.path()));
    assert_eq!(services(), 0);
}
