//! The chat router: one service for chat models, text completions, embeddings, rerankers, audio and
//! images, local or remote.
//!
//! A call names a model. [`Chat`] finds where the model runs, reserves the maximum cost, forwards
//! the request, relays the answer as it arrives, and records the call and its charge in one commit.
//! Requests and answers are forwarded byte for byte, except for the few fields that the router must
//! change.
//!
//! | file | purpose |
//! |---|---|
//! | `request` | parsing and validating a request |
//! | `route` | choosing the models to try, with their servers and prices |
//! | `aliases` | the models that clients' IDs stand for |
//! | `upstreams` | the servers for models that are not in the catalog, and which of them to try |
//! | `upstream` | one attempt: connection and first byte; `runners::openai` parses |
//! | `call` | running a call from admission to record |
//! | `ending` | the history row of an ended call |
//! | `native` | calls in other formats, which an upstream reads |
//! | `relay`, `whole` | returning a streamed or a non-streamed answer |
//! | `rerank`, `messages` | the common form of rerank answers; answers in Anthropic's format |
//! | `meter`, `content` | the usage of an answer, and the text that the history stores |
//! | `part` | model calls of decisions and the agent |
//! | `count` | the tokens of a prompt |
//! | `tokens` | daily token budgets of API keys |
//! | `models` | the models that can be called |
//! | [`media`] | audio and images |
//! | [`decisions`] | typed questions about a state, answered by a chat model |
//!
//! The router stores conversations only if the configuration says so, never sends a request again
//! once a part of its answer has reached the client, and never sends a local model's request to an
//! upstream.

pub mod decisions;
pub mod media;

mod aliases;
mod allowance;
mod beside;
mod cached;
mod call;
mod content;
mod count;
mod ending;
mod error;
mod messages;
mod meter;
mod models;
mod native;
mod part;
mod relay;
mod request;
mod rerank;
mod route;
mod service;
mod tokens;
mod upstream;
mod upstreams;
mod whole;

pub use self::beside::Beside;
pub use self::cached::CacheOutcome;
pub use self::call::{Answer, Caller, Extras, Finished};
pub use self::error::{Error, Failure, Said};
pub use self::models::{CatalogModel, ModelCatalog, UpstreamList};
pub use self::part::{Admission, BoundModel, Completion};
pub use self::request::MessageHeaders;
pub use self::service::{Chat, Dependencies, Options};
pub use self::upstreams::{UpstreamKind, UpstreamOptions, UpstreamState};
