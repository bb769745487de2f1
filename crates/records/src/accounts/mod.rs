//! Accounts: organizations and their API keys.
//!
//! A full key is contained only in the response to the request that creates it. The store has only
//! the SHA-256 of a key. The SHA-256 is also the row's key, so that a lookup costs the same
//! regardless of the number of keys. (A key has 160 random bits, so a slow hash would add no
//! protection.) Keys in use are cached, so that most requests need no disk access.

mod admin_keys;
mod bootstrap_key;
mod changing;
mod lifecycle;
mod limiting;
mod live;
mod rows;
mod usage;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::watch;

use crate::audit::{Actor, Recorder};
use crate::key_policies;
use crate::limits;
use orrery_domain::account::{
    ApiKey, DEFAULT_ORGANIZATION, DeletedKey, KEY_NAME_MAX, Limits, Organization, box_owner,
};
use orrery_domain::ids::{Id as _, KeyId, OrganizationId};
use orrery_domain::key_policy::KeyPolicy;
use orrery_domain::spelling;
use orrery_domain::time::{SPAN_MAX, Timestamp, span_text};
use orrery_runtime::{Clock, Tasks, new_id, random_bytes};
use orrery_storage::commit::Expect;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Commit, Key, Page, Store, Table};

pub use self::admin_keys::{ADMIN_KEY_PREFIX, KeyFault};
pub use self::bootstrap_key::BootstrapKey;
use self::bootstrap_key::may_be_a_key;
use self::changing::GRACE_MAX;
use self::rows::{hash_key, id_key, name_key, organization_key};

/// The prefix of every API key (`docs/spec/hosts.md`, "Authentication").
pub const KEY_PREFIX: &str = "smk_";
/// Random bytes in a key: 160 bits.
const KEY_BYTES: usize = 20;
/// The alphabet of a key: 32 digits of five bits each, without characters that look alike.
const DIGITS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
/// The length of a key: the prefix and 32 digits.
const KEY_LENGTH: usize = KEY_PREFIX.len() + KEY_BYTES * 8 / 5;
/// The number of characters of a key that are stored for display.
const SHOWN: usize = KEY_PREFIX.len() + 4;
/// Maximum number of cached keys. When this number is reached, the cache is cleared.
const CACHED_KEYS: usize = 10_000;
/// Maximum length of the name of an organization or a key.
const NAME_MAX: usize = 64;
/// Maximum number of entries in a list of organizations or of an organization's keys.
const LISTED: usize = 10_000;

/// Errors of account operations.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("a name must have 1 to {NAME_MAX} characters of a-z, 0-9 and -")]
    InvalidName,
    #[error(
        "a key's name must have 1 to {KEY_NAME_MAX} characters, not only spaces, and no control \
         characters"
    )]
    InvalidKeyName,
    #[error("a key may expire at most {} (1000 years) from now", span_text(SPAN_MAX))]
    InvalidExpiry,
    #[error("the organization {0} already exists")]
    Exists(String),
    #[error(
        "the organization {DEFAULT_ORGANIZATION} keeps its name: commands without --org use it"
    )]
    DefaultStays,
    #[error("there is no organization {0}")]
    NoOrganization(String),
    #[error("key not found")]
    NoKey,
    /// The policy of a key is out of its limits; the text names the field.
    #[error("{0}")]
    Policy(String),
    #[error("the previous key may work for at most {} more", span_text(GRACE_MAX))]
    Grace,
    #[error(transparent)]
    Randomness(#[from] orrery_runtime::NoRandomness),
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

/// The first characters of a key (`smk_abcd`): enough to identify the key but not to use it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Prefix([u8; SHOWN]);

impl Prefix {
    /// The prefix displayed for the dashboard, which uses no key.
    pub const DASHBOARD: Self = Self(*b"--------");

    /// Returns the prefix of a full key or of a prefix. A shorter string is padded with `_`.
    fn of(key: &str) -> Self {
        let mut shown = [b'_'; SHOWN];
        for (place, byte) in shown.iter_mut().zip(key.bytes().filter(u8::is_ascii)) {
            *place = byte;
        }
        Self(shown)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prefix({self})")
    }
}

/// The caller, identified by a valid key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    pub organization: OrganizationId,
    pub key: KeyId,
    /// The key's first characters, for display and logs.
    pub prefix: Prefix,
}

