//! Reads a request. Everything that the schema of the request allows can be expressed, so this never
//! fails.

use orrery_wire::responses::answer::{self, Settings};
use orrery_wire::responses::{
    self as wire, AnswerContent, AnswerPart, CreateRequest, InputContent, InputPart, InputRole,
    Item, ReasoningItem, ReasoningPart, TextFormat, ToolMode,
};
use serde_json::{Map, Value, json};

use super::{FIELD_END, SUMMARIZE, SUMMARY};
use crate::{
    Detail, Effort, Format, Image, Message, Part, Reasoning, Request, Role, Thinking, Tool,
    ToolCall, ToolChoice, Verbosity,
};

/// The value of `include` for reasoning that clients return.
const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

/// Returns whether `encrypted_content` repeats the text of reasoning.
#[must_use]
pub fn shows_reasoning(request: &CreateRequest) -> bool {
    request.include.iter().flatten().any(|one| one == ENCRYPTED_REASONING)
}

/// Returns the settings of a request with their defaults, as every response repeats them.
#[must_use]
pub fn settings(request: &CreateRequest) -> Settings {
    let text = request.text.as_ref();
    let tool = |tool: &wire::Tool| answer::Tool {
        kind: "function",
        name: tool.name.clone(),
        description: tool.description.clone(),
        parameters: tool.parameters.clone(),
        strict: tool.strict,
    };
    let effort = request.reasoning.as_ref().and_then(|reasoning| reasoning.effort);
    Settings {
        model: request.model.clone(),
        background: request.background.unwrap_or(false),
        instructions: request.instructions.clone(),
        max_output_tokens: request.max_output_tokens,
        max_tool_calls: None,
        metadata: request.metadata.as_ref().map(|all| all.0.clone()).unwrap_or_default(),
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        previous_response_id: request.previous_response_id.clone(),
        prompt_cache_key: request.prompt_cache_key.clone(),
        reasoning: answer::Reasoning { effort, summary: None },
        safety_identifier: request.safety_identifier.clone(),
        service_tier: "default",
        store: request.store.unwrap_or(true),
        temperature: request.temperature.unwrap_or(1.0),
        text: answer::Text {
            format: text.and_then(|text| text.format.as_ref()).map_or(answer::Format::Text, shown),
            verbosity: text.and_then(|text| text.verbosity).unwrap_or(wire::Verbosity::Medium),
        },
        tool_choice: request.tool_choice.clone().unwrap_or(wire::ToolChoice::Mode(ToolMode::Auto)),
        tools: request.tools.iter().flatten().map(tool).collect(),
        top_logprobs: 0,
        top_p: request.top_p.unwrap_or(1.0),
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        truncation: request.truncation.unwrap_or(wire::Truncation::Disabled),
        user: request.user.clone(),
    }
}

fn shown(format: &TextFormat) -> answer::Format {
    match format {
        TextFormat::Text {} => answer::Format::Text,
        TextFormat::JsonObject {} => answer::Format::JsonObject,
        TextFormat::JsonSchema { name, schema, description, strict } => {
            answer::Format::JsonSchema {
                name: name.clone(),
                description: description.clone(),
                schema: schema.clone(),
                strict: strict.unwrap_or(false),
            }
        }
    }
}

/// Reads a request for an answer to `items`: the items of the responses that it continues, and
/// those of its own input.
#[must_use]
pub fn read(request: CreateRequest, items: Vec<Item>) -> Request {
    let instructions = request.instructions.filter(|text| !text.is_empty());
    let instructions =
        instructions.map(|text| Message { role: Role::System, parts: vec![Part::Text(text)] });
    let mut tools: Vec<Tool> = request.tools.into_iter().flatten().map(tool).collect();
    let tool_choice = request.tool_choice.map(|choice| match choice {
        wire::ToolChoice::Mode(mode) => of_mode(mode),
        wire::ToolChoice::Function(function) => ToolChoice::Named(function.name),
        wire::ToolChoice::Allowed(allowed) => {
            tools.retain(|tool| allowed.tools.iter().any(|one| one.name == tool.name));
            of_mode(allowed.mode)
        }
    });
    let (format, verbosity) = request.text.map_or((None, None), |text| {
        let verbosity = text.verbosity.map(|verbosity| match verbosity {
            wire::Verbosity::Low => Verbosity::Low,
            wire::Verbosity::Medium => Verbosity::Medium,
            wire::Verbosity::High => Verbosity::High,
        });
        (text.format.and_then(format), verbosity)
    });
    let effort = request.reasoning.and_then(|reasoning| reasoning.effort);
    Request {
        model: request.model,
        messages: instructions.into_iter().chain(conversation(items)).collect(),
        tools,
        tool_choice,
        parallel_calls: request.parallel_tool_calls,
        format,
        verbosity,
        token_limit: request.max_output_tokens,
        temperature: request.temperature,
        top_p: request.top_p,
        thinking: effort.map_or(Thinking::Unset, |effort| Thinking::On(Some(of_effort(effort)))),
        is_stream: request.stream.unwrap_or(false),
        user: request.user.or(request.safety_identifier),
        ..Request::default()
    }
}

fn of_mode(mode: ToolMode) -> ToolChoice {
    match mode {
        ToolMode::None => ToolChoice::None,
        ToolMode::Auto => ToolChoice::Auto,
        ToolMode::Required => ToolChoice::Required,
    }
}

fn of_effort(effort: wire::Effort) -> Effort {
    match effort {
        wire::Effort::None => Effort::None,
        wire::Effort::Minimal => Effort::Minimal,
        wire::Effort::Low => Effort::Low,
        wire::Effort::Medium => Effort::Medium,
        wire::Effort::High => Effort::High,
        wire::Effort::Xhigh => Effort::Xhigh,
    }
}

