//! Parses `url` and `urls` of a `[runner]` table: the endpoints of a model, their weights, and
//! their concurrency. This module does no I/O.

use std::path::{Path, PathBuf};

use serde_json::json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::{command, managed};
use orrery_config::reader::{Parsed, Problem, Section};
use orrery_config::values::{self, problem, whole};
use orrery_domain::spelling::nearest;

/// Maximum number of endpoints of one model.
const ADDRESSES_MAX: usize = 64;
const WEIGHT_MAX: u32 = 1000;
const CONCURRENCY_MAX: usize = 1_000_000;
/// The keys of a table in `urls`.
const KEYS: [&str; 3] = ["url", "weight", "concurrency"];

/// An endpoint, as named in the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub url: String,
    /// The endpoint's share of the requests, relative to the other endpoints.
    pub weight: u32,
    /// Maximum number of concurrent requests; `None` means the model's concurrency.
    pub concurrency: Option<usize>,
}

impl Address {
    /// Creates an endpoint with default settings.
    #[must_use]
    pub const fn of(url: String) -> Self {
        Self { url, weight: 1, concurrency: None }
    }
}

/// The URL parser of a runner type.
pub(super) type ReadUrl = fn(&values::Value<'_>) -> Parsed<String>;

/// The servers of a model: remote ones, or one that this service starts.
#[derive(Debug, PartialEq)]
pub struct Servers {
    pub addresses: Vec<Address>,
    pub start: Option<managed::Options>,
}

impl Servers {
    /// Parses the servers of a `[runner]` table: `url` or `urls`, or `start` with the keys of
    /// [`managed`]. `health` is the readiness path, which some runners also use for remote servers,
    /// and `default_path` the path of a started server's URL if the manifest has no `url`.
    /// Errors are recorded in the section.
    pub(crate) fn read(
        section: &mut Section<'_>,
        folder: &Path,
        health: Option<String>,
        url: ReadUrl,
        default_path: &str,
    ) -> Option<Self> {
        let start = managed::Options::read(section, folder, health);
        if section.span("start").is_none() {
            return Some(Self { addresses: read(section, url)?, start: None });
        }
        section.refuse("urls", "a server that `runner.start` starts has one `url`");
        let is_written = section.span("url").is_some();
        let one = section.optional("url", |value| url(&managed::with_number(value)));
        let address = match one {
            None if is_written => None,
            None => url(&managed::default_url(default_path)).ok(),
            Some(url) => Some(url),
        };
        Some(Self { addresses: vec![Address::of(address?)], start: Some(start?) })
    }

    /// Creates remote servers at these URLs.
    #[cfg(test)]
    pub(crate) fn of(urls: &[&str]) -> Self {
        let addresses = urls.iter().map(|url| Address::of((*url).to_owned())).collect();
        Self { addresses, start: None }
    }

    /// Returns the default concurrency.
    #[must_use]
    pub fn concurrency(&self) -> Option<usize> {
        concurrency(&self.addresses)
    }

    /// Returns the files in the server's start command that are run as programs or scripts.
    pub(crate) fn programs(&self) -> Option<Vec<PathBuf>> {
        let start = self.start.as_ref()?;
        Some(command::programs(start.command(), start.directory()))
    }

    /// Returns a missing file that the started server needs.
    pub(crate) fn missing(&self, groups: Option<&managed::Groups>) -> Option<String> {
        let start = self.start.as_ref()?;
        let program = command::missing(start.command(), start.directory());
        program.or_else(|| start.group_of(groups?).err())
    }
}

/// Parses the endpoints of a `[runner]` table: `url`, or `urls` with at least one entry. Errors are
/// recorded in the section.
fn read(section: &mut Section<'_>, url: ReadUrl) -> Option<Vec<Address>> {
    let one = section.optional("url", url);
    let several = section.optional("urls", |value| list(value, url));
    match (section.span("url"), section.span("urls")) {
        (Some(_), Some(_)) => {
            let message = "`runner.url` and `runner.urls`: set only one of them";
            section.error("urls", message.to_owned());
            None
        }
        (_, Some(_)) => several,
        (_, None) => {
            section.need("url");
            one.map(|url| vec![Address::of(url)])
        }
    }
}

/// Returns the total concurrency of several endpoints, if each of them sets its own.
#[must_use]
fn concurrency(addresses: &[Address]) -> Option<usize> {
    let each: Option<Vec<usize>> = addresses.iter().map(|one| one.concurrency).collect();
    each.map(|each| each.into_iter().sum::<usize>().min(CONCURRENCY_MAX))
}

fn list(value: &values::Value<'_>, url: ReadUrl) -> Parsed<Vec<Address>> {
    let expected = "a list such as [\"http://a:8000\", {url = \"http://b:8000\", weight = 2}]";
    let array = value.get_ref().as_array().ok_or_else(|| {
        let table = json!({
            "type": "object",
            "properties": {
                "url": {"type": "string"},
                "weight": {"type": "integer", "minimum": 1, "maximum": WEIGHT_MAX},
                "concurrency": {"type": "integer", "minimum": 1, "maximum": CONCURRENCY_MAX},
            },
            "required": ["url"],
            "additionalProperties": false,
        });
        let items = json!({"anyOf": [{"type": "string"}, table]});
        let expects = json!({
            "type": "array", "items": items, "minItems": 1, "maxItems": ADDRESSES_MAX,
        });
        values::wrong_type(value, expected, expects)
    })?;
    if array.is_empty() {
        return Err(problem(value, format!("is empty: expected {expected}")));
    }
    if array.len() > ADDRESSES_MAX {
        let message = format!("has {} entries, at most {ADDRESSES_MAX} are read", array.len());
        return Err(problem(value, message));
    }
    let mut good: Vec<Address> = Vec::new();
    let mut problems = Vec::new();
    for item in array {
        match entry(item, url) {
            Ok(entry) if good.iter().any(|known| known.url == entry.url) => {
                let message = "the same URL is listed twice: give it a weight instead".to_owned();
                problems.extend(problem(item, message));
            }
            Ok(entry) => good.push(entry),
            Err(more) => problems.extend(more),
        }
    }
    if problems.is_empty() { Ok(good) } else { Err(problems) }
}

fn entry(value: &values::Value<'_>, url: ReadUrl) -> Parsed<Address> {
    match value.get_ref() {
        DeValue::Table(table) => table_entry(value, table, url),
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_) => url(value).map(Address::of),
    }
}

