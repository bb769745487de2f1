//! The clock: the machine's time, and two times derived from it, for uses in which the machine's
//! time cannot be trusted.
//!
//! People, NTP and empty batteries move a machine's clock forward and backward. So there are three
//! readings:
//! - [`Clock::now`] is the machine's time, for timestamps that people and other machines read.
//! - [`Clock::steady`] never goes back, for due times. A retry scheduled for one second from now
//!   happens after at most one second, even if the clock is set in the meantime. The steady time
//!   follows forward jumps: after a machine was suspended, its clock shows a forward jump, and work
//!   that came due in the meantime is overdue.
//! - [`Clock::believed`] is for deleting by age. The believed time does not follow a forward jump
//!   of more than [`JUMP_MAX`] at once, but catches up at [`CATCH_UP`] times the speed of real
//!   time. So a machine that was off for a weekend resumes cleanup within hours, and an operator
//!   whose machine's clock is a year ahead has a week to correct it.
//!
//! [`Clock::jumped`] reports a jump in either direction, so that the caller can store the steady
//! time together with the machine's time ([`Clock::reading`]). Work that an earlier process
//! scheduled is then due after the originally scheduled delay, even if the clock was set back.
//!
//! All three readings are derived from the machine's time and a monotonic measurement of how long
//! the process has been running.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;

use orrery_domain::time::{Now, Timestamp};

/// The maximum forward jump that the believed time follows at once.
pub(crate) const JUMP_MAX: Duration = Duration::from_secs(24 * 3600);
/// The factor by which the believed time runs faster than real time while it catches up: two days
/// per hour.
const CATCH_UP: u32 = 48;
/// A larger difference between the elapsed time and the change in the machine's time counts as a
/// jump.
const NOTED: Duration = Duration::from_secs(5);

/// The machine's clock, or a clock that a test controls. Clones share the same clock.
#[derive(Clone)]
pub struct Clock {
    shared: Arc<Shared>,
}

struct Shared {
    source: Source,
    readings: Mutex<Readings>,
    jumped: Notify,
}

enum Source {
    System { start: Instant },
    Scripted { wall: AtomicI64, ran: AtomicI64 },
}

#[derive(Debug, Clone, Copy)]
struct Readings {
    wall: Timestamp,
    steady: Timestamp,
    believed: Timestamp,
    /// The monotonic reading at which the other readings were taken.
    at: Duration,
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Clock {
    /// Reads the machine's clock.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "counts real time, also where a test pauses tokio's"
    )]
    pub fn system() -> Self {
        Self::of(Source::System { start: Instant::now() })
    }

    /// Creates a clock that does not advance until [`Clock::advance`] or [`Clock::set`] is called.
    #[must_use]
    pub fn scripted(start: Timestamp) -> Self {
        let wall = AtomicI64::new(start.micros());
        Self::of(Source::Scripted { wall, ran: AtomicI64::new(0) })
    }

    fn of(source: Source) -> Self {
        let wall = source.wall();
        let readings = Readings { wall, steady: wall, believed: wall, at: source.ran() };
        let readings = Mutex::new(readings);
        let jumped = Notify::new();
        Self { shared: Arc::new(Shared { source, readings, jumped }) }
    }

    /// Advances a scripted clock. Has no effect on the machine's clock.
    pub fn advance(&self, span: Duration) {
        if let Source::Scripted { wall, ran } = &self.shared.source {
            let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
            wall.fetch_add(micros, Ordering::SeqCst);
            ran.fetch_add(micros, Ordering::SeqCst);
        }
    }

    /// Sets a scripted clock, as a person or NTP would, without time passing.
    pub fn set(&self, to: Timestamp) {
        if let Source::Scripted { wall, .. } = &self.shared.source {
            // Account for the time until now first.
            let _before = self.read();
            wall.store(to.micros(), Ordering::SeqCst);
        }
    }

    /// The machine's time in UTC.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.shared.source.wall()
    }

    /// Time since this clock was created. Never goes back, regardless of the machine's time.
    #[must_use]
    pub fn monotonic(&self) -> Duration {
        self.shared.source.ran()
    }

    /// The latest time that this clock has shown, plus the time that has elapsed since. Never goes
    /// back.
    #[must_use]
    pub fn steady(&self) -> Timestamp {
        self.read().steady
    }

    /// The machine's time and the steady time, read together.
    #[must_use]
    pub fn reading(&self) -> Now {
        let wall = self.now();
        Now { wall, steady: self.read_at(wall).steady }
    }

    /// The time to use when deleting by age.
    #[must_use]
    pub fn believed(&self) -> Timestamp {
        self.read().believed
    }

    /// How far the machine's time is ahead of the believed time; `None` if the difference is within
    /// [`JUMP_MAX`].
    #[must_use]
    pub fn ahead(&self) -> Option<Duration> {
        let ahead = self.now().since(self.read().believed);
        (ahead > JUMP_MAX).then_some(ahead)
    }

    /// Restores the believed time and the last reading from an earlier process. The difference
    /// between that reading and the machine's time is treated like any other jump.
    pub fn restore(&self, believed: Timestamp, last: Option<Now>) {
        let wall = self.now();
        let mut readings = self.readings();
        let steady = last.map_or(believed, |last| steady_at(last, wall));
        readings.steady = readings.steady.max(believed).max(steady);
        readings.believed = believed;
        drop(readings);
        let _first = self.read();
    }

    /// Resolves when the machine's clock has jumped since the last call, forward or backward.
    pub async fn jumped(&self) {
        self.shared.jumped.notified().await;
    }

    fn read(&self) -> Readings {
        self.read_at(self.now())
    }

    fn read_at(&self, wall: Timestamp) -> Readings {
        let mut readings = self.readings();
        let next = readings.next(wall, self.shared.source.ran());
        let expected = readings.wall.plus(next.at.saturating_sub(readings.at));
        if wall.since(expected).max(expected.since(wall)) > NOTED {
            self.shared.jumped.notify_one();
        }
        *readings = next;
        next
    }

    fn readings(&self) -> std::sync::MutexGuard<'_, Readings> {
        self.shared.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The machine's time, capped at the last representable time.
