//! Writes the events of a stream.

use orrery_wire::responses::answer::{
    Item, ItemStatus, Outcome, Part as Shown, Response, Role, Status,
};
use orrery_wire::responses::event::{Event as Sent, EventKind as Kind, PartPlace};

use super::answer::{Head, begun, code_of, ended, failed, item_status};
use super::items::output_text;
use crate::{End, Event, Reasoning, Usage};

/// The item to which pieces of text are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Text,
    Refusal,
    Reasoning,
}

/// A call that has begun. Calls stay open to the end, since servers may mix their parts.
#[derive(Debug)]
struct Call {
    /// The number of the call within the model's answer.
    call: usize,
    output_index: usize,
    id: String,
    name: String,
    arguments: String,
}

/// Writes the events of a stream. It holds the answer, which the last event repeats.
#[derive(Debug)]
pub struct StreamWriter {
    head: Head,
    /// The number of the next event.
    next: u64,
    /// The items of the answer. Those of open calls have no arguments.
    output: Vec<Item>,
    open: Option<Open>,
    /// The text of the open part.
    text: String,
    signature: Option<String>,
    calls: Vec<Call>,
    end: Option<End>,
    usage: Usage,
    is_refused: bool,
}

impl StreamWriter {
    /// Creates a writer for a response.
    #[must_use]
    pub const fn new(head: Head) -> Self {
        Self {
            head,
            next: 0,
            output: Vec::new(),
            open: None,
            text: String::new(),
            signature: None,
            calls: Vec::new(),
            end: None,
            usage: Usage { input: 0, output: 0, cached: 0, reasoning: 0, cost: None },
            is_refused: false,
        }
    }

    /// Writes the first events.
    pub fn start(&mut self, sent: &mut Vec<Sent>) {
        let response = Box::new(self.head.with(begun(Status::InProgress)));
        self.send(Kind::Created { response: response.clone() }, sent);
        self.send(Kind::InProgress { response }, sent);
    }

    /// Writes an event. [`Event::Failure`] ends the stream; the failed response is returned.
    pub fn event(&mut self, event: Event, sent: &mut Vec<Sent>) -> Option<Response> {
        match event {
            Event::Text(text) => self.piece(Open::Text, text, sent),
            Event::Refusal(text) => {
                self.is_refused = true;
                self.piece(Open::Refusal, text, sent);
            }
            Event::Reasoning(Reasoning { text, signature }) => {
                self.piece(Open::Reasoning, text, sent);
                self.signature = signature;
            }
            Event::ToolStart { call, id, name } => {
                self.close(ItemStatus::Completed, sent);
                let output_index = self.output.len();
                let item = Item::FunctionCall {
                    id: self.head.ids.item_id("fc", output_index),
                    status: ItemStatus::InProgress,
                    call_id: self.head.ids.call_id(id, output_index),
                    name: name.clone(),
                    arguments: String::new(),
                };
                let id = item.id().to_owned();
                self.calls.push(Call { call, output_index, id, name, arguments: String::new() });
                self.add(item, sent);
            }
            Event::ToolArguments { call, text } => {
                if let Some(at) = self.calls.iter_mut().rfind(|one| one.call == call) {
                    at.arguments.push_str(&text);
                    let (item_id, output_index) = (at.id.clone(), at.output_index);
                    self.send(Kind::ArgumentsDelta { item_id, output_index, delta: text }, sent);
                }
            }
            Event::End(end) => self.end = Some(end),
            Event::Usage(usage) => self.usage = usage,
            Event::Failure { kind, message } => return Some(self.fail(&kind, message, sent)),
        }
        None
    }

    /// Writes the events that end a complete answer, except for the last one, and returns the
    /// response. [`StreamWriter::last`] follows once it is stored.
    pub fn finish(&mut self, sent: &mut Vec<Sent>, now: i64) -> Response {
        let end = self.end.take().unwrap_or_default();
        let end = end.of_parts(!self.calls.is_empty(), self.is_refused);
        let status = item_status(&end);
        self.close_all(status, sent);
        let output = std::mem::take(&mut self.output);
        self.head.with(ended(output, &end, self.usage, now))
    }

    /// Writes the last event.
    pub fn last(&mut self, response: Response, sent: &mut Vec<Sent>) {
        let is_complete = response.outcome.status == Status::Completed;
        let response = Box::new(response);
        let kind =
            if is_complete { Kind::Completed { response } } else { Kind::Incomplete { response } };
        self.send(kind, sent);
    }

    /// Writes the events that end a broken stream, and returns the failed response.
    pub fn fail(&mut self, kind: &str, message: String, sent: &mut Vec<Sent>) -> Response {
        let (next, mut unsent) = (self.next, Vec::new());
        self.close_all(ItemStatus::Incomplete, &mut unsent);
        self.next = next;
        let output = std::mem::take(&mut self.output);
        let outcome = Outcome { output, ..failed(kind, message.clone()) };
        let response = self.head.with(outcome);
        self.send(Kind::Error { code: code_of(kind), message, param: None }, sent);
        self.send(Kind::Failed { response: Box::new(response.clone()) }, sent);
        response
    }

    fn send(&mut self, kind: Kind, sent: &mut Vec<Sent>) {
        sent.push(Sent { sequence_number: self.next, kind });
        self.next = self.next.saturating_add(1);
    }

