//! Checks whether each address can be bound, or is already bound by the running service.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use orrery_config::Config;
use orrery_http::port_holder;
use orrery_http::server::refusal;
use orrery_wire::service::{Finding, RunningService, Verdict};

/// The process id of systemd, which holds the sockets of socket units.
const SYSTEMD: u32 = 1;

/// Reports whether each address can be used. `running` is the running service of this data folder,
/// if any.
pub(crate) fn findings(config: &Config, running: Option<&RunningService>) -> Vec<Finding> {
    let pid = running.map(|running| running.pid);
    let mut findings = Vec::new();
    for (name, host) in config.hosts.named() {
        match elsewhere(config, running, name, &host.public_url) {
            Some(finding) => findings.push(finding),
            None => findings.extend(host.listen.iter().map(|address| port(name, address, pid))),
        }
    }
    let ollama = config.hosts.ollama.listen.iter();
    findings.extend(ollama.map(|address| port("ollama", address, pid)));
    for address in &config.metrics.listen {
        let url = format!("http://{address}/metrics");
        let elsewhere = elsewhere(config, running, "metrics", &url);
        findings.push(elsewhere.unwrap_or_else(|| port("metrics", address, pid)));
    }
    findings
}

/// Returns a finding for a host of the running service whose address the command line has set. The
/// finding replaces the check of the default address.
fn elsewhere(
    config: &Config,
    running: Option<&RunningService>,
    name: &str,
    url: &str,
) -> Option<Finding> {
    let running = running.filter(|running| running.file == config.file)?;
    let host = running.listening.iter().find(|host| host.host == name && host.url != url)?;
    let detail = format!(
        "{} is served by the running service of this data folder, which was started with other flags",
        host.url
    );
    Some(Finding::good(name, detail))
}

/// Tries to bind `address`. `service` is the process id of the running service of this data folder.
fn port(name: &str, address: &SocketAddr, service: Option<u32>) -> Finding {
    let error = match TcpListener::bind(address) {
        Ok(_closed_again) => {
            return Finding::new(name, Verdict::Good, format!("{address} is free"));
        }
        Err(error) => error,
    };
    // If this user may not see which process holds the port, the process is assumed to be the
    // service.
    let is_foreign = |pid: u32| {
        port_holder::of(*address).is_some_and(|holder| ![pid, SYSTEMD].contains(&holder.pid))
    };
    if error.kind() == ErrorKind::AddrInUse && service.is_some_and(|pid| !is_foreign(pid)) {
        let detail = format!("{address} is in use by the running service of this data folder");
        return Finding::new(name, Verdict::Good, detail);
    }
    if error.kind() == ErrorKind::AddrInUse
        && port_holder::of(*address).is_some_and(|holder| holder.pid == SYSTEMD)
    {
        let detail = format!("{address} is held by systemd, for orrery.socket");
        return Finding::new(name, Verdict::Good, detail);
    }
    let reason = refusal(*address, &error);
    Finding::new(name, Verdict::Fault, format!("{address} cannot be used: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_config::{Flags, Source};
    use orrery_wire::service::Listening;

    #[test]
    fn check_port_in_use_fails_unless_service_runs() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let refused = port("base", &address, None);
        assert_eq!(refused.verdict, Verdict::Fault);
        let pid = format!("(pid {}) listens there", std::process::id());
        assert!(refused.detail.contains(&pid), "{}", refused.detail);
        let own = std::process::id();
        assert_eq!(port("base", &address, Some(own)).verdict, Verdict::Good);
        let refused = port("base", &address, Some(own + 1));
        assert!(refused.detail.contains(&pid), "not by the service: {}", refused.detail);
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        assert_eq!(port("base", &free, None).verdict, Verdict::Good);
        let elsewhere = SocketAddr::from(([192, 0, 2, 1], 0));
        assert!(port("base", &elsewhere, Some(own)).detail.contains("no interface"));
    }

    #[test]
    fn check_sees_where_a_service_listens_that_was_started_with_another_port() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = Config::defaults();
        config.hosts.base.listen = vec![taken.local_addr().unwrap()];
        let flags = Flags { port: Some(9000), ..Flags::default() };
        let started = Source { file: None, flags }.load().unwrap();
        let hosts = started.hosts.named().into_iter();
        let listening = hosts
            .map(|(name, host)| Listening { host: name.to_owned(), url: host.public_url.clone() })
            .collect();
        let mut running = RunningService { pid: 1, file: None, listening };
        let base = |running: &RunningService| findings(&config, Some(running)).swap_remove(0);
        let found = base(&running);
        assert_eq!((found.subject.as_str(), found.verdict), ("base", Verdict::Good));
        let url = &started.hosts.base.public_url;
        assert!(url.ends_with(":9000") && found.detail.starts_with(url), "{}", found.detail);
        running.file = Some("/etc/orrery/config.toml".into());
        assert_eq!(base(&running).verdict, Verdict::Fault);
    }
}
