//! Rewrites conversations into the formats that chat templates expect. Templates differ in the
//! roles, tool calls and message order that they accept, and many templates silently drop
//! everything else.
//!
//! A [`Plan`] describes such a rewrite. A copy of the conversation with markers instead of its
//! texts is used to test whether a template renders all of it.

use std::collections::VecDeque;

use serde_json::{Map, Value, json};

/// Maximum number of messages rendered while searching for a plan.
const MESSAGES_PROBED_MAX: usize = 100_000;
/// Length of the call ids that some templates require.
const SHORT_ID: usize = 9;
const ROLE: &str = "role";
const CONTENT: &str = "content";
const CALLS: &str = "tool_calls";
const ID: &str = "tool_call_id";
const ARGUMENTS: &str = "/function/arguments";

/// Where to put system messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    AsGiven,
    /// All in one message at the beginning.
    First,
    /// Before the first user message.
    User,
}

/// How the template receives the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    Variable,
    /// In the field `tools` of the system message.
    Field,
    /// In the text of a system message.
    Text,
}

/// How completed tool calls are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finished {
    AsGiven,
    /// The text of a message with calls goes into a separate message.
    TextApart,
    /// Each call in a separate message, followed by its result.
    OneByOne,
    /// As text messages from the assistant and the user.
    Text,
}

/// How a conversation is rewritten for a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    listing: Listing,
    finished: Finished,
    has_text_arguments: bool,
    has_short_ids: bool,
    system: System,
    merges: bool,
    /// Whether contents are lists of parts.
    has_parts: bool,
}

/// A conversation in the form that a template expects.
#[derive(Debug)]
pub(super) struct Dialogue {
    pub messages: Vec<Value>,
    /// The template's variable `tools`.
    pub tools: Option<Vec<Value>>,
}

/// A conversation with markers instead of its texts.
#[derive(Debug)]
pub(super) struct Probe {
    pub messages: Vec<Value>,
    pub tools: Vec<Value>,
    /// Each marker, and a description of the text that it replaces.
    wanted: Vec<(String, String)>,
    /// The markers of arguments.
    arguments: Vec<String>,
}

impl Plan {
    /// Returns the plans for a conversation, from the least to the most rewriting.
    #[must_use]
    pub(super) fn all(
        messages: &[Value],
        has_tools: bool,
        knows_tools: bool,
        knows_parts: bool,
    ) -> Vec<Self> {
        let is = |role: &str| messages.iter().any(|message| message[ROLE] == role);
        let has_calls = messages.iter().any(|message| message.get(CALLS).is_some());
        let listings: &[Listing] = match (has_tools, knows_tools) {
            (false, _) => &[Listing::Variable],
            (true, true) => &[Listing::Variable, Listing::Field, Listing::Text],
            (true, false) => &[Listing::Text],
        };
        let systems: &[System] = if has_tools || is("system") {
            &[System::AsGiven, System::First, System::User]
        } else {
            &[System::AsGiven]
        };
        let finished: &[Finished] = if has_calls || is("tool") {
            &[Finished::AsGiven, Finished::TextApart, Finished::OneByOne, Finished::Text]
        } else {
            &[Finished::AsGiven]
        };
        let of_calls: &[bool] = if has_calls { &[false, true] } else { &[false] };
        let parts: &[bool] = if knows_parts { &[false, true] } else { &[false] };
        let mut plans = vec![(
            0,
            Self {
                listing: Listing::Variable,
                finished: Finished::AsGiven,
                has_text_arguments: false,
                has_short_ids: false,
                system: System::AsGiven,
                merges: false,
                has_parts: false,
            },
        )];
        // Plans that write contents as parts, or calls as texts, change the most.
        vary(&mut plans, listings, 3, |plan, listing| plan.listing = listing);
        vary(&mut plans, finished, 2, |plan, finished| plan.finished = finished);
        vary(&mut plans, of_calls, 1, |plan, is_set| plan.has_text_arguments = is_set);
        vary(&mut plans, of_calls, 1, |plan, is_set| plan.has_short_ids = is_set);
        vary(&mut plans, systems, 1, |plan, system| plan.system = system);
        vary(&mut plans, &[false, true], 1, |plan, is_set| plan.merges = is_set);
        vary(&mut plans, parts, 5, |plan, is_set| plan.has_parts = is_set);
        plans.sort_by_key(|(cost, _)| *cost);
        let most = (MESSAGES_PROBED_MAX / messages.len().max(1)).max(1);
        plans.into_iter().take(most).map(|(_, plan)| plan).collect()
    }

