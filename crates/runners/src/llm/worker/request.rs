//! Parses a request: known fields are validated, and an invalid field is rejected by name before
//! anything is computed. Unknown fields are ignored.

use serde_json::{Map, Value};

use super::messages;
use orrery_domain::json_object::whole_number;
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

/// The error for a rejected request, in OpenAI's format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub message: String,
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

impl Refusal {
    /// Creates the error for an invalid field.
    #[must_use]
    pub fn of(param: &str, message: impl Into<String>) -> Self {
        Self {
            status: 400,
            message: message.into(),
            param: Some(param.to_owned()),
            code: Some("invalid_value"),
        }
    }

    /// Creates an error that does not concern a particular field.
    #[must_use]
    pub fn because(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// Returns the error as a JSON body.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
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
pub struct Chat {
    pub messages: Vec<Value>,
    pub tools: Vec<Tool>,
    pub choice: ToolChoice,
    pub has_parallel_calls: bool,
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
}

/// The JSON Schema of a response.
#[derive(Debug)]
pub struct Format {
    pub schema: Value,
    /// Whether keywords that cannot be enforced are errors.
    pub is_strict: bool,
}

/// A function that the model may call.
#[derive(Debug, Clone)]
pub struct Tool {
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
pub enum ToolChoice {
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
pub struct Numbers {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: i32,
    pub min_p: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub repeat_penalty: f32,
}

/// The fields of a request; the accessors validate them and name them in errors.
struct Fields<'f>(&'f Map<String, Value>);

impl Fields<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn number(&self, name: &str, least: f32, most: f32, default: f32) -> Result<f32, Refusal> {
        let Some(value) = self.get(name) else { return Ok(default) };
        #[expect(clippy::cast_possible_truncation, reason = "sampling needs no more")]
        let number = value.as_f64().map(|number| number as f32);
        let number = number.filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| {
            Refusal::of(name, format!("{name} must be a number from {least} to {most}"))
        })
    }

    fn whole(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = whole_number(value).filter(|number| (least..=most).contains(number));
        let message = || format!("{name} must be a whole number from {least} to {most}");
        number.map(Some).ok_or_else(|| Refusal::of(name, message()))
    }

    fn flag(&self, name: &str) -> Result<bool, Refusal> {
        let Some(value) = self.get(name) else { return Ok(false) };
        value.as_bool().ok_or_else(|| Refusal::of(name, format!("{name} must be true or false")))
    }

    fn object(&self, name: &str) -> Result<Option<&Map<String, Value>>, Refusal> {
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
    pub fn read(body: &[u8]) -> Result<Self, Refusal> {
        let fields: Map<String, Value> = serde_json::from_slice(body)
            .map_err(|error| Refusal::because(400, format!("the body is not JSON: {error}")))?;
        let fields = Fields(&fields);
        let messages = fields.get("messages").and_then(Value::as_array).cloned();
        let messages = messages.filter(|messages| !messages.is_empty());
        let messages = messages
            .ok_or_else(|| Refusal::of("messages", "messages must be a list of messages"))?;
        let messages = messages::plain(messages)?;
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
        let seed = fields.get("seed").map(|seed| {
            let message = || Refusal::of("seed", "seed must be a whole number");
            let whole = whole_number::<u64>(seed)
                .or_else(|| whole_number::<i64>(seed).map(i64::cast_unsigned));
            // Combine the upper and lower halves.
            whole.map(|seed| (seed ^ (seed >> 32)) & u64::from(u32::MAX)).ok_or_else(message)
        });
        let seed = seed.transpose()?.and_then(|seed| u32::try_from(seed).ok());
        let answers = fields.whole("n", 1, ANSWERS_MAX)?.unwrap_or(1);
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
            seed,
            bias: bias(&fields)?,
            template_values: fields.object("chat_template_kwargs")?.cloned().unwrap_or_default(),
            tools,
            choice,
        })
    }
}

fn numbers(fields: &Fields<'_>) -> Result<Numbers, Refusal> {
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
        repeat_penalty: fields.number("repeat_penalty", 0.01, 10.0, 1.0)?,
    })
}

fn tools(fields: &Fields<'_>) -> Result<Vec<Tool>, Refusal> {
    let Some(given) = fields.get("tools") else { return Ok(Vec::new()) };
    let list = given.as_array().ok_or_else(|| Refusal::of("tools", "tools must be a list"))?;
    if list.len() > TOOLS_MAX {
        return Err(Refusal::of("tools", format!("there may be at most {TOOLS_MAX} tools")));
    }
    if given.to_string().len() > SCHEMA_BYTES_MAX {
        let message = format!("tools may have at most {SCHEMA_BYTES_MAX} bytes together");
        return Err(Refusal::of("tools", message));
    }
    let read = |(index, tool): (usize, &Value)| {
        let kind = tool.get("type").and_then(Value::as_str).unwrap_or("function");
        if kind != "function" {
            let kind: String = kind.chars().take(40).collect();
            let message = format!("tools of type '{kind}' are not supported here: use 'function'");
            return Err(Refusal::of(&format!("tools[{index}].type"), message));
        }
        let param = format!("tools[{index}].function");
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
        let parameters =
            parameters.cloned().unwrap_or_else(|| serde_json::json!({"type": "object"}));
        Ok(Tool {
            name: name.to_owned(),
            parameters,
            is_strict: tool.pointer("/function/strict") == Some(&Value::Bool(true)),
            place: format!("tools[{index}].function.parameters"),
            given: tool.clone(),
        })
    };
    list.iter().enumerate().map(read).collect()
}

