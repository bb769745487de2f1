//! An OpenAI-compatible server scripted by the test: each request receives the next queued answer,
//! and the test writes streams event by event.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use orrery_http::body;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::server::{Response, Whole, respond, serve};
use super::within;

/// The answer to a request.
#[derive(Debug)]
enum Line {
    /// Status, headers, and text.
    Whole(u16, Vec<(&'static str, String)>, String),
    /// The media type and the chunks of a stream, until the sender is dropped; an empty chunk breaks the connection.
    Stream(&'static str, mpsc::UnboundedReceiver<Bytes>),
    /// No answer; the request lasts until the client disconnects.
    Silence,
}

/// Answers requests without a queued answer: maps the request's JSON to a status and a body.
type Rule = Box<dyn Fn(&Value) -> (u16, Value) + Send + Sync>;

#[derive(Default)]
struct State {
    line: Mutex<VecDeque<Line>>,
    rule: Mutex<Option<Rule>>,
    requests: Mutex<Vec<Whole>>,
    arrived: watch::Sender<usize>,
    hung_up: watch::Sender<usize>,
}

/// A running server.
pub(crate) struct Upstream {
    address: SocketAddr,
    state: Arc<State>,
}

/// A stream written by the test; dropping it ends the answer.
#[derive(Debug)]
pub(crate) struct Feed(mpsc::UnboundedSender<Bytes>);

impl Feed {
    /// Sends bytes as they are.
    pub(crate) fn raw(&self, text: &str) {
        // The server's end closes when its client disconnects.
        let _sent = self.0.send(Bytes::from(text.to_owned()));
    }

    /// Sends an event.
    pub(crate) fn event(&self, data: &Value) {
        self.raw(&format!("data: {data}\n\n"));
    }

    /// Sends a part of the answer.
    pub(crate) fn say(&self, text: &str) {
        self.event(&delta(text));
    }

    /// Ends the answer properly, with this usage.
    pub(crate) fn finish(self, input: u64, output: u64) {
        self.event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}));
        self.event(&usage(input, output));
        self.raw("data: [DONE]\n\n");
    }

    /// Breaks the connection.
    pub(crate) fn cut(self) {
        let _sent = self.0.send(Bytes::new());
    }
}

