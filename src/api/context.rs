//! What a handler gets: the services, the call, and who calls.

use std::sync::Arc;

use super::{Role, Services};
use crate::accounts::Caller;
use crate::http::{self, Call};

/// One request on its way through a handler.
#[derive(Debug)]
pub struct Context {
    pub services: Arc<Services>,
    pub call: Call,
    pub role: Role,
    /// Set on every route with `Access::Key`.
    caller: Option<Caller>,
}

impl Context {
    /// A request whose access was checked.
    #[must_use]
    pub const fn new(
        services: Arc<Services>,
        call: Call,
        role: Role,
        caller: Option<Caller>,
    ) -> Self {
        Self { services, call, role, caller }
    }

    /// Who calls.
    ///
    /// # Errors
    /// 401 on a route that asks for no key.
    pub fn caller(&self) -> Result<Caller, http::Error> {
        self.caller.ok_or_else(http::Error::unauthorized)
    }
}
