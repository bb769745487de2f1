//! Workflows and their versions: create, read, update, delete (`docs/spec/workflows.md`,
//! "Workflow"). The workflows host and the equivalent routes on the base host share the handlers.

use hyper::StatusCode;
use hyper::header::{ETAG, HeaderValue, IF_MATCH};

use super::body::distinct;
use super::doc::{Doc, Kind, OFFSET, Param, RequestDoc, ResponseDoc};
use super::idempotency_key::{self, Creation};
use super::{Context, Role};
use orrery_domain::definition::Problem;
use orrery_domain::ids::{RevisionId, WorkflowId};
use orrery_domain::workflow::{Status, TAG_MAX, VERSIONS_MAX, Workflow, slug_of};
use orrery_engine::query::lists::Query;
use orrery_http::request::parse;
use orrery_http::{Response, response};
use orrery_records::idempotency::StoredResponse;
use orrery_runtime::new_id;
use orrery_wire as wire;
use orrery_wire::workflow::{
    Categories, Check, FieldError, LastRun, LastRuns, List, NewCheck, NewVersion, NewVersionFields,
    NewVersionOnBase, NewWorkflow, NewWorkflowFields, NewWorkflowOnBase, Versions, WorkflowChange,
};
use orrery_workflows::{CATEGORIES, Category, Change, Filter, New, Put, SortKey, Triggers};

const LIMIT_DEFAULT: u64 = 50;
const LIMIT_MAX: u64 = 100;
/// Maximum number of workflows for which one response contains the latest execution. This number
/// equals the maximum page size of the list.
const LAST_RUNS_MAX: usize = 100;

const NO_WORKFLOW: ResponseDoc = ResponseDoc::error(404, "Workflow not found");
const NO_VERSION: ResponseDoc = ResponseDoc::error(404, "Workflow or version not found");
const SHOWN: ResponseDoc =
    ResponseDoc::json::<wire::workflow::Workflow<'static>>(200, "The workflow");
const SHOWN_VERSION: ResponseDoc = ResponseDoc {
    headers: &[("ETag", "The revision, for use in `If-Match`")],
    ..ResponseDoc::json::<wire::workflow::Version<'static>>(200, "The version with its definition")
};

pub(crate) const CREATE: Doc = Doc {
    request: Some(RequestDoc::json::<NewWorkflow>()),
    is_idempotent: true,
    responses: &[
        ResponseDoc::json::<wire::workflow::Workflow<'static>>(
            201,
            "The workflow with one version",
        ),
        ResponseDoc::error(
            409,
            "There are too many workflows, or a request with this Idempotency-Key is still in \
             progress",
        ),
    ],
    description: "Creates a workflow with one version. The definition is compiled when it is \
                  stored: an unknown step type or model, a reference to an unknown input or a \
                  later step, or a cycle returns 400 with the step in the message. The slug is \
                  derived from the name; if the name is taken, the slug gets a number and the \
                  response a warning. Send an `Idempotency-Key` to retry safely.",
    ..Doc::new("workflows", "create_workflow", "Create a workflow")
};

pub(crate) const CREATE_ON_BASE: Doc =
    Doc { request: Some(RequestDoc::json::<NewWorkflowOnBase>()), ..CREATE };

pub(crate) const CREATE_ALIAS: Doc = Doc {
    id: "create_workflow_alias",
    summary: "Create a workflow, like `POST /v1/workflows`",
    description: "The same as `POST /v1/workflows`, under an earlier path.",
    ..CREATE_ON_BASE
};

/// `POST /workflows`
pub(crate) async fn create(mut context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let bytes = context.request.body().await?;
    let claim = match idempotency_key::begin(&context, organization, "workflows", &bytes).await? {
        Creation::New(claim) => claim,
        Creation::Replay(answered) => {
            let workflows = &context.services.workflows;
            let workflow = workflows.find_any(organization, &answered.subject).await?;
            warn_of_taken_name(&context, &workflow).await;
            return created(&workflow);
        }
    };
    let new = read_new(&bytes, context.role)?;
    let services = &context.services;
    let id: WorkflowId = new_id();
    let commit = claim.commit(StoredResponse::created(id))?;
    let workflow =
        services.workflows.by(context.actor()).create(organization, id, new, commit).await?;
    warn_of_taken_name(&context, &workflow).await;
    created(&workflow)
}

