//! The second factor of a log-in: time-based one-time codes (RFC 6238) with HMAC-SHA-1, six digits
//! and steps of 30 seconds, which all authenticator apps support.
//!
//! The secret is sealed like other credentials. A code is accepted in the step before and after its
//! own, for clocks that differ, and only once. Ten recovery codes replace a lost device; each works
//! once, and only their hashes are stored. The log-in throttle limits wrong codes as it limits
//! wrong passwords.

use std::net::IpAddr;

use data_encoding::BASE32_NOPAD;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ring::hmac;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{Error, Members, rows};
use orrery_domain::hex::hex;
use orrery_domain::ids::{MemberId, OrganizationId};
use orrery_domain::member::{Member, SecondFactor};
use orrery_domain::time::Timestamp;
use orrery_runtime::random_bytes;
use orrery_storage::rotation::{Rotation, Watch};
use orrery_storage::{self as storage, Change, Commit, Key, Store, Table};

/// Seconds of a step.
const STEP_SECONDS: u64 = 30;
/// Steps before and after the present one whose codes are accepted.
const SKEW_STEPS: u64 = 1;
/// Random bytes of a secret: as many as SHA-1's output, as RFC 4226 recommends.
const SECRET_BYTES: usize = 20;
/// One more than the largest code.
const CODES: u32 = 1_000_000;
/// Number of recovery codes, and random bytes of each.
const RECOVERY_CODES: usize = 10;
const RECOVERY_BYTES: usize = 10;
/// The name that authenticator apps show.
const ISSUER: &str = "Orrery";

/// A new second factor, which is required after it was confirmed with a code.
#[derive(Clone, PartialEq, Eq)]
pub struct Enrolment {
    /// The secret in base32.
    pub secret: String,
    /// The `otpauth:` URL for authenticator apps.
    pub url: String,
    pub recovery_codes: Vec<String>,
}

impl std::fmt::Debug for Enrolment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enrolment").finish_non_exhaustive()
    }
}

impl Members {
    /// Returns whether the configuration requires a second factor that this member has not set up.
    /// The member can then only use the own account.
    #[must_use]
    pub fn lacks_second_factor(&self, member: &Member) -> bool {
        self.options.require_second_factor
            && !member.password.is_empty()
            && !member.has_second_factor()
    }

    /// Begins to set up a second factor, and replaces an unconfirmed one.
    ///
    /// # Errors
    /// [`Error::HasSecondFactor`]; [`Error::NoPassword`]; [`Error::NoMember`]; [`Error::Storage`].
    pub async fn begin_second_factor(&self, member: &Member) -> Result<Enrolment, Error> {
        let secret = BASE32_NOPAD.encode(&random_bytes::<SECRET_BYTES>()?);
        let sealed = self.sealer.seal(&secret)?;
        let mut recovery_codes = Vec::with_capacity(RECOVERY_CODES);
        for _ in 0..RECOVERY_CODES {
            recovery_codes.push(shown(&random_bytes::<RECOVERY_BYTES>()?));
        }
        let recovery: Vec<String> = recovery_codes.iter().map(|code| hash(code)).collect();
        let factor = SecondFactor { secret: sealed, is_confirmed: false, last_step: 0, recovery };
        let begun = self.change(member.organization, member.id, "member.totp.begin", |stored| {
            if stored.password.is_empty() {
                return Err(Error::NoPassword);
            }
            if stored.has_second_factor() {
                return Err(Error::HasSecondFactor);
            }
            Ok(Member { second_factor: Some(factor.clone()), ..stored })
        });
        let Member { email, .. } = begun.await?;
        let email = utf8_percent_encode(&email, NON_ALPHANUMERIC);
        let url = format!("otpauth://totp/{ISSUER}:{email}?secret={secret}&issuer={ISSUER}");
        Ok(Enrolment { secret, url, recovery_codes })
    }

