//! A stored agent exchange: its settings and its steps. A step is either an answer of the model or
//! the result of a tool.
//!
//! The next action of an exchange depends only on its completed steps ([`next`]). Pure: nothing
//! here calls a model or runs a tool.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::chat::Tokens;
use super::ids::{ExecutionId, SessionId, WorkflowId};
use super::money::Usd;

/// The lane of all exchanges in the history's indexes. Scheduling uses one lane per session
/// instead.
pub const LANE: &str = "agent";
/// Prefix of a session's lane.
pub const LANE_PREFIX: &str = "agent:";
/// Maximum number of rejected inputs per tool and exchange; one more ends the exchange.
pub const REFUSALS_MAX: usize = 2;

/// Returns the lane of a session, whose exchanges run one at a time.
#[must_use]
pub fn lane_of_session(id: SessionId) -> String {
    format!("{LANE_PREFIX}{id}")
}

/// The effort and cost level of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    #[default]
    Max,
    Eco,
}

/// What an exchange is allowed to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Behavior {
    /// Use all tools.
    #[default]
    Agent,
    /// Describe a plan; use no tool that changes anything or costs money.
    Plan,
    /// Use only read-only tools.
    Ask,
}

impl Mode {
    /// Returns the name that is used in requests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Max => "max",
            Self::Eco => "eco",
        }
    }
}

impl Behavior {
    /// Returns the name that is used in requests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Plan => "plan",
            Self::Ask => "ask",
        }
    }
}

/// One exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    pub session: SessionId,
    /// The session's name, chosen by the client.
    pub session_name: String,
    /// The chat model.
    pub model: String,
    pub mode: Mode,
    pub behavior: Behavior,
    pub limits: Limits,
    /// Tokens used by the model's answers.
    #[serde(default)]
    pub tokens: Tokens,
    /// Whether the exchange ended with a question to the client.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_clarification: bool,
}

/// The limits of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub steps: u32,
    /// Running time, in milliseconds.
    pub time_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Usd>,
}

/// A client's question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    pub prompt: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_urls: Vec<String>,
    /// The earlier conversation, for clients that keep it themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<Turn>,
}

/// A message of the earlier conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Whether the client, rather than the agent, wrote the message.
    pub is_client: bool,
    pub text: String,
}

/// A tool call requested by a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// The arguments as JSON text, exactly as the model wrote them.
    pub arguments: String,
}

/// The stored input of a step that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    pub task: Task,
    /// The events sent when the step started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Value>,
}

/// The task of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Ask the model.
    Answer,
    Tool(ToolTask),
    /// Ask the model to summarize the earlier conversation.
    Summary,
}

/// A tool run. The ids of the resources that the tool creates are chosen before the run, so
/// repeating the run does not create duplicates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolTask {
    pub call: ToolCall,
    /// The prediction or workflow execution that the tool starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionId>,
    /// The workflow that the tool creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<WorkflowId>,
}

/// The stored output of an ended step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub result: StepResult,
    /// The events sent when the step ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Value>,
    /// The media files that the step created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<String>,
    /// Tokens used by an answer.
    #[serde(default)]
    pub tokens: Tokens,
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepResult {
    Answer(Answer),
    Tool(ToolResult),
    /// Replaces earlier exchanges.
    Summary(String),
}

/// An answer of the model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Answer {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ToolCall>,
}

/// The result of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The text for the model. The text is treated as data, never as instructions.
    pub content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ToolEnd>,
}

/// How a tool ended, other than by a plain success or failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolEnd {
    /// The tool's input was rejected.
    Refused,
    /// The client must answer this question.
    Clarification(String),
}

/// The part of a step that [`next`] needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepRecord {
    pub task: Task,
    pub done: Option<StepResult>,
    pub cost: Usd,
}

/// The next action of an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Repeat the last step, which has begun but not ended, using the same ids.
    Resume,
    Ask,
    Run(ToolCall),
    End(End),
}

/// How an exchange ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// With the model's final answer.
    Answered(String),
    /// With a question to the client.
    Clarification(String),
    StepLimit,
    CostLimit,
    /// The model repeatedly gave a tool invalid input.
    Refused {
        tool: String,
    },
}

/// Returns the next action given the steps so far.
#[must_use]
pub fn next(steps: &[StepRecord], limits: &Limits) -> Next {
    let Some(last) = steps.last() else { return Next::Ask };
    let Some(result) = &last.done else { return Next::Resume };
    if let StepResult::Tool(ToolResult { kind: Some(kind), .. }) = result {
        match kind {
            ToolEnd::Clarification(question) => {
                return Next::End(End::Clarification(question.clone()));
            }
            ToolEnd::Refused => {
                let Task::Tool(task) = &last.task else { return Next::Ask };
                if refusals(steps, &task.call.name) > REFUSALS_MAX {
                    return Next::End(End::Refused { tool: task.call.name.clone() });
                }
            }
        }
    }
    let answer = steps.iter().enumerate().rev().find_map(|(at, step)| match &step.done {
        Some(StepResult::Answer(answer)) => Some((at, answer)),
        Some(StepResult::Tool(_) | StepResult::Summary(_)) | None => None,
    });
    let Some((at, answer)) = answer else { return Next::Ask };
    if answer.calls.is_empty() {
        return Next::End(End::Answered(answer.text.clone().unwrap_or_default()));
    }
    let spent: Usd = steps.iter().map(|step| step.cost).sum();
    if limits.cost.is_some_and(|most| spent >= most) {
        return Next::End(End::CostLimit);
    }
    let own = steps.iter().filter(|step| step.task != Task::Summary).count();
    if u32::try_from(own).unwrap_or(u32::MAX) >= limits.steps {
        return Next::End(End::StepLimit);
    }
    let made = steps.len().saturating_sub(at + 1);
    answer.calls.get(made).map_or(Next::Ask, |call| Next::Run(call.clone()))
}

