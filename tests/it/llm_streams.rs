//! Many concurrent streams of a local model over TLS and HTTP/2, each with its own client; and slow
//! readers.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use orrery_api::Role;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::{Service, gguf, within};

const CLIENTS: u32 = 200;

async fn service() -> Service {
    let service = Service::configured("tls.mode = 'self-signed'\n").await;
    gguf::write(&service.models().join("small.gguf"), &gguf::SMALL, "Small", 7);
    let _report = service.running.services.catalog.reload();
    service
}

/// Returns a client configuration that trusts the service's authority and speaks HTTP/2.
fn connector(service: &Service) -> TlsConnector {
    let authority = service.config.data_dir.join("tls/ca.pem");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// Opens a stream on its own connection and waits for its beginning.
async fn stream(service: &Service, connector: &TlsConnector, seed: u32, tokens: u32) -> Incoming {
    let socket = TcpStream::connect(service.address(Role::Base)).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let socket = connector.connect(name, socket).await.unwrap();
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(socket));
    let (mut requests, connection) = handshake.await.unwrap();
    orrery_runtime::Tasks::new().spawn(connection);
    let body = json!({
        "model": "small", "stream": true, "max_tokens": tokens, "seed": seed,
        "messages": [{"role": "user", "content": "hello"}],
    });
    let request = Request::post("https://localhost/v1/chat/completions")
        .header("authorization", format!("Bearer {}", service.key))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_string())))
        .unwrap();
    let answer = requests.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.into_body()
}

async fn rest(stream: Incoming) -> String {
    let bytes = within("the rest of a stream", stream.collect()).await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_200_clients_over_tls_and_http2_complete() {
    let service = service().await;
    let connector = connector(&service);
    let ask = async |seed: u32| (seed, rest(stream(&service, &connector, seed, 12).await).await);
    let asking = (0..CLIENTS).map(|number| ask(number % 4));
    let answers = futures_util::future::join_all(asking).await;
    for (seed, text) in &answers {
        assert!(text.ends_with("data: [DONE]\n\n"), "{seed}: {text}");
        assert!(!text.contains("\"error\""), "{seed}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_without_reader_does_not_slow_others() {
    let service = service().await;
    let connector = connector(&service);
    // Filling all buffers in between would take megabytes, so the slow readers simply occupy three
    // of the four sequences.
    let mut slow = Vec::new();
    for seed in 0..3 {
        slow.push(stream(&service, &connector, seed, 1900).await);
    }
    for seed in 0..8 {
        let text = rest(stream(&service, &connector, seed, 12).await).await;
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    }
    for stream in slow {
        assert!(rest(stream).await.ends_with("data: [DONE]\n\n"));
    }
}
