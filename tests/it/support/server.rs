//! A small HTTP server for stubs, which passes each request to a function once it has read the
//! whole body.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use orrery_http::body;
use orrery_runtime::Tasks;
use serde_json::Value;
use tokio::net::TcpListener;

/// A request with its body.
pub(super) type Whole = Request<Bytes>;
pub(super) type Response = orrery_http::Response;

/// Serves on a free loopback port until the runtime ends. If a client closes its connection, the
/// future of its request is dropped.
pub(crate) async fn serve<F, R>(answer: F) -> SocketAddr
where
    F: Fn(Whole) -> R + Send + Sync + 'static,
    R: Future<Output = Response> + Send + 'static,
{
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let tasks = Tasks::new();
    let answer = Arc::new(answer);
    let connections = tasks.clone();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = Arc::clone(&answer);
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.map(|body| body.to_bytes());
                    let whole = Request::from_parts(parts, body.unwrap_or_default());
                    Ok::<_, Infallible>(answer(whole).await)
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            connections.spawn(connection);
        }
    });
    address
}

/// Returns a response with a status and a text.
pub(crate) fn respond(status: u16, text: impl Into<Bytes>) -> Response {
    hyper::Response::builder().status(status).body(body::full(text)).unwrap()
}

/// Returns a response of server-sent events, each sent as soon as it is produced.
pub(super) fn events(texts: impl Stream<Item = String> + Send + 'static) -> Response {
    let lines = texts.map(|text| Ok(Bytes::from(format!("data: {text}\n\n"))));
    let answer = hyper::Response::builder().header("content-type", "text/event-stream");
    answer.body(body::stream(lines)).unwrap()
}

/// Serves a site of one page whose POSTs are passed to `report` with their path and JSON; returns
/// its URL.
pub(crate) async fn page(
    text: &'static str,
    report: impl Fn(String, Value) + Send + Sync + 'static,
) -> String {
    let address = serve(move |request| {
        let path = request.uri().path().to_owned();
        let answer = if request.method() == Method::POST {
            report(path, serde_json::from_slice(request.body()).unwrap());
            respond(200, "{}")
        } else if path == "/" {
            let answer = hyper::Response::builder().header("content-type", "text/html");
            answer.body(body::full(text)).unwrap()
        } else {
            respond(404, "")
        };
        std::future::ready(answer)
    })
    .await;
    format!("http://{address}")
}
