//! The sandbox for processes that handle untrusted input: no access to files, the network, other
//! processes or privileges, and limited memory and CPU time.
//!
//! [`Sandbox::enter`] is for a single-threaded process of this binary that uses only its standard
//! streams. Such a process needs no files, so Landlock denies all of them. For kernels without
//! Landlock, the file descriptor limit is zero, so that no file, socket or pipe can be opened.
//! [`enter_reading`] is for a process that uses threads and also reads given files. A system call
//! [`filter`] adds the restrictions that Landlock lacks. A sandboxed process cannot undo any of
//! these restrictions.
//!
//! This is one of the four modules with `unsafe`: there is no safe API to close inherited
//! descriptors or to change mounts.

#![expect(
    unsafe_code,
    reason = "a C function without a safe wrapper is called: see the module comment"
)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
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
use super::filter;

/// Address space beyond the data: the program's code, its libraries' tables, and the stack.
const ADDRESSES_BESIDE: u64 = 512 * 1024 * 1024;
/// Maximum number of descriptors for a process that reads files: its standard streams, its
/// runtime's descriptors, and the files.
const FILES_MAX: u64 = 64;
/// The first descriptor after the standard streams.
const FIRST_INHERITED: libc::c_uint = 3;

/// A process that can only use its standard streams and compute.
#[derive(Debug)]
pub struct Sandbox {
    memory: OwnMemory,
}

/// Reports this process's memory usage. The underlying file is opened before files are denied.
#[derive(Debug)]
pub struct OwnMemory {
    statm: File,
}

impl OwnMemory {
    fn open() -> io::Result<Self> {
        Ok(Self { statm: File::open("/proc/self/statm")? })
    }

    /// Returns the size of this process's data in bytes: its writable memory including the stack,
    /// without mapped files.
    ///
    /// # Errors
    /// If the kernel does not report the size.
    pub fn data(&self) -> io::Result<u64> {
        let mut text = [0; 128];
        let read = self.statm.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(text.get(..read).unwrap_or_default());
        // Format: size resident shared text lib data dt, in pages.
        let pages = text.split_whitespace().nth(5).and_then(|word| word.parse::<u64>().ok());
        let pages = pages.ok_or(io::ErrorKind::InvalidData)?;
        Ok(pages.saturating_mul(page_size() as u64))
    }
}

impl Sandbox {
    /// Puts this process into the sandbox. The process dies with `parent`, and its data (heap and
    /// private mappings) can never exceed `data_max` bytes.
    ///
    /// # Errors
    /// If `parent` has ended, or the kernel refuses a step. A kernel without Landlock is not an
    /// error.
    pub fn enter(parent: i32, data_max: u64) -> io::Result<Self> {
        end_with(parent)?;
        close_inherited()?;
        let memory = OwnMemory::open()?;
        deny_access(&[])?;
        set_no_new_privs(true)?;
        for (resource, most) in [
            (Resource::Core, 0),
            (Resource::Fsize, 0),
            (Resource::Nproc, 0),
            (Resource::Data, data_max),
            (Resource::As, data_max.saturating_add(ADDRESSES_BESIDE)),
            // The descriptor limit is set last, because the other steps need descriptors.
            (Resource::Nofile, 0),
        ] {
            setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
        }
        drop_capabilities()?;
        filter::apply_to_worker()?;
        Ok(Self { memory })
    }

    /// Limits the next run to `memory` bytes more data than the current size, and to `cpu_seconds`
    /// of CPU time. Allocations beyond the memory limit fail; if the process exceeds the CPU limit,
    /// the kernel kills it (`SIGXCPU`).
    ///
    /// # Errors
    /// If the kernel refuses a limit.
    pub fn limit(&self, memory: u64, cpu_seconds: u64) -> io::Result<()> {
        let most = getrlimit(Resource::Data).maximum;
        let data = self.memory.data()?.saturating_add(memory).min(most.unwrap_or(u64::MAX));
        setrlimit(Resource::Data, Rlimit { current: Some(data), maximum: most })?;
        let used = clock_gettime(ClockId::ProcessCPUTime).tv_sec;
        // The time is rounded up to whole seconds: otherwise, the current partial second would
        // count against the limit.
        let until = u64::try_from(used).unwrap_or(0).saturating_add(cpu_seconds).saturating_add(1);
        let most = getrlimit(Resource::Cpu).maximum;
        setrlimit(Resource::Cpu, Rlimit { current: Some(until), maximum: most })?;
        Ok(())
    }
}