/// Returns a chunk of an answer.
pub(crate) fn delta(text: &str) -> Value {
    json!({"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]})
}

/// Returns the event that reports a usage.
pub(crate) fn usage(input: u64, output: u64) -> Value {
    let usage = json!({
        "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
    });
    json!({"id": "c", "choices": [], "usage": usage})
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        let address = serve(move |request| Arc::clone(&shared).answer(request)).await;
        Self { address, state }
    }

    /// Returns the server's URL, including `/v1`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Returns the configuration lines of a service with this server as its upstream.
    pub(crate) fn config(&self, more: &str) -> String {
        format!("[router]\nupstream_url = \"{}\"\nupstream_key = \"sk-up\"\n{more}", self.url())
    }

    /// Returns the manifest of a model on this server; `more` contains further top-level keys.
    pub(crate) fn manifest(&self, slug: &str, kind: &str, more: &str) -> String {
        let url = self.url();
        format!(
            "slug = '{slug}'\noutput_type = 'string'\n{more}\n[runner]\ntype = 'openai'\nurl = '{url}'\n\
             model = 'real-{slug}'\nkind = '{kind}'\nkey = 'sk-local'\n"
        )
    }

    fn put(&self, line: Line) {
        self.state.line.lock().unwrap().push_back(line);
    }

    /// Queues this text as an answer.
    pub(crate) fn answers(&self, status: u16, text: impl Into<String>) {
        self.put(Line::Whole(status, Vec::new(), text.into()));
    }

    /// Answers requests without a queued answer according to this rule.
    pub(crate) fn follows(&self, rule: impl Fn(&Value) -> (u16, Value) + Send + Sync + 'static) {
        *self.state.rule.lock().unwrap() = Some(Box::new(rule));
    }

    /// Queues this text with a header as an answer.
    pub(crate) fn answers_with(&self, status: u16, header: (&'static str, &str), text: &str) {
        self.put(Line::Whole(status, vec![(header.0, header.1.to_owned())], text.to_owned()));
    }

    /// Queues a completion as an answer.
    pub(crate) fn says(&self, text: &str, input: u64, output: u64) {
        let message = json!({"role": "assistant", "content": text});
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        let mut answer = usage(input, output);
        answer["choices"] = json!([choice]);
        self.answers(200, answer.to_string());
    }

    /// Queues a stream as an answer; returns the handle to write it.
    pub(crate) fn streams(&self) -> Feed {
        self.streams_as("text/event-stream")
    }

    /// Queues a stream of this media type as an answer; returns the handle to write it.
    pub(crate) fn streams_as(&self, media_type: &'static str) -> Feed {
        let (sender, pieces) = mpsc::unbounded_channel();
        self.put(Line::Stream(media_type, pieces));
        Feed(sender)
    }

    /// Queues silence: the next request receives no answer.
    pub(crate) fn is_silent(&self) {
        self.put(Line::Silence);
    }

    /// Returns the requests received so far.
    pub(crate) fn requests(&self) -> Vec<Whole> {
        self.state.requests.lock().unwrap().clone()
    }

    /// Returns the JSON of the newest request.
    pub(crate) fn newest(&self) -> Value {
        serde_json::from_slice(self.requests().last().unwrap().body()).unwrap()
    }

    /// Waits until this many requests have arrived in total.
    pub(crate) async fn arrived(&self, count: usize) {
        let mut arrived = self.state.arrived.subscribe();
        within("request", arrived.wait_for(|seen| *seen >= count)).await.unwrap();
    }

    /// Waits until this many clients have disconnected before the end of their answer.
    pub(crate) async fn hung_up(&self, count: usize) {
        let mut hung_up = self.state.hung_up.subscribe();
        within("hang-up", hung_up.wait_for(|seen| *seen >= count)).await.unwrap();
    }
}

impl State {
    async fn answer(self: Arc<Self>, request: Whole) -> Response {
        let line = self.line.lock().unwrap().pop_front().or_else(|| {
            let rule = self.rule.lock().unwrap();
            let body = serde_json::from_slice(request.body()).unwrap_or_default();
            let (status, answer) = rule.as_ref()?(&body);
            Some(Line::Whole(status, Vec::new(), answer.to_string()))
        });
        self.requests.lock().unwrap().push(request);
        self.arrived.send_modify(|count| *count += 1);
        let mut open = Open { state: Arc::clone(&self), is_over: false };
        match line.unwrap() {
            Line::Whole(status, headers, text) => {
                open.is_over = true;
                let mut answer = respond(status, text);
                for (name, value) in headers {
                    answer.headers_mut().insert(name, value.parse().unwrap());
                }
                answer
            }
            Line::Silence => {
                let _until_the_client_goes = open;
                std::future::pending().await
            }
            Line::Stream(media_type, pieces) => {
                let state = (pieces, open);
                let stream =
                    futures_util::stream::unfold(state, |(mut pieces, mut open)| async move {
                        let Some(piece) = pieces.recv().await else {
                            open.end();
                            return None;
                        };
                        if piece.is_empty() {
                            let cut = Err("cut off".into());
                            open.is_over = true;
                            return Some((cut, (pieces, open)));
                        }
                        Some((Ok(piece), (pieces, open)))
                    });
                let answer = hyper::Response::builder().header("content-type", media_type);
                answer.body(body::stream(stream)).unwrap()
            }
        }
    }
}

/// An unfinished answer. If dropped in that state, it counts as a hang-up.
struct Open {
    state: Arc<State>,
    is_over: bool,
}

impl Open {
    fn end(mut self) {
        self.is_over = true;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.is_over {
            self.state.hung_up.send_modify(|count| *count += 1);
        }
    }
}
