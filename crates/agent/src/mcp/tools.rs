//! The MCP tools: one for each catalog model and each active workflow of the organization.
//!
//! A name consists of a prefix and the slug, and has 1 to 64 characters of `A-Za-z0-9_-`, which
//! every client accepts. A slug that does not fit is shortened, and part of the slug's digest is
//! appended, so that each tool has a unique and stable name.

use std::sync::Arc;

use rmcp::model::{
    ErrorData, JsonObject, ListToolsResult, MetaObject, Tool, ToolAnnotations, object,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::service::Inner;
use crate::tools::unreadable;
use orrery_catalog::Model;
use orrery_domain::hex::hex;
use orrery_domain::ids::OrganizationId;
use orrery_domain::spelling;
use orrery_domain::workflow::{Status, Workflow};
use orrery_engine as engine;
use orrery_wire::model::Cost;
use orrery_workflows::{self as workflows, Filter, SortKey};

/// Number of tools per page.
const PAGE: usize = 50;
/// Maximum length of a name, in characters.
const NAME_MAX: usize = 64;
/// Number of characters of the digest in a name.
const DIGEST_CHARS: usize = 8;
/// Maximum number of workflows to search for a shortened name.
const WORKFLOWS_MAX: usize = 10_000;

/// Maximum number of workflows to compare with an unknown name.
const NEAR_MAX: usize = 1000;

const MODEL: &str = "model_";
const WORKFLOW: &str = "workflow_";

/// The model or workflow that a tool runs.
#[derive(Debug)]
pub(super) enum Target {
    Model(Arc<Model>),
    Workflow(Arc<Workflow>),
}

/// Returns the name of a tool: the prefix and the slug, in at most [`NAME_MAX`] plain characters.
pub fn name_of(prefix: &str, slug: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let name = format!("{prefix}{slug}");
    if name.chars().all(is_plain) && name.len() <= NAME_MAX {
        return name;
    }
    let digest = hex(Sha256::digest(slug).iter().take(DIGEST_CHARS / 2));
    let plain = name.chars().map(|c| if is_plain(c) { c } else { '_' });
    let kept: String = plain.take(NAME_MAX - DIGEST_CHARS - 1).collect();
    format!("{kept}_{digest}")
}

/// Finds the organization's tool with this name.
///
/// # Errors
/// [`engine::Error::Storage`]
pub(super) async fn find(
    inner: &Inner,
    organization: OrganizationId,
    name: &str,
) -> Result<Option<Target>, engine::Error> {
    if let Some(slug) = name.strip_prefix(MODEL) {
        let is_meant = |model: &Arc<Model>| name_of(MODEL, model.slug.as_str()) == name;
        let found = inner.catalog.get(slug).filter(is_meant);
        let found = found.or_else(|| inner.catalog.list().into_iter().find(is_meant));
        return Ok(found.map(Target::Model));
    }
    let Some(slug) = name.strip_prefix(WORKFLOW) else { return Ok(None) };
    let is_meant = |workflow: &Workflow| {
        workflow.status == Status::Active && name_of(WORKFLOW, &workflow.slug) == name
    };
    match inner.workflows.find(organization, slug).await {
        Ok(workflow) if is_meant(&workflow) => {
            return Ok(Some(Target::Workflow(workflow)));
        }
        Ok(_) | Err(workflows::Error::NotFound { .. }) => {}
        Err(error) => return Err(unreadable(error)),
    }
    let all = workflows_of(inner, organization, 0, WORKFLOWS_MAX).await?;
    Ok(all.into_iter().find(is_meant).map(|workflow| Target::Workflow(Arc::new(workflow))))
}

/// Suggests a tool for an unknown name: a model or workflow with the same or a similar name.
///
/// # Errors
/// [`engine::Error::Storage`]
pub(super) async fn nearest(
    inner: &Inner,
    organization: OrganizationId,
    name: &str,
) -> Result<Option<String>, engine::Error> {
    let models = inner.catalog.list();
    let mut names: Vec<String> =
        models.iter().map(|model| name_of(MODEL, model.slug.as_str())).collect();
    let workflows = workflows_of(inner, organization, 0, NEAR_MAX).await?;
    names.extend(workflows.iter().map(|workflow| name_of(WORKFLOW, &workflow.slug)));
    let whole = names.iter().map(String::as_str);
    let whole: Vec<&str> = whole.collect();
    if let Some(near) = spelling::nearest(name, &whole) {
        return Ok(Some(near.to_owned()));
    }
    // The names without the prefix for models or workflows.
    let bare: Vec<&str> = whole
        .iter()
        .filter_map(|name| name.strip_prefix(MODEL).or_else(|| name.strip_prefix(WORKFLOW)))
        .collect();
    let near = spelling::nearest(name, &bare);
    Ok(near.and_then(|near| names.iter().find(|name| name.ends_with(near)).cloned()))
}

/// Lists active workflows, oldest first, so that new workflows appear after the pages that a client
/// has already read.
async fn workflows_of(
    inner: &Inner,
    organization: OrganizationId,
    offset: usize,
    limit: usize,
) -> Result<Vec<Workflow>, engine::Error> {
    let filter = Filter {
        category: None,
        tags: Vec::new(),
        keyword: None,
        status: Some(Status::Active),
        sort_key: SortKey::CreatedAt,
        ascending: true,
        offset,
        limit,
    };
    let (found, _) = inner.workflows.list(organization, &filter).await.map_err(unreadable)?;
    Ok(found)
}

/// The position at which a page starts.
#[derive(Debug, PartialEq, Eq)]
enum Cursor {
    /// The page begins after the model with this slug.
    Models(String),
    /// The page begins with the workflow at this index.
    Workflows(usize),
}

impl Cursor {
    fn parse(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("models", slug) => Some(Self::Models(slug.to_owned())),
            ("workflows", number) => number.parse().ok().map(Self::Workflows),
            _ => None,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Models(slug) => format!("models:{slug}"),
            Self::Workflows(number) => format!("workflows:{number}"),
        }
    }
}

