//! The section `[router]`: the upstreams for chat models that this box does not run (`upstreams`),
//! and their prices. Each table in the list of prices is read as strictly as a section.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::Secret;
use super::reader::{Parsed, Section};
use super::upstreams::{self, LAST, SILENCE, Times, UPSTREAMS_MAX, Upstream};
use super::values::{
    self, Value, api_url, duration, flag, list, map, number, one_of, problem, text, web_address,
    wrong_type,
};
use orrery_domain::model::Rates;

pub(super) const MILLISECOND: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const DAY: Duration = Duration::from_secs(86_400);

/// The largest fee: ten times the price.
const FEE_MAX: f64 = 10.0;
/// The largest price of one million tokens, in US dollars.
const PRICE_MAX: f64 = 1_000_000.0;
/// Expected form of a table in `prices`.
const PRICE: &str = "a table such as { model = \"openai/gpt-x\", per_million_input_tokens = 2.5, \
                     per_million_output_tokens = 10.0 }";

/// The chat router.
#[derive(Debug, Clone, PartialEq)]
pub struct Router {
    /// The upstreams for model ids that are not local, in the order of the file; the upstream of
    /// `upstream_url` is the last. Without upstreams, such ids are unknown.
    pub upstreams: Vec<Upstream>,
    /// Fraction added to each price: 0.05 adds 5 %.
    pub platform_fee: f64,
    /// Prices of the upstreams' models, at most one per model. The prices of an upstream itself take
    /// precedence.
    pub prices: Vec<ModelPrice>,
    /// Aliases: pairs of a model ID, which may contain one `*`, and the ID of the model that the
    /// alias stands for.
    pub aliases: Vec<(String, String)>,
    /// Whether the history stores models' answers.
    pub keep_content: bool,
    /// Time limit for the name lookup, the connection and the TLS handshake together.
    pub connect_timeout: Duration,
    /// Time limit for the first byte of a response.
    pub first_byte_timeout: Duration,
    /// Time limit for a pause within a response.
    pub idle_timeout: Duration,
    /// Time for which the upstreams' lists of models are cached.
    pub catalog_ttl: Duration,
}

/// Price of an upstream model, in US dollars.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelPrice {
    /// The model's id, as the upstream spells it.
    pub model: String,
    pub rates: Rates,
}

/// How requests in the format of OpenAI's Responses API, or of Anthropic's Messages API, reach an
/// upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Responses {
    /// As chat completions.
    Translate,
    /// As they are, for an upstream that has the same API.
    Native,
}

impl Responses {
    /// All values.
    pub const ALL: [Self; 2] = [Self::Translate, Self::Native];

    /// Returns the value in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Translate => "translate",
            Self::Native => "native",
        }
    }
}

/// Reads the section. A secret's path is resolved against `folder`.
pub(super) fn router(section: &mut Section<'_>, folder: &Path) -> Router {
    let time = || duration(MILLISECOND..=HOUR);
    let unnamed = unnamed(section, folder);
    let named = section.get("upstreams", Vec::new(), list(|it| upstreams::upstream(it, folder)));
    if named.len() > UPSTREAMS_MAX {
        let message = format!("`router.upstreams` must have at most {UPSTREAMS_MAX} items");
        section.error("upstreams", message);
    }
    for (index, upstream) in named.iter().enumerate() {
        if named.iter().take(index).any(|earlier| earlier.name == upstream.name) {
            let message = format!(
                "`router.upstreams`: {:?} is listed twice; give each upstream a name of its own",
                upstream.name
            );
            section.error("upstreams", message);
        }
    }
    let prices = section.get("prices", Vec::new(), list(price));
    if let Some(model) = upstreams::twice(&prices) {
        section.error("prices", format!("`router.prices`: {model:?} is listed twice"));
    }
    let platform_fee = section.get("platform_fee", 0.0, number(0.0..=FEE_MAX));
    let aliases = section.get("aliases", Vec::new(), map(alias));
    let keep_content = section.get("keep_content", false, flag);
    let connect_timeout = section.get("connect_timeout", 5 * SECOND, time());
    let first_byte_timeout = section.get("first_byte_timeout", SILENCE, time());
    let idle_timeout = section.get("idle_timeout", SILENCE, time());
    let times = Times { idle: idle_timeout, first_byte: first_byte_timeout };
    let upstreams = named.into_iter().chain(unnamed);
    Router {
        upstreams: upstreams.map(|one| upstreams::with_times(one, times)).collect(),
        platform_fee,
        prices,
        aliases,
        keep_content,
        connect_timeout,
        first_byte_timeout,
        idle_timeout,
        catalog_ttl: section.get("catalog_ttl", 300 * SECOND, duration(SECOND..=DAY)),
    }
}

