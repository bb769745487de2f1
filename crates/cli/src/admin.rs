//! Sends requests to the service over its control socket. If no service runs, the requests are
//! handled in this process, directly on the store. Both transports use the same routes.
//!
//! The client never opens a store that belongs to another user: if root created files in it, the
//! service could not start.

use std::future::Future;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde_json::Value;

use super::owner;
use orrery_config::Config;
use orrery_http::{Body, Response, body, unix_socket};

/// The name of the control socket in the data folder.
pub(super) const SOCKET: &str = "control.sock";
/// The file in the data folder that holds the socket's token.
const TOKEN: &str = "control.token";

/// Maximum size of a response, in bytes.
const RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Time limit for one response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for an upload. The service aborts a stalled upload much earlier.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Handles requests in this process.
pub(super) type InProcess =
    Box<dyn Fn(Request<Body>) -> Pin<Box<dyn Future<Output = Response> + Send>> + Send + Sync>;

/// A client of the admin API.
pub(super) struct Admin {
    transport: Transport,
    /// The organization for which organization-scoped routes are called.
    organization: Option<String>,
}

enum Transport {
    Socket { path: PathBuf, token: String },
    Offline(InProcess),
}

impl Admin {
    /// Connects to the running service of this configuration. If no service runs, opens the store
    /// with `offline`.
    ///
    /// # Errors
    /// Returns an error when the socket or the store belongs to another user, or the store does not
    /// open.
    pub(super) async fn open<F>(
        config: &Config,
        offline: impl FnOnce(Config) -> F,
    ) -> anyhow::Result<Self>
    where
        F: Future<Output = anyhow::Result<InProcess>>,
    {
        let socket = config.data_dir.join(SOCKET);
        match unix_socket::connect(&socket).await {
            Ok(_listening) => {
                let token = config.data_dir.join(TOKEN);
                let read = std::fs::read_to_string(&token);
                let token = read.with_context(|| format!("{} cannot be read", token.display()))?;
                Ok(Self::by(Transport::Socket { path: socket, token }))
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
            {
                refuse_without_store(&config.data_dir)?;
                let answer = offline(config.clone()).await.with_context(|| {
                    let data = config.data_dir.display();
                    format!("no service answers in {data}, and its store cannot be opened")
                })?;
                Ok(Self::by(Transport::Offline(answer)))
            }
            Err(error) => {
                Err(error).with_context(|| format!("{} cannot be reached", socket.display()))
            }
        }
    }

    const fn by(transport: Transport) -> Self {
        Self { transport, organization: None }
    }

    /// Sets the organization for which later requests are sent. The routes of the base and
    /// workflows hosts are under `/api/base` and `/api/workflows`.
    pub(super) fn act_for(&mut self, organization: &str) {
        self.organization = Some(organization.to_owned());
    }

    /// Connects to the running service of this configuration; `None` if no service responds.
    pub(super) async fn running(config: &Config) -> Option<Self> {
        let socket = config.data_dir.join(SOCKET);
        let _listening = unix_socket::connect(&socket).await.ok()?;
        let token = std::fs::read_to_string(config.data_dir.join(TOKEN)).ok()?;
        Some(Self::by(Transport::Socket { path: socket, token }))
    }

    /// Connects to the running service of this configuration and never opens its store.
    /// [`Admin::is_away`] recognizes the error returned when no service runs.
    ///
    /// # Errors
    /// Returns an error when no service runs, or this user may not connect to it.
    pub(super) async fn reach(config: &Config) -> anyhow::Result<Self> {
        let socket = config.data_dir.join(SOCKET);
        if let Err(error) = unix_socket::connect(&socket).await {
            let is_away =
                matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
            if is_away {
                return Err(Away(config.data_dir.clone()).into());
            }
            return Err(error).with_context(|| format!("{} cannot be reached", socket.display()));
        }
        let token = config.data_dir.join(TOKEN);
        let token = std::fs::read_to_string(&token)
            .with_context(|| format!("{} cannot be read", token.display()))?;
        Ok(Self::by(Transport::Socket { path: socket, token }))
    }

    /// Returns whether an error of [`Admin::reach`] means that no service runs.
    pub(super) fn is_away(error: &anyhow::Error) -> bool {
        error.is::<Away>()
    }

    /// Sends `GET path`.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(Method::GET, path, None).await
    }

    /// Sends `POST path` with `value`.
    pub(super) async fn post(&self, path: &str, value: &Value) -> anyhow::Result<Value> {
        self.ask(Method::POST, path, Some(value)).await
    }

    /// Sends `POST path` with `value`, and waits at most `patience` for the response.
    pub(super) async fn post_within(
        &self,
        path: &str,
        value: &Value,
        patience: Duration,
    ) -> anyhow::Result<Value> {
        self.ask_within(Method::POST, path, Some(value), patience).await
    }

