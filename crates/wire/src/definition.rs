//! The JSON Schema of the workflow definitions that `domain::definition` compiles, including each
//! type of step. A test compares each field and each limit with the compiler.
//!
//! The schema is published for editors and client generators. The compiler checks the definitions
//! themselves, because it can also check references and models.

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
    /// A label for clients. The service does not use it.
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
        json_schema!({"oneOf": variants, "description": "One step, by its `type`."})
    };
    /// A condition of a choice step.
    Condition, "WorkflowCondition", |generator| {
        json_schema!({"description": "A condition.", "anyOf": [
            generator.subschema_for::<AllOf>(), generator.subschema_for::<AnyOf>(),
            generator.subschema_for::<Not>(), generator.subschema_for::<Comparison>(),
            generator.subschema_for::<Presence>(),
        ]})
    };
    /// True if all of its conditions are true.
    AllOf, "WorkflowConditionAnd", |generator| {
        let parts = conditions(generator);
        object_of("True if all of its conditions are true.", &["and"], json!({"and": parts}))
    };
    /// True if at least one of its conditions is true.
    AnyOf, "WorkflowConditionOr", |generator| {
        let parts = conditions(generator);
        object_of("True if at least one of its conditions is true.", &["or"], json!({"or": parts}))
    };
    /// True if the inner condition is false.
    Not, "WorkflowConditionNot", |generator| {
        let part = generator.subschema_for::<Condition>();
        object_of("True if the inner condition is false.", &["not"], json!({"not": part}))
    };
    /// Compares two values.
    Comparison, "WorkflowConditionComparison", |_| {
        let tests = ["equals", "not_equals", "greater_than", "less_than", "greater_than_or_equal",
            "less_than_or_equal", "contains", "matches", "string_matches", "in", "not_in"];
        object_of("Compares two values.", &["expression", "operator", "value"], json!({
            "expression": {"type": "string"},
            "operator": {"type": "string", "enum": tests},
            "value": {"description": "The value to compare the expression with."},
        }))
    };
    /// Tests whether a value exists.
    Presence, "WorkflowConditionPresence", |_| {
        let tests = ["exists", "not_exists", "is_null", "is_not_null"];
        object_of("Tests whether a value exists.", &["expression", "operator"], json!({
            "expression": {"type": "string"},
            "operator": {"type": "string", "enum": tests},
            "value": {"type": "null", "description": "Not used."},
        }))
    };
    /// The retries of a step.
    Retry, "WorkflowRetry", |_| {
        let delay = || number(0.0, retry::DELAY_MAX.as_secs_f64());
        let classes = ErrorClass::ALL.map(ErrorClass::as_str);
        object_of("The retries of a step.", &[], json!({
            "max_attempts": nullable(json!({"type": "integer", "minimum": 1, "maximum": retry::ATTEMPTS_MAX})),
            "initial_delay_seconds": nullable(delay()),
            "backoff_multiplier": nullable(number(1.0, retry::MULTIPLIER_MAX)),
            "max_delay_seconds": nullable(delay()),
            "retry_on": nullable(json!({"type": "array", "items": {"type": "string", "enum": classes}})),
        }))
    };
    /// The credentials of a request.
    Auth, "WorkflowAuth", |_| {
        let text = || json!({"type": "string", "minLength": 1});
        let kind = |name: &str| json!({"type": "string", "const": name});
        json_schema!({"description": "The credentials of a request.", "oneOf": [
            object_of("Basic authentication.", &["type", "username", "password"],
                json!({"type": kind("basic"), "username": text(), "password": text()})),
            object_of("A bearer token.", &["type", "token"],
                json!({"type": kind("bearer"), "token": text()})),
            object_of("A key in a header or in the query.", &["type", "value"], json!({
                "type": kind("api_key"),
                "value": described(text(), "The key."),
                "name": described(nullable(json!({"type": "string"})), "The name of the header or of the query parameter."),
                "in": {"type": ["string", "null"], "enum": ["header", "query", null]},
            })),
        ]})
    };
    /// The replacement for a model that fails.
    ModelFallback, "WorkflowModelFallback", |_| {
        object_of("The model that runs if the step's model fails.", &[], json!({
            "enabled": flag(), "model": nullable(json!({"type": "string"})), "version": {},
            "params": object(),
        }))
    };
    /// The replacement for a request that fails.
    HttpFallback, "WorkflowHttpFallback", |generator| {
        let fields = merged(request(generator), json!({"enabled": flag()}));
        object_of("The request that is sent if the step's request fails.", &["url"], fields)
    };
    /// A branch of a choice step.
    Branch, "WorkflowBranch", |generator| {
        let steps = json!({"type": "array", "items": generator.subschema_for::<Step>()});
        object_of("A branch.", &[], json!({"steps": nullable(steps)}))
    };
    /// The event that a step waits for.
    WaitedEvent, "WorkflowEvent", |_| {
        object_of("The event that a step waits for.", &["name"], json!({
            "name": {"type": "string", "pattern": NAME, "description": "The name of the event."},
            "schema": object(),
            "timeout_seconds": nullable(number(0.0, WAIT_MAX.as_secs_f64())),
            "default": {"description": "The output on a timeout."},
        }))
    };
    /// Header fields.
    Headers, "WorkflowHeaders", |_| json_schema!({
        "type": "object", "description": "Header fields.", "additionalProperties": {"type": SCALAR},
    });
    /// Query parameters.
    QueryParams, "WorkflowQueryParams", |_| json_schema!({
        "type": "object", "description": "Query parameters.", "additionalProperties": {"anyOf": [
            {"type": SCALAR}, {"type": "array", "items": {"type": SCALAR}},
        ]},
    });
}

