//! Parsers for the values in configuration and manifests: durations, sizes, addresses, networks,
//! and lists of such values.
//!
//! Each function converts one TOML value to a validated Rust value, or returns a sentence that
//! states the expected and the actual value.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use serde_json::json;
use toml::Spanned;
use toml::de::DeValue;

use super::reader::{Parsed, Problem};
use super::secret::{self, Secret};
use orrery_domain::ids::KeyId;
use orrery_domain::time::{span, span_text};
use orrery_domain::url_template::{self, check_target};

/// Maximum length of a list.
const LIST_MAX: usize = 1024;
/// The operations of OpenAI's API, whose paths are not part of an API's URL.
const OPERATIONS: [&str; 6] = [
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/images/generations",
    "/models",
    "/responses",
];

/// A TOML value with its position in the file.
pub type Value<'v> = Spanned<DeValue<'v>>;

/// Parses `true` or `false`.
pub fn flag(value: &Value<'_>) -> Parsed<bool> {
    let expects = || json!({"type": "boolean"});
    value.get_ref().as_bool().ok_or_else(|| wrong_type(value, "true or false", expects()))
}

/// Parses a non-empty string.
pub fn text(value: &Value<'_>) -> Parsed<String> {
    match value.get_ref().as_str() {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        Some(_) | None => {
            let expects = json!({"type": "string", "minLength": 1});
            Err(wrong_type(value, "a string that is not empty", expects))
        }
    }
}

/// Parses an integer in `range`.
pub fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&Value<'_>) -> Parsed<T>
where
    T: TryFrom<i64> + PartialOrd + std::fmt::Display + Copy,
{
    move |value| {
        let low = *range.start();
        let high = *range.end();
        integer(value)
            .and_then(|number| T::try_from(number).ok())
            .filter(|number| range.contains(number))
            .ok_or_else(|| {
                let expects = json!({
                    "type": "integer", "minimum": json_number(low), "maximum": json_number(high),
                });
                wrong_type(value, &format!("a whole number from {low} to {high}"), expects)
            })
    }
}

/// Parses an integer of at least 1.
pub fn positive(value: &Value<'_>) -> Parsed<NonZeroU32> {
    let number = whole(1..=u32::MAX)(value)?;
    NonZeroU32::new(number).ok_or_else(|| wrong(value, "a whole number from 1"))
}

/// Parses a number in `range`, with or without a fraction.
pub fn number(range: RangeInclusive<f64>) -> impl Fn(&Value<'_>) -> Parsed<f64> {
    move |value| {
        let float = value.get_ref().as_float().and_then(|float| float.as_str().parse().ok());
        let found = float
            .or_else(|| integer(value).and_then(|whole| i32::try_from(whole).ok()).map(f64::from));
        found.filter(|number| range.contains(number)).ok_or_else(|| {
            let (low, high) = (range.start(), range.end());
            let expects = json!({"type": "number", "minimum": low, "maximum": high});
            wrong_type(value, &format!("a number from {low} to {high}"), expects)
        })
    }
}

/// Parses a size in bytes in `range`: an integer, or a string such as `"100MiB"`.
pub fn size(range: RangeInclusive<u64>) -> impl Fn(&Value<'_>) -> Parsed<u64> {
    move |value| {
        let bytes = match value.get_ref().as_str() {
            Some(text) => bytes_of(text),
            None => integer(value).and_then(|number| u64::try_from(number).ok()),
        };
        bytes.filter(|bytes| range.contains(bytes)).ok_or_else(|| {
            let low = range.start();
            let high = range.end();
            let units: Vec<&str> = UNITS.iter().map(|(name, _)| *name).collect();
            let expects = json!({
                "type": ["integer", "string"], "minimum": low, "maximum": high,
                "pattern": format!("^[0-9]+\\s*({})$", units.join("|")),
            });
            let message = format!("bytes from {low} to {high}, as a number or such as \"8MiB\"");
            wrong_type(value, &message, expects)
        })
    }
}

/// Parses a size in memory, in bytes, in `range`.
pub fn memory_size(range: RangeInclusive<u64>) -> impl Fn(&Value<'_>) -> Parsed<usize> {
    move |value| {
        let bytes = size(range.clone())(value)?;
        usize::try_from(bytes).map_err(|_too_large| wrong(value, "bytes that fit into memory"))
    }
}

