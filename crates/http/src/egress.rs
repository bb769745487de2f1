//! The egress guard: decides which addresses the service may connect to on a client's behalf.
//!
//! The guard checks addresses, not names: the connector calls the guard for each address right
//! before connecting, after the name was resolved, so neither a name nor a redirect can bypass the
//! guard. The guard itself resolves no names and sends nothing. URLs in manifests are the
//! operator's own and are not checked.
//!
//! Every address of this machine counts as loopback: a service that listens on any address of this
//! machine may trust local callers, just like a service on 127.0.0.1.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use ipnet::IpNet;
use url::{Host, Url};

use orrery_domain::delivery::URL_BYTES_MAX;

/// The configured rules: `allow` overrides `deny`, and `deny` overrides the defaults.
#[derive(Debug, Clone)]
pub struct Policy {
    pub allow: Vec<IpNet>,
    pub deny: Vec<IpNet>,
    /// Whether connections to this machine's loopback addresses are allowed; true without a
    /// configuration file.
    pub loopback: bool,
    /// Whether single-label names, such as `nas`, are looked up in more than the hosts file. Anyone
    /// may control the name servers that answer such a lookup.
    pub single_label_names: bool,
    /// A function that returns whether an address belongs to this machine.
    pub is_own: fn(IpAddr) -> bool,
    /// The lists from the last configuration reload, which replace the initial lists in all clones.
    pub replaced: Arc<ArcSwapOption<Lists>>,
}

/// A policy's lists of networks; a reload can replace them.
#[derive(Debug)]
pub struct Lists {
    pub allow: Vec<IpNet>,
    pub deny: Vec<IpNet>,
    pub single_label_names: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: Vec::new(),
            loopback: false,
            single_label_names: false,
            is_own,
            replaced: Arc::default(),
        }
    }
}

/// Networks whose addresses are valid only within a site.
const PRIVATE: [&str; 5] =
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"];

/// Returns whether `address` currently belongs to an interface of this machine. The kernel binds a
/// socket only to such an address; nothing is sent. If no socket can be created, the address counts
/// as belonging to this machine.
fn is_own(address: IpAddr) -> bool {
    /// An address reserved for documentation, so no machine has it.
    const NOBODYS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    match UdpSocket::bind((address, 0)) {
        // Machines that share addresses for failover may allow sockets to be bound to any address
        // (`ip_nonlocal_bind`).
        Ok(_) if UdpSocket::bind((NOBODYS, 0)).is_ok() => is_source(address),
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::AddrNotAvailable,
    }
}

/// Returns whether the kernel would use `address` as the source address for a connection to
/// `address`.
fn is_source(address: IpAddr) -> bool {
    let any = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let Ok(socket) = UdpSocket::bind((any, 0)) else { return true };
    // Port 9 is the discard port; any port would do.
    socket.connect((address, 9)).is_ok()
        && socket.local_addr().is_ok_and(|from| from.ip() == address)
}

/// An address that the guard denies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the address {address} is not allowed ({reason})")]
pub struct Forbidden {
    pub address: IpAddr,
    pub reason: &'static str,
}

/// A URL that the service must not call on a client's behalf.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("must be an absolute http or https URL")]
    NotHttp,
    #[error("must have at most {URL_BYTES_MAX} bytes")]
    TooLong,
    #[error("must not have the port 0: no server listens there")]
    PortZero,
    #[error("must not carry a user name or password")]
    UserInfo,
    #[error("must not point to a forbidden address: {0}")]
    Forbidden(Forbidden),
}

impl Policy {
    /// Checks whether the service may connect to `address`.
    ///
    /// # Errors
    /// [`Forbidden`] with the reason.
    pub fn permits(&self, address: IpAddr) -> Result<(), Forbidden> {
        let judged = embedded(address);
        let within =
            |nets: &[IpNet]| nets.iter().any(|net| net.contains(&judged) || net.contains(&address));
        let replaced = self.replaced.load();
        let (allow, deny) = match replaced.as_deref() {
            Some(lists) => (&lists.allow, &lists.deny),
            None => (&self.allow, &self.deny),
        };
        if within(allow) {
            return Ok(());
        }
        if within(deny) {
            return Err(Forbidden { address, reason: "denied by the configuration" });
        }
        let reason = match judged {
            IpAddr::V4(v4) => reason_v4(v4),
            IpAddr::V6(v6) => reason_v6(v6),
        };
        let reason = reason.or_else(|| (self.is_own)(judged).then_some("loopback"));
        match reason {
            None => Ok(()),
            Some("loopback") if self.loopback => Ok(()),
            Some(reason) => Err(Forbidden { address, reason }),
        }
    }

