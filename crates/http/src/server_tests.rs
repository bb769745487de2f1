//! Tests of the server over real sockets on loopback: hostile clients, limits, panics and shutdown.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http_body_util::BodyExt;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::sync::Notify;

use super::*;
use crate::budget::Share;
use crate::tls::Certificates;
use orrery_runtime as runtime;

/// Responds by path: `/panic` panics, `/hold` waits for `release`, `/endless` streams until it is
/// dropped, `/events` sends one piece immediately and another after `release`, and any other path
/// is returned in the body.
struct Sample {
    entered: Arc<Notify>,
    release: Arc<Notify>,
    called: Arc<AtomicUsize>,
}

/// Returns an endless response, which notifies `dropped` when it is dropped.
fn endless(dropped: Arc<Notify>) -> Response {
    struct OnDrop(Arc<Notify>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let pieces = futures_util::stream::unfold(OnDrop(dropped), |on_drop| async move {
        Some((Ok(Bytes::from(vec![b'x'; 1024 * 1024])), on_drop))
    });
    Response::new(body::stream(pieces))
}

/// Returns a response that sends one piece now and another after `release`.
fn events(release: Arc<Notify>) -> Response {
    let pieces = futures_util::stream::unfold(0, move |number| {
        let release = Arc::clone(&release);
        async move {
            if number == 1 {
                release.notified().await;
            }
            (number < 2).then(|| (Ok(Bytes::from(format!("event {number}"))), number + 1))
        }
    });
    Response::new(body::stream(pieces))
}

impl Service for Sample {
    fn call(&self, request: hyper::Request<Body>, _: Peer) -> ResponseFuture {
        let entered = Arc::clone(&self.entered);
        let release = Arc::clone(&self.release);
        self.called.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            match request.uri().path() {
                "/panic" => panic!("as asked"),
                "/hold" => {
                    entered.notify_one();
                    release.notified().await;
                    response::text(StatusCode::OK, "held")
                }
                "/endless" => endless(release),
                "/events" => events(release),
                path => response::text(StatusCode::OK, path.to_owned()),
            }
        })
    }
}

use crate::response;

struct Running {
    address: SocketAddr,
    tasks: Tasks,
    entered: Arc<Notify>,
    release: Arc<Notify>,
    /// Number of requests so far.
    called: Arc<AtomicUsize>,
}

fn start(connections: usize, header_timeout: Duration) -> Running {
    start_with(Limits { header_timeout, ..patient(connections) })
}

fn patient(connections: usize) -> Limits {
    Limits {
        header_timeout: PATIENT,
        keep_alive: PATIENT,
        write_timeout: PATIENT,
        connections: Arc::new(Semaphore::new(connections)),
        per_address: Budget::new(usize::MAX, Share::AtMost(connections)),
    }
}

fn start_with(limits: Limits) -> Running {
    let tasks = Tasks::new();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address().unwrap();
    let entered = Arc::new(Notify::new());
    let release = Arc::new(Notify::new());
    let called = Arc::<AtomicUsize>::default();
    let entering = Arc::clone(&entered);
    let releasing = Arc::clone(&release);
    let service = Sample { entered: entering, release: releasing, called: Arc::clone(&called) };
    tasks.spawn(listener.serve(None, Arc::new(service), limits, tasks.clone()));
    Running { address, tasks, entered, release, called }
}

