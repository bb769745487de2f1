//! Converts sections of the configuration to the options of the lower layers. This module opens no
//! resources and contains no policy.

use hyper::header::{HeaderName, HeaderValue};

use super::{ROLES, doctor};
use orrery_api::{HostAddress, Keep, Live, Settings};
use orrery_config::{self as config, Config};
use orrery_engine as engine;
use orrery_engine::traces;
use orrery_http::egress::Policy;
use orrery_http::rate::Limiter;
use orrery_http::tls::machine_name;
use orrery_records::files;
use orrery_storage::Store;
use orrery_webhooks as webhooks;

/// Returns the configured rate limit of each key or link, if any.
pub(super) fn limiter(config: &Config) -> Option<Limiter> {
    let rate = config.limits.rate.as_ref();
    rate.map(|rate| Limiter::new(rate.requests_per_second.get(), rate.burst.get()))
}

pub(super) fn engine_options(config: &Config, store: &Store) -> engine::Options {
    let share = || store.disk_space().total() / 2;
    engine::Options {
        active: config.engine.active,
        workflow_timeout: config.engine.workflow_timeout,
        enforce_balance: config.billing.enabled && config.billing.enforce,
        execution_bytes: config.engine.execution_bytes,
        organization_bytes: config.engine.organization_bytes.unwrap_or_else(share),
        workflow_memory: config.engine.workflow_memory,
        tree: engine::TreeLimits {
            descendants: config.engine.descendants,
            bytes: config.engine.tree_bytes,
        },
        ..engine::Options::default()
    }
}

pub(super) fn settings(config: &Config, hosts: Vec<HostAddress>) -> Settings {
    Settings {
        body_bytes: config.limits.body_bytes,
        file_bytes: usize::try_from(config.files.max_bytes).unwrap_or(usize::MAX),
        body_timeout: config.limits.body_timeout,
        body_total_timeout: config.limits.body_total_timeout,
        body_min_rate: config.limits.body_min_rate,
        sync_wait: config.limits.sync_wait,
        optional_version: config.compat.optional_version,
        admin_api: config.dashboard.admin_api,
        billing_enabled: config.billing.enabled,
        local_key: config.hosts.ollama.key_id,
        hosts,
        names: config.tls.names.iter().cloned().chain([machine_name()]).collect(),
        control_token: None,
        doctor: doctor::of(config),
    }
}

/// Returns the destination of execution spans.
pub(super) fn trace_target(config: &Config) -> Option<traces::Target> {
    let config::Telemetry { otlp_endpoint, otlp_headers, content } = &config.telemetry;
    let header = |(name, value): &(String, config::Secret)| {
        // The name and the value were validated when the configuration was read.
        let name = HeaderName::try_from(name.as_str()).ok()?;
        let mut value = HeaderValue::from_str(value.expose()).ok()?;
        value.set_sensitive(true);
        Some((name, value))
    };
    let headers = otlp_headers.iter().filter_map(header).collect();
    otlp_endpoint.as_ref().map(|endpoint| traces::Target::new(endpoint, headers, *content))
}

/// Returns the settings that a reload replaces.
pub(super) fn live(config: &Config) -> Live {
    Live {
        cors_origins: config.cors.allow_origins.clone(),
        keep: Keep {
            executions: config.retention.executions,
            payloads: config.retention.payloads,
            deliveries: config.retention.deliveries,
            sessions: config.retention.sessions,
            responses: config.retention.responses,
        },
        rate: limiter(config),
        link_rate: limiter(config),
        access_log: config.log.access,
    }
}

/// Returns the policy for the addresses that clients' URLs may reach.
#[must_use]
pub fn policy(config: &Config) -> Policy {
    let allow = config.egress.allow.clone();
    let deny = config.egress.deny.clone();
    let single_label_names = config.egress.single_label_names;
    Policy { allow, deny, single_label_names, ..Policy::default() }
}

pub(super) fn files_options(config: &Config) -> files::Options {
    let config::Files { max_bytes, quota_bytes, retention } = config.files;
    files::Options { max_bytes, quota_bytes, retention }
}

pub(super) fn outbox_options(webhooks: &config::Webhooks) -> webhooks::Options {
    webhooks::Options {
        schedule: webhooks.schedule.clone(),
        timeout: webhooks.timeout,
        redelivery_cooldown: webhooks.redelivery_cooldown,
        in_flight: webhooks.in_flight,
        in_flight_per_receiver: webhooks.in_flight_per_receiver,
        send_plain_secret: webhooks.send_plain_secret,
        circuit_failures: webhooks.circuit_failures,
        circuit_open: webhooks.circuit_open,
        disable_endpoint_after: webhooks.disable_endpoint_after,
    }
}

/// Returns the hosts of a service that does not listen, with the configured addresses.
pub(super) fn configured_hosts(config: &Config) -> Vec<HostAddress> {
    let hosts = ROLES.into_iter().zip(config.hosts.named());
    hosts.map(|(role, (_, host))| HostAddress { role, url: host.public_url.clone() }).collect()
}
