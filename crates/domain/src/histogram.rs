//! Histograms of durations with a bounded number of buckets: recorded without locks, readable at
//! any time. The difference between two readings covers the time between them. Reads no clock.

use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Number of buckets of a [`Meter`], four per power of two. The buckets cover a microsecond to 19
/// hours, and no bucket is wider than a quarter of its lower bound.
const BUCKETS: usize = 140;

/// The number of durations of at least `from` and less than `to` seconds. In a bucket without an
/// upper bound, `to` is [`f64::MAX`], which JSON can represent.
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

/// Recorded durations: the non-empty buckets in ascending order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram {
    buckets: Vec<Bucket>,
}

impl Histogram {
    /// Creates a histogram of these buckets, dropping the empty ones.
    #[must_use]
    pub fn of(buckets: impl IntoIterator<Item = Bucket>) -> Self {
        let mut buckets: Vec<Bucket> =
            buckets.into_iter().filter(|bucket| bucket.count > 0).collect();
        buckets.sort_by(|one, other| one.to.total_cmp(&other.to));
        Self { buckets }
    }

    /// Returns the number of recorded durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.count))
    }

    /// Returns the durations recorded since an earlier reading. If the process has restarted in
    /// between, counts that would be negative become zero.
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

    /// Merges histograms.
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

    /// Returns the duration in seconds below which this `part` (0 to 1) of all durations lies,
    /// interpolated linearly within its bucket. `None` if nothing was recorded.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let wanted = part.clamp(0.0, 1.0) * self.count() as f64;
        let mut below = 0.0;
        for bucket in &self.buckets {
            let count = bucket.count as f64;
            if below + count >= wanted {
                // A bucket without an upper bound is represented by its lower bound.
                let width = if bucket.to < f64::MAX { bucket.to - bucket.from } else { 0.0 };
                return Some(bucket.from + width * ((wanted - below) / count).clamp(0.0, 1.0));
            }
            below += count;
        }
        None
    }
}

/// Records durations; can be shared between threads.
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
    /// Records a duration.
    pub fn record(&self, took: Duration) {
        if let Some(count) = self.counts.get(place(took)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads all durations recorded so far.
    #[must_use]
    pub fn read(&self) -> Histogram {
        Histogram::of(self.counts.iter().enumerate().map(|(place, count)| Bucket {
            from: lower_end(place),
            to: lower_end(place + 1),
            count: count.load(Ordering::Relaxed),
        }))
    }
}

/// Returns the bucket index of a duration. Durations below four microseconds have a bucket for each
/// value; above that, the two bits after the highest set bit select one of four buckets.
fn place(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let place = match micros.checked_ilog2() {
        None | Some(0 | 1) => micros,
        Some(highest) => u64::from(4 * (highest - 1)) + ((micros >> (highest - 2)) & 3),
    };
    usize::try_from(place).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// Returns the lower bound of a bucket, in seconds.
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
    fn meter_records_each_duration_within_bounds_of_its_bucket() {
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
    fn histogram_quantiles_are_accurate_to_a_bucket() {
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
    fn histogram_difference_covers_time_between_readings() {
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
        // A restarted service counts from zero.
        assert_eq!(before.since(&meter.read()).count(), 0);
    }

    #[test]
    fn histogram_quantile_of_unbounded_bucket_is_its_lower_bound() {
        let open = Bucket { from: 60.0, to: f64::MAX, count: 2 };
        assert_eq!(Histogram::of([open]).quantile(0.9), Some(60.0));
    }

    #[test]
    fn histogram_serializes_as_triples() {
        let read = Histogram::of([Bucket { from: 0.5, to: 1.0, count: 3 }]);
        let text = serde_json::to_string(&read).unwrap();
        assert_eq!(text, "[[0.5,1.0,3]]");
        assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), read);
    }
}