/// Parses a duration in `range`, such as `"300ms"`, `"10s"` or `"2h"`.
pub fn duration(range: RangeInclusive<Duration>) -> impl Fn(&Value<'_>) -> Parsed<Duration> {
    move |value| {
        let span = value.get_ref().as_str().and_then(span);
        span.filter(|span| range.contains(span)).ok_or_else(|| {
            let low = span_text(*range.start());
            let high = span_text(*range.end());
            wrong_type(
                value,
                &format!("a time such as \"10s\", \"2h\" or \"90d\", from {low} to {high}"),
                json!({"type": "string", "pattern": "^[0-9]"}),
            )
        })
    }
}

/// Parses a path. A relative path is resolved against `folder`; `"."` is `folder` itself.
pub fn path(folder: &Path) -> impl Fn(&Value<'_>) -> Parsed<PathBuf> {
    move |value| text(value).map(|path| folder.join(path).components().collect())
}

/// Parses a program and its arguments. A relative path to the program is resolved against `folder`;
/// a name without a slash is searched for on the `PATH`.
pub fn command(folder: &Path) -> impl Fn(&Value<'_>) -> Parsed<Vec<String>> {
    move |value| {
        let mut command = list(text)(value)?;
        if let Some(program) = command.first_mut().filter(|program| program.contains('/'))
            && let Ok(path) = folder.join(&*program).into_os_string().into_string()
        {
            *program = path;
        }
        Ok(command)
    }
}

/// Parses one address such as `"0.0.0.0:8443"`, or a list of addresses.
pub fn addresses(value: &Value<'_>) -> Parsed<Vec<SocketAddr>> {
    match value.get_ref().as_array() {
        Some(_) => list(address)(value),
        None => address(value).map(|address| vec![address]).map_err(or_list),
    }
}

/// Parses one address, or a list of at least one address.
pub fn some_addresses(value: &Value<'_>) -> Parsed<Vec<SocketAddr>> {
    match addresses(value)? {
        none if none.is_empty() => Err(wrong(value, "at least one address")),
        some => Ok(some),
    }
}

/// Parses the ID of an API key.
pub fn key_id(value: &Value<'_>) -> Parsed<KeyId> {
    text(value)?
        .parse()
        .map_err(|_no_id| wrong(value, "the id of an API key, as `orrery key list` shows it"))
}

