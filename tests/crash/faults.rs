//! Faults that pass: while clients are at work, system calls of the service fail or take long, its
//! descriptors run out, its payload folder is away, its clock jumps. Each fault lasts a moment; after
//! all of them nothing is stranded, doubled or charged twice.
//!
//! System calls are made to fail from outside, by `strace --inject`. A fault in the log's own writes
//! ends the process, as it should; it is then started again, as systemd would.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::load::{Ask, Book, Load};
use crate::mix::{Mix, Running};
use crate::support::service::Service;
use crate::support::{count_from, eventually};
use crate::world::World;

/// How long one fault lasts.
const FAULT_LASTS: Duration = Duration::from_millis(700);
/// How long the service has between two faults.
const BETWEEN_FAULTS: Duration = Duration::from_millis(300);
/// Descriptors that a service short of them may have.
const FEW_DESCRIPTORS: u64 = 40;

/// Kinds of faults, each with the arguments of `strace` where it makes it.
const FAULTS: &[Fault] = &[
    Fault::Syscalls("a slow flush", "fdatasync,fsync:delay_exit=60000"),
    Fault::Syscalls("a flush of 10 ms", "fdatasync:delay_exit=10000"),
    Fault::Syscalls("reads that fail", "pread64,read:error=EIO:when=200+200"),
    Fault::Syscalls("opens that fail", "openat:error=EIO:when=3+5"),
    Fault::Syscalls("opens without descriptors", "openat:error=EMFILE:when=2+3"),
    Fault::Syscalls("a flush that fails", "fdatasync:error=EIO:when=40"),
    Fault::Syscalls("a disk that fills up", "write,pwrite64:error=ENOSPC:when=120+400"),
    Fault::Syscalls("renames that fail", "rename,renameat,renameat2:error=EIO:when=2+2"),
    Fault::FewDescriptors,
    Fault::PayloadsAway,
];

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// What it is, and what `strace` injects.
    Syscalls(&'static str, &'static str),
    FewDescriptors,
    PayloadsAway,
}

/// A fault that lasts until it is dropped.
#[derive(Debug)]
enum Active {
    Traced(Child),
    Limited { pid: u32, before: String },
    Away { from: PathBuf, to: PathBuf },
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Syscalls(name, _) => name,
            Self::FewDescriptors => "few descriptors",
            Self::PayloadsAway => "the payload folder away",
        }
    }

    fn begin(self, world: &World, service: &Service) -> Active {
        let pid = service.pid();
        match self {
            Self::Syscalls(_, inject) => Active::Traced(trace(pid, inject)),
            Self::FewDescriptors => {
                let before = soft_descriptors(pid);
                limit_descriptors(pid, &FEW_DESCRIPTORS.to_string());
                Active::Limited { pid, before }
            }
            Self::PayloadsAway => {
                let from = world.setup.data().join("payloads");
                let to = world.setup.data().join("payloads-away");
                fs::rename(&from, &to).unwrap();
                Active::Away { from, to }
            }
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        match self {
            Self::Traced(strace) => {
                // SIGINT makes strace detach and leave the service running.
                let pid = strace.id().to_string();
                drop(Command::new("kill").args(["-INT", &pid]).status());
                drop(strace.wait());
            }
            Self::Limited { pid, before } => limit_descriptors(*pid, before),
            Self::Away { from, to } => {
                // The service may have made an empty folder in its place.
                merge_back(to, from);
            }
        }
    }
}

/// Moves everything of `from` into `to`, folder by folder.
fn merge_back(from: &PathBuf, to: &PathBuf) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() && target.is_dir() {
            merge_back(&entry.path(), &target);
        } else {
            fs::rename(entry.path(), target).unwrap();
        }
    }
    fs::remove_dir(from).unwrap();
}

