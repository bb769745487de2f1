//! The service as a server of the Model Context Protocol: each model and each workflow of the
//! organization is a tool.
//!
//! Stateless: each message is answered independently, and only running calls are kept between
//! messages. The message types are those of the `rmcp` crate; `api::mcp` does the HTTP. A call is a
//! prediction or an execution of the caller's organization, within its limits; it is cancelled when
//! its client cancels it or disconnects.
//!
//! | file | question |
//! |---|---|
//! | `message` | which method is called, in which version, and what is answered |
//! | `tools` | which tools exist, and their names |
//! | `call` | how a call progresses and ends |
//! | `running` | which calls are running, so that they can be cancelled |

mod call;
mod message;
mod running;
mod tools;

pub use self::call::{Call, Next};
pub use self::message::{Headers, Reply, not_json};
pub use self::running::Running;
pub use self::tools::name_of as plain_name;

use serde_json::Value;

use super::error::Error;
use super::service::Agent;
use orrery_chat::Caller;

impl Agent {
    /// Answers one message.
    ///
    /// # Errors
    /// [`Error::Engine`], if the store cannot be read or written now.
    pub async fn answer_mcp(
        &self,
        caller: Caller,
        headers: &Headers<'_>,
        message: Value,
    ) -> Result<Reply, Error> {
        message::answer(self.inner(), caller, headers, message).await
    }
}
