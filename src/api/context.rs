//! What a handler gets: the services, the call, and who calls.

use std::sync::Arc;

use super::access::Admitted;
use super::{Role, Services};
use crate::accounts::Caller;
use crate::domain::ids::OrganizationId;
use crate::http::{self, Call};

/// One request on its way through a handler.
#[derive(Debug)]
pub struct Context {
    pub services: Arc<Services>,
    pub call: Call,
    pub role: Role,
    admitted: Admitted,
}

impl Context {
    /// A request whose access was checked.
    #[must_use]
    pub const fn new(services: Arc<Services>, call: Call, role: Role, admitted: Admitted) -> Self {
        Self { services, call, role, admitted }
    }

    /// Who calls.
    ///
    /// # Errors
    /// 401 on a route that asks for no key.
    pub fn caller(&self) -> Result<Caller, http::Error> {
        self.admitted.caller().ok_or_else(http::Error::unauthorized)
    }

    /// Whose things the caller may read, by its key or by a link.
    ///
    /// # Errors
    /// 401 on a route that asks for neither.
    pub fn organization(&self) -> Result<OrganizationId, http::Error> {
        match self.admitted {
            Admitted::Caller(caller) => Ok(caller.organization),
            Admitted::Link(organization) => Ok(organization),
            Admitted::Anyone => Err(http::Error::unauthorized()),
        }
    }
}
