//! Chooses the models that a call tries, with their servers and prices.
//!
//! A catalog model that serves the operation is called by its slug. Any other id goes to the
//! upstreams that serve it (`upstreams`). The models of the organization's fallback chain follow.
//! The only difference between local and remote models is the [`Target`] of a call.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::{Map, Value};

use super::allowance::Allowance;
use super::call::End;
use super::error::{Error, Failure};
use super::request::{Form, Request};
use super::service::Inner;
use super::upstream::Limits;
use super::upstreams::{Upstream, Use};
use orrery_catalog::Model;
use orrery_domain::chat::{Operation, Tokens};
use orrery_domain::ids::OrganizationId;
use orrery_domain::input_template::fill_object;
use orrery_domain::invalid_request::InvalidRequest;
use orrery_domain::model::{Pricing, Rates, Usage};
use orrery_domain::money::Usd;
use orrery_domain::spelling;
use orrery_domain::time::Timestamp;
use orrery_records::billing;
use orrery_records::chains;
use orrery_runners::Server;
use orrery_runners::endpoints::Pool;
use orrery_runners::llm::Process;

/// One model to try.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// The slug, or the upstream's id of the model.
    pub name: String,
    pub target: Target,
    /// The catalog model; `None` for an upstream model.
    pub local: Option<Arc<Model>>,
    pub price: Price,
    /// The request built by a fallback chain's mapping.
    pub mapped: Option<Box<Request>>,
    /// The name of the model in answers, if the server's own name must be replaced.
    pub shown: Option<String>,
}

/// Maximum cost of one answer in US dollars; higher costs are clamped.
const COST_MAX: f64 = 1.0e9;
/// Maximum number of models that a call tries, with all of its chains.
const CANDIDATES_MAX: usize = 64;
/// Maximum number of local models that an error message lists.
const NAMED_MAX: usize = 20;
/// Minimum length of a header value that is masked as a secret; shorter values occur in ordinary
/// text.
const SECRET_MIN: usize = 8;

impl Candidate {
    /// Returns the time limit for a complete response.
    #[must_use]
    pub(crate) fn time_max(&self) -> Duration {
        match (&self.local, &self.target) {
            (Some(model), _) => model.timeout,
            (None, Target::Upstream(used)) => used.upstream.options.timeout,
            (None, Target::Pool { .. } | Target::Process(_)) => Duration::MAX,
        }
    }

    /// Returns the time limits of an attempt that begins now. With `is_whole`, the first byte may
    /// take a catalog model as long as the complete response.
    #[must_use]
    pub(crate) fn limits(&self, inner: &Inner, is_whole: bool) -> Limits {
        let (first_byte, idle) = match (&self.target, &self.local) {
            (Target::Upstream(used), _) => {
                let options = &used.upstream.options;
                (options.first_byte_timeout, options.idle_timeout)
            }
            (Target::Pool { .. } | Target::Process(_), Some(model)) if is_whole => {
                (model.timeout, inner.options.idle_timeout)
            }
            (Target::Pool { .. } | Target::Process(_), _) => {
                (inner.options.first_byte_timeout, inner.options.idle_timeout)
            }
        };
        Limits::from_now(first_byte, self.time_max(), idle)
    }

    /// Counts the end of an answer that had begun.
    pub(crate) fn count(&self, end: &End, cost: Usd, now: Timestamp) {
        let Target::Upstream(used) = &self.target else { return };
        match end {
            End::Done | End::Cancelled => used.upstream.answered(cost),
            End::Failed(failure) => used.upstream.failed(used.key, failure, now),
        }
    }

    /// Returns the request for this model.
    #[must_use]
    pub(crate) fn request<'r>(&'r self, request: &'r Request) -> &'r Request {
        self.mapped.as_deref().unwrap_or(request)
    }

    /// Returns the maximum tokens that the answers to a request may use.
    #[must_use]
    pub(crate) fn allowance(&self, request: &Request) -> Allowance {
        Allowance::of(self.request(request), self.context())
    }

    /// Returns the context length in tokens, if known.
    #[must_use]
    pub(crate) fn context(&self) -> Option<u32> {
        self.local.as_ref()?.runner.local()?.context
    }

    /// Returns the maximum cost of `answers` answers that use `tokens` in total.
    #[must_use]
    pub(crate) fn most(&self, answers: u64, tokens: Tokens) -> billing::Price {
        self.price.most(answers, tokens, self.time_max())
    }
}

/// The destination of a call.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// An upstream.
    Upstream(Use),
    /// The OpenAI-compatible servers of a catalog model. Each request is sent to one of these
    /// servers.
    Pool {
        servers: Arc<Pool>,
        /// The path appended to a server's URL.
        path: &'static str,
        /// The servers' name for the model.
        model: String,
        /// `Bearer …`, marked as sensitive.
        authorization: Option<HeaderValue>,
    },
    /// A local model process.
    Process(Arc<Process>),
}