/// The types of header fields and query parameters.
const SCALAR: [&str; 3] = ["string", "number", "boolean"];

/// Descriptions of fields, by name. Most fields are in several objects.
const MEANINGS: &[(&str, &str)] = &[
    ("and", "The conditions."),
    ("or", "The conditions."),
    ("not", "The condition."),
    ("expression", "The value: `{{step.output}}` or `$.step.output`."),
    ("operator", "The comparison operator."),
    ("max_attempts", "The maximum number of attempts, including the first."),
    ("initial_delay_seconds", "The delay before the second attempt."),
    ("backoff_multiplier", "The factor by which each further delay grows."),
    ("max_delay_seconds", "The longest delay."),
    ("retry_on", "The classes of errors that are retried; by default the transient ones."),
    ("type", "The type."),
    ("username", "The user name."),
    ("password", "The password."),
    ("token", "The token."),
    ("in", "Where the key is sent; by default in a header."),
    ("enabled", "If false, the fallback is not used."),
    ("model", "The slug of the model."),
    ("version", "Accepted and ignored."),
    ("params", "The inputs of the model."),
    ("fallback", "The replacement that runs if the step fails."),
    ("steps", "The steps."),
    ("schema", "The JSON Schema of the event's payload."),
    ("timeout_seconds", "The time limit."),
    ("method", "The method, in any letter case; by default GET."),
    ("url", "The URL. References cannot change its host or the number of its path segments."),
    ("headers", "The header fields."),
    ("query_params", "The query parameters."),
    ("body", "JSON, or a string that is sent unchanged."),
    ("timeout", "The same as `timeout_seconds`."),
    ("auth", "The credentials."),
    ("fail_when", "The responses that fail the step."),
    ("branches", "The branches, which run at the same time."),
    ("condition", "The condition that chooses the branch."),
    ("condition_met_branch", "The branch that runs if the condition is true."),
    ("default_branch", "The branch that runs if the condition is false."),
    ("items", "An array, or a reference to an array."),
    ("item_name", "The name of the item in references; by default `item`."),
    ("max_concurrency", "The number of items that run at the same time."),
    ("output", "The output of each item."),
    ("seconds", "The time to wait, or a reference to the time."),
    ("until", "An RFC 3339 time, or a reference to such a time."),
    ("event", "The event to wait for."),
    ("result", "The value, with references resolved."),
    ("workflow", "The ID or the slug of the workflow."),
    ("version_id", "The version; by default the latest one."),
    ("inputs", "The inputs of the workflow."),
    ("wait", "If false, the step ends when the workflow has started."),
    ("step_id", "The name of the step in references. Required, unless `id` is set."),
    ("id", "The same as `step_id`."),
    ("name", "A display name."),
    (
        "depends_on",
        "Steps that must end before this step starts, in addition to the steps that it refers to.",
    ),
    ("continue_on_error", "If true, the workflow continues if the step fails."),
    ("retry", "The retries after errors."),
    ("on_exhausted", "What happens after the last attempt; by default the step fails."),
];

/// Returns the schema of an array of at least one condition.
fn conditions(generator: &mut SchemaGenerator) -> Value {
    json!({"type": "array", "minItems": 1, "items": generator.subschema_for::<Condition>()})
}

/// Adds the descriptions in [`MEANINGS`] to the fields that have no description.
fn explained(mut properties: Value) -> Value {
    for (name, schema) in properties.as_object_mut().into_iter().flatten() {
        let meaning = MEANINGS.iter().find(|(known, _)| known == name);
        if let (Some((_, text)), Some(schema)) = (meaning, schema.as_object_mut()) {
            schema.entry("description").or_insert_with(|| (*text).into());
        }
    }
    properties
}

fn described(schema: Value, text: &str) -> Value {
    merged(schema, json!({"description": text}))
}

/// Returns the schema of an object with these fields.
fn object_of(what: &str, required: &[&str], properties: Value) -> Schema {
    json_schema!({
        "type": "object", "description": what, "properties": explained(properties),
        "required": required, "additionalProperties": false,
    })
}

/// The required fields of a type of step, and the schemas of the fields that only this type has.
type Fields = (&'static [&'static str], Value);

