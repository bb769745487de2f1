//! Tools: how a model receives them, the grammar of tool calls, and parsing the calls in the
//! generated text.
//!
//! Models write calls in different formats; the chat template shows which format a model uses. If
//! the template does not support tools, a system message describes them in the format that most
//! models know.

use serde_json::{Value, json};

use super::grammar::{Rules, literal};
use super::request::{Refusal, Tool, ToolChoice};
use super::sampling::Trigger;

/// Maximum number of calls in one response.
const CALLS_MAX: usize = 32;

/// Texts that identify the templates of Llama 3.1 and 3.2.
const LLAMA: [&str; 2] = ["<|python_tag|>", "\"parameters\": dictionary of argument name"];

/// The format in which a model writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen and others.
    Tagged,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}]`: Mistral.
    List,
    /// `{"name": …, "parameters": …}` and nothing else: Llama 3.
    Bare,
    /// `[TOOL_CALLS]name[ARGS]{…}`: Mistral since Small 3.2.
    Args,
    /// Required calls use the family's own tokens; all other calls use [`Form::Tagged`].
    Family(Family),
    /// `<|tool_call_start|>[…]<|tool_call_end|>`: LFM2; required calls are JSON between these
    /// tokens.
    Lfm,
    /// `[name(key=value)]` and nothing else: Llama 4. Required calls use [`Form::Bare`].
    Python,
    /// In tags, but not as JSON: Qwen3-Coder, GLM. Required calls use [`Form::Tagged`].
    Free,
}

/// How a model family writes required calls: the texts around all calls, and around the name and
/// the arguments of each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Family {
    all: [&'static str; 2],
    call: [&'static str; 3],
    /// Whether the number of the call follows the call's name.
    is_numbered: bool,
    is_single: bool,
}

impl Family {
    const DEEPSEEK: Self = Self {
        all: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
        call: ["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
        is_numbered: false,
        is_single: false,
    };
    /// DeepSeek before V3.1.
    const DEEPSEEK_BLOCK: Self = Self {
        call: [
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            "\n```json\n",
            "\n```<｜tool▁call▁end｜>",
        ],
        ..Self::DEEPSEEK
    };
    const KIMI: Self = Self {
        all: ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
        call: [
            "<|tool_call_begin|>functions.",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ],
        is_numbered: true,
        is_single: false,
    };
    const HARMONY: Self = Self {
        all: ["", ""],
        call: ["<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""],
        is_numbered: false,
        is_single: true,
    };
    const MISTRAL: Self = Self {
        all: ["", ""],
        call: ["[TOOL_CALLS]", "[ARGS]", ""],
        is_numbered: false,
        is_single: false,
    };

    /// Returns the family that a chat template indicates.
    fn of_template(source: &str) -> Option<Self> {
        let has = |text: &str| source.contains(text);
        if has("[TOOL_CALLS]") && has("[ARGS]") {
            Some(Self::MISTRAL)
        } else if has(Self::DEEPSEEK.all[0]) {
            Some(if has("```json") { Self::DEEPSEEK_BLOCK } else { Self::DEEPSEEK })
        } else if has(Self::KIMI.all[0]) {
            Some(Self::KIMI)
        } else if has("<|channel|>") && has("to=functions.") {
            Some(Self::HARMONY)
        } else {
            None
        }
    }

    /// Returns the expression for a tool call whose arguments match an expression.
    fn call(&self, name: &str, arguments: &str) -> String {
        let [begin, between, end] = self.call;
        let begin = if self.is_numbered {
            let begin = literal(&format!("{begin}{name}:"));
            format!("{begin} [0-9]{{1,3}} {}", literal(between))
        } else {
            literal(&format!("{begin}{name}{between}"))
        };
        let end = if end.is_empty() { String::new() } else { format!(" ws {}", literal(end)) };
        format!("{begin} ws {arguments}{end}")
    }

    /// Returns the expression for one call and up to `more` further calls.
    fn all(&self, one: &str, more: usize) -> String {
        let more = if self.is_single || more == 0 {
            String::new()
        } else {
            format!(" ( ws {one} ){{0,{more}}}")
        };
        let [begin, end] = self.all;
        if begin.is_empty() {
            return format!("{one}{more}");
        }
        format!("{} ws {one}{more} ws {}", literal(begin), literal(end))
    }
}

