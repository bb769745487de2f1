//! Decisions: typed questions about one state, answered with probabilities by a chat model.
//!
//! A question becomes a list of options with labels of one token each, and its answer is what the model
//! expects the next token to be. Each list is shown in its order and in the reversed one, and both
//! are averaged, so that the place of an option does not count. A model that gives no probabilities is
//! asked several times instead. A request is answered as a whole or not at all: a question that cannot be
//! answered fails it, and then nothing is charged.
//!
//! | file | question |
//! |---|---|
//! | `request` | what is asked, and whether it is well formed |
//! | `prompt` | how a question is shown to a model |
//! | `probabilities` | from what a model says to the probabilities of an answer |
//! | `scorer` | what answers questions about a state: the seam for models of any kind |
//! | `server` | a scorer by a model's server: `logprobs`, or votes |
//! | `local` | scores by a model of this machine, all questions at once |
//! | `decide` | a request from its admission to its record |
//!
//! It never speaks to a model itself (`chat` does), and it keeps neither state nor questions.

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
