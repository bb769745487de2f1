//! The chat router and a bare hyper proxy, both in front of one stub model server: `cargo bench
//! --bench chat`.
//!
//! The proxy reads a request, forwards it over keep-alive connections, and returns the answer. It
//! checks no key, charges nothing and stores nothing. The router does the same work, and before
//! each answer it also commits the call's row, its charge and its index rows durably. Stub, proxy
//! and router are separate processes, called by the same client in alternating rounds.
//!
//! - Complete answers: requests per second and CPU time per request, over many connections.
//! - One at a time: the median latency, and the difference from the proxy and the stub.
//! - Streams, one at a time: the median time to the first text.
//!
//! The same model also answers `/v1/responses` (not stored, and stored) and `/v1/messages`. A
//! second table compares these routes with chat completions, and an API key that has every kind of
//! limit with an unlimited key.
//!
//! `ORRERY_BENCH_ROUNDS` (7), `ORRERY_BENCH_SECONDS` (2 per round), `ORRERY_BENCH_CONNECTIONS`
//! (64), `ORRERY_BENCH_CALLS` (500 per round, one at a time).

#![expect(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a benchmark that cannot go on says so and ends; it counts far below 2^53"
)]
#![expect(clippy::indexing_slicing, clippy::print_stdout, reason = "it is a program that prints")]
#![expect(clippy::disallowed_methods, reason = "its tasks end with it; it measures time")]

mod support;

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use support::client::{self, Connection, Load};
use support::process::{self, Killed};
use support::requests::Requests;
use support::service::Setup;
use support::table::{Table, number, ratio};

const PATH: &str = "/v1/chat/completions";
/// The user's message.
const PROMPT: &str = "Say sixty-four words.";
/// The end of the stub's stream.
const DONE: &[u8] = b"data: [DONE]\n\n";
/// The end of the router's streams: the last chunk of a body.
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";
const MODEL: &str = "stub";
/// The address to which the proxy forwards.
const TARGET: &str = "ORRERY_BENCH_TARGET";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match process::role().as_deref() {
        Some("proxy") => runtime.block_on(proxy()),
        Some(_stub) => runtime.block_on(stub()),
        None => runtime.block_on(measure()),
    }
}

// --- the stub ---

/// Returns a model's answer of 64 tokens.
fn answer_text() -> String {
    let content = "word ".repeat(64);
    format!(
        "{{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1700000000,\
         \"model\":\"{MODEL}\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\
         \"content\":\"{content}\"}},\"finish_reason\":\"stop\"}}],\
         \"usage\":{{\"prompt_tokens\":12,\"completion_tokens\":64,\"total_tokens\":76}}}}"
    )
}

/// Returns the same answer as a stream of 64 events.
fn stream_text() -> String {
    let event = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"choices\":\
                 [{\"index\":0,\"delta\":{\"content\":\"word \"},\"finish_reason\":null}]}\n\n";
    let usage = "data: {\"id\":\"chatcmpl-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":12,\
                 \"completion_tokens\":64,\"total_tokens\":76}}\n\ndata: [DONE]\n\n";
    format!("{}{usage}", event.repeat(64))
}

/// Answers every request immediately, as a stream if requested.
async fn stub() {
    let answer = answer_text();
    let whole: Arc<[u8]> = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{answer}",
        answer.len()
    )
    .into_bytes()
    .into();
    let events = stream_text();
    let stream: Arc<[u8]> = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {}\r\n\r\n{events}",
        events.len()
    )
    .into_bytes()
    .into();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    loop {
        let (connection, _) = listener.accept().await.unwrap();
        tokio::spawn(answer_all(connection, Arc::clone(&whole), Arc::clone(&stream)));
    }
}

async fn answer_all(stream: TcpStream, whole: Arc<[u8]>, events: Arc<[u8]>) -> Option<()> {
    const STREAM: &[u8] = b"\"stream\":true";
    let mut requests = Requests::new(stream);
    loop {
        let request = requests.next().await?;
        let is_stream = request.windows(STREAM.len()).any(|part| part == STREAM);
        requests.answer(if is_stream { &events } else { &whole }).await?;
    }
}

// --- the proxy ---

type Connections = Client<HttpConnector, Full<Bytes>>;