/// A call written by a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub name: String,
    /// The arguments as JSON text.
    pub arguments: String,
}

/// The tools of a request, and whether they must be called.
#[derive(Debug)]
pub(super) struct Tools<'r> {
    tools: Vec<&'r Tool>,
    choice: &'r ToolChoice,
    is_many: bool,
}

impl Form {
    /// Returns the format that a chat template indicates.
    #[must_use]
    pub(super) fn of_template(source: &str) -> Self {
        if source.contains("[TOOL_CALLS]") {
            if source.contains("[ARGS]") { Self::Args } else { Self::List }
        } else if let Some(family) = Family::of_template(source) {
            Self::Family(family)
        } else if source.contains("<|tool_list_start|>") {
            Self::Lfm
        } else if source.contains("<|python_start|>") || source.contains("<|header_start|>") {
            Self::Python
        } else if source.contains("<function=") || source.contains("<arg_key>") {
            Self::Free
        } else if LLAMA.iter().any(|mark| source.contains(mark)) && !source.contains("<tool_call>")
        {
            Self::Bare
        } else {
            Self::Tagged
        }
    }

    const fn arguments(self) -> &'static str {
        match self {
            Self::Tagged | Self::List | Self::Args | Self::Family(_) | Self::Lfm | Self::Free => {
                "arguments"
            }
            Self::Bare | Self::Python => "parameters",
        }
    }

    /// Returns the marker that starts a call.
    #[must_use]
    pub(super) const fn mark(self) -> &'static str {
        match self {
            Self::Tagged | Self::Family(_) | Self::Lfm | Self::Free => "<tool_call>",
            Self::List | Self::Args => "[TOOL_CALLS]",
            Self::Bare => "{",
            Self::Python => "[",
        }
    }

    /// Returns whether a text either consists entirely of calls or contains none.
    #[must_use]
    pub(super) const fn is_whole(self) -> bool {
        matches!(self, Self::Bare | Self::Python)
    }

    /// Removes the markers from a text that does not contain calls after all.
    #[must_use]
    pub(super) fn unmarked(self, text: &str) -> String {
        match self {
            Self::Tagged | Self::Family(_) | Self::Lfm | Self::Free => {
                text.replace("<tool_call>", "").replace("</tool_call>", "")
            }
            Self::List | Self::Args => text.replace(self.mark(), ""),
            Self::Bare | Self::Python => text.to_owned(),
        }
    }

    /// Parses the calls in a text that starts with the marker.
    #[must_use]
    pub(super) fn calls(self, text: &str) -> Vec<Call> {
        let call = |value: &Value| {
            let name = value.get("name")?.as_str()?.to_owned();
            // Some models mix up the formats.
            let arguments = value.get("arguments").or_else(|| value.get("parameters"));
            let arguments = arguments.cloned().unwrap_or_else(|| json!({}));
            Some(Call { name, arguments: arguments.to_string() })
        };
        let rest = text.trim_start();
        match self {
            // The module `native` parses this format.
            Self::Args => Vec::new(),
            Self::Tagged | Self::Family(_) | Self::Lfm | Self::Free => rest
                .split(self.mark())
                .filter_map(|part| {
                    let json = part.split("</tool_call>").next()?.trim();
                    call(&serde_json::from_str(json).ok()?)
                })
                .take(CALLS_MAX)
                .collect(),
            Self::List => {
                let json = rest.strip_prefix(self.mark()).unwrap_or(rest).trim();
                let list: Vec<Value> = serde_json::from_str(json).unwrap_or_default();
                list.iter().filter_map(call).take(CALLS_MAX).collect()
            }
            Self::Bare | Self::Python => {
                let value: Option<Value> = serde_json::from_str(rest.trim()).ok();
                value.as_ref().and_then(call).into_iter().collect()
            }
        }
    }
}

impl<'r> Tools<'r> {
    /// Creates the set of tools that the model may call.
    #[must_use]
    pub(super) fn new(tools: &'r [Tool], choice: &'r ToolChoice, is_many: bool) -> Self {
        let may_call = |tool: &&Tool| match choice {
            ToolChoice::None => false,
            ToolChoice::Named(name) => tool.name == *name,
            ToolChoice::Auto | ToolChoice::Required => true,
        };
        Self { tools: tools.iter().filter(may_call).collect(), choice, is_many }
    }