/// Parses a list with elements parsed by `element`.
pub fn list<T>(element: impl Fn(&Value<'_>) -> Parsed<T>) -> impl Fn(&Value<'_>) -> Parsed<Vec<T>> {
    move |value| {
        let array = value.get_ref().as_array().ok_or_else(|| {
            let items = expected(element(value));
            let expects = json!({"type": "array", "items": items, "maxItems": LIST_MAX});
            wrong_type(value, "a list", expects)
        })?;
        if array.len() > LIST_MAX {
            return Err(wrong(value, &format!("a list of at most {LIST_MAX}")));
        }
        let mut good = Vec::new();
        let mut problems = Vec::new();
        for item in array {
            match element(item) {
                Ok(item) => good.push(item),
                Err(more) => problems.extend(more),
            }
        }
        if problems.is_empty() { Ok(good) } else { Err(problems) }
    }
}

/// Parses one element with `element`, or a list of at least one element.
pub fn one_or_more<T>(
    element: impl Fn(&Value<'_>) -> Parsed<T>,
) -> impl Fn(&Value<'_>) -> Parsed<Vec<T>> {
    move |value| match value.get_ref().as_array() {
        Some(array) if array.is_empty() => Err(wrong(value, "at least one item")),
        Some(_) => list(&element)(value),
        None => element(value).map(|one| vec![one]).map_err(or_list),
    }
}

/// Parses an age public key, as printed by `age-keygen`.
pub fn recipient(value: &Value<'_>) -> Parsed<String> {
    let text = value.get_ref().as_str().unwrap_or_default();
    if text.parse::<age::x25519::Recipient>().is_ok() {
        return Ok(text.to_owned());
    }
    if text.starts_with("AGE-SECRET-KEY-") {
        // The error does not repeat the key.
        let message = "expected an age public key (age1…), found a secret key, which belongs \
                       elsewhere";
        return Err(problem(value, message.to_owned()));
    }
    Err(wrong_text(value, "an age public key (age1…)"))
}

/// Parses a network such as `"10.0.0.0/8"`, or a single address.
pub fn network(value: &Value<'_>) -> Parsed<IpNet> {
    let text = value.get_ref().as_str().unwrap_or_default();
    let network = text.parse::<IpNet>().ok().map(|network| network.trunc());
    network
        .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
        .ok_or_else(|| wrong_text(value, "a network such as \"10.0.0.0/8\" or one address"))
}

/// Parses an absolute http or https URL without user, query and fragment. Returns the URL without a
/// trailing slash.
pub fn web_address(value: &Value<'_>) -> Parsed<String> {
    let good = |url: &url::Url| {
        matches!(url.scheme(), "http" | "https")
            && url.host().is_some()
            && url.port() != Some(0)
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
    };
    let url = value.get_ref().as_str().and_then(|text| url::Url::parse(text).ok()).filter(good);
    match url {
        Some(url) => Ok(url.as_str().trim_end_matches('/').to_owned()),
        None => Err(wrong_text(value, "an address such as \"https://box.lan:8443\"")),
    }
}

/// Rejects the URL of an OpenAI-compatible API that ends with one of the API's operations.
pub fn api_url(value: &Value<'_>, url: String) -> Parsed<String> {
    let ends = |operation: &&&str| url.ends_with(**operation);
    let Some(operation) = OPERATIONS.iter().find(ends) else { return Ok(url) };
    let base = url.trim_end_matches(operation);
    Err(problem(value, format!("expected the URL of the whole API, such as \"{base}\"")))
}

/// Returns a warning about the URL of an OpenAI-compatible API without a path, because most servers
/// have their API under `/v1`. Also returns the URL that was probably meant.
#[must_use]
pub fn without_path(url: &str) -> Option<(String, String)> {
    let mut meant = url::Url::parse(url).ok()?;
    if meant.path() != "/" {
        return None;
    }
    meant.set_path("/v1");
    let meant = meant.to_string();
    let url = url.trim_end_matches('/');
    Some((format!("is {url}, without a path: most servers have their API at {meant}"), meant))
}

/// Parses `"*"`, or an origin as browsers send it: only scheme, host and port.
pub fn origin(value: &Value<'_>) -> Parsed<String> {
    let text = value.get_ref().as_str().unwrap_or_default();
    let is_origin =
        url::Url::parse(text).is_ok_and(|url| url.origin().ascii_serialization() == text);
    if text == "*" || is_origin {
        return Ok(text.to_owned());
    }
    Err(wrong_text(value, "an origin such as \"https://app.example\", or \"*\""))
}

/// Parses a host name or an address, as in a certificate.
pub fn host_name(value: &Value<'_>) -> Parsed<String> {
    let text = value.get_ref().as_str().unwrap_or_default();
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let labels = text.strip_prefix("*.").unwrap_or(text);
    let is_name = text.len() <= 253 && labels.split('.').all(is_label);
    if is_name || text.parse::<IpAddr>().is_ok() {
        return Ok(text.to_owned());
    }
    Err(wrong_text(value, "a host name such as \"box.lan\" or an IP address"))
}

/// Parses a log level, optionally with levels for parts of the service. Levels of other crates are
/// rejected: their detailed logs contain network data, including keys.
pub fn log_level(value: &Value<'_>) -> Parsed<String> {
    let is_level =
        |text: &str| matches!(text, "off" | "error" | "warn" | "info" | "debug" | "trace");
    let is_module = |text: &str| {
        text == "orrery"
            || text.strip_prefix("orrery_").is_some_and(|module| {
                module.bytes().all(|byte| byte.is_ascii_lowercase() || b"_:".contains(&byte))
            })
    };
    let is_directive = |text: &str| match text.split_once('=') {
        Some((module, level)) => is_module(module) && is_level(level),
        None => is_level(text),
    };
    match value.get_ref().as_str() {
        Some(text) if text.split(',').all(is_directive) => Ok(text.to_owned()),
        Some(_) | None => Err(wrong_text(
            value,
            "off, error, warn, info, debug or trace, or a list such as \
             \"info,orrery_engine=debug\"",
        )),
    }
}

/// Parses any string, including an empty string.
pub fn string(value: &Value<'_>) -> Parsed<String> {
    value.get_ref().as_str().map(str::to_owned).ok_or_else(|| wrong_text(value, "a string"))
}

/// Parses a string as a `T`. The error of `T` explains the expected form.
pub fn parsed<T: FromStr<Err: fmt::Display>>(value: &Value<'_>) -> Parsed<T> {
    let text = value.get_ref().as_str().ok_or_else(|| wrong_text(value, "a string"))?;
    text.parse().map_err(|error: T::Err| problem(value, error.to_string()))
}

/// Parses the name of one of `all`, as spelled by `spell`.
pub fn one_of<T: Copy>(
    all_of: &'static [T],
    spell: impl Fn(T) -> &'static str,
) -> impl Fn(&Value<'_>) -> Parsed<T> {
    move |value| {
        let all = all_of;
        let text = value.get_ref().as_str();
        all.iter().copied().find(|one| Some(spell(*one)) == text).ok_or_else(|| {
            let all: Vec<String> = all.iter().map(|one| format!("{:?}", spell(*one))).collect();
            let names: Vec<&str> = all_of.iter().map(|one| spell(*one)).collect();
            let expects = json!({"type": "string", "enum": names});
            wrong_type(value, &format!("one of {}", all.join(", ")), expects)
        })
    }
}

/// Parses an absolute http or https URL, which may have credentials. Returns the URL in ASCII, as
/// requests require.
pub fn url(value: &Value<'_>) -> Parsed<String> {
    let text = value.get_ref().as_str().unwrap_or_default();
    if text.contains("{{") {
        return Err(problem(
            value,
            "contains a reference, but references are not resolved here".to_owned(),
        ));
    }
    let url = url::Url::parse(text).map_err(|_invalid| url_template::Error::Url);
    match url.and_then(|url| check_target(&url).map(|()| url)) {
        Ok(_) if text.is_ascii() => Ok(text.to_owned()),
        Ok(url) => Ok(url.into()),
        Err(url_template::Error::Url) => Err(wrong_text(value, "an absolute http or https URL")),
        Err(error) => Err(problem(value, error.to_string())),
    }
}

/// Parses a table with keys chosen by the operator; `entry` parses each key with its value.
pub fn map<T>(
    entry: impl Fn(&str, &Value<'_>) -> Parsed<T>,
) -> impl Fn(&Value<'_>) -> Parsed<Vec<T>> {
    move |value| {
        let table = value.get_ref().as_table().ok_or_else(|| {
            let expects = json!({
                "type": "object", "additionalProperties": expected(entry("name", value)),
            });
            wrong_type(value, "a table", expects)
        })?;
        let mut good = Vec::new();
        let mut problems = Vec::new();
        for (name, value) in table {
            match entry(name.get_ref(), value) {
                Ok(one) => good.push(one),
                Err(more) => problems.extend(more),
            }
        }
        if problems.is_empty() { Ok(good) } else { Err(problems) }
    }
}

/// Parses a table of headers with `entry`. Header names are case-insensitive.
pub fn headers<T>(
    entry: impl Fn(&str, &Value<'_>) -> Parsed<T>,
) -> impl Fn(&Value<'_>) -> Parsed<Vec<T>> {
    let read = map(entry);
    move |value| {
        let names = value.get_ref().as_table().into_iter().flatten();
        let mut seen: Vec<&str> = Vec::new();
        for (name, value) in names {
            let name: &str = name.get_ref();
            if let Some(other) = seen.iter().find(|other| other.eq_ignore_ascii_case(name)) {
                let message = format!("{name:?} and {other:?} are the same header: keep one");
                return Err(problem(value, message));
            }
            seen.push(name);
        }
        read(value)
    }
}

/// Parses one header of a table: its name, and its value with `${file:…}` and `${env:…}` expanded.
pub fn header(folder: &Path) -> impl Fn(&str, &Value<'_>) -> Parsed<(String, Secret)> {
    move |name, value| {
        let secret = secret(folder)(value)?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err(problem(value, format!("{name:?} is not a valid header name")));
        }
        if !secret.expose().bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
            let message = "a header must have visible ASCII characters only".to_owned();
            return Err(problem(value, message));
        }
        Ok((name.to_ascii_lowercase(), secret))
    }
}

/// Converts any value to JSON. TOML has dates and numbers that JSON does not have.
pub fn json(value: &Value<'_>) -> Parsed<serde_json::Value> {
    let none = |what: &str| wrong(value, &format!("a value that JSON supports, such as {what}"));
    Ok(match value.get_ref() {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Integer(_) => integer(value).ok_or_else(|| none("a smaller number"))?.into(),
        DeValue::Float(number) => {
            let number = number.as_str().parse().ok().and_then(serde_json::Number::from_f64);
            number.ok_or_else(|| none("a finite number"))?.into()
        }
        DeValue::Datetime(_) => return Err(none("a date in quotes")),
        DeValue::Array(items) => items.iter().map(json).collect::<Parsed<_>>()?,
        DeValue::Table(fields) => {
            let fields =
                fields.iter().map(|(name, value)| Ok((name.get_ref().to_string(), json(value)?)));
            serde_json::Value::Object(fields.collect::<Parsed<_>>()?)
        }
    })
}

/// Parses a string and expands `${file:…}` and `${env:…}`. Paths are resolved against `folder`.
pub fn secret(folder: &Path) -> impl Fn(&Value<'_>) -> Parsed<Secret> {
    move |value| {
        let text = value.get_ref().as_str().ok_or_else(|| wrong_text(value, "a string"))?;
        secret::expand(text, folder).map_err(|message| problem(value, message))
    }
}

/// Returns the value at a JSON pointer within `value`, or the deepest value that the pointer
/// reaches.
#[must_use]
pub fn within<'a, 'v>(value: &'a Value<'v>, pointer: &str) -> &'a Value<'v> {
    let mut place = value;
    for part in pointer.split('/').skip(1) {
        let name = part.replace("~1", "/").replace("~0", "~");
        let value = place.get_ref();
        let item = || name.parse::<usize>().ok().and_then(|at| value.as_array()?.get(at));
        let field = value.as_table().and_then(|table| table.get(name.as_str()));
        let Some(next) = field.or_else(item) else { break };
        place = next;
    }
    place
}

/// Returns the error for a value that is not `expected`.
pub fn wrong(value: &Value<'_>, expected: &str) -> Vec<Problem> {
    let found = match value.get_ref() {
        DeValue::String(text) => format!("{:?}", text.chars().take(80).collect::<String>()),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(moment) => moment.to_string(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    };
    problem(value, format!("expected {expected}, found {found}"))
}

/// Returns the error for a value that is not `expected`, with the JSON Schema of the expected
/// values.
pub fn wrong_type(value: &Value<'_>, expected: &str, expects: serde_json::Value) -> Vec<Problem> {
    let mut problems = wrong(value, expected);
    problems.iter_mut().for_each(|problem| problem.expects = Some(expects.clone()));
    problems
}

pub(super) fn wrong_text(value: &Value<'_>, expected: &str) -> Vec<Problem> {
    wrong_type(value, expected, json!({"type": "string"}))
}

/// Returns the JSON Schema of the values that a parser expects, from its error about a value that
/// no parser accepts.
pub(super) fn expected<T>(parsed: Parsed<T>) -> serde_json::Value {
    let problem = parsed.err().into_iter().flatten().next();
    problem.and_then(|problem| problem.expects).unwrap_or_else(|| json!({}))
}

/// Adds an alternative to the expected values.
pub fn or(mut problems: Vec<Problem>, other: &serde_json::Value) -> Vec<Problem> {
    for problem in &mut problems {
        problem.expects = problem.expects.take().map(|one| json!({"anyOf": [one, other]}));
    }
    problems
}

/// Also allows a list of the expected values.
fn or_list(problems: Vec<Problem>) -> Vec<Problem> {
    let items = problems.first().and_then(|problem| problem.expects.clone());
    or(problems, &json!({"type": "array", "items": items}))
}

fn json_number(number: impl fmt::Display) -> serde_json::Value {
    serde_json::from_str(&number.to_string()).unwrap_or_default()
}

/// Returns an error at `value`.
pub fn problem(value: &Value<'_>, message: String) -> Vec<Problem> {
    vec![Problem { at: value.span(), message, expects: None }]
}

fn address(value: &Value<'_>) -> Parsed<SocketAddr> {
    let text = value.get_ref().as_str().unwrap_or_default();
    text.parse().map_err(|_no_address| {
        wrong_text(value, "an address such as \"0.0.0.0:8443\" or \"[::]:8443\"")
    })
}

fn integer(value: &Value<'_>) -> Option<i64> {
    let integer = value.get_ref().as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// Units of sizes, longest names first.
const UNITS: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// Returns the number of bytes in a string such as `8MiB`; `None` if the string is invalid.
#[must_use]
pub fn bytes_of(text: &str) -> Option<u64> {
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| text.strip_suffix(name).map(|number| (number, *unit)))?;
    number.trim_end().parse::<u64>().ok()?.checked_mul(unit)
}
