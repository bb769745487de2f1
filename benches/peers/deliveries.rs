//! What a signed webhook adds to a prediction: bursts through the API, with and without one, in turn. The
//! receiver and the model are the stub, which answers at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::burst::Burst;
use super::service::Service;
use super::support::process::processor_seconds;
use super::support::table::{Table, milliseconds, number};
use super::support::{self, median};
use super::work::spread;

/// The outcome of the last delivery is noted by then.
const NOTED: Duration = Duration::from_millis(300);

/// Bursts of one kind: per second, and processor time of each.
#[derive(Default)]
struct Side {
    rates: Vec<f64>,
    cpu: Vec<f64>,
}

impl Side {
    /// One of as many predictions, and calls by each, as `size` says.
    async fn burst(
        &mut self,
        service: &Service,
        stub: SocketAddr,
        request: &Arc<[u8]>,
        size: (u64, u64),
    ) {
        let cpu = processor_seconds(service.pid());
        let burst = Burst::send(stub, service.setup.base, request, size).await;
        self.rates.push(burst.rate());
        tokio::time::sleep(NOTED).await;
        self.cpu.push((processor_seconds(service.pid()) - cpu) / burst.made as f64);
    }
}

pub async fn measure(stub: SocketAddr, rounds: u64) {
    let count = support::knob("ORRERY_BENCH_BURST", 5_000);
    let service = Service::start(stub);
    let route = "/v1/prediction/";
    let plain = service.prediction("instant", route, "");
    let hook = format!(
        r#","webhook_url":"http://{stub}/hook","webhook_secret":"a secret of some length""#
    );
    let hooked = service.prediction("instant", route, &hook);
    let (mut without, mut with) = (Side::default(), Side::default());
    for _ in 0..=rounds {
        without.burst(&service, stub, &plain, (count, 1)).await;
        with.burst(&service, stub, &hooked, (count, 2)).await;
    }
    let mut table =
        Table::new(&["predictions", "per second", "spread", "processor time of each", "spread"]);
    for (name, side) in [("without a webhook", &mut without), ("with one", &mut with)] {
        // The first round warms up.
        side.rates.remove(0);
        side.cpu.remove(0);
        let rates = [number(median(side.rates.clone())), spread(&side.rates, &number)];
        let cpu =
            [milliseconds::<3>(median(side.cpu.clone())), spread(&side.cpu, &milliseconds::<3>)];
        table.row([name.to_owned()].into_iter().chain(rates).chain(cpu));
    }
    let beyond: Vec<f64> =
        with.cpu.iter().zip(&without.cpu).map(|(with, not)| with - not).collect();
    let cells = [milliseconds::<3>(median(beyond.clone())), spread(&beyond, &milliseconds::<3>)];
    table.row(["a delivery".to_owned(), String::new(), String::new()].into_iter().chain(cells));
    table.print();
    println!("{rounds} rounds of {count} each\n");
}
