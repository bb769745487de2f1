//! Parses a request: known fields are validated, and an invalid field is rejected by name before
//! anything is computed. Unknown fields are ignored.

use serde_json::{Map, Value};

use super::messages;
use orrery_domain::json_object::whole_number;
use orrery_domain::spelling;
use orrery_wire::openai;

/// Maximum length of a stop string in bytes, and the maximum number of stop strings.
const STOP_BYTES_MAX: usize = 1024;
const STOPS_MAX: usize = 64;
/// Maximum number of choices per request.
const ANSWERS_MAX: u64 = 16;
/// Maximum number of biased tokens.
const BIASED_MAX: usize = 1024;
const TOP_LOGPROBS_MAX: u64 = 20;
const TOOLS_MAX: usize = 128;
/// Maximum size of a JSON Schema, and of all tools' schemas together, in bytes.
const SCHEMA_BYTES_MAX: usize = 256 * 1024;

/// Maximum number of ignored fields that are listed.
const WARNINGS_MAX: usize = 10;
/// The fields of a request that have an effect, except [`SCHEMA_FIELDS`].
const KNOWN: [&str; 31] = [
    "model",
    "messages",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "parallel_tool_calls",
    "response_format",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "logprobs",
    "top_logprobs",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
    "repetition_penalty",
    "seed",
    "logit_bias",
    "chat_template_kwargs",
    "reasoning_effort",
    "prompt",
    "system",
    "cache_prompt",
];
/// Ignored fields that do not affect the answer and therefore cause no warning.
const WITHOUT_EFFECT: [&str; 8] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "usage",
    "verbosity",
];

/// The error for a rejected request, in OpenAI's format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub status: u16,
    pub message: String,
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

impl Refusal {
    /// Creates the error for an invalid field.
    #[must_use]
    pub(crate) fn of(param: &str, message: impl Into<String>) -> Self {
        Self {
            status: 400,
            message: message.into(),
            param: Some(param.to_owned()),
            code: Some("invalid_value"),
        }
    }

    /// Creates an error that does not concern a particular field.
    #[must_use]
    pub(crate) fn because(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// Returns the error as a JSON body.
    #[must_use]
    pub(crate) fn body(&self) -> Vec<u8> {
        let body = openai::Error {
            error: openai::Body {
                message: &self.message,
                kind: openai::kind_of(self.status),
                param: self.param.as_deref(),
                code: self.code.or(openai::code_of(self.status)),
            },
        };
        // The body contains only strings, so serialization cannot fail.
        serde_json::to_vec(&body).unwrap_or_default()
    }
}

/// A request for a chat completion.
#[derive(Debug)]
pub(super) struct Chat {
    pub messages: Vec<Value>,
    pub tools: Vec<Tool>,
    pub choice: ToolChoice,
    pub has_parallel_calls: bool,
    /// Whether the tools are in the legacy field `functions`.
    pub is_legacy: bool,
    /// The format that the response must have.
    pub format: Option<Format>,
    pub is_stream: bool,
    pub wants_usage: bool,
    pub max_tokens: Option<usize>,
    pub stops: Vec<String>,
    pub logprobs: Option<usize>,
    pub answers: u32,
    pub numbers: Numbers,
    pub seed: Option<u32>,
    pub bias: Vec<(i32, f32)>,
    /// Additional variables of the chat template.
    pub template_values: Map<String, Value>,
    /// A warning for each ignored field that may have been meant to affect the answer.
    pub warnings: Vec<String>,
}

/// The JSON Schema of a response.
#[derive(Debug)]
pub(super) struct Format {
    pub schema: Value,
    /// Whether keywords that cannot be enforced are errors.
    pub is_strict: bool,
    /// The location of the schema in the request.
    pub place: String,
}

/// A function that the model may call.
#[derive(Debug, Clone)]
pub(super) struct Tool {
    pub name: String,
    /// The JSON Schema of the tool's arguments.
    pub parameters: Value,
    /// Whether a schema that cannot be enforced is an error.
    pub is_strict: bool,
    /// The location of the schema in the request.
    pub place: String,
    /// The tool exactly as received.
    pub given: Value,
}

/// Whether the model must call tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToolChoice {
    /// The model decides.
    Auto,
    None,
    /// The model must call at least one tool.
    Required,
    /// The model must call this tool.
    Named(String),
}

