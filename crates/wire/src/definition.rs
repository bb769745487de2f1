//! The JSON Schema of workflow definitions, down to each type of step: what `domain::definition`
//! compiles. A test compares each field and each limit with the compiler.
//!
//! The schema is published for editors and client generators. Definitions themselves are checked by
//! the compiler, which also knows references and models.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use orrery_domain::classify::ErrorClass;
use orrery_domain::definition::{Method, STEPS_MAX, WAIT_MAX};
use orrery_domain::retry;

/// The form of a step id.
const NAME: &str = "^[a-zA-Z0-9_-]{1,64}$";
/// Maximum timeout of a step, and of an HTTP step, in seconds.
const TIMEOUT_MAX: f64 = 86_400.0;
const HTTP_TIMEOUT_MAX: f64 = 300.0;

/// What a workflow does. A value with a reference such as `{{inputs.name}}` is resolved when its
/// step starts.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "WorkflowDefinition", deny_unknown_fields)]
pub struct Definition {
    /// The steps. A step starts as soon as all the steps it refers to have ended.
    #[schemars(length(min = 1, max = STEPS_MAX))]
    pub steps: Vec<Step>,
    /// The JSON Schema of the inputs.
    pub input_schema: Option<Map<String, Value>>,
    /// `output_mapping`, and any other data that belongs to the definition.
    pub metadata: Option<Map<String, Value>>,
    /// A mark for clients. The service does not use it.
    pub version: Option<String>,
}

macro_rules! schemas {
    ($($(#[$doc:meta])* $name:ident, $title:literal, $schema:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                $title.into()
            }
            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                let make: fn(&mut SchemaGenerator) -> Schema = $schema;
                make(generator)
            }
        }
    )+};
}

schemas! {
    /// One step.
    Step, "WorkflowStep", |generator| {
        let variants: Vec<Value> = steps(generator)
            .into_iter()
            .map(|(kind, what, fields)| step(generator, kind, what, fields))
            .collect();
        json_schema!({"oneOf": variants})
    };
    /// A condition of a choice step.
    Condition, "WorkflowCondition", |generator| {
        let part = generator.subschema_for::<Condition>();
        let parts = json!({"type": "array", "minItems": 1, "items": part});
        let tests = ["equals", "not_equals", "greater_than", "less_than", "greater_than_or_equal",
            "less_than_or_equal", "contains", "matches", "string_matches", "in", "not_in"];
        let subject = json!({"type": "string", "description": "{{step.output}} or $.step.output"});
        json_schema!({"oneOf": [
            closed(&["and"], json!({"and": parts})),
            closed(&["or"], json!({"or": parts})),
            closed(&["not"], json!({"not": part})),
            closed(&["expression", "operator", "value"], json!({
                "expression": subject, "operator": {"type": "string", "enum": tests},
                "value": {"description": "What the value of the expression is compared with"},
            })),
            closed(&["expression", "operator"], json!({
                "expression": subject,
                "operator": {"type": "string", "enum": ["exists", "not_exists", "is_null", "is_not_null"]},
                "value": {"type": "null"},
            })),
        ]})
    };
    /// The retries of a step.
    Retry, "WorkflowRetry", |_| {
        let delay = || number(0.0, retry::DELAY_MAX.as_secs_f64());
        let classes = ErrorClass::ALL.map(ErrorClass::as_str);
        optional(closed(&[], json!({
            "max_attempts": nullable(json!({"type": "integer", "minimum": 1, "maximum": retry::ATTEMPTS_MAX})),
            "initial_delay_seconds": nullable(delay()),
            "backoff_multiplier": nullable(number(1.0, retry::MULTIPLIER_MAX)),
            "max_delay_seconds": nullable(delay()),
            "retry_on": nullable(json!({"type": "array", "items": {"type": "string", "enum": classes}})),
        })))
    };
    /// The credentials of a request.
    Auth, "WorkflowAuth", |_| {
        let text = || json!({"type": "string", "minLength": 1});
        let kind = |name: &str| json!({"type": "string", "const": name});
        json_schema!({"oneOf": [
            closed(&["type", "username", "password"],
                json!({"type": kind("basic"), "username": text(), "password": text()})),
            closed(&["type", "token"], json!({"type": kind("bearer"), "token": text()})),
            closed(&["type", "value"], json!({
                "type": kind("api_key"), "value": text(),
                "name": nullable(json!({"type": "string"})),
                "in": {"type": ["string", "null"], "enum": ["header", "query", null]},
            })),
        ]})
    };
}

