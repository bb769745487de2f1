//! OpenAI's chat completions: requests, answers and streams are read and written.
//!
//! Servers differ in the fields of reasoning, in the form of content, and in tool calls without IDs
//! or numbers; all known forms are read.

mod answer;
mod read;
mod request;
mod writer;

pub use self::answer::{StreamReader, read_answer};
pub use self::read::read;
pub use self::request::{ModelServer, write};
pub use self::writer::{Frame, StreamWriter, write_answer};

/// The fields in which servers return and expect reasoning.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];
