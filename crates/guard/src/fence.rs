//! The sandbox for a model's program (`orrery fence …`): the guard starts this process, which drops
//! its privileges and then becomes the program.
//!
//! Landlock lets the program read and execute all files to which its user has access, except hidden
//! paths (the data folder, configuration, secrets). The program may write only to its own folder,
//! to the folders in its manifest and to devices. The program cannot trace or signal processes
//! outside the sandbox, or connect to their abstract sockets. The network and devices remain
//! accessible. On a kernel without Landlock, only `no_new_privs`, dropping capabilities and the
//! limits take effect.
//!
//! Landlock rules can only grant access. To hide a folder, this module grants access to all
//! siblings of the folder and of each of its parents. Files created later next to a hidden path
//! have no such rule, so they are hidden from programs that are already running.

use std::ffi::OsString;
use std::fs::{self, FileType};
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, Scope,
};
use rustix::fs::{Mode, OFlags};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set, set_no_new_privs};

use super::{filter, sandbox};

/// The newest Landlock ABI that is used; an older kernel enforces the part that it supports.
pub(super) const NEWEST: ABI = ABI::V9;
/// Devices that expose the machine's memory and I/O ports.
const RAW_DEVICES: [&str; 3] = ["mem", "kmem", "port"];
/// Folders in `/dev` that contain programs' files rather than devices.
const SHARED_MEMORY: [&str; 2] = ["shm", "hugepages"];
/// Capabilities that a service running as root would pass on, and those that bypass the sandbox.
const DROPPED: [CapabilitySet; 16] = [
    CapabilitySet::AUDIT_CONTROL,
    CapabilitySet::BPF,
    CapabilitySet::CHECKPOINT_RESTORE,
    CapabilitySet::DAC_READ_SEARCH,
    CapabilitySet::LINUX_IMMUTABLE,
    CapabilitySet::MAC_ADMIN,
    CapabilitySet::MAC_OVERRIDE,
    CapabilitySet::MKNOD,
    CapabilitySet::NET_ADMIN,
    CapabilitySet::PERFMON,
    CapabilitySet::SYS_ADMIN,
    CapabilitySet::SYS_BOOT,
    CapabilitySet::SYS_MODULE,
    CapabilitySet::SYS_PTRACE,
    CapabilitySet::SYS_RAWIO,
    CapabilitySet::SYS_TIME,
];

/// The access rights of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct Walls {
    /// File or folder that the program may not open, including its contents
    #[arg(long, value_name = "PATH")]
    pub hide: Vec<PathBuf>,
    /// Folder whose manifests the program may not open
    #[arg(long, value_name = "FOLDER")]
    pub hide_manifests: Option<PathBuf>,
    /// Folder below a hidden path that the program may read
    #[arg(long, value_name = "FOLDER")]
    pub read: Vec<PathBuf>,
    /// Folder that the program may write to, except for hidden paths in the folder
    #[arg(long, value_name = "FOLDER")]
    pub write: Vec<PathBuf>,
    /// The program's own folder, which may be below a hidden path
    #[arg(long, value_name = "FOLDER")]
    pub home: Option<PathBuf>,
    /// Address space limit of each of the program's processes
    #[arg(long, value_name = "BYTES")]
    pub memory_bytes: Option<u64>,
}

impl Walls {
    /// Returns the hidden paths with symbolic links resolved.
    fn hidden(&self) -> Vec<PathBuf> {
        let mut hidden: Vec<PathBuf> = self.hide.iter().map(|path| resolved(path)).collect();
        hidden.extend(self.hide_manifests.iter().flat_map(|folder| manifests(&resolved(folder))));
        hidden
    }

    /// Returns the command-line arguments. All paths are absolute, because the sandbox process
    /// starts in another folder.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let lists = [("--hide", &self.hide), ("--read", &self.read), ("--write", &self.write)];
        let paths =
            lists.iter().flat_map(|(name, paths)| paths.iter().map(move |path| (*name, path)));
        let manifests = self.hide_manifests.iter().map(|folder| ("--hide-manifests", folder));
        let paths = paths.chain(manifests).chain(self.home.iter().map(|home| ("--home", home)));
        let mut arguments: Vec<OsString> =
            paths.flat_map(|(name, path)| [name.into(), absolute(path).into()]).collect();
        if let Some(bytes) = self.memory_bytes {
            arguments.extend(["--memory-bytes".into(), bytes.to_string().into()]);
        }
        arguments
    }
}