/// The types of steps, each with its description, its required fields and its own fields.
type Fields = (&'static [&'static str], Value);

fn steps(generator: &mut SchemaGenerator) -> [(&'static str, &'static str, Fields); 8] {
    let text = || json!({"type": "string", "minLength": 1});
    let workflow = json!({
        "workflow": text(), "version_id": nullable(json!({"type": "string"})), "inputs": object(),
        "wait": flag(),
    });
    let fallback = closed(
        &[],
        json!({
            "enabled": flag(), "model": nullable(json!({"type": "string"})), "version": {},
            "params": object(),
        }),
    );
    let model = json!({
        "model": text(), "version": {}, "params": object(), "fallback": optional(fallback),
    });
    let wait = "Waits for a time or an event. Needs exactly one of seconds, until and event.";
    [
        ("model", "Runs a model of the catalog.", (&["model"], model)),
        ("http", "Sends an HTTP request.", (&["url"], http(generator))),
        ("parallel", "Runs branches at the same time.", (&["branches"], parallel(generator))),
        (
            "choice",
            "Runs one of two branches.",
            (&["condition", "condition_met_branch"], choice(generator)),
        ),
        ("map", "Runs steps for each item of an array.", (&["items", "steps"], map(generator))),
        ("wait", wait, (&[], waits())),
        ("pass", "Computes a value.", (&[], json!({"result": {}}))),
        ("workflow", "Runs another workflow.", (&["workflow"], workflow)),
    ]
}

fn flag() -> Value {
    nullable(json!({"type": "boolean"}))
}

fn object() -> Value {
    nullable(json!({"type": "object"}))
}

/// At least one step.
fn some_steps(generator: &mut SchemaGenerator) -> Value {
    json!({"type": "array", "minItems": 1, "items": generator.subschema_for::<Step>()})
}

fn http(generator: &mut SchemaGenerator) -> Value {
    let fallback = closed(&["url"], merged(request(), json!({"enabled": flag()})));
    merged(
        request(),
        json!({
            "timeout": nullable(number(0.0, HTTP_TIMEOUT_MAX)),
            "auth": optional(generator.subschema_for::<Auth>().to_value()),
            "fail_when": {"anyOf": [
                {"type": ["string", "null"], "enum": ["connection_error", "non_2xx", null]},
                {"type": "array", "items": {"type": "integer", "minimum": 100, "maximum": 599}},
            ]},
            "fallback": optional(fallback),
        }),
    )
}

fn parallel(generator: &mut SchemaGenerator) -> Value {
    let name = nullable(json!({"type": "string"}));
    let branch = closed(&["steps"], json!({"name": name, "steps": some_steps(generator)}));
    json!({"branches": {"type": "array", "minItems": 1, "items": branch}})
}

fn choice(generator: &mut SchemaGenerator) -> Value {
    let steps = json!({"type": "array", "items": generator.subschema_for::<Step>()});
    let branch = closed(&[], json!({"steps": nullable(steps)}));
    json!({
        "condition": generator.subschema_for::<Condition>(),
        "condition_met_branch": branch,
        "default_branch": optional(branch),
    })
}

