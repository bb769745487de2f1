//! Links: URLs that open one thing of one organization without its key, for browsers and for whoever
//! an output is passed on to.
//!
//! A link's token is bound to the path that it stands behind and names the organization; nobody can
//! make one without the service's own key file. Nothing of it is stored: a link ends with what it
//! opens.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::domain::ids::{Id, OrganizationId};
use crate::storage::Sealer;

/// The query parameter that carries the token.
pub const PARAMETER: &str = "token";

/// Makes links and checks them.
#[derive(Clone)]
pub struct Links {
    sealer: Sealer,
    /// Where clients reach the base host, without a slash at its end.
    base: String,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("base", &self.base).finish_non_exhaustive()
    }
}

impl Links {
    /// Links below `base`, the URL of the base host without a slash at its end.
    #[must_use]
    pub const fn new(sealer: Sealer, base: String) -> Self {
        Self { sealer, base }
    }

    /// The URL that opens `path` of the base host in the name of the organization.
    #[must_use]
    pub fn url(&self, organization: OrganizationId, path: &str) -> String {
        let organization = organization.bytes();
        let mac = self.sealer.mac(&signed(&organization, path));
        let token = URL_SAFE_NO_PAD.encode([&organization[..], &mac].concat());
        format!("{}{path}?{PARAMETER}={token}", self.base)
    }

    /// The organization in whose name `token` opens `path`, if it does. Takes the same time for
    /// every wrong token of the right length.
    #[must_use]
    pub fn check(&self, path: &str, token: &str) -> Option<OrganizationId> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (organization, mac) = bytes.split_first_chunk::<16>()?;
        let path = path.strip_suffix('/').unwrap_or(path);
        let is_genuine = self.sealer.check_mac(&signed(organization, path), mac);
        is_genuine.then(|| OrganizationId::from(*organization))
    }

    /// The path of one of our own links, if `url` is one and genuine, and its organization.
    #[must_use]
    pub fn parse<'a>(&self, url: &'a str) -> Option<(&'a str, OrganizationId)> {
        let (path, query) = url.strip_prefix(&self.base)?.split_once('?')?;
        let token = query.strip_prefix(PARAMETER)?.strip_prefix('=')?;
        Some((path, self.check(path, token)?))
    }
}

fn signed(organization: &[u8; 16], path: &str) -> Vec<u8> {
    [b"link\0", &organization[..], path.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_opens_its_own_path_for_its_own_organization() {
        let folder = tempfile::tempdir().unwrap();
        let links = Links::new(Sealer::open(folder.path()).unwrap(), "http://h".to_owned());
        let organization = OrganizationId::from([7; 16]);
        let url = links.url(organization, "/v1/files/a/content");
        let (start, token) = url.split_once("?token=").unwrap();
        assert_eq!(start, "http://h/v1/files/a/content");
        assert_eq!(links.check("/v1/files/a/content", token), Some(organization));
        assert_eq!(links.check("/v1/files/a/content/", token), Some(organization));
        assert_eq!(links.parse(&url), Some(("/v1/files/a/content", organization)));
        assert_eq!(links.parse("http://other/v1/files/a/content"), None);
        assert_eq!(links.check("/v1/files/b/content", token), None);
        let other = links.url(OrganizationId::from([8; 16]), "/v1/files/a/content");
        let other = other.split_once("?token=").unwrap().1;
        let mixed = format!("{}{}", &other[..21], &token[21..]);
        for wrong in ["", "AAAA", "é", &token[1..], &mixed] {
            assert_eq!(links.check("/v1/files/a/content", wrong), None, "{wrong}");
        }
        let elsewhere = tempfile::tempdir().unwrap();
        let foreign = Links::new(Sealer::open(elsewhere.path()).unwrap(), "http://h".to_owned());
        assert_eq!(foreign.check("/v1/files/a/content", token), None);
    }
}
