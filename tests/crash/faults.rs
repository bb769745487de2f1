//! Transient faults: under load, the service's system calls fail or are slow, it runs out of file
//! descriptors, its payload folder disappears, or its clock jumps. Each fault is short; after all
//! faults, no execution is stuck, duplicated or charged twice.
//!
//! `strace --inject` makes system calls of the process fail. A fault in the log's own writes
//! terminates the process, as intended; the test then restarts it, as systemd would.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use orrery_runtime as runtime;
use rustix::process::Signal;

use crate::flips::{self, Known, Tally};
use crate::load::{Ask, ClientLog, LARGE_BYTES, Load};
use crate::mix::{Mix, Running};
use crate::support::service::{Service, Setup};
use crate::support::{count_from, eventually, signal};
use crate::verdict;
use crate::world::World;

/// Duration of a fault.
const FAULT_LASTS: Duration = Duration::from_millis(700);
/// Recovery time between faults.
const BETWEEN_FAULTS: Duration = Duration::from_millis(300);
/// File descriptor limit of a service that runs out of descriptors.
const FEW_DESCRIPTORS: u64 = 40;
/// Time limit for `strace` to detach from the service.
const DETACH_WITHIN: Duration = Duration::from_secs(5);
const HOUR_SECONDS: i64 = 3600;
const YEAR_SECONDS: i64 = 365 * 24 * HOUR_SECONDS;
/// Faults between two checks of all acknowledged work.
const FAULTS_IN_A_CHAPTER: u32 = 128;
/// Maximum backlog of executions when the next fault begins.
const BACKLOG_MAX: f64 = 200.0;
/// Acknowledged items of each kind that the test checks after a bit flip.
const KNOWN: usize = 40;
/// One in this many of these items is checked again at the end of the test.
const KEPT_OF_KNOWN: usize = 8;

