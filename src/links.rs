//! Links: URLs that open one thing of one organization without its key, for browsers and for those
//! to whom an output is passed on.
//!
//! A link's token is bound to its path, names the organization and the key in whose name it was
//! made, and carries its expiry; nobody can make one without the service's own key file. Nothing of
//! it is stored. A link ends with what it opens, at its expiry, and when its key is deleted or
//! expires: deleting the key revokes every link that was made with it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::domain::ids::{Id, KeyId, OrganizationId};
use crate::domain::time::Timestamp;
use crate::runtime::Clock;
use crate::storage::{self, Sealer};

/// The query parameter that carries the token.
pub const PARAMETER: &str = "token";
/// The form of a token: the version, the organization, the key, the expiry, the authentication code.
const VERSION: u8 = 2;
const HEAD_BYTES: usize = 1 + 16 + 16 + 8;

/// In whose name a link opens, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    pub organization: OrganizationId,
    /// The key that it was made with.
    pub key: KeyId,
    pub expires_at: Timestamp,
}

/// An answer about a key, later.
pub type Finding<'a> = Pin<Box<dyn Future<Output = Result<bool, storage::Error>> + Send + 'a>>;

/// Who knows which keys are valid.
pub trait Keys: Send + Sync {
    /// Whether the organization has this key still, and it has not expired.
    fn is_live(&self, organization: OrganizationId, key: KeyId) -> Finding<'_>;
}

/// Makes links and checks them.
#[derive(Clone)]
pub struct Links {
    sealer: Sealer,
    clock: Clock,
    keys: Arc<dyn Keys>,
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
    pub const fn new(sealer: Sealer, clock: Clock, keys: Arc<dyn Keys>, base: String) -> Self {
        Self { sealer, clock, keys, base }
    }

    /// The URL that opens `path` of the base host.
    #[must_use]
    pub fn url(&self, link: Link, path: &str) -> String {
        let head = head(link);
        let mac = self.sealer.mac(&signed(&head, path));
        let token = URL_SAFE_NO_PAD.encode([&head[..], &mac].concat());
        format!("{}{path}?{PARAMETER}={token}", self.base)
    }

    /// The link behind `token`, if it opens `path` now.
    ///
    /// # Errors
    /// [`storage::Error`] when its key cannot be looked up.
    pub async fn check(&self, path: &str, token: &str) -> Result<Option<Link>, storage::Error> {
        let Some(link) = self.genuine(path, token) else { return Ok(None) };
        if link.expires_at <= self.clock.now() {
            return Ok(None);
        }
        let is_live = self.keys.is_live(link.organization, link.key).await?;
        Ok(is_live.then_some(link))
    }

    /// The path of one of our own links, if `url` is one and opens it now, and its organization.
    ///
    /// # Errors
    /// As [`Links::check`].
    pub async fn parse<'a>(
        &self,
        url: &'a str,
    ) -> Result<Option<(&'a str, OrganizationId)>, storage::Error> {
        let Some((path, token)) = self.split(url) else { return Ok(None) };
        Ok(self.check(path, token).await?.map(|link| (path, link.organization)))
    }

    fn split<'a>(&self, url: &'a str) -> Option<(&'a str, &'a str)> {
        let (path, query) = url.strip_prefix(&self.base)?.split_once('?')?;
        Some((path, query.strip_prefix(PARAMETER)?.strip_prefix('=')?))
    }

    /// The link behind a token that this service has made for `path`. Takes the same time for every
    /// wrong token of the right length.
    fn genuine(&self, path: &str, token: &str) -> Option<Link> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (head, mac) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let path = path.strip_suffix('/').unwrap_or(path);
        if !self.sealer.check_mac(&signed(head, path), mac) {
            return None;
        }
        let (version, rest) = head.split_first()?;
        let (organization, rest) = rest.split_first_chunk::<16>()?;
        let (key, rest) = rest.split_first_chunk::<16>()?;
        let micros = i64::from_be_bytes(rest.try_into().ok()?);
        (*version == VERSION).then(|| Link {
            organization: OrganizationId::from(*organization),
            key: KeyId::from(*key),
            expires_at: Timestamp::from_micros(micros),
        })
    }
}

