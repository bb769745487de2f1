//! Chat templates: Jinja that comes with the model, made for Python. It is rendered with what such
//! templates use there. One that cannot be read is replaced by ChatML, with a warning.

use std::fmt::Write as _;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value};

use super::request::Refusal;
use super::tools::{Form, Tools};
use crate::runtime::Clock;

/// Instructions that rendering one conversation may take.
const FUEL_MAX: u64 = 50_000_000;
/// The longest prompt, in bytes.
const PROMPT_MAX: usize = 16 * 1024 * 1024;
const NAME: &str = "chat";
/// What is used where a model has no template of its own.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The template of a model.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The tokens that begin and end a text, as the template writes them.
    bos: String,
    eos: String,
    /// How the model writes the calls of tools.
    pub tools: Form,
    /// Whether the template itself lists the tools.
    knows_tools: bool,
}

impl ChatTemplate {
    /// The operator's template, else the model's, else ChatML.
    #[must_use]
    pub fn of_model(model: &LlamaModel, given: Option<&str>) -> Self {
        let vocabulary = model.vocab();
        let text = |token: LlamaToken| {
            let is_token = token.0 >= 0;
            let bytes = is_token.then(|| vocabulary.token_to_piece(token, true, None));
            String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
        };
        let own = model.chat_template(None).ok();
        let own = own.and_then(|own| own.to_string().ok());
        let source = given.map(str::to_owned).or(own);
        Self::new(source, text(vocabulary.bos()), text(vocabulary.eos()))
    }

    fn new(source: Option<String>, bos: String, eos: String) -> Self {
        let source = source.unwrap_or_else(|| {
            tracing::warn!("the model has no chat template: ChatML is used");
            CHATML.to_owned()
        });
        let mut environment = environment();
        let (tools, knows_tools) = (Form::of_template(&source), source.contains("tools"));
        if let Err(error) = environment.add_template_owned(NAME, source) {
            tracing::warn!(%error, "the chat template cannot be read: ChatML is used");
            // It is read by a test.
            let _read = environment.add_template(NAME, CHATML);
            return Self { environment, bos, eos, tools: Form::Tagged, knows_tools: false };
        }
        Self { environment, bos, eos, tools, knows_tools }
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// What the template says of it.
    pub fn render(
        &self,
        messages: &[Value],
        tools: &Tools<'_>,
        values: &Map<String, Value>,
    ) -> Result<String, Refusal> {
        let mut variables = values.clone();
        let mut messages = messages.to_vec();
        if !tools.is_empty() && !self.knows_tools {
            messages.insert(0, tools.instruction());
        }
        let is_continued = messages.last().is_some_and(|last| last["role"] == "assistant");
        variables.insert("messages".to_owned(), messages.into());
        if !tools.is_empty() {
            variables.insert("tools".to_owned(), tools.given().into());
        }
        variables.insert("add_generation_prompt".to_owned(), (!is_continued).into());
        variables.insert("bos_token".to_owned(), self.bos.as_str().into());
        variables.insert("eos_token".to_owned(), self.eos.as_str().into());
        let refused = |error: &Error| {
            let said = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            Refusal::of("messages", format!("the model's chat template refuses this: {said}"))
        };
        let template = self.environment.get_template(NAME).map_err(|error| refused(&error))?;
        let prompt = template.render(Serde(&variables)).map_err(|error| refused(&error))?;
        if prompt.len() > PROMPT_MAX {
            let message = format!("the prompt is longer than {PROMPT_MAX} bytes");
            return Err(Refusal::of("messages", message));
        }
        Ok(prompt)
    }
}

/// What templates find in Python.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL_MAX));
    let mut syntax = SyntaxConfig::builder();
    if let Ok(syntax) = syntax.trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    let clock = Clock::system();
    environment.add_function("strftime_now", move |format: String| {
        let now = chrono::DateTime::from_timestamp_micros(clock.now().micros());
        let mut text = String::new();
        // An unknown letter of a format leaves nothing.
        match write!(text, "{}", now.unwrap_or_default().format(&format)) {
            Ok(()) => text,
            Err(_unknown) => String::new(),
        }
    });
    environment.add_filter("tojson", to_json);
    environment
}

/// JSON as Python writes it: nothing is escaped for HTML.
fn to_json(value: &minijinja::Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Further options of Python's own change nothing here.
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
            let mut serializer = serde_json::Serializer::with_formatter(&mut text, Spaced);
            serde::Serialize::serialize(&value, &mut serializer).map_err(|error| wrong(&error))?;
        }
    }
    String::from_utf8(text).map_err(|error| wrong(&error))
}

/// A blank behind each comma and colon.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W>(&mut self, writer: &mut W) -> std::io::Result<()>
    where
        W: ?Sized + std::io::Write,
    {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(source: &str, messages: &Value) -> Result<String, String> {
        let template = ChatTemplate::new(Some(source.to_owned()), "<s>".into(), "</s>".into());
        let tools = Tools::none();
        let messages = messages.as_array().unwrap();
        template.render(messages, &tools, &Map::new()).map_err(|refusal| refusal.message)
    }

    #[test]
    fn template_renders_what_real_ones_use() {
        let hi = json!([{"role": "user", "content": " Hi <b> "}]);
        for (source, expected) in [
            ("{{ bos_token }}{{ messages[0]['content'].strip() }}{{ eos_token }}", "<s>Hi <b></s>"),
            ("{{ messages[0] | tojson }}", r#"{"role": "user", "content": " Hi <b> "}"#),
            (
                "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}y",
                "y",
            ),
            ("{%- macro f(x) -%}[{{ x }}]{%- endmacro -%}{{ f('a') }}", "[a]"),
            (
                "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}\
                 {% endfor %}{{ ns.n }}",
                "1",
            ),
            ("{{ messages[0].content.split('H')[0] | length }}", "1"),
            ("{{ strftime_now('%Y') | length }}", "4"),
            ("{% if add_generation_prompt %}A:{% endif %}", "A:"),
            ("{% if tools is defined %}t{% endif %}{% if tools is not none %}n{% endif %}", "n"),
            ("{% if messages[0].role == 'user' %}\n    yes\n{% endif %}\n", "    yes\n"),
        ] {
            assert_eq!(render(source, &hi).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn template_that_raises_says_why() {
        let hi = json!([{"role": "system", "content": "x"}]);
        let source = "{{ raise_exception('System role not supported') }}";
        let said = render(source, &hi).unwrap_err();
        assert!(said.ends_with("refuses this: System role not supported"), "{said}");
    }

    #[test]
    fn template_that_cannot_be_read_is_chatml() {
        let hi = json!([{"role": "user", "content": "hi"}]);
        let expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(render("{% if %}", &hi).as_deref(), Ok(expected));
        let template = ChatTemplate::new(None, String::new(), String::new());
        let prompt = template.render(hi.as_array().unwrap(), &Tools::none(), &Map::new());
        assert_eq!(prompt.unwrap(), expected);
    }

    #[test]
    fn template_that_loops_for_ever_ends() {
        let hi = json!([]);
        let source =
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
        assert!(render(source, &hi).is_err());
    }
}
