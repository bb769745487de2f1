//! Uploads and downloads, against plain copies through the same TLS stack.
//!
//! The baseline is a bare hyper server with the same certificate. It copies a body to a file,
//! computes its SHA-256, syncs the file and sends it back; it stores no rows and checks no key.
//! Both sides transfer one file at a time, in turn. The content differs each time, since the
//! service stores equal content once.
//!
//! `ORRERY_BENCH_MIB` (256) and `ORRERY_BENCH_ROUNDS` change a run.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a benchmark fails by a panic and prints its table"
)]

mod support;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use orrery_http::{Body, body};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::process::{self, Killed};
use support::service::Setup;
use support::table::{Table, mebibytes, number, ratio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

const MIB: usize = 1 << 20;
/// Bytes sent and read at a time.
const BLOCK: usize = 64 * 1024;

/// A certificate for `localhost`, as files and in the form that both sides need.
struct Pair {
    certificate: PathBuf,
    key: PathBuf,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Pair {
    fn new(folder: &Path) -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = folder.join("cert.pem");
        let key = folder.join("key.pem");
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let chain = vec![CertificateDer::from_pem_file(&certificate).unwrap()];
        let private = PrivateKeyDer::from_pem_file(&key).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(chain[0].clone()).unwrap();
        let server = rustls::ServerConfig::builder().with_no_client_auth();
        let server = server.with_single_cert(chain, private).unwrap();
        let client = rustls::ClientConfig::builder().with_root_certificates(roots);
        let connector = TlsConnector::from(Arc::new(client.with_no_client_auth()));
        Self { certificate, key, acceptor: TlsAcceptor::from(Arc::new(server)), connector }
    }

    async fn connect(&self, address: SocketAddr) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        self.connector.connect(name, stream).await.unwrap()
    }
}

/// Sends a request, discards the response body, and returns the response's head and body length.
async fn exchange(stream: &mut TlsStream<TcpStream>, head: &str, body: &[u8]) -> (String, usize) {
    stream.write_all(head.as_bytes()).await.unwrap();
    for block in body.chunks(BLOCK) {
        stream.write_all(block).await.unwrap();
    }
    stream.flush().await.unwrap();
    let mut read = Vec::new();
    let mut block = vec![0; BLOCK];
    let end = loop {
        let count = stream.read(&mut block).await.unwrap();
        assert!(count > 0, "the connection was closed");
        read.extend_from_slice(&block[..count]);
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let answer = String::from_utf8_lossy(&read[..end]).to_lowercase();
    assert!(answer.starts_with("http/1.1 2"), "{answer}");
    let length = answer.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
    let mut left = length - (read.len() - end);
    let small = read[end..].to_vec();
    while left > 0 {
        let count = stream.read(&mut block).await.unwrap();
        assert!(count > 0, "the connection was closed");
        left -= count.min(left);
    }
    (String::from_utf8_lossy(&small).into_owned(), length)
}

/// Runs a server that copies a body to a file, computes its SHA-256, and sends the file back.
async fn bare(pair: &Pair, folder: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = pair.acceptor.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            let folder = folder.clone();
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await.unwrap();
                let serve =
                    hyper::service::service_fn(move |request| copy(request, folder.clone()));
                let http = hyper::server::conn::http1::Builder::new();
                // The client closes the connection when it is done.
                let _closed = http.serve_connection(TokioIo::new(stream), serve).await;
            });
        }
    });
    address
}

async fn copy(request: Request<Incoming>, folder: PathBuf) -> Result<Response<Body>, Infallible> {
    let path = folder.join("copy");
    if request.method() == Method::PUT {
        let mut file = tokio::fs::File::create(&path).await.unwrap();
        let mut sum = Sha256::new();
        let mut sent = request.into_body();
        while let Some(frame) = sent.frame().await {
            let bytes = frame.unwrap().into_data().unwrap();
            sum.update(&bytes);
            file.write_all(&bytes).await.unwrap();
        }
        file.sync_all().await.unwrap();
        let sum = HeaderValue::from_str(&format!("{:x}", sum.finalize())).unwrap();
        let answer = Response::builder().header("x-sha256", sum);
        return Ok(answer.body(body::empty()).unwrap());
    }
    let file = tokio::fs::File::open(&path).await.unwrap();
    let length = file.metadata().await.unwrap().len();
    let blocks = stream::unfold(file, |mut file| async move {
        let mut block = vec![0; BLOCK];
        let count = file.read(&mut block).await.unwrap();
        block.truncate(count);
        (count > 0).then(|| (Ok(Bytes::from(block)), file))
    });
    let answer = Response::builder().header("content-length", length);
    Ok(answer.body(body::stream(blocks)).unwrap())
}

