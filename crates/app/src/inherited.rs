//! Listening sockets that systemd holds for the service (`orrery.socket`). While the service
//! restarts, connections queue in these sockets instead of being refused.
//!
//! These sockets are already bound. A socket that belongs to no configured host is a startup error,
//! because its connections would wait forever.

use std::net::{SocketAddr, TcpListener};

use anyhow::{Context as _, bail};
use listenfd::ListenFd;
use rustix::io::{FdFlags, fcntl_setfd};

/// The sockets passed to this process that are not yet assigned to a host.
#[derive(Debug, Default)]
pub(super) struct Inherited {
    sockets: Vec<(SocketAddr, TcpListener)>,
}

impl Inherited {
    /// Returns the sockets passed by systemd; empty if systemd passed none.
    ///
    /// # Errors
    /// Returns an error if a socket is not a listening TCP socket.
    pub(super) fn of_process() -> anyhow::Result<Self> {
        let mut passed = ListenFd::from_env();
        let mut sockets = Vec::new();
        for number in 0..passed.len() {
            let socket = passed.take_tcp_listener(number).with_context(|| {
                format!("socket {number} of orrery.socket must be a ListenStream= with a TCP port")
            })?;
            let Some(socket) = socket else { continue };
            // Models' programs must not inherit the socket.
            fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
            sockets.push((socket.local_addr()?, socket));
        }
        Ok(Self { sockets })
    }

    /// Takes the socket that listens on `address`.
    pub(super) fn take(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let place = self.sockets.iter().position(|(held, _)| is_same(*held, address))?;
        Some(self.sockets.swap_remove(place).1)
    }

    /// Checks that every socket was assigned to a host.
    ///
    /// # Errors
    /// Returns an error if a socket is not assigned.
    pub(super) fn nothing_left(self) -> anyhow::Result<()> {
        let Some((address, _)) = self.sockets.first() else { return Ok(()) };
        bail!(
            "orrery.socket listens on {address}, but no host is configured for this address: make \
             ListenStream= in orrery.socket match `listen` in the configuration (`orrery service \
             install` does that), then `systemctl daemon-reload` and `systemctl restart \
             orrery.socket`"
        )
    }
}

/// Returns whether a socket bound to `held` also serves `wanted`. `ListenStream=8080` binds
/// `[::]:8080`, which also accepts IPv4.
fn is_same(held: SocketAddr, wanted: SocketAddr) -> bool {
    held == wanted
        || (held.port() == wanted.port()
            && held.ip().is_unspecified()
            && held.is_ipv6()
            && wanted.ip().is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherited(addresses: &[&str]) -> Inherited {
        let socket = || TcpListener::bind("127.0.0.1:0").unwrap();
        let sockets = addresses.iter().map(|text| (text.parse().unwrap(), socket())).collect();
        Inherited { sockets }
    }

    #[test]
    fn inherited_sockets_are_found_by_address() {
        let mut held = inherited(&["127.0.0.1:80", "[::]:8443", "0.0.0.0:90"]);
        assert!(held.take("127.0.0.1:81".parse().unwrap()).is_none());
        assert!(held.take("10.0.0.1:8443".parse().unwrap()).is_none());
        assert!(held.take("0.0.0.0:8443".parse().unwrap()).is_some());
        assert!(held.take("0.0.0.0:8443".parse().unwrap()).is_none(), "once");
        assert!(held.take("[::]:90".parse().unwrap()).is_none(), "an IPv4 socket takes no IPv6");
        assert!(held.take("127.0.0.1:80".parse().unwrap()).is_some());
        let error = held.nothing_left().unwrap_err().to_string();
        assert!(error.starts_with("orrery.socket listens on 0.0.0.0:90"), "{error}");
        assert!(inherited(&[]).nothing_left().is_ok());
    }
}
