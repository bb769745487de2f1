//! An organization's named secrets: set and deleted by its clients and the operator, sealed at
//! rest, and read by the requests of `http` steps.
//!
//! No response contains a value; lists show names and dates. A new value takes effect at the next
//! attempt, because each attempt reads the value. This module does not decide where a value may be
//! used.

use crate::audit::{Actor, Recorder};
use orrery_domain::ids::OrganizationId;
use orrery_domain::secret::{NAME_MAX, Secret, VALUE_BYTES_MAX, Values, is_name};
use orrery_runtime::Clock;
use orrery_storage::rotation::{Rotation, Watch};
use orrery_storage::{self as storage, Change, Commit, Key, Page, Sealer, Store, Table};

/// Maximum number of secrets of one organization; a list contains all of them.
const SECRETS_MAX: usize = 1_000;

/// Errors of secret operations.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("a secret's name must have 1 to {NAME_MAX} characters of a-z A-Z 0-9 _ -")]
    InvalidName,
    #[error("a secret's value must have 1 to {VALUE_BYTES_MAX} bytes of text without NUL")]
    InvalidValue,
    #[error("there is no secret {0}")]
    NotFound(String),
    #[error("there are {SECRETS_MAX} secrets already; delete some first")]
    TooMany,
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

/// The message for a `seal.key` that is damaged or from another store.
pub const FOREIGN_KEY: &str = "seal.key is not the key of this store: named secrets, credentials in definitions, \
    webhook signatures and links fail";
/// How to fix [`FOREIGN_KEY`].
pub const FOREIGN_KEY_REMEDY: &str = "stop the service and restore seal.key from a backup; if no copy is left, set \
    the secrets again, then run `orrery seal rotate`";
/// A known text. Each store contains this text, encrypted with the store's key.
const KNOWN_TEXT: &str = "orrery";

/// Returns whether `sealer` has this store's key. Checks this by decrypting the known text or, in a
/// store without that text, the first secret.
///
/// # Errors
/// If the store cannot be read.
pub async fn has_key_of(store: &Store, sealer: &Sealer) -> Result<bool, storage::Error> {
    let sealed = match store.get(&known_text()).await? {
        Some(sealed) => Some(String::from_utf8_lossy(&sealed).into_owned()),
        None => {
            let first: Vec<Secret> = store.records(Page::of(Key::table(Table::Secret), 1)).await?;
            first.into_iter().next().map(|secret| secret.sealed)
        }
    };
    Ok(sealed.is_none_or(|sealed| sealer.unseal(&sealed).is_ok()))
}

fn known_text() -> Key {
    Key::table(Table::Meta).text("sealed text")
}

/// The secrets of a store.
#[derive(Debug, Clone)]
pub struct Secrets {
    store: Store,
    sealer: Sealer,
    clock: Clock,
    recorder: Recorder,
}

impl Secrets {
    /// Opens the secrets of a store.
    #[must_use]
    pub fn new(store: Store, sealer: Sealer, clock: Clock) -> Self {
        let recorder = Recorder::new(clock.clone());
        Self { store, sealer, clock, recorder }
    }

    /// Returns the same secrets with `actor` as the audit log's actor.
    #[must_use]
    pub fn by(&self, actor: Actor) -> Self {
        Self { recorder: self.recorder.by(actor), ..self.clone() }
    }

