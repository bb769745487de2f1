//! `orrery seal`: the key that encrypts stored secrets.

use clap::Subcommand;

use super::backup::progress_bar;
use super::output;
use super::service;
use orrery_app::Resealed;
use orrery_config::Config;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Create a new seal.key and encrypt all secrets with it; the service must be stopped
    Rotate,
}

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    let Command::Rotate = command;
    service::refuse_without_store(config)?;
    let bar = progress_bar("rotate", "{pos} rows in {elapsed}");
    let mut watch = |done: Resealed| {
        bar.set_position(done.rows);
        Ok(())
    };
    let rotated = service::rotate_seal(config, &mut watch).await?;
    bar.finish_and_clear();
    output::note(&format!(
        "seal.key was replaced, and {} secrets were sealed with the new key. Earlier links and \
         page cursors are no longer valid. Earlier backups contain the old key and still restore \
         with that key",
        rotated.secrets
    ));
    if rotated.unreadable > 0 {
        output::note(&format!(
            "{} secrets or records could not be read with the old key and are unchanged; \
             `orrery verify` names damaged records",
            rotated.unreadable
        ));
    }
    Ok(())
}
