//! Dispatches requests on all hosts: request ID, routing, authentication, rate limits, handler,
//! response and logging.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Body as _;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{HeaderMap, Method, StatusCode};

use super::access::Principal;
use super::browser::Site;
use super::compress::{Coding, compress};
use super::cors::{allow_origin, preflight_response};
use super::doc::ErrorForm;
use super::models::ANTHROPIC_VERSION;
use super::request_metrics::RequestMetrics;
use super::vendors::OPEN_AI;
use super::{
    Access, BodyLimit, Context, MOUNTED, Needs, ROUTES, Role, Route, Services, access, elsewhere,
    scopes, unknown, vendors,
};
use crate::static_files as dashboard;
use orrery_domain::ids::OrganizationId;
use orrery_domain::member::MemberRole;
use orrery_http::access_log::{DETAIL, Line, Note};
use orrery_http::body::Counted;
use orrery_http::budget::Lease;
use orrery_http::request::{self as http_request, Limits};
use orrery_http::router::{Outcome, Router};
use orrery_http::server::{ResponseFuture, Service};
use orrery_http::{
    self as http, Body, Peer, Request, Response, authority, request_id, trace_context,
};
use orrery_records::audit::Actor;
use orrery_runtime as runtime;
use orrery_runtime::turns;

/// Paths whose responses, including errors, have no `X-Request-Id` (`docs/spec/hosts.md`, "Request
/// ids").
const WITHOUT_REQUEST_ID: [&str; 4] = ["", "/health", "/ready", "/metrics"];
/// Responses up to this size, in bytes, are sent even if the budget of bodies in flight is used up.
const SMALL_RESPONSE: usize = 16 * 1024;
/// Request heads up to this size, in bytes, are not counted separately.
const SMALL_HEAD: usize = 4 * 1024;
/// Maximum size of a small body, in bytes.
const SMALL_BODY: usize = 64 * 1024;
/// Maximum size of the parts of a form other than its file, in bytes.
const FORM_BYTES: usize = 16 * 1024;
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The header in which Anthropic's clients expect the request ID.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// The result of a request.
struct Routed {
    /// `None` if no route serves the path with this method.
    route: Option<&'static Route>,
    /// The format of an error.
    form: ErrorForm,
    result: Result<Response, crate::Error>,
}

impl Routed {
    fn nowhere(form: ErrorForm, result: Result<Response, crate::Error>) -> Self {
        Self { route: None, form, result }
    }
}

/// A route as mounted on a host.
#[derive(Debug, Clone, Copy)]
struct Mounted {
    route: &'static Route,
    /// The host that the route belongs to.
    role: Role,
    access: Access,
    /// The length of the mount prefix that precedes the route's path.
    prefix: usize,
    /// The format of errors.
    form: ErrorForm,
}

/// A host: its role, its routes, and the services that the routes use.
#[derive(Debug, Clone)]
pub struct Host {
    role: Role,
    /// The path below which the host is served, such as `/dashboard`; empty if the host has its own
    /// address.
    place: &'static str,
    /// Whether the host's connections are encrypted.
    is_encrypted: bool,
    router: Arc<Router<Mounted>>,
    metrics: Arc<RequestMetrics>,
    services: Arc<Services>,
}

impl Host {
    /// Creates the host for `role` from the rows of [`ROUTES`] that contain this role. The
    /// dashboard and the control socket also get the routes of the hosts in [`MOUNTED`].
    /// `is_encrypted` is whether the host's connections use TLS.
    ///
    /// # Errors
    /// Returns an error when two rows of the table conflict.
    pub fn new(
        role: Role,
        services: Arc<Services>,
        is_encrypted: bool,
    ) -> Result<Self, http::router::Error> {
        let mut router = Router::new();
        let has_admin_api = services.settings.admin_api;
        let is_served = |route: &&Route| {
            route.hosts.contains(&role) && (route.access != Access::Admin || has_admin_api)
        };
        for route in ROUTES.iter().filter(is_served) {
            let form = route.doc.errors;
            let mounted = Mounted { route, role, access: route.access, prefix: 0, form };
            router.insert(route.method.clone(), route.path, mounted)?;
        }
        if role == Role::Base {
            Self::mount_open_ai(&mut router)?;
        }
        let mut mounts = Vec::new();
        if role == Role::Dashboard {
            mounts.push(("/api", Access::Member));
            if has_admin_api {
                mounts.push(("/admin/v1/api", Access::Admin));
            }
        }
        if role == Role::Control {
            mounts.push(("/api", Access::Local));
        }
        for (place, access) in mounts {
            for (name, role) in MOUNTED {
                let prefix = format!("{place}/{name}");
                Self::mount(&mut router, &prefix, role, access)?;
            }
        }
        Ok(Self {
            role,
            place: "",
            is_encrypted,
            router: Arc::new(router),
            metrics: Arc::new(RequestMetrics::new(role)),
            services,
        })
    }

