//! `orrery service`: installs this binary as a systemd service, uninstalls it, and shows its
//! status. The command never changes a service that a package manager has installed.
//!
//! Data and configuration are removed only with `--purge`, after confirmation.

mod steps;

use std::io::{BufRead as _, IsTerminal as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::Subcommand;
use rustix::process::geteuid;
use serde::Serialize;

use self::steps::{File, Step};
use super::Shape;
use super::admin::Admin;
use super::output::{self, Column, Output};
use super::owner;
use orrery_config::Config;

const BINARY: &str = "/usr/local/bin/orrery";
const SETTINGS: &str = "/etc/orrery";
const CONFIGURATION: &str = "/etc/orrery/config.toml";
const SERVICE: &str = "/etc/systemd/system/orrery.service";
const SOCKET: &str = "/etc/systemd/system/orrery.socket";
const DOCTOR: &str = "/etc/systemd/system/orrery-doctor.service";
const TIMER: &str = "/etc/systemd/system/orrery-doctor.timer";
/// The paths of units that packages install.
const PACKAGED: [&str; 2] =
    ["/lib/systemd/system/orrery.service", "/usr/lib/systemd/system/orrery.service"];
/// The service's user and group.
const USER: &str = "orrery";
/// This folder exists if systemd is PID 1.
const SYSTEMD: &str = "/run/systemd/system";
const UNIT: &str = include_str!("../../../../systemd/orrery.service");
const SOCKET_UNIT: &str = include_str!("../../../../systemd/orrery.socket");
const DOCTOR_UNIT: &str = include_str!("../../../../systemd/orrery-doctor.service");
const TIMER_UNIT: &str = include_str!("../../../../systemd/orrery-doctor.timer");
const EXAMPLE: &str = include_str!("../../../../config.example.toml");
/// The word that the user must type before data is removed.
const CONFIRMATION: &str = "purge";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Install this binary as a systemd service and start it; run again to update
    Install {
        /// Only print the steps
        #[arg(long)]
        dry_run: bool,
    },
    /// Stop the service and remove it; data and configuration stay
    Uninstall {
        /// Only print the steps
        #[arg(long)]
        dry_run: bool,
        /// Also remove data, configuration and the user, after confirmation
        #[arg(long)]
        purge: bool,
    },
    /// Show the status of the installed service
    Status(Shape),
}

pub(super) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Install { dry_run } => install(dry_run),
        Command::Uninstall { dry_run, purge } => uninstall(dry_run, purge),
        Command::Status(shape) => status(shape).await,
    }
}

fn install(dry_run: bool) -> anyhow::Result<()> {
    refuse_package()?;
    let config = configuration()?;
    let has_user = owner::group(USER).is_some();
    let socket = socket_unit(&config);
    let is_running = Path::new(SERVICE).exists();
    let sockets_change = std::fs::read_to_string(SOCKET).ok().as_ref() != Some(&socket);
    let mut steps = Vec::new();
    if !has_user {
        let home = config.data_dir.display().to_string();
        let user = ["useradd", "--system", "--user-group", "--home-dir", &home];
        steps.push(Step::run(&[&user[..], &["--shell", "/usr/sbin/nologin", USER]].concat()));
    }
    steps.extend([
        Step::Binary(PathBuf::from(BINARY)),
        Step::Folder(PathBuf::from(SETTINGS)),
        Step::Folder(config.models_dir.clone()),
        Step::File(File {
            is_kept: true,
            is_of_group: true,
            ..file(CONFIGURATION, 0o640, EXAMPLE.to_owned())
        }),
        Step::File(file(SERVICE, 0o644, UNIT.to_owned())),
        Step::File(file(SOCKET, 0o644, socket)),
        Step::File(file(DOCTOR, 0o644, DOCTOR_UNIT.to_owned())),
        Step::File(file(TIMER, 0o644, TIMER_UNIT.to_owned())),
        Step::run(&["systemctl", "daemon-reload"]),
    ]);
    if is_running && sockets_change {
        // systemd cannot change a socket unit while its service is running.
        steps.push(Step::run(&["systemctl", "stop", "orrery.service"]));
        steps.push(Step::run(&["systemctl", "restart", "orrery.socket"]));
    }
    steps.push(Step::run(&["systemctl", "enable", "--now", "orrery.socket"]));
    steps.push(Step::run(&["systemctl", "enable", "orrery.service"]));
    steps.push(Step::run(&["systemctl", "restart", "orrery.service"]));
    steps.push(Step::run(&["systemctl", "enable", "--now", "orrery-doctor.timer"]));
    perform(&steps, dry_run)?;
    if !dry_run {
        let hosts = config.hosts.named();
        for (name, host) in hosts {
            output::note(&format!("  {name:<10} {}", host.public_url));
        }
        output::note(
            "\nThe service runs. `orrery key create --name NAME` creates a key; `orrery owner link` creates the \
             link that sets up the dashboard; `orrery service status` shows the status of the service.",
        );
    }
    Ok(())
}

