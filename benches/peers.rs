//! The service against its peers: the same work, one client, one run, in rounds that reverse their
//! order.
//!
//! - Three HTTP steps, each of which gets the previous one's output: a burst of 5,000, one in
//!   flight, 64 in flight; against Restate, if `ORRERY_PEERS_RESTATE` and `ORRERY_PEERS_NODE` name
//!   it, and against the limit: a bare hyper server that makes the same calls and the same data
//!   durable.
//! - A durable create with a held queue, against the limit.
//! - What a signed webhook adds to a prediction, against the limit.
//! - A prediction run to completion, against the limit and Cog's own server, if `ORRERY_PEERS_COG`
//!   names its Python.
//! - Memory after many executions, and during their backup.
//! - Creates and GETs at a fixed rate beside nothing, bursts of workflows, and backups. Latency
//!   counts from the time when a request was due, so that waiting for another one counts in full.
//!   The limit beside nothing and its own bursts is in the same table.
//!
//! Nothing is installed: `benches/README.md`, "peers", says where each peer comes from, and missing
//! ones are left out. `ORRERY_BENCH_ROUNDS` (5), `ORRERY_BENCH_BURST` (5,000),
//! `ORRERY_BENCH_CREATES` and `ORRERY_BENCH_RUNS` (3 seconds for each measurement of creates and of
//! runs) and `ORRERY_BENCH_SECONDS` (15 for each paced one) change a run. `ORRERY_PEERS_ONLY` names
//! the parts to measure: `workflows`, `creates`, `deliveries`, `runs`, `tails`, and `memory`, which
//! takes some ten minutes (`ORRERY_BENCH_FINISHED`, 300,000 executions, and `ORRERY_BENCH_IDLE`,
//! 600 seconds of rest) and is left out unless named.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a benchmark fails by a panic and prints its table"
)]
#![expect(clippy::disallowed_methods, reason = "it measures time by a clock of its own")]

#[path = "peers/burst.rs"]
mod burst;
#[path = "peers/creates.rs"]
mod creates;
#[path = "peers/deliveries.rs"]
mod deliveries;
#[path = "peers/limit.rs"]
mod limit;
#[path = "peers/memory.rs"]
mod memory;
#[path = "peers/paced.rs"]
mod paced;
#[path = "peers/restate.rs"]
mod restate;
#[path = "peers/runs.rs"]
mod runs;
#[path = "peers/service.rs"]
mod service;
#[path = "peers/stub.rs"]
mod stub;
mod support;
#[path = "peers/tails.rs"]
mod tails;
#[path = "peers/work.rs"]
mod work;

use support::process;

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match process::role().as_deref() {
        Some(limit::ROLE) => runtime.block_on(limit::serve()),
        Some(_stub) => runtime.block_on(stub::serve()),
        None => runtime.block_on(measure()),
    }
}

async fn measure() {
    let only = std::env::var("ORRERY_PEERS_ONLY").unwrap_or_default();
    let is_wanted = |part: &str| only.is_empty() || only.split(',').any(|one| one == part);
    let rounds = support::knob("ORRERY_BENCH_ROUNDS", 5);
    let (_stub, stub) = stub::start();
    if is_wanted("workflows") {
        work::measure(stub, rounds).await;
    }
    if is_wanted("creates") {
        creates::measure(rounds).await;
    }
    if is_wanted("deliveries") {
        deliveries::measure(stub, rounds).await;
    }
    if is_wanted("runs") {
        runs::measure(stub, rounds).await;
    }
    if !only.is_empty() && is_wanted("memory") {
        memory::measure(stub).await;
    }
    if is_wanted("tails") {
        tails::measure(stub, rounds).await;
    }
}