    /// Rewrites a conversation.
    #[must_use]
    pub(super) fn apply(
        self,
        messages: &[Value],
        tools: &[Value],
        instruction: impl Fn(&[Value]) -> String,
    ) -> Dialogue {
        let mut messages = match self.finished {
            Finished::AsGiven => messages.to_vec(),
            Finished::TextApart => texts_apart(messages),
            Finished::OneByOne => one_by_one(&texts_apart(messages)),
            Finished::Text => calls_as_text(messages),
        };
        let calls = messages.iter_mut().filter_map(|one| one.get_mut(CALLS)?.as_array_mut());
        for arguments in calls.flatten().filter_map(|call| call.pointer_mut(ARGUMENTS)) {
            if self.has_text_arguments && !arguments.is_string() {
                *arguments = arguments.to_string().into();
            }
        }
        if self.has_short_ids {
            shorten_ids(&mut messages);
        }
        let mut variable = None;
        if !tools.is_empty() {
            match self.listing {
                Listing::Variable => variable = Some(tools.to_vec()),
                Listing::Field => {
                    let has_system = messages.first().is_some_and(|first| first[ROLE] == "system");
                    if !has_system {
                        messages.insert(0, text_of("system", ""));
                    }
                    if let Some(first) = messages.first_mut() {
                        put(first, "tools", Value::Array(tools.to_vec()).to_string().into());
                    }
                    variable = Some(tools.to_vec());
                }
                Listing::Text => messages.insert(0, text_of("system", &instruction(tools))),
            }
        }
        let mut messages = match self.system {
            System::AsGiven => messages,
            System::First => systems_first(messages),
            System::User => systems_to_user(messages),
        };
        if self.merges {
            messages = merged(messages);
        }
        if self.has_parts {
            for message in &mut messages {
                message[CONTENT] = json!([{"type": "text", "text": content(message)}]);
            }
        }
        Dialogue { messages, tools: variable }
    }
}

/// Replaces each plan with one plan for each value of a field. The cost of a value is its index
/// times `cost`.
fn vary<T: Copy>(
    plans: &mut Vec<(usize, Plan)>,
    values: &[T],
    cost: usize,
    set: impl Fn(&mut Plan, T),
) {
    let varied = plans.iter().flat_map(|(before, plan)| {
        let set = &set;
        values.iter().enumerate().map(move |(index, value)| {
            let mut plan = *plan;
            set(&mut plan, *value);
            (before + cost * index, plan)
        })
    });
    *plans = varied.collect();
}

/// Returns the text of a message's content, which may be a list of one part.
pub(super) fn text_of_content(message: &Value) -> &str {
    let content = &message[CONTENT];
    content.as_str().or_else(|| content.pointer("/0/text")?.as_str()).unwrap_or_default()
}

