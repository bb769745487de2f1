//! Durable creates over 1 and 64 connections, against the limit in [`super::limit`]. The queue is
//! held, so that no prediction runs.

use std::time::Duration;

use super::limit::Limit;
use super::support::client::{self, Load};
use super::support::service::hanging_model;
use super::support::table::{Table, number, ratio, spread};
use super::support::{self, median};

/// The pause after a measurement, so that the service's remaining tree writes do not slow down the
/// other side.
const REST: Duration = Duration::from_secs(1);

pub(crate) async fn measure(rounds: u64) {
    let time = Duration::from_secs(support::knob("ORRERY_BENCH_CREATES", 3));
    let mut table = Table::new(&[
        "durable creates",
        "Orrery",
        "spread",
        "hyper + fdatasync",
        "spread",
        "ratio",
    ]);
    for connections in [1, 64] {
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..=rounds {
            let folder = support::folder();
            let setup = support::service::Setup::new(folder.path());
            let (_hanging, manifest) = hanging_model(10_000_000);
            setup.model("hanging", &manifest);
            let (_child, _) = setup.start();
            let key = setup.key();
            let limit = Limit::start();
            let body =
                r#"{"model":"hanging","version":"0.0.1","input":{"text":"a quiet harbour"}}"#;
            let request = client::post(setup.base, "/v1/prediction/", &key, body);
            let load = Load { address: setup.base, connections, request };
            let request = limit.create(body);
            let bare = Load { address: limit.address, connections, request };
            for side in support::order(round, 2) {
                let ran = [&load, &bare][side].run(time).await;
                tokio::time::sleep(REST).await;
                assert_eq!(ran.other, 0, "a create was refused");
                // The first round is a warm-up.
                if round > 0 {
                    rates[side].push(ran.rate());
                }
            }
        }
        let name = format!("{connections} connections, per second");
        let cells = rates.each_ref().map(|one| [number(median(one.clone())), spread(one, &number)]);
        let [own, least] = rates.map(median);
        let of = ratio(own / least);
        table.row([name].into_iter().chain(cells.into_iter().flatten()).chain([of]));
    }
    table.print();
    println!("{rounds} rounds of {} s, each on a fresh store\n", time.as_secs());
}