    /// Warns if the service's key is not the store's. If the store has no known text yet, stores
    /// the text, so that a wrong key is detected at a later start.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn check_key(&self) -> Result<(), Error> {
        if !self.has_right_key().await? {
            tracing::error!("{FOREIGN_KEY}: {FOREIGN_KEY_REMEDY}");
        } else if self.store.get(&known_text()).await?.is_none() {
            let mut commit = Commit::new();
            commit.put_bytes(known_text(), self.seal(KNOWN_TEXT)?.into_bytes());
            self.store.commit(commit).await?;
        }
        Ok(())
    }

    /// Returns whether the service has the store's key.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn has_right_key(&self) -> Result<bool, Error> {
        Ok(has_key_of(&self.store, &self.sealer).await?)
    }

    fn seal(&self, text: &str) -> Result<String, storage::Error> {
        self.sealer.seal(text).map_err(|error| storage::Error::Unavailable {
            reason: format!("a secret cannot be sealed: {error}"),
        })
    }

    /// Creates or replaces a secret. Returns true if the secret is new.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::InvalidValue`], [`Error::TooMany`], [`Error::Storage`]. On
    /// error, nothing is changed.
    pub async fn set(
        &self,
        organization: OrganizationId,
        name: &str,
        value: &str,
    ) -> Result<(Secret, bool), Error> {
        if !is_name(name) {
            return Err(Error::InvalidName);
        }
        if value.is_empty() || value.len() > VALUE_BYTES_MAX || value.contains('\0') {
            return Err(Error::InvalidValue);
        }
        let sealed = self.seal(value)?;
        let (sealed, mut is_new) = (&sealed, false);
        let set = |before: Option<Secret>| {
            is_new = before.is_none();
            async move {
                if before.is_none() && self.list(organization).await?.len() >= SECRETS_MAX {
                    return Err(Error::TooMany);
                }
                let now = self.clock.now();
                let created_at = before.map_or(now, |before| before.created_at);
                let (name, sealed) = (name.to_owned(), sealed.clone());
                let mut commit = Commit::of_new_work();
                self.recorder.add(&mut commit, "secret.set", &name, organization)?;
                let secret = Secret { organization, name, sealed, created_at, updated_at: now };
                Ok::<_, Error>(Change::Put(secret, commit))
            }
        };
        let secret = self.store.update(&key(organization, name), set).await?;
        Ok((secret, is_new))
    }

    /// Returns whether a secret with this name exists and has this value.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn is_set_to(
        &self,
        organization: OrganizationId,
        name: &str,
        value: &str,
    ) -> Result<bool, Error> {
        let values = self.values(organization, &[name.to_owned()]).await?;
        Ok(values.get(name) == Some(value))
    }

    /// Deletes a secret. Steps that refer to the secret fail, starting with their next attempt.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Storage`].
    pub async fn delete(&self, organization: OrganizationId, name: &str) -> Result<(), Error> {
        let missing = || Error::NotFound(name.to_owned());
        if !is_name(name) {
            return Err(missing());
        }
        let mut commit = Commit::new();
        commit.delete_existing(key(organization, name));
        self.recorder.add(&mut commit, "secret.delete", name, organization)?;
        self.store.commit_or(commit, missing()).await
    }

    /// Lists an organization's secrets by name, with sealed values.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn list(&self, organization: OrganizationId) -> Result<Vec<Secret>, Error> {
        let page = Page::of(Key::table(Table::Secret).id(organization), SECRETS_MAX);
        Ok(self.store.records(page).await?)
    }

    /// Returns the `names` for which the organization has no secret, in the given order.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn missing<'n>(
        &self,
        organization: OrganizationId,
        names: impl IntoIterator<Item = &'n str> + Send,
    ) -> Result<Vec<&'n str>, storage::Error> {
        let mut missing = Vec::new();
        for name in names.into_iter().collect::<Vec<_>>() {
            if self.store.get(&key(organization, name)).await?.is_none() {
                missing.push(name);
            }
        }
        Ok(missing)
    }

    /// Returns the values of the secrets in `names`. Secrets that do not exist are omitted. A
    /// secret that cannot be decrypted is omitted and logged.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn values(
        &self,
        organization: OrganizationId,
        names: &[String],
    ) -> Result<Values, storage::Error> {
        let mut values = Vec::new();
        for name in names {
            let Some(secret) = self.store.read::<Secret>(&key(organization, name)).await? else {
                continue;
            };
            match self.sealer.unseal(&secret.sealed) {
                Ok(value) => values.push((secret.name, value)),
                Err(error) => {
                    tracing::error!(%organization, name, %error, "failed to unseal a secret")
                }
            }
        }
        Ok(values.into_iter().collect())
    }
}

/// Encrypts all secrets again when `seal.key` is rotated.
///
/// # Errors
/// When the store cannot be read or written, or when `watch` fails. Commits made before the error
/// remain.
pub async fn reseal(
    store: &Store,
    rotation: &mut Rotation,
    watch: &mut Watch<'_>,
) -> Result<(), storage::Error> {
    fn sealed(secret: &mut Secret) -> Option<&mut String> {
        Some(&mut secret.sealed)
    }
    rotation.records(store, Key::table(Table::Secret), sealed, watch).await?;
    // The next start encrypts the known text with the new key.
    let mut commit = Commit::new();
    commit.delete(known_text());
    store.commit(commit).await
}

