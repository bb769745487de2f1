//! What a handler gets: the services, the call, and who calls.

use std::sync::Arc;

use super::access::Admitted;
use super::{Role, Services};
use crate::accounts::Caller;
use crate::audit::Actor;
use crate::domain::ids::{KeyId, OrganizationId};
use crate::domain::time::Timestamp;
use crate::http::call::Peer;
use crate::http::{self, Call};
use crate::links::Link;

/// The operator at the other end.
#[must_use]
pub fn actor(peer: &Peer) -> Actor {
    Actor::operator(match peer {
        Peer::InProcess => "command line",
        Peer::Unix | Peer::Tcp(_) => "control socket",
    })
}

/// The key by which a call is allowed, and its organization.
#[derive(Debug, Clone, Copy)]
pub struct Grant {
    pub organization: OrganizationId,
    pub key: KeyId,
    /// When the link expires, where it is one.
    pub until: Option<Timestamp>,
}

impl Grant {
    /// A link that is made in the name of this key.
    #[must_use]
    pub const fn link(&self, expires_at: Timestamp) -> Link {
        Link { organization: self.organization, key: self.key, expires_at }
    }
}

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

    /// Who acts, as the audit log names the caller of the operator's routes.
    #[must_use]
    pub fn actor(&self) -> Actor {
        self::actor(&self.call.peer)
    }

    /// Whose things the caller may read, by its key or by a link.
    ///
    /// # Errors
    /// 401 on a route that asks for neither.
    pub fn organization(&self) -> Result<OrganizationId, http::Error> {
        Ok(self.grant()?.organization)
    }

    /// By which key the call is allowed, the caller's own or the link's.
    ///
    /// # Errors
    /// 401 on a route that asks for neither.
    pub fn grant(&self) -> Result<Grant, http::Error> {
        match self.admitted {
            Admitted::Caller(Caller { organization, key, .. }) => {
                Ok(Grant { organization, key, until: None })
            }
            Admitted::Link(Link { organization, key, expires_at }) => {
                Ok(Grant { organization, key, until: Some(expires_at) })
            }
            Admitted::Anyone => Err(http::Error::unauthorized()),
        }
    }
}
