//! The upstreams: servers for models that are not in the catalog.
//!
//! An ID goes to the upstreams whose patterns match it, the lowest priority first; upstreams of the
//! same priority take turns according to their weights. An upstream that does not respond, or whose
//! keys all rest, comes after all others. Each pair of an upstream and one of its keys is a
//! candidate of its own (`route`), and `attempts` moves from a failed candidate to the next.
//!
//! | file | purpose |
//! |---|---|
//! | `keys` | the API keys of an upstream |
//! | `attempts` | the next candidate after a failure |
//! | `translation` | upstreams with Anthropic's API |
//!
//! The circuit of an upstream is that of a model's endpoint (`runners::endpoints`), with one
//! endpoint. Nothing is stored on disk.

mod attempts;
mod keys;
mod translation;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

pub(crate) use self::attempts::Attempts;
use self::keys::Keys;
pub(crate) use self::translation::Translation;
use super::error::Failure;
use super::models::{UpstreamList, UpstreamModels};
use super::request::Form;
use orrery_domain::chat::Operation;
use orrery_domain::model::Pricing;
use orrery_domain::money::Usd;
use orrery_domain::time::Timestamp;
use orrery_runners::endpoints::{Address, Pool, Registry, Settings};
use orrery_runners::openai::stream_options::StreamOptions;

/// Maximum number of attempts with the upstreams of one model ID. An attempt may take as long as
/// the upstream's `first_byte_timeout`.
const ATTEMPTS_MAX: usize = 8;
/// Maximum number of keys of one upstream that a call tries.
const KEYS_MAX: usize = 3;
/// Amount by which a choice increases the turn counter of an upstream with weight 1.
const TURN: u64 = 1 << 20;
/// The name of the upstream without a name, for operators.
const UNNAMED: &str = "default";
/// The version of Anthropic's API.
pub(crate) const ANTHROPIC_VERSION: &str = "2023-06-01";
/// The characters of a model's name that are encoded in a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The settings of an upstream.
#[derive(Debug, Clone)]
pub struct UpstreamOptions {
    /// Empty for the upstream without a name.
    pub name: String,
    pub kind: UpstreamKind,
    /// The base URL, without a trailing slash.
    pub url: String,
    /// The API keys. Marked as sensitive.
    pub keys: Vec<HeaderValue>,
    /// Additional headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Patterns of model IDs with at most one `*`, without the prefix.
    pub models: Vec<String>,
    pub prefix: String,
    pub weight: u32,
    pub priority: u32,
    /// Time limit for a complete response.
    pub timeout: Duration,
    /// Maximum time between two pieces of a response.
    pub idle_timeout: Duration,
    /// Time limit for the first byte of a response.
    pub first_byte_timeout: Duration,
    /// The `stream_options` of all streams; with `None`, the server's answers decide.
    pub stream_options: Option<StreamOptions>,
    /// Whether the server has OpenAI's Responses API, to which requests in its format pass.
    pub has_responses: bool,
    /// Whether the server has Anthropic's Messages API, to which requests in its format pass.
    pub has_messages: bool,
    /// Prices of its models, indexed by ID without the prefix.
    pub prices: HashMap<String, Pricing>,
}

/// The API of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamKind {
    OpenAi,
    Anthropic,
    Azure { api_version: String },
}

impl UpstreamKind {
    /// Returns the kind's name in the configuration.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Azure { .. } => "azure",
        }
    }
}

/// The state of an upstream, for operators.
#[derive(Debug, Clone)]
pub struct UpstreamState {
    pub name: String,
    pub kind: &'static str,
    /// The URL without secrets.
    pub url: String,
    /// The state of its circuit in one word.
    pub word: &'static str,
    pub is_used: bool,
    /// The cause, if the upstream is out of rotation.
    pub reason: Option<String>,
    pub in_flight: usize,
    pub keys: usize,
    pub resting_keys: usize,
    pub priority: u32,
    pub weight: u32,
    /// Answers since the start of the service, and attempts that failed.
    pub answered: u64,
    pub failed: u64,
    /// What callers have paid for its answers since the start of the service.
    pub spend: Usd,
    pub list: UpstreamList,
}