impl Target {
    /// Returns the value of the header with the server's key, if the server requires one.
    #[must_use]
    pub(crate) fn secret(&self) -> Option<&HeaderValue> {
        match self {
            Self::Upstream(used) => used.secret(),
            Self::Pool { authorization, .. } => authorization.as_ref(),
            Self::Process(_) => None,
        }
    }

    /// Returns a failure without the secrets that were sent to the server.
    pub(crate) fn masked(&self, mut failure: Failure) -> Failure {
        if let Some(secret) = self.secret() {
            failure.mask(secret);
        }
        if let Self::Upstream(used) = self {
            let headers = used.upstream.options.headers.iter().map(|(_, value)| value);
            headers.filter(|value| value.len() >= SECRET_MIN).for_each(|value| failure.mask(value));
        }
        failure
    }

    /// Adds the headers that the server requires.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        match self {
            Self::Upstream(used) => used.add_headers(headers),
            Self::Pool { authorization: Some(authorization), .. } => {
                headers.insert(AUTHORIZATION, authorization.clone());
            }
            Self::Pool { authorization: None, .. } | Self::Process(_) => {}
        }
    }

    /// Returns the server's name for the model, if it differs from the client's name.
    #[must_use]
    pub(crate) fn model(&self) -> Option<&str> {
        match self {
            Self::Upstream(used) => Some(&used.model),
            Self::Pool { model, .. } => Some(model),
            Self::Process(process) => Some(process.name()),
        }
    }
}

/// The price of a model.
#[derive(Debug, Clone)]
pub(crate) struct Price {
    pricing: Option<Pricing>,
    /// The fee as a fraction of the price.
    fee: f64,
}

impl Price {
    /// Creates a price with a fee. Without `pricing`, the model is free.
    #[must_use]
    pub(crate) const fn new(pricing: Option<Pricing>, fee: f64) -> Self {
        Self { pricing, fee }
    }

    /// Returns whether the model has a price.
    #[must_use]
    pub(crate) const fn is_known(&self) -> bool {
        self.pricing.is_some()
    }

    /// Returns whether every answer has the same price.
    #[must_use]
    pub(crate) const fn is_fixed(&self) -> bool {
        matches!(self.pricing, Some(Pricing::Fixed { .. }))
    }

    /// Returns the cost of an answer.
    #[must_use]
    pub(crate) fn of(&self, tokens: Tokens, run_time: Duration) -> Usd {
        self.of_usage(&Usage { run_time, ..tokens.into() })
    }

    /// Returns the cost of an answer with this usage.
    #[must_use]
    pub(crate) fn of_usage(&self, usage: &Usage) -> Usd {
        let Some(pricing) = &self.pricing else { return Usd::ZERO };
        let dollars = pricing.dollars(usage) * (1.0 + self.fee);
        Usd::from_dollars(dollars.min(COST_MAX)).unwrap_or(Usd::ZERO)
    }

    /// Returns the maximum cost of an answer that uses no more than `usage`.
    #[must_use]
    pub(crate) fn most_of_usage(&self, usage: &Usage) -> billing::Price {
        let Some(pricing) = &self.pricing else { return billing::Price::default() };
        let dollars = pricing.most_dollars(usage) * (1.0 + self.fee);
        billing::Price { known: Usd::from_dollars_up(dollars.min(COST_MAX)), open: false }
    }

    /// Returns the rates, if the price depends on usage.
    #[must_use]
    pub(crate) fn rates(&self) -> Rates {
        match self.pricing {
            Some(Pricing::UsageBased { rates, .. }) => rates,
            Some(Pricing::Fixed { .. }) | None => Rates::default(),
        }
    }

    /// Returns the maximum cost of `answers` answers that use `tokens` in total, each within
    /// `time_max`.
    #[must_use]
    pub(crate) fn most(&self, answers: u64, tokens: Tokens, time_max: Duration) -> billing::Price {
        let Some(pricing) = &self.pricing else { return billing::Price::default() };
        let times = u32::try_from(answers).unwrap_or(u32::MAX);
        let usage = Usage { run_time: time_max.saturating_mul(times), ..tokens.into() };
        let times = if self.is_fixed() { f64::from(times) } else { 1.0 };
        let dollars = pricing.most_dollars(&usage) * (1.0 + self.fee) * times;
        billing::Price { known: Usd::from_dollars_up(dollars.min(COST_MAX)), open: false }
    }
}

