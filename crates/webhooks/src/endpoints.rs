//! Webhook endpoints: stored with encrypted secrets, and cached in memory, so that an execution
//! finds the endpoints to notify without reading the disk.
//!
//! Each commit that changes an endpoint also updates the cache, before the caller gets the result.
//! An attempt's effect on its endpoint (the endpoint starts to fail, works again, or has failed for
//! too long) is part of the attempt's commit; attempts without such an effect do not write to the
//! endpoint.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::rows;
use orrery_domain::delivery::{Delivery, Status};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{EndpointId, OrganizationId};
use orrery_domain::signature;
use orrery_domain::time::Timestamp;
use orrery_domain::webhook_endpoint::{
    Disabled, ENDPOINTS_MAX, Endpoint, Event, NAME_MAX, Reason, Replaced, Scheme,
};
use orrery_records::audit::{self, Actor, Entry, Recorder};
use orrery_runtime::{self as runtime, Clock};
use orrery_storage::commit::Expect;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Change, Commit, Page, Sealer, Store};

/// The reason why an endpoint cannot be created, changed or found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("webhook endpoint not found")]
    NotFound,
    #[error("name must have 1 to {NAME_MAX} characters of a-z A-Z 0-9 . _ -")]
    InvalidName,
    #[error("there is a webhook endpoint with the name {0} already")]
    NameTaken(String),
    #[error("there are {ENDPOINTS_MAX} webhook endpoints already; delete some first")]
    TooMany,
    #[error("failed to generate a secret: {0}")]
    Secret(String),
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

/// A secret that is shown once; `None` if the receiver needs only the public key.
pub(crate) type Shown = Option<String>;

type Known = HashMap<OrganizationId, Vec<Arc<Endpoint>>>;

/// The endpoints of a store; clones share the cache.
#[derive(Clone)]
pub struct Endpoints {
    store: Store,
    sealer: Sealer,
    clock: Clock,
    recorder: Recorder,
    known: Arc<RwLock<Known>>,
}

impl std::fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoints").finish_non_exhaustive()
    }
}

impl Endpoints {
    /// Creates the endpoints of a store; the cache is empty until [`Endpoints::load`].
    #[must_use]
    pub fn new(store: Store, sealer: Sealer, clock: Clock) -> Self {
        let recorder = Recorder::new(clock.clone());
        Self { store, sealer, clock, recorder, known: Arc::default() }
    }

    /// Returns the same endpoints with `actor` as the audit log's actor.
    #[must_use]
    pub fn by(&self, actor: Actor) -> Self {
        Self { recorder: self.recorder.by(actor), ..self.clone() }
    }

