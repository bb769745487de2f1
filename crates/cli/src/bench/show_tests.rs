//! Tests of reports as text: a single report, a comparison, and notes about unreliable results.

use super::*;
use crate::bench::figure::FORMAT;
use crate::bench::machine::Machine;

fn figure(id: &str, name: &str, unit: Unit, value: f64) -> Figure {
    Figure::of(id, name, unit, vec![value * 0.95, value, value * 1.05]).unwrap()
}

fn example() -> Report {
    Report {
        format: FORMAT,
        version: "0.1.0".to_owned(),
        is_optimized: true,
        measured_at: "2026-11-23T08:00:00.000000Z".to_owned(),
        seconds: 61.2,
        rounds: 3,
        machine: Machine {
            cpu: "A CPU @ 2 GHz".to_owned(),
            cores: 2,
            memory_bytes: 4 << 30,
            kernel: "Linux 6.1.0 x86_64".to_owned(),
            disk: "ext4 on /dev/vda".to_owned(),
            load_before: 0.1,
        },
        figures: vec![
            figure("cpu_sha256", "one core, SHA-256", Unit::MegabytesPerSecond, 1_450.0),
            figure("loopback_64", "bare HTTP on loopback", Unit::PerSecond, 62_000.0),
            figure("fsync_p50", "a flush of 4 KiB, median", Unit::Seconds, 0.000_93),
            figure("create_1", "durable creates, 1 connection", Unit::PerSecond, 870.0),
            figure("create_64", "durable creates, 64 connections", Unit::PerSecond, 9_400.0),
            figure("run_1", "a run to the end, median", Unit::Seconds, 0.0024),
        ],
    }
}

#[test]
fn report_is_a_table_and_bars() {
    insta::assert_snapshot!(report(&example(), None, false));
}

#[test]
fn report_compares_with_an_earlier_one() {
    let mut earlier = example();
    for figure in &mut earlier.figures {
        figure.value *= if figure.unit == Unit::Seconds { 1.5 } else { 0.8 };
    }
    earlier.figures.remove(3);
    insta::assert_snapshot!(report(&example(), Some(&earlier), false));
}

#[test]
fn report_notes_reasons_for_unreliable_figures() {
    let mut doubtful = example();
    doubtful.is_optimized = false;
    doubtful.machine.load_before = 3.0;
    doubtful.figures[3].high *= 2.0;
    let mut earlier = example();
    earlier.machine.cores = 8;
    let text = report(&doubtful, Some(&earlier), false);
    for note in [
        "note: measured with an unoptimized build",
        "note: the box was busy beforehand (load 3.0)",
        "note: the rounds vary widely for: durable creates, 1 connection;",
        "note: another processor",
    ] {
        assert!(text.contains(note), "{note} is not in {text}");
    }
    assert!(!report(&example(), None, false).contains("note:"));
}

#[test]
fn empty_report_is_rendered() {
    let empty = Report { figures: Vec::new(), ..example() };
    report(&empty, Some(&empty), true);
    report(&empty, None, true);
    assert_eq!(
        (bar(0.0, 10), bar(1.0, 4), bar(0.5625, 2)),
        (String::new(), "████".to_owned(), "█▏".to_owned())
    );
}
