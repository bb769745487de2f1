//! `[[router.upstreams]]`: servers for chat models that this box does not run. Each table is read as
//! strictly as a section.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::Secret;
use super::reader::{Parsed, Problem};
use super::router::{DAY, HOUR, MILLISECOND, ModelPrice, Responses, key, price};
use super::values::{
    self, Value, api_url, duration, header, list, one_of, problem, text, web_address, whole,
    wrong_type,
};

/// Maximum number of upstreams.
pub(super) const UPSTREAMS_MAX: usize = 64;
/// Maximum number of keys of an upstream.
const KEYS_MAX: usize = 64;
/// Maximum number of patterns of an upstream.
const MODELS_MAX: usize = 1000;
/// Maximum length of a name, a prefix or a pattern, in characters.
const NAME_MAX: usize = 64;
const PREFIX_MAX: usize = 64;
const MODEL_MAX: usize = 256;
const WEIGHT_MAX: u32 = 1000;
const PRIORITY_MAX: u32 = 1000;
/// The priority of the upstream of `router.upstream_url`: after all upstreams with a name.
pub(super) const LAST: u32 = u32::MAX;
/// Default time limit for a complete answer.
const TIMEOUT: Duration = HOUR;
/// Default time limit for the first byte and for a pause: as long as clients wait.
pub(super) const SILENCE: Duration = Duration::from_secs(600);
/// Expected form of a table.
const FORM: &str = "a table such as { name = \"openai\", url = \"https://api.openai.com/v1\", \
                    models = [\"gpt-*\"] }";
const KEYS: &str = "name, kind, url, api_version, key, keys, headers, models, prefix, weight, \
                    priority, timeout, idle_timeout, first_byte_timeout, stream_options, responses, \
                    messages and prices";

/// A server for models that are not in the catalog.
#[derive(Debug, Clone, PartialEq)]
pub struct Upstream {
    /// Empty for the upstream of `router.upstream_url`.
    pub name: String,
    pub kind: UpstreamKind,
    /// The base URL without a trailing slash: with its `/v1`, or the URL of an Azure resource.
    pub url: String,
    /// The keys, which are tried in turn.
    pub keys: Vec<Secret>,
    /// Additional headers, with names in lower case.
    pub headers: Vec<(String, Secret)>,
    /// The ids of the models, without the prefix, with at most one `*` each.
    pub models: Vec<String>,
    /// The text before the ids in lists, which is removed before a request is sent.
    pub prefix: String,
    /// The share of the calls among upstreams of the same priority.
    pub weight: u32,
    /// The lowest is tried first.
    pub priority: u32,
    /// Time limit for a complete answer.
    pub timeout: Duration,
    /// Time limit for a pause within an answer.
    pub idle_timeout: Duration,
    /// Time limit for the first byte of an answer.
    pub first_byte_timeout: Duration,
    pub stream_options: StreamOptions,
    /// Whether the upstream has OpenAI's Responses API.
    pub responses: Responses,
    /// Whether the upstream has Anthropic's Messages API.
    pub messages: Responses,
    /// Prices of its models, at most one per model.
    pub prices: Vec<ModelPrice>,
}

impl Upstream {
    /// Returns the upstream without a name at this URL, with the defaults of all other keys.
    #[must_use]
    pub fn of(url: String) -> Self {
        Self {
            name: String::new(),
            kind: UpstreamKind::OpenAi,
            url,
            keys: Vec::new(),
            headers: Vec::new(),
            models: vec!["*".to_owned()],
            prefix: String::new(),
            weight: 1,
            priority: 0,
            timeout: TIMEOUT,
            idle_timeout: SILENCE,
            first_byte_timeout: SILENCE,
            stream_options: StreamOptions::Auto,
            responses: Responses::Translate,
            messages: Responses::Translate,
            prices: Vec::new(),
        }
    }

    /// Returns an upstream whose times are zero, until [`with_times`] sets them.
    pub(super) fn untimed(url: String) -> Self {
        let zero = Duration::ZERO;
        Self { idle_timeout: zero, first_byte_timeout: zero, ..Self::of(url) }
    }

    /// Returns the name of the setting that defines the upstream, for messages.
    #[must_use]
    pub fn setting(&self) -> String {
        if self.name.is_empty() {
            return "router.upstream_url".to_owned();
        }
        format!("the url of the upstream '{}'", self.name)
    }
}

/// The API of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamKind {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's Messages API.
    Anthropic,
    /// OpenAI's, with the deployments of an Azure resource.
    Azure { api_version: String },
}

/// The names of the kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    OpenAi,
    Anthropic,
    Azure,
}

impl Kind {
    const ALL: [Self; 3] = [Self::OpenAi, Self::Anthropic, Self::Azure];

    const fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Azure => "azure",
        }
    }
}

/// Whether streams are requested with `stream_options`, to receive their usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamOptions {
    /// Until the server rejects them.
    Auto,
    Always,
    Never,
}

