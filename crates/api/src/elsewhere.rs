//! Adds hints to the 404 for requests to the wrong host or path: the error names the host that
//! serves the path, or a similar path. Hints contain only routes from a host's OpenAPI document.

use std::sync::LazyLock;

use hyper::Method;
use serde::Serialize;

use super::doc::ErrorForm;
use super::{ROUTES, Role, Services};
use orrery_domain::spelling;
use orrery_http::router::{Outcome, Router};

/// The hosts whose routes hints may contain.
const NAMED: [Role; 4] = [Role::Base, Role::Workflows, Role::Flows, Role::Agent];

/// Maximum length, in bytes, of a path that gets a hint.
const HINTED_MAX: usize = 200;
/// Paths up to this length are not checked for misspellings.
const SHORT_MAX: usize = 8;

/// Requests from similar APIs, and the equivalents in this API.
const OF_OTHER_APIS: [(Method, &str, &str); 2] = [
    (
        Method::GET,
        "/v1/predictions",
        "GET /v1/prediction/{id} returns one prediction, GET /v2/executions?type=prediction lists \
         them; the base URL of Replicate's clients has /replicate before /v1",
    ),
    (
        Method::POST,
        "/v1/predictions",
        "POST /v1/prediction creates a prediction; the base URL of Replicate's clients has \
         /replicate before /v1",
    ),
];

/// The routers of the named hosts, whose values are the patterns of the routes.
static ROUTERS: LazyLock<Vec<(Role, Router<&'static str>)>> = LazyLock::new(|| {
    let router = |role: Role| {
        let mut router = Router::new();
        for route in ROUTES.iter().filter(|route| route.hosts.contains(&role)) {
            router.insert(route.method.clone(), route.path, route.path).ok()?;
        }
        Some((role, router))
    };
    NAMED.into_iter().filter_map(router).collect()
});

/// The `details` of the error.
#[derive(Debug, Serialize)]
struct Elsewhere<'a> {
    /// The host that serves this route, as named in the configuration.
    host: &'static str,
    /// The host's URL.
    url: &'a str,
}

/// Returns the error for a path that this host does not serve.
pub(crate) fn not_found(
    role: Role,
    method: &Method,
    path: &str,
    services: &Services,
) -> crate::Error {
    let error = crate::Error::not_found("not found");
    let is_public = match role {
        Role::Base | Role::Workflows | Role::Flows | Role::Agent | Role::Dashboard => true,
        Role::Ollama | Role::Metrics | Role::Control => false,
    };
    match serving(role, method, path).filter(|_| is_public) {
        Some(host) => {
            error.with_details(Elsewhere { host: host.as_str(), url: services.url_of(host) })
        }
        None if is_public => match of_other_api(role, method, path) {
            Some(hint) => error.with_hint(hint),
            None => error.with_near(nearby(role, method, path)),
        },
        None => error,
    }
}

/// Returns the equivalent of a request from a similar API, if known.
fn of_other_api(role: Role, method: &Method, path: &str) -> Option<&'static str> {
    let path = path.trim_end_matches('/');
    let is_it = |(other, asked, _): &&(Method, &str, &str)| other == method && *asked == path;
    OF_OTHER_APIS.iter().find(is_it).filter(|_| role == Role::Base).map(|(_, _, hint)| *hint)
}

/// Returns the error for a client of OpenAI's API whose base URL lacks `/v1`.
pub(crate) fn without_version(role: Role, method: &Method, path: &str) -> Option<crate::Error> {
    let (_, router) = ROUTERS.iter().find(|(one, _)| *one == role)?;
    let versioned = format!("/v1{path}");
    let Ok(Outcome::Found { value, .. }) = router.find(method, &versioned) else { return None };
    let is_open_ai = |route: &&super::Route| {
        let has_its_errors = route.doc.errors == ErrorForm::OpenAi || route.path == "/v1/models";
        route.path == *value && has_its_errors
    };
    ROUTES.iter().filter(|route| route.hosts.contains(&role)).find(is_open_ai)?;
    let message = format!("{path} is {versioned} here: the base URL of a client ends with /v1");
    Some(crate::Error::not_found(message))
}

