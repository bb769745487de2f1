//! The cost of a signed webhook on top of a prediction: bursts through the API with and without a
//! webhook, in turn; and the limit, whose second call represents the webhook. The stub is both the
//! receiver and the model, and answers immediately.

use std::net::SocketAddr;
use std::sync::Arc;

use super::burst::{self, Burst, REST};
use super::limit::{self, Limit};
use super::service::Service;
use super::support::process::processor_seconds;
use super::support::table::{Table, milliseconds, number, spread};
use super::support::{self, median};

/// A server, and its requests without and with a webhook.
struct Server {
    /// The names of the server's rows: without, with, and the difference.
    names: [&'static str; 3],
    pid: u32,
    address: SocketAddr,
    requests: [Arc<[u8]>; 2],
    sides: [Side; 2],
}

/// The rate and CPU time of each burst of one kind. The difference of two kinds has no rates.
#[derive(Default)]
struct Side {
    rates: Vec<f64>,
    cpu: Vec<f64>,
}

impl Side {
    fn cells(&self) -> [String; 4] {
        let rate = match self.rates.as_slice() {
            [] => "-".to_owned(),
            rates => number(median(rates.to_vec())),
        };
        let time = milliseconds::<3>(median(self.cpu.clone()));
        let (rates, times) = (spread(&self.rates, &number), spread(&self.cpu, &milliseconds::<3>));
        [rate, rates, time, times]
    }
}

impl Server {
    /// Sends a burst without webhooks, then one with them.
    async fn round(&mut self, stub: SocketAddr, count: u64) {
        for ((request, side), calls) in self.requests.iter().zip(&mut self.sides).zip(1..) {
            let cpu = processor_seconds(self.pid);
            let burst = Burst::send(stub, self.address, request, (count, calls)).await;
            tokio::time::sleep(REST).await;
            side.rates.push(burst.rate());
            side.cpu.push((processor_seconds(self.pid) - cpu) / burst.made as f64);
        }
    }

    /// Adds the server's rows to the table.
    fn show(&self, table: &mut Table) {
        let [without, with] = &self.sides;
        let pairs = with.cpu.iter().zip(&without.cpu);
        let beyond = Side { cpu: pairs.map(|(with, not)| with - not).collect(), ..Side::default() };
        for (name, side) in self.names.iter().zip([without, with, &beyond]) {
            table.row([(*name).to_owned()].into_iter().chain(side.cells()));
        }
    }
}

pub(crate) async fn measure(stub: SocketAddr, rounds: u64) {
    let count = burst::size();
    let service = Service::start(stub);
    let hook = format!(
        r#","webhook_url":"http://{stub}/hook","webhook_secret":"a secret of some length""#
    );
    let predictions =
        ["", &hook].map(|more| service.prediction("instant", "/v1/prediction/", more));
    let limit = Limit::start();
    let calls = [1, 2].map(|calls| limit.calls(stub, calls, limit::PREDICTION));
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
            pid: limit.pid(),
            address: limit.address,
            requests: calls,
            sides: Default::default(),
        },
    ];
    for round in 0..=rounds {
        for side in support::order(round, servers.len()) {
            servers[side].round(stub, count).await;
        }
        if round == 0 {
            // Discard the warm-up.
            servers.iter_mut().for_each(|server| server.sides = Default::default());
        }
    }
    let mut table = Table::new(&["bursts", "per second", "spread", "CPU time of each", "spread"]);
    for server in &servers {
        server.show(&mut table);
    }
    table.print();
    println!("{rounds} rounds of {count} each\n");
}
