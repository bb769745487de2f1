//! The APIs of OpenAI and Anthropic on the base host: their paths (OpenAI's are also served below
//! `/openai`), the format of their errors, and the routes that errors suggest instead of paths that
//! are not served. Replicate's API has rows of its own, all below `/replicate`.
//!
//! A route belongs to a vendor's API by its path alone, so a new row of [`ROUTES`] needs nothing
//! else.

use hyper::{HeaderMap, Method, StatusCode};

use super::doc::ErrorForm;
use super::models::ANTHROPIC_VERSION;
use super::{Access, ROUTES, Role, Route, access};
use orrery_wire::replicate::PLACE as REPLICATE;

/// The place below which OpenAI's API is served without ambiguity: errors and models always have
/// its format, and everything requires a key.
pub(crate) const OPEN_AI: &str = "/openai";
const VERSION: &str = "/v1";
const MODELS: &str = "models";
/// The route whose clients omit `/v1`.
const RERANK: &str = "/rerank";
/// Maximum length, in bytes, of a path in a message.
const SHOWN_MAX: usize = 200;

/// A family of paths of a vendor's API: `/v1/{name}` and everything below.
#[derive(Debug)]
struct Family {
    name: &'static str,
    vendor: Vendor,
    /// What is there instead, if the family has no routes.
    instead: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Vendor {
    OpenAi,
    Anthropic,
}

const CONVERSATION: &str =
    "POST /v1/chat/completions answers a conversation, which the client keeps";
const PREDICTION: &str = "such models run as predictions: POST /v1/prediction/run";
const OPERATOR: &str = "the operator manages keys and limits: orrery key, and /admin/v1 on the \
                        dashboard's host";

/// All families of both APIs.
const FAMILIES: &[Family] = &[
    of_open_ai("assistants", CONVERSATION),
    of_open_ai("audio", ""),
    of_open_ai(
        "batches",
        "POST /v1/workflows/{workflow}/bulk-trigger runs a workflow for many inputs",
    ),
    of_open_ai("chat", ""),
    of_open_ai("completions", CONVERSATION),
    of_open_ai("containers", "the tools of a model run where the client runs"),
    of_open_ai("conversations", CONVERSATION),
    of_open_ai("edits", CONVERSATION),
    of_open_ai("embeddings", ""),
    of_open_ai("engines", "GET /v1/models lists the models"),
    of_open_ai("evals", "POST /v1/decisions answers typed questions about a text"),
    of_open_ai("files", ""),
    of_open_ai("fine-tunes", "models are not trained here; files of the models folder are served"),
    of_open_ai("fine_tuning", "models are not trained here; files of the models folder are served"),
    of_open_ai("images", ""),
    of_open_ai(MODELS, ""),
    of_open_ai("moderations", "POST /v1/decisions answers typed questions about a text"),
    of_open_ai("organization", OPERATOR),
    of_open_ai("projects", OPERATOR),
    of_open_ai("realtime", "POST /v1/chat/completions streams answers as text"),
    of_open_ai("rerank", "POST /v1/embeddings computes vectors, which the client compares"),
    of_open_ai("responses", CONVERSATION),
    of_open_ai("threads", CONVERSATION),
    of_open_ai("uploads", "POST /v1/files takes a file as a whole"),
    of_open_ai("vector_stores", "POST /v1/embeddings computes vectors, which the client stores"),
    of_open_ai("videos", PREDICTION),
    Family { name: "messages", vendor: Vendor::Anthropic, instead: "" },
];

const fn of_open_ai(name: &'static str, instead: &'static str) -> Family {
    Family { name, vendor: Vendor::OpenAi, instead }
}

/// Returns the family of a path.
fn family_of(path: &str) -> Option<&'static Family> {
    let path = if path == RERANK { "/v1/rerank" } else { path };
    let rest = path.strip_prefix(VERSION)?.strip_prefix('/')?;
    let name = rest.split('/').next()?;
    FAMILIES.iter().find(|family| family.name == name)
}

