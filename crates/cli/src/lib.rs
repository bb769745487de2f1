//! The command line: parses arguments, dispatches to commands, and prints their results.
//!
//! Commands access the service through [`admin::Admin`], so that they behave the same whether the
//! service runs or not. Results go to standard output, notes and errors to standard error. The
//! processes that the service starts (guards, workers) are hidden commands of the same binary.
//!
//! This crate contains no rules about models or money. [`load`] is the load generator of `orrery
//! bench` and of the programs in `benches/`; the service never uses it.
//!
//! To add a command, see `CONTRIBUTING.md`, "Add a command".

pub mod load;

mod admin;
mod agent;
mod alert;
mod apply;
mod audit;
mod backup;
mod balance;
mod bench;
mod chain;
mod chat;
mod check;
mod completion;
mod decide;
mod diff;
mod doctor;
mod endpoint;
mod execution;
mod file;
mod first_run;
mod groups;
mod key;
mod key_policy;
mod listing;
mod loaded;
mod manual;
mod measures;
mod member;
mod model;
mod organization;
mod output;
mod owner;
mod parse;
mod place;
mod processes;
#[cfg(test)]
mod reference;
mod rehearse;
mod reload;
mod salvage;
mod schedule;
mod seal;
mod secret;
mod serve;
mod service;
mod settings;
mod signals;
mod stored_file;
mod top;
mod unit;
mod upgrade;
mod usage;
mod values;
mod webhook;
mod worker;
mod workflow;
mod yaml_fault;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use rustix::fs::Mode;
use rustix::process::umask;

use self::loaded::{configuration, loaded, located, unusable};
use self::output::Output;
use self::parse::understood;
use self::place::{of_service, of_service_or_defaults, of_service_unless};
use orrery_guard as guard;
use orrery_runners::builtin::worker as builtin_worker;
use orrery_runners::{llm, onnx, whisper};

/// Details of `--version`: commit and date if known, features, target. Set by `build.rs`; `-V`
/// prints only the version.
const LONG_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("ORRERY_BUILD"), ")");

