//! The tools offered to the model. The tools use the same layers of the service as clients do.
//!
//! Read-only tools run with every behavior, tools with effects only with behavior `agent`. Before a
//! tool creates anything, the id of the new object is committed. After a crash, the tool looks the
//! object up by this id and creates it only if it is missing. A tool returns text, truncated at a
//! limit.

mod act;
mod progress;
mod read;

pub(crate) use self::act::urls;
pub(crate) use self::read::unreadable;

use serde_json::{Map, Value, json};

use super::drive::text;
use super::servers::Called;
use super::service::Inner;
use orrery_domain::agent::{Begun, Behavior, Exchange, Task, ToolEnd, ToolResult, ToolTask};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::json_size::Size;
use orrery_domain::key_policy::Scope;
use orrery_domain::money::Usd;
use orrery_engine::{self as engine, ExchangeRun};
use orrery_http::request::count_values;
use orrery_runtime::turns::Turn;

/// Maximum bytes of a result returned to the model.
const RESULT_BYTES_MAX: usize = 16 * 1024;
/// Maximum number of JSON values in the arguments of one tool call.
const ARGUMENT_VALUES_MAX: usize = 10_000;
/// The suffix of a truncated result.
const CUT: &str = "… (cut)";

/// A tool that the model can call.
struct Tool {
    name: &'static str,
    description: &'static str,
    /// The input fields of the tool: each field's name, its type, whether it is required, and its
    /// description.
    fields: &'static [(&'static str, &'static str, bool, &'static str)],
    has_effects: bool,
    /// What the API key of the exchange needs.
    scope: Option<Scope>,
}

/// All tools.
const TOOLS: &[Tool] = &[
    Tool {
        name: "find_models",
        description: "Find models by words in their titles, descriptions and schemas",
        fields: &[("query", "string", false, "Words; without them the first models")],
        has_effects: false,
        scope: None,
    },
    Tool {
        name: "get_model",
        description: "The description, request schema and price of a model",
        fields: &[("model", "string", true, "The slug")],
        has_effects: false,
        scope: None,
    },
    Tool {
        name: "find_workflows",
        description: "Find the organization's workflows by words in their names and descriptions",
        fields: &[("query", "string", false, "Words; without them the newest workflows")],
        has_effects: false,
        scope: Some(Scope::Read),
    },
    Tool {
        name: "get_workflow",
        description: "A workflow with its input schema and its steps",
        fields: &[("workflow", "string", true, "The id or the slug")],
        has_effects: false,
        scope: Some(Scope::Read),
    },
    Tool {
        name: "list_executions",
        description: "The newest predictions and executions of workflows",
        fields: &[("limit", "integer", false, "1 to 20")],
        has_effects: false,
        scope: Some(Scope::Read),
    },
    Tool {
        name: "get_execution",
        description: "A prediction or an execution of a workflow, with its output",
        fields: &[("id", "string", true, "The id")],
        has_effects: false,
        scope: Some(Scope::Read),
    },
    Tool {
        name: "list_files",
        description: "The organization's files, the newest first",
        fields: &[("limit", "integer", false, "1 to 20")],
        has_effects: false,
        scope: Some(Scope::Read),
    },
    Tool {
        name: "ask_user",
        description: "Ask the user a question; the exchange ends with it",
        fields: &[
            ("question", "string", true, "The question"),
            ("options", "array", false, "Answers to choose from"),
        ],
        has_effects: false,
        scope: None,
    },
    Tool {
        name: "run_model",
        description: "Run a model and wait for its output. It may cost money",
        fields: &[
            ("model", "string", true, "The slug"),
            ("input", "object", true, "The input, as the model's request schema requires"),
        ],
        has_effects: true,
        scope: Some(Scope::Predict),
    },
    Tool {
        name: "run_workflow",
        description: "Run a workflow and wait for its output. It may cost money",
        fields: &[
            ("workflow", "string", true, "The id or the slug"),
            ("inputs", "object", false, "The inputs, as the workflow's input schema requires"),
        ],
        has_effects: true,
        scope: Some(Scope::WorkflowRun),
    },
    Tool {
        name: "create_workflow",
        description: "Create a workflow. Steps: {step_id, type: model, model, params}; params may \
            refer to {{inputs.NAME}} and {{STEP_ID.output}}",
        fields: &[
            ("name", "string", true, "The name"),
            ("description", "string", false, "What it does"),
            ("definition", "object", true, "{steps, input_schema}"),
        ],
        has_effects: true,
        scope: Some(Scope::WorkflowWrite),
    },
    Tool {
        name: "put_workflow_version",
        description: "Create or change a version of a workflow; it becomes the latest",
        fields: &[
            ("workflow", "string", true, "The id or the slug"),
            ("version_id", "string", true, "Such as v2"),
            ("definition", "object", true, "{steps, input_schema}"),
        ],
        has_effects: true,
        scope: Some(Scope::WorkflowWrite),
    },
];

