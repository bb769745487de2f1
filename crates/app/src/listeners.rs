//! The listeners. All addresses are bound before any layer is opened, and served once all layers
//! are open.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use url::Url;

use super::inherited::Inherited;
use super::{OPERATOR_CONNECTIONS, ROLES, descriptors};
use orrery_api::{HostAddress, HostService, OnePort, Role, Services};
use orrery_config::{Acme, Config, Host, TlsMode, secret};
use orrery_http::budget::{Budget, Share};
use orrery_http::server::{Limits, Listener, Service};
use orrery_http::tls::{Certificates, acme, machine_name};
use orrery_runtime::{Clock, Tasks};

/// A listener that is bound but does not serve yet.
pub(super) struct Bound {
    pub(super) role: Role,
    pub(super) listener: Listener,
    pub(super) encrypted: bool,
    /// Whether the listener serves every host. If so, its `role` is the base host.
    pub(super) is_one_port: bool,
}

/// Binds the addresses of all hosts, except those that systemd already holds, so that a port
/// conflict is detected first.
pub(super) fn bind(config: &Config) -> anyhow::Result<(Vec<Bound>, Vec<HostAddress>)> {
    let mut inherited = Inherited::of_process()?;
    let mut tcp = |address| match inherited.take(address) {
        Some(socket) => Listener::of_bound(socket),
        None => Listener::tcp(address),
    };
    let mut bound: Vec<Bound> = Vec::new();
    let encrypted = |address| config.tls.encrypts(address);
    let hosts = &config.hosts;
    for (role, (name, host)) in ROLES.into_iter().zip(hosts.named()) {
        for address in &host.listen {
            let listener =
                tcp(*address).with_context(|| format!("the {name} host cannot be served"))?;
            let is_one_port = role == Role::Base && hosts.one_port.contains(address);
            bound.push(Bound { role, listener, encrypted: encrypted(address), is_one_port });
        }
    }
    for address in hosts.one_port.iter().filter(|one| !hosts.base.listen.contains(one)) {
        let listener = tcp(*address).context("hosts.one_port")?;
        let encrypted = encrypted(address);
        bound.push(Bound { role: Role::Base, listener, encrypted, is_one_port: true });
    }
    for address in &hosts.ollama.listen {
        let listener = tcp(*address).context("hosts.ollama")?;
        let encrypted = encrypted(address);
        bound.push(Bound { role: Role::Ollama, listener, encrypted, is_one_port: false });
    }
    let has_one_port = !hosts.one_port.is_empty();
    let address_of = |(role, (_, host)): (Role, (_, &Host))| {
        let serves = |one: &&Bound| if has_one_port { one.is_one_port } else { one.role == role };
        let actual = bound.iter().find(serves).and_then(|one| one.listener.address());
        HostAddress { role, url: with_port(&host.public_url, actual) }
    };
    let named = ROLES.into_iter().zip(hosts.named()).map(address_of).collect();
    for address in &config.metrics.listen {
        let listener = tcp(*address).context("metrics")?;
        let role = Role::Metrics;
        bound.push(Bound { role, listener, encrypted: false, is_one_port: false });
    }
    inherited.nothing_left()?;
    Ok((bound, named))
}

/// Returns the URL of a host. If the host is configured with port 0, the URL has the port that the
/// system has chosen.
fn with_port(url: &str, actual: Option<SocketAddr>) -> String {
    let zero = Url::parse(url).ok().filter(|url| url.port() == Some(0));
    let (Some(mut made), Some(actual)) = (zero, actual) else { return url.to_owned() };
    match made.set_port(Some(actual.port())) {
        Ok(()) => made.as_str().trim_end_matches('/').to_owned(),
        Err(()) => url.to_owned(),
    }
}

/// Returns the certificate for encrypted listeners; `None` if no listener is encrypted.
pub(super) fn certificates(config: &Config, clock: &Clock) -> anyhow::Result<Option<Certificates>> {
    let hosts = config.hosts.named();
    let listen = hosts.iter().flat_map(|(_, host)| &host.listen);
    let listen = listen.chain(&config.hosts.one_port).chain(&config.hosts.ollama.listen);
    if !listen.into_iter().any(|address| config.tls.encrypts(address)) {
        return Ok(None);
    }
    let made = match &config.tls.mode {
        TlsMode::Files { certificate, private_key } => {
            secret::hide_from_programs(private_key);
            Certificates::files(certificate, private_key)?
        }
        TlsMode::Acme(acme) => {
            secret::hide_from_programs(&acme.cache);
            let names = own_names(config);
            Certificates::acme(acme_options(acme), &config.data_dir, &names, clock.now())?
        }
        TlsMode::Auto | TlsMode::SelfSigned | TlsMode::Off => {
            Certificates::self_signed(&config.data_dir, &own_names(config), clock.now())?
        }
    };
    Ok(Some(made))
}

/// Returns the names of the self-signed certificate.
fn own_names(config: &Config) -> Vec<String> {
    let mut names = config.tls.names.clone();
    let hosts = config.hosts.named();
    let hosts = hosts.iter().filter_map(|(_, host)| Url::parse(&host.public_url).ok());
    let machine = machine_name();
    let hosts = hosts.filter_map(|url| url.host_str().map(str::to_owned));
    // A derived URL contains the machine's own name. That name may change at each start, so it is
    // excluded from the certificate.
    names.extend(hosts.filter(|host| !host.eq_ignore_ascii_case(&machine)));
    names
}

pub(super) fn acme_options(acme: &Acme) -> acme::Options {
    let Acme { directory, directory_ca, contact, domains, cache } = acme.clone();
    acme::Options { directory, directory_ca, contact, domains, cache }
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

/// Returns the same limits for an operator's listener, which has its own connection slots.
pub(super) fn for_operator(limits: &Limits) -> Limits {
    Limits {
        connections: Arc::new(Semaphore::new(OPERATOR_CONNECTIONS)),
        per_address: Budget::new(usize::MAX, Share::AtMost(OPERATOR_CONNECTIONS)),
        ..limits.clone()
    }
}

impl Bound {
    /// Returns the name of the listener's host, for the log.
    pub(super) fn name(&self) -> &'static str {
        if self.is_one_port { "one port" } else { self.role.as_str() }
    }

    /// Serves the listener until the service stops.
    pub(super) fn serve(
        self,
        tls: Option<TlsAcceptor>,
        services: &Arc<Services>,
        limits: Limits,
        tasks: &Tasks,
    ) -> anyhow::Result<()> {
        let service: Arc<dyn Service> = if self.is_one_port {
            Arc::new(OnePort::new(services, tls.is_some())?)
        } else {
            Arc::new(HostService::new(self.role, Arc::clone(services), tls.is_some())?)
        };
        tasks.spawn(self.listener.serve(tls, service, limits, tasks.clone()));
        Ok(())
    }
}