    /// Begins an item, and records it without content.
    fn add(&mut self, item: Item, sent: &mut Vec<Sent>) {
        let output_index = self.output.len();
        self.output.push(item.clone());
        self.send(Kind::ItemAdded { output_index, item }, sent);
    }

    /// Adds a piece to the open part, or begins one.
    fn piece(&mut self, kind: Open, delta: String, sent: &mut Vec<Sent>) {
        if self.open != Some(kind) {
            self.begin(kind, sent);
        }
        self.text.push_str(&delta);
        let at = self.place();
        let event = match kind {
            Open::Text => Kind::TextDelta { at, delta, logprobs: [] },
            Open::Refusal => Kind::RefusalDelta { at, delta },
            Open::Reasoning => Kind::ReasoningDelta { at, delta },
        };
        self.send(event, sent);
    }

    fn begin(&mut self, kind: Open, sent: &mut Vec<Sent>) {
        // A text and a refusal that follow one another are parts of one message.
        let continues =
            kind != Open::Reasoning && matches!(self.open, Some(Open::Text | Open::Refusal));
        if continues {
            self.close_part(sent);
        } else {
            self.close(ItemStatus::Completed, sent);
            let (index, status) = (self.output.len(), ItemStatus::InProgress);
            let item = match kind {
                Open::Text | Open::Refusal => Item::Message {
                    id: self.head.ids.item_id("msg", index),
                    status,
                    role: Role::Assistant,
                    content: Vec::new(),
                },
                Open::Reasoning => Item::Reasoning {
                    id: self.head.ids.item_id("rs", index),
                    status,
                    summary: Vec::new(),
                    content: Vec::new(),
                    encrypted_content: None,
                },
            };
            self.add(item, sent);
        }
        self.open = Some(kind);
        let (at, part) = (self.place(), part_of(kind, String::new()));
        self.send(Kind::PartAdded { at, part }, sent);
    }

    /// Returns the place of the open part, which is the last one of the last item.
    fn place(&self) -> PartPlace {
        let output_index = self.output.len().saturating_sub(1);
        let item = self.output.last();
        let content_index = match item {
            Some(Item::Message { content, .. }) => content.len(),
            _ => 0,
        };
        let item_id = item.map(|item| item.id().to_owned()).unwrap_or_default();
        PartPlace { item_id, output_index, content_index }
    }

    /// Closes the open part, and adds it to its message.
    fn close_part(&mut self, sent: &mut Vec<Sent>) {
        let Some(kind) = self.open.take() else { return };
        let (at, text) = (self.place(), std::mem::take(&mut self.text));
        let done = match kind {
            Open::Text => Kind::TextDone { at: at.clone(), text: text.clone(), logprobs: [] },
            Open::Refusal => Kind::RefusalDone { at: at.clone(), refusal: text.clone() },
            Open::Reasoning => Kind::ReasoningDone { at: at.clone(), text: text.clone() },
        };
        self.send(done, sent);
        self.send(Kind::PartDone { at, part: part_of(kind, text.clone()) }, sent);
        let index = self.output.len().saturating_sub(1);
        let signature = self.signature.take();
        match self.output.last_mut() {
            Some(Item::Message { content, .. }) => content.push(part_of(kind, text)),
            Some(reasoning @ Item::Reasoning { .. }) => {
                let said = Reasoning { text, signature };
                *reasoning = self.head.ids.reasoning(index, ItemStatus::InProgress, &said);
            }
            _ => {}
        }
    }

    /// Closes the open item.
    fn close(&mut self, status: ItemStatus, sent: &mut Vec<Sent>) {
        if self.open.is_none() {
            return;
        }
        self.close_part(sent);
        let output_index = self.output.len().saturating_sub(1);
        let Some(item) = self.output.last_mut() else { return };
        set_status(item, status);
        let item = item.clone();
        self.send(Kind::ItemDone { output_index, item }, sent);
    }

    fn close_all(&mut self, status: ItemStatus, sent: &mut Vec<Sent>) {
        self.close(status, sent);
        for call in std::mem::take(&mut self.calls) {
            self.close_call(call, status, sent);
        }
    }

    fn close_call(&mut self, call: Call, end: ItemStatus, sent: &mut Vec<Sent>) {
        let Call { output_index, id, name, arguments: all, .. } = call;
        let arguments = all.clone();
        let done = Kind::ArgumentsDone { item_id: id, output_index, name, arguments };
        self.send(done, sent);
        let Some(item) = self.output.get_mut(output_index) else { return };
        set_status(item, end);
        if let Item::FunctionCall { arguments, .. } = item {
            *arguments = all;
        }
        let item = item.clone();
        self.send(Kind::ItemDone { output_index, item }, sent);
    }
}

fn part_of(kind: Open, text: String) -> Shown {
    match kind {
        Open::Text => output_text(&text),
        Open::Refusal => Shown::Refusal { refusal: text },
        Open::Reasoning => Shown::ReasoningText { text },
    }
}

fn set_status(item: &mut Item, new: ItemStatus) {
    match item {
        Item::Message { status, .. }
        | Item::FunctionCall { status, .. }
        | Item::FunctionCallOutput { status, .. }
        | Item::Reasoning { status, .. } => *status = new,
        Item::Compaction { .. } => {}
    }
}
