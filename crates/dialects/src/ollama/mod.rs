//! Ollama's API: requests are read, and answers and streams are written.

mod answer;
mod request;

pub use self::answer::{Finish, Piece, StreamWriter, write_answer};
pub use self::request::{
    Read, is_thinking_hidden, read_chat, read_generate, unloads, write_completion,
};