    /// Loads the cache from the store. Must be called before any change.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn load(&self) -> Result<(), storage::Error> {
        let mut scan = self.store.scan(rows::all_endpoints());
        while let Some((key, bytes)) = scan.next().await? {
            if !rows::is_endpoint(&key) {
                continue;
            }
            match decode::<Endpoint>(&bytes) {
                Ok(endpoint) => remember(&self.known, endpoint),
                Err(error) => tracing::error!(?key, %error, "unreadable webhook endpoint"),
            }
        }
        Ok(())
    }

    /// Returns the endpoints to notify of this execution's event. Reads only the cache.
    #[must_use]
    pub fn wanting(&self, event: Option<Event>, execution: &Execution) -> Vec<Arc<Endpoint>> {
        let Some(event) = event else { return Vec::new() };
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let of_organization = known.get(&execution.organization).into_iter().flatten();
        of_organization.filter(|endpoint| endpoint.wants(event, execution)).cloned().collect()
    }

    /// Returns an endpoint from the cache.
    #[must_use]
    pub fn known(&self, organization: OrganizationId, id: EndpointId) -> Option<Arc<Endpoint>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&organization)?.iter().find(|endpoint| endpoint.id == id).cloned()
    }

    /// Creates an endpoint with a new secret, which replaces the secret in `endpoint`.
    ///
    /// # Errors
    /// [`Error::NameTaken`], [`Error::TooMany`], [`Error::Secret`], [`Error::Storage`]. On error,
    /// nothing is created.
    pub async fn create(&self, mut endpoint: Endpoint) -> Result<(Endpoint, Shown), Error> {
        let organization = endpoint.organization;
        let shown = self.make_secret(&mut endpoint)?;
        for _ in 0..storage::TRIES_MAX {
            let mut commit = Commit::of_new_work();
            let others = self.claim_list(&mut commit, organization).await?;
            if others.len() >= ENDPOINTS_MAX {
                return Err(Error::TooMany);
            }
            is_free(&others, &endpoint)?;
            commit.put(rows::endpoint(organization, endpoint.id), &endpoint)?;
            self.note(&mut commit, "webhook_endpoint.create", &endpoint)?;
            if self.store.try_commit(commit).await? {
                return Ok((endpoint, shown));
            }
        }
        Err(storage::Error::Conflict { key: rows::endpoint_changes(organization) }.into())
    }

    /// Changes an endpoint. Enabling it again resets its failures.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NameTaken`], [`Error::Storage`]. On error, nothing is changed.
    pub async fn change(
        &self,
        organization: OrganizationId,
        id: EndpointId,
        change: impl Fn(&mut Endpoint),
    ) -> Result<Endpoint, Error> {
        let edit = |endpoint: &mut Endpoint| {
            let was_disabled = endpoint.disabled.is_some();
            change(endpoint);
            if was_disabled && endpoint.disabled.is_none() {
                endpoint.failing_since = None;
            }
            Ok(())
        };
        self.edit(organization, id, "webhook_endpoint.change", edit).await
    }

    /// Creates a new secret for an endpoint. For `grace`, deliveries are also signed with the
    /// previous secret; older secrets stop being valid immediately.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Secret`], [`Error::Storage`]. On error, nothing is changed.
    pub async fn rotate(
        &self,
        organization: OrganizationId,
        id: EndpointId,
        grace: Duration,
    ) -> Result<(Endpoint, Shown), Error> {
        let mut shown = None;
        let edit = |endpoint: &mut Endpoint| {
            let until = self.clock.now().plus(grace);
            let secret = endpoint.secret.clone();
            shown = self.make_secret(endpoint)?;
            endpoint.replaced = (!grace.is_zero()).then_some(Replaced { secret, until });
            Ok(())
        };
        let rotated = self.edit(organization, id, "webhook_endpoint.rotate", edit).await?;
        Ok((rotated, shown))
    }

    async fn edit(
        &self,
        organization: OrganizationId,
        id: EndpointId,
        action: &str,
        mut edit: impl FnMut(&mut Endpoint) -> Result<(), Error>,
    ) -> Result<Endpoint, Error> {
        let edit = |old: Option<Endpoint>| {
            let edited = old.ok_or(Error::NotFound).and_then(|old| {
                let mut endpoint = old.clone();
                edit(&mut endpoint)?;
                endpoint.updated_at = self.clock.now();
                Ok((endpoint, old.name))
            });
            async move {
                let (endpoint, old_name) = edited?;
                let mut commit = Commit::of_new_work();
                if endpoint.name != old_name {
                    let others = self.claim_list(&mut commit, organization).await?;
                    is_free(&others, &endpoint)?;
                }
                self.note(&mut commit, action, &endpoint)?;
                Ok(Change::Put(endpoint, commit))
            }
        };
        self.store.update(&rows::endpoint(organization, id), edit).await
    }

    /// Deletes an endpoint. The endpoint's deliveries stay in the history; its unfinished
    /// deliveries fail.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Storage`].
    pub async fn delete(&self, organization: OrganizationId, id: EndpointId) -> Result<(), Error> {
        let key = rows::endpoint(organization, id);
        let endpoint: Endpoint = self.store.read(&key).await?.ok_or(Error::NotFound)?;
        let mut commit = Commit::new();
        commit.delete_existing(key);
        let subject = subject(&endpoint);
        self.recorder.add(&mut commit, "webhook_endpoint.delete", subject, organization)?;
        let known = Arc::clone(&self.known);
        commit.after_durable(move || forget(&known, organization, id));
        self.store.commit_or(commit, Error::NotFound).await
    }

    /// Returns one of an organization's endpoints.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Storage`].
    pub async fn find(
        &self,
        organization: OrganizationId,
        id: EndpointId,
    ) -> Result<Endpoint, Error> {
        self.store.read(&rows::endpoint(organization, id)).await?.ok_or(Error::NotFound)
    }

    /// Lists an organization's endpoints, oldest first.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn list(&self, organization: OrganizationId) -> Result<Vec<Endpoint>, Error> {
        let page = Page::of(rows::endpoints(organization), ENDPOINTS_MAX);
        Ok(self.store.records(page).await?)
    }

    /// Adds the condition to `commit` that the list of endpoints is unchanged, and returns the
    /// list.
    async fn claim_list(
        &self,
        commit: &mut Commit,
        organization: OrganizationId,
    ) -> Result<Vec<Endpoint>, Error> {
        let changes = rows::endpoint_changes(organization);
        commit.expect(Expect::unchanged(changes.clone(), self.store.get(&changes).await?));
        commit.add(changes, 1);
        self.list(organization).await
    }

    fn note(&self, commit: &mut Commit, action: &str, endpoint: &Endpoint) -> Result<(), Error> {
        let organization = endpoint.organization;
        self.recorder.add(commit, action, subject(endpoint), organization)?;
        self.publish(commit, endpoint);
        Ok(())
    }

    /// Updates the cache once the commit is durable.
    fn publish(&self, commit: &mut Commit, endpoint: &Endpoint) {
        let known = Arc::clone(&self.known);
        let endpoint = endpoint.clone();
        commit.after_durable(move || remember(&known, endpoint));
    }

    fn make_secret(&self, endpoint: &mut Endpoint) -> Result<Shown, Error> {
        let random = runtime::random_bytes();
        let random = random.map_err(|error| Error::Secret(error.to_string()))?;
        let secret = match endpoint.scheme {
            Scheme::V1 => signature::standard_secret(random),
            Scheme::V1a => signature::ed25519_secret(random),
        };
        let sealed = self.sealer.seal(&secret);
        endpoint.secret = sealed.map_err(|error| Error::Secret(error.to_string()))?;
        endpoint.public_key = signature::ed25519_public_key(&secret);
        Ok((endpoint.scheme == Scheme::V1).then_some(secret))
    }

    /// Returns the value of `webhook-signature`, signed with each secret that is valid at `now`.
    ///
    /// # Errors
    /// A message if a secret cannot be decrypted.
    pub(super) fn signatures(
        &self,
        endpoint: &Endpoint,
        id: &str,
        now: Timestamp,
        body: &[u8],
    ) -> Result<String, String> {
        let seconds = now.unix_seconds();
        let sign = |sealed: &str| {
            let secret = self.sealer.unseal(sealed).map_err(|error| error.to_string())?;
            match endpoint.scheme {
                Scheme::V1 => Ok(signature::sign_standard(&secret, id, seconds, body)),
                Scheme::V1a => signature::sign_ed25519(&secret, id, seconds, body)
                    .ok_or_else(|| "the endpoint's key is damaged".to_owned()),
            }
        };
        let signed: Result<Vec<String>, String> = endpoint.secrets(now).map(sign).collect();
        Ok(signed?.join(" "))
    }

    /// Returns the secret itself, if the endpoint's deliveries include it.
    ///
    /// # Errors
    /// A message if the secret cannot be decrypted.
    pub(super) fn plain_secret(&self, endpoint: &Endpoint) -> Result<Option<String>, String> {
        // The private key of the public-key scheme is never sent.
        if !endpoint.send_plain_secret || endpoint.scheme != Scheme::V1 {
            return Ok(None);
        }
        self.sealer.unseal(&endpoint.secret).map(Some).map_err(|error| error.to_string())
    }

    /// Adds an attempt's effect on its endpoint to the commit. Returns whether there was an effect;
    /// if so, the commit succeeds only if the endpoint is unchanged.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(super) async fn judge(
        &self,
        commit: &mut Commit,
        delivery: &Delivery,
        patience: Duration,
    ) -> Result<bool, storage::Error> {
        let Some(target) = &delivery.endpoint else { return Ok(false) };
        let organization = delivery.organization;
        let now = self.clock.steady();
        let status = delivery.progress.status;
        let known = self.known(organization, target.id);
        if known.and_then(|endpoint| judged(&endpoint, status, now, patience)).is_none() {
            return Ok(false);
        }
        let key = rows::endpoint(organization, target.id);
        let Some(before) = self.store.get(&key).await? else { return Ok(false) };
        let endpoint = decode(&before)?;
        let Some(mut endpoint) = judged(&endpoint, status, now, patience) else { return Ok(false) };
        if let Some(disabled) = &mut endpoint.disabled {
            disabled.at = self.clock.now();
            let actor = Actor::service_on("failed deliveries");
            let at = disabled.at;
            let action = "webhook_endpoint.disable";
            let subject = subject(&endpoint);
            audit::add(commit, &Entry::done(&actor, at, action, subject, Some(organization)))?;
            let endpoint = target.id;
            commit.after_durable(move || {
                tracing::warn!(%organization, %endpoint, "webhook endpoint disabled: its deliveries fail");
                metrics::counter!("orrery_webhook_endpoints_disabled_total").increment(1);
            });
        }
        commit.expect(Expect::Equal(key.clone(), before));
        commit.put(key, &endpoint)?;
        self.publish(commit, &endpoint);
        Ok(true)
    }
}

