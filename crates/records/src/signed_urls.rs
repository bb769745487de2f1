//! Signed URLs, or links: URLs that give access to one resource of one organization without a key,
//! for browsers and for recipients of an output.
//!
//! A link's token is bound to its path, contains the organization, the key that created the link
//! and the expiry, and is authenticated with the service's own key file. The store has no record of
//! a link. A link becomes invalid when its resource is deleted, when the link expires, and when its
//! key is deleted or expires: deleting a key revokes all links created with it. A link that a
//! member creates in the dashboard contains the member's ID instead of a key's, and becomes invalid
//! when the member is removed.
//!
//! Outputs are stored with links that have no host. [`SignedUrls::render`] adds the current
//! `public_url` when an output is read. URLs that were stored with a previous `public_url` are
//! recognized by their token.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::value::RawValue;

use orrery_domain::ids::{Id, KeyId, OrganizationId};
use orrery_domain::time::Timestamp;
use orrery_runtime::Clock;
use orrery_storage::{self as storage, Sealer};

/// The query parameter with the token.
pub const PARAMETER: &str = "token";
/// The part of a file's path before the file's ID; `FILE_END` is the part after the ID.
const FILE_START: &str = "/v1/files/";
const FILE_END: &str = "/content";
/// Length of an ID as text.
const ID_CHARS: usize = 36;
/// The version of the token format: version, organization, key, expiry, authentication code.
const VERSION: u8 = 2;
const HEAD_BYTES: usize = 1 + 16 + 16 + 8;

/// The key that authorizes a link, and its expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    pub organization: OrganizationId,
    /// The key that created the link.
    pub key: KeyId,
    pub expires_at: Timestamp,
}

/// A future that returns whether a key is valid.
pub type KeyLookup<'a> = Pin<Box<dyn Future<Output = Result<bool, storage::Error>> + Send + 'a>>;

/// Looks up whether keys are valid.
pub trait Keys: Send + Sync {
    /// Returns whether the organization still has this key and the key has not expired.
    fn is_live(&self, organization: OrganizationId, key: KeyId) -> KeyLookup<'_>;
}

/// Creates and checks links.
#[derive(Clone)]
pub struct SignedUrls {
    sealer: Sealer,
    clock: Clock,
    keys: Arc<dyn Keys>,
    /// The public URL of the base host, without a trailing slash.
    base: String,
}

impl fmt::Debug for SignedUrls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignedUrls").field("base", &self.base).finish_non_exhaustive()
    }
}

impl SignedUrls {
    /// Creates links whose URLs start with `base`: the public URL of the base host, without a
    /// trailing slash.
    #[must_use]
    pub const fn new(sealer: Sealer, clock: Clock, keys: Arc<dyn Keys>, base: String) -> Self {
        Self { sealer, clock, keys, base }
    }

    /// Returns the public URL of the base host, without a trailing slash.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Returns a URL that gives access to `path` on the base host.
    #[must_use]
    pub fn url(&self, link: Link, path: &str) -> String {
        self.below(&self.base, link, path)
    }

    /// Returns the URL without the host, in the form in which it is stored.
    #[must_use]
    pub fn relative(&self, link: Link, path: &str) -> String {
        self.below("", link, path)
    }

    fn below(&self, base: &str, link: Link, path: &str) -> String {
        let head = head(link);
        let mac = self.sealer.mac(&signed(&head, path));
        let token = URL_SAFE_NO_PAD.encode([&head[..], &mac].concat());
        [base, path, "?", PARAMETER, "=", &token].concat()
    }

    /// Returns the same URL, signed again for another key or member, with the same expiry. A URL
    /// that is not a link is returned unchanged.
    #[must_use]
    pub fn made_again(&self, url: &str, by: impl FnOnce(Timestamp) -> Link) -> String {
        let link = self.split(url).and_then(|(path, token)| {
            let link = self.genuine(path, token)?;
            Some(self.url(by(link.expires_at), path))
        });
        link.unwrap_or_else(|| url.to_owned())
    }

