//! The organization's history (`docs/spec/history.md`, "Routes"): executions started with any key,
//! newest first, paged by offset (`/v1`) or by cursor (`/v2`).

use std::collections::HashMap;

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue, LINK};

use super::doc::{CURSOR, Doc, Kind as Values, OFFSET, Param, ResponseDoc};
use super::predictions::shown;
use super::{Context, Services, cursor};
use orrery_domain::classify::ErrorClass;
use orrery_domain::execution::{Execution, Kind, Source, Status};
use orrery_domain::ids::{ExecutionId, KeyId, OrganizationId, WorkflowId};
use orrery_domain::payload::Payload;
use orrery_domain::waits_for::WaitsFor;
use orrery_engine::query::history::Filter;
use orrery_http::query::read_time;
use orrery_http::{Response, response};
use orrery_wire::Text;
use orrery_wire::history::{COLUMNS, OfWorkflow, Page, PageByOffset, Row, Selected};

const LIMIT_DEFAULT: u64 = 20;
const LIMIT_MAX: u64 = 100;
/// Number of rows that are reachable by offset (`docs/spec/hosts.md`, "Limits").
const OFFSET_ROWS: u64 = 1000;
/// Maximum bytes of outputs in one page. Outputs beyond the limit are null.
const SHOWN_MAX: usize = 4 * 1024 * 1024;
/// The values of `status` and their meaning. No execution is ever `starting`.
const WORDS: [(&str, &[(Kind, Status)]); 10] = [
    (
        "created",
        &[
            (Kind::Prediction, Status::Created),
            (Kind::Chat, Status::Created),
            (Kind::Agent, Status::Created),
        ],
    ),
    ("starting", &[]),
    (
        "processing",
        &[
            (Kind::Prediction, Status::Processing),
            (Kind::Chat, Status::Processing),
            (Kind::Agent, Status::Processing),
        ],
    ),
    (
        "success",
        &[
            (Kind::Prediction, Status::Success),
            (Kind::Chat, Status::Success),
            (Kind::Decision, Status::Success),
            (Kind::Agent, Status::Success),
        ],
    ),
    (
        "error",
        &[
            (Kind::Prediction, Status::Error),
            (Kind::Chat, Status::Error),
            (Kind::Decision, Status::Error),
            (Kind::Agent, Status::Error),
        ],
    ),
    (
        "cancelled",
        &[
            (Kind::Prediction, Status::Cancelled),
            (Kind::Workflow, Status::Cancelled),
            (Kind::Chat, Status::Cancelled),
            (Kind::Decision, Status::Cancelled),
            (Kind::Agent, Status::Cancelled),
        ],
    ),
    ("queued", &[(Kind::Workflow, Status::Created)]),
    ("running", &[(Kind::Workflow, Status::Processing)]),
    ("completed", &[(Kind::Workflow, Status::Success)]),
    ("failed", &[(Kind::Workflow, Status::Error)]),
];

/// The values of `type`.
const TYPES: [(&str, Kind); 5] = [
    ("prediction", Kind::Prediction),
    ("workflow", Kind::Workflow),
    ("chat", Kind::Chat),
    ("decision", Kind::Decision),
    ("agent", Kind::Agent),
];

/// The values of `waiting_for`.
const WAITS: [WaitsFor; 2] = [WaitsFor::Event, WaitsFor::Resume];
/// The kind and status of a workflow execution that can wait for a person.
const UNFINISHED_RUN: &[(Kind, Status)] =
    &[(Kind::Workflow, Status::Created), (Kind::Workflow, Status::Processing)];

fn waits() -> Vec<&'static str> {
    WAITS.map(WaitsFor::as_str).to_vec()
}

fn statuses() -> Vec<&'static str> {
    WORDS.iter().map(|(word, _)| *word).collect()
}

fn classes() -> Vec<&'static str> {
    ErrorClass::ALL.iter().map(|class| class.as_str()).collect()
}

fn types() -> Vec<&'static str> {
    TYPES.iter().map(|(word, _)| *word).collect()
}

