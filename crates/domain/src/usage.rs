//! Periods of usage (days and calendar months in UTC), and the requests, tokens and cost of a
//! period.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Datelike as _, NaiveDate};

use super::chat::Tokens;
use super::money::Usd;
use super::time::Timestamp;

/// The number of days from January 1 of year 1 to January 1, 1970, plus one.
const EPOCH: i32 = 719_163;
/// The years that a day can have in its text form.
const YEARS: std::ops::RangeInclusive<i32> = 1970..=9999;

/// A day in UTC: the number of days since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(u32);

impl Day {
    /// Returns the day of a moment. A moment before 1970 counts as the first day of 1970.
    #[must_use]
    pub fn of(moment: Timestamp) -> Self {
        let date = DateTime::from_timestamp_micros(moment.micros()).map(|time| time.date_naive());
        Self::on(date.unwrap_or_default())
    }

    fn on(date: NaiveDate) -> Self {
        Self(u32::try_from(date.num_days_from_ce().saturating_sub(EPOCH)).unwrap_or_default())
    }

    fn date(self) -> NaiveDate {
        let days = i32::try_from(self.0).unwrap_or(i32::MAX).saturating_add(EPOCH);
        NaiveDate::from_num_days_from_ce_opt(days).unwrap_or(NaiveDate::MAX)
    }

    /// Returns the number of days since 1970.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the day with this number of days since 1970.
    #[must_use]
    pub const fn numbered(number: u32) -> Self {
        Self(number)
    }

    /// Returns the day that is `days` later.
    #[must_use]
    pub const fn plus(self, days: u32) -> Self {
        Self(self.0.saturating_add(days))
    }

    /// Returns the day that is `days` earlier, but no day before 1970.
    #[must_use]
    pub const fn minus(self, days: u32) -> Self {
        Self(self.0.saturating_sub(days))
    }

    /// Returns the month of the day.
    #[must_use]
    pub fn month(self) -> Month {
        let date = self.date();
        let year = u32::try_from(date.year()).unwrap_or_default();
        Month(year.saturating_mul(12).saturating_add(date.month0()))
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.date().format("%Y-%m-%d").fmt(f)
    }
}

/// The error for a text that is not a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a day such as 2026-11-30")]
pub struct NotADay;

impl FromStr for Day {
    type Err = NotADay;

    fn from_str(text: &str) -> Result<Self, NotADay> {
        let is_shaped =
            text.len() == 10 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'-'));
        let date = is_shaped.then(|| NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()).flatten();
        date.filter(|date| YEARS.contains(&date.year())).map(Self::on).ok_or(NotADay)
    }
}

/// A calendar month in UTC: the year times twelve, plus the month counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Month(u32);

impl Month {
    /// Returns the month's number, which increases by one each month.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the month with this number.
    #[must_use]
    pub const fn numbered(number: u32) -> Self {
        Self(number)
    }

    /// Returns the first day of the month.
    #[must_use]
    pub fn first_day(self) -> Day {
        let year = i32::try_from(self.0 / 12).unwrap_or(i32::MAX);
        Day::on(NaiveDate::from_ymd_opt(year, self.0 % 12 + 1, 1).unwrap_or(NaiveDate::MAX))
    }

    /// Returns the last day of the month.
    #[must_use]
    pub fn last_day(self) -> Day {
        self.next().first_day().minus(1)
    }

    /// Returns the month after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns the start of the month.
    #[must_use]
    pub fn start(self) -> Timestamp {
        const DAY_MICROS: i64 = 86_400 * 1_000_000;
        Timestamp::from_micros(i64::from(self.first_day().number()).saturating_mul(DAY_MICROS))
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.0 / 12, self.0 % 12 + 1)
    }
}

/// The requests, tokens and cost of a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sums {
    /// Ended model calls.
    pub requests: u64,
    pub tokens: Tokens,
    pub cost: Usd,
}

impl Sums {
    /// Adds other sums.
    pub fn add(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.tokens.input = self.tokens.input.saturating_add(other.tokens.input);
        self.tokens.output = self.tokens.output.saturating_add(other.tokens.output);
        self.cost = self.cost.plus(other.cost);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn days_and_months_are_calendar_periods_in_utc() {
        let day = |text: &str| Day::of(text.parse().unwrap());
        assert_eq!(day("1970-01-01T23:59:59Z").number(), 0);
        assert_eq!(day("2026-11-30T23:59:59.999Z").to_string(), "2026-11-30");
        assert_eq!(day("2026-12-01T00:30:00+01:00").to_string(), "2026-11-30");
        let month = day("2024-02-10T00:00:00Z").month();
        let days = [month.first_day(), month.last_day()].map(|day| day.to_string());
        assert_eq!(
            (month.to_string().as_str(), days),
            ("2024-02", ["2024-02-01".to_owned(), "2024-02-29".to_owned()])
        );
        assert_eq!(month.start().to_string(), "2024-02-01T00:00:00.000Z");
        assert_eq!(day("2026-12-05T00:00:00Z").month().next().to_string(), "2027-01");
        assert_eq!(Day::of(Timestamp::from_micros(-1)).number(), 0);
        for text in
            ["", "2026-11", "2026-02-30", "2026-1-1", "20261-1-1", "1969-12-31", "+26-11-30"]
        {
            assert_eq!(text.parse::<Day>(), Err(NotADay), "{text}");
        }
    }

    proptest! {
        #[test]
        fn day_text_is_parsed_back(number in 0_u32..2_000_000) {
            let day = Day::numbered(number);
            prop_assert_eq!(day.to_string().parse(), Ok(day));
            let month = day.month();
            prop_assert!(month.first_day() <= day && day <= month.last_day());
            prop_assert_eq!(month.last_day().plus(1).month(), month.next());
        }
    }
}
