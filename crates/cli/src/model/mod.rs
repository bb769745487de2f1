//! `orrery model`: lists the models of the catalog, adds models, checks manifests and runs a model
//! once.

mod add;
mod pull;

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::key::understood;
use crate::output::{self, Column, Output};
use crate::place::of_service;
use crate::{Shape, block_on, service};
use orrery_config::Config;
use orrery_domain::classify::ErrorClass;
use orrery_http::content;
use orrery_http::event_stream::EventReader;
use orrery_wire::operator::{ModelTest, ModelTestEvent, Models};

/// Maximum size of an event, in bytes: the largest output and its envelope.
const EVENT_MAX: usize = 300 * 1024 * 1024;
/// Permission bits for others (`o`).
const OTHERS: u32 = 0o007;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the models with their current load
    List(Shape),
    Add(add::Add),
    Pull(Box<pull::Pull>),
    /// Check manifests and report every problem with its line and column
    Check {
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Run a model on one input and show the result
    Test {
        /// The slug of the model, as shown by `orrery model list`
        #[arg(value_name = "SLUG")]
        slug: String,
        /// The input as JSON; fields with a default in the model's schema are optional
        #[arg(long, value_name = "JSON", default_value = "{}")]
        input: String,
        #[command(flatten)]
        shape: Shape,
    },
}

