//! Chooses the models that a call tries, with their servers and prices.
//!
//! A catalog model that serves the operation is called by its slug. If that model fails, the models
//! of its fallback chain follow. Any other id is sent to the upstream unchanged. The only
//! difference between local and remote models is the [`Target`] of a call.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
use serde_json::{Map, Value};

use super::allowance::Allowance;
use super::error::Error;
use super::request::Request;
use super::service::Inner;
use orrery_catalog::Model;
use orrery_domain::chat::{Operation, Tokens};
use orrery_domain::ids::OrganizationId;
use orrery_domain::input_template::fill_object;
use orrery_domain::invalid_request::InvalidRequest;
use orrery_domain::model::{Pricing, Rates, Usage};
use orrery_domain::money::Usd;
use orrery_domain::spelling;
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
}

/// Time limit for a complete response from the upstream. A catalog model has its own limit.
const UPSTREAM_TIME_MAX: Duration = Duration::from_secs(3600);

/// Maximum cost of one answer in US dollars; higher costs are clamped.
const COST_MAX: f64 = 1.0e9;
/// Maximum number of local models that an error message lists.
const NAMED_MAX: usize = 20;

impl Candidate {
    /// Returns the time limit for a complete response.
    #[must_use]
    pub(crate) fn time_max(&self) -> Duration {
        self.local.as_ref().map_or(UPSTREAM_TIME_MAX, |model| model.timeout)
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
        Some(self.local.as_ref()?.runner.local()?.context)
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
    /// The upstream.
    Server {
        url: String,
        /// The server's name for the model; with `None`, the client's name is used.
        model: Option<String>,
        /// `Bearer …`, marked as sensitive.
        authorization: Option<HeaderValue>,
    },
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
    /// Returns the `Bearer …` header, if the server requires one.
    #[must_use]
    pub(crate) const fn authorization(&self) -> Option<&HeaderValue> {
        match self {
            Self::Server { authorization, .. } | Self::Pool { authorization, .. } => {
                authorization.as_ref()
            }
            Self::Process(_) => None,
        }
    }

    /// Returns the server's name for the model, if it differs from the client's name.
    #[must_use]
    pub(crate) fn model(&self) -> Option<&str> {
        match self {
            Self::Server { model, .. } => model.as_deref(),
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
    /// Returns the models that a call tries, in order; at least one. `alias` is the model that the
    /// request's `model` stands for, if `model` is an alias.
    ///
    /// # Errors
    /// [`Error::NoModel`]; [`Error::Invalid`] for an unknown chain; [`Error::Chains`].
    pub(crate) async fn route(
        &self,
        organization: OrganizationId,
        request: &Request,
        alias: Option<&str>,
    ) -> Result<Vec<Candidate>, Error> {
        let id = alias.unwrap_or(&request.model);
        if let Some(name) = &request.selector
            && self.catalog.get(id).is_none()
            && self.catalog.unserved(id).is_none()
        {
            return Err(unknown_chain(name, id, ""));
        }
        let mut first = self.find(id, request.operation)?;
        if first.local.is_none() {
            if let (Target::Server { url, model, .. }, Some(upstream)) =
                (&mut first.target, &self.options.upstream)
            {
                *url = format!("{}{}", upstream.url, request.path());
                *model = alias.map(str::to_owned);
            }
            return Ok(vec![first]);
        }
        if request.is_response {
            return Err(wrong_kind(&first.name, &[Operation::Chat], request.operation));
        }
        self.with_fallbacks(organization, first, request).await
    }

    /// Returns the only model that a call tries, whose `model` is `id`, or stands for `alias`.
    ///
    /// # Errors
    /// The errors of [`Inner::find`].
    pub(crate) fn only(
        &self,
        id: &str,
        alias: Option<&str>,
        operation: Operation,
    ) -> Result<Candidate, Error> {
        let mut found = self.find(alias.unwrap_or(id), operation)?;
        if let Target::Server { model, .. } = &mut found.target {
            *model = alias.map(str::to_owned);
        }
        Ok(found)
    }

    /// Returns the model with this id: the catalog model with this slug, or else the upstream's
    /// model. A request for a catalog slug is never sent to the upstream.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a catalog model that does not serve the operation;
    /// [`Error::Unserved`]; [`Error::NoModel`].
    pub(crate) fn find(&self, id: &str, operation: Operation) -> Result<Candidate, Error> {
        let Some(model) = self.catalog.get(id) else {
            return match self.catalog.unserved(id) {
                Some(unserved) => Err(Error::Unserved {
                    model: id.to_owned(),
                    file: unserved.file.file_name().unwrap_or_default().display().to_string(),
                }),
                None if id == self.options.agent_id => Err(is_agent(id)),
                None => self.upstream(id, operation),
            };
        };
        let serves = |operation: &Operation| model.runner.server(*operation).is_some();
        let served: Vec<Operation> = Operation::ALL.into_iter().filter(serves).collect();
        let slug = model.slug.to_string();
        self.local(model, operation).ok_or_else(|| wrong_kind(&slug, &served, operation))
    }

    /// Returns an upstream model.
    ///
    /// # Errors
    /// [`Error::NoModel`] if there is no upstream.
    pub(crate) fn upstream(&self, model: &str, operation: Operation) -> Result<Candidate, Error> {
        let model = model.to_owned();
        let Some(upstream) = &self.options.upstream else {
            let hint = self.near_id(&model, operation);
            return Err(Error::NoModel { model, hint, local: self.local_ids(operation) });
        };
        let pricing = self.options.prices.get(&model).cloned();
        Ok(Candidate {
            name: model,
            target: Target::Server {
                url: format!("{}{}", upstream.url, operation.path()),
                model: None,
                authorization: upstream.authorization.clone(),
            },
            local: None,
            price: Price::new(pricing, self.options.fee),
            mapped: None,
        })
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
        })
    }

    /// Returns the model followed by the models of its fallback chain. The request may name a
    /// chain; otherwise the first enabled chain by name applies. Models that do not serve the
    /// operation are skipped.
    async fn with_fallbacks(
        &self,
        organization: OrganizationId,
        first: Candidate,
        request: &Request,
    ) -> Result<Vec<Candidate>, Error> {
        let chain = match &request.selector {
            Some(name) => {
                let found = self.chains.enabled(organization, &first.name, name).await;
                Some(found.map_err(|error| {
                    if let chains::Error::NotFound { hint, .. } = &error {
                        return unknown_chain(name, &first.name, hint);
                    }
                    error.into()
                })?)
            }
            None => self.chains.first_enabled(organization, &first.name).await?,
        };
        let mut candidates = vec![first];
        for entry in chain.into_iter().flat_map(|chain| chain.entries) {
            let model = self.catalog.get(&entry.model);
            let found = model.and_then(|model| self.local(model, request.operation));
            let Some(mut candidate) = found else { continue };
            if let Some(map) = &entry.input_map {
                let Some(mapped) = mapped(map, request) else { continue };
                candidate.mapped = Some(Box::new(mapped));
            }
            candidates.push(candidate);
        }
        Ok(candidates)
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
