//! Clients that create predictions, and the log of the predictions acknowledged to them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::providers::{COST_MICROS, Providers};
use crate::support::http::Client;
use crate::support::random::Random;
use crate::support::service::Setup;

const CREATE: &str = "/v1/prediction/";
/// A payload of this size becomes a separate file.
pub(crate) const LARGE_BYTES: usize = 70_000;

/// A prediction to create, and its expected outcome.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    body: String,
    pub key: Option<String>,
    pub has_webhook: bool,
    /// `None` if the prediction fails on purpose.
    pub output: Option<Value>,
    pub cost_micros: i64,
}

/// The clients' record of their requests.
#[derive(Debug, Default)]
pub(crate) struct ClientLog {
    /// Acknowledged predictions by id.
    pub acknowledged: HashMap<String, Ask>,
    /// Requests sent with an `Idempotency-Key` whose connection broke, so that their outcome is
    /// unknown.
    pub doubtful: Vec<Ask>,
    /// Error responses, with their bodies.
    pub refused: Vec<(u16, String)>,
}

pub(crate) type Shared = Arc<Mutex<ClientLog>>;

impl Ask {
    /// Returns a random kind of prediction from the mix.
    pub(crate) fn random(random: &mut Random, providers: &Providers) -> Self {
        let mark = random.next();
        let mut ask = if random.once_in(2) {
            Self::template(mark, if random.once_in(40) { LARGE_BYTES } else { 0 })
        } else {
            Self::priced(mark, random.once_in(8))
        };
        if random.once_in(3) {
            ask.add_webhook(providers, random.once_in(2).then(|| format!("secret-{mark:x}")));
        }
        ask
    }

    /// Returns a prediction of the built-in model, which is free. With padding, its input and
    /// output become files.
    pub(crate) fn template(mark: u64, padding: usize) -> Self {
        let input = json!({
            "template": "{{ mark }}{{ padding }}",
            "values": {"mark": mark.to_string(), "padding": "x".repeat(padding)},
        });
        let output = json!(format!("{mark}{}", "x".repeat(padding)));
        Self {
            body: json!({"model": "text-template", "version": "1", "input": input}).to_string(),
            key: None,
            has_webhook: false,
            output: Some(output),
            cost_micros: 0,
        }
    }

    /// Returns a prediction of the model that costs money. It always has an idempotency key, so
    /// that no prediction can be created and charged without its client knowing its id.
    fn priced(mark: u64, fails: bool) -> Self {
        let input = json!({"mark": mark, "fails": fails});
        Self {
            body: json!({"model": "priced", "version": "1", "input": input}).to_string(),
            key: Some(format!("key-{mark:x}")),
            has_webhook: false,
            output: (!fails).then(|| json!(mark)),
            cost_micros: if fails { 0 } else { COST_MICROS },
        }
    }

    /// Returns a prediction of a model whose answers wait for the gate.
    pub(crate) fn stuck(mark: u64, padding: &str) -> Self {
        let input = json!({"mark": mark, "padding": padding});
        Self {
            body: json!({"model": "stuck", "version": "1", "input": input}).to_string(),
            key: None,
            has_webhook: false,
            output: Some(json!(mark)),
            cost_micros: 0,
        }
    }

    /// Returns the request body.
    pub(crate) fn body(&self) -> &str {
        &self.body
    }

    fn add_webhook(&mut self, providers: &Providers, secret: Option<String>) {
        let mut body: Value = serde_json::from_str(&self.body).unwrap();
        body["webhook_url"] = json!(providers.hook_url(secret.as_deref()));
        if let Some(secret) = secret {
            body["webhook_secret"] = json!(secret);
        }
        self.body = body.to_string();
        self.has_webhook = true;
    }