/// Returns the tools of a behavior in OpenAI's format.
#[must_use]
pub(crate) fn offered(behavior: Behavior) -> Vec<Value> {
    let offered = TOOLS.iter().filter(|tool| !tool.has_effects || behavior == Behavior::Agent);
    offered.map(Tool::shown).collect()
}

impl Tool {
    fn shown(&self) -> Value {
        let properties: Map<String, Value> = self
            .fields
            .iter()
            .map(|(name, kind, _, description)| {
                ((*name).to_owned(), json!({"type": kind, "description": description}))
            })
            .collect();
        let required = self.fields.iter().filter(|(_, _, is_required, _)| *is_required);
        let required: Vec<&str> = required.map(|(name, ..)| *name).collect();
        let parameters = json!({"type": "object", "properties": properties, "required": required});
        let function = json!({
            "name": self.name, "description": self.description, "parameters": parameters,
        });
        json!({"type": "function", "function": function})
    }
}

/// The result of a tool.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub result: ToolResult,
    pub events: Vec<Value>,
    pub media: Vec<String>,
    /// The cost of the tool's work, which was charged separately.
    pub cost: Usd,
}

impl Outcome {
    /// Creates a text result for the model.
    fn said(content: impl Into<String>) -> Self {
        let result = ToolResult { content: cut(content.into()), kind: None };
        Self { result, events: Vec::new(), media: Vec::new(), cost: Usd::ZERO }
    }

    /// Creates a result in JSON.
    fn json(value: &Value) -> Self {
        Self::said(value.to_string())
    }

    /// Creates the result for a rejected input, with the reason.
    fn refused(reason: impl Into<String>) -> Self {
        let mut outcome = Self::said(format!("refused: {}", reason.into()));
        outcome.result.kind = Some(ToolEnd::Refused);
        outcome
    }

    fn with_event(mut self, event: Value) -> Self {
        self.events.push(event);
        self
    }
}

/// Truncates text to the maximum for the model.
fn cut(mut text: String) -> String {
    if text.len() > RESULT_BYTES_MAX {
        let end = (0..=RESULT_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push_str(CUT);
    }
    text
}

/// One tool call.
pub(crate) struct Use<'a> {
    pub inner: &'a Inner,
    pub run: &'a mut ExchangeRun,
    pub exchange: &'a Exchange,
    pub task: ToolTask,
    /// The events committed at the start of the call.
    pub events: Vec<Value>,
    /// The cost of the exchange so far.
    pub spent: Usd,
}

impl Use<'_> {
    /// Runs the tool.
    ///
    /// # Errors
    /// Returns an error if the store cannot be read or written.
    pub(crate) async fn run(&mut self) -> Result<Outcome, engine::Error> {
        let name = self.task.call.name.clone();
        let Some(tool) = TOOLS.iter().find(|tool| tool.name == name) else {
            if self.inner.servers.may_have(&name) {
                return self.call_server(&name).await;
            }
            let names: Vec<&str> = TOOLS.iter().map(|tool| tool.name).collect();
            let message = format!("there is no tool '{name}'; the tools are {}", names.join(", "));
            return Ok(Outcome::refused(message));
        };
        if tool.has_effects && self.exchange.behavior != Behavior::Agent {
            return Ok(Outcome::refused(format!("'{name}' runs in behavior agent only")));
        }
        let policies = self.inner.engine.policies();
        if let Some(scope) = tool.scope
            && let Some(entry) = policies.of(self.run.execution().key)
            && let Err(refused) = entry.may(scope)
        {
            return Ok(Outcome::refused(refused.to_string()));
        }
        let (arguments, room) = match self.arguments().await {
            Ok(arguments) => arguments,
            Err(refused) => return Ok(refused),
        };
        let missing = tool.fields.iter().find(|(field, _, is_required, _)| {
            *is_required && arguments.get(*field).is_none_or(Value::is_null)
        });
        if let Some((field, ..)) = missing {
            return Ok(Outcome::refused(format!("'{field}' is missing")));
        }
        match tool.name {
            "run_model" => self.run_model(arguments, room).await,
            "run_workflow" => self.run_workflow(arguments, room).await,
            "create_workflow" => self.create_workflow(&arguments).await,
            "put_workflow_version" => self.put_version(&arguments).await,
            "ask_user" => Ok(ask_user(&arguments)),
            _ => self.read(tool.name, &arguments).await,
        }
    }

    /// Calls a tool of an MCP server. After a crash the call is repeated with the same key.
    async fn call_server(&mut self, name: &str) -> Result<Outcome, engine::Error> {
        if self.exchange.behavior != Behavior::Agent {
            return Ok(Outcome::refused(format!("'{name}' runs in behavior agent only")));
        }
        let (arguments, room) = match self.arguments().await {
            Ok(arguments) => arguments,
            Err(refused) => return Ok(refused),
        };
        let message = format!("Calling {name}");
        let event = json!({
            "type": "status", "message": message, "tool_name": name, "parameters": arguments,
        });
        self.begin(vec![event]).await?;
        // Release the memory, because the server may take a long time to respond.
        drop(room);
        let step = self.run.steps().len();
        let key = format!("{}:{step}", self.run.execution().id);
        Ok(match self.call_and_report(name, arguments, &key).await? {
            Called::Said(text) => Outcome::said(text),
            Called::Refused(reason) => Outcome::refused(reason),
        })
    }

    /// Parses the arguments of the call. Returns them with a reservation for their memory, or the
    /// rejection.
    async fn arguments(&self) -> Result<(Map<String, Value>, Option<Turn>), Outcome> {
        let text = self.task.call.arguments.as_str();
        let size = Size::bound(text.len(), count_values(text.as_bytes()));
        let room = self.inner.engine.room_to_make(self.organization(), size).await;
        parse_arguments(text).map(|arguments| (arguments, room)).map_err(Outcome::refused)
    }

    fn organization(&self) -> OrganizationId {
        self.run.execution().organization
    }

    /// Commits the start of the tool call, with the ids of the objects that the tool will create,
    /// unless the start is already committed.
    async fn begin(&mut self, events: Vec<Value>) -> Result<(), engine::Error> {
        if self.run.steps().last().is_some_and(|step| !step.status.is_final()) {
            return Ok(());
        }
        self.events = events;
        let begun = Begun { task: Task::Tool(self.task.clone()), events: self.events.clone() };
        let child: Option<ExecutionId> = self.task.execution;
        self.run.begin_step(text(&begun)?, child).await
    }
}