type Hash = [u8; 32];

/// The part of a key's record that is needed to handle requests.
#[derive(Debug, Clone)]
struct Known {
    caller: Caller,
    expires_at: Option<Timestamp>,
    noted: usage::Minute,
}

#[derive(Debug, Default)]
struct Cache {
    keys: HashMap<Hash, Known>,
    /// The organization and expiry of live keys by ID, for checking links.
    live: HashMap<KeyId, live::Live>,
    /// Counts deletions, so that a key read before its deletion is not cached after it.
    deletions: u64,
}

/// The accounts of a store. Clones share the cache.
#[derive(Debug, Clone)]
pub struct Accounts {
    store: Store,
    clock: Clock,
    cache: Arc<RwLock<Cache>>,
    /// Notified after every deletion, so that streams check their keys again.
    deleted: Arc<watch::Sender<()>>,
    /// Deletions in progress. A shutdown does not wait for these deletions: the store writes every
    /// commit that it has received, and the cache disappears with the process anyway.
    tasks: Tasks,
    recorder: Recorder,
    /// The last uses of keys that have not been written yet.
    uses: Arc<usage::Pending>,
    /// The organizations' limits, for enforcement.
    limits: limits::Handle,
    /// The keys' policies, for enforcement.
    policies: key_policies::Handle,
    /// Locked while the record of an organization or of a key changes.
    limiting: Arc<tokio::sync::Mutex<()>>,
    /// Notified after an organization has been deleted.
    erasing: Arc<tokio::sync::Notify>,
}

impl Accounts {
    /// Opens the accounts of a store.
    #[must_use]
    pub fn new(store: Store, clock: Clock) -> Self {
        let deleted = Arc::new(watch::Sender::new(()));
        let recorder = Recorder::new(clock.clone());
        let cache = Arc::default();
        let uses = Arc::default();
        let (limits, policies) = (limits::Handle::default(), key_policies::Handle::default());
        let tasks = Tasks::new();
        let (limiting, erasing) = (Arc::default(), Arc::default());
        Self {
            store,
            clock,
            cache,
            deleted,
            tasks,
            recorder,
            uses,
            limits,
            policies,
            limiting,
            erasing,
        }
    }

    /// Returns the limits of all organizations in memory.
    #[must_use]
    pub const fn limits(&self) -> &limits::Handle {
        &self.limits
    }

    /// Returns the policies of all keys in memory.
    #[must_use]
    pub const fn policies(&self) -> &key_policies::Handle {
        &self.policies
    }

    /// Returns the same accounts with `actor` as the audit log's actor.
    #[must_use]
    pub fn by(&self, actor: Actor) -> Self {
        Self { recorder: self.recorder.by(actor), ..self.clone() }
    }

    /// Creates an organization.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::Exists`], [`Error::Storage`].
    pub async fn create_organization(&self, name: &str) -> Result<Organization, Error> {
        if !is_organization_name(name) {
            return Err(Error::InvalidName);
        }
        let organization = Organization {
            id: new_id(),
            name: name.to_owned(),
            created_at: self.clock.now(),
            limits: Limits::default(),
            deleted_at: None,
        };
        let by_name = name_key(name);
        let mut commit = Commit::new();
        commit.expect(Expect::Absent(by_name.clone()));
        commit.put_bytes(by_name, organization.id.bytes().to_vec());
        commit.put(organization_key(organization.id), &organization)?;
        self.recorder.add(&mut commit, "organization.create", name, organization.id)?;
        self.store.commit_or(commit, Error::Exists(name.to_owned())).await?;
        Ok(organization)
    }

