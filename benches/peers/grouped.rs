//! The limit for a durable create: a bare hyper server that appends each body to a file and answers when an
//! `fdatasync`, shared by all that wait, has made it durable.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::mpsc;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::support;
use super::support::process::{self, Killed};

pub const ROLE: &str = "grouped";
/// What a create answers, as long as ours.
const ANSWER: &[u8] =
    br#"{"predictionID":"01900000-0000-7000-8000-000000000000","status":"created"}"#;
/// Bodies that one sync makes durable.
const GROUP_MAX: usize = 256;

type Body = (Bytes, oneshot::Sender<()>);

/// Serves forever.
pub async fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    let (bodies, inbox) = mpsc::channel();
    std::thread::spawn(move || write(&inbox));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let bodies = bodies.clone();
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| keep(request, bodies.clone()));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            // The client that has left ends its connection.
            connection.await.ok();
        });
    }
}

async fn keep(
    request: Request<Incoming>,
    bodies: mpsc::Sender<Body>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let (done, durable) = oneshot::channel();
    bodies.send((body, done)).unwrap();
    durable.await.unwrap();
    Ok(Response::new(Full::new(Bytes::from_static(ANSWER))))
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

/// Starts the server; it ends with what this gives.
pub fn start() -> (Killed, SocketAddr) {
    process::listening(ROLE)
}