/// Arguments of `orrery fence`.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct FenceArgs {
    /// Process id of the guard: the program dies with it
    #[arg(long, value_name = "PID")]
    pub parent: i32,
    #[command(flatten)]
    pub walls: Walls,
    /// The program and its arguments
    #[arg(required = true, last = true)]
    pub command: Vec<OsString>,
}

/// Replaces this process with the program. Returns only on failure, with the reason.
#[must_use]
pub fn run(args: &FenceArgs) -> io::Error {
    let Some((program, arguments)) = args.command.split_first() else {
        return io::Error::new(io::ErrorKind::InvalidInput, "there is no program");
    };
    if let Err(error) = give_up(args) {
        return io::Error::new(error.kind(), format!("cannot sandbox the program: {error}"));
    }
    let error = Command::new(program).args(arguments).exec();
    let folder = std::env::current_dir().unwrap_or_default();
    let program = program.to_string_lossy();
    let folder = folder.display();
    io::Error::new(error.kind(), format!("'{program}' cannot be started in {folder}: {error}"))
}

fn give_up(args: &FenceArgs) -> io::Result<()> {
    seal_modes(&args.walls)?;
    // The program dies with its guard; otherwise, it would keep running if the guard were killed.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().map(Pid::as_raw_nonzero).is_none_or(|parent| parent.get() != args.parent) {
        return Err(io::Error::other("its guard has ended"));
    }
    for capability in DROPPED {
        // An unprivileged process has no capabilities to drop, and the kernel refuses the call.
        let _unprivileged = remove_capability_from_bounding_set(capability);
    }
    set_no_new_privs(true)?;
    restrict(&args.walls)?;
    filter::apply_to_program()?;
    // The memory limit is set last, because this process needs memory up to this point.
    if let Some(bytes) = args.walls.memory_bytes {
        setrlimit(Resource::As, Rlimit { current: Some(bytes), maximum: Some(bytes) })?;
    }
    Ok(())
}

/// Makes the modes, owners and attributes of all files read-only, except where the program may
/// write.
fn seal_modes(walls: &Walls) -> io::Result<()> {
    let devices = SHARED_MEMORY.iter().map(|name| Path::new("/dev").join(name));
    let writable = walls.write.iter().map(|path| resolved(path)).chain(devices);
    let home = walls.home.iter().map(|home| (resolved(home), true));
    let mut places: Vec<(PathBuf, bool)> = writable.map(|path| (path, true)).collect();
    let mut protected = walls.hidden();
    protected.retain(|path| places.iter().any(|(folder, _)| path.starts_with(folder)));
    places.extend(protected.into_iter().map(|path| (path, false)).chain(home));
    sandbox::seal_mounts(&places).map(drop)
}

/// The extent to which this kernel enforces the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strength {
    /// No Landlock.
    None,
    /// File access, but not signals (Landlock before ABI 6, Linux 6.12).
    Files,
    /// File access, signals and tracing.
    Whole,
}

impl Strength {
    /// Describes what programs can do on this kernel despite the sandbox, and the remedy.
    #[must_use]
    pub const fn concern(self) -> Option<&'static str> {
        match self {
            Self::None => Some(
                "this kernel has no Landlock: a program of a command model can read and change \
                 everything that the service's user can, including its data and keys; Linux 5.13 \
                 or later with landlock among its security modules (lsm=) prevents that",
            ),
            Self::Files => Some(
                "this kernel's Landlock does not cover signals: a program of a command model can \
                 kill the service; Linux 6.12 or later prevents that",
            ),
            Self::Whole => None,
        }
    }
}

/// Returns the concerns about this kernel, for all parts of the sandbox.
pub fn concerns() -> impl Iterator<Item = &'static str> {
    [strength().concern(), filter::concern(), namespace_concern()].into_iter().flatten()
}

