//! The listeners: all addresses are bound before any layer is opened, and served once all layers
//! are open.

use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::inherited::Inherited;
use super::{OPERATOR_CONNECTIONS, ROLES, descriptors};
use orrery_api::{HostAddress, HostService, Role, Services};
use orrery_config::{Config, TlsMode, secret};
use orrery_http::budget::{Budget, Share};
use orrery_http::server::{Limits, Listener};
use orrery_http::tls::{Certificates, machine_name};
use orrery_runtime::{Clock, Tasks};

/// A listener that is bound but does not serve yet.
pub(super) struct Bound {
    pub(super) role: Role,
    pub(super) listener: Listener,
    pub(super) encrypted: bool,
}

/// Binds the addresses of all hosts, except those that systemd already holds, so that a port
/// conflict is detected first.
pub(super) fn bind(config: &Config) -> anyhow::Result<(Vec<Bound>, Vec<HostAddress>)> {
    let mut inherited = Inherited::of_process()?;
    let mut tcp = |address| match inherited.take(address) {
        Some(socket) => Listener::of_bound(socket),
        None => Listener::tcp(address),
    };
    let mut bound = Vec::new();
    let mut hosts = Vec::new();
    for (role, (name, host)) in ROLES.into_iter().zip(config.hosts.named()) {
        let mut url = host.public_url.clone();
        for address in &host.listen {
            let listener = tcp(*address).with_context(|| format!("the host {name}"))?;
            if address.port() == 0
                && let Some(actual) = listener.address()
            {
                url = url.replace(":0", &format!(":{}", actual.port()));
            }
            bound.push(Bound { role, listener, encrypted: config.tls.encrypts(address) });
        }
        hosts.push(HostAddress { role, url });
    }
    for address in &config.metrics.listen {
        let listener = tcp(*address).context("metrics")?;
        bound.push(Bound { role: Role::Metrics, listener, encrypted: false });
    }
    inherited.nothing_left()?;
    Ok((bound, hosts))
}

/// Returns the certificate for encrypted listeners; `None` if no listener is encrypted.
pub(super) fn certificates(config: &Config, clock: &Clock) -> anyhow::Result<Option<Certificates>> {
    let hosts = config.hosts.named();
    if !hosts.iter().flat_map(|(_, host)| &host.listen).any(|address| config.tls.encrypts(address))
    {
        return Ok(None);
    }
    let made = match &config.tls.mode {
        TlsMode::Files { certificate, private_key } => {
            secret::hide_from_programs(private_key);
            Certificates::files(certificate, private_key)?
        }
        TlsMode::Auto | TlsMode::SelfSigned | TlsMode::Off => {
            let mut names = config.tls.names.clone();
            let hosts = hosts.iter().filter_map(|(_, host)| url::Url::parse(&host.public_url).ok());
            let machine = machine_name();
            let hosts = hosts.filter_map(|url| url.host_str().map(str::to_owned));
            // A derived URL contains the machine's own name, which may change at each start, so
            // that name is excluded.
            names.extend(hosts.filter(|host| !host.eq_ignore_ascii_case(&machine)));
            Certificates::self_signed(&config.data_dir, &names, clock.now())?
        }
    };
    Ok(Some(made))
}

/// Returns the limits shared by the hosts.
pub(super) fn server_limits(config: &Config) -> Limits {
    let per_address = Share::AtMost(config.limits.connections_per_address);
    Limits {
        header_timeout: config.limits.header_timeout,
        keep_alive: config.limits.keep_alive,
        write_timeout: config.limits.write_timeout,
        connections: Arc::new(Semaphore::new(descriptors::connections(
            config.limits.connections,
            descriptors::raise(),
        ))),
        per_address: Budget::new(usize::MAX, per_address),
    }
}

/// Returns the same limits for one listener, with its own connection slots.
pub(super) fn for_operator(limits: &Limits) -> Limits {
    Limits {
        connections: Arc::new(Semaphore::new(OPERATOR_CONNECTIONS)),
        per_address: Budget::new(usize::MAX, Share::AtMost(OPERATOR_CONNECTIONS)),
        ..limits.clone()
    }
}

pub(super) fn listen(
    listener: Listener,
    role: Role,
    tls: Option<TlsAcceptor>,
    services: &Arc<Services>,
    limits: Limits,
    tasks: &Tasks,
) -> anyhow::Result<()> {
    let host = Arc::new(HostService::new(role, Arc::clone(services), tls.is_some())?);
    tasks.spawn(listener.serve(tls, host, limits, tasks.clone()));
    Ok(())
}
