//! Manifests: one TOML file for each model, read into a checked [`Manifest`].
//!
//! Every fault is told with its file, line and column, and an unknown key with the nearest known
//! one. Secrets come in by `${file:…}` and `${env:…}` and appear in no message.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;

use crate::domain::model::{OutputType, Pricing, Slug};
use crate::domain::money::Usd;
use crate::runners::openai;
use crate::schema::Schema;
use crate::secret::{self, Secret};
use crate::written;

/// The largest manifest, in bytes.
const BYTES_MAX: u64 = 1024 * 1024;
const DEFAULT_CONCURRENCY: usize = 4;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
const DEFAULT_QUEUE_LIMIT: usize = 10_000;
/// Where an answer tells its cost, unless the manifest says otherwise.
const DEFAULT_COST_REPORT: &str = "/metrics/cost";

/// What is wrong with a manifest, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}:{column}: {message}", .file.display())]
pub struct Fault {
    pub file: PathBuf,
    /// From 1; 0 when the fault is of the file as a whole.
    pub line: usize,
    pub column: usize,
    pub message: String,
}

/// A checked manifest.
#[derive(Debug)]
pub struct Manifest {
    pub slug: Slug,
    pub title: String,
    pub description: String,
    pub output_type: OutputType,
    pub concurrency: usize,
    pub timeout: Duration,
    pub queue_limit: usize,
    pub schema: Schema,
    pub pricing: Option<Pricing>,
    /// JSON pointer to a cost in the answer.
    pub cost_report: String,
    pub runner: RunnerConfig,
}

/// How a model runs.
#[derive(Debug)]
pub enum RunnerConfig {
    /// A model that comes with the service.
    Builtin { name: String },
    /// An inference server.
    Http(HttpConfig),
    /// A server that speaks OpenAI's API.
    OpenAi(OpenAiConfig),
}

/// The keys of a runner of type `openai`.
#[derive(Debug)]
pub struct OpenAiConfig {
    /// With its `/v1`.
    pub url: String,
    /// What the server calls the model.
    pub model: String,
    pub kind: openai::Kind,
    pub key: Option<Secret>,
}

