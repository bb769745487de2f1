//! The service beside its peers: the same work, one client, one run, in rounds that reverse their order.
//!
//! - Three HTTP steps, each given what the one before it gave: a burst of 5,000, one in flight, 64 in
//!   flight; beside Restate, where `ORRERY_PEERS_RESTATE` and `ORRERY_PEERS_NODE` say where it is, and
//!   beside the limit: a bare hyper server that does the same calls and makes as much durable.
//! - A durable create, with a queue that is held, beside the limit.
//! - What a signed webhook adds to a prediction, beside the limit.
//! - A prediction, run to its end, beside the limit and Cog's own server, where `ORRERY_PEERS_COG` names its
//!   Python.
//! - Memory after many executions, and while they are backed up.
//! - Creates and GETs at a fixed rate beside nothing, bursts of workflows, and backups: latencies from the
//!   moment when a request was due, so that one that waits for another counts in full. The limit beside
//!   nothing and its own bursts is in the same table.
//!
//! Nothing is installed here: `docs/performance.md`, "Beside its peers", says where each comes from. What is
//! not there is left out. `ORRERY_BENCH_ROUNDS` (5), `ORRERY_BENCH_BURST` (5,000),
//! `ORRERY_BENCH_CREATES` and `ORRERY_BENCH_RUNS` (3 seconds, of each measurement of creates and of runs) and
//! `ORRERY_BENCH_SECONDS` (15, of each paced one) change a run; `ORRERY_PEERS_ONLY` names the parts
//! that are measured: `workflows`, `creates`, `deliveries`, `runs`, `tails`, and `memory`, which takes
//! some ten minutes (`ORRERY_BENCH_FINISHED`, 300,000 executions, and `ORRERY_BENCH_IDLE`, 600 seconds of
//! rest) and is left out unless it is named.

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
