//! Restrictions on the program of a model: it cannot read the service's data and secrets, use its
//! sockets, access its processes, or outlive its guard. Without Landlock these tests report that
//! they are skipped; with `ORRERY_FENCE_REQUIRE=1` they fail instead.

#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use orrery_guard::fence::{self, Strength};
use orrery_guard::filter;
use serde_json::{Value, json};

use crate::support::{Service, until};

/// Returns whether the kernel supports the sandbox strength that a test needs.
fn is_fenced(least: Strength) -> bool {
    let strength = fence::strength();
    if strength >= least {
        return true;
    }
    let concern = strength.concern().unwrap_or_default();
    assert!(std::env::var_os("ORRERY_FENCE_REQUIRE").is_none(), "{concern}");
    eprintln!("SKIPPED, NOT TESTED: needs {least:?} of the fence, has {strength:?}: {concern}");
    false
}

fn manifest(slug: &str, output_type: &str, more: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/workers/trespasser.py");
    format!(
        "slug = '{slug}'\noutput_type = '{output_type}'\nconcurrency = 1\n\
         [runner]\ntype = 'command'\ncommand = ['python3', {script:?}]\n{more}"
    )
}

/// Returns any file in a folder.
fn some_file(folder: &Path) -> PathBuf {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                return path;
            }
            folders.push(path);
        }
    }
    panic!("{} holds no file", folder.display())
}

async fn attempt(service: &Service, model: &str, act: &str, target: impl Into<Value>) -> Value {
    let id = service.create(model, json!({"act": act, "target": target.into()})).await;
    let ended = service.ended(&id).await;
    assert_eq!(ended["status"], "success", "{act}: {ended}");
    ended["output"].clone()
}

fn is_denied(answer: &Value) -> bool {
    answer.as_str().is_some_and(|text| text.starts_with("denied: "))
}

