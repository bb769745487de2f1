//! OpenAI's Responses API: requests are read, and answers and streams are written.
//!
//! Every item has an ID that names its response, so that an `item_reference` needs no index:
//! `msg_<digits of the response>_<number>`, and `…_in<number>` for items of the input.

mod answer;
mod items;
mod replay;
mod request;
mod stream;

pub use self::answer::{Head, Ids, begun, code_of, failed, write_answer, write_compaction};
pub use self::items::{identify, input_id, item_id, of_input, response_of_item};
pub use self::replay::{replay, replay_begin};
pub use self::request::{ask_for_summary, conversation, read, settings, shows_reasoning};
pub use self::stream::StreamWriter;

/// The prefix of a response's ID.
pub const PREFIX: &str = "resp_";

/// Returns the digits of a response's ID, without its prefix.
fn digits(response: &str) -> &str {
    response.strip_prefix(PREFIX).unwrap_or(response)
}

/// What begins the content of a compaction (`orrery_wire::pattern::COMPACTION`); the summary follows.
const SUMMARY: &str = "summary:";

/// Asks a model to summarize the conversation before it.
const SUMMARIZE: &str = "Summarize our conversation so far, so that it can be continued from \
    your summary alone. Keep every fact, name, number, decision, instruction and open question. \
    Write only the summary.";

/// Separates the field of reasoning from the text in `encrypted_content`.
const FIELD_END: char = ':';