    /// Returns the organization called `name`.
    ///
    /// # Errors
    /// [`Error::NoOrganization`], [`Error::Storage`].
    pub async fn organization(&self, name: &str) -> Result<Organization, Error> {
        let row = match is_organization_name(name) {
            true => self.store.get(&name_key(name)).await?,
            false => None,
        };
        if let Some(id) = row.and_then(|row| <[u8; 16]>::try_from(row).ok())
            && let Some(found) = self.store.read(&organization_key(id.into())).await?
        {
            return Ok(found);
        }
        let others = self.organizations().await?;
        let names: Vec<&str> = others.iter().map(|other| other.name.as_str()).collect();
        Err(Error::NoOrganization(format!("{name}{}", spelling::hint(name, &names))))
    }

    /// Returns the organization `default` and whether it had to be created.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn ensure_default(&self) -> Result<(Organization, bool), Error> {
        match self.create_organization(DEFAULT_ORGANIZATION).await {
            Ok(organization) => Ok((organization, true)),
            Err(Error::Exists(name)) => Ok((self.organization(&name).await?, false)),
            Err(error) => Err(error),
        }
    }

    /// Returns the organization with this name. For `default` or without a name, returns the
    /// default organization, creating it if necessary.
    ///
    /// # Errors
    /// [`Error::NoOrganization`], [`Error::Storage`].
    pub async fn organization_or_default(&self, name: Option<&str>) -> Result<Organization, Error> {
        match name {
            None | Some(DEFAULT_ORGANIZATION) => Ok(self.ensure_default().await?.0),
            Some(name) => self.organization(name).await,
        }
    }

    /// Lists the organizations, oldest first, up to [`LISTED`].
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn organizations(&self) -> Result<Vec<Organization>, Error> {
        let page = Page::of(Key::table(Table::Organization), LISTED);
        let all: Vec<Organization> = self.store.records(page).await?;
        Ok(all.into_iter().filter(|one| one.deleted_at.is_none()).collect())
    }

    /// Returns an organization by ID.
    ///
    /// # Errors
    /// [`Error::NoOrganization`], [`Error::Storage`].
    pub async fn organization_of(&self, id: OrganizationId) -> Result<Organization, Error> {
        let found: Option<Organization> = self.store.read(&organization_key(id)).await?;
        let found = found.filter(|one| one.deleted_at.is_none());
        found.ok_or_else(|| Error::NoOrganization(id.to_string()))
    }

    /// Creates a key. The returned string is the full key, which is not stored and cannot be shown
    /// again.
    ///
    /// # Errors
    /// [`Error::InvalidKeyName`], [`Error::NoOrganization`], [`Error::Randomness`],
    /// [`Error::Storage`].
    pub async fn create_key(
        &self,
        organization: OrganizationId,
        name: &str,
        created_by: &str,
        expires_in: Option<Duration>,
    ) -> Result<(ApiKey, String), Error> {
        let expires_at = self.expiry(expires_in)?;
        let policy = KeyPolicy::default();
        self.make_key(KEY_PREFIX, organization, name, created_by, expires_at, policy).await
    }

    /// Returns the expiry for a key that is created now.
    ///
    /// # Errors
    /// [`Error::InvalidExpiry`].
    pub fn expiry(&self, expires_in: Option<Duration>) -> Result<Option<Timestamp>, Error> {
        let Some(span) = expires_in else { return Ok(None) };
        self.clock.now().checked_plus(span).map(Some).ok_or(Error::InvalidExpiry)
    }

    async fn make_key(
        &self,
        prefix: &str,
        owner: OrganizationId,
        name: &str,
        created_by: &str,
        expires_at: Option<Timestamp>,
        policy: KeyPolicy,
    ) -> Result<(ApiKey, String), Error> {
        policy.check().map_err(Error::Policy)?;
        if name.trim().is_empty() || name.len() > KEY_NAME_MAX || name.chars().any(char::is_control)
        {
            return Err(Error::InvalidKeyName);
        }
        let full = random_key(prefix)?;
        let new = self.new_key(&full, owner, name, created_by);
        let key = ApiKey { expires_at, policy, ..new };
        let mut commit = Commit::new();
        // No collision check is needed: the chance is 1 in 2^160.
        self.put_key(&mut commit, &key, &full)?;
        self.store.commit_or(commit, Error::NoOrganization(owner.to_string())).await?;
        self.policies.set(&key);
        Ok((key, full))
    }

    /// Returns the record of a new key that never expires.
    fn new_key(&self, full: &str, owner: OrganizationId, name: &str, created_by: &str) -> ApiKey {
        ApiKey {
            id: new_id(),
            organization: owner,
            name: name.to_owned(),
            prefix: shown(full),
            created_by: created_by.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect(),
            created_at: self.clock.now(),
            expires_at: None,
            policy: KeyPolicy::default(),
            previous: None,
        }
    }

    /// Adds a key to a commit. The commit fails if the key's organization does not exist.
    fn put_key(&self, commit: &mut Commit, key: &ApiKey, full: &str) -> Result<(), Error> {
        let (owner, hash) = (key.organization, hash(full));
        if owner != box_owner() {
            commit.expect(Expect::Present(organization_key(owner)));
        }
        commit.put(hash_key(&hash), key)?;
        commit.put_bytes(id_key(owner, key.id), hash.to_vec());
        self.recorder.add(commit, "key.create", subject(key), owner)?;
        Ok(())
    }

    /// Lists the keys of an organization, oldest first, up to [`LISTED`].
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn keys(&self, organization: OrganizationId) -> Result<Vec<ApiKey>, Error> {
        let page = Page::of(Key::table(Table::ApiKeyId).id(organization), LISTED);
        let rows = self.store.page(page).await?;
        let hashes: Vec<Key> =
            rows.iter().map(|(_, hash)| Key::table(Table::ApiKey).raw(hash)).collect();
        let found = self.store.get_many(&hashes).await?;
        found.iter().flatten().map(|bytes| Ok(decode(bytes)?)).collect()
    }

    /// Returns one of an organization's keys by ID; `None` if the key has been deleted.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn key(
        &self,
        organization: OrganizationId,
        id: KeyId,
    ) -> Result<Option<ApiKey>, Error> {
        let Some(hash) = self.store.get(&id_key(organization, id)).await? else { return Ok(None) };
        Ok(self.store.read(&Key::table(Table::ApiKey).raw(&hash)).await?)
    }

    /// Deletes a key. Requests with the key fail once this function has returned or, if the caller
    /// has disconnected, once the commit is durable.
    ///
    /// # Errors
    /// [`Error::NoKey`], [`Error::Storage`].
    pub async fn delete_key(&self, organization: OrganizationId, id: KeyId) -> Result<(), Error> {
        let accounts = self.clone();
        // The deletion completes even if the client disconnects: otherwise, the cache could keep
        // the deleted key.
        let deleting = self.tasks.complete(async move { accounts.delete(organization, id).await });
        deleting.await.unwrap_or_else(|error| {
            Err(storage::Error::Unavailable { reason: error.to_string() }.into())
        })
    }

    async fn delete(&self, organization: OrganizationId, id: KeyId) -> Result<(), Error> {
        let by_id = id_key(organization, id);
        let hash = self.store.get(&by_id).await?.ok_or(Error::NoKey)?;
        let key: Option<ApiKey> = self.store.read(&Key::table(Table::ApiKey).raw(&hash)).await?;
        let subject = key.as_ref().map_or_else(|| id.to_string(), subject);
        let mut commit = Commit::new();
        if let Some(key) = key.as_ref().filter(|_| organization != box_owner()) {
            let deleted = DeletedKey {
                name: key.name.clone(),
                created_by: key.created_by.clone(),
                tags: key.policy.tags.clone(),
                deleted_at: self.clock.now(),
            };
            commit.put(crate::usage::deleted_keys(organization).id(id), &deleted)?;
        }
        let previous = key.and_then(|key| key.previous);
        if let Some(previous) = &previous {
            commit.delete(hash_key(previous));
        }
        commit.delete_existing(by_id).delete(Key::table(Table::ApiKey).raw(&hash));
        commit.delete(usage::key_use(organization, id));
        self.recorder.add(&mut commit, "key.delete", subject, organization)?;
        self.store.commit_or(commit, Error::NoKey).await?;
        for hash in previous.into_iter().chain([Hash::try_from(hash).unwrap_or_default()]) {
            self.forget(&hash, id);
        }
        self.policies.remove(id);
        Ok(())
    }

    /// Removes a deleted or changed key from the cache.
    fn forget(&self, hash: &Hash, id: KeyId) {
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        cache.deletions += 1;
        cache.live.remove(&id);
        cache.keys.remove(hash);
        drop(cache);
        self.deleted.send_replace(());
    }

    /// Authenticates an API key. Returns `None` if the key is not valid.
    ///
    /// # Errors
    /// [`Error::Storage`] when the store cannot be read.
    pub async fn authenticate(&self, presented: &str) -> Result<Option<Caller>, Error> {
        let found = self.identify(KEY_PREFIX, presented).await?;
        Ok(found.filter(|caller| caller.organization != box_owner()))
    }

    /// Authenticates a key with this prefix.
    async fn identify(&self, prefix: &str, presented: &str) -> Result<Option<Caller>, Error> {
        if !may_be_a_key(prefix, presented) {
            return Ok(None);
        }
        let hash = hash(presented);
        let (known, deletions) = {
            let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
            let held = cache.keys.get_key_value(&hash);
            // The map has already compared the hashes, but not in constant time. This comparison,
            // which takes constant time, is the authoritative one.
            let held = held.filter(|(held, _)| bool::from(held.ct_eq(&hash)));
            (held.map(|(_, known)| known.clone()), cache.deletions)
        };
        if let Some(known) = known {
            return Ok(self.valid(&known));
        }
        let Some(key) = self.store.read::<ApiKey>(&hash_key(&hash)).await? else { return Ok(None) };
        let prefix = Prefix::of(&key.prefix);
        let caller = Caller { organization: key.organization, key: key.id, prefix };
        let known = Known { caller, expires_at: key.expires_at, noted: usage::Minute::default() };
        self.remember(hash, known.clone(), deletions);
        Ok(self.valid(&known))
    }

    /// Caches a key that was read when the deletion counter was `deletions`, unless the counter has
    /// changed since.
    fn remember(&self, hash: Hash, known: Known, deletions: u64) {
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        if cache.deletions == deletions {
            if cache.keys.len() >= CACHED_KEYS {
                cache.keys.clear();
            }
            cache.keys.insert(hash, known);
        }
    }

    /// Returns the caller of a cached key unless it has expired, and records the use.
    fn valid(&self, known: &Known) -> Option<Caller> {
        if known.expires_at.is_some_and(|end| end <= self.clock.now()) {
            return None;
        }
        let caller = known.caller;
        self.used(caller.organization, caller.key, &known.noted);
        Some(caller)
    }
}

