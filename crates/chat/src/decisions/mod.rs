//! Decisions: typed questions about one state, answered with probabilities by a chat model.
//!
//! A question becomes a list of options with labels of one token each, and its answer is the
//! distribution of the model's next token. Each list is shown in its order and reversed, and both
//! are averaged, so that the position of an option does not matter. A model that returns no
//! probabilities is asked several times instead. A request is answered completely or not at all: if
//! one question cannot be answered, the request fails and nothing is charged.
//!
//! | file | question |
//! |---|---|
//! | `request` | what is asked, and is it valid |
//! | `prompt` | how a question is shown to a model |
//! | `probabilities` | from label scores to the probabilities of an answer |
//! | `scorer` | the interface to models of any kind |
//! | `server` | a scorer that uses a model's server: `logprobs`, or votes |
//! | `local` | scores by a local model, all questions at once |
//! | `decide` | a request from its admission to its record |
//!
//! Decisions never call a model directly (`chat` does), and store neither state nor questions.

mod decide;
mod error;
mod local;
mod probabilities;
mod prompt;
mod request;
mod scorer;
mod server;

pub use self::decide::{Decided, Decisions, Dependencies, Options};
pub use self::error::Error;
