//! `orrery doctor`: finds problems with the machine, the data, the backups and the executions of
//! the service, and suggests a command to fix each problem. The command queries the running
//! service. If the service is stopped, it inspects the store in this process. If there is no store,
//! it runs only the remaining checks. All checks are read-only.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use super::check::{self, ports, sign};
use super::key::understood;
use super::output::{self, Column, Output};
use super::owner::Owner;
use super::{Shape, service};
use orrery_config::{Config, Source};
use orrery_runtime::Clock;
use orrery_wire::service::{DoctorReport, Finding, Listening, RunningService, Verdict};

/// The environment variable that systemd sets if standard error or standard output is connected to
/// the journal.
const JOURNAL: &str = "JOURNAL_STREAM";

#[derive(Debug, clap::Args)]
pub(super) struct Doctor {
    /// Print only problems, one on each line, and exit with 1 only if one is an error. In a systemd
    /// unit, each line has its priority in the journal
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, Serialize)]
struct Report {
    /// Whether no problem was found.
    good: bool,
    findings: Vec<Finding>,
}

pub(super) async fn run(asked: Doctor, file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let findings = findings(file).await?;
    if asked.quiet {
        return tell(&findings);
    }
    show(findings, asked.shape)
}

/// Returns all findings, worst first.
async fn findings(file: Option<&Path>) -> anyhow::Result<Vec<Finding>> {
    let (config, mut findings) =
        check::configuration(&Source { file: file.map(Path::to_path_buf), ..Source::default() });
    match of_service(&config).await {
        Ok(DoctorReport { findings: found, running: Some(running) }) => {
            // These findings describe the running service, regardless of the configuration given to
            // this command.
            findings = of_running(running);
            findings.extend(found);
        }
        Ok(DoctorReport { findings: found, running: None }) => {
            findings.extend(found);
            findings.extend(ports::findings(&config, None));
        }
        Err(error) => {
            findings.extend(without_store(&config, &error)?);
            findings.extend(ports::findings(&config, None));
        }
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
    Ok(findings)
}

/// Prints a line for each problem. The exit code is a failure if any problem is an error.
fn tell(findings: &[Finding]) -> anyhow::Result<ExitCode> {
    let is_in_journal = std::env::var_os(JOURNAL).is_some();
    for finding in findings.iter().filter(|finding| finding.concern) {
        output::line(&line(finding, is_in_journal))?;
    }
    let has_errors = findings.iter().any(|finding| finding.verdict == Verdict::Fault);
    Ok(if has_errors { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Formats a problem as one line. For the journal, the line starts with the priority.
fn line(finding: &Finding, is_in_journal: bool) -> String {
    let (priority, severity) = match finding.verdict {
        Verdict::Fault => ("<3>", "error"),
        Verdict::Good | Verdict::Warning => ("<4>", "warning"),
    };
    let priority = if is_in_journal { priority } else { "" };
    let fix = finding.mend.as_ref().map(|mend| format!(" (fix: {mend})")).unwrap_or_default();
    let Finding { subject, detail, .. } = finding;
    // A finding may quote several lines of a program's output.
    format!("{priority}{severity}: {subject}: {detail}{fix}").replace(['\r', '\n'], " ")
}

fn show(findings: Vec<Finding>, shape: Shape) -> anyhow::Result<ExitCode> {
    let concerns = findings.iter().filter(|finding| finding.concern).count();
    let report = Report { good: concerns == 0, findings };
    let rows = report.findings.iter().map(|finding| {
        let mend = finding.mend.clone().unwrap_or_default();
        let (subject, detail) = (finding.subject.clone(), finding.detail.clone());
        vec![sign(finding.verdict).to_owned(), subject, detail, mend]
    });
    let columns =
        [Column::Text(""), Column::Text("WHAT"), Column::Text("FOUND"), Column::Text("FIX")];
    Output::new(shape.json).show(&report, &columns, rows)?;
    if concerns == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    output::note(&format!("{concerns} {}", if concerns == 1 { "concern" } else { "concerns" }));
    Ok(ExitCode::FAILURE)
}

/// Returns the findings of the running service. If the service is stopped, returns the findings of
/// this process on the service's store.
async fn of_service(config: &Config) -> anyhow::Result<DoctorReport> {
    let admin = service::admin(config).await?;
    understood(admin.get("/admin/doctor").await?)
}

/// Returns findings on the configuration that the running service will read at its next start, and
/// on its listeners.
fn of_running(running: RunningService) -> Vec<Finding> {
    let (_, mut findings) =
        check::configuration(&Source { file: running.file, ..Source::default() });
    let listens = |host: &Listening| Finding::good(&host.host, format!("{} is served", host.url));
    findings.extend(running.listening.iter().map(listens));
    findings
}

/// Returns the findings if no service responds and the store cannot be opened.
fn without_store(config: &Config, error: &anyhow::Error) -> anyhow::Result<Vec<Finding>> {
    let now = Clock::system().now();
    let mut found = match Owner::of(&config.data_dir) {
        None => service::without_store(config, now),
        Some(owner) => owner.looks(|| service::without_store(config, now))?,
    };
    let is_first = !config.data_dir.exists();
    let verdict = if is_first { Verdict::Warning } else { Verdict::Fault };
    let mend = if is_first {
        "orrery serve"
    } else {
        "run it as the user of the service or with sudo; `orrery verify` while the service is stopped"
    };
    found.push(Finding::new("service", verdict, output::chain(error)).mended_by(mend));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_is_one_line_with_a_priority_in_the_journal() {
        let fault = Finding::fault("tls", "it has\nexpired").mended_by("renew it");
        assert_eq!(line(&fault, true), "<3>error: tls: it has expired (fix: renew it)");
        let warning = Finding::warning("disk", "3 GB are free");
        assert_eq!(line(&warning, true), "<4>warning: disk: 3 GB are free");
        assert_eq!(line(&warning, false), "warning: disk: 3 GB are free");
    }
}
