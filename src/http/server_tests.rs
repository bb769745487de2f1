//! The server over real sockets on loopback: hostile clients, limits, panics and the drain.

use super::*;

/// Answers by path: `/panic` panics, `/hold` waits for `release`, others say their path.
struct Sample {
    entered: Arc<Notify>,
    release: Arc<Notify>,
}

impl Service for Sample {
    fn call(&self, request: Request<Body>, _: Peer) -> Answering {
        let (entered, release) = (Arc::clone(&self.entered), Arc::clone(&self.release));
        Box::pin(async move {
            match request.uri().path() {
                "/panic" => panic!("as asked"),
                "/hold" => {
                    entered.notify_one();
                    release.notified().await;
                    reply::text(StatusCode::OK, "held")
                }
                path => reply::text(StatusCode::OK, path.to_owned()),
            }
        })
    }
}

use crate::http::reply;

struct Running {
    address: SocketAddr,
    tasks: Tasks,
    entered: Arc<Notify>,
    release: Arc<Notify>,
}

fn start(connections: usize, header_timeout: Duration) -> Running {
    let tasks = Tasks::new();
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address().unwrap();
    let (entered, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let service = Sample { entered: Arc::clone(&entered), release: Arc::clone(&release) };
    let limits = Limits { header_timeout, connections: Arc::new(Semaphore::new(connections)) };
    tasks.spawn(listener.serve(None, Arc::new(service), limits, tasks.clone()));
    Running { address, tasks, entered, release }
}

/// Sends `request` and reads until the server closes.
async fn talk(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let _ended = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

const PATIENT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_panic_costs_its_own_request_only() {
    let server = start(10, PATIENT);
    let both = b"GET /panic HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = talk(server.address, both).await;
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    assert!(answer.contains(r#"{"error":"internal error","status":500}"#), "{answer}");
    assert!(answer.ends_with("/b"), "{answer}");
}

#[tokio::test]
async fn head_answers_with_the_length_and_no_body() {
    let server = start(10, PATIENT);
    let request = b"HEAD /abc HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = talk(server.address, request).await;
    assert!(answer.contains("content-length: 4") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn silent_and_slow_clients_are_closed() {
    let server = start(10, Duration::from_millis(50));
    for begun in [&b""[..], b"G", b"PR", b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: "] {
        let answer = talk(server.address, begun).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
}

#[tokio::test]
async fn a_head_with_too_many_or_too_large_fields_is_refused() {
    let server = start(10, PATIENT);
    let many = "X-A: b\r\n".repeat(MOST_HEADERS + 1);
    let large = format!("X-A: {}\r\n", "b".repeat(2 * HEAD_BYTES));
    for fields in [many, large] {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let answer = talk(server.address, request.as_bytes()).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
}

#[tokio::test]
async fn connections_over_the_limit_wait_for_a_place() {
    let server = start(1, PATIENT);
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
async fn a_shutdown_lets_what_has_begun_finish_and_takes_no_more() {
    let server = start(10, PATIENT);
    let address = server.address;
    let held = Tasks::new()
        .spawn(async move { talk(address, b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n").await });
    server.entered.notified().await;
    server.tasks.stop();
    server.release.notify_one();
    let answer = held.await.unwrap();
    // That the server closed the connection is what let `talk` come to its end.
    assert!(answer.ends_with("held"), "{answer}");
    assert!(server.tasks.ended(PATIENT).await);
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn http2_without_tls_is_understood() {
    let server = start(10, PATIENT);
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    Tasks::new().spawn(connection);
    let request = Request::get("http://a/two").body(body::empty()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.version(), hyper::Version::HTTP_2);
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "/two");
}
