//! One run: uploads files, queues the prompt, waits for its end and downloads its files.

use std::convert::Infallible;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use url::Url;
use uuid::Builder;

use super::graph::Input;
use super::interface::{Kind, random_seed};
use super::progress::Watch;
use super::{ComfyRunner, UPLOAD_PREFIX};
use crate::http::{excerpt, failure_of, unreadable};
use crate::{Job, Success};
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::file;
use orrery_domain::model::Usage;
use orrery_http::client::{Client, Limits, Overflow, Response};
use orrery_http::form_data::{file_head, part_head};
use orrery_http::{content, trace_context};
use orrery_runtime::{self as runtime, Tasks};

/// Maximum size of a JSON response. A queue contains the graphs of all prompts that wait.
pub(super) const ANSWER_MAX: usize = 10 * 1024 * 1024;
/// Maximum size of a file in a request.
const UPLOAD_MAX: usize = 64 * 1024 * 1024;
/// Maximum total size of the files in a result.
const FILES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of files in a result.
const FILES_COUNT_MAX: usize = 256;
/// Timeout of a request about a prompt.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Initial and maximum polling interval.
const POLL_FIRST: Duration = Duration::from_millis(50);
const POLL_MAX: Duration = Duration::from_secs(1);
/// Number of consecutive failed polls after which the run fails.
const UNANSWERED_MAX: u32 = 5;

/// A prompt on the server that received it.
struct Prompt<'r> {
    runner: &'r ComfyRunner,
    job: &'r Job,
    /// The URL of the server.
    url: &'r str,
    id: String,
}

impl ComfyRunner {
    pub(super) async fn run_prompt(&self, job: &Job) -> Result<Success, crate::Error> {
        let started = runtime::monotonic_now();
        let id = id_of(&job.attempt_key);
        let history = |url: &str| {
            let request = Request::get(format!("{url}/history/{id}")).body(Bytes::new());
            let mut request = request.map_err(|error| {
                let what = format!("the request cannot be made: {error}");
                self.model.failure(ErrorClass::InvalidModelConfig, &what)
            })?;
            trace_context::pass_on(request.headers_mut(), &job.trace);
            Ok(request)
        };
        let exchange =
            self.model.exchange_holding(&self.servers, &self.client, ANSWER_MAX, history);
        let (answer, lease) = exchange.await?;
        let url = lease.url().into_owned();
        let mut prompt = Prompt { runner: self, job, url: &url, id };
        let entry = prompt.entry(prompt.json(&answer).await?);
        let entry = match entry {
            Some(entry) => entry,
            None => prompt.follow().await?,
        };
        let output = prompt.output(&entry).await?;
        let usage = Usage { run_time: started.elapsed(), ..Usage::default() };
        Ok(Success::new(output, usage))
    }
}