impl Probe {
    /// Builds the probe of a conversation.
    #[must_use]
    pub(super) fn of(messages: &[Value], tools: &[Value]) -> Self {
        let mut probe = Self {
            messages: messages.to_vec(),
            tools: tools.to_vec(),
            wanted: Vec::new(),
            arguments: Vec::new(),
        };
        let mut messages = std::mem::take(&mut probe.messages);
        for (index, message) in messages.iter_mut().enumerate() {
            if !is_blank(&message[CONTENT]) {
                let role = message[ROLE].as_str().unwrap_or_default();
                let what = format!("messages[{index}], a message of the role '{role}'");
                message[CONTENT] = probe.marker(what).into();
            }
            let calls = message.get_mut(CALLS).and_then(Value::as_array_mut);
            for (number, call) in calls.into_iter().flatten().enumerate() {
                let what = format!("messages[{index}].tool_calls[{number}]");
                if let Some(name) = call.pointer_mut("/function/name") {
                    *name = probe.marker(what.clone()).into();
                }
                if let Some(arguments) = call.pointer_mut(ARGUMENTS) {
                    let marker = probe.marker(what);
                    // Arguments that are not an object remain a string, which some templates
                    // reject.
                    if arguments.is_object() {
                        *arguments = json!({&marker: null, "value": &marker});
                        probe.arguments.push(marker);
                    } else {
                        *arguments = marker.into();
                    }
                }
            }
        }
        probe.messages = messages;
        let mut tools = std::mem::take(&mut probe.tools);
        for (index, tool) in tools.iter_mut().enumerate() {
            for place in ["/function/name", "/function/description"] {
                let text = tool.pointer_mut(place).filter(|text| !is_blank(text));
                if let Some(text) = text {
                    *text = probe.marker(format!("tools[{index}]")).into();
                }
            }
        }
        probe.tools = tools;
        probe
    }

    fn marker(&mut self, what: String) -> String {
        let marker = format!("Mq{}qM", self.wanted.len());
        self.wanted.push((marker.clone(), what));
        marker
    }

    /// Describes the first part of the conversation that a prompt omits.
    #[must_use]
    pub(super) fn missing(&self, prompt: &str) -> Option<&str> {
        let lost = self.wanted.iter().find(|(marker, _)| !prompt.contains(marker));
        lost.map(|(_, what)| what.as_str())
    }

    /// Returns whether a prompt contains the printed form of a list of parts instead of the parts'
    /// texts.
    #[must_use]
    pub(super) fn shows_parts(&self, prompt: &str) -> bool {
        ["\"text\": \"Mq", "'text': 'Mq"].iter().any(|part| prompt.contains(part))
    }

    /// Returns whether a prompt renders the arguments of calls as JSON, rather than as a JSON
    /// string or in another notation.
    #[must_use]
    pub(super) fn has_json_arguments(&self, prompt: &str) -> bool {
        self.arguments.iter().all(|marker| {
            let escaped = format!("\\\"{marker}");
            let display = format!("\"{marker}\": none");
            !prompt.contains(&escaped) && !prompt.contains(&display)
        })
    }
}

fn is_blank(text: &Value) -> bool {
    text.as_str().is_none_or(|text| text.trim().is_empty())
}

fn text_of(role: &str, text: &str) -> Value {
    json!({ROLE: role, CONTENT: text})
}

fn put(message: &mut Value, name: &str, value: Value) {
    if let Some(fields) = message.as_object_mut() {
        fields.insert(name.to_owned(), value);
    }
}

fn content(message: &Value) -> &str {
    message[CONTENT].as_str().unwrap_or_default()
}

/// Joins two texts as paragraphs.
fn joined(first: &str, second: &str) -> String {
    match (first.is_empty(), second.is_empty()) {
        (true, _) => second.to_owned(),
        (_, true) => first.to_owned(),
        (false, false) => format!("{first}\n\n{second}"),
    }
}

