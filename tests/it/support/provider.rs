//! A model server controlled by the request path. The server echoes the input, fails, charges, or
//! delays its answer until the test releases the answer. The server also detects clients that
//! disconnect before their answer.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::sync::{Mutex as AsyncMutex, Semaphore, mpsc, watch};

use super::server::{Response, Whole, events, respond, serve};
use super::within;

#[derive(Debug)]
struct State {
    gate: Semaphore,
    arrived: watch::Sender<usize>,
    hung_up: watch::Sender<usize>,
    requests: Mutex<Vec<Whole>>,
    say: mpsc::UnboundedSender<String>,
    said: Arc<AsyncMutex<mpsc::UnboundedReceiver<String>>>,
}

/// The model server.
#[derive(Debug)]
pub(crate) struct Provider {
    address: SocketAddr,
    state: Arc<State>,
}

impl Provider {
    pub(crate) async fn start() -> Self {
        let (say, said) = mpsc::unbounded_channel();
        let state = Arc::new(State {
            gate: Semaphore::new(0),
            arrived: watch::Sender::new(0),
            hung_up: watch::Sender::new(0),
            requests: Mutex::default(),
            say,
            said: Arc::new(AsyncMutex::new(said)),
        });
        let shared = Arc::clone(&state);
        let address = serve(move |request| Arc::clone(&shared).answer(request)).await;
        Self { address, state }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns the manifest of a model that calls this server at `path`; `more` contains further
    /// top-level keys. The output is the answer's field `output`.
    pub(crate) fn manifest(&self, slug: &str, path: &str, more: &str) -> String {
        let url = self.url(path);
        format!(
            "slug = '{slug}'\noutput_type = 'object'\n{more}\n\
             [runner]\ntype = 'http'\nurl = '{url}'\noutput = '/output'\n"
        )
    }

    /// Releases this many held answers.
    pub(crate) fn release(&self, count: usize) {
        self.state.gate.add_permits(count);
    }

    /// Adds a chunk to the current or next streamed chat.
    pub(crate) fn say(&self, text: &str) {
        let delta = json!({"choices": [{"delta": {"content": text}}]});
        self.state.say.send(delta.to_string()).unwrap();
    }

    /// Ends the streamed chat.
    pub(crate) fn finish(&self) {
        let end = json!({"choices": [{"delta": {}, "finish_reason": "stop"}]});
        self.state.say.send(end.to_string()).unwrap();
        self.state.say.send("[DONE]".to_owned()).unwrap();
    }

    /// Waits until this many requests have arrived in total.
    pub(crate) async fn arrived(&self, count: usize) {
        let mut arrived = self.state.arrived.subscribe();
        within("request", arrived.wait_for(|seen| *seen >= count)).await.unwrap();
    }

    /// Waits until this many clients have disconnected before receiving their answer.
    pub(crate) async fn hung_up(&self, count: usize) {
        let mut hung_up = self.state.hung_up.subscribe();
        within("hang-up", hung_up.wait_for(|seen| *seen >= count)).await.unwrap();
    }

    /// Returns the server's address in the form used in endpoint lists and metric labels.
    pub(crate) fn authority(&self) -> String {
        self.address.to_string()
    }

    /// Returns the requests received so far.
    pub(crate) fn requests(&self) -> Vec<Whole> {
        self.state.requests.lock().unwrap().clone()
    }

    /// Returns the id of the prediction that sent the newest request, from its `Idempotency-Key`.
    pub(crate) fn newest_prediction(&self) -> String {
        let requests = self.requests();
        let key = requests.last().unwrap().headers()["idempotency-key"].to_str().unwrap();
        key.split(':').next().unwrap().to_owned()
    }
}

impl State {
    /// Executes the command in the request path: fails, waits until released, or returns `answer`.
    async fn obey(&self, order: &str, answer: Value) -> Response {
        match order {
            "fail" => return respond(500, "as requested"),
            "slow" => {
                let waiting = Waiting { hung_up: self.hung_up.clone(), answered: false };
                self.gate.acquire().await.unwrap().forget();
                waiting.end();
            }
            _ => {}
        }
        respond(200, answer.to_string())
    }