    /// Confirms a second factor with its first code. Log-ins require a code from now on.
    ///
    /// # Errors
    /// [`Error::WrongCode`]; [`Error::HasSecondFactor`]; [`Error::NoSecondFactor`];
    /// [`Error::TooManyAttempts`]; [`Error::Storage`].
    pub async fn confirm_second_factor(
        &self,
        member: &Member,
        code: &str,
        from: Option<IpAddr>,
    ) -> Result<(), Error> {
        let now = self.clock.now();
        let confirm = |stored: Member| {
            let factor = stored.second_factor.as_ref().ok_or(Error::NoSecondFactor)?;
            if factor.is_confirmed {
                return Err(Error::HasSecondFactor);
            }
            let last_step = self.step_of(factor, code, now)?.ok_or(Error::WrongCode)?;
            let factor = SecondFactor { is_confirmed: true, last_step, ..factor.clone() };
            Ok(Member { second_factor: Some(factor), ..stored })
        };
        let confirming = self.change(member.organization, member.id, "member.totp.enable", confirm);
        self.throttled(rows::account_of(&member.email), from, confirming).await?;
        Ok(())
    }

    /// Removes a member's second factor, given the password.
    ///
    /// # Errors
    /// [`Error::WrongPassword`]; [`Error::TooManyAttempts`]; [`Error::Busy`]; [`Error::Storage`].
    pub async fn remove_second_factor(
        &self,
        member: &Member,
        password: &str,
        from: Option<IpAddr>,
    ) -> Result<(), Error> {
        let account = rows::account_of(&member.email);
        self.throttled(account, from, self.verify(Some(member), password, from)).await?;
        self.clear_second_factor(member.organization, member.id).await?;
        Ok(())
    }

    /// Removes a member's second factor without the password: the operator does so for a person who
    /// has lost the device and the recovery codes.
    ///
    /// # Errors
    /// [`Error::NoSecondFactor`]; [`Error::NoMember`]; [`Error::Storage`].
    pub async fn clear_second_factor(
        &self,
        organization: OrganizationId,
        id: MemberId,
    ) -> Result<Member, Error> {
        self.change(organization, id, "member.totp.disable", |stored| match stored.second_factor {
            None => Err(Error::NoSecondFactor),
            Some(_) => Ok(Member { second_factor: None, ..stored }),
        })
        .await
    }

    /// Checks the code of a member who has a second factor, and uses the code up.
    ///
    /// # Errors
    /// [`Error::CodeNeeded`]; [`Error::WrongCode`], also for a code that was used before;
    /// [`Error::Storage`].
    pub(super) async fn check_code(
        &self,
        member: Member,
        code: Option<&str>,
    ) -> Result<Member, Error> {
        if !member.has_second_factor() {
            return Ok(member);
        }
        let code = code.map(str::trim).filter(|code| !code.is_empty()).ok_or(Error::CodeNeeded)?;
        let (before, now) = (member.epoch, self.clock.now());
        let use_up = |stored: Option<Member>| async move {
            let stored = stored.filter(|stored| stored.epoch == before);
            let stored = stored.ok_or(Error::WrongPassword)?;
            let factor = stored.second_factor.as_ref().ok_or(Error::WrongPassword)?;
            let mut commit = Commit::new();
            let factor = if is_digits(code) {
                let last_step = self.step_of(factor, code, now)?.ok_or(Error::WrongCode)?;
                SecondFactor { last_step, ..factor.clone() }
            } else {
                let used = hash(code);
                let rest = factor.recovery.iter().filter(|one| !is_equal(one, &used)).cloned();
                let recovery: Vec<String> = rest.collect();
                if recovery.len() == factor.recovery.len() {
                    return Err(Error::WrongCode);
                }
                let subject = format!("{} ({} left)", stored.email, recovery.len());
                let action = "member.totp.recovery";
                self.recorder.add(&mut commit, action, subject, stored.organization)?;
                SecondFactor { recovery, ..factor.clone() }
            };
            Ok(Change::Put(Member { second_factor: Some(factor), ..stored }, commit))
        };
        let place = rows::member(member.organization, member.id);
        self.store.update(&place, use_up).await
    }

