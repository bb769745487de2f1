//! Serves all public hosts on one port: the base host at the root, and each other host below a path
//! with its name.

use std::sync::Arc;

use hyper::header::{ACCEPT, HeaderValue, LOCATION, VARY};
use hyper::http::uri::{PathAndQuery, Uri};
use hyper::{Method, StatusCode};

use super::{HostService, Role, Services};
use orrery_http::server::{ResponseFuture, Service};
use orrery_http::{Body, Peer, response, router};

/// The path of the dashboard. Browsers that open the root are redirected there.
const DASHBOARD: &str = "/dashboard";
/// The hosts below the root, and their paths.
const BELOW: [(Role, &str); 4] = [
    (Role::Workflows, "/workflows"),
    (Role::Flows, "/flows"),
    (Role::Agent, "/agent"),
    (Role::Dashboard, DASHBOARD),
];

/// The service of a listener that serves every public host.
#[derive(Debug)]
pub struct OnePort {
    base: HostService,
    below: Vec<(&'static str, HostService)>,
}

impl OnePort {
    /// Creates the hosts. `is_encrypted` is whether the listener's connections use TLS.
    ///
    /// # Errors
    /// Returns an error when two routes conflict.
    pub fn new(services: &Arc<Services>, is_encrypted: bool) -> Result<Self, router::Error> {
        let host = |role| HostService::new(role, Arc::clone(services), is_encrypted);
        let below = BELOW.map(|(role, place)| Ok((place, host(role)?.below(place))));
        Ok(Self { base: host(Role::Base)?, below: below.into_iter().collect::<Result<_, _>>()? })
    }
}

impl Service for OnePort {
    fn call(&self, mut request: hyper::Request<Body>, peer: Peer) -> ResponseFuture {
        if is_browser_at_root(&request) {
            let mut answer = response::empty(StatusCode::FOUND);
            answer.headers_mut().insert(LOCATION, HeaderValue::from_static(DASHBOARD));
            answer.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
            return Box::pin(std::future::ready(answer));
        }
        for (place, host) in &self.below {
            if let Some(uri) = without_place(request.uri(), place) {
                *request.uri_mut() = uri;
                return host.call(request, peer);
            }
        }
        self.base.call(request, peer)
    }
}

/// Returns whether a browser has opened the root. Browsers request HTML; API clients do not.
fn is_browser_at_root(request: &hyper::Request<Body>) -> bool {
    let accepted = request.headers().get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    request.uri().path() == "/"
        && matches!(*request.method(), Method::GET | Method::HEAD)
        && accepted.any(|kinds| kinds.contains("text/html"))
}

/// Returns the URI without the prefix `place`; `None` if the path is not below `place`.
fn without_place(uri: &Uri, place: &str) -> Option<Uri> {
    let rest = uri.path_and_query()?.as_str().strip_prefix(place)?;
    let rest = match rest.bytes().next() {
        None | Some(b'?') => format!("/{rest}"),
        Some(b'/') => rest.to_owned(),
        Some(_) => return None,
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(rest).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_removed_from_paths_below_it() {
        for (uri, expected) in [
            ("/agent", Some("/")),
            ("/agent/", Some("/")),
            ("/agent?a=/agent", Some("/?a=/agent")),
            ("/agent/v1/models?limit=1", Some("/v1/models?limit=1")),
            ("/agent//chat", Some("//chat")),
            ("/agent/agent", Some("/agent")),
            ("http://box:8443/agent/chat", Some("http://box:8443/chat")),
            ("/agents", None),
            ("/agent%2Fchat", None),
            ("//agent/chat", None),
            ("/v1/agent", None),
            ("*", None),
        ] {
            let found = without_place(&uri.parse().unwrap(), "/agent").map(|uri| uri.to_string());
            assert_eq!(found.as_deref(), expected, "{uri}");
        }
    }

    #[test]
    fn only_browsers_at_the_root_are_sent_to_the_dashboard() {
        const BROWSER: &str = "text/html,application/xhtml+xml,*/*;q=0.8";
        for (method, path, accept, expected) in [
            (Method::GET, "/", Some(BROWSER), true),
            (Method::HEAD, "/?utm=1", Some(BROWSER), true),
            (Method::GET, "/", Some("*/*"), false),
            (Method::GET, "/", Some("application/json"), false),
            (Method::GET, "/", None, false),
            (Method::POST, "/", Some(BROWSER), false),
            (Method::GET, "/v1/models", Some(BROWSER), false),
        ] {
            let mut request = hyper::Request::builder().method(&method).uri(path);
            if let Some(accept) = accept {
                request = request.header(ACCEPT, accept);
            }
            let request = request.body(Body::default()).unwrap();
            assert_eq!(is_browser_at_root(&request), expected, "{method} {path} {accept:?}");
        }
    }
}
