//! The section `[agent]`: the agent's models and limits, and the MCP servers that provide
//! additional tools. The table of each server is read as strictly as a section.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::reader::{Parsed, Section};
use super::values::{
    self, Value, duration, list, number, one_or_more, path, problem, size, text, url, whole, wrong,
    wrong_type,
};
use super::{Agent, McpServer, McpTransport, Secret};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// The largest cost limit that can be configured for an exchange, in US dollars.
const COST_MAX: f64 = 1_000_000.0;
/// Largest accepted context size, in tokens.
const CONTEXT_MAX: u32 = 100_000_000;
/// Maximum number of MCP servers.
const SERVERS_MAX: usize = 16;
/// Maximum length of a server's name, in characters.
const NAME_MAX: usize = 24;
/// Range of a program's address space limit: the smallest limit with which a program can start, and
/// the largest plausible limit.
const MEMORY_MIN: u64 = 64 * 1024 * 1024;
const MEMORY_MAX: u64 = 1 << 50;
/// Expected form of a table in `mcp_servers`.
const SERVER: &str = "a table such as { name = \"search\", url = \"https://search.lan/mcp\" }";
const KEYS: &str = "name, url, headers, command, directory, env, writable, memory_bytes and allow";

/// Reads the section. Relative paths are resolved against `folder`.
pub(super) fn agent(section: &mut Section<'_>, folder: &Path) -> Agent {
    let servers = section.get("mcp_servers", Vec::new(), list(|value| server(value, folder)));
    for (index, server) in servers.iter().enumerate() {
        if servers.iter().take(index).any(|earlier: &McpServer| earlier.name == server.name) {
            let message = format!("`agent.mcp_servers`: {:?} is listed twice", server.name);
            section.error("mcp_servers", message);
        }
    }
    if servers.len() > SERVERS_MAX {
        let message = format!("`agent.mcp_servers` must have at most {SERVERS_MAX} items");
        section.error("mcp_servers", message);
    }
    Agent {
        model: section.optional("model", text),
        eco_model: section.optional("eco_model", text),
        model_id: section.get("model_id", "orrery/beta".to_owned(), text),
        timeout: section.get("timeout", 5 * MINUTE, duration(SECOND..=HOUR)),
        max_steps: section.get("max_steps", 24, whole(1..=1000)),
        max_cost: section.optional("max_cost", number(0.0..=COST_MAX)),
        context_tokens: section.get("context_tokens", 32_768, whole(1024..=CONTEXT_MAX)),
        mcp_servers: servers,
    }
}

/// The keys that are present in a server's table.
#[derive(Default)]
struct Keys {
    name: Option<String>,
    url: Option<String>,
    headers: Vec<(String, Secret)>,
    command: Option<Vec<String>>,
    directory: Option<PathBuf>,
    env: Vec<(String, Secret)>,
    writable: Vec<PathBuf>,
    memory_bytes: Option<u64>,
    allow: Option<Vec<String>>,
    /// A key in the table that applies only to servers with a `url`. `of_command` is a key that
    /// applies only to servers with a `command`.
    of_url: Option<&'static str>,
    of_command: Option<&'static str>,
}

fn server(value: &Value<'_>, folder: &Path) -> Parsed<McpServer> {
    let table = value.get_ref().as_table().ok_or_else(|| {
        let text = json!({"type": "string", "minLength": 1});
        let texts = json!({"type": "array", "items": text});
        let secrets = json!({"type": "object", "additionalProperties": {"type": "string"}});
        let expects = json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": format!("^[a-z0-9-]{{1,{NAME_MAX}}}$")},
                "url": {"type": "string"}, "headers": secrets,
                "command": {"anyOf": [text, texts]}, "directory": text, "env": secrets,
                "writable": texts, "memory_bytes": {"type": ["integer", "string"]}, "allow": texts,
            },
            "required": ["name"],
            "oneOf": [{"required": ["url"]}, {"required": ["command"]}],
            "additionalProperties": false,
        });
        wrong_type(value, SERVER, expects)
    })?;
    let mut keys = Keys::default();
    for (key, value) in table {
        match key.get_ref().as_ref() {
            "name" => keys.name = Some(name(value)?),
            "url" => keys.url = Some(url(value)?),
            "headers" => {
                (keys.headers, keys.of_url) =
                    (values::headers(header(folder))(value)?, Some("headers"));
            }
            "command" => keys.command = Some(one_or_more(text)(value)?),
            "directory" => {
                (keys.directory, keys.of_command) = (Some(path(folder)(value)?), Some("directory"));
            }
            "env" => {
                (keys.env, keys.of_command) = (values::map(variable(folder))(value)?, Some("env"));
            }
            "writable" => {
                (keys.writable, keys.of_command) = (list(path(folder))(value)?, Some("writable"));
            }
            "memory_bytes" => {
                let bytes = size(MEMORY_MIN..=MEMORY_MAX)(value)?;
                (keys.memory_bytes, keys.of_command) = (Some(bytes), Some("memory_bytes"));
            }
            "allow" => keys.allow = Some(list(text)(value)?),
            other => {
                let message = format!("unknown key `{other}`; the keys here are {KEYS}");
                return Err(problem(value, message));
            }
        }
    }
    let name = keys.name.ok_or_else(|| problem(value, "`name` is missing".to_owned()))?;
    let foreign = if keys.url.is_some() { keys.of_command } else { keys.of_url };
    if let Some(foreign) = foreign {
        let owner = if keys.url.is_some() { "command" } else { "url" };
        let message = format!("`{foreign}` has no effect without `{owner}`");
        return Err(problem(value, message));
    }
    let transport = match (keys.url, keys.command) {
        (Some(url), None) => McpTransport::Http { url, headers: keys.headers },
        (None, Some(command)) => McpTransport::Program {
            command,
            directory: keys.directory.unwrap_or_else(|| folder.to_path_buf()),
            env: keys.env,
            writable: keys.writable,
            memory_bytes: keys.memory_bytes,
        },
        (Some(_), Some(_)) | (None, None) => {
            let message = "a server has either `url` or `command`".to_owned();
            return Err(problem(value, message));
        }
    };
    Ok(McpServer { name, transport, allow: keys.allow })
}

/// Parses a name that is valid as a prefix of tool names.
fn name(value: &Value<'_>) -> Parsed<String> {
    let text = values::string(value)?;
    let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(is_good) {
        return Err(wrong(value, &format!("1 to {NAME_MAX} characters of a-z 0-9 -")));
    }
    Ok(text)
}

fn header(folder: &Path) -> impl Fn(&str, &Value<'_>) -> Parsed<(String, Secret)> {
    move |name, value| {
        let secret = values::secret(folder)(value)?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let is_value = |byte: u8| (b' '..=b'~').contains(&byte);
        if name.is_empty() || !name.bytes().all(is_name) || !secret.expose().bytes().all(is_value) {
            // The message does not repeat the value.
            let message = format!(
                "{name:?} cannot be the name of a header, or its value cannot be sent in one"
            );
            return Err(problem(value, message));
        }
        Ok((name.to_owned(), secret))
    }
}

fn variable(folder: &Path) -> impl Fn(&str, &Value<'_>) -> Parsed<(String, Secret)> {
    move |name, value| {
        let secret = values::secret(folder)(value)?;
        if name.is_empty() || name.contains(['=', '\0']) || secret.expose().contains('\0') {
            let message = format!("{name:?} cannot be the name of an environment variable");
            return Err(problem(value, message));
        }
        Ok((name.to_owned(), secret))
    }
}