fn uninstall(dry_run: bool, purge: bool) -> anyhow::Result<()> {
    refuse_package()?;
    let mut steps = Vec::new();
    if Path::new(TIMER).exists() {
        steps.push(Step::run(&["systemctl", "disable", "--now", "orrery-doctor.timer"]));
    }
    if Path::new(SERVICE).exists() || Path::new(SOCKET).exists() {
        steps.push(Step::run(&[
            "systemctl",
            "disable",
            "--now",
            "orrery.service",
            "orrery.socket",
        ]));
    }
    steps.extend([
        Step::Remove(PathBuf::from(SERVICE)),
        Step::Remove(PathBuf::from(SOCKET)),
        Step::Remove(PathBuf::from(DOCTOR)),
        Step::Remove(PathBuf::from(TIMER)),
        Step::run(&["systemctl", "daemon-reload"]),
        Step::Remove(PathBuf::from(BINARY)),
    ]);
    let mut kept = "Data and configuration were kept; `--purge` removes them too.";
    if purge {
        kept = "Data, configuration and user were removed too.";
        let data = configuration()?.data_dir;
        if !dry_run {
            confirm(&data)?;
        }
        steps.push(Step::Remove(data));
        steps.push(Step::Remove(PathBuf::from(SETTINGS)));
        if owner::group(USER).is_some() {
            steps.push(Step::run(&["userdel", USER]));
        }
    }
    perform(&steps, dry_run)?;
    if !dry_run {
        output::note(kept);
    }
    Ok(())
}

/// Returns an error if a package manager has installed the service.
fn refuse_package() -> anyhow::Result<()> {
    for unit in PACKAGED {
        ensure!(
            !Path::new(unit).exists(),
            "the package orrery has installed this service: use `apt install`, `apt remove` and `apt purge`"
        );
    }
    Ok(())
}

/// Asks the user for confirmation before all data is removed.
fn confirm(data: &Path) -> anyhow::Result<()> {
    let stdin = std::io::stdin();
    ensure!(stdin.is_terminal(), "`--purge` asks a question: run it in a terminal");
    output::note(&format!(
        "Everything in {} and {SETTINGS} will be permanently deleted. Type {CONFIRMATION} to continue:",
        data.display()
    ));
    let mut typed = String::new();
    stdin.lock().read_line(&mut typed)?;
    ensure!(typed.trim() == CONFIRMATION, "nothing was removed");
    Ok(())
}

/// Performs the steps that are not done yet. In a dry run, only prints these steps.
fn perform(steps: &[Step], dry_run: bool) -> anyhow::Result<()> {
    if !dry_run {
        ensure!(geteuid().is_root(), "this changes the system: use sudo");
        ensure!(
            Path::new(SYSTEMD).exists(),
            "systemd does not run here: start `orrery serve` with this machine's own service manager"
        );
    }
    for step in steps.iter().filter(|step| !step.is_done()) {
        output::note(&step.to_string());
        if !dry_run {
            step.perform(USER)?;
        }
    }
    Ok(())
}

/// Returns the configuration of the installed service, or of a new service if no service is
/// installed.
fn configuration() -> anyhow::Result<Config> {
    let path = Path::new(CONFIGURATION);
    if path.exists() { super::configuration(Some(path)) } else { Ok(Config::for_installed()) }
}

fn file(path: &str, mode: u32, content: String) -> File {
    File { path: path.into(), mode, content, is_kept: false, is_of_group: false }
}

/// Returns the socket unit with the configured addresses.
fn socket_unit(config: &Config) -> String {
    let hosts = config.hosts.named();
    let addresses = hosts.iter().flat_map(|(_, host)| &host.listen).chain(&config.metrics.listen);
    let listed: Vec<String> = addresses.map(listen_line).collect();
    let is_listen = |line: &&str| line.starts_with("ListenStream=");
    let before = SOCKET_UNIT.lines().take_while(|line| !is_listen(line));
    let after = SOCKET_UNIT.lines().skip_while(|line| !is_listen(line)).skip_while(is_listen);
    let listed = listed.iter().map(String::as_str);
    before.chain(listed).chain(after).map(|line| format!("{line}\n")).collect()
}

fn listen_line(address: &SocketAddr) -> String {
    format!("ListenStream={address}")
}

/// The status of the installed service.
#[derive(Debug, Serialize)]
struct Status {
    /// The unit state as systemd reports it, such as `active`.
    state: String,
    /// Whether the service starts at boot.
    starts_at_boot: bool,
    pid: Option<u32>,
    since: String,
    restarts: u32,
    memory_bytes: Option<u64>,
    /// Whether the service is ready; `None` if it does not respond.
    ready: Option<bool>,
}

/// Returns the output of `systemctl show` about the installed service.
fn properties(asked: &std::process::Output) -> anyhow::Result<String> {
    if !asked.status.success() {
        let reason = String::from_utf8_lossy(&asked.stderr);
        bail!("systemd does not answer: {}", reason.lines().next().unwrap_or_default());
    }
    let text = String::from_utf8_lossy(&asked.stdout).into_owned();
    if text.lines().any(|line| line == "LoadState=not-found") {
        bail!("the service is not installed: run `sudo orrery service install`");
    }
    Ok(text)
}

