//! Responses in OpenAI's format: the request. What clients receive is in [`answer`]
//! and [`event`].
//!
//! Items and parts may have fields that are not listed here, such as `status` and `annotations`, so
//! that a client can return the items of an answer as they are.

pub mod answer;
pub mod event;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::chat::MODEL_CHARS_MAX;
use super::metadata::{METADATA_VALUE_MAX, Metadata};
use super::pattern;

/// Maximum number of items in an input.
pub const ITEMS_MAX: usize = 10_000;
/// Maximum number of parts of a message, of the output of a function, or of reasoning.
pub const PARTS_MAX: usize = 5000;
/// Maximum number of tools in a request.
pub const TOOLS_MAX: usize = 1024;
/// Maximum number of entries of `include`.
pub const INCLUDES_MAX: usize = 64;
/// Maximum length of the content of a compaction, in characters.
pub const COMPACTION_CHARS_MAX: usize = 262_144;
/// Maximum length of an ID, in characters.
pub const ID_CHARS_MAX: usize = 256;

/// The sentence about a tool of another type.
const FUNCTIONS_ONLY: &str = "is not supported: only tools of the type function are";

/// The types of objects, each with a single value.
macro_rules! tags {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
        pub enum $name {
            #[default]
            #[serde(rename = $text)]
            Tag,
        }
    )+};
}

tags! {
    /// The type of a message.
    MessageTag = "message";
    /// The type of a call.
    CallTag = "function_call";
    /// The type of the output of a function.
    OutputTag = "function_call_output";
    /// The type of reasoning.
    ReasoningTag = "reasoning";
    /// The type of a reference.
    ReferenceTag = "item_reference";
    /// The type of a compaction.
    CompactionTag = "compaction";
    /// The type of a function.
    FunctionTag = "function";
    /// The type of a choice between some of the tools.
    AllowedTag = "allowed_tools";
    /// The role of the model.
    AssistantTag = "assistant";
}

/// A response to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "ResponseRequest",
    example = json!({"model": "llama-3", "input": "Say hello."})
)]
pub struct CreateRequest {
    /// The slug of a local chat model, an alias of the configuration, or a model ID of the
    /// upstream.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// The message of the user as text, or a list of items, oldest first.
    pub input: Input,
    /// Instructions that precede the conversation. Those of the previous response do not count.
    pub instructions: Option<String>,
    /// The functions that the model may call.
    #[schemars(length(max = TOOLS_MAX))]
    pub tools: Option<Vec<Tool>>,
    /// Whether the model calls tools. Defaults to `auto`.
    pub tool_choice: Option<ToolChoice>,
    /// Whether the model may call several tools at once. Defaults to true.
    pub parallel_tool_calls: Option<bool>,
    /// The form of the text.
    pub text: Option<TextConfig>,
    /// How much the model reasons.
    pub reasoning: Option<ReasoningConfig>,
    /// The maximum number of tokens of the answer, including reasoning.
    #[schemars(range(min = 1, max = u32::MAX))]
    pub max_output_tokens: Option<u64>,
    /// The sampling temperature. Higher values make the answer more random.
    #[schemars(range(min = 0, max = 2))]
    pub temperature: Option<f64>,
    /// Sample only from the most likely tokens whose probabilities add up to this value.
    #[schemars(range(min = 0, max = 1))]
    pub top_p: Option<f64>,
    /// Returned with the response. The service never drops items: a conversation that does not fit
    /// the model's context returns 400.
    pub truncation: Option<Truncation>,
    /// What the answer also contains. `reasoning.encrypted_content` repeats the reasoning in a form
    /// that clients return; other values are ignored.
    #[schemars(length(max = INCLUDES_MAX))]
    pub include: Option<Vec<String>>,
    /// Names and values of the client, which are returned with the response.
    pub metadata: Option<Metadata>,
    /// Whether to keep the response, so that it can be read and continued. Defaults to true.
    pub store: Option<bool>,
    /// The stored response that this one continues.
    #[schemars(length(max = ID_CHARS_MAX))]
    pub previous_response_id: Option<String>,
    /// Whether to answer at once, and to create the response in the background.
    pub background: Option<bool>,
    /// Whether to stream the answer as server-sent events.
    pub stream: Option<bool>,
    /// Accepted and ignored.
    pub stream_options: Option<Map<String, Value>>,
    /// An ID of the end user, which is passed on.
    #[schemars(length(max = METADATA_VALUE_MAX))]
    pub user: Option<String>,
    /// An ID of the end user, which is passed on as `user` if that is absent.
    #[schemars(length(max = METADATA_VALUE_MAX))]
    pub safety_identifier: Option<String>,
    /// Returned with the response: the servers of models cache prompts by themselves.
    #[schemars(length(max = METADATA_VALUE_MAX))]
    pub prompt_cache_key: Option<String>,
    /// Accepted and ignored.
    pub service_tier: Option<String>,
}

