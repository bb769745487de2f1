//! Signatures of webhook deliveries: the `X-Webhook-Signature` of the specification
//! (`docs/spec/webhooks.md`, "Signatures"), and the signatures of Standard Webhooks
//! (`webhook-signature: v1,…`, and `v1a,…` with Ed25519).
//!
//! Pure: computes the header value from the secret, the time and the bytes. Stores no secret and
//! reads no clock; receivers decide whether a timestamp is recent enough.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use ring::signature::{Ed25519KeyPair, KeyPair};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::hex::hex;

/// Maximum length of a `webhook_secret`, in bytes.
pub const SECRET_BYTES_MAX: usize = 256;

/// Prefix of a Standard Webhooks secret, followed by base64.
const STANDARD_PREFIX: &str = "whsec_";
/// The length of a Standard Webhooks key, in bytes.
const STANDARD_KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Prefixes of private and public Ed25519 keys in the Standard Webhooks format, followed by base64.
const ED25519_SECRET_PREFIX: &str = "whsk_";
const ED25519_PUBLIC_PREFIX: &str = "whpk_";

/// Why a string is not a valid `webhook_secret`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    #[error("webhook_secret must have 1 to {SECRET_BYTES_MAX} bytes")]
    Length,
    #[error("webhook_secret must not contain control characters")]
    ControlCharacter,
}

/// Checks that `secret` is a valid `webhook_secret`: 1 to 256 bytes without control characters.
///
/// # Errors
/// [`BadSecret`], whose message is suitable for clients.
pub fn check_secret(secret: &str) -> Result<(), BadSecret> {
    if secret.is_empty() || secret.len() > SECRET_BYTES_MAX {
        return Err(BadSecret::Length);
    }
    if secret.chars().any(char::is_control) {
        return Err(BadSecret::ControlCharacter);
    }
    Ok(())
}

/// Returns the value of `X-Webhook-Signature`: `sha256=` and the hex HMAC-SHA256 of
/// `<timestamp>.<body>`, keyed with the secret's bytes. `timestamp` is in Unix seconds.
#[must_use]
pub fn sign(secret: &str, timestamp: i64, body: &[u8]) -> String {
    let digest = digest(secret.as_bytes(), &[timestamp.to_string().as_bytes(), b".", body]);
    format!("sha256={}", hex(&digest))
}

/// Returns the value of `webhook-signature`: `v1,` and the base64 HMAC-SHA256 of
/// `<id>.<timestamp>.<body>`. The key is the decoded base64 after `whsec_`, or the bytes of the
/// secret if it does not have that form.
#[must_use]
pub fn sign_standard(secret: &str, id: &str, timestamp: i64, body: &[u8]) -> String {
    let timestamp = timestamp.to_string();
    let parts: [&[u8]; 5] = [id.as_bytes(), b".", timestamp.as_bytes(), b".", body];
    format!("v1,{}", STANDARD.encode(digest(&standard_key(secret), &parts)))
}

/// Returns the value of `webhook-signature` with Ed25519: `v1a,` and the base64 signature of
/// `<id>.<timestamp>.<body>`. `None` if [`ed25519_secret`] did not create the key.
#[must_use]
pub fn sign_ed25519(secret: &str, id: &str, timestamp: i64, body: &[u8]) -> Option<String> {
    let pair = ed25519_pair(secret)?;
    let mut signed = format!("{id}.{timestamp}.").into_bytes();
    signed.extend_from_slice(body);
    Some(format!("v1a,{}", STANDARD.encode(pair.sign(&signed))))
}

/// Creates a secret for [`sign_standard`] from random bytes.
#[must_use]
pub fn standard_secret(random: [u8; 32]) -> String {
    format!("{STANDARD_PREFIX}{}", STANDARD.encode(random))
}

/// Returns whether a string is a Standard Webhooks secret: `whsec_` and the base64 of 24 to 64
/// bytes.
#[must_use]
pub fn is_standard_secret(secret: &str) -> bool {
    let key = secret.strip_prefix(STANDARD_PREFIX).and_then(|key| STANDARD.decode(key).ok());
    key.is_some_and(|key| STANDARD_KEY_BYTES.contains(&key.len()))
}

/// Creates a secret for [`sign_ed25519`] from random bytes.
#[must_use]
pub fn ed25519_secret(random: [u8; 32]) -> String {
    format!("{ED25519_SECRET_PREFIX}{}", STANDARD.encode(random))
}

/// Returns the public key of an Ed25519 secret, as receivers configure it.
#[must_use]
pub fn ed25519_public_key(secret: &str) -> Option<String> {
    let pair = ed25519_pair(secret)?;
    Some(format!("{ED25519_PUBLIC_PREFIX}{}", STANDARD.encode(pair.public_key())))
}

fn ed25519_pair(secret: &str) -> Option<Ed25519KeyPair> {
    let seed = STANDARD.decode(secret.strip_prefix(ED25519_SECRET_PREFIX)?).ok()?;
    Ed25519KeyPair::from_seed_unchecked(&seed).ok()
}

/// Returns whether `header` is the `X-Webhook-Signature` of these bytes. Compares in constant time.
#[must_use]
pub fn verify(secret: &str, timestamp: i64, body: &[u8], header: &str) -> bool {
    sign(secret, timestamp, body).as_bytes().ct_eq(header.as_bytes()).into()
}