    /// Returns the same host, served below the path `place`. The caller removes `place` from
    /// request paths.
    #[must_use]
    pub fn below(self, place: &'static str) -> Self {
        Self { place, ..self }
    }

    /// Mounts the routes of another host under `prefix`, with the given access.
    fn mount(
        router: &mut Router<Mounted>,
        prefix: &str,
        role: Role,
        access: Access,
    ) -> Result<(), http::router::Error> {
        // Only API keys may call the worker routes.
        let is_of_api = |route: &&Route| {
            let is_for_all = route.needs != Needs::Work && !Self::is_of_every_host(route);
            route.hosts.contains(&role) && is_for_all
        };
        for route in ROUTES.iter().filter(is_of_api) {
            let path = format!("{prefix}{}", route.path);
            let form = route.doc.errors;
            let mounted = Mounted { route, role, access, prefix: prefix.len(), form };
            router.insert(route.method.clone(), &path, mounted)?;
        }
        Ok(())
    }

    /// Mounts the base host's routes of OpenAI's API below their own place.
    fn mount_open_ai(router: &mut Router<Mounted>) -> Result<(), http::router::Error> {
        let (role, prefix, form) = (Role::Base, OPEN_AI.len(), ErrorForm::OpenAiOnly);
        for route in ROUTES {
            let Some(access) = vendors::access_below(route) else { continue };
            let path = format!("{OPEN_AI}{}", route.path);
            let mounted = Mounted { route, role, access, prefix, form };
            router.insert(route.method.clone(), &path, mounted)?;
        }
        Ok(())
    }

    /// Returns whether a route describes the host itself.
    fn is_of_every_host(route: &Route) -> bool {
        has_no_request_id(route.path) || route.path == "/openapi.json"
    }

    /// Handles one request.
    pub async fn answer(&self, request: hyper::Request<Body>, peer: Peer) -> Response {
        let started = runtime::monotonic_now();
        let id = request_id::of(request.headers());
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        let origin = self.allowed_origin(request.headers());
        let coding = Coding::asked(request.headers());
        let (is_access, note) = self.note(request.headers());
        let is_of_anthropic = request.headers().contains_key(ANTHROPIC_VERSION);
        let Routed { route, form, result } = self.route(request, peer, &id, &note).await;
        let mut answer = result.unwrap_or_else(|error| {
            report(&error, &id, &method, &path);
            match form {
                ErrorForm::Plain => error.into_response(),
                ErrorForm::OpenAi => error.into_open_ai_response(),
                ErrorForm::OpenAiOnly => error.into_open_ai_envelope(),
                ErrorForm::Anthropic => error.into_anthropic_response(&id),
                ErrorForm::Replicate => error.into_problem(),
            }
        });
        let path_of_route = route.map_or("", |route| route.path);
        describe(answer.headers_mut());
        if self.role == Role::Dashboard {
            dashboard::protect(answer.headers_mut());
        }
        if !has_no_request_id(&path)
            && let Ok(value) = HeaderValue::from_str(&id)
        {
            if is_of_anthropic || form == ErrorForm::Anthropic {
                answer.headers_mut().insert(REQUEST_ID, value.clone());
            }
            answer.headers_mut().insert(X_REQUEST_ID, value);
        }
        if let Some(origin) = origin {
            allow_origin(answer.headers_mut(), origin);
        }
        let answer = compress(answer, self.role, coding).await;
        self.metrics.count(&method, path_of_route, answer.status(), started.elapsed());
        if !note.is_kept() {
            return answer;
        }
        let (host, route) = (self.role.as_str(), path_of_route);
        let line =
            Line { request_id: id, host, method, path, route, peer, started, is_access, note };
        line.end_with(answer)
    }