/// Restricts a process that is still single-threaded: it can read only the given files, start no
/// program and use no network. The process dies with `parent`, and its data, excluding mapped
/// files, can never exceed `data_max` bytes. Returns a reader for its memory usage.
///
/// # Errors
/// If `parent` has ended, a file is missing, or the kernel refuses a step. A kernel without
/// Landlock is not an error.
pub fn enter_reading(parent: i32, files: &[&Path], data_max: Option<u64>) -> io::Result<OwnMemory> {
    end_with(parent)?;
    close_inherited()?;
    let memory = OwnMemory::open()?;
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
    drop_capabilities()?;
    filter::apply_to_worker()?;
    Ok(memory)
}

/// Makes this process die with `parent`.
fn end_with(parent: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().map(Pid::as_raw_nonzero).is_none_or(|id| id.get() != parent) {
        return Err(io::Error::other("the service has ended"));
    }
    Ok(())
}

/// Closes descriptors that the service itself inherited. (Descriptors that the service opens are
/// not inherited.)
fn close_inherited() -> io::Result<()> {
    // SAFETY: this process has not opened anything itself, so no value in it owns a descriptor
    // above the standard streams.
    let result = unsafe { libc::close_range(FIRST_INHERITED, libc::c_uint::MAX, 0) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // Linux before 5.9 lacks this call; a container's filter may deny it.
        Some(libc::ENOSYS | libc::EPERM) => Ok(()),
        _ => Err(error),
    }
}

/// Drops all capabilities. Without them, even a root process cannot raise its limits again.
fn drop_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    let Err(error) = set_capabilities(None, sets) else { return Ok(()) };
    // A system call filter may deny this call even if there is nothing to drop.
    match capabilities(None) {
        Ok(held) if held.permitted.is_empty() => Ok(()),
        Ok(_) | Err(_) => Err(error.into()),
    }
}

/// Denies file access (except reading `readable`), TCP, signals and abstract sockets, to the extent
/// that the kernel's Landlock supports.
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

/// Makes every mount read-only for this process and its children, except for `places` that are
/// marked as writable. A later entry may be inside an earlier one. On a read-only mount, the modes,
/// owners, times and attributes of files cannot be changed; Landlock does not prevent such changes.
///
/// This function requires a mount namespace, and also a user namespace if the process is
/// unprivileged. If these namespaces are unavailable, the function changes nothing and returns
/// `false`.
///
/// # Errors
/// If a step fails after the first change.
pub(super) fn seal_mounts(places: &[(PathBuf, bool)]) -> io::Result<bool> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let directory = std::env::current_dir()?;
    if unshare(libc::CLONE_NEWNS).is_err() {
        if unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS).is_err() {
            return Ok(false);
        }
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    }
    let root = Path::new("/");
    let sealed = mount(None, root, libc::MS_REC | libc::MS_PRIVATE)
        .and_then(|()| set_attribute(root, libc::MOUNT_ATTR_RDONLY, 0, libc::AT_RECURSIVE));
    if sealed.is_err() {
        // A new namespace by itself grants the program nothing and has no other effect.
        return Ok(false);
    }
    for (path, is_writable) in places.iter().filter(|(path, _)| path.exists()) {
        mount(Some(path), path, libc::MS_BIND | libc::MS_REC)?;
        if *is_writable {
            set_writable(path)?;
        } else {
            set_attribute(path, libc::MOUNT_ATTR_RDONLY, 0, libc::AT_RECURSIVE)?;
        }
    }
    // The process's working directory still refers to the underlying mount.
    std::env::set_current_dir(directory)?;
    Ok(true)
}

