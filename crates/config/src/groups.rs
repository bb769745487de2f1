//! The section `[groups]`: servers that share memory, such as that of a GPU. Manifests name them.

use std::time::Duration;

use serde_json::json;

use super::reader::Parsed;
use super::values::{self, Value, duration, problem, size, wrong_type};

/// Bounds of `memory`.
const MEMORY_MIN: u64 = 1024 * 1024;
const MEMORY_MAX: u64 = 1 << 50;
/// Default of `swap_after`.
const SWAP_AFTER: Duration = Duration::from_secs(10);
const SWAP_AFTER_MAX: Duration = Duration::from_secs(86_400);
const NAME_MAX: usize = 64;

/// A group of servers that share memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerGroup {
    pub name: String,
    /// The memory of all running servers together, in bytes.
    pub memory: u64,
    /// How long a server keeps running, at least, although another one waits for its memory.
    pub swap_after: Duration,
}

/// Parses one group.
pub(super) fn group(name: &str, value: &Value<'_>) -> Parsed<ServerGroup> {
    let table = value.get_ref().as_table().ok_or_else(|| {
        let text_or_number = json!({"type": ["integer", "string"]});
        let expects = json!({
            "type": "object",
            "properties": {"memory": text_or_number, "swap_after": {"type": "string"}},
            "required": ["memory"],
            "additionalProperties": false,
        });
        wrong_type(value, "a table such as { memory = \"24GiB\", swap_after = \"10s\" }", expects)
    })?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_name) {
        let message =
            format!("{name:?} cannot be the name of a group: use letters, digits, - and _");
        return Err(problem(value, message));
    }
    let (mut memory, mut swap_after) = (None, SWAP_AFTER);
    for (key, value) in table {
        match key.get_ref().as_ref() {
            "memory" => memory = Some(size(MEMORY_MIN..=MEMORY_MAX)(value)?),
            "swap_after" => swap_after = duration(Duration::ZERO..=SWAP_AFTER_MAX)(value)?,
            other => {
                let message = format!("unknown key `{other}`; the keys are memory and swap_after");
                return Err(problem(value, message));
            }
        }
    }
    let memory = memory.ok_or_else(|| problem(value, "`memory` is missing".to_owned()))?;
    Ok(ServerGroup { name: name.to_owned(), memory, swap_after })
}

/// Parses the groups.
pub(super) fn groups(value: &Value<'_>) -> Parsed<Vec<ServerGroup>> {
    values::map(group)(value)
}
