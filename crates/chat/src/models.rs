//! The models that can be called: catalog models, and models that the upstreams list.
//!
//! Each upstream's list is cached for `router.catalog_ttl` and fetched by one request at a time. If
//! an upstream cannot be reached, its last list is served and marked as stale. Models that the
//! configuration names without a `*` are always listed; Azure has no list of deployments, so its
//! models are only these.

use std::collections::HashSet;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use hyper::Request;
use hyper::header::ACCEPT;
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::service::{Chat, Inner};
use super::upstreams::{Upstream, UpstreamKind, UpstreamState};
use orrery_domain::chat::Operation;
use orrery_domain::ids::OrganizationId;
use orrery_domain::model::Pricing;
use orrery_domain::time::Timestamp;
use orrery_http::client::{Limits, Overflow};
use orrery_runtime::{self as runtime, turns};

/// Limits on the upstream's list: bytes, models, characters of an id, and fetch timeout.
const LIST_BYTES_MAX: usize = 8 * 1024 * 1024;
const LIST_MODELS_MAX: usize = 10_000;
const ID_CHARS_MAX: usize = 256;
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// The query for the list of Anthropic's models: the largest page.
const ANTHROPIC_LIST: &str = "?limit=1000";
/// Maximum time for which a call whose model is an alias waits for the list. After that, the last
/// list counts, while the new one is still fetched.
const ALIAS_PATIENCE: Duration = Duration::from_secs(1);
/// Minimum delay after a failed fetch before the upstream is queried again.
const RETRY: Duration = Duration::from_secs(5);

/// All models that can be called.
#[derive(Debug)]
pub struct ModelCatalog {
    /// Local models by slug, then the upstreams' models in the order of their lists.
    pub models: Vec<CatalogModel>,
    /// The state of the lists of all upstreams. `None` without an upstream.
    pub upstream: Option<UpstreamList>,
}

/// A model that can be called.
#[derive(Debug, Clone)]
pub struct CatalogModel {
    pub id: String,
    /// The operation that the model serves; `None` if the upstream does not report it.
    pub operation: Option<Operation>,
    pub is_upstream: bool,
    /// The owner, if the upstream reports it.
    pub owned_by: Option<String>,
    /// Creation time in Unix seconds, if the upstream reports it.
    pub created: Option<i64>,
    pub pricing: Option<Pricing>,
    /// The context length in tokens, if known.
    pub context: Option<u32>,
    /// Whether the model is failing.
    pub is_failing: bool,
}

/// The state of an upstream's list.
#[derive(Debug, Clone, Default)]
pub struct UpstreamList {
    pub fetched_at: Option<Timestamp>,
    /// The error of the last fetch: the list is stale.
    pub error: Option<String>,
}

/// The cached list of an upstream.
#[derive(Debug, Default)]
pub(crate) struct UpstreamModels {
    cached: Mutex<Cached>,
    last: StdMutex<Last>,
}

/// The last list, which can also be read while a new one is fetched.
#[derive(Debug, Default)]
struct Last {
    models: Arc<Vec<Listed>>,
    /// Until when nobody waits for a new list, because one was late.
    late_until: Option<Instant>,
}

impl UpstreamModels {
    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Cached {
    fetched_at: Option<Timestamp>,
    error: Option<String>,
    /// The earliest time of the next fetch.
    fresh_until: Option<Instant>,
}

#[derive(Debug, Deserialize)]
struct List {
    data: Vec<Listed>,
}

#[derive(Debug, Clone, Deserialize)]
struct Listed {
    id: String,
    created: Option<i64>,
    owned_by: Option<String>,
}

impl Chat {
    /// Returns the models that can be called.
    pub async fn models(&self) -> ModelCatalog {
        let inner = &self.inner;
        let mut models: Vec<CatalogModel> =
            inner.catalog.list().into_iter().filter_map(|model| inner.listed(model)).collect();
        let upstreams = inner.upstreams.all();
        if upstreams.is_empty() {
            return ModelCatalog { models, upstream: None };
        }
        let lists = join_all(upstreams.iter().map(|upstream| inner.upstream_list(upstream))).await;
        // The slug of a local model is never sent to an upstream.
        let catalog = inner.catalog.list();
        let unserved = inner.catalog.list_unserved().into_iter().map(|(slug, _)| slug.to_string());
        let mut known: HashSet<String> =
            catalog.iter().map(|model| model.slug.to_string()).chain(unserved).collect();
        for (upstream, (listed, _)) in upstreams.iter().zip(&lists) {
            for listed in shown(upstream, listed) {
                if known.insert(listed.id.clone()) {
                    models.push(inner.of_upstream(upstream, listed));
                }
            }
        }
        let states = upstreams.iter().zip(lists.into_iter().map(|(_, state)| state));
        ModelCatalog { models, upstream: Some(joined(states)) }
    }

