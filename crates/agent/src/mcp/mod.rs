//! The service as a Model Context Protocol server: each model and each workflow of the organization
//! is a tool.
//!
//! The server is stateless: it handles each message independently, and the only state between
//! messages is the set of running calls. The message types come from the `rmcp` crate; `api::mcp`
//! handles HTTP. A call is a prediction or a workflow execution of the caller's organization,
//! within the organization's limits. If the client cancels the call or disconnects, the execution
//! is cancelled.
//!
//! | file | purpose |
//! |---|---|
//! | `message` | the methods and versions of the protocol, and the responses |
//! | `tools` | the list of tools and their names |
//! | `call` | the progress and the result of a call |
//! | `running` | the running calls, for cancellation |

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
    /// Handles one message.
    ///
    /// # Errors
    /// [`Error::Engine`] if the store cannot be read or written.
    pub async fn answer_mcp(
        &self,
        caller: Caller,
        headers: &Headers<'_>,
        message: Value,
    ) -> Result<Reply, Error> {
        message::answer(self.inner(), caller, headers, message).await
    }
}
