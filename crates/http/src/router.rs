//! Maps a method and a path to the value of a route.
//!
//! A thin layer on top of matchit. This module adds methods, trailing slashes, and patterns with a
//! suffix after a catch-all (`/v1/models/{*slug}/schemas/openapi`), which are needed because slugs
//! contain slashes.

use std::collections::BTreeMap;

use hyper::Method;
use percent_encoding::percent_decode_str;

/// The error for a duplicate route, or for a pattern that matchit rejects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the route {pattern} cannot be added: {reason}")]
pub struct Error {
    pattern: String,
    reason: String,
}

/// The decoded path parameters of a matched route.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Params(Vec<(String, String)>);

impl Params {
    /// Returns the parameter `name`; empty if there is none.
    #[must_use]
    pub fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }
}

/// The result of a lookup.
#[derive(Debug)]
pub enum Outcome<'a, T> {
    Found {
        value: &'a T,
        params: Params,
    },
    /// The path has a route, but not for this method. `allow` lists the allowed methods in the
    /// format of the `Allow` header.
    WrongMethod {
        allow: String,
    },
    NotFound,
}

/// The routes of one pattern, by the suffix after its catch-all (usually empty) and then by method.
#[derive(Debug)]
struct Entry<T> {
    /// The name of the catch-all parameter, if the pattern ends in one.
    rest: Option<String>,
    suffixes: Vec<(String, BTreeMap<String, T>)>,
}

/// Finds routes.
#[derive(Debug)]
pub struct Router<T> {
    paths: matchit::Router<usize>,
    entries: Vec<Entry<T>>,
    index: BTreeMap<String, usize>,
}

impl<T> Default for Router<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Router<T> {
    /// Creates a router without routes.
    #[must_use]
    pub fn new() -> Self {
        Self { paths: matchit::Router::new(), entries: Vec::new(), index: BTreeMap::new() }
    }

    /// Adds a route. A pattern is written without a trailing slash and also matches paths with a
    /// trailing slash.
    ///
    /// # Errors
    /// [`Error`] if the pattern is malformed or the route already exists.
    pub fn insert(&mut self, method: Method, pattern: &str, value: T) -> Result<(), Error> {
        let fault = |reason: String| Error { pattern: pattern.to_owned(), reason };
        let (path, rest, suffix) = split_rest(pattern);
        let at = match self.index.get(path) {
            Some(at) => *at,
            None => {
                let at = self.entries.len();
                self.paths.insert(path, at).map_err(|error| fault(error.to_string()))?;
                self.index.insert(path.to_owned(), at);
                self.entries.push(Entry { rest: rest.map(str::to_owned), suffixes: Vec::new() });
                at
            }
        };
        let Some(entry) = self.entries.get_mut(at) else { return Ok(()) };
        let methods = entry.methods_of(suffix);
        if methods.insert(method.to_string(), value).is_some() {
            return Err(fault("it is already defined".to_owned()));
        }
        Ok(())
    }

    /// Finds the route of `path`. GET routes also serve HEAD.
    ///
    /// # Errors
    /// 400 if a path segment is not UTF-8 after decoding.
    pub fn find(&self, method: &Method, path: &str) -> Result<Outcome<'_, T>, super::Error> {
        let trimmed = match path.strip_suffix('/') {
            Some("") | None => path,
            Some(trimmed) => trimmed,
        };
        let Ok(matched) = self.paths.at(trimmed) else { return Ok(Outcome::NotFound) };
        let Some(entry) = self.entries.get(*matched.value) else { return Ok(Outcome::NotFound) };
        let rest = entry.rest.as_deref().and_then(|name| matched.params.get(name));
        let Some((suffix, methods)) = entry.find(rest.unwrap_or_default()) else {
            return Ok(Outcome::NotFound);
        };
        let wanted = if method == Method::HEAD { "GET" } else { method.as_str() };
        let Some(value) = methods.get(wanted) else {
            return Ok(Outcome::WrongMethod { allow: allow(methods) });
        };
        let mut params = Vec::new();
        for (name, raw) in matched.params.iter() {
            let raw = if entry.rest.as_deref() == Some(name) {
                raw.strip_suffix(suffix).unwrap_or(raw)
            } else {
                raw
            };
            let decoded = percent_decode_str(raw).decode_utf8().map_err(|error| {
                super::Error::bad_request("the path is not UTF-8").with_source(error)
            })?;
            params.push((name.to_owned(), decoded.into_owned()));
        }
        Ok(Outcome::Found { value, params: Params(params) })
    }
}

