//! `orrery reload`: makes the running service reread its configuration, manifests and certificates.
//!
//! If a file is invalid, the service keeps using the last valid state of that file, and the command
//! fails, so that `systemctl reload` fails too.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;

use super::admin::Admin;
use super::key::understood;
use super::output::{self, Output};
use orrery_config::Config;
use orrery_wire::operator::Reloaded;

pub(super) async fn run(output: &Output, config: &Config) -> anyhow::Result<ExitCode> {
    let admin = Admin::running(config).await.with_context(|| {
        let data = config.data_dir.display();
        format!(
            "no service answers in {data}, or this user may not connect to it; a stopped service \
             reads its files when it starts"
        )
    })?;
    let reloaded: Reloaded = understood(admin.post("/admin/reload", &json!({})).await?)?;
    if output.is_json() {
        output::json(&reloaded)?;
    } else {
        say(&reloaded);
    }
    Ok(if reloaded.kept.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn say(reloaded: &Reloaded) {
    for fault in &reloaded.kept {
        output::note(&format!("{fault}; the last good state stays in use"));
    }
    if !reloaded.applied.is_empty() {
        output::note(&format!("changed: {}", reloaded.applied.join(", ")));
    }
    if !reloaded.needs_restart.is_empty() {
        output::note(&format!(
            "takes effect at the next start: {}",
            reloaded.needs_restart.join(", ")
        ));
    }
    if !reloaded.removed.is_empty() {
        output::note(&format!("models removed: {}", reloaded.removed.join(", ")));
    }
    output::note(&format!("{} models are served", reloaded.loaded));
}
