//! A point in time, in whole microseconds since 1970 in UTC, printed as in the API.
//!
//! Nothing here reads a clock; `runtime::Clock` does, and passes the time in.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

/// A UTC timestamp. Stored as an integer of microseconds; printed as RFC 3339 with milliseconds
/// (`2026-11-20T09:30:00.123Z`, `docs/spec/hosts.md`, "Notation").
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

/// Maximum duration that a client or an operator may enter: 1,000 years of 365.25 days. The sum of
/// this duration and any time up to the year 8999 is still representable in RFC 3339.
pub const SPAN_MAX: Duration = Duration::from_secs(365_250 * 24 * 3600);

/// Why a string is not a valid time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("not an RFC 3339 time such as 2026-11-20T09:30:00Z")]
    Form,
    /// RFC 3339 allows only four-digit years, so the time could not be parsed again once printed.
    #[error("outside the years 0000 to 9999 in UTC")]
    Year,
}

impl Timestamp {
    /// The earliest time in RFC 3339: 0000-01-01T00:00:00Z.
    pub const FIRST: Self = Self(-62_167_219_200_000_000);
    /// The latest time in RFC 3339: 9999-12-31T23:59:59.999999Z.
    pub const LAST: Self = Self(253_402_300_799_999_999);

    /// Converts from microseconds since 1970-01-01T00:00:00Z.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Converts to microseconds since 1970-01-01T00:00:00Z.
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Returns the whole seconds since 1970, rounded down, as in `X-Webhook-Timestamp`.
    #[must_use]
    pub const fn unix_seconds(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// Returns the end of this millisecond. Printed times are truncated to milliseconds, so all
    /// times of the millisecond print the same.
    #[must_use]
    pub const fn end_of_millisecond(self) -> Self {
        Self(self.0.saturating_add(999 - self.0.rem_euclid(1000)))
    }

    /// Subtracts `span`; `None` on overflow.
    #[must_use]
    pub fn before(self, span: Duration) -> Option<Self> {
        let micros = i64::try_from(span.as_micros()).ok()?;
        Some(Self::from_micros(self.micros().checked_sub(micros)?))
    }

    /// Adds `span`, saturating on overflow.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros))
    }

    /// Adds `span`; `None` if it exceeds [`SPAN_MAX`] or the result exceeds [`Timestamp::LAST`].
    #[must_use]
    pub fn checked_plus(self, span: Duration) -> Option<Self> {
        Some(self.plus(span)).filter(|sum| span <= SPAN_MAX && *sum <= Self::LAST)
    }

    /// Returns the time since `earlier`; zero if `earlier` is later, such as after the clock was
    /// set back.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Returns the HTTP date format: `Sun, 06 Nov 1994 08:49:37 GMT`.
    #[must_use]
    pub fn http_date(self) -> String {
        self.to_utc().format("%a, %d %b %Y %H:%M:%S GMT").to_string()
    }

    /// Clamps to the printable range, because earlier releases stored times beyond it.
    fn to_utc(self) -> DateTime<Utc> {
        let Self(micros) = self.clamp(Self::FIRST, Self::LAST);
        DateTime::from_timestamp_micros(micros).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }

    /// Returns eight bytes that sort by time. Times before 1970 are encoded as 1970.
    #[must_use]
    pub fn sortable(self) -> [u8; 8] {
        u64::try_from(self.0).unwrap_or(0).to_be_bytes()
    }

    /// Decodes the bytes that [`Timestamp::sortable`] returns.
    #[must_use]
    pub fn from_sortable(bytes: [u8; 8]) -> Self {
        Self(i64::try_from(u64::from_be_bytes(bytes)).unwrap_or(i64::MAX))
    }
}

/// The current time on both clocks that a state change needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Wall-clock time: for timestamps that people and other machines read.
    pub wall: Timestamp,
    /// Time on a clock that never goes back, for due times.
    pub steady: Timestamp,
}

impl Now {
    /// Returns the time at which both clocks read `moment`, as if the wall clock had never been
    /// set.
    #[must_use]
    pub const fn at(moment: Timestamp) -> Self {
        Self { wall: moment, steady: moment }
    }

