//! Records the executions in flight in a file that outlives the process. After a crash, the file
//! shows which executions may have caused the crash.
//!
//! The start and the end of a run each take one write of 48 bytes into the page cache, which
//! survives the end of the process in any case. The file is never synced, so that even a run of a
//! few microseconds can be recorded without disk I/O. A power failure may lose or corrupt the file.
//! In that case the file is ignored, because an execution cannot cause a power failure. A running
//! execution has one mark, plus one mark for each step attempt in flight.
//!
//! ```text
//! 0    magic, state (running or stopped), note of a fatal signal, memory growth while a suspect
//!      ran alone, boot id, number of suspects, OOM kill counters
//! 128  suspects: determined at the start, written once
//!      slots: one per mark, zeroed when the mark is dropped
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use orrery_domain::ids::{ExecutionId, Id, OrganizationId};
use orrery_runtime::crash_note::{self, Note, Origin};

/// The file's name in the data directory.
const NAME: &str = "in-flight";
const MAGIC: &[u8; 16] = b"orrery-inflight1";
const STATE_AT: usize = 16;
/// Offset of the note of a fatal signal, which the signal handler writes.
const NOTE_AT: usize = 17;
/// Offset of the number of bytes by which memory grew while a suspect ran alone.
const GROWTH_AT: usize = 24;
const BOOT_AT: usize = 32;
const BOOT_BYTES: usize = 36;
const COUNT_AT: usize = 72;
/// Offset of the OOM kill counters, as they were when the process started.
const KILLS_AT: usize = 80;
const HEADER_BYTES: usize = 128;
const ENTRY_BYTES: usize = 48;
const RUNNING: u8 = 1;
const STOPPED: u8 = 2;
/// Maximum file size; a larger file was not written by this program.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

/// One run: an entire execution or one step attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Run {
    pub organization: OrganizationId,
    pub id: ExecutionId,
    /// 0 for an entire execution, otherwise the checksum of the attempt's key.
    pub attempt: u32,
}

impl Run {
    /// Identifies an entire execution.
    #[must_use]
    pub(crate) const fn whole(organization: OrganizationId, id: ExecutionId) -> Self {
        Self { organization, id, attempt: 0 }
    }

    /// Identifies the step attempt with this `key`.
    #[must_use]
    pub(crate) fn attempt(organization: OrganizationId, id: ExecutionId, key: &str) -> Self {
        Self { organization, id, attempt: crc32fast::hash(key.as_bytes()).max(1) }
    }
}

/// A run during which the process crashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub run: Run,
    /// The number of crashes during the run, without progress in between.
    pub deaths: u32,
    /// The execution's progress at the last crash.
    pub progress: u64,
}

/// Evidence of what caused a crash. A SIGKILL alone is not evidence, because a person, a supervisor
/// or a script may have sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crash {
    /// A fatal signal raised by the process itself: a memory fault, a panic that aborts, a failed
    /// allocation.
    Fault,
    /// A fatal signal from another process, such as systemd's watchdog.
    Signal,
    /// The kernel's OOM killer killed a process. `growth` is the memory growth in bytes while a
    /// suspect ran alone.
    OutOfMemory { growth: u64 },
}

/// The record left by the previous process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Previous {
    /// The cause of the crash, if there is evidence; `None` after an orderly stop or a reboot.
    pub crash: Option<Crash>,
    /// The runs in flight when the process ended.
    pub running: Vec<Run>,
    /// The suspects when the process started.
    pub suspects: Vec<Suspect>,
}

/// The record of the executions in flight; clones share the record. Nothing is recorded before
/// [`InFlight::open`].
#[derive(Debug, Clone, Default)]
pub(crate) struct InFlight {
    slots: Arc<Mutex<Slots>>,
}

#[derive(Debug, Default)]
struct Slots {
    file: Option<Arc<File>>,
    /// The offset of the first slot.
    base: u64,
    /// The offsets of slots that were used before and are free now.
    free: Vec<u64>,
    count: u64,
    is_failing: bool,
}

/// Records a run until it is dropped.
#[derive(Debug)]
pub(crate) struct Mark {
    record: InFlight,
    /// The file and the slot's offset; `None` if no file is open.
    slot: Option<(Arc<File>, u64)>,
}