async fn status(shape: Shape) -> anyhow::Result<()> {
    const SHOWN: &str =
        "LoadState,ActiveState,UnitFileState,MainPID,ActiveEnterTimestamp,NRestarts,MemoryCurrent";
    let asked = std::process::Command::new("systemctl")
        .args(["show", "orrery.service", "--property", SHOWN])
        .output()
        .context("systemctl cannot be run: is this a machine with systemd?")?;
    let text = properties(&asked)?;
    let ready = match configuration() {
        Ok(config) => readiness(&config).await,
        Err(_) => None,
    };
    let status = read_status(&text, ready);
    let columns = [Column::Text("WHAT"), Column::Text("HOW")];
    let memory = status.memory_bytes.map(|bytes| format!("{} MiB", bytes / (1024 * 1024)));
    let rows = [
        ("state", status.state.clone()),
        ("since", status.since.clone()),
        ("pid", status.pid.map_or_else(String::new, |pid| pid.to_string())),
        ("starts at boot", yes(status.starts_at_boot).to_owned()),
        ("restarts", status.restarts.to_string()),
        ("memory", memory.unwrap_or_default()),
        ("ready", status.ready.map_or("does not answer", yes).to_owned()),
    ];
    let rows = rows.map(|(what, how)| vec![what.to_owned(), how]);
    Output::new(shape.json).show(&status, &columns, rows)
}

const fn yes(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

async fn readiness(config: &Config) -> Option<bool> {
    let admin = Admin::running(config).await?;
    Some(admin.get("/ready").await.is_ok())
}

/// Parses the output of `systemctl show`.
fn read_status(text: &str, ready: Option<bool>) -> Status {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_default().to_owned()
    };
    Status {
        state: value("ActiveState"),
        starts_at_boot: value("UnitFileState") == "enabled",
        pid: value("MainPID").parse().ok().filter(|pid| *pid > 0),
        since: value("ActiveEnterTimestamp"),
        restarts: value("NRestarts").parse().unwrap_or(0),
        memory_bytes: value("MemoryCurrent").parse().ok(),
        ready,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn socket_unit_has_the_addresses_of_the_configuration() {
        let mut config = Config::for_installed();
        config.metrics.listen.clear();
        assert_eq!(socket_unit(&config), SOCKET_UNIT, "the example's ports");
        config.hosts.base.listen =
            vec!["127.0.0.1:80".parse().unwrap(), "[::1]:80".parse().unwrap()];
        let unit = socket_unit(&config);
        assert!(unit.contains(
            "ListenStream=127.0.0.1:80\nListenStream=[::1]:80\nListenStream=0.0.0.0:8444\n"
        ));
        assert!(!unit.contains("0.0.0.0:8443") && unit.contains("[Install]"), "{unit}");
    }

    #[test]
    fn unit_of_the_check_has_the_restrictions_of_the_service() {
        let restricts = |line: &&str| {
            let of = ["Protect", "Private", "Restrict", "SystemCall", "LimitNOFILE=", "UMask="];
            let whole = ["NoNewPrivileges=yes", "LockPersonality=yes", "CapabilityBoundingSet="];
            of.iter().any(|start| line.starts_with(start)) || whole.contains(line)
        };
        let missing: Vec<&str> = UNIT
            .lines()
            .filter(restricts)
            .filter(|line| !DOCTOR_UNIT.lines().any(|other| other == *line))
            .collect();
        assert_eq!(missing, [""; 0]);
        let start = DOCTOR_UNIT.lines().find_map(|line| line.strip_prefix("ExecStart=/"));
        let words = start.unwrap().split(' ').map(std::ffi::OsString::from);
        assert!(crate::parse::understood(words).is_ok(), "{start:?}");
    }

    #[test]
    fn status_of_no_service_is_an_error() {
        let output = |code, out: &str, err: &str| std::process::Output {
            status: std::process::ExitStatus::from_raw(code),
            stdout: out.as_bytes().to_vec(),
            stderr: err.as_bytes().to_vec(),
        };
        for (asked, said) in [
            (
                output(256, "", "Failed to connect to bus\nmore\n"),
                "answer: Failed to connect to bus",
            ),
            (output(256, "", ""), "systemd does not answer"),
            (output(0, "LoadState=not-found\nMainPID=0\n", ""), "the service is not installed"),
        ] {
            let error = properties(&asked).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("more"), "{error}");
        }
        assert!(properties(&output(0, "LoadState=loaded\n", "")).is_ok());
    }

    #[test]
    fn status_parses_systemctl_show_output() {
        let text = "MainPID=42\nNRestarts=3\nMemoryCurrent=[not set]\nActiveState=active\n\
                    ActiveEnterTimestamp=Mon 2026-11-23 03:00:00 UTC\nUnitFileState=enabled\n";
        let status = read_status(text, Some(true));
        assert_eq!((status.state.as_str(), status.pid, status.restarts), ("active", Some(42), 3));
        assert!(status.starts_at_boot && status.memory_bytes.is_none());
        assert_eq!(read_status("", None).pid, None);
    }
}