/// The numeric sampling parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Numbers {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: i32,
    pub min_p: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub repeat_penalty: f32,
}

/// The fields of a request; the accessors validate them and name them in errors.
pub(super) struct Fields<'f>(&'f Map<String, Value>);

impl<'f> Fields<'f> {
    #[must_use]
    pub(super) const fn new(fields: &'f Map<String, Value>) -> Self {
        Self(fields)
    }
}

impl Fields<'_> {
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn number(&self, name: &str, least: f32, most: f32, default: f32) -> Result<f32, Refusal> {
        let Some(value) = self.get(name) else { return Ok(default) };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "32 bits are precise enough for sampling"
        )]
        let number = value.as_f64().map(|number| number as f32);
        let number = number.filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| {
            Refusal::of(name, format!("{name} must be a number from {least} to {most}"))
        })
    }

    pub(super) fn whole(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = whole_number(value).filter(|number| (least..=most).contains(number));
        let message = || format!("{name} must be a whole number from {least} to {most}");
        number.map(Some).ok_or_else(|| Refusal::of(name, message()))
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, Refusal> {
        let Some(value) = self.get(name) else { return Ok(false) };
        value.as_bool().ok_or_else(|| Refusal::of(name, format!("{name} must be true or false")))
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<&Map<String, Value>>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let object = value.as_object();
        object.map(Some).ok_or_else(|| Refusal::of(name, format!("{name} must be an object")))
    }
}

impl Chat {
    /// Parses a request.
    ///
    /// # Errors
    /// Names the first invalid field.
    pub(super) fn read(body: &[u8]) -> Result<Self, Refusal> {
        let fields: Map<String, Value> = serde_json::from_slice(body)
            .map_err(|error| Refusal::because(400, format!("the body is not JSON: {error}")))?;
        let fields = Fields(&fields);
        let messages = fields.get("messages").and_then(Value::as_array).cloned();
        let messages = messages.filter(|messages| !messages.is_empty());
        let messages = messages
            .ok_or_else(|| Refusal::of("messages", "messages must be a list of messages"))?;
        let messages = messages::plain(messages)?;
        let is_legacy = fields.get("tools").is_none() && fields.get("functions").is_some();
        let tools = tools(&fields)?;
        let choice = choice(&fields, &tools)?;
        let most = |name: &str| match fields.get(name) {
            // Clients of llama.cpp send -1 for no limit.
            Some(most) if *most == -1 => Ok(None),
            _ => fields.whole(name, 1, u32::MAX.into()),
        };
        let most = most("max_completion_tokens")?.or(most("max_tokens")?);
        let options = fields.object("stream_options")?;
        let top = fields.whole("top_logprobs", 0, TOP_LOGPROBS_MAX)?;
        let logprobs = fields.flag("logprobs")?.then(|| top.unwrap_or(0));
        let answers = fields.whole("n", 1, ANSWERS_MAX)?.unwrap_or(1);
        let mut template_values =
            fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
        if let Some(effort) = fields.get("reasoning_effort") {
            template_values.entry("reasoning_effort").or_insert(effort.clone());
        }
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Ok(Self {
            messages,
            has_parallel_calls: fields
                .get("parallel_tool_calls")
                .is_none_or(|value| value != false),
            format: format(&fields)?,
            is_stream: fields.flag("stream")?,
            wants_usage: options
                .and_then(|options| options.get("include_usage")?.as_bool())
                .unwrap_or(false),
            max_tokens: most.map(size),
            stops: stops(&fields)?,
            logprobs: logprobs.map(size),
            answers: u32::try_from(answers).unwrap_or(1),
            numbers: numbers(&fields)?,
            seed: seed(&fields)?,
            bias: bias(&fields)?,
            template_values,
            warnings: warnings(fields.0),
            is_legacy,
            tools,
            choice,
        })
    }
}