fn calls(message: &Value) -> &[Value] {
    message.get(CALLS).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn texts_apart(messages: &[Value]) -> Vec<Value> {
    let mut all = Vec::with_capacity(messages.len());
    for message in messages {
        let mut message = message.clone();
        if !calls(&message).is_empty() && !content(&message).is_empty() {
            all.push(text_of("assistant", content(&message)));
            put(&mut message, CONTENT, "".into());
        }
        all.push(message);
    }
    all
}

fn one_by_one(messages: &[Value]) -> Vec<Value> {
    let mut rest: VecDeque<&Value> = messages.iter().collect();
    let mut all = Vec::with_capacity(messages.len());
    while let Some(message) = rest.pop_front() {
        if calls(message).len() < 2 {
            all.push(message.clone());
            continue;
        }
        let count = rest.iter().take_while(|next| next[ROLE] == "tool").count();
        let mut results: Vec<&Value> = rest.drain(..count).collect();
        for call in calls(message) {
            let mut one = message.clone();
            put(&mut one, CALLS, json!([call]));
            all.push(one);
            let of_call = results.iter().position(|result| result.get(ID) == call.get("id"));
            if let Some(at) = of_call {
                all.push(results.remove(at).clone());
            }
        }
        all.extend(results.into_iter().cloned());
    }
    all
}

fn calls_as_text(messages: &[Value]) -> Vec<Value> {
    let as_text = |message: &Value| {
        if message[ROLE] == "tool" {
            let text = format!("<tool_response>\n{}\n</tool_response>", content(message));
            return text_of("user", &text);
        }
        let mut message = message.clone();
        let mut text = content(&message).to_owned();
        for call in calls(&message) {
            let function = json!({
                "name": call.pointer("/function/name"),
                "arguments": call.pointer(ARGUMENTS),
            });
            text = joined(&text, &format!("<tool_call>\n{function}\n</tool_call>"));
        }
        if let Some(fields) = message.as_object_mut() {
            fields.remove(CALLS);
            fields.insert(CONTENT.to_owned(), text.into());
        }
        message
    };
    messages.iter().map(as_text).collect()
}

/// Gives each call and its result an id of nine letters and digits.
fn shorten_ids(messages: &mut [Value]) {
    let mut known: Map<String, Value> = Map::new();
    let mut short = |id: &mut Value| {
        let given = id.as_str().unwrap_or_default().to_owned();
        let is_short = given.len() == SHORT_ID && given.bytes().all(|b| b.is_ascii_alphanumeric());
        let next = if is_short { given.clone() } else { format!("call{:05}", known.len()) };
        *id = known.entry(given).or_insert_with(|| next.into()).clone();
    };
    for message in messages {
        let calls = message.get_mut(CALLS).and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten().filter(|call| call.is_object()) {
            short(&mut call["id"]);
        }
        if message[ROLE] == "tool" {
            short(&mut message[ID]);
        }
    }
}

fn systems_first(messages: Vec<Value>) -> Vec<Value> {
    let (systems, mut others): (Vec<Value>, Vec<Value>) =
        messages.into_iter().partition(|message| message[ROLE] == "system");
    let Some((first, more)) = systems.split_first() else { return others };
    let mut first = first.clone();
    let text =
        more.iter().fold(content(&first).to_owned(), |text, more| joined(&text, content(more)));
    put(&mut first, CONTENT, text.into());
    if let Some(tools) = more.iter().find_map(|more| more.get("tools")) {
        put(&mut first, "tools", tools.clone());
    }
    others.insert(0, first);
    others
}

fn systems_to_user(messages: Vec<Value>) -> Vec<Value> {
    let mut messages = systems_first(messages);
    if messages.first().is_none_or(|first| first[ROLE] != "system") {
        return messages;
    }
    let system = messages.remove(0);
    match messages.first_mut().filter(|first| first[ROLE] == "user") {
        Some(user) => user[CONTENT] = joined(content(&system), content(user)).into(),
        None => messages.insert(0, text_of("user", content(&system))),
    }
    messages
}

/// Joins adjacent messages of the same role.
fn merged(messages: Vec<Value>) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::with_capacity(messages.len());
    for message in messages {
        let role = message.get(ROLE).filter(|role| *role != "tool");
        let last = all
            .last_mut()
            .filter(|last| role.is_some() && last.get(ROLE) == role && last.get(CALLS).is_none());
        match last {
            Some(last) => {
                let text = joined(content(last), content(&message));
                put(last, CONTENT, text.into());
                if let Some(calls) = message.get(CALLS) {
                    put(last, CALLS, calls.clone());
                }
            }
            None => all.push(message),
        }
    }
    all
}
