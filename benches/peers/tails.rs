//! Creates and GETs at 500 a second each, beside nothing, bursts of workflows, and backups.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::burst::CONNECTIONS;
use super::paced::Pace;
use super::service::Service;
use super::support::client::{self, Connection, Load};
use super::support::table::Table;
use super::support::{self, percentile};

/// Finished predictions, of which the GETs ask for one after the other.
const FILL: u64 = 20_000;
const RATE: u64 = 500;
/// From one burst to the next.
const EVERY: Duration = Duration::from_millis(6_500);

pub async fn measure(stub: SocketAddr) {
    let seconds = support::knob("ORRERY_BENCH_SECONDS", 15);
    let service = Service::start(stub);
    let trigger = service.three_steps(stub).await;
    let ids = fill(&service).await;
    let mut table = Table::new(&[
        "at 500/s each, beside",
        "create p50",
        "p99",
        "worst",
        "GET p50",
        "p99",
        "worst",
    ]);
    for beside in ["nothing", "bursts of 5,000 workflows", "backups"] {
        let end = Instant::now() + Duration::from_secs(seconds);
        let other = async {
            match beside {
                "nothing" => {}
                "backups" => back_up(&service, end).await,
                _ => bursts(service.setup.workflows, &trigger, end).await,
            }
        };
        let (creates, gets, ()) =
            tokio::join!(creates(&service, seconds), gets(&service, &ids, seconds), other);
        let show = |samples: &[f64]| {
            [0.5, 0.99, 1.0].map(|part| format!("{:.1} ms", percentile(samples, part) * 1000.0))
        };
        table.row([beside.to_owned()].into_iter().chain(show(&creates)).chain(show(&gets)));
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    table.print();
    println!("{seconds} s each\n");
}

/// Makes finished predictions; gives their ids.
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

async fn creates(service: &Service, seconds: u64) -> Vec<f64> {
    let request = service.prediction("instant", "/v1/prediction/", "");
    let pace = Pace { rate: RATE, seconds, connections: CONNECTIONS };
    pace.latencies(service.setup.base, move |_| Arc::clone(&request)).await
}

async fn gets(service: &Service, ids: &Arc<[String]>, seconds: u64) -> Vec<f64> {
    let (address, key, ids) = (service.setup.base, service.key.clone(), Arc::clone(ids));
    let pace = Pace { rate: RATE, seconds, connections: CONNECTIONS };
    pace.latencies(address, move |number| {
        // Neighbours are far apart, so that no two are in one page of the store.
        let at = usize::try_from(number * 7_919).unwrap() % ids.len();
        client::get_with_key(address, &format!("/v1/prediction/{}", ids[at]), &key)
    })
    .await
}

async fn bursts(address: SocketAddr, trigger: &Arc<[u8]>, end: Instant) {
    while Instant::now() < end {
        let next = Instant::now() + EVERY;
        let load = Load { address, connections: CONNECTIONS, request: Arc::clone(trigger) };
        load.run_until(EVERY, 5_000_u64.div_ceil(CONNECTIONS)).await;
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