fn choice(fields: &Fields<'_>, tools: &[Tool]) -> Result<ToolChoice, Refusal> {
    let wrong = |message: &str| Refusal::of("tool_choice", message);
    let kind = match fields.get("tool_choice") {
        None => Some("auto"),
        Some(Value::String(word)) => Some(word.as_str()),
        Some(choice) => choice.get("type").and_then(Value::as_str),
    };
    let choice = match kind {
        Some("auto") => ToolChoice::Auto,
        Some("none") => ToolChoice::None,
        Some("required" | "any") => ToolChoice::Required,
        Some("allowed_tools") => {
            return Err(wrong(
                "tool_choice 'allowed_tools' is not supported here: send those tools",
            ));
        }
        Some("function" | "tool") | None => {
            let choice = fields.get("tool_choice").unwrap_or(&Value::Null);
            let name = choice.pointer("/function/name").or(choice.get("name"));
            let name = name.and_then(Value::as_str);
            let name = name.ok_or_else(|| wrong("tool_choice must name a function"))?;
            if !tools.iter().any(|tool| tool.name == name) {
                return Err(wrong("tool_choice names a function that is not among the tools"));
            }
            ToolChoice::Named(name.to_owned())
        }
        Some(_) => return Err(wrong("tool_choice must be auto, none, required or a function")),
    };
    if choice == ToolChoice::Required && tools.is_empty() {
        return Err(wrong("tool_choice is required, and there are no tools"));
    }
    Ok(choice)
}

fn format(fields: &Fields<'_>) -> Result<Option<Format>, Refusal> {
    let Some(format) = fields.object("response_format")? else { return Ok(None) };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => {
            let schema = serde_json::json!({"type": "object"});
            Ok(Some(Format { schema, is_strict: false }))
        }
        Some("json_schema") => {
            const PARAM: &str = "response_format.json_schema.schema";
            let given = format.get("json_schema");
            let schema = given.and_then(|given| given.get("schema"));
            let schema = schema.filter(|schema| schema.is_object() || schema.is_boolean());
            let schema = schema.ok_or_else(|| Refusal::of(PARAM, "the JSON Schema is missing"))?;
            if schema.to_string().len() > SCHEMA_BYTES_MAX {
                let message = format!("{PARAM} is larger than {SCHEMA_BYTES_MAX} bytes");
                return Err(Refusal::of(PARAM, message));
            }
            let is_strict =
                given.is_some_and(|given| given.get("strict") == Some(&Value::Bool(true)));
            Ok(Some(Format { schema: schema.clone(), is_strict }))
        }
        Some(_) | None => Err(Refusal::of(
            "response_format.type",
            "response_format.type must be text, json_object or json_schema",
        )),
    }
}

fn stops(fields: &Fields<'_>) -> Result<Vec<String>, Refusal> {
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

fn bias(fields: &Fields<'_>) -> Result<Vec<(i32, f32)>, Refusal> {
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
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(body: &Value) -> String {
        let refusal = Chat::read(body.to_string().as_bytes()).unwrap_err();
        assert_eq!(refusal.status, 400);
        refusal.param.unwrap_or_default()
    }

    fn with(more: &Value) -> Value {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    }

    #[test]
    fn request_refusals_name_the_field() {
        for (more, param) in [
            (json!({"messages": []}), "messages"),
            (json!({"messages": "hi"}), "messages"),
            (json!({"messages": ["hi"]}), "messages[0]"),
            (json!({"messages": [{"content": "hi"}]}), "messages[0].role"),
            (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
                "messages[0].content",
            ),
            (json!({"temperature": -0.1}), "temperature"),
            (json!({"temperature": "warm"}), "temperature"),
            (json!({"top_p": 1.1}), "top_p"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_tokens": -3}), "max_tokens"),
            (json!({"n": 17}), "n"),
            (json!({"seed": 1.5}), "seed"),
            (json!({"stop": vec!["x"; 65]}), "stop"),
            (json!({"stop": ["x".repeat(2000)]}), "stop"),
            (json!({"logit_bias": {"a": 1}}), "logit_bias"),
            (json!({"logit_bias": {"5": 101}}), "logit_bias"),
            (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
            (json!({"tools": [{}]}), "tools[0].function"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"tool_choice": {"function": {"name": "g"}}}), "tool_choice"),
            (json!({"response_format": {"type": "xml"}}), "response_format.type"),
            (
                json!({"response_format": {"type": "json_schema"}}),
                "response_format.json_schema.schema",
            ),
        ] {
            assert_eq!(refused(&with(&more)), param, "{more}");
        }
    }

    #[test]
    fn request_joins_parts_and_opens_arguments() {
        let chat = Chat::read(
            json!({"messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "1", "type": "function",
                     "function": {"name": "f", "arguments": "{\"x\":1}"}}]},
            ], "seed": -1, "logit_bias": {"7": -100}})
            .to_string()
            .as_bytes(),
        )
        .unwrap();
        assert_eq!(chat.messages[0]["content"], "ab");
        assert_eq!(chat.messages[1]["content"], "");
        assert_eq!(chat.messages[1]["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
        assert_eq!((chat.seed, chat.answers, chat.max_tokens), (Some(0), 1, None));
        assert_eq!(chat.bias, [(7, f32::NEG_INFINITY)]);
    }
}