/// One static binary that turns a Linux box into an AI model and workflow service.
#[derive(Debug, Parser)]
#[command(name = "orrery", version, long_version = LONG_VERSION, max_term_width = 100)]
#[command(
    after_help = "Without a command, orrery runs the service. Without --config, it keeps its data in ./orrery-data, listens on 127.0.0.1, ports 8080 to 8084, and reads ./orrery-data/config.toml if it exists, which `orrery config` writes."
)]
struct Arguments {
    /// The configuration file
    #[arg(long, global = true, value_name = "FILE", env = "ORRERY_CONFIG")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service
    Serve(serve::Serve),
    /// Check configuration, manifests, TLS files, ports and folders, and report all problems
    Check(check::Check),
    /// The configuration file: write it, show the effective settings, change a key
    #[command(subcommand)]
    Config(settings::Command),
    /// Diagnose machine, data, backups and work of the service, and suggest a fix for each problem
    Doctor(doctor::Doctor),
    /// Alerts: messages to the operator about problems that `orrery doctor` finds
    #[command(subcommand)]
    Alerts(alert::Command),
    Top(top::Top),
    Bench(bench::Bench),
    /// API keys
    #[command(subcommand)]
    Key(key::Command),
    /// Organizations: each has its own keys, executions and balance
    #[command(subcommand, visible_alias = "organization")]
    Org(organization::Command),
    /// The Owner of an organization's dashboard: create the link for it
    #[command(subcommand)]
    Owner(member::OwnerCommand),
    /// Members: invite, list and remove the people who can log in to the dashboard
    #[command(subcommand)]
    Member(member::Command),
    /// Fallback chains: the models to try when the primary model fails
    #[command(subcommand)]
    Chain(chain::Command),
    /// Named secrets: write-only values for the requests of workflows
    #[command(subcommand)]
    Secret(secret::Command),
    /// Requests, tokens and cost of an organization by key, model and time
    Usage(usage::Usage),
    /// Balances of organizations and their ledgers
    #[command(subcommand)]
    Balance(balance::Command),
    /// The audit log: who did what, from where, with which result
    #[command(subcommand)]
    Audit(audit::Command),
    /// Webhook deliveries: list them, show their attempts, redeliver them
    #[command(subcommand)]
    Webhooks(webhook::Command),
    /// Webhook endpoints: URLs that receive the events of an organization
    #[command(subcommand)]
    Endpoint(endpoint::Command),
    /// Files of an organization: list, upload, download and delete them
    #[command(subcommand)]
    File(stored_file::Command),
    /// Schedules: run workflows and models at fixed times
    #[command(subcommand)]
    Schedule(schedule::Command),
    /// Executions: list, watch, show, cancel, pause, resume and redrive them, even while the
    /// service is stopped
    #[command(subcommand)]
    Execution(execution::Command),
    /// Apply a declarative file of organizations and their resources; idempotent
    Apply(apply::Apply),
    /// Workflows: list, show, run and delete them, or synchronize them with files in a folder
    #[command(subcommand)]
    Workflow(workflow::Command),
    /// Models of the catalog
    #[command(subcommand)]
    Model(model::Command),
    /// Chat with a model in the terminal
    Chat(chat::Chat),
    /// Ask a chat model questions about a text or JSON value, each with a given type of answer
    Decide(decide::Decide),
    /// Talk to the agent of the running service
    Agent(agent::Agent),
    Worker(worker::Worker),
    /// Back up everything into one file, even while the service runs
    Backup(backup::Backup),
    /// Check a backup; without a file, check the store of a stopped service
    Verify(backup::Verify),
    /// Restore a backup into an empty data folder
    Restore(backup::Restore),
    /// Make the running service reread its configuration, manifests and certificates
    Reload(Shape),
    /// Rehearse an upgrade to this binary on a copy of the data, while the service runs
    Upgrade(upgrade::Upgrade),
    /// Resume the executions and webhooks that are held back after a restore
    Resume(Shape),
    /// Rewrite the store of a stopped service to reclaim disk space
    Compact,
    /// The key that encrypts stored secrets
    #[command(subcommand)]
    Seal(seal::Command),
    /// Copy everything readable from a damaged store into a new data folder
    Salvage(salvage::Salvage),
    /// Guard the worker of a model (started by the service)
    #[command(hide = true)]
    Guard(guard::GuardArgs),
    /// Become the program of a model inside its sandbox (started by a guard)
    #[command(hide = true)]
    Fence(guard::fence::FenceArgs),
    /// Run built-in models without files and network (started by the service)
    #[command(hide = true)]
    BuiltinWorker(builtin_worker::WorkerArgs),
    /// Run a language model without files and network (started by the service)
    #[command(hide = true)]
    LlmWorker(llm::worker::WorkerArgs),
    /// Recognize speech without files and network (started by the service)
    #[command(hide = true)]
    WhisperWorker(whisper::worker::WorkerArgs),
    /// Run a model from an ONNX file without files and network (started by the service)
    #[command(hide = true)]
    OnnxWorker(onnx::worker::WorkerArgs),
    /// Run this binary as a systemd service: install it, remove it, show its status
    #[command(subcommand)]
    Service(unit::Command),
    /// Print the JSON Schema of a kind of file, for editors
    Schema {
        /// workflow: files for `workflow push`; manifest: model manifests; config: the
        /// configuration; apply: files for `apply`
        #[arg(value_parser = orrery_app::SCHEMAS)]
        name: String,
    },
    /// Print a completion script for a shell
    Completions {
        shell: clap_complete::Shell,
    },
    /// Write manual pages into a folder
    Man {
        folder: PathBuf,
    },
}