fn key(organization: OrganizationId, name: &str) -> Key {
    Key::table(Table::Secret).id(organization).text(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_storage::Options;
    use orrery_storage::record::{decode, encode};

    const OURS: [u8; 16] = [1; 16];
    const THEIRS: [u8; 16] = [2; 16];

    fn opened(folder: &std::path::Path) -> Secrets {
        let sealer = Sealer::open(folder).unwrap();
        let store = Store::open(&Options { folder: folder.to_owned(), inline_bytes: 1024 });
        Secrets::new(store.unwrap(), sealer, Clock::system())
    }

    #[tokio::test]
    async fn secret_is_set_replaced_listed_and_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let secrets = opened(folder.path());
        let (ours, theirs) = (OrganizationId::from(OURS), OrganizationId::from(THEIRS));
        let names = ["a".to_owned(), "b".to_owned()];
        let (first, is_new) = secrets.set(ours, "a", "one").await.unwrap();
        assert!(is_new && !first.sealed.contains("one"));
        secrets.set(ours, "b", "line\nline\n").await.unwrap();
        let (second, is_new) = secrets.set(ours, "a", "two").await.unwrap();
        assert!(!is_new && second.created_at == first.created_at);
        let values = secrets.values(ours, &names).await.unwrap();
        assert_eq!((values.get("a"), values.get("b")), (Some("two"), Some("line\nline\n")));
        assert_eq!(secrets.values(theirs, &names).await.unwrap().get("a"), None);
        assert_eq!(secrets.missing(theirs, ["a", "c"]).await.unwrap(), ["a", "c"]);
        assert_eq!(secrets.missing(ours, ["a", "c"]).await.unwrap(), ["c"]);
        let listed = secrets.list(ours).await.unwrap();
        assert_eq!(listed.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(matches!(secrets.delete(theirs, "a").await, Err(Error::NotFound(_))));
        secrets.delete(ours, "a").await.unwrap();
        assert!(matches!(secrets.delete(ours, "a").await, Err(Error::NotFound(_))));
    }

    #[tokio::test]
    async fn secret_persists_across_restart() {
        let folder = tempfile::tempdir().unwrap();
        let organization = OrganizationId::from(OURS);
        let secrets = opened(folder.path());
        secrets.set(organization, "a", "kept value").await.unwrap();
        secrets.store.close().await;
        let secrets = opened(folder.path());
        let values = secrets.values(organization, &["a".to_owned()]).await.unwrap();
        assert_eq!(values.get("a"), Some("kept value"));
    }

    #[tokio::test]
    async fn damaged_seal_key_is_noticed() {
        for (has_started, has_secret) in [(true, false), (true, true), (false, true)] {
            let folder = tempfile::tempdir().unwrap();
            let secrets = opened(folder.path());
            assert!(secrets.has_right_key().await.unwrap(), "a new store");
            if has_secret {
                secrets.set(OrganizationId::from(OURS), "a", "value").await.unwrap();
            }
            if has_started {
                secrets.check_key().await.unwrap();
            }
            assert!(secrets.has_right_key().await.unwrap());
            secrets.store.close().await;
            let path = folder.path().join("seal.key");
            let mut key = std::fs::read(&path).unwrap();
            key[5] ^= 1;
            std::fs::write(&path, &key).unwrap();
            let secrets = opened(folder.path());
            // Starting with the wrong key does not turn that key into the store's key.
            for _ in 0..2 {
                assert!(!secrets.has_right_key().await.unwrap(), "{has_started} {has_secret}");
                secrets.check_key().await.unwrap();
            }
            secrets.store.close().await;
            key[5] ^= 1;
            std::fs::write(&path, &key).unwrap();
            assert!(opened(folder.path()).has_right_key().await.unwrap());
        }
    }

    #[tokio::test]
    async fn seal_key_is_right_after_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let secrets = opened(folder.path());
        secrets.set(OrganizationId::from(OURS), "a", "value").await.unwrap();
        secrets.check_key().await.unwrap();
        let mut rotation = Rotation::begin(folder.path()).unwrap();
        reseal(&secrets.store, &mut rotation, &mut |_| Ok(())).await.unwrap();
        rotation.finish().unwrap();
        secrets.store.close().await;
        let secrets = opened(folder.path());
        for _ in 0..2 {
            assert!(secrets.has_right_key().await.unwrap());
            secrets.check_key().await.unwrap();
        }
    }

    #[tokio::test]
    async fn invalid_secret_name_or_value_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let secrets = opened(folder.path());
        let organization = OrganizationId::from(OURS);
        let too_long = "x".repeat(VALUE_BYTES_MAX + 1);
        for (name, value) in [("a b", "v"), ("", "v"), ("a", ""), ("a", "a\0b"), ("a", &too_long)] {
            assert!(secrets.set(organization, name, value).await.is_err(), "{name}");
        }
        assert!(secrets.list(organization).await.unwrap().is_empty());
        secrets.set(organization, "a", &too_long[1..]).await.unwrap();
    }

    #[test]
    fn secret_record_matches_golden_bytes() {
        let golden = concat!(
            "\u{1}{\"organization\":\"01010101-0101-0101-0101-010101010101\",\"name\":\"a\",",
            "\"sealed\":\"c2VhbGVk\",\"created_at\":1,\"updated_at\":2}"
        );
        let secret: Secret = decode(golden.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(encode(&secret).unwrap()).unwrap(), golden);
    }
}