fn parse_arguments(text: &str) -> Result<Map<String, Value>, String> {
    if count_values(text.as_bytes()) > ARGUMENT_VALUES_MAX {
        return Err(format!("the arguments contain more than {ARGUMENT_VALUES_MAX} JSON values"));
    }
    serde_json::from_str(text).map_err(|_other| "the arguments are not a JSON object".to_owned())
}

fn ask_user(arguments: &Map<String, Value>) -> Outcome {
    let question = arguments.get("question").and_then(Value::as_str).unwrap_or_default();
    let options = arguments.get("options").filter(|options| options.is_array()).cloned();
    let mut outcome = Outcome::said("The question is shown to the user.");
    outcome.result.kind = Some(ToolEnd::Clarification(question.to_owned()));
    outcome.with_event(json!({
        "type": "clarification_needed",
        "question": question,
        "options": options.unwrap_or_else(|| json!([])),
        "context": null,
        "requires_response": true,
    }))
}

/// Splits a query into words in lower case.
fn words(arguments: &Map<String, Value>) -> Vec<String> {
    let query = arguments.get("query").and_then(Value::as_str).unwrap_or_default();
    query.split_whitespace().take(16).map(str::to_lowercase).collect()
}

/// Counts the words that occur in the text.
fn score(words: &[String], text: &str) -> usize {
    let text = text.to_lowercase();
    words.iter().filter(|word| text.contains(word.as_str())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_tool_arguments_are_an_object_of_bounded_values() {
        let of = |count: usize| format!("{{\"input\": [{}0]}}", "0,".repeat(count));
        assert!(parse_arguments(&of(ARGUMENT_VALUES_MAX / 2)).is_ok());
        for (text, reason) in [
            (of(ARGUMENT_VALUES_MAX), "contain more than 10000 JSON values"),
            (
                format!("{{\"a\": {}}}", of(ARGUMENT_VALUES_MAX)),
                "contain more than 10000 JSON values",
            ),
            ("[1]".to_owned(), "are not a JSON object"),
            (String::new(), "are not a JSON object"),
        ] {
            let refused = parse_arguments(&text).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
    }

    #[test]
    fn agent_tools_with_effects_are_offered_only_in_behavior_agent() {
        let names = |behavior| -> Vec<String> {
            offered(behavior)
                .iter()
                .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(names(Behavior::Agent).len(), TOOLS.len());
        for behavior in [Behavior::Plan, Behavior::Ask] {
            let names = names(behavior);
            assert!(names.contains(&"find_models".to_owned()), "{names:?}");
            assert!(!names.iter().any(|name| name.starts_with("run_")), "{names:?}");
            assert!(!names.iter().any(|name| name.contains("create")), "{names:?}");
        }
    }

    #[test]
    fn agent_tool_result_is_cut_at_a_character() {
        let outcome = Outcome::said("é".repeat(RESULT_BYTES_MAX));
        assert!(outcome.result.content.len() <= RESULT_BYTES_MAX + CUT.len());
        assert!(outcome.result.content.ends_with("é… (cut)"));
    }
}
