//! The operator's routes for executions: list, show, cancel, and resume after a restore. The
//! control socket serves these routes. If the service is stopped, the command itself serves them on
//! the store.

use std::collections::HashMap;

use hyper::StatusCode;

use super::Context;
use super::doc::Doc;
use super::history::read_filter;
use orrery_domain::account::Organization;
use orrery_domain::execution::{Execution, Kind};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_engine as engine;
use orrery_engine::query::history::Filter;
use orrery_http::{Response, response};
use orrery_wire::operator::{Cancelled, Execution as Shown, Executions, Resumed};
use orrery_workflows as workflows;

const LIMIT_DEFAULT: u64 = 100;
const LIMIT_MAX: u64 = 1000;

pub(crate) const LIST: Doc =
    Doc::new("admin", "admin_list_executions", "List executions of all organizations");

/// `GET /admin/executions?organization=&unfinished=&limit=`: the latest executions, or all
/// unfinished executions. The latest executions can be filtered like the history, with `workflow`
/// (an ID or a slug) instead of `workflow_id`.
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let query = &context.request.query;
    let limit = usize::try_from(query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?)?;
    let is_unfinished = match query.get("unfinished") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(crate::Error::bad_request("unfinished must be true or false")),
    };
    let services = &context.services;
    let organizations = context.named_organizations().await?;
    let mut found = Vec::new();
    if is_unfinished {
        let of_one = query.get("organization").and_then(|_named| organizations.first());
        found = services.engine.unfinished(of_one.map(|one| one.id), limit).await?;
    } else {
        let filter = read_filter(&|name| query.get(name))?;
        for organization in &organizations {
            let Some(filter) = of_workflow(&context, organization.id, &filter).await? else {
                continue;
            };
            let page = services.engine.history(organization.id, &filter, None, limit).await?;
            found.extend(page.executions);
            found.sort_by_key(|execution| std::cmp::Reverse(execution.id));
            found.truncate(limit);
        }
    }
    let crashes = services.engine.crashes();
    let names: HashMap<OrganizationId, &Organization> =
        organizations.iter().map(|organization| (organization.id, organization)).collect();
    let executions = found
        .iter()
        .map(|one| {
            let name = names.get(&one.organization).map_or("", |one| one.name.as_str());
            let crashes = crashes.get(&one.id).copied().unwrap_or(0);
            describe(one, name, crashes, services.engine.waiting_for(one))
        })
        .collect();
    Ok(response::json(StatusCode::OK, &Executions { executions }))
}

/// Adds the workflow in the query to the filter; `None` if the organization has no such workflow.
async fn of_workflow(
    context: &Context,
    organization: OrganizationId,
    filter: &Filter,
) -> Result<Option<Filter>, crate::Error> {
    let Some(name) = context.request.query.get("workflow") else { return Ok(Some(filter.clone())) };
    match context.services.workflows.find_any(organization, name).await {
        Ok(workflow) => Ok(Some(Filter { workflow: Some(workflow.id), ..filter.clone() })),
        Err(workflows::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(crate) const GET: Doc = Doc::new("admin", "admin_get_execution", "Get an execution");

/// `GET /admin/executions/{execution}`: returns the execution as its organization sees it, for any
/// organization.
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let execution = find(&context).await?;
    let services = &context.services;
    let text = match execution.kind() {
        Kind::Prediction => super::predictions::detail(services, &execution).await?,
        Kind::Workflow => {
            let detail = services.engine.detail(execution.organization, execution.id).await;
            serde_json::to_string(&detail?.view).map_err(crate::Error::internal)?
        }
        Kind::Chat | Kind::Decision | Kind::Agent => {
            let one = std::slice::from_ref(&execution);
            let rows = super::history::rows(services, execution.organization, one).await?;
            serde_json::to_string(&rows.first()).map_err(crate::Error::internal)?
        }
    };
    Ok(response::json_text(StatusCode::OK, text.into()))
}

pub(crate) const CANCEL: Doc = Doc::new("admin", "admin_cancel_execution", "Cancel an execution");

/// `POST /admin/executions/{execution}/cancel`
pub(crate) async fn cancel(context: Context) -> Result<Response, crate::Error> {
    let execution = find(&context).await?;
    let services = &context.services;
    let organization = execution.organization;
    let id = execution.id;
    let entry = services.audit.entry(&context.actor(), "execution.cancel", id.to_string());
    let engine = services.engine.clone();
    let cancel = async move { engine.cancel(organization, id).await };
    let cancelled = services.audit.record(entry.of(organization), cancel).await?;
    let status = cancelled.status.word(cancelled.kind()).to_owned();
    let body = Cancelled { execution_id: cancelled.id, status };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const RESUME: Doc = Doc::new("admin", "admin_resume", "Resume restored work");

/// `POST /admin/resume`: resumes the work that a restore has paused.
pub(crate) async fn resume(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let entry = services.audit.entry(&context.actor(), "restore.resume", "all that was held back");
    let (engine, outbox) = (services.engine.clone(), services.outbox.clone());
    let resume = async move {
        let resumed = engine.resume().await;
        // Always rescan: an earlier request may have resumed work and then failed, or its client
        // may have disconnected.
        outbox.rescan();
        resumed
    };
    let engine::Resumed { executions, deliveries } = services.audit.record(entry, resume).await?;
    tracing::warn!(executions, deliveries, "restored work resumed");
    let body = Resumed { executions, deliveries };
    Ok(response::json(StatusCode::OK, &body))
}

/// Returns the execution in the path, regardless of its organization.
async fn find(context: &Context) -> Result<Execution, crate::Error> {
    let missing = || crate::Error::not_found("execution not found");
    let id: ExecutionId = context.request.param("execution").parse().map_err(|_no_id| missing())?;
    for organization in context.services.accounts.organizations().await? {
        match context.services.engine.get(organization.id, id).await {
            Err(engine::Error::NotFound) => {}
            found => return Ok(found?),
        }
    }
    Err(missing())
}

fn describe(
    execution: &Execution,
    organization: &str,
    crashes: u32,
    waiting_for: Option<String>,
) -> Shown {
    let lane = execution.lane();
    let subject = match execution.kind() {
        Kind::Prediction | Kind::Workflow => None,
        Kind::Chat | Kind::Decision | Kind::Agent => {
            execution.models().map(|(_, requested)| requested)
        }
    };
    let subject =
        subject.unwrap_or_else(|| lane.split_once(':').map_or(&*lane, |(_, subject)| subject));
    Shown {
        id: execution.id,
        organization: organization.to_owned(),
        kind: execution.kind().as_str().to_owned(),
        subject: subject.to_owned(),
        status: execution.status.word(execution.kind()).to_owned(),
        crashes,
        waiting_for,
        created_at: execution.created_at.into(),
    }
}