impl InFlight {
    /// Reads the record in the directory `folder`. Returns an empty record if the file is missing
    /// or corrupt.
    pub(crate) fn read(folder: &Path) -> Previous {
        match read_file(&folder.join(NAME)) {
            Ok(bytes) => parse(&bytes, &boot_id(), &OomKills::read()).unwrap_or_else(|| {
                tracing::warn!("ignored a damaged record of running executions");
                Previous::default()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Previous::default(),
            Err(error) => {
                tracing::error!(%error, "cannot read the record of running executions");
                Previous::default()
            }
        }
    }

    /// Starts a new record in the directory `folder` with these suspects. The old file is replaced
    /// atomically: if the process is killed in between, either the old or the new file exists.
    ///
    /// # Errors
    /// An I/O error if the file cannot be written. In that case, nothing is recorded.
    pub(crate) fn open(&self, folder: &Path, suspects: &[Suspect]) -> io::Result<()> {
        let path = folder.join(NAME);
        let new = folder.join("in-flight.new");
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = file.open(&new)?;
        let header = header(RUNNING, &boot_id(), suspects.len(), &OomKills::read());
        let entries = suspects.iter().flat_map(entry);
        let bytes: Vec<u8> = header.into_iter().chain(entries).collect();
        file.write_all_at(&bytes, 0)?;
        fs::rename(&new, &path)?;
        let base = bytes.len() as u64;
        let file = Arc::new(file);
        crash_note::leave_in(Arc::clone(&file), NOTE_AT as i64);
        *self.lock() = Slots { file: Some(file), base, ..Slots::default() };
        Ok(())
    }

    /// Records a run until the mark is dropped. Never fails: if the run cannot be recorded, the
    /// returned mark has no effect.
    pub(crate) fn begin(&self, run: Run) -> Mark {
        let slot = {
            let mut slots = self.lock();
            slots.file.clone().map(|file| {
                let number = slots.free.pop().unwrap_or_else(|| {
                    slots.count += 1;
                    slots.count - 1
                });
                (file, slots.base + number * ENTRY_BYTES as u64)
            })
        };
        let mark = Mark { record: self.clone(), slot };
        mark.write(&entry(&Suspect { run, deaths: 0, progress: 0 }));
        mark
    }

    /// Records the memory growth while a suspect runs alone.
    pub(crate) fn note_growth(&self, bytes: u64) {
        let file = self.lock().file.clone();
        let written = file.map(|file| file.write_all_at(&bytes.to_le_bytes(), GROWTH_AT as u64));
        if let Some(Err(error)) = written {
            tracing::error!(%error, "cannot record memory growth");
        }
    }

    /// Records an orderly stop: the runs in flight are not suspects.
    pub(crate) fn close(&self) {
        let file = self.lock().file.clone();
        if let Some(file) = file
            && let Err(error) = file.write_all_at(&[STOPPED], STATE_AT as u64)
        {
            tracing::error!(%error, "cannot close the record of running executions");
        }
    }

    /// For tests: stops recording, as if the given signal, or SIGKILL, had killed the process at
    /// this point.
    #[cfg(test)]
    pub(crate) fn die(&self, note: Option<crash_note::Note>) {
        let mut slots = self.lock();
        let file = slots.file.take().unwrap();
        if let Some(note) = note {
            file.write_all_at(&note.bytes(), NOTE_AT as u64).unwrap();
        }
        slots.is_failing = true;
    }

    #[cfg(test)]
    fn is_dead(&self) -> bool {
        self.lock().is_failing
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mark {
    fn write(&self, bytes: &[u8]) {
        let Some((file, at)) = &self.slot else { return };
        let failed = file.write_all_at(bytes, *at).err();
        let mut slots = self.record.lock();
        if let Some(error) = &failed
            && !slots.is_failing
        {
            tracing::error!(%error, "cannot record running executions");
        }
        slots.is_failing = failed.is_some();
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        #[cfg(test)]
        if self.record.is_dead() {
            return;
        }
        self.write(&[0; ENTRY_BYTES]);
        let mut slots = self.record.lock();
        if let Some((_, at)) = self.slot {
            let number = at.saturating_sub(slots.base) / ENTRY_BYTES as u64;
            slots.free.push(number);
        }
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let length = fs::metadata(path)?.len();
    if length > BYTES_MAX {
        return Err(io::Error::other(format!("{} has {length} bytes", path.display())));
    }
    fs::read(path)
}

/// Returns the id of the current boot, or an empty string if the system does not provide one.
fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().chars().take(BOOT_BYTES).collect()
}

/// The number of processes that the kernel's OOM killer has killed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct OomKills {
    /// The kills on the entire machine: `oom_kill` in /proc/vmstat.
    machine: u64,
    /// The kills in this control group: `oom_kill` in the group's memory.events.
    group: u64,
    /// The inode of the group's memory.events file, or 0 if there is no such file. The inode shows
    /// whether the group was recreated since then; the counter of a recreated group starts at 0
    /// again.
    group_inode: u64,
}

impl OomKills {
    /// Size of the counters in the record.
    const BYTES: usize = 24;

    /// Reads the counters; a counter that the system does not provide is 0.
    fn read() -> Self {
        let machine = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        let of_group = group_events();
        let group = of_group.as_deref().and_then(|path| fs::read_to_string(path).ok());
        let inode = of_group.and_then(|path| fs::metadata(path).ok()).map(|found| found.ino());
        Self {
            machine: counter(&machine),
            group: counter(group.as_deref().unwrap_or_default()),
            group_inode: inode.unwrap_or(0),
        }
    }

    /// Whether the OOM killer has killed a process since `self` was read: in the control group if
    /// it is still the same group, otherwise anywhere on the machine.
    const fn is_behind(&self, now: &Self) -> bool {
        if self.group_inode != 0 && self.group_inode == now.group_inode {
            now.group > self.group
        } else {
            now.machine > self.machine
        }
    }

    fn bytes(&self) -> Vec<u8> {
        [self.machine, self.group, self.group_inode]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (numbers, _) = bytes.get(..Self::BYTES)?.as_chunks::<8>();
        let [machine, group, group_inode] = numbers else { return None };
        let number = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        Some(Self {
            machine: number(machine),
            group: number(group),
            group_inode: number(group_inode),
        })
    }
}

/// Returns the value of `oom_kill` in a file with a name and a number on each line.
fn counter(text: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// Returns the path of the memory.events file of this process's control group (version 2).
fn group_events() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new("/sys/fs/cgroup").join(group).join("memory.events"))
}

fn header(state: u8, boot: &str, suspects: usize, kills: &OomKills) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.push(state);
    header.resize(BOOT_AT, 0);
    header.extend(boot.bytes());
    header.resize(COUNT_AT, 0);
    header.extend(u32::try_from(suspects).unwrap_or(u32::MAX).to_le_bytes());
    header.resize(KILLS_AT, 0);
    header.extend(kills.bytes());
    header.resize(HEADER_BYTES, 0);
    header
}

fn entry(suspect: &Suspect) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    let Suspect { run, deaths, progress } = suspect;
    let ids = run.organization.bytes().into_iter().chain(run.id.bytes());
    let numbers = progress.to_le_bytes().into_iter().chain(deaths.to_le_bytes());
    let parts = ids.chain(numbers).chain(run.attempt.to_le_bytes());
    for (place, byte) in entry.iter_mut().zip(parts) {
        *place = byte;
    }
    entry
}

