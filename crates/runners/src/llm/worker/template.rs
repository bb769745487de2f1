//! Chat templates: Jinja templates supplied with the model and written for Python, rendered with
//! the Python functions that they use. A template that cannot be parsed is replaced by ChatML, with
//! a warning.
//!
//! A conversation is rewritten until the template renders all of it; if no rewrite succeeds, the
//! conversation is rejected. [`watch`](super::watch) limits memory and time.

use std::fmt::Write as _;
use std::sync::Arc;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind};
use minijinja_contrib::pycompat;
use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use super::dialogue::{Dialogue, Plan, Probe, text_of_content};
use super::native;
use super::request::Refusal;
use super::text_methods;
use super::thinking;
use super::tools::{Form, Tools, instruction};
use super::watch::{Step, Work};
use crate::rendering;
use orrery_runtime::Clock;

/// Splits the text of a control token inside a message, so that it is tokenized as plain text. This
/// character is a noncharacter, which valid text does not contain.
pub(super) const SPLIT: char = '\u{FDD0}';
/// Size limit of the compiled regex of all control tokens, in bytes.
const CONTROLS_SIZE_MAX: usize = 64 * 1024 * 1024;
/// Matches likely control tokens, used if the regex of the actual control tokens is too large.
const CONTROLS_GUESSED: &str = r"<[^<>\s]{1,64}>|\[/?[A-Z_]{1,64}\]";
/// Tags that Hugging Face uses in training; they produce no output.
const GENERATION: &str = r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}";

/// Instruction limit for rendering one conversation.
const FUEL_MAX: u64 = 50_000_000;
/// Maximum length of a prompt, in bytes.
const PROMPT_MAX: usize = 16 * 1024 * 1024;
const NAME: &str = "chat";
/// The template for a model that has no template.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The template of a model.
#[derive(Debug)]
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    /// The BOS and EOS tokens, as written by the template.
    bos: String,
    eos: String,
    /// The format in which the model writes tool calls.
    pub tools: Form,
    /// Whether the template itself lists the tools.
    knows_tools: bool,
    /// Whether the template supports contents that are lists of parts.
    knows_parts: bool,
    /// Whether the template reads thinking from the field `thinking`.
    knows_thinking: bool,
    /// Matches the texts of control tokens, and of user-defined tokens that the template writes.
    controls: Option<Regex>,
    /// The control tokens that mark thinking and calls.
    pub markup: Arc<[LlamaToken]>,
    /// The fault in the model's own template, if ChatML is used instead.
    pub warning: Option<String>,
}

impl ChatTemplate {
    /// Selects the operator's template, or else the model's template, or else ChatML.
    #[must_use]
    pub(super) fn of_model(model: &LlamaModel, given: Option<&str>) -> Self {
        let vocabulary = model.vocab();
        let text = |token: LlamaToken| {
            let is_token = token.0 >= 0;
            let bytes = is_token.then(|| vocabulary.token_to_piece(token, true, None));
            String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
        };
        let own = model.chat_template(None).ok();
        let own = own.and_then(|own| own.to_string().ok());
        let source = given.map(str::to_owned).or(own);
        let used = source.clone().unwrap_or_default();
        let mut template = Self::new(source, text(vocabulary.bos()), text(vocabulary.eos()));
        let controls: Vec<(LlamaToken, String)> = vocabulary
            .tokens()
            .filter(|token| vocabulary.is_control(*token))
            .map(|token| (token, text(token)))
            .collect();
        let is_markup = |text: &str| thinking::is_part(text) || native::is_part(text);
        let markup = controls.iter().filter(|(_, text)| is_markup(text));
        template.markup = markup.map(|(token, _)| *token).collect();
        let defined = vocabulary
            .tokens()
            .filter(|token| vocabulary.attr(*token).contains(LlamaTokenAttr::UserDefined))
            .map(text)
            .filter(|text| is_marker_of(&used, text));
        let controls = controls.into_iter().map(|(_, text)| text);
        template.controls = controls_of(controls.chain(defined));
        template
    }

    fn new(source: Option<String>, bos: String, eos: String) -> Self {
        let mut warning = None;
        let source = source.unwrap_or_else(|| {
            warning = Some("it has no chat template: ChatML is used".to_owned());
            CHATML.to_owned()
        });
        let mut environment = environment();
        let (mut tools, mut knows_tools) = (Form::of_template(&source), source.contains("tools"));
        let has = |texts: &[&str]| texts.iter().any(|text| source.contains(text));
        let knows_parts = has(&["'text'", "\"text\""]);
        let knows_thinking = has(&[".thinking", "['thinking']", "[\"thinking\"]"]);
        let source = without_training_tags(source);
        if let Err(error) = environment.add_template_owned(NAME, source) {
            warning = Some(format!("its chat template cannot be read ({error}): ChatML is used"));
            // A test ensures that this template is valid.
            let _read = environment.add_template(NAME, CHATML);
            (tools, knows_tools) = (Form::Tagged, false);
        }
        if let Some(warning) = &warning {
            tracing::warn!("{warning}");
        }
        let (controls, markup) = (None, Arc::default());
        Self {
            environment,
            bos,
            eos,
            tools,
            knows_tools,
            knows_parts,
            knows_thinking,
            controls,
            markup,
            warning,
        }
    }

