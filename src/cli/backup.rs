//! `orrery backup`, `verify`, `restore` and `compact`: everything in one file and back again, and a
//! store that gives disk back.
//!
//! A backup is taken from the running service, or from the store where none runs. The others want
//! the service stopped, but for `verify FILE`.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::task::JoinHandle;

use super::Shape;
use super::output::{self, Column, Output};
use crate::app::UNENCRYPTED;
use crate::backup::{self, Encryption, Keys, Spared, Summary};
use crate::config::Config;
use crate::runtime::Clock;

/// Write everything that the service holds into one file
#[derive(Debug, clap::Args)]
pub(super) struct Backup {
    /// The file to write; it may not be there yet
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    shape: Shape,
}

/// Check a backup, or, without one, the store of a service that is stopped
#[derive(Debug, clap::Args)]
pub(super) struct Verify {
    /// The backup
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    opener: Opener,
    #[command(flatten)]
    shape: Shape,
}

/// Restore a backup into an empty data folder
#[derive(Debug, clap::Args)]
pub(super) struct Restore {
    /// The backup
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where to; without it, the configuration's data folder
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    #[command(flatten)]
    opener: Opener,
    #[command(flatten)]
    shape: Shape,
}

/// A row of a table that says how much of what there is.
fn counts(rows: &[(&str, String)]) -> Vec<Vec<String>> {
    rows.iter().map(|(what, count)| vec![(*what).to_owned(), count.clone()]).collect()
}

const COLUMNS: [Column; 2] = [Column::Text("WHAT"), Column::Number("COUNT")];

fn show(summary: &Summary, output: &Output) -> anyhow::Result<()> {
    let rows = counts(&[
        ("rows", (summary.rows + summary.changes).to_string()),
        ("payloads", summary.payloads.to_string()),
        ("files", summary.files.to_string()),
        ("bytes", summary.bytes.to_string()),
        ("damaged", summary.damaged.len().to_string()),
    ]);
    output.show(summary, &COLUMNS, rows)?;
    if !output.is_json() {
        summary.damaged.iter().for_each(|damage| output::note(damage));
    }
    Ok(())
}

/// A bar that turns while bytes go by; nothing where nobody looks.
pub(super) fn byte_bar(what: &str) -> ProgressBar {
    progress_bar(what, "{bytes} in {elapsed}, {bytes_per_sec}")
}

/// The same for other things than bytes; `shown` is a template of `indicatif`.
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
        anyhow::bail!("{} is there already: name another file", file.display());
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
    show(&summary, &Output::new(shape.json))?;
    let said = match encryption {
        Encryption::Off => format!("warning: this backup is not encrypted: {UNENCRYPTED}"),
        Encryption::Passphrase(_) => {
            "encrypted with the passphrase of the configuration".to_owned()
        }
        Encryption::Recipients(recipients) => format!(
            "encrypted for {} recipients: this box cannot open it. What was written was checked, and \
             compared with the file on the disk; `orrery verify FILE --identity FILE` checks it again",
            recipients.len()
        ),
    };
    output::note(&said);
    Ok(())
}