/// Adds a warning if the name was taken, so that the slug got a number. A repeated creation never
/// changes an existing workflow.
pub(crate) async fn warn_of_taken_name(context: &Context, workflow: &Workflow) {
    let plain = slug_of(&workflow.name);
    if workflow.slug == plain {
        return;
    }
    let found = context.services.workflows.find(workflow.organization, &plain).await;
    let Ok(first) = found else { return };
    let change = match context.role == Role::Flows {
        true => format!("POST /api/v1/{plain}"),
        false => {
            format!("PUT workflows/{plain}/versions/v{}", first.versions.len().saturating_add(1))
        }
    };
    let slug = &workflow.slug;
    context.request.warn(format!(
        "the slug {plain} is taken, so this workflow has the slug {slug}; {change} changes the \
         existing workflow"
    ));
}

fn created(workflow: &Workflow) -> Result<Response, crate::Error> {
    let triggers = Triggers { total: 0, versions: vec![0; workflow.versions.len()] };
    let mut view = view(workflow, &triggers);
    for version in &mut view.versions {
        (version.created_at, version.updated_at) = (None, None);
    }
    Ok(response::json(StatusCode::CREATED, &view))
}

fn read_new(bytes: &[u8], role: Role) -> Result<New, crate::Error> {
    // On the base host, the description is optional, because existing clients omit it.
    let (name, description, fields) = if role == Role::Base {
        let NewWorkflowOnBase { name, description, fields } = parse(bytes)?;
        (name, description.unwrap_or_default(), fields)
    } else {
        let NewWorkflow { name, description, fields } = parse(bytes)?;
        (name, description, fields)
    };
    let NewWorkflowFields { categories, tags, locked, production, definition } = fields;
    Ok(New {
        name,
        description,
        categories: categories.map(known_categories).transpose()?.unwrap_or_default(),
        tags: tags.map(distinct).unwrap_or_default(),
        locked: locked.unwrap_or(false),
        production: production.unwrap_or(false),
        definition: Some(definition),
    })
}

fn known_categories(slugs: Vec<String>) -> Result<Vec<String>, crate::Error> {
    let slugs = distinct(slugs);
    if let Some(unknown) = slugs.iter().find(|slug| !Category::exists(slug)) {
        let known = CATEGORIES.map(|category| category.slug).join(", ");
        let shown: String = unknown.chars().take(TAG_MAX).collect();
        let message = format!("unknown category '{shown}': there are {known}");
        return Err(crate::Error::bad_request(message));
    }
    Ok(slugs)
}

fn statuses() -> Vec<&'static str> {
    Status::ALL.map(Status::as_str).to_vec()
}

fn sort_keys() -> Vec<&'static str> {
    SortKey::ALL.map(SortKey::as_str).to_vec()
}

fn directions() -> Vec<&'static str> {
    vec!["asc", "desc"]
}

