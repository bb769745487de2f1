//! Tests of the conversion of samples to figures: rates, quantiles, restarts of the service, and
//! lanes that appear and disappear.

use super::*;
use orrery_domain::histogram::Meter;
use std::time::Duration;

/// Returns a sample of a service after this many seconds, with 10 requests, 5 executions and 2
/// commits per second.
fn reading(seconds: u32) -> Activity {
    let each = u64::from(seconds);
    let times = Meter::default();
    for _ in 0..10 * each {
        times.record(Duration::from_millis(3));
    }
    let mut activity = Activity { pid: 7, uptime: f64::from(seconds), ..Activity::default() };
    activity.executions.ended = 5 * each;
    activity.executions.failed = each;
    activity.store.commits = 2 * each;
    activity.store.flushes = each;
    activity.process.cpu = 0.25 * f64::from(seconds);
    activity.deliveries.delivered = 3 * each;
    let times = times.read();
    let host = Host {
        host: "base".to_owned(),
        answers: 10 * each,
        refused: each,
        failed: 0,
        times: times.clone(),
    };
    activity.hosts = vec![host];
    let (kind, name) = ("model".to_owned(), "a".to_owned());
    activity.lanes = vec![Lane { kind, name, cap: 4, failed: each, times, ..Lane::default() }];
    activity
}

#[test]
fn figures_are_rates_over_the_last_seconds() {
    let mut history = History::default();
    assert_eq!(history.figures(), None);
    history.take(0.0, reading(100));
    let first = history.figures().unwrap();
    assert_eq!((first.requests.rate, first.executions.rate, first.requests.p50), (0.0, 0.0, None));
    assert_eq!(history.readings.len(), 1);
    for second in 1..=20 {
        history.take(f64::from(second), reading(100 + second));
    }
    let figures = history.figures().unwrap();
    assert_eq!((figures.requests.rate, figures.requests.refused_rate), (10.0, 1.0));
    assert_eq!((figures.executions.rate, figures.executions.failed_rate), (5.0, 1.0));
    assert_eq!((figures.commits.rate, figures.commits.grouped), (2.0, Some(2.0)));
    assert_eq!((figures.deliveries.rate, figures.process.cpu), (3.0, 0.25));
    let lane = &figures.lanes[0];
    assert_eq!((lane.rate, lane.failed_rate, lane.ended), (10.0, 1.0, 1200));
    let p99 = lane.p99.unwrap();
    assert!((0.0025..0.0036).contains(&p99), "{p99}");
    assert_eq!(figures.hosts[0].requests.rate, 10.0);
    assert_eq!(history.curves.requests.len(), 20);
    assert_eq!(history.curves.lanes.len(), 1);
}

#[test]
fn figures_reset_when_the_process_changes() {
    let mut history = History::default();
    history.take(0.0, reading(100));
    history.take(1.0, reading(101));
    let mut again = reading(1);
    again.pid = 8;
    history.take(2.0, again);
    let figures = history.figures().unwrap();
    assert_eq!((figures.requests.rate, figures.executions.rate), (0.0, 0.0));
    assert_eq!(history.curves.requests.len(), 1, "curves are kept");
    // The process id is the same after a restart, as in a container.
    let mut same = reading(1);
    same.uptime = 0.5;
    same.pid = 8;
    history.take(5.0, reading(200));
    history.take(6.0, same);
    assert_eq!(history.readings.len(), 1);
}

#[test]
fn figures_drop_lanes_that_are_no_longer_listed() {
    let mut history = History::default();
    for second in 0..1000_u32 {
        let mut activity = reading(1);
        activity.uptime = f64::from(second);
        activity.lanes[0].name = format!("lane {second}");
        history.take(f64::from(second), activity);
    }
    assert_eq!(history.readings.len(), READINGS_MAX);
    assert_eq!(history.curves.lanes.len(), 1);
    assert_eq!(history.curves.requests.len(), POINTS_MAX);
    // The rate of a newly listed lane does not jump.
    assert_eq!(history.figures().unwrap().lanes[0].rate, 0.0);
}
