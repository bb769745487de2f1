//! The limit of the machine: a bare hyper server that does only the necessary work. It appends each
//! body to a file, and continues when the body is durable, after an `fdatasync` that all waiting
//! requests share.
//!
//! - `POST /create` returns once its body is durable.
//! - `POST /calls/N?STUB` returns once its body is durable. Then the server calls the stub N times,
//!   each time with the previous answer, and makes each answer durable before the next call. `POST
//!   /calls/N/wait?STUB` returns after the last call.
//! - The server answers a `GET` from memory.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::support::process::{self, Killed};
use super::support::{self, client};

pub(crate) const ROLE: &str = "limit";
/// The body that represents a prediction of the service.
pub(crate) const PREDICTION: &str =
    r#"{"model":"instant","version":"0.0.1","input":{"text":"a quiet harbour"}}"#;
/// The response to a `POST`, as long as the service's response to a create.
const ANSWER: &[u8] = br#"{"status":"success","message":"Prediction created successfully","predictionID":"01900000-0000-7000-8000-000000000000"}"#;
/// The response to a `GET`, as long as a finished prediction.
static KEPT: [u8; 774] = [b' '; 774];
/// Maximum number of bodies per sync.
const GROUP_MAX: usize = 256;

type Body = (Bytes, oneshot::Sender<()>);

/// A running server, and the requests for it.
pub(crate) struct Limit {
    child: Killed,
    pub address: SocketAddr,
}

impl Limit {
    pub(crate) fn start() -> Self {
        let (child, address) = process::listening(ROLE);
        Self { child, address }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Returns a request whose body the server makes durable.
    pub(crate) fn create(&self, body: &str) -> Arc<[u8]> {
        client::post(self.address, "/create", "", body)
    }

    /// Returns a request that causes `count` calls of the stub. The server answers it before the
    /// first call.
    pub(crate) fn calls(&self, stub: SocketAddr, count: u64, body: &str) -> Arc<[u8]> {
        client::post(self.address, &format!("/calls/{count}?{stub}"), "", body)
    }

    /// Like [`Self::calls`], but the server answers after the last call.
    pub(crate) fn run(&self, stub: SocketAddr, count: u64, body: &str) -> Arc<[u8]> {
        client::post(self.address, &format!("/calls/{count}/wait?{stub}"), "", body)
    }

    /// Returns a request that the server answers from memory.
    pub(crate) fn get(&self) -> Arc<[u8]> {
        client::get(self.address, "/kept")
    }
}

/// State shared by the connections of a server.
#[derive(Clone)]
struct Shared {
    log: mpsc::Sender<Body>,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// Serves forever.
pub(crate) async fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    let (log, inbox) = mpsc::channel();
    std::thread::spawn(move || write(&inbox));
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let shared = Shared { log, client };
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let shared = shared.clone();
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| shared.clone().answer(request));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            // A disconnected client ends its connection.
            connection.await.ok();
        });
    }
}

impl Shared {
    async fn answer(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, hyper::Error> {
        if request.method() == Method::GET {
            return Ok(Response::new(Full::new(Bytes::from_static(&KEPT))));
        }
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        self.keep(body.clone()).await;
        if let Some(stub) = head.uri.query().map(str::to_owned) {
            let path = head.uri.path();
            let count = path.split('/').find_map(|part| part.parse().ok()).unwrap();
            let calls = tokio::spawn(self.calls(stub, count, body));
            if path.ends_with("/wait") {
                calls.await.unwrap();
            }
        }
        Ok(Response::new(Full::new(Bytes::from_static(ANSWER))))
    }

    async fn keep(&self, body: Bytes) {
        let (done, durable) = oneshot::channel();
        self.log.send((body, done)).unwrap();
        durable.await.unwrap();
    }

    async fn calls(self, stub: String, count: u64, mut body: Bytes) {
        for _ in 0..count {
            let request = Request::post(format!("http://{stub}/model"));
            let answer = self.client.request(request.body(Full::new(body)).unwrap()).await.unwrap();
            body = answer.into_body().collect().await.unwrap().to_bytes();
            self.keep(body.clone()).await;
        }
    }
}

fn write(inbox: &mpsc::Receiver<Body>) {
    let folder = support::folder();
    let mut file = File::create(folder.path().join("log")).unwrap();
    while let Ok(first) = inbox.recv() {
        let mut group = vec![first];
        group.extend(inbox.try_iter().take(GROUP_MAX - 1));
        let bytes: Vec<u8> = group.iter().flat_map(|(body, _)| body.to_vec()).collect();
        file.write_all(&bytes).unwrap();
        file.sync_data().unwrap();
        for (_, done) in group {
            done.send(()).ok();
        }
    }
}