fn table_entry(
    value: &values::Value<'_>,
    table: &DeTable<'_>,
    read_url: ReadUrl,
) -> Parsed<Address> {
    let mut problems = Vec::new();
    let mut url = None;
    let mut weight = 1;
    let mut concurrency = None;
    for (key, held) in table {
        let name: &str = key.get_ref();
        let read = match name {
            "url" => read_url(held).map(|read| url = Some(read)),
            "weight" => whole(1..=WEIGHT_MAX)(held).map(|read| weight = read),
            "concurrency" => whole(1..=CONCURRENCY_MAX)(held).map(|read| concurrency = Some(read)),
            unknown => Err(unknown_key(key, unknown)),
        };
        problems.extend(
            read.err()
                .into_iter()
                .flatten()
                .map(|found| Problem { message: format!("`{name}`: {}", found.message), ..found }),
        );
    }
    if !table.iter().any(|(key, _)| *key.get_ref() == "url") {
        problems.extend(problem(value, "an entry without `url`".to_owned()));
    }
    match url {
        Some(url) if problems.is_empty() => Ok(Address { url, weight, concurrency }),
        Some(_) | None => Err(problems),
    }
}

fn unknown_key(key: &Spanned<std::borrow::Cow<'_, str>>, name: &str) -> Vec<Problem> {
    let hint = match nearest(name, &KEYS) {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("the keys of an entry are {}", KEYS.join(", ")),
    };
    vec![Problem { at: key.span(), message: format!("unknown key; {hint}"), expects: None }]
}

/// Returns the URL without parts that may be secret, for use in messages, metrics and lists for
/// operators.
#[must_use]
pub fn name_of(url: &str) -> String {
    let Ok(parsed) = url::Url::parse(url) else { return String::new() };
    let host = parsed.host_str().unwrap_or_default();
    let port = parsed.port().map_or_else(String::new, |port| format!(":{port}"));
    format!("{host}{port}{}", parsed.path().trim_end_matches('/'))
}
