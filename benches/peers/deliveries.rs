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

/// After a burst: the last outcome is durable by then.
const REST: Duration = Duration::from_millis(300);

/// A server, and what it is sent: without a webhook, and with one.
struct Server {
    /// Of its rows: without, with, and the difference.
    names: [&'static str; 3],
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
    /// A burst without webhooks, and one with them. The first round warms up, and does not count.
    async fn round(&mut self, stub: SocketAddr, count: u64, is_first: bool) {
        for ((request, side), calls) in self.requests.iter().zip(&mut self.sides).zip(1..) {
            let cpu = processor_seconds(self.pid);
            let burst = Burst::send(stub, self.address, request, (count, calls)).await;
            tokio::time::sleep(REST).await;
            if !is_first {
                side.rates.push(burst.rate());
                side.cpu.push((processor_seconds(self.pid) - cpu) / burst.made as f64);
            }
        }
    }

    /// Adds its rows.
    fn show(&self, table: &mut Table) {
        let [without, with] = &self.sides;
        let beyond: Vec<f64> =
            with.cpu.iter().zip(&without.cpu).map(|(with, not)| with - not).collect();
        let none = Vec::new();
        let figures = [(&without.rates, &without.cpu), (&with.rates, &with.cpu), (&none, &beyond)];
        for (name, (rates, cpu)) in self.names.iter().zip(figures) {
            let rate =
                if rates.is_empty() { "-".to_owned() } else { number(median(rates.clone())) };
            let time = milliseconds::<3>(median(cpu.clone()));
            let (rates, times) = (spread(rates, &number), spread(cpu, &milliseconds::<3>));
            table.row([(*name).to_owned(), rate, rates, time, times]);
        }
    }
}

pub async fn measure(stub: SocketAddr, rounds: u64) {
    let count = support::knob("ORRERY_BENCH_BURST", 5_000);
    let service = Service::start(stub);
    let hook = format!(
        r#","webhook_url":"http://{stub}/hook","webhook_secret":"a secret of some length""#
    );
    let predictions =
        ["", &hook].map(|more| service.prediction("instant", "/v1/prediction/", more));
    let (limit, address) = limit::start();
    let calls = [1, 2].map(|calls| {
        client::post(address, &format!("/calls/{calls}?{stub}"), "", limit::PREDICTION)
    });
    let mut servers = [
        Server {
            names: ["predictions without a webhook", "with a webhook", "a delivery"],
            pid: service.pid(),
            address: service.setup.base,
            requests: predictions,
            sides: Default::default(),
        },
        Server {
            names: ["the limit: one call", "two calls", "the second call"],
            pid: limit.0.id(),
            address,
            requests: calls,
            sides: Default::default(),
        },
    ];
    for round in 0..=rounds {
        for server in &mut servers {
            server.round(stub, count, round == 0).await;
        }
    }
    let mut table =
        Table::new(&["bursts", "per second", "spread", "processor time of each", "spread"]);
    for server in &servers {
        server.show(&mut table);
    }
    table.print();
    println!("{rounds} rounds of {count} each\n");
}