pub(crate) const LIST: Doc = Doc {
    query: &[
        Param::limit(LIMIT_MAX, LIMIT_DEFAULT),
        OFFSET,
        Param::new("category", Kind::Text, "Only workflows in the category with this slug"),
        Param::new(
            "tag",
            Kind::Texts,
            "Only workflows with this tag; if repeated, with any of the tags",
        ),
        Param::new(
            "keyword",
            Kind::Text,
            "Only workflows whose name, slug or description contains this text",
        ),
        Param::new(
            "status",
            Kind::OneOf(statuses),
            "Only workflows with this status. Deleted workflows are only listed if requested",
        ),
        Param::new(
            "sort_key",
            Kind::OneOf(sort_keys),
            "The field to sort by. Defaults to `created_at`",
        ),
        Param::new("sort_direction", Kind::OneOf(directions), "The sort order. Defaults to `desc`"),
    ],
    responses: &[ResponseDoc::json::<List<'static>>(200, "The workflows")],
    description: "Returns a page of the organization's workflows. All filters must match, except \
                  that a workflow needs only one of several `tag` values. Deleted workflows are \
                  listed only with `status=deleted`. `offset` in the response is the offset of the \
                  next page.",
    ..Doc::new("workflows", "list_workflows", "List workflows")
};

/// `GET /workflows?limit=&offset=&category=&tag=&keyword=&status=&sort_key=&sort_direction=`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let filter = read_filter(&context)?;
    let workflows = &context.services.workflows;
    let (found, total) = workflows.list(organization, &filter).await?;
    let mut views = Vec::with_capacity(found.len());
    for workflow in &found {
        views.push(view(workflow, &workflows.triggers(workflow).await?));
    }
    let offset = filter.offset + views.len();
    let body = List { workflows: views, offset, total_count: total };
    Ok(response::json(StatusCode::OK, &body))
}

fn read_filter(context: &Context) -> Result<Filter, crate::Error> {
    let query = &context.request.query;
    let text = |name: &str| query.get(name).filter(|text| !text.is_empty()).map(str::to_owned);
    let one_of = |name: &str, known: &[&str]| {
        crate::Error::bad_request(format!("{name} must be one of {}", known.join(", ")))
    };
    let status = match query.get("status") {
        None => None,
        Some(name) => Some(
            Status::named(name)
                .ok_or_else(|| one_of("status", &Status::ALL.map(Status::as_str)))?,
        ),
    };
    let sort_key = match query.get("sort_key") {
        None => SortKey::CreatedAt,
        Some(name) => SortKey::ALL
            .into_iter()
            .find(|key| key.as_str() == name)
            .ok_or_else(|| one_of("sort_key", &SortKey::ALL.map(SortKey::as_str)))?,
    };
    let ascending = match query.get("sort_direction") {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(_) => return Err(one_of("sort_direction", &["asc", "desc"])),
    };
    Ok(Filter {
        category: text("category"),
        tags: query.all("tag").filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
        keyword: text("keyword"),
        status,
        sort_key,
        ascending,
        offset: usize::try_from(query.number("offset", 0..=u64::from(u32::MAX), 0)?)?,
        limit: usize::try_from(query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?)?,
    })
}

pub(crate) const GET: Doc = Doc {
    responses: &[SHOWN, NO_WORKFLOW],
    description: "Returns the workflow with the summaries of its versions, oldest first. A \
                  definition is read with `GET …/versions/{version}`. An unknown or deleted \
                  workflow returns 404.",
    ..Doc::new("workflows", "get_workflow", "Get a workflow with its versions")
};

/// `GET /workflows/{workflow}`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let workflows = &context.services.workflows;
    let workflow = workflows.find(organization, context.request.param("workflow")).await?;
    answer(&context, &workflow).await
}

async fn answer(context: &Context, workflow: &Workflow) -> Result<Response, crate::Error> {
    let triggers = context.services.workflows.triggers(workflow).await?;
    Ok(response::json(StatusCode::OK, &view(workflow, &triggers)))
}

pub(crate) const UPDATE: Doc = Doc {
    request: Some(RequestDoc::optional_json::<WorkflowChange>()),
    responses: &[
        SHOWN,
        ResponseDoc::error(403, "The workflow is locked"),
        NO_WORKFLOW,
        ResponseDoc::error(409, "The workflow was changed concurrently"),
    ],
    description: "Changes the given fields of a workflow; omitted fields keep their values. The \
                  definition is changed with `PUT …/versions/{version}`. A locked workflow accepts \
                  only `locked: false` and otherwise returns 403. A concurrent change returns 409: \
                  read the workflow and try again.",
    ..Doc::new("workflows", "update_workflow", "Update a workflow")
};