fn trace(pid: u32, inject: &str) -> Child {
    let syscalls = inject.split(':').next().unwrap_or_default();
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={syscalls}")]);
    command.args(["-e", &format!("inject={inject}"), "-p", &pid.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn soft_descriptors(pid: u32) -> String {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().nth(3).unwrap().to_owned()
}

fn limit_descriptors(pid: u32, soft: &str) {
    let limit = format!("--nofile={soft}:");
    drop(Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status());
}

/// Whether this machine has what the faults need; fails when `ORRERY_CRASH_REQUIRE_STRACE` is set
/// and it has not.
fn can_inject() -> bool {
    let tools = ["strace", "prlimit"];
    let missing = tools.iter().find(|tool| {
        let tried = Command::new(tool).arg("--version").stdout(Stdio::null()).status();
        !tried.is_ok_and(|status| status.success())
    });
    let Some(missing) = missing else { return true };
    assert!(std::env::var_os("ORRERY_CRASH_REQUIRE_STRACE").is_none(), "{missing} is not there");
    println!("SKIPPED: {missing} is not there (apt-get install strace util-linux)");
    false
}

/// Clients at work through one fault after another.
struct Clients {
    load: Load,
    mix: Running,
}

impl Clients {
    fn start(world: &mut World, mix: &Mix) -> Self {
        Self { load: world.load(), mix: mix.start(world) }
    }

    fn end(self) {
        self.load.end();
        self.mix.end();
    }
}

/// `ORRERY_CRASH_FAULT_SECONDS` seconds of faults, one after the other.
#[test]
fn faults_that_pass_leave_nothing_behind() {
    if !can_inject() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut world, mut service) = World::new(folder.path(), &folder.path().join("data"));
    let mix = Mix::new(&mut world);
    let seconds = count_from("ORRERY_CRASH_FAULT_SECONDS", 12);
    let deadline = Instant::now() + Duration::from_secs(seconds.into());
    let (mut faults, mut ends) = (0, 0);
    for fault in FAULTS.iter().cycle().copied() {
        let clients = Clients::start(&mut world, &mix);
        let active = fault.begin(&world, &service);
        std::thread::sleep(FAULT_LASTS);
        drop(active);
        faults += 1;
        std::thread::sleep(BETWEEN_FAULTS);
        clients.end();
        ends += recover(&mut world, &mut service, fault);
        check_refusals(&world, fault);
        settle_doubts(&world, &mix);
        if Instant::now() > deadline {
            break;
        }
    }
    world.providers.gate.open();
    let cost = mix.check(&mut world.setup.client(&world.key));
    let all = world.check_all_beside(cost);
    for gauge in ["orrery_executions_running", "orrery_executions_queued"] {
        assert_eq!(world.setup.metric(gauge), Some(0.0), "{gauge}");
    }
    service.kill();
    world.setup.run(&["verify"]);
    println!("{faults} faults, {ends} ends of the process, {} predictions", all.len());
}

/// Waits until the service takes work again. A process that ended because of the fault is started
/// again; returns how often.
fn recover(world: &mut World, service: &mut Service, fault: Fault) -> u32 {
    let mut ends = 0;
    eventually("the service is well again", || {
        if let Some(status) = service.ended() {
            assert!(!status.success(), "{}: {status}", fault.name());
            assert!(status.code().is_some(), "{} killed it: {status}", fault.name());
            ends += 1;
            *service = world.setup.start();
        }
        let before = world.acknowledged();
        let ask = Ask::template(world.dice.next(), 0);
        let _broke_or_refused = ask.send(&mut world.setup.client(&world.key), &world.book);
        (world.acknowledged() > before).then_some(())
    });
    ends
}

/// What was refused during a fault was refused for now, not for good; forgets it.
fn check_refusals(world: &World, fault: Fault) {
    let refused = std::mem::take(&mut world.book.lock().unwrap().refused);
    for (status, text) in refused {
        assert!([429, 503].contains(&status), "{}: {status} {text}", fault.name());
    }
}

/// Repeats what broke, on the service that is well again.
fn settle_doubts(world: &World, mix: &Mix) {
    let mut client = world.setup.client(&world.key);
    mix.clear_doubts(&mut client);
    Book::clear_doubts(&world.book, &mut client);
}
