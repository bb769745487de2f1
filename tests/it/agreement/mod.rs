//! Requests and their published schemas agree: for each operation with a JSON body, values around
//! every limit of the schema are sent to the service, which accepts exactly the valid values.
//!
//! [`probes`] derives the values from the OpenAPI document. The document's own schema determines
//! whether a body is valid, so the test finds limits that only the service checks as well as limits
//! that only the schema contains. Any response other than 400, 413 and 422 counts as accepted: 404
//! and 409 concern the resources that the body refers to.

mod fixture;
mod probes;

use hyper::Method;
use jsonschema::Validator;
use orrery_api::Role;
use serde_json::{Value, json};

use self::fixture::Fixture;
use self::probes::Probes;

/// Operations whose credentials are in the body, so that wrong credentials are not an invalid body.
const BY_BODY: [&str; 2] = ["log_in", "trigger_public_version"];

/// Errors for valid bodies: a part of the message, and the reason why a schema cannot express the
/// rule.
const EXCEPTIONS: [(&str, &str); 34] = [
    ("there is no file ", "files are stored"),
    ("messages must have at most 101 items", "a session may be named in a header"),
    ("invalid input", "the input of a model or workflow has a schema of its own"),
    ("the step at /steps", "definitions are compiled"),
    ("step '", "definitions are compiled"),
    ("definition: ", "definitions are compiled"),
    ("].model_slug is required", "definitions are compiled"),
    ("a name without braces and brackets", "definitions are compiled"),
    ("the default_value '", "a default has the type of its input"),
    ("there is no model ", "models are in the catalog"),
    ("the version does not exist", "models are in the catalog"),
    ("supports predictions", "models have kinds"),
    ("entry 1", "entries of a chain depend on the schemas of models"),
    ("unknown fallback_selector", "chains are stored"),
    ("has no chain", "chains are stored"),
    ("unknown category", "categories are a list of the service"),
    ("version not found", "versions are stored"),
    ("version_id must be the one in the path", "the body depends on the path"),
    ("unknown field", "the fields of a schedule depend on what it starts"),
    ("workflow or model is required", "the fields of a schedule depend on what it starts"),
    ("cron is required", "a schedule with a name may be new"),
    ("url is required", "an endpoint with a name may be new"),
    ("cron must be ", "the syntax of cron"),
    ("timezone must be the name of a time zone", "the time zone database"),
    ("to must be later than from", "one field depends on another"),
    ("must be one or more of", "lists in a text"),
    ("type must be one of", "the filters of the history are texts"),
    ("must be an absolute http or https URL", "the syntax of URLs"),
    ("content_type must be a type", "the syntax of media types"),
    ("signature cannot be changed", "the body depends on the stored endpoint"),
    ("the file is larger than", "a limit of the configuration"),
    ("input has only reasoning", "what a model can read depends on all items"),
    ("the last of messages must have the role user", "only the last item has this rule"),
    ("the current password is wrong", "credentials"),
];

/// A JSON operation of a document.
struct Operation<'d> {
    id: &'d str,
    method: Method,
    path: &'d str,
    schema: &'d Value,
    is_required: bool,
    security: &'d Value,
}

fn operations(document: &Value) -> Vec<Operation<'_>> {
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let id = operation["operationId"].as_str().unwrap();
            if schema.is_null() {
                continue;
            }
            all.push(Operation {
                id,
                method: method.to_uppercase().parse().unwrap(),
                path,
                schema,
                is_required: operation["requestBody"]["required"] == true,
                security: &operation["security"],
            });
        }
    }
    // A bulk job cancels or deletes executions that other operations use.
    all.sort_by_key(|operation| operation.id == "start_bulk_job");
    all
}

fn validator(document: &Value, schema: &Value) -> Validator {
    let whole = json!({"components": document["components"], "allOf": [schema]});
    let options = jsonschema::draft202012::options();
    options.should_validate_formats(true).build(&whole).unwrap()
}

/// Sends the probes of all operations of a host.
async fn examine(role: Role) {
    let mut fixture = Fixture::start(role).await;
    let document = fixture.document().await;
    let mut drifts = Vec::new();
    let mut sent = 0;
    for operation in operations(&document) {
        let validator = validator(&document, operation.schema);
        let probes = Probes::new(&document);
        let empty = ("an empty body".to_owned(), String::new(), !operation.is_required);
        let bodies = probes.of(operation.schema).into_iter().map(|(place, body)| {
            let is_valid = validator.is_valid(&body);
            (place, body.to_string(), is_valid)
        });
        for (place, body, is_valid) in bodies.chain([empty]) {
            let (status, text) = fixture.send(&operation, body).await;
            sent += 1;
            let is_accepted = match status {
                400 | 413 | 422 => {
                    EXCEPTIONS.iter().any(|(part, _)| is_valid && text.contains(part))
                }
                401 if BY_BODY.contains(&operation.id) => true,
                401 | 405 | 415 | 500 | 503 => panic!("{}: {place}: {status} {text}", operation.id),
                _ => true,
            };
            if is_accepted != is_valid {
                let word = if is_valid { "valid" } else { "invalid" };
                let Operation { id, .. } = operation;
                drifts.push(format!("{id}: {place} is {word}: {status} {}", shortened(&text)));
            }
        }
    }
    assert!(sent > 100, "only {sent} requests were sent");
    assert!(drifts.is_empty(), "{} of {sent} differ:\n{}", drifts.len(), drifts.join("\n"));
}

fn shortened(text: &str) -> String {
    text.chars().take(160).collect()
}

#[tokio::test]
async fn agreement_of_base_host() {
    examine(Role::Base).await;
}

#[tokio::test]
async fn agreement_of_workflows_host() {
    examine(Role::Workflows).await;
}

#[tokio::test]
async fn agreement_of_flows_host() {
    examine(Role::Flows).await;
}

#[tokio::test]
async fn agreement_of_agent_host() {
    examine(Role::Agent).await;
}

#[tokio::test]
async fn agreement_of_dashboard() {
    examine(Role::Dashboard).await;
}
