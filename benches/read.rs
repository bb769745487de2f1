//! A route that reads only memory, `GET /v1/models/{slug}`, against a bare hyper server that
//! returns the same bytes: `cargo bench --bench read`.
//!
//! Each server runs in its own process. The same client calls them in alternating rounds. It shares
//! the cores with them, which brings the ratio of the rates closer to 1, but does not affect the
//! servers' CPU time per response.
//!
//! `ORRERY_BENCH_ROUNDS` (7), `ORRERY_BENCH_SECONDS` (2 per round), `ORRERY_BENCH_CONNECTIONS`
//! (64).

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark that cannot go on says so and ends"
)]
#![expect(clippy::indexing_slicing, clippy::print_stdout, reason = "it is a program that prints")]
#![expect(clippy::disallowed_methods, reason = "its tasks end with it; it measures time")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use support::client::{self, Load};
use support::process::{self, Killed};
use support::service::{self, Setup};
use support::table::{Table, number, ratio};

const SLUG: &str = "text-template";
const BODY: &str = "ORRERY_BENCH_BODY";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match process::role() {
        Some(_bare) => runtime.block_on(serve_bare()),
        None => runtime.block_on(measure()),
    }
}

/// Runs the bare server, which reads a head and returns fixed bytes.
async fn serve_bare() {
    let body = Bytes::from(std::env::var(BODY).unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "{}", listener.local_addr().unwrap()).unwrap();
    out.flush().unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let body = body.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |_: Request<hyper::body::Incoming>| {
                let mut answer = Response::new(Full::new(body.clone()));
                let headers = answer.headers_mut();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                let id = HeaderValue::from_static("0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e");
                headers.insert("x-request-id", id);
                async move { Ok::<_, std::convert::Infallible>(answer) }
            });
            let http = hyper::server::conn::http1::Builder::new();
            http.serve_connection(TokioIo::new(stream), answer).await.ok();
        });
    }
}

fn start_bare(body: &str) -> (Killed, SocketAddr) {
    let mut child = Killed(process::again("bare").env(BODY, body).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().parse().unwrap())
}

#[derive(Default)]
struct Samples {
    rates: Vec<f64>,
    /// CPU time of the server per response, in microseconds.
    costs: Vec<f64>,
}

async fn round(load: &Load, pid: u32, time: Duration, samples: &mut Samples) {
    let before = process::processor_seconds(pid);
    let round = load.run(time).await;
    assert_eq!(round.other, 0, "every answer is a 200");
    samples.rates.push(round.rate());
    let spent = process::processor_seconds(pid) - before;
    samples.costs.push(spent * 1e6 / round.good as f64);
}

async fn measure() {
    let rounds = support::knob("ORRERY_BENCH_ROUNDS", 7);
    let time = Duration::from_secs(support::knob("ORRERY_BENCH_SECONDS", 2));
    let connections = support::knob("ORRERY_BENCH_CONNECTIONS", 64);
    let folder = support::folder();
    let setup = Setup::new(folder.path());
    let (orrery, _) = setup.start();
    let path = format!("/v1/models/{SLUG}");
    let answer = service::get(setup.base, &path).expect("the service answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let (bare, bare_address) = start_bare(body);
    let load = |address| Load { address, connections, request: client::get(address, &path) };
    let of_orrery = load(setup.base);
    let of_bare = load(bare_address);
    let warm = Duration::from_millis(500);
    of_orrery.run(warm).await;
    of_bare.run(warm).await;
    let mut ours = Samples::default();
    let mut theirs = Samples::default();
    for _ in 0..rounds {
        round(&of_orrery, orrery.0.id(), time, &mut ours).await;
        round(&of_bare, bare.0.id(), time, &mut theirs).await;
    }
    let ratios = ours.rates.iter().zip(&theirs.rates).map(|(ours, theirs)| ours / theirs).collect();
    let costs = ours.costs.iter().zip(&theirs.costs).map(|(ours, theirs)| theirs / ours).collect();
    let mut table =
        Table::new(&["GET /v1/models/{slug}", "answers/s", "ratio", "µs CPU/answer", "ratio"]);
    table.row([
        "bare hyper".to_owned(),
        number(support::median(theirs.rates)),
        String::new(),
        format!("{:.1}", support::median(theirs.costs)),
        String::new(),
    ]);
    table.row([
        "orrery".to_owned(),
        number(support::median(ours.rates)),
        ratio(support::median(ratios)),
        format!("{:.1}", support::median(ours.costs)),
        ratio(support::median(costs)),
    ]);
    table.print();
    println!(
        "{rounds} rounds of {time:?} each, {connections} connections, a body of {} bytes",
        body.len()
    );
}
