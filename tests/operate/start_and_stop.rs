//! Starts while another service is running or a port is in use. Stops: immediate if nothing is
//! running; otherwise, the service logs what it waits for.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::service::{Service, Setup};
use crate::support::{eventually, signal};

/// A worker that accepts jobs and never answers: the system's own `sleep`.
const SILENT: &str = "slug = 'silent'\noutput_type = 'string'\ntimeout = '1h'\n\
    [runner]\ntype = 'command'\ncommand = ['sleep', '3600']\n";
/// Longer than any test waits, so that a test can pass only if the stop does not wait for the grace
/// period.
const GRACE: &str = "[engine]\nshutdown_grace = '10m'\n";

fn stopped(service: &mut Service) -> i32 {
    let status = eventually("the service ends", || service.ended());
    status.code().unwrap()
}

/// Starts a service whose model has a live worker.
fn with_worker(setup: &Setup) -> Service {
    let service = setup.start();
    let pid = service.pid();
    eventually("a worker is alive", || {
        let children = format!("/proc/{pid}/task");
        let threads = std::fs::read_dir(children).ok()?.flatten();
        let guards = threads
            .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        let guards: String = guards.collect();
        let mut guards = guards.split_whitespace().map(str::to_owned);
        guards
            .any(|guard| {
                let line =
                    std::fs::read_to_string(format!("/proc/{guard}/cmdline")).unwrap_or_default();
                line.contains("guard") && line.contains("sleep")
            })
            .then_some(())
    });
    service
}

#[test]
fn stop_with_idle_worker_waits_for_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), GRACE);
    setup.add_model("silent", SILENT);
    let mut service = with_worker(&setup);
    assert!(signal(service.pid(), Signal::TERM));
    assert_eq!(stopped(&mut service), 0);
    let log = setup.log_since(0);
    assert!(!log.contains("waiting up to") && log.contains("stopped"), "{log}");
    assert!(log.contains(&format!("base {}", setup.base())), "{log}");
}

#[test]
fn stop_reports_what_it_waits_for_and_second_signal_forces_exit() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), GRACE);
    setup.add_model("silent", SILENT);
    let mut service = with_worker(&setup);
    let key = setup.create_key();
    let body = r#"{"model": "silent", "version": "1", "input": {}}"#;
    let made = setup.client(&key).post("/v1/prediction", &[], body).unwrap();
    assert_eq!(made.status(), 200, "{}", made.text());
    eventually("the execution runs", || {
        (setup.metric("orrery_executions_running") == Some(1.0)).then_some(())
    });
    assert!(signal(service.pid(), Signal::INT));
    eventually("the log says what the stop waits for", || {
        setup.log_since(0).contains("waiting up to 600 s for 1 execution;").then_some(())
    });
    assert!(service.ended().is_none());
    assert!(signal(service.pid(), Signal::INT));
    assert_eq!(stopped(&mut service), 0);
    assert!(setup.log_since(0).contains("ended at once"), "{}", setup.log_since(0));
    // No work is lost: the next start recovers the execution and does not suspect it.
    let length = setup.log_since(0).len();
    let _again = setup.start();
    assert_eq!(setup.unfinished(), Some(1.0));
    assert!(!setup.log_since(length).contains("ended in a crash"), "{}", setup.log_since(length));
}

#[test]
fn second_start_on_one_folder_names_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let service = setup.start();
    let said = setup.fail(&["serve"]);
    let expect = format!("already running, pid {}: ", service.pid());
    assert!(said.contains(&expect), "{said}");
    assert!(!said.contains("listen"), "the folder comes before the ports: {said}");
}

#[test]
fn start_right_after_kill_waits_for_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let mut service = setup.start();
    for _ in 0..5 {
        assert!(signal(service.pid(), Signal::KILL));
        // Start the next service before the killed process has exited.
        let next = setup.start();
        drop(std::mem::replace(&mut service, next));
    }
}

#[test]
fn taken_port_names_its_holder_once() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let SocketAddr::V4(address) = setup.base() else { panic!("an IPv4 address") };
    let _holder = TcpListener::bind(address).unwrap();
    let said = setup.fail(&["serve"]);
    let pid =
        format!("(pid {}) listens there; stop it, or choose another port", std::process::id());
    assert_eq!(said.matches(&pid).count(), 1, "{said}");
    assert!(said.contains("`orrery serve --port 9000`"), "{said}");
    assert!(
        said.contains(&format!("the base host cannot be served\n  cannot listen on {address}: ")),
        "{said}"
    );
}

/// Returns this field of each entry with this message in a log.
fn logged(log: &str, message: &str, field: &str) -> Vec<String> {
    let entries = log.lines().filter(|line| line.contains(message));
    let entries = entries.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let text = |entry: serde_json::Value| {
        let found = entry.pointer(&format!("/fields/{field}")).or(entry.get(field)).unwrap();
        found.as_str().unwrap().to_owned()
    };
    entries.map(text).collect()
}

const READY: &str = "service ready";

