//! The chat router as the configuration asks for it.

use anyhow::Context;
use hyper::header::HeaderValue;

use crate::catalog::Catalog;
use crate::chains::Chains;
use crate::chat::{Chat, Dependencies, Options, Upstream};
use crate::config::Config;
use crate::domain::model::Pricing;
use crate::engine::Engine;
use crate::http::client::{Builder, Client};
use crate::runtime::{Clock, Tasks};
use crate::storage::Store;

/// The part of a shutdown's grace that answers may go on for; the rest is for recording them.
const STOP_GRACE_DIVISOR: u32 = 2;

/// What sends the requests: to the operator's own URLs, as those of manifests.
fn client(config: &Config) -> Client {
    Builder::new(None).connect_timeout(config.router.connect_timeout).build()
}

/// A router with the settings of the configuration.
///
/// # Errors
/// When the upstream's key cannot be sent in a header.
pub fn open(
    config: &Config,
    tasks: &Tasks,
    store: &Store,
    clock: &Clock,
    catalog: &Catalog,
    chains: &Chains,
    engine: &Engine,
) -> anyhow::Result<Chat> {
    let dependencies = Dependencies {
        store: store.clone(),
        clock: clock.clone(),
        tasks: tasks.clone(),
        catalog: catalog.clone(),
        chains: chains.clone(),
        engine: engine.clone(),
        client: client(config),
    };
    let router = &config.router;
    let authorization = match &router.upstream_key {
        None => None,
        Some(key) => {
            let header = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
            let mut header = header.context("router.upstream_key cannot be sent in a header")?;
            header.set_sensitive(true);
            Some(header)
        }
    };
    let upstream = router.upstream_url.clone().map(|url| Upstream { url, authorization });
    let prices = router.prices.iter().map(|price| {
        let pricing = Pricing::UsageBased {
            estimate: None,
            per_second: None,
            per_million_input_tokens: Some(price.per_million_input_tokens),
            per_million_output_tokens: Some(price.per_million_output_tokens),
        };
        (price.model.clone(), pricing)
    });
    let options = Options {
        upstream,
        fee: router.platform_fee,
        prices: prices.collect(),
        keep_content: router.keep_content,
        tokens_per_day: config.limits.tokens_per_day,
        first_byte_timeout: router.first_byte_timeout,
        idle_timeout: router.idle_timeout,
        catalog_ttl: router.catalog_ttl,
        stop_grace: config.engine.shutdown_grace / STOP_GRACE_DIVISOR,
    };
    Ok(Chat::new(dependencies, options))
}
