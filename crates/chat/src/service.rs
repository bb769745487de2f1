//! The handle of the chat router, its dependencies and its settings.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::aliases::Aliases;
use super::error::Error;
use super::tokens::TokenBudgets;
use super::upstreams::{UpstreamOptions, Upstreams};
use orrery_catalog::Catalog;
use orrery_domain::ids::KeyId;
use orrery_domain::model::Pricing;
use orrery_engine::Engine;
use orrery_http::client::Client;
use orrery_records::chains::Chains;
use orrery_records::result_cache::ResultCache;
use orrery_runtime::{Clock, Tasks};
use orrery_storage::{self as storage, Store};

/// The settings of the router.
#[derive(Debug, Clone)]
pub struct Options {
    /// The servers for all models that are not in the catalog.
    pub upstreams: Vec<UpstreamOptions>,
    /// The id of the agent, which is never sent to an upstream.
    pub agent_id: String,
    /// The fee as a fraction of the price.
    pub fee: f64,
    /// Prices of the upstreams' models, indexed by the id that clients send. The prices of an
    /// upstream itself take precedence.
    pub prices: HashMap<String, Pricing>,
    /// IDs, which may contain one `*`, and the models that they stand for.
    pub aliases: Vec<(String, String)>,
    /// Whether the history stores answers.
    pub keep_content: bool,
    /// Whether traces contain the messages of calls.
    pub trace_content: bool,
    /// The daily token budget of an API key.
    pub tokens_per_day: Option<u64>,
    /// Time limit for the first byte of a response of a catalog model.
    pub first_byte_timeout: Duration,
    /// Maximum time between two pieces of a response of a catalog model.
    pub idle_timeout: Duration,
    /// Cache lifetime of the upstreams' lists of models.
    pub catalog_ttl: Duration,
    /// Maximum time for which responses may continue during a shutdown.
    pub stop_grace: Duration,
}

/// The dependencies of the router.
#[derive(Debug)]
pub struct Dependencies {
    pub store: Store,
    pub clock: Clock,
    pub tasks: Tasks,
    pub catalog: Catalog,
    pub chains: Chains,
    pub engine: Engine,
    /// The HTTP client for URLs that the operator configures.
    pub client: Client,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) options: Options,
    pub(super) clock: Clock,
    pub(super) tasks: Tasks,
    pub(super) catalog: Catalog,
    pub(super) chains: Chains,
    pub(super) engine: Engine,
    pub(super) client: Client,
    pub(super) tokens: TokenBudgets,
    pub(super) upstreams: Upstreams,
    pub(super) aliases: Aliases,
    pub(super) results: ResultCache,
}

impl Inner {
    /// [`Chat::check_model`].
    pub(super) fn check_model(&self, key: KeyId, asked: &str, named: &str) -> Result<(), Error> {
        let policies = self.engine.policies();
        let checked = policies.check_model(key, asked);
        let checked = checked.or_else(|refused| policies.check_model(key, named).or(Err(refused)));
        Ok(checked.map_err(orrery_engine::Error::from)?)
    }
}

/// The chat router; clones share the same state.
#[derive(Debug, Clone)]
pub struct Chat {
    pub(super) inner: Arc<Inner>,
}

impl Chat {
    /// Creates a router with these settings.
    #[must_use]
    pub fn new(dependencies: Dependencies, mut options: Options) -> Self {
        let Dependencies { store, clock, tasks, catalog, chains, engine, client } = dependencies;
        let policies = engine.policies().clone();
        let results = ResultCache::new(store.clone(), clock.clone());
        let tokens = TokenBudgets::new(store, clock.clone(), policies, options.tokens_per_day);
        let upstreams = Upstreams::new(std::mem::take(&mut options.upstreams));
        let aliases = Aliases::of(&options.aliases);
        Self {
            inner: Arc::new(Inner {
                options,
                clock,
                tasks,
                catalog,
                chains,
                engine,
                client,
                tokens,
                upstreams,
                aliases,
                results,
            }),
        }
    }

    /// Checks that a key may use the model `asked`, which stands for the model `named`.
    ///
    /// # Errors
    /// [`Error::Engine`] if it may use neither.
    pub(super) fn check_model(&self, key: KeyId, asked: &str, named: &str) -> Result<(), Error> {
        self.inner.check_model(key, asked, named)
    }

    /// Returns the fee as a fraction of the price.
    #[must_use]
    pub fn fee(&self) -> f64 {
        self.inner.options.fee
    }

    /// Deletes the token counters of past days and returns their number.
    ///
    /// # Errors
    /// [`storage::Error`]
    pub async fn forget_past_days(&self) -> Result<usize, storage::Error> {
        self.inner.tokens.forget_past_days().await
    }
}
