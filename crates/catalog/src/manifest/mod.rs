//! Manifests: one TOML file per model, parsed into a validated [`Manifest`].
//!
//! Parsing is as strict as for the configuration: every error is reported with its file, line and
//! column, and for an unknown key, the closest valid key of its table is suggested. Secrets are
//! read from `${file:…}` and `${env:…}` and never appear in messages.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use orrery_config as config;
use orrery_config::reader::{Reader, Section, read_file};
use orrery_config::secret::{changeable_by_others, replaceable_by_others};
use orrery_config::values::{
    self, duration, json, number, one_of, parsed, problem, string, text, whole,
};
use orrery_domain::classify::ErrorClass;
use orrery_domain::model::{OutputType, Pricing, Slug};
use orrery_domain::money::Usd;
use orrery_domain::retry::{self, Policy};
use orrery_runners::options;
use orrery_schema::Schema;

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
pub struct Manifest {
    pub slug: Slug,
    pub title: String,
    pub description: String,
    /// `None` means the type that the model reports, or `object`.
    pub output_type: Option<OutputType>,
    pub concurrency: usize,
    pub timeout: Duration,
    pub queue_limit: usize,
    /// Retry policy of predictions.
    pub retry: Policy,
    /// `None` means the schema that the model reports, or any object.
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

/// The runner type for programs.
const COMMAND: &str = "command";

/// Parses and validates one manifest.
///
/// # Errors
/// Every [`Error`] of the file.
pub fn read(path: &Path) -> Result<Manifest, Vec<Error>> {
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
    // Write access to such a manifest, or to its program, allows running programs as the service's
    // user.
    if parsed.runner.type_name == COMMAND {
        let programs = parsed.runner.options.programs();
        let manifest = [path, folder].into_iter().find_map(changeable_by_others);
        let changeable =
            manifest.or_else(|| programs.iter().find_map(|path| replaceable_by_others(path)));
        if let Some(message) = changeable {
            return Err(vec![Error { file, line: 0, column: 0, message }]);
        }
    }
    Ok(parsed)
}

/// Returns the manifest of a model file that has none: the slug is derived from the file name, and
/// everything else is read from the file or set to a default. Returns `None` if the name yields no
/// valid slug.
#[must_use]
pub fn of_model_file(path: &Path) -> Option<Manifest> {
    let slug: Slug = slug_of(path.file_stem()?.to_str()?).parse().ok()?;
    let runner = options::Config::of_model_file(&config::absolute(path));
    let title = runner.options.title().map(|title| title.chars().take(TITLE_CHARS_MAX).collect());
    Some(Manifest {
        title: title.unwrap_or_else(|| slug.to_string()),
        description: String::new(),
        output_type: None,
        concurrency: DEFAULT_CONCURRENCY,
        timeout: MODEL_FILE_TIMEOUT,
        queue_limit: DEFAULT_QUEUE_LIMIT,
        retry: Policy::once(),
        schema: None,
        pricing: None,
        cost_report: DEFAULT_COST_REPORT.to_owned(),
        slug,
        runner,
    })
}

/// Reads the text of a manifest; returns `None` if it is not a readable file within the size limit.
#[must_use]
pub fn text_of(path: &Path) -> Option<String> {
    let is_special = || std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
    read_file(path, BYTES_MAX).ok().or_else(|| is_special().then(String::new))
}

/// Returns the slug of a file that cannot be loaded: the slug in the file if it can be read despite
/// the errors, or else the slug of its name.
#[must_use]
pub fn slug_meant(path: &Path) -> Option<Slug> {
    let of_line = |line: &str| -> Option<Slug> {
        let value = line.trim().strip_prefix("slug")?.trim_start().strip_prefix('=')?.trim_start();
        let quote = value.chars().next().filter(|first| matches!(first, '"' | '\''))?;
        value.get(1..)?.split(quote).next()?.parse().ok()
    };
    let is_manifest = path.extension().is_some_and(|end| end == "toml");
    let text = is_manifest.then(|| read_file(path, BYTES_MAX).ok()).flatten();
    let written = text.and_then(|text| text.lines().find_map(of_line));
    written.or_else(|| slug_of(path.file_stem()?.to_str()?).parse().ok())
}

/// Replaces each character of a file name that slugs do not permit with a hyphen.
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
    let manifest = Section::root(&reader, &document, |root| manifest(root, &folder));
    drop(document);
    let (errors, _known) = reader.finish();
    manifest.filter(|_| errors.is_empty()).ok_or(errors)
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
    let inline = root.optional("request_schema", |value| compiled(value, &json(value)?));
    let beside = root.optional("request_schema_file", |value| {
        let schema = schema_file(&text(value)?, folder);
        compiled(value, &schema.map_err(|message| problem(value, message))?)
    });
    if root.span("request_schema").is_some() && root.span("request_schema_file").is_some() {
        let message = "`request_schema` and `request_schema_file`: set only one of them";
        root.error("request_schema_file", message.to_owned());
    }
    inline.or(beside)
}

