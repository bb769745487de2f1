//! The OpenID provider: its metadata, its keys, and the log-ins that are under way.
//!
//! The operator configures the issuer, so requests go through the client for the operator's own
//! URLs. A log-in is bound to its browser by a sealed cookie that holds `state`, `nonce` and the
//! PKCE verifier, so that unfinished log-ins take no memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use hyper::http::request::Builder;
use hyper::{Method, Request, StatusCode};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;
use url::Url;

use super::token::{self, Claims, Expected, Key};
use orrery_config::secret::Secret;
use orrery_domain::member::MemberRole;
use orrery_http::client::{Client, Limits, Overflow};
use orrery_runtime::{Clock, monotonic_now, random_bytes};
use orrery_storage::Sealer;

/// How long a person may take to log in at the provider.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);
/// Limits of a response of the provider.
const LIMITS: Limits =
    Limits { total: Duration::from_secs(10), answer_bytes: 256 * 1024, overflow: Overflow::Fail };
/// How long metadata and keys are cached.
const FRESH: Duration = Duration::from_secs(3600);
/// Minimum time between two requests for the keys: a token with an unknown key asks for them again.
const KEYS_AGAIN: Duration = Duration::from_secs(30);
/// Maximum number of remembered log-ins, whose `state` is not accepted again.
const USED_MAX: usize = 10_000;
/// Maximum length of a code.
const CODE_MAX: usize = 4096;

/// The configuration of the provider.
#[derive(Debug, Clone)]
pub struct Options {
    pub issuer: String,
    pub client_id: String,
    pub client_secret: Secret,
    pub scopes: Vec<String>,
    /// The claim with a person's groups: a name, or a JSON Pointer.
    pub claim: String,
    /// The label of the button on the log-in page.
    pub button: String,
    /// What the members of a group may do, in order of preference.
    pub map: Vec<Group>,
}

/// What the members of a group may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    pub organization: String,
    pub role: MemberRole,
}

/// Why a log-in failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The provider's error, such as `access_denied`.
    #[error("the identity provider refused the log-in: {0}")]
    Denied(String),
    #[error("the log-in is unknown in this browser, was used before, or took too long")]
    Expired,
    #[error("the identity provider cannot be used: {0}")]
    Provider(String),
    #[error("the identity provider's token is refused: {0}")]
    Token(token::Refusal),
}

impl From<token::Refusal> for Error {
    fn from(refusal: token::Refusal) -> Self {
        Self::Token(refusal)
    }
}

fn failed<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error::Provider(why.into()))
}

/// A log-in that has begun.
#[derive(Debug)]
pub(super) struct Begun {
    /// Where the browser goes.
    pub(super) url: String,
    /// The value of the cookie.
    pub(super) sealed: String,
}

/// The content of the cookie.
#[derive(Serialize, Deserialize)]
struct Pending {
    state: String,
    nonce: String,
    verifier: String,
    /// Unix seconds.
    until: i64,
}

/// The parameters with which the provider sends the browser back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Back<'a> {
    pub(super) state: &'a str,
    pub(super) code: Option<&'a str>,
    pub(super) error: Option<&'a str>,
    pub(super) issuer: Option<&'a str>,
}

/// A person whom the provider has identified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identified {
    pub(super) subject: String,
    /// The email address, unless the provider says that it is not verified.
    pub(super) email: Option<String>,
    pub(super) name: Option<String>,
    pub(super) groups: Vec<String>,
}

/// The provider's metadata (OpenID Connect Discovery 1.0, section 3).
#[derive(Debug, Deserialize)]
struct Metadata {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    userinfo_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

impl Metadata {
    /// Returns whether all endpoints use TLS.
    fn is_encrypted(&self) -> bool {
        let endpoints = [&self.authorization_endpoint, &self.token_endpoint, &self.jwks_uri];
        endpoints.into_iter().chain(&self.userinfo_endpoint).all(|url| url.starts_with("https:"))
    }
}

#[derive(Debug, Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Tokens {
    id_token: String,
    access_token: Option<String>,
}

