//! The service in this process, on free ports, with two organizations and a temporary folder.

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Method;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use orrery_api::Role;
use orrery_app::{self as app, Running};
use orrery_config::Config;
use orrery_domain::account::{LedgerEntry, Organization};
use orrery_engine::Engine;
use orrery_storage as storage;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::client::{Answer, Ask, Connections};
use super::proxy::Proxy;
use super::{until, within};

/// Every listener uses a free port, and webhooks to this machine's IPv4 loopback are allowed.
const CONFIG: &str = r#"
data_dir = "data"
models_dir = "models.d"
hosts.base.listen = "127.0.0.1:0"
hosts.workflows.listen = "127.0.0.1:0"
hosts.flows.listen = "127.0.0.1:0"
hosts.agent.listen = "127.0.0.1:0"
hosts.dashboard.listen = "127.0.0.1:0"
metrics.listen = "127.0.0.1:0"
egress.allow = ["127.0.0.0/8"]
"#;

/// If this variable is set, every test sends its requests through one port that serves all hosts,
/// or through this proxy in front of that port. `tests/one-port` sets it.
const THROUGH: &str = "ORRERY_TEST_THROUGH";
const ONE_PORT: &str = "hosts.one_port = '127.0.0.2:0'\n";

/// The disk reserve, unless a test overrides it. The default is a fraction of the disk, which may
/// exceed the free space of a build machine.
const DISK_RESERVE: &str = "limits.disk_reserve = '64MiB'\n";

/// The runtime of one service. Dropping it ends all of its tasks, like the exit of a process.
struct Own(Option<Runtime>);

impl Own {
    fn new() -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        Self(Some(builder.worker_threads(1).enable_all().build().unwrap()))
    }

    /// Starts a service in this runtime.
    async fn start(&self, config: &Config) -> Running {
        let config = config.clone();
        let starting = async move { app::start(&config).await };
        self.0.as_ref().unwrap().spawn(starting).await.unwrap().unwrap()
    }

    /// Ends all tasks and waits for their end.
    async fn end(mut self) {
        let runtime = self.0.take().unwrap();
        let ending = move || runtime.shutdown_timeout(Duration::from_secs(10));
        tokio::task::spawn_blocking(ending).await.unwrap();
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let Some(runtime) = self.0.take() else { return };
        // On a separate thread, because this thread drives the runtime of the test. Tasks that
        // still hold the store end here, before the folder is removed.
        let ending = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(10)));
        let _ended = ending.join();
    }
}

/// The folder of a service, which is removed once the store in it is closed.
pub(crate) struct Folder(TempDir);

impl Deref for Folder {
    type Target = TempDir;
    fn deref(&self) -> &TempDir {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A hook may have dropped the last handle to the store; the store's writer may then still
        // hold the lock.
        drop(storage::make_and_lock(&self.0.path().join("data")));
    }
}

/// A running service.
pub(crate) struct Service {
    pub config: Config,
    pub running: Running,
    /// The API key of the first organization, and the key of the second one.
    pub key: String,
    pub other_key: String,
    pub organization: Organization,
    connections: Connections,
    /// The proxy in front of the port shared by all hosts.
    proxy: Option<Proxy>,
    runtime: Own,
    /// The last field, so that it is dropped after everything that writes to the folder.
    pub folder: Folder,
}

impl Service {
    /// Starts a service with the default configuration.
    pub(crate) async fn start() -> Self {
        Self::configured("").await
    }

    /// Starts a service with more lines in the configuration file.
    pub(crate) async fn configured(lines: &str) -> Self {
        Self::adjusted(lines, |_| {}).await
    }

