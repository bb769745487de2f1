//! Protects the routes that a browser calls with a cookie: checks the host name and the origin of
//! the page, and sets the cookie.
//!
//! - Requests with a host name that is not the dashboard's are rejected. This prevents DNS
//!   rebinding.
//! - A request that changes data must come from a page of the same origin. A cookie with
//!   `SameSite=Strict` is not sufficient: the attribute ignores ports, and another program on this
//!   machine may also serve pages.

use hyper::StatusCode;
use hyper::header::{COOKIE, HOST, HeaderMap, HeaderValue, ORIGIN};
use hyper::http::uri::Authority;
use url::{Host, Url};

use super::{Role, Services};
use orrery_http::{Body, Request, media_type};

pub(crate) const SEC_FETCH_SITE: &str = "sec-fetch-site";
/// The cookies: of a session, and of a log-in through the identity provider.
const SESSION: &str = "session";
const LOG_IN: &str = "oidc";

/// The dashboard's site, as a request addresses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The host and port in the request.
    authority: String,
    is_encrypted: bool,
    /// The path prefix of the dashboard in the request, such as `/dashboard`; empty on the
    /// dashboard's own host.
    pub place: &'static str,
}

impl Site {
    /// Returns the site that a request addresses. `is_encrypted` states whether the connection uses
    /// TLS.
    ///
    /// # Errors
    /// 421 for a host name that is not the dashboard's.
    pub fn of(
        services: &Services,
        request: &hyper::Request<Body>,
        is_encrypted: bool,
    ) -> Result<Self, crate::Error> {
        let named = request.uri().authority().map(Authority::as_str);
        let header = || request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let authority = named.or_else(header).unwrap_or_default().to_ascii_lowercase();
        let public = Url::parse(services.url_of(Role::Dashboard)).ok();
        let public_name = public.as_ref().and_then(Url::host_str).unwrap_or_default();
        let is_known =
            match Url::parse(&format!("http://{authority}/")).ok().as_ref().and_then(Url::host) {
                // DNS rebinding does not apply to IP addresses.
                Some(Host::Ipv4(_) | Host::Ipv6(_)) => true,
                Some(Host::Domain(name)) => {
                    name == "localhost"
                        || name.ends_with(".localhost")
                        || name.eq_ignore_ascii_case(public_name)
                        || services.settings.names.iter().any(|one| one.eq_ignore_ascii_case(name))
                }
                None => false,
            };
        if !is_known {
            let message = "the dashboard is not served under this host name: open the address in \
                           `hosts.dashboard.public_url`, or set that key to the name you use";
            return Err(crate::Error::status(StatusCode::MISDIRECTED_REQUEST, message));
        }
        // If a reverse proxy terminates TLS, the public URL has the scheme `https`.
        let by_proxy = public.as_ref().is_some_and(|url| {
            url.scheme() == "https" && authority_of(url).eq_ignore_ascii_case(&authority)
        });
        Ok(Self { authority, is_encrypted: is_encrypted || by_proxy, place: "" })
    }

    /// Returns the same site, served below the path `place`.
    #[must_use]
    pub fn below(self, place: &'static str) -> Self {
        Self { place, ..self }
    }

    /// Returns the name of a cookie. Cookies ignore ports, so the name contains the port
    /// if the connection is not encrypted.
    fn cookie_name(&self, purpose: &str) -> String {
        if self.is_encrypted {
            return format!("__Host-orrery_{purpose}");
        }
        let port = self.authority.rsplit_once(':').map(|(_, port)| port);
        let port = port.filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
        format!("orrery_{purpose}_{}", port.unwrap_or("80"))
    }

    /// Returns the session token in the request's cookies.
    #[must_use]
    pub fn token<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        self.value(SESSION, headers)
    }

    /// Returns the log-in through the identity provider that this browser has begun.
    #[must_use]
    pub fn log_in<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        self.value(LOG_IN, headers)
    }

    fn value<'a>(&self, purpose: &str, headers: &'a HeaderMap) -> Option<&'a str> {
        let name = self.cookie_name(purpose);
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        cookies.flat_map(|cookies| cookies.split(';')).find_map(|cookie| {
            let (key, value) = cookie.trim().split_once('=')?;
            (key == name).then_some(value)
        })
    }

    /// Returns a cookie that stores a token for `seconds`; zero deletes the cookie.
    #[must_use]
    pub fn cookie(&self, token: &str, seconds: u64) -> Option<HeaderValue> {
        self.cookie_with(SESSION, token, "Strict", seconds)
    }

    /// Returns a cookie that stores a log-in through the identity provider for `seconds`. The
    /// browser must send it when the provider's page sends the person back.
    #[must_use]
    pub fn cookie_of_log_in(&self, sealed: &str, seconds: u64) -> Option<HeaderValue> {
        self.cookie_with(LOG_IN, sealed, "Lax", seconds)
    }

    fn cookie_with(
        &self,
        purpose: &str,
        value: &str,
        same_site: &str,
        seconds: u64,
    ) -> Option<HeaderValue> {
        let name = self.cookie_name(purpose);
        let secure = if self.is_encrypted { "; Secure" } else { "" };
        let cookie = format!(
            "{name}={value}; Path=/; HttpOnly; SameSite={same_site}; Max-Age={seconds}{secure}"
        );
        let mut value = HeaderValue::try_from(cookie).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// Rejects requests from pages of other sites. Reads are also allowed if they come from the
    /// address bar, or from programs that send no origin. Changes must come from a page of this
    /// origin.
    ///
    /// # Errors
    /// 403; 415 for a body that a form of another site could send.
    pub fn check_origin(&self, request: &Request, takes_files: bool) -> Result<(), crate::Error> {
        let site = request.headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes);
        if request.method.is_safe() {
            return match site {
                None | Some(b"same-origin" | b"none") => Ok(()),
                Some(_) => Err(refused()),
            };
        }
        let is_own = match (site, request.headers.get(ORIGIN)) {
            (Some(site), _) => site == b"same-origin",
            (None, Some(origin)) => self.is_origin(origin),
            (None, None) => false,
        };
        if !is_own {
            return Err(refused());
        }
        let is_json =
            media_type::of(&request.headers).is_some_and(|kind| kind.is("application/json"));
        if request.has_body() && !takes_files && !is_json {
            let message = "the request body must be application/json";
            return Err(crate::Error::status(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        Ok(())
    }

    fn is_origin(&self, origin: &HeaderValue) -> bool {
        let origin = origin.to_str().ok().and_then(|origin| Url::parse(origin).ok());
        origin.is_some_and(|origin| {
            let scheme = if self.is_encrypted { "https" } else { "http" };
            let authority =
                self.authority.trim_end_matches(if self.is_encrypted { ":443" } else { ":80" });
            origin.scheme() == scheme && authority_of(&origin).eq_ignore_ascii_case(authority)
        })
    }
}

fn refused() -> crate::Error {
    let message = "this request did not come from a page of the dashboard";
    crate::Error::status(StatusCode::FORBIDDEN, message)
}

/// Returns the host and port of a URL, without its scheme's default port.
fn authority_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}
