//! The commands for workflows, schedules, webhook endpoints, files and members, and the
//! completions of bash.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

use crate::support::service::Setup;

const WORKFLOW: &str = r#"{"name": "Echo", "description": "d", "definition": {"steps": [
    {"step_id": "a", "type": "pass", "result": "{{inputs.x}}"}]}}"#;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Returns the words of the second line: the first row of a table.
fn row(table: &str) -> Vec<String> {
    table.lines().nth(1).unwrap().split_whitespace().map(str::to_owned).collect()
}

fn with_workflow(setup: &Setup) {
    let folder = setup.config().parent().unwrap();
    let flows = folder.join("flows");
    fs::create_dir(&flows).unwrap();
    fs::write(flows.join("echo.json"), WORKFLOW).unwrap();
    setup.run(&["workflow", "push", flows.to_str().unwrap()]);
}

#[test]
fn workflow_is_listed_shown_run_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    with_workflow(&setup);
    assert_eq!(row(&setup.run(&["workflow", "list"]))[..3], ["echo", "Echo", "active"]);
    let listed = json(&setup.run(&["workflow", "list", "--json"]));
    assert_eq!(listed["workflows"][0]["slug"], "echo");
    let shown = json(&setup.run(&["workflow", "show", "echo"]));
    assert_eq!(shown["definition"]["steps"][0]["step_id"], "a");
    fs::write(folder.path().join("in.json"), r#"{"x": [7]}"#).unwrap();
    let output = setup.run(&["workflow", "run", "echo", "--input", "@in.json"]);
    assert_eq!(json(&output), serde_json::json!([7]));
    let whole = setup.run(&["workflow", "run", "echo", "--input", r#"{"x": 1}"#, "--json"]);
    assert_eq!(json(&whole)["status"], "completed");
    let (done, output, said) = setup.try_run(&["workflow", "run", "echo"]);
    assert!(!done && output.is_empty() && said.contains("The execution is failed: "), "{said}");
    let id = setup.run(&["workflow", "run", "echo", "--input", r#"{"x": 1}"#, "--detach"]);
    setup.run(&["execution", "show", id.trim()]);
    let wrong = setup.fail(&["workflow", "run", "echo", "--input", "{x"]);
    assert!(wrong.contains("--input cannot be used"), "{wrong}");
    setup.run(&["workflow", "delete", "echo"]);
    assert!(setup.fail(&["workflow", "show", "echo"]).contains("workflow not found"));
    let log = setup.run(&["audit", "list", "--action", "workflow"]);
    assert!(log.contains("workflow.create") && log.contains("workflow.delete"), "{log}");
}

#[test]
fn schedule_is_created_paused_resumed_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    with_workflow(&setup);
    let create = ["schedule", "create", "--cron", "@daily", "--name", "nightly"];
    let made = setup.run(&[&create[..], &["--workflow", "echo", "--json"]].concat());
    let made = &json(&made)["schedules"][0];
    assert_eq!((&made["cron"], &made["paused"]), (&"@daily".into(), &false.into()));
    let input = r#"{"text": "hi"}"#;
    let model = ["--model", "text-language", "--version", "1", "--input", input];
    setup.run(&[&create[..4], &model[..]].concat());
    let listed = json(&setup.run(&["schedule", "list", "--json"]));
    assert_eq!(listed["schedules"].as_array().unwrap().len(), 2);
    setup.run(&["schedule", "pause", "nightly"]);
    assert_eq!(json(&setup.run(&["schedule", "show", "nightly"]))["paused"], true);
    setup.run(&["schedule", "resume", "nightly"]);
    let id = made["schedule_id"].as_str().unwrap();
    assert_eq!(json(&setup.run(&["schedule", "show", id]))["paused"], false);
    setup.run(&["schedule", "delete", id]);
    let said = setup.fail(&["schedule", "show", "nightly"]);
    assert!(said.contains("no schedule has the id or name nightly"), "{said}");
    setup.run(&[&create[..], &["--workflow", "echo"]].concat());
    setup.run(&[&create[..], &["--workflow", "echo"]].concat());
    let said = setup.fail(&["schedule", "pause", "nightly"]);
    assert!(said.contains("2 schedules are named nightly"), "{said}");
}

#[test]
fn endpoint_is_created_tested_rotated_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    let create = ["endpoint", "create", "--url", "http://127.0.0.1:9/x", "--name", "pager"];
    let secret = setup.run(&[&create[..], &["--events", "workflow.failed"]].concat());
    assert!(secret.starts_with("whsec_") && secret.lines().count() == 1, "{secret}");
    let rotated = setup.run(&["endpoint", "rotate", "pager"]);
    assert!(rotated.starts_with("whsec_") && rotated != secret);
    setup.run(&["endpoint", "disable", "pager"]);
    assert_eq!(json(&setup.run(&["endpoint", "show", "pager"]))["disabled"], true);
    setup.run(&["endpoint", "enable", "pager"]);
    assert_eq!(
        row(&setup.run(&["endpoint", "list"]))[1..5],
        ["pager", "http://127.0.0.1:9/x", "workflow.failed", "no"]
    );
    let (delivered, table, said) = setup.try_run(&["endpoint", "test", "pager"]);
    assert!(!delivered && table.contains("FAILED"), "{table}");
    assert!(said.contains("the test event was not delivered"), "{said}");
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", receiver.local_addr().unwrap());
    let receiving = std::thread::spawn(move || {
        let (mut stream, _) = receiver.accept().unwrap();
        let mut request = [0; 16 * 1024];
        let length = stream.read(&mut request).unwrap();
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    });
    setup.run(&["endpoint", "create", "--url", &url, "--name", "good"]);
    let sent = json(&setup.run(&["endpoint", "test", "good", "--json"]));
    assert_eq!((&sent["status"], &sent["status_code"]), (&"SUCCESS".into(), &204.into()));
    assert!(receiving.join().unwrap().starts_with("POST / "));
    setup.run(&["endpoint", "delete", "good"]);
    setup.run(&["endpoint", "delete", "pager"]);
    let listed = json(&setup.run(&["endpoint", "list", "--json"]));
    assert_eq!(listed["webhook_endpoints"], serde_json::json!([]));
}

#[test]
fn file_is_uploaded_downloaded_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    // Larger than a piece of the upload.
    let text = "hello\n".repeat(100_000);
    fs::write(folder.path().join("note.txt"), &text).unwrap();
    let url = setup.run(&["file", "upload", "note.txt"]);
    assert!(url.starts_with("http://") && url.lines().count() == 1, "{url}");
    let listed = json(&setup.run(&["file", "list", "--json"]));
    let file = &listed["files"][0];
    assert_eq!(
        (&file["filename"], &file["content_type"]),
        (&"note.txt".into(), &"text/plain".into())
    );
    assert_eq!(file["size"], text.len());
    let id = file["id"].as_str().unwrap();
    assert_eq!(row(&setup.run(&["file", "list"]))[..2], [id, "note.txt"]);
    assert_eq!(json(&setup.run(&["file", "show", id]))["status"], "ready");
    assert!(setup.run(&["file", "download", id]) == text);
    setup.run(&["file", "download", id, "--into", "copy.txt"]);
    assert!(fs::read_to_string(folder.path().join("copy.txt")).unwrap() == text);
    let said = setup.fail(&["file", "download", id, "--into", "copy.txt"]);
    assert!(said.contains("copy.txt cannot be created"), "{said}");
    let said = setup.fail(&["file", "upload", "nothing.txt"]);
    assert!(said.contains("nothing.txt cannot be read"), "{said}");
    setup.run(&["file", "delete", id]);
    assert!(setup.fail(&["file", "show", id]).contains("file not found"));
}

#[test]
fn member_is_invited_and_unknown_one_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    let link = setup.run(&["member", "invite", "ada@example.com"]);
    assert!(link.contains("/invite#") && link.lines().count() == 1, "{link}");
    let made = json(&setup.run(&["member", "invite", "--json"]));
    assert_eq!(made["kind"], "invitation");
    let said = setup.fail(&["member", "remove", "ada@example.com"]);
    assert!(said.contains("has no member ada@example.com"), "{said}");
    let said = setup.fail(&["member", "update", "ada@example.com", "--role", "viewer"]);
    assert!(said.contains("has no member ada@example.com"), "{said}");
    let log = setup.run(&["audit", "list", "--action", "link"]);
    assert!(log.contains("invite ada@example.com"), "{log}");
}

