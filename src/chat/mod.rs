//! The chat router: one service for chat models and embeddings, local or not.
//!
//! A call names a model. [`Chat`] finds where it runs, reserves what it may cost, sends the request on,
//! passes the answer back as it comes, and records the call in one commit with its charge. Requests
//! and answers are passed on byte for byte, apart from the few fields that the router has to change.
//!
//! | file | question |
//! |---|---|
//! | `request` | what is asked for, and whether it is well formed |
//! | `route` | which models are tried, where, and what each costs |
//! | `upstream` | one try: connect, wait for the first byte, time out; `runners::openai` reads what comes |
//! | `call` | a call from its admission to its record |
//! | `relay`, `whole` | the answer on its way: as a stream, or at once |
//! | `meter`, `content` | what an answer used, and what is kept of it |
//! | `part` | answers that are parts of larger work: decisions, the agent |
//! | `tokens` | the daily budgets of keys |
//! | `models` | the ids that can be called |
//!
//! It never stores what was said unless the configuration asks for it, never repeats a request that a
//! model has received, and never sends a local model's request to the upstream.

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