    /// Starts a service with more lines, and with values that the file cannot set.
    pub(crate) async fn adjusted(lines: &str, adjust: impl FnOnce(&mut Config)) -> Self {
        let folder = Folder(tempfile::tempdir().unwrap());
        let file = folder.path().join("config.toml");
        fs::create_dir(folder.path().join("models.d")).unwrap();
        let reserve = if lines.contains("limits.disk_reserve") { "" } else { DISK_RESERVE };
        let through = env::var(THROUGH).ok();
        let is_wanted = through.is_some() && !lines.contains("one_port");
        let one_port = if is_wanted { ONE_PORT } else { "" };
        fs::write(&file, format!("{one_port}{CONFIG}{reserve}{lines}")).unwrap();
        let mut config = Config::load(&file).unwrap();
        config.engine.shutdown_grace = Duration::from_millis(200);
        config.program = env!("CARGO_BIN_EXE_orrery").into();
        adjust(&mut config);
        let runtime = Own::new();
        let running = runtime.start(&config).await;
        let accounts = &running.services.accounts;
        let (organization, _) = accounts.ensure_default().await.unwrap();
        let (_, key) = accounts.create_key(organization.id, "test", "test", None).await.unwrap();
        let other = accounts.create_organization("other").await.unwrap();
        let (_, other_key) = accounts.create_key(other.id, "test", "test", None).await.unwrap();
        let connections = Client::builder(TokioExecutor::new()).build_http();
        let proxy = Proxy::in_front(through.as_deref(), &running).await;
        Self { folder, config, running, key, other_key, organization, connections, proxy, runtime }
    }

    /// Stops the service and restarts it on the same folder. Work that is still running after the
    /// grace period ends, as it would when a process exits.
    pub(crate) async fn restart(self) -> Self {
        self.restart_after(async |_config: &Config| {}).await
    }

    /// Like [`Self::restart`], with an action while the service is stopped.
    pub(crate) async fn restart_after(self, between: impl AsyncFnOnce(&Config)) -> Self {
        self.running.stop().await;
        self.runtime.end().await;
        // A hook may have dropped the last handle of the store, whose writer then still holds the
        // lock, which the command of a test would not wait for.
        let data = &self.config.data_dir;
        until("the store is closed", async || storage::make_and_lock(data).ok()).await;
        between(&self.config).await;
        let runtime = Own::new();
        let running = runtime.start(&self.config).await;
        let connections = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let name = self.proxy.as_ref().map(Proxy::name);
        let proxy = Proxy::in_front(name, &running).await;
        Self { running, connections, proxy, runtime, ..self }
    }

    pub(crate) fn address(&self, role: Role) -> SocketAddr {
        self.running.address(role).unwrap()
    }

    /// Creates a request to any host, without a key.
    pub(crate) fn ask(&self, role: Role, method: Method, path: &str) -> Ask {
        let front = self.front(role);
        let ask = Ask::new(&self.connections, role, front, method, path);
        if front == self.address(role) { ask } else { ask.below_name() }
    }

    /// Returns the address to which requests to a host are sent.
    pub(crate) fn front(&self, role: Role) -> SocketAddr {
        let front = self.proxy.as_ref().map(Proxy::address).or(self.running.one_port);
        let is_there = !matches!(role, Role::Metrics | Role::Ollama);
        front.filter(|_| is_there).unwrap_or_else(|| self.address(role))
    }

    /// Returns the public URL of a host.
    pub(crate) fn url(&self, role: Role) -> &str {
        self.running.services.url_of(role)
    }