    /// Returns the private networks to which connections are allowed, at least in part.
    #[must_use]
    pub fn open_private_networks(&self) -> Vec<IpNet> {
        let private = PRIVATE.iter().filter_map(|net| net.parse::<IpNet>().ok());
        let replaced = self.replaced.load();
        let deny = replaced.as_deref().map_or(&self.deny, |lists| &lists.deny);
        private.filter(|net| !deny.iter().any(|denied| denied.contains(net))).collect()
    }

    /// Replaces the lists, here and in every clone.
    pub fn replace(&self, lists: Lists) {
        self.replaced.store(Some(Arc::new(lists)));
    }

    /// Returns whether single-label names are looked up beyond the hosts file.
    #[must_use]
    pub fn looks_up_single_labels(&self) -> bool {
        let replaced = self.replaced.load();
        replaced.as_deref().map_or(self.single_label_names, |lists| lists.single_label_names)
    }

    /// Returns a warning if private networks are open while the box has this many organizations. If
    /// there are two or more organizations, private networks should not be open to all of them.
    #[must_use]
    pub fn warning(&self, organizations: usize) -> Option<String> {
        let open: Vec<String> =
            self.open_private_networks().iter().map(ToString::to_string).collect();
        (organizations > 1 && !open.is_empty()).then(|| {
            format!(
                "private networks ({}) are open to the HTTP steps and webhooks of {organizations} \
                 organizations: add them to egress.deny, and the addresses that all organizations \
                 may reach to egress.allow",
                open.join(", ")
            )
        })
    }

    /// Parses a URL from a client. If the host is an address, it is checked immediately. If the
    /// host is a name, its addresses are checked when the name is resolved.
    ///
    /// # Errors
    /// [`UrlError`]; the error's message continues a sentence that starts with the field's name.
    pub fn check_url(&self, text: &str) -> Result<Url, UrlError> {
        if text.len() > URL_BYTES_MAX {
            return Err(UrlError::TooLong);
        }
        let url = Url::parse(text).map_err(|_not_absolute| UrlError::NotHttp)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(UrlError::NotHttp);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlError::UserInfo);
        }
        if url.port() == Some(0) {
            return Err(UrlError::PortZero);
        }
        match url.host() {
            None => return Err(UrlError::NotHttp),
            Some(Host::Ipv4(v4)) => self.permits(v4.into()).map_err(UrlError::Forbidden)?,
            Some(Host::Ipv6(v6)) => self.permits(v6.into()).map_err(UrlError::Forbidden)?,
            Some(Host::Domain(_)) => {}
        }
        Ok(url)
    }
}

/// Returns the effective address: an IPv4 address embedded in an IPv6 address (mapped, NAT64, 6to4,
/// Teredo) is checked as an IPv4 address.
fn embedded(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    if let Some(v4) = v6.to_ipv4_mapped() {
        return v4.into();
    }
    let [s0, s1, s2, s3, s4, s5, s6, s7] = v6.segments();
    let v4 = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match (s0, s1) {
        (0x64, 0xff9b) if [s2, s3, s4, s5] == [0; 4] => v4(s6, s7),
        (0x64, 0xff9b) if s2 == 1 => v4(s6, s7),
        (0x2002, _) => v4(s1, s2),
        (0x2001, 0) => v4(!s6, !s7),
        // The deprecated IPv4-compatible form; `::` and `::1` do not have this form.
        (0, 0) if [s2, s3, s4, s5] == [0; 4] && (s6 != 0 || s7 > 1) => v4(s6, s7),
        _ => address,
    }
}