    /// Renders the prompt of a conversation; [`SPLIT`] splits the texts of control tokens inside
    /// the conversation.
    ///
    /// # Errors
    /// The template's own error, or the part of the conversation that it omits.
    pub(super) fn render(
        &self,
        messages: &[Value],
        tools: &Tools<'_>,
        values: &Map<String, Value>,
        work: &Work,
    ) -> Result<String, Refusal> {
        let mut messages = messages.to_vec();
        let thinking = messages.iter_mut().filter(|_| self.knows_thinking);
        for fields in thinking.filter_map(Value::as_object_mut) {
            if let Some(reasoning) = fields.get("reasoning_content").cloned() {
                fields.insert("thinking".to_owned(), reasoning);
            }
        }
        let given = tools.given();
        let guarded = |all: &[Value]| all.iter().map(|one| self.guarded(one)).collect::<Vec<_>>();
        let (safe, safe_tools) = (guarded(&messages), guarded(&given));
        work.check()?;
        work.enter(Step::Template);
        let plan = self.plan(&messages, &given, values, work)?;
        let dialogue = plan.apply(&safe, &safe_tools, instruction);
        let values = self.guarded(&Value::Object(values.clone()));
        let prompt = self.write(dialogue, values.as_object().unwrap_or(&Map::new()));
        work.check()?;
        work.enter(Step::Reading);
        prompt.map_err(|reason| Refusal::of("messages", reason))
    }

    /// Finds a rewrite of the conversation that the template renders completely.
    fn plan(
        &self,
        messages: &[Value],
        tools: &[Value],
        values: &Map<String, Value>,
        work: &Work,
    ) -> Result<Plan, Refusal> {
        let probe = Probe::of(messages, tools);
        let mut reason = None;
        let mut second_best = None;
        let has_tools = !tools.is_empty();
        for plan in Plan::all(messages, has_tools, self.knows_tools, self.knows_parts) {
            work.check()?;
            let dialogue = plan.apply(&probe.messages, &probe.tools, instruction);
            let lost = match self.write(dialogue, values) {
                Ok(prompt) => match probe.missing(&prompt) {
                    None if probe.shows_parts(&prompt) => continue,
                    None if probe.has_json_arguments(&prompt) => return Ok(plan),
                    None => {
                        second_best.get_or_insert(plan);
                        continue;
                    }
                    Some(what) => format!("the model's chat template does not show {what}"),
                },
                Err(reason) => reason,
            };
            reason.get_or_insert(lost);
        }
        let refused = || Refusal::of("messages", reason.unwrap_or_default());
        second_best.ok_or_else(refused)
    }

    fn write(&self, dialogue: Dialogue, values: &Map<String, Value>) -> Result<String, String> {
        let Dialogue { messages, tools } = dialogue;
        // The model continues an assistant message at the end of the conversation.
        let begun = messages
            .last()
            .filter(|last| last["role"] == "assistant" && last.get("tool_calls").is_none());
        let begun = begun.map(text_of_content).unwrap_or_default();
        let begun = begun.trim().to_owned();
        let mut variables = values.clone();
        variables.insert("messages".to_owned(), messages.into());
        if let Some(tools) = tools {
            variables.insert("tools".to_owned(), tools.into());
        }
        variables.insert("add_generation_prompt".to_owned(), begun.is_empty().into());
        variables.insert("bos_token".to_owned(), self.bos.as_str().into());
        variables.insert("eos_token".to_owned(), self.eos.as_str().into());
        let refused = |error: &Error| {
            let said = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            format!("the model's chat template rejects the request: {said}")
        };
        let template = self.environment.get_template(NAME).map_err(|error| refused(&error))?;
        let rendered = rendering::render(&template, &variables, PROMPT_MAX);
        let mut prompt = rendered.map_err(|error| match error {
            rendering::Error::TooLong(most) => format!("the prompt is longer than {most} bytes"),
            rendering::Error::Template(error) => refused(&error),
        })?;
        if !begun.is_empty()
            && let Some(at) = prompt.rfind(&begun)
        {
            prompt.truncate(at + begun.len());
        }
        Ok(prompt)
    }