/// An upstream with its state.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub options: UpstreamOptions,
    pub keys: Keys,
    /// Its only endpoint.
    pub servers: Pool,
    pub models: UpstreamModels,
    turn: AtomicU64,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    answered: u64,
    failed: u64,
    spend: Usd,
}

/// An upstream's model, and the key to call it with.
#[derive(Debug, Clone)]
pub(crate) struct Use {
    pub upstream: Arc<Upstream>,
    /// The index of the key.
    pub key: usize,
    /// The upstream's name for the model.
    pub model: String,
}

/// How requests to an upstream begin and end.
impl Use {
    /// Returns the value of the key's header, if the upstream has keys.
    pub(crate) fn secret(&self) -> Option<&HeaderValue> {
        self.upstream.keys.get(self.key)
    }

    /// Adds the key and the headers of the configuration.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        self.upstream.add_headers(self.key, headers);
    }

    /// Returns the URL of a request. `base` is the upstream's URL.
    pub(crate) fn url(&self, base: &str, path: &str) -> String {
        match &self.upstream.options.kind {
            UpstreamKind::OpenAi => format!("{base}{path}"),
            UpstreamKind::Anthropic => format!("{base}/messages"),
            UpstreamKind::Azure { api_version } => {
                let model = utf8_percent_encode(&self.model, SEGMENT);
                format!("{base}/openai/deployments/{model}{path}?api-version={api_version}")
            }
        }
    }

    pub(crate) fn is_anthropic(&self) -> bool {
        self.upstream.options.kind == UpstreamKind::Anthropic
    }
}

impl Upstream {
    fn new(options: UpstreamOptions) -> Self {
        let name = shown_name(&options.name);
        let addresses = [Address::of(options.url.clone())];
        let settings = Settings {
            model: &format!("upstream {name}"),
            addresses: &addresses,
            // An attempt that is dropped at its time limit began a little before its request.
            patience: options.first_byte_timeout / 10 * 9,
            is_probed: false,
            starts_unknown: false,
            is_strict: true,
            server: None,
        };
        let servers = Pool::new(&settings, &Registry::default());
        let keys = Keys::new(options.keys.clone());
        Self {
            options,
            keys,
            servers,
            models: UpstreamModels::default(),
            turn: AtomicU64::default(),
            counts: Mutex::default(),
        }
    }

    /// Returns the name for operators.
    pub(crate) fn name(&self) -> &str {
        shown_name(&self.options.name)
    }

    /// Returns whether answers name the model as the client does. The upstream of `upstream_url`
    /// names it itself.
    pub(crate) const fn has_name(&self) -> bool {
        !self.options.name.is_empty()
    }

