//! ID tokens (OpenID Connect Core 1.0, section 3.1.3.7): the signature and the claims.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use serde_json::{Map, Value};
use subtle::ConstantTimeEq as _;

use orrery_domain::time::Timestamp;

/// Maximum difference between the clocks of the provider and of this machine, in seconds.
const SKEW_SECONDS: f64 = 60.0;
/// Maximum length of a subject (section 2).
const SUBJECT_MAX: usize = 255;

/// The claims of a token.
pub(super) type Claims = Map<String, Value>;

/// Why a token is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(pub(super) String);

fn refuse<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(why.into()))
}

/// What a token must contain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected<'a> {
    pub(super) issuer: &'a str,
    pub(super) client_id: &'a str,
    pub(super) nonce: &'a str,
    pub(super) now: Timestamp,
}

/// The header of a token.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Header {
    pub(super) alg: String,
    pub(super) kid: Option<String>,
    /// Extensions that the reader must understand. None is supported.
    crit: Option<Value>,
}

/// A key of a JSON Web Key Set.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Key {
    kty: String,
    pub(super) kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// Returns the header of a token.
pub(super) fn header(token: &str) -> Result<Header, Refusal> {
    let [head, _, _] = parts(token)?;
    let header: Header = parse(head)?;
    match header.crit {
        None => Ok(header),
        Some(_) => refuse("its header demands an unknown extension"),
    }
}

fn parts(token: &str) -> Result<[&str; 3], Refusal> {
    let parts: Vec<&str> = token.split('.').collect();
    <[&str; 3]>::try_from(parts).or_else(|_other| refuse("it is not a signed token"))
}

fn parse<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, Refusal> {
    let bytes = decoded(part)?;
    serde_json::from_slice(&bytes).or_else(|_no_json| refuse("a part of it is not valid JSON"))
}

fn decoded(part: &str) -> Result<Vec<u8>, Refusal> {
    URL_SAFE_NO_PAD.decode(part).or_else(|_no_base64| refuse("a part of it is not base64url"))
}

/// Verifies the signature and the claims of a token.
pub(super) fn verify(token: &str, key: &Key, expected: Expected<'_>) -> Result<Claims, Refusal> {
    let Header { alg, .. } = header(token)?;
    let [_, claims, signed] = parts(token)?;
    let message = token.rsplit_once('.').map_or("", |(message, _)| message);
    check_signature(&alg, key, message.as_bytes(), &decoded(signed)?)?;
    let claims: Claims = parse(claims)?;
    check_claims(&claims, expected)?;
    Ok(claims)
}

/// Checks a signature with the algorithm in the token's header, which must suit the key. Keys of a
/// key set are public, so neither `none` nor a shared secret (`HS256`) is ever accepted.
fn check_signature(alg: &str, key: &Key, message: &[u8], signature: &[u8]) -> Result<(), Refusal> {
    if key.purpose.as_deref().is_some_and(|purpose| purpose != "sig")
        || key.alg.as_deref().is_some_and(|own| own != alg)
    {
        return refuse(format!("its key is not for signatures with {alg:?}"));
    }
    let rsa = |parameters: &'static RsaParameters| {
        let n = part(key.n.as_deref())?;
        let e = part(key.e.as_deref())?;
        let checked = RsaPublicKeyComponents { n, e }.verify(parameters, message, signature);
        checked.or_else(|_wrong| refuse("its signature is wrong"))
    };
    let other = |algorithm: &'static dyn VerificationAlgorithm, bytes: Vec<u8>| {
        let checked = UnparsedPublicKey::new(algorithm, bytes).verify(message, signature);
        checked.or_else(|_wrong| refuse("its signature is wrong"))
    };
    let point = |length: usize| {
        let mut bytes = vec![4];
        for coordinate in [&key.x, &key.y] {
            let coordinate = decoded(coordinate.as_deref().unwrap_or_default())?;
            if coordinate.len() != length {
                return refuse("its key is damaged");
            }
            bytes.extend(coordinate);
        }
        Ok(bytes)
    };
    match (alg, key.kty.as_str(), key.crv.as_deref()) {
        ("RS256", "RSA", _) => rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
        ("RS384", "RSA", _) => rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
        ("RS512", "RSA", _) => rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
        ("PS256", "RSA", _) => rsa(&signature::RSA_PSS_2048_8192_SHA256),
        ("PS384", "RSA", _) => rsa(&signature::RSA_PSS_2048_8192_SHA384),
        ("PS512", "RSA", _) => rsa(&signature::RSA_PSS_2048_8192_SHA512),
        ("ES256", "EC", Some("P-256")) => other(&signature::ECDSA_P256_SHA256_FIXED, point(32)?),
        ("ES384", "EC", Some("P-384")) => other(&signature::ECDSA_P384_SHA384_FIXED, point(48)?),
        ("EdDSA", "OKP", Some("Ed25519")) => {
            other(&signature::ED25519, decoded(key.x.as_deref().unwrap_or_default())?)
        }
        _ => refuse(format!("its algorithm {alg:?} is not supported or does not suit its key")),
    }
}

/// Returns a big-endian number of an RSA key, without leading zeros.
fn part(text: Option<&str>) -> Result<Vec<u8>, Refusal> {
    let bytes = decoded(text.unwrap_or_default())?;
    Ok(bytes.into_iter().skip_while(|byte| *byte == 0).collect())
}

fn check_claims(claims: &Claims, expected: Expected<'_>) -> Result<(), Refusal> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    if text("iss") != Some(expected.issuer) {
        return refuse("it is from another issuer");
    }
    let audiences: Vec<&str> = match claims.get("aud") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !audiences.contains(&expected.client_id) {
        return refuse("it is for another client");
    }
    let is_own = match claims.get("azp") {
        None => audiences.len() == 1,
        Some(party) => party.as_str() == Some(expected.client_id),
    };
    if !is_own {
        return refuse("it was issued to another client");
    }
    let now = expected.now.unix_seconds() as f64;
    let time = |name: &str| match claims.get(name) {
        None => Ok(None),
        Some(value) => match value.as_f64() {
            Some(seconds) => Ok(Some(seconds)),
            None => refuse(format!("its {name} is not a time")),
        },
    };
    match time("exp")? {
        None => return refuse("it never expires"),
        Some(end) if end <= now - SKEW_SECONDS => return refuse("it has expired"),
        Some(_) => {}
    }
    match time("iat")? {
        None => return refuse("it does not tell when it was issued"),
        Some(begin) if begin > now + SKEW_SECONDS => return refuse("it is from the future"),
        Some(_) => {}
    }
    if time("nbf")?.is_some_and(|begin| begin > now + SKEW_SECONDS) {
        return refuse("it is not valid yet");
    }
    let nonce = text("nonce").unwrap_or_default();
    if !bool::from(nonce.as_bytes().ct_eq(expected.nonce.as_bytes())) {
        return refuse("it belongs to another log-in");
    }
    match text("sub") {
        Some(subject) if (1..=SUBJECT_MAX).contains(&subject.len()) => Ok(()),
        _ => refuse("it names no subject"),
    }
}