impl Prompt<'_> {
    fn failure(&self, class: ErrorClass, what: &str) -> Failure {
        self.runner.model.failure(class, what)
    }

    /// Sends a request about this prompt.
    async fn send(&self, request: Request<Bytes>, bytes_max: usize) -> Result<Response, Failure> {
        let model = &self.runner.model.name;
        let mut request = request;
        trace_context::pass_on(request.headers_mut(), &self.job.trace);
        let answer = self.runner.client.send_when_able(request, &limits(bytes_max)).await;
        answer.map_err(|error| failure_of(model, &error))
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Bytes>, Failure> {
        let url = format!("{}{path}", self.url);
        let request = Request::builder().method(method).uri(url);
        let request = request.header(CONTENT_TYPE, "application/json").body(body);
        request.map_err(|error| {
            let what = format!("the request cannot be made: {error}");
            self.failure(ErrorClass::InvalidModelConfig, &what)
        })
    }

    async fn json(&self, answer: &Response) -> Result<Value, Failure> {
        let status = answer.status.as_u16();
        if let Some(class) = ErrorClass::of_http_status(status) {
            let what = format!("its server answered {status}: {}", excerpt(&answer.body));
            return Err(self.failure(class, &what));
        }
        content::json(&answer.headers, &answer.body).await.map_err(|error| {
            let what = format!("{}: {}", unreadable(&error), excerpt(&answer.body));
            self.failure(ErrorClass::ProviderError, &what)
        })
    }

    async fn get(&self, path: &str) -> Result<Value, Failure> {
        let request = self.request(Method::GET, path, Bytes::new())?;
        self.json(&self.send(request, ANSWER_MAX).await?).await
    }

    /// Returns this prompt's entry in the server's history, which contains only prompts that have
    /// ended.
    fn entry(&self, mut history: Value) -> Option<Value> {
        history.get_mut(&self.id).map(Value::take)
    }

    /// Returns whether the prompt waits or runs.
    async fn is_queued(&self) -> Result<bool, Failure> {
        let queue = self.get("/queue").await?;
        Ok(["queue_running", "queue_pending"].iter().any(|part| contains(&queue, part, &self.id)))
    }

    /// Queues the prompt, unless an earlier attempt has done so, and returns its entry in the history
    /// once it has ended.
    async fn follow(&mut self) -> Result<Value, Failure> {
        let is_queued = self.is_queued().await?;
        let mut cancel = CancelOnDrop {
            client: self.runner.client.clone(),
            tasks: &self.runner.tasks,
            url: self.url,
            id: Some(self.id.clone()),
        };
        if !is_queued {
            // The prompt may have ended since the history was read.
            let history = self.get(&format!("/history/{}", self.id)).await?;
            if let Some(entry) = self.entry(history) {
                cancel.id = None;
                return Ok(entry);
            }
            self.submit().await?;
            cancel.id = Some(self.id.clone());
        }
        let entry = self.wait().await?;
        cancel.id = None;
        Ok(entry)
    }

    /// Queues the prompt.
    async fn submit(&mut self) -> Result<(), Failure> {
        let interface = self.runner.interface_at(self.url).await?;
        let graph = &self.runner.graph;
        let mut values = Vec::with_capacity(graph.inputs.len());
        for (input, kind) in graph.inputs.iter().zip(interface.kinds.iter()) {
            let value = self.job.input.get(&input.name);
            match (value, kind) {
                (Some(Value::String(source)), Kind::File) => {
                    values.push((input, self.upload(input, source).await?));
                }
                (Some(value), _) => values.push((input, value.clone())),
                (None, Kind::Seed(max)) => {
                    let seed = random_seed(input, *max);
                    let seed =
                        seed.map_err(|error| self.failure(ErrorClass::InternalError, &error))?;
                    self.job.progress.log(&format!("{}: {seed}\n", input.name));
                    values.push((input, seed));
                }
                (None, Kind::Value | Kind::File) => {}
            }
        }
        let graph = graph.fill(values.into_iter());
        let body = json!({"prompt": graph, "prompt_id": self.id, "client_id": self.id});
        let request = self.request(Method::POST, "/prompt", Bytes::from(body.to_string()))?;
        let answer = self.send(request, ANSWER_MAX).await?;
        if answer.status.as_u16() == 400 {
            let refusal: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let what = format!("its server refused the graph: {}", self.refusal(&refusal));
            return Err(self.failure(ErrorClass::InvalidUserInput, &what));
        }
        let accepted = self.json(&answer).await?;
        match accepted.get("prompt_id").and_then(Value::as_str) {
            Some(id) if is_plain(id) => id.clone_into(&mut self.id),
            Some(_) | None => {
                let what = format!("its server gave no prompt_id: {}", excerpt(&answer.body));
                return Err(self.failure(ErrorClass::ProviderError, &what));
            }
        }
        Ok(())
    }

    /// Uploads the file of an input and returns its name on the server. The name is derived from the
    /// content, so that the server keeps each file once.
    async fn upload(&self, input: &Input, source: &str) -> Result<Value, Failure> {
        let wrong = |reason: String| {
            let what = format!("`{}`: {reason}", input.name);
            self.failure(ErrorClass::InvalidUserInput, &what)
        };
        let mut memory = self.runner.sources.memory(2 * UPLOAD_MAX).await;
        let file = self.runner.sources.read(source, UPLOAD_MAX).await;
        let file = file.map_err(|error| wrong(error.to_string()))?;
        let digest = Sha256::digest(&file.bytes);
        let digest: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let extension = file.name.rsplit_once('.').map(|(_, extension)| extension);
        let extension = extension.filter(|it| it.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        let name = format!("{UPLOAD_PREFIX}{digest}.{}", extension.unwrap_or("bin"));
        // The file cannot contain its own digest. A boundary has at most 70 characters.
        let boundary = format!("orrery-{digest}");
        let mut body = Vec::with_capacity(file.bytes.len() + 1024);
        for (field, value) in [("type", "input"), ("overwrite", "true")] {
            body.extend(format!("{}\r\n\r\n{value}\r\n", part_head(&boundary, field)).bytes());
        }
        body.extend(part_head(&boundary, "image").bytes());
        body.extend(file_head(&name, &file.content_type).bytes());
        body.extend_from_slice(&file.bytes);
        body.extend(format!("\r\n--{boundary}--\r\n").bytes());
        drop(file);
        memory.shrink_to(body.len());
        let request = Request::post(format!("{}/upload/image", self.url))
            .header(CONTENT_TYPE, format!("multipart/form-data; boundary={boundary}"))
            .body(Bytes::from(body));
        let request = request.map_err(|error| wrong(error.to_string()))?;
        let stored = self.json(&self.send(request, ANSWER_MAX).await?).await?;
        let text = |name: &str| stored.get(name).and_then(Value::as_str).unwrap_or_default();
        match (text("subfolder"), text("name")) {
            (_, "") => Err(self.failure(ErrorClass::ProviderError, "its server stored no file")),
            ("", name) => Ok(name.into()),
            (folder, name) => Ok(format!("{folder}/{name}").into()),
        }
    }

    /// Describes why a server refused a graph.
    fn refusal(&self, refusal: &Value) -> String {
        let text = |value: &Value, name: &str| {
            let text = value.get(name).and_then(Value::as_str).unwrap_or_default();
            excerpt(text.as_bytes())
        };
        let nodes = refusal.get("node_errors").and_then(Value::as_object).into_iter().flatten();
        let reasons = nodes.flat_map(|(node, errors)| {
            let errors = errors.get("errors").and_then(Value::as_array).into_iter().flatten();
            errors.map(move |error| {
                let (message, details) = (text(error, "message"), text(error, "details"));
                format!("{}: {message}: {details}", self.runner.graph.name_of(node))
            })
        });
        let reasons: Vec<String> = reasons.take(3).collect();
        if reasons.is_empty() {
            return refusal.get("error").map_or_else(
                || excerpt(refusal.to_string().as_bytes()),
                |error| format!("{} {}", text(error, "message"), text(error, "details")),
            );
        }
        reasons.join("; ")
    }

    /// Waits until the prompt has ended; returns its entry in the history.
    async fn wait(&self) -> Result<Value, Failure> {
        let ended = Notify::new();
        let watch = Watch {
            client: &self.runner.client,
            url: self.url,
            id: &self.id,
            graph: &self.runner.graph,
            progress: &*self.job.progress,
            ended: &ended,
        };
        let watching = async {
            watch.run().await;
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            entry = self.poll(&ended) => entry,
            never = watching => match never {},
        }
    }

    async fn poll(&self, ended: &Notify) -> Result<Value, Failure> {
        let mut pause = POLL_FIRST;
        let mut unanswered = 0;
        let mut missing = 0;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = ended.notified() => {}
            }
            pause = pause.saturating_mul(2).min(POLL_MAX);
            match self.state().await {
                Ok(State::Ended(entry)) => return Ok(entry),
                Ok(State::Queued) => (unanswered, missing) = (0, 0),
                // The prompt may have moved from the queue to the history between the two requests.
                Ok(State::Unknown) if missing == 0 => missing = 1,
                Ok(State::Unknown) => {
                    let what = "its server no longer knows the prompt: it was restarted, or its \
                                queue was cleared";
                    return Err(self.failure(ErrorClass::ProviderUnavailable, what));
                }
                Err(failure) => {
                    unanswered += 1;
                    if unanswered >= UNANSWERED_MAX {
                        return Err(failure);
                    }
                }
            }
        }
    }

    async fn state(&self) -> Result<State, Failure> {
        let history = self.get(&format!("/history/{}", self.id)).await?;
        if let Some(entry) = self.entry(history) {
            return Ok(State::Ended(entry));
        }
        Ok(if self.is_queued().await? { State::Queued } else { State::Unknown })
    }

    /// Returns the output of a prompt that has ended: its files, or else its texts.
    async fn output(&self, entry: &Value) -> Result<Value, Failure> {
        self.check_status(entry)?;
        let outputs = entry.get("outputs").and_then(Value::as_object).into_iter().flatten();
        let values: Vec<&Value> = outputs
            .flat_map(|(_, node)| node.as_object().into_iter().flatten())
            .flat_map(|(_, values)| values.as_array().into_iter().flatten())
            .collect();
        let files = |wanted: fn(Option<&str>) -> bool| -> Vec<&Value> {
            let is_file = |value: &&&Value| {
                value.get("filename").is_some_and(Value::is_string)
                    && wanted(value.get("type").and_then(Value::as_str))
            };
            values.iter().filter(is_file).copied().collect()
        };
        // Previews are results only if there are no other files.
        let mut found = files(|kind| kind != Some("temp"));
        if found.is_empty() {
            found = files(|kind| kind == Some("temp"));
        }
        if found.len() > FILES_COUNT_MAX {
            let what = format!("it returned more than {FILES_COUNT_MAX} files");
            return Err(self.failure(ErrorClass::ProviderError, &what));
        }
        let mut results = Vec::with_capacity(found.len());
        let mut left = FILES_MAX;
        for file in found {
            results.push(self.download(file, &mut left).await?);
        }
        if results.is_empty() {
            results = values.into_iter().filter(|value| value.is_string()).cloned().collect();
        }
        match results.len() {
            0 => Err(self.failure(ErrorClass::ProviderError, "its graph returned no files")),
            1 => Ok(results.swap_remove(0)),
            _ => Ok(results.into()),
        }
    }

    fn check_status(&self, entry: &Value) -> Result<(), Failure> {
        let status = entry.get("status").unwrap_or(&Value::Null);
        if status.get("status_str").and_then(Value::as_str) != Some("error") {
            return Ok(());
        }
        let messages = status.get("messages").and_then(Value::as_array).into_iter().flatten();
        for message in messages {
            let Some(data) = message.get(1) else { continue };
            match message.get(0).and_then(Value::as_str) {
                Some("execution_interrupted") => {
                    let what = "its run was cancelled by something other than this service";
                    return Err(self.failure(ErrorClass::ProviderError, what));
                }
                Some("execution_error") => {
                    let text = |name: &str| data.get(name).and_then(Value::as_str);
                    let node = self.runner.graph.name_of(text("node_id").unwrap_or_default());
                    let said = text("exception_message").unwrap_or_default();
                    let what = format!("{node} failed: {}", excerpt(said.trim().as_bytes()));
                    return Err(self.failure(ErrorClass::ProviderError, &what));
                }
                Some(_) | None => {}
            }
        }
        Err(self.failure(ErrorClass::ProviderError, "its graph failed without a reason"))
    }

    /// Downloads a file of the result as a `data:` URI, which the engine stores as a file.
    async fn download(&self, file: &Value, left: &mut usize) -> Result<Value, Failure> {
        let text = |name: &str| file.get(name).and_then(Value::as_str).unwrap_or_default();
        let wrong = |what: String| self.failure(ErrorClass::ProviderError, &what);
        let mut url = Url::parse(&format!("{}/view", self.url))
            .map_err(|error| wrong(format!("its URL is invalid: {error}")))?;
        url.query_pairs_mut()
            .append_pair("filename", text("filename"))
            .append_pair("subfolder", text("subfolder"))
            .append_pair("type", text("type"));
        let request = Request::get(url.as_str()).body(Bytes::new());
        let request = request.map_err(|error| wrong(error.to_string()))?;
        let answer = self.send(request, *left).await?;
        if !answer.status.is_success() {
            let status = answer.status.as_u16();
            return Err(wrong(format!("its server answered {status} for a file of the result")));
        }
        *left = left.saturating_sub(answer.body.len());
        let kind = answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = file::content_type(kind.unwrap_or_default());
        Ok(format!("data:{kind};base64,{}", STANDARD.encode(&answer.body)).into())
    }
}