/// The parameters of both lists, in addition to the paging parameters.
macro_rules! query {
    ($paging:expr) => {
        &[
            Param::new(
                "model",
                Values::Text,
                "Only rows whose requested or last model is this one",
            ),
            Param::new("status", Values::ListOf(statuses), "Only rows with one of these statuses"),
            Param::new("type", Values::OneOf(types), "Only rows of this type"),
            Param::new(
                "workflow_id",
                Values::Uuid,
                "Only rows of this workflow, including the predictions of its steps",
            ),
            Param::new("workflow_execution_id", Values::Uuid, "Only steps of this execution"),
            Param::new("api_key_id", Values::Uuid, "Only rows of this API key"),
            Param::new(
                "waiting_for",
                Values::OneOf(waits),
                "Only workflow executions that wait for an event, or that are paused",
            ),
            Param::new(
                "error_classification",
                Values::ListOf(classes),
                "Only rows with one of these classifications",
            ),
            Param::new("from", Values::Time, "Only rows created at or after this time"),
            Param::new("to", Values::Time, "Only rows created before this time"),
            Param::limit(LIMIT_MAX, LIMIT_DEFAULT),
            Param::new(
                "fields",
                Values::Text,
                "A comma-separated list of columns. Defaults to all; on the dashboard's mount, to \
                 all but `output`",
            ),
            $paging,
        ]
    };
}

pub(crate) const BY_OFFSET: Doc = Doc {
    is_deprecated: true,
    query: query!(OFFSET),
    responses: &[ResponseDoc {
        headers: &[("Deprecation", "`true`"), ("Link", "The route that replaces this one")],
        ..ResponseDoc::json::<PageByOffset<'static>>(200, "A page of the newest 1000 rows")
    }],
    description: "Returns a page of the newest 1000 executions of the organization, over all keys. \
                  Deprecated: a deeper `offset` returns 400; use `GET /v2/executions`. \
                  `total_capped` tells whether there are more rows than `total_count`.",
    ..Doc::new("history", "list_executions_by_offset", "List executions by offset")
};

/// `GET /v1/executions`: deprecated.
pub(crate) async fn by_offset(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let filter = filter(&context)?;
    let limit = limit(&context)?;
    let offset = context.request.query.number("offset", 0..=u64::from(u32::MAX), 0)?;
    if offset > OFFSET_ROWS.saturating_sub(limit) {
        return Err(crate::Error::bad_request(
            "V1 pagination is limited to 1000 rows; use GET /v2/executions with cursor pagination",
        ));
    }
    let services = &context.services;
    let of = usize::try_from(OFFSET_ROWS)?;
    let (skipped, shown) = (usize::try_from(offset)?, usize::try_from(limit)?);
    let first = services.engine.first(organization, &filter, of, skipped, shown).await?;
    let body = PageByOffset {
        executions: columns(&context)?.rows(services, organization, &first.executions).await?,
        total_count: first.total,
        total_capped: first.is_capped,
        offset,
        limit,
    };
    let mut answer = response::json(StatusCode::OK, &body);
    let successor = HeaderValue::from_static("</v2/executions>; rel=\"successor-version\"");
    answer.headers_mut().insert(LINK, successor);
    let deprecation = HeaderName::from_static("deprecation");
    answer.headers_mut().insert(deprecation, HeaderValue::from_static("true"));
    Ok(answer)
}