    /// Returns the link in `token`, if it is currently valid for `path`.
    ///
    /// # Errors
    /// [`storage::Error`] when the link's key cannot be looked up.
    pub async fn check(&self, path: &str, token: &str) -> Result<Option<Link>, storage::Error> {
        let Some(link) = self.genuine(path, token) else { return Ok(None) };
        if link.expires_at <= self.clock.now() {
            return Ok(None);
        }
        let is_live = self.keys.is_live(link.organization, link.key).await?;
        Ok(is_live.then_some(link))
    }

    /// Returns the link in `token`, if it was valid for `path` but has expired.
    #[must_use]
    pub fn lapsed(&self, path: &str, token: &str) -> Option<Link> {
        self.genuine(path, token).filter(|link| link.expires_at <= self.clock.now())
    }

    /// Returns the path and organization of `url`, if the URL is one of the service's own links and
    /// still valid.
    ///
    /// # Errors
    /// As [`SignedUrls::check`].
    pub async fn parse<'a>(
        &self,
        url: &'a str,
    ) -> Result<Option<(&'a str, OrganizationId)>, storage::Error> {
        let Some((path, token)) = self.split(url) else { return Ok(None) };
        Ok(self.check(path, token).await?.map(|link| (path, link.organization)))
    }

    /// Returns the JSON text of an output in which every link to this organization's files has the
    /// current base URL. The base URL is added to links that are a complete JSON string, and
    /// replaces the previous base URL in links that contain a base URL. All other bytes stay
    /// unchanged.
    #[must_use]
    pub fn render(&self, organization: OrganizationId, output: Box<RawValue>) -> Box<RawValue> {
        let text = output.get();
        let mut rendered = String::new();
        let mut done = 0;
        while let Some(found) = find_link(text, done) {
            let is_ours = found.token.is_some_and(|token| {
                let link = self.genuine(found.path, token);
                link.is_some_and(|link| link.organization == organization)
            });
            let has_host = found.start < found.path_at;
            if is_ours && (has_host || is_whole_string(text, found.start, found.end)) {
                rendered.push_str(text.get(done..found.start).unwrap_or_default());
                rendered.push_str(&self.base);
                rendered.push_str(text.get(found.path_at..found.end).unwrap_or_default());
            } else {
                rendered.push_str(text.get(done..found.end).unwrap_or_default());
            }
            done = found.end;
        }
        if done == 0 {
            return output;
        }
        rendered.push_str(text.get(done..).unwrap_or_default());
        // A URL needs no escaping in JSON. If the result is not valid JSON nevertheless, the stored
        // output is returned unchanged.
        RawValue::from_string(rendered).unwrap_or(output)
    }

    fn split<'a>(&self, url: &'a str) -> Option<(&'a str, &'a str)> {
        // The token proves the organization. The host is not checked, because `public_url` may have
        // changed since the link was created.
        if let Some(found) = find_link(url, 0)
            && (found.start, found.end) == (0, url.len())
            && found.path_at > 0
        {
            return Some((found.path, found.token?));
        }
        let (path, query) = url.strip_prefix(&self.base)?.split_once('?')?;
        Some((path, query.strip_prefix(PARAMETER)?.strip_prefix('=')?))
    }

    /// Returns the link in a token that this service created for `path`. For wrong tokens of the
    /// right length, the check takes constant time.
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

/// A link to a file that was found in a string.
struct Found<'a> {
    /// The start of the URL: its scheme or, without a scheme, its path.
    start: usize,
    path_at: usize,
    end: usize,
    path: &'a str,
    token: Option<&'a str>,
}