/// The input of a response.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ResponseInput")]
pub enum Input {
    Text(String),
    Items(#[schemars(length(min = 1, max = ITEMS_MAX))] Vec<Item>),
}

/// An item of the input.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ResponseInputItem")]
pub enum Item {
    /// A message to the model.
    Message(InputMessage),
    /// A message of the model.
    Answer(AnswerMessage),
    /// A call of a function by the model.
    Call(FunctionCall),
    /// The output of a function.
    Output(FunctionCallOutput),
    /// Reasoning of the model.
    Reasoning(ReasoningItem),
    /// An item of a stored response.
    Reference(ItemReference),
    /// A conversation that was compacted.
    Compaction(CompactionItem),
}

/// A message to the model.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseInputMessage")]
pub struct InputMessage {
    /// Always `message`, which is the default.
    #[serde(rename = "type", default)]
    #[schemars(with = "String", extend("const" = "message"))]
    pub kind: MessageTag,
    /// The author's role.
    pub role: InputRole,
    /// The content, as text or as parts.
    pub content: InputContent,
    /// The ID of the item.
    pub id: Option<String>,
}

/// The author of a message to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResponseInputRole")]
pub enum InputRole {
    User,
    System,
    Developer,
}

/// The content of a message to the model, or the output of a function.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ResponseInputContent")]
pub enum InputContent {
    Text(String),
    Parts(#[schemars(length(max = PARTS_MAX))] Vec<InputPart>),
}

/// A part of a message to the model, or of the output of a function.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseInputPart")]
pub enum InputPart {
    /// A text.
    InputText {
        /// The text.
        text: String,
    },
    /// An image.
    InputImage {
        /// The address of the image, or the image itself as a data URL.
        image_url: String,
        /// The resolution in which the model sees the image.
        detail: Option<ImageDetail>,
    },
}

/// The resolution in which the model sees an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResponseImageDetail")]
pub enum ImageDetail {
    Low,
    High,
    Auto,
    Original,
}

/// A message of the model.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseInputAnswer")]
pub struct AnswerMessage {
    /// Always `message`, which is the default.
    #[serde(rename = "type", default)]
    #[schemars(with = "String", extend("const" = "message"))]
    pub kind: MessageTag,
    /// Always `assistant`.
    #[schemars(with = "String", extend("const" = "assistant"))]
    pub role: AssistantTag,
    /// The content, as text or as parts.
    pub content: AnswerContent,
    /// The ID of the item.
    pub id: Option<String>,
}

/// The content of a message of the model.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ResponseAnswerContent")]
pub enum AnswerContent {
    Text(String),
    Parts(#[schemars(length(max = PARTS_MAX))] Vec<AnswerPart>),
}

/// A part of a message of the model.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseAnswerPart")]
pub enum AnswerPart {
    /// A text.
    OutputText {
        /// The text.
        text: String,
    },
    /// A text.
    InputText {
        /// The text.
        text: String,
    },
    /// A refusal.
    Refusal {
        /// The text of the refusal.
        refusal: String,
    },
}

/// A call of a function by the model.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseInputCall")]
pub struct FunctionCall {
    /// Always `function_call`.
    #[serde(rename = "type")]
    #[schemars(with = "String", extend("const" = "function_call"))]
    pub kind: CallTag,
    /// The ID of the call, to which its output refers.
    pub call_id: String,
    /// The name of the function.
    pub name: String,
    /// The arguments as JSON text.
    pub arguments: String,
    /// The ID of the item.
    pub id: Option<String>,
}

/// The output of a function.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseInputCallOutput")]
pub struct FunctionCallOutput {
    /// Always `function_call_output`.
    #[serde(rename = "type")]
    #[schemars(with = "String", extend("const" = "function_call_output"))]
    pub kind: OutputTag,
    /// The `call_id` of the call.
    pub call_id: String,
    /// The output, as text or as parts.
    pub output: InputContent,
    /// The ID of the item.
    pub id: Option<String>,
}

/// Reasoning. It is returned to the model that wrote it, if it has `encrypted_content`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseInputReasoning")]
pub struct ReasoningItem {
    /// Always `reasoning`.
    #[serde(rename = "type")]
    #[schemars(with = "String", extend("const" = "reasoning"))]
    pub kind: ReasoningTag,
    /// The text of the reasoning.
    #[schemars(length(max = PARTS_MAX))]
    pub content: Option<Vec<ReasoningPart>>,
    /// The `encrypted_content` of the answer.
    pub encrypted_content: Option<String>,
    /// The ID of the item.
    pub id: Option<String>,
}

/// A part of reasoning.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseReasoningPart")]
pub enum ReasoningPart {
    /// A text.
    ReasoningText {
        /// The text.
        text: String,
    },
}

/// The summary of a conversation, as `POST /v1/responses/compact` returns it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseInputCompaction")]
pub struct CompactionItem {
    /// Always `compaction`.
    #[serde(rename = "type")]
    #[schemars(with = "String", extend("const" = "compaction"))]
    pub kind: CompactionTag,
    /// The content, exactly as it was returned.
    #[schemars(length(max = COMPACTION_CHARS_MAX), transform = pattern::compaction)]
    pub encrypted_content: String,
    /// The ID of the item.
    pub id: Option<String>,
}

/// A conversation to compact.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "ResponseCompactRequest",
    extend("anyOf" = [
        {"required": ["input"], "properties": {"input": {"not": {"type": "null"}, "description": "Not null."}}},
        {
            "required": ["previous_response_id"],
            "properties": {"previous_response_id": {
                "not": {"type": "null"}, "description": "Not null."
            }}
        }
    ]),
    example = json!({"model": "llama-3", "input": "My name is Alice."})
)]
pub struct CompactRequest {
    /// The model that summarizes the conversation: the slug of a local chat model, an alias of the
    /// configuration, or a model ID of the upstream.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// The message of the user as text, or a list of items, oldest first. Required unless
    /// `previous_response_id` is given.
    pub input: Option<Input>,
    /// The stored response whose conversation precedes the input.
    #[schemars(length(max = ID_CHARS_MAX))]
    pub previous_response_id: Option<String>,
    /// Instructions that apply to the conversation.
    pub instructions: Option<String>,
    /// Accepted and ignored.
    pub prompt_cache_key: Option<String>,
}

/// An item of a stored response, by its ID.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseItemReference")]
pub struct ItemReference {
    /// Always `item_reference`.
    #[serde(rename = "type")]
    #[schemars(with = "String", extend("const" = "item_reference"))]
    pub kind: ReferenceTag,
    /// The ID of the item.
    #[schemars(length(max = ID_CHARS_MAX))]
    pub id: String,
}

/// A function that the model may call.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseInputTool")]
pub struct Tool {
    /// Always `function`: other tools of OpenAI do not exist here.
    #[serde(rename = "type")]
    #[schemars(
        with = "String",
        extend("const" = "function", "x-otherwise" = FUNCTIONS_ONLY)
    )]
    pub kind: FunctionTag,
    /// The name of the function.
    #[schemars(length(min = 1, max = 128))]
    pub name: String,
    /// What the function does.
    pub description: Option<String>,
    /// The JSON Schema of the arguments.
    pub parameters: Option<Map<String, Value>>,
    /// Whether the arguments must match the schema exactly.
    pub strict: Option<bool>,
}