/// The service with the shared certificate.
struct Subject {
    address: SocketAddr,
    child: Killed,
    key: String,
}

impl Subject {
    async fn start(pair: &Pair, folder: &Path) -> Self {
        let certificate = &pair.certificate;
        let key = &pair.key;
        let lines = format!(
            "[tls]\nmode = \"files\"\ncertificate = {certificate:?}\nprivate_key = {key:?}\n\
             [files]\nmax_bytes = \"10GiB\"\n"
        );
        let setup = Setup::with(folder, &lines);
        let child = Killed(setup.command(&["serve"]).spawn().unwrap());
        let address = setup.base;
        let control = setup.data().join("control.sock");
        while !control.exists() || TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        Self { address, child, key: setup.key() }
    }

    fn head(&self, method: &str, path: &str, more: &str) -> String {
        let key = &self.key;
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n{more}\r\n")
    }

    /// Requests an upload and returns its URL.
    async fn presigned(&self, stream: &mut TlsStream<TcpStream>) -> String {
        let body = json!({"content_type": "a/b"}).to_string();
        let more = format!("Content-Length: {}\r\n", body.len());
        let head = self.head("POST", "/v1/upload/presign", &more);
        let (answer, _) = exchange(stream, &head, body.as_bytes()).await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let url = answer["presigned_url"].as_str().unwrap();
        format!("/v1{}", url.split_once("/v1").unwrap().1)
    }
}

fn main() {
    tokio::runtime::Runtime::new().unwrap().block_on(measure());
}

async fn measure() {
    let rounds = support::knob("ORRERY_BENCH_ROUNDS", 5);
    let bytes = usize::try_from(support::knob("ORRERY_BENCH_MIB", 256)).unwrap() * MIB;
    let folder = support::folder();
    let pair = Pair::new(folder.path());
    let plain = bare(&pair, folder.path().to_path_buf()).await;
    let subject = Subject::start(&pair, folder.path()).await;
    let mut content: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    let sized = format!("Content-Type: a/b\r\nContent-Length: {bytes}\r\n");
    let mut ups = [Vec::new(), Vec::new()];
    let mut downs = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        content[..8].copy_from_slice(&round.to_be_bytes());
        let mut stream = pair.connect(plain).await;
        let started = Instant::now();
        let put = format!("PUT / HTTP/1.1\r\nHost: localhost\r\n{sized}\r\n");
        exchange(&mut stream, &put, &content).await;
        ups[0].push(started.elapsed().as_secs_f64());
        let started = Instant::now();
        exchange(&mut stream, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", &[]).await;
        downs[0].push(started.elapsed().as_secs_f64());

        let mut stream = pair.connect(subject.address).await;
        let path = subject.presigned(&mut stream).await;
        let started = Instant::now();
        let (answer, _) =
            exchange(&mut stream, &subject.head("PUT", &path, &sized), &content).await;
        ups[1].push(started.elapsed().as_secs_f64());
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let path = format!("/v1/files/{}/content", answer["id"].as_str().unwrap());
        let started = Instant::now();
        let (_, length) = exchange(&mut stream, &subject.head("GET", &path, ""), &[]).await;
        downs[1].push(started.elapsed().as_secs_f64());
        assert_eq!(length, bytes);
    }
    let mut table = Table::new(&["MB/s over TLS", "a plain copy", "orrery", "ratio"]);
    for (name, [plain, ours]) in [("upload", ups), ("download", downs)] {
        let rate = |seconds| bytes as f64 / support::median(seconds) / 1e6;
        let plain = rate(plain);
        let ours = rate(ours);
        table.row([name.to_owned(), number(plain), number(ours), ratio(ours / plain)]);
    }
    table.print();
    let memory = process::resident(subject.child.0.id());
    println!(
        "{rounds} rounds of {} MiB; the service then has {}\n",
        bytes / MIB,
        mebibytes::<1>(memory)
    );
}