fn steps(generator: &mut SchemaGenerator) -> [(&'static str, &'static str, Fields); 8] {
    let text = || json!({"type": "string", "minLength": 1});
    let workflow = json!({
        "workflow": text(), "version_id": nullable(json!({"type": "string"})), "inputs": object(),
        "wait": flag(),
    });
    let fallback = optional::<ModelFallback>(generator);
    let model = json!({
        "model": text(), "version": {}, "params": object(), "fallback": fallback,
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
        ("wait", wait, (&[], waits(generator))),
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

/// Returns the schema of an array of at least one step.
fn some_steps(generator: &mut SchemaGenerator) -> Value {
    json!({"type": "array", "minItems": 1, "items": generator.subschema_for::<Step>()})
}

fn http(generator: &mut SchemaGenerator) -> Value {
    let own = json!({
        "timeout": nullable(number(0.0, HTTP_TIMEOUT_MAX)),
        "auth": optional::<Auth>(generator),
        "fail_when": {"anyOf": [
            {"type": "string", "const": "connection_error"},
            {"type": "string", "const": "non_2xx"},
            {"type": "array", "items": {"type": "integer", "minimum": 100, "maximum": 599}},
            {"type": "null"},
        ]},
        "fallback": optional::<HttpFallback>(generator),
    });
    merged(request(generator), own)
}

fn parallel(generator: &mut SchemaGenerator) -> Value {
    let name = nullable(json!({"type": "string"}));
    let fields = json!({"name": name, "steps": some_steps(generator)});
    let branch = object_of("A branch.", &["steps"], fields);
    json!({"branches": {"type": "array", "minItems": 1, "items": branch}})
}

fn choice(generator: &mut SchemaGenerator) -> Value {
    json!({
        "condition": generator.subschema_for::<Condition>(),
        "condition_met_branch": generator.subschema_for::<Branch>(),
        "default_branch": optional::<Branch>(generator),
    })
}

fn map(generator: &mut SchemaGenerator) -> Value {
    json!({
        "items": {"anyOf": [{"type": "array", "items": {}}, {"type": "string"}]},
        "item_name": {"type": ["string", "null"], "pattern": NAME},
        "max_concurrency": nullable(json!({"type": "integer", "minimum": 1, "maximum": 1000})),
        "output": {},
        "steps": some_steps(generator),
    })
}

fn waits(generator: &mut SchemaGenerator) -> Value {
    let longest = WAIT_MAX.as_secs_f64();
    json!({
        "seconds": {"type": ["number", "string", "null"], "minimum": 0.0, "maximum": longest},
        "until": {"type": ["string", "null"]},
        "event": optional::<WaitedEvent>(generator),
    })
}

/// Returns the fields of a request that an `http` step and its fallback share.
fn request(generator: &mut SchemaGenerator) -> Value {
    // The pattern accepts any letter case. With an `enum` that lists both cases, generated clients
    // would define the same name twice.
    let any_case = |letter: char| format!("[{letter}{}]", letter.to_ascii_lowercase());
    let methods: Vec<String> =
        Method::ALL.iter().map(|method| method.as_str().chars().map(any_case).collect()).collect();
    let methods = format!("^({})$", methods.join("|"));
    json!({
        "method": {"type": ["string", "null"], "pattern": methods, "examples": ["POST"]},
        "url": {"type": "string", "minLength": 1},
        "headers": optional::<Headers>(generator),
        "query_params": optional::<QueryParams>(generator),
        "body": {},
    })
}

/// Returns the schema of one type of step, with the fields that several types share.
fn step(generator: &mut SchemaGenerator, kind: &str, what: &str, (required, own): Fields) -> Value {
    let longest = if kind == "http" { HTTP_TIMEOUT_MAX } else { TIMEOUT_MAX };
    let least = if kind == "http" { 0.0 } else { 0.001 };
    let common = json!({
        "type": {"type": "string", "const": kind},
        "step_id": {"type": ["string", "null"], "pattern": NAME},
        "id": {"type": ["string", "null"], "pattern": NAME},
        "name": nullable(json!({"type": "string"})),
        "depends_on": nullable(json!({"type": "array", "items": {"type": "string"}})),
        "continue_on_error": nullable(json!({"type": "boolean"})),
        "timeout_seconds": nullable(number(least, longest)),
    });
    let retried = match kind {
        "model" | "http" | "workflow" => json!({
            "retry": optional::<Retry>(generator),
            "on_exhausted": {"type": ["string", "null"], "enum": ["fail", "pause", null]},
        }),
        _ => json!({}),
    };
    let required: Vec<&str> = [&["type"], required].concat();
    object_of(what, &required, merged(merged(common, retried), own)).to_value()
}

/// Returns the fields of both objects.
fn merged(mut one: Value, other: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut one, other) {
        fields.extend(more);
    }
    one
}

fn number(least: f64, most: f64) -> Value {
    json!({"type": "number", "minimum": least, "maximum": most})
}

/// Adds null to the types of a schema, because an optional field that is null counts as absent.
fn nullable(mut schema: Value) -> Value {
    if let Some(kind) = schema.get_mut("type").filter(|kind| kind.is_string()) {
        *kind = json!([kind.take(), "null"]);
    }
    schema
}

/// Returns a schema that allows null in addition to the values of a named schema.
fn optional<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    json!({"anyOf": [generator.subschema_for::<T>(), {"type": "null"}]})
}

#[cfg(test)]
#[path = "definition_tests.rs"]
mod tests;
