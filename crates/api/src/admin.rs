//! The operator's routes on the control socket, for the command line, and the variants of these
//! routes for members. The routes need no API key, because only the owner of the data folder can
//! use the socket.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::stream;
use hyper::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;

use super::doc::{Doc, ResponseDoc};
use super::{Context, keys, limits, model_load};
use orrery_catalog::{self as catalog, Catalog};
use orrery_chat::UpstreamState;
use orrery_domain::account::{Organization, box_owner};
use orrery_domain::ids::KeyId;
use orrery_domain::key_policy::KeyPolicy;
use orrery_engine::{self as engine, Report};
use orrery_http::{Response, response, sse};
use orrery_records::accounts::{self, Accounts};
use orrery_runtime as runtime;
use orrery_wire::key_policy::KeyPolicyChange;
use orrery_wire::member::{ModelLoad, ModelLoads, UpstreamLoad};
use orrery_wire::operator::{
    Endpoint, Key, Keys, ListedKey, LocalModel, Model, ModelTest, ModelTestEvent, Models, NewKey,
    Organizations, Upstream,
};

/// Maximum number of test events that are buffered for the client.
const REPORTS_MAX: usize = 256;

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct KeyRequest {
    name: String,
    /// Whether to create an admin key, which belongs to no organization.
    #[serde(default)]
    admin: bool,
    organization: Option<String>,
    expires_in_seconds: Option<u64>,
    created_by: String,
    #[serde(flatten)]
    policy: KeyPolicyChange,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewOrganization {
    name: String,
}

pub(crate) const CREATE_KEY: Doc = Doc::new("admin", "admin_create_key", "Create an API key");

/// `POST /admin/keys`: the only response that ever contains a full key.
pub(crate) async fn create_key(mut context: Context) -> Result<Response, crate::Error> {
    let new: KeyRequest = context.request.json().await?;
    let accounts = &context.services.accounts.by(context.actor());
    if new.admin {
        if new.organization.is_some() {
            let message = "an admin key belongs to no organization";
            return Err(crate::Error::bad_request(message));
        }
        let span = new.expires_in_seconds.map(Duration::from_secs);
        let made = accounts.create_admin_key(&new.name, &new.created_by, span).await;
        let (key, full) = made?;
        let body = NewKey { described: Key::of_admin(&key), key: full };
        return Ok(response::json(StatusCode::CREATED, &body));
    }
    let organization = accounts.organization_or_default(new.organization.as_deref()).await?;
    let expires_at = accounts.expiry(new.expires_in_seconds.map(Duration::from_secs))?;
    let policy = new.policy.apply(KeyPolicy::default())?;
    let (owner, by) = (organization.id, new.created_by.as_str());
    let (key, full) = accounts.create_key_with(owner, &new.name, by, expires_at, policy).await?;
    let body = NewKey { described: Key::of(&key, &organization), key: full };
    Ok(response::json(StatusCode::CREATED, &body))
}

pub(crate) const LIST_KEYS: Doc = Doc::new("admin", "admin_list_keys", "List API keys");

/// `GET /admin/keys?organization=`: the keys of one organization, or the keys of all organizations
/// and the admin keys.
pub(crate) async fn list_keys(context: Context) -> Result<Response, crate::Error> {
    let accounts = &context.services.accounts;
    // Flush buffered uses first, so that the response includes them.
    accounts.write_uses().await?;
    let mut listed = Vec::new();
    for organization in context.named_organizations().await? {
        let of_one = accounts.keys(organization.id).await?;
        let uses = accounts.last_uses(organization.id, of_one.iter().map(|key| key.id)).await?;
        for (key, last_use) in of_one.iter().zip(uses) {
            let policy = keys::policy_of(&context.services, key).await?;
            listed.push(ListedKey::of(key, &organization, last_use, policy));
        }
    }
    if context.request.query.get("organization").is_none() {
        let of_box = accounts.keys(box_owner()).await?;
        let uses = accounts.last_uses(box_owner(), of_box.iter().map(|key| key.id)).await?;
        for (key, last_use) in of_box.iter().zip(uses) {
            listed.push(ListedKey::of_admin(key, last_use));
        }
    }
    Ok(response::json(StatusCode::OK, &Keys { keys: listed }))
}

pub(crate) const CHANGE_KEY: Doc = Doc::new("admin", "admin_update_key", "Update an API key");

/// `PUT /admin/keys/{id}`: omitted fields keep their value.
pub(crate) async fn change_key(mut context: Context) -> Result<Response, crate::Error> {
    let id = keys::id_in_path(&context)?;
    let change: KeyPolicyChange = context.request.json().await?;
    let accounts = context.services.accounts.by(context.actor());
    let owner = owner_of(&accounts, id).await?;
    let key = keys::change_policy(&accounts, owner.id, id, change).await?;
    let policy = keys::policy_of(&context.services, &key).await?;
    Ok(response::json(StatusCode::OK, &ListedKey::of(&key, &owner, None, policy)))
}

pub(crate) const ROTATE_KEY: Doc = Doc::new("admin", "admin_rotate_key", "Rotate an API key");

/// `POST /admin/keys/{id}/rotate`
pub(crate) async fn rotate_key(mut context: Context) -> Result<Response, crate::Error> {
    let id = keys::id_in_path(&context)?;
    let grace = keys::grace(&mut context).await?;
    let accounts = context.services.accounts.by(context.actor());
    let owner = owner_of(&accounts, id).await?;
    let (key, full) = accounts.rotate_key(owner.id, id, grace).await?;
    let body = NewKey { described: Key::of(&key, &owner), key: full };
    Ok(response::json(StatusCode::OK, &body))
}

/// Returns the organization of a key.
///
/// # Errors
/// 404 for an unknown key and for an admin key, which has no limits; 503 when the store cannot be
/// read.
async fn owner_of(accounts: &Accounts, id: KeyId) -> Result<Organization, crate::Error> {
    for organization in accounts.organizations().await? {
        if accounts.key(organization.id, id).await?.is_some() {
            return Ok(organization);
        }
    }
    Err(accounts::Error::NoKey.into())
}

pub(crate) const DELETE_KEY: Doc = Doc::new("admin", "admin_delete_key", "Delete an API key");

/// `DELETE /admin/keys/{id}`
pub(crate) async fn delete_key(context: Context) -> Result<Response, crate::Error> {
    let id = keys::id_in_path(&context)?;
    let accounts = &context.services.accounts.by(context.actor());
    let owners = accounts.organizations().await?.into_iter().map(|one| one.id);
    for owner in owners.chain([box_owner()]) {
        match accounts.delete_key(owner, id).await {
            Ok(()) => return Ok(response::empty(StatusCode::NO_CONTENT)),
            Err(accounts::Error::NoKey) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(accounts::Error::NoKey.into())
}

pub(crate) const CREATE_ORGANIZATION: Doc =
    Doc::new("admin", "admin_create_organization", "Create an organization");

/// `POST /admin/organizations`
pub(crate) async fn create_organization(mut context: Context) -> Result<Response, crate::Error> {
    let new: NewOrganization = context.request.json().await?;
    let accounts = &context.services.accounts.by(context.actor());
    let organization = accounts.create_organization(&new.name).await?;
    let organizations = context.services.accounts.organizations().await?.len();
    if let Some(warning) = context.services.egress.warning(organizations) {
        tracing::warn!("{warning}");
    }
    let described = limits::described(&context.services, &organization).await?;
    Ok(response::json(StatusCode::CREATED, &described))
}

pub(crate) const LIST_ORGANIZATIONS: Doc = Doc {
    responses: &[ResponseDoc::json::<Organizations>(200, "The organizations, oldest first")],
    description: "Returns all organizations with their limits, oldest first.",
    ..Doc::new("organizations", "admin_list_organizations", "List organizations")
};

/// `GET /admin/organizations`
pub(crate) async fn list_organizations(context: Context) -> Result<Response, crate::Error> {
    let mut organizations = Vec::new();
    for organization in context.services.accounts.organizations().await? {
        organizations.push(limits::described(&context.services, &organization).await?);
    }
    Ok(response::json(StatusCode::OK, &Organizations { organizations }))
}

pub(crate) const LIST_MODELS: Doc =
    Doc::new("admin", "admin_list_models", "List models with their load");

/// `GET /admin/models`
pub(crate) async fn list_models(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let models = services.catalog.list_for_people();
    let describe = |model: &std::sync::Arc<orrery_catalog::Model>| {
        let load = services.engine.load(model.slug.as_str());
        let endpoints = model.runner.endpoints().into_iter().map(|endpoint| Endpoint {
            state: endpoint.word().to_owned(),
            name: endpoint.name,
            reason: endpoint.reason,
            in_flight: endpoint.in_flight,
            weight: endpoint.weight,
            concurrency: endpoint.concurrency,
        });
        Model {
            slug: model.slug.to_string(),
            title: model.title.clone(),
            output_type: model.output_type.as_str().to_owned(),
            runner: model.runner_type.to_owned(),
            health: model.health_word().to_owned(),
            reason: model.complaint(),
            running: load.running,
            queued: load.queued,
            concurrency: model.concurrency,
            local: model.runner.local().map(|local| LocalModel {
                file_bytes: local.file_bytes,
                quantization: local.quantization.map(str::to_owned),
                context: local.context,
                resident_bytes: local.resident_bytes,
            }),
            endpoints: endpoints.collect(),
            server: model_load::of_model(model, services.clock.now()),
            workers: model_load::workers_of(model),
        }
    };
    let models = models.iter().map(describe).collect();
    let upstreams = services.chat.upstreams().await.into_iter().map(upstream).collect();
    Ok(response::json(StatusCode::OK, &Models { models, upstreams }))
}

fn upstream(state: UpstreamState) -> Upstream {
    Upstream {
        name: state.name,
        kind: state.kind.to_owned(),
        url: state.url,
        state: state.word.to_owned(),
        reason: state.reason,
        list_error: state.list.error,
        priority: state.priority,
        weight: state.weight,
        in_flight: state.in_flight,
        keys: state.keys,
        resting_keys: state.resting_keys,
        answered: state.answered,
        failed: state.failed,
        spend: state.spend.dollars(),
    }
}

pub(crate) const LIST_LOADS: Doc = Doc {
    responses: &[ResponseDoc::json::<ModelLoads>(
        200,
        "The models, with their running and queued executions, and the chat router's upstreams",
    )],
    description: "Returns the models with their health and the organization's running and queued \
                  calls of each, and the state of the chat router's upstreams.",
    ..Doc::new("models", "list_model_loads", "List models with their load")
};

pub(crate) const LIST_ALL_LOADS: Doc = Doc {
    id: "admin_list_models",
    description: "Returns the models with their health and the running and queued calls of all \
                  organizations, and the state and spend of the chat router's upstreams.",
    ..LIST_LOADS
};

/// `GET /models` of the dashboard, with the load of the member's organization; `GET
/// /admin/v1/models`, with the load of all organizations.
pub(crate) async fn list_loads(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let mut models = Vec::new();
    for model in services.catalog.list() {
        let load = match context.organization() {
            Ok(organization) => services.engine.share(organization, model.slug.as_str()).await?,
            Err(_all) => services.engine.load(model.slug.as_str()),
        };
        models.push(ModelLoad {
            slug: model.slug.to_string(),
            title: model.title.clone(),
            runner: model.runner_type.to_owned(),
            health: model.health_word().to_owned(),
            reason: model.complaint(),
            running: load.running,
            queued: load.queued,
            concurrency: model.concurrency,
            server: model_load::of_model(&model, services.clock.now()),
            workers: model_load::workers_of(&model),
        });
    }
    let unserved = services.catalog.list_unserved().into_iter().map(|(slug, unserved)| ModelLoad {
        slug: slug.to_string(),
        title: slug.to_string(),
        runner: "unknown".to_owned(),
        health: "failing".to_owned(),
        reason: Some(unserved.reason),
        running: 0,
        queued: 0,
        concurrency: 0,
        server: None,
        workers: None,
    });
    models.extend(unserved);
    let sees_all = context.organization().is_err();
    let load = |state: UpstreamState| UpstreamLoad {
        name: state.name,
        kind: state.kind,
        state: state.word,
        keys: state.keys,
        resting_keys: state.resting_keys,
        spend: sees_all.then(|| state.spend.dollars()),
    };
    let upstreams = services.chat.upstream_states().into_iter().map(load).collect();
    Ok(response::json(StatusCode::OK, &ModelLoads { models, upstreams }))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Trial {
    slug: String,
    #[serde(default)]
    input: serde_json::Map<String, Value>,
}

pub(crate) const TEST_MODEL: Doc =
    Doc::new("admin", "admin_test_model", "Run one input through a model");

/// `POST /admin/models/test`: runs one input through a model's runner, outside its queue. The run
/// is neither stored nor charged. The response is a stream of events: the progress of the run, then
/// its result. The response has status 200 even if the run fails. The run is stopped if the client
/// disconnects.
pub(crate) async fn test_model(mut context: Context) -> Result<Response, crate::Error> {
    let trial: Trial = context.request.json().await?;
    // Reload first, so that newly written manifests are included.
    let report = reread(&context).await?;
    if let Some(file) = broken_source(&context.services.catalog, &trial.slug, &report) {
        return Err(crate::Error::conflict(format!(
            "the manifest {0} is invalid; `orrery model check {0}` shows the problems",
            file.display()
        )));
    }
    let missing = || super::models::not_found(&context.services.catalog, &trial.slug);
    let model = context.services.catalog.get(&trial.slug).ok_or_else(missing)?;
    let input = model.check_input(Value::Object(trial.input)).await;
    let input = input.map_err(super::body::validation_error)?;
    let work = engine::Models::model(&context.services.catalog, &trial.slug);
    let work = work.ok_or_else(missing)?;
    let key = format!("{}:test:1", context.request.request_id);
    let (sender, reports) = mpsc::channel(REPORTS_MAX);
    let run = Box::pin(test(work, trial.slug, key, input, sender));
    let events = stream::unfold(Some((run, reports)), |running| async {
        let (mut run, mut reports) = running?;
        let outcome = tokio::select! {
            biased;
            Some(report) = reports.recv() => {
                let event = match report {
                    Report::Log(text) => ModelTestEvent::Log(text),
                    Report::Output(part) => ModelTestEvent::Output(part),
                };
                return Some((vec![as_event(&event)], Some((run, reports))));
            }
            outcome = &mut run => outcome,
        };
        Some((vec![as_event(&ModelTestEvent::End(outcome))], None))
    });
    Ok(sse::response(events))
}

fn as_event(event: &ModelTestEvent) -> sse::Event {
    // Strings and JSON values always serialize.
    let data = serde_json::to_string(event).unwrap_or_default();
    sse::Event { id: String::new(), name: "test", data }
}

async fn test(
    work: engine::ModelSpec,
    slug: String,
    key: String,
    input: Value,
    reports: mpsc::Sender<Report>,
) -> ModelTest {
    let started = runtime::monotonic_now();
    let (result, logs) = engine::dry_run(&work, &slug, key, input, reports).await;
    let seconds = started.elapsed().as_secs_f64();
    let stderr = work.runner.diagnostics();
    let mut body = ModelTest {
        status: "success".to_owned(),
        output: None,
        error: None,
        error_classification: None,
        logs,
        stderr,
        seconds,
    };
    match result {
        Ok(success) => {
            let output = engine::run::outcome::shape_output(success.output, work.output_type);
            body.output = Some(output);
        }
        Err(error) => {
            body.status = "error".to_owned();
            body.error = Some(error.failure.message);
            body.error_classification = Some(error.failure.class);
        }
    }
    body
}

/// Reloads the models folder and logs the changes.
async fn reread(context: &Context) -> Result<catalog::Report, crate::Error> {
    let services = &context.services;
    let report = services.catalog.reload_off_thread().await.map_err(crate::Error::internal)?;
    if let Some(changes) = report.changes() {
        services.engine.models_changed();
        let entry = services.audit.entry(&context.actor(), "models.reload", changes);
        services.audit.write(&entry).await?;
    }
    Ok(report)
}

/// Returns the invalid manifest of a model: the file from which the model was loaded, or a file
/// whose name matches the model.
fn broken_source(catalog: &Catalog, slug: &str, report: &catalog::Report) -> Option<PathBuf> {
    let source = catalog.source(slug);
    let is_unknown = catalog.get(slug).is_none();
    let stem = slug.rsplit('/').next().unwrap_or(slug);
    let mut broken = report.errors.iter().map(|error| &error.file);
    let is_it = |file: &&PathBuf| match &source {
        Some(source) => *file == source,
        None => is_unknown && file.file_stem().is_some_and(|name| name == stem),
    };
    broken.find(is_it).cloned()
}

pub(crate) const RELOAD: Doc =
    Doc::new("admin", "admin_reload", "Reload the configuration, manifests and certificates");

/// `POST /admin/reload`: reloads the configuration, manifests and certificates. Invalid files are
/// reported, and their last valid state stays in use.
pub(crate) async fn reload(context: Context) -> Result<Response, crate::Error> {
    let reloader = context.services.reloader.get().cloned();
    let starting = || {
        crate::Error::unavailable(
            "no service is running; the service reads all files when it starts",
        )
    };
    let body = reloader.ok_or_else(starting)?.reload(context.actor()).await;
    Ok(response::json(StatusCode::OK, &body))
}