/// Returns a page of tools: models by slug, then workflows.
///
/// # Errors
/// [`engine::Error::Storage`]; the inner error if this service did not issue the cursor.
pub(super) async fn list(
    inner: &Inner,
    organization: OrganizationId,
    cursor: Option<&str>,
) -> Result<Result<ListToolsResult, ErrorData>, engine::Error> {
    let start = match cursor {
        // Some clients send an empty cursor for the first page.
        None | Some("") => Cursor::Models(String::new()),
        Some(text) => match Cursor::parse(text) {
            Some(cursor) => cursor,
            None => return Ok(Err(ErrorData::invalid_params("invalid cursor", None))),
        },
    };
    let mut page = Vec::new();
    let mut next = None;
    let first_workflow = match start {
        Cursor::Models(behind) => {
            let models = inner.catalog.list();
            let mut left = models.iter().filter(|model| model.slug.as_str() > behind.as_str());
            page.extend(left.by_ref().take(PAGE).map(|model| tool_of_model(model)));
            if left.next().is_some() {
                let last = models.iter().filter(|model| model.slug.as_str() > behind.as_str());
                let last = last.take(PAGE).last().map(|model| model.slug.to_string());
                next = last.map(Cursor::Models);
            }
            0
        }
        Cursor::Workflows(number) => number,
    };
    if next.is_none() {
        let room = PAGE - page.len();
        let found = workflows_of(inner, organization, first_workflow, room + 1).await?;
        for workflow in found.iter().take(room) {
            page.push(tool_of_workflow(inner, workflow).await?);
        }
        next = (found.len() > room).then(|| Cursor::Workflows(first_workflow + room));
    }
    let mut listed = ListToolsResult::with_all_items(page);
    listed.next_cursor = next.map(|cursor| cursor.text());
    Ok(Ok(listed))
}

fn tool_of_model(model: &Model) -> Tool {
    let cost = model.pricing.as_ref().map(Cost::from);
    let price = cost.as_ref().map(|cost| format!("Cost: {}.", cost.estimate));
    let described = match model.description.trim() {
        // Clients require a description for each tool.
        "" => format!("Runs the model {}.", model.slug),
        described => described.to_owned(),
    };
    let parts = [Some(described.as_str()), price.as_deref()];
    let meta = json!({
        "orrery/model": model.slug.as_str(),
        "orrery/output_type": model.output_type.as_str(),
        "orrery/cost": cost,
    });
    let schema = object_schema(Some(model.schema.text()));
    tool(name_of(MODEL, model.slug.as_str()), &model.title, &joined(&parts), schema, meta)
}

