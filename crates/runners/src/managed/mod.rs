//! Servers that this service starts, watches and stops, such as llama-server or vLLM.
//!
//! ```text
//! server     one server: started on the first request, stopped when idle, restarted if it exits
//! start      its process, until it is ready
//! group      servers that share memory: which of them run, and which one gives way
//! ```
//!
//! A manifest of the runners `openai`, `http`, `cog` and `oip` has the key `start`: the command of
//! its server. `${PORT}` in the command, the environment and the URL is a free loopback port, which
//! differs from start to start. This file parses these keys.

mod group;
mod server;
mod start;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::HeaderValue;
use toml::Spanned;
use toml::de::DeValue;

pub use self::group::{Group, Groups};
pub use self::server::{InUse, Phase, Server, Situation};
use super::command::{directory, program, variable};
use super::http::path;
use super::llm::Load;
use orrery_config::reader::{Parsed, Section};
use orrery_config::secret::Secret;
use orrery_config::values::{self, duration, map, one_of, size, text};
use orrery_http::client::Response;

/// What stands for the port in commands, environments and URLs.
pub(crate) const PORT: &str = "${PORT}";
/// Stands for [`PORT`] in a URL until the server has a port, because a URL needs a number.
const PORT_UNKNOWN: &str = ":65535";
const START_TIMEOUT: Duration = Duration::from_secs(120);
const START_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_TIMEOUT_MAX: Duration = Duration::from_secs(600);
const IDLE_UNLOAD: Duration = Duration::from_secs(15 * 60);
const IDLE_MIN: Duration = Duration::from_secs(1);
const IDLE_MAX: Duration = Duration::from_secs(366 * 86_400);
const SECOND: Duration = Duration::from_secs(1);
/// Bounds of `memory`.
const MEMORY_MIN: u64 = 1024 * 1024;
const MEMORY_MAX: u64 = 1 << 50;

/// The keys of a manifest about the server that it starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The program and its arguments, never empty.
    pub(super) command: Vec<String>,
    /// The absolute working directory; by default, the directory of the manifest.
    pub(super) directory: PathBuf,
    pub(super) env: Vec<(String, Secret)>,
    /// The path that responds with success when the server is ready; `None` means the check of the
    /// runner.
    pub(super) health: Option<String>,
    pub(super) start_timeout: Duration,
    pub(super) stop_timeout: Duration,
    pub(super) load: Load,
    pub(super) idle_unload: Duration,
    /// The group of servers with which this server shares memory.
    pub(super) group: Option<String>,
    /// The memory that the server takes of its group, in bytes; `None` means all of it.
    pub(super) memory: Option<u64>,
}

/// How a runner finds out whether a server is ready.
#[derive(Debug, Clone)]
pub struct Check {
    /// A path that is appended to the server's URL.
    pub path: String,
    pub is_ready: fn(&Response) -> bool,
    /// The header `Authorization`.
    pub authorization: Option<HeaderValue>,
    /// Whether the server is started once to learn what it serves.
    pub describes_model: bool,
}

/// Returns whether the status is a success.
pub(crate) fn success(answer: &Response) -> bool {
    answer.status.is_success()
}

/// Returns whether the status is no server error.
pub(crate) fn answers(answer: &Response) -> bool {
    !answer.status.is_server_error()
}

impl Options {
    /// Reads the keys; returns `None` without `start`. `health` is the readiness path, if the
    /// runner itself has read it.
    pub(crate) fn read(
        section: &mut Section<'_>,
        folder: &Path,
        health: Option<String>,
    ) -> Option<Self> {
        let command = section.optional("start", program);
        let directory = section.get("working_dir", folder.to_path_buf(), directory(folder));
        let env = section.get("environment", Vec::new(), map(environment(folder)));
        let start_timeout =
            section.get("start_timeout", START_TIMEOUT, duration(SECOND..=START_TIMEOUT_MAX));
        let stop_timeout = section.get(
            "stop_timeout",
            STOP_TIMEOUT,
            duration(Duration::from_millis(100)..=STOP_TIMEOUT_MAX),
        );
        let load = section.get("load", Load::OnDemand, one_of(&Load::ALL, Load::as_str));
        let idle_unload = section.get("idle_unload", IDLE_UNLOAD, duration(IDLE_MIN..=IDLE_MAX));
        let group = section.optional("group", text);
        let memory = section.optional("memory", size(MEMORY_MIN..=MEMORY_MAX));
        let keys = [
            "working_dir",
            "environment",
            "start_timeout",
            "stop_timeout",
            "load",
            "idle_unload",
            "group",
            "memory",
        ];
        if section.span("start").is_none() {
            for key in keys.into_iter().filter(|key| section.span(key).is_some()) {
                let message = format!("`runner.{key}` is for a server that `runner.start` starts");
                section.error(key, message);
            }
            return None;
        }
        if memory.is_some() && section.span("group").is_none() {
            let message =
                "`runner.memory` is what the server takes of its group: set `runner.group`";
            section.error("memory", message.to_owned());
        }
        let command = command?;
        Some(Self {
            command,
            directory,
            env,
            health,
            start_timeout,
            stop_timeout,
            load,
            idle_unload,
            group,
            memory,
        })
    }

    /// Returns the program and its arguments.
    pub(crate) fn command(&self) -> &[String] {
        &self.command
    }

    /// Returns the working directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

/// Reads the readiness path of a server that this service starts.
pub(crate) fn health(section: &mut Section<'_>) -> Option<String> {
    let health = section.optional("health", path);
    if section.span("health").is_some() && section.span("start").is_none() {
        let message = "`runner.health` is for a server that `runner.start` starts";
        section.error("health", message.to_owned());
    }
    health
}

/// Parses a variable of the environment; secrets are expanded, and [`PORT`] is kept.
fn environment(folder: &Path) -> impl Fn(&str, &values::Value<'_>) -> Parsed<(String, Secret)> {
    move |name, value| {
        let Some(written) = value.get_ref().as_str().filter(|text| text.contains(PORT)) else {
            return variable(folder)(name, value);
        };
        let mut parts = Vec::new();
        for part in written.split(PORT) {
            let part = Spanned::new(value.span(), DeValue::String(Cow::Borrowed(part)));
            parts.push(variable(folder)(name, &part)?.1.expose().to_owned());
        }
        Ok((name.to_owned(), Secret::from(parts.join(PORT))))
    }
}

/// Returns a URL of a manifest in which a number stands for [`PORT`].
pub(crate) fn with_number<'v>(value: &'v values::Value<'v>) -> Cow<'v, values::Value<'v>> {
    match value.get_ref().as_str().filter(|text| text.contains(PORT)) {
        Some(text) => {
            let text = text.replacen(&format!(":{PORT}"), PORT_UNKNOWN, 1);
            Cow::Owned(Spanned::new(value.span(), DeValue::String(text.into())))
        }
        None => Cow::Borrowed(value),
    }
}

/// The URL of a server whose manifest has no `url`.
pub(crate) fn default_url(path: &str) -> values::Value<'static> {
    Spanned::new(0..0, DeValue::String(format!("http://127.0.0.1{PORT_UNKNOWN}{path}").into()))
}

/// Returns the URL with the server's port.
fn at_port(url: &str, port: u16) -> String {
    url.replacen(PORT_UNKNOWN, &format!(":{port}"), 1)
}