fn format(format: TextFormat) -> Option<Format> {
    match format {
        TextFormat::Text {} => None,
        TextFormat::JsonObject {} => Some(Format::JsonObject),
        TextFormat::JsonSchema { name, schema, description, strict } => {
            Some(Format::JsonSchema { name: Some(name), description, schema, is_strict: strict })
        }
    }
}

fn tool(tool: wire::Tool) -> Tool {
    let empty = || Map::from_iter([("type".to_owned(), json!("object")), no_properties()]);
    Tool {
        name: tool.name,
        description: tool.description,
        parameters: tool.parameters.unwrap_or_else(empty),
        is_strict: tool.strict,
    }
}

fn no_properties() -> (String, Value) {
    ("properties".to_owned(), json!({}))
}

/// Returns the messages that express items. Adjacent items of the model are one message, unless a
/// message follows a text: servers require that the results of all calls follow their message.
/// References that are not resolved are left out.
#[must_use]
pub fn conversation(items: Vec<Item>) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    for item in items {
        match item {
            Item::Message(message) => {
                let role = match message.role {
                    InputRole::User => Role::User,
                    InputRole::System | InputRole::Developer => Role::System,
                };
                messages.push(Message { role, parts: parts(message.content) });
            }
            Item::Output(output) => {
                let parts = parts(output.output);
                let result = Part::ToolResult { id: output.call_id, parts, is_error: false };
                match messages.last_mut().filter(|last| has_only_results(last)) {
                    Some(last) => last.parts.push(result),
                    None => messages.push(Message { role: Role::User, parts: vec![result] }),
                }
            }
            Item::Answer(answer) => said(&mut messages, spoken(answer.content)),
            Item::Call(call) => {
                let (id, name, arguments) = (call.call_id, call.name, call.arguments);
                said(&mut messages, vec![Part::ToolCall(ToolCall { id, name, arguments })]);
            }
            Item::Reasoning(item) => {
                let reasoning = reasoning(item).map(Part::Reasoning);
                said(&mut messages, reasoning.into_iter().collect());
            }
            Item::Compaction(compaction) => {
                let content = &compaction.encrypted_content;
                let summary = content.strip_prefix(SUMMARY).unwrap_or(content);
                let text = format!("Summary of the conversation before this message:\n{summary}");
                messages.push(Message { role: Role::System, parts: vec![Part::Text(text)] });
            }
            Item::Reference(_) => {}
        }
    }
    messages
}

fn has_only_results(message: &Message) -> bool {
    message.role == Role::User
        && message.parts.iter().all(|part| matches!(part, Part::ToolResult { .. }))
        && !message.parts.is_empty()
}

/// Adds what the model said to its last message, or as a new one.
fn said(messages: &mut Vec<Message>, parts: Vec<Part>) {
    if parts.is_empty() {
        return;
    }
    let is_call = |part: &Part| matches!(part, Part::ToolCall(_));
    let is_reasoning = |part: &Part| matches!(part, Part::Reasoning(_));
    let continues = |last: &&mut Message| {
        last.role == Role::Assistant
            && (parts.iter().all(is_call)
                || last.parts.iter().any(is_call)
                || last.parts.iter().all(is_reasoning))
    };
    match messages.last_mut().filter(continues) {
        Some(last) => last.parts.extend(parts),
        None => messages.push(Message { role: Role::Assistant, parts }),
    }
}

/// Asks the model to summarize the conversation, for [`super::write_compaction`]: in its last message
/// if that is the user's, since some models require that the roles alternate.
pub fn ask_for_summary(messages: &mut Vec<Message>) {
    let part = Part::Text(SUMMARIZE.to_owned());
    match messages.last_mut().filter(|last| last.role == Role::User) {
        Some(last) => last.parts.push(part),
        None => messages.push(Message { role: Role::User, parts: vec![part] }),
    }
}

fn spoken(content: AnswerContent) -> Vec<Part> {
    match content {
        AnswerContent::Text(text) => vec![Part::Text(text)],
        AnswerContent::Parts(parts) => parts
            .into_iter()
            .map(|part| match part {
                AnswerPart::OutputText { text } | AnswerPart::InputText { text } => {
                    Part::Text(text)
                }
                AnswerPart::Refusal { refusal } => Part::Refusal(refusal),
            })
            .collect(),
    }
}

/// Returns the reasoning of an item; `None` if it has no text.
fn reasoning(item: ReasoningItem) -> Option<Reasoning> {
    let encrypted = item.encrypted_content.unwrap_or_default();
    let (field, repeated) = encrypted.split_once(FIELD_END).unwrap_or((&encrypted, ""));
    let parts = item.content.into_iter().flatten();
    let mut text: String = parts.map(|ReasoningPart::ReasoningText { text }| text).collect();
    if text.is_empty() {
        text = repeated.to_owned();
    }
    let signature = (!field.is_empty()).then(|| field.to_owned());
    (!text.is_empty()).then_some(Reasoning { text, signature })
}

fn parts(content: InputContent) -> Vec<Part> {
    match content {
        InputContent::Text(text) => vec![Part::Text(text)],
        InputContent::Parts(parts) => parts
            .into_iter()
            .map(|part| match part {
                InputPart::InputText { text } => Part::Text(text),
                InputPart::InputImage { image_url, detail } => {
                    let detail = detail.map(|detail| match detail {
                        wire::ImageDetail::Low => Detail::Low,
                        wire::ImageDetail::Auto => Detail::Auto,
                        wire::ImageDetail::High | wire::ImageDetail::Original => Detail::High,
                    });
                    Part::Image(Image::Url { url: image_url, detail })
                }
            })
            .collect(),
    }
}