    /// Returns the step whose code this is, if the code is valid now and was not used before.
    fn step_of(
        &self,
        factor: &SecondFactor,
        code: &str,
        now: Timestamp,
    ) -> Result<Option<u64>, Error> {
        let secret = BASE32_NOPAD.decode(self.sealer.unseal(&factor.secret)?.as_bytes());
        let secret = secret.map_err(|_no_base32| storage::SealError::Unreadable)?;
        let present = step_at(now);
        let steps = present.saturating_sub(SKEW_STEPS)..=present.saturating_add(SKEW_STEPS);
        let code: String = code.chars().filter(|letter| !letter.is_whitespace()).collect();
        let mut fresh = steps.filter(|step| *step > factor.last_step);
        Ok(fresh.find(|step| is_equal(&code_of(&secret, *step), &code)))
    }
}

/// Returns the code that an authenticator app with this secret shows; `None` if the secret is not
/// base32.
#[must_use]
pub fn code_at(secret: &str, moment: Timestamp) -> Option<String> {
    let secret = BASE32_NOPAD.decode(secret.as_bytes()).ok()?;
    Some(code_of(&secret, step_at(moment)))
}

fn step_at(moment: Timestamp) -> u64 {
    u64::try_from(moment.unix_seconds()).unwrap_or_default() / STEP_SECONDS
}

/// Returns the code of a step (RFC 4226, section 5.3).
fn code_of(secret: &[u8], step: u64) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret);
    let tag = hmac::sign(&key, &step.to_be_bytes());
    let bytes = tag.as_ref();
    let offset = usize::from(bytes.last().copied().unwrap_or_default() & 0xf);
    let part = bytes.get(offset..).and_then(<[u8]>::first_chunk::<4>).copied().unwrap_or_default();
    format!("{:06}", (u32::from_be_bytes(part) & 0x7fff_ffff) % CODES)
}

fn is_equal(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

fn is_digits(code: &str) -> bool {
    code.chars().all(|letter| letter.is_ascii_digit() || letter.is_whitespace())
}

/// Returns a recovery code in groups of four letters.
fn shown(bytes: &[u8]) -> String {
    let letters = BASE32_NOPAD.encode(bytes).to_lowercase();
    let groups: Vec<&str> =
        (0..letters.len()).step_by(4).filter_map(|at| letters.get(at..at + 4)).collect();
    groups.join("-")
}

/// Returns the hash of a recovery code, which has 80 random bits, so that a plain hash suffices.
fn hash(code: &str) -> String {
    let letters = code.chars().filter(char::is_ascii_alphanumeric);
    let letters: String = letters.map(|letter| letter.to_ascii_lowercase()).collect();
    hex(&Sha256::digest(letters.as_bytes()))
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
    fn sealed(member: &mut Member) -> Option<&mut String> {
        member.second_factor.as_mut().map(|factor| &mut factor.secret)
    }
    rotation.records(store, Key::table(Table::Member), sealed, watch).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_rfc_6238() {
        // Appendix B, cut to six digits.
        for (seconds, code) in [
            (59, "287082"),
            (1_111_111_109, "081804"),
            (1_111_111_111, "050471"),
            (1_234_567_890, "005924"),
            (2_000_000_000, "279037"),
            (20_000_000_000, "353130"),
        ] {
            assert_eq!(code_of(b"12345678901234567890", seconds / STEP_SECONDS), code);
        }
    }

    #[test]
    fn recovery_code_is_read_as_people_write_it() {
        let code = shown(&[0xff; RECOVERY_BYTES]);
        assert_eq!(code, "7777-7777-7777-7777");
        assert_eq!(hash(" 7777 77777777-7777 "), hash(&code));
    }
}
