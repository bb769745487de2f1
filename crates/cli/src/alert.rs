//! `orrery alerts`: sends a test alert.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::json;

use super::Shape;
use super::admin::Admin;
use super::key::understood;
use super::output::{self, Column, Output};
use super::service;
use orrery_config::Config;
use orrery_wire::operator::AlertTest;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Send a test alert and show the receiver's answer; exits with 1 if it was not delivered
    Test(Shape),
}

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<ExitCode> {
    let Command::Test(shape) = command;
    let sent = match Admin::reach(config).await {
        Ok(admin) => understood(admin.post("/admin/alerts/test", &json!({})).await?)?,
        Err(error) if Admin::is_away(&error) => service::test_alert(config)
            .await
            .context("no receiver for alerts is configured: set alerts.url")?,
        Err(error) => return Err(error),
    };
    show(&sent, shape)
}

fn show(sent: &AlertTest, shape: Shape) -> anyhow::Result<ExitCode> {
    let columns = ["TO", "STATUS", "ANSWER", "ERROR"].map(Column::Text);
    let row = vec![
        sent.to.clone(),
        sent.status.map(|status| status.to_string()).unwrap_or_default(),
        sent.answer.clone().unwrap_or_default(),
        sent.error.clone().unwrap_or_default(),
    ];
    Output::new(shape.json).show(sent, &columns, [row])?;
    if sent.error.is_none() {
        return Ok(ExitCode::SUCCESS);
    }
    output::note("The test alert was not delivered.");
    Ok(ExitCode::FAILURE)
}
