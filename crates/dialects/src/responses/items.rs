//! The items of an input as a stored response lists them.

use orrery_wire::responses::answer::{CallOutput, Item as Shown, ItemStatus, Part, Role};
use orrery_wire::responses::{
    AnswerContent, AnswerPart, ImageDetail, InputContent, InputPart, Item,
};

use super::digits;

/// What begins the number of an item of an input.
const OF_INPUT: &str = "in";
/// The prefix of the IDs of items whose type has none, and the maximum length of a prefix.
const ITEM: &str = "item";
const PREFIX_MAX: usize = 16;

/// Returns the items of an input as a response lists them, without their IDs, which depend on that
/// of the response: see [`identify`]. References that are not resolved are left out.
#[must_use]
pub fn of_input(items: &[Item]) -> Vec<Shown> {
    items.iter().filter_map(shown).collect()
}

/// Gives the items of the input of the response `response` their IDs.
pub fn identify(items: &mut [Shown], response: &str) {
    for (index, item) in items.iter_mut().enumerate() {
        let (prefix, id) = match item {
            Shown::Message { id, .. } => ("msg", id),
            Shown::FunctionCall { id, .. } => ("fc", id),
            Shown::FunctionCallOutput { id, .. } => ("fco", id),
            Shown::Reasoning { id, .. } => ("rs", id),
            Shown::Compaction { id, .. } => ("cmp", id),
        };
        *id = format!("{prefix}_{}_{OF_INPUT}{index}", digits(response));
    }
}

/// Returns the ID of an item of the response `response`. Its prefix is that of another ID of the item.
#[must_use]
pub fn item_id(other: &str, response: &str, index: usize) -> String {
    let prefix = other.split_once('_').map_or(ITEM, |(prefix, _)| prefix);
    let prefix = if prefix.len() > PREFIX_MAX { ITEM } else { prefix };
    format!("{prefix}_{}_{index}", digits(response))
}

/// Returns the ID of an item, of any type, of the input of the response `response`.
#[must_use]
pub fn input_id(kind: &str, response: &str, index: usize) -> String {
    let prefix = match kind {
        "message" | "" => "msg",
        "function_call" => "fc",
        "function_call_output" => "fco",
        "reasoning" => "rs",
        "compaction" => "cmp",
        _ => ITEM,
    };
    format!("{prefix}_{}_{OF_INPUT}{index}", digits(response))
}

/// Returns the digits of the response to which an item belongs, according to its ID.
#[must_use]
pub fn response_of_item(id: &str) -> Option<&str> {
    let (_prefix, rest) = id.split_once('_')?;
    let (response, _number) = rest.split_once('_')?;
    Some(response)
}

fn shown(item: &Item) -> Option<Shown> {
    let (id, status) = (String::new(), ItemStatus::Completed);
    Some(match item {
        Item::Message(message) => Shown::Message {
            id,
            status,
            role: message.role.into(),
            content: match &message.content {
                InputContent::Text(text) => vec![Part::InputText { text: text.clone() }],
                InputContent::Parts(parts) => parts.iter().map(part).collect(),
            },
        },
        Item::Answer(answer) => {
            let texts = match &answer.content {
                AnswerContent::Text(text) => vec![output_text(text)],
                AnswerContent::Parts(parts) => parts.iter().map(spoken).collect(),
            };
            Shown::Message { id, status, role: Role::Assistant, content: texts }
        }
        Item::Call(call) => Shown::FunctionCall {
            id,
            status,
            call_id: call.call_id.clone(),
            name: call.name.clone(),
            arguments: call.arguments.clone(),
        },
        Item::Output(output) => Shown::FunctionCallOutput {
            id,
            status,
            call_id: output.call_id.clone(),
            output: match &output.output {
                InputContent::Text(text) => CallOutput::Text(text.clone()),
                InputContent::Parts(parts) => CallOutput::Parts(parts.iter().map(part).collect()),
            },
        },
        Item::Reasoning(reasoning) => Shown::Reasoning {
            id,
            status,
            summary: Vec::new(),
            content: reasoning.content.clone().unwrap_or_default(),
            encrypted_content: reasoning.encrypted_content.clone(),
        },
        Item::Compaction(compaction) => {
            Shown::Compaction { id, encrypted_content: compaction.encrypted_content.clone() }
        }
        Item::Reference(_) => return None,
    })
}

pub(super) fn output_text(text: &str) -> Part {
    Part::OutputText { text: text.to_owned(), annotations: [], logprobs: [] }
}

fn part(part: &InputPart) -> Part {
    match part {
        InputPart::InputText { text } => Part::InputText { text: text.clone() },
        InputPart::InputImage { image_url, detail } => Part::InputImage {
            image_url: image_url.clone(),
            detail: detail.unwrap_or(ImageDetail::Auto),
        },
    }
}

fn spoken(part: &AnswerPart) -> Part {
    match part {
        AnswerPart::OutputText { text } | AnswerPart::InputText { text } => output_text(text),
        AnswerPart::Refusal { refusal } => Part::Refusal { refusal: refusal.clone() },
    }
}