fn reason_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, d] = address.octets();
    match (a, b, c, d) {
        (0, ..) => Some("unspecified"),
        (127, ..) => Some("loopback"),
        (169, 254, 169, 254) | (100, 100, 100, 200) => Some("cloud metadata"),
        (169, 254, ..) => Some("link-local"),
        (192, 0, 0, _) => Some("protocol assignments"),
        (192, 0, 2, _) | (198, 51, 100, _) | (203, 0, 113, _) => Some("documentation"),
        (198, 18..=19, ..) => Some("benchmarking"),
        (224..=239, ..) => Some("multicast"),
        (255, 255, 255, 255) => Some("broadcast"),
        (240..=255, ..) => Some("reserved"),
        _ => None,
    }
}

fn reason_v6(address: Ipv6Addr) -> Option<&'static str> {
    /// The metadata service of AWS, which uses a private address.
    const METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    if address.is_unspecified() {
        return Some("unspecified");
    }
    if address.is_loopback() {
        return Some("loopback");
    }
    if address == METADATA {
        return Some("cloud metadata");
    }
    let [s0, s1, ..] = address.segments();
    match (s0, s1) {
        (0xfe80..=0xfebf, _) => Some("link-local"),
        (0xfec0..=0xfeff, _) => Some("site-local"),
        (0xff00..=0xffff, _) => Some("multicast"),
        (0x2001, 0xdb8) | (0x3fff, 0..=0xfff) => Some("documentation"),
        (0x100, 0) => Some("discard-only"),
        (0, 0) => Some("reserved"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn egress_replaced_lists_apply_to_every_clone() {
        let policy = Policy::default();
        let clone = policy.clone();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(clone.permits(address("192.168.1.1")).is_ok());
        policy.replace(Lists {
            allow: vec!["127.0.0.0/8".parse().unwrap()],
            deny: vec!["192.168.0.0/16".parse().unwrap()],
            single_label_names: true,
        });
        assert!(clone.permits(address("192.168.1.1")).is_err());
        assert!(clone.permits(address("127.0.0.1")).is_ok());
        assert!(clone.looks_up_single_labels());
    }

    fn verdict(policy: &Policy, address: &str) -> &'static str {
        policy.permits(address.parse().unwrap()).map_or_else(|error| error.reason, |()| "ok")
    }

    #[test]
    fn egress_policy_classifies_addresses() {
        // The result must not depend on the addresses of the machine that runs the test.
        let policy = Policy { is_own: |_| false, ..Policy::default() };
        for (address, expect) in [
            ("8.8.8.8", "ok"),
            ("10.0.0.1", "ok"),
            ("172.16.0.1", "ok"),
            ("192.168.1.1", "ok"),
            ("100.64.0.1", "ok"),
            ("fd12:3456::1", "ok"),
            ("2606:4700::1111", "ok"),
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "unspecified"),
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("169.254.169.254", "cloud metadata"),
            ("100.100.100.200", "cloud metadata"),
            ("fd00:ec2::254", "cloud metadata"),
            ("169.254.1.1", "link-local"),
            ("192.0.0.192", "protocol assignments"),
            ("192.0.2.7", "documentation"),
            ("198.51.100.7", "documentation"),
            ("203.0.113.7", "documentation"),
            ("198.18.0.1", "benchmarking"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.255", "broadcast"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("fe80::1", "link-local"),
            ("febf::1", "link-local"),
            ("fec0::1", "site-local"),
            ("ff02::1", "multicast"),
            ("2001:db8::1", "documentation"),
            ("3fff::1", "documentation"),
            ("100::1", "discard-only"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:8.8.8.8", "ok"),
            ("::ffff:169.254.169.254", "cloud metadata"),
            ("::127.0.0.1", "loopback"),
            ("64:ff9b::7f00:1", "loopback"),
            ("64:ff9b::808:808", "ok"),
            ("64:ff9b:1::a9fe:a9fe", "cloud metadata"),
            ("2002:7f00:1::", "loopback"),
            ("2002:808:808::", "ok"),
            ("2001:0:4136:e378:8000:63bf:80ff:fffe", "loopback"),
        ] {
            assert_eq!(verdict(&policy, address), expect, "{address}");
        }
    }

    #[test]
    fn egress_allow_overrides_deny_and_deny_overrides_defaults() {
        let nets = |list: &[&str]| list.iter().map(|net| net.parse().unwrap()).collect();
        let policy = Policy {
            allow: nets(&["127.0.0.5/32", "10.1.0.0/16"]),
            deny: nets(&["10.0.0.0/8", "8.8.8.8/32"]),
            is_own: |_| false,
            ..Policy::default()
        };
        for (address, expect) in [
            ("127.0.0.5", "ok"),
            ("127.0.0.1", "loopback"),
            ("10.1.2.3", "ok"),
            ("10.2.2.3", "denied by the configuration"),
            ("::ffff:10.2.2.3", "denied by the configuration"),
            ("8.8.8.8", "denied by the configuration"),
            ("8.8.4.4", "ok"),
        ] {
            assert_eq!(verdict(&policy, address), expect, "{address}");
        }
        let at_home = Policy { loopback: true, ..Policy::default() };
        assert_eq!(verdict(&at_home, "127.0.0.1"), "ok");
        assert_eq!(verdict(&at_home, "169.254.169.254"), "cloud metadata");
    }

    #[test]
    fn egress_treats_own_addresses_as_loopback() {
        let own = |address: IpAddr| address.to_string() == "10.9.8.7";
        let policy = Policy { is_own: own, ..Policy::default() };
        for address in ["10.9.8.7", "::ffff:10.9.8.7", "64:ff9b::a09:807"] {
            assert_eq!(verdict(&policy, address), "loopback", "{address}");
        }
        assert_eq!(verdict(&policy, "10.9.8.8"), "ok");
        let allow = vec!["10.9.8.7/32".parse().unwrap()];
        assert_eq!(verdict(&Policy { allow, ..policy }, "10.9.8.7"), "ok");
        // Queries the kernel: a loopback address belongs to this machine, a documentation address
        // does not.
        for (address, expect) in
            [("127.0.0.1", true), ("127.8.8.8", true), ("192.0.2.1", false), ("8.8.8.8", false)]
        {
            assert_eq!(is_own(address.parse().unwrap()), expect, "{address}");
        }
    }

    #[test]
    fn egress_warns_while_private_networks_are_open() {
        let deny = |nets: &[&str]| Policy {
            deny: nets.iter().map(|net| net.parse().unwrap()).collect(),
            ..Policy::default()
        };
        assert_eq!(Policy::default().open_private_networks().len(), PRIVATE.len());
        assert_eq!(Policy::default().warning(1), None);
        assert!(Policy::default().warning(2).unwrap().contains("10.0.0.0/8"));
        assert_eq!(deny(&PRIVATE).warning(2), None);
        assert_eq!(deny(&PRIVATE).open_private_networks(), []);
        let most =
            deny(&["10.0.0.0/9", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"]);
        assert_eq!(most.open_private_networks(), ["10.0.0.0/8".parse().unwrap()]);
    }

    #[test]
    fn egress_checks_urls_in_every_address_spelling() {
        let policy = Policy::default();
        for (url, expect) in [
            ("https://example.com/a?b", "ok"),
            ("http://10.0.0.1:8080/", "ok"),
            ("HTTP://EXAMPLE.com", "ok"),
            ("http://127.0.0.1/", "loopback"),
            ("http://0x7f.1/", "loopback"),
            ("http://2130706433/", "loopback"),
            ("http://0177.0.0.1/", "loopback"),
            ("http://127.1/", "loopback"),
            ("http://[::1]/", "loopback"),
            ("http://[::ffff:127.0.0.1]/", "loopback"),
            ("http://169.254.169.254/latest", "metadata"),
            ("http://\u{ff11}27.0.0.1/", "loopback"),
            ("ftp://example.com/", "absolute http"),
            ("file:///etc/passwd", "absolute http"),
            ("/hook", "absolute http"),
            ("example.com/hook", "absolute http"),
            ("http://", "absolute http"),
            ("http://user:pass@example.com/", "user name"),
            ("javascript:alert(1)", "absolute http"),
            ("http://example.com:0/", "port 0"),
            ("https://[2001:db8::1]:00000/hook", "port 0"),
        ] {
            let said = policy.check_url(url).map_or_else(|e| e.to_string(), |_| "ok".to_owned());
            assert!(said.contains(expect), "{url}: {said}");
        }
        assert_eq!(
            policy.check_url(&format!("http://e/{}", "x".repeat(URL_BYTES_MAX))),
            Err(UrlError::TooLong)
        );
    }
}