    /// Returns the states of the upstreams, for operators.
    pub async fn upstreams(&self) -> Vec<UpstreamState> {
        let inner = &self.inner;
        let upstreams = inner.upstreams.all();
        let lists = join_all(upstreams.iter().map(|upstream| inner.upstream_list(upstream))).await;
        let lists = lists.into_iter().map(|(_, list)| list);
        upstreams.iter().zip(lists).map(|(upstream, list)| upstream.state(list)).collect()
    }

    /// Returns the states of the upstreams like [`Chat::upstreams`], without asking for their lists.
    #[must_use]
    pub fn upstream_states(&self) -> Vec<UpstreamState> {
        let upstreams = self.inner.upstreams.all().iter();
        upstreams.map(|upstream| upstream.state(UpstreamList::default())).collect()
    }

    /// Returns whether requests for this ID go to an upstream.
    #[must_use]
    pub fn is_at_upstream(&self, id: &str) -> bool {
        let catalog = &self.inner.catalog;
        let is_local = catalog.get(id).is_some() || catalog.unserved(id).is_some();
        let is_agent = id == self.inner.options.agent_id;
        !is_local && !is_agent && self.inner.upstreams.matching(id).next().is_some()
    }
}

/// Returns the models of an upstream's list that its patterns match, with its prefix, and the models
/// that the configuration names.
fn shown(upstream: &Upstream, listed: &[Listed]) -> Vec<Listed> {
    let prefix = upstream.options.prefix.as_str();
    let prefixed =
        |listed: &Listed| Listed { id: format!("{prefix}{}", listed.id), ..listed.clone() };
    let mut all: Vec<Listed> = listed.iter().map(prefixed).collect();
    all.retain(|listed| upstream.model(&listed.id).is_some());
    let named = upstream.exact_models().map(|model| format!("{prefix}{model}"));
    let named: Vec<String> = named.filter(|id| all.iter().all(|listed| listed.id != *id)).collect();
    all.extend(named.into_iter().map(|id| Listed { id, created: None, owned_by: None }));
    all
}

/// Returns the state of several lists: the oldest, with the first error.
fn joined<'u>(states: impl Iterator<Item = (&'u Arc<Upstream>, UpstreamList)>) -> UpstreamList {
    let mut all = UpstreamList::default();
    let mut is_first = true;
    for (upstream, UpstreamList { fetched_at, error }) in states {
        let error = error.map(|error| match upstream.has_name() {
            true => format!("{}: {error}", upstream.name()),
            false => error,
        });
        all.error = all.error.or(error);
        all.fetched_at = if is_first { fetched_at } else { all.fetched_at.min(fetched_at) };
        is_first = false;
    }
    all
}

impl Inner {
    /// Returns whether an upstream lists a model with this ID. An upstream that does not respond
    /// delays the answer by at most [`ALIAS_PATIENCE`].
    pub(super) async fn is_listed(self: &Arc<Self>, id: &str) -> bool {
        let matching = self.upstreams.matching(id);
        join_all(matching.map(|upstream| self.lists(upstream, id))).await.contains(&true)
    }

    async fn lists(self: &Arc<Self>, upstream: &Arc<Upstream>, id: &str) -> bool {
        let (inner, fetched) = (Arc::clone(self), Arc::clone(upstream));
        let fetching = async move {
            inner.upstream_list(&fetched).await;
        };
        let late_until = upstream.models.last().late_until;
        if late_until.is_none_or(|until| until <= runtime::monotonic_now())
            && timeout(ALIAS_PATIENCE, self.tasks.complete(fetching)).await.is_err()
        {
            tracing::debug!(
                upstream = upstream.name(),
                "the upstream's list of models is late; its last list is used"
            );
            let until = runtime::monotonic_now().checked_add(RETRY);
            upstream.models.last().late_until = until;
        }
        let Some(model) = upstream.model(id) else { return false };
        let listed = Arc::clone(&upstream.models.last().models);
        listed.iter().any(|listed| listed.id == model)
            || upstream.exact_models().any(|named| named == model)
    }