/// Returns the seed, if the request has one.
pub(super) fn seed(fields: &Fields<'_>) -> Result<Option<u32>, Refusal> {
    let seed = fields.get("seed").map(|seed| {
        let message = || Refusal::of("seed", "seed must be a whole number");
        let whole =
            whole_number::<u64>(seed).or_else(|| whole_number::<i64>(seed).map(i64::cast_unsigned));
        // Combine the upper and lower halves.
        whole.map(|seed| (seed ^ (seed >> 32)) & u64::from(u32::MAX)).ok_or_else(message)
    });
    Ok(seed.transpose()?.and_then(|seed| u32::try_from(seed).ok()))
}

/// Returns a sentence for each field that has no effect.
fn warnings(fields: &Map<String, Value>) -> Vec<String> {
    let is_known = |name: &str| {
        KNOWN.contains(&name) || SCHEMA_FIELDS.contains(&name) || WITHOUT_EFFECT.contains(&name)
    };
    let ignored = fields.iter().filter(|(name, value)| !value.is_null() && !is_known(name));
    let sentence = |name: &str| match spelling::nearest(name, &KNOWN) {
        Some(meant) => format!("field {name} is ignored: did you mean {meant}?"),
        None => format!("field {name} is ignored"),
    };
    let short = |name: &String| name.chars().take(60).collect::<String>();
    ignored.take(WARNINGS_MAX).map(|(name, _)| sentence(&short(name))).collect()
}

pub(super) fn numbers(fields: &Fields<'_>) -> Result<Numbers, Refusal> {
    // Other servers use -1 for no limit.
    let is_off = fields.get("top_k").is_some_and(|top_k| *top_k == -1);
    let top_k = if is_off { None } else { fields.whole("top_k", 0, 1_000_000)? }.unwrap_or(0);
    Ok(Numbers {
        temperature: fields.number("temperature", 0.0, 2.0, 1.0)?,
        top_p: fields.number("top_p", 0.0, 1.0, 1.0)?,
        top_k: i32::try_from(top_k).unwrap_or(0),
        min_p: fields.number("min_p", 0.0, 1.0, 0.0)?,
        presence_penalty: fields.number("presence_penalty", -2.0, 2.0, 0.0)?,
        frequency_penalty: fields.number("frequency_penalty", -2.0, 2.0, 0.0)?,
        // llama.cpp calls this field `repeat_penalty`, and most other servers `repetition_penalty`.
        repeat_penalty: match fields.get("repeat_penalty") {
            Some(_) => fields.number("repeat_penalty", 0.01, 10.0, 1.0)?,
            None => fields.number("repetition_penalty", 0.01, 10.0, 1.0)?,
        },
    })
}

fn tools(fields: &Fields<'_>) -> Result<Vec<Tool>, Refusal> {
    let field = if fields.get("tools").is_some() { "tools" } else { "functions" };
    let Some(given) = fields.get(field) else { return Ok(Vec::new()) };
    let wrong = |message: String| Refusal::of(field, message);
    let list = given.as_array().ok_or_else(|| wrong(format!("{field} must be a list")))?;
    if list.len() > TOOLS_MAX {
        return Err(wrong(format!("there may be at most {TOOLS_MAX} tools")));
    }
    if given.to_string().len() > SCHEMA_BYTES_MAX {
        return Err(wrong(format!("{field} may have at most {SCHEMA_BYTES_MAX} bytes together")));
    }
    let read = |(index, given): (usize, &Value)| {
        if field == "functions" {
            let tool = serde_json::json!({"type": "function", "function": given});
            return read_tool(&tool, &format!("functions[{index}]"), "");
        }
        read_tool(given, &format!("tools[{index}]"), ".function")
    };
    list.iter().enumerate().map(read).collect()
}

