//! `orrery model`: what the catalog holds, and what is wrong with a manifest.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::{Value, json};

use super::key::understood;
use super::output::{self, Column, Output};
use super::{Shape, service};
use crate::config::Config;
use crate::domain::classify::ErrorClass;
use crate::wire::operator::{ModelTest, Models};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the models with their current load
    List(Shape),
    /// Check manifests, and report every problem with its line and column
    Check {
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Run a model on one input and show the result
    Test {
        /// The slug of the model, as `orrery model list` shows it
        #[arg(value_name = "SLUG")]
        slug: String,
        /// The input as JSON; fields with a default in the model's schema are optional
        #[arg(long, value_name = "JSON", default_value = "{}")]
        input: String,
        #[command(flatten)]
        shape: Shape,
    },
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
    output.show(&answer, &columns, rows)?;
    for model in answer.models.iter().filter(|_| !output.is_json()) {
        if let Some(reason) = &model.reason {
            output::note(&format!("{} is failing: {reason}", model.slug));
        }
    }
    Ok(())
}

/// Runs one input through a model: its output goes to standard output, all else is said beside it.
pub(super) async fn test(
    slug: &str,
    input: &str,
    output: &Output,
    config: &Config,
) -> anyhow::Result<ExitCode> {
    let input: Value = serde_json::from_str(input).context("--input is not valid JSON")?;
    let admin = service::admin(config).await?;
    let answer = admin.post("/admin/models/test", &json!({"slug": slug, "input": input})).await?;
    let trial: ModelTest = understood(answer)?;
    let code = if trial.error.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if output.is_json() {
        output::json(&trial)?;
        return Ok(code);
    }
    for said in [&trial.stderr, &trial.logs].into_iter().flatten() {
        output::note(said.trim_end());
    }
    match (&trial.output, &trial.error) {
        (_, Some(error)) => {
            let class = trial.error_classification.map_or("unknown", ErrorClass::as_str);
            output::note(&format!("{slug} failed after {:.3} s ({class}): {error}", trial.seconds));
        }
        (output, None) => {
            output::json(output)?;
            output::note(&format!("{slug} succeeded in {:.3} s", trial.seconds));
        }
    }
    Ok(code)
}

/// Looks at each file; fails when one has a fault.
pub(super) fn check(files: &[PathBuf]) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for file in files {
        match service::check_manifest(file) {
            Ok(slug) => output::raw(format!("{}: {slug} is valid\n", file.display()).as_bytes())?,
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
