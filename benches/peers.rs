//! The service against its peers: the same work by the same client in one run, in rounds of
//! alternating order.
//!
//! - Three HTTP steps, each of which receives the previous step's output: a burst of 5,000, one in
//!   flight, 64 in flight; against Restate, if `ORRERY_PEERS_RESTATE` and `ORRERY_PEERS_NODE` name
//!   its binaries, and against the limit: a bare hyper server that makes the same calls and
//!   persists the same data.
//! - A durable create with a held queue, against the limit.
//! - The cost of a signed webhook on top of a prediction, against the limit.
//! - A prediction run to completion, against the limit and Cog's own server, if `ORRERY_PEERS_COG`
//!   names its Python.
//! - Memory after many executions, and during their backup.
//! - Creates and GETs at a fixed rate: alone, during bursts of workflows, and during backups.
//!   Latency counts from the time when a request was due, so that queueing behind another request
//!   counts in full. The same table shows the limit, alone and during its own bursts.
//!
//! The benchmark installs nothing: `benches/README.md`, "peers", describes where to get each peer,
//! and missing peers are skipped. `ORRERY_BENCH_ROUNDS` (5), `ORRERY_BENCH_BURST` (5,000),
//! `ORRERY_BENCH_CREATES` and `ORRERY_BENCH_RUNS` (3 seconds for each measurement of creates and
//! runs) and `ORRERY_BENCH_SECONDS` (15 for each paced measurement) change a run.
//! `ORRERY_PEERS_ONLY` names the parts to measure: `workflows`, `creates`, `deliveries`, `runs`,
//! `tails`, and `memory`, which takes about ten minutes (`ORRERY_BENCH_FINISHED`, 300,000
//! executions, and `ORRERY_BENCH_IDLE`, 600 idle seconds) and is skipped unless named.

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