/// Parses the tool at `place` in the request; its function is at `place` followed by `within`.
fn read_tool(tool: &Value, place: &str, within: &str) -> Result<Tool, Refusal> {
    let kind = tool.get("type").and_then(Value::as_str).unwrap_or("function");
    if kind != "function" {
        let kind: String = kind.chars().take(40).collect();
        let message = format!("tools of type '{kind}' are not supported here: use 'function'");
        return Err(Refusal::of(&format!("{place}.type"), message));
    }
    let param = format!("{place}{within}");
    if tool.get("function").is_none() && tool.get("name").is_some() {
        let message = "a tool of /v1/chat/completions has its name within 'function'";
        return Err(Refusal::of(&param, message));
    }
    let name = tool.pointer("/function/name").and_then(Value::as_str);
    let name = name.filter(|name| {
        let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        !name.is_empty() && name.len() <= 128 && name.chars().all(is_good)
    });
    let name = name.ok_or_else(|| {
        Refusal::of(&param, "a tool needs a name of letters, digits, '_', '-' and '.'")
    })?;
    let parameters = tool.pointer("/function/parameters").filter(|given| !given.is_null());
    let parameters = parameters.cloned().unwrap_or_else(|| serde_json::json!({"type": "object"}));
    Ok(Tool {
        name: name.to_owned(),
        parameters,
        is_strict: tool.pointer("/function/strict") == Some(&Value::Bool(true)),
        place: format!("{param}.parameters"),
        given: tool.clone(),
    })
}

fn choice(fields: &Fields<'_>, tools: &[Tool]) -> Result<ToolChoice, Refusal> {
    let field = if fields.get("tool_choice").is_some() { "tool_choice" } else { "function_call" };
    let wrong = |message: &str| Refusal::of(field, format!("{field} {message}"));
    let kind = match fields.get(field) {
        None => Some("auto"),
        Some(Value::String(word)) => Some(word.as_str()),
        Some(choice) => choice.get("type").and_then(Value::as_str),
    };
    let choice = match kind {
        Some("auto") => ToolChoice::Auto,
        Some("none") => ToolChoice::None,
        Some("required" | "any") => ToolChoice::Required,
        Some("allowed_tools") => {
            return Err(wrong("'allowed_tools' is not supported here: send those tools"));
        }
        Some("function" | "tool") | None => {
            let choice = fields.get(field).unwrap_or(&Value::Null);
            let name = choice.pointer("/function/name").or(choice.get("name"));
            let name = name.and_then(Value::as_str);
            let name = name.ok_or_else(|| wrong("must name a function"))?;
            if !tools.iter().any(|tool| tool.name == name) {
                return Err(wrong("names a function that is not among the tools"));
            }
            ToolChoice::Named(name.to_owned())
        }
        Some(_) => return Err(wrong("must be auto, none, required or a function")),
    };
    if choice == ToolChoice::Required && tools.is_empty() {
        return Err(wrong("is required, and there are no tools"));
    }
    Ok(choice)
}

/// Fields in which other servers (llama.cpp, vLLM and Ollama) expect the JSON Schema of the answer.
const SCHEMA_FIELDS: [&str; 3] = ["json_schema", "guided_json", "format"];
/// Fields with which other servers constrain the answer in ways that are not supported here.
const CONSTRAINTS: [&str; 6] = [
    "guided_choice",
    "guided_regex",
    "guided_grammar",
    "structured_outputs",
    "grammar",
    "allowed_token_ids",
];