/// Whether the model calls tools.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ResponseToolChoice")]
pub enum ToolChoice {
    /// Any number, none, or at least one.
    Mode(ToolMode),
    /// One function.
    Function(NamedFunction),
    /// Some of the tools.
    Allowed(AllowedTools),
}

/// How many tools the model calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResponseToolMode")]
pub enum ToolMode {
    None,
    Auto,
    Required,
}

/// A function that the model must call.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseNamedFunction")]
pub struct NamedFunction {
    /// Always `function`.
    #[serde(rename = "type")]
    #[schemars(with = "String", extend("const" = "function"))]
    pub kind: FunctionTag,
    /// The name of the function.
    pub name: String,
}

/// The tools that the model may call: the others are not passed on.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseAllowedTools")]
pub struct AllowedTools {
    /// Always `allowed_tools`.
    #[serde(rename = "type")]
    #[schemars(with = "String", extend("const" = "allowed_tools"))]
    pub kind: AllowedTag,
    /// Whether the model must call one of them.
    pub mode: ToolMode,
    /// The functions.
    #[schemars(length(max = TOOLS_MAX))]
    pub tools: Vec<NamedFunction>,
}

/// The form of the text.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseInputText")]
pub struct TextConfig {
    /// The format of the text.
    pub format: Option<TextFormat>,
    /// How detailed the text is.
    pub verbosity: Option<Verbosity>,
}

/// The format of the text.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseInputFormat")]
pub enum TextFormat {
    /// Any text.
    Text {},
    /// Any JSON object.
    JsonObject {},
    /// JSON that matches a schema.
    JsonSchema {
        /// The name of the format.
        #[schemars(length(max = 128))]
        name: String,
        /// The JSON Schema.
        schema: Map<String, Value>,
        /// What the format is for.
        description: Option<String>,
        /// Whether the text must match the schema exactly.
        strict: Option<bool>,
    },
}

/// How detailed a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResponseVerbosity")]
pub enum Verbosity {
    Low,
    Medium,
    High,
}

/// How much the model reasons.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseInputReasoningConfig")]
pub struct ReasoningConfig {
    /// The effort. Without it, the model decides.
    pub effort: Option<Effort>,
    /// Accepted and ignored: the answer contains the reasoning itself.
    pub summary: Option<String>,
}

/// The effort of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResponseEffort")]
pub enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
}

/// What happens to a conversation that does not fit the model's context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ResponseTruncation")]
pub enum Truncation {
    Auto,
    Disabled,
}