#[expect(clippy::disallowed_methods, reason = "the only access to the machine's clock")]
pub(super) fn machine_time() -> Timestamp {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX);
    #[cfg(debug_assertions)]
    let micros = micros.saturating_add(super::shift::micros());
    Timestamp::from_micros(micros).min(Timestamp::LAST)
}

/// Returns the steady time at the start of a later process, at which the machine's time is `wall`.
/// If the machine's clock is behind the steady time, the steady time advances as much as the
/// machine's clock has advanced, unless that is more than [`JUMP_MAX`].
fn steady_at(last: Now, wall: Timestamp) -> Timestamp {
    let passed = wall.since(last.wall);
    if wall >= last.steady || passed > JUMP_MAX { last.steady } else { last.steady.plus(passed) }
}

impl Source {
    fn wall(&self) -> Timestamp {
        match self {
            Self::Scripted { wall, .. } => Timestamp::from_micros(wall.load(Ordering::SeqCst)),
            Self::System { .. } => machine_time(),
        }
    }

    fn ran(&self) -> Duration {
        match self {
            Self::System { start } => start.elapsed(),
            Self::Scripted { ran, .. } => {
                Duration::from_micros(u64::try_from(ran.load(Ordering::SeqCst)).unwrap_or(0))
            }
        }
    }
}

