//! `orrery upgrade --rehearse`: tries an upgrade to this binary on a copy of the data while the
//! service keeps running.
//!
//! The copy is made from a backup of the service: this binary restores the backup, checks the
//! restored data, and starts on that data. The copy is always deleted at the end. Neither the
//! service nor its data folder is changed.

use std::fs;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

use super::Shape;
use super::admin::Admin;
use super::backup::{Opener, byte_bar};
use super::output::{self, Column, Output};
use super::rehearse::{Copy, DATA, check, folder_for_copy, restore};
use super::service;
use orrery_app::Rehearsed;
use orrery_backup::{Keys, Replay, Report, Spared, Summary};
use orrery_config::Config;
use orrery_runtime::monotonic_now;

/// The name of the service's backup in the temporary folder.
const BACKUP: &str = "service.backup";
/// The version of this binary.
const THIS: &str = env!("CARGO_PKG_VERSION");

/// Rehearse an upgrade of the service to this binary
#[derive(Debug, clap::Args)]
pub(super) struct Upgrade {
    /// Test this binary on a copy of the service's data: check the whole copy, start a service with
    /// it that runs no work, and delete the copy; the running service is not interrupted
    #[arg(long, required = true)]
    rehearse: bool,
    /// Rehearse on this backup instead of the running service
    #[arg(long = "backup", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Where to create the copy, which needs room for all data [default: next to the data folder]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    #[command(flatten)]
    opener: Opener,
    #[command(flatten)]
    shape: Shape,
}

impl Upgrade {
    /// Returns whether the rehearsal uses a given backup, so that no service is needed.
    pub(super) const fn is_of_file(&self) -> bool {
        self.file.is_some()
    }
}

/// The result of a rehearsal.
#[derive(Debug, Serialize)]
struct Rehearsal {
    /// Whether this binary starts on the data without losing any of it.
    good: bool,
    /// The version that wrote the data, and the version of this binary.
    from: String,
    to: &'static str,
    /// The version of the store format before and after the upgrade.
    store_format: u32,
    new_store_format: u32,
    rows: u64,
    payloads: u64,
    files: u64,
    workflow_versions: u64,
    models: usize,
    /// Number of executions that were unfinished when the copy was taken, and that would resume.
    unfinished_executions: u64,
    unfinished_deliveries: u64,
    copy_ms: u64,
    check_ms: u64,
    /// Start time of the new binary in milliseconds, by which an upgrade would delay requests.
    start_ms: u64,
    copy_bytes: u64,
    /// Number of bytes that the start added to the copy.
    written_bytes: u64,
    free_bytes: u64,
    faults: Vec<String>,
    manifests: Vec<String>,
}

/// Rehearses an upgrade. Returns false if the upgrade would lose data.
pub(super) async fn run(asked: Upgrade, config: &Config) -> anyhow::Result<bool> {
    let Upgrade { rehearse: _, file, work_dir, opener, shape } = asked;
    let keys = opener.keys(config)?;
    let (folder, parent) = folder_for_copy(work_dir, config)?;
    let began = monotonic_now();
    let (file, keys) = match file {
        Some(file) => (file, keys),
        None => (taken(config, folder.path()).await?, Keys::none()),
    };
    let data = folder.path().join(DATA);
    let summary = restored(file, keys, data.clone(), parent, config).await?;
    let copy = began.elapsed();
    let began = monotonic_now();
    let copied = Config { data_dir: data.clone(), ..config.clone() };
    let report = check(service::stopped_store(&copied)?).await?;
    let check = began.elapsed();
    let before = size_of(&data)?;
    let started = service::rehearse(config, data.clone()).await.with_context(|| {
        format!("release {THIS} does not start on this data; the service itself was not touched")
    })?;
    let written = size_of(&data)?.saturating_sub(before);
    folder.close().context("the temporary folder cannot be deleted")?;
    let found = rehearsal(&summary, report, started, [copy, check], [before, written]);
    show(&found, &Output::new(shape.json))?;
    Ok(found.good)
}

