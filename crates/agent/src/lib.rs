//! The agent: a chat model that uses the service's own models and workflows on behalf of a client,
//! and remembers the conversation.
//!
//! An exchange is an execution of the engine, of type `agent`. The prompt is committed before
//! anything runs. Each answer of the model and each result of a tool is a step that is committed
//! before the next one begins, and the committed steps determine the next action (`domain::agent`).
//! A crash therefore loses only the step in flight. The events that clients follow are read from
//! the steps.
//!
//! | file | purpose |
//! |---|---|
//! | `service` | the handle: starting, following and cancelling exchanges |
//! | `request` | parsing and validating requests |
//! | `drive` | running the steps of an exchange |
//! | `prompt` | the messages sent to the model |
//! | `tools` | the tools offered to the model |
//! | `sessions` | the memory of conversations |
//! | `summary` | summarizing long conversations |
//! | `servers` | tools of other servers, over the Model Context Protocol |
//! | `events` | the events that clients receive |
//! | `work` | the executions that tools and MCP clients start |
//! | `mcp` | models and workflows as tools of the Model Context Protocol |
//!
//! The agent treats the output of tools as data: the output never becomes part of the instructions.
//! Tools with effects run only with behavior `agent`, within the limits of the organization and of
//! the exchange. The agent never calls a model directly, only through `chat`.

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
