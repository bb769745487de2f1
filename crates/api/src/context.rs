//! The input of a handler: the services, the request, and the authenticated principal.

use std::sync::Arc;

use hyper::header::{CACHE_CONTROL, USER_AGENT};

use super::access::{self, Principal, bearer};
use super::browser::Site;
use super::doc::ErrorForm;
use super::{Role, Services};
use orrery_domain::account::{Organization, dashboard_key};
use orrery_domain::execution::Source;
use orrery_domain::ids::{ExecutionId, Id as _, KeyId, OrganizationId};
use orrery_domain::member::{self, MemberRole};
use orrery_domain::time::Timestamp;
use orrery_domain::trace;
use orrery_engine as engine;
use orrery_http::request::Peer;
use orrery_http::{Request, trace_context};
use orrery_records::accounts::Caller;
use orrery_records::audit::Actor;
use orrery_records::members::Visit;
use orrery_records::signed_urls::Link;
use orrery_wire::execution::Waiting;

/// Returns the operator as the actor for the audit log, with the kind of connection.
#[must_use]
pub(crate) fn actor(peer: &Peer) -> Actor {
    Actor::operator(match peer {
        Peer::InProcess => "command line",
        Peer::Unix | Peer::Tcp(_) => "control socket",
    })
}

/// The key that authorizes a request, and its organization.
#[derive(Debug, Clone)]
pub struct Grant {
    pub organization: OrganizationId,
    pub key: KeyId,
    /// The expiry of the link, if the request is authorized by a link.
    pub until: Option<Timestamp>,
    /// The session, if the request is authorized by a session. The grant becomes invalid when the
    /// session ends.
    pub visit: Option<Visit>,
}

impl Grant {
    /// Creates a link on behalf of this key or member. The link becomes invalid when the key or the
    /// member is deleted.
    #[must_use]
    pub fn link(&self, expires_at: Timestamp) -> Link {
        let member = self.visit.as_ref().map(|visit| KeyId::from(visit.member.id.bytes()));
        Link { organization: self.organization, key: member.unwrap_or(self.key), expires_at }
    }
}

/// The context of one request.
#[derive(Debug)]
pub struct Context {
    pub services: Arc<Services>,
    pub request: Box<Request>,
    pub role: Role,
    /// The format of the route's errors where it is mounted.
    pub form: ErrorForm,
    /// The dashboard's site; only on the dashboard's host.
    site: Option<Site>,
    principal: Principal,
}

impl Context {
    /// Creates the context of a request that has been authenticated.
    #[must_use]
    pub const fn new(
        services: Arc<Services>,
        request: Box<Request>,
        role: Role,
        form: ErrorForm,
        site: Option<Site>,
        principal: Principal,
    ) -> Self {
        Self { services, request, role, form, site, principal }
    }

    /// Returns the dashboard's site.
    ///
    /// # Errors
    /// 404 on another host.
    pub fn site(&self) -> Result<&Site, crate::Error> {
        self.site.as_ref().ok_or_else(|| crate::Error::not_found("not found"))
    }

    /// Returns the calling member's session.
    ///
    /// # Errors
    /// 401 on a route without a session.
    pub fn visit(&self) -> Result<&Visit, crate::Error> {
        match &self.principal {
            Principal::Member(visit) => Ok(visit),
            Principal::Anonymous
            | Principal::Caller(_)
            | Principal::Link(_)
            | Principal::Admin(_)
            | Principal::Operator(..) => Err(crate::Error::unauthorized()),
        }
    }

    /// Checks that a calling member has a role. Callers other than members have no role and may do
    /// whatever their credentials allow.
    ///
    /// # Errors
    /// 403 that names the role.
    pub fn check_role(&self, role: MemberRole) -> Result<(), crate::Error> {
        match &self.principal {
            Principal::Member(visit) => access::check_role(&visit.member, role),
            Principal::Anonymous
            | Principal::Caller(_)
            | Principal::Link(_)
            | Principal::Admin(_)
            | Principal::Operator(..) => Ok(()),
        }
    }

    /// Returns the source of the request, for the history.
    #[must_use]
    pub const fn source(&self) -> Source {
        match self.principal {
            Principal::Member(_) => Source::Dashboard,
            Principal::Anonymous
            | Principal::Caller(_)
            | Principal::Link(_)
            | Principal::Admin(_)
            | Principal::Operator(..) => Source::Api,
        }
    }

    /// Returns whether the request wants a new result, not one from the result cache:
    /// `Cache-Control: no-cache`.
    #[must_use]
    pub fn skips_cache(&self) -> bool {
        let values = self.request.headers.get_all(CACHE_CONTROL).into_iter();
        let mut directives =
            values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        directives.any(|directive| directive.trim().eq_ignore_ascii_case("no-cache"))
    }

