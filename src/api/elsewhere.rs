//! Which other host serves a path: each host has a port of its own, and the answer to a request on the wrong
//! one names the right one. Only names what every host's OpenAPI document lists.

use std::sync::LazyLock;

use hyper::Method;
use serde::Serialize;

use super::{ROUTES, Role, Services};
use crate::http;
use crate::http::router::{Outcome, Router};

/// The hosts whose routes are named.
const NAMED: [Role; 4] = [Role::Base, Role::Workflows, Role::Flows, Role::Agent];

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

/// The `details` of the answer.
#[derive(Debug, Serialize)]
struct Elsewhere<'a> {
    /// The host that has this route, as the configuration names it.
    host: &'static str,
    /// Where it answers.
    url: &'a str,
}

/// The answer for a path that this host does not serve.
pub fn not_found(role: Role, method: &Method, path: &str, services: &Services) -> http::Error {
    let error = http::Error::not_found("not found");
    let is_public = match role {
        Role::Base | Role::Workflows | Role::Flows | Role::Agent | Role::Dashboard => true,
        Role::Metrics | Role::Control => false,
    };
    match serving(role, method, path).filter(|_| is_public) {
        Some(host) => {
            error.with_details(Elsewhere { host: host.as_str(), url: services.url_of(host) })
        }
        None => error,
    }
}

/// The first other host with a route for this path.
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
    fn path_of_another_host_is_found_by_its_method() {
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