/// Finds the first path of a file in `text`, starting the search at `from`.
fn find_link(text: &str, from: usize) -> Option<Found<'_>> {
    let mut search = from;
    loop {
        let path_at = search + text.get(search..)?.find(FILE_START)?;
        search = path_at + FILE_START.len();
        let end = search + ID_CHARS + FILE_END.len();
        let Some(path) = text.get(path_at..end) else { continue };
        let id = text.get(search..search + ID_CHARS)?;
        if !path.ends_with(FILE_END) || uuid::Uuid::try_parse(id).is_err() {
            continue;
        }
        let query =
            text.get(end..)?.strip_prefix('?').and_then(|rest| rest.strip_prefix(PARAMETER));
        let token = query.and_then(|rest| rest.strip_prefix('=')).map(|rest| {
            let is_base64 = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            rest.get(..rest.find(|c| !is_base64(c)).unwrap_or(rest.len())).unwrap_or_default()
        });
        let Some(token) = token else {
            return Some(Found { start: path_at, path_at, end, path, token: None });
        };
        let end = end + 1 + PARAMETER.len() + 1 + token.len();
        let start = start_of_url(text, from, path_at);
        return Some(Found { start, path_at, end, path, token: Some(token) });
    }
}

/// Returns the start of the URL whose path starts at `path`: the position of its scheme or, without
/// a scheme, of its path.
fn start_of_url(text: &str, from: usize, path: usize) -> usize {
    let before = text.get(from..path).unwrap_or_default();
    let is_part = |c: char| !c.is_whitespace() && !matches!(c, '"' | '\\' | '<' | '>');
    let begins = |scheme: &str| {
        let at = before.rfind(scheme)?;
        before.get(at..)?.chars().all(is_part).then_some(from + at)
    };
    begins("https://").max(begins("http://")).unwrap_or(path)
}

/// Returns whether the range is the entire contents of a JSON string.
fn is_whole_string(text: &str, start: usize, end: usize) -> bool {
    let before = text.get(..start).unwrap_or_default();
    let after = text.get(end..).unwrap_or_default();
    before.ends_with('"') && !before.ends_with("\\\"") && after.starts_with('"')
}

fn head(link: Link) -> Vec<u8> {
    let Link { organization, key, expires_at } = link;
    let expiry = expires_at.micros().to_be_bytes();
    [&[VERSION][..], &organization.bytes(), &key.bytes(), &expiry].concat()
}

fn signed(head: &[u8], path: &str) -> Vec<u8> {
    [b"link\0", head, path.as_bytes()].concat()
}

/// Treats every key as valid, for tests of linked resources.
#[cfg(any(test, feature = "test-support"))]
#[derive(Debug)]
pub struct AllKeysLive;

