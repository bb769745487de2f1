//! Converts counters to rates over the last seconds, quantiles over the last minute, and curves.
//! The module accesses neither the clock nor the service: the caller passes in samples and their
//! times.

use std::collections::{HashMap, VecDeque};

use serde::Serialize;

use orrery_domain::histogram::Histogram;
use orrery_wire::activity::{Activity, Disk, Host, Lane, Machine, Store};

/// Window of a rate, in seconds.
const RATE_OVER: f64 = 5.0;
/// Window of a quantile, in seconds.
const QUANTILE_OVER: f64 = 60.0;
/// Maximum number of samples retained.
const READINGS_MAX: usize = 64;
/// Maximum number of points of a curve.
const POINTS_MAX: usize = 240;

/// A sample and its time, in seconds on the caller's clock.
#[derive(Debug)]
struct Reading {
    at: f64,
    activity: Activity,
}

/// The samples so far.
#[derive(Debug, Default)]
pub(super) struct History {
    readings: VecDeque<Reading>,
    pub(super) curves: Curves,
}

/// One point per sample, oldest first.
pub(super) type Curve = VecDeque<f64>;

/// Rates per second over time.
#[derive(Debug, Default)]
pub(super) struct Curves {
    pub(super) requests: Curve,
    pub(super) executions: Curve,
    pub(super) commits: Curve,
    pub(super) deliveries: Curve,
    /// The curves, indexed by host name.
    pub(super) hosts: HashMap<String, Curve>,
    /// The curves, indexed by the kind and the name of the lane.
    pub(super) lanes: HashMap<(String, String), Curve>,
}

/// The state of the service, with rates per second and times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Figures {
    pub(super) version: String,
    pub(super) pid: u32,
    pub(super) uptime: f64,
    pub(super) warnings: Vec<String>,
    pub(super) requests: Requests,
    pub(super) executions: Executions,
    pub(super) commits: Commits,
    pub(super) deliveries: Deliveries,
    pub(super) disk: Disk,
    pub(super) process: Process,
    pub(super) machine: Machine,
    pub(super) hosts: Vec<HostFigures>,
    pub(super) lanes: Vec<LaneFigures>,
    pub(super) lanes_total: usize,
}

/// The requests of one host, or of all hosts together.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Requests {
    pub(super) in_flight: u64,
    pub(super) rate: f64,
    /// 4xx and 5xx responses per second.
    pub(super) refused_rate: f64,
    pub(super) failed_rate: f64,
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct HostFigures {
    pub(super) host: String,
    #[serde(flatten)]
    pub(super) requests: Requests,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Executions {
    pub(super) running: usize,
    pub(super) queued: usize,
    pub(super) retrying: usize,
    pub(super) rate: f64,
    pub(super) failed_rate: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Commits {
    pub(super) rate: f64,
    /// The average number of commits per flush.
    pub(super) grouped: Option<f64>,
    pub(super) waiting: usize,
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) store_bytes: u64,
    pub(super) log_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Deliveries {
    pub(super) rate: f64,
    pub(super) failed_rate: f64,
    pub(super) retry_rate: f64,
    pub(super) in_flight: usize,
    pub(super) queued: usize,
    pub(super) retrying: usize,
    pub(super) is_capped: bool,
    pub(super) open_circuits: usize,
    pub(super) lag: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Process {
    pub(super) resident_bytes: u64,
    pub(super) open_files: u64,
    pub(super) open_files_max: u64,
    pub(super) threads: u64,
    /// CPU usage in cores: 1 is one fully used core.
    pub(super) cpu: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct LaneFigures {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) running: usize,
    pub(super) queued: usize,
    pub(super) cap: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failing: Option<String>,
    /// The state of the server that the service starts for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server: Option<String>,
    pub(super) rate: f64,
    pub(super) failed_rate: f64,
    /// Executions completed since the start.
    pub(super) ended: u64,
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
}

impl LaneFigures {
    /// Returns the name, with the state of the model's server if the service starts one.
    pub(super) fn shown_name(&self) -> String {
        match &self.server {
            Some(state) => format!("{} ({state})", self.name),
            None => self.name.clone(),
        }
    }
}

/// Returns the rate at which a counter grows, per second.
fn rate(now: u64, before: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { now.saturating_sub(before) as f64 / seconds } else { 0.0 }
}

fn add(curve: &mut Curve, point: f64) {
    if curve.len() >= POINTS_MAX {
        curve.pop_front();
    }
    curve.push_back(point);
}

fn answers(activity: &Activity) -> u64 {
    activity.hosts.iter().map(|host| host.answers).sum()
}

fn host<'a>(activity: &'a Activity, name: &str) -> Option<&'a Host> {
    activity.hosts.iter().find(|host| host.host == name)
}

fn lane<'a>(activity: &'a Activity, kind: &str, name: &str) -> Option<&'a Lane> {
    activity.lanes.iter().find(|lane| lane.kind == kind && lane.name == name)
}

