//! The agent: a chat model that uses the service's own models and workflows on behalf of a client, and
//! remembers the conversation.
//!
//! An exchange is an execution of the engine, of type `agent`. Its prompt is committed before anything
//! runs; each answer of the model and each result of a tool is a step that is committed before the next
//! one begins; what it does next follows from the committed steps (`domain::agent`). So a crash costs
//! what was in flight and nothing else, and the events that clients follow are read from the steps.
//!
//! | file | question |
//! |---|---|
//! | `service` | the handle: start, follow and cancel an exchange |
//! | `request` | what a client asks, and whether it is well formed |
//! | `drive` | the steps of an exchange, one after the other |
//! | `prompt` | what the model is shown |
//! | `tools` | what the model can use |
//! | `sessions` | what is remembered |
//! | `summary` | when and how a long conversation is summarized |
//! | `servers` | tools of other servers, by the Model Context Protocol |
//! | `events` | what clients see of it |
//! | `work` | what tools and MCP clients start |
//! | `mcp` | the same models and workflows as tools of the Model Context Protocol |
//!
//! What tools return is data: it never becomes a part of the instructions. A tool with effects runs in
//! behavior `agent` alone, under the limits of the organization and of the exchange.

mod drive;
mod error;
mod events;
pub mod mcp;
mod prompt;
mod request;
pub mod servers;
mod service;
mod sessions;
mod summary;
mod tools;
mod work;

pub use self::error::Error;
pub use self::events::{Feed, TaskEvent};
pub use self::request::{Request, check_session_name};
pub use self::service::{Agent, Dependencies, Options, Started};
pub use self::sessions::{Memory, Remembered};