    /// Returns the value with all control tokens in its texts split.
    fn guarded(&self, value: &Value) -> Value {
        let Some(controls) = &self.controls else { return value.clone() };
        match value {
            Value::String(text) => split(controls, text).into(),
            Value::Array(items) => items.iter().map(|item| self.guarded(item)).collect(),
            Value::Object(fields) => {
                let fields = fields.iter();
                fields.map(|(name, value)| (split(controls, name), self.guarded(value))).collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }
}

fn without_training_tags(source: String) -> String {
    let Ok(tags) = Regex::new(GENERATION) else { return source };
    let tags = tags.replace_all(&source, |tag: &regex::Captures<'_>| {
        let word = if tag.get(2).is_some() { "endif" } else { "if true" };
        format!("{{%{} {word} {}%}}", &tag[1], &tag[3])
    });
    tags.into_owned()
}

/// Returns whether a user-defined token is a marker that the template writes itself, such as
/// `<tool_call>`. Other user-defined tokens, such as runs of spaces, are not split in messages.
fn is_marker_of(template: &str, token: &str) -> bool {
    token.starts_with(['<', '[']) && template.contains(token)
}

/// Builds a regex that matches the texts of control tokens. Thinking tags are excluded: they are
/// harmless, and templates search for them.
fn controls_of(texts: impl Iterator<Item = String>) -> Option<Regex> {
    let is_control = |text: &String| text.len() > 1 && !text.to_ascii_lowercase().contains("think");
    let texts: Vec<String> = texts.filter(is_control).map(|text| regex::escape(&text)).collect();
    if texts.is_empty() {
        return None;
    }
    let all = RegexBuilder::new(&texts.join("|")).size_limit(CONTROLS_SIZE_MAX).build();
    all.or_else(|_too_large| Regex::new(CONTROLS_GUESSED)).ok()
}

/// Inserts [`SPLIT`] after the first character of each control token's text.
fn split(controls: &Regex, text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut from = 0;
    while let Some(found) = controls.find_at(text, from) {
        let first = found.as_str().chars().next().map_or(1, char::len_utf8);
        let behind = found.start() + first;
        safe.push_str(text.get(from..behind).unwrap_or_default());
        safe.push(SPLIT);
        from = behind;
    }
    safe.push_str(text.get(from..).unwrap_or_default());
    safe
}

/// Creates an environment with the functions that templates expect from Python.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL_MAX));
    let mut syntax = SyntaxConfig::builder();
    if let Ok(syntax) = syntax.trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        match text_methods::call(value, method, arguments)? {
            Some(result) => Ok(result),
            None => pycompat::unknown_method_callback(state, value, method, arguments),
        }
    });
    environment.add_filter("wordcount", |text: String| text.split_whitespace().count());
    environment.add_filter("center", text_methods::center);
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    let clock = Clock::system();
    environment.add_function("strftime_now", move |format: String| {
        let now = chrono::DateTime::from_timestamp_micros(clock.now().micros());
        let mut text = String::new();
        // An unknown format specifier yields an empty text.
        match write!(text, "{}", now.unwrap_or_default().format(&format)) {
            Ok(()) => text,
            Err(_unknown) => String::new(),
        }
    });
    environment.add_filter("tojson", to_json);
    environment
}

/// Serializes JSON as Python does, without HTML escapes.
fn to_json(value: &minijinja::Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    // Python's other options have no effect here.
    let _others: Option<bool> = options.get("ensure_ascii")?;
    let wrong =
        |error: &dyn std::fmt::Display| Error::new(ErrorKind::BadSerialization, error.to_string());
    let value: Value = serde_json::to_value(value).map_err(|error| wrong(&error))?;
    let mut text = Vec::new();
    match indent {
        Some(indent) => {
            let spaces = vec![b' '; indent.min(16)];
            let form = serde_json::ser::PrettyFormatter::with_indent(&spaces);
            let mut serializer = serde_json::Serializer::with_formatter(&mut text, form);
            serde::Serialize::serialize(&value, &mut serializer).map_err(|error| wrong(&error))?;
        }
        None => {
            let form = Separated::by(separators.as_deref().unwrap_or_default());
            let mut serializer = serde_json::Serializer::with_formatter(&mut text, form);
            serde::Serialize::serialize(&value, &mut serializer).map_err(|error| wrong(&error))?;
        }
    }
    String::from_utf8(text).map_err(|error| wrong(&error))
}

/// Writes these texts between items, and between keys and values.
struct Separated<'s> {
    item: &'s str,
    key: &'s str,
}

impl<'s> Separated<'s> {
    /// Uses Python's separators unless others are given.
    fn by(given: &'s [String]) -> Self {
        if let [item, key] = given { Self { item, key } } else { Self { item: ", ", key: ": " } }
    }
}

impl serde_json::ser::Formatter for Separated<'_> {
    fn begin_array_value<W>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        if first { Ok(()) } else { writer.write_all(self.item.as_bytes()) }
    }

    fn begin_object_key<W>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        if first { Ok(()) } else { writer.write_all(self.item.as_bytes()) }
    }

    fn begin_object_value<W>(&mut self, writer: &mut W) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        writer.write_all(self.key.as_bytes())
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