    /// Returns the upstream's name for the model `id`; `None` if its patterns do not match.
    pub(crate) fn model<'i>(&self, id: &'i str) -> Option<&'i str> {
        let model = id.strip_prefix(&*self.options.prefix).filter(|model| !model.is_empty())?;
        let is_segment = !matches!(model, "." | "..");
        let fits = self.options.models.iter().any(|pattern| fits(pattern, model));
        (fits && is_segment).then_some(model)
    }

    /// Returns the models that the configuration names without a `*`.
    pub(crate) fn exact_models(&self) -> impl Iterator<Item = &str> {
        self.options.models.iter().map(String::as_str).filter(|model| !model.contains('*'))
    }

    /// Returns whether the upstream has the operation. An upstream with Anthropic's API has only
    /// chat.
    pub(crate) fn serves(&self, operation: Operation) -> bool {
        self.options.kind != UpstreamKind::Anthropic || operation == Operation::Chat
    }

    /// Returns whether the upstream reads requests in this format.
    pub(crate) const fn reads(&self, form: Form) -> bool {
        match form {
            Form::Chat => true,
            Form::Responses => self.options.has_responses,
            Form::Messages => self.options.has_messages,
        }
    }

    /// Adds the key and the headers of the configuration, which take precedence.
    pub(crate) fn add_headers(&self, key: usize, headers: &mut HeaderMap) {
        let name = match self.options.kind {
            UpstreamKind::OpenAi => AUTHORIZATION,
            UpstreamKind::Anthropic => HeaderName::from_static("x-api-key"),
            UpstreamKind::Azure { .. } => HeaderName::from_static("api-key"),
        };
        if let Some(key) = self.keys.get(key) {
            headers.insert(name, key.clone());
        }
        if self.options.kind == UpstreamKind::Anthropic {
            let version = HeaderValue::from_static(ANTHROPIC_VERSION);
            headers.insert(HeaderName::from_static("anthropic-version"), version);
        }
        for (name, value) in &self.options.headers {
            headers.insert(name, value.clone());
        }
    }

    /// Counts an answer and its cost.
    pub(crate) fn answered(&self, cost: Usd) {
        self.count("answered");
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.answered = counts.answered.saturating_add(1);
        counts.spend = counts.spend.plus(cost);
    }

    /// Counts a failed attempt, and lets the key rest if the failure is the key's.
    pub(crate) fn failed(&self, key: usize, failure: &Failure, now: Timestamp) {
        self.count(self.keys.note(key, failure, now));
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.failed = counts.failed.saturating_add(1);
    }

    fn count(&self, outcome: &'static str) {
        let name = self.name().to_owned();
        metrics::counter!(
            "orrery_upstream_requests_total", "upstream" => name, "outcome" => outcome
        )
        .increment(1);
    }

    /// Returns whether a request can be expected to succeed now.
    fn is_ready(&self) -> bool {
        self.servers.has_usable() && !self.keys.all_rest()
    }

    /// Returns the state for operators.
    pub(crate) fn state(&self, list: UpstreamList) -> UpstreamState {
        let endpoint = self.servers.all_states().into_iter().next();
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        UpstreamState {
            name: self.name().to_owned(),
            kind: self.options.kind.as_str(),
            url: endpoint.as_ref().map(|one| one.name.clone()).unwrap_or_default(),
            word: endpoint.as_ref().map_or("used", |one| one.word()),
            is_used: endpoint.as_ref().is_none_or(|one| one.is_used()),
            in_flight: endpoint.as_ref().map_or(0, |one| one.in_flight),
            reason: endpoint.and_then(|one| one.reason),
            keys: self.options.keys.len(),
            resting_keys: self.keys.resting(),
            priority: self.options.priority,
            weight: self.options.weight,
            answered: counts.answered,
            failed: counts.failed,
            spend: counts.spend,
            list,
        }
    }
}

fn shown_name(name: &str) -> &str {
    if name.is_empty() { UNNAMED } else { name }
}

/// Returns whether a pattern with at most one `*` matches an ID.
fn fits(pattern: &str, id: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == id,
        Some((start, end)) => id.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)),
    }
}

/// All upstreams.
#[derive(Debug, Default)]
pub(crate) struct Upstreams {
    /// Sorted by priority, then in the order of the configuration.
    all: Vec<Arc<Upstream>>,
    /// The highest turn counter with which an upstream has been chosen.
    turn: Mutex<u64>,
}

impl Upstreams {
    pub(crate) fn new(options: Vec<UpstreamOptions>) -> Self {
        let mut all: Vec<_> =
            options.into_iter().map(|options| Arc::new(Upstream::new(options))).collect();
        all.sort_by_key(|upstream| upstream.options.priority);
        Self { all, turn: Mutex::default() }
    }

    pub(crate) fn all(&self) -> &[Arc<Upstream>] {
        &self.all
    }

    /// Returns the upstreams for an ID, sorted by priority.
    pub(crate) fn matching<'s>(&'s self, id: &'s str) -> impl Iterator<Item = &'s Arc<Upstream>> {
        self.all.iter().filter(|upstream| upstream.model(id).is_some())
    }

