//! `orrery backup`, `verify`, `restore` and `compact`.
//!
//! `backup` reads the data from the running service, or directly from the store if no service runs.
//! The other commands, except `verify FILE`, require a stopped service.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::task::JoinHandle;

use super::Shape;
use super::output::{self, Column, Output};
use orrery_app::UNENCRYPTED;
use orrery_backup::{self as backup, Encryption, Keys, Reached, Replay, Spared, Summary};
use orrery_config::Config;
use orrery_domain::time::Timestamp;
use orrery_runtime::{Clock, regular_file};

/// Back up everything into one file
#[derive(Debug, clap::Args)]
pub(super) struct Backup {
    /// The file to write; it must not exist yet
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    shape: Shape,
}

/// Check a backup and the log archive that follows it; without a file, check the store of a stopped
/// service
#[derive(Debug, clap::Args)]
pub(super) struct Verify {
    /// The backup to check
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The folder of the log archive [default: `log` next to the backup]
    #[arg(long, value_name = "DIR", requires = "file")]
    log: Option<PathBuf>,
    /// Rehearse a restore: restore into a temporary folder, open the store, check all of it, and
    /// delete the folder
    #[arg(long, requires = "file")]
    restore: bool,
    /// Where to create the temporary folder, which needs room for all data [default: next to the
    /// data folder]
    #[arg(long, value_name = "DIR", requires = "restore")]
    work_dir: Option<PathBuf>,
    #[command(flatten)]
    opener: Opener,
    #[command(flatten)]
    shape: Shape,
}

impl Verify {
    /// Returns whether the command checks a backup rather than a store.
    pub(super) const fn is_of_file(&self) -> bool {
        self.file.is_some()
    }
}

/// Restore a backup and the log archive that follows it into an empty data folder
#[derive(Debug, clap::Args)]
pub(super) struct Restore {
    /// The backup to restore
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Apply the log archive up to the end of this millisecond (RFC 3339) [default: to its end]
    #[arg(long, value_name = "TIME")]
    until: Option<Timestamp>,
    /// The folder of the log archive [default: `log` next to the backup]
    #[arg(long, value_name = "DIR")]
    log: Option<PathBuf>,
    /// The data folder of the damaged store: also apply the part of its own log that is newer than
    /// the log archive
    #[arg(long, value_name = "DIR")]
    live_log: Option<PathBuf>,
    /// Restore only the backup, without the log archive
    #[arg(long, conflicts_with_all = ["until", "log", "live_log"])]
    no_log: bool,
    /// The new data folder [default: the configured one]
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    #[command(flatten)]
    opener: Opener,
    #[command(flatten)]
    shape: Shape,
}

/// Returns table rows with names and counts.
fn counts(rows: &[(&str, String)]) -> Vec<Vec<String>> {
    rows.iter().map(|(what, count)| vec![(*what).to_owned(), count.clone()]).collect()
}

const COLUMNS: [Column; 2] = [Column::Text("WHAT"), Column::Number("COUNT")];

/// The part of the log archive that follows a backup.
#[derive(Serialize)]
struct KeptLog {
    files: usize,
    /// The last commit, and the time at which it was written.
    record: u64,
    at: String,
    notes: Vec<String>,
}

/// The contents of a backup and of its log archive.
#[derive(Serialize)]
struct Shown<'s> {
    #[serde(flatten)]
    summary: &'s Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<KeptLog>,
}

fn show(summary: &Summary, log: Option<KeptLog>, output: &Output) -> anyhow::Result<()> {
    let mut rows = counts(&[
        ("rows", (summary.rows + summary.changes).to_string()),
        ("payloads", summary.payloads.to_string()),
        ("files", summary.files.to_string()),
        ("bytes", summary.bytes.to_string()),
        ("damaged", summary.damaged.len().to_string()),
    ]);
    if let Some(log) = &log {
        rows.extend(counts(&[("files of the log archive", log.files.to_string())]));
    }
    let shown = Shown { summary, log };
    output.show(&shown, &COLUMNS, rows)?;
    if !output.is_json() {
        summary.damaged.iter().for_each(|damage| output::note(damage));
        if let Some(log) = &shown.log {
            output::note(&format!("the log archive ends at commit {} of {}", log.record, log.at));
            log.notes.iter().for_each(|note| output::note(note));
        }
    }
    Ok(())
}

