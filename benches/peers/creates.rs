//! Durable creates at 1 and 64 connections, beside the limit in [`super::limit`]. The queue is held: no
//! prediction runs while creates are measured.

use std::time::Duration;

use super::limit;
use super::support::client::{self, Load};
use super::support::service::hanging_model;
use super::support::table::{Table, number, ratio};
use super::support::{self, median};
use super::work::spread;

pub async fn measure(rounds: u64) {
    let time = Duration::from_secs(support::knob("ORRERY_BENCH_CREATES", 3));
    let (_server, bare) = limit::start();
    let mut table = Table::new(&[
        "durable creates",
        "Orrery",
        "spread",
        "hyper + fdatasync",
        "spread",
        "ratio",
    ]);
    for connections in [1, 64] {
        let (mut own, mut least) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let folder = support::folder();
            let setup = support::service::Setup::new(folder.path());
            let (_hanging, manifest) = hanging_model(10_000_000);
            setup.model("hanging", &manifest);
            let (_child, _) = setup.start();
            let key = setup.key();
            let body =
                r#"{"model":"hanging","version":"0.0.1","input":{"text":"a quiet harbour"}}"#;
            let request = client::post(setup.base, "/v1/prediction/", &key, body);
            let load = Load { address: setup.base, connections, request };
            let request = client::post(bare, "/create", "", body);
            let bare_load = Load { address: bare, connections, request };
            // The first round warms both up.
            let (mine, other) = if round % 2 == 0 {
                let mine = load.run(time).await;
                (mine, bare_load.run(time).await)
            } else {
                let other = bare_load.run(time).await;
                (load.run(time).await, other)
            };
            assert_eq!((mine.other, other.other), (0, 0), "a create was refused");
            if round > 0 {
                own.push(mine.rate());
                least.push(other.rate());
            }
        }
        let of = ratio(median(own.clone()) / median(least.clone()));
        let name = format!("{connections} connections, per second");
        let cells = [&own, &least].map(|one| [number(median(one.clone())), spread(one, &number)]);
        table.row([name].into_iter().chain(cells.into_iter().flatten()).chain([of]));
    }
    table.print();
    println!("{rounds} rounds of {} s, each on a fresh store\n", time.as_secs());
}
