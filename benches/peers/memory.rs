//! Memory after many finished executions, and during their backup.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::burst::Burst;
use super::service::{STEPS, Service};
use super::support;
use super::support::process::{forget_peak, peak, resident};
use super::support::table::{Table, mebibytes, number};

/// Executions per round: nine predictions for each workflow.
const TURN: u64 = 10_000;

pub(crate) async fn measure(stub: SocketAddr) {
    let count = support::knob("ORRERY_BENCH_FINISHED", 300_000);
    let idle = support::knob("ORRERY_BENCH_IDLE", 600);
    let service = Service::start(stub);
    let trigger = service.three_steps(stub).await;
    let prediction = service.prediction("instant", "/v1/prediction/", "");
    let mut made = 0;
    let started = Instant::now();
    while made < count {
        let sides = [
            (service.setup.base, &prediction, TURN / 10 * 9, 1),
            (service.setup.workflows, &trigger, TURN / 10, STEPS),
        ];
        for (address, request, part, calls) in sides {
            made += Burst::send(stub, address, request, (part, calls)).await.made;
        }
    }
    let pid = service.pid();
    let mut table = Table::new(&["memory of the service", "MiB"]);
    let seconds = number(started.elapsed().as_secs_f64());
    table.row([
        format!("{} executions in {seconds} s, peak", number(made as f64)),
        mebibytes::<1>(peak(pid)),
    ]);
    table.row(["right after them".to_owned(), mebibytes::<1>(resident(pid))]);
    let mut waited = 0;
    for until in [60, idle] {
        tokio::time::sleep(Duration::from_secs(until.saturating_sub(waited))).await;
        waited = waited.max(until);
        table.row([format!("{waited} s later"), mebibytes::<1>(resident(pid))]);
    }
    let folder = support::folder();
    let file = folder.path().join("backup");
    let mut command = service.setup.command(&["backup", file.to_str().unwrap()]);
    forget_peak(pid);
    let started = Instant::now();
    let made = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let seconds = started.elapsed().as_secs_f64();
    table.row([format!("peak of a backup, {seconds:.1} s"), mebibytes::<1>(peak(pid))]);
    table.print();
    println!();
}