fn lives(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn fence_denies_program_the_service_data() {
    if !is_fenced(Strength::Files) {
        return;
    }
    let service = Service::start().await;
    std::fs::create_dir(service.models().join("cache")).unwrap();
    service.manifest_file("weights", "w");
    service.manifest_file("token", "s3cret");
    let closed = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(service.models().join("token"), closed).unwrap();
    let more = "writable = ['cache']\nenv = { TOKEN = '${file:token}' }\n";
    service.manifest(&manifest("trespasser", "object", more));
    service.manifest(&manifest("other", "object", ""));
    let of_other = attempt(&service, "other", "temporary", Value::Null).await;
    let folder = service.folder.path().canonicalize().unwrap();
    let models = folder.join("models.d");
    let store = some_file(&folder.join("data/store"));
    for (act, path) in [
        ("read", folder.join("data/seal.key")),
        ("read", folder.join("data/control.token")),
        ("read", store),
        ("read", folder.join("data/lock")),
        ("read", folder.join("config.toml")),
        ("read", models.join("token")),
        ("read", models.join("slugother.toml")),
        ("list", folder.join("data")),
        ("list", folder.join("data/work")),
        ("list", of_other.as_str().unwrap().into()),
        ("write", folder.join("data/new")),
        ("write", models.join("new.toml")),
        ("write", folder.join("new")),
        ("write", "/proc/self/comm".into()),
        ("read", format!("/proc/{}/environ", std::process::id()).into()),
        ("read", format!("/proc/{}/mem", std::process::id()).into()),
        ("read", format!("/proc/{}/maps", std::process::id()).into()),
        (
            "read",
            format!("/proc/{}/root{}/data/seal.key", std::process::id(), folder.display()).into(),
        ),
    ] {
        let answer = attempt(&service, "trespasser", act, path.to_str().unwrap()).await;
        assert!(is_denied(&answer), "{act} {}: {answer}", path.display());
    }
    // The program can access the resources that it needs: its own folder, its weights, devices, and
    // its writable folders.
    let temporary = attempt(&service, "trespasser", "temporary", Value::Null).await;
    assert!(Path::new(temporary.as_str().unwrap()).starts_with(folder.join("data/work")));
    for (act, path, answer) in [
        ("read", models.join("weights"), json!(1)),
        ("write", models.join("cache/new"), json!(1)),
        ("list", "/usr".into(), Value::Null),
        ("devices", "".into(), json!(4)),
    ] {
        let given = attempt(&service, "trespasser", act, path.to_str().unwrap()).await;
        assert!(!is_denied(&given) && (answer.is_null() || given == answer), "{act}: {given}");
    }
    let listed = attempt(&service, "trespasser", "list", models.to_str().unwrap()).await;
    assert!(listed.as_array().unwrap().contains(&json!("weights")), "{listed}");
    let privileges = attempt(&service, "trespasser", "status", "NoNewPrivs").await;
    assert_eq!(privileges, "1");
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn fence_keeps_output_paths_within_the_run_folder() {
    if !is_fenced(Strength::Files) {
        return;
    }
    let service = Service::start().await;
    service.manifest(&manifest("draw", "file", ""));
    let data = service.folder.path().join("data");
    let seal = data.join("seal.key");
    for (act, target) in [("swap", &data), ("link", &seal), ("node", &data)] {
        let id = service.create("draw", json!({"act": act, "target": target})).await;
        let ended = service.ended(&id).await;
        let output = ended["output"].as_str().unwrap_or_default();
        let failed = ended["status"] == "error" && ended["error"].to_string().contains("its path");
        assert!(failed || output.starts_with("denied: "), "{act}: {ended}");
    }
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn fence_denies_program_the_control_socket() {
    if !is_fenced(Strength::Files) {
        return;
    }
    let service = Service::start().await;
    service.manifest(&manifest("trespasser", "object", ""));
    let socket = service.folder.path().join("data/control.sock");
    let answer = attempt(&service, "trespasser", "connect", socket.to_str().unwrap()).await;
    // Newer kernels deny even the connection.
    assert!(is_denied(&answer) || answer == "HTTP/1.1 401 Unauthorized", "{answer}");
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn fence_denies_program_other_processes() {
    if !is_fenced(Strength::Whole) {
        return;
    }
    let service = Service::start().await;
    service.manifest(&manifest("trespasser", "object", ""));
    let own = std::process::id();
    let name = format!("orrery-fence-{own}");
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listening = UnixListener::bind_addr(&address).unwrap();
    for (act, target) in [
        ("trace", json!(own)),
        ("kill", json!(own)),
        ("kill guard", Value::Null),
        ("abstract", json!(name)),
    ] {
        let answer = attempt(&service, "trespasser", act, target).await;
        assert!(is_denied(&answer), "{act}: {answer}");
    }
}

/// Runs without Landlock, which does not cover these calls.
#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn fence_denies_program_limits_priorities_and_ipc_of_other_processes() {
    if !filter::is_available() {
        eprintln!("SKIPPED, NOT TESTED: this kernel has no seccomp");
        return;
    }
    let service = Service::start().await;
    service.manifest(&manifest("trespasser", "object", ""));
    let pids = attempt(&service, "trespasser", "pid", Value::Null).await;
    let guard = &pids[1];
    for target in [json!(std::process::id()), guard.clone()] {
        for act in ["limit", "policy", "pin", "nice", "ioprio"] {
            let answer = attempt(&service, "trespasser", act, target.clone()).await;
            assert_eq!(answer, "denied: Operation not permitted", "{act} {target}");
        }
    }
    // Resources that programs share through these calls would count toward no limit, and would
    // outlive the programs.
    let shared = ["shared memory", "attached memory", "message queue", "semaphores", "named queue"];
    for act in ["nice of user", "keys"].into_iter().chain(shared) {
        let answer = attempt(&service, "trespasser", act, 0).await;
        assert_eq!(answer, "denied: Operation not permitted", "{act}");
    }
    // The program's own process, identified by 0 and by process id.
    for target in [json!(0), pids[0].clone()] {
        for act in ["limit", "policy", "pin", "nice", "ioprio"] {
            let answer = attempt(&service, "trespasser", act, target.clone()).await;
            assert!(!is_denied(&answer), "{act} {target}: {answer}");
        }
    }
    let limits = attempt(&service, "trespasser", "limits", std::process::id()).await;
    assert!(limits.is_array(), "reading is harmless: {limits}");
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn fence_denies_program_modes_outside_its_folders() {
    if let Some(concern) = fence::namespace_concern() {
        eprintln!("SKIPPED, NOT TESTED: {concern}");
        return;
    }
    let service = Service::start().await;
    std::fs::create_dir(service.models().join("cache")).unwrap();
    service.manifest(&manifest("trespasser", "object", "writable = ['cache']\n"));
    let folder = service.folder.path().canonicalize().unwrap();
    let before = std::fs::metadata(folder.join("data/seal.key")).unwrap().permissions();
    for path in
        ["data", "data/seal.key", "data/control.token", "config.toml", "models.d", "data/work"]
    {
        let path = folder.join(path);
        for act in ["mode", "owner", "times", "attribute"] {
            let answer = attempt(&service, "trespasser", act, path.to_str().unwrap()).await;
            assert!(is_denied(&answer), "{act} {}: {answer}", path.display());
        }
    }
    for around in [
        // Paths relative to the working folder, and the service's own paths.
        "../../seal.key".to_owned(),
        format!("/proc/{}/root{}/data/seal.key", std::process::id(), folder.display()),
    ] {
        let answer = attempt(&service, "trespasser", "mode", around.as_str()).await;
        assert!(is_denied(&answer), "{around}: {answer}");
    }
    let after = std::fs::metadata(folder.join("data/seal.key")).unwrap().permissions();
    assert_eq!(before.mode(), after.mode());
    // The program may change the modes of its own files, as installers do.
    let cache = service.models().join("cache");
    for target in [Value::Null, json!(cache)] {
        let mode = attempt(&service, "trespasser", "own mode", target.clone()).await;
        assert_eq!(mode, 0o755, "{target}");
    }
}

/// Runs without Landlock: the kernel sends the signal.
#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn fence_program_dies_with_its_guard() {
    let service = Service::start().await;
    service.manifest(&manifest("trespasser", "object", ""));
    let pids = attempt(&service, "trespasser", "pid", Value::Null).await;
    let program = pids[0].as_u64().unwrap();
    let guard = pids[1].as_u64().unwrap();
    let guard = rustix::process::Pid::from_raw(i32::try_from(guard).unwrap()).unwrap();
    rustix::process::kill_process(guard, rustix::process::Signal::KILL).unwrap();
    until("end of the program", async || (!lives(program)).then_some(())).await;
    let next = attempt(&service, "trespasser", "pid", Value::Null).await;
    assert_ne!(next, pids);
}

/// A service that runs as root drops privileges for programs.
#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn fence_drops_privileges_of_program() {
    let service = Service::start().await;
    service.manifest(&manifest("trespasser", "object", ""));
    let held = attempt(&service, "trespasser", "status", "CapEff").await;
    let held = u64::from_str_radix(held.as_str().unwrap(), 16).unwrap();
    const SYS_MODULE: u64 = 1 << 16;
    const SYS_PTRACE: u64 = 1 << 19;
    const SYS_ADMIN: u64 = 1 << 21;
    const MKNOD: u64 = 1 << 27;
    assert_eq!(held & (SYS_MODULE | SYS_PTRACE | SYS_ADMIN | MKNOD), 0, "{held:x}");
}
