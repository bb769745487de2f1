//! How long things took, in a bounded number of buckets: counted without a lock, read at any moment. The
//! difference of two readings is what happened between them. Knows no clock.

use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Buckets of a [`Meter`], four to each doubling: from a microsecond to 19 hours, none wider than a quarter of
/// what it begins with.
const BUCKETS: usize = 140;

/// A number of times that were at least `from` and less than `to`, in seconds. A bucket without an upper end has
/// [`f64::MAX`], which JSON can hold.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "(f64, f64, u64)", into = "(f64, f64, u64)")]
pub struct Bucket {
    pub from: f64,
    pub to: f64,
    pub count: u64,
}

impl From<(f64, f64, u64)> for Bucket {
    fn from((from, to, count): (f64, f64, u64)) -> Self {
        Self { from, to, count }
    }
}

impl From<Bucket> for (f64, f64, u64) {
    fn from(bucket: Bucket) -> Self {
        (bucket.from, bucket.to, bucket.count)
    }
}

/// Counted times: the buckets that have any, the shortest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram {
    buckets: Vec<Bucket>,
}

impl Histogram {
    /// Of these buckets; empty ones are left out.
    #[must_use]
    pub fn of(buckets: impl IntoIterator<Item = Bucket>) -> Self {
        let mut buckets: Vec<Bucket> =
            buckets.into_iter().filter(|bucket| bucket.count > 0).collect();
        buckets.sort_by(|one, other| one.to.total_cmp(&other.to));
        Self { buckets }
    }

    /// How many times were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.count))
    }

    /// What was counted since an earlier reading of the same. A reading of another process, which has
    /// counted less, begins at nothing.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |to: f64| {
            let found =
                earlier.buckets.iter().find(|bucket| bucket.to.total_cmp(&to) == Order::Equal);
            found.map_or(0, |bucket| bucket.count)
        };
        Self::of(self.buckets.iter().map(|bucket| Bucket {
            count: bucket.count.saturating_sub(before(bucket.to)),
            ..*bucket
        }))
    }

    /// All of them together.
    #[must_use]
    pub fn sum(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut buckets: Vec<Bucket> = Vec::new();
        for bucket in parts.into_iter().flat_map(|part| part.buckets) {
            let is_same = |one: &&mut Bucket| (one.from, one.to) == (bucket.from, bucket.to);
            match buckets.iter_mut().find(is_same) {
                Some(one) => one.count = one.count.saturating_add(bucket.count),
                None => buckets.push(bucket),
            }
        }
        Self::of(buckets)
    }

    /// The time, in seconds, that this part of all (0 to 1) did not exceed: within its bucket, as if the times
    /// in it were spread evenly. `None` when nothing was counted.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let wanted = part.clamp(0.0, 1.0) * self.count() as f64;
        let mut below = 0.0;
        for bucket in &self.buckets {
            let count = bucket.count as f64;
            if below + count >= wanted {
                // What has no upper end is said by its lower one.
                let width = if bucket.to < f64::MAX { bucket.to - bucket.from } else { 0.0 };
                return Some(bucket.from + width * ((wanted - below) / count).clamp(0.0, 1.0));
            }
            below += count;
        }
        None
    }
}

/// Counts times; any number of threads at once.
#[derive(Debug)]
pub struct Meter {
    counts: [AtomicU64; BUCKETS],
}

impl Default for Meter {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS] }
    }
}

impl Meter {
    /// Counts one.
    pub fn record(&self, took: Duration) {
        if let Some(count) = self.counts.get(place(took)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What was counted up to now.
    #[must_use]
    pub fn read(&self) -> Histogram {
        Histogram::of(self.counts.iter().enumerate().map(|(place, count)| Bucket {
            from: lower_end(place),
            to: lower_end(place + 1),
            count: count.load(Ordering::Relaxed),
        }))
    }
}

/// The bucket of a time. Below four microseconds each has its own; above, the two bits behind the highest one
/// choose among four.
fn place(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let place = match micros.checked_ilog2() {
        None | Some(0 | 1) => micros,
        Some(highest) => u64::from(4 * (highest - 1)) + ((micros >> (highest - 2)) & 3),
    };
    usize::try_from(place).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// Where a bucket begins, in seconds.
fn lower_end(place: usize) -> f64 {
    let micros = match place {
        0..4 => place as f64,
        _ => ((4 + place % 4) as f64) * 2_f64.powi(i32::try_from(place / 4).unwrap_or(0) - 1),
    };
    micros / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meter_puts_each_time_between_the_ends_of_its_bucket() {
        for micros in
            (0..5000).chain((1..40).map(|power| 1_u64 << power).filter(|it| *it < 1 << 36))
        {
            let place = place(Duration::from_micros(micros));
            let (from, to) = (lower_end(place) * 1e6, lower_end(place + 1) * 1e6);
            let micros = micros as f64;
            assert!(from <= micros + 1e-6 && micros < to + 1e-6, "{micros} in {from}..{to}");
            assert!(to - from <= (from / 4.0).max(1.0) + 1e-6, "{from}..{to} is wide");
        }
        let longest = Duration::from_secs(u64::MAX);
        assert_eq!(place(longest), BUCKETS - 1);
    }

    #[test]
    fn histogram_quantiles_are_within_a_bucket_of_the_truth() {
        let meter = Meter::default();
        assert_eq!(meter.read().quantile(0.5), None);
        for millis in 1..=1000 {
            meter.record(Duration::from_millis(millis));
        }
        let read = meter.read();
        assert_eq!(read.count(), 1000);
        for (part, expect) in [(0.5, 0.5), (0.99, 0.99), (0.0, 0.001), (1.0, 1.0)] {
            let found = read.quantile(part).unwrap();
            assert!((found - expect).abs() <= expect * 0.13, "{part}: {found}");
        }
    }

    #[test]
    fn histogram_difference_is_what_happened_in_between() {
        let meter = Meter::default();
        meter.record(Duration::from_millis(1));
        let before = meter.read();
        assert_eq!(before.since(&before), Histogram::default());
        meter.record(Duration::from_millis(1));
        meter.record(Duration::from_secs(2));
        let since = meter.read().since(&before);
        assert_eq!(since.count(), 2);
        assert!(since.quantile(1.0).unwrap() > 1.0);
        let sum = Histogram::sum([since.clone(), since]);
        assert_eq!((sum.count(), sum.buckets.len()), (4, 2));
        // A service that has started again counts from nothing.
        assert_eq!(before.since(&meter.read()).count(), 0);
    }

    #[test]
    fn histogram_without_upper_end_says_the_lower_one() {
        let open = Bucket { from: 60.0, to: f64::MAX, count: 2 };
        assert_eq!(Histogram::of([open]).quantile(0.9), Some(60.0));
    }

    #[test]
    fn histogram_is_written_as_triples() {
        let read = Histogram::of([Bucket { from: 0.5, to: 1.0, count: 3 }]);
        let text = serde_json::to_string(&read).unwrap();
        assert_eq!(text, "[[0.5,1.0,3]]");
        assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), read);
    }
}