    /// Returns the trace origin of the request, which is stored with the execution that the request
    /// starts.
    #[must_use]
    pub fn origin(&self, started: ExecutionId) -> Option<Arc<trace::Origin>> {
        self.request.note.started(started);
        trace_context::of(&self.request.headers)
    }

    /// Returns where a session that the request opens comes from.
    #[must_use]
    pub fn origin_of_session(&self) -> member::Origin {
        let device = self.request.headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
        member::Origin { address: self.request.peer.ip(), device: device.map(str::to_owned) }
    }

    /// Returns whether the key is in `Authorization: Bearer`, where OpenAI clients send it.
    #[must_use]
    pub fn is_by_bearer(&self) -> bool {
        let is_by_key = matches!(self.principal, Principal::Caller(_));
        is_by_key && bearer(&self.request.headers).is_some()
    }

    /// Returns whether the request is authorized by a link.
    #[must_use]
    pub const fn is_by_link(&self) -> bool {
        matches!(self.principal, Principal::Link(_))
    }

    /// Returns the caller of a request that is authorized by an API key.
    ///
    /// # Errors
    /// 401 on a route without a key.
    pub fn caller(&self) -> Result<Caller, crate::Error> {
        self.principal.caller().ok_or_else(crate::Error::unauthorized)
    }

    /// Returns the actor for the audit log on routes of the operator and of the dashboard.
    #[must_use]
    pub fn actor(&self) -> Actor {
        match &self.principal {
            Principal::Member(visit) => Actor::member(&visit.member.email, self.request.peer.ip()),
            Principal::Caller(caller) => Actor::key(caller.key, self.request.peer.ip()),
            Principal::Admin(key) | Principal::Operator(_, Some(key)) => {
                Actor::admin_key(*key, self.request.peer.ip())
            }
            Principal::Anonymous | Principal::Link(_) | Principal::Operator(_, None) => {
                self::actor(&self.request.peer)
            }
        }
    }

    /// Returns the organization named in the operator's query, or all organizations.
    ///
    /// # Errors
    /// 404 for an unknown name; 503 when the store cannot be read.
    pub async fn named_organizations(&self) -> Result<Vec<Organization>, crate::Error> {
        let accounts = &self.services.accounts;
        Ok(match self.request.query.get("organization") {
            Some(name) => vec![accounts.organization(name).await?],
            None => accounts.organizations().await?,
        })
    }

    /// Returns the organization whose resources the request may read.
    ///
    /// # Errors
    /// 401 on a public route, or on a route without an organization.
    pub fn organization(&self) -> Result<OrganizationId, crate::Error> {
        Ok(self.grant()?.organization)
    }

    /// Returns the grant of the request: from the caller's key, the link or the session, or for the
    /// organization for which the operator acts.
    ///
    /// # Errors
    /// 401 on a public route, or on a route without an organization.
    pub fn grant(&self) -> Result<Grant, crate::Error> {
        match &self.principal {
            Principal::Caller(Caller { organization, key, .. }) => {
                Ok(Grant { organization: *organization, key: *key, until: None, visit: None })
            }
            Principal::Link(Link { organization, key, expires_at }) => Ok(Grant {
                organization: *organization,
                key: *key,
                until: Some(*expires_at),
                visit: None,
            }),
            Principal::Member(visit) => {
                let organization = visit.member.organization;
                let key = dashboard_key(organization);
                Ok(Grant { organization, key, until: None, visit: Some((**visit).clone()) })
            }
            Principal::Operator(organization, _) => {
                let key = dashboard_key(*organization);
                Ok(Grant { organization: *organization, key, until: None, visit: None })
            }
            Principal::Anonymous | Principal::Admin(_) => Err(crate::Error::unauthorized()),
        }
    }

    /// Returns the detail of an execution. If a member reads the detail, the links of waiting steps
    /// are created on behalf of that member, and become invalid when the member is removed. Members
    /// who may not answer get no link.
    ///
    /// # Errors
    /// The errors of [`Engine::detail`](engine::Engine::detail).
    pub async fn detail(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<engine::Detail, crate::Error> {
        let mut detail = self.services.engine.detail(organization, id).await?;
        let grant = self.grant()?;
        if let Some(visit) = &grant.visit {
            let may_answer = visit.member.may(MemberRole::Operator);
            for waiting in detail.view.waiting_for.iter_mut().flatten() {
                if let Waiting::Event { resume_url, .. } = waiting {
                    let urls = &self.services.signed_urls;
                    if may_answer {
                        *resume_url = urls.made_again(resume_url, |until| grant.link(until));
                    } else {
                        // Without its token, the link answers nothing.
                        resume_url.truncate(resume_url.find('?').unwrap_or(resume_url.len()));
                    }
                }
            }
        }
        Ok(detail)
    }
}