    /// Creates an empty set of tools.
    #[must_use]
    pub(super) const fn none() -> Tools<'static> {
        Tools { tools: Vec::new(), choice: &ToolChoice::None, is_many: false }
    }

    /// Returns whether there are no tools.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// Returns the tools exactly as received.
    #[must_use]
    pub(super) fn given(&self) -> Vec<Value> {
        self.tools.iter().map(|tool| tool.given.clone()).collect()
    }

    /// Returns whether the model must call a tool.
    #[must_use]
    pub(super) fn are_forced(&self) -> bool {
        let is_forced = matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_));
        is_forced && !self.is_empty()
    }

    /// Adds the rules of the tools' calls, and returns the expression of these rules and the
    /// trigger that activates the grammar. With `has_format`, calls are the alternative to an
    /// answer in a required format, so the grammar is always active. A tool whose schema cannot be
    /// enforced accepts any object, unless it is strict. `check` is called repeatedly and may
    /// abort.
    ///
    /// # Errors
    /// The fault in the schema of a strict tool, or the error of `check`.
    pub(super) fn calls(
        &self,
        form: Form,
        has_format: bool,
        rules: &mut Rules,
        check: impl Fn() -> Result<(), Refusal>,
    ) -> Result<Option<(String, Option<Trigger>)>, Refusal> {
        let is_auto = *self.choice == ToolChoice::Auto && !has_format;
        let is_free = matches!(form, Form::Python | Form::Free);
        if self.tools.is_empty() || (is_free && is_auto) {
            return Ok(None);
        }
        let is_ours = is_auto && matches!(form, Form::Family(_) | Form::Lfm);
        let form = if is_ours { Form::Tagged } else { form };
        let family = match form {
            Form::Family(family) => Some(family),
            Form::Args => Some(Family::MISTRAL),
            Form::Tagged | Form::List | Form::Bare | Form::Lfm | Form::Python | Form::Free => None,
        };
        let mut calls = Vec::new();
        for tool in &self.tools {
            check()?;
            let arguments = match rules.schema(&tool.parameters, tool.is_strict) {
                Ok(arguments) => arguments,
                Err(error) if tool.is_strict => {
                    return Err(Refusal::of(&tool.place, error.to_string()));
                }
                Err(_not_kept_to) => "object".to_owned(),
            };
            if let Some(family) = family {
                calls.push(rules.add(&family.call(&tool.name, &arguments)));
                continue;
            }
            let name = literal(&Value::from(tool.name.as_str()).to_string());
            let field = literal(&Value::from(form.arguments()).to_string());
            calls.push(rules.add(&format!(
                r#""{{" ws "\"name\"" ws ":" ws {name} ws "," ws {field} ws ":" ws {arguments} ws "}}""#
            )));
        }
        let one = rules.add(&calls.join(" | "));
        let more = if self.is_many { CALLS_MAX - 1 } else { 0 };
        let all = match (form, family) {
            (_, Some(family)) => family.all(&one, more),
            (Form::Tagged | Form::Free, None) => {
                let call = rules.add(&format!(r#""<tool_call>" ws {one} ws "</tool_call>""#));
                let next = rules.add(&format!("ws {call}"));
                format!("{call} {next}{{0,{more}}} ws")
            }
            (Form::List | Form::Lfm, None) => {
                let next = rules.add(&format!(r#""," ws {one}"#));
                let list = format!(r#""[" ws {one} {next}{{0,{more}}} ws "]""#);
                if form == Form::List {
                    format!(r#""[TOOL_CALLS]" ws {list}"#)
                } else {
                    format!(r#""<|tool_call_start|>" ws {list} ws "<|tool_call_end|>""#)
                }
            }
            (Form::Bare | Form::Python | Form::Args | Form::Family(_), None) => one,
        };
        let trigger = is_auto.then(|| match form {
            Form::Tagged | Form::Free | Form::List | Form::Args | Form::Family(_) | Form::Lfm => {
                Trigger::Mark(form.mark())
            }
            Form::Bare | Form::Python => Trigger::Named,
        });
        Ok(Some((all, trigger)))
    }
}

/// Describes tools to a model whose template does not support them.
#[must_use]
pub(super) fn instruction(tools: &[Value]) -> String {
    let lines: Vec<String> = tools.iter().map(Value::to_string).collect();
    format!(
        "You may call these functions, whose signatures are given as JSON:\n<tools>\n{}\n\
         </tools>\nTo call one, answer with its name and arguments as JSON:\n<tool_call>\n\
         {{\"name\": <name>, \"arguments\": <arguments>}}\n</tool_call>",
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_calls_are_parsed_in_each_form() {
        let call = |name: &str, arguments: &str| Call {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        for (form, text, calls) in [
            (
                Form::Tagged,
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n\
                 <tool_call>{\"name\": \"g\"}</tool_call>",
                vec![call("f", r#"{"x":1}"#), call("g", "{}")],
            ),
            (Form::Tagged, "<tool_call>{\"name\": \"f\", \"argum", vec![]),
            (
                Form::List,
                "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}]",
                vec![call("f", "{}")],
            ),
            (
                Form::Bare,
                "{\"name\": \"f\", \"parameters\": {\"a\": [1]}}",
                vec![call("f", r#"{"a":[1]}"#)],
            ),
            (Form::Bare, "{\"title\": 1}", vec![]),
        ] {
            assert_eq!(form.calls(text), calls, "{text}");
        }
    }

    #[test]
    fn tool_form_is_detected_in_template() {
        for (source, form) in [
            ("… <tool_call> …", Form::Tagged),
            ("… [TOOL_CALLS] …", Form::List),
            ("… <|python_tag|> …", Form::Bare),
            (
                r#"… {"name": function name, "parameters": dictionary of argument name …"#,
                Form::Bare,
            ),
            ("… [TOOL_CALLS] … [ARGS] …", Form::Args),
            ("… <|header_start|> …", Form::Python),
            ("… <tool_call> … <function= …", Form::Free),
            ("… <tool_call> … <arg_key> …", Form::Free),
            ("… <｜tool▁calls▁begin｜> … ```json …", Form::Family(Family::DEEPSEEK_BLOCK)),
            ("… <｜tool▁calls▁begin｜> …", Form::Family(Family::DEEPSEEK)),
            ("… <|tool_calls_section_begin|> …", Form::Family(Family::KIMI)),
            ("… <|channel|> … to=functions. …", Form::Family(Family::HARMONY)),
            ("… <|tool_list_start|> …", Form::Lfm),
            ("plain", Form::Tagged),
        ] {
            assert_eq!(Form::of_template(source), form);
        }
    }

    #[test]
    fn tools_grammar_covers_callable_tools() {
        let tool = |name: &str| Tool {
            name: name.to_owned(),
            parameters: json!({"type": "object", "properties": {"x": {"type": "integer"}}}),
            is_strict: false,
            place: String::new(),
            given: json!({"function": {"name": name}}),
        };
        let both = [tool("first"), tool("second")];
        let calls = |choice: &ToolChoice, form: Form, has_format: bool| {
            let mut rules = Rules::default();
            let tools = Tools::new(&both, choice, true);
            let calls = tools.calls(form, has_format, &mut rules, || Ok(())).unwrap();
            calls.map(|(expression, trigger)| (rules.text("root", &expression), trigger))
        };
        assert_eq!(calls(&ToolChoice::None, Form::Tagged, false), None);
        let (text, trigger) = calls(&ToolChoice::Auto, Form::Tagged, false).unwrap();
        assert!(trigger.is_some() && text.contains("first"));
        let (text, _) = calls(&ToolChoice::Required, Form::Args, false).unwrap();
        assert!(text.contains(r#""[TOOL_CALLS]first[ARGS]" ws "#));
        assert_eq!(calls(&ToolChoice::Auto, Form::Free, false), None);
        let (text, trigger) =
            calls(&ToolChoice::Named("second".to_owned()), Form::Tagged, false).unwrap();
        assert!(trigger.is_none() && !text.contains("first"), "{text}");
        // With a required format, the calls are in the form of required calls.
        for form in [Form::Tagged, Form::Free, Form::Family(Family::KIMI), Form::Python] {
            let (text, trigger) = calls(&ToolChoice::Auto, form, true).unwrap();
            let (required, _) = calls(&ToolChoice::Required, form, false).unwrap();
            assert_eq!((text, trigger), (required, None), "{form:?}");
        }
    }
}
