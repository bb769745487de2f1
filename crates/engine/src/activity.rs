//! Lane activity: how full each lane is, how many executions and calls have ended in it, and how
//! long they took. The counters are in memory, start at zero when the process starts, and cover a
//! limited number of lanes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::scheduler::lanes::Load;
use crate::{Engine, Inner};
use orrery_domain::agent;
use orrery_domain::execution::{Execution, Status};
use orrery_domain::histogram::{Histogram, Meter};

/// Maximum number of lanes with counters; one lane's counters take about 1200 bytes. Beyond this
/// number, the counters of the lane whose last completion is oldest are dropped.
const COUNTED_MAX: usize = 512;

/// The activity of one lane.
#[derive(Debug, Clone)]
pub struct LaneActivity {
    /// The lane's name, as in `domain::execution`; all agent sessions count as one lane,
    /// [`agent::LANE`].
    pub lane: String,
    pub load: Load,
    /// Executions that have failed since the process started.
    pub failed: u64,
    /// Durations of all ended work. Executions are measured from their creation; workflow steps and
    /// chat router calls are measured from their request for a permit.
    pub times: Histogram,
}

#[derive(Debug, Default)]
struct LaneMeter {
    times: Meter,
    failed: AtomicU64,
    /// Sequence number of the last completion.
    last: AtomicU64,
}

/// Completion counters by lane.
#[derive(Debug, Default)]
pub(super) struct Meters {
    lanes: Mutex<HashMap<Box<str>, Arc<LaneMeter>>>,
    ended: AtomicU64,
}

impl Meters {
    /// Records a completion in a lane.
    pub(super) fn ended(&self, lane: &str, took: Duration, is_failure: bool) {
        let lane = merged(lane);
        let number = self.ended.fetch_add(1, Ordering::Relaxed);
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let meter = match lanes.get(lane) {
            Some(meter) => Arc::clone(meter),
            None => {
                if lanes.len() >= COUNTED_MAX {
                    forget_oldest(&mut lanes);
                }
                Arc::clone(lanes.entry(lane.into()).or_default())
            }
        };
        drop(lanes);
        meter.times.record(took);
        meter.failed.fetch_add(u64::from(is_failure), Ordering::Relaxed);
        meter.last.store(number, Ordering::Relaxed);
    }

    fn read(&self) -> HashMap<Box<str>, Arc<LaneMeter>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn forget_oldest(lanes: &mut HashMap<Box<str>, Arc<LaneMeter>>) {
    let oldest = lanes.iter().min_by_key(|(_, meter)| meter.last.load(Ordering::Relaxed));
    if let Some(oldest) = oldest.map(|(lane, _)| lane.clone()) {
        lanes.remove(&oldest);
    }
}

/// Returns the lane whose counters are used for `lane`. Clients can create any number of sessions,
/// so all sessions count as one lane.
fn merged(lane: &str) -> &str {
    if lane.starts_with(agent::LANE_PREFIX) { agent::LANE } else { lane }
}

impl Inner {
    /// Counts an ended execution in the activity of its lane.
    pub(crate) fn count_ended(&self, execution: &Execution) {
        let took = execution.completed_at.map(|end| end.since(execution.created_at));
        let is_failure = execution.status == Status::Error;
        self.meters.ended(&execution.lane(), took.unwrap_or_default(), is_failure);
    }
}

impl Engine {
    /// Returns up to `most` lanes and the total number of lanes. Lanes with the most running and
    /// queued work come first, followed by the lanes with the most completions.
    #[must_use]
    pub fn activity(&self, most: usize) -> (Vec<LaneActivity>, usize) {
        let loads = self.inner.lanes().loads();
        let meters = self.inner.meters.read();
        let mut lanes: HashMap<&str, Load> = HashMap::with_capacity(loads.len());
        for (lane, load) in &loads {
            let whole = lanes.entry(merged(lane)).or_default();
            whole.running += load.running;
            whole.queued += load.queued;
            whole.cap += load.cap;
        }
        for lane in meters.keys() {
            lanes.entry(lane).or_default();
        }
        let count = lanes.len();
        let ended = |lane: &str| meters.get(lane).map_or(0, |meter| meter.times.read().count());
        let mut lanes: Vec<(&str, Load)> = lanes.into_iter().collect();
        lanes.sort_by_cached_key(|(lane, load)| {
            (std::cmp::Reverse((load.running + load.queued, ended(lane))), *lane)
        });
        lanes.truncate(most);
        let lanes = lanes.into_iter().map(|(lane, load)| {
            let meter = meters.get(lane);
            LaneActivity {
                lane: lane.to_owned(),
                load,
                failed: meter.map_or(0, |meter| meter.failed.load(Ordering::Relaxed)),
                times: meter.map(|meter| meter.times.read()).unwrap_or_default(),
            }
        });
        (lanes.collect(), count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meters_count_by_lane_and_drop_least_recently_used() {
        let meters = Meters::default();
        for number in 0..COUNTED_MAX {
            meters.ended(&format!("workflow:{number}"), Duration::from_millis(1), false);
        }
        meters.ended("workflow:0", Duration::from_millis(3), true);
        meters.ended("model:new", Duration::from_millis(3), false);
        let read = meters.read();
        assert_eq!(read.len(), COUNTED_MAX);
        assert!(read.contains_key("model:new") && !read.contains_key("workflow:1"));
        let first = read.get("workflow:0").unwrap();
        assert_eq!((first.times.read().count(), first.failed.load(Ordering::Relaxed)), (2, 1));
    }

    #[test]
    fn meters_count_all_agent_sessions_as_one_lane() {
        let meters = Meters::default();
        for session in 0..2 * COUNTED_MAX {
            let lane = format!("{}{session}", agent::LANE_PREFIX);
            meters.ended(&lane, Duration::from_millis(1), false);
        }
        let read = meters.read();
        assert_eq!(read.len(), 1);
        assert_eq!(read.get(agent::LANE).unwrap().times.read().count(), 2 * COUNTED_MAX as u64);
    }
}
