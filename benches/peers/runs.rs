//! A prediction run to completion, one at a time: an HTTP model and a built-in one, against Cog's
//! own server with an instant predictor, and against the limit. Cog stores nothing; the other sides
//! make two durable commits.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::limit::{self, Limit};
use super::service::Service;
use super::support::client::{self, Load};
use super::support::cog::Cog;
use super::support::table::{Table, number, ratio, spread};
use super::support::{self, median};

const TEMPLATE: &str = r#"{"model":"text-template","version":"0.0.1","input":{"template":"A quiet {{ place }}.","values":{"place":"harbour"}}}"#;

pub(crate) async fn measure(stub: SocketAddr, rounds: u64) {
    let time = Duration::from_secs(support::knob("ORRERY_BENCH_RUNS", 3));
    let cog = match std::env::var_os("ORRERY_PEERS_COG").map(PathBuf::from) {
        Some(python) => Some(Cog::start(&python).await),
        None => None,
    };
    let service = Service::start(stub);
    let base = service.setup.base;
    let template = client::post(base, "/v1/prediction/run", &service.key, TEMPLATE);
    let limit = Limit::start();
    let call = limit.run(stub, 1, limit::PREDICTION);
    let mut sides = vec![
        ("an HTTP model", base, service.prediction("instant", "/v1/prediction/run", "")),
        ("text-template", base, template),
        ("the limit: a call and two commits", limit.address, call),
    ];
    if let Some(cog) = &cog {
        let request = client::post(cog.address, "/predictions", "", r#"{"input":{"text":"x"}}"#);
        sides.push(("Cog", cog.address, request));
    }
    let mut rates = vec![Vec::new(); sides.len()];
    for round in 0..=rounds {
        for side in support::order(round, sides.len()) {
            let (_, address, request) = &sides[side];
            let load = Load { address: *address, connections: 1, request: request.clone() };
            let ran = load.run(time).await;
            assert_eq!(ran.other, 0, "a run was refused");
            // The first round is a warm-up.
            if round > 0 {
                rates[side].push(ran.rate());
            }
        }
    }
    let mut table =
        Table::new(&["run to completion, 1 in flight", "per second", "spread", "of Cog"]);
    // Cog, if present, is the last side.
    let of_cog = cog.is_some().then(|| median(rates.last().cloned().unwrap_or_default()));
    for ((name, ..), rates) in sides.iter().zip(&rates) {
        let rate = median(rates.clone());
        let of = of_cog.map_or_else(|| "-".to_owned(), |theirs| ratio(rate / theirs));
        table.row([(*name).to_owned(), number(rate), spread(rates, &number), of]);
    }
    table.print();
    println!("{rounds} rounds of {} s\n", time.as_secs());
}
