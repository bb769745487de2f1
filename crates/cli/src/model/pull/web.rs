//! Requests of a pull: redirects, credentials, and errors that say what to do.
//!
//! The operator chose the first host. A redirect to another host is checked by the rules in
//! `[egress]` and carries no credentials, and no redirect leads from https to http.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use tokio::time::timeout;
use url::{Origin, Url};

use super::Digest;
use orrery_config::secret::Secret;
use orrery_http::client::{self, Client};
use orrery_http::connector;
use orrery_http::egress::Policy;
use orrery_http::places::Arriving;

/// Maximum number of redirects of one request.
const REDIRECTS_MAX: usize = 10;
/// Maximum time without a byte.
const STALLED: Duration = Duration::from_secs(60);
/// The digest of a file on the hub, in the redirect to the file.
const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// A later attempt may succeed.
    #[error("{0}")]
    Transient(String),
    #[error("{0}")]
    Final(String),
}

/// A response, after all redirects.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Arriving,
    /// The digest that the first host states in a redirect.
    pub linked: Option<Digest>,
}

/// The client of one pull.
#[derive(Debug)]
pub(super) struct Web {
    /// The client for the operator's host, and the client for all other hosts.
    own: Client,
    others: Client,
    /// The origin of the operator's URL.
    origin: Option<Origin>,
    authorization: Option<HeaderValue>,
    /// Maximum time without a byte.
    pub stalled: Duration,
}

