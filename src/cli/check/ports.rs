//! Whether each address can be listened on, or is held by this very service.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use crate::cli::admin::SOCKET;
use crate::config::Config;
use crate::http::port_holder;
use crate::http::server::refusal;
use crate::http::unix_socket;
use crate::wire::service::{Finding, Verdict};

/// The process that holds the sockets of units.
const SYSTEMD: u32 = 1;

pub(in crate::cli) async fn findings(config: &Config) -> Vec<Finding> {
    let socket = config.data_dir.join(SOCKET);
    let runs = unix_socket::connect(&socket).await.is_ok();
    let mut findings = Vec::new();
    for (name, host) in config.hosts.named() {
        findings.extend(host.listen.iter().map(|address| port(name, address, runs)));
    }
    findings.extend(config.metrics.listen.iter().map(|address| port("metrics", address, runs)));
    findings
}

/// Tries to listen on `address`; `runs` says whether this data folder's service is up.
fn port(name: &str, address: &SocketAddr, runs: bool) -> Finding {
    let error = match TcpListener::bind(address) {
        Ok(_closed_again) => {
            return Finding::new(name, Verdict::Good, format!("{address} is free"));
        }
        Err(error) => error,
    };
    if error.kind() == ErrorKind::AddrInUse && runs {
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

    #[test]
    fn check_port_in_use_fails_unless_service_runs() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let refused = port("base", &address, false);
        assert_eq!(refused.verdict, Verdict::Fault);
        let pid = format!("(pid {}) listens there", std::process::id());
        assert!(refused.detail.contains(&pid), "{}", refused.detail);
        assert_eq!(port("base", &address, true).verdict, Verdict::Good);
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        assert_eq!(port("base", &free, false).verdict, Verdict::Good);
        let elsewhere = SocketAddr::from(([192, 0, 2, 1], 0));
        assert!(port("base", &elsewhere, true).detail.contains("no interface"));
    }
}