    /// Returns whether the access log is enabled, and the note for the request's log line, which is
    /// empty if no line is written.
    fn note(&self, headers: &HeaderMap) -> (bool, Note) {
        // The audit log already records the operator's actions over the control socket.
        let is_access = self.role != Role::Control && self.services.live.load().access_log;
        if !is_access && !tracing::enabled!(target: DETAIL, tracing::Level::DEBUG) {
            return (false, Note::default());
        }
        let note = Note::kept();
        note.from(trace_context::of(headers));
        (is_access, note)
    }

    async fn route(
        &self,
        request: hyper::Request<Body>,
        peer: Peer,
        id: &str,
        note: &Note,
    ) -> Routed {
        if peer != Peer::InProcess
            && let Err(error) = authority::check(&request)
        {
            let form = vendors::form_of(self.role, request.uri().path());
            return Routed::nowhere(form, Err(error.into()));
        }
        let site = match self.role {
            Role::Dashboard => match Site::of(&self.services, &request, self.is_encrypted) {
                Ok(site) => Some(site.below(self.place)),
                Err(error) => return Routed::nowhere(ErrorForm::Plain, Err(error)),
            },
            Role::Base
            | Role::Workflows
            | Role::Flows
            | Role::Agent
            | Role::Ollama
            | Role::Metrics
            | Role::Control => None,
        };
        let (method, path) = (request.method(), request.uri().path());
        let form = vendors::form_of(self.role, path);
        let found = match self.router.find(method, path) {
            Ok(Outcome::Found { value, params }) => (*value, params),
            Ok(Outcome::WrongMethod { allow }) => {
                return Routed::nowhere(form, self.other_method(form, &request, &allow));
            }
            Ok(Outcome::NotFound) => return self.not_found(form, method, path),
            Err(error) => {
                let is_below = matches!(form, ErrorForm::OpenAiOnly | ErrorForm::Replicate);
                let form = if is_below { form } else { ErrorForm::Plain };
                return Routed::nowhere(form, Err(error.into()));
            }
        };
        let (mounted, params) = found;
        let route = mounted.route;
        let limits = Limits {
            body_bytes: match route.body {
                BodyLimit::None => 0,
                BodyLimit::Small => SMALL_BODY,
                BodyLimit::Configured => self.services.settings.body_bytes,
                BodyLimit::File => self.services.settings.file_bytes.saturating_add(FORM_BYTES),
            },
            body_idle: self.services.settings.body_timeout,
            body_total: (route.body != BodyLimit::File)
                .then_some(self.services.settings.body_total_timeout),
            body_rate: self.services.settings.body_min_rate,
        };
        let bodies = &self.services.bodies;
        let request =
            Request::new(request, peer, id.to_owned(), params, limits, bodies.lease(&peer));
        // On the way to the handler, each future moves the request into the next one.
        let mut request = Box::new(request);
        request.path.drain(..mounted.prefix);
        request.note = note.clone();
        let result = self.counted(mounted, request, site).await;
        Routed { route: Some(route), form: mounted.form, result }
    }

    /// Answers a request for a path whose routes have other methods.
    fn other_method(
        &self,
        form: ErrorForm,
        request: &hyper::Request<Body>,
        allow: &str,
    ) -> Result<Response, crate::Error> {
        let (method, headers) = (request.method(), request.headers());
        if method == Method::OPTIONS && self.allowed_origin(headers).is_some() {
            return Ok(preflight_response(allow, headers));
        }
        Err(wrong_method(form, method, request.uri().path(), allow))
    }

    fn not_found(&self, form: ErrorForm, method: &Method, path: &str) -> Routed {
        if let Some(error) = elsewhere::without_version(self.role, method, path) {
            return Routed::nowhere(ErrorForm::OpenAi, Err(error));
        }
        let error = match form {
            ErrorForm::Plain | ErrorForm::Replicate => {
                elsewhere::not_found(self.role, method, path, &self.services)
            }
            ErrorForm::OpenAi | ErrorForm::OpenAiOnly | ErrorForm::Anthropic => {
                vendors::not_found(method, path)
            }
        };
        Routed::nowhere(form, Err(error))
    }