    /// Sends the request and records the outcome. Returns false if the connection broke.
    pub(crate) fn send(self, client: &mut Client, client_log: &Shared) -> bool {
        let header = self.key.clone();
        let headers: Vec<(&str, &str)> =
            header.iter().map(|key| ("Idempotency-Key", key.as_str())).collect();
        let Ok(answer) = client.post(CREATE, &headers, &self.body) else {
            if self.key.is_some() {
                client_log.lock().unwrap().doubtful.push(self);
            }
            return false;
        };
        if answer.status() != 200 {
            let mut client_log = client_log.lock().unwrap();
            client_log.refused.push((answer.status(), answer.text()));
            // A write that failed may still be durable.
            if answer.status() == 503 && self.key.is_some() {
                client_log.doubtful.push(self);
            }
            return true;
        }
        let body = answer.json();
        let id = body["predictionID"].as_str().unwrap().to_owned();
        let earlier = client_log.lock().unwrap().acknowledged.insert(id.clone(), self.clone());
        if let Some(earlier) = earlier {
            assert_eq!(earlier.key, self.key, "two requests were given one id, {id}");
        }
        true
    }
}

impl ClientLog {
    /// Creates an empty log.
    pub(crate) fn shared() -> Shared {
        Shared::default()
    }

    /// Returns the ids acknowledged so far.
    pub(crate) fn ids(client_log: &Shared) -> Vec<String> {
        client_log.lock().unwrap().acknowledged.keys().cloned().collect()
    }

    /// Repeats all requests with an unknown outcome until each has an id.
    pub(crate) fn clear_doubts(client_log: &Shared, client: &mut Client) {
        let doubtful = std::mem::take(&mut client_log.lock().unwrap().doubtful);
        for ask in doubtful {
            assert!(ask.send(client, client_log), "the connection broke while nothing was killed");
        }
    }

    /// Repeats every request that had a key, and checks that each response contains the same id.
    pub(crate) fn repeat_keys(client_log: &Shared, client: &mut Client) {
        let keyed: Vec<(String, Ask)> = {
            let client_log = client_log.lock().unwrap();
            let keyed = client_log.acknowledged.iter().filter(|(_, ask)| ask.key.is_some());
            keyed.map(|(id, ask)| (id.clone(), ask.clone())).collect()
        };
        let before = client_log.lock().unwrap().acknowledged.len();
        for (id, ask) in keyed {
            let key = ask.key.as_deref().unwrap();
            let answer = client.post(CREATE, &[("Idempotency-Key", key)], &ask.body).unwrap();
            assert_eq!(answer.json()["predictionID"], id.as_str(), "{key} was given two ids");
        }
        assert_eq!(client_log.lock().unwrap().acknowledged.len(), before);
    }

    /// Fails if the service refused any request.
    pub(crate) fn assert_none_refused(client_log: &Shared) {
        assert_eq!(client_log.lock().unwrap().refused, [], "refused under ordinary load");
    }
}

/// Running clients; each stops when its connection breaks or when the load ends.
#[derive(Debug)]
pub(crate) struct Load {
    ending: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    pub(crate) fn start(
        count: usize,
        setup: &Setup,
        key: &str,
        providers: &Arc<Providers>,
        client_log: &Shared,
        random: &mut Random,
    ) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let client = |mut random: Random| {
            let mut client = setup.client(key);
            let providers = Arc::clone(providers);
            let ending = Arc::clone(&ending);
            let client_log = Arc::clone(client_log);
            std::thread::spawn(move || {
                while !ending.load(Ordering::Relaxed)
                    && Ask::random(&mut random, &providers).send(&mut client, &client_log)
                {
                }
            })
        };
        let clients = (0..count).map(|_| client(random.fork())).collect();
        Self { ending, clients }
    }

    /// Waits for the clients' last responses.
    pub(crate) fn end(self) {
        self.ending.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().unwrap();
        }
    }
}

/// Returns almost incompressible text of that length.
pub(crate) fn noise(seed: u64, length: usize) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let letters = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(LETTERS[(state >> 58) as usize])
    });
    letters.take(length).collect()
}