impl StreamOptions {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Always, Self::Never];

    /// Returns the value in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

/// The time limits of `[router]`, which apply to upstreams without their own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub idle: Duration,
    pub first_byte: Duration,
}

/// Reads one table of the list. Times that the table does not set are zero until [`with_times`] sets
/// them.
pub(super) fn upstream(value: &Value<'_>, folder: &Path) -> Parsed<Upstream> {
    let table = value.get_ref().as_table().ok_or_else(|| wrong_type(value, FORM, schema()))?;
    let mut read = Upstream::untimed(String::new());
    let time = duration(MILLISECOND..=HOUR);
    let mut kind = Kind::OpenAi;
    let mut version = None;
    let (mut keys, mut url, mut messages) = (None, None, None);
    for (name, value) in table {
        match name.get_ref().as_ref() {
            "name" => read.name = self::name(value)?,
            "kind" => kind = one_of(&Kind::ALL, Kind::as_str)(value)?,
            "url" => url = Some((value, web_address(value)?)),
            "api_version" => version = Some((value, api_version(value)?)),
            "key" | "keys" if keys.is_some() => {
                return Err(problem(value, "set only one of `key` and `keys`".to_owned()));
            }
            "key" => keys = Some(vec![key(value, folder)?]),
            "keys" => keys = Some(self::keys(value, folder)?),
            "headers" => read.headers = values::headers(header(folder))(value)?,
            "models" => read.models = models(value)?,
            "prefix" => read.prefix = prefix(value)?,
            "weight" => read.weight = whole(1..=WEIGHT_MAX)(value)?,
            "priority" => read.priority = whole(0..=PRIORITY_MAX)(value)?,
            "timeout" => read.timeout = duration(MILLISECOND..=DAY)(value)?,
            "idle_timeout" => read.idle_timeout = time(value)?,
            "first_byte_timeout" => read.first_byte_timeout = time(value)?,
            "stream_options" => {
                read.stream_options = one_of(&StreamOptions::ALL, StreamOptions::as_str)(value)?;
            }
            "responses" => {
                read.responses = one_of(&Responses::ALL, Responses::as_str)(value)?;
            }
            "messages" => messages = Some(one_of(&Responses::ALL, Responses::as_str)(value)?),
            "prices" => read.prices = prices(value)?,
            other => {
                let message = format!("unknown key `{other}`; the keys here are {KEYS}");
                return Err(problem(value, message));
            }
        }
    }
    let missing = |name: &str| problem(value, format!("`{name}` is missing"));
    if read.name.is_empty() {
        return Err(missing("name"));
    }
    let (place, url) = url.ok_or_else(|| missing("url"))?;
    read.kind = match (kind, version) {
        (Kind::OpenAi, None) => UpstreamKind::OpenAi,
        (Kind::Anthropic, None) => UpstreamKind::Anthropic,
        (Kind::Azure, Some((_, api_version))) => UpstreamKind::Azure { api_version },
        (Kind::Azure, None) => return Err(missing("api_version")),
        (Kind::OpenAi | Kind::Anthropic, Some((place, _))) => {
            let message = "`api_version` applies only to the kind \"azure\"";
            return Err(problem(place, message.to_owned()));
        }
    };
    read.keys = keys.unwrap_or_default();
    read.messages = messages.unwrap_or(match kind {
        Kind::Anthropic => Responses::Native,
        Kind::OpenAi | Kind::Azure => Responses::Translate,
    });
    check(value, kind, &read)?;
    read.url = base_url(place, url, kind)?;
    Ok(read)
}

/// Checks keys that do not fit together.
fn check(value: &Value<'_>, kind: Kind, read: &Upstream) -> Result<(), Vec<Problem>> {
    let of = &read.name;
    if kind != Kind::OpenAi && read.responses == Responses::Native {
        let message =
            format!("the upstream {of:?}: `responses = \"native\"` needs the kind \"openai\"");
        return Err(problem(value, message));
    }
    if kind == Kind::Azure && read.messages == Responses::Native {
        let message = format!(
            "the upstream {of:?}: `messages = \"native\"` does not work with the kind \"azure\""
        );
        return Err(problem(value, message));
    }
    let is_exact = |model: &String| !model.contains('*');
    if kind == Kind::Azure && !read.models.iter().any(is_exact) {
        let message = format!(
            "the upstream {of:?}: `models` must name its deployments, because Azure does not list them"
        );
        return Err(problem(value, message));
    }
    Ok(())
}

/// Sets the times that an upstream does not set itself.
pub(super) fn with_times(mut upstream: Upstream, times: Times) -> Upstream {
    if upstream.idle_timeout.is_zero() {
        upstream.idle_timeout = times.idle;
    }
    if upstream.first_byte_timeout.is_zero() {
        upstream.first_byte_timeout = times.first_byte;
    }
    upstream
}