impl Web {
    /// Creates a client; `url` is the URL that the operator chose.
    pub(super) fn new(url: &str, token: Option<Secret>, policy: Policy) -> Self {
        let origin = Url::parse(url).ok().map(|url| url.origin());
        let authorization = token.and_then(|token| {
            let mut value = HeaderValue::try_from(format!("Bearer {}", token.expose())).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let (own, others) = (Client::trusted(), Client::guarded(policy));
        Self { own, others, origin, authorization, stalled: STALLED }
    }

    /// Sends a GET request and follows its redirects.
    pub(super) async fn get(
        &self,
        url: &Url,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<Answer, Error> {
        let mut url = url.clone();
        let mut linked = None;
        for _ in 0..=REDIRECTS_MAX {
            let is_own = self.origin.as_ref() == Some(&url.origin());
            let answer = self.send(&url, headers, is_own).await?;
            let location = answer.headers().get(LOCATION);
            let location = location.filter(|_| is_redirect(answer.status()));
            if is_own {
                linked = linked.or_else(|| linked_digest(answer.headers()));
            }
            let Some(location) = location else {
                let (head, body) = answer.into_parts();
                return Ok(Answer { status: head.status, headers: head.headers, body, linked });
            };
            url = target(&url, location)?;
        }
        Err(Error::Final(format!("{} leads through too many redirects", shown(&url))))
    }

    async fn send(
        &self,
        url: &Url,
        headers: &[(HeaderName, HeaderValue)],
        is_own: bool,
    ) -> Result<Response<Arriving>, Error> {
        let agent = concat!("orrery/", env!("CARGO_PKG_VERSION"));
        let mut request = Request::get(url.as_str()).header(USER_AGENT, agent);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(authorization) = self.authorization.as_ref().filter(|_| is_own) {
            request = request.header(AUTHORIZATION, authorization);
        }
        let invalid = |error| Error::Final(format!("{} cannot be requested: {error}", shown(url)));
        let request = request.body(Bytes::new()).map_err(invalid)?;
        let client = if is_own { &self.own } else { &self.others };
        let stalled = || Error::Transient(format!("{} does not answer", shown(url)));
        let answer =
            timeout(self.stalled, client.open(request)).await.map_err(|_elapsed| stalled())?;
        answer.map_err(|error| unanswered(url, &error))
    }

    /// Reads a small answer. `page` is the web page of the repository.
    pub(super) async fn read(&self, url: &Url, page: &str, most: usize) -> anyhow::Result<Bytes> {
        let mut answer = self.get(url, &[]).await?;
        if answer.status != StatusCode::OK {
            return Err(self.refused(answer.status, url, Some(page)).into());
        }
        let mut text = BytesMut::new();
        while let Some(piece) = self.next_piece(&mut answer.body).await? {
            if text.len().saturating_add(piece.len()) > most {
                anyhow::bail!("the answer of {} is larger than {most} bytes", shown(url));
            }
            text.extend_from_slice(&piece);
        }
        Ok(text.freeze())
    }

    /// Reads the next piece of a body; `None` at its end.
    pub(super) async fn next_piece(&self, body: &mut Arriving) -> Result<Option<Bytes>, Error> {
        loop {
            let stalled = || Error::Transient(format!("no byte arrived for {:?}", self.stalled));
            let frame = timeout(self.stalled, body.frame()).await;
            let Some(frame) = frame.map_err(|_elapsed| stalled())? else { return Ok(None) };
            let torn = |error| Error::Transient(format!("the connection broke: {error}"));
            if let Ok(piece) = frame.map_err(torn)?.into_data() {
                return Ok(Some(piece));
            }
        }
    }

    /// Returns the error for a response that is not a success.
    pub(super) fn refused(&self, status: StatusCode, url: &Url, page: Option<&str>) -> Error {
        let at = page.map_or_else(|| shown(url), str::to_owned);
        let message = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.authorization.is_some() => {
                format!(
                    "{at} refuses the token ({status}): open the page in a browser, accept the \
                     model's terms, and create a token that may read it"
                )
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => format!(
                "{at} is gated, private or does not exist ({status}): open the page in a browser \
                 and accept the model's terms, create a token that may read it, save the token in \
                 a file with mode 0600, and add --token-file FILE"
            ),
            StatusCode::NOT_FOUND => format!("{at} does not exist ({status})"),
            StatusCode::TOO_MANY_REQUESTS => {
                return Error::Transient(format!("{at} limits requests ({status}): try later"));
            }
            status if status.is_server_error() => {
                return Error::Transient(format!("{at} fails at the moment ({status})"));
            }
            status => format!("{at} answers {status}"),
        };
        Error::Final(message)
    }
}

const fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Returns the target of a redirect.
fn target(from: &Url, location: &HeaderValue) -> Result<Url, Error> {
    let wrong = |what: &str| Error::Final(format!("{} redirects to {what}", shown(from)));
    let location = location.to_str().ok().and_then(|location| from.join(location).ok());
    let target = location.ok_or_else(|| wrong("an invalid URL"))?;
    match (from.scheme(), target.scheme()) {
        (_, "https") | ("http", "http") => Ok(target),
        ("https", "http") => Err(wrong("an unencrypted URL, which is not followed")),
        _ => Err(wrong("a URL that is neither http nor https")),
    }
}

fn linked_digest(headers: &HeaderMap) -> Option<Digest> {
    let etag = headers.get(LINKED_ETAG)?.to_str().ok()?;
    etag.trim_matches('"').parse().ok()
}

/// Returns a URL without its query and credentials, which may be secret.
pub(super) fn shown(url: &Url) -> String {
    let origin = url.origin().ascii_serialization();
    format!("{origin}{}", url.path())
}

/// Returns the error for a request that got no response.
fn unanswered(url: &Url, error: &client::Error) -> Error {
    let forbidden = |detail: String| {
        format!("{}: {detail}; `egress.allow` in the configuration permits it", shown(url))
    };
    match error {
        client::Error::Connection(
            connector::Error::Forbidden(_) | connector::Error::LeadsAstray { .. },
        ) => Error::Final(forbidden(error.detail())),
        client::Error::Connection(_)
        | client::Error::Timeout { .. }
        | client::Error::TooLarge { .. }
        | client::Error::Protocol { .. }
        | client::Error::Content(_) => {
            Error::Transient(format!("{}: {}", shown(url), error.detail()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_encrypted_and_on_the_web() {
        for (from, location, expect) in [
            ("https://h/a", "/b", Ok("https://h/b")),
            ("https://h/a", "https://cdn/b?sig=1", Ok("https://cdn/b?sig=1")),
            ("http://h/a", "https://h/a", Ok("https://h/a")),
            ("http://h/a", "http://i/a", Ok("http://i/a")),
            ("https://h/a", "http://h/a", Err("unencrypted")),
            ("https://h/a", "file:///etc/passwd", Err("neither http")),
            ("https://h/a", "http://[", Err("invalid URL")),
        ] {
            let target = target(&Url::parse(from).unwrap(), &HeaderValue::from_static(location));
            match (target, expect) {
                (Ok(url), Ok(expect)) => assert_eq!(url.as_str(), expect),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (got, _) => panic!("{from} {location}: {got:?}"),
            }
        }
    }

    #[test]
    fn shown_url_has_no_secrets() {
        let url = Url::parse("https://me:secret@h:8443/a?token=secret#x").unwrap();
        assert_eq!(shown(&url), "https://h:8443/a");
    }

    #[test]
    fn linked_digest_is_a_sha256() {
        let digits = "ab".repeat(32);
        for (value, is_digest) in [(format!("\"{digits}\""), true), ("\"abc\"".to_owned(), false)] {
            let headers = HeaderMap::from_iter([(LINKED_ETAG, value.parse().unwrap())]);
            assert_eq!(linked_digest(&headers).is_some(), is_digest);
        }
    }
}