/// Starts a service that may use TLS, waits until it is ready, and stops it; returns its log.
fn log_of_start(setup: &Setup) -> String {
    let before = setup.log_since(0).len();
    let service = setup.spawn();
    eventually("the service is ready", || setup.log_since(before).contains(READY).then_some(()));
    service.kill();
    setup.log_since(before)
}

/// Checks that a start has logged these hosts, on consecutive ports, and the metrics.
fn check_addresses(log: &str, first: SocketAddr, metrics: Option<SocketAddr>) {
    let hosts =
        ["base", "workflows", "flows", "agent", "dashboard"].into_iter().zip(first.port()..);
    let hosts = hosts.map(|(host, port)| format!("{host} {}:{port}", first.ip()));
    let metrics = metrics.map(|address| format!("metrics {address}"));
    let mut hosts: Vec<String> = hosts.chain(metrics).collect();
    let found = logged(log, READY, "listening");
    let [listening] = found.as_slice() else { panic!("{log}") };
    let mut listening: Vec<&str> = listening.split(", ").collect();
    listening.sort_unstable();
    hosts.sort_unstable();
    assert_eq!(listening, hosts);
}

#[test]
fn start_logs_each_address() {
    const TLS: &str = "[tls]\nmode = 'self-signed'\n";
    for (more, has_metrics) in [("", true), ("", false), (TLS, true), (TLS, false)] {
        let folder = tempfile::tempdir().unwrap();
        let setup = Setup::new(folder.path(), &folder.path().join("data"), more);
        if !has_metrics {
            let text = fs::read_to_string(setup.config()).unwrap();
            let listed = format!("listen = \"{}:9464\"", setup.base().ip());
            assert!(text.contains(&listed), "{text}");
            fs::write(setup.config(), text.replace(&listed, "listen = []")).unwrap();
        }
        let metrics = SocketAddr::new(setup.base().ip(), 9464);
        check_addresses(&log_of_start(&setup), setup.base(), has_metrics.then_some(metrics));
    }
}

#[test]
fn start_without_configuration_logs_each_address() {
    let folder = tempfile::tempdir().unwrap();
    // This setup is used only for its address.
    let address = Setup::new(folder.path(), &folder.path().join("data"), "").base().ip();
    // The metrics port is five above the first port, and stays on loopback: pick one that is free
    // there.
    let metrics = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let port = metrics.port() - 5;
    let path = folder.path().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_orrery"));
    command.args(["serve", "--port", &port.to_string(), "--listen", &address.to_string()]);
    command.current_dir(folder.path()).env_remove("ORRERY_CONFIG").env_remove("NOTIFY_SOCKET");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&path).unwrap());
    let mut service = command.spawn().unwrap();
    let log = || fs::read_to_string(&path).unwrap();
    eventually("the service is ready or ends", || {
        (log().contains(READY) || service.try_wait().unwrap().is_some()).then_some(())
    });
    service.kill().unwrap();
    service.wait().unwrap();
    check_addresses(&log(), SocketAddr::new(address, port), Some(metrics));
}

#[test]
fn start_logs_why_it_issues_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let setup = Setup::new(folder.path(), &data, "[tls]\nmode = 'self-signed'\n");
    let reasons = || logged(&log_of_start(&setup), "certificate issued", "reason");
    assert_eq!(reasons(), ["there is none yet"]);
    assert_eq!(reasons(), [""; 0]);
    fs::remove_file(data.join("tls/server.key")).unwrap();
    assert_eq!(reasons(), ["its private key is missing"]);
    fs::remove_file(data.join("tls/server.pem")).unwrap();
    assert_eq!(reasons(), ["there is none yet"]);
}

/// The binary needs no other file; `/proc` is for the processes of models.
#[test]
#[ignore = "needs a mount: run tests/run"]
fn service_runs_in_a_chroot_with_only_the_binary_and_proc() {
    const SCRIPT: &str = "mount --rbind /proc \"$0/proc\" && exec chroot \"$0\" \"$@\"";
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let setup = Setup::new(root, &root.join("data"), "");
    fs::create_dir(root.join("proc")).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_orrery"), root.join("orrery")).unwrap();
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["--mount", "sh", "-c", SCRIPT]).arg(root).args(["/orrery", "--config"]);
    command.arg(Path::new("/").join(setup.config().file_name().unwrap())).arg("serve");
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stdout(Stdio::null());
    let mut service = command.spawn().unwrap();
    let answers = [
        ("text-sentiment", r#"{"text": "What a night!"}"#),
        ("html-to-text", r#"{"html": "<p>What a <b>night</b>!</p>"}"#),
        ("image-qr", r#"{"text": "What a night!"}"#),
    ]
    .map(|(model, input)| {
        eventually(&format!("{model} answers"), || {
            let (is_done, answer, _) = setup.try_run(&["model", "test", model, "--input", input]);
            is_done.then_some(answer)
        })
    });
    let link = setup.run(&["owner", "link"]);
    service.kill().unwrap();
    service.wait().unwrap();
    for (answer, expect) in answers.iter().zip(["label", "What a **night**!", "data:image/png"]) {
        assert!(answer.contains(expect), "{answer}");
    }
    assert!(link.contains("/setup#"), "{link}");
}