/// Returns the schema of a table.
fn schema() -> serde_json::Value {
    let text = json!({"type": "string", "minLength": 1});
    let texts = json!({"type": "array", "items": text, "minItems": 1});
    let time = json!({"type": "string"});
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": format!("^[a-z0-9._-]{{1,{NAME_MAX}}}$")},
            "kind": {"enum": Kind::ALL.map(Kind::as_str)},
            "url": text, "api_version": text, "key": text, "keys": texts,
            "headers": {"type": "object", "additionalProperties": {"type": "string"}},
            "models": texts, "prefix": text,
            "weight": {"type": "integer", "minimum": 1, "maximum": WEIGHT_MAX},
            "priority": {"type": "integer", "minimum": 0, "maximum": PRIORITY_MAX},
            "timeout": time, "idle_timeout": time, "first_byte_timeout": time,
            "stream_options": {"enum": StreamOptions::ALL.map(StreamOptions::as_str)},
            "responses": {"enum": Responses::ALL.map(Responses::as_str)},
            "messages": {"enum": Responses::ALL.map(Responses::as_str)},
            "prices": {"type": "array"},
        },
        "required": ["name", "url"],
        "additionalProperties": false,
    })
}

fn name(value: &Value<'_>) -> Parsed<String> {
    let name = text(value)?;
    let is_good = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.')
    };
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_good) {
        let message = format!(
            "the name {name:?} must have 1 to {NAME_MAX} lowercase letters, digits, `-`, `_` and `.`"
        );
        return Err(problem(value, message));
    }
    Ok(name)
}

/// Reads the version of Azure's API, which becomes part of the URL.
fn api_version(value: &Value<'_>) -> Parsed<String> {
    let version = text(value)?;
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if version.is_empty() || version.len() > NAME_MAX || !version.bytes().all(is_good) {
        let message = format!("{version:?} is not a version such as \"2024-10-21\"");
        return Err(problem(value, message));
    }
    Ok(version)
}

fn keys(value: &Value<'_>, folder: &Path) -> Parsed<Vec<Secret>> {
    let keys = list(|value| key(value, folder))(value)?;
    if keys.is_empty() || keys.len() > KEYS_MAX {
        return Err(problem(value, format!("`keys` must have 1 to {KEYS_MAX} keys")));
    }
    let is_repeated = |(index, key): (usize, &Secret)| {
        keys.iter().take(index).any(|earlier| earlier.expose() == key.expose())
    };
    if keys.iter().enumerate().any(is_repeated) {
        // The error does not repeat the key.
        return Err(problem(value, "`keys` has the same key twice".to_owned()));
    }
    Ok(keys)
}

fn models(value: &Value<'_>) -> Parsed<Vec<String>> {
    let models = list(text)(value)?;
    if models.is_empty() || models.len() > MODELS_MAX {
        let message = format!("`models` must have 1 to {MODELS_MAX} patterns");
        return Err(problem(value, message));
    }
    for model in &models {
        let is_long = model.chars().nth(MODEL_MAX).is_some();
        if model.is_empty() || is_long || model.matches('*').count() > 1 {
            let message = format!(
                "the pattern {model:?} must be a model's ID of at most {MODEL_MAX} characters with at most \
                 one `*`"
            );
            return Err(problem(value, message));
        }
    }
    Ok(models)
}

fn prefix(value: &Value<'_>) -> Parsed<String> {
    let prefix = text(value)?;
    if prefix.chars().nth(PREFIX_MAX).is_some() || prefix.contains('*') {
        let message =
            format!("the prefix {prefix:?} must have at most {PREFIX_MAX} characters, without `*`");
        return Err(problem(value, message));
    }
    Ok(prefix)
}

fn prices(value: &Value<'_>) -> Parsed<Vec<ModelPrice>> {
    let prices = list(price)(value)?;
    match twice(&prices) {
        Some(model) => Err(problem(value, format!("{model:?} is listed twice"))),
        None => Ok(prices),
    }
}

/// Returns the first model that has two prices.
pub(super) fn twice(prices: &[ModelPrice]) -> Option<&str> {
    let earlier = |(index, price): &(usize, &ModelPrice)| {
        prices.iter().take(*index).any(|earlier| earlier.model == price.model)
    };
    prices.iter().enumerate().find(earlier).map(|(_, price)| price.model.as_str())
}

/// Rejects a URL that has more than the base of the API.
fn base_url(value: &Value<'_>, url: String, kind: Kind) -> Parsed<String> {
    let cut = |ends: &[&str]| ends.iter().find_map(|end| url.strip_suffix(end));
    let base = match kind {
        Kind::OpenAi => return api_url(value, url),
        Kind::Anthropic => cut(&["/messages"]),
        Kind::Azure => cut(&["/openai/deployments", "/openai/v1", "/openai", "/v1"]),
    };
    match base {
        None => Ok(url),
        Some(base) => {
            let whole = if kind == Kind::Azure { "resource" } else { "whole API" };
            Err(problem(value, format!("expected the URL of the {whole}, such as \"{base}\"")))
        }
    }
}