fn is_organization_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Returns whether a string has the format of a key that this service generates.
fn has_the_form_of_a_key(prefix: &str, text: &str) -> bool {
    let digits = text.strip_prefix(prefix).filter(|_| text.len() == KEY_LENGTH);
    digits.is_some_and(|digits| digits.bytes().all(|digit| DIGITS.contains(&digit)))
}

/// Generates a key: the prefix and 160 random bits in 32 digits.
fn random_key(prefix: &str) -> Result<String, orrery_runtime::NoRandomness> {
    let mut key = prefix.to_owned();
    let bytes: [u8; KEY_BYTES] = random_bytes()?;
    for five in bytes.chunks(5) {
        let bits = five.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        for digit in 0..8 {
            let index = usize::try_from(bits >> (35 - 5 * digit) & 31).unwrap_or(0);
            key.push(DIGITS.get(index).map_or('a', |digit| char::from(*digit)));
        }
    }
    Ok(key)
}

/// Returns the first characters of a key, for display.
fn shown(full: &str) -> String {
    full.chars().take(SHOWN).collect()
}

/// Returns a key's name in the audit log.
fn subject(key: &ApiKey) -> String {
    format!("{} {}… {}", key.id, key.prefix, key.name)
}

fn hash(key: &str) -> Hash {
    Sha256::digest(key.as_bytes()).into()
}

#[cfg(test)]
mod tests;