/// `PUT /workflows/{workflow}`
pub(crate) async fn update(mut context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let change: WorkflowChange = context.request.json().await?;
    let change = Change {
        name: change.name,
        description: change.description,
        categories: change.categories.map(known_categories).transpose()?,
        tags: change.tags.map(distinct),
        locked: change.locked,
        production: change.production,
        status: change.status,
    };
    let reference = context.request.param("workflow");
    let changed = context
        .services
        .workflows
        .by(context.actor())
        .update(organization, reference, change)
        .await?;
    answer(&context, &changed).await
}

pub(crate) const DELETE: Doc = Doc {
    query: &[Param::new(
        "keep_running",
        Kind::OneOf(flags),
        "Whether unfinished executions continue. By default, they are cancelled",
    )],
    responses: &[
        ResponseDoc::empty(204, "The workflow is deleted"),
        ResponseDoc::error(403, "The workflow is locked"),
        NO_WORKFLOW,
        ResponseDoc::error(409, "The workflow was changed concurrently"),
    ],
    description: "Deletes the workflow and, unless `keep_running=true`, cancels its unfinished \
                  executions before the response is sent. The workflow's past executions remain \
                  readable; every other route returns 404 afterwards. A locked workflow returns \
                  403. If no response arrives, repeat the request.",
    ..Doc::new("workflows", "delete_workflow", "Delete a workflow")
};

fn flags() -> Vec<&'static str> {
    vec!["true", "false"]
}

/// `DELETE /workflows/{workflow}?keep_running=`: cancels the workflow's unfinished executions
/// before the deletion, and again after it. After a successful response, the workflow has no
/// unfinished executions. A client that receives no response should repeat the request.
pub(crate) async fn delete(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let change = Change { status: Some(Status::Deleted), ..Change::default() };
    let reference = context.request.param("workflow");
    let keeps_running = match context.request.query.get("keep_running") {
        None | Some("" | "false") => false,
        Some("true") => true,
        Some(_) => return Err(crate::Error::bad_request("keep_running must be true or false")),
    };
    let services = &context.services;
    let workflow = services.workflows.find(organization, reference).await?;
    if workflow.locked {
        return Err(orrery_workflows::Error::Locked.into());
    }
    if !keeps_running {
        services.engine.cancel_all_of(organization, workflow.id).await?;
    }
    services.workflows.by(context.actor()).update(organization, reference, change).await?;
    if !keeps_running {
        services.engine.cancel_all_of(organization, workflow.id).await?;
    }
    Ok(response::empty(StatusCode::NO_CONTENT))
}

pub(crate) const PUT_VERSION: Doc = Doc {
    request: Some(RequestDoc::json::<NewVersion>()),
    responses: &[
        SHOWN_VERSION,
        ResponseDoc::error(403, "The version or the workflow is locked"),
        NO_WORKFLOW,
        ResponseDoc::error(409, "The workflow was changed concurrently"),
        ResponseDoc::error(412, "The version was changed since the revision in `If-Match`"),
    ],
    takes_if_match: true,
    description: "Creates or replaces the version and makes it the latest. The definition is \
                  checked in the same way as when a workflow is created. With `If-Match`, the \
                  change is made only if nobody has changed the version since (for a new version: \
                  the latest version); otherwise the response is 412. A locked version or workflow \
                  returns 403.",
    ..Doc::new("workflows", "put_version", "Create or update a version and make it the latest")
};

pub(crate) const PUT_VERSION_ON_BASE: Doc =
    Doc { request: Some(RequestDoc::json::<NewVersionOnBase>()), ..PUT_VERSION };