    /// Handles a request. Records the metrics for the request, and counts the response bytes until
    /// the last byte is sent.
    async fn counted(
        &self,
        mounted: Mounted,
        request: Box<Request>,
        site: Option<Site>,
    ) -> Result<Response, crate::Error> {
        let slot = if has_no_request_id(mounted.route.path) {
            None
        } else {
            let mut slot = self.services.requests.lease(&request.peer);
            let busy =
                || crate::Error::busy("too many requests are in flight; try again in a moment");
            slot.grow(1).map_err(|_full| busy())?;
            Some(slot)
        };
        let mut head = self.services.bodies.lease(&request.peer);
        let head_bytes = size_of_head(&request.headers);
        if head_bytes > SMALL_HEAD {
            head.grow(head_bytes).map_err(|_full| http_request::busy())?;
        }
        let bytes = self.services.bodies.lease(&request.peer);
        let may_refuse = request.method.is_safe();
        let answer = self.handle(mounted, request, site).await?;
        drop(head);
        count_response(answer, bytes, slot, may_refuse)
    }

    async fn handle(
        &self,
        mounted: Mounted,
        mut request: Box<Request>,
        site: Option<Site>,
    ) -> Result<Response, crate::Error> {
        let Mounted { route, role, access, form, .. } = mounted;
        // A cookie is sent automatically; an admin key never is.
        if let Some(site) = &site
            && access != Access::Admin
            && (access.is_by_session() || !route.method.is_safe())
        {
            site.check_origin(&request, route.body == BodyLimit::File)?;
        }
        if access == Access::Local && !request.peer.is_local_owner() {
            return Err(crate::Error::not_found("not found"));
        }
        let checked =
            access::check(&self.services, access, route.role, &mut request, site.as_ref()).await;
        let principal = match checked {
            Ok(principal) => principal,
            Err(error) => {
                self.note_unauthorized(mounted, request, site, &error).await;
                return Err(error);
            }
        };
        let principal =
            access::acting_for(&self.services, route, access, &request, principal).await?;
        access::check_rate_limit(&self.services, route.rate, &principal)?;
        let admitted = scopes::admit(&self.services, route, &request, &principal).await?;
        if !route.method.is_safe() {
            self.wait_for_start().await;
        }
        if !has_no_request_id(route.path) {
            let is_by_link = matches!(principal, Principal::Link(_));
            unknown::check_query(route, &request, form, is_by_link)?;
        }
        let fields = unknown::check_of(route, &request.headers);
        request.fields = fields.clone();
        let is_audited =
            matches!(access, Access::Local | Access::Admin | Access::KeyManager | Access::Owner);
        let path = is_audited.then(|| request.path.clone());
        let context =
            Context::new(Arc::clone(&self.services), request, role, form, site, principal);
        if context.request.note.is_kept()
            && let Ok(organization) = context.organization()
        {
            context.request.note.of(organization);
        }
        let by = path.map(|path| (path, context.actor(), context.organization().ok()));
        let organization = context.organization().ok();
        let answer = turns::on_behalf_of(organization, (route.handler)(context)).await;
        let answer = match admitted {
            Some(admitted) => admitted.end(answer),
            None => answer,
        };
        if let (Err(error), Some((path, actor, organization))) = (&answer, by)
            && !route.method.is_safe()
        {
            self.note_refused(route, &path, &actor, organization, error).await;
        }
        match (answer, fields) {
            (Ok(answer), Some(fields)) => Ok(unknown::warn(answer, &fields).await),
            (Err(error), Some(fields)) => Err(unknown::explain(error, &fields)),
            (answer, _) => answer,
        }
    }

    /// Waits until startup has loaded the unfinished work. Startup counts the rows of each lane,
    /// and the count would be wrong if a row were added or removed in the meantime.
    async fn wait_for_start(&self) {
        if self.services.readiness.get() {
            return;
        }
        tokio::select! {
            () = self.services.readiness.wait() => {}
            () = self.services.engine.stopping() => {}
        }
    }

    /// Records in the audit log that a request was not authenticated or lacked a permission.
    async fn note_unauthorized(
        &self,
        mounted: Mounted,
        request: Box<Request>,
        site: Option<Site>,
        error: &crate::Error,
    ) {
        // An expired session is not a failed authentication.
        if error.status == StatusCode::UNAUTHORIZED && !mounted.access.is_by_session() {
            self.services.audit.denied(request.peer.ip());
        }
        if error.status == StatusCode::FORBIDDEN && !mounted.route.method.is_safe() {
            self.note_forbidden(mounted.route, request, site, error).await;
        }
    }

