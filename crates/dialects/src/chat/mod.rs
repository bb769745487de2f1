//! OpenAI's chat completions: requests are written, and answers and streams are read.
//!
//! Servers differ in the fields of reasoning, in the form of content, and in tool calls without IDs
//! or numbers; all known forms are read.

mod answer;
mod request;

pub use self::answer::{StreamReader, read_answer};
pub use self::request::{ModelServer, write};

/// The fields in which servers return and expect reasoning.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];
