//! `orrery check`: everything that would keep the service from running well, found before it runs.
//!
//! Looks and tries, and changes nothing: no folder is made, no key, no certificate. All faults come
//! at once.

mod folders;
mod ports;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use super::output::{Column, Output};
use super::owner::Owner;
use super::{located, output, service};
use crate::config::{Config, TlsMode};
use crate::domain::time::Timestamp;
use crate::guard::fence::{self, Strength};
use crate::runners::llm::worker;
use crate::runtime::Clock;

/// The most manifests that are looked at.
const MANIFESTS_MAX: usize = 10_000;

/// How serious one finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Good,
    /// It works, and may surprise.
    Warning,
    Fault,
}

impl Verdict {
    const fn sign(self) -> &'static str {
        match self {
            Self::Good => "✓",
            Self::Warning => "!",
            Self::Fault => "✗",
        }
    }
}

/// What was found about one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) subject: String,
    pub(super) verdict: Verdict,
    pub(super) detail: String,
}

#[derive(Debug, Serialize)]
struct Report {
    good: bool,
    findings: Vec<Finding>,
}

fn finding(subject: &str, verdict: Verdict, detail: impl Into<String>) -> Finding {
    Finding { subject: subject.to_owned(), verdict, detail: detail.into() }
}

pub(super) async fn run(file: Option<&Path>, output: &Output) -> anyhow::Result<ExitCode> {
    let (config, findings) = configuration(file);
    // The service reads with the permissions of its user, not with those of root.
    let mut findings = match Owner::of(&config.data_dir) {
        None => looked_at(&config, findings),
        Some(owner) => {
            let looked = owner.looks(|| {
                let (_, findings) = configuration(file);
                looked_at(&config, findings)
            });
            let shown = config.data_dir.display();
            let detail = format!("looked at as {}, who owns {shown}", owner.name);
            let mut findings = looked?;
            findings.insert(0, finding("user", Verdict::Good, detail));
            findings
        }
    };
    findings.extend(ports::findings(&config).await);
    findings.extend(egress(&config).await);
    let faults = findings.iter().filter(|finding| finding.verdict == Verdict::Fault).count();
    let report = Report { good: faults == 0, findings };
    let rows = report.findings.iter().map(|finding| {
        vec![finding.verdict.sign().to_owned(), finding.subject.clone(), finding.detail.clone()]
    });
    let columns = [Column::Text(""), Column::Text("WHAT"), Column::Text("FOUND")];
    output.show(&report, &columns, rows)?;
    if faults == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    output::note(&format!("{faults} {}", if faults == 1 { "fault" } else { "faults" }));
    Ok(ExitCode::FAILURE)
}

/// What can be seen without a network; `findings` are those about the configuration.
fn looked_at(config: &Config, mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.extend(folders::findings(config));
    findings.push(fence(fence::strength()));
    findings.push(language_models());
    findings.extend(manifests(&config.models_dir));
    findings.extend(tls(config, Clock::system().now()));
    findings.extend(backups(config));
    let rotation = service::rotation_concern(config);
    findings.extend(rotation.map(|concern| finding("seal", Verdict::Warning, concern)));
    findings
}

/// The configuration as far as it can be read; the rest is looked at with defaults in the place of
/// what is wrong.
fn configuration(file: Option<&Path>) -> (Config, Vec<Finding>) {
    let Some(path) = file else {
        let found = finding("config", Verdict::Good, "no file: the defaults apply");
        return (Config::defaults(), vec![found]);
    };
    let (config, faults) = Config::examine(path);
    if faults.is_empty() {
        return (config, vec![finding("config", Verdict::Good, path.display().to_string())]);
    }
    let found = faults.iter().map(|fault| finding("config", Verdict::Fault, located(path, fault)));
    (config, found.collect())
}

/// Which networks clients can have called, as far as the running service tells how many
/// organizations there are. No store is opened for it.
async fn egress(config: &Config) -> Option<Finding> {
    let organizations = service::running_organizations(config).await?;
    Some(match service::egress_warning(config, organizations) {
        Some(warning) => finding("egress", Verdict::Warning, warning),
        None => finding("egress", Verdict::Good, format!("{organizations} organizations")),
    })
}

/// Whether backups on a timetable are encrypted.
fn backups(config: &Config) -> Option<Finding> {
    if let Some(concern) = service::backup_concern(config) {
        return Some(finding("backup", Verdict::Warning, concern));
    }
    config.backup.every.map(|_| finding("backup", Verdict::Good, "on a schedule, encrypted"))
}

/// How much the kernel keeps the programs of models from.
fn fence(strength: Strength) -> Finding {
    match strength.concern() {
        Some(concern) => finding("fence", Verdict::Warning, concern),
        None => {
            finding("fence", Verdict::Good, "Landlock confines programs of models to their folder")
        }
    }
}

/// Whether this build and this processor run models of the runner `llm`.
fn language_models() -> Finding {
    match worker::unsupported() {
        Some(concern) => finding("llm", Verdict::Warning, concern),
        None => finding("llm", Verdict::Good, "this processor runs language models"),
    }
}

fn manifests(folder: &Path) -> Vec<Finding> {
    let files = match manifest_files(folder) {
        Ok(files) => files,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let detail = format!("{} does not exist: built-in models only", folder.display());
            return vec![finding("models", Verdict::Good, detail)];
        }
        Err(error) => {
            let detail = format!("{} cannot be read: {error}", folder.display());
            return vec![finding("models", Verdict::Fault, detail)];
        }
    };
    let mut findings = Vec::new();
    let mut good = 0_usize;
    for file in &files {
        match service::check_manifest(file) {
            Ok(_slug) => good += 1,
            Err(faults) => findings
                .extend(faults.into_iter().map(|fault| finding("model", Verdict::Fault, fault))),
        }
    }
    let detail = format!("{}: {good} of {} manifests are valid", folder.display(), files.len());
    let verdict = if good == files.len() { Verdict::Good } else { Verdict::Fault };
    findings.insert(0, finding("models", verdict, detail));
    findings
}

fn manifest_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)?.take(MANIFESTS_MAX) {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn tls(config: &Config, now: Timestamp) -> Vec<Finding> {
    let encrypted = config
        .hosts
        .named()
        .iter()
        .flat_map(|(_, host)| host.listen.clone())
        .any(|address| config.tls.encrypts(&address));
    match &config.tls.mode {
        TlsMode::Files { certificate, private_key } => {
            vec![service::check_certificate(certificate, private_key, now)]
        }
        TlsMode::Off => {
            let open = config
                .hosts
                .named()
                .iter()
                .flat_map(|(_, host)| host.listen.clone())
                .find(|address| !address.ip().to_canonical().is_loopback());
            vec![match open {
                Some(address) => {
                    let detail = format!("off: keys cross the network in the clear on {address}");
                    finding("tls", Verdict::Warning, detail)
                }
                None => finding("tls", Verdict::Good, "off, on loopback addresses only"),
            }]
        }
        TlsMode::Auto | TlsMode::SelfSigned if encrypted => {
            let folder = config.data_dir.join("tls");
            let certificate = folder.join("server.pem");
            let key = folder.join("server.key");
            if certificate.exists() {
                return vec![service::check_certificate(&certificate, &key, now)];
            }
            vec![finding("tls", Verdict::Good, "a certificate will be created at the first start")]
        }
        TlsMode::Auto | TlsMode::SelfSigned => {
            vec![finding("tls", Verdict::Good, "plain HTTP, on loopback addresses only")]
        }
    }
}

#[cfg(test)]
mod tests;