    /// Records in the audit log that a member lacked a permission.
    async fn note_forbidden(
        &self,
        route: &Route,
        mut request: Box<Request>,
        site: Option<Site>,
        error: &crate::Error,
    ) {
        let services = Arc::clone(&self.services);
        let (access, role) = (Access::Account, MemberRole::Viewer);
        let checked =
            access::check(&self.services, access, role, &mut request, site.as_ref()).await;
        let Ok(principal) = checked else { return };
        let path = request.path.clone();
        let form = route.doc.errors;
        let context = Context::new(services, request, Role::Dashboard, form, site, principal);
        let organization = context.organization().ok();
        self.note_refused(route, &path, &context.actor(), organization, error).await;
    }

    /// Records in the audit log that an action of an operator or a member was rejected.
    async fn note_refused(
        &self,
        route: &Route,
        path: &str,
        actor: &Actor,
        organization: Option<OrganizationId>,
        error: &crate::Error,
    ) {
        let action = format!("{} {}", route.method, route.path);
        let audit = &self.services.audit;
        let entry = audit.entry(actor, &action, path).refused(&error.message);
        let entry = match organization {
            Some(organization) => entry.of(organization),
            None => entry,
        };
        audit.write_or_log(&entry).await;
    }

    /// Returns the request's origin, if the CORS configuration allows that origin.
    fn allowed_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if self.role == Role::Dashboard {
            return None;
        }
        let origin = headers.get(hyper::header::ORIGIN)?;
        let live = self.services.live.load();
        let text = origin.to_str().ok()?;
        live.cors_origins.iter().any(|one| one == "*" || one == text).then(|| origin.clone())
    }
}

impl Service for Host {
    fn call(&self, request: hyper::Request<Body>, peer: Peer) -> ResponseFuture {
        let host = self.clone();
        Box::pin(async move { host.answer(request, peer).await })
    }
}

fn size_of_head(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

/// Charges a response to the memory budgets. If the budgets are exhausted, the response to a safe
/// request is replaced with an error. Other responses are sent anyway, because their request has
/// already taken effect, and leave less memory for later requests.
fn count_response(
    answer: Response,
    mut bytes: Lease,
    slot: Option<Lease>,
    may_refuse: bool,
) -> Result<Response, crate::Error> {
    let length = usize::try_from(answer.body().size_hint().lower()).unwrap_or(usize::MAX);
    if may_refuse && length > SMALL_RESPONSE {
        bytes.grow(length).map_err(|_full| http_request::busy())?;
    } else {
        bytes.force_to(length);
    }
    Ok(answer.map(|body| Counted::new(body, bytes, slot).boxed()))
}

/// Sets the headers of every response: browsers must not guess the content type, and caches must
/// not store JSON.
fn describe(headers: &mut HeaderMap) {
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let is_json = |value: &HeaderValue| value.as_bytes().starts_with(b"application/json");
    if headers.get(CONTENT_TYPE).is_some_and(is_json) && !headers.contains_key(CACHE_CONTROL) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

/// Returns whether responses on this path have no `X-Request-Id`.
pub(crate) fn has_no_request_id(path: &str) -> bool {
    WITHOUT_REQUEST_ID.contains(&path.strip_suffix('/').unwrap_or(path))
}

fn wrong_method(form: ErrorForm, method: &Method, path: &str, allow: &str) -> crate::Error {
    let error = match form {
        ErrorForm::Plain | ErrorForm::Replicate => {
            crate::Error::status(StatusCode::METHOD_NOT_ALLOWED, "method not allowed")
        }
        ErrorForm::OpenAi | ErrorForm::OpenAiOnly | ErrorForm::Anthropic => {
            vendors::wrong_method(method, path)
        }
    };
    match HeaderValue::from_str(allow) {
        Ok(allow) => error.with_header(hyper::header::ALLOW, allow),
        Err(_) => error,
    }
}

/// Logs an error once: internal errors as errors with their cause, temporary unavailability as a
/// warning, and client errors at debug level.
fn report(error: &crate::Error, id: &str, method: &Method, path: &str) {
    let status = error.status.as_u16();
    let cause = error.cause();
    // Omit an empty field.
    let cause = Some(cause.as_str()).filter(|cause| !cause.is_empty());
    if error.is_busy() {
        tracing::debug!(request_id = id, %method, path, status, "{}", error.message);
    } else if error.status == StatusCode::SERVICE_UNAVAILABLE {
        tracing::warn!(request_id = id, %method, path, status, cause, "{}", error.message);
    } else if error.status.is_server_error() {
        tracing::error!(request_id = id, %method, path, status, cause, "{}", error.message);
    } else {
        tracing::debug!(request_id = id, %method, path, status, "{}", error.message);
    }
}