    /// Sends a GET to the base host, with the first organization's key.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(Role::Base, Method::GET, path).key(&self.key).send().await
    }

    /// Creates a POST to the base host, with the first organization's key.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Ask {
        self.ask(Role::Base, Method::POST, path).key(&self.key).json(body)
    }

    /// Creates a request to the workflows host, with the first organization's key.
    pub(crate) fn flows(&self, method: Method, path: &str) -> Ask {
        self.ask(Role::Workflows, method, &format!("/api/v1{path}")).key(&self.key)
    }

    /// Creates a workflow with these steps; returns its id.
    pub(crate) async fn workflow(&self, steps: Value) -> String {
        self.workflow_of(json!({"steps": steps})).await
    }

    /// Creates a workflow; returns its id.
    pub(crate) async fn workflow_of(&self, definition: Value) -> String {
        let body = json!({"name": "flow", "description": "d", "definition": definition});
        let made = self.flows(Method::POST, "/workflows").json(&body).send().await.expect(201);
        made["workflow_id"].as_str().unwrap().to_owned()
    }

    /// Triggers a workflow with these fields; returns the execution's id.
    pub(crate) async fn trigger(&self, workflow: &str, fields: Value) -> String {
        let path = format!("/{workflow}/trigger");
        let taken = self.flows(Method::POST, &path).json(&fields).send().await.expect(202);
        assert_eq!(taken["status"], "queued");
        taken["execution_id"].as_str().unwrap().to_owned()
    }

    /// Returns the current state of an execution.
    pub(crate) async fn execution(&self, id: &str) -> Value {
        self.flows(Method::GET, &format!("/executions/{id}?timeout=0")).send().await.expect(200)
    }

    /// Waits for the end of an execution; returns its state.
    pub(crate) async fn completed(&self, id: &str) -> Value {
        let path = format!("/executions/{id}?timeout=15");
        until("end of the execution", async || {
            let execution = self.flows(Method::GET, &path).send().await.expect(200);
            let status = execution["status"].as_str().unwrap();
            ["completed", "failed", "cancelled"].contains(&status).then_some(execution)
        })
        .await
    }

    /// Writes a file in the models folder and waits until the service has loaded it. Panics if it
    /// is invalid.
    pub(crate) fn manifest(&self, text: &str) {
        let name = text.lines().next().unwrap().replace(|c: char| !c.is_alphanumeric(), "");
        self.manifest_file(&format!("{name}.toml"), text);
        let report = self.running.services.catalog.reload();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        self.engine().models_changed();
    }

    /// Writes a file in the models folder, as an editor would.
    pub(crate) fn manifest_file(&self, name: &str, text: &str) {
        fs::write(self.models().join(name), text).unwrap();
    }

    pub(crate) fn models(&self) -> PathBuf {
        self.folder.path().join("models.d")
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.running.services.engine
    }

    /// Creates a prediction; returns its id.
    pub(crate) async fn create(&self, model: &str, input: Value) -> String {
        self.create_with(model, json!({"input": input})).await
    }

    /// Creates a prediction with further fields; returns its id.
    pub(crate) async fn create_with(&self, model: &str, fields: Value) -> String {
        let mut body = json!({"model": model, "version": "0.0.1", "input": {}});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = self.post("/v1/prediction/", &body).send().await;
        answer.expect(200)["predictionID"].as_str().unwrap().to_owned()
    }

    /// Waits for the end of a prediction; returns its state.
    pub(crate) async fn ended(&self, id: &str) -> Value {
        let prediction = self.get(&format!("/v1/prediction/{id}?wait=60")).await.expect(200);
        let status = prediction["status"].as_str().unwrap();
        assert!(["success", "error", "cancelled"].contains(&status), "{prediction}");
        prediction
    }

    pub(crate) async fn cancel(&self, id: &str) -> Answer {
        self.post(&format!("/v1/prediction/{id}/cancel"), &json!({})).send().await
    }

    /// Returns the first organization's ledger, newest entry first.
    pub(crate) async fn ledger(&self) -> Vec<LedgerEntry> {
        self.running.services.billing.ledger(self.organization.id, None, 1000).await.unwrap()
    }

    /// Sends bytes to the base host; returns all bytes read until the connection ends.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> String {
        self.raw_to(Role::Base, bytes).await
    }

    /// Sends a host a `POST` that announces a body over the limit of 8 MiB; returns the response.
    pub(crate) async fn refusal_of_large_body(&self, role: Role, path: &str) -> String {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {}\r\n\
             content-length: 9000000\r\nconnection: close\r\n\r\n",
            self.key
        );
        self.raw_to(role, head.as_bytes()).await
    }

    async fn raw_to(&self, role: Role, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address(role)).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // A connection reset also counts as the end of the connection.
        let _ended = within("end of the connection", stream.read_to_end(&mut answer)).await;
        String::from_utf8_lossy(&answer).into_owned()
    }
}