/// `PUT /workflows/{workflow}/versions/{version}`
pub(crate) async fn put_version(mut context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let version_id = context.request.param("version").to_owned();
    // The lock is checked before the body is parsed, so that a change to a locked version returns
    // 403 even if the body is invalid.
    let reference = context.request.param("workflow");
    let before = context.services.workflows.find(organization, reference).await?;
    if before.version(&version_id).is_some_and(|version| version.locked) {
        return Err(orrery_workflows::Error::VersionLocked.into());
    }
    let (named, fields) = if context.role == Role::Base {
        let NewVersionOnBase { version_id, fields } = context.request.json().await?;
        (version_id, fields)
    } else {
        let NewVersion { version_id, fields } = context.request.json().await?;
        (Some(version_id), fields)
    };
    if named.is_some_and(|named| named != version_id) {
        let message = "version_id must be the one in the path";
        return Err(crate::Error::bad_request(message));
    }
    let NewVersionFields { definition, locked, production, allowed_to_share } = fields;
    let put = Put {
        definition: Some(definition),
        locked: locked.unwrap_or(false),
        production: production.unwrap_or(false),
        allowed_to_share,
        name: None,
        description: None,
        replaces: if_match(&context)?,
    };
    let reference = context.request.param("workflow");
    let workflows = context.services.workflows.by(context.actor());
    let changed = workflows.put_version(organization, reference, &version_id, put).await?;
    answer_version(&context, &changed, &version_id).await
}

pub(crate) const GET_VERSION: Doc = Doc {
    responses: &[SHOWN_VERSION, NO_VERSION],
    description: "Returns the version with its definition, in which stored credentials are masked. \
                  The `ETag` identifies the revision; send it in `If-Match` with the next change.",
    ..Doc::new("workflows", "get_version", "Get a version with its definition")
};

/// `GET /workflows/{workflow}/versions/{version}`
pub(crate) async fn get_version(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let reference = context.request.param("workflow");
    let workflow = context.services.workflows.find(organization, reference).await?;
    answer_version(&context, &workflow, context.request.param("version")).await
}

async fn answer_version(
    context: &Context,
    workflow: &Workflow,
    id: &str,
) -> Result<Response, crate::Error> {
    let workflows = &context.services.workflows;
    let version = workflow.version(id).ok_or(orrery_workflows::Error::NoVersion)?;
    let triggers = workflows.triggers(workflow).await?;
    let counts = workflow.versions.iter().zip(&triggers.versions);
    let count = counts.into_iter().find(|(held, _)| held.id == id).map_or(0, |(_, count)| *count);
    let mut view = wire::workflow::Version::of(workflow, version, count);
    view.definition = Some(workflows.definition(version.revision).await?);
    let mut answer = response::json(StatusCode::OK, &view);
    if let Ok(tag) = HeaderValue::try_from(format!("\"{}\"", version.revision)) {
        answer.headers_mut().insert(ETAG, tag);
    }
    Ok(answer)
}

/// Returns the revisions in `If-Match` (RFC 9110, section 13.1.1: strong comparison).
fn if_match(context: &Context) -> Result<Option<Vec<RevisionId>>, crate::Error> {
    let Some(header) = context.request.headers.get(IF_MATCH) else { return Ok(None) };
    let refused = || crate::Error::bad_request("If-Match must be the ETag of a version");
    let text = header.to_str().map_err(|_no_text| refused())?;
    let tag = |one: &str| one.trim().strip_prefix('"')?.strip_suffix('"').map(str::to_owned);
    let tags: Option<Vec<String>> = text.split(',').take(VERSIONS_MAX).map(tag).collect();
    // Tags in other formats match no revision.
    Ok(Some(tags.ok_or_else(refused)?.iter().filter_map(|tag| tag.parse().ok()).collect()))
}

pub(crate) const CHECK: Doc = Doc {
    request: Some(RequestDoc::optional_json::<NewCheck>()),
    responses: &[ResponseDoc::json::<Check>(200, "The problems of the definition"), NO_WORKFLOW],
    description: "Checks a definition in the same way as when a workflow is created, and returns \
                  every problem with its path. Stores nothing, and returns 200 for an invalid \
                  definition as well: read `valid`. `workflow` names the workflow whose stored \
                  credentials the definition's `***` refer to.",
    ..Doc::new("workflows", "check_definition", "Check a definition without storing it")
};