/// Writes a backup to `part` and reads it back.
async fn write(part: &Path, config: &Config, encryption: Encryption) -> anyhow::Result<Summary> {
    let admin = super::service::admin(config).await?;
    let out = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(part)
        .with_context(|| format!("{} cannot be written", part.display()))?;
    let folder = part.parent().filter(|folder| !folder.as_os_str().is_empty());
    let (folder, reserve) = (folder.unwrap_or(Path::new(".")), config.limits.disk_reserve);
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

/// A writer that has a copy of what it is given verified at the same time, where the file itself
/// cannot be read back.
struct Checked<W> {
    out: W,
    copy: Option<io::PipeWriter>,
    checking: Option<JoinHandle<Result<Summary, backup::Error>>>,
}

impl<W> Checked<W> {
    fn new(out: W, is_wanted: bool) -> io::Result<Self> {
        let (mut copy, mut checking) = (None, None);
        if is_wanted {
            let (reader, writer) = io::pipe()?;
            let check = move || backup::verify(BufReader::new(reader), &mut |_| {});
            (copy, checking) = (Some(writer), Some(tokio::task::spawn_blocking(check)));
        }
        Ok(Self { out, copy, checking })
    }

    /// The writer, and what the copy was found to hold.
    async fn end(self) -> anyhow::Result<(W, Option<Summary>)> {
        let Self { out, copy, checking } = self;
        drop(copy);
        let Some(checking) = checking else { return Ok((out, None)) };
        let summary = checking.await.context("the check was interrupted")??;
        Ok((out, Some(summary)))
    }
}

impl<W: Write> Write for Checked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        if let Some(copy) = &mut self.copy
            && copy.write_all(bytes.get(..count).unwrap_or_default()).is_err()
        {
            // The check has ended early, and says why in the end.
            self.copy = None;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// What opens an encrypted backup.
#[derive(Debug, Default, clap::Args)]
struct Opener {
    /// The age identities that open the backup, if it is encrypted for public keys
    #[arg(long, value_name = "FILE", requires = "file", conflicts_with = "passphrase_file")]
    identity: Option<PathBuf>,
    /// The passphrase that opens the backup; without it, that of the configuration
    #[arg(long, value_name = "FILE", requires = "file")]
    passphrase_file: Option<PathBuf>,
}

impl Opener {
    fn keys(&self, config: &Config) -> anyhow::Result<Keys> {
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

/// Says of a backup that was read that it is not encrypted.
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

fn checked_file(file: &Path, keys: &Keys) -> anyhow::Result<Summary> {
    let bar = byte_bar("verify");
    let opened = File::open(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let summary = backup::open(BufReader::new(opened), keys)
        .and_then(|plain| backup::verify(plain, &mut |bytes| bar.set_position(bytes)))
        .with_context(|| format!("{}", file.display()))?;
    bar.finish_and_clear();
    Ok(summary)
}

/// What was found in a store.
#[derive(Serialize)]
struct Found {
    rows: u64,
    payloads: u64,
    files: u64,
    bytes: u64,
    faults: Vec<String>,
}

/// `orrery verify [FILE]`: false when there are faults.
pub(super) async fn verify(asked: Verify, config: &Config) -> anyhow::Result<bool> {
    let Verify { file, opener, shape } = asked;
    let output = Output::new(shape.json);
    if let Some(file) = file {
        let (keys, is_encrypted) = (opener.keys(config)?, backup::is_encrypted(&file)?);
        let summary = blocking(move || checked_file(&file, &keys)).await?;
        show(&summary, &output)?;
        warn_of_plain(is_encrypted);
        return Ok(true);
    }
    let report = match super::service::stopped_store(config) {
        Ok(place) => {
            let store = place.store.clone();
            let report = blocking(move || {
                let bar = byte_bar("verify");
                let report = backup::check_store(&place, &mut |rows| bar.set_position(rows))?;
                bar.finish_and_clear();
                Ok(report)
            });
            let report = report.await?;
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
    let is_good = report.faults.is_empty();
    counted(report, &output)?;
    Ok(is_good)
}

/// Shows what was read and what is wrong with it.
pub(super) fn counted(report: backup::Report, output: &Output) -> anyhow::Result<()> {
    let backup::Report { rows, payloads, files, bytes, faults } = report;
    let found = Found { rows, payloads, files, bytes, faults };
    let table = counts(&[
        ("rows", rows.to_string()),
        ("payloads", payloads.to_string()),
        ("files", files.to_string()),
        ("bytes of payloads and files", bytes.to_string()),
        ("faults", found.faults.len().to_string()),
    ]);
    output.show(&found, &COLUMNS, table)?;
    if !output.is_json() {
        found.faults.iter().for_each(|fault| output::note(fault));
    }
    Ok(())
}

/// `orrery restore FILE [--into DIR]`
pub(super) async fn restore(asked: Restore, config: &Config) -> anyhow::Result<()> {
    let Restore { file, into, opener, shape } = asked;
    let keys = opener.keys(config)?;
    let folder = into.unwrap_or_else(|| config.data_dir.clone());
    let inline_bytes = config.engine.payload_inline_bytes;
    let shown = folder.display().to_string();
    let opened = File::open(&file).with_context(|| format!("{} cannot be read", file.display()))?;
    let is_encrypted = backup::is_encrypted(&file)?;
    let summary = blocking(move || {
        let bar = byte_bar("restore");
        let now = Clock::system().now();
        let mut progress = |bytes| bar.set_position(bytes);
        let restored = backup::restore(opened, &keys, &folder, inline_bytes, now, &mut progress)?;
        bar.finish_and_clear();
        Ok(restored)
    });
    show(&summary.await?, &Output::new(shape.json))?;
    warn_of_plain(is_encrypted);
    output::note(&format!(
        "restored into {shown}; the service can be started on it. Executions and webhooks that had \
         not ended wait until you run `orrery resume`: make sure first that the box which the \
         backup came from is off"
    ));
    Ok(())
}

/// `orrery compact`
pub(super) async fn compact(config: &Config) -> anyhow::Result<()> {
    super::service::refuse_foreign(config)?;
    let (folder, inline_bytes) = (config.data_dir.clone(), config.engine.payload_inline_bytes);
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
