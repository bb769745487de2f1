//! `orrery top` with the real binary: its figures as text and as JSON, and its errors without a
//! terminal or a service. Also tests its screen and keys on a pseudo-terminal, and that the
//! terminal is restored at the end.

use std::process::Command;

use serde_json::Value;

use crate::support::eventually;
use crate::support::service::Setup;

const WORKFLOW: &str = r#"{"name": "Feels", "description": "d", "definition": {"steps": [
    {"step_id": "mood", "type": "model", "model": "text-sentiment", "params": {"text": "{{inputs.text}}"}}]}}"#;

/// A terminal with 24 lines and 80 columns, which waits for words, presses keys or sends a signal,
/// and checks that the terminal is restored.
const TERMINAL: &str = r#"
import fcntl, os, pty, select, signal, struct, sys, termios, time

def run(arguments, steps):
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.environ.pop("NO_COLOR", None)
        os.execv(arguments[0], arguments)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(terminal)
    seen = b""
    def until(words):
        nonlocal seen
        end = time.monotonic() + 60
        while words not in seen:
            ready, _, _ = select.select([terminal], [], [], 1)
            if ready:
                try:
                    seen += os.read(terminal, 65536)
                except OSError:
                    break
            if time.monotonic() > end:
                break
        if words not in seen:
            sys.exit("%r was never shown: %r" % (words, seen[-2000:]))
    for words, act in steps:
        until(words)
        if isinstance(act, bytes):
            seen = b""
            os.write(terminal, act)
        else:
            os.kill(pid, act)
    until(b"\x1b[?1049l")
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit("it ended with %s" % os.waitstatus_to_exitcode(status))
    if termios.tcgetattr(terminal)[3] != before[3]:
        sys.exit("the terminal is not as it was")

arguments = sys.argv[1:]
# Only what changes is sent: these words are written whole.
run(arguments, [(b"ready", b"?"), (b"Ctrl-C", b"x"), (b"RUNNING", b"s"), (b"rate", b"q")])
run(arguments, [(b"ready", signal.SIGTERM)])
run(arguments, [(b"ready", b"\x03")])

# A terminal that is closed ends it too.
pid, terminal = pty.fork()
if pid == 0:
    os.execv(arguments[0], arguments)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
seen = b""
while b"ready" not in seen:
    seen += os.read(terminal, 65536)
os.close(terminal)
end = time.monotonic() + 30
while os.waitpid(pid, os.WNOHANG)[0] == 0:
    if time.monotonic() > end:
        os.kill(pid, signal.SIGKILL)
        sys.exit("it goes on without its terminal")
    time.sleep(0.01)
"#;

fn used(setup: &Setup) {
    let key = setup.create_key();
    let mut client = setup.client(&key);
    let body = r#"{"model": "text-language", "version": "1", "input": {"text": "What a night!"}}"#;
    assert_eq!(client.post("/v1/prediction/run", &[], body).unwrap().status(), 200);
    assert_eq!(client.post("/v1/workflows", &[], WORKFLOW).unwrap().status(), 201);
    let body = r#"{"inputs": {"text": "What a night!"}}"#;
    let taken = client.post("/v1/workflows/feels/trigger", &[], body).unwrap();
    let taken: Value = serde_json::from_str(&taken.text()).unwrap();
    let id = taken["execution_id"].as_str().unwrap();
    let path = format!("/v1/workflows/executions/{id}?timeout=30");
    eventually("the workflow completes", || {
        let ended = client.get(&path).unwrap();
        ended.text().contains("\"status\":\"completed\"").then_some(())
    });
}

#[test]
fn top_once_has_lanes_and_figures() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    used(&setup);
    let figures = setup.run(&["top", "--once", "--json", "--every", "0.2"]);
    let figures: Value = serde_json::from_str(&figures).unwrap();
    let ended = |kind: &str, name: &str| {
        let lanes = figures["lanes"].as_array().unwrap();
        let lane = lanes.iter().find(|lane| lane["kind"] == kind && lane["name"] == name);
        lane.unwrap_or_else(|| panic!("{kind} {name}: {figures}"))["ended"].as_u64().unwrap()
    };
    assert_eq!(ended("model", "text-language"), 1);
    assert_eq!(ended("workflow", "feels"), 1);
    assert_eq!(ended("model", "text-sentiment"), 1, "a step counts once");
    assert!(figures["process"]["resident_bytes"].as_u64().unwrap() > 1_000_000);
    assert!(figures["disk"]["total"].as_u64().unwrap() > 0);
    assert!(figures["commits"]["store_bytes"].as_u64() > figures["commits"]["log_bytes"].as_u64());
    let hosts = figures["hosts"].as_array().unwrap();
    assert!(hosts.iter().any(|host| host["host"] == "base"), "{hosts:?}");
    assert_eq!(figures["warnings"], Value::Array(Vec::new()));
    let table = setup.run(&["top", "--once", "--every", "0.2"]);
    for word in ["LANE", "text-language", "feels", "requests", "executions", "webhooks", "disk"] {
        assert!(table.contains(word), "{word} is not in {table}");
    }
    assert!(!table.contains('\u{1b}'), "{table}");
}

#[test]
fn top_without_terminal_or_service_suggests_a_fix() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let said = setup.fail(&["top"]);
    assert!(said.contains("is not a terminal: `orrery top --once` prints"), "{said}");
    let said = setup.fail(&["top", "--once"]);
    assert!(said.contains("no service answers in ") && said.contains("data"), "{said}");
}

#[test]
#[ignore = "needs python3: run tests/run"]
fn top_draws_on_terminal_obeys_keys_and_restores_it() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    used(&setup);
    let mut python = Command::new("python3");
    python.args(["-c", TERMINAL, env!("CARGO_BIN_EXE_orrery"), "--config"]).arg(setup.config());
    let done = python.arg("top").output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