async fn tool_of_workflow(inner: &Inner, workflow: &Workflow) -> Result<Tool, engine::Error> {
    let compiled = match workflow.version(&workflow.latest) {
        Some(version) => match inner.workflows.compiled(version.revision).await {
            Ok(compiled) => Some(compiled),
            Err(workflows::Error::Storage(error)) if !error.is_final() => return Err(error.into()),
            // The list still includes the tool; a call to the tool returns the error.
            Err(_) => None,
        },
        None => None,
    };
    let inputs = compiled.as_ref().and_then(|compiled| compiled.inputs.as_ref());
    let schema = object_schema(inputs.map(|inputs| inputs.text()));
    let meta = json!({
        "orrery/workflow": workflow.id,
        "orrery/version": workflow.latest,
        // The cost depends on the workflow's models and is known only at the end.
        "orrery/cost": null,
    });
    let text = joined(&[Some(&workflow.description), Some("Runs a workflow.")]);
    Ok(tool(name_of(WORKFLOW, &workflow.slug), &workflow.name, &text, schema, meta))
}

fn joined(parts: &[Option<&str>]) -> String {
    let parts = parts.iter().flatten().map(|part| part.trim()).filter(|part| !part.is_empty());
    let sentence = |part: &str| match part.ends_with(['.', '!', '?', ':', '。', '！', '？']) {
        true => part.to_owned(),
        false => format!("{part}."),
    };
    parts.map(sentence).collect::<Vec<_>>().join(" ")
}

fn tool(name: String, title: &str, description: &str, schema: JsonObject, meta: Value) -> Tool {
    let annotations = ToolAnnotations::with_title(title).read_only(false).destructive(false);
    Tool::new(name, description.to_owned(), schema)
        .with_title(title)
        .with_raw_output_schema(Arc::new(output_schema()))
        .with_annotations(annotations)
        .with_meta(MetaObject(object(meta)))
}

/// Returns the schema of the structured content, which is the same for every call.
fn output_schema() -> JsonObject {
    object(json!({
        "type": "object",
        "required": ["id", "status", "output", "cost_usd"],
        "properties": {
            "id": {"type": "string"},
            "status": {"type": "string"},
            "output": {},
            "error": {"type": ["string", "null"]},
            "cost_usd": {"type": "number"},
        },
    }))
}

/// Returns the schema in the form that the protocol requires: always an object.
fn object_schema(schema: Option<&Value>) -> JsonObject {
    let mut schema = schema.and_then(Value::as_object).cloned().unwrap_or_default();
    if schema.get("type").and_then(Value::as_str) != Some("object") {
        schema.insert("type".to_owned(), json!("object"));
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mcp_tool_names_are_plain_and_unique_per_slug() {
        for (slug, expected) in [
            ("caption", "model_caption"),
            ("Image-QR_2", "model_Image-QR_2"),
            ("openai/gpt-x", "model_openai_gpt-x_"),
            ("a.b", "model_a_b_"),
            ("a:b", "model_a_b_"),
        ] {
            assert!(name_of(MODEL, slug).starts_with(expected), "{slug}");
        }
        let long = ["x".repeat(128), "x".repeat(127), "x/".repeat(60)];
        let slugs = ["a_b", "a.b", "a:b", "a/b", &long[0], &long[1], &long[2]];
        let names: Vec<String> = slugs.iter().map(|slug| name_of(MODEL, slug)).collect();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        for (at, name) in names.iter().enumerate() {
            assert!(name.len() <= NAME_MAX && name.chars().all(is_plain), "{name}");
            assert!(!names[..at].contains(name), "{name} twice");
        }
    }

    #[test]
    fn mcp_description_consists_of_sentences() {
        let run = Some("Runs a workflow.");
        for (written, expected) in [
            ("The mood of a page", "The mood of a page. Runs a workflow."),
            ("The mood of a page. ", "The mood of a page. Runs a workflow."),
            ("Is it urgent?", "Is it urgent? Runs a workflow."),
            ("", "Runs a workflow."),
        ] {
            assert_eq!(joined(&[Some(written), run]), expected);
        }
        assert_eq!(
            joined(&[Some("Says what is in a picture"), None]),
            "Says what is in a picture."
        );
    }

    #[test]
    fn mcp_cursor_round_trips() {
        for cursor in [Cursor::Models("a:b/c".to_owned()), Cursor::Workflows(50)] {
            assert_eq!(Cursor::parse(&cursor.text()), Some(cursor));
        }
        for bad in ["", "models", "workflows:", "workflows:-1", "files:1"] {
            assert_eq!(Cursor::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn mcp_schema_is_always_of_an_object() {
        let properties = json!({"properties": {"a": {}}});
        for (schema, expected) in [
            (None, json!({"type": "object"})),
            (Some(json!(true)), json!({"type": "object"})),
            (Some(properties), json!({"properties": {"a": {}}, "type": "object"})),
        ] {
            assert_eq!(Value::Object(object_schema(schema.as_ref())), expected);
        }
    }
}