    /// Returns the steady time at which the wall clock will read `moment`, or the current steady
    /// time if `moment` has passed.
    #[must_use]
    pub fn due_at(self, moment: Timestamp) -> Timestamp {
        self.steady.plus(moment.since(self.wall))
    }

    /// Returns the wall-clock time at which the steady clock will read `due`.
    #[must_use]
    pub fn shown(self, due: Timestamp) -> Timestamp {
        due.before(self.steady.since(self.wall)).unwrap_or(due)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_utc().to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

impl FromStr for Timestamp {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let moment = DateTime::parse_from_rfc3339(text).map_err(|_not_rfc3339| Invalid::Form)?;
        let moment = Self(moment.timestamp_micros());
        let can_be_written = (Self::FIRST..=Self::LAST).contains(&moment);
        if can_be_written { Ok(moment) } else { Err(Invalid::Year) }
    }
}

/// Parses a duration such as `90d`, `1h 30m` or `1y`. A year has 365 days and a month 30.
#[must_use]
pub fn span(text: &str) -> Option<Duration> {
    // humantime uses the average length of a calendar year, which is almost six hours longer.
    let mut in_days = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(|letter: char| letter.is_ascii_alphabetic()) {
        let (number, unit) = rest.split_at(start);
        let end = unit.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(unit.len());
        let (unit, after) = unit.split_at(end);
        let days = match unit {
            "y" | "yr" | "yrs" | "year" | "years" => Some(365),
            "M" | "month" | "months" => Some(30),
            _ => None,
        };
        let whole = || number.trim().parse::<u64>().ok();
        in_days.push(' ');
        match days.and_then(|days| whole()?.checked_mul(days)) {
            Some(days) => in_days.push_str(&format!("{days}d")),
            None => in_days.extend([number, unit]),
        }
        rest = after;
    }
    in_days.push_str(rest);
    humantime::parse_duration(&in_days).ok()
}

/// Prints a duration in units of days and below: `366d`, `1h 30m`.
#[must_use]
pub fn span_text(span: Duration) -> String {
    const UNITS: [(&str, u128); 5] =
        [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
    let mut left = span.as_millis();
    let mut parts = Vec::new();
    for (unit, millis) in UNITS {
        if left >= millis {
            parts.push(format!("{}{unit}", left / millis));
            left %= millis;
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn timestamp_displays_milliseconds_in_utc() {
        let moment: Timestamp = "2026-11-20T10:30:00.123456+01:00".parse().unwrap();
        assert_eq!(moment.to_string(), "2026-11-20T09:30:00.123Z");
        assert_eq!(moment.unix_seconds(), 1_795_167_000);
        assert_eq!("yesterday".parse::<Timestamp>(), Err(Invalid::Form));
    }

    #[test]
    fn timestamp_as_http_date_has_four_digit_years() {
        let moment: Timestamp = "1994-11-06T08:49:37.9Z".parse().unwrap();
        assert_eq!(moment.http_date(), "Sun, 06 Nov 1994 08:49:37 GMT");
        let beyond = Timestamp::from_micros(i64::MAX);
        assert_eq!(beyond.http_date(), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn timestamp_outside_four_digit_years_is_rejected_and_never_printed() {
        for text in [
            "9999-12-31T23:59:59-12:00",
            "0000-01-01T00:00:00+12:00",
            "9999-12-31T23:59:60Z",
            "9999-12-31T23:59:59.9999999-00:01",
        ] {
            assert_eq!(text.parse::<Timestamp>(), Err(Invalid::Year), "{text}");
        }
        for (moment, text) in [
            (Timestamp::FIRST, "0000-01-01T00:00:00.000Z"),
            (Timestamp::LAST, "9999-12-31T23:59:59.999Z"),
            // As stored by earlier releases.
            (Timestamp::from_micros(i64::MIN), "0000-01-01T00:00:00.000Z"),
            (Timestamp::from_micros(i64::MAX), "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(moment.to_string(), text);
            assert!(text.parse::<Timestamp>().is_ok(), "{text}");
        }
        let now: Timestamp = "2026-11-20T09:30:00Z".parse().unwrap();
        assert!(now.checked_plus(SPAN_MAX).is_some());
        assert_eq!(now.checked_plus(SPAN_MAX + Duration::from_secs(1)), None);
        assert_eq!(Timestamp::LAST.checked_plus(Duration::from_secs(1)), None);
    }

    #[test]
    fn span_of_one_year_is_365_days() {
        let days = |count: u64| Some(Duration::from_secs(count * 86_400));
        for (text, expect) in [
            ("1y", days(365)),
            ("2 years", days(730)),
            ("1month", days(30)),
            ("1y 6M 1d", days(365 + 180 + 1)),
            ("1y2h", days(365).map(|year| year + Duration::from_secs(7200))),
            ("90d", days(90)),
            ("1h 30m", Some(Duration::from_secs(5400))),
            ("300ms", Some(Duration::from_millis(300))),
            (" 10s ", Some(Duration::from_secs(10))),
            ("0", Some(Duration::ZERO)),
        ] {
            assert_eq!(span(text), expect, "{text}");
        }
        for wrong in ["", "y", "10", "tomorrow", "1y tomorrow", "-1y", "99999999999999999999y"] {
            assert_eq!(span(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn span_text_has_no_years() {
        for (seconds, text) in [
            (3650 * 86_400, "3650d"),
            (366 * 86_400, "366d"),
            (60, "1m"),
            (5400, "1h 30m"),
            (0, "0s"),
        ] {
            assert_eq!(span_text(Duration::from_secs(seconds)), text);
        }
        assert_eq!(span_text(Duration::from_millis(1500)), "1s 500ms");
    }

    #[test]
    fn timestamp_millisecond_ends_before_the_next() {
        let of = |micros| Timestamp::from_micros(micros).end_of_millisecond().micros();
        assert_eq!([0, 1, 999, 1000, -1, -1000].map(of), [999, 999, 999, 1999, -1, -1]);
        assert_eq!(of(i64::MAX), i64::MAX);
    }

    #[test]
    fn timestamp_arithmetic_saturates() {
        let now = Timestamp::from_micros(10);
        assert_eq!(now.since(Timestamp::from_micros(20)), Duration::ZERO);
        assert_eq!(now.plus(Duration::MAX), Timestamp::from_micros(i64::MAX));
    }

    #[test]
    fn timestamp_due_time_is_shown_in_wall_clock_time() {
        let of = Timestamp::from_micros;
        let ahead = Now { wall: of(100), steady: of(1100) };
        assert_eq!((ahead.due_at(of(150)), ahead.due_at(of(50))), (of(1150), of(1100)));
        assert_eq!(ahead.shown(of(1150)), of(150));
        assert_eq!(Now::at(of(100)).shown(of(150)), of(150));
    }

    proptest! {
        #[test]
        fn timestamp_accepted_from_text_round_trips(micros in any::<i64>(), offset in -1439_i32..1440) {
            let printed = Timestamp::from_micros(micros).to_string();
            let read: Timestamp = printed.parse().unwrap();
            prop_assert_eq!(&read.to_string(), &printed);
            // The same local time in another zone may be in a different UTC year.
            let (sign, minutes) = (if offset < 0 { '-' } else { '+' }, offset.abs());
            let zone = format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60);
            if let Ok(moment) = printed.replace('Z', &zone).parse::<Timestamp>() {
                let again: Timestamp = moment.to_string().parse().unwrap();
                prop_assert_eq!(again, moment, "{}{}", printed, zone);
            }
        }

        #[test]
        fn timestamp_sortable_bytes_sort_as_time(a in 0_i64..i64::MAX, b in 0_i64..i64::MAX) {
            let a = Timestamp::from_micros(a);
            let b = Timestamp::from_micros(b);
            prop_assert_eq!(a.sortable().cmp(&b.sortable()), a.cmp(&b));
            prop_assert_eq!(Timestamp::from_sortable(a.sortable()), a);
        }
    }
}
