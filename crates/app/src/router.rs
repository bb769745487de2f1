//! Creates the chat router, the decision service and the agent from the configuration.

use std::sync::Arc;

use anyhow::Context;
use hyper::header::{HeaderName, HeaderValue};

use orrery_agent::{self as agent, servers};
use orrery_catalog::Catalog;
use orrery_chat::decisions::{self, Decisions};
use orrery_chat::{Chat, Dependencies, Options, UpstreamKind, UpstreamOptions};
use orrery_config::{
    Config, McpServer, McpTransport, ModelPrice, Responses as UpstreamResponses, Secret,
    StreamOptions, Upstream, UpstreamKind as Kind,
};
use orrery_domain::model::Pricing;
use orrery_domain::money::Usd;
use orrery_engine::Engine;
use orrery_http::budget::Budget;
use orrery_http::client::{Builder, Client};
use orrery_records::chains::Chains;
use orrery_responses::{self as responses, Background, Responses};
use orrery_runners::openai::stream_options::StreamOptions as SentOptions;
use orrery_runtime::{Clock, Tasks};
use orrery_storage::Store;

/// Divisor of the shutdown grace period: responses may continue for this fraction of the period,
/// and the rest of the period is reserved for recording the responses.
const STOP_GRACE_DIVISOR: u32 = 2;

/// Returns the HTTP client for URLs that the operator configures, such as URLs in manifests.
fn client(config: &Config) -> Client {
    Builder::new(None).connect_timeout(config.router.connect_timeout).build()
}

/// Creates the router with the configured settings.
///
/// # Errors
/// Returns an error if a key or header of an upstream is not a valid header value.
pub(crate) fn open(
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
    let upstreams = router.upstreams.iter().map(upstream).collect::<anyhow::Result<_>>()?;
    let options = Options {
        upstreams,
        agent_id: config.agent.model_id.clone(),
        fee: router.platform_fee,
        prices: router.prices.iter().map(priced).collect(),
        aliases: router.aliases.clone(),
        keep_content: router.keep_content,
        trace_content: config.telemetry.otlp_endpoint.is_some() && config.telemetry.content,
        tokens_per_day: config.limits.tokens_per_day,
        first_byte_timeout: router.first_byte_timeout,
        idle_timeout: router.idle_timeout,
        catalog_ttl: router.catalog_ttl,
        stop_grace: config.engine.shutdown_grace / STOP_GRACE_DIVISOR,
    };
    Ok(Chat::new(dependencies, options))
}

/// Converts the settings of an upstream for the router.
fn upstream(upstream: &Upstream) -> anyhow::Result<UpstreamOptions> {
    let kind = match &upstream.kind {
        Kind::OpenAi => UpstreamKind::OpenAi,
        Kind::Anthropic => UpstreamKind::Anthropic,
        Kind::Azure { api_version } => UpstreamKind::Azure { api_version: api_version.clone() },
    };
    let scheme = if kind == UpstreamKind::OpenAi { "Bearer " } else { "" };
    let value = |secret: &Secret, scheme: &str| {
        let value = HeaderValue::from_str(&format!("{scheme}{}", secret.expose()));
        let cannot = || format!("{} has a key or header that cannot be sent", upstream.setting());
        let mut value = value.with_context(cannot)?;
        value.set_sensitive(true);
        anyhow::Ok(value)
    };
    let keys = upstream.keys.iter().map(|key| value(key, scheme)).collect::<Result<_, _>>()?;
    let headers = upstream.headers.iter().map(|(name, secret)| {
        let name = HeaderName::try_from(name.as_str()).context("invalid header name")?;
        anyhow::Ok((name, value(secret, "")?))
    });
    Ok(UpstreamOptions {
        name: upstream.name.clone(),
        kind,
        url: upstream.url.clone(),
        keys,
        headers: headers.collect::<Result<_, _>>()?,
        models: upstream.models.clone(),
        prefix: upstream.prefix.clone(),
        weight: upstream.weight,
        priority: upstream.priority,
        timeout: upstream.timeout,
        idle_timeout: upstream.idle_timeout,
        first_byte_timeout: upstream.first_byte_timeout,
        stream_options: match upstream.stream_options {
            StreamOptions::Auto => None,
            StreamOptions::Always => Some(SentOptions::AsSent),
            StreamOptions::Never => Some(SentOptions::Omitted),
        },
        has_responses: upstream.responses == UpstreamResponses::Native,
        has_messages: upstream.messages == UpstreamResponses::Native,
        prices: upstream.prices.iter().map(priced).collect(),
    })
}

/// Returns a model's ID and its price.
fn priced(price: &ModelPrice) -> (String, Pricing) {
    let pricing = Pricing::UsageBased { estimate: None, rates: price.rates };
    (price.model.clone(), pricing)
}

/// Creates the decision service with the configured settings.
pub(crate) fn decisions(config: &Config, tasks: &Tasks, clock: &Clock, chat: &Chat) -> Decisions {
    let dependencies =
        decisions::Dependencies { clock: clock.clone(), tasks: tasks.clone(), chat: chat.clone() };
    let aliases = config.decisions.aliases.iter().cloned().collect();
    let options = decisions::Options { aliases, samples: config.decisions.samples };
    Decisions::new(dependencies, options)
}

/// Returns the agent's settings.
pub(crate) fn agent_options(config: &Config) -> agent::Options {
    let agent = &config.agent;
    agent::Options {
        model: agent.model.clone(),
        eco_model: agent.eco_model.clone(),
        model_id: agent.model_id.clone(),
        timeout: agent.timeout,
        steps_max: agent.max_steps,
        cost_max: agent.max_cost.and_then(Usd::from_dollars),
        context_tokens: agent.context_tokens,
        servers: agent.mcp_servers.iter().map(mcp_server).collect(),
    }
}

/// Converts the settings of an MCP server for the agent.
fn mcp_server(server: &McpServer) -> servers::Settings {
    let transport = match server.transport.clone() {
        McpTransport::Http { url, headers } => servers::Transport::Http { url, headers },
        McpTransport::Program { command, directory, env, writable, memory_bytes } => {
            servers::Transport::Program { command, directory, env, writable, memory_bytes }
        }
    };
    servers::Settings { name: server.name.clone(), transport, allow: server.allow.clone() }
}

/// Opens the stored responses, and those in the background.
pub(crate) fn responses(
    store: &Store,
    clock: &Clock,
    chat: &Chat,
    engine: &Engine,
    bodies: &Arc<Budget>,
) -> (Responses, Background) {
    let responses = Responses::new(store.clone(), clock.clone());
    let dependencies = responses::Dependencies {
        responses: responses.clone(),
        clock: clock.clone(),
        chat: chat.clone(),
        engine: engine.clone(),
        bodies: Arc::clone(bodies),
    };
    (responses, Background::new(dependencies))
}
