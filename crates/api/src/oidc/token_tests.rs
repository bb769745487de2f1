//! Tests of ID tokens: which claims and signatures are accepted.

use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use serde_json::json;

use super::token::*;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

const NOW: i64 = 1_800_000_000;

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

struct Signer(Ed25519KeyPair);

impl Signer {
    fn new() -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
    }

    fn key(&self, more: Value) -> Key {
        let x = encoded(self.0.public_key());
        let mut key = json!({"kty": "OKP", "crv": "Ed25519", "x": x, "kid": "one"});
        key.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(key).unwrap()
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
        let signature = self.0.sign(message.as_bytes());
        format!("{message}.{}", encoded(signature))
    }
}

fn expected() -> Expected<'static> {
    Expected {
        issuer: "https://id.example",
        client_id: "orrery",
        nonce: "n",
        now: orrery_domain::time::Timestamp::from_micros(NOW * 1_000_000),
    }
}

fn claims(change: &Value) -> Value {
    let mut claims = json!({
        "iss": "https://id.example", "aud": "orrery", "sub": "ada", "nonce": "n",
        "iat": NOW - 5, "exp": NOW + 300,
    });
    for (name, value) in change.as_object().unwrap() {
        if value.is_null() {
            claims.as_object_mut().unwrap().shift_remove(name);
        } else {
            claims[name] = value.clone();
        }
    }
    claims
}

#[test]
fn token_with_wrong_claims_is_refused() {
    let signer = Signer::new();
    let key = signer.key(json!({"use": "sig", "alg": "EdDSA"}));
    let check = |change: Value| {
        let token = signer.token(&json!({"alg": "EdDSA", "kid": "one"}), &claims(&change));
        verify(&token, &key, expected()).map(|claims| claims["sub"].clone())
    };
    for good in [
        json!({}),
        json!({"aud": ["orrery"]}),
        json!({"aud": ["other", "orrery"], "azp": "orrery"}),
        json!({"azp": "orrery"}),
        // Clocks may differ by a minute.
        json!({"exp": NOW - 59}),
        json!({"iat": NOW + 59, "nbf": NOW + 59}),
        json!({"exp": NOW as f64 + 0.5}),
    ] {
        assert_eq!(check(good.clone()), Ok(json!("ada")), "{good}");
    }
    for (bad, reason) in [
        (json!({"iss": "https://id.example/"}), "it is from another issuer"),
        (json!({"iss": null}), "it is from another issuer"),
        (json!({"aud": "other"}), "it is for another client"),
        (json!({"aud": []}), "it is for another client"),
        (json!({"aud": null}), "it is for another client"),
        (json!({"aud": ["orrery", "other"]}), "it was issued to another client"),
        (json!({"azp": "other"}), "it was issued to another client"),
        (json!({"azp": 7}), "it was issued to another client"),
        (json!({"exp": NOW - 60}), "it has expired"),
        (json!({"exp": null}), "it never expires"),
        (json!({"exp": "never"}), "its exp is not a time"),
        (json!({"iat": NOW + 61}), "it is from the future"),
        (json!({"iat": null}), "it does not tell when it was issued"),
        (json!({"nbf": NOW + 61}), "it is not valid yet"),
        (json!({"nbf": "soon"}), "its nbf is not a time"),
        (json!({"nonce": "m"}), "it belongs to another log-in"),
        (json!({"nonce": null}), "it belongs to another log-in"),
        (json!({"sub": ""}), "it names no subject"),
        (json!({"sub": "x".repeat(256)}), "it names no subject"),
    ] {
        assert_eq!(check(bad.clone()), Err(Refusal(reason.to_owned())), "{bad}");
    }
}

#[test]
fn token_with_wrong_signature_or_algorithm_is_refused() {
    let (signer, other) = (Signer::new(), Signer::new());
    let key = signer.key(json!({}));
    let claims = claims(&json!({}));
    let good = signer.token(&json!({"alg": "EdDSA"}), &claims);
    assert!(verify(&good, &key, expected()).is_ok());
    let refused = |token: &str, key: &Key| verify(token, key, expected()).unwrap_err().0;
    let foreign = other.token(&json!({"alg": "EdDSA"}), &claims);
    assert_eq!(refused(&foreign, &key), "its signature is wrong");
    for alg in ["none", "None", "HS256", "RS256", "ES256", ""] {
        let token = signer.token(&json!({"alg": alg}), &claims);
        let reason = refused(&token, &key);
        assert!(reason.contains("is not supported or does not suit its key"), "{alg}: {reason}");
        let unsigned = format!("{}.", token.rsplit_once('.').unwrap().0);
        assert!(refused(&unsigned, &key).contains("is not supported"), "{alg}");
    }
    for other_use in [json!({"use": "enc"}), json!({"alg": "RS256"})] {
        let reason = refused(&good, &signer.key(other_use));
        assert_eq!(reason, "its key is not for signatures with \"EdDSA\"");
    }
    let critical = signer.token(&json!({"alg": "EdDSA", "crit": ["b64"]}), &claims);
    assert_eq!(refused(&critical, &key), "its header demands an unknown extension");
    for broken in ["", "a", "a.b", "a.b.c.d", &good.replace('.', "!."), &format!("{good}=")] {
        assert!(verify(broken, &key, expected()).is_err(), "{broken}");
    }
    let (message, _) = good.rsplit_once('.').unwrap();
    let (head, _) = message.split_once('.').unwrap();
    let changed = format!("{head}.{}.{}", encoded("{}"), good.rsplit_once('.').unwrap().1);
    assert_eq!(refused(&changed, &key), "its signature is wrong");
}

#[test]
fn token_is_verified_with_elliptic_curve() {
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap();
    let point = pair.public_key().as_ref();
    let key = json!({"kty": "EC", "crv": "P-256", "x": encoded(&point[1..33]), "y": encoded(&point[33..])});
    let key: Key = serde_json::from_value(key).unwrap();
    let claims = claims(&json!({}));
    let head = encoded(json!({"alg": "ES256"}).to_string());
    let message = format!("{head}.{}", encoded(claims.to_string()));
    let signature = pair.sign(&random, message.as_bytes()).unwrap();
    let token = format!("{message}.{}", encoded(signature));
    assert!(verify(&token, &key, expected()).is_ok());
    let damaged = json!({"kty": "EC", "crv": "P-256", "x": "AA", "y": encoded(&point[33..])});
    let damaged: Key = serde_json::from_value(damaged).unwrap();
    assert_eq!(verify(&token, &damaged, expected()).unwrap_err().0, "its key is damaged");
}
