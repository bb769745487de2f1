//! Anthropic's Messages API: requests are read, and answers and streams are written.

mod answer;
mod request;

pub use self::answer::{StreamWriter, write_answer};
pub use self::request::{read, read_prompt, shows_thinking};