impl<T> Entry<T> {
    fn methods_of(&mut self, suffix: &str) -> &mut BTreeMap<String, T> {
        let at = match self.suffixes.iter().position(|(held, _)| held == suffix) {
            Some(at) => at,
            None => {
                // Longer suffixes come first, so that the most specific suffix matches.
                let longer = |(held, _): &(String, _)| held.len() >= suffix.len();
                let at = self.suffixes.iter().take_while(|held| longer(held)).count();
                self.suffixes.insert(at, (suffix.to_owned(), BTreeMap::new()));
                at
            }
        };
        #[expect(clippy::indexing_slicing, reason = "found or inserted just above")]
        &mut self.suffixes[at].1
    }

    fn find(&self, rest: &str) -> Option<(&str, &BTreeMap<String, T>)> {
        let fits = |suffix: &str| {
            rest.strip_suffix(suffix).is_some_and(|left| suffix.is_empty() || !left.is_empty())
        };
        let found = self.suffixes.iter().find(|(suffix, _)| fits(suffix));
        found.map(|(suffix, methods)| (suffix.as_str(), methods))
    }
}

/// Splits a pattern into the part for matchit, the name of its catch-all, and the suffix after the
/// catch-all.
fn split_rest(pattern: &str) -> (&str, Option<&str>, &str) {
    let Some(start) = pattern.find("{*") else { return (pattern, None, "") };
    let Some(length) = pattern.get(start..).and_then(|rest| rest.find('}')) else {
        return (pattern, None, "");
    };
    let (path, suffix) = pattern.split_at(start + length + 1);
    (path, path.get(start + 2..path.len() - 1), suffix)
}

fn allow<T>(methods: &BTreeMap<String, T>) -> String {
    let mut names: Vec<&str> = methods.keys().map(String::as_str).collect();
    if methods.contains_key("GET") {
        names.push("HEAD");
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router() -> Router<&'static str> {
        let mut router = Router::new();
        for (method, pattern, name) in [
            (Method::GET, "/", "root"),
            (Method::GET, "/v1/models", "list"),
            (Method::GET, "/v1/models/{*slug}", "model"),
            (Method::GET, "/v1/models/{*slug}/schemas/openapi", "schema"),
            (Method::POST, "/v1/prediction", "create"),
            (Method::POST, "/v1/prediction/run", "run"),
            (Method::GET, "/v1/prediction/{id}", "get"),
            (Method::POST, "/v1/prediction/{id}/cancel", "cancel"),
        ] {
            router.insert(method, pattern, name).unwrap();
        }
        router
    }

    fn find(method: Method, path: &str) -> String {
        match router().find(&method, path) {
            Ok(Outcome::Found { value, params }) => {
                format!("{value} {}{}", params.get("slug"), params.get("id"))
            }
            Ok(Outcome::WrongMethod { allow }) => format!("405 {allow}"),
            Ok(Outcome::NotFound) => "404".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn router_resolves_paths_and_parameters() {
        for (method, path, expect) in [
            (Method::GET, "/", "root "),
            (Method::GET, "/v1/models", "list "),
            (Method::GET, "/v1/models/", "list "),
            (Method::GET, "/v1/models/caption", "model caption"),
            (Method::GET, "/v1/models/openai/gpt-x/", "model openai/gpt-x"),
            (Method::GET, "/v1/models/openai/gpt-x/schemas/openapi", "schema openai/gpt-x"),
            (Method::GET, "/v1/models/schemas/openapi", "model schemas/openapi"),
            (Method::GET, "/v1/models/a%2Fb", "model a/b"),
            (Method::GET, "/v1/models/%ff", "400 the path is not UTF-8"),
            (Method::HEAD, "/v1/models/caption", "model caption"),
            (Method::POST, "/v1/models/caption", "405 GET, HEAD"),
            (Method::POST, "/v1/prediction/", "create "),
            (Method::GET, "/v1/prediction/", "405 POST"),
            (Method::GET, "/v1/prediction/7", "get 7"),
            (Method::POST, "/v1/prediction/run", "run "),
            (Method::POST, "/v1/prediction/7/cancel/", "cancel 7"),
            (Method::POST, "/v1/prediction/7/cancel/x", "404"),
            (Method::GET, "/v2", "404"),
            (Method::GET, "//", "root "),
        ] {
            assert_eq!(find(method.clone(), path), expect, "{method} {path}");
        }
    }

    #[test]
    fn router_rejects_duplicate_route() {
        let mut router = router();
        let error = router.insert(Method::GET, "/v1/models", "again").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the route /v1/models cannot be added: it is already defined"
        );
    }
}