impl Readings {
    /// Returns the readings at a later time.
    fn next(self, wall: Timestamp, ran: Duration) -> Self {
        let passed = ran.saturating_sub(self.at);
        let steady = self.steady.plus(passed).max(wall);
        let believed = self.believed.plus(passed);
        let ahead = wall.since(believed);
        let believed = if ahead <= JUMP_MAX {
            believed.max(wall)
        } else {
            believed.plus(passed.saturating_mul(CATCH_UP).min(ahead))
        };
        Self { wall, steady, believed, at: self.at.max(ran) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const DAY: Duration = Duration::from_secs(24 * 3600);
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

    fn start() -> Timestamp {
        "2026-11-20T09:30:00Z".parse().unwrap()
    }

    #[test]
    fn clock_without_jumps_has_one_time() {
        let clock = Clock::scripted(start());
        for _ in 0..50 {
            clock.advance(DAY);
            assert_eq!((clock.steady(), clock.believed()), (clock.now(), clock.now()));
            assert_eq!(clock.ahead(), None);
        }
        assert_eq!(clock.monotonic(), 50 * DAY);
    }

    #[test]
    fn clock_steady_time_never_goes_back() {
        let clock = Clock::scripted(start());
        clock.advance(HOUR);
        let due = clock.steady().plus(Duration::from_secs(1));
        clock.set(start());
        assert!(clock.steady() < due);
        clock.advance(Duration::from_secs(1));
        assert_eq!(clock.steady(), due);
        assert_eq!(clock.now(), start().plus(Duration::from_secs(1)));
        // Once the machine's time is later than the steady time again, the steady time follows it.
        clock.set(start().plus(DAY));
        assert_eq!(clock.steady(), clock.now());
    }

    /// The monotonic clock does not count the time during which a machine is suspended.
    #[test]
    fn clock_steady_time_counts_what_passes_while_machine_is_suspended() {
        for asleep in [HOUR, DAY, YEAR] {
            let clock = Clock::scripted(start());
            let due = clock.steady().plus(asleep / 2);
            clock.advance(Duration::from_secs(1));
            clock.set(clock.now().plus(asleep));
            assert!(clock.steady() >= due, "{asleep:?}");
            assert_eq!(clock.monotonic(), Duration::from_secs(1));
        }
    }

    #[test]
    fn clock_year_jump_is_believed_after_days_and_never_if_undone() {
        let clock = Clock::scripted(start());
        clock.set(start().plus(YEAR));
        assert_eq!((clock.believed(), clock.ahead()), (start(), Some(YEAR)));
        clock.advance(DAY);
        assert!(clock.ahead().is_some());
        assert!(clock.believed() <= start().plus(50 * DAY), "{}", clock.believed());
        clock.set(start().plus(DAY));
        assert_eq!(clock.ahead(), None);
        clock.set(start().plus(YEAR));
        for _ in 0..10 {
            clock.advance(DAY);
        }
        assert_eq!((clock.believed(), clock.ahead()), (clock.now(), None), "in the end it is");
    }

    #[test]
    fn clock_believes_time_after_power_off_within_hours() {
        let clock = Clock::scripted(start());
        clock.restore(start().before(3 * DAY).unwrap(), None);
        assert_eq!(clock.ahead(), Some(3 * DAY));
        clock.advance(HOUR);
        assert!(clock.ahead().is_some_and(|ahead| ahead <= DAY) || clock.ahead().is_none());
        clock.advance(HOUR);
        assert_eq!((clock.ahead(), clock.believed()), (None, clock.now()));
        // The clock was set back while the machine was off; the steady time continues from its last
        // value.
        let back = Clock::scripted(start());
        back.restore(start().plus(DAY), None);
        assert_eq!((back.steady(), back.believed()), (start().plus(DAY), start().plus(DAY)));
        back.advance(HOUR);
        assert_eq!(back.steady(), start().plus(DAY).plus(HOUR));
    }

    #[test]
    fn clock_steady_time_advances_while_process_is_down() {
        let down = |last: Now, wall: Timestamp| {
            let clock = Clock::scripted(wall);
            clock.restore(start(), Some(last));
            clock.steady()
        };
        // The clock was a year ahead, and was corrected before the process ended.
        let ahead = Now { wall: start(), steady: start().plus(YEAR) };
        assert_eq!(down(ahead, start().plus(HOUR)), ahead.steady.plus(HOUR));
        // An implausible clock does not advance the steady time.
        assert_eq!(down(ahead, start().plus(2 * DAY)), ahead.steady);
        assert_eq!(down(ahead, start().before(HOUR).unwrap()), ahead.steady);
        // The clock was an hour behind, and is corrected.
        let behind = Now { wall: start(), steady: start().plus(HOUR) };
        let right = start().plus(HOUR + Duration::from_secs(1));
        assert_eq!(down(behind, right), right);
        assert_eq!(down(behind, start().plus(HOUR / 2)), behind.steady.plus(HOUR / 2));
    }

    #[tokio::test]
    async fn clock_jump_is_announced_in_both_directions() {
        let clock = Clock::scripted(start());
        for to in [start().plus(YEAR), start(), start().before(HOUR).unwrap()] {
            clock.set(to);
            let _noticed = clock.steady();
            tokio::time::timeout(Duration::ZERO, clock.jumped()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn clock_forward_jump_is_announced_and_survives_restart() {
        let clock = Clock::scripted(start());
        clock.advance(HOUR);
        clock.set(start().plus(HOUR + NOTED));
        let _noise = clock.steady();
        let announced = async |clock: &Clock| {
            tokio::time::timeout(Duration::ZERO, clock.jumped()).await.is_ok()
        };
        assert!(!announced(&clock).await, "a correction is not a jump");
        clock.set(start().plus(YEAR));
        let due = clock.steady().plus(Duration::from_secs(1));
        let believed = clock.believed();
        assert!(announced(&clock).await);
        assert!(!announced(&clock).await);
        // The clock is corrected while the process is down.
        let next = Clock::scripted(start().plus(HOUR));
        let last =
            Now { wall: start().plus(YEAR), steady: due.before(Duration::from_secs(1)).unwrap() };
        next.restore(believed, Some(last));
        assert!(next.steady() < due);
        next.advance(Duration::from_secs(1));
        assert_eq!(next.steady(), due);
        assert_eq!((next.ahead(), next.now()), (None, start().plus(HOUR + Duration::from_secs(1))));
    }
}