/// Creates a spinner that shows the bytes processed; hidden if standard error is not a terminal.
pub(super) fn byte_bar(what: &str) -> ProgressBar {
    progress_bar(what, "{bytes} in {elapsed}, {bytes_per_sec}")
}

/// Creates a spinner. `shown` is an `indicatif` template for the progress next to the message.
pub(super) fn progress_bar(what: &str, shown: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what.to_owned());
    let style = ProgressStyle::with_template(&format!("{{spinner}} {{msg}} {shown}"));
    bar.set_style(style.unwrap_or_else(|_template| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// `orrery backup FILE`
pub(super) async fn backup(asked: Backup, config: &Config) -> anyhow::Result<()> {
    let Backup { file, shape } = asked;
    if file.exists() {
        anyhow::bail!("{} already exists: choose another file", file.display());
    }
    let part = part_of(&file);
    let encryption = super::service::encryption(config)?;
    let written = Box::pin(write(&part, config, encryption.clone()));
    let summary = written.await.inspect_err(|_failed| {
        let _nothing_half_done_stays = fs::remove_file(&part);
    })?;
    fs::rename(&part, &file)?;
    let folder = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    show(&summary, None, &Output::new(shape.json))?;
    let said = match encryption {
        Encryption::Off => format!("warning: this backup is not encrypted: {UNENCRYPTED}"),
        Encryption::Passphrase(_) => {
            "encrypted with the passphrase of the configuration".to_owned()
        }
        Encryption::Recipients(recipients) => format!(
            "encrypted for {} recipients: this machine cannot decrypt it. The contents were \
             checked while they were written, and the file on disk was compared with them; `orrery \
             verify FILE --identity FILE` checks the backup again",
            recipients.len()
        ),
    };
    output::note(&said);
    Ok(())
}

/// Writes a backup to `part` and verifies it.
async fn write(part: &Path, config: &Config, encryption: Encryption) -> anyhow::Result<Summary> {
    let admin = super::service::admin(config).await?;
    let folder = part.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    if !folder.is_dir() {
        bail!("the folder {} does not exist: create it, or choose another file", folder.display());
    }
    let out = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(part)
        .with_context(|| format!("{} cannot be written", part.display()))?;
    let reserve = config.limits.disk_reserve;
    let out = encryption.writer(Spared::new(BufWriter::new(out), folder, reserve, 0)?)?;
    let mut out = Checked::new(out, !encryption.can_read_back())?;
    let bar = byte_bar("backup");
    admin.download("/admin/backup", &mut out, &mut |bytes| bar.set_position(bytes)).await?;
    let (out, summary) = out.end().await?;
    let (out, digest) = out.finish()?;
    out.into_inner().into_inner().context("the file cannot be written")?.sync_all()?;
    bar.finish_and_clear();
    let written = part.to_path_buf();
    blocking(move || {
        let bar = byte_bar("verify");
        let file = File::open(&written)?;
        let mut progress = |bytes| bar.set_position(bytes);
        let read = encryption.read_back(file, summary, digest, &mut progress);
        bar.finish_and_clear();
        read.with_context(|| format!("{}", written.display()))
    })
    .await
}

/// A writer that verifies its input while it writes, for encrypted files that this machine cannot
/// decrypt afterward.
struct Checked<W> {
    out: W,
    copy: Option<io::PipeWriter>,
    checking: Option<JoinHandle<Result<Summary, backup::Error>>>,
}

impl<W> Checked<W> {
    fn new(out: W, is_wanted: bool) -> io::Result<Self> {
        let mut copy = None;
        let mut checking = None;
        if is_wanted {
            let (reader, writer) = io::pipe()?;
            let check = move || backup::verify(BufReader::new(reader), &mut |_| {});
            (copy, checking) = (Some(writer), Some(tokio::task::spawn_blocking(check)));
        }
        Ok(Self { out, copy, checking })
    }

    /// Returns the writer and the summary of the verified input.
    async fn end(self) -> anyhow::Result<(W, Option<Summary>)> {
        let Self { out, copy, checking } = self;
        drop(copy);
        let Some(checking) = checking else { return Ok((out, None)) };
        let summary = checking.await.context("the check panicked")??;
        Ok((out, Some(summary)))
    }
}

impl<W: Write> Write for Checked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        if let Some(copy) = &mut self.copy
            && copy.write_all(bytes.get(..count).unwrap_or_default()).is_err()
        {
            // The check stopped early. The check's result contains the reason.
            self.copy = None;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The keys that decrypt a backup.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Opener {
    /// The file of age identities that decrypt the backup, if it is encrypted for public keys
    #[arg(long, value_name = "FILE", requires = "file", conflicts_with = "passphrase_file")]
    identity: Option<PathBuf>,
    /// The file with the passphrase that decrypts the backup [default: the configured one]
    #[arg(long, value_name = "FILE", requires = "file")]
    passphrase_file: Option<PathBuf>,
}

impl Opener {
    pub(super) fn keys(&self, config: &Config) -> anyhow::Result<Keys> {
        Ok(match (&self.identity, &self.passphrase_file, &config.backup.passphrase) {
            (Some(path), ..) => Keys::in_identity_file(path)?,
            (None, Some(path), _) => Keys::in_passphrase_file(path)?,
            (None, None, Some(passphrase)) => {
                Keys::of_passphrase(passphrase, "`backup.passphrase_file`")
            }
            (None, None, None) => Keys::none(),
        })
    }
}

/// Warns if a backup is not encrypted.
fn warn_of_plain(is_encrypted: bool) {
    if !is_encrypted {
        output::note(&format!("warning: this backup is not encrypted: {UNENCRYPTED}"));
    }
}

fn part_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Reads and verifies a complete backup.
pub(super) fn checked_file(file: &Path, keys: &Keys) -> anyhow::Result<Summary> {
    let bar = byte_bar("verify");
    let opened =
        regular_file::open(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let summary = backup::open(BufReader::new(opened), keys)
        .and_then(|plain| backup::verify(plain, &mut |bytes| bar.set_position(bytes)))
        .with_context(|| format!("{}", file.display()))?;
    bar.finish_and_clear();
    Ok(summary)
}

/// The result of checking a store.
#[derive(Serialize)]
struct Found {
    rows: u64,
    payloads: u64,
    files: u64,
    bytes: u64,
    faults: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tables: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// `orrery verify [FILE [--restore]]`. Returns false if verification finds errors.
pub(super) async fn verify(asked: Verify, config: &Config) -> anyhow::Result<bool> {
    let Verify { file, log, restore, work_dir, opener, shape } = asked;
    let output = Output::new(shape.json);
    if let Some(file) = file {
        let keys = opener.keys(config)?;
        if restore {
            let replay = Replay { log: Some(log_of(&file, log)), ..Replay::default() };
            return super::rehearse::run(&file, keys, replay, work_dir, config, &output).await;
        }
        return verify_file(file, log, keys, &output).await;
    }
    super::admin::refuse_running(&config.data_dir).context(
        "to check data while the service runs, check a backup: `orrery backup FILE`, then \
         `orrery verify FILE`",
    )?;
    let report = match super::service::stopped_store(config) {
        Ok(place) => {
            let store = place.store.clone();
            let report = blocking(move || {
                let bar = byte_bar("verify");
                let report = backup::check_store(&place, &mut |rows| bar.set_position(rows))?;
                bar.finish_and_clear();
                Ok(report)
            });
            let mut report = report.await?;
            let fault = super::service::seal_fault(config, &store).await?;
            report.faults.extend(fault);
            store.close().await;
            report
        }
        Err(error) if super::service::is_damage(&error) => {
            output::note(&format!("{error:#}"));
            let data = config.data_dir.clone();
            let report = blocking(move || {
                let bar = byte_bar("verify");
                let report = backup::check_damaged(&data, &mut |rows| bar.set_position(rows))?;
                bar.finish_and_clear();
                Ok(report)
            });
            report.await?
        }
        Err(error) => return Err(error),
    };
    let is_good = report.faults.is_empty() && report.notes.is_empty();
    counted(report, &output)?;
    Ok(is_good)
}

/// Verifies a backup and its log archive. Returns false if the log archive has an error.
async fn verify_file(
    file: PathBuf,
    log: Option<PathBuf>,
    keys: Keys,
    output: &Output,
) -> anyhow::Result<bool> {
    let is_encrypted = backup::is_encrypted(&file)
        .with_context(|| format!("{} cannot be read", file.display()))?;
    let replay = Replay { log: Some(log_of(&file, log)), ..Replay::default() };
    let (summary, plan) = blocking(move || {
        let summary = checked_file(&file, &keys)?;
        let bar = byte_bar("log");
        let plan = replay.plan(&summary, &keys, &mut |bytes| bar.set_position(bytes));
        bar.finish_and_clear();
        Ok((summary, plan))
    })
    .await?;
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            show(&summary, None, output)?;
            warn_of_plain(is_encrypted);
            output::note(&error.to_string());
            return Ok(false);
        }
    };
    let log = (plan.files() > 0).then(|| KeptLog {
        files: plan.files(),
        record: plan.last,
        at: plan.last_at.to_string(),
        notes: plan.notes().to_vec(),
    });
    show(&summary, log, output)?;
    warn_of_plain(is_encrypted);
    Ok(true)
}

/// Returns the folder of a backup's log archive.
fn log_of(file: &Path, log: Option<PathBuf>) -> PathBuf {
    log.unwrap_or_else(|| file.parent().unwrap_or(Path::new("")).join(backup::LOG))
}

/// Prints the counts and the errors.
pub(super) fn counted(report: backup::Report, output: &Output) -> anyhow::Result<()> {
    let backup::Report { rows, payloads, files, bytes, faults, tables, notes } = report;
    let found = Found { rows, payloads, files, bytes, faults, tables, notes };
    let mut table = counts(&[
        ("rows", rows.to_string()),
        ("payloads", payloads.to_string()),
        ("files", files.to_string()),
        ("bytes of payloads and files", bytes.to_string()),
        ("faults", found.faults.len().to_string()),
    ]);
    let of_tables = found.tables.iter().map(|(name, count)| (format!("rows of {name}"), count));
    table.extend(of_tables.map(|(name, count)| vec![name, count.to_string()]));
    output.show(&found, &COLUMNS, table)?;
    if !output.is_json() {
        found.notes.iter().chain(&found.faults).for_each(|line| output::note(line));
    }
    Ok(())
}

/// `orrery restore FILE [--until TIME] [--into DIR]`
pub(super) async fn restore(asked: Restore, config: &Config) -> anyhow::Result<()> {
    let Restore { file, until, log, live_log, no_log, into, opener, shape } = asked;
    let keys = opener.keys(config)?;
    let replay = if no_log {
        Replay::default()
    } else {
        // Times that users copy from output have only millisecond precision.
        let until = until.map(Timestamp::end_of_millisecond);
        Replay { log: Some(log_of(&file, log)), live: live_log, until }
    };
    let folder = into.unwrap_or_else(|| config.data_dir.clone());
    let inline_bytes = config.engine.payload_inline_bytes;
    let shown = folder.display().to_string();
    let opened =
        regular_file::open(&file).with_context(|| format!("{} cannot be read", file.display()))?;
    let is_encrypted = backup::is_encrypted(&file)?;
    let (summary, reached) = blocking(move || {
        let bar = byte_bar("restore");
        let now = Clock::system().now();
        let mut progress = |bytes| bar.set_position(bytes);
        let restored = backup::restore_until(
            opened,
            &keys,
            &folder,
            inline_bytes,
            now,
            &replay,
            &mut progress,
        )?;
        bar.finish_and_clear();
        Ok(restored)
    })
    .await?;
    let log = reached.map(|Reached { record, at, files, notes, .. }| KeptLog {
        files,
        record,
        at,
        notes,
    });
    show(&summary, log, &Output::new(shape.json))?;
    warn_of_plain(is_encrypted);
    output::note(&format!(
        "restored into {shown}; the service can be started on it. Unfinished executions and \
         webhooks wait until you run `orrery resume`: first make sure that the machine which the \
         backup came from is off"
    ));
    Ok(())
}

/// `orrery compact`
pub(super) async fn compact(config: &Config) -> anyhow::Result<()> {
    super::service::refuse_without_store(config)?;
    let folder = config.data_dir.clone();
    let inline_bytes = config.engine.payload_inline_bytes;
    let (before, after) = blocking(move || {
        let bar = byte_bar("compact");
        let sizes = backup::compact(&folder, inline_bytes, &mut |bytes| bar.set_position(bytes))?;
        bar.finish_and_clear();
        Ok(sizes)
    })
    .await?;
    let sizes = [("store before, in bytes", before), ("store now", after)];
    let rows = sizes.map(|(what, bytes)| (what, bytes.to_string()));
    Output::new(false).show(&(), &COLUMNS, counts(&rows))
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await.context("it was interrupted")?
}