impl History {
    /// Adds a sample. If the process has changed, earlier samples are discarded.
    pub(super) fn take(&mut self, at: f64, activity: Activity) {
        let is_other = |last: &Reading| {
            last.activity.pid != activity.pid || last.activity.uptime > activity.uptime + 1.0
        };
        if self.readings.back().is_some_and(is_other) {
            self.readings.clear();
        }
        if let Some(last) = self.readings.back() {
            self.curves.grow(&last.activity, &activity, at - last.at);
        }
        if self.readings.len() >= READINGS_MAX {
            self.readings.pop_front();
        }
        self.readings.push_back(Reading { at, activity });
    }

    /// Returns the oldest sample that was taken at most `seconds` before the latest sample. If
    /// there is no such sample, returns the sample before the latest.
    fn back(&self, seconds: f64) -> Option<&Reading> {
        let last = self.readings.back()?;
        let before = self.readings.iter().rev().skip(1);
        let within = before.clone().take_while(|reading| last.at - reading.at <= seconds + 0.5);
        within.last().or_else(|| before.clone().next()).or(Some(last))
    }

    /// Returns the current figures; `None` before the first sample.
    pub(super) fn figures(&self) -> Option<Figures> {
        let last = self.readings.back()?;
        let near = self.back(RATE_OVER)?;
        let far = self.back(QUANTILE_OVER)?;
        let between = Between {
            now: &last.activity,
            near: &near.activity,
            far: &far.activity,
            seconds: last.at - near.at,
        };
        Some(between.figures())
    }
}

impl Curves {
    fn grow(&mut self, before: &Activity, now: &Activity, seconds: f64) {
        let delivered = |activity: &Activity| activity.deliveries.delivered;
        add(&mut self.requests, rate(answers(now), answers(before), seconds));
        add(&mut self.executions, rate(now.executions.ended, before.executions.ended, seconds));
        add(&mut self.commits, rate(now.store.commits, before.store.commits, seconds));
        add(&mut self.deliveries, rate(delivered(now), delivered(before), seconds));
        for own in &now.hosts {
            let earlier = host(before, &own.host).map_or(0, |host| host.answers);
            let curve = self.hosts.entry(own.host.clone()).or_default();
            add(curve, rate(own.answers, earlier, seconds));
        }
        // Curves of lanes that are no longer listed are dropped.
        let mut lanes = std::mem::take(&mut self.lanes);
        for own in &now.lanes {
            let name = (own.kind.clone(), own.name.clone());
            // The previous count of a newly listed lane is unknown, so its first rate is 0.
            let earlier = lane(before, &own.kind, &own.name).unwrap_or(own).times.count();
            let mut curve = lanes.remove(&name).unwrap_or_default();
            add(&mut curve, rate(own.times.count(), earlier, seconds));
            self.lanes.insert(name, curve);
        }
    }
}

/// The two samples from which rates are computed, and an earlier sample for quantiles.
struct Between<'a> {
    now: &'a Activity,
    near: &'a Activity,
    far: &'a Activity,
    /// Time from `near` to `now`, in seconds.
    seconds: f64,
}

