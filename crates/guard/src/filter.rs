//! System call filter (seccomp) for models' programs and for processes that handle untrusted input.
//!
//! Landlock does not cover calls that change limits, priorities, modes and owners, or that open
//! sockets other than TCP. The kernel permits most of these calls between any two processes of the
//! same user, so without this filter a program could kill or starve the service. A denied call
//! fails with `EPERM`; calls of a foreign architecture kill the process. On a kernel without
//! seccomp, only the other parts of the sandbox take effect.

use std::collections::BTreeMap;
use std::io;

use rustix::process::getpid;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter, sock_filter,
};

/// A system call that is not yet in the C library's list. The call's number is the same on every
/// architecture.
const PROCESS_MRELEASE: i64 = 448;
const FCHMODAT2: i64 = 452;
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const OPEN_TREE_ATTR: i64 = 467;
const FILE_SETATTR: i64 = 469;

/// Calls that neither a program nor a worker needs: access to other processes' memory, kernel
/// interfaces with a large attack surface, mounts, the user's keys, machine settings, and System V
/// IPC and POSIX message queues. Memory in such IPC objects counts toward no process and survives
/// them all.
const DENIED: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    libc::SYS_msgctl,
    libc::SYS_msgget,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_semctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_shmget,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_userfaultfd,
    OPEN_TREE_ATTR,
    PROCESS_MRELEASE,
];
/// Further calls that a worker does not need: sockets, file attributes, other programs, signals.
const DENIED_TO_WORKERS: &[i64] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_chroot,
    libc::SYS_connect,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_inotify_init1,
    libc::SYS_kill,
    libc::SYS_listen,
    libc::SYS_lremovexattr,
    libc::SYS_lsetxattr,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_removexattr,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_setxattr,
    libc::SYS_socket,
    libc::SYS_tkill,
    libc::SYS_unshare,
    libc::SYS_utimensat,
    FCHMODAT2,
    FILE_SETATTR,
    REMOVEXATTRAT,
    SETXATTRAT,
];
/// Further calls that a worker does not need and that exist only on x86-64.
#[cfg(target_arch = "x86_64")]
const DENIED_TO_WORKERS_HERE: &[i64] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_fork,
    libc::SYS_futimesat,
    libc::SYS_inotify_init,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_TO_WORKERS_HERE: &[i64] = &[];
/// Calls whose first argument identifies the target process or thread.
const OF_PROCESS: &[i64] = &[
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
];
/// The value with which `ioprio_set` selects a process, as opposed to a process group or all
/// processes of a user.
const IOPRIO_WHO_PROCESS: u64 = 1;
/// System call numbers from this one on belong to the x32 interface, to which the rules would not
/// apply.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;
/// The kernel's BPF instructions `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JGE | BPF_K` and
/// `BPF_RET | BPF_K`.
#[cfg(target_arch = "x86_64")]
const LOAD_WORD: u16 = 0x20;
#[cfg(target_arch = "x86_64")]
const JUMP_AT_LEAST: u16 = 0x35;
#[cfg(target_arch = "x86_64")]
const RETURN: u16 = 0x06;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Filters the calls of this thread and of the program that will replace this process.
///
/// # Errors
/// If the kernel refuses the filter. A kernel without seccomp is not an error.
pub(super) fn apply_to_program() -> io::Result<()> {
    install(program_rules()?, libc::EPERM)
}

/// Filters the calls of a process that starts no programs and opens no sockets.
///
/// # Errors
/// The same errors as [`apply_to_program`].
pub(super) fn apply_to_worker() -> io::Result<()> {
    let mut rules = program_rules()?;
    for call in DENIED_TO_WORKERS.iter().chain(DENIED_TO_WORKERS_HERE) {
        rules.insert(*call, Vec::new());
    }
    let own = getpid().as_raw_nonzero().get().unsigned_abs().into();
    // `abort` sends a signal to its own process.
    rules.insert(libc::SYS_tgkill, vec![rule(&[(0, Ne, own)])?]);
    // Threads are allowed, processes are not. Without `clone3`, whose flags a filter cannot see,
    // the C library falls back to `clone`.
    let threads = u64::from(libc::CLONE_THREAD.unsigned_abs());
    rules.insert(libc::SYS_clone, vec![rule(&[(0, MaskedEq(threads), 0)])?]);
    install(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS)?;
    install(rules, libc::EPERM)
}