fn head(link: Link) -> Vec<u8> {
    let Link { organization, key, expires_at } = link;
    let expiry = expires_at.micros().to_be_bytes();
    [&[VERSION][..], &organization.bytes(), &key.bytes(), &expiry].concat()
}

fn signed(head: &[u8], path: &str) -> Vec<u8> {
    [b"link\0", head, path.as_bytes()].concat()
}

/// Every key is valid: for tests of what links lead to.
#[cfg(test)]
#[derive(Debug)]
pub struct AllLive;

#[cfg(test)]
impl Keys for AllLive {
    fn is_live(&self, _organization: OrganizationId, _key: KeyId) -> Finding<'_> {
        Box::pin(std::future::ready(Ok(true)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PATH: &str = "/v1/files/a/content";

    struct Only(KeyId);

    impl Keys for Only {
        fn is_live(&self, _organization: OrganizationId, key: KeyId) -> Finding<'_> {
            Box::pin(std::future::ready(Ok(key == self.0)))
        }
    }

    fn links(clock: &Clock, folder: &std::path::Path) -> Links {
        let keys = Arc::new(Only(KeyId::from([1; 16])));
        Links::new(Sealer::open(folder).unwrap(), clock.clone(), keys, "http://h".to_owned())
    }

    fn link(organization: u8, key: u8) -> Link {
        Link {
            organization: OrganizationId::from([organization; 16]),
            key: KeyId::from([key; 16]),
            expires_at: Timestamp::from_micros(60_000_000),
        }
    }

    fn token(url: &str) -> &str {
        url.split_once("?token=").unwrap().1
    }

    #[tokio::test]
    async fn a_link_opens_its_own_path_for_its_own_organization() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::scripted(Timestamp::from_micros(0));
        let links = links(&clock, folder.path());
        let mine = link(7, 1);
        let url = links.url(mine, PATH);
        assert!(url.starts_with("http://h/v1/files/a/content?token="));
        let token_of_mine = token(&url);
        assert_eq!(links.check(PATH, token_of_mine).await.unwrap(), Some(mine));
        let slash = format!("{PATH}/");
        assert_eq!(links.check(&slash, token_of_mine).await.unwrap(), Some(mine));
        assert_eq!(links.parse(&url).await.unwrap(), Some((PATH, mine.organization)));
        assert_eq!(links.parse("http://other/v1/files/a/content").await.unwrap(), None);
        assert_eq!(links.check("/v1/files/b/content", token_of_mine).await.unwrap(), None);
        let other = links.url(link(8, 1), PATH);
        let mixed = format!("{}{}", &token(&other)[..40], &token_of_mine[40..]);
        for wrong in ["", "AAAA", "é", &token_of_mine[1..], &mixed] {
            assert_eq!(links.check(PATH, wrong).await.unwrap(), None, "{wrong}");
        }
        let elsewhere = tempfile::tempdir().unwrap();
        let foreign = self::links(&clock, elsewhere.path());
        assert_eq!(foreign.check(PATH, token_of_mine).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_link_ends_at_its_expiry_and_with_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::scripted(Timestamp::from_micros(0));
        let links = links(&clock, folder.path());
        let dead = links.url(link(7, 2), PATH);
        assert_eq!(links.check(PATH, token(&dead)).await.unwrap(), None, "its key is deleted");
        let url = links.url(link(7, 1), PATH);
        clock.advance(Duration::from_secs(59));
        assert!(links.check(PATH, token(&url)).await.unwrap().is_some());
        clock.advance(Duration::from_secs(1));
        assert_eq!(links.check(PATH, token(&url)).await.unwrap(), None, "it has expired");
        assert_eq!(links.parse(&url).await.unwrap(), None);
    }
}
