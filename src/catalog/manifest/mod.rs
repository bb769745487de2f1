//! Manifests: one TOML file for each model, read into a checked [`Manifest`].
//!
//! Every fault is told with its file, line and column, and an unknown key with the nearest known
//! one. Secrets come in by `${file:…}` and `${env:…}` and appear in no message.

mod runner;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;

use self::runner::WrittenRunner;
pub use self::runner::{CommandConfig, HttpConfig, OpenAiConfig, RunnerConfig};
use crate::domain::model::{OutputType, Pricing, Slug};
use crate::domain::money::Usd;
use crate::schema::Schema;
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
#[derive(Debug, PartialEq)]
pub struct Manifest {
    pub slug: Slug,
    pub title: String,
    pub description: String,
    /// `None`: the model itself says it, or it is an object.
    pub output_type: Option<OutputType>,
    pub concurrency: usize,
    pub timeout: Duration,
    pub queue_limit: usize,
    /// `None`: the model itself says it, or any object will do.
    pub schema: Option<Arc<Schema>>,
    pub pricing: Option<Pricing>,
    /// JSON pointer to a cost in the answer.
    pub cost_report: String,
    pub runner: RunnerConfig,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    slug: Spanned<Slug>,
    title: Option<String>,
    #[serde(default)]
    description: String,
    output_type: Option<OutputType>,
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
    "command",
    "mode",
    "directory",
    "env",
    "memory_bytes",
    "writable",
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
    let runner = runner::check(written.runner, folder)?;
    Ok(Manifest {
        title: written.title.unwrap_or_else(|| slug.to_string()),
        slug,
        description: written.description,
        output_type: output_type(written.output_type, &runner)?,
        concurrency: concurrency(written.concurrency)?,
        timeout: timeout(written.timeout)?,
        queue_limit: written.queue_limit.unwrap_or(DEFAULT_QUEUE_LIMIT),
        schema: schema(written.request_schema, written.request_schema_file, folder, &runner)?,
        pricing: cost.map(pricing).transpose()?,
        cost_report: cost_report.unwrap_or_else(|| DEFAULT_COST_REPORT.to_owned()),
        runner,
    })
}

fn output_type(
    written: Option<OutputType>,
    runner: &RunnerConfig,
) -> Result<Option<OutputType>, Placed> {
    if written.is_none() && !runner.tells_its_face() {
        return Err((None, "missing field `output_type`".to_owned()));
    }
    Ok(written)
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
) -> Result<Option<Arc<Schema>>, Placed> {
    let (span, schema) = match (inline, file) {
        (Some(_), Some(file)) => {
            let message = "request_schema and request_schema_file exclude each other".to_owned();
            return Err((Some(file.span()), message));
        }
        (Some(inline), None) => (Some(inline.span()), inline.into_inner()),
        (None, Some(file)) => (Some(file.span()), schema_file(&file, folder)?),
        (None, None) => match runner.schema() {
            Some(schema) => (None, schema),
            None => return Ok(None),
        },
    };
    let schema = Schema::compile(&schema);
    schema
        .map(|schema| Some(Arc::new(schema)))
        .map_err(|error| (span, format!("request_schema: {error}")))
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
            (with("type = \"http\"", "type = \"llm\""), "14:8 runner: this version runs builtin"),
            (with("type = \"http\"", "type = \"command\""), "13:1 runner: command is missing"),
            (
                with("type = \"http\"", "type = \"command\"\ncommand = []"),
                "15:11 runner: command is a list",
            ),
            (
                with("type = \"http\"", "type = \"command\"\ncommand = [\"x\"]\nmode = \"twice\""),
                "16:8 runner: mode is one of persistent, once",
            ),
            (
                with(
                    "type = \"http\"",
                    "type = \"command\"\ncommand = [\"x\"]\nmemory_bytes = \"1KiB\"",
                ),
                "16:16 runner: memory_bytes is 64MiB or more",
            ),
            (
                with(
                    "type = \"http\"",
                    "type = \"command\"\ncommand = [\"x\"]\ndirectory = \"gone\"",
                ),
                "16:13 runner: directory: ",
            ),
            (with("output_type = \"string\"", ""), "missing field `output_type`"),
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
        assert!(read.schema.unwrap().check(serde_json::json!({})).is_err());
        for outside in ["../s.json", "/etc/passwd", "missing.json"] {
            assert!(parse(&manifest(outside), folder.path()).is_err(), "{outside}");
        }
    }
}