/// Takes a backup of the running service into `folder`.
async fn taken(config: &Config, folder: &Path) -> anyhow::Result<PathBuf> {
    let Some(admin) = Admin::running(config).await else {
        anyhow::bail!(
            "no service runs in {}, and opening the store with this binary would already upgrade \
             it: start the service, or take a backup with the installed binary (`orrery backup \
             FILE`) and rehearse with that backup: `orrery upgrade --rehearse --backup FILE`",
            config.data_dir.display()
        );
    };
    let path = folder.join(BACKUP);
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let reserve = config.limits.disk_reserve;
    let mut out = Spared::new(BufWriter::new(file), folder, reserve, 0)?;
    let bar = byte_bar("copy");
    admin.download("/admin/backup", &mut out, &mut |bytes| bar.set_position(bytes)).await?;
    out.flush()?;
    bar.finish_and_clear();
    Ok(path)
}

/// Restores `file` into `data`, and deletes the backup if it was taken for this rehearsal.
async fn restored(
    file: PathBuf,
    keys: Keys,
    data: PathBuf,
    parent: PathBuf,
    config: &Config,
) -> anyhow::Result<Summary> {
    let is_taken = file == data.with_file_name(BACKUP);
    let copy = Copy {
        file: file.clone(),
        keys,
        replay: Replay::default(),
        into: data,
        parent,
        bar: "open",
        no_room: |bytes| format!("a copy of {bytes} bytes"),
    };
    let (summary, _reached) =
        restore(copy, config).await.context("the copy cannot be opened by this binary")?;
    if is_taken {
        fs::remove_file(&file)?;
    }
    Ok(summary)
}

fn rehearsal(
    summary: &Summary,
    report: Report,
    started: Rehearsed,
    [copy, check]: [Duration; 2],
    [copy_bytes, written_bytes]: [u64; 2],
) -> Rehearsal {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut faults = report.faults;
    faults.extend(started.faults);
    Rehearsal {
        good: faults.is_empty(),
        from: summary.version.clone(),
        to: THIS,
        store_format: summary.store_format,
        new_store_format: started.store_format,
        rows: report.rows,
        payloads: report.payloads,
        files: report.files,
        workflow_versions: started.workflows,
        models: started.models,
        unfinished_executions: started.executions,
        unfinished_deliveries: started.deliveries,
        copy_ms: ms(copy),
        check_ms: ms(check),
        start_ms: ms(started.start),
        copy_bytes,
        written_bytes,
        free_bytes: started.free,
        faults,
        manifests: started.manifests,
    }
}

fn show(found: &Rehearsal, output: &Output) -> anyhow::Result<()> {
    let change = |from: &str, to: &str| match from == to {
        true => format!("{to}, as now"),
        false => format!("{from} -> {to}"),
    };
    let [format, new_format] =
        [found.store_format, found.new_store_format].map(|format| format.to_string());
    let rows = [
        ("release", change(&found.from, found.to)),
        ("store format", change(&format, &new_format)),
        ("rows read", found.rows.to_string()),
        ("payloads and files read", (found.payloads + found.files).to_string()),
        ("versions of workflows compiled", found.workflow_versions.to_string()),
        ("models", found.models.to_string()),
        ("faults of manifests", found.manifests.len().to_string()),
        ("executions that would resume", found.unfinished_executions.to_string()),
        ("webhooks that would resume", found.unfinished_deliveries.to_string()),
        ("time of the copy, in ms", found.copy_ms.to_string()),
        ("time of the check, in ms", found.check_ms.to_string()),
        ("time of the start, in ms", found.start_ms.to_string()),
        ("disk of the copy, in bytes", found.copy_bytes.to_string()),
        ("disk written by the start, in bytes", found.written_bytes.to_string()),
        ("disk free there, in bytes", found.free_bytes.to_string()),
        ("faults", found.faults.len().to_string()),
    ];
    let rows = rows.map(|(what, value)| vec![what.to_owned(), value]);
    output.show(found, &[Column::Text("WHAT"), Column::Number("FOUND")], rows)?;
    if !output.is_json() {
        found.faults.iter().chain(&found.manifests).for_each(|line| output::note(line));
    }
    if found.store_format < found.new_store_format {
        output::note(&format!(
            "release {} cannot open the store after this upgrade: take a backup first (`orrery backup FILE`)",
            found.from
        ));
    }
    output::note(match found.good {
        true => {
            "the copy was opened, checked and started by this binary, and was removed; nothing was run or sent"
        }
        false => {
            "this binary cannot use all of this data: do not upgrade, and report the faults above"
        }
    });
    Ok(())
}

/// Returns the total size of all files in a folder and its subfolders, in bytes.
fn size_of(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { size_of(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}