pub(super) fn run(command: Command, file: Option<&Path>) -> anyhow::Result<ExitCode> {
    match command {
        Command::Check { files } => check(&files, of_service(file).ok().as_ref()),
        Command::List(shape) => {
            block_on(list(&Output::new(shape.json), &of_service(file)?))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Add(asked) => add::run(&asked, file),
        Command::Pull(asked) => {
            block_on(pull::run(*asked, file))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Test { slug, input, shape } => {
            let output = Output::new(shape.json);
            block_on(test(&slug, &input, &output, &of_service(file)?))
        }
    }
}

async fn list(output: &Output, config: &Config) -> anyhow::Result<()> {
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
    if !output.is_json() {
        show_local(&answer, output)?;
        show_endpoints(&answer, output)?;
        show_servers(&answer, output)?;
        show_workers(&answer, output)?;
        show_upstreams(&answer, output)?;
    }
    for model in answer.models.iter().filter(|_| !output.is_json()) {
        if let Some(reason) = &model.reason {
            let is = if model.health == "failing" { " is failing" } else { "" };
            output::note(&format!("{}{is}: {reason}", model.slug));
            continue;
        }
        for endpoint in &model.endpoints {
            if let Some(reason) = &endpoint.reason {
                output::note(&format!(
                    "{}: {} is out of rotation: {reason}",
                    model.slug, endpoint.name
                ));
            }
        }
    }
    Ok(())
}

/// Prints the local models with the properties of their files and the memory that they use.
fn show_local(answer: &Models, output: &Output) -> anyhow::Result<()> {
    let local = answer.models.iter().filter_map(|model| Some((model, model.local.as_ref()?)));
    let rows: Vec<Vec<String>> = local
        .map(|(model, local)| {
            vec![
                model.slug.clone(),
                size(local.file_bytes),
                local.quantization.clone().unwrap_or_default(),
                local.context.map(|tokens| tokens.to_string()).unwrap_or_default(),
                local.resident_bytes.map_or_else(|| "not loaded".to_owned(), size),
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let columns = [
        Column::Text("LOCAL MODEL"),
        Column::Number("FILE"),
        Column::Text("WEIGHTS"),
        Column::Number("CONTEXT"),
        Column::Number("MEMORY"),
    ];
    output::raw(b"\n")?;
    output.show(answer, &columns, rows)
}

/// Prints the endpoints of models that have several.
fn show_endpoints(answer: &Models, output: &Output) -> anyhow::Result<()> {
    let endpoints = answer
        .models
        .iter()
        .flat_map(|model| model.endpoints.iter().map(move |endpoint| (model, endpoint)));
    let rows: Vec<Vec<String>> = endpoints
        .map(|(model, endpoint)| {
            vec![
                model.slug.clone(),
                endpoint.name.clone(),
                endpoint.state.clone(),
                endpoint.in_flight.to_string(),
                endpoint.concurrency.map_or_else(String::new, |most| most.to_string()),
                endpoint.weight.to_string(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let columns = [
        Column::Text("MODEL"),
        Column::Text("SERVER"),
        Column::Text("STATE"),
        Column::Number("RUNNING"),
        Column::Number("LIMIT"),
        Column::Number("WEIGHT"),
    ];
    output::raw(b"\n")?;
    output.show(answer, &columns, rows)
}

/// Prints the servers that the service starts for models.
fn show_servers(answer: &Models, output: &Output) -> anyhow::Result<()> {
    let servers = answer.models.iter().filter_map(|model| Some((model, model.server.as_ref()?)));
    let rows: Vec<Vec<String>> = servers
        .map(|(model, server)| {
            vec![
                model.slug.clone(),
                server.state.clone(),
                server.since.to_string(),
                server.in_flight.to_string(),
                server.memory.map_or_else(String::new, size),
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let columns = [
        Column::Text("STARTED SERVER"),
        Column::Text("STATE"),
        Column::Text("SINCE"),
        Column::Number("RUNNING"),
        Column::Number("MEMORY"),
    ];
    output::raw(b"\n")?;
    output.show(answer, &columns, rows)
}

/// Prints the numbers of jobs and workers of each model whose runner is `pull`.
fn show_workers(answer: &Models, output: &Output) -> anyhow::Result<()> {
    let workers = answer.models.iter().filter_map(|model| Some((model, model.workers.as_ref()?)));
    let rows: Vec<Vec<String>> = workers
        .map(|(model, workers)| {
            vec![
                model.slug.clone(),
                workers.workers.to_string(),
                workers.leased.to_string(),
                (workers.waiting + model.queued).to_string(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let columns = [
        Column::Text("WORKER MODEL"),
        Column::Number("WORKERS"),
        Column::Number("RUNNING"),
        Column::Number("WAITING"),
    ];
    output::raw(b"\n")?;
    output.show(answer, &columns, rows)
}

/// Prints the upstreams of the chat router.
fn show_upstreams(answer: &Models, output: &Output) -> anyhow::Result<()> {
    if answer.upstreams.is_empty() {
        return Ok(());
    }
    let rows = answer.upstreams.iter().map(|upstream| {
        let keys = match upstream.resting_keys {
            0 => upstream.keys.to_string(),
            resting => format!("{} ({resting} rest)", upstream.keys),
        };
        vec![
            upstream.name.clone(),
            upstream.kind.clone(),
            upstream.url.clone(),
            upstream.state.clone(),
            keys,
            upstream.priority.to_string(),
            upstream.weight.to_string(),
            upstream.in_flight.to_string(),
            upstream.answered.to_string(),
            upstream.failed.to_string(),
            format!("{:.6}", upstream.spend),
        ]
    });
    let columns = [
        Column::Text("UPSTREAM"),
        Column::Text("KIND"),
        Column::Text("URL"),
        Column::Text("STATE"),
        Column::Text("KEYS"),
        Column::Number("PRIORITY"),
        Column::Number("WEIGHT"),
        Column::Number("RUNNING"),
        Column::Number("ANSWERED"),
        Column::Number("FAILED"),
        Column::Number("SPEND"),
    ];
    output::raw(b"\n")?;
    output.show(answer, &columns, rows)?;
    for upstream in &answer.upstreams {
        let name = &upstream.name;
        if let Some(reason) = &upstream.reason {
            output::note(&format!("the upstream {name} is out of rotation: {reason}"));
        }
        if let Some(error) = &upstream.list_error {
            output::note(&format!("the upstream {name} does not list its models: {error}"));
        }
    }
    Ok(())
}

fn size(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

/// Runs a model on one input. The output goes to standard output, all other text to standard error.
async fn test(
    slug: &str,
    input: &str,
    output: &Output,
    config: &Config,
) -> anyhow::Result<ExitCode> {
    let input: Value = content::parse(input.as_bytes()).context("--input cannot be used")?;
    let admin = service::admin(config).await?;
    let mut run = Run::new(!output.is_json() && output::on_a_terminal());
    let asked = json!({"slug": slug, "input": input});
    admin.post_stream("/admin/models/test", &asked, &mut run).await?;
    let has_shown = run.has_shown;
    let trial = run.outcome.context("the run was interrupted; see the service's log")?;
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
            // The text has already been streamed to the terminal.
            if has_shown {
                output::raw(b"\n")?
            } else {
                output::json(output)?
            }
            output::note(&format!("{slug} succeeded in {:.3} s", trial.seconds));
        }
    }
    Ok(code)
}

/// A run in progress. On a terminal, its text is printed as it arrives.
struct Run {
    reader: EventReader,
    shows: bool,
    has_shown: bool,
    outcome: Option<ModelTest>,
}

impl Run {
    fn new(shows: bool) -> Self {
        Self { reader: EventReader::new(EVENT_MAX), shows, has_shown: false, outcome: None }
    }
}

impl io::Write for Run {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.reader.push(bytes);
        while let Some(event) = self.reader.next_event().map_err(io::Error::other)? {
            let Some(data) = event.data else { continue };
            match serde_json::from_slice(&data)? {
                ModelTestEvent::Output(Value::String(text)) if self.shows => {
                    self.has_shown = true;
                    output::text(&text)?;
                }
                ModelTestEvent::Output(_) | ModelTestEvent::Log(_) => {}
                ModelTestEvent::End(outcome) => self.outcome = Some(outcome),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes the file readable for the users who may read its folder. If root runs the command for an
/// installed service, the file gets the folder's group.
fn give_to_service(file: &fs::File, folder: &Path) -> io::Result<()> {
    let place = fs::metadata(folder)?;
    if geteuid().is_root() {
        fchown(file, Some(place.uid()), Some(place.gid()))?;
    }
    let mode = if place.mode() & OTHERS == 0 { 0o640 } else { 0o644 };
    file.set_permissions(fs::Permissions::from_mode(mode))
}

/// Checks each file. The exit code is a failure if any file has an error. Without a configuration,
/// the models' groups are not checked.
fn check(files: &[PathBuf], config: Option<&Config>) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for file in files {
        match service::check_manifest(file, config) {
            Ok((slug, concern)) => {
                output::line(&format!("{}: {slug} is valid", file.display()))?;
                concern.iter().for_each(|concern| output::note(&format!("warning: {concern}")));
            }
            Err(faults) => {
                code = ExitCode::FAILURE;
                for fault in faults {
                    output::line(&fault)?;
                }
            }
        }
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use crate::parse::understood;

    #[test]
    fn cli_parses_sources_and_recipes() {
        let parsed =
            |line: &str| understood(format!("orrery model {line}").split(' ').map(Into::into));
        for line in [
            "pull hf:a/b",
            "pull hf:a/b:Q8_0 --into d --endpoint file:///mnt/hub --token-file t --json",
            "pull https://h/a.gguf",
            "add --json",
            "add ollama --slug a/b --url http://h:1/v1 --model m --force",
            "add comfyui --graph g.json",
        ] {
            assert!(parsed(line).is_ok(), "{line}");
        }
        for line in [
            "pull",
            "pull a/b",
            "pull hf:a/b --sha256 12",
            "add --slug a",
            "add ollama --url h:1",
            "add ollama --slug /",
        ] {
            assert_eq!(parsed(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