/// Returns the concern if the service cannot create a mount namespace.
#[must_use]
pub fn namespace_concern() -> Option<&'static str> {
    let is = |setting: &str, value: &str| {
        let text = fs::read_to_string(Path::new("/proc/sys").join(setting));
        text.is_ok_and(|text| text.trim() == value)
    };
    let is_privileged = rustix::thread::capabilities(None)
        .is_ok_and(|held| held.effective.contains(CapabilitySet::SYS_ADMIN));
    let is_denied = is("user/max_user_namespaces", "0")
        || is("kernel/unprivileged_userns_clone", "0")
        || is("kernel/apparmor_restrict_unprivileged_userns", "1");
    (is_denied && !is_privileged).then_some(
        "this machine denies user namespaces to the service: a program of a command model can open the \
         service's files to other users of the machine (chmod), though not read them itself; allow user \
         namespaces for the service's binary, or let no other user log in",
    )
}

/// Asks the kernel how much of the sandbox it can enforce. This function restricts nothing.
#[must_use]
pub fn strength() -> Strength {
    let asked = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let Ok(files) = asked.handle_access(AccessFs::from_all(ABI::V1)) else { return Strength::None };
    match files.scope(Scope::from_all(ABI::V6)) {
        Ok(_) => Strength::Whole,
        Err(_older) => Strength::Files,
    }
}

/// Restricts this thread, and therefore also the program that replaces this process.
fn restrict(walls: &Walls) -> io::Result<()> {
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .map_err(io::Error::other)?;
    let mut allowed = Allowed { ruleset, hidden: walls.hidden() };
    allowed.all_below(Path::new("/"), looking(), false)?;
    for folder in &walls.read {
        allowed.all_below(&resolved(folder), looking(), true)?;
    }
    for folder in &walls.write {
        allowed.all_below(&resolved(folder), writing(), false)?;
    }
    if let Some(home) = &walls.home {
        allowed.all_below(&resolved(home), writing(), true)?;
    }
    allowed.ruleset.restrict_self().map(drop).map_err(io::Error::other)
}

fn looking() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::Execute | AccessFs::ResolveUnix
}

/// Returns all access rights except the right to create devices: a device node for the disk would
/// bypass the sandbox.
fn writing() -> BitFlags<AccessFs> {
    AccessFs::from_all(NEWEST) & !(AccessFs::MakeBlock | AccessFs::MakeChar | AccessFs::IoctlDev)
}

fn using_devices() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_empty| path.to_path_buf())
}

/// Resolves the symbolic links in `path`, even if its last components do not exist yet.
fn resolved(path: &Path) -> PathBuf {
    let path = absolute(path);
    let there = path.ancestors().find_map(|part| Some((part, fs::canonicalize(part).ok()?)));
    let Some((part, real)) = there else { return path };
    match path.strip_prefix(part) {
        Ok(rest) if !rest.as_os_str().is_empty() => real.join(rest),
        Ok(_) | Err(_) => real,
    }
}

/// Returns the `.toml` files of a folder, with the extension in upper or lower case.
fn manifests(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|kind| kind.eq_ignore_ascii_case("toml")))
        .collect()
}

/// The Landlock rules so far.
struct Allowed {
    ruleset: RulesetCreated,
    hidden: Vec<PathBuf>,
}