/// Completes the last word as bash would, with the script of `orrery completions bash`.
fn complete(setup: &Setup, words: &[&str]) -> Vec<String> {
    let script = setup.run(&["completions", "bash"]);
    let script = format!(
        "{script}\nCOMP_WORDS=(\"$@\")\nCOMP_CWORD=$(($# - 1))\nCOMP_TYPE=9\n\
         _clap_complete_orrery orrery \"${{COMP_WORDS[COMP_CWORD]}}\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_orrery"));
    let paths = [binary.parent().unwrap().as_os_str(), &std::env::var_os("PATH").unwrap()];
    let ran = Command::new("bash")
        .args(["-c", &script, "bash"])
        .args(words)
        .env("ORRERY_CONFIG", setup.config())
        .env("PATH", paths.join(std::ffi::OsStr::new(":")))
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let text = String::from_utf8(ran.stdout).unwrap();
    text.lines().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
}

#[test]
fn completions_know_commands_models_workflows_and_organizations() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let service = setup.start();
    with_workflow(&setup);
    setup.run(&["org", "create", "--name", "acme"]);
    assert_eq!(complete(&setup, &["orrery", "sched"]), ["schedule"]);
    assert_eq!(complete(&setup, &["orrery", "schedule", "pa"]), ["pause"]);
    let commands = complete(&setup, &["orrery", ""]);
    assert!(commands.iter().any(|one| one == "doctor"), "{commands:?}");
    for hidden in
        ["guard", "fence", "builtin-worker", "llm-worker", "whisper-worker", "onnx-worker"]
    {
        assert!(!commands.iter().any(|one| one == hidden), "{hidden}");
        assert_eq!(complete(&setup, &["orrery", hidden]), Vec::<String>::new());
    }
    assert_eq!(complete(&setup, &["orrery", "model", "test", "text-l"]), ["text-language"]);
    assert_eq!(complete(&setup, &["orrery", "workflow", "run", "e"]), ["echo"]);
    assert_eq!(complete(&setup, &["orrery", "org", "show", "a"]), ["acme"]);
    assert_eq!(complete(&setup, &["orrery", "key", "list", "--org", "a"]), ["acme"]);
    let of_acme = ["orrery", "workflow", "run", "--org", "acme", "e"];
    assert_eq!(complete(&setup, &of_acme), Vec::<String>::new());
    drop(service);
    assert_eq!(complete(&setup, &["orrery", "org", "show", "a"]), Vec::<String>::new());
}
