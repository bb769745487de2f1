//! Creates the members of the dashboard, and the identity provider, from the configuration.

use orrery_api::oidc::{self, Provider};
use orrery_api::{HostAddress, Role};
use orrery_config::{self as config, Config};
use orrery_http::client::Client;
use orrery_records::members::{Members, Options};
use orrery_runtime::Clock;
use orrery_storage::{Sealer, Store};

/// Opens the members of a store.
pub(crate) fn members(config: &Config, store: &Store, sealer: &Sealer, clock: &Clock) -> Members {
    let config::Dashboard { session_idle, session_max, require_second_factor, .. } =
        &config.dashboard;
    let options = Options {
        session_idle: *session_idle,
        session_max: *session_max,
        require_second_factor: *require_second_factor,
    };
    Members::new(store.clone(), sealer.clone(), clock.clone(), options)
}

/// Creates the identity provider, if one is configured.
pub(crate) fn provider(
    config: &Config,
    sealer: &Sealer,
    clock: &Clock,
    hosts: &[HostAddress],
) -> Option<Provider> {
    let config::Oidc { issuer, client_id, client_secret, scopes, claim, button, map } =
        config.dashboard.oidc.clone()?;
    let map = map.into_iter().map(|group| oidc::Group {
        name: group.name,
        organization: group.organization,
        role: group.role,
    });
    let map = map.collect();
    let options = oidc::Options { issuer, client_id, client_secret, scopes, claim, button, map };
    // The operator has configured the issuer, so the rules for URLs of clients do not apply.
    let client = Client::trusted();
    let dashboard = hosts.iter().find(|host| host.role == Role::Dashboard);
    let dashboard = dashboard.map_or("", |host| &host.url);
    Some(Provider::new(options, client, clock.clone(), sealer.clone(), dashboard))
}