/// Returns whether `header`, a space-separated list of signatures, contains the `webhook-signature`
/// of these bytes.
#[must_use]
pub fn verify_standard(secret: &str, id: &str, timestamp: i64, body: &[u8], header: &str) -> bool {
    let expected = sign_standard(secret, id, timestamp, body);
    header.split(' ').any(|one| expected.as_bytes().ct_eq(one.as_bytes()).into())
}

fn standard_key(secret: &str) -> Vec<u8> {
    secret
        .strip_prefix(STANDARD_PREFIX)
        .and_then(|encoded| STANDARD.decode(encoded).ok())
        .unwrap_or_else(|| secret.as_bytes().to_vec())
}

fn digest(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BODY: &[u8] = br#"{"execution_id":"0192f0c1"}"#;
    const AT: i64 = 1_795_167_000;

    /// Computed with Python's `hmac` and `base64`.
    #[test]
    fn signature_matches_known_answers() {
        assert_eq!(sign("top secret", AT, BODY), SIGNED);
        assert_eq!(sign_standard("top secret", "msg_1", AT, BODY), PLAIN);
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        assert_eq!(sign_standard(secret, "msg_1", AT, BODY), WHSEC);
    }

    /// The key is from RFC 8032, section 7.1, test 1; the signature was made with Python's
    /// `cryptography`.
    #[test]
    fn signature_ed25519_matches_known_answers() {
        let seed = [
            0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec,
            0x2c, 0xc4, 0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03,
            0x1c, 0xae, 0x7f, 0x60,
        ];
        let secret = ed25519_secret(seed);
        let public = ed25519_public_key(&secret);
        assert_eq!(public.as_deref(), Some(PUBLIC_KEY));
        let signed = sign_ed25519(&secret, "msg_1", AT, BODY).unwrap();
        assert_eq!(signed, ED25519);
        let bytes = STANDARD.decode(signed.strip_prefix("v1a,").unwrap()).unwrap();
        let public = STANDARD.decode(PUBLIC_KEY.strip_prefix("whpk_").unwrap()).unwrap();
        let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, public);
        let message = [format!("msg_1.{AT}.").as_bytes(), BODY].concat();
        key.verify(&message, &bytes).unwrap();
        assert!(key.verify(b"another", &bytes).is_err());
        assert_eq!(sign_ed25519("whsec_abc", "msg_1", AT, BODY), None);
    }

    #[test]
    fn signature_secret_prefix_without_base64_is_literal() {
        assert_eq!(standard_key("whsec_not base64!"), b"whsec_not base64!");
    }

    #[test]
    fn signature_standard_secret_has_prefix_and_length() {
        assert!(is_standard_secret(&standard_secret([7; 32])));
        assert!(is_standard_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
        for other in ["", "whsec_", "whsec_c2hvcnQ=", "whsec_not base64!", "secret"] {
            assert!(!is_standard_secret(other), "{other:?}");
        }
    }

    #[test]
    fn signature_secret_invalid_in_a_header_is_rejected() {
        for (secret, expected) in [
            ("", Err(BadSecret::Length)),
            ("s", Ok(())),
            ("schlüssel with spaces", Ok(())),
            ("line\nbreak", Err(BadSecret::ControlCharacter)),
            ("nul\0", Err(BadSecret::ControlCharacter)),
            ("next\u{85}line", Err(BadSecret::ControlCharacter)),
        ] {
            assert_eq!(check_secret(secret), expected, "{secret:?}");
        }
        assert_eq!(check_secret(&"a".repeat(256)), Ok(()));
        assert_eq!(check_secret(&"a".repeat(257)), Err(BadSecret::Length));
    }

    proptest! {
        #[test]
        fn signature_verifies_only_same_secret_time_and_body(
            secret in ".{1,40}", other in ".{1,40}", body: Vec<u8>, flipped: prop::sample::Index,
        ) {
            let header = sign(&secret, AT, &body);
            let standard = sign_standard(&secret, "id", AT, &body);
            prop_assert!(verify(&secret, AT, &body, &header));
            prop_assert!(!verify(&secret, AT + 1, &body, &header));
            prop_assert_eq!(verify(&other, AT, &body, &header), secret == other);
            let list = format!("v1,AAAA {standard}");
            prop_assert!(verify_standard(&secret, "id", AT, &body, &list));
            prop_assert!(!verify_standard(&secret, "di", AT, &body, &standard));
            if !body.is_empty() {
                let mut damaged = body.clone();
                damaged[flipped.index(body.len())] ^= 1;
                prop_assert!(!verify(&secret, AT, &damaged, &header));
            }
        }
    }

    const SIGNED: &str = "sha256=90190c1737abe6c04c4a3597cd1c47bd459ee17d490d9e50dd9bb5e49eefb46d";
    const PLAIN: &str = "v1,cZn4PRFVmva/Ag2AzGSnQpe9SD1kMaZqbvtSqtpevjA=";
    const WHSEC: &str = "v1,1NM7AbBTZ390pcvMJJX9Uk/0N2udy7E0n3CyK41H4LY=";
    const PUBLIC_KEY: &str = "whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
    const ED25519: &str = "v1a,3iKqPfKgMMdwtYT7XxCHiRHJgG9QecFgQCGXI6AWozBUvaIu0t9dSq0YJZ/PS9Y3LP+9HWkb3UOrUML4/bdPAQ==";
}
