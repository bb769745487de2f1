//! `orrery check`: finds all problems that would prevent the service from running well, before it
//! starts.
//!
//! The check is read-only: it creates no folders, keys or certificates. The check reports all
//! errors at once.

pub(super) mod ports;

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use super::admin::Admin;
use super::key::understood;
use super::output::{Column, Output};
use super::owner::Owner;
use super::{located, output, place, service};
use orrery_config::edit::Setting;
use orrery_config::{Config, Flags, Source};
use orrery_runtime::Clock;
use orrery_wire::service::{DoctorReport, Finding, RunningService, Verdict};

/// Returns the sign of a finding in a table.
pub(super) const fn sign(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Good => "✓",
        Verdict::Warning => "!",
        Verdict::Fault => "✗",
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Check {
    /// Check as if KEY had this value, such as log.level=debug; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set: Vec<Setting>,
    #[command(flatten)]
    pub(super) shape: super::Shape,
}

#[derive(Debug, Serialize)]
struct Report {
    good: bool,
    findings: Vec<Finding>,
}

pub(super) async fn run(asked: Check, file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let flags = Flags { set: asked.set, ..Flags::default() };
    let source = &Source { file: place::file_or_found(file), flags };
    let output = Output::new(asked.shape.json);
    let (config, findings) = configuration(source);
    // The check uses the permissions of the service's user, not root's permissions.
    let mut findings = match Owner::of(&config.data_dir) {
        None => looked_at(&config, findings),
        Some(owner) => {
            let looked = owner.looks(|| {
                let (_, findings) = configuration(source);
                looked_at(&config, findings)
            });
            let shown = config.data_dir.display();
            let detail = format!("checked as {}, the owner of {shown}", owner.name);
            let mut findings = looked?;
            findings.insert(0, Finding::good("user", detail));
            findings
        }
    };
    let running = running(&config).await;
    findings.extend(ports::findings(&config, running.as_ref()));
    findings.extend(egress(&config).await);
    findings.extend(running.and_then(|running| other_file(&config, running)));
    let faults = findings.iter().filter(|finding| finding.verdict == Verdict::Fault).count();
    let report = Report { good: faults == 0, findings };
    let rows = report.findings.iter().map(|finding| {
        vec![sign(finding.verdict).to_owned(), finding.subject.clone(), finding.detail.clone()]
    });
    let columns = [Column::Text(""), Column::Text("WHAT"), Column::Text("FOUND")];
    output.show(&report, &columns, rows)?;
    if faults == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    output::note(&format!("{faults} {}", if faults == 1 { "fault" } else { "faults" }));
    Ok(ExitCode::FAILURE)
}

/// Appends the findings that need no network access to `findings`, which are about the
/// configuration.
fn looked_at(config: &Config, mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.extend(service::settled(config, Clock::system().now()));
    findings
}

/// Reads the configuration and reports its errors. Invalid parts are replaced by their defaults, so
/// that the rest can be checked.
pub(super) fn configuration(source: &Source) -> (Config, Vec<Finding>) {
    let (config, faults) = source.examine();
    if faults.is_empty() {
        let file = config.file.as_ref().map(|path| path.display().to_string());
        let detail = file.unwrap_or_else(|| "no file: the defaults apply".to_owned());
        return (config, vec![Finding::good("config", detail)]);
    }
    let path = source.path();
    let found =
        faults.iter().map(|fault| Finding::new("config", Verdict::Fault, located(&path, fault)));
    (config, found.collect())
}

/// Returns the running service of this data folder, if this user may query it.
pub(super) async fn running(config: &Config) -> Option<RunningService> {
    let admin = Admin::running(config).await?;
    let report: DoctorReport = understood(admin.get("/admin/doctor").await.ok()?).ok()?;
    report.running
}

/// Returns a finding if the service running on this data folder was started with another
/// configuration file.
pub(super) fn other_file(
    config: &Config,
    RunningService { file, .. }: RunningService,
) -> Option<Finding> {
    if file == config.file {
        return None;
    }
    let detail = match file {
        Some(file) => format!(
            "the service that runs in {} was started with {1}: to check that configuration, use \
             --config {1}",
            config.data_dir.display(),
            file.display()
        ),
        None => format!(
            "the service that runs in {} was started without a configuration file",
            config.data_dir.display()
        ),
    };
    Some(Finding::warning("config", detail))
}

/// Checks the networks that clients can reach, for the number of organizations of the running
/// service. Does not open the store.
async fn egress(config: &Config) -> Option<Finding> {
    let organizations = service::running_organizations(config).await?;
    Some(match service::egress_warning(config, organizations) {
        Some(warning) => Finding::new("egress", Verdict::Warning, warning),
        None => {
            let plural = if organizations == 1 { "" } else { "s" };
            Finding::good("egress", format!("{organizations} organization{plural}"))
        }
    })
}

#[cfg(test)]
mod tests;
