//! A stub of an OpenID provider, whose tokens a test can change.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData as _, SigningKey as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::server::{Response, Whole, respond, serve};

/// What the provider says, and what it has heard.
#[derive(Debug)]
pub(crate) struct Said {
    /// Claims that replace those of the token; null removes one.
    pub claims: Value,
    /// Claims of the user info endpoint.
    pub info: Value,
    /// The header of the token.
    pub header: Value,
    /// Requests to the token endpoint.
    pub redeemed: usize,
    codes: HashMap<String, Granted>,
}

#[derive(Debug, Clone)]
struct Granted {
    nonce: String,
    challenge: String,
}

#[derive(Debug)]
struct State {
    key: KeyPair,
    said: Mutex<Said>,
    address: Mutex<String>,
}

/// The provider.
#[derive(Debug, Clone)]
pub(crate) struct IdentityProvider {
    state: Arc<State>,
}

impl IdentityProvider {
    pub(crate) async fn start() -> Self {
        let said = Said {
            claims: json!({}),
            info: json!({}),
            header: json!({"alg": "EdDSA", "kid": "one"}),
            redeemed: 0,
            codes: HashMap::new(),
        };
        let state = Arc::new(State {
            key: KeyPair::generate_for(&PKCS_ED25519).unwrap(),
            said: Mutex::new(said),
            address: Mutex::default(),
        });
        let shared = Arc::clone(&state);
        let address: SocketAddr =
            serve(move |request| std::future::ready(shared.answer(&request))).await;
        *state.address.lock().unwrap() = format!("http://{address}");
        Self { state }
    }

    pub(crate) fn issuer(&self) -> String {
        self.state.issuer()
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Said) -> T) -> T {
        change(&mut self.state.said.lock().unwrap())
    }

    /// Logs a person in at the address to which the browser was sent, and returns the path to which
    /// the browser is sent back.
    pub(crate) fn authorize(&self, url: &str) -> String {
        let url = Url::parse(url).unwrap();
        assert_eq!(url.origin().ascii_serialization(), self.issuer());
        let query: HashMap<String, String> = url.query_pairs().into_owned().collect();
        let get = |name: &str| query[name].clone();
        assert_eq!(
            [get("response_type"), get("client_id"), get("code_challenge_method")],
            ["code", "orrery", "S256"]
        );
        let (nonce, challenge) = (get("nonce"), get("code_challenge"));
        let code = format!("code-{}", get("state"));
        self.change(|said| said.codes.insert(code.clone(), Granted { nonce, challenge }));
        let back = Url::parse(&get("redirect_uri")).unwrap();
        format!("{}?code={code}&state={}", back.path(), get("state"))
    }
}

impl State {
    fn issuer(&self) -> String {
        self.address.lock().unwrap().clone()
    }

    fn answer(&self, request: &Whole) -> Response {
        let issuer = self.issuer();
        let (status, body) = match request.uri().path() {
            "/.well-known/openid-configuration" => (
                200,
                json!({
                    "issuer": issuer, "authorization_endpoint": format!("{issuer}/auth?tenant=1"),
                    "token_endpoint": format!("{issuer}/token"), "jwks_uri": format!("{issuer}/jwks"),
                    "userinfo_endpoint": format!("{issuer}/me"),
                }),
            ),
            "/jwks" => {
                let x = URL_SAFE_NO_PAD.encode(self.key.der_bytes());
                let key = json!({"kty": "OKP", "crv": "Ed25519", "kid": "one", "x": x});
                (200, json!({"keys": [{"kty": "unknown"}, key]}))
            }
            "/token" => self.token(request),
            "/me" => (200, self.said.lock().unwrap().info.clone()),
            _ => (404, json!({})),
        };
        respond(status, body.to_string())
    }

    fn token(&self, request: &Whole) -> (u16, Value) {
        let mut said = self.said.lock().unwrap();
        said.redeemed += 1;
        let expected = format!("Basic {}", STANDARD.encode("orrery:a+secret%2F"));
        if request.headers().get("authorization").unwrap() != expected.as_str() {
            return (401, json!({"error": "invalid_client"}));
        }
        let form: HashMap<String, String> =
            url::form_urlencoded::parse(request.body()).into_owned().collect();
        let verifier = Sha256::digest(form["code_verifier"].as_bytes());
        let granted = said.codes.remove(&form["code"]);
        let Some(granted) = granted.filter(|it| it.challenge == URL_SAFE_NO_PAD.encode(verifier))
        else {
            return (400, json!({"error": "invalid_grant"}));
        };
        let now = orrery_runtime::Clock::system().now().unix_seconds();
        let mut claims = json!({
            "iss": self.issuer(), "aud": "orrery", "sub": "ada", "nonce": granted.nonce,
            "iat": now, "exp": now + 300, "email": "ada@example.com", "name": "Ada",
            "groups": ["staff"],
        });
        for (name, value) in said.claims.as_object().unwrap() {
            if value.is_null() {
                claims.as_object_mut().unwrap().shift_remove(name);
            } else {
                claims[name] = value.clone();
            }
        }
        let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", encoded(&said.header), encoded(&claims));
        let signature = URL_SAFE_NO_PAD.encode(self.key.sign(message.as_bytes()).unwrap());
        let id_token = format!("{message}.{signature}");
        (200, json!({"id_token": id_token, "access_token": "a", "token_type": "Bearer"}))
    }
}
