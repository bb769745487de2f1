//! Tests of the outbox against receivers on real sockets that hang, respond byte by byte, respond
//! with too much, send garbage, or have an invalid certificate. Each attempt fails in bounded time
//! and memory, with a clear message.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

use super::transport::Network;
use super::*;
use orrery_http::client::Client;
use orrery_http::egress::Policy;
use orrery_runtime::Tasks;

const TIMEOUT: Duration = Duration::from_millis(300);

/// Handles one connection: sends the entire `script`. With `hold`, sends nothing more and waits
/// until the client disconnects.
async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, script: Script) {
    let mut request = vec![0; 16 * 1024];
    if stream.read(&mut request).await.is_err() {
        return;
    }
    match script {
        Script::Says(text) => drop(stream.write_all(text.as_bytes()).await),
        Script::SaysAndHolds(text) => {
            drop(stream.write_all(text.as_bytes()).await);
            while stream.read(&mut request).await.is_ok_and(|read| read > 0) {}
        }
        Script::Drips => {
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n";
            drop(stream.write_all(head).await);
            // The loop ends when the client has disconnected.
            while stream.write_all(b".").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Script::Floods => {
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
            drop(stream.write_all(head).await);
            let block = vec![b'x'; 64 * 1024];
            while stream.write_all(&block).await.is_ok() {}
        }
        Script::Closes => {}
    }
}

#[derive(Debug, Clone, Copy)]
enum Script {
    Says(&'static str),
    SaysAndHolds(&'static str),
    Drips,
    Floods,
    Closes,
}

async fn receiver(script: Script) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    Tasks::new().spawn(async move {
        while let Ok((stream, _address)) = listener.accept().await {
            answer(stream, script).await;
        }
    });
    port
}

async fn send(url: String, policy: Policy) -> Result<Response, SendError> {
    let network = Network::new(Client::guarded(policy), TIMEOUT);
    let request = Request::post(url).body(Bytes::from("{}")).unwrap();
    // The transport has its own time limit; this time limit only ends a test that hangs.
    tokio::time::timeout(Duration::from_secs(60), network.send(request)).await.unwrap()
}

fn loopback() -> Policy {
    Policy { loopback: true, ..Policy::default() }
}

async fn sent_to(script: Script) -> Result<Response, SendError> {
    let port = receiver(script).await;
    send(format!("http://127.0.0.1:{port}/"), loopback()).await
}

#[tokio::test]
async fn webhook_send_reads_response_and_follows_no_redirects() {
    let says = "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 5\r\n\r\nthere";
    let answer = sent_to(Script::Says(says)).await.unwrap();
    assert_eq!((answer.status, &answer.body[..]), (302, b"there".as_slice()));
    let says = "HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n";
    let answer = sent_to(Script::SaysAndHolds(says)).await.unwrap();
    assert_eq!((answer.status, &answer.headers["retry-after"]), (503, &"7".parse().unwrap()));
}

#[tokio::test]
async fn webhook_send_truncates_oversized_response() {
    let answer = sent_to(Script::Floods).await.unwrap();
    assert_eq!((answer.status, answer.body.len()), (200, 64 * 1024));
}

#[tokio::test]
async fn webhook_send_errors_are_described() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refused = format!("http://{}/", closed.local_addr().unwrap());
    drop(closed);
    let faults = [
        (sent_to(Script::Drips).await, "no answer within"),
        (sent_to(Script::SaysAndHolds("")).await, "no answer within"),
        (sent_to(Script::SaysAndHolds("HTTP/1.1 200 OK\r\n")).await, "no answer within"),
        (sent_to(Script::Says("\u{1}\u{2}garbage\r\n\r\n")).await, "not HTTP"),
        (sent_to(Script::Closes).await, "not HTTP or was cut off"),
        (send(refused, loopback()).await, "the host cannot be reached"),
        (send("http://127.0.0.1:9/".to_owned(), Policy::default()).await, "not allowed"),
    ];
    for (number, (result, expected)) in faults.into_iter().enumerate() {
        let words = result.unwrap_err().to_string();
        assert!(words.contains(expected), "{number}: {words}");
    }
}

#[tokio::test]
async fn webhook_send_rejects_untrusted_certificate() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    Tasks::new().spawn(async move {
        while let Ok((stream, _address)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                answer(stream, Script::Closes).await;
            }
        }
    });
    let words = send(format!("https://localhost:{port}/"), loopback()).await.unwrap_err();
    assert_eq!(words.to_string(), "the host cannot be reached");
}