    /// Serves the model `m` over the Open Inference Protocol.
    async fn tensors(&self, path: &str, input: &Value) -> Response {
        match path {
            "/do/v2/models/m/ready" => respond(200, ""),
            "/do/v2/models/m" => {
                let order = json!({"name": "do", "datatype": "BYTES", "shape": [1]});
                respond(200, json!({"name": "m", "inputs": [order]}).to_string())
            }
            _ => {
                let said =
                    json!({"name": "said", "shape": [2, 1], "datatype": "INT8", "data": [1, 2]});
                let order = input["inputs"][0]["data"][0].as_str().unwrap();
                self.obey(order, json!({"outputs": [said]})).await
            }
        }
    }

    /// Streams the chunks that the test adds, until the test ends the chat.
    fn stream(&self, waiting: Waiting) -> Response {
        let said = Arc::clone(&self.said);
        events(futures_util::stream::unfold(Some(waiting), move |waiting| {
            let said = Arc::clone(&said);
            async move {
                let waiting = waiting?;
                let text = said.lock().await.recv().await.unwrap();
                if text == "[DONE]" {
                    waiting.end();
                    return Some((text, None));
                }
                Some((text, Some(waiting)))
            }
        }))
    }

    async fn answer(self: Arc<Self>, request: Whole) -> Response {
        let path = request.uri().path().to_owned();
        let input: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        self.requests.lock().unwrap().push(request);
        self.arrived.send_modify(|count| *count += 1);
        match path.trim_start_matches('/').split_once('/') {
            Some(("status", code)) => respond(code.parse().unwrap(), format!("this is {code}")),
            Some(("billed", status)) => {
                let body = json!({"output": input, "metrics": {"cost": 0.25}});
                respond(status.parse().unwrap(), body.to_string())
            }
            _ => match path.as_str() {
                "/echo" => respond(200, json!({"output": input}).to_string()),
                "/list" => respond(200, json!({"output": ["a://one"]}).to_string()),
                "/bytes" => {
                    let answer = hyper::Response::builder().header("content-type", "audio/wav");
                    answer.body(orrery_http::body::full("RIFF")).unwrap()
                }
                "/garbage" => respond(200, "<html>"),
                "/no-output" => respond(200, json!({"result": 1}).to_string()),
                "/hold" => {
                    let waiting = Waiting { hung_up: self.hung_up.clone(), answered: false };
                    self.gate.acquire().await.unwrap().forget();
                    waiting.end();
                    respond(200, json!({"output": {"held": true}}).to_string())
                }
                "/stream/chat/completions" => {
                    let waiting = Waiting { hung_up: self.hung_up.clone(), answered: false };
                    self.stream(waiting)
                }
                "/do" => self.obey(input["do"].as_str().unwrap(), json!({"output": input})).await,
                "/do/chat/completions" => {
                    let said = json!({"message": {"content": "said"}, "finish_reason": "stop"});
                    let order = input["messages"][0]["content"].as_str().unwrap();
                    self.obey(order, json!({"choices": [said]})).await
                }
                "/do/health-check" => respond(200, r#"{"status":"READY"}"#),
                "/do/openapi.json" => {
                    let schemas = json!({
                        "Input": {
                            "type": "object",
                            "required": ["do"],
                            "properties": {"do": {"type": "string"}},
                        },
                        "Output": {"type": "string"},
                    });
                    respond(200, json!({"components": {"schemas": schemas}}).to_string())
                }
                tensors if tensors.starts_with("/do/v2/models/m") => {
                    self.tensors(tensors, &input).await
                }
                "/do/models" => respond(200, r#"{"data":[]}"#),
                cog if cog.ends_with("/cancel") => respond(200, "{}"),
                cog if cog.starts_with("/do/predictions/") => {
                    let done = json!({"status": "succeeded", "output": "said", "logs": "heard\n"});
                    self.obey(input["input"]["do"].as_str().unwrap(), done).await
                }
                other => panic!("no such stand-in: {other}"),
            },
        }
    }
}

/// A request that has not been answered yet. If dropped in that state, it counts as a hang-up.
struct Waiting {
    hung_up: watch::Sender<usize>,
    answered: bool,
}

impl Waiting {
    fn end(mut self) {
        self.answered = true;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.answered {
            self.hung_up.send_modify(|count| *count += 1);
        }
    }
}
