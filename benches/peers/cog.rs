//! A prediction run to its end, one at a time: an HTTP model and a built-in one, beside Cog's own server
//! with a predictor that answers at once. Cog keeps nothing; here, two commits are durable.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::service::Service;
use super::support::client::{self, Load};
use super::support::process::Killed;
use super::support::service::{free_ports, get};
use super::support::table::{Table, number, ratio};
use super::support::{self, median};
use super::work::spread;

const PATIENCE: Duration = Duration::from_secs(60);
const TEMPLATE: &str = r#"{"model":"text-template","version":"0.0.1","input":{"template":"A quiet {{ place }}.","values":{"place":"harbour"}}}"#;

struct Cog {
    address: SocketAddr,
    _server: Killed,
}

impl Cog {
    /// Starts it with the predictor of the tests; `None` where it is not installed.
    async fn start() -> Option<Self> {
        let python = std::env::var_os("ORRERY_PEERS_COG")?;
        let address = free_ports(1)[0];
        let server = Command::new(python)
            .args(["-m", "cog.server.http", "--host", "127.0.0.1"])
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cog"))
            .env("PORT", address.port().to_string())
            .env("COG_PREDICT_TYPE_STUB", "echo.py:Predictor")
            .env("COG_MAX_CONCURRENCY", "64")
            .env("COG_LOG_LEVEL", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let cog = Self { address, _server: Killed(server) };
        let deadline = Instant::now() + PATIENCE;
        while !get(address, "/health-check").is_some_and(|answer| answer.contains("READY")) {
            assert!(Instant::now() < deadline, "Cog does not become ready");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Some(cog)
    }
}

pub async fn measure(stub: SocketAddr, rounds: u64) {
    let time = Duration::from_secs(support::knob("ORRERY_BENCH_RUNS", 3));
    let cog = Cog::start().await;
    let service = Service::start(stub);
    let base = service.setup.base;
    let template = client::post(base, "/v1/prediction/run", &service.key, TEMPLATE);
    let mut sides = vec![
        ("an HTTP model", base, service.prediction("instant", "/v1/prediction/run", "")),
        ("text-template", base, template),
    ];
    if let Some(cog) = &cog {
        let request = client::post(cog.address, "/predictions", "", r#"{"input":{"text":"x"}}"#);
        sides.push(("Cog", cog.address, request));
    }
    let mut rates = vec![Vec::new(); sides.len()];
    for round in 0..=rounds {
        for ((_, address, request), rates) in sides.iter().zip(&mut rates) {
            let load = Load { address: *address, connections: 1, request: request.clone() };
            let ran = load.run(time).await;
            assert!(ran.good > ran.other, "nearly all runs were refused");
            if round > 0 {
                rates.push(ran.rate());
            }
        }
    }
    let mut table = Table::new(&["run to the end, 1 in flight", "per second", "spread", "of Cog"]);
    let bare = cog.is_some().then(|| median(rates.last().cloned().unwrap_or_default()));
    for ((name, ..), rates) in sides.iter().zip(&rates) {
        let rate = median(rates.clone());
        let of = bare.map_or_else(|| "-".to_owned(), |bare| ratio(rate / bare));
        table.row([(*name).to_owned(), number(rate), spread(rates, &number), of]);
    }
    table.print();
    println!("{rounds} rounds of {} s\n", time.as_secs());
}