    /// Orders upstreams for one call, with the key to use first: those that are ready by priority
    /// and turn, then the others.
    pub(crate) fn order(&self, mut found: Vec<&Arc<Upstream>>) -> Vec<(Arc<Upstream>, usize)> {
        let turn_of = |upstream: &Upstream| upstream.turn.load(Ordering::Relaxed);
        let mut last = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        found.sort_by_cached_key(|upstream| {
            (!upstream.is_ready(), upstream.options.priority, turn_of(upstream))
        });
        if let Some(first) = found.first() {
            // An upstream that was out of rotation does not catch up on missed turns.
            *last = turn_of(first).max(*last);
            let share = TURN / u64::from(first.options.weight.max(1));
            first.turn.store(last.saturating_add(share), Ordering::Relaxed);
        }
        drop(last);
        let with_keys = |upstream: &Arc<Upstream>| {
            let upstream = Arc::clone(upstream);
            let keys = upstream.keys.order();
            keys.into_iter().take(KEYS_MAX).map(move |key| (Arc::clone(&upstream), key))
        };
        found.into_iter().flat_map(with_keys).take(ATTEMPTS_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(name: &str, priority: u32, weight: u32, models: &[&str]) -> UpstreamOptions {
        let minute = Duration::from_secs(60);
        UpstreamOptions {
            name: name.to_owned(),
            kind: UpstreamKind::OpenAi,
            url: format!("http://{name}/v1"),
            keys: Vec::new(),
            headers: Vec::new(),
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            prefix: String::new(),
            weight,
            priority,
            timeout: minute,
            idle_timeout: minute,
            first_byte_timeout: minute,
            stream_options: None,
            has_responses: false,
            has_messages: false,
            prices: HashMap::new(),
        }
    }

    fn chosen(upstreams: &Upstreams, id: &str) -> Vec<String> {
        let ordered = upstreams.order(upstreams.matching(id).collect());
        ordered.iter().map(|(upstream, _)| upstream.name().to_owned()).collect()
    }

    #[test]
    fn upstreams_match_patterns_without_their_prefix() {
        let mut prefixed = options("a", 0, 1, &["gpt-*", "o3", "*-mini"]);
        prefixed.prefix = "openai/".to_owned();
        let upstream = Upstream::new(prefixed);
        for (id, model) in [
            ("openai/gpt-4o", Some("gpt-4o")),
            ("openai/o3", Some("o3")),
            ("openai/o4-mini", Some("o4-mini")),
            ("openai/o4", None),
            ("gpt-4o", None),
            ("openai/", None),
        ] {
            assert_eq!(upstream.model(id), model, "{id}");
        }
        let all = Upstream::new(options("b", 0, 1, &["*"]));
        assert_eq!((all.model("x/y"), all.model(".."), all.model("")), (Some("x/y"), None, None));
    }

    #[test]
    fn upstreams_are_ordered_by_priority_and_share_by_weight() {
        let upstreams = Upstreams::new(vec![
            options("spare", 1, 1, &["*"]),
            options("big", 0, 3, &["*"]),
            options("small", 0, 1, &["*"]),
            options("other", 0, 1, &["x"]),
        ]);
        let mut first = HashMap::<String, u32>::new();
        for _ in 0..40 {
            let order = chosen(&upstreams, "m");
            assert_eq!((order.len(), &*order[2]), (3, "spare"));
            *first.entry(order[0].clone()).or_default() += 1;
        }
        assert_eq!((first["big"], first["small"]), (30, 10));
    }

    #[test]
    fn upstream_urls_follow_their_kind() {
        let url = |kind: UpstreamKind, model: &str, path: &str| {
            let upstream = Upstream::new(UpstreamOptions { kind, ..options("a", 0, 1, &["*"]) });
            let used = Use { upstream: Arc::new(upstream), key: 0, model: model.to_owned() };
            used.url("http://h", path)
        };
        let azure = || UpstreamKind::Azure { api_version: "2024-10-21".to_owned() };
        assert_eq!(url(UpstreamKind::OpenAi, "m", "/embeddings"), "http://h/embeddings");
        assert_eq!(url(UpstreamKind::Anthropic, "m", "/chat/completions"), "http://h/messages");
        assert_eq!(
            url(azure(), "gpt-4o", "/chat/completions"),
            "http://h/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21"
        );
        assert_eq!(
            url(azure(), "../a?b#c", "/embeddings"),
            "http://h/openai/deployments/..%2Fa%3Fb%23c/embeddings?api-version=2024-10-21"
        );
    }
}
