//! The operator's routes on the control socket: what the command line asks for. Every process that can open
//! the socket owns the data folder; no key is asked for.

use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::Context;
use super::doc::Doc;
use crate::domain::ids::KeyId;
use crate::engine;
use crate::http::{self, Response, response};
use crate::runtime;
use crate::wire::operator::{
    Key, Keys, ListedKey, Model, ModelTest, Models, NewKey, Organization, Organizations, Reloaded,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyRequest {
    name: String,
    organization: Option<String>,
    expires_in_seconds: Option<u64>,
    created_by: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewOrganization {
    name: String,
}

pub const CREATE_KEY: Doc = Doc::new("admin", "admin_create_key", "Create an API key");

/// `POST /admin/keys`: the only answer that ever holds a full key.
pub async fn create_key(mut context: Context) -> Result<Response, http::Error> {
    let new: KeyRequest = context.request.json().await?;
    let accounts = &context.services.accounts.by(context.actor());
    let organization = accounts.organization_or_default(new.organization.as_deref()).await?;
    let span = new.expires_in_seconds.map(Duration::from_secs);
    let (key, full) =
        accounts.create_key(organization.id, &new.name, &new.created_by, span).await?;
    let body = NewKey { described: Key::of(&key, &organization), key: full };
    Ok(response::json(StatusCode::CREATED, &body))
}

pub const LIST_KEYS: Doc = Doc::new("admin", "admin_list_keys", "List API keys");

/// `GET /admin/keys?organization=`: of one organization, or of all.
pub async fn list_keys(context: Context) -> Result<Response, http::Error> {
    let accounts = &context.services.accounts;
    // What was noted up to now is part of the answer.
    accounts.write_uses().await?;
    let mut keys = Vec::new();
    for organization in context.named_organizations().await? {
        let of_one = accounts.keys(organization.id).await?;
        let uses = accounts.last_uses(organization.id, of_one.iter().map(|key| key.id)).await?;
        for (key, last_use) in of_one.iter().zip(uses) {
            keys.push(ListedKey::of(key, &organization, last_use));
        }
    }
    Ok(response::json(StatusCode::OK, &Keys { keys }))
}

pub const DELETE_KEY: Doc = Doc::new("admin", "admin_delete_key", "Delete an API key");

/// `DELETE /admin/keys/{id}`
pub async fn delete_key(context: Context) -> Result<Response, http::Error> {
    let missing = || http::Error::not_found("there is no such key");
    let id: KeyId = context.request.param("id").parse().map_err(|_no_id| missing())?;
    let accounts = &context.services.accounts.by(context.actor());
    for organization in accounts.organizations().await? {
        match accounts.delete_key(organization.id, id).await {
            Ok(()) => return Ok(response::empty(StatusCode::NO_CONTENT)),
            Err(crate::accounts::Error::NoKey) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(missing())
}

pub const CREATE_ORGANIZATION: Doc =
    Doc::new("admin", "admin_create_organization", "Create an organization");

/// `POST /admin/organizations`
pub async fn create_organization(mut context: Context) -> Result<Response, http::Error> {
    let new: NewOrganization = context.request.json().await?;
    let accounts = &context.services.accounts.by(context.actor());
    let organization = accounts.create_organization(&new.name).await?;
    let organizations = context.services.accounts.organizations().await?.len();
    if let Some(warning) = context.services.egress.warning(organizations) {
        tracing::warn!("{warning}");
    }
    Ok(response::json(StatusCode::CREATED, &Organization::from(&organization)))
}

pub const LIST_ORGANIZATIONS: Doc =
    Doc::new("admin", "admin_list_organizations", "List organizations");

/// `GET /admin/organizations`
pub async fn list_organizations(context: Context) -> Result<Response, http::Error> {
    let organizations = context.services.accounts.organizations().await?;
    let organizations = organizations.iter().map(Organization::from).collect();
    Ok(response::json(StatusCode::OK, &Organizations { organizations }))
}

pub const LIST_MODELS: Doc = Doc::new("admin", "admin_list_models", "List models with their load");

/// `GET /admin/models`
pub async fn list_models(context: Context) -> Result<Response, http::Error> {
    let services = &context.services;
    let models = services.catalog.list();
    let describe = |model: &std::sync::Arc<crate::catalog::Model>| {
        let load = services.engine.load(model.slug.as_str());
        Model {
            slug: model.slug.to_string(),
            title: model.title.clone(),
            output_type: model.output_type.as_str().to_owned(),
            runner: model.runner_type.to_owned(),
            health: model.health_word().to_owned(),
            reason: model.failing(),
            running: load.running,
            queued: load.queued,
            concurrency: model.concurrency,
        }
    };
    let models = models.iter().map(describe).collect();
    Ok(response::json(StatusCode::OK, &Models { models }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trial {
    slug: String,
    #[serde(default)]
    input: serde_json::Map<String, Value>,
}

pub const TEST_MODEL: Doc = Doc::new("admin", "admin_test_model", "Run one input through a model");

/// `POST /admin/models/test`: runs one input through a model's runner, beside its queue. Nothing is
/// stored and nobody pays. A run that fails is a good answer.
pub async fn test_model(mut context: Context) -> Result<Response, http::Error> {
    let trial: Trial = context.request.json().await?;
    let model = context.services.catalog.get(&trial.slug).ok_or_else(super::models::not_found)?;
    let input = model.check_input(Value::Object(trial.input)).await;
    let input = input.map_err(super::body::validation_error)?;
    let work = engine::Models::model(&context.services.catalog, &trial.slug);
    let work = work.ok_or_else(super::models::not_found)?;
    let started = runtime::monotonic_now();
    let key = format!("{}:test:1", context.request.request_id);
    let (result, logs) = engine::dry_run(&work, &trial.slug, key, input).await;
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
    Ok(response::json(StatusCode::OK, &body))
}

pub const RELOAD: Doc = Doc::new("admin", "admin_reload", "Read the models folder again");

/// `POST /admin/reload`: reads the models folder again.
pub async fn reload(context: Context) -> Result<Response, http::Error> {
    let services = &context.services;
    let report = services.catalog.reload_off_thread().await.map_err(http::Error::internal)?;
    services.engine.models_changed();
    let changes = report.changes().unwrap_or_else(|| "no changes".to_owned());
    let (loaded, errors) = (report.loaded, report.errors.len());
    let subject = format!("{changes}; {loaded} models, {errors} errors");
    services.audit.write(&services.audit.entry(&context.actor(), "models.reload", subject)).await?;
    let kept = report.errors.iter().map(ToString::to_string).collect();
    let body = Reloaded { loaded: report.loaded, kept, removed: report.removed };
    Ok(response::json(StatusCode::OK, &body))
}