/// Returns `None` if the bytes are not a valid record.
fn parse(bytes: &[u8], boot: &str, kills: &OomKills) -> Option<Previous> {
    let header = bytes.get(..HEADER_BYTES)?;
    if !header.starts_with(MAGIC) {
        return None;
    }
    let recorded = header.get(BOOT_AT..BOOT_AT + BOOT_BYTES)?;
    let is_same_boot = !boot.is_empty() && recorded.starts_with(boot.as_bytes());
    let count = u32::from_le_bytes(*header.get(COUNT_AT..)?.first_chunk()?);
    let (entries, _torn) = bytes.get(HEADER_BYTES..)?.as_chunks::<ENTRY_BYTES>();
    let mut entries = entries.iter().map(parse_entry);
    let count = usize::try_from(count).ok()?;
    let suspects = entries.by_ref().take(count).flatten().collect();
    let running = entries.flatten().map(|one| one.run).collect();
    let growth = u64::from_le_bytes(*header.get(GROWTH_AT..)?.first_chunk()?);
    let note = Note::read(*header.get(NOTE_AT..)?.first_chunk()?);
    let was_out_of_memory = OomKills::parse(header.get(KILLS_AT..)?)?.is_behind(kills);
    let has_died = header.get(STATE_AT) == Some(&RUNNING) && is_same_boot;
    let crash = match note.map(|note| note.origin) {
        Some(Origin::Itself) => Some(Crash::Fault),
        Some(Origin::Other) => Some(Crash::Signal),
        None => was_out_of_memory.then_some(Crash::OutOfMemory { growth }),
    };
    Some(Previous { crash: crash.filter(|_| has_died), running, suspects })
}

