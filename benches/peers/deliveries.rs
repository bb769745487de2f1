//! What a signed webhook adds to a prediction: bursts through the API, with and without one, in turn; beside
//! them the limit, whose second call stands for the webhook. The receiver and the model are the stub, which
//! answers at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::burst::Burst;
use super::limit;
use super::service::Service;
use super::support::process::processor_seconds;
use super::support::table::{Table, milliseconds, number};
use super::support::{self, client, median};
use super::work::spread;

/// The outcome of the last delivery is noted by then.
const NOTED: Duration = Duration::from_millis(300);

/// A server, and what it is sent: without a webhook, and with one.
struct Server {
    name: &'static str,
    pid: u32,
    address: SocketAddr,
    requests: [Arc<[u8]>; 2],
    sides: [Side; 2],
}

/// Bursts of one kind: per second, and processor time of each.
#[derive(Default)]
struct Side {
    rates: Vec<f64>,
    cpu: Vec<f64>,
}

impl Server {
    /// A burst without webhooks, and one with them.
    async fn round(&mut self, stub: SocketAddr, count: u64) {
        for ((request, side), calls) in self.requests.iter().zip(&mut self.sides).zip(1..) {
            let cpu = processor_seconds(self.pid);
            let burst = Burst::send(stub, self.address, request, (count, calls)).await;
            side.rates.push(burst.rate());
            tokio::time::sleep(NOTED).await;
            side.cpu.push((processor_seconds(self.pid) - cpu) / burst.made as f64);
        }
    }

    /// Adds its rows, without the first round, which warms up.
    fn show(&mut self, table: &mut Table) {
        let [without, with] = &mut self.sides;
        for (kind, side) in [("without a webhook", &mut *without), ("with one", &mut *with)] {
            side.rates.remove(0);
            side.cpu.remove(0);
            let rates = [number(median(side.rates.clone())), spread(&side.rates, &number)];
            let name = format!("{}: {kind}", self.name);
            table.row([name].into_iter().chain(rates).chain(processor_time(&side.cpu)));
        }
        let beyond: Vec<f64> =
            with.cpu.iter().zip(&without.cpu).map(|(with, not)| with - not).collect();
        let name = format!("{}: a delivery", self.name);
        let rates = [String::new(), String::new()];
        table.row([name].into_iter().chain(rates).chain(processor_time(&beyond)));
    }
}

fn processor_time(samples: &[f64]) -> [String; 2] {
    [milliseconds::<3>(median(samples.to_vec())), spread(samples, &milliseconds::<3>)]
}

pub async fn measure(stub: SocketAddr, rounds: u64) {
    let count = support::knob("ORRERY_BENCH_BURST", 5_000);
    let service = Service::start(stub);
    let hook = format!(
        r#","webhook_url":"http://{stub}/hook","webhook_secret":"a secret of some length""#
    );
    let predictions =
        ["", &hook].map(|hook| service.prediction("instant", "/v1/prediction/", hook));
    let (limit, address) = limit::start();
    let calls = [1, 2]
        .map(|calls| client::post(address, &format!("/calls/{calls}?{stub}"), "", limit::BODY));
    let mut servers = [
        Server {
            name: "predictions",
            pid: service.pid(),
            address: service.setup.base,
            requests: predictions,
            sides: Default::default(),
        },
        Server {
            name: "the limit",
            pid: limit.0.id(),
            address,
            requests: calls,
            sides: Default::default(),
        },
    ];
    for _ in 0..=rounds {
        for server in &mut servers {
            server.round(stub, count).await;
        }
    }
    let mut table =
        Table::new(&["bursts", "per second", "spread", "processor time of each", "spread"]);
    for server in &mut servers {
        server.show(&mut table);
    }
    table.print();
    println!("{rounds} rounds of {count} each\n");
}
