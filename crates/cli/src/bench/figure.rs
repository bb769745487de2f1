//! Benchmark results with their units, and the report that contains them, which can be saved and
//! compared with a later report.

use serde::{Deserialize, Serialize};

use super::machine::Machine;
use crate::measures::{amount, grouped, time};

/// Version of the report format. Incompatible formats get a new number.
pub(super) const FORMAT: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    PerSecond,
    /// The only unit in which lower values are better.
    Seconds,
    MegabytesPerSecond,
    TokensPerSecond,
}

impl Unit {
    /// Formats a value in this unit.
    pub(super) fn show(self, value: f64) -> String {
        match self {
            Self::PerSecond if value >= 100.0 => format!("{}/s", grouped(value)),
            Self::PerSecond => format!("{}/s", amount(value)),
            Self::Seconds => time(value),
            Self::MegabytesPerSecond => format!("{} MB/s", amount(value)),
            Self::TokensPerSecond => format!("{} tokens/s", amount(value)),
        }
    }
}

/// A result: the median of its rounds, and the lowest and highest value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Figure {
    /// The id. The meaning of an id never changes.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) unit: Unit,
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Figure {
    /// Computes a result from the values of its rounds; `None` if there are no rounds.
    pub(super) fn of(id: &str, name: &str, unit: Unit, mut rounds: Vec<f64>) -> Option<Self> {
        rounds.sort_by(f64::total_cmp);
        let value = quantile(&rounds, 0.5)?;
        let (low, high) = (*rounds.first()?, *rounds.last()?);
        Some(Self { id: id.to_owned(), name: name.to_owned(), unit, value, low, high })
    }

    /// Returns the speedup over an earlier result. In every unit, a value above 1 is an
    /// improvement.
    pub(super) fn speed_against(&self, earlier: &Self) -> Option<f64> {
        let (more, less) = match self.unit {
            Unit::Seconds => (earlier.value, self.value),
            Unit::PerSecond | Unit::MegabytesPerSecond | Unit::TokensPerSecond => {
                (self.value, earlier.value)
            }
        };
        (self.unit == earlier.unit && more > 0.0 && less > 0.0).then(|| more / less)
    }
}

/// Returns a quantile of sorted values, with linear interpolation.
pub(super) fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = part.clamp(0.0, 1.0) * last as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within the values"
    )]
    let below = place as usize;
    let from = sorted.get(below)?;
    let to = sorted.get((below + 1).min(last))?;
    Some(from + (to - from) * (place - below as f64))
}

/// The report of a complete run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) format: u32,
    pub(super) version: String,
    /// Whether the binary was built with optimization. The results of an unoptimized build are
    /// meaningless.
    pub(super) is_optimized: bool,
    pub(super) measured_at: String,
    /// Duration of the complete run, in seconds.
    pub(super) seconds: f64,
    /// Number of rounds of each measurement.
    pub(super) rounds: usize,
    pub(super) machine: Machine,
    pub(super) figures: Vec<Figure>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(unit: Unit, rounds: &[f64]) -> Figure {
        Figure::of("x", "X", unit, rounds.to_vec()).unwrap()
    }

    #[test]
    fn figure_is_the_median_of_its_rounds() {
        let figure = figure(Unit::PerSecond, &[3.0, 1.0, 2.0]);
        assert_eq!((figure.value, figure.low, figure.high), (2.0, 1.0, 3.0));
        assert_eq!(Figure::of("x", "X", Unit::Seconds, Vec::new()), None);
        let values: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.99), Some(99.0));
        assert_eq!(quantile(&[1.0, 2.0], 0.5), Some(1.5));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn speed_above_one_means_better() {
        let speed = |unit, earlier: f64, now: f64| {
            figure(unit, &[now]).speed_against(&figure(unit, &[earlier]))
        };
        assert_eq!(speed(Unit::PerSecond, 100.0, 150.0), Some(1.5));
        assert_eq!(speed(Unit::Seconds, 0.003, 0.001).map(f64::round), Some(3.0));
        assert_eq!(speed(Unit::Seconds, 0.001, 0.004), Some(0.25));
        assert_eq!(speed(Unit::PerSecond, 0.0, 1.0), None);
        assert_eq!(speed(Unit::PerSecond, f64::NAN, 1.0), None);
        let other = figure(Unit::Seconds, &[1.0]);
        assert_eq!(figure(Unit::PerSecond, &[1.0]).speed_against(&other), None);
    }

    #[test]
    fn values_are_shown_in_their_unit() {
        assert_eq!(Unit::PerSecond.show(12_345.6), "12,346/s");
        assert_eq!(Unit::PerSecond.show(123_456.0), "123,456/s");
        assert_eq!(Unit::PerSecond.show(3.25), "3.2/s");
        assert_eq!(Unit::Seconds.show(0.00123), "1.2 ms");
        assert_eq!(Unit::MegabytesPerSecond.show(812.4), "812 MB/s");
        assert_eq!(Unit::TokensPerSecond.show(7.25), "7.2 tokens/s");
    }
}