/// The state of a prompt.
enum State {
    Queued,
    Ended(Value),
    /// The server does not know the prompt.
    Unknown,
}

/// Cancels the prompt on its server when dropped.
struct CancelOnDrop<'p> {
    client: Client,
    tasks: &'p Tasks,
    /// The URL of the server.
    url: &'p str,
    /// The ID of the prompt; `None` if there is nothing to cancel.
    id: Option<String>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let (client, url) = (self.client.clone(), self.url.to_owned());
        self.tasks.spawn(async move { cancel(&client, &url, &id).await });
    }
}

/// Removes a prompt from the queue, or interrupts it if it runs. Old servers interrupt whichever
/// prompt is running, so this function reads the queue first.
async fn cancel(client: &Client, url: &str, id: &str) {
    let post = async |path: &str, body: Value| {
        let request = Request::post(format!("{url}{path}"))
            .header(CONTENT_TYPE, "application/json")
            .body(Bytes::from(body.to_string()));
        if let Ok(request) = request {
            let _it_has_ended = client.send(request, &limits(ANSWER_MAX)).await;
        }
    };
    post("/queue", json!({"delete": [id]})).await;
    let Ok(request) = Request::get(format!("{url}/queue")).body(Bytes::new()) else { return };
    let Ok(answer) = client.send(request, &limits(ANSWER_MAX)).await else { return };
    let queue: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    if contains(&queue, "queue_running", id) {
        post("/interrupt", json!({"prompt_id": id})).await;
    }
}

/// Returns whether a part of the queue contains a prompt. An entry is an array whose second element
/// is the ID.
fn contains(queue: &Value, part: &str, id: &str) -> bool {
    let entries = queue.get(part).and_then(Value::as_array).into_iter().flatten();
    entries.into_iter().any(|entry| entry.get(1).and_then(Value::as_str) == Some(id))
}

const fn limits(answer_bytes: usize) -> Limits {
    Limits { total: ANSWER_TIMEOUT, answer_bytes, overflow: Overflow::Fail }
}

/// Returns the ID of an attempt's prompt, which must be a UUID.
fn id_of(attempt_key: &str) -> String {
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(Sha256::digest(attempt_key)).for_each(|(byte, digest)| *byte = digest);
    Builder::from_random_bytes(bytes).into_uuid().to_string()
}

/// Returns whether an ID is safe in a URL path.
fn is_plain(id: &str) -> bool {
    !id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}
