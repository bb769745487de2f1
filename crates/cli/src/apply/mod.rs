//! `orrery apply`: applies a declarative file of organizations and their resources, for version
//! control.
//!
//! The command reads the current state from the service, prints the differences, and sends only the
//! differences, so a second run changes nothing. Resources that are not in the file are left
//! unchanged. The file contains the source of each secret, never its value, and no value is
//! printed.

mod document;
mod resources;

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use self::document::{Document, Wanted};
use super::admin::{Admin, segment};
use super::diff::Texts;
use super::key::understood;
use super::{diff, file, output, service};
use orrery_config::Config;
use orrery_wire::operator::{NewKey, Organizations};

#[derive(Debug, clap::Args)]
pub(super) struct Apply {
    /// The file: YAML, JSON or TOML
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: PathBuf,
    /// Only print the plan
    #[arg(long)]
    dry_run: bool,
}

/// A difference, and the request that applies it.
#[derive(Debug)]
struct Step {
    organization: String,
    /// A description such as `create webhook endpoint orders`.
    line: String,
    texts: Texts,
    act: Act,
}

#[derive(Debug)]
enum Act {
    Organization,
    /// Creates an API key. Only the response contains the full key.
    Key(Value),
    Put {
        path: String,
        body: Value,
    },
    /// Creates a resource. If the response contains a secret, the secret is printed.
    Post {
        path: String,
        body: Value,
    },
    Workflow(Box<super::workflow::Step>),
    /// Creates a schedule for a workflow. The workflow is looked up by slug when this step runs.
    ScheduleOfWorkflow {
        workflow: String,
        body: Value,
    },
}

pub(super) async fn run(asked: Apply, config: &Config) -> anyhow::Result<()> {
    let document = Document::read(&asked.file)?;
    let mut admin = service::admin(config).await?;
    let listed: Organizations = understood(admin.get("/admin/organizations").await?)?;
    let mut steps = Vec::new();
    for (name, wanted) in &document.organizations {
        let exists = listed.organizations.iter().any(|one| one.name == *name);
        admin.act_for(name);
        let planned = plan(&admin, name, wanted, exists).await;
        steps.extend(planned.with_context(|| format!("organization {name}"))?);
    }
    let in_colour = output::in_colour(&std::io::stdout());
    for step in &steps {
        output::line(&format!("{}: {}", step.organization, step.line))?;
        let Texts { before, after } = &step.texts;
        let text = diff::unified("service", before, "file", after, in_colour);
        // The line printed above already names the resource.
        let body = text.lines().skip(2).map(|line| format!("  {line}\n"));
        output::raw(body.collect::<String>().as_bytes())?;
    }
    if steps.is_empty() {
        output::note("Nothing to do: the service matches the file.");
        return Ok(());
    }
    if asked.dry_run {
        output::note("Nothing was changed: this is a dry run.");
        return Ok(());
    }
    for step in &steps {
        admin.act_for(&step.organization);
        let what = || format!("{}: {}", step.organization, step.line);
        step.carry_out(&admin).await.with_context(what)?;
    }
    output::note(&format!("Done: {} changed.", steps.len()));
    Ok(())
}

/// Plans the steps for one organization, in dependency order.
async fn plan(
    admin: &Admin,
    name: &str,
    wanted: &Wanted,
    exists: bool,
) -> anyhow::Result<Vec<Step>> {
    let mut planner = resources::Planner::new(admin, name, exists);
    if !exists {
        planner.add("create organization".to_owned(), Texts::default(), Act::Organization);
    }
    if let Some(limits) = &wanted.limits {
        planner.limits(limits).await?;
    }
    planner.secrets(&wanted.secrets).await?;
    planner.workflows(&wanted.workflows).await?;
    planner.chains(&wanted.chains).await?;
    planner.webhook_endpoints(&wanted.webhook_endpoints).await?;
    planner.schedules(&wanted.schedules).await?;
    planner.keys(&wanted.keys).await?;
    Ok(planner.steps)
}

/// Prints a new secret and the resource to which it belongs.
fn print_once(subject: &str, secret: &str) -> anyhow::Result<()> {
    output::note("This is shown only once:");
    output::raw(format!("{subject}: {secret}\n").as_bytes())
}

impl Step {
    async fn carry_out(&self, admin: &Admin) -> anyhow::Result<()> {
        match &self.act {
            Act::Organization => {
                let body = json!({"name": self.organization});
                admin.post("/admin/organizations", &body).await.map(drop)
            }
            Act::Key(body) => {
                let made: NewKey = understood(admin.post("/admin/keys", body).await?)?;
                let key = &made.described;
                let subject = format!("key {} of organization {}", key.name, key.organization);
                print_once(&subject, &made.key)
            }
            Act::Put { path, body } => admin.put(path, body).await.map(drop),
            Act::Post { path, body } => {
                let made = admin.post(path, body).await?;
                if let Some(secret) = made.get("secret").and_then(Value::as_str) {
                    print_once(self.subject(), secret)?;
                }
                Ok(())
            }
            Act::Workflow(step) => step.apply(admin).await.map(drop),
            Act::ScheduleOfWorkflow { workflow, body } => {
                let path =
                    format!("/api/workflows/api/v1/workflows/{}/schedules", segment(workflow));
                admin.post(&path, body).await.map(drop)
            }
        }
    }

    /// Returns the description without its verb.
    fn subject(&self) -> &str {
        self.line.split_once(' ').map_or(&self.line, |(_verb, subject)| subject)
    }
}

/// Returns fields as YAML, for a diff.
fn text_of(fields: &Map<String, Value>) -> anyhow::Result<String> {
    if fields.is_empty() {
        return Ok(String::new());
    }
    file::to_yaml(&Value::Object(fields.clone()))
}
