//! The chat router: one service for chat models and embeddings, local or remote.
//!
//! A call names a model. [`Chat`] finds where the model runs, reserves the maximum cost, forwards
//! the request, relays the answer as it arrives, and records the call in one commit with its
//! charge. Requests and answers are passed on byte for byte, except for the few fields that the
//! router must change.
//!
//! | file | question |
//! |---|---|
//! | `request` | what is requested, and is it valid |
//! | `route` | which models are tried, where, and at what price |
//! | `upstream` | one attempt: connect and wait for the first byte; `runners::openai` parses |
//! | `call` | a call from its admission to its record |
//! | `relay`, `whole` | the answer in transit: as a stream, or as a whole |
//! | `meter`, `content` | the usage of an answer, and the part of it that is kept |
//! | `part` | answers that are parts of larger work: decisions, the agent |
//! | `tokens` | the daily budgets of keys |
//! | `models` | the models that can be called |
//! | [`decisions`] | typed questions about a state, answered by a chat model |
//!
//! The router never stores a conversation unless the configuration says so, never repeats a request
//! that a model has received, and never sends a local model's request to the upstream.

pub mod decisions;

mod allowance;
mod call;
mod content;
mod error;
mod meter;
mod models;
mod part;
mod relay;
mod request;
mod route;
mod service;
mod tokens;
mod upstream;
mod whole;

pub use self::call::{Answer, Caller};
pub use self::error::{Error, Failure, Said};
pub use self::models::{CatalogModel, ModelCatalog, UpstreamList};
pub use self::part::{Admission, BoundModel, Completion};
pub use self::service::{Chat, Dependencies, Options, Upstream};
