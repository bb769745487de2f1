//! Manifests: one TOML file per model, parsed into a validated [`Manifest`].
//!
//! Parsing is as strict as for the configuration. Every error is reported with its file, line and
//! column. The error for an unknown key suggests the closest valid key of the same table. Secrets
//! are read from `${file:…}` and `${env:…}` and never appear in messages.

mod meanings;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};

use orrery_config as config;
use orrery_config::reader::{Reader, Section, json_beside, read_file};
use orrery_config::secret::{changeable_by_others, replaceable_by_others};
use orrery_config::values::{
    self, duration, json, number, one_of, parsed, problem, string, text, whole,
};
use orrery_domain::classify::ErrorClass;
use orrery_domain::model::{Cache, CacheScope, OutputType, Pricing, Rates, Slug};
use orrery_domain::money::Usd;
use orrery_domain::retry::{self, Policy};
use orrery_domain::spelling;
use orrery_runners::options;
use orrery_schema::{KEYWORDS, Schema, UnknownKeyword, unknown_keywords};

/// Maximum size of a manifest, and of a schema file next to it, in bytes.
const BYTES_MAX: u64 = 1024 * 1024;
const CONCURRENCY_MAX: usize = 1_000_000;
const DEFAULT_CONCURRENCY: usize = 4;
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400 * 366);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
const QUEUE_LIMIT_MAX: usize = 1_000_000_000;
const DEFAULT_QUEUE_LIMIT: usize = 10_000;
/// Timeout of a model without a manifest: on a CPU, a long text takes minutes.
const MODEL_FILE_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum length in characters of a title from a model file.
const TITLE_CHARS_MAX: usize = 100;
/// Maximum amount and rate, in dollars.
const DOLLARS_MAX: f64 = 1e6;
const CACHE_TTL_MIN: Duration = Duration::from_secs(1);
const CACHE_TTL_MAX: Duration = Duration::from_secs(86_400 * 366);
/// JSON pointer to the cost in a response, unless the manifest specifies another one.
const DEFAULT_COST_REPORT: &str = "/metrics/cost";

/// An error in a manifest, with its location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {message}", .file.display(), place(*line, *column))]
pub struct Error {
    pub file: PathBuf,
    /// Line number, starting at 1; 0 if the error concerns the whole file.
    pub line: usize,
    pub column: usize,
    pub message: String,
}

/// Formats a location in a file; empty for an error that concerns the whole file.
fn place(line: usize, column: usize) -> String {
    if line == 0 { String::new() } else { format!(":{line}:{column}") }
}

/// A validated manifest.
#[derive(Debug, PartialEq)]
pub(crate) struct Manifest {
    pub slug: Slug,
    pub title: String,
    pub description: String,
    /// The output type; `None` means the type that the model reports, or `object`.
    pub output_type: Option<OutputType>,
    pub concurrency: usize,
    pub timeout: Duration,
    pub queue_limit: usize,
    /// Retry policy for predictions.
    pub retry: Policy,
    /// `None` if results are not cached.
    pub cache: Option<Cache>,
    /// The request schema; `None` means the schema that the model reports, or any object.
    pub schema: Option<Arc<Schema>>,
    pub pricing: Option<Pricing>,
    /// JSON pointer to the cost in the response.
    pub cost_report: String,
    pub runner: options::Config,
}

/// The `[cost]` table.
struct Cost {
    pricing: Pricing,
    report: Option<String>,
}

#[derive(Debug, Clone, Copy)]
enum CostType {
    Fixed,
    UsageBased,
}

/// Parses and validates one manifest.
///
/// # Errors
/// Every [`Error`] of the file.
pub(crate) fn read(path: &Path) -> Result<Manifest, Vec<Error>> {
    let file = path.to_path_buf();
    let text = read_file(path, BYTES_MAX)
        .map_err(|message| vec![Error { file: file.clone(), line: 0, column: 0, message }])?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let parsed = parse(&text, folder).map_err(|errors| {
        let placed = |config::Error { line, column, message }| {
            let file = file.clone();
            Error { file, line, column, message }
        };
        errors.into_iter().map(placed).collect::<Vec<Error>>()
    })?;
    // Anyone who can write to such a manifest, or to its program, can run programs as the service's
    // user.
    if let Some(programs) = parsed.runner.options.programs() {
        let mut files = std::iter::once(path).chain(programs.iter().map(PathBuf::as_path));
        let changeable =
            changeable_by_others(folder).or_else(|| files.find_map(replaceable_by_others));
        if let Some(message) = changeable {
            return Err(vec![Error { file, line: 0, column: 0, message }]);
        }
    }
    Ok(parsed)
}