    /// Sends `PUT path` with `value`.
    pub(super) async fn put(&self, path: &str, value: &Value) -> anyhow::Result<Value> {
        self.ask(Method::PUT, path, Some(value)).await
    }

    /// Sends `PATCH path` with `value`.
    pub(super) async fn patch(&self, path: &str, value: &Value) -> anyhow::Result<Value> {
        self.ask(Method::PATCH, path, Some(value)).await
    }

    /// Sends `DELETE path`.
    pub(super) async fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.delete_with_answer(path).await.map(drop)
    }

    /// Sends `DELETE path`, and returns the response body.
    pub(super) async fn delete_with_answer(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(Method::DELETE, path, None).await
    }

    /// Streams the response body of `GET path` to `out`, and calls `progress` with the number of
    /// bytes written so far.
    pub(super) async fn download(
        &self,
        path: &str,
        out: &mut impl Write,
        progress: &mut dyn FnMut(u64),
    ) -> anyhow::Result<()> {
        let request = self.request(Method::GET, path).body(body::empty());
        self.transfer(request.context("the request cannot be written")?, out, progress).await
    }

    /// Streams the response body of `POST path` with `value` to `out`.
    pub(super) async fn post_stream(
        &self,
        path: &str,
        value: &Value,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        let request = self.request(Method::POST, path).header(CONTENT_TYPE, "application/json");
        let request = request.body(body::full(Bytes::from(value.to_string())));
        let request = request.context("the request cannot be written")?;
        self.transfer(request, out, &mut |_bytes| {}).await
    }

    async fn transfer(
        &self,
        request: Request<Body>,
        out: &mut impl Write,
        progress: &mut dyn FnMut(u64),
    ) -> anyhow::Result<()> {
        match &self.transport {
            Transport::Offline(answer) => pour(answer(request).await, out, progress).await,
            Transport::Socket { path: socket, .. } => {
                let lost = "the connection to the service was lost; the service's log may say why";
                let stream = unix_socket::connect(socket).await.context(lost)?;
                let io = TokioIo::new(stream);
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(io).await.context(lost)?;
                let exchange = async move {
                    let reply = sender.send_request(request).await.context(lost)?;
                    pour(reply, out, progress).await
                };
                let (poured, _connection) = tokio::join!(exchange, connection);
                poured
            }
        }
    }

    /// Builds a request, with the token if the request is sent over the socket.
    fn request(&self, method: Method, path: &str) -> hyper::http::request::Builder {
        let request = Request::builder().method(method).uri(path).header(HOST, "localhost");
        let request = match &self.organization {
            Some(name) => request.header("x-orrery-organization", name),
            None => request,
        };
        match &self.transport {
            Transport::Socket { token, .. } => {
                request.header(AUTHORIZATION, format!("Bearer {token}"))
            }
            Transport::Offline(_) => request,
        }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        value: Option<&Value>,
    ) -> anyhow::Result<Value> {
        self.ask_within(method, path, value, ANSWER_TIMEOUT).await
    }

    async fn ask_within(
        &self,
        method: Method,
        path: &str,
        value: Option<&Value>,
        patience: Duration,
    ) -> anyhow::Result<Value> {
        let content = value.map_or(Bytes::new(), |value| Bytes::from(value.to_string()));
        let route = path.split('?').next().unwrap_or_default();
        if route.ends_with('/') || route.contains("//") {
            bail!("a name in the command is empty: enter a name in its place");
        }
        let request = self
            .request(method, path)
            .header(CONTENT_TYPE, "application/json")
            .body(body::full(content))
            .context("the request cannot be written")?;
        self.exchange(request, patience).await
    }

    /// Sends a form to `POST path`.
    pub(super) async fn post_form(
        &self,
        path: &str,
        boundary: &str,
        form: Body,
    ) -> anyhow::Result<Value> {
        let request = self
            .request(Method::POST, path)
            .header(CONTENT_TYPE, format!("multipart/form-data; boundary={boundary}"))
            .body(form)
            .context("the request cannot be written")?;
        self.exchange(request, UPLOAD_TIMEOUT).await
    }

    async fn exchange(&self, request: Request<Body>, patience: Duration) -> anyhow::Result<Value> {
        let answer = async {
            match &self.transport {
                Transport::Socket { path, .. } => over(path, request).await,
                Transport::Offline(answer) => collect(answer(request).await).await,
            }
        };
        let (status, bytes) = tokio::time::timeout(patience, answer)
            .await
            .with_context(|| format!("no answer within {} s", patience.as_secs()))??;
        understood(status, &bytes)
    }
}