impl Inner {
    /// Returns the models that a call tries, in order; at least one. `ids` are the ids that the
    /// request names, with the models that they stand for.
    ///
    /// # Errors
    /// [`Error::NoModel`]; [`Error::Invalid`] for an unknown chain; [`Error::Chains`].
    pub(crate) async fn route(
        &self,
        organization: OrganizationId,
        request: &Request,
        ids: &[Named],
    ) -> Result<Vec<Candidate>, Error> {
        let mut all = Vec::new();
        for named in ids {
            let mut found = self.find(named, request.operation, request.form)?;
            if request.form != Form::Chat
                && let Some(local) = found.first().filter(|first| first.local.is_some())
            {
                return Err(wrong_kind(&local.name, &[Operation::Chat], request.operation));
            }
            if request.form == Form::Chat {
                self.add_fallbacks(organization, &mut found, request, named).await?;
            }
            all.extend(found);
        }
        all.truncate(CANDIDATES_MAX);
        Ok(all)
    }

    /// Returns the ways to call the model with this id, at least one: the catalog model with this
    /// slug, or else the upstreams that serve it. A request for a catalog slug is never sent to an
    /// upstream.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a model that does not serve the operation; [`Error::Unserved`];
    /// [`Error::NoModel`].
    pub(crate) fn find(
        &self,
        named: &Named,
        operation: Operation,
        form: Form,
    ) -> Result<Vec<Candidate>, Error> {
        let id = named.model();
        let Some(model) = self.catalog.get(id) else {
            return match self.catalog.unserved(id) {
                Some(unserved) => Err(Error::Unserved {
                    model: id.to_owned(),
                    file: unserved.file.file_name().unwrap_or_default().display().to_string(),
                }),
                None if id == self.options.agent_id => Err(is_agent(id)),
                None => self.at_upstreams(named, operation, form),
            };
        };
        let serves = |operation: &Operation| model.runner.server(*operation).is_some();
        let served: Vec<Operation> = Operation::ALL.into_iter().filter(serves).collect();
        let slug = model.slug.to_string();
        let mut local =
            self.local(model, operation).ok_or_else(|| wrong_kind(&slug, &served, operation))?;
        local.shown = named.alias().map(str::to_owned);
        Ok(vec![local])
    }

    /// Returns the upstreams that serve a model and read requests in this format, with their keys, in
    /// the order to try them.
    fn at_upstreams(
        &self,
        named: &Named,
        operation: Operation,
        form: Form,
    ) -> Result<Vec<Candidate>, Error> {
        let id = named.model();
        let mut found: Vec<&Arc<Upstream>> = self.upstreams.matching(id).collect();
        let Some(first) = found.first() else {
            let model = id.to_owned();
            let hint = self.near_id(&model, operation);
            let has_upstreams = !self.upstreams.all().is_empty();
            let local = self.local_ids(operation);
            return Err(Error::NoModel { model, has_upstreams, hint, local });
        };
        let first = first.name().to_owned();
        found.retain(|one| one.serves(operation) && one.reads(form));
        if found.is_empty() {
            let message = format!(
                "the upstream '{first}' of the model '{id}' supports chat completions, not {}",
                operation.words()
            );
            return Err(InvalidRequest::field("model", message).into());
        }
        let chosen = self.upstreams.order(found);
        Ok(chosen.into_iter().map(|(upstream, key)| self.remote(named, upstream, key)).collect())
    }

    /// Returns the candidate for an upstream's model.
    fn remote(&self, named: &Named, upstream: Arc<Upstream>, key: usize) -> Candidate {
        let id = named.model();
        let model = upstream.model(id).unwrap_or(id);
        let own = upstream.options.prices.get(model);
        let pricing = own.or_else(|| self.options.prices.get(id)).cloned();
        let shown = named.alias().or_else(|| upstream.has_name().then_some(id));
        let model = model.to_owned();
        Candidate {
            name: id.to_owned(),
            shown: shown.map(str::to_owned),
            target: Target::Upstream(Use { upstream, key, model }),
            local: None,
            price: Price::new(pricing, self.options.fee),
            mapped: None,
        }
    }

    /// Returns a hint with the known id that is most similar to `model`, in parentheses; empty if
    /// no known id is similar.
    fn near_id(&self, model: &str, operation: Operation) -> String {
        let models = self.catalog.list();
        let serving = models.iter().filter(|model| model.runner.server(operation).is_some());
        let mut ids: Vec<&str> = serving.map(|model| model.slug.as_str()).collect();
        if operation == Operation::Chat {
            ids.push(&self.options.agent_id);
        }
        let near = spelling::nearest(model, &ids);
        near.map(|near| format!(" (did you mean '{near}'?)")).unwrap_or_default()
    }