fn map(generator: &mut SchemaGenerator) -> Value {
    json!({
        "items": {"type": ["array", "string"], "description": "An array, or a reference to one"},
        "item_name": {"type": ["string", "null"], "pattern": NAME},
        "max_concurrency": nullable(json!({"type": "integer", "minimum": 1, "maximum": 1000})),
        "output": {"description": "The output of each item"},
        "steps": some_steps(generator),
    })
}

fn waits() -> Value {
    let longest = WAIT_MAX.as_secs_f64();
    let event = closed(
        &["name"],
        json!({
            "name": {"type": "string", "pattern": NAME},
            "schema": object(),
            "timeout_seconds": nullable(number(0.0, longest)),
            "default": {"description": "The output on a timeout"},
        }),
    );
    json!({
        "seconds": {"type": ["number", "string", "null"], "minimum": 0.0, "maximum": longest},
        "until": {"type": ["string", "null"], "description": "An RFC 3339 time, or a reference to one"},
        "event": optional(event),
    })
}

/// The fields of a request that an `http` step and its fallback share.
fn request() -> Value {
    let methods: Vec<Value> = Method::ALL
        .iter()
        .flat_map(|method| [method.as_str().into(), method.as_str().to_lowercase().into()])
        .chain([Value::Null])
        .collect();
    let scalar = ["string", "number", "boolean"];
    json!({
        "method": {"type": ["string", "null"], "enum": methods},
        "url": {"type": "string", "minLength": 1},
        "headers": {"type": ["object", "null"], "additionalProperties": {"type": scalar}},
        "query_params": {"type": ["object", "null"], "additionalProperties": {"anyOf": [
            {"type": scalar}, {"type": "array", "items": {"type": scalar}},
        ]}},
        "body": {"description": "JSON, or a string that is sent unchanged"},
    })
}

/// Returns the schema of one type of step, with the fields that several types share.
fn step(generator: &mut SchemaGenerator, kind: &str, what: &str, (required, own): Fields) -> Value {
    let longest = if kind == "http" { HTTP_TIMEOUT_MAX } else { TIMEOUT_MAX };
    let least = if kind == "http" { 0.0 } else { 0.001 };
    let common = json!({
        "type": {"type": "string", "const": kind},
        "step_id": {"type": ["string", "null"], "pattern": NAME,
            "description": "The name of the step in references. Required, unless `id` is set"},
        "id": {"type": ["string", "null"], "pattern": NAME, "description": "The same as `step_id`"},
        "name": nullable(json!({"type": "string"})),
        "depends_on": nullable(json!({"type": "array", "items": {"type": "string"}})),
        "continue_on_error": nullable(json!({"type": "boolean"})),
        "timeout_seconds": nullable(number(least, longest)),
    });
    let retried = match kind {
        "model" | "http" | "workflow" => json!({
            "retry": generator.subschema_for::<Retry>(),
            "on_exhausted": {"type": ["string", "null"], "enum": ["fail", "pause", null]},
        }),
        _ => json!({}),
    };
    let required: Vec<&str> = [&["type"], required].concat();
    let schema = closed(&required, merged(merged(common, retried), own));
    merged(schema, json!({"description": what}))
}

/// Returns the fields of both objects.
fn merged(mut one: Value, other: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut one, other) {
        fields.extend(more);
    }
    one
}

fn closed(required: &[&str], properties: Value) -> Value {
    json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false,
    })
}

fn number(least: f64, most: f64) -> Value {
    json!({"type": "number", "minimum": least, "maximum": most})
}

/// Adds null to the types of a schema: an optional field that is null counts as absent.
fn nullable(mut schema: Value) -> Value {
    if let Some(kind) = schema.get_mut("type").filter(|kind| kind.is_string()) {
        *kind = json!([kind.take(), "null"]);
    }
    schema
}

/// Allows null besides the values of a schema.
fn optional(schema: Value) -> Schema {
    json_schema!({"anyOf": [schema, {"type": "null"}]})
}

#[cfg(test)]
#[path = "definition_tests.rs"]
mod tests;
