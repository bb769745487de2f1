//! Name constraints (RFC 5280, section 4.2.1.10) of the box's own authority. Clients that trust the
//! authority trust it only for this box's names, even if the authority's key is stolen.
//!
//! Host names and IP addresses are restricted to those of the box. A constraint on a host name also
//! permits its subdomains.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rcgen::{CidrSubnet, GeneralSubtree, NameConstraints};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

/// Returns constraints that permit these names. The constraints always include an IPv4 address, an
/// IPv6 address and a host name, so that no kind of name is unconstrained.
pub(super) fn permitting(names: &BTreeSet<String>) -> NameConstraints {
    let subtree = |name: &String| match name.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => {
            GeneralSubtree::IpAddress(CidrSubnet::V4(address.octets(), [255; 4]))
        }
        Ok(IpAddr::V6(address)) => {
            GeneralSubtree::IpAddress(CidrSubnet::V6(address.octets(), [255; 16]))
        }
        Err(_host_name) => GeneralSubtree::DnsName(domain(name).to_owned()),
    };
    let permitted_subtrees = names.iter().map(subtree).collect();
    NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() }
}

/// Returns whether an authority has constraints.
pub(super) fn has_any(authority: &X509Certificate<'_>) -> bool {
    !matches!(authority.name_constraints(), Ok(None))
}

/// Returns whether an authority permits a name. An authority without constraints permits every
/// name.
pub(super) fn permits(authority: &X509Certificate<'_>, name: &str) -> bool {
    let Ok(constraints) = authority.name_constraints() else { return false };
    let Some(constraints) = constraints else { return true };
    let permitted = constraints.value.permitted_subtrees.iter().flatten();
    let address = name.parse::<IpAddr>().ok();
    permitted.into_iter().any(|subtree| match (&subtree.base, address) {
        (GeneralName::DNSName(base), None) => {
            let above = domain(name).strip_suffix(base);
            above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
        }
        (GeneralName::IPAddress(base), Some(IpAddr::V4(address))) => {
            is_within(base, &address.octets())
        }
        (GeneralName::IPAddress(base), Some(IpAddr::V6(address))) => {
            is_within(base, &address.octets())
        }
        _ => false,
    })
}

/// Returns the domain of a name without the wildcard label.
fn domain(name: &str) -> &str {
    name.strip_prefix("*.").unwrap_or(name)
}

/// Returns whether an address is in a subnet, given as the subnet's address followed by its mask.
fn is_within(subnet: &[u8], address: &[u8]) -> bool {
    let Some((base, mask)) = subnet.split_at_checked(address.len()) else { return false };
    mask.len() == address.len()
        && base.iter().zip(mask).zip(address).all(|((base, mask), byte)| base & mask == byte & mask)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use x509_parser::prelude::FromDer as _;

    use super::*;

    #[test]
    fn name_constraints_permit_own_names_and_subdomains() {
        let names = ["localhost", "127.0.0.1", "::1", "box.lan", "*.wild.lan", "192.168.7.9"];
        let names: BTreeSet<String> = names.map(str::to_owned).into();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.name_constraints = Some(permitting(&names));
        let certificate = params.self_signed(&key).unwrap();
        let (_, authority) = X509Certificate::from_der(certificate.der()).unwrap();
        assert!(has_any(&authority));
        for name in names.iter().map(String::as_str).chain(["a.box.lan", "x.wild.lan"]) {
            assert!(permits(&authority, name), "{name}");
        }
        for name in ["lan", "abox.lan", "example.com", "*.lan", "127.0.0.2", "::2", "10.0.0.1"] {
            assert!(!permits(&authority, name), "{name}");
        }
        params.name_constraints = None;
        let certificate = params.self_signed(&key).unwrap();
        let (_, authority) = X509Certificate::from_der(certificate.der()).unwrap();
        assert!(!has_any(&authority) && permits(&authority, "example.com"));
    }
}