fn format(fields: &Fields<'_>) -> Result<Option<Format>, Refusal> {
    if let Some(name) = CONSTRAINTS.iter().find(|name| fields.get(name).is_some()) {
        let message =
            format!("{name} is not supported here: use response_format with a JSON Schema");
        return Err(Refusal::of(name, message));
    }
    let any = serde_json::json!({"type": "object"});
    let Some(format) = fields.object("response_format")? else {
        let Some(name) = SCHEMA_FIELDS.into_iter().find(|name| fields.get(name).is_some()) else {
            return Ok(None);
        };
        // Ollama's name for any object.
        let schema = fields.get(name).filter(|given| *given != "json");
        return schema_of(schema.unwrap_or(&any), name, false).map(Some);
    };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => {
            let schema = format.get("schema").filter(|schema| !schema.is_null());
            schema_of(schema.unwrap_or(&any), "response_format.schema", false).map(Some)
        }
        Some("json_schema") => {
            const STRICT: &str = "response_format.json_schema.strict";
            let given = format.get("json_schema").unwrap_or(&Value::Null);
            let is_strict = match given.get("strict") {
                None | Some(Value::Null) => false,
                Some(Value::Bool(is_strict)) => *is_strict,
                Some(_) => {
                    return Err(Refusal::of(STRICT, format!("{STRICT} must be true or false")));
                }
            };
            let schema = given.get("schema").unwrap_or(&Value::Null);
            schema_of(schema, "response_format.json_schema.schema", is_strict).map(Some)
        }
        Some(_) | None => Err(Refusal::of(
            "response_format.type",
            "response_format.type must be text, json_object or json_schema",
        )),
    }
}

/// Parses the JSON Schema of the answer at `place` in the request.
fn schema_of(given: &Value, place: &str, is_strict: bool) -> Result<Format, Refusal> {
    let parsed = given.as_str().and_then(|text| serde_json::from_str(text).ok());
    let schema = parsed.unwrap_or_else(|| given.clone());
    if !(schema.is_object() || schema.is_boolean()) {
        return Err(Refusal::of(place, format!("{place} must be a JSON Schema")));
    }
    if schema.to_string().len() > SCHEMA_BYTES_MAX {
        let message = format!("{place} is larger than {SCHEMA_BYTES_MAX} bytes");
        return Err(Refusal::of(place, message));
    }
    Ok(Format { schema, is_strict, place: place.to_owned() })
}

pub(super) fn stops(fields: &Fields<'_>) -> Result<Vec<String>, Refusal> {
    let stops = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(list)) => {
            let texts: Option<Vec<String>> =
                list.iter().map(|stop| stop.as_str().map(str::to_owned)).collect();
            texts
                .ok_or_else(|| Refusal::of("stop", "stop must be a string or a list of strings"))?
        }
        Some(_) => return Err(Refusal::of("stop", "stop must be a string or a list of strings")),
    };
    if stops.len() > STOPS_MAX || stops.iter().any(|stop| stop.len() > STOP_BYTES_MAX) {
        let message = format!(
            "stop may have at most {STOPS_MAX} texts, each of at most {STOP_BYTES_MAX} bytes"
        );
        return Err(Refusal::of("stop", message));
    }
    Ok(stops.into_iter().filter(|stop| !stop.is_empty()).collect())
}

pub(super) fn bias(fields: &Fields<'_>) -> Result<Vec<(i32, f32)>, Refusal> {
    let Some(given) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let wrong = || {
        let message = "logit_bias must map token ids to numbers from -100 to 100";
        Refusal::of("logit_bias", message)
    };
    if given.len() > BIASED_MAX {
        return Err(Refusal::of(
            "logit_bias",
            format!("logit_bias may have at most {BIASED_MAX} tokens"),
        ));
    }
    let pair = |(token, bias): (&String, &Value)| {
        let token = token.parse::<i32>().ok().filter(|token| *token >= 0)?;
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias))?;
        #[expect(clippy::cast_possible_truncation, reason = "a bias of at most 100")]
        // As in OpenAI's API, the extreme values ban a token or allow only that token.
        let bias = if bias <= -100.0 { f32::NEG_INFINITY } else { bias as f32 };
        Some((token, bias))
    };
    given.iter().map(|one| pair(one).ok_or_else(wrong)).collect()
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