pub(crate) const BY_CURSOR: Doc = Doc {
    query: query!(CURSOR),
    responses: &[ResponseDoc::json::<Page<'static>>(200, "A page of rows, newest first")],
    description: "Returns a page of the organization's predictions, workflow executions, chat \
                  calls, decisions and exchanges of the agent, over all keys. Pass `next_cursor` \
                  as `cursor` for the next page, with the same filters and limit; any other cursor \
                  returns 400. New rows never cause a page to repeat or skip an older row. Each \
                  model step of a workflow is a separate row. `fields` selects columns.",
    ..Doc::new("history", "list_executions", "List executions")
};

/// `GET /v2/executions`
pub(crate) async fn by_cursor(context: Context) -> Result<Response, crate::Error> {
    let organization = context.caller()?.organization;
    let filter = filter(&context)?;
    let limit = limit(&context)?;
    let services = &context.services;
    let asked = format!("executions {organization} {limit} {filter:?}");
    let after = cursor::read(&context, &asked)?;
    let most = usize::try_from(limit)?;
    let page = services.engine.history(organization, &filter, after, most).await?;
    let body = Page {
        executions: columns(&context)?.rows(services, organization, &page.executions).await?,
        limit,
        has_more: page.more_after.is_some(),
        next_cursor: page.more_after.map(|id| cursor::behind(services, &asked, id)),
    };
    Ok(response::json(StatusCode::OK, &body))
}

fn limit(context: &Context) -> Result<u64, crate::Error> {
    Ok(context.request.query.number("limit", 1..=LIMIT_MAX, LIMIT_DEFAULT)?)
}

/// Returns the filter in the query.
fn filter(context: &Context) -> Result<Filter, crate::Error> {
    read_filter(&|name| context.request.query.get(name))
}

/// Returns the filter in these fields.
pub(crate) fn read_filter<'f>(
    get: &dyn Fn(&str) -> Option<&'f str>,
) -> Result<Filter, crate::Error> {
    // An empty value is rejected. Otherwise, a script with an unset variable would read or cancel
    // all executions.
    let refuse = |message: String| crate::Error::bad_request(message);
    let kinds = match get("type") {
        None => None,
        Some(word) => {
            let found = TYPES.iter().find(|(known, _)| *known == word);
            let wrong = || refuse(format!("type must be one of {}", types().join(", ")));
            Some(found.ok_or_else(wrong)?.1)
        }
    };
    let statuses = get("status").map(|list| each(list, "status", &WORDS)).transpose()?;
    let classes = ErrorClass::ALL.map(|class| (class.as_str(), class));
    let classes =
        get("error_classification").map(|list| each(list, "error_classification", &classes));
    let waits_for = match get("waiting_for") {
        None => None,
        Some(word) => {
            let found = WAITS.into_iter().find(|known| known.as_str() == word);
            let wrong = || refuse(format!("waiting_for must be one of {}", waits().join(", ")));
            Some(found.ok_or_else(wrong)?)
        }
    };
    let statuses = match (waits_for, statuses) {
        // Such executions have started but not ended.
        (Some(_), None) => Some(vec![UNFINISHED_RUN]),
        (_, statuses) => statuses,
    };
    let uuid = |name: &str| format!("{name} must be a UUID");
    let workflow = get("workflow_id").map(str::parse::<WorkflowId>).transpose();
    let parent = get("workflow_execution_id").map(str::parse::<ExecutionId>).transpose();
    let key = get("api_key_id").map(str::parse::<KeyId>).transpose();
    let model = get("model").map(str::to_owned);
    if model.as_ref().is_some_and(String::is_empty) {
        return Err(refuse("model must be the slug of a model".to_owned()));
    }
    let moment = |name: &str| get(name).map(|text| read_time(name, text)).transpose();
    Ok(Filter {
        standings: standings(kinds, statuses),
        model,
        classes: classes.transpose()?.unwrap_or_default(),
        workflow: workflow.map_err(|_no_id| refuse(uuid("workflow_id")))?,
        parent: parent.map_err(|_no_id| refuse(uuid("workflow_execution_id")))?,
        waits_for,
        key: key.map_err(|_no_id| refuse(uuid("api_key_id")))?,
        from: moment("from")?,
        to: moment("to")?,
    })
}

/// Parses a comma-separated list of known values. The result has no duplicates and a fixed order.
pub(crate) fn each<T: Copy>(
    list: &str,
    name: &str,
    known: &[(&str, T)],
) -> Result<Vec<T>, crate::Error> {
    let words: Vec<&str> = list.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let is_known = |word: &&str| known.iter().any(|(name, _)| name == word);
    if words.is_empty() || !words.iter().all(is_known) {
        let known: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
        let known = known.join(", ");
        return Err(crate::Error::bad_request(format!("{name} must be one or more of {known}")));
    }
    Ok(known.iter().filter(|(word, _)| words.contains(word)).map(|(_, value)| *value).collect())
}