/// Returns a similar path on this host: without double slashes, with the right prefix, with
/// corrected spelling, or with the missing beginning. Parameter segments stay unchanged.
fn nearby(role: Role, method: &Method, path: &str) -> Option<String> {
    if path.len() > HINTED_MAX {
        return None;
    }
    let (_, router) = ROUTERS.iter().find(|(one, _)| *one == role)?;
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let single = format!("/{}", parts.join("/"));
    let without_api = single.strip_prefix("/api").unwrap_or_default().to_owned();
    let meant = [single.clone(), format!("/v1{single}"), format!("/api/v1{single}"), without_api];
    let is_served = |meant: &String| meant != path && is_route_of(router, method, meant);
    let served = meant.into_iter().find(is_served);
    let of_host = || {
        let routes = ROUTES.iter().filter(|route| route.hosts.contains(&role));
        routes.filter(|route| route.method == *method).map(|route| route.path)
    };
    let whole = || {
        let keeps_all = |path: &&str| path.matches('/').count() >= parts.len();
        let known = of_host().filter(|path| !path.contains('{')).filter(keeps_all);
        spelling::nearest(&single, &known.collect::<Vec<_>>()).map(str::to_owned)
    };
    let corrected = |start: Start| of_host().find_map(|pattern| respelled(pattern, &parts, start));
    // Short paths are skipped, because they are similar to many other paths.
    let is_long = single.len() > SHORT_MAX;
    let guessed = || is_long.then(|| whole().or_else(|| corrected(Start::Missing))).flatten();
    served.or_else(|| corrected(Start::Given)).or_else(guessed)
}

/// Whether a path contains all segments of a route after the API's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Given,
    /// The path is only the end of a route, such as `/executions/7` for
    /// `/v1/workflows/executions/{execution}`.
    Missing,
}

/// Returns the path with the pattern's prefix, and with misspelled literal segments corrected to
/// the pattern's segments; `None` if the path and the pattern are too different. The other segments
/// are the pattern's parameters.
fn respelled(pattern: &str, parts: &[&str], start: Start) -> Option<String> {
    let is_parameter = |segment: &str| segment.starts_with('{');
    let segments: Vec<&str> = pattern.split('/').skip(1).collect();
    let given: Vec<&str> = parts.iter().copied().skip_while(|part| is_prefix(part)).collect();
    let (before, matched) = segments.split_at_checked(segments.len().checked_sub(given.len())?)?;
    let is_whole = before.iter().all(|segment| is_prefix(segment));
    let fits = match start {
        Start::Given => is_whole && is_distinct(pattern),
        Start::Missing => !is_whole && !before.iter().any(|segment| is_parameter(segment)),
    };
    let is_anchored =
        matched.first().is_some_and(|segment| start == Start::Given || !is_parameter(segment));
    if !fits || !is_anchored {
        return None;
    }
    let corrected = matched.iter().zip(given).map(|(segment, part)| {
        if is_parameter(segment) {
            return Some(part);
        }
        spelling::nearest(part, &[segment])
    });
    let corrected: Option<Vec<&str>> = before.iter().copied().map(Some).chain(corrected).collect();
    Some(format!("/{}", corrected?.join("/")))
}

/// Returns whether the router has a route for this path. A route that consists of parameters, such
/// as `/api/v1/{workflow}`, would match any word, so it counts only if the parameter is an id.
fn is_route_of(router: &Router<&'static str>, method: &Method, path: &str) -> bool {
    let Ok(Outcome::Found { value: pattern, .. }) = router.find(method, path) else { return false };
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    is_distinct(pattern) || last.parse::<uuid::Uuid>().is_ok()
}

/// Returns whether a segment belongs to the API's prefix.
fn is_prefix(segment: &str) -> bool {
    matches!(segment, "" | "api" | "v1" | "v2")
}

/// Returns whether a pattern has a literal segment after its prefix.
fn is_distinct(pattern: &str) -> bool {
    pattern == "/" || pattern.split('/').any(|one| !is_prefix(one) && !one.starts_with('{'))
}