impl Allowed {
    /// Allows everything in `root` except hidden paths. Inside a hidden folder, allows nothing
    /// unless `also_within` is set.
    fn all_below(
        &mut self,
        root: &Path,
        rights: BitFlags<AccessFs>,
        also_within: bool,
    ) -> io::Result<()> {
        let within = |hidden: &&PathBuf| also_within && root.starts_with(hidden) && root != *hidden;
        let hidden: Vec<PathBuf> =
            self.hidden.iter().filter(|hidden| !within(hidden)).cloned().collect();
        if hidden.iter().any(|hidden| root.starts_with(hidden)) {
            return Ok(());
        }
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let is_dev = is_of_devices(&folder);
            let mut below = hidden.iter().filter(|hidden| hidden.starts_with(&folder)).peekable();
            if below.peek().is_none() && !is_dev && folder != Path::new("/") {
                self.allow(&folder, rights)?;
                continue;
            }
            // The right to list a folder includes all its subfolders.
            if below.all(|hidden| hidden.is_file()) {
                self.allow(&folder, AccessFs::ReadDir.into())?;
            }
            // If this process cannot list the folder, neither can the program.
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                let path = entry.path();
                let Ok(kind) = entry.file_type() else { continue };
                if hidden.contains(&path) {
                    continue;
                }
                let is_above = path == Path::new("/dev")
                    || hidden.iter().any(|hidden| hidden.starts_with(&path));
                match rights_in(is_dev, &path, kind, rights) {
                    _ if is_above && kind.is_dir() => folders.push(path),
                    Some(rights) => self.allow(&path, rights)?,
                    None if is_dev && kind.is_dir() => folders.push(path),
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// Allows `rights` on a file, or on a folder and everything below it.
    fn allow(&mut self, path: &Path, rights: BitFlags<AccessFs>) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // If this process cannot open a path, the program cannot reach it either.
        let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return Ok(()) };
        let is_folder = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode)
            == rustix::fs::FileType::Directory;
        let rights = if is_folder { rights } else { rights & AccessFs::from_file(NEWEST) };
        if !rights.is_empty() {
            let rule = PathBeneath::new(file, rights);
            (&mut self.ruleset).add_rule(rule).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

/// Returns whether a folder is part of `/dev` and contains devices.
fn is_of_devices(folder: &Path) -> bool {
    let dev = Path::new("/dev");
    folder.starts_with(dev) && !SHARED_MEMORY.iter().any(|name| folder.starts_with(dev.join(name)))
}

/// Returns the rights for an entry of a folder that is only partly allowed; `None` for no rights.
fn rights_in(
    is_dev: bool,
    path: &Path,
    kind: FileType,
    rights: BitFlags<AccessFs>,
) -> Option<BitFlags<AccessFs>> {
    // A rule on a symbolic link would apply to the link's target.
    if kind.is_symlink() {
        return None;
    }
    if !is_dev {
        return Some(rights);
    }
    let is_one_of = |names: &[&str]| names.iter().any(|name| path == Path::new("/dev").join(name));
    match kind {
        kind if kind.is_char_device() && !is_one_of(&RAW_DEVICES) => Some(using_devices()),
        kind if kind.is_dir() && is_one_of(&SHARED_MEMORY) => Some(writing()),
        kind if kind.is_dir() && is_one_of(&["pts"]) => Some(using_devices()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fence_arguments_round_trip_through_command_line() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: FenceArgs,
        }
        let walls = Walls {
            hide: vec!["/a".into(), "/b c".into()],
            hide_manifests: Some("/a/models".into()),
            read: vec!["/a/models".into()],
            write: vec!["/var/cache".into()],
            home: Some("/a/run/1".into()),
            memory_bytes: Some(7),
        };
        let mut line: Vec<OsString> = vec!["fence".into(), "--parent".into(), "17".into()];
        line.extend(walls.arguments());
        line.extend(["--".into(), "python3".into(), "--hide".into()]);
        let Line { args } = clap::Parser::try_parse_from(line).unwrap();
        assert_eq!(
            args,
            FenceArgs { parent: 17, walls, command: vec!["python3".into(), "--hide".into()] }
        );
    }

    #[test]
    fn fence_arguments_use_absolute_paths() {
        let walls = Walls { hide: vec!["data".into()], ..Walls::default() };
        let data = std::env::current_dir().unwrap().join("data");
        assert_eq!(walls.arguments(), ["--hide".into(), data.into_os_string()]);
    }

    #[test]
    fn fence_resolves_paths_with_missing_tail() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        fs::create_dir(real.join("data")).unwrap();
        std::os::unix::fs::symlink("data", real.join("link")).unwrap();
        assert_eq!(resolved(&real.join("link")), real.join("data"));
        assert_eq!(resolved(&real.join("link/a/b")), real.join("data/a/b"));
        assert_eq!(resolved(Path::new("/")), Path::new("/"));
    }
}