/// The faults, with the arguments of `strace` for those that it injects.
const FAULTS: &[Fault] = &[
    Fault::Syscalls("a slow flush", "fdatasync,fsync:delay_exit=60000"),
    Fault::Syscalls("a flush of 10 ms", "fdatasync:delay_exit=10000"),
    Fault::Syscalls("reads that fail", "pread64,read:error=EIO:when=200+200"),
    Fault::Syscalls("opens that fail", "openat:error=EIO:when=3+5"),
    Fault::Syscalls("opens without descriptors", "openat:error=EMFILE:when=2+3"),
    Fault::Syscalls("a flush that fails", "fdatasync:error=EIO:when=40"),
    // Not `write`: that would also fail the runtime's event descriptors, which a full disk never
    // affects.
    Fault::Syscalls("a disk that fills up", "pwrite64:error=ENOSPC:when=60+200"),
    Fault::Syscalls("no room for new files", "openat:error=ENOSPC:when=4+7"),
    Fault::Syscalls("renames that fail", "rename,renameat,renameat2:error=EIO:when=2+2"),
    Fault::FewDescriptors,
    Fault::PayloadsAway,
    Fault::Clock("a clock an hour ahead", HOUR_SECONDS),
    Fault::Clock("a clock a year ahead", YEAR_SECONDS),
    Fault::Clock("a clock an hour behind", -HOUR_SECONDS),
    Fault::Clock("a clock a year behind", -YEAR_SECONDS),
    Fault::ClockAndKill("a kill with the clock a year ahead", YEAR_SECONDS),
    Fault::ClockAndKill("a kill with the clock an hour behind", -HOUR_SECONDS),
];

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The description of the fault, and the arguments with which `strace` injects it.
    Syscalls(&'static str, &'static str),
    FewDescriptors,
    PayloadsAway,
    /// The description of the fault, and the clock error in seconds.
    Clock(&'static str, i64),
    /// Like `Clock`, but the process is killed while the clock is wrong, and restarted once the
    /// clock is correct.
    ClockAndKill(&'static str, i64),
}

/// A fault that is active until dropped.
#[derive(Debug)]
pub(crate) enum Active {
    Traced(Child),
    Limited { pid: u32, before: String },
    Away { from: PathBuf, to: PathBuf },
    Shifted(Setup),
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Syscalls(name, _) | Self::Clock(name, _) | Self::ClockAndKill(name, _) => name,
            Self::FewDescriptors => "few descriptors",
            Self::PayloadsAway => "the payload folder away",
        }
    }

    fn ends_in_a_kill(self) -> bool {
        matches!(self, Self::ClockAndKill(..))
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
            Self::Clock(_, seconds) | Self::ClockAndKill(_, seconds) => {
                world.setup.shift_clock(seconds);
                Active::Shifted(world.setup.clone())
            }
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        match self {
            Self::Traced(strace) => {
                // SIGINT makes strace detach and leave the service running. If the service has
                // exited in the meantime, strace may wait forever; SIGKILL then makes it detach.
                signal(strace.id(), Signal::INT);
                let deadline = runtime::monotonic_now() + DETACH_WITHIN;
                while strace.try_wait().is_ok_and(|ended| ended.is_none()) {
                    if runtime::monotonic_now() > deadline {
                        drop(strace.kill());
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            Self::Limited { pid, before } => limit_descriptors(*pid, before),
            Self::Away { from, to } => {
                // The service has not created a replacement folder.
                fs::rename(to, from).unwrap();
            }
            Self::Shifted(setup) => setup.shift_clock(0),
        }
    }
}

fn trace(pid: u32, inject: &str) -> Child {
    let syscalls = inject.split(':').next().unwrap_or_default();
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={syscalls}")]);
    command.args(["-e", &format!("inject={inject}"), "-p", &pid.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Delays every flush of a running service until dropped.
pub(crate) fn slow_flushes(pid: u32, delay: Duration) -> Active {
    let inject = format!("fdatasync:delay_exit={}", delay.as_micros());
    let active = Active::Traced(trace(pid, &inject));
    eventually("strace holds every thread", || is_traced(pid).then_some(()));
    active
}

fn is_traced(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.map(|thread| thread.unwrap().path().join("status")).all(|path| {
        // A thread may exit between the two calls.
        fs::read_to_string(path).map_or(true, |status| !status.contains("TracerPid:\t0"))
    })
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

/// Returns whether this machine has the tools that the faults need; fails if not and
/// `ORRERY_CRASH_REQUIRE_STRACE` is set.
pub(crate) fn can_inject() -> bool {
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

/// Clients that keep the service under load across all faults.
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

/// `ORRERY_CRASH_FAULT_SECONDS` seconds of faults, one after another. After every
/// [`FAULTS_IN_A_CHAPTER`] faults, and at the end, the test checks everything and flips bits.
#[test]
#[ignore = "needs strace: run tests/run"]
fn faults_that_pass_leave_nothing_behind() {
    if !can_inject() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut world, mut service) = World::new(folder.path(), &folder.path().join("data"));
    let mix = Mix::new(&mut world);
    let seconds = count_from("ORRERY_CRASH_FAULT_SECONDS", 15);
    let deadline = runtime::monotonic_now() + Duration::from_secs(seconds.into());
    let mut so_far = SoFar::default();
    for fault in FAULTS.iter().cycle().copied() {
        suffer(&mut world, &mix, &mut service, fault, &mut so_far);
        let is_over = runtime::monotonic_now() > deadline;
        if is_over || so_far.faults.is_multiple_of(FAULTS_IN_A_CHAPTER) {
            let known = end_chapter(&world, &mix, &mut so_far);
            let tally = flips::round(&world.setup, &world.key, service, &known, &mut world.random);
            service = world.setup.start();
            so_far.add(tally);
            println!("{so_far}");
        }
        if is_over {
            break;
        }
    }
    for (path, body) in &so_far.kept {
        let answer = world.setup.client(&world.key).get(path).unwrap();
        assert!(
            answer.body == *body,
            "{path} has changed after it was reported: {}",
            answer.text()
        );
    }
    service.kill();
    world.setup.run(&["verify"]);
}

/// Totals so far.
#[derive(Debug, Default)]
struct SoFar {
    faults: u32,
    ends: u32,
    predictions: usize,
    /// Total charges in micro-dollars.
    paid: i64,
    flips: Tally,
    /// Responses that must still be the same at the end.
    kept: Known,
}

impl SoFar {
    fn add(&mut self, tally: Tally) {
        self.flips.flips += tally.flips;
        self.flips.refused += tally.refused;
        self.flips.named += tally.named;
        self.flips.without_effect += tally.without_effect;
    }
}

impl fmt::Display for SoFar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { faults, ends, predictions, flips, .. } = self;
        let Tally { flips, refused, named, without_effect } = flips;
        write!(f, "{faults} faults, {ends} ends of the process, {predictions} predictions; ")?;
        write!(
            f,
            "{flips} flips: {refused} refused, {named} named, {without_effect} without effect"
        )
    }
}

/// Injects one fault under load, and waits for the recovery.
fn suffer(world: &mut World, mix: &Mix, service: &mut Service, fault: Fault, so_far: &mut SoFar) {
    let clients = Clients::start(world, mix);
    let active = fault.begin(world, service);
    std::thread::sleep(FAULT_LASTS);
    if fault.ends_in_a_kill() {
        service.kill_and_keep();
    }
    drop(active);
    so_far.faults += 1;
    std::thread::sleep(BETWEEN_FAULTS);
    clients.end();
    so_far.ends += recover(world, service, fault);
    check_refusals(world, fault);
    settle_doubts(world, mix);
    settle_to(world, BACKLOG_MAX);
}

/// Waits until at most this many executions are running or queued. Fails if no execution completes
/// for a long time.
fn settle_to(world: &World, most: f64) {
    let mut before = f64::INFINITY;
    while before > most {
        before = eventually("an execution ends", || {
            let now = world.setup.unfinished()?;
            (now < before || now <= most).then_some(now)
        });
    }
}

/// Checks that all acknowledged work has ended as expected, then drops the clients' records except
/// for a sample, which it returns.
fn end_chapter(world: &World, mix: &Mix, so_far: &mut SoFar) -> Known {
    let mut client = world.setup.client(&world.key);
    mix.clear_all_doubts(&mut client);
    settle_to(world, 0.0);
    let paid = so_far.paid + mix.check(&mut client);
    let ends = world.check_all_beside(paid);
    so_far.predictions += ends.len();
    so_far.paid = -verdict::balance(&mut client);
    settle_to(world, 0.0);
    let mut known = mix.forget(&mut client, KNOWN);
    let (large, small): (Vec<_>, Vec<_>) =
        ends.into_iter().partition(|(_, body)| body.len() > LARGE_BYTES);
    let some = large.into_iter().take(KNOWN).chain(small.into_iter().take(KNOWN));
    known.extend(some.map(|(id, body)| (format!("/v1/prediction/{id}"), body)));
    world.client_log.lock().unwrap().acknowledged.clear();
    so_far.kept.extend(known.iter().step_by(KEPT_OF_KNOWN).cloned());
    known
}

/// Waits until the service is ready again. Restarts the process if the fault terminated it; returns
/// the number of restarts.
fn recover(world: &mut World, service: &mut Service, fault: Fault) -> u32 {
    let mut ends = 0;
    eventually("the service is well again", || {
        if let Some(status) = service.ended() {
            assert!(!status.success(), "{}: {status}", fault.name());
            let is_asked = fault.ends_in_a_kill() || status.code().is_some();
            assert!(is_asked, "{} killed it: {status}", fault.name());
            ends += 1;
            *service = world.setup.start();
        }
        let before = world.acknowledged();
        let ask = Ask::template(world.random.next(), 0);
        let _broke_or_refused = ask.send(&mut world.setup.client(&world.key), &world.client_log);
        (world.acknowledged() > before).then_some(())
    });
    ends
}

/// Checks that requests were refused during a fault only with temporary errors; clears the
/// refusals.
fn check_refusals(world: &World, fault: Fault) {
    let refused = std::mem::take(&mut world.client_log.lock().unwrap().refused);
    for (status, text) in refused {
        assert!([429, 503].contains(&status), "{}: {status} {text}", fault.name());
    }
}

/// Repeats requests whose connection broke, once the service has recovered.
fn settle_doubts(world: &World, mix: &Mix) {
    let mut client = world.setup.client(&world.key);
    mix.clear_doubts(&mut client);
    ClientLog::clear_doubts(&world.client_log, &mut client);
}
