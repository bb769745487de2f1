//! The events of a streamed response.

use schemars::JsonSchema;
use serde::Serialize;

use super::answer::{Item, Part, Response};

/// An event of a streamed response, with its number.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ResponseStreamEvent")]
pub struct Event {
    /// The number of the event, starting at 0.
    pub sequence_number: u64,
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What an event says.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type")]
#[schemars(rename = "ResponseEventKind")]
pub enum EventKind {
    /// The first event.
    #[serde(rename = "response.created")]
    Created {
        /// The response without output.
        response: Box<Response>,
    },
    /// The response waits, in the background.
    #[serde(rename = "response.queued")]
    Queued {
        /// The response without output.
        response: Box<Response>,
    },
    /// The model is asked.
    #[serde(rename = "response.in_progress")]
    InProgress {
        /// The response without output.
        response: Box<Response>,
    },
    /// An item begins.
    #[serde(rename = "response.output_item.added")]
    ItemAdded {
        /// The number of the item, starting at 0.
        output_index: usize,
        /// The item without content.
        item: Item,
    },
    /// An item is complete.
    #[serde(rename = "response.output_item.done")]
    ItemDone {
        /// The number of the item.
        output_index: usize,
        /// The item.
        item: Item,
    },
    /// A part of an item begins.
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        #[serde(flatten)]
        at: PartPlace,
        /// The part without text.
        part: Part,
    },
    /// A part of an item is complete.
    #[serde(rename = "response.content_part.done")]
    PartDone {
        #[serde(flatten)]
        at: PartPlace,
        /// The part.
        part: Part,
    },
    /// A text continues.
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        #[serde(flatten)]
        at: PartPlace,
        /// The next piece of the text.
        delta: String,
        /// Always empty.
        logprobs: [(); 0],
    },
    /// A text is complete.
    #[serde(rename = "response.output_text.done")]
    TextDone {
        #[serde(flatten)]
        at: PartPlace,
        /// The text.
        text: String,
        /// Always empty.
        logprobs: [(); 0],
    },
    /// A refusal continues.
    #[serde(rename = "response.refusal.delta")]
    RefusalDelta {
        #[serde(flatten)]
        at: PartPlace,
        /// The next piece of the refusal.
        delta: String,
    },
    /// A refusal is complete.
    #[serde(rename = "response.refusal.done")]
    RefusalDone {
        #[serde(flatten)]
        at: PartPlace,
        /// The refusal.
        refusal: String,
    },
    /// Reasoning continues.
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        #[serde(flatten)]
        at: PartPlace,
        /// The next piece of the reasoning.
        delta: String,
    },
    /// Reasoning is complete.
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone {
        #[serde(flatten)]
        at: PartPlace,
        /// The reasoning.
        text: String,
    },
    /// The arguments of a call continue.
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        /// The ID of the item.
        item_id: String,
        /// The number of the item.
        output_index: usize,
        /// The next piece of the arguments.
        delta: String,
    },
    /// The arguments of a call are complete.
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        /// The ID of the item.
        item_id: String,
        /// The number of the item.
        output_index: usize,
        /// The name of the function.
        name: String,
        /// The arguments as JSON text.
        arguments: String,
    },
    /// The response is complete. It is the last event.
    #[serde(rename = "response.completed")]
    Completed {
        /// The response.
        response: Box<Response>,
    },
    /// The response was cut off. It is the last event.
    #[serde(rename = "response.incomplete")]
    Incomplete {
        /// The response.
        response: Box<Response>,
    },
    /// The stream broke. `response.failed` follows.
    #[serde(rename = "error")]
    Error {
        /// A code for programs.
        code: &'static str,
        /// A message for people.
        message: String,
        /// Always null.
        param: Option<String>,
    },
    /// The response failed. It is the last event.
    #[serde(rename = "response.failed")]
    Failed {
        /// The response, with the complete items.
        response: Box<Response>,
    },
}

impl EventKind {
    /// Returns the name of the event.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Created { .. } => "response.created",
            Self::Queued { .. } => "response.queued",
            Self::InProgress { .. } => "response.in_progress",
            Self::ItemAdded { .. } => "response.output_item.added",
            Self::ItemDone { .. } => "response.output_item.done",
            Self::PartAdded { .. } => "response.content_part.added",
            Self::PartDone { .. } => "response.content_part.done",
            Self::TextDelta { .. } => "response.output_text.delta",
            Self::TextDone { .. } => "response.output_text.done",
            Self::RefusalDelta { .. } => "response.refusal.delta",
            Self::RefusalDone { .. } => "response.refusal.done",
            Self::ReasoningDelta { .. } => "response.reasoning_text.delta",
            Self::ReasoningDone { .. } => "response.reasoning_text.done",
            Self::ArgumentsDelta { .. } => "response.function_call_arguments.delta",
            Self::ArgumentsDone { .. } => "response.function_call_arguments.done",
            Self::Completed { .. } => "response.completed",
            Self::Incomplete { .. } => "response.incomplete",
            Self::Error { .. } => "error",
            Self::Failed { .. } => "response.failed",
        }
    }
}

/// The place of a part in a response.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ResponsePartPlace")]
pub struct PartPlace {
    /// The ID of the item.
    pub item_id: String,
    /// The number of the item, starting at 0.
    pub output_index: usize,
    /// The number of the part within the item, starting at 0.
    pub content_index: usize,
}
