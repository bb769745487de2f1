//! The `[runner]` of a manifest, one kind after the other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;

use super::Placed;
use crate::runners::{command, openai};
use crate::secret::{self, Secret};
use crate::written::Size;

/// The least address space that a program can start in.
const MEMORY_MIN: u64 = 64 * 1024 * 1024;

/// How a model runs.
#[derive(Debug, PartialEq)]
pub enum RunnerConfig {
    /// A model that comes with the service.
    Builtin { name: String },
    /// An inference server.
    Http(HttpConfig),
    /// A server that speaks OpenAI's API.
    OpenAi(OpenAiConfig),
    /// A program.
    Command(CommandConfig),
    /// A container that Cog has built; its URL, without a slash at its end.
    Cog { url: String },
}

impl RunnerConfig {
    /// The request schema of a manifest that gives none, where the kind of model has one.
    #[must_use]
    pub fn schema(&self) -> Option<Value> {
        match self {
            Self::OpenAi(openai) => Some(openai.kind.schema()),
            Self::Builtin { .. } | Self::Http(_) | Self::Command(_) | Self::Cog { .. } => None,
        }
    }

    /// Whether the model itself says what it takes and gives.
    #[must_use]
    pub const fn tells_its_face(&self) -> bool {
        match self {
            Self::Cog { .. } => true,
            Self::Builtin { .. } | Self::Http(_) | Self::OpenAi(_) | Self::Command(_) => false,
        }
    }
}

/// The keys of a runner of type `command`.
#[derive(Debug, PartialEq)]
pub struct CommandConfig {
    /// The program and its arguments, never empty.
    pub command: Vec<String>,
    pub mode: command::Mode,
    /// Absolute; the manifest's folder unless it says otherwise.
    pub directory: PathBuf,
    pub env: Vec<(String, Secret)>,
    pub memory_bytes: Option<u64>,
    /// Absolute folders that the program may write to, beside its own.
    pub writable: Vec<PathBuf>,
}

/// The keys of a runner of type `openai`.
#[derive(Debug, PartialEq)]
pub struct OpenAiConfig {
    /// With its `/v1`.
    pub url: String,
    /// What the server calls the model.
    pub model: String,
    pub kind: openai::Kind,
    pub key: Option<Secret>,
}

/// The keys of a runner of type `http`.
#[derive(Debug, PartialEq)]
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
pub struct WrittenRunner {
    r#type: Spanned<String>,
    name: Option<String>,
    url: Option<Spanned<String>>,
    model: Option<String>,
    kind: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
    method: Option<Spanned<String>>,
    #[serde(default)]
    headers: BTreeMap<String, Spanned<String>>,
    body: Option<Value>,
    output: Option<Spanned<String>>,
    command: Option<Spanned<Vec<String>>>,
    mode: Option<Spanned<String>>,
    directory: Option<Spanned<PathBuf>>,
    #[serde(default)]
    env: BTreeMap<String, Spanned<String>>,
    memory_bytes: Option<Spanned<Size>>,
    #[serde(default)]
    writable: Vec<Spanned<PathBuf>>,
}

/// The runner as it was written, checked.
///
/// # Errors
/// What is wrong, and where in the text.
pub fn check(written: Spanned<WrittenRunner>, folder: &Path) -> Result<RunnerConfig, Placed> {
    let span = written.span();
    let written = written.into_inner();
    let missing = |key: &str| (Some(span.clone()), format!("runner: {key} is missing"));
    match written.r#type.get_ref().as_str() {
        "builtin" => {
            Ok(RunnerConfig::Builtin { name: written.name.ok_or_else(|| missing("name"))? })
        }
        "http" => http_runner(written, folder, &missing).map(RunnerConfig::Http),
        "openai" => openai_runner(written, folder, &missing).map(RunnerConfig::OpenAi),
        "command" => command_runner(written, folder, &missing).map(RunnerConfig::Command),
        "cog" => {
            let url = absolute_url(written.url, &missing)?;
            Ok(RunnerConfig::Cog { url: url.trim_end_matches('/').to_owned() })
        }
        other => {
            let message = format!(
                "runner: this version runs builtin, http, command, openai and cog, not '{other}'"
            );
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
    let kind = named("kind", &kind, &openai::Kind::ALL, openai::Kind::as_str)?;
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
        kind,
        key: key.transpose()?,
    })
}

/// The one of `all` that is spelled so.
fn named<T: Copy>(
    what: &str,
    written: &Spanned<String>,
    all: &[T],
    spell: impl Fn(T) -> &'static str,
) -> Result<T, Placed> {
    let found = all.iter().copied().find(|one| spell(*one) == written.get_ref());
    found.ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|one| spell(*one)).collect();
        (Some(written.span()), format!("runner: {what} is one of {}", known.join(", ")))
    })
}

fn command_runner(
    written: WrittenRunner,
    folder: &Path,
    missing: &dyn Fn(&str) -> Placed,
) -> Result<CommandConfig, Placed> {
    let command = written.command.ok_or_else(|| missing("command"))?;
    if command.get_ref().first().is_none_or(String::is_empty) {
        let message = "runner: command is a list: the program, then its arguments".to_owned();
        return Err((Some(command.span()), message));
    }
    let mode = match &written.mode {
        None => command::Mode::Persistent,
        Some(mode) => named("mode", mode, &command::Mode::ALL, command::Mode::as_str)?,
    };
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    let folder_of = |key: &str, given: &Spanned<PathBuf>| {
        let path = folder.join(given.get_ref());
        let message = || format!("runner: {key}: {} is no folder", path.display());
        if path.is_dir() { Ok(path) } else { Err((Some(given.span()), message())) }
    };
    let directory = written.directory.as_ref().map(|given| folder_of("directory", given));
    let directory = directory.transpose()?.unwrap_or_else(|| folder.clone());
    let writable = written.writable.iter().map(|given| folder_of("writable", given));
    let writable = writable.collect::<Result<_, _>>()?;
    let mut env = Vec::new();
    for (name, value) in written.env {
        let fault =
            |message: String| (Some(value.span()), format!("runner: env {name}: {message}"));
        let secret = secret::expand(value.get_ref(), &folder).map_err(fault)?;
        if name.is_empty() || name.contains(['=', '\0']) || secret.expose().contains('\0') {
            return Err(fault("is no name or value of an environment".to_owned()));
        }
        env.push((name, secret));
    }
    let memory_bytes = match written.memory_bytes {
        None => None,
        Some(size) => {
            Some(size.get_ref().bytes().filter(|size| *size >= MEMORY_MIN).ok_or_else(|| {
                let message = "runner: memory_bytes is 64MiB or more, such as \"4GiB\"".to_owned();
                (Some(size.span()), message)
            })?)
        }
    };
    let command = command.into_inner();
    Ok(CommandConfig { command, mode, directory, env, memory_bytes, writable })
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