/// A provider.
#[derive(Debug)]
pub struct Provider {
    pub(super) options: Options,
    client: Client,
    clock: Clock,
    sealer: Sealer,
    redirect_uri: String,
    metadata: tokio::sync::Mutex<Option<(Instant, Arc<Metadata>)>>,
    keys: tokio::sync::Mutex<Option<(Instant, Arc<Vec<Key>>)>>,
    used: Mutex<VecDeque<String>>,
}

impl Provider {
    /// Creates the provider. `dashboard` is the public URL of the dashboard.
    #[must_use]
    pub fn new(
        options: Options,
        client: Client,
        clock: Clock,
        sealer: Sealer,
        dashboard: &str,
    ) -> Self {
        let redirect_uri = format!("{dashboard}/session/oidc/callback");
        let (metadata, keys, used) = Default::default();
        Self { options, client, clock, sealer, redirect_uri, metadata, keys, used }
    }

    /// Returns the label of the button on the log-in page.
    #[must_use]
    pub fn button(&self) -> &str {
        &self.options.button
    }

    /// Begins a log-in.
    pub(super) async fn begin(&self) -> Result<Begun, Error> {
        let metadata = self.metadata().await?;
        let random = || {
            let bytes = random_bytes::<32>();
            bytes
                .map(|bytes| URL_SAFE_NO_PAD.encode(bytes))
                .or_else(|none| failed(none.to_string()))
        };
        let now = self.clock.now();
        let until = now.plus(PATIENCE).unix_seconds();
        let pending = Pending { state: random()?, nonce: random()?, verifier: random()?, until };
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, pending.verifier.as_bytes()));
        let url = Url::parse(&metadata.authorization_endpoint);
        let mut url = url.or_else(|error| failed(error.to_string()))?;
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.options.client_id)
            .append_pair("redirect_uri", &self.redirect_uri)
            .append_pair("scope", &self.options.scopes.join(" "))
            .append_pair("state", &pending.state)
            .append_pair("nonce", &pending.nonce)
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256");
        let text = serde_json::to_string(&pending).or_else(|error| failed(error.to_string()))?;
        let sealed = self.sealer.seal(&text).or_else(|error| failed(error.to_string()))?;
        Ok(Begun { url: url.into(), sealed })
    }

    /// Ends a log-in: checks that this browser began it, and redeems the code.
    pub(super) async fn finish(
        &self,
        sealed: Option<&str>,
        back: Back<'_>,
    ) -> Result<Identified, Error> {
        let pending = self.take(sealed, back.state)?;
        if back.issuer.is_some_and(|issuer| issuer != self.options.issuer) {
            return Err(token::Refusal("the answer is from another issuer".to_owned()).into());
        }
        if let Some(error) = back.error {
            return Err(Error::Denied(error.chars().take(100).collect()));
        }
        let code = back.code.filter(|code| (1..=CODE_MAX).contains(&code.len()));
        let tokens = self.redeem(code.ok_or(Error::Expired)?, &pending.verifier).await?;
        let claims = self.verified(&tokens.id_token, &pending.nonce).await?;
        self.identified(claims, tokens.access_token.as_deref()).await
    }

    /// Returns the log-in in a cookie, which is accepted once.
    fn take(&self, sealed: Option<&str>, state: &str) -> Result<Pending, Error> {
        let text = sealed.and_then(|sealed| self.sealer.unseal(sealed).ok());
        let pending = text.and_then(|text| serde_json::from_str::<Pending>(&text).ok());
        let pending = pending.ok_or(Error::Expired)?;
        let is_same = bool::from(pending.state.as_bytes().ct_eq(state.as_bytes()));
        if !is_same || pending.until <= self.clock.now().unix_seconds() {
            return Err(Error::Expired);
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.contains(&pending.state) {
            return Err(Error::Expired);
        }
        if used.len() >= USED_MAX {
            used.pop_front();
        }
        used.push_back(pending.state.clone());
        Ok(pending)
    }

    async fn redeem(&self, code: &str, verifier: &str) -> Result<Tokens, Error> {
        let metadata = self.metadata().await?;
        let (request, body) = self.redemption(&metadata, code, verifier);
        let (status, body) = self.ask(request, body).await?;
        if status != StatusCode::OK {
            let said: Option<Value> = serde_json::from_slice(&body).ok();
            let said = said.as_ref().and_then(|said| said.get("error")?.as_str());
            let said: String = said.unwrap_or("no reason").chars().take(100).collect();
            return failed(format!("the token endpoint answered {status}: {said}"));
        }
        parse("the token endpoint", &body)
    }

    /// Returns the request that redeems a code.
    fn redemption(&self, metadata: &Metadata, code: &str, verifier: &str) -> (Builder, Bytes) {
        let Options { client_id, client_secret, .. } = &self.options;
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "authorization_code")
            .append_pair("code", code)
            .append_pair("redirect_uri", &self.redirect_uri)
            .append_pair("code_verifier", verifier);
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(&metadata.token_endpoint)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        // Basic is the default (Discovery, section 3).
        let methods = metadata.token_endpoint_auth_methods_supported.as_ref();
        if methods.is_none_or(|all| all.iter().any(|one| one == "client_secret_basic")) {
            let encoded = |text: &str| -> String {
                form_urlencoded::byte_serialize(text.as_bytes()).collect()
            };
            let pair = format!("{}:{}", encoded(client_id), encoded(client_secret.expose()));
            request = request.header(AUTHORIZATION, format!("Basic {}", STANDARD.encode(pair)));
        } else {
            form.append_pair("client_id", client_id)
                .append_pair("client_secret", client_secret.expose());
        }
        (request, Bytes::from(form.finish()))
    }

    async fn verified(&self, id_token: &str, nonce: &str) -> Result<Claims, Error> {
        let header = token::header(id_token)?;
        let kid = header.kid.as_deref();
        let mut keys = self.keys(false).await?;
        if !keys.iter().any(|key| is_named(key, kid)) {
            keys = self.keys(true).await?;
        }
        let (issuer, client_id) = (&*self.options.issuer, &*self.options.client_id);
        let expected = Expected { issuer, client_id, nonce, now: self.clock.now() };
        let mut refusal = token::Refusal("it is signed with an unknown key".to_owned());
        for key in keys.iter().filter(|key| is_named(key, kid)) {
            match token::verify(id_token, key, expected) {
                Ok(claims) => return Ok(claims),
                Err(refused) => refusal = refused,
            }
        }
        Err(refusal.into())
    }

    /// Returns the person of these claims. If the token lacks claims, the user info endpoint is
    /// asked.
    async fn identified(
        &self,
        claims: Claims,
        access_token: Option<&str>,
    ) -> Result<Identified, Error> {
        let text = |claims: &Claims, name: &str| {
            claims.get(name).and_then(Value::as_str).map(str::to_owned)
        };
        let subject = text(&claims, "sub").unwrap_or_default();
        let mut claims = claims;
        let lacks = !claims.contains_key("email") || self.groups_in(&claims).is_none();
        let endpoint = self.metadata().await?.userinfo_endpoint.clone();
        if let (true, Some(endpoint), Some(access)) = (lacks, endpoint, access_token) {
            let request =
                Request::builder().uri(endpoint).header(AUTHORIZATION, format!("Bearer {access}"));
            let (status, body) = self.ask(request, Bytes::new()).await?;
            if status != StatusCode::OK {
                return failed(format!("the user info endpoint answered {status}"));
            }
            let more: Claims = parse("the user info endpoint", &body)?;
            if text(&more, "sub").as_ref() != Some(&subject) {
                return Err(
                    token::Refusal("its user info is about another person".to_owned()).into()
                );
            }
            for (name, value) in more {
                claims.entry(name).or_insert(value);
            }
        }
        let is_unverified = claims.get("email_verified") == Some(&Value::Bool(false));
        Ok(Identified {
            email: text(&claims, "email").filter(|_| !is_unverified),
            name: text(&claims, "name").or_else(|| text(&claims, "preferred_username")),
            groups: self.groups_in(&claims).unwrap_or_default(),
            subject,
        })
    }

    fn groups_in(&self, claims: &Claims) -> Option<Vec<String>> {
        let claim = &self.options.claim;
        let found = match claims.get(claim) {
            Some(found) => found.clone(),
            None if claim.starts_with('/') => Value::Object(claims.clone()).pointer(claim)?.clone(),
            None => return None,
        };
        Some(match found {
            Value::String(one) => vec![one],
            Value::Array(all) => all.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
        })
    }

    async fn metadata(&self) -> Result<Arc<Metadata>, Error> {
        let mut held = self.metadata.lock().await;
        if let Some((at, metadata)) = &*held
            && monotonic_now().duration_since(*at) < FRESH
        {
            return Ok(Arc::clone(metadata));
        }
        let issuer = &self.options.issuer;
        let place = issuer.trim_end_matches('/');
        let request = Request::builder().uri(format!("{place}/.well-known/openid-configuration"));
        let metadata: Metadata = self.get("the provider's metadata", request).await?;
        if metadata.issuer != *issuer {
            return failed(format!("its metadata names the issuer {:?}", metadata.issuer));
        }
        if issuer.starts_with("https:") && !metadata.is_encrypted() {
            return failed("an endpoint in its metadata is not encrypted");
        }
        let metadata = Arc::new(metadata);
        *held = Some((monotonic_now(), Arc::clone(&metadata)));
        Ok(metadata)
    }

    async fn keys(&self, again: bool) -> Result<Arc<Vec<Key>>, Error> {
        let mut held = self.keys.lock().await;
        let fresh = if again { KEYS_AGAIN } else { FRESH };
        if let Some((at, keys)) = &*held
            && monotonic_now().duration_since(*at) < fresh
        {
            return Ok(Arc::clone(keys));
        }
        let metadata = self.metadata().await?;
        let request = Request::builder().uri(&metadata.jwks_uri);
        let set: KeySet = self.get("the provider's key set", request).await?;
        // A set may contain keys of kinds that are not supported.
        let keys = set.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok());
        let keys = Arc::new(keys.collect());
        *held = Some((monotonic_now(), Arc::clone(&keys)));
        Ok(keys)
    }

    async fn get<T: for<'de> Deserialize<'de>>(
        &self,
        what: &str,
        request: Builder,
    ) -> Result<T, Error> {
        let (status, body) = self.ask(request, Bytes::new()).await?;
        if status != StatusCode::OK {
            return failed(format!("{what} answered {status}"));
        }
        parse(what, &body)
    }

    async fn ask(&self, request: Builder, body: Bytes) -> Result<(StatusCode, Bytes), Error> {
        let request = request.header(ACCEPT, "application/json").body(body);
        let request = request.or_else(|error| failed(error.to_string()))?;
        let answer = self.client.send(request, &LIMITS).await;
        let answer = answer.or_else(|error| failed(error.detail()))?;
        Ok((answer.status, answer.body))
    }
}

fn parse<T: for<'de> Deserialize<'de>>(what: &str, body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).or_else(|error| failed(format!("{what} cannot be read: {error}")))
}

/// Returns whether a key may have signed a token that names the key `kid`.
fn is_named(key: &Key, kid: Option<&str>) -> bool {
    match (kid, key.kid.as_deref()) {
        (Some(kid), Some(own)) => kid == own,
        (None, _) | (_, None) => true,
    }
}