/// Returns the default manifest for a model file without a manifest: the slug is derived from the
/// file name, and everything else is read from the file or set to a default. Returns `None` if the
/// name yields no valid slug.
#[must_use]
pub(crate) fn of_model_file(path: &Path) -> Option<Manifest> {
    let slug: Slug = slug_of(path.file_stem()?.to_str()?).parse().ok()?;
    let runner = options::Config::of_model_file(&config::absolute(path));
    let title = runner.options.title().map(|title| title.chars().take(TITLE_CHARS_MAX).collect());
    Some(Manifest {
        title: title.unwrap_or_else(|| slug.to_string()),
        description: String::new(),
        output_type: None,
        concurrency: runner.options.concurrency().unwrap_or(DEFAULT_CONCURRENCY),
        timeout: MODEL_FILE_TIMEOUT,
        queue_limit: DEFAULT_QUEUE_LIMIT,
        retry: Policy::once(),
        cache: None,
        schema: None,
        pricing: None,
        cost_report: DEFAULT_COST_REPORT.to_owned(),
        slug,
        runner,
    })
}

/// Returns the text of a manifest. The text of a special file, such as a pipe, is empty; returns
/// `None` for a regular file that is unreadable or too large.
#[must_use]
pub(crate) fn text_of(path: &Path) -> Option<String> {
    let is_special = || std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
    read_file(path, BYTES_MAX).ok().or_else(|| is_special().then(String::new))
}

/// Returns whether a file has this extension, ignoring case.
#[must_use]
pub(crate) fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|own| own.eq_ignore_ascii_case(extension))
}

/// Returns the slug of a file that cannot be loaded: the slug in the file if it can be read despite
/// the errors, or else the slug derived from the file name.
#[must_use]
pub(crate) fn slug_meant(path: &Path) -> Option<Slug> {
    let of_line = |line: &str| -> Option<Slug> {
        let value = line.trim().strip_prefix("slug")?.trim_start().strip_prefix('=')?.trim_start();
        let quote = value.chars().next().filter(|first| matches!(first, '"' | '\''))?;
        value.get(1..)?.split(quote).next()?.parse().ok()
    };
    let text = has_extension(path, "toml").then(|| read_file(path, BYTES_MAX).ok()).flatten();
    let written = text.and_then(|text| text.lines().find_map(of_line));
    written.or_else(|| slug_of(path.file_stem()?.to_str()?).parse().ok())
}

/// Derives a slug from a file name: each character that is not allowed in slugs is replaced with a
/// hyphen.
fn slug_of(name: &str) -> String {
    let is_good = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.');
    let letters = name.chars().map(|letter| if is_good(letter) { letter } else { '-' });
    let slug: String = letters.collect::<String>().to_ascii_lowercase();
    slug.trim_matches(['-', '.']).to_owned()
}

fn parse(text: &str, folder: &Path) -> Result<Manifest, Vec<config::Error>> {
    let folder = config::absolute(folder);
    let reader = Reader::new(text);
    let document = reader.document();
    let mut manifest = Section::root(&reader, &document, |root| manifest(root, &folder));
    drop(document);
    let (errors, _known) = reader.finish();
    if let Some(cache) = manifest.as_mut().and_then(|manifest| manifest.cache.as_mut()) {
        cache.version = version_of(text);
    }
    manifest.filter(|_| errors.is_empty()).ok_or(errors)
}

/// Returns the SHA-256 of a manifest's keys and values; comments and the order of the keys do not
/// count.
fn version_of(text: &str) -> [u8; 32] {
    let mut document: Value = toml::from_str(text).unwrap_or_default();
    document.sort_all_objects();
    Sha256::digest(document.to_string()).into()
}