/// Reads the keys of the upstream without a name, except for its times.
fn unnamed(section: &mut Section<'_>, folder: &Path) -> Option<Upstream> {
    let url = section.optional("upstream_url", |value| api_url(value, web_address(value)?));
    let key = section.optional("upstream_key", |value| key(value, folder));
    if section.span("upstream_key").is_some() && section.span("upstream_url").is_none() {
        let message = "`router.upstream_key` has no effect without `upstream_url`";
        section.error("upstream_key", message.to_owned());
    }
    let responses =
        section.get("responses", Responses::Translate, one_of(&Responses::ALL, Responses::as_str));
    if responses == Responses::Native && section.span("upstream_url").is_none() {
        let message = "`router.responses = \"native\"` has no effect without `upstream_url`";
        section.error("responses", message.to_owned());
    }
    let keys = key.into_iter().collect();
    url.map(|url| Upstream { keys, responses, priority: LAST, ..Upstream::untimed(url) })
}

/// Reads an alias: an ID with at most one `*`, and the ID of a model.
fn alias(name: &str, value: &Value<'_>) -> Parsed<(String, String)> {
    let model = text(value)?;
    if name.is_empty() || name.matches('*').count() > 1 {
        let message = format!("the alias {name:?} must be a model's ID with at most one `*`");
        return Err(problem(value, message));
    }
    if model.is_empty() || model.contains('*') {
        let message = format!("the alias {name:?} must stand for the ID of one model");
        return Err(problem(value, message));
    }
    Ok((name.to_owned(), model))
}

/// Parses a key that can be sent in a header.
pub(super) fn key(value: &Value<'_>, folder: &Path) -> Parsed<Secret> {
    let key = values::secret(folder)(value)?;
    let is_good = |byte: u8| byte.is_ascii_graphic();
    if key.expose().is_empty() || !key.expose().bytes().all(is_good) {
        // The error does not repeat the key.
        let message = "a key must have visible ASCII characters only, and must not be empty";
        return Err(problem(value, message.to_owned()));
    }
    Ok(key)
}

/// The keys of a table in `prices`, besides `model`.
const RATES: [&str; 7] = [
    "per_million_input_tokens",
    "per_million_output_tokens",
    "per_million_cached_input_tokens",
    "per_million_reasoning_tokens",
    "per_audio_minute",
    "per_million_characters",
    "per_image",
];

pub(super) fn price(value: &Value<'_>) -> Parsed<ModelPrice> {
    let table = value.get_ref().as_table().ok_or_else(|| {
        let dollars = json!({"type": "number", "minimum": 0, "maximum": PRICE_MAX});
        let mut properties = serde_json::Map::new();
        properties.insert("model".to_owned(), json!({"type": "string", "minLength": 1}));
        properties.extend(RATES.map(|rate| (rate.to_owned(), dollars.clone())));
        let expects = json!({
            "type": "object",
            "properties": properties,
            "required": ["model"],
            "anyOf": [
                {"required": ["per_million_input_tokens", "per_million_output_tokens"]},
                {"required": ["per_audio_minute"]},
                {"required": ["per_million_characters"]},
                {"required": ["per_image"]},
            ],
            "additionalProperties": false,
        });
        wrong_type(value, PRICE, expects)
    })?;
    let mut model = None;
    let mut rates = [None; RATES.len()];
    let dollars = number(0.0..=PRICE_MAX);
    for (name, value) in table {
        let name = name.get_ref().as_ref();
        if name == "model" {
            model = Some(text(value)?);
            continue;
        }
        let found = RATES.iter().zip(&mut rates).find(|(rate, _)| **rate == name);
        let Some((_, rate)) = found else {
            let known = RATES.join(", ");
            let message = format!("unknown key `{name}`; the keys here are model, {known}");
            return Err(problem(value, message));
        };
        *rate = Some(dollars(value)?);
    }
    let missing = |name: &str| problem(value, format!("`{name}` is missing"));
    let model = model.ok_or_else(|| missing("model"))?;
    let [input, output, cached, reasoning, audio, characters, image] = rates;
    if audio.or(characters).or(image).is_none() {
        input.ok_or_else(|| missing("per_million_input_tokens"))?;
        output.ok_or_else(|| missing("per_million_output_tokens"))?;
    }
    let rates = Rates {
        per_second: None,
        per_million_input_tokens: input,
        per_million_output_tokens: output,
        per_million_cached_input_tokens: cached,
        per_million_reasoning_tokens: reasoning,
        per_audio_minute: audio,
        per_million_characters: characters,
        per_image: image,
    };
    Ok(ModelPrice { model, rates })
}