/// Returns whether a path is below `place`.
fn is_below(path: &str, place: &str) -> bool {
    path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the credentials that a route of OpenAI's API requires below `/openai`; `None` for
/// routes that are not served there.
pub(crate) fn access_below(route: &Route) -> Option<Access> {
    family_of(route.path).filter(|family| family.vendor == Vendor::OpenAi)?;
    // OpenAI's API has no routes below a model.
    let is_of_model = route.path.contains("{*slug}/");
    let is_served =
        route.hosts.contains(&Role::Base) && route.path.starts_with(VERSION) && !is_of_model;
    let access = if route.access == Access::MaybeKey { Access::Key } else { route.access };
    (is_served && matches!(access, Access::Key | Access::Link)).then_some(access)
}

/// Returns the format of the errors for a path of a host without such a route.
pub(crate) fn form_of(role: Role, path: &str) -> ErrorForm {
    if role != Role::Base {
        return ErrorForm::Plain;
    }
    if is_below(path, OPEN_AI) {
        return ErrorForm::OpenAiOnly;
    }
    if is_below(path, REPLICATE) {
        return ErrorForm::Replicate;
    }
    match family_of(path).map(|family| family.vendor) {
        Some(Vendor::OpenAi) => ErrorForm::OpenAi,
        Some(Vendor::Anthropic) => ErrorForm::Anthropic,
        None => ErrorForm::Plain,
    }
}

/// Returns whether a route ignores unknown query parameters, as the vendors' own routes do. The
/// catalog's form of the models does not.
pub(crate) fn ignores_parameters(route: &Route, form: ErrorForm, headers: &HeaderMap) -> bool {
    let Some(family) = family_of(route.path).filter(|_| route.hosts == [Role::Base]) else {
        return matches!(form, ErrorForm::OpenAiOnly | ErrorForm::Replicate);
    };
    let is_by_vendors_client =
        || headers.contains_key(ANTHROPIC_VERSION) || access::bearer(headers).is_some();
    form != ErrorForm::Plain || (family.name == MODELS && is_by_vendors_client())
}

/// Returns the error for a path without a route.
pub(crate) fn not_found(method: &Method, path: &str) -> crate::Error {
    let instead = instead_of(path);
    crate::Error::not_found(format!("{method} {} is not served: {instead}", shown(path)))
}

/// Returns the error for a path whose routes have other methods.
pub(crate) fn wrong_method(method: &Method, path: &str) -> crate::Error {
    let instead = instead_of(path);
    let message = format!("{method} {} is not served: {instead}", shown(path));
    crate::Error::status(StatusCode::METHOD_NOT_ALLOWED, message)
}

fn shown(path: &str) -> &str {
    path.get(..SHOWN_MAX).unwrap_or(path)
}

/// Says what is there instead of a path.
fn instead_of(path: &str) -> String {
    let (place, versioned) = match path.strip_prefix(OPEN_AI) {
        Some(rest) if is_below(path, OPEN_AI) => (OPEN_AI, rest),
        Some(_) | None => ("", path),
    };
    if place == OPEN_AI && !versioned.starts_with("/v1/") {
        return format!("the base URL of a client ends with {OPEN_AI}{VERSION}");
    }
    let Some(family) = family_of(versioned) else {
        let mut served: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        served.retain(|name| {
            ROUTES.iter().any(|route| {
                access_below(route).is_some()
                    && family_of(route.path).is_some_and(|one| one.name == *name)
            })
        });
        let served = served.join(", ");
        return format!(
            "below {OPEN_AI}{VERSION} are {served}; the other routes are below {VERSION}"
        );
    };
    let is_of_family = |route: &&Route| {
        let is_there = place.is_empty() || access_below(route).is_some();
        let own = family_of(route.path).filter(|_| route.hosts.contains(&Role::Base));
        is_there && own.is_some_and(|own| own.name == family.name)
    };
    let routes = ROUTES.iter().filter(is_of_family);
    let routes: Vec<String> = routes
        .map(|route| format!("{} {place}{}", route.method, route.path.replace("{*", "{")))
        .collect();
    if routes.is_empty() {
        return family.instead.to_owned();
    }
    format!("there is {}", routes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_is_served_or_says_what_is_there_instead() {
        for family in FAMILIES {
            let path = format!("/v1/{}/x/y/z", family.name);
            let said = not_found(&Method::PATCH, &path).message.clone();
            let instead = said.strip_prefix(&format!("PATCH {path} is not served: ")).unwrap();
            assert!(!instead.is_empty(), "{said}");
            assert!(form_of(Role::Base, &path) != ErrorForm::Plain, "{path}");
            assert!(form_of(Role::Workflows, &path) == ErrorForm::Plain, "{path}");
        }
    }

    #[test]
    fn families_are_found_by_their_first_segment() {
        for (path, name) in [
            ("/v1/chat/completions", Some("chat")),
            ("/v1/chat", Some("chat")),
            ("/v1/messages/batches", Some("messages")),
            ("/rerank", Some("rerank")),
            ("/rerank/x", None),
            ("/v1/chatter", None),
            ("/v1", None),
            ("/v1/", None),
            ("/v2/chat", None),
            ("/openai/v1/chat", None),
        ] {
            assert_eq!(family_of(path).map(|family| family.name), name, "{path}");
        }
    }

    #[test]
    fn instead_names_the_place_in_which_the_client_is() {
        for (path, said) in [
            ("/v1/chat", "there is POST /v1/chat/completions"),
            ("/openai/v1/chat", "there is POST /openai/v1/chat/completions"),
            ("/openai/v1/models", "there is GET /openai/v1/models, GET /openai/v1/models/{slug}"),
            ("/openai/chat/completions", "the base URL of a client ends with /openai/v1"),
            ("/openai", "the base URL of a client ends with /openai/v1"),
        ] {
            assert_eq!(instead_of(path), said, "{path}");
        }
        let other = instead_of("/openai/v1/prediction");
        assert!(other.starts_with("below /openai/v1 are audio, batches, chat, "), "{other}");
        assert!(!other.contains("messages") && !other.contains("assistants"), "{other}");
    }
}