    fn of_upstream(&self, upstream: &Upstream, listed: Listed) -> CatalogModel {
        let own = upstream.model(&listed.id).and_then(|id| upstream.options.prices.get(id));
        let pricing = own.or_else(|| self.options.prices.get(&listed.id)).cloned();
        let named = || upstream.has_name().then(|| upstream.name().to_owned());
        CatalogModel {
            operation: None,
            is_upstream: true,
            owned_by: listed.owned_by.or_else(named),
            created: listed.created,
            pricing,
            context: None,
            is_failing: false,
            id: listed.id,
        }
    }

    /// Returns the entry of a catalog model, if it can be called.
    fn listed(&self, model: Arc<orrery_catalog::Model>) -> Option<CatalogModel> {
        let serves = |operation: &Operation| model.runner.server(*operation).is_some();
        let operation = Operation::ALL.into_iter().find(serves)?;
        Some(CatalogModel {
            id: model.slug.to_string(),
            operation: Some(operation),
            is_upstream: false,
            owned_by: None,
            created: None,
            pricing: model.pricing.clone(),
            context: model.runner.local().and_then(|local| local.context),
            is_failing: model.failing().is_some(),
        })
    }

    /// Returns an upstream's list, refreshed if it is old. One request fetches the list while
    /// other requests wait.
    async fn upstream_list(&self, upstream: &Upstream) -> (Arc<Vec<Listed>>, UpstreamList) {
        if matches!(upstream.options.kind, UpstreamKind::Azure { .. }) {
            let state = UpstreamList { fetched_at: Some(self.clock.now()), error: None };
            return (Arc::default(), state);
        }
        let mut cached = upstream.models.cached.lock().await;
        let now = runtime::monotonic_now();
        if cached.fresh_until.is_none_or(|until| until <= now) {
            // The list is fetched on behalf of the service, not of an organization: other
            // organizations wait for the list too, and an organization may have to wait for a slot
            // until its own streams end.
            let asking = timeout(LIST_TIMEOUT, self.ask_upstream(upstream));
            let answer = turns::on_behalf_of(None::<OrganizationId>, asking).await;
            let answer = answer.unwrap_or_else(|_elapsed| {
                Err(format!("the upstream did not return its list within {LIST_TIMEOUT:?}"))
            });
            let fresh_for = match answer {
                Ok(models) => {
                    let models = Arc::new(models);
                    *upstream.models.last() = Last { models, late_until: None };
                    cached.fetched_at = Some(self.clock.now());
                    cached.error = None;
                    self.options.catalog_ttl
                }
                Err(error) => {
                    cached.error = Some(error);
                    RETRY.min(self.options.catalog_ttl)
                }
            };
            cached.fresh_until = runtime::monotonic_now().checked_add(fresh_for);
        }
        let state = UpstreamList { fetched_at: cached.fetched_at, error: cached.error.clone() };
        (Arc::clone(&upstream.models.last().models), state)
    }

    async fn ask_upstream(&self, upstream: &Upstream) -> Result<Vec<Listed>, String> {
        let query = match upstream.options.kind {
            UpstreamKind::Anthropic => ANTHROPIC_LIST,
            UpstreamKind::OpenAi | UpstreamKind::Azure { .. } => "",
        };
        let url = format!("{}/models{query}", upstream.options.url);
        let mut request = Request::get(url).header(ACCEPT, "application/json");
        if let (Some(headers), Some(key)) =
            (request.headers_mut(), upstream.keys.order().into_iter().next())
        {
            upstream.add_headers(key, headers);
        }
        let request = request.body(Bytes::new()).map_err(|error| error.to_string())?;
        let limits =
            Limits { total: LIST_TIMEOUT, answer_bytes: LIST_BYTES_MAX, overflow: Overflow::Fail };
        let answer = self.client.send(request, &limits).await.map_err(|error| error.to_string())?;
        if !answer.status.is_success() {
            return Err(format!("the upstream answered {}", answer.status.as_u16()));
        }
        let list: List = serde_json::from_slice(&answer.body)
            .map_err(|_other| "the upstream's answer is not a list of models".to_owned())?;
        let is_good =
            |model: &Listed| !model.id.is_empty() && model.id.chars().nth(ID_CHARS_MAX).is_none();
        Ok(list.data.into_iter().filter(is_good).take(LIST_MODELS_MAX).collect())
    }
}