/// Returns `None` if the slot is free.
fn parse_entry(bytes: &[u8; ENTRY_BYTES]) -> Option<Suspect> {
    let (organization, rest) = bytes.split_first_chunk::<16>()?;
    let (id, rest) = rest.split_first_chunk::<16>()?;
    let (progress, rest) = rest.split_first_chunk::<8>()?;
    let (deaths, rest) = rest.split_first_chunk::<4>()?;
    let attempt = rest.first_chunk::<4>()?;
    (*id != [0; 16]).then(|| Suspect {
        run: Run {
            organization: OrganizationId::from(*organization),
            id: ExecutionId::from(*id),
            attempt: u32::from_le_bytes(*attempt),
        },
        deaths: u32::from_le_bytes(*deaths),
        progress: u64::from_le_bytes(*progress),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(number: u8) -> Run {
        Run::whole([number; 16].into(), [number + 100; 16].into())
    }

    #[test]
    fn in_flight_record_lists_runs_at_crash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert_eq!(InFlight::read(path), Previous::default());
        let record = InFlight::default();
        drop(record.begin(run(1)));
        let suspect = Suspect { run: run(9), deaths: 2, progress: 7 };
        record.open(path, &[suspect]).unwrap();
        let first = record.begin(run(1));
        let _second = record.begin(run(2));
        drop(first);
        let attempt = Run::attempt(run(3).organization, run(3).id, "e:s:1");
        let _third = record.begin(attempt);
        // The third run reused the slot of the first.
        let running = vec![attempt, run(2)];
        let left = |crash| Previous { crash, running: running.clone(), suspects: vec![suspect] };
        assert_eq!(InFlight::read(path), left(None), "SIGKILL leaves no note");
        for (origin, crash) in [(Origin::Itself, Crash::Fault), (Origin::Other, Crash::Signal)] {
            let file = OpenOptions::new().write(true).open(path.join(NAME)).unwrap();
            let note = Note { signal: 11, origin };
            file.write_all_at(&note.bytes(), NOTE_AT as u64).unwrap();
            assert_eq!(InFlight::read(path), left(Some(crash)));
        }
        record.close();
        assert_eq!(InFlight::read(path).crash, None);
    }

    #[test]
    fn in_flight_record_distinguishes_oom_kills() {
        let before = OomKills { machine: 3, group: 1, group_inode: 7 };
        let mut bytes = header(RUNNING, "boot-a", 0, &before);
        bytes[GROWTH_AT..GROWTH_AT + 8].copy_from_slice(&4096_u64.to_le_bytes());
        let crash = |kills| parse(&bytes, "boot-a", &kills).unwrap().crash;
        assert_eq!(crash(before), None);
        let out_of_memory = Some(Crash::OutOfMemory { growth: 4096 });
        assert_eq!(crash(OomKills { group: 2, ..before }), out_of_memory);
        // A process in a different group on the same machine was killed.
        assert_eq!(crash(OomKills { machine: 4, ..before }), None);
        // systemd recreates the group on restart, which resets its counter; only the machine-wide
        // counter still shows the kill.
        assert_eq!(crash(OomKills { machine: 4, group: 0, group_inode: 8 }), out_of_memory);
        assert_eq!(crash(OomKills { machine: 3, group: 0, group_inode: 8 }), None);
        assert_eq!(counter("low 0\noom_kill 12\noom_group_kill 3\n"), 12);
        assert_eq!((counter(""), counter("oom_kill many")), (0, 0));
    }

    #[test]
    fn in_flight_record_of_other_boot_or_garbage_yields_no_suspects() {
        let suspect = Suspect { run: run(1), deaths: 1, progress: 0 };
        let kills = OomKills::default();
        let mut bytes = header(RUNNING, "boot-a", 1, &kills);
        bytes[NOTE_AT..NOTE_AT + 2].copy_from_slice(&[6, 1]);
        bytes.extend(entry(&suspect));
        bytes.extend([1; ENTRY_BYTES / 2]);
        let parse = |bytes: &[u8], boot: &str| parse(bytes, boot, &kills);
        assert_eq!(parse(&bytes, "boot-a").unwrap().crash, Some(Crash::Fault));
        let found = parse(&bytes, "boot-b").unwrap();
        assert_eq!((found.crash, found.suspects), (None, vec![suspect]));
        assert_eq!(parse(&bytes, "").unwrap().crash, None);
        for garbled in [&b""[..], &b"orrery"[..], &[0; 200][..], &bytes[..100]] {
            assert_eq!(parse(garbled, "boot-a"), None);
        }
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(NAME), "garbage").unwrap();
        assert_eq!(InFlight::read(folder.path()), Previous::default());
    }
}