/// Returns the endpoint as changed by an attempt that left the delivery in this status; `None` if
/// nothing changes. Only a delivery that has finally failed disables the endpoint.
fn judged(
    endpoint: &Endpoint,
    status: Status,
    now: Timestamp,
    patience: Duration,
) -> Option<Endpoint> {
    if endpoint.disabled.is_some() {
        return None;
    }
    let mut judged = endpoint.clone();
    match (status, endpoint.failing_since) {
        (Status::Delivered, Some(_)) => judged.failing_since = None,
        (Status::Pending | Status::Failed, None) => judged.failing_since = Some(now),
        (Status::Failed, Some(since)) if now.since(since) >= patience => {
            judged.disabled = Some(Disabled { at: now, reason: Reason::Failures });
        }
        (Status::Delivered, None) | (Status::Pending | Status::Failed, Some(_)) => return None,
    }
    Some(judged)
}

/// Returns the endpoint's name in the audit log, which contains no part of the URL except its
/// receiver.
fn subject(endpoint: &Endpoint) -> String {
    let receiver = || orrery_domain::delivery::receiver(&endpoint.url);
    format!("{} {}", endpoint.id, endpoint.name.clone().unwrap_or_else(receiver))
}

fn is_free(others: &[Endpoint], endpoint: &Endpoint) -> Result<(), Error> {
    let is_other = |other: &&Endpoint| other.id != endpoint.id && other.name == endpoint.name;
    match &endpoint.name {
        Some(name) if others.iter().any(|other| is_other(&other)) => {
            Err(Error::NameTaken(name.clone()))
        }
        Some(_) | None => Ok(()),
    }
}