/// `POST /workflows/check` of the dashboard.
pub(crate) async fn check(mut context: Context) -> Result<Response, crate::Error> {
    let organization = context.organization()?;
    let NewCheck { definition, workflow } = context.request.json().await?;
    let workflows = &context.services.workflows;
    let checked = workflows.try_definition(organization, workflow.as_deref(), definition).await;
    let problems = match checked {
        Ok(()) => Vec::new(),
        Err(orrery_workflows::Error::Invalid { message, problems }) if problems.is_empty() => {
            vec![FieldError { path: String::new(), message }]
        }
        Err(orrery_workflows::Error::Invalid { problems, .. }) => {
            let shown = |one: Problem| FieldError { path: one.path, message: one.message };
            problems.into_iter().map(shown).collect()
        }
        Err(other) => return Err(other.into()),
    };
    Ok(response::json(StatusCode::OK, &Check { valid: problems.is_empty(), problems }))
}

pub(crate) const LAST_RUNS: Doc = Doc {
    query: &[Param::new(
        "workflows",
        Kind::Text,
        "A comma-separated list of up to 100 workflow IDs",
    )],
    responses: &[ResponseDoc::json::<LastRuns>(
        200,
        "The latest execution of each workflow that has one",
    )],
    description: "Returns the newest execution of each workflow in `workflows`, with its cost and \
                  the number of executions. Workflows that have never run are absent.",
    ..Doc::new("workflows", "last_runs", "Get the latest execution of each workflow")
};

/// `GET /workflows/runs?workflows=` of the dashboard.
pub(crate) async fn last_runs(context: Context) -> Result<Response, crate::Error> {
    let organization = context.organization()?;
    let named = context.request.query.get("workflows").unwrap_or_default();
    let ids: Vec<WorkflowId> =
        named.split(',').filter_map(|id| id.parse().ok()).take(LAST_RUNS_MAX).collect();
    let newest = Query { bulk: None, standing: None, offset: 0, limit: 1 };
    let mut runs = Vec::with_capacity(ids.len());
    for id in ids {
        let (found, total) =
            context.services.engine.executions_of(organization, id, newest).await?;
        runs.extend(found.first().map(|execution| LastRun::of(id, execution, total)));
    }
    Ok(response::json(StatusCode::OK, &LastRuns { runs }))
}

pub(crate) const LIST_VERSIONS: Doc = Doc {
    responses: &[
        ResponseDoc::json::<Versions<'static>>(200, "The versions, oldest first"),
        NO_WORKFLOW,
    ],
    description: "Returns the versions of the workflow without their definitions, oldest first.",
    ..Doc::new("workflows", "list_versions", "List the versions of a workflow")
};

/// `GET /workflows/{workflow}/versions`
pub(crate) async fn list_versions(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let workflows = &context.services.workflows;
    let workflow = workflows.find(organization, context.request.param("workflow")).await?;
    let view = view(&workflow, &workflows.triggers(&workflow).await?);
    let total_count = view.versions.len();
    Ok(response::json(StatusCode::OK, &Versions { versions: view.versions, total_count }))
}

pub(crate) const CATEGORIES_DOC: Doc = Doc {
    responses: &[ResponseDoc::json::<Categories<'static>>(200, "The categories")],
    description: "Returns the categories that `categories` of a workflow may name. The set is the \
                  same for every organization.",
    ..Doc::new("workflows", "list_categories", "List categories")
};

/// `GET /categories`
pub(crate) async fn categories(_context: Context) -> Result<Response, crate::Error> {
    let made = Category::created_at();
    let categories = CATEGORIES.map(|category| wire::workflow::Category {
        slug: category.slug,
        label: category.label,
        description: category.description,
        is_default: true,
        created_at: made.into(),
        updated_at: made.into(),
    });
    Ok(response::json(StatusCode::OK, &Categories { categories: categories.into() }))
}

fn view<'a>(workflow: &'a Workflow, triggers: &Triggers) -> wire::workflow::Workflow<'a> {
    wire::workflow::Workflow::of(workflow, triggers.total, &triggers.versions)
}
