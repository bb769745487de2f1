//! `orrery salvage`: copies all readable data from a damaged data folder to a new one.

use std::path::PathBuf;

use super::Shape;
use super::backup::{blocking, byte_bar, counted};
use super::output::{self, Output};
use orrery_backup as backup;
use orrery_config::Config;

/// Copy everything readable from a damaged store into a new data folder
#[derive(Debug, clap::Args)]
pub(super) struct Salvage {
    /// The new data folder
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
    #[command(flatten)]
    shape: Shape,
}

/// `orrery salvage --into DIR`. Returns false if any data could not be copied.
pub(super) async fn run(asked: Salvage, config: &Config) -> anyhow::Result<bool> {
    super::admin::refuse_foreign(&config.data_dir)?;
    super::admin::refuse_running(&config.data_dir)?;
    let Salvage { into, shape } = asked;
    let data = config.data_dir.clone();
    let inline_bytes = config.engine.payload_inline_bytes;
    let shown = into.display().to_string();
    let report = blocking(move || {
        let bar = byte_bar("salvage");
        let salvaged =
            backup::salvage(&data, &into, inline_bytes, &mut |bytes| bar.set_position(bytes))?;
        bar.finish_and_clear();
        Ok(salvaged)
    })
    .await?;
    let lost = report.faults.len();
    counted(report, &Output::new(shape.json))?;
    let what = if lost == 0 { "nothing was lost" } else { "the items named above are lost" };
    output::note(&format!(
        "written to {shown}; {what}. To use the new data folder, point `data_dir` at it"
    ));
    Ok(lost == 0)
}