/// The keys of a runner of type `http`.
#[derive(Debug)]
pub struct HttpConfig {
    pub url: String,
    pub method: hyper::Method,
    pub headers: Vec<(hyper::header::HeaderName, Secret)>,
    /// What is sent; `None`: the whole input.
    pub body: Option<Value>,
    /// JSON pointer to the output in the answer; `None`: the whole answer.
    pub output: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    slug: Spanned<Slug>,
    title: Option<String>,
    #[serde(default)]
    description: String,
    output_type: OutputType,
    concurrency: Option<Spanned<usize>>,
    timeout: Option<Spanned<String>>,
    queue_limit: Option<usize>,
    request_schema: Option<Spanned<Value>>,
    request_schema_file: Option<Spanned<PathBuf>>,
    cost: Option<Spanned<WrittenCost>>,
    runner: Spanned<WrittenRunner>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCost {
    r#type: CostType,
    amount: Option<f64>,
    estimate: Option<String>,
    per_second: Option<f64>,
    per_million_input_tokens: Option<f64>,
    per_million_output_tokens: Option<f64>,
    report: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum CostType {
    Fixed,
    UsageBased,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRunner {
    r#type: Spanned<String>,
    name: Option<String>,
    url: Option<Spanned<String>>,
    model: Option<String>,
    kind: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
    method: Option<Spanned<String>>,
    #[serde(default)]
    headers: std::collections::BTreeMap<String, Spanned<String>>,
    body: Option<Value>,
    output: Option<Spanned<String>>,
}

/// Every key that a manifest may have, for the nearest one to an unknown key.
const KEYS: &[&str] = &[
    "slug",
    "title",
    "description",
    "output_type",
    "concurrency",
    "timeout",
    "queue_limit",
    "request_schema",
    "request_schema_file",
    "cost",
    "runner",
    "type",
    "amount",
    "estimate",
    "per_second",
    "per_million_input_tokens",
    "per_million_output_tokens",
    "report",
    "name",
    "url",
    "model",
    "kind",
    "key",
    "method",
    "headers",
    "body",
    "output",
];

/// A fault at a place in the text, before the file's name is known.
type Placed = (Option<Range<usize>>, String);

/// Reads and checks one manifest.
///
/// # Errors
/// The first [`Fault`] of the file.
pub fn read(path: &Path) -> Result<Manifest, Fault> {
    let whole = |message: String| Fault { file: path.to_path_buf(), line: 0, column: 0, message };
    let text = written::read(path, BYTES_MAX).map_err(whole)?;
    parse(&text, path.parent().unwrap_or(Path::new("."))).map_err(|(span, message)| {
        let (line, column) = span.map_or((0, 0), |span| written::place(&text, span.start));
        Fault { file: path.to_path_buf(), line, column, message }
    })
}

fn parse(text: &str, folder: &Path) -> Result<Manifest, Placed> {
    let written: Written = toml::from_str(text)
        .map_err(|error| (error.span(), written::explain(error.message(), KEYS)))?;
    let slug = written.slug.into_inner();
    let cost = written.cost.map(Spanned::into_inner);
    let cost_report = cost.as_ref().and_then(|cost| cost.report.clone());
    let runner = runner(written.runner, folder)?;
    Ok(Manifest {
        title: written.title.unwrap_or_else(|| slug.to_string()),
        slug,
        description: written.description,
        output_type: written.output_type,
        concurrency: concurrency(written.concurrency)?,
        timeout: timeout(written.timeout)?,
        queue_limit: written.queue_limit.unwrap_or(DEFAULT_QUEUE_LIMIT),
        schema: schema(written.request_schema, written.request_schema_file, folder, &runner)?,
        pricing: cost.map(pricing).transpose()?,
        cost_report: cost_report.unwrap_or_else(|| DEFAULT_COST_REPORT.to_owned()),
        runner,
    })
}

fn concurrency(written: Option<Spanned<usize>>) -> Result<usize, Placed> {
    match written {
        None => Ok(DEFAULT_CONCURRENCY),
        Some(number) if *number.get_ref() == 0 => {
            Err((Some(number.span()), "concurrency must be at least 1".to_owned()))
        }
        Some(number) => Ok(number.into_inner()),
    }
}

fn timeout(written: Option<Spanned<String>>) -> Result<Duration, Placed> {
    let Some(text) = written else { return Ok(DEFAULT_TIMEOUT) };
    humantime::parse_duration(text.get_ref()).map_err(|error| {
        (Some(text.span()), format!("timeout is a duration such as \"120s\": {error}"))
    })
}

fn schema(
    inline: Option<Spanned<Value>>,
    file: Option<Spanned<PathBuf>>,
    folder: &Path,
    runner: &RunnerConfig,
) -> Result<Schema, Placed> {
    let (span, schema) = match (inline, file) {
        (Some(_), Some(file)) => {
            let message = "request_schema and request_schema_file exclude each other".to_owned();
            return Err((Some(file.span()), message));
        }
        (Some(inline), None) => (Some(inline.span()), inline.into_inner()),
        (None, Some(file)) => (Some(file.span()), schema_file(&file, folder)?),
        (None, None) => match runner {
            RunnerConfig::OpenAi(openai) => (None, openai.kind.schema()),
            RunnerConfig::Builtin { .. } | RunnerConfig::Http(_) => {
                (None, serde_json::json!({"type": "object"}))
            }
        },
    };
    Schema::compile(&schema).map_err(|error| (span, format!("request_schema: {error}")))
}

/// A schema beside the manifest: the path must stay within its folder.
fn schema_file(file: &Spanned<PathBuf>, folder: &Path) -> Result<Value, Placed> {
    let fault = |message: String| (Some(file.span()), format!("request_schema_file: {message}"));
    let plain = |part| matches!(part, std::path::Component::Normal(_));
    if !file.get_ref().components().all(plain) {
        return Err(fault("must be a file in the manifest's folder".to_owned()));
    }
    let text = fs::read_to_string(folder.join(file.get_ref()));
    let text = text.map_err(|error| fault(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| fault(error.to_string()))
}

fn pricing(cost: WrittenCost) -> Result<Pricing, Placed> {
    let rates = [cost.per_second, cost.per_million_input_tokens, cost.per_million_output_tokens];
    if rates.into_iter().chain([cost.amount]).flatten().any(|rate| !rate.is_finite() || rate < 0.0)
    {
        return Err((None, "cost: amounts and rates are dollars, zero or more".to_owned()));
    }
    match cost.r#type {
        CostType::Fixed => {
            let amount = cost.amount.and_then(Usd::from_dollars);
            let amount = amount.ok_or((None, "cost: a fixed cost needs an amount".to_owned()))?;
            Ok(Pricing::Fixed { amount })
        }
        CostType::UsageBased => Ok(Pricing::UsageBased {
            estimate: cost.estimate,
            per_second: cost.per_second,
            per_million_input_tokens: cost.per_million_input_tokens,
            per_million_output_tokens: cost.per_million_output_tokens,
        }),
    }
}

fn runner(written: Spanned<WrittenRunner>, folder: &Path) -> Result<RunnerConfig, Placed> {
    let span = written.span();
    let written = written.into_inner();
    let missing = |key: &str| (Some(span.clone()), format!("runner: {key} is missing"));
    match written.r#type.get_ref().as_str() {
        "builtin" => {
            Ok(RunnerConfig::Builtin { name: written.name.ok_or_else(|| missing("name"))? })
        }
        "http" => http_runner(written, folder, &missing).map(RunnerConfig::Http),
        "openai" => openai_runner(written, folder, &missing).map(RunnerConfig::OpenAi),
        other => {
            let message =
                format!("runner: this version runs builtin, http and openai, not '{other}'");
            Err((Some(written.r#type.span()), message))
        }
    }
}

fn absolute_url(
    url: Option<Spanned<String>>,
    missing: &dyn Fn(&str) -> Placed,
) -> Result<String, Placed> {
    let url = url.ok_or_else(|| missing("url"))?;
    let parsed = url::Url::parse(url.get_ref()).ok();
    if !parsed.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) {
        let message = "runner: url must be an absolute http or https URL".to_owned();
        return Err((Some(url.span()), message));
    }
    Ok(url.into_inner())
}

fn openai_runner(
    written: WrittenRunner,
    folder: &Path,
    missing: &dyn Fn(&str) -> Placed,
) -> Result<OpenAiConfig, Placed> {
    let url = absolute_url(written.url, missing)?;
    let kind = written.kind.ok_or_else(|| missing("kind"))?;
    let named = openai::Kind::ALL.into_iter().find(|known| known.as_str() == kind.get_ref());
    let named = named.ok_or_else(|| {
        let known = openai::Kind::ALL.map(openai::Kind::as_str).join(", ");
        (Some(kind.span()), format!("runner: kind is one of {known}"))
    })?;
    let key = written.key.map(|key| {
        let fault = |message: String| (Some(key.span()), format!("runner: key: {message}"));
        let secret = secret::expand(key.get_ref(), folder).map_err(fault)?;
        if hyper::header::HeaderValue::from_str(secret.expose()).is_err() {
            return Err(fault("has characters that a header cannot carry".to_owned()));
        }
        Ok(secret)
    });
    Ok(OpenAiConfig {
        url: url.trim_end_matches('/').to_owned(),
        model: written.model.ok_or_else(|| missing("model"))?,
        kind: named,
        key: key.transpose()?,
    })
}

fn http_runner(
    written: WrittenRunner,
    folder: &Path,
    missing: &dyn Fn(&str) -> Placed,
) -> Result<HttpConfig, Placed> {
    let url = absolute_url(written.url, missing)?;
    let method = match written.method {
        None => hyper::Method::POST,
        Some(text) => text.get_ref().to_uppercase().parse().map_err(|_invalid| {
            (Some(text.span()), "runner: method is no HTTP method".to_owned())
        })?,
    };
    let mut headers = Vec::new();
    for (name, value) in written.headers {
        let span = value.span();
        let fault =
            |message: String| (Some(span.clone()), format!("runner: header {name}: {message}"));
        let secret = secret::expand(value.get_ref(), folder).map_err(&fault)?;
        if hyper::header::HeaderValue::from_str(secret.expose()).is_err() {
            return Err(fault("has characters that a header cannot carry".to_owned()));
        }
        let name = name.parse().map_err(|_invalid| fault("is no header name".to_owned()))?;
        headers.push((name, secret));
    }
    if let Some(output) =
        written.output.as_ref().filter(|output| !output.get_ref().starts_with('/'))
    {
        let message = "runner: output is a JSON pointer such as \"/caption\"".to_owned();
        return Err((Some(output.span()), message));
    }
    Ok(HttpConfig {
        url,
        method,
        headers,
        body: written.body,
        output: written.output.map(Spanned::into_inner),
    })
}

#[cfg(test)]
mod tests {
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

    fn fault(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.toml");
        fs::write(&path, text).unwrap();
        let fault = read(&path).unwrap_err();
        format!("{}:{} {}", fault.line, fault.column, fault.message)
    }

    #[test]
    fn a_good_manifest_is_read_whole() {
        let manifest = parse(GOOD, Path::new(".")).unwrap();
        assert_eq!((manifest.slug.as_str(), manifest.concurrency), ("caption", 2));
        assert_eq!(manifest.timeout, Duration::from_secs(5));
        assert_eq!(manifest.pricing, Some(Pricing::Fixed { amount: Usd::from_micros(2000) }));
        assert!(matches!(manifest.runner, RunnerConfig::Http(HttpConfig { .. })));
    }

    #[test]
    fn faults_name_their_place_and_the_nearest_key() {
        let with = |from: &str, to: &str| GOOD.replace(from, to);
        for (text, expect) in [
            (with("title", "tilte"), "3:1 unknown key 'tilte', did you mean 'title'?"),
            (with("slug = \"caption\"\n", ""), "1:1 missing field `slug`"),
            (with("slug = \"caption\"", "slug = \"a b\""), "2:8 a slug is 1 to 128 characters"),
            (with("\"5s\"", "\"5 parsecs\""), "6:11 timeout is a duration such as"),
            (with("concurrency = 2", "concurrency = 0"), "5:15 concurrency must be at least 1"),
            (with("required = [\"image\"]", "\"$ref\" = \"http://a/\""), "leaves the document"),
            (with("type = \"http\"", "type = \"cog\""), "14:8 runner: this version runs builtin"),
            (with("type = \"http\"", "type = \"openai\""), "13:1 runner: kind is missing"),
            (
                with("type = \"http\"", "type = \"openai\"\nkind = \"talk\""),
                "15:8 runner: kind is one of chat, embeddings, images",
            ),
            (
                with("type = \"http\"", "type = \"openai\"\nkind = \"chat\""),
                "runner: model is missing",
            ),
            (with("http://127.0.0.1:5000/predict", "/x"), "runner: url must be an absolute"),
            (
                with("output = \"/caption\"", "output = \"caption\""),
                "runner: output is a JSON pointer",
            ),
            (with("\"yes\"", "\"${env:ORRERY_TEST_UNSET}\""), "ORRERY_TEST_UNSET is not set"),
            (with("amount = 0.002", ""), "cost: a fixed cost needs an amount"),
            (with("amount = 0.002", "amount = -1"), "dollars, zero or more"),
            ("slug = ".to_owned(), "1:"),
        ] {
            let said = fault(&text);
            assert!(said.contains(expect), "{said}\n  instead of {expect}");
        }
    }

    #[test]
    fn a_schema_file_stays_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("s.json"), r#"{"required":["a"]}"#).unwrap();
        let manifest = |file: &str| {
            format!(
                "slug='a'\noutput_type='string'\nrequest_schema_file='{file}'\n\
                 [runner]\ntype='builtin'\nname='text-template'\n"
            )
        };
        let read = parse(&manifest("s.json"), folder.path()).unwrap();
        assert!(read.schema.check(serde_json::json!({})).is_err());
        for outside in ["../s.json", "/etc/passwd", "missing.json"] {
            assert!(parse(&manifest(outside), folder.path()).is_err(), "{outside}");
        }
    }
}