/// Output format of a table.
#[derive(Debug, Clone, Copy, clap::Args)]
struct Shape {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the command line. The exit code is 0 for success, 1 for a failure, with a message on
/// standard error, and 2 for a usage error.
#[must_use]
pub fn main() -> ExitCode {
    // Make files that this process creates private to its user, regardless of the inherited umask.
    let _of_the_parent = umask(Mode::RWXG | Mode::RWXO);
    completion::answer();
    let arguments = understood(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match run(arguments) {
        Ok(code) => code,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let file = arguments.config.as_deref();
    match arguments.command.unwrap_or(Command::Serve(serve::Serve::default())) {
        Command::Serve(asked) => {
            let config = asked.configuration(file)?;
            until_stopped(serve::run(config))?;
        }
        Command::Check(asked) => return block_on(check::run(asked, file)),
        Command::Config(command) => block_on(settings::run(command, file))?,
        Command::Doctor(asked) => {
            let file = place::file_or_found(file);
            return block_on(doctor::run(asked, file.as_deref()));
        }
        Command::Alerts(command) => return block_on(alert::run(command, &of_service(file)?)),
        Command::Top(asked) => until_stopped(top::run(asked, &of_service(file)?))?,
        Command::Bench(asked) => until_stopped(bench::run(asked))?,
        Command::Key(command) => block_on(key::run(command, &of_service(file)?))?,
        Command::Owner(command) => block_on(member::owner(command, &of_service(file)?))?,
        Command::Member(command) => block_on(member::run(command, &of_service(file)?))?,
        Command::Chain(command) => block_on(chain::run(command, &of_service(file)?))?,
        Command::Secret(command) => block_on(secret::run(command, &of_service(file)?))?,
        Command::Usage(asked) => block_on(usage::run(asked, &of_service(file)?))?,
        Command::Balance(command) => block_on(balance::run(command, &of_service(file)?))?,
        Command::Audit(command) => block_on(audit::run(command, &of_service(file)?))?,
        Command::Webhooks(command) => block_on(webhook::run(command, &of_service(file)?))?,
        Command::Apply(asked) => block_on(apply::run(asked, &of_service(file)?))?,
        Command::Endpoint(command) => block_on(endpoint::run(command, &of_service(file)?))?,
        Command::File(command) => block_on(stored_file::run(command, &of_service(file)?))?,
        Command::Schedule(command) => block_on(schedule::run(command, &of_service(file)?))?,
        Command::Workflow(command) => {
            return block_on(workflow::run(command, &of_service(file)?));
        }
        Command::Org(command) => block_on(organization::run(command, &of_service(file)?))?,
        Command::Model(command) => return model::run(command, file),
        Command::Chat(asked) => block_on(chat::run(asked, &of_service(file)?))?,
        Command::Agent(asked) => block_on(agent::run(asked, &of_service(file)?))?,
        Command::Decide(asked) => block_on(decide::run(asked, &of_service(file)?))?,
        Command::Worker(asked) => until_stopped(worker::run(asked, file))?,
        Command::Backup(asked) => block_on(backup::backup(asked, &of_service(file)?))?,
        Command::Verify(asked) => return verify(asked, file),
        Command::Upgrade(asked) => return upgrade(asked, file),
        Command::Restore(asked) => {
            block_on(backup::restore(asked, &of_service_or_defaults(file)?))?
        }
        Command::Execution(command) => block_on(execution::run(command, &of_service(file)?))?,
        Command::Reload(shape) => {
            return block_on(reload::run(&Output::new(shape.json), &of_service(file)?));
        }
        Command::Resume(shape) => block_on(execution::resume(shape, &of_service(file)?))?,
        Command::Compact => block_on(backup::compact(&of_service(file)?))?,
        Command::Seal(command) => block_on(seal::run(command, &of_service(file)?))?,
        Command::Salvage(asked) => {
            let is_whole = block_on(salvage::run(asked, &of_service(file)?))?;
            return Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Guard(args) => return Ok(processes::guarded(guard::run(&args))),
        Command::Fence(args) => return Ok(processes::guarded(Err(guard::fence::run(&args)))),
        Command::BuiltinWorker(args) => return processes::worked(builtin_worker::run(&args)),
        Command::LlmWorker(args) => return processes::worked(llm::worker::run(&args)),
        Command::WhisperWorker(args) => return processes::worked(whisper::worker::run(&args)),
        Command::OnnxWorker(args) => return processes::worked(onnx::worker::run(&args)),
        Command::Service(command) => block_on(unit::run(command))?,
        Command::Schema { name } => output::json(&orrery_app::schema(&name))?,
        Command::Completions { shell } => completion::print(shell)?,
        Command::Man { folder } => manual::write(&folder)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn verify(asked: backup::Verify, file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let config = of_service_unless(asked.is_of_file(), file)?;
    let is_good = block_on(backup::verify(asked, &config))?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn upgrade(asked: upgrade::Upgrade, file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let config = of_service_unless(asked.is_of_file(), file)?;
    let is_good = block_on(upgrade::run(asked, &config))?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    runtime()?.block_on(work)
}

/// Like [`block_on`], but does not wait at the end for background tasks that are still running.
fn until_stopped<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = runtime()?;
    let ended = runtime.block_on(work);
    runtime.shutdown_background();
    ended
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("orrery")
        .build()
        .context("the asynchronous runtime cannot start")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory as _;

    use super::*;

    fn parsed(line: &str) -> Result<Arguments, clap::Error> {
        understood(line.split(' ').map(OsString::from))
    }

    #[test]
    fn cli_grammar_is_consistent() {
        Arguments::command().debug_assert();
    }

    const EVERY_COMMAND: &[&str] = &[
        "orrery",
        "orrery serve --config x.toml",
        "orrery serve --listen 0.0.0.0 --port 9000",
        "orrery serve --set agent.model=llama --set log.level=debug --bootstrap-key-file key",
        "orrery --config x.toml check --json",
        "orrery check --set agent.model=llama",
        "orrery config init",
        "orrery --config x.toml config init --production",
        "orrery config show --json",
        "orrery config set agent.model llama",
        "orrery doctor --json",
        "orrery doctor --quiet",
        "orrery alerts test --json",
        "orrery top",
        "orrery top --every 0.5",
        "orrery top --once --json",
        "orrery bench",
        "orrery bench --quick --dir /srv --model m.gguf --compare before.json --json",
        "orrery key create --name n --org o --expires 90d",
        "orrery key create --name n --admin --expires 90d",
        "orrery key list --org o --json",
        "orrery --json key list",
        "orrery --json --config x.toml model list",
        "orrery --config x.toml --json model test a/b --input {}",
        "orrery --json org show o",
        "orrery key delete 0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
        "orrery key delete laptop",
        "orrery org create --name o",
        "orrery org list",
        "orrery service install --dry-run",
        "orrery service uninstall --purge",
        "orrery service status --json",
        "orrery man pages",
        "orrery org show o --json",
        "orrery org rename o p --json",
        "orrery org delete o",
        "orrery org delete o --yes --force --json",
        "orrery member invite --org o --json",
        "orrery member invite a@b.c",
        "orrery member invite a@b.c --role viewer",
        "orrery member update a@b.c --role operator --api-key-access true --org o --json",
        "orrery member reset-second-factor a@b.c --org o",
        "orrery member remove a@b.c --org o",
        "orrery workflow list --org o --json",
        "orrery workflow show w",
        "orrery workflow run w --input @f.json --version v2 --org o --json",
        "orrery workflow run w --detach",
        "orrery workflow delete w --keep-running",
        "orrery schedule list --org o --json",
        "orrery schedule create --cron @daily --workflow w --input {} --paused --json",
        "orrery schedule create --cron @daily --model m --version 1 --name n --overlap allow",
        "orrery schedule show n --org o",
        "orrery schedule pause n",
        "orrery schedule resume n",
        "orrery schedule delete n",
        "orrery endpoint list --org o --json",
        "orrery endpoint create --url http://a/b --events workflow.failed,workflow.completed",
        "orrery endpoint create --url http://a/b --send-plain-secret",
        "orrery endpoint test n --json",
        "orrery endpoint rotate n",
        "orrery file list --limit 5 --json",
        "orrery file upload a.png --type image/png --org o --json",
        "orrery file download 0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e --into b.png",
        "orrery organization limit o --requests-per-second 5 --running 1 --queued none",
        "orrery org limit o --storage 1000000 --json",
        "orrery org limit o --storage 10GB",
        "orrery owner link --org o --json",
        "orrery member list --org o --json",
        "orrery chain create --name n --model m --entries []",
        "orrery chain update --name n --model m --org o --entries @f.toml --json",
        "orrery chain disable --name n --model a/b",
        "orrery chain show --name n --model m",
        "orrery chain show n",
        "orrery chain create n --model m --entries []",
        "orrery chain delete n --model m --org o",
        "orrery chain list --org o",
        "orrery secret set api_key --org o",
        "orrery secret list --org o --json",
        "orrery secret delete api_key",
        "orrery model list --json",
        "orrery model check a.toml b.toml",
        "orrery model test a/b --input {} --json",
        "orrery chat",
        "orrery chat a/b --system s --org o",
        "orrery worker --server http://a:1 --key-file k --manifest m.toml n.toml --concurrency 2",
        "orrery agent --session s --mode eco --behavior plan --org o hello",
        "orrery decide --model m --state @f --question q --org o --json",
        "orrery usage --org o --from 2026-11-01 --to 2026-11-30 --by key,month --json",
        "orrery usage --by tag,model --key 0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e --csv",
        "orrery balance show --org o --json",
        "orrery balance top-up --amount 12.5 --org o",
        "orrery balance ledger --limit 5",
        "orrery webhooks list --status failed --limit 5 --json",
        "orrery webhooks show 0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
        "orrery webhooks redeliver 0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e --org o",
        "orrery execution list --unfinished --org o --limit 5 --json",
        "orrery execution list --model m --status error,failed --type workflow --workflow w --watch",
        "orrery execution list --from 2026-11-20T09:30:00Z --to 2026-11-21T09:30:00Z --limit 5",
        "orrery execution redrive 0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e --org o",
        "orrery execution pause 0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
        "orrery execution resume 0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
        "orrery execution show 0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
        "orrery execution cancel 0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e",
        "orrery resume --json",
        "orrery reload --json",
        "orrery audit list --action key --org o --from 2026-11-20T09:30:00Z --limit 5 --json",
        "orrery backup x.backup --json",
        "orrery verify",
        "orrery verify x.backup",
        "orrery verify x.backup --restore --work-dir d --log l --json",
        "orrery restore x.backup --into d",
        "orrery restore x.backup --identity key.txt",
        "orrery verify x.backup --passphrase-file p",
        "orrery restore x.backup --until 2026-11-21T10:00:00Z --live-log /d",
        "orrery upgrade --rehearse",
        "orrery upgrade --rehearse --backup x.backup --identity k --work-dir d --json",
        "orrery compact",
        "orrery seal rotate",
        "orrery salvage --into d --json",
        "orrery completions bash",
        "orrery schema workflow",
    ];

    #[test]
    fn cli_parses_every_command() {
        for line in EVERY_COMMAND {
            parsed(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn version_names_release_features_and_target() {
        let said = |option: &str| parsed(&format!("orrery {option}")).unwrap_err().to_string();
        let release = format!("orrery {}", env!("CARGO_PKG_VERSION"));
        assert_eq!(said("-V").trim_end(), release);
        let long = said("--version");
        let build = long.trim_end().strip_prefix(&release).and_then(|rest| rest.strip_prefix(" ("));
        let build = build.and_then(|rest| rest.strip_suffix(')')).unwrap_or_default();
        let parts: Vec<&str> = build.split(", ").collect();
        assert_eq!(parts.contains(&"llama"), cfg!(feature = "llama"), "{long}");
        assert_eq!(parts.contains(&"whisper"), cfg!(feature = "whisper"), "{long}");
        let target = parts.last().copied().unwrap_or_default();
        assert!(target.starts_with(std::env::consts::ARCH), "{long}");
        assert!(target.contains("-linux-"), "{long}");
    }

    #[test]
    fn cli_rejects_wrong_usage() {
        for line in [
            "orrery start",
            "orrery top --json",
            "orrery --json",
            "orrery --json serve",
            "orrery --json compact",
            "orrery top --every 0",
            "orrery bench --round never",
            "orrery key create",
            "orrery key create --name n --expires soon",
            "orrery key create --name n --expires 0s",
            "orrery model check",
            "orrery model test",
            "orrery chain create --name n --model m",
            "orrery chain create n --entries []",
            "orrery chain show",
            "orrery schedule create --cron @daily",
            "orrery schedule create --cron @daily --workflow w --model m --version 1",
            "orrery schedule create --cron @daily --model m",
            "orrery file show 17",
            "orrery doctor --quiet --json",
            "orrery alerts",
            "orrery org rename o",
            "orrery member remove",
            "orrery member update a@b.c",
            "orrery member update a@b.c --role owner",
            "orrery chain show n --name n",
            "orrery serve --listen box.lan",
            "orrery serve --port 65531",
            "orrery serve --set agent.model",
            "orrery config set agent.model",
            "orrery audit list --limit many",
            "orrery decide --model m --state s",
            "orrery agent --mode fast",
            "orrery balance top-up",
            "orrery balance top-up --amount much",
            "orrery backup",
            "orrery restore",
            "orrery verify --identity key.txt",
            "orrery verify --restore",
            "orrery upgrade",
            "orrery upgrade --rehearse --identity key.txt",
            "orrery execution list --unfinished --model m",
            "orrery verify x.backup --identity key.txt --passphrase-file p",
            "orrery execution cancel 17",
            "orrery salvage",
            "orrery seal",
            "orrery completions cobol",
            "orrery schema models",
        ] {
            assert_eq!(parsed(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn cli_config_error_shows_file_line_and_column() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, "[hosts.base]\nlisten = 1\n[limit]\n").unwrap();
        let error = format!("{:?}", configuration(Some(&path)).unwrap_err());
        let shown = path.display();
        assert!(error.contains(&format!("{shown}:2:10: `hosts.base.listen`")), "{error}");
        assert!(error.contains(&format!("{shown}:3:2: unknown key `limit`")), "{error}");
    }
}
