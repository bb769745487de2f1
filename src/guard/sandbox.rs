//! The sandbox of a process that computes on untrusted input: no files, no network, no other
//! processes, no privileges, bounded memory and processor time.
//!
//! [`Sandbox::enter`] is for a process of this binary that has one thread and speaks over its standard
//! streams alone. It needs nothing of the file system, so all of it is denied: by Landlock, and on
//! kernels without Landlock by a limit of zero file descriptors, without which no file, socket or
//! pipe can be opened. [`enter_reading`] is for one that also reads files that it is given, and has
//! threads. Nothing of this can be undone from inside.
//!
//! This is one of the three places with `unsafe`: closing inherited descriptors has no safe form.

#![expect(unsafe_code, reason = "a C function without a safe form is called: see the head")]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use landlock::{
    Access as _, AccessFs, AccessNet, PathBeneath, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, Scope,
};
use rustix::param::page_size;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
};
use rustix::time::{ClockId, clock_gettime};

use super::fence::NEWEST;

/// Address space beside the data: the program itself, its libraries' tables, the stack.
const ADDRESSES_BESIDE: u64 = 512 * 1024 * 1024;
/// Descriptors of a process that reads files: its streams, those of its runtime, and the files.
const FILES_MAX: u64 = 64;
/// The first descriptor behind the standard streams.
const FIRST_INHERITED: libc::c_uint = 3;

/// A process that has given up everything but its standard streams and computing.
#[derive(Debug)]
pub struct Sandbox {
    /// The process's own memory figures: nothing can be opened any more.
    statm: File,
}

impl Sandbox {
    /// Shuts this process in. It ends with `parent`, and never has more than `data_max` bytes of
    /// data (heap and private mappings).
    ///
    /// # Errors
    /// When `parent` has ended, or the kernel refuses a step; a kernel without Landlock does not.
    pub fn enter(parent: i32, data_max: u64) -> io::Result<Self> {
        end_with(parent)?;
        close_inherited()?;
        let statm = File::open("/proc/self/statm")?;
        deny_access(&[])?;
        set_no_new_privs(true)?;
        for (resource, most) in [
            (Resource::Core, 0),
            (Resource::Fsize, 0),
            (Resource::Nproc, 0),
            (Resource::Data, data_max),
            (Resource::As, data_max.saturating_add(ADDRESSES_BESIDE)),
            // Last: the steps above need descriptors.
            (Resource::Nofile, 0),
        ] {
            setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
        }
        drop_capabilities()?;
        Ok(Self { statm })
    }

    /// Bounds what follows: `memory` bytes of data beside what there is now, and `cpu_seconds` of
    /// processor time. An allocation beyond the first fails; beyond the second the kernel ends the
    /// process (`SIGXCPU`).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn limit(&self, memory: u64, cpu_seconds: u64) -> io::Result<()> {
        let most = getrlimit(Resource::Data).maximum;
        let data = self.data()?.saturating_add(memory).min(most.unwrap_or(u64::MAX));
        setrlimit(Resource::Data, Rlimit { current: Some(data), maximum: most })?;
        let used = clock_gettime(ClockId::ProcessCPUTime).tv_sec;
        // Whole seconds: the one that has begun does not count.
        let until = u64::try_from(used).unwrap_or(0).saturating_add(cpu_seconds).saturating_add(1);
        let most = getrlimit(Resource::Cpu).maximum;
        setrlimit(Resource::Cpu, Rlimit { current: Some(until), maximum: most })?;
        Ok(())
    }

    /// Bytes of data that the process has, its stack included.
    fn data(&self) -> io::Result<u64> {
        let mut text = [0; 128];
        let read = self.statm.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(text.get(..read).unwrap_or_default());
        // size resident shared text lib data dt, in pages
        let pages = text.split_whitespace().nth(5).and_then(|word| word.parse::<u64>().ok());
        let pages = pages.ok_or(io::ErrorKind::InvalidData)?;
        Ok(pages.saturating_mul(page_size() as u64))
    }
}

/// Shuts in a process that has one thread still: of all files it can read these alone, it can start no
/// program and reach no network. It ends with `parent`, and never has more than `data_max` bytes of
/// data, beside files that it maps.
///
/// # Errors
/// When `parent` has ended, a file is not there, or the kernel refuses a step; a kernel without
/// Landlock does not.
pub fn enter_reading(parent: i32, files: &[&Path], data_max: Option<u64>) -> io::Result<()> {
    end_with(parent)?;
    close_inherited()?;
    deny_access(files)?;
    set_no_new_privs(true)?;
    let limits = [
        (Resource::Core, Some(0)),
        (Resource::Fsize, Some(0)),
        (Resource::Nofile, Some(FILES_MAX)),
        (Resource::Data, data_max),
    ];
    for (resource, most) in limits {
        if let Some(most) = most {
            setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
        }
    }
    drop_capabilities()
}