/// Makes a mount and the mounts below it writable again. If the machine has read-only mounts below
/// it, changes only the mount itself.
fn set_writable(path: &Path) -> io::Result<()> {
    let clear = |flags| set_attribute(path, 0, libc::MOUNT_ATTR_RDONLY, flags);
    match clear(libc::AT_RECURSIVE).or_else(|_locked| clear(0)) {
        // The machine mounted this path read-only, and the mount stays read-only.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
        done => done,
    }
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes no pointer. This process has one thread.
    done(unsafe { libc::unshare(flags) })
}

fn mount(from: Option<&Path>, to: &Path, flags: libc::c_ulong) -> io::Result<()> {
    let from = from.map(c_path).transpose()?;
    let from = from.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
    let to = c_path(to)?;
    // SAFETY: both paths end in a zero byte and outlive the call; null is valid for the other
    // pointers.
    done(unsafe { libc::mount(from, to.as_ptr(), std::ptr::null(), flags, std::ptr::null()) })
}

/// Changes attributes of the mount at `path`, and with `AT_RECURSIVE` also of the mounts below it.
fn set_attribute(path: &Path, set: u64, clear: u64, flags: libc::c_int) -> io::Result<()> {
    let path = c_path(path)?;
    let attributes =
        libc::mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd: 0 };
    // SAFETY: the path ends in a zero byte, the size matches the structure, and both outlive the
    // call.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    done(libc::c_int::try_from(answer).unwrap_or(-1))
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the CPU time used by this thread.
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
    use crate::fence::{Strength, strength};

    const TEST: &str = "sandbox::tests::sandbox_denies_files_network_and_processes";
    /// Set in the test's child process: the address of the test's listener.
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
        // The only connection is the one made before entering the sandbox.
        assert!(listener.accept().is_ok());
        assert!(listener.accept().is_err());
    }

    /// Checks calls that the kernel permits between all processes of a user.
    fn denies_calls_that_landlock_does_not_see(parent: i32) {
        if !filter::is_available() {
            return;
        }
        let other = Pid::from_raw(parent).unwrap();
        let denied = Err(rustix::io::Errno::PERM);
        let limit = Rlimit { current: Some(1), maximum: Some(1) };
        assert_eq!(rustix::process::prlimit(Some(other), Resource::Cpu, limit).map(drop), denied);
        assert_eq!(rustix::process::setpriority_process(Some(other), 19), denied);
        assert_eq!(rustix::process::setpriority_user(rustix::process::getuid(), 19), denied);
        let cpus = rustix::thread::sched_getaffinity(None).unwrap();
        assert_eq!(rustix::thread::sched_setaffinity(Some(other), &cpus), denied);
        assert_eq!(rustix::thread::sched_setaffinity(None, &cpus), Ok(()));
        assert_eq!(rustix::process::setpriority_process(None, 1), Ok(()));
        let mode = rustix::fs::Mode::from_raw_mode(0o777);
        assert_eq!(rustix::fs::chmod("/etc/hosts", mode), denied);
        let user = Some(rustix::process::getuid());
        assert_eq!(rustix::fs::chown("/etc/hosts", user, None), denied);
        let udp = rustix::net::SocketType::DGRAM;
        for family in [rustix::net::AddressFamily::INET, rustix::net::AddressFamily::UNIX] {
            assert_eq!(rustix::net::socket(family, udp, None).map(drop), denied);
        }
        // The process may start threads but not processes.
        std::thread::scope(|scope| scope.spawn(|| ()).join()).unwrap();
    }

    /// Runs in a separate process, because the restrictions are permanent.
    fn try_everything(address: &str, parent: i32) {
        // Outside the sandbox, all of these operations work.
        drop(TcpStream::connect(address).unwrap());
        drop(File::open("/etc/hosts").unwrap());
        let fence = strength();
        // Landlock alone, which restricts only the calling thread.
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
        denies_calls_that_landlock_does_not_see(parent);
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
        // An earlier limit cannot raise the maximum.
        assert!(bytes.try_reserve_exact(600 * 1024 * 1024).is_err());
    }
}
