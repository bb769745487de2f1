//! `orrery model`: what the catalog holds, and what is wrong with a manifest.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde::{Deserialize, Serialize};

use super::key::understood;
use super::output::{self, Column, Output};
use super::{Shape, service};
use crate::config::Config;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the models with what they do now
    List(Shape),
    /// Say what is wrong with manifests, with line and column
    Check {
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Models {
    models: Vec<Model>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Model {
    slug: String,
    title: String,
    output_type: String,
    runner: String,
    health: String,
    running: u64,
    queued: u64,
    concurrency: u64,
}

pub(super) async fn list(output: &Output, config: &Config) -> anyhow::Result<()> {
    let admin = service::admin(config).await?;
    let answer: Models = understood(admin.get("/admin/models").await?)?;
    let columns = [
        Column::Text("MODEL"),
        Column::Text("TITLE"),
        Column::Text("OUTPUT"),
        Column::Text("RUNNER"),
        Column::Text("HEALTH"),
        Column::Number("RUNNING"),
        Column::Number("QUEUED"),
        Column::Number("LIMIT"),
    ];
    let rows = answer.models.iter().map(|model| {
        vec![
            model.slug.clone(),
            model.title.clone(),
            model.output_type.clone(),
            model.runner.clone(),
            model.health.clone(),
            model.running.to_string(),
            model.queued.to_string(),
            model.concurrency.to_string(),
        ]
    });
    output.show(&answer, &columns, rows)
}

/// Looks at each file; fails when one has a fault.
pub(super) fn check(files: &[PathBuf]) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for file in files {
        match service::check_manifest(file) {
            Ok(slug) => output::raw(format!("{}: {slug} is good\n", file.display()).as_bytes())?,
            Err(faults) => {
                code = ExitCode::FAILURE;
                for fault in faults {
                    output::raw(format!("{fault}\n").as_bytes())?;
                }
            }
        }
    }
    Ok(code)
}