fn remember(known: &RwLock<Known>, endpoint: Endpoint) {
    let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
    let of_organization = known.entry(endpoint.organization).or_default();
    match of_organization.iter_mut().find(|one| one.id == endpoint.id) {
        Some(one) => *one = Arc::new(endpoint),
        None => of_organization.push(Arc::new(endpoint)),
    }
}

fn forget(known: &RwLock<Known>, organization: OrganizationId, id: EndpointId) {
    let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
    let Some(of_organization) = known.get_mut(&organization) else { return };
    of_organization.retain(|endpoint| endpoint.id != id);
    if of_organization.is_empty() {
        known.remove(&organization);
    }
}

/// Re-encrypts the secrets of all endpoints when `seal.key` is rotated.
///
/// # Errors
/// If the store cannot be read or written, or `watch` fails. Commits made before the error remain.
pub(super) async fn reseal(
    store: &Store,
    rotation: &mut storage::rotation::Rotation,
    watch: &mut storage::rotation::Watch<'_>,
) -> Result<(), storage::Error> {
    fn current(endpoint: &mut Endpoint) -> Option<&mut String> {
        Some(&mut endpoint.secret)
    }
    fn replaced(endpoint: &mut Endpoint) -> Option<&mut String> {
        endpoint.replaced.as_mut().map(|replaced| &mut replaced.secret)
    }
    for organization in organizations(store).await? {
        rotation.records(store, rows::endpoints(organization), current, watch).await?;
        rotation.records(store, rows::endpoints(organization), replaced, watch).await?;
    }
    Ok(())
}

/// Returns the organizations that have endpoints.
async fn organizations(store: &Store) -> Result<Vec<OrganizationId>, storage::Error> {
    let mut found = Vec::new();
    let mut scan = store.scan(Page::of(rows::all_endpoints(), 1));
    while let Some((key, _)) = scan.next().await?
        && let Some(organization) = rows::organization_of_endpoint(&key)
    {
        found.push(organization);
        scan.skip_prefix(&rows::all_endpoints().id(organization));
    }
    Ok(found)
}
