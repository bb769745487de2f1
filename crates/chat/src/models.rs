//! The models that can be called: catalog models, and models that the upstream lists.
//!
//! The upstream's list is cached for `router.catalog_ttl` and fetched by one request at a time. If
//! the upstream cannot be reached, the last list is served and marked as stale.

use std::collections::HashSet;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use hyper::header::{ACCEPT, AUTHORIZATION};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::service::{Chat, Inner, Upstream};
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
/// Maximum time for which a call whose model is an alias waits for the list. After that, the last
/// list counts, while the new one is still fetched.
const ALIAS_PATIENCE: Duration = Duration::from_secs(1);
/// Minimum delay after a failed fetch before the upstream is queried again.
const RETRY: Duration = Duration::from_secs(5);

/// All models that can be called.
#[derive(Debug)]
pub struct ModelCatalog {
    /// Local models by slug, then the upstream's models in the order of its list.
    pub models: Vec<CatalogModel>,
    /// `None` without an upstream.
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

/// The state of the upstream's list.
#[derive(Debug, Clone)]
pub struct UpstreamList {
    pub fetched_at: Option<Timestamp>,
    /// The error of the last fetch: the list is stale.
    pub error: Option<String>,
}

/// The cached list of the upstream.
#[derive(Debug, Default)]
pub(super) struct UpstreamModels {
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

#[derive(Debug, Deserialize)]
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
        let Some(upstream) = &inner.options.upstream else {
            return ModelCatalog { models, upstream: None };
        };
        let (listed, state) = inner.upstream_list(upstream).await;
        // The slug of a local model is never sent to the upstream.
        let catalog = inner.catalog.list();
        let unserved = inner.catalog.list_unserved().into_iter().map(|(slug, _)| slug.to_string());
        let local: HashSet<String> =
            catalog.iter().map(|model| model.slug.to_string()).chain(unserved).collect();
        let of_upstream = listed.iter().filter(|listed| !local.contains(&listed.id));
        let of_upstream: Vec<CatalogModel> = of_upstream
            .map(|listed| CatalogModel {
                id: listed.id.clone(),
                operation: None,
                is_upstream: true,
                owned_by: listed.owned_by.clone(),
                created: listed.created,
                pricing: inner.options.prices.get(&listed.id).cloned(),
                context: None,
                is_failing: false,
            })
            .collect();
        models.extend(of_upstream);
        ModelCatalog { models, upstream: Some(state) }
    }
}

impl Inner {
    /// Returns whether the upstream lists a model with this ID. An upstream that does not respond
    /// delays the answer by at most [`ALIAS_PATIENCE`].
    pub(super) async fn is_listed(self: &Arc<Self>, id: &str) -> bool {
        if self.options.upstream.is_none() {
            return false;
        }
        let inner = Arc::clone(self);
        let fetching = async move {
            if let Some(upstream) = &inner.options.upstream {
                inner.upstream_list(upstream).await;
            }
        };
        let late_until = self.upstream_models.last().late_until;
        if late_until.is_none_or(|until| until <= runtime::monotonic_now())
            && timeout(ALIAS_PATIENCE, self.tasks.complete(fetching)).await.is_err()
        {
            tracing::debug!("the upstream's list of models is late; its last list is used");
            let until = runtime::monotonic_now().checked_add(RETRY);
            self.upstream_models.last().late_until = until;
        }
        self.upstream_models.last().models.iter().any(|listed| listed.id == id)
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
            context: model.runner.local().map(|local| local.context),
            is_failing: model.failing().is_some(),
        })
    }

    /// Returns the upstream's list, refreshed if it is old. One request fetches the list while
    /// other requests wait.
    async fn upstream_list(&self, upstream: &Upstream) -> (Arc<Vec<Listed>>, UpstreamList) {
        let mut cached = self.upstream_models.cached.lock().await;
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
                    *self.upstream_models.last() = Last { models, late_until: None };
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
        (Arc::clone(&self.upstream_models.last().models), state)
    }

    async fn ask_upstream(&self, upstream: &Upstream) -> Result<Vec<Listed>, String> {
        let mut request =
            Request::get(format!("{}/models", upstream.url)).header(ACCEPT, "application/json");
        if let Some(authorization) = &upstream.authorization {
            request = request.header(AUTHORIZATION, authorization);
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