/// Returns the number of rejected inputs of a tool.
fn refusals(steps: &[StepRecord], tool: &str) -> usize {
    let is_refusal = |step: &&StepRecord| {
        let is_tool = matches!(&step.task, Task::Tool(task) if task.call.name == tool);
        let refused = Some(ToolEnd::Refused);
        is_tool && matches!(&step.done, Some(StepResult::Tool(result)) if result.kind == refused)
    };
    steps.iter().filter(is_refusal).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { steps: 6, time_ms: 1000, cost: None };

    fn call(name: &str) -> ToolCall {
        ToolCall { id: "c".to_owned(), name: name.to_owned(), arguments: "{}".to_owned() }
    }

    fn answer(text: &str, calls: &[&str]) -> StepRecord {
        let calls = calls.iter().map(|name| call(name)).collect();
        let answer = Answer { text: Some(text.to_owned()), calls };
        let done = Some(StepResult::Answer(answer));
        StepRecord { task: Task::Answer, done, cost: Usd::from_micros(10) }
    }

    fn tool(name: &str, kind: Option<ToolEnd>) -> StepRecord {
        let task = ToolTask { call: call(name), execution: None, workflow: None };
        let done = StepResult::Tool(ToolResult { content: String::new(), kind });
        StepRecord { task: Task::Tool(task), done: Some(done), cost: Usd::ZERO }
    }

    #[test]
    fn exchange_runs_calls_of_an_answer_in_order_then_asks_again() {
        let mut steps = Vec::new();
        assert_eq!(next(&steps, &LIMITS), Next::Ask);
        steps.push(answer("", &["a", "b"]));
        assert_eq!(next(&steps, &LIMITS), Next::Run(call("a")));
        steps.push(tool("a", None));
        assert_eq!(next(&steps, &LIMITS), Next::Run(call("b")));
        let begun = StepRecord { done: None, ..tool("b", None) };
        assert_eq!(next(&[steps.clone(), vec![begun]].concat(), &LIMITS), Next::Resume);
        steps.push(tool("b", None));
        assert_eq!(next(&steps, &LIMITS), Next::Ask);
        steps.push(answer("done", &[]));
        assert_eq!(next(&steps, &LIMITS), Next::End(End::Answered("done".to_owned())));
    }

    #[test]
    fn exchange_ends_at_its_limits() {
        let endless = |count: usize| -> Vec<StepRecord> {
            (0..count).flat_map(|_| [answer("", &["a"]), tool("a", None)]).collect()
        };
        assert_eq!(next(&endless(2), &LIMITS), Next::Ask);
        assert_eq!(next(&endless(3), &LIMITS), Next::End(End::StepLimit));
        let dear = Limits { cost: Some(Usd::from_micros(20)), ..LIMITS };
        assert_eq!(next(&endless(1), &dear), Next::Ask);
        assert_eq!(next(&endless(2), &dear), Next::End(End::CostLimit));
        let last_words = [endless(2), vec![answer("done", &[])]].concat();
        assert_eq!(next(&last_words, &dear), Next::End(End::Answered("done".to_owned())));
    }

    #[test]
    fn exchange_asks_after_a_summary_which_does_not_count_as_a_step() {
        let summary = || StepRecord {
            task: Task::Summary,
            done: Some(StepResult::Summary("They met.".to_owned())),
            cost: Usd::ZERO,
        };
        assert_eq!(next(&[summary()], &LIMITS), Next::Ask);
        let steps = [answer("", &["a"]), tool("a", None), summary()];
        assert_eq!(next(&steps, &LIMITS), Next::Ask);
        let rest = [answer("", &["a", "b"]), tool("a", None), tool("b", None)];
        let steps = [steps.to_vec(), rest.to_vec()].concat();
        assert_eq!(next(&steps[..5], &Limits { steps: 5, ..LIMITS }), Next::Run(call("b")));
        assert_eq!(next(&steps, &Limits { steps: 5, ..LIMITS }), Next::End(End::StepLimit));
    }

    #[test]
    fn exchange_tolerates_two_refusals_of_a_tool() {
        let refused = || tool("a", Some(ToolEnd::Refused));
        let mut steps = vec![answer("", &["a", "a", "a", "b"]), refused(), refused()];
        assert_eq!(next(&steps, &LIMITS), Next::Run(call("a")));
        steps.push(refused());
        assert_eq!(next(&steps, &LIMITS), Next::End(End::Refused { tool: "a".to_owned() }));
    }

    #[test]
    fn exchange_ends_with_a_question_to_the_client() {
        let asks = tool("ask_user", Some(ToolEnd::Clarification("Which?".to_owned())));
        let steps = [answer("", &["ask_user", "a"]), asks];
        assert_eq!(next(&steps, &LIMITS), Next::End(End::Clarification("Which?".to_owned())));
    }
}