/// Reads a schema file next to the manifest; the path must stay within the manifest's directory.
fn schema_file(file: &str, folder: &Path) -> Result<Value, String> {
    let is_plain = |part| matches!(part, std::path::Component::Normal(_));
    if !Path::new(file).components().all(is_plain) {
        return Err("must be a file in the manifest's folder".to_owned());
    }
    let text = read_file(&folder.join(file), BYTES_MAX)?;
    serde_json::from_str(&text).map_err(|error| format!("is not valid JSON: {error}"))
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
            per_second: section.optional("per_second", dollars()),
            per_million_input_tokens: section.optional("per_million_input_tokens", dollars()),
            per_million_output_tokens: section.optional("per_million_output_tokens", dollars()),
        },
    };
    Some(Cost { pricing, report })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const GOOD: &str = r#"
slug = "caption"
title = "Image captioner"
output_type = "string"
concurrency = 2
timeout = "5s"
[request_schema]
type = "object"
required = ["image"]
[cost]
type = "fixed"
amount = 0.002
[runner]
type = "http"
url = "http://127.0.0.1:5000/predict"
headers = { X-Plain = "yes" }
body = { image = "{{input.image}}" }
output = "/caption"
"#;

    /// Returns the errors of `text`, one per line.
    fn errors(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.toml");
        fs::write(&path, text).unwrap();
        let errors = read(&path).unwrap_err();
        let lines: Vec<String> =
            errors.iter().map(|f| format!("{}:{} {}", f.line, f.column, f.message)).collect();
        lines.join("\n")
    }

    #[test]
    fn manifest_parses_every_field() {
        let manifest = parse(GOOD, Path::new(".")).unwrap();
        assert_eq!((manifest.slug.as_str(), manifest.concurrency), ("caption", 2));
        assert_eq!(manifest.timeout, Duration::from_secs(5));
        assert_eq!(manifest.pricing, Some(Pricing::Fixed { amount: Usd::from_micros(2000) }));
        assert_eq!(manifest.runner.type_name, "http");
        assert_eq!(manifest, parse(GOOD, Path::new(".")).unwrap());
        for (from, to) in [("/predict", "/other"), ("yes", "no"), ("5s", "6s")] {
            let other = parse(&GOOD.replace(from, to), Path::new(".")).unwrap();
            assert_ne!(manifest, other, "{to}");
        }
    }

    #[test]
    fn manifest_error_names_its_position_and_nearest_key() {
        let with = |from: &str, to: &str| GOOD.replace(from, to);
        for (text, expect) in [
            (with("title", "tilte"), "3:1 unknown key `tilte`; did you mean `title`?"),
            (with("slug = \"caption\"\n", ""), "1:1 `slug` is missing"),
            (with("slug = \"caption\"", "slug = \"a b\""), "2:8 `slug`: a slug must have 1 to 128"),
            (with("\"5s\"", "\"5 parsecs\""), "6:11 `timeout`: expected a time such as"),
            (with("concurrency = 2", "concurrency = 0"), "5:15 `concurrency`: expected a whole"),
            (
                with("[cost]", "[retry]\nmax_attempts = 21\n[cost]"),
                "11:16 `retry.max_attempts`: exp",
            ),
            (
                with("[cost]", "[retry]\nretry_on = ['late']\n[cost]"),
                "11:13 `retry.retry_on`: expected one of \"content_moderation\", ",
            ),
            (with("[cost]", "[retry]\ndelay = 1\n[cost]"), "11:1 unknown key `retry.delay`"),
            (with("required = [\"image\"]", "\"$ref\" = \"http://a/\""), "leaves the document"),
            (with("output_type = \"string\"", ""), "1:1 `output_type` is missing"),
            (with("\"string\"", "\"text\""), "4:15 `output_type`: expected one of \"string\", "),
            (with("amount = 0.002", ""), "10:1 `cost.amount` is missing"),
            (
                with("amount = 0.002", "amount = -1"),
                "12:10 `cost.amount`: expected a number from 0",
            ),
            ("slug = ".to_owned(), "1:8 not TOML: "),
        ] {
            let message = errors(&text);
            assert!(
                message.starts_with(expect) || message.contains(expect),
                "{message}\n not {expect}"
            );
            assert!(!message.contains('\n'), "one error: {message}");
        }
    }

    #[test]
    fn manifest_runner_refuses_invalid_servers() {
        check_runners(&[
            ("type = 'oip'\nurl = 'http://a'", "1:1 `runner.model` is missing"),
            (
                "type = 'oip'\nmodel = 'm'\nurl = 'http://a/v2/models/m'",
                "4:7 `runner.url`: expected the server's URL without /v2/",
            ),
            (
                "type = 'cog'\nurl = 'http://a'\nurls = ['http://b']",
                "4:8 `runner.url` and `runner.urls`: set only one of them",
            ),
            ("type = 'cog'\nurls = []", "3:8 `runner.urls`: is empty: expected a list such as"),
            ("type = 'cog'\nurls = 'http://a'", "3:8 `runner.urls`: expected a list such as ["),
            ("type = 'cog'\nurls = ['a']", "3:9 `runner.urls`: expected an absolute http or"),
            (
                "type = 'cog'\nurls = ['http://a', 'http://a/']",
                "3:21 `runner.urls`: the same URL is listed twice",
            ),
            (
                "type = 'cog'\nurls = [{url = 'http://a', wieght = 2}]",
                "3:28 `runner.urls`: `wieght`: unknown key; did you mean `weight`?",
            ),
            ("type = 'cog'\nurls = [{weight = 2}]", "3:9 `runner.urls`: an entry without `url`"),
            (
                "type = 'cog'\nurls = [{url = 'http://a', weight = 0}]",
                "3:37 `runner.urls`: `weight`: expected a whole number from 1 to 1000, found 0",
            ),
            (
                "type = 'http'\nurl = 'http://a'\nhealth = 'x'",
                "4:10 `runner.health`: expected a path such as \"/healthz\"",
            ),
        ]);
    }

    #[test]
    fn manifest_runner_refuses_invalid_values() {
        check_runners(&[
            ("type = 'lml'\nurl = 1", "2:8 `runner.type`: expected one of \"builtin\", \"http\", "),
            ("url = 1", "1:1 `runner.type` is missing"),
            ("type = 'builtin'", "1:1 `runner.name` is missing"),
            ("type = 'builtin'\nname = 'x'", "3:8 `runner.name`: expected one of \"html-to-text\""),
            ("type = 'http'\nurl = '/x'", "3:7 `runner.url`: expected an absolute http or https"),
            (
                "type = 'http'\nurl = 'http://a'\noutput = 'x'",
                "4:10 `runner.output`: expected a JSON",
            ),
            (
                "type = 'http'\nurl = 'http://a'\nmethod = 'a b'",
                "4:10 `runner.method`: \"a b\" is not an HTTP method",
            ),
            (
                "type = 'http'\nurl = 'http://a'\nheaders = { X = '${env:ORRERY_TEST_UNSET}' }",
                "`runner.headers`: environment variable ORRERY_TEST_UNSET is not set",
            ),
            (
                "type = 'http'\nurl = 'http://a'\nheaders = { Accept = 'x', accept = 'y' }",
                "are the same header: keep one",
            ),
            (
                "type = 'http'\nurl = 'http://a'\nheaders = { \"a b\" = 'x' }",
                "`runner.headers`: \"a b\" is not a valid header name",
            ),
            ("type = 'http'\nurl = 'http://a'\nbody = '{{x}}'", "4:8 `runner.body`: {{x}} "),
            ("type = 'http'\nurl = 'http://a'\nbody = 2020-01-01", "a date in quotes, found 2020"),
            ("type = 'openai'\nmodel = 'm'\nurl = 'http://a'", "1:1 `runner.kind` is missing"),
            (
                "type = 'openai'\nmodel = 'm'\nurl = 'http://a'\nkind = 'talk'",
                "5:8 `runner.kind`: expected one of \"chat\", \"embeddings\", \"images\", found",
            ),
            ("type = 'openai'\nkind = 'chat'\nurl = 'http://a'", "1:1 `runner.model` is missing"),
            ("type = 'cog'", "1:1 `runner.url` is missing"),
            ("type = 'command'", "1:1 `runner.command` is missing"),
            (
                "type = 'command'\ncommand = []",
                "3:11 `runner.command`: expected a list: the program",
            ),
            (
                "type = 'command'\ncommand = ['x']\nmode = 'twice'",
                "4:8 `runner.mode`: expected one of \"persistent\", \"once\", found \"twice\"",
            ),
            (
                "type = 'command'\ncommand = ['x']\nmemory_bytes = '1KiB'",
                "4:16 `runner.memory_bytes`: expected bytes from 67108864 to",
            ),
            (
                "type = 'command'\ncommand = ['x']\ndirectory = 'absent'",
                "4:13 `runner.directory`: ",
            ),
            (
                "type = 'command'\ncommand = ['x']\nenv = { A = 'x', 'B=' = 'x' }",
                "`runner.env`: \"B=\" cannot be the name of an environment variable",
            ),
        ]);
    }

    /// Checks that each `[runner]` has exactly one error, which contains the given text.
    fn check_runners(runners: &[(&str, &str)]) {
        for (runner, expect) in runners {
            let message = errors(&format!("[runner]\n{runner}\n[x]\n"));
            let lines: Vec<&str> = message.lines().collect();
            let about = lines.iter().filter(|line| line.contains("`runner"));
            assert_eq!(about.count(), 1, "{message}");
            assert!(message.contains(expect), "{message}\n  instead of {expect}");
        }
    }

    /// A limit that a manifest sets on the wrong type of runner must not be ignored silently.
    #[test]
    fn manifest_runner_refuses_keys_of_other_types() {
        let keys = [
            "name = 'x'",
            "url = 'http://a'",
            "urls = ['http://a']",
            "health = '/x'",
            "version = '1'",
            "model = 'm'",
            "kind = 'chat'",
            "key = 'k'",
            "method = 'POST'",
            "headers = {}",
            "body = {}",
            "output = '/x'",
            "command = ['x']",
            "mode = 'once'",
            "directory = '.'",
            "env = {}",
            "memory_bytes = '1GiB'",
            "writable = []",
        ];
        for (kind, own) in [
            ("builtin", "name"),
            ("http", "url urls health method headers body output"),
            ("openai", "url urls model kind key"),
            ("cog", "url urls"),
            ("oip", "url urls model version"),
            ("command", "command mode directory env memory_bytes writable"),
        ] {
            let own: Vec<&str> = own.split(' ').collect();
            for key in keys {
                let name = key.split(' ').next().unwrap();
                let message = errors(&format!("x = 1\n[runner]\ntype = '{kind}'\n{key}\n"));
                let refused = message.contains(&format!("4:1 unknown key `runner.{name}`; "));
                assert_eq!(refused, !own.contains(&name), "{kind} {key}: {message}");
                assert!(!message.contains(&format!("did you mean `{name}`")), "{message}");
            }
        }
        for (kind, own) in [
            ("fixed", "amount report"),
            ("usage_based", "estimate per_second per_million_input_tokens report"),
        ] {
            let own: Vec<&str> = own.split(' ').collect();
            for key in [
                "amount = 1",
                "estimate = 'x'",
                "per_second = 1",
                "per_million_input_tokens = 1",
                "report = '/x'",
            ] {
                let name = key.split(' ').next().unwrap();
                let message = errors(&format!("x = 1\n[cost]\ntype = '{kind}'\n{key}\n"));
                let refused = message.contains(&format!("4:1 unknown key `cost.{name}`; "));
                assert_eq!(refused, !own.contains(&name), "{kind} {key}: {message}");
            }
        }
    }

    #[test]
    fn manifest_error_names_the_right_table_of_a_misplaced_key() {
        let message = errors("[runner]\ntype = 'http'\nslug = 'a'\nmemory_byte = 1\n");
        let misspelled = "4:1 unknown key `runner.memory_byte`; the keys here are";
        assert!(message.contains(misspelled), "{message}");
        for key in ["concurrency = 2", "timeout = '5s'", "output_type = 'string'"] {
            let message =
                errors(&format!("slug = 'a'\n[runner]\ntype = 'cog'\nurl = 'http://h'\n{key}\n"));
            assert!(
                message.contains("belongs to the top of the file, above `[runner]`"),
                "{message}"
            );
        }
        let message = errors("slug = 'a'\n[runner]\ntype = 'http'\nretry.max_attempts = 3\n");
        assert!(message.contains("`retry` is a table of its own: write `[retry]`"), "{message}");
    }

    #[test]
    fn manifest_schema_file_stays_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("s.json"), r#"{"required":["a"]}"#).unwrap();
        let manifest = |file: &str| {
            format!(
                "slug='a'\noutput_type='string'\nrequest_schema_file='{file}'\n\
                 [runner]\ntype='builtin'\nname='text-template'\n"
            )
        };
        let read = parse(&manifest("s.json"), folder.path()).unwrap();
        assert!(read.schema.unwrap().check(serde_json::json!({})).is_err());
        for outside in ["../s.json", "/etc/passwd", "missing.json"] {
            assert!(parse(&manifest(outside), folder.path()).is_err(), "{outside}");
        }
    }
}
