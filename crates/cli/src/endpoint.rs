//! `orrery endpoint`: creates, lists, shows, changes, tests and deletes webhook endpoints.

use anyhow::bail;
use clap::Subcommand;
use serde_json::{Value, json};

use super::listing::{Kind, Owner, body_of};
use super::output::{self, Column, Output};
use super::{Shape, service};
use orrery_config::Config;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the webhook endpoints of an organization, oldest first
    List {
        #[command(flatten)]
        owner: Owner,
        #[command(flatten)]
        shape: Shape,
    },
    /// Show one endpoint, as JSON
    Show(Known),
    /// Send events of executions to a URL. The signing secret is shown only once
    Create(New),
    /// Send events to an endpoint again
    Enable(Known),
    /// Send no more events to an endpoint
    Disable(Known),
    /// Send a test event and show the receiver's response; exits with 1 if it was not delivered
    Test {
        #[command(flatten)]
        endpoint: Known,
        #[command(flatten)]
        shape: Shape,
    },
    /// Create a new signing secret, which is shown only once; the old one also signs for a day
    Rotate(Known),
    /// Delete an endpoint; its pending deliveries fail
    Delete(Known),
}

/// An existing endpoint.
#[derive(Debug, clap::Args)]
pub(super) struct Known {
    /// The id of the endpoint, or its name
    #[arg(value_name = "ID_OR_NAME")]
    endpoint: String,
    #[command(flatten)]
    owner: Owner,
}

/// A new endpoint.
#[derive(Debug, clap::Args)]
pub(super) struct New {
    /// The URL that receives the events
    #[arg(long, value_name = "URL")]
    url: String,
    /// A name for the endpoint, unique within the organization
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The events to send, comma-separated, such as prediction.failed,workflow.failed [default: all]
    #[arg(long, value_name = "EVENT", value_delimiter = ',')]
    events: Vec<String>,
    /// Only predictions of these models, comma-separated
    #[arg(long, value_name = "MODEL", value_delimiter = ',')]
    models: Vec<String>,
    /// Only executions of these workflows, by id, comma-separated
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    workflows: Vec<String>,
    /// Also send the secret itself, in X-Webhook-Secret, for receivers that verify no signature
    #[arg(long)]
    send_plain_secret: bool,
    #[command(flatten)]
    owner: Owner,
    #[command(flatten)]
    shape: Shape,
}

const ENDPOINTS: Kind = Kind {
    path: "/api/base/v1/webhook-endpoints",
    list: "webhook_endpoints",
    id: "id",
    name: "name",
    noun: "endpoint",
    command: "orrery endpoint list",
    page: 0,
    fields: &[
        (Column::Text("ID"), &["/id"]),
        (Column::Text("NAME"), &["/name"]),
        (Column::Text("URL"), &["/url"]),
        (Column::Text("EVENTS"), &["/events"]),
        (Column::Text("DISABLED"), &["/disabled"]),
        (Column::Text("FAILING SINCE"), &["/failing_since"]),
        (Column::Text("CREATED"), &["/created_at"]),
    ],
};

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    let admin = service::admin(config).await?;
    match command {
        Command::List { owner, shape } => {
            ENDPOINTS.show(ENDPOINTS.all(&owner.of(admin), usize::MAX).await?, shape)
        }
        Command::Show(Known { endpoint, owner }) => {
            output::json(&ENDPOINTS.find(&owner.of(admin), &endpoint).await?)
        }
        Command::Create(new) => {
            let list = |items: &[String]| (!items.is_empty()).then(|| json!(items));
            let body = body_of([
                ("url", Some(json!(new.url))),
                ("name", new.name.as_ref().map(|name| json!(name))),
                ("events", list(&new.events)),
                ("models", list(&new.models)),
                ("workflow_ids", list(&new.workflows)),
                ("send_plain_secret", new.send_plain_secret.then(|| json!(true))),
            ]);
            let made = new.owner.of(admin).post(ENDPOINTS.path, &body).await?;
            show_secret(&made, new.shape)
        }
        Command::Enable(known) => switch(&known.owner.of(admin), &known.endpoint, false).await,
        Command::Disable(known) => switch(&known.owner.of(admin), &known.endpoint, true).await,
        Command::Test { endpoint: Known { endpoint, owner }, shape } => {
            let admin = owner.of(admin);
            let path = ENDPOINTS.path_of(&admin, &endpoint).await?;
            show_test(&admin.post(&format!("{path}/test"), &json!({})).await?, shape)
        }
        Command::Rotate(Known { endpoint, owner }) => {
            let admin = owner.of(admin);
            let path = ENDPOINTS.path_of(&admin, &endpoint).await?;
            let changed = admin.post(&format!("{path}/rotate"), &json!({})).await?;
            show_secret(&changed, Shape { json: false })
        }
        Command::Delete(Known { endpoint, owner }) => {
            let admin = owner.of(admin);
            admin.delete(&ENDPOINTS.path_of(&admin, &endpoint).await?).await?;
            output::note(&format!("Endpoint {endpoint} is deleted."));
            Ok(())
        }
    }
}

async fn switch(admin: &super::admin::Admin, endpoint: &str, disabled: bool) -> anyhow::Result<()> {
    let path = ENDPOINTS.path_of(admin, endpoint).await?;
    admin.put(&path, &json!({"disabled": disabled})).await?;
    let state = if disabled { "disabled" } else { "enabled" };
    output::note(&format!("Endpoint {endpoint} is {state}."));
    Ok(())
}

/// Prints the new secret. The secret is the only text on standard output, so that a script can
/// capture it.
fn show_secret(endpoint: &Value, shape: Shape) -> anyhow::Result<()> {
    if shape.json {
        return output::json(endpoint);
    }
    let field = |name: &str| endpoint.get(name).and_then(Value::as_str);
    let (id, url) = (field("id").unwrap_or_default(), field("url").unwrap_or_default());
    output::note(&format!("Endpoint {id} ({url}). Its secret is shown only once:"));
    field("secret").map_or(Ok(()), output::line)
}

fn show_test(sent: &Value, shape: Shape) -> anyhow::Result<()> {
    let columns = ["STATUS", "CODE", "MILLISECONDS", "RESPONSE", "ERROR"].map(Column::Text);
    let cell = |name: &str| match sent.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let row = ["status", "status_code", "duration_ms", "response", "error_message"].map(cell);
    Output::new(shape.json).show(sent, &columns, [row.to_vec()])?;
    if cell("status") != "SUCCESS" {
        bail!("the test event was not delivered");
    }
    Ok(())
}