fn standings(
    kind: Option<Kind>,
    statuses: Option<Vec<&'static [(Kind, Status)]>>,
) -> Option<Vec<(Kind, Status)>> {
    match (kind, statuses) {
        (None, None) => None,
        (Some(kind), None) => Some(Status::ALL.map(|status| (kind, status)).to_vec()),
        (kind, Some(statuses)) => {
            let all = statuses.concat();
            Some(all.into_iter().filter(|(of, _)| kind.is_none_or(|kind| *of == kind)).collect())
        }
    }
}

/// The columns of a list.
struct Columns<'a> {
    /// The columns to include; `None` means all columns.
    named: Option<Vec<&'a str>>,
    has_output: bool,
}

fn columns(context: &Context) -> Result<Columns<'_>, crate::Error> {
    let Some(list) = context.request.query.get("fields") else {
        return Ok(Columns { named: None, has_output: context.source() != Source::Dashboard });
    };
    let named: Vec<&str> = list.split(',').map(str::trim).collect();
    if let Some(unknown) = named.iter().find(|name| !COLUMNS.contains(name)) {
        let known = COLUMNS.join(", ");
        let message = format!("fields must be one or more of {known}, not '{unknown}'");
        return Err(crate::Error::bad_request(message));
    }
    let has_output = named.contains(&"output");
    Ok(Columns { named: Some(named), has_output })
}

impl Columns<'_> {
    async fn rows<'a>(
        &self,
        services: &Services,
        organization: OrganizationId,
        executions: &'a [Execution],
    ) -> Result<Vec<Selected<'a>>, crate::Error> {
        let most = if self.has_output { SHOWN_MAX } else { 0 };
        let rows = rows_with(services, organization, executions, most).await?;
        let Some(named) = &self.named else {
            return Ok(rows.into_iter().map(|row| Selected::Whole(Box::new(row))).collect());
        };
        let select = |row: Row<'_>| {
            let mut row = serde_json::to_value(row).map_err(crate::Error::internal)?;
            if let Some(row) = row.as_object_mut() {
                row.retain(|name, _| named.contains(&name.as_str()));
            }
            Ok(Selected::Parts(row))
        };
        rows.into_iter().map(select).collect()
    }
}

pub(crate) async fn rows<'a>(
    services: &Services,
    organization: OrganizationId,
    executions: &'a [Execution],
) -> Result<Vec<Row<'a>>, crate::Error> {
    rows_with(services, organization, executions, SHOWN_MAX).await
}

/// Converts executions to rows. The total size of the outputs is limited.
async fn rows_with<'a>(
    services: &Services,
    organization: OrganizationId,
    executions: &'a [Execution],
    outputs_max: usize,
) -> Result<Vec<Row<'a>>, crate::Error> {
    let mut names: HashMap<WorkflowId, Option<String>> = HashMap::new();
    let mut rows = Vec::with_capacity(executions.len());
    let mut bytes = 0;
    for execution in executions {
        let name = match OfWorkflow::of(execution).map(|of| of.workflow) {
            None => None,
            Some(id) => match names.get(&id) {
                Some(name) => name.clone(),
                None => {
                    let found = services.workflows.find_any(organization, &id.to_string()).await;
                    let name = found.ok().map(|workflow| workflow.name.clone());
                    names.insert(id, name.clone());
                    name
                }
            },
        };
        let most = outputs_max.saturating_sub(bytes);
        let row = Row::of(execution, name, output(services, execution, most).await?);
        bytes += row.output.as_ref().map_or(0, String::len);
        rows.push(row);
    }
    Ok(rows)
}

/// Returns the text of the output if the text is within the limit. For a missing output, returns
/// the reason.
async fn output(
    services: &Services,
    execution: &Execution,
    most: usize,
) -> Result<Text, crate::Error> {
    let is_shown =
        |payload: &&Payload| usize::try_from(payload.len()).unwrap_or(usize::MAX) <= most;
    let Text { text, error } = shown(services, execution.output.as_ref().filter(is_shown)).await?;
    let text = text.map(|text| services.signed_urls.render(execution.organization, text));
    Ok(Text { text, error })
}
