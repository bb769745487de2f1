//! The service as a server of the Model Context Protocol: each model and each workflow of the
//! organization is a tool.
//!
//! Stateless: a message is answered by itself, nothing is kept between two of them but the calls that
//! run. The types of messages are those of the `rmcp` crate; HTTP is `api::mcp`'s. A call is a
//! prediction or an execution of the caller's organization, under its limits; one whose client hangs up
//! or that the client cancels is cancelled.
//!
//! | file | question |
//! |---|---|
//! | `message` | which method is asked for, by which version, and what is answered |
//! | `tools` | which tools there are, and their names |
//! | `call` | how a call goes on and ends |
//! | `running` | which calls run, so that they can be cancelled |

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
use crate::chat::Caller;

impl Agent {
    /// Answers one message.
    ///
    /// # Errors
    /// [`Error::Engine`], where the service cannot read or write now.
    pub async fn answer_mcp(
        &self,
        caller: Caller,
        headers: &Headers<'_>,
        message: Value,
    ) -> Result<Reply, Error> {
        message::answer(self.inner(), caller, headers, message).await
    }
}
