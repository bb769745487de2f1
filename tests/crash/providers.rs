//! The servers around the service: models on an inference server, and a webhook receiver.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use orrery_domain::signature;
use serde_json::{Value, json};

use crate::support::http::Message;
use crate::support::server::{Answer, Gate, Server};
use crate::support::service::Setup;

/// Cost of a successful run of the model `priced`: not representable as a binary fraction.
pub(crate) const COST_MICROS: i64 = 123;
/// The receiver answers one in this many deliveries with 500.
const REFUSED_DELIVERIES: usize = 9;

/// Both servers, which survive the kills of the service.
#[derive(Debug)]
pub(crate) struct Providers {
    models: Server,
    receiver: Server,
    /// Blocks the answers of the model `stuck`.
    pub gate: Gate,
    arrivals: Arc<Mutex<Arrivals>>,
}

/// Deliveries that the receiver has received.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// The first body per execution.
    pub bodies: HashMap<String, Vec<u8>>,
    count: usize,
    /// Violations: deliveries that no receiver should get.
    pub faults: Vec<String>,
}

impl Providers {
    pub(crate) fn start() -> Arc<Self> {
        let gate = Gate::default();
        let held = gate.clone();
        let models = Server::start(move |request| answer_as_model(request, &held));
        let arrivals = Arc::<Mutex<Arrivals>>::default();
        let noted = Arc::clone(&arrivals);
        let receiver = Server::start(move |request| noted.lock().unwrap().note(request));
        Arc::new(Self { models, receiver, gate, arrivals })
    }

    /// Writes the manifests of the models: `priced` answers immediately, `stuck` once the gate is
    /// open.
    pub(crate) fn add_models(&self, setup: &Setup) {
        let manifest = |slug: &str, concurrency: u32| {
            let url = self.models.url(&format!("/{slug}"));
            format!(
                "slug = \"{slug}\"\noutput_type = \"number\"\nconcurrency = {concurrency}\n\
                 queue_limit = 1000000\ntimeout = \"10m\"\n\
                 [request_schema]\ntype = \"object\"\n\
                 [runner]\ntype = \"http\"\nurl = \"{url}\"\noutput = \"/echo\"\n"
            )
        };
        let cost = format!("[cost]\ntype = \"fixed\"\namount = 0.{COST_MICROS:06}\n");
        setup.add_model("priced", &format!("{}{cost}", manifest("priced", 8)));
        setup.add_model("stuck", &manifest("stuck", STUCK_CONCURRENCY));
    }

    /// Returns the URL of a webhook, whose path names the secret for its signatures.
    pub(crate) fn hook_url(&self, secret: Option<&str>) -> String {
        self.receiver.url(&format!("/hook/{}", secret.unwrap_or_default()))
    }

    /// Reads the record of deliveries.
    pub(crate) fn arrivals<T>(&self, look: impl FnOnce(&Arrivals) -> T) -> T {
        look(&self.arrivals.lock().unwrap())
    }
}

/// Concurrency of the model `stuck`.
pub(crate) const STUCK_CONCURRENCY: u32 = 3;

fn answer_as_model(request: &Message, gate: &Gate) -> Answer {
    if request.second_word() == "/stuck" {
        gate.pass();
    }
    let input = request.json();
    if input["fails"] == json!(true) {
        return (500, r#"{"error":"out of memory, on purpose"}"#.to_owned());
    }
    (200, json!({"echo": input["mark"]}).to_string())
}

impl Arrivals {
    fn note(&mut self, request: &Message) -> Answer {
        self.count += 1;
        if let Err(fault) = self.check(request) {
            self.faults.push(fault);
        }
        let refuses = self.count.is_multiple_of(REFUSED_DELIVERIES);
        (if refuses { 500 } else { 200 }, "{}".to_owned())
    }

    fn check(&mut self, request: &Message) -> Result<(), String> {
        let body: Value = request.json();
        let id = body["execution_id"].as_str().ok_or("a body without execution_id")?;
        let secret = request.second_word().trim_start_matches("/hook/");
        let signed = request.header("x-webhook-signature");
        match (secret, signed) {
            ("", None) => {}
            ("", Some(_)) => return Err(format!("{id} is signed without a secret")),
            (_, None) => return Err(format!("{id} is not signed")),
            (secret, Some(signed)) => {
                let time = request.header("x-webhook-timestamp").and_then(|text| text.parse().ok());
                let time = time.ok_or(format!("{id} has no time stamp"))?;
                if !signature::verify(secret, time, &request.body, signed) {
                    return Err(format!("{id} has a wrong signature"));
                }
            }
        }
        let first = self.bodies.entry(id.to_owned()).or_insert_with(|| request.body.clone());
        if *first != request.body {
            let first = String::from_utf8_lossy(first);
            let now = request.text();
            return Err(format!("{id} was announced as {first} and as {now}"));
        }
        Ok(())
    }
}