impl Between<'_> {
    fn rate(&self, counter: impl Fn(&Activity) -> u64) -> f64 {
        rate(counter(self.now), counter(self.near), self.seconds)
    }

    fn figures(&self) -> Figures {
        let Activity { executions, deliveries, process, .. } = self.now;
        let hosts: Vec<HostFigures> = self.now.hosts.iter().map(|host| self.host(host)).collect();
        Figures {
            version: self.now.version.clone(),
            pid: self.now.pid,
            uptime: self.now.uptime,
            warnings: self.now.warnings.clone(),
            requests: self.requests(),
            executions: Executions {
                running: executions.running,
                queued: executions.queued,
                retrying: executions.retrying,
                rate: self.rate(|activity| activity.executions.ended),
                failed_rate: self.rate(|activity| activity.executions.failed),
            },
            commits: self.commits(),
            deliveries: Deliveries {
                rate: self.rate(|activity| activity.deliveries.delivered),
                failed_rate: self.rate(|activity| activity.deliveries.failed),
                retry_rate: self.rate(|activity| activity.deliveries.retries),
                in_flight: deliveries.in_flight,
                queued: deliveries.queued,
                retrying: deliveries.retrying,
                is_capped: deliveries.is_capped,
                open_circuits: deliveries.open_circuits,
                lag: deliveries.lag,
            },
            disk: self.now.disk,
            process: Process {
                resident_bytes: process.resident_bytes,
                open_files: process.open_files,
                open_files_max: process.open_files_max,
                threads: process.threads,
                cpu: match self.seconds {
                    0.0 => 0.0,
                    seconds => ((process.cpu - self.near.process.cpu) / seconds).max(0.0),
                },
            },
            machine: self.now.machine,
            hosts,
            lanes: self.now.lanes.iter().map(|lane| self.lane(lane)).collect(),
            lanes_total: self.now.lanes_total,
        }
    }

    fn host(&self, own: &Host) -> HostFigures {
        let Host { host: name, answers: _, refused: _, failed: _, times } = own;
        let counted = |counter: fn(&Host) -> u64| {
            self.rate(|activity| host(activity, name).map_or(0, counter))
        };
        let times =
            times.since(host(self.far, name).map_or(&Histogram::default(), |far| &far.times));
        HostFigures {
            host: name.clone(),
            requests: Requests {
                in_flight: 0,
                rate: counted(|host| host.answers),
                refused_rate: counted(|host| host.refused),
                failed_rate: counted(|host| host.failed),
                p50: times.quantile(0.5),
                p99: times.quantile(0.99),
            },
        }
    }

    fn requests(&self) -> Requests {
        let all = |counter: fn(&Host) -> u64| {
            self.rate(|activity| activity.hosts.iter().map(counter).sum())
        };
        let empty = Histogram::default();
        let parts =
            self.now.hosts.iter().map(|own| {
                own.times.since(host(self.far, &own.host).map_or(&empty, |far| &far.times))
            });
        let times = Histogram::sum(parts);
        Requests {
            in_flight: self.now.requests_in_flight,
            rate: all(|host| host.answers),
            refused_rate: all(|host| host.refused),
            failed_rate: all(|host| host.failed),
            p50: times.quantile(0.5),
            p99: times.quantile(0.99),
        }
    }

    fn commits(&self) -> Commits {
        let Store { bytes, log_bytes, commits, flushes, waiting, times } = &self.now.store;
        let times = times.since(&self.far.store.times);
        let far = &self.far.store;
        let groups = flushes.saturating_sub(far.flushes);
        Commits {
            rate: self.rate(|activity| activity.store.commits),
            grouped: (groups > 0)
                .then(|| commits.saturating_sub(far.commits) as f64 / groups as f64),
            waiting: *waiting,
            p50: times.quantile(0.5),
            p99: times.quantile(0.99),
            store_bytes: *bytes,
            log_bytes: *log_bytes,
        }
    }

    fn lane(&self, own: &Lane) -> LaneFigures {
        // The earlier count of a newly listed lane is unknown, so its first rate is 0.
        let near = lane(self.near, &own.kind, &own.name).unwrap_or(own);
        let far = lane(self.far, &own.kind, &own.name).unwrap_or(near);
        let times = own.times.since(&far.times);
        LaneFigures {
            kind: own.kind.clone(),
            name: own.name.clone(),
            running: own.running,
            queued: own.queued,
            cap: own.cap,
            failing: own.failing.clone(),
            server: own.server.clone(),
            rate: rate(own.times.count(), near.times.count(), self.seconds),
            failed_rate: rate(own.failed, near.failed, self.seconds),
            ended: own.times.count(),
            p50: times.quantile(0.5),
            p99: times.quantile(0.99),
        }
    }
}

#[cfg(test)]
#[path = "figures_tests.rs"]
mod tests;