/// Returns whether this kernel filters system calls.
#[must_use]
pub fn is_available() -> bool {
    let actions = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail");
    actions.is_ok_and(|actions| actions.split_whitespace().any(|action| action == "errno"))
}

/// Describes what a program can do on a kernel without system call filters.
pub(super) fn concern() -> Option<&'static str> {
    (!is_available()).then_some(
        "this kernel has no seccomp: a program of a command model can change the service's limits and \
         priorities, and so end or starve it; a kernel with CONFIG_SECCOMP_FILTER prevents that",
    )
}

fn program_rules() -> io::Result<Rules> {
    // The program will have the process id of this process.
    let own = getpid().as_raw_nonzero().get().unsigned_abs().into();
    let mut rules: Rules = DENIED.iter().map(|call| (*call, Vec::new())).collect();
    for call in OF_PROCESS {
        rules.insert(*call, vec![rule(&[(0, Ne, 0), (0, Ne, own)])?]);
    }
    // Reading the limits of another process is harmless.
    let changes = SeccompCondition::new(2, SeccompCmpArgLen::Qword, Ne, 0).map_err(invalid)?;
    let foreign = conditions(&[(0, Ne, 0), (0, Ne, own)])?;
    let limits = foreign.into_iter().chain([changes]).collect();
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(limits).map_err(invalid)?]);
    for (call, process) in [
        (libc::SYS_setpriority, u64::from(libc::PRIO_PROCESS)),
        (libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS),
    ] {
        let foreign = rule(&[(0, Eq, process), (1, Ne, 0), (1, Ne, own)])?;
        // A process group, or all processes of a user, may include the service.
        rules.insert(call, vec![rule(&[(0, Ne, process)])?, foreign]);
    }
    #[cfg(target_arch = "x86_64")]
    for call in [libc::SYS_ioperm, libc::SYS_iopl] {
        rules.insert(call, Vec::new());
    }
    Ok(rules)
}

fn rule(of: &[(u8, SeccompCmpOp, u64)]) -> io::Result<SeccompRule> {
    SeccompRule::new(conditions(of)?).map_err(invalid)
}

/// Returns conditions on 32-bit arguments, given as argument number, comparison and value.
fn conditions(of: &[(u8, SeccompCmpOp, u64)]) -> io::Result<Vec<SeccompCondition>> {
    let condition = |(argument, comparison, value): &(u8, SeccompCmpOp, u64)| {
        SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, comparison.clone(), *value)
    };
    of.iter().map(condition).collect::<Result<_, _>>().map_err(invalid)
}

/// Makes calls that match a rule fail with `errno`.
fn install(rules: Rules, errno: i32) -> io::Result<()> {
    let refused = SeccompAction::Errno(errno.unsigned_abs());
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(invalid)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, architecture);
    let filter = filter.and_then(BpfProgram::try_from).map_err(invalid)?;
    let program: BpfProgram = without_x32().into_iter().chain(filter).collect();
    match apply_filter(&program) {
        // The kernel has no seccomp, or a container's own filter forbids installing another.
        Err(seccompiler::Error::Seccomp(error))
            if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EPERM)) =>
        {
            Ok(())
        }
        applied => applied.map_err(invalid),
    }
}

/// Returns instructions that reject the x32 system call numbers, which the kernel may accept under
/// the same architecture.
#[cfg(target_arch = "x86_64")]
fn without_x32() -> Vec<sock_filter> {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        // The system call number is the first field of `seccomp_data`.
        step(LOAD_WORD, 0, 0, 0),
        step(JUMP_AT_LEAST, 0, 1, X32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs()),
    ]
}

#[cfg(not(target_arch = "x86_64"))]
fn without_x32() -> Vec<sock_filter> {
    Vec::new()
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}