/// No service is running.
#[derive(Debug, thiserror::Error)]
#[error("no service answers in {}", .0.display())]
struct Away(PathBuf);

/// Sends one request over the socket.
async fn over(socket: &Path, request: Request<Body>) -> anyhow::Result<(StatusCode, Bytes)> {
    let lost = "the connection to the service was lost; the service's log may say why";
    let stream = unix_socket::connect(socket).await.context(lost)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.context(lost)?;
    let exchange = async move {
        let reply = sender.send_request(request).await.context(lost)?;
        collect(reply).await
    };
    // The connection ends when `exchange` drops its sender. Errors are reported by `exchange`.
    let (answer, _connection) = tokio::join!(exchange, connection);
    answer
}

/// Writes a response body to `out`.
async fn pour<B>(
    reply: hyper::Response<B>,
    out: &mut impl Write,
    progress: &mut dyn FnMut(u64),
) -> anyhow::Result<()>
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if !reply.status().is_success() {
        let (status, bytes) = collect(reply).await?;
        return understood(status, &bytes).map(drop);
    }
    let mut body = reply.into_body();
    let mut written = 0;
    let stands_still = || format!("no data arrived for {} s", ANSWER_TIMEOUT.as_secs());
    while let Some(frame) =
        tokio::time::timeout(ANSWER_TIMEOUT, body.frame()).await.with_context(stands_still)?
    {
        let frame = frame.map_err(|error| anyhow::Error::from_boxed(error.into()))?;
        if let Ok(bytes) = frame.into_data() {
            out.write_all(&bytes).context("the file cannot be written")?;
            written += bytes.len() as u64;
            progress(written);
        }
    }
    Ok(())
}

async fn collect<B>(reply: hyper::Response<B>) -> anyhow::Result<(StatusCode, Bytes)>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let status = reply.status();
    let bytes = Limited::new(reply.into_body(), RESPONSE_BYTES_MAX)
        .collect()
        .await
        .map_err(anyhow::Error::from_boxed)
        .context("the answer cannot be read")?
        .to_bytes();
    Ok((status, bytes))
}

/// Returns the value of a successful response, or the service's error message.
fn understood(status: StatusCode, bytes: &[u8]) -> anyhow::Result<Value> {
    let value: Value = match bytes {
        [] => Value::Null,
        bytes => serde_json::from_slice(bytes).with_context(|| {
            format!("the service answered {status} with something other than JSON")
        })?,
    };
    if status.is_success() {
        return Ok(value);
    }
    let error = value.get("error");
    // The OpenAI-compatible routes have their own error format.
    let message = error.and_then(|error| error.get("message").or(Some(error)));
    let hint = value.pointer("/details/hint").and_then(Value::as_str);
    match message.and_then(Value::as_str) {
        Some(message) => {
            bail!("{message}{}", hint.map(|hint| format!(": {hint}")).unwrap_or_default())
        }
        None => bail!("the service answered {status}"),
    }
}

/// Returns `name` as one percent-encoded path segment.
pub(super) fn segment(name: &str) -> PercentEncode<'_> {
    utf8_percent_encode(name, NON_ALPHANUMERIC)
}

/// Returns an error if the data folder has no store or belongs to another user. Only `serve`
/// creates a store.
pub(super) fn refuse_without_store(data_dir: &Path) -> anyhow::Result<()> {
    refuse_foreign(data_dir)?;
    let store = data_dir.join("store");
    match std::fs::metadata(&store) {
        Ok(found) if found.is_dir() => Ok(()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err(error).with_context(|| format!("{} cannot be read", store.display()))
        }
        Ok(_) | Err(_) => bail!(
            "there is no store in {}: start the service first (`orrery serve` creates it), or name the \
             configuration of the service with --config FILE or ORRERY_CONFIG",
            data_dir.display()
        ),
    }
}

/// Returns an error if the data folder belongs to another user.
pub(super) fn refuse_foreign(data_dir: &Path) -> anyhow::Result<()> {
    let Ok(folder) = std::fs::metadata(data_dir) else { return Ok(()) };
    let uid = rustix::process::geteuid().as_raw();
    if folder.uid() == uid {
        return Ok(());
    }
    let name = owner::name(folder.uid());
    bail!(
        "{} belongs to the user {name}, and files of another user in it would prevent the service from \
         starting: start the service first, or run this as that user (sudo -u {name} orrery …)",
        data_dir.display()
    );
}

/// Returns an error if a service runs on the data folder.
pub(super) fn refuse_running(data_dir: &Path) -> anyhow::Result<()> {
    if !unix_socket::is_listening(&data_dir.join(SOCKET)) {
        return Ok(());
    }
    bail!(
        "a service is running on {}, and this command needs exclusive access to its data: stop the \
         service first",
        data_dir.display()
    );
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