/// Sends `request` and reads until the server closes the connection.
async fn talk(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let _ended = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

const PATIENT: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(50);

#[tokio::test]
async fn server_panic_fails_only_its_own_request() {
    let server = start(10, PATIENT);
    let both = b"GET /panic HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = talk(server.address, both).await;
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    assert!(answer.contains(r#"{"error":"internal error","status":500}"#), "{answer}");
    assert!(answer.ends_with("/b"), "{answer}");
}

#[tokio::test]
async fn server_head_returns_length_without_body() {
    let server = start(10, PATIENT);
    let request = b"HEAD /abc HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = talk(server.address, request).await;
    assert!(answer.contains("content-length: 4") && answer.ends_with("\r\n\r\n"), "{answer}");
}

/// Sends `first` and `GET /after` together, like a client that reuses its connection.
async fn talk_twice(first: &str) -> String {
    let server = start(10, PATIENT);
    let after = "GET /after HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    talk(server.address, format!("{first}{after}").as_bytes()).await
}

#[tokio::test]
async fn server_discards_unread_body_and_keeps_connection() {
    let body = "x".repeat(100_000);
    let first = format!("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{body}");
    let answer = talk_twice(&first).await;
    assert_eq!(answer.matches("connection: close").count(), 1, "{answer}");
    assert!(answer.ends_with("/after"), "{answer}");
}

#[tokio::test]
async fn server_closes_connection_whose_body_is_too_long_or_never_sent() {
    let long = "x".repeat(1_000_000);
    let long = format!("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n{long}");
    let expecting =
        "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n";
    let silent = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
    for first in [&long, expecting, silent] {
        let server = start(10, PATIENT);
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(first.as_bytes()).await.unwrap();
        let mut answer = [0; 4096];
        let length = stream.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
        assert!(!answer.contains("100 Continue"), "{answer}");
    }
}

/// Some clients read the response only once they have sent their entire body.
#[tokio::test]
async fn server_reads_long_body_after_its_answer() {
    let server = start(10, PATIENT);
    let length = 16 << 20;
    let head = format!("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..16 {
        stream.write_all(&vec![b'x'; 1 << 20]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("/a"), "{answer}");
}

#[tokio::test]
async fn server_closes_silent_and_slow_clients() {
    let server = start(10, SHORT);
    for begun in [&b""[..], b"G", b"PR", b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: "] {
        let answer = talk(server.address, begun).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
}

#[tokio::test]
async fn server_refuses_too_many_or_too_large_headers() {
    let server = start(10, PATIENT);
    let many = "X-A: b\r\n".repeat(HEADERS_MAX + 1);
    let large = format!("X-A: {}\r\n", "b".repeat(2 * HEAD_BYTES));
    for fields in [many, large] {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let answer = talk(server.address, request.as_bytes()).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 431"), "{answer}");
        assert!(head.contains("content-type: application/json"), "{answer}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["status"], 431);
        assert!(body["error"].as_str().unwrap().contains("too large"), "{body}");
    }
}

#[tokio::test]
async fn server_answers_invalid_head_with_error_body() {
    let server = start(10, PATIENT);
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n".to_owned(), 400),
        ("GET /a b c HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/7\r\nHost: a\r\n\r\n".to_owned(), 400),
        ("G\u{e4}T / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 400),
        (format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(HEAD_BYTES)), 431),
    ] {
        let answer = talk(server.address, request.as_bytes()).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{answer}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["status"], status, "{answer}");
        assert!(body["error"].is_string(), "{answer}");
    }
}

#[tokio::test]
async fn server_connections_over_limit_wait() {
    let per_address = Budget::new(usize::MAX, Share::AtMost(2));
    let server = start_with(Limits { per_address, ..patient(1) });
    let mut first = TcpStream::connect(server.address).await.unwrap();
    first.write_all(b"GET /hold HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    server.entered.notified().await;
    let address = server.address;
    let second = server.tasks.spawn(async move {
        talk(address, b"GET /2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await
    });
    tokio::task::yield_now().await;
    assert!(!second.is_finished());
    server.release.notify_one();
    assert!(second.await.unwrap().ends_with("/2"));
}

#[tokio::test]
async fn server_shutdown_drains_requests_and_stops_accepting() {
    let server = start(10, PATIENT);
    let address = server.address;
    let held = Tasks::new()
        .spawn(async move { talk(address, b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n").await });
    server.entered.notified().await;
    server.tasks.stop();
    server.release.notify_one();
    let answer = held.await.unwrap();
    // `talk` returns only because the server has closed the connection.
    assert!(answer.ends_with("held"), "{answer}");
    assert!(server.tasks.ended(PATIENT).await);
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn server_accepts_http2_without_tls() {
    let server = start(10, PATIENT);
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    Tasks::new().spawn(connection);
    let request = hyper::Request::get("http://a/two").body(body::empty()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.version(), hyper::Version::HTTP_2);
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "/two");
}

/// An HTTP/2 frame: type, flags, stream, payload.
type Frame = (u8, u8, u32, Vec<u8>);
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

async fn send_frame(stream: &mut TcpStream, (kind, flags, id, payload): Frame) {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags], &id.to_be_bytes()].concat();
    stream.write_all(&[head, payload].concat()).await.unwrap();
}

async fn next_frame(stream: &mut TcpStream) -> Frame {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut payload).await.unwrap();
    (head[3], head[4], u32::from_be_bytes(head[5..].try_into().unwrap()), payload)
}

#[tokio::test]
async fn server_answers_http2_without_reset_if_rest_of_body_is_small() {
    for body in [&b"{}"[..], &[b'x'; 16_000]] {
        let server = start(10, PATIENT);
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        send_frame(&mut stream, (SETTINGS, 0, 0, Vec::new())).await;
        // POST, http, / and the authority `a`, from HPACK's static table.
        let head = vec![0x83, 0x86, 0x84, 0x41, 1, b'a'];
        send_frame(&mut stream, (HEADERS, END_HEADERS, 1, head)).await;
        while server.called.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        send_frame(&mut stream, (DATA, END_STREAM, 1, body.to_vec())).await;
        let mut seen = Vec::new();
        loop {
            let (kind, flags, id, _) = next_frame(&mut stream).await;
            if id == 1 {
                seen.push(kind);
            }
            if kind == DATA && flags & END_STREAM != 0 {
                // Any frame that arrives before the acknowledgment of this ping was sent before the
                // ping.
                send_frame(&mut stream, (PING, 0, 0, vec![0; 8])).await;
            }
            if kind == PING {
                break;
            }
        }
        assert!(seen.contains(&HEADERS) && !seen.contains(&RST_STREAM), "{seen:?}");
    }
}

#[tokio::test]
async fn server_sends_whole_http2_answer_before_resetting_long_body() {
    let server = start(10, PATIENT);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    send_frame(&mut stream, (SETTINGS, 0, 0, Vec::new())).await;
    let head = vec![0x83, 0x86, 0x84, 0x41, 1, b'a'];
    send_frame(&mut stream, (HEADERS, END_HEADERS, 1, head)).await;
    // The request's body never ends. The complete response arrives while the stream is still open;
    // the reset follows it.
    let mut seen = Vec::new();
    loop {
        let (kind, flags, id, payload) = next_frame(&mut stream).await;
        if id == 1 {
            seen.push((kind, flags & END_STREAM != 0, payload.len()));
        }
        if kind == RST_STREAM {
            break;
        }
    }
    let data: Vec<_> = seen.iter().filter(|(kind, ..)| *kind == DATA).collect();
    assert_eq!(data, [&(DATA, false, 1), &(DATA, true, 0)], "{seen:?}");
}

#[tokio::test]
async fn server_connections_over_address_share_get_429() {
    let per_address = Budget::new(usize::MAX, Share::AtMost(1));
    let server = start_with(Limits { per_address, ..patient(10) });
    let first = TcpStream::connect(server.address).await.unwrap();
    let answer = talk(server.address, b"").await;
    assert!(answer.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{answer}");
    let (_, json) = answer.split_once("\r\n\r\n").unwrap();
    assert!(answer.contains(&format!("Content-Length: {}\r\n", json.len())), "{answer}");
    drop(first);
    let again = async {
        loop {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            let request = b"GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            let sent = stream.write_all(request).await;
            let mut answer = String::new();
            let read = stream.read_to_string(&mut answer).await;
            if sent.is_ok() && read.is_ok() && answer.ends_with("/next") {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENT, again).await.unwrap();
}

#[tokio::test]
async fn server_pipelined_requests_yield_to_other_connections() {
    const REQUEST: &[u8] = b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n";
    async fn answered(stream: &mut TcpStream) {
        let mut answer = Vec::new();
        while !answer.ends_with(b"/1") {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
        }
    }
    let server = start(10, PATIENT);
    let mut greedy = TcpStream::connect(server.address).await.unwrap();
    let mut modest = TcpStream::connect(server.address).await.unwrap();
    for stream in [&mut greedy, &mut modest] {
        stream.write_all(REQUEST).await.unwrap();
        answered(stream).await;
    }
    let many = REQUEST.repeat(100);
    assert_eq!(greedy.try_write(&many).unwrap(), many.len());
    assert_eq!(modest.try_write(REQUEST).unwrap(), REQUEST.len());
    answered(&mut modest).await;
    let called = server.called.load(Ordering::SeqCst);
    assert!(called < 10, "{called} requests were answered first");
}

#[tokio::test]
async fn server_idle_connection_outlives_header_timeout() {
    let header_timeout = 4 * SHORT;
    let keep_alive = 12 * SHORT;
    let limits = Limits { header_timeout, keep_alive, ..patient(10) };
    let server = start_with(limits);
    let began = runtime::monotonic_now();
    let answer = talk(server.address, b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(answer.ends_with("/1") && began.elapsed() >= keep_alive, "{:?}", began.elapsed());

    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let began = runtime::monotonic_now();
    let connection = Tasks::new().spawn(connection);
    let request = hyper::Request::get("http://a/two").body(body::empty()).unwrap();
    sender.send_request(request).await.unwrap();
    connection.await.unwrap().unwrap();
    assert!(began.elapsed() >= keep_alive, "{:?}", began.elapsed());
}

#[tokio::test]
async fn server_second_request_head_uses_header_timeout() {
    let server = start(10, 4 * SHORT);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"/1") {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
    }
    let began = runtime::monotonic_now();
    stream.write_all(b"GET").await.unwrap();
    let _ended = stream.read_to_end(&mut answer).await;
    assert!(began.elapsed() < PATIENT / 2, "{:?}", began.elapsed());
}

#[tokio::test]
async fn server_closes_client_that_does_not_read() {
    let write_timeout = Duration::from_millis(200);
    let server = start_with(Limits { write_timeout, ..patient(10) });
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    tokio::time::timeout(PATIENT, server.release.notified()).await.unwrap();
    drop(stream);

    // HTTP/2, where the client reads the connection but not its streams.
    let stream = TcpStream::connect(server.address).await.unwrap();
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(100).initial_connection_window_size(1 << 20);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    Tasks::new().spawn(connection);
    let request = hyper::Request::get("http://a/endless").body(body::empty()).unwrap();
    let _unread = sender.send_request(request).await.unwrap();
    tokio::time::timeout(PATIENT, server.release.notified()).await.unwrap();
}

/// Some clients read the response only after they have sent the entire body.
#[tokio::test]
async fn server_lets_slow_http2_client_send_body_that_no_handler_reads() {
    const PIECES: usize = 16;
    let server = start(10, PATIENT);
    let stream = TcpStream::connect(server.address).await.unwrap();
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    Tasks::new().spawn(connection);
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let pieces = futures_util::stream::iter(0..PIECES).then(move |number| {
        let count = Arc::clone(&count);
        async move {
            if number == PIECES / 2 {
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
            count.fetch_add(1, Ordering::SeqCst);
            Ok(Bytes::from(vec![b'x'; 64 * 1024]))
        }
    });
    let request = hyper::Request::post("http://a/a").body(body::stream(pieces)).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.into_body().collect().await.unwrap();
    assert_eq!(sent.load(Ordering::SeqCst), PIECES);
}

#[tokio::test]
async fn server_event_stream_outlives_every_deadline() {
    let limits = Limits { keep_alive: SHORT, write_timeout: SHORT, ..patient(10) };
    let server = start_with(limits);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /events HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    let reading = stream.read_to_string(&mut answer);
    let cut_off = tokio::time::timeout(6 * SHORT, reading).await;
    assert!(cut_off.is_err(), "the stream ended: {cut_off:?}");
    server.release.notify_one();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("event 1"), "{answer}");
}

#[tokio::test]
async fn server_sends_hsts_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let now = orrery_runtime::Clock::system().now();
    let certificates = Certificates::self_signed(folder.path(), &[], now).unwrap();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address().unwrap();
    let entered = Arc::new(Notify::new());
    let release = Arc::new(Notify::new());
    let service = Arc::new(Sample { entered, release, called: Arc::default() });
    let tasks = Tasks::new();
    let serving =
        listener.serve(Some(certificates.acceptor()), service, patient(10), tasks.clone());
    tasks.spawn(serving);

    let mut roots = rustls::RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(folder.path().join("tls/ca.pem")).unwrap();
    roots.add(authority).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = "localhost".try_into().unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
    let mut stream = connector.connect(name, stream).await.unwrap();
    stream.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ended = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("\r\nstrict-transport-security: max-age=31536000\r\n"), "{answer}");
    tasks.stop();
}

#[tokio::test]
async fn server_refuses_head_line_with_bare_lf() {
    let server = start(10, PATIENT);
    for request in [
        "GET /a HTTP/1.1\nHost: a\n\n",
        "GET /a HTTP/1.1\r\nHost: a\nX-A: b\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\r\n\n",
    ] {
        let answer = talk(server.address, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{request:?}: {answer}");
    }
}