/// Runs the bare proxy.
async fn proxy() {
    let target = std::env::var(TARGET).unwrap();
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let connections: Connections = Client::builder(TokioExecutor::new()).build(connector);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let connections = connections.clone();
        let target = target.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let connections = connections.clone();
                let target = target.clone();
                async move { Ok::<_, Infallible>(forward(request, &connections, &target).await) }
            });
            let http = hyper::server::conn::http1::Builder::new();
            http.serve_connection(TokioIo::new(stream), answer).await.ok();
        });
    }
}

async fn forward(
    request: Request<Incoming>,
    connections: &Connections,
    target: &str,
) -> Response<Incoming> {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let request = Request::post(target).header(CONTENT_TYPE, "application/json");
    connections.request(request.body(Full::new(body)).unwrap()).await.unwrap()
}

// --- the measurement ---

/// Starts this program in a role and returns its process and address.
fn start(role: &str, target: &str) -> (Killed, SocketAddr) {
    let mut child = Killed(process::again(role).env(TARGET, target).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().parse().unwrap())
}

/// The samples of one server.
#[derive(Default)]
struct Samples {
    rates: Vec<f64>,
    /// CPU time of the server per response, in microseconds.
    costs: Vec<f64>,
    /// The median latency of each round, one call at a time, in microseconds.
    latencies: Vec<f64>,
    first_bytes: Vec<f64>,
}

/// A server, and how it is called.
struct Server<'a> {
    pid: u32,
    address: SocketAddr,
    key: &'a str,
    connections: u64,
}

/// A route of a server to measure.
struct Subject {
    name: &'static str,
    pid: u32,
    load: Load,
    stream: Arc<[u8]>,
    samples: Samples,
}

impl Subject {
    fn new(name: &'static str, server: &Server<'_>, path: &str, fields: &str) -> Self {
        let &Server { pid, address, key, connections } = server;
        let request = |stream: bool| {
            let body = format!("{{\"model\":\"{MODEL}\",{fields},\"stream\":{stream}}}");
            client::post(address, path, key, &body)
        };
        let load = Load { address, connections, request: request(false) };
        Self { name, pid, load, stream: request(true), samples: Samples::default() }
    }

    /// Calls over many connections for a time.
    async fn over_connections(&mut self, time: Duration) {
        let before = process::processor_seconds(self.pid);
        let round = self.load.run(time).await;
        assert_eq!(round.other, 0, "every answer of {} is a 200", self.name);
        let spent = process::processor_seconds(self.pid) - before;
        self.samples.rates.push(round.rate());
        self.samples.costs.push(spent * 1e6 / round.good as f64);
    }

    /// Calls one at a time.
    async fn one_at_a_time(&mut self, calls: u64) {
        let mut connection = Connection::open(self.load.address).await;
        let mut latencies = Vec::new();
        let mut first_bytes = Vec::new();
        for _ in 0..calls {
            let started = Instant::now();
            connection.ask(&self.load.request).await;
            latencies.push(started.elapsed().as_secs_f64() * 1e6);
            first_bytes.push(self.first_text().await);
        }
        self.samples.latencies.push(support::median(latencies));
        self.samples.first_bytes.push(support::median(first_bytes));
    }

