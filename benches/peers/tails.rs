//! Creates and GETs at 500 per second each: alone, during bursts of workflows, and during backups;
//! the same on the limit during its own bursts, which shows how much of the tail latency is caused
//! by the machine and by the client on the same cores.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::burst::{self, CONNECTIONS};
use super::limit::{self, Limit};
use super::paced::Pace;
use super::service::{STEPS, Service};
use super::support::client::{self, Connection, Load};
use super::support::table::{Table, milliseconds, spread};
use super::support::{self, median, percentile};

/// The number of finished predictions. The GETs request them in an order that keeps consecutive
/// requests far apart in the store.
const FILL: u64 = 20_000;
const RATE: u64 = 500;
/// The interval between bursts.
const EVERY: Duration = Duration::from_millis(6_500);
/// The pause between measurements.
const REST: Duration = Duration::from_secs(3);

/// The load during a server's measurement, and a sample of each figure per round.
#[derive(Default)]
struct Row {
    name: &'static str,
    create: Tail,
    get: Tail,
}

#[derive(Default)]
struct Tail {
    median: Vec<f64>,
    p99: Vec<f64>,
    worst: Vec<f64>,
}

impl Tail {
    fn add(&mut self, latencies: &[f64]) {
        self.median.push(percentile(latencies, 0.5));
        self.p99.push(percentile(latencies, 0.99));
        self.worst.push(percentile(latencies, 1.0));
    }

    fn cells(&self) -> [String; 4] {
        let figure = |samples: &[f64]| milliseconds::<1>(median(samples.to_vec()));
        let (median, p99, worst) = (figure(&self.median), figure(&self.p99), figure(&self.worst));
        [median, p99, spread(&self.p99, &milliseconds::<1>), worst]
    }
}

pub(crate) async fn measure(stub: SocketAddr, rounds: u64) {
    let seconds = support::knob("ORRERY_BENCH_SECONDS", 15);
    let names = ["nothing", "bursts of workflows", "backups"];
    let mut own = names.map(|name| Row { name, ..Row::default() });
    let names = ["the limit: nothing", "the limit: its bursts"];
    let mut least = names.map(|name| Row { name, ..Row::default() });
    for round in 0..rounds {
        for side in support::order(round, 2) {
            match side {
                0 => service(stub, &mut own, seconds).await,
                _ => bare(stub, &mut least, seconds).await,
            }
        }
    }
    let mut table = Table::new(&[
        "at 500/s each, beside",
        "create p50",
        "p99",
        "spread",
        "worst",
        "GET p50",
        "p99",
        "spread",
        "worst",
    ]);
    for row in own.iter().chain(&least) {
        let name = [row.name.to_owned()].into_iter();
        table.row(name.chain(row.create.cells()).chain(row.get.cells()));
    }
    table.print();
    println!("{rounds} rounds of {seconds} s each\n");
}

async fn service(stub: SocketAddr, rows: &mut [Row; 3], seconds: u64) {
    let service = Service::start(stub);
    let trigger = service.three_steps(stub).await;
    let (address, key, ids) = (service.setup.base, service.key.clone(), fill(&service).await);
    let paced = Paced {
        address,
        create: service.prediction("instant", "/v1/prediction/", ""),
        get: Arc::new(move |number| {
            // Consecutive requests are far apart, so that no two are on one page of the store.
            let at = usize::try_from(number * 7_919).unwrap() % ids.len();
            client::get_with_key(address, &format!("/v1/prediction/{}", ids[at]), &key)
        }),
    };
    let [nothing, beside_bursts, beside_backups] = rows;
    let workflows = service.setup.workflows;
    paced.measure(nothing, seconds, async |_| {}).await;
    paced.measure(beside_bursts, seconds, async |end| bursts(workflows, &trigger, end).await).await;
    paced.measure(beside_backups, seconds, async |end| back_up(&service, end).await).await;
}

async fn bare(stub: SocketAddr, rows: &mut [Row; 2], seconds: u64) {
    let limit = Limit::start();
    let (address, get) = (limit.address, limit.get());
    let paced = Paced {
        address,
        create: limit.calls(stub, 1, limit::PREDICTION),
        get: Arc::new(move |_| Arc::clone(&get)),
    };
    let trigger = limit.calls(stub, STEPS, limit::PREDICTION);
    let [nothing, beside_bursts] = rows;
    paced.measure(nothing, seconds, async |_| {}).await;
    paced.measure(beside_bursts, seconds, async |end| bursts(address, &trigger, end).await).await;
}

/// A server that receives creates and GETs at a fixed rate.
struct Paced {
    address: SocketAddr,
    create: Arc<[u8]>,
    get: Arc<dyn Fn(u64) -> Arc<[u8]> + Send + Sync>,
}

impl Paced {
    /// Measures while `other` runs, which receives the end time of the measurement.
    async fn measure(&self, row: &mut Row, seconds: u64, other: impl AsyncFnOnce(Instant)) {
        let end = Instant::now() + Duration::from_secs(seconds);
        let pace = Pace { rate: RATE, seconds, connections: CONNECTIONS };
        let (create, get) = (Arc::clone(&self.create), Arc::clone(&self.get));
        let creates = pace.latencies(self.address, move |_| Arc::clone(&create));
        let gets = pace.latencies(self.address, move |number| get(number));
        let (creates, gets, ()) = tokio::join!(creates, gets, other(end));
        row.create.add(&creates);
        row.get.add(&gets);
        tokio::time::sleep(REST).await;
    }
}

/// Creates finished predictions; returns their ids.
async fn fill(service: &Service) -> Arc<[String]> {
    let request = service.prediction("instant", "/v1/prediction/run", "");
    let address = service.setup.base;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let request = Arc::clone(&request);
        tasks.spawn(async move {
            let mut connection = Connection::open(address).await;
            let mut ids = Vec::new();
            for _ in 0..FILL / CONNECTIONS {
                let made: serde_json::Value =
                    serde_json::from_str(&connection.ask(&request).await).unwrap();
                ids.push(made["predictionID"].as_str().unwrap().to_owned());
            }
            ids
        });
    }
    tasks.join_all().await.concat().into()
}

async fn bursts(address: SocketAddr, trigger: &Arc<[u8]>, end: Instant) {
    while Instant::now() < end {
        let next = Instant::now() + EVERY;
        let load = Load { address, connections: CONNECTIONS, request: Arc::clone(trigger) };
        let made = load.run_until(EVERY, burst::size().div_ceil(CONNECTIONS)).await;
        assert_eq!(made.other, 0, "a trigger was refused");
        assert!(made.good >= burst::size(), "a burst takes longer than {EVERY:?}");
        tokio::time::sleep_until(next.min(end).into()).await;
    }
}

async fn back_up(service: &Service, end: Instant) {
    let folder = support::folder();
    let mut number = 0;
    while Instant::now() < end {
        number += 1;
        let file = folder.path().join(number.to_string());
        let mut command = service.setup.command(&["backup", file.to_str().unwrap()]);
        let made = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
}
