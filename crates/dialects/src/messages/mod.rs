//! Anthropic's Messages API: requests, answers and streams are read and written.

mod answer;
mod reader;
mod request;
mod writer;

pub use self::answer::{StreamWriter, write_answer};
pub use self::reader::{Origin, Read, StreamReader, read_answer};
pub use self::request::{read, read_prompt, shows_thinking};
pub use self::writer::write;
