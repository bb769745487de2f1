//! Money, in whole millionths of a US dollar, so that addition never rounds.
//!
//! Floating-point amounts are never added here. Floating-point amounts appear only at the boundary,
//! because JSON and TOML use dollars.

use std::fmt;
use std::iter::Sum;
use std::ops::Neg;

use serde::{Deserialize, Serialize};

/// Whole micro-dollars: 1_000_000 is one US dollar.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Usd(i64);

/// Maximum amount in dollars that is accepted.
const LIMIT_DOLLARS: f64 = 9.0e9;

impl Usd {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// Converts from whole micro-dollars.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Converts to whole micro-dollars.
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Converts from dollars, rounded to the nearest millionth, half away from zero. `None` if the
    /// amount is not finite or exceeds 9 billion dollars.
    #[must_use]
    pub fn from_dollars(dollars: f64) -> Option<Self> {
        if !dollars.is_finite() || dollars.abs() > LIMIT_DOLLARS {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "bounded by LIMIT_DOLLARS above")]
        Some(Self((dollars * 1e6).round() as i64))
    }

    /// Converts from dollars, rounded up to a whole millionth and clamped to the maximum of
    /// [`Self::from_dollars`]. Used for reservations.
    #[must_use]
    pub fn from_dollars_up(dollars: f64) -> Self {
        let nearest = Self::from_dollars(dollars.min(LIMIT_DOLLARS)).unwrap_or(Self::ZERO);
        // Values within the floating-point error are not rounded up.
        if nearest.dollars() + 1e-9 < dollars { nearest.plus(Self(1)) } else { nearest }
    }

    /// Converts to dollars for JSON. Exact to the millionth below 9 billion dollars.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "amounts stay far below 2^53 micro-dollars")]
    pub fn dollars(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Returns whether the amount is zero.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// Adds two amounts, saturating at the ends of the range.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Neg for Usd {
    type Output = Self;
    fn neg(self) -> Self {
        Self(self.0.saturating_neg())
    }
}

impl Sum for Usd {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Self::plus)
    }
}

impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let micros = self.0.unsigned_abs();
        write!(f, "{sign}{}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usd_rounds_to_nearest_millionth() {
        for (dollars, micros) in
            [(0.002, 2000), (53.475, 53_475_000), (1e-6, 1), (4e-7, 0), (-0.5, -500_000)]
        {
            assert_eq!(Usd::from_dollars(dollars), Some(Usd::from_micros(micros)), "{dollars}");
        }
        for dollars in [f64::NAN, f64::INFINITY, 1e10] {
            assert_eq!(Usd::from_dollars(dollars), None);
        }
    }

    #[test]
    fn usd_reserved_rounds_up() {
        for (dollars, micros) in [
            (0.0, 0),
            (1e-8, 1),
            (0.002004, 2004),
            (0.002_004_1, 2005),
            (1e10, 9_000_000_000_000_001),
        ] {
            assert_eq!(Usd::from_dollars_up(dollars), Usd::from_micros(micros), "{dollars}");
        }
    }

    #[test]
    fn usd_displays_six_decimal_places() {
        assert_eq!(Usd::from_micros(-53_475_001).to_string(), "-53.475001");
        assert_eq!(Usd::ZERO.to_string(), "0.000000");
    }

    #[test]
    fn usd_small_amounts_sum_exactly() {
        let sum: Usd = std::iter::repeat_n(Usd::from_micros(1), 200).sum();
        assert_eq!(sum, Usd::from_micros(200));
        assert!((sum.dollars() - 0.0002).abs() < f64::EPSILON);
    }
}
