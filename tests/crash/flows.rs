//! Workflows of five steps, and the server that their steps call. The server counts requests by
//! attempt key, and detects from their order whether a finished step ran again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::http::{Client, Message};
use crate::support::random::Random;
use crate::support::server::{Answer, Server};
use crate::support::service::Setup;

/// Steps of each workflow.
pub(crate) const STEPS: usize = 5;
/// Cost of a model step.
pub(crate) const STEP_COST_MICROS: i64 = 10;
/// Maximum duration of a step, in microseconds.
const SLOW_MICROS: u64 = 8_000;

/// Requests that the server has received.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Number of requests per attempt.
    pub attempts: HashMap<String, u32>,
    /// The furthest step reached by each execution.
    furthest: HashMap<String, usize>,
    /// All violations found.
    pub faults: Vec<String>,
}

/// The server, which keeps running when the service is killed.
#[derive(Debug)]
pub(crate) struct Flows {
    server: Server,
    seen: Arc<Mutex<Seen>>,
}

impl Flows {
    pub(crate) fn start(random: &mut Random) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let noted = Arc::clone(&seen);
        let random = Mutex::new(random.fork());
        let server = Server::start(move |request| {
            noted.lock().unwrap().note(request);
            let pause = random.lock().unwrap().within(0..SLOW_MICROS);
            std::thread::sleep(Duration::from_micros(pause));
            let number = body(request)["n"].as_i64().unwrap();
            let answer: Answer = (200, json!({"output": number + 1}).to_string());
            answer
        });
        Self { server, seen }
    }

    /// Writes the manifest of the model used by the steps.
    pub(crate) fn add_model(&self, setup: &Setup) {
        let url = self.server.url("/model");
        let manifest = format!(
            "slug = \"next\"\noutput_type = \"number\"\nconcurrency = 8\n\
             [request_schema]\ntype = \"object\"\n[cost]\ntype = \"fixed\"\namount = 0.000010\n\
             [runner]\ntype = \"http\"\nurl = \"{url}\"\noutput = \"/output\"\n"
        );
        setup.add_model("next", &manifest);
    }

    /// Creates the workflow: alternating model and HTTP steps, each of which adds one to the
    /// previous result. Returns its id.
    pub(crate) fn create(&self, client: &mut Client) -> String {
        let url = self.server.url("/http");
        let model = |id: &str, from: &str| json!({"step_id": id, "type": "model", "model": "next", "params": {"n": from}});
        let http = |id: &str, from: &str| json!({"step_id": id, "type": "http", "method": "POST", "url": url, "body": {"n": from}});
        let steps = json!([
            model("s1", "{{inputs.n}}"),
            http("s2", "{{s1.output}}"),
            model("s3", "{{s2.output.output}}"),
            http("s4", "{{s3.output}}"),
            model("s5", "{{s4.output.output}}"),
        ]);
        let body = json!({"name": "five", "description": "d", "definition": {"steps": steps}});
        let made = client.post("/v1/workflows", &[], &body.to_string()).unwrap();
        assert_eq!(made.status(), 201, "{}", made.text());
        made.json()["workflow_id"].as_str().unwrap().to_owned()
    }

    /// Returns the number of attempts received.
    pub(crate) fn arrived(&self) -> usize {
        self.seen.lock().unwrap().attempts.len()
    }

    /// Reads the record of received requests.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.lock().unwrap())
    }
}

impl Seen {
    /// Records an attempt. When the next step has arrived, a step is finished and durable, so no
    /// further request for it may arrive.
    fn note(&mut self, request: &Message) {
        let key = request.header("idempotency-key").unwrap_or_default().to_owned();
        let mut parts = key.split(':');
        let id = parts.next().unwrap_or_default();
        let step = parts.next().unwrap_or_default();
        let number: usize = step.trim_start_matches('s').parse().unwrap_or_default();
        let furthest = self.furthest.entry(id.to_owned()).or_default();
        if number < *furthest || number > *furthest + 1 || parts.next() != Some("1") {
            self.faults.push(format!("{key} came behind step {furthest}"));
        }
        *furthest = number.max(*furthest);
        *self.attempts.entry(key).or_default() += 1;
    }
}

/// Returns the cost of the finished model steps in an execution's detail.
pub(crate) fn finished_cost_micros(detail: &Value) -> i64 {
    let steps = detail["step_outputs"].as_object().unwrap().values();
    let paid = steps.filter(|step| step["type"] == "model" && step["status"] == "completed");
    i64::try_from(paid.count()).unwrap() * STEP_COST_MICROS
}

fn body(request: &Message) -> Value {
    serde_json::from_slice(&request.body).unwrap_or_default()
}