/// This process ends when `parent` does.
fn end_with(parent: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().map(Pid::as_raw_nonzero).is_none_or(|id| id.get() != parent) {
        return Err(io::Error::other("the service has ended"));
    }
    Ok(())
}

/// Closes what the service was itself started with; what it opens is not inherited.
fn close_inherited() -> io::Result<()> {
    // SAFETY: the caller's process has opened nothing itself, so no value in it owns a descriptor
    // behind the standard streams.
    let result = unsafe { libc::close_range(FIRST_INHERITED, libc::c_uint::MAX, 0) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // Linux before 5.9, or a container's filter that does not know the call.
        Some(libc::ENOSYS | libc::EPERM) => Ok(()),
        _ => Err(error),
    }
}

/// Drops all capabilities. Without them a process of root cannot raise its limits again.
fn drop_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    let Err(error) = set_capabilities(None, sets) else { return Ok(()) };
    // A filter of system calls may deny this also where there is nothing to drop.
    match capabilities(None) {
        Ok(held) if held.permitted.is_empty() => Ok(()),
        Ok(_) | Err(_) => Err(error.into()),
    }
}

/// Denies files but for reading `readable`, TCP, signals and abstract sockets, as far as the kernel's
/// Landlock covers them.
fn deny_access(readable: &[&Path]) -> io::Result<()> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(NEWEST)))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .map_err(io::Error::other)?;
    for path in readable {
        let file = File::open(path)?;
        let rule = PathBeneath::new(file, AccessFs::ReadFile);
        ruleset = ruleset.add_rule(rule).map_err(io::Error::other)?;
    }
    ruleset.restrict_self().map(drop).map_err(io::Error::other)
}

/// Processor time that this thread has used so far.
#[must_use]
pub fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::process::{Command, Stdio};

    use rustix::process::{getpid, test_kill_process};

    use super::*;
    use crate::guard::fence::{Strength, strength};

    const TEST: &str = "guard::sandbox::tests::sandbox_denies_files_network_and_processes";
    /// Set in the process that the test starts: where the test listens.
    const ADDRESS: &str = "ORRERY_TEST_SANDBOX_ADDRESS";
    const PARENT: &str = "ORRERY_TEST_SANDBOX_PARENT";
    const MIB: u64 = 1024 * 1024;

    #[test]
    fn sandbox_denies_files_network_and_processes() {
        if let Ok(address) = std::env::var(ADDRESS) {
            let parent = std::env::var(PARENT).unwrap().parse().unwrap();
            return try_everything(&address, parent);
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(ADDRESS, listener.local_addr().unwrap().to_string())
            .env(PARENT, getpid().as_raw_nonzero().to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{said}\n{}", String::from_utf8_lossy(&child.stdout));
        listener.set_nonblocking(true).unwrap();
        // One connection: that from before the sandbox.
        assert!(listener.accept().is_ok());
        assert!(listener.accept().is_err());
    }

    /// Runs in a process of its own, which it shuts in.
    fn try_everything(address: &str, parent: i32) {
        // All of it works before.
        drop(TcpStream::connect(address).unwrap());
        drop(File::open("/etc/hosts").unwrap());
        let fence = strength();
        // Landlock alone, which holds the thread that asks for it.
        let shut_in = || deny_access(&[]).map(|()| File::open("/etc/hosts").map(drop));
        let denied = std::thread::scope(|scope| scope.spawn(shut_in).join()).unwrap().unwrap();
        if fence > Strength::None {
            assert_eq!(denied.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        let sandbox = Sandbox::enter(parent, 512 * MIB).unwrap();
        assert!(File::open("/etc/hosts").is_err());
        assert!(File::open("/proc/self/status").is_err());
        assert!(File::create("sandbox-test").is_err());
        assert!(TcpStream::connect(address).is_err());
        assert!(TcpListener::bind("127.0.0.1:0").is_err());
        assert!(UdpSocket::bind("127.0.0.1:0").is_err());
        assert!(UnixDatagram::unbound().is_err());
        assert!(UnixStream::pair().is_err());
        assert!(Command::new("/bin/true").stdin(Stdio::inherit()).spawn().is_err());
        if fence == Strength::Whole {
            assert!(test_kill_process(Pid::from_raw(parent).unwrap()).is_err());
        }
        for resource in [Resource::Nofile, Resource::Nproc, Resource::Data] {
            let higher = Rlimit { current: Some(1024 * MIB), maximum: Some(1024 * MIB) };
            assert!(setrlimit(resource, higher).is_err(), "{resource:?}");
        }
        let mut bytes: Vec<u8> = Vec::new();
        for (allowed, fits) in [(64, false), (300, true), (64, true), (1000, true)] {
            sandbox.limit(allowed * MIB, 10).unwrap();
            bytes = Vec::new();
            assert_eq!(bytes.try_reserve_exact(256 * 1024 * 1024).is_ok(), fits, "{allowed} MiB");
        }
        // What it has been given once does not add up beyond the most.
        assert!(bytes.try_reserve_exact(600 * 1024 * 1024).is_err());
    }
}
