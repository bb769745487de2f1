//! The section `tls.acme`: certificates ordered over ACME.

use std::net::IpAddr;
use std::path::Path;

use url::Url;

use super::reader::{Parsed, Section};
use super::values::{Value, host_name, list, path, problem, wrong_text};
use super::{Acme, Hosts};

/// The directory of Let's Encrypt.
const DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// Maximum number of names: Let's Encrypt's own limit for one certificate.
const DOMAINS_MAX: usize = 100;
/// Maximum number of mail addresses.
const CONTACT_MAX: usize = 10;

/// Reads the section. If `domains` is absent, the list is empty; [`public_names`] later provides
/// the names.
pub(super) fn acme(section: &mut Section<'_>, folder: &Path, data_dir: &Path) -> Acme {
    let directory = section.get("directory", DIRECTORY.to_owned(), directory);
    let directory_ca = section.optional("directory_ca", path(folder));
    let contact = section.get("contact", Vec::new(), at_most(CONTACT_MAX, list(mail_address)));
    let domains = section.optional("domains", at_most(DOMAINS_MAX, list(domain)));
    let cache = section.optional("cache", path(folder)).unwrap_or_else(|| data_dir.join("acme"));
    Acme { directory, directory_ca, contact, domains: domains.unwrap_or_default(), cache }
}

/// Returns the hosts' public names that an authority can validate.
pub(super) fn public_names(hosts: &Hosts) -> Vec<String> {
    let mut names = Vec::new();
    for (_, host) in hosts.named() {
        let url = Url::parse(&host.public_url).ok();
        let name = url.as_ref().and_then(Url::domain).unwrap_or_default().to_ascii_lowercase();
        if name.contains('.') && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn at_most<T>(
    limit: usize,
    parse: impl Fn(&Value<'_>) -> Parsed<Vec<T>>,
) -> impl Fn(&Value<'_>) -> Parsed<Vec<T>> {
    move |value| {
        let all = parse(value)?;
        if all.len() > limit {
            return Err(problem(value, format!("expected at most {limit}, found {}", all.len())));
        }
        Ok(all)
    }
}

/// Parses the URL of a directory. The URL may have a query, because some authorities use the query
/// to distinguish directories.
fn directory(value: &Value<'_>) -> Parsed<String> {
    let text = value.get_ref().as_str().unwrap_or_default();
    let is_good = Url::parse(text).is_ok_and(|url| {
        url.scheme() == "https"
            && url.host().is_some()
            && url.username().is_empty()
            && url.password().is_none()
            && url.fragment().is_none()
    });
    if is_good {
        return Ok(text.to_owned());
    }
    Err(wrong_text(
        value,
        "an https URL such as \"https://acme-v02.api.letsencrypt.org/directory\"",
    ))
}

fn mail_address(value: &Value<'_>) -> Parsed<String> {
    let text = value.get_ref().as_str().unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b",?&%<>\"\\".contains(&byte);
    let parts = text.split_once('@').filter(|(user, host)| {
        !user.is_empty() && !host.is_empty() && !host.contains('@') && text.len() <= 254
    });
    if parts.is_some() && text.bytes().all(is_plain) {
        return Ok(text.to_owned());
    }
    Err(wrong_text(value, "a mail address such as \"admin@example.com\""))
}

fn domain(value: &Value<'_>) -> Parsed<String> {
    let expected = "a DNS name such as \"ai.example.com\"";
    let name = host_name(value).map_err(|_other_text| wrong_text(value, expected))?;
    if name.starts_with("*.") {
        let message = format!(
            "expected {expected}, found {name:?}: TLS-ALPN-01 cannot prove a wildcard; list each name"
        );
        return Err(problem(value, message));
    }
    if name.parse::<IpAddr>().is_ok() {
        return Err(wrong_text(value, expected));
    }
    Ok(name.to_ascii_lowercase())
}