/// Returns the first host other than `role` that has a route for this path.
fn serving(role: Role, method: &Method, path: &str) -> Option<Role> {
    let serves = |(other, router): &&(Role, Router<&'static str>)| {
        *other != role && is_route_of(router, method, path)
    };
    ROUTERS.iter().find(serves).map(|(role, _)| *role)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_below_a_base_url_without_version_is_explained() {
        for (method, path, is_explained) in [
            (Method::POST, "/chat/completions", true),
            (Method::POST, "/embeddings", true),
            (Method::GET, "/models", true),
            (Method::GET, "/chat/completions", false),
            (Method::GET, "/prediction/7", false),
            (Method::GET, "/nothing", false),
        ] {
            let error = without_version(Role::Base, &method, path);
            let message = error.map(|error| error.message.clone());
            let expected =
                format!("{path} is /v1{path} here: the base URL of a client ends with /v1");
            assert_eq!(message, is_explained.then_some(expected), "{method} {path}");
        }
        assert!(without_version(Role::Workflows, &Method::POST, "/chat/completions").is_none());
        assert!(of_other_api(Role::Base, &Method::GET, "/v1/predictions/").is_some());
        assert!(of_other_api(Role::Base, &Method::PUT, "/v1/predictions").is_none());
    }

    #[test]
    fn misspelled_path_of_this_host_is_suggested() {
        for (role, method, path, meant) in [
            (Role::Base, Method::GET, "//v1/models", Some("/v1/models")),
            (Role::Base, Method::POST, "/v1//chat/completions", Some("/v1/chat/completions")),
            (Role::Base, Method::POST, "/chat/completions", Some("/v1/chat/completions")),
            (Role::Base, Method::POST, "/v1/predictions", Some("/v1/prediction")),
            (Role::Agent, Method::POST, "//chat", Some("/chat")),
            (Role::Workflows, Method::GET, "/workflows", Some("/api/v1/workflows")),
            (Role::Workflows, Method::GET, "/api/v1/workflow", Some("/api/v1/workflows")),
            (Role::Base, Method::GET, "/api/v1/models", Some("/v1/models")),
            (Role::Base, Method::GET, "/v1/predictions/7", Some("/v1/prediction/7")),
            (Role::Base, Method::GET, "/v1/webhook/7", Some("/v1/webhooks/7")),
            (Role::Base, Method::DELETE, "/v1/file/7", Some("/v1/files/7")),
            (Role::Base, Method::POST, "/v1/predictions/7/cancel", Some("/v1/prediction/7/cancel")),
            (Role::Base, Method::POST, "/predictions", Some("/v1/prediction")),
            (Role::Base, Method::POST, "/api/v1/predictions", Some("/v1/prediction")),
            (Role::Base, Method::GET, "/predictions/7", Some("/v1/prediction/7")),
            (Role::Base, Method::POST, "/v1/completion", Some("/v1/completions")),
            (Role::Base, Method::GET, "/v1/execution/x", Some("/v1/workflows/executions/x")),
            (Role::Base, Method::GET, "/executions/x", Some("/v1/workflows/executions/x")),
            (Role::Base, Method::GET, "/v1/execution", Some("/v1/executions")),
            (
                Role::Base,
                Method::POST,
                "/v1/executions/x/cancle",
                Some("/v1/workflows/executions/x/cancel"),
            ),
            (Role::Workflows, Method::GET, "/v1/execution/x", Some("/api/v1/executions/x")),
            (Role::Flows, Method::GET, "/mood/execution/x", Some("/api/v1/mood/executions/x")),
            (Role::Base, Method::GET, "/v1/webhooks/7/attempts", None),
            (Role::Base, Method::GET, "/v1/limits/7", None),
            (Role::Base, Method::POST, "/test", None),
            (Role::Base, Method::GET, "/no/such/path", None),
            (Role::Base, Method::GET, "/v1/nothing/7", None),
            (Role::Base, Method::GET, "/x", None),
            (Role::Flows, Method::GET, "/x", None),
        ] {
            assert_eq!(nearby(role, &method, path).as_deref(), meant, "{path}");
        }
    }

    #[test]
    fn route_of_parameters_serves_only_ids() {
        let id = "/api/v1/0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e";
        assert_eq!(serving(Role::Base, &Method::GET, id), Some(Role::Flows));
        assert_eq!(serving(Role::Base, &Method::GET, "/api/v1/mood"), None);
    }

    #[test]
    fn path_of_another_host_is_found_by_method() {
        for (role, method, path, host) in [
            (Role::Base, Method::POST, "/api/v1/workflows", Some(Role::Workflows)),
            (Role::Workflows, Method::POST, "/v1/prediction", Some(Role::Base)),
            (Role::Base, Method::POST, "/mcp", Some(Role::Agent)),
            (Role::Workflows, Method::GET, "/v1/models/text-sentiment", Some(Role::Base)),
            (Role::Base, Method::GET, "/api/v1/models", None),
            (Role::Workflows, Method::GET, "/api/v1/workflow", None),
            (Role::Base, Method::GET, "/no/such/path", None),
            (Role::Base, Method::DELETE, "/mcp", None),
        ] {
            assert_eq!(serving(role, &method, path), host, "{path}");
        }
    }
}