    /// Lists the slugs of the catalog models that serve the operation, for error messages.
    fn local_ids(&self, operation: Operation) -> String {
        let models = self.catalog.list();
        let can_answer = |model: &&Arc<Model>| {
            model.runner.server(operation).is_some() && model.failing().is_none()
        };
        let mut serving = models.iter().filter(can_answer);
        let mut named: Vec<&str> =
            serving.by_ref().take(NAMED_MAX).map(|model| model.slug.as_str()).collect();
        if serving.next().is_some() {
            named.push("…");
        }
        if named.is_empty() { "none".to_owned() } else { named.join(", ") }
    }

    /// Returns a candidate for a catalog model, if it serves the operation.
    pub(crate) fn local(&self, model: Arc<Model>, operation: Operation) -> Option<Candidate> {
        let target = match model.runner.server(operation)? {
            Server::Remote { servers, model, authorization } => {
                Target::Pool { servers, path: operation.path(), model, authorization }
            }
            Server::Process(process) => Target::Process(process),
        };
        Some(Candidate {
            name: model.slug.to_string(),
            target,
            price: Price::new(model.pricing.clone(), self.options.fee),
            local: Some(model),
            mapped: None,
            shown: None,
        })
    }

    /// Adds the models of the fallback chain of the model `named`. The request may name a chain;
    /// otherwise the first enabled chain by name applies. Models that do not serve the operation are
    /// skipped.
    async fn add_fallbacks(
        &self,
        organization: OrganizationId,
        candidates: &mut Vec<Candidate>,
        request: &Request,
        named: &Named,
    ) -> Result<(), Error> {
        let id = named.model();
        let chain = match &request.selector {
            Some(name) => {
                let found = self.chains.enabled(organization, id, name).await;
                Some(found.map_err(|error| {
                    if let chains::Error::NotFound { hint, .. } = &error {
                        return unknown_chain(name, id, hint);
                    }
                    error.into()
                })?)
            }
            None => self.chains.first_enabled(organization, id).await?,
        };
        for entry in chain.into_iter().flat_map(|chain| chain.entries) {
            let model = self.catalog.get(&entry.model);
            let found = model.and_then(|model| self.local(model, request.operation));
            let Some(mut candidate) = found else { continue };
            if let Some(map) = &entry.input_map {
                let Some(mapped) = mapped(map, request) else { continue };
                candidate.mapped = Some(Box::new(mapped));
            }
            candidate.shown = named.alias().map(str::to_owned);
            candidates.push(candidate);
        }
        Ok(())
    }
}

/// A model ID of a request, with the model that it stands for.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    /// The ID in the request.
    pub asked: String,
    /// The model, if the ID is an alias.
    pub alias_of: Option<String>,
}

impl Named {
    /// Returns the ID of a model that is not an alias.
    pub(crate) fn plain(id: &str) -> Self {
        Self { asked: id.to_owned(), alias_of: None }
    }

    /// Returns the ID of the model.
    pub(crate) fn model(&self) -> &str {
        self.alias_of.as_deref().unwrap_or(&self.asked)
    }

    /// Returns the ID in the request if it is an alias.
    fn alias(&self) -> Option<&str> {
        self.alias_of.as_ref().map(|_model| self.asked.as_str())
    }
}

/// Applies a chain's mapping to a request; `None` if the result is not a valid request.
fn mapped(map: &Map<String, Value>, request: &Request) -> Option<Request> {
    request.mapped(&fill_object(map, &request.value().ok()?).ok()?)
}

/// Returns the error for routes that accept only models, not the agent's id.
fn is_agent(id: &str) -> Error {
    let message = format!(
        "'{id}' is the agent, which answers only POST /v1/chat/completions, /v1/responses and /v1/messages"
    );
    InvalidRequest::field("model", message).into()
}

/// Returns the error for a model that serves another operation.
fn wrong_kind(slug: &str, served: &[Operation], wanted: Operation) -> Error {
    let words =
        |operation: &Operation| format!("{} (POST /v1{})", operation.words(), operation.path());
    let mut serves: Vec<String> = served.iter().map(words).collect();
    if serves.is_empty() {
        serves.push("predictions (POST /v1/prediction/run)".to_owned());
    }
    let serves = serves.join(" and ");
    let wanted = wanted.words();
    let message = format!(
        "the model '{slug}' supports {serves}, not {wanted}; GET /v1/llm-router/model-catalog \
         lists the models that support each"
    );
    InvalidRequest::field("model", message).into()
}

fn unknown_chain(name: &str, model: &str, hint: &str) -> Error {
    let shown: String = name.chars().take(50).collect();
    let message = format!("unknown fallback_selector '{shown}' for model '{model}'{hint}");
    InvalidRequest::field("fallback_selector", message).into()
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
