//! Decisions: typed questions about one state, answered with probabilities by a chat model.
//!
//! A question becomes a list of options with single-token labels, and its answer is the
//! distribution of the model's next token. The model sees each list in the given and in the
//! reversed order, and the two results are averaged to cancel position bias. A model that returns
//! no probabilities is called several times, and its answers count as votes. A request succeeds or
//! fails as a whole: if one question cannot be answered, the request fails and nothing is charged.
//!
//! | file | purpose |
//! |---|---|
//! | `request` | parsing and validating a request |
//! | `prompt` | the prompts for a question |
//! | `probabilities` | computing an answer's probabilities from label scores |
//! | `scorer` | the common interface of all models |
//! | `server` | a scorer that uses a model's server: `logprobs`, or votes |
//! | `local` | scores by a local model, all questions at once |
//! | `decide` | running a request from admission to record |
//!
//! Decisions call models only through `chat`, and store neither state nor questions.

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