/// Returns the JSON Schema for manifests, which editors use. The schema describes what [`read`]
/// accepts for each runner type and each cost type.
#[must_use]
pub fn published_schema() -> Value {
    let of = |text: &str| {
        let reader = Reader::describing(text);
        let document = reader.document();
        let _incomplete = Section::root(&reader, &document, |root| manifest(root, Path::new("/")));
        drop(document);
        reader.schema()
    };
    let variants = |table: &str, types: &[&str]| -> Value {
        let schemas = types.iter().map(|name| {
            let mut whole = of(&format!("[{table}]\ntype = '{name}'"));
            let mut variant = whole.pointer_mut(&format!("/properties/{table}"))?.take();
            // Either `url` or `urls` is required, or `start`, which determines the URL.
            if variant.pointer("/properties/urls").is_some() {
                variant.get_mut("required")?.as_array_mut()?.retain(|name| name != "url");
                let either = serde_json::json!([
                    {"required": ["url"]},
                    {"required": ["urls"]},
                    {"required": ["start"], "not": {"required": ["url"]}},
                ]);
                variant.as_object_mut()?.insert("oneOf".to_owned(), either);
            }
            Some(variant)
        });
        serde_json::json!({"oneOf": schemas.collect::<Vec<_>>()})
    };
    let mut schema = of("");
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        let runners: Vec<&str> = options::type_names().collect();
        properties.insert("runner".to_owned(), variants("runner", &runners));
        properties.insert("cost".to_owned(), variants("cost", &["fixed", "usage_based"]));
    }
    meanings::describe(&mut schema);
    schema
}

/// Parses the whole file. Every key is read even after an error, so that all errors are found.
fn manifest(root: &mut Section<'_>, folder: &Path) -> Option<Manifest> {
    let slug = root.required("slug", parsed::<Slug>);
    let title = root.optional("title", text);
    let description = root.get("description", String::new(), string);
    let output_type = root.optional("output_type", one_of(&OutputType::ALL, OutputType::as_str));
    let concurrency = root.optional("concurrency", whole(1..=CONCURRENCY_MAX));
    let timeout = root.get("timeout", DEFAULT_TIMEOUT, duration(TIMEOUT_MIN..=TIMEOUT_MAX));
    let queue_limit = root.get("queue_limit", DEFAULT_QUEUE_LIMIT, whole(0..=QUEUE_LIMIT_MAX));
    let written = schema(root, folder);
    let cost = root.optional_section("cost", cost);
    let retry = root.optional_section("retry", |section| Some(retry(section)));
    let cache = root.optional_section("cache", cache);
    if cache.is_some() && output_type.is_some_and(OutputType::is_artefact) {
        let message = "`cache`: outputs that are files are not cached, because files expire";
        root.error("cache", message.to_owned());
    }
    let runner = root.required_section("runner", |section| options::read(section, folder))?;
    if !runner.options.is_self_describing() {
        root.need("output_type");
    }
    let slug = slug?;
    let (pricing, report) = cost.map(|cost| (cost.pricing, cost.report)).unzip();
    Some(Manifest {
        title: title.unwrap_or_else(|| slug.to_string()),
        slug,
        description,
        output_type,
        concurrency: concurrency
            .or_else(|| runner.options.concurrency())
            .unwrap_or(DEFAULT_CONCURRENCY),
        timeout,
        queue_limit,
        retry: retry.unwrap_or_else(Policy::once),
        cache,
        schema: written.or_else(|| of_runner(root, &runner)),
        pricing,
        cost_report: report.flatten().unwrap_or_else(|| DEFAULT_COST_REPORT.to_owned()),
        runner,
    })
}

/// Parses the request schema, which is either inline or in a file next to the manifest.
fn schema(root: &mut Section<'_>, folder: &Path) -> Option<Arc<Schema>> {
    let compiled = |value: &values::Value<'_>, schema: &Value| {
        let schema = Schema::compile(schema).map(Arc::new);
        schema.map_err(|error| {
            // The location inside the schema file is unknown here, so the error points to the
            // file's name.
            problem(values::within(value, error.path()), error.to_string())
        })
    };
    let mut suspects = Vec::new();
    let inline = root.optional("request_schema", |value| {
        let schema = compiled(value, &json(value)?)?;
        let unknown = unknown_keywords(schema.text()).into_iter();
        suspects.extend(unknown.map(|unknown| (key_at(value, &unknown), unknown)));
        Ok(schema)
    });
    for (at, UnknownKeyword { path, keyword }) in suspects {
        let table = format!("request_schema{}", path.replace('/', "."));
        root.suspect(at, &table, &keyword, near_keyword(&keyword));
    }
    let beside = root.optional("request_schema_file", |value| {
        let schema = json_beside(&text(value)?, folder, BYTES_MAX);
        let schema = compiled(value, &schema.map_err(|message| problem(value, message))?)?;
        let unknown = unknown_keywords(schema.text()).into_iter();
        let misspelled = unknown.filter_map(|UnknownKeyword { path, keyword }| {
            let near = near_keyword(&keyword)?;
            let message = format!("{path}/{keyword}: unknown keyword; did you mean `{near}`?");
            Some(problem(value, message))
        });
        let problems: Vec<_> = misspelled.flatten().collect();
        if problems.is_empty() { Ok(schema) } else { Err(problems) }
    });
    if root.span("request_schema").is_some() && root.span("request_schema_file").is_some() {
        let message = "`request_schema` and `request_schema_file`: set only one of them";
        root.error("request_schema_file", message.to_owned());
    }
    inline.or(beside)
}

