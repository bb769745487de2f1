//! Three steps: bursts, one execution in flight, and 64 in flight, for the service, Restate and the
//! limit in turn. Each round uses fresh stores.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use super::burst::{self, Burst, CONNECTIONS, REST};
use super::limit::Limit;
use super::restate::Restate;
use super::service::{STEPS, Service};
use super::support::client;
use super::support::table::{Table, mebibytes, milliseconds, number, ratio, spread};
use super::support::{self, median, percentile, process, workflows};

/// The number of warm-up executions, and the numbers of executions whose latency is measured.
const WARM: u64 = 2_000;
const ONE: u64 = 300;
const MANY: u64 = 6_400;
/// The input of the peers' executions, equal to the service's.
const BODY: &str = r#"{"bid":"b-0123456789"}"#;

/// The measurements of one side, a sample per round.
#[derive(Default)]
struct Side {
    burst: Vec<f64>,
    burst_cpu: Vec<f64>,
    one: Vec<f64>,
    one_p99: Vec<f64>,
    one_cpu: Vec<f64>,
    many: Vec<f64>,
    many_p99: Vec<f64>,
    peak: Vec<f64>,
}

fn cpu(pids: &[u32]) -> f64 {
    pids.iter().map(|pid| process::processor_seconds(*pid)).sum()
}

impl Side {
    async fn round<F>(
        &mut self,
        stub: SocketAddr,
        pids: &[u32],
        (address, trigger): (SocketAddr, Arc<[u8]>),
        latencies: impl Fn(u64, u64) -> F,
    ) where
        F: Future<Output = Vec<f64>>,
    {
        let count = burst::size();
        Burst::send(stub, address, &trigger, (WARM, STEPS)).await;
        tokio::time::sleep(REST).await;
        let before = cpu(pids);
        let burst = Burst::send(stub, address, &trigger, (count, STEPS)).await;
        tokio::time::sleep(REST).await;
        self.burst.push(burst.rate());
        self.burst_cpu.push((cpu(pids) - before) / burst.made as f64);
        let before = cpu(pids);
        let one = latencies(ONE, 1).await;
        self.one_cpu.push((cpu(pids) - before) / ONE as f64);
        self.one.push(percentile(&one, 0.5));
        self.one_p99.push(percentile(&one, 0.99));
        let many = latencies(MANY, CONNECTIONS).await;
        self.many.push(percentile(&many, 0.5));
        self.many_p99.push(percentile(&many, 0.99));
        self.peak.push(pids.iter().map(|pid| process::peak(*pid)).sum());
    }
}

async fn service(stub: SocketAddr, side: &mut Side) {
    let service = Service::start(stub);
    let trigger = service.three_steps(stub).await;
    let address = service.setup.workflows;
    let key = Arc::<str>::from(service.key.as_str());
    let request = Arc::clone(&trigger);
    let latencies = move |count, flight| {
        let (request, key) = (Arc::clone(&request), Arc::clone(&key));
        workflows::latencies(address, (count, flight), move |mut connection| {
            let (request, key) = (Arc::clone(&request), Arc::clone(&key));
            async move {
                let seconds = workflows::run(&mut connection, address, &request, &key).await;
                (connection, seconds)
            }
        })
    };
    side.round(stub, &[service.pid()], (address, trigger), latencies).await;
}

/// Returns a function that measures the latencies of requests answered at the end of their
/// execution.
fn answered(address: SocketAddr, wait: Arc<[u8]>) -> impl Fn(u64, u64) -> Latencies {
    move |count, flight| {
        let wait = Arc::clone(&wait);
        Box::pin(workflows::latencies(address, (count, flight), move |mut connection| {
            let wait = Arc::clone(&wait);
            async move {
                let started = Instant::now();
                connection.ask(&wait).await;
                (connection, started.elapsed().as_secs_f64())
            }
        }))
    }
}

type Latencies = Pin<Box<dyn Future<Output = Vec<f64>>>>;

/// Measures Restate; does nothing if Restate is not installed.
async fn restate(stub: SocketAddr, side: &mut Side) {
    let Some(restate) = Restate::start(stub).await else { return };
    let address = Restate::ingress();
    let send = client::post(address, "/three/run/send", "", BODY);
    let wait = client::post(address, "/three/run", "", BODY);
    side.round(stub, &restate.pids(), (address, send), answered(address, wait)).await;
}

async fn limit(stub: SocketAddr, side: &mut Side) {
    let limit = Limit::start();
    let (send, wait) = (limit.calls(stub, STEPS, BODY), limit.run(stub, STEPS, BODY));
    side.round(stub, &[limit.pid()], (limit.address, send), answered(limit.address, wait)).await;
}

pub(crate) async fn measure(stub: SocketAddr, rounds: u64) {
    let (mut own, mut other, mut least) = (Side::default(), Side::default(), Side::default());
    for round in 0..rounds {
        for side in support::order(round, 3) {
            match side {
                0 => service(stub, &mut own).await,
                1 => restate(stub, &mut other).await,
                _ => limit(stub, &mut least).await,
            }
        }
    }
    if other.burst.is_empty() {
        println!("Restate is left out: ORRERY_PEERS_RESTATE and ORRERY_PEERS_NODE name no place");
    }
    let mut table = Table::new(&[
        "three HTTP steps",
        "Orrery",
        "spread",
        "Restate",
        "spread",
        "ratio",
        "limit",
        "spread",
        "ratio",
    ]);
    let mut row = |name: &str, show: &dyn Fn(f64) -> String, pick: fn(&Side) -> &Vec<f64>| {
        let ours = median(pick(&own).clone());
        let beside = |side: &Side| {
            let samples = pick(side);
            if samples.is_empty() {
                return ["-".to_owned(), "-".to_owned(), "-".to_owned()];
            }
            let theirs = median(samples.clone());
            [show(theirs), spread(samples, show), ratio(ours / theirs)]
        };
        let first = [name.to_owned(), show(ours), spread(pick(&own), show)];
        table.row(first.into_iter().chain(beside(&other)).chain(beside(&least)));
    };
    row("burst, executions per second", &number, |side| &side.burst);
    row("burst, processor time for each", &milliseconds::<2>, |side| &side.burst_cpu);
    row("1 in flight, median", &milliseconds::<2>, |side| &side.one);
    row("1 in flight, p99", &milliseconds::<2>, |side| &side.one_p99);
    row("1 in flight, processor time for each", &milliseconds::<2>, |side| &side.one_cpu);
    row("64 in flight, median", &milliseconds::<2>, |side| &side.many);
    row("64 in flight, p99", &milliseconds::<2>, |side| &side.many_p99);
    row("memory at the peak", &mebibytes::<0>, |side| &side.peak);
    table.print();
    println!("{rounds} rounds, each on fresh stores\n");
}