#[cfg(any(test, feature = "test-support"))]
impl Keys for AllKeysLive {
    fn is_live(&self, _organization: OrganizationId, _key: KeyId) -> KeyLookup<'_> {
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
        fn is_live(&self, _organization: OrganizationId, key: KeyId) -> KeyLookup<'_> {
            Box::pin(std::future::ready(Ok(key == self.0)))
        }
    }

    fn urls(clock: &Clock, folder: &std::path::Path) -> SignedUrls {
        let keys = Arc::new(Only(KeyId::from([1; 16])));
        SignedUrls::new(Sealer::open(folder).unwrap(), clock.clone(), keys, "http://h".to_owned())
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
    async fn signed_url_opens_only_its_own_path_and_organization() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::scripted(Timestamp::from_micros(0));
        let urls = urls(&clock, folder.path());
        let mine = link(7, 1);
        let url = urls.url(mine, PATH);
        assert!(url.starts_with("http://h/v1/files/a/content?token="));
        let token_of_mine = token(&url);
        assert_eq!(urls.check(PATH, token_of_mine).await.unwrap(), Some(mine));
        let slash = format!("{PATH}/");
        assert_eq!(urls.check(&slash, token_of_mine).await.unwrap(), Some(mine));
        assert_eq!(urls.parse(&url).await.unwrap(), Some((PATH, mine.organization)));
        assert_eq!(urls.parse("http://other/v1/files/a/content").await.unwrap(), None);
        assert_eq!(urls.check("/v1/files/b/content", token_of_mine).await.unwrap(), None);
        let other = urls.url(link(8, 1), PATH);
        let mixed = format!("{}{}", &token(&other)[..40], &token_of_mine[40..]);
        for wrong in ["", "AAAA", "é", &token_of_mine[1..], &mixed] {
            assert_eq!(urls.check(PATH, wrong).await.unwrap(), None, "{wrong}");
        }
        let elsewhere = tempfile::tempdir().unwrap();
        let foreign = self::urls(&clock, elsewhere.path());
        assert_eq!(foreign.check(PATH, token_of_mine).await.unwrap(), None);
    }

    #[tokio::test]
    async fn signed_url_ends_with_its_expiry_or_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::scripted(Timestamp::from_micros(0));
        let urls = urls(&clock, folder.path());
        let dead = urls.url(link(7, 2), PATH);
        assert_eq!(urls.check(PATH, token(&dead)).await.unwrap(), None, "its key is deleted");
        let url = urls.url(link(7, 1), PATH);
        clock.advance(Duration::from_secs(59));
        assert!(urls.check(PATH, token(&url)).await.unwrap().is_some());
        clock.advance(Duration::from_secs(1));
        assert_eq!(urls.check(PATH, token(&url)).await.unwrap(), None, "it has expired");
        assert_eq!(urls.parse(&url).await.unwrap(), None);
    }
    const FILE: &str = "/v1/files/0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e/content";

    /// Returns the links of one service before and after a change to `public_url`.
    fn moved(clock: &Clock, folder: &std::path::Path) -> (SignedUrls, SignedUrls) {
        let at = |base: &str| SignedUrls { base: base.to_owned(), ..urls(clock, folder) };
        (at("http://old:8080/below"), at("https://new.lan"))
    }

    #[tokio::test]
    async fn signed_url_of_earlier_public_url_is_recognized() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::scripted(Timestamp::from_micros(0));
        let (old, new) = moved(&clock, folder.path());
        let mine = link(7, 1);
        let url = old.url(mine, FILE);
        assert_eq!(new.parse(&url).await.unwrap(), Some((FILE, mine.organization)));
        let relative = old.relative(mine, FILE);
        for foreign in [relative, format!("http://x{FILE}"), format!("{url}x"), format!("x {url}")]
        {
            assert_eq!(new.parse(&foreign).await.unwrap(), None, "{foreign}");
        }
    }

    #[test]
    fn signed_url_render_rebases_only_own_links() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::scripted(Timestamp::from_micros(0));
        let (old, new) = moved(&clock, folder.path());
        let mine = link(7, 1);
        let stored = old.relative(mine, FILE);
        let before = old.url(mine, FILE);
        let now = new.url(mine, FILE);
        let other = old.url(link(8, 1), FILE);
        for (text, shown) in [
            (format!(r#""{stored}""#), format!(r#""{now}""#)),
            (format!(r#"["{stored}", "{before}",1.50]"#), format!(r#"["{now}", "{now}",1.50]"#)),
            (format!(r#""see {before}, {before}""#), format!(r#""see {now}, {now}""#)),
            (format!(r#""\"{before}\"""#), format!(r#""\"{now}\"""#)),
            (format!(r#""http://x/?u={before}""#), format!(r#""http://x/?u={now}""#)),
        ] {
            let text = RawValue::from_string(text).unwrap();
            assert_eq!(new.render(mine.organization, text).get(), shown);
        }
        for stays in [
            format!(r#""see {stored}""#),
            format!(r#""\"{stored}\"""#),
            format!(r#""{FILE}""#),
            format!(r#""http://else{FILE}""#),
            format!(r#""http://else{FILE}?token=AAAA""#),
            format!(r#""{other}""#),
            r#""/v1/files/usage and /v1/files/""#.to_owned(),
            r#"{"é":"/v1/files/é"}"#.to_owned(),
        ] {
            let text = RawValue::from_string(stays.clone()).unwrap();
            assert_eq!(new.render(mine.organization, text).get(), stays);
        }
    }
}