/// Returns the JSON Schema keyword that is closest to an unknown one.
fn near_keyword(unknown: &str) -> Option<&'static str> {
    spelling::nearest(unknown, &KEYWORDS)
}

/// Returns the byte range of an unknown keyword in the schema's table.
fn key_at(schema: &values::Value<'_>, unknown: &UnknownKeyword) -> Range<usize> {
    let table = values::within(schema, &unknown.path);
    let mut keys = table.get_ref().as_table().into_iter().flatten().map(|(key, _)| key);
    let key = keys.find(|key| *key.get_ref() == unknown.keyword.as_str());
    key.map_or_else(|| table.span(), |key| key.span())
}

/// Returns the request schema that the runner's options imply.
fn of_runner(root: &Section<'_>, runner: &options::Config) -> Option<Arc<Schema>> {
    let schema = Schema::compile(&runner.options.schema()?);
    let schema = schema.map_err(|error| root.error("runner", error.to_string()));
    schema.ok().map(Arc::new)
}

/// Parses the `[retry]` table, which has the fields of a step's `retry` with the same bounds and
/// defaults.
fn retry(section: &mut Section<'_>) -> Policy {
    let seconds = |value: &values::Value<'_>| {
        let seconds = number(0.0..=retry::DELAY_MAX.as_secs_f64())(value)?;
        Ok(Duration::from_secs_f64(seconds))
    };
    let classes = values::list(one_of(&ErrorClass::ALL, ErrorClass::as_str));
    let written = retry::Written {
        max_attempts: section.optional("max_attempts", whole(1..=retry::ATTEMPTS_MAX)),
        initial_delay: section.optional("initial_delay_seconds", seconds),
        backoff_multiplier: section
            .optional("backoff_multiplier", number(1.0..=retry::MULTIPLIER_MAX)),
        max_delay: section.optional("max_delay_seconds", seconds),
        retry_on: section.optional("retry_on", classes),
    };
    written.policy()
}

/// Parses `[cache]`. The version is set once the whole manifest is read.
fn cache(section: &mut Section<'_>) -> Option<Cache> {
    let ttl = section.required("ttl", duration(CACHE_TTL_MIN..=CACHE_TTL_MAX));
    let scope = one_of(&CacheScope::ALL, CacheScope::as_str);
    let scope = section.get("scope", CacheScope::Organization, scope);
    Some(Cache { ttl: ttl?, scope, version: [0; 32] })
}

/// Parses `[cost]`. Each cost type has its own keys; `report` is allowed with both.
fn cost(section: &mut Section<'_>) -> Option<Cost> {
    let spell = |kind| match kind {
        CostType::Fixed => "fixed",
        CostType::UsageBased => "usage_based",
    };
    let kind = section.required("type", one_of(&[CostType::Fixed, CostType::UsageBased], spell));
    let dollars = || number(0.0..=DOLLARS_MAX);
    let report = section.optional("report", text);
    let pricing = match kind {
        None => {
            section.ignore_others();
            return None;
        }
        Some(CostType::Fixed) => {
            let amount = section.required("amount", dollars())?;
            Pricing::Fixed { amount: Usd::from_dollars(amount)? }
        }
        Some(CostType::UsageBased) => Pricing::UsageBased {
            estimate: section.optional("estimate", string),
            rates: Rates {
                per_second: section.optional("per_second", dollars()),
                per_million_input_tokens: section.optional("per_million_input_tokens", dollars()),
                per_million_output_tokens: section.optional("per_million_output_tokens", dollars()),
                per_million_cached_input_tokens: section
                    .optional("per_million_cached_input_tokens", dollars()),
                per_million_reasoning_tokens: section
                    .optional("per_million_reasoning_tokens", dollars()),
                per_audio_minute: section.optional("per_audio_minute", dollars()),
                per_million_characters: section.optional("per_million_characters", dollars()),
                per_image: section.optional("per_image", dollars()),
            },
        },
    };
    Some(Cost { pricing, report })
}

#[cfg(test)]
mod tests;
