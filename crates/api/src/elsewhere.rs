//! Hints for requests to the wrong host or path: the 404 names the host that serves the path. Only
//! routes in a host's OpenAPI document are named.

use std::sync::LazyLock;

use hyper::Method;
use serde::Serialize;

use super::{ROUTES, Role, Services};
use orrery_domain::spelling;
use orrery_http::router::{Outcome, Router};

/// The hosts whose routes may be named.
const NAMED: [Role; 4] = [Role::Base, Role::Workflows, Role::Flows, Role::Agent];

/// Maximum length, in bytes, of a path that gets a hint.
const HINTED_MAX: usize = 200;
/// Paths up to this length are not checked for misspellings.
const SHORT_MAX: usize = 8;

static ROUTERS: LazyLock<Vec<(Role, Router<()>)>> = LazyLock::new(|| {
    let router = |role: Role| {
        let mut router = Router::new();
        for route in ROUTES.iter().filter(|route| route.hosts.contains(&role)) {
            router.insert(route.method.clone(), route.path, ()).ok()?;
        }
        Some((role, router))
    };
    NAMED.into_iter().filter_map(router).collect()
});

/// The `details` of the error.
#[derive(Debug, Serialize)]
struct Elsewhere<'a> {
    /// The host that serves this route, by its name in the configuration.
    host: &'static str,
    /// The host's URL.
    url: &'a str,
}

/// Returns the error for a path that this host does not serve.
pub fn not_found(role: Role, method: &Method, path: &str, services: &Services) -> crate::Error {
    let error = crate::Error::not_found("not found");
    let is_public = match role {
        Role::Base | Role::Workflows | Role::Flows | Role::Agent | Role::Dashboard => true,
        Role::Metrics | Role::Control => false,
    };
    match serving(role, method, path).filter(|_| is_public) {
        Some(host) => {
            error.with_details(Elsewhere { host: host.as_str(), url: services.url_of(host) })
        }
        None if is_public => match nearby(role, method, path) {
            Some(path) => error.with_hint(format!("did you mean {path}?")),
            None => error,
        },
        None => error,
    }
}

/// Returns a similar path of this host: without doubled slashes, with the version prefix, or with
/// corrected spelling.
fn nearby(role: Role, method: &Method, path: &str) -> Option<String> {
    if path.len() > HINTED_MAX {
        return None;
    }
    let (_, router) = ROUTERS.iter().find(|(one, _)| *one == role)?;
    let is_served = |path: &String| matches!(router.find(method, path), Ok(Outcome::Found { .. }));
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let single = format!("/{}", parts.join("/"));
    let mut meant = vec![format!("/v1{single}")];
    if single != path {
        meant.insert(0, single.clone());
    }
    meant.into_iter().find(is_served).or_else(|| {
        let of_host = ROUTES.iter().filter(|route| route.hosts.contains(&role));
        let same_method = of_host.filter(|route| route.method == *method);
        let known: Vec<&str> =
            same_method.map(|route| route.path).filter(|path| !path.contains('{')).collect();
        // Short paths are skipped, because each is similar to many other paths.
        let near = spelling::nearest(&single, &known).filter(|_| single.len() > SHORT_MAX);
        near.map(str::to_owned)
    })
}

/// Returns the first host other than `role` that has a route for this path.
fn serving(role: Role, method: &Method, path: &str) -> Option<Role> {
    let serves = |(other, router): &&(Role, Router<()>)| {
        *other != role && matches!(router.find(method, path), Ok(Outcome::Found { .. }))
    };
    ROUTERS.iter().find(serves).map(|(role, _)| *role)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_path_of_this_host_is_suggested() {
        for (role, method, path, meant) in [
            (Role::Base, Method::GET, "//v1/models", Some("/v1/models")),
            (Role::Base, Method::POST, "/v1//chat/completions", Some("/v1/chat/completions")),
            (Role::Base, Method::POST, "/chat/completions", Some("/v1/chat/completions")),
            (Role::Base, Method::POST, "/v1/predictions", Some("/v1/prediction")),
            (Role::Agent, Method::POST, "//chat", Some("/chat")),
            (Role::Base, Method::GET, "/no/such/path", None),
            (Role::Base, Method::GET, "/x", None),
        ] {
            assert_eq!(nearby(role, &method, path).as_deref(), meant, "{path}");
        }
    }

    #[test]
    fn path_of_another_host_is_found_by_method() {
        for (role, method, path, host) in [
            (Role::Base, Method::POST, "/api/v1/workflows", Some(Role::Workflows)),
            (Role::Workflows, Method::POST, "/v1/prediction", Some(Role::Base)),
            (Role::Base, Method::POST, "/mcp", Some(Role::Agent)),
            (Role::Base, Method::GET, "/no/such/path", None),
            (Role::Base, Method::DELETE, "/mcp", None),
        ] {
            assert_eq!(serving(role, &method, path), host, "{path}");
        }
    }
}
