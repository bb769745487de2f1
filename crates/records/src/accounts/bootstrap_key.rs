//! The bootstrap key: an API key whose text the operator chooses, so that automation can use it
//! before the first start.
//!
//! A store gets at most one bootstrap key. A row records that the key was created, so that a
//! deleted key is not created again at the next startup.

use super::{Accounts, Error, KEY_PREFIX, has_the_form_of_a_key, hash, hash_key};
use orrery_domain::account::ApiKey;
use orrery_domain::ids::{Id as _, OrganizationId};
use orrery_storage::commit::Expect;
use orrery_storage::{Commit, Key, Table};

/// Minimum number of characters after the prefix: the same number as in a generated key.
const CHARS_MIN: usize = 32;
/// Maximum length of the key, including its prefix.
const LENGTH_MAX: usize = 256;
/// Minimum number of different characters after the prefix, so that a placeholder is not accepted
/// as a key.
const DIFFERENT_MIN: usize = 8;
const NAME: &str = "bootstrap key";

/// The text of a valid bootstrap key. The text is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapKey(String);

impl std::fmt::Debug for BootstrapKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BootstrapKey")
    }
}

impl BootstrapKey {
    /// Creates a bootstrap key from its text, after checking the text.
    ///
    /// # Errors
    /// Returns a sentence that does not contain the key.
    pub fn new(text: String) -> Result<Self, String> {
        let mut letters: Vec<u8> = text.bytes().skip(KEY_PREFIX.len()).collect();
        letters.sort_unstable();
        letters.dedup();
        if !has_its_form(&text) {
            return Err(format!(
                "a bootstrap key is {KEY_PREFIX} and at least {CHARS_MIN} characters of a-z A-Z 0-9 _ -, \
                 with at most {LENGTH_MAX} in all; make one with \
                 `echo {KEY_PREFIX}$(openssl rand -hex 20)`"
            ));
        }
        if letters.len() < DIFFERENT_MIN {
            return Err(
                "a bootstrap key must be random; this one has too few different characters"
                    .to_owned(),
            );
        }
        Ok(Self(text))
    }
}

/// Returns whether a string has the format of a generated key or of a bootstrap key. Other strings
/// are rejected before anything is hashed or read.
pub(super) fn may_be_a_key(prefix: &str, text: &str) -> bool {
    has_the_form_of_a_key(prefix, text) || (prefix == KEY_PREFIX && has_its_form(text))
}

/// Returns whether a string has the format of a bootstrap key.
fn has_its_form(text: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    text.strip_prefix(KEY_PREFIX).is_some_and(|rest| {
        rest.len() >= CHARS_MIN && text.len() <= LENGTH_MAX && rest.bytes().all(is_good)
    })
}

impl Accounts {
    /// Creates the bootstrap key. Returns `None` if this store has already had a bootstrap key,
    /// even if that key has been deleted.
    ///
    /// # Errors
    /// [`Error::NoOrganization`], [`Error::Storage`].
    pub async fn bootstrap(
        &self,
        organization: OrganizationId,
        BootstrapKey(full): &BootstrapKey,
    ) -> Result<Option<ApiKey>, Error> {
        let has_key = self.store.get(&hash_key(&hash(full))).await?.is_some();
        if has_key || self.store.get(&mark()).await?.is_some() {
            return Ok(None);
        }
        let key = self.new_key(full, organization, NAME, NAME);
        let mut commit = Commit::new();
        commit.expect(Expect::Absent(mark()));
        commit.put_bytes(mark(), key.id.bytes().to_vec());
        self.put_key(&mut commit, &key, full)?;
        let missing = Error::NoOrganization(organization.to_string());
        self.store.commit_or(commit, missing).await?;
        Ok(Some(key))
    }
}

/// Returns the row that records that the store has had a bootstrap key.
fn mark() -> Key {
    Key::table(Table::Meta).text("bootstrap key")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_key_is_long_and_random() {
        let hex = "smk_0123456789abcdef0123456789abcdef";
        assert!(BootstrapKey::new(hex.to_owned()).is_ok());
        assert_eq!(format!("{:?}", BootstrapKey::new(hex.to_owned())), "Ok(BootstrapKey)");
        for short in [
            &hex[..35],
            "smk_",
            "",
            "sma_0123456789abcdef0123456789abcdef",
            "0123456789abcdef0123456789abcdef0123",
            "smk_0123456789abcdef 0123456789abcdef",
            &format!("smk_{}", "0123456789".repeat(26)),
        ] {
            let refused = BootstrapKey::new(short.to_owned()).unwrap_err();
            assert!(refused.contains("at least 32 characters"), "{short}: {refused}");
        }
        let refused = BootstrapKey::new(format!("smk_{}", "x".repeat(40))).unwrap_err();
        assert!(refused.contains("must be random"), "{refused}");
    }
}