    /// Requests a stream, reads it to its end, and returns the time until the beginning of its text
    /// arrived, in microseconds.
    async fn first_text(&self) -> f64 {
        const TEXT: &[u8] = b"\"word ";
        let mut stream = TcpStream::connect(self.load.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut read = Vec::with_capacity(64 * 1024);
        let started = Instant::now();
        stream.write_all(&self.stream).await.unwrap();
        let mut first = None;
        while !read.ends_with(DONE) && !read.ends_with(LAST_CHUNK) {
            let count = stream.read_buf(&mut read).await.unwrap();
            assert!(count > 0, "a stream ended early: {}", String::from_utf8_lossy(&read));
            if first.is_none() && read.windows(TEXT.len()).any(|part| part == TEXT) {
                first = Some(started.elapsed());
            }
        }
        first.unwrap().as_secs_f64() * 1e6
    }
}

async fn measure() {
    let rounds = support::knob("ORRERY_BENCH_ROUNDS", 7);
    let time = Duration::from_secs(support::knob("ORRERY_BENCH_SECONDS", 2));
    let connections = support::knob("ORRERY_BENCH_CONNECTIONS", 64);
    let calls = support::knob("ORRERY_BENCH_CALLS", 500);
    let (stub, stub_address) = start("stub", "");
    let (proxy, proxy_address) = start("proxy", &format!("http://{stub_address}{PATH}"));
    let folder = support::folder();
    let lines = format!(
        "[router]\nupstream_url = \"http://{stub_address}/v1\"\nprices = [{{ model = \"{MODEL}\", \
         per_million_input_tokens = 1.0, per_million_output_tokens = 2.0 }}]\n"
    );
    let setup = Setup::with(folder.path(), &lines);
    let (orrery, _) = setup.start();
    let (key, limited_key) = (setup.key(), setup.limited_key());
    let server = |pid, address, key| Server { pid, address, key, connections };
    let stub = server(stub.0.id(), stub_address, "-");
    let proxy = server(proxy.0.id(), proxy_address, "-");
    let limited_orrery = server(orrery.0.id(), setup.base, &limited_key);
    let orrery = server(orrery.0.id(), setup.base, &key);
    let messages = format!("\"messages\":[{{\"role\":\"user\",\"content\":\"{PROMPT}\"}}]");
    let input = |store: bool| format!("\"input\":\"{PROMPT}\",\"store\":{store}");
    let limited = format!("\"max_tokens\":1000,{messages}");
    let mut subjects = [
        Subject::new("stub alone", &stub, PATH, &messages),
        Subject::new("bare hyper proxy", &proxy, PATH, &messages),
        Subject::new("chat completions", &orrery, PATH, &messages),
        Subject::new("responses, not stored", &orrery, "/v1/responses", &input(false)),
        Subject::new("responses, stored", &orrery, "/v1/responses", &input(true)),
        Subject::new("messages", &orrery, "/v1/messages", &limited),
        Subject::new("with a limited key", &limited_orrery, PATH, &messages),
    ];
    for subject in &subjects {
        subject.load.run(Duration::from_millis(500)).await;
    }
    // Calls one at a time come first: after a load, the store still merges what the load wrote.
    for round in 0..rounds {
        for subject in rotated(&mut subjects, round) {
            subject.one_at_a_time(calls).await;
        }
    }
    for round in 0..rounds {
        for subject in rotated(&mut subjects, round) {
            subject.over_connections(time).await;
        }
    }
    print("the proxy", &subjects[1..2], &subjects[..3]);
    print("chat completions", &subjects[2..3], &subjects[2..]);
    println!(
        "{rounds} rounds of {calls} calls each, then of {time:?} over {connections} connections"
    );
}

/// Returns the subjects in an order that begins with another one in each round, because the store
/// still merges what the previous subject wrote.
fn rotated(subjects: &mut [Subject], round: u64) -> impl Iterator<Item = &mut Subject> {
    let first = usize::try_from(round).unwrap() % subjects.len();
    let (before, after) = subjects.split_at_mut(first);
    after.iter_mut().chain(before)
}

/// Prints a table of the subjects that compares each with a base.
fn print(base_name: &str, base: &[Subject], subjects: &[Subject]) {
    let base = &base[0].samples;
    let mut table = Table::new(&[
        "route",
        "answers/s",
        &format!("of {base_name}"),
        "µs CPU/answer",
        "median µs",
        "added",
        "first text µs",
        "added",
    ]);
    let difference = |ours: &[f64], theirs: &[f64]| {
        let pairs = ours.iter().zip(theirs).map(|(ours, theirs)| ours - theirs);
        format!("{:+.0}", support::median(pairs.collect()))
    };
    for Subject { name, samples, .. } in subjects {
        let rates = samples.rates.iter().zip(&base.rates).map(|(ours, theirs)| ours / theirs);
        table.row([
            (*name).to_owned(),
            number(support::median(samples.rates.clone())),
            ratio(support::median(rates.collect())),
            format!("{:.1}", support::median(samples.costs.clone())),
            format!("{:.0}", support::median(samples.latencies.clone())),
            difference(&samples.latencies, &base.latencies),
            format!("{:.0}", support::median(samples.first_bytes.clone())),
            difference(&samples.first_bytes, &base.first_bytes),
        ]);
    }
    table.print();
}
