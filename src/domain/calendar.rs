//! Calendars: when a cron pattern fires in a time zone.
//!
//! A pattern has 5 fields (minute, hour, day of month, month, day of week) or 6 with seconds in front,
//! or is a nickname such as `@daily`. A pattern with one time of day is fixed; one with a list, a range,
//! a step or a wildcard in its second, minute or hour is not. Where clocks go forward, a fixed pattern
//! fires once behind the gap, and another one skips it. Where they go back, a fixed pattern fires in
//! the first of the two hours, and another one in both.
//!
//! Reads no clock, and the time zones are those that were compiled in.

use std::fmt;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

use super::time::Timestamp;

/// The longest pattern, in bytes: a list of every minute fits.
pub const CRON_BYTES_MAX: usize = 256;
/// The longest name of a time zone, in bytes.
const ZONE_BYTES_MAX: usize = 64;

/// Why a pattern or a time zone cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "cron must be 5 or 6 fields (second, minute, hour, day of month, month, day of week; the \
         second may be left out) or a nickname such as @daily: {0}"
    )]
    Cron(String),
    #[error("timezone must be the name of a time zone, such as Europe/Berlin or UTC")]
    Zone,
}

/// A pattern in its time zone.
#[derive(Clone)]
pub struct Calendar {
    cron: Cron,
    zone: Tz,
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({}, {})", self.cron.pattern, self.zone)
    }
}

impl Calendar {
    /// Reads a pattern and the IANA name of a time zone.
    ///
    /// # Errors
    /// [`Error`] says which of them cannot be used.
    pub fn parse(cron: &str, zone: &str) -> Result<Self, Error> {
        if cron.len() > CRON_BYTES_MAX {
            return Err(Error::Cron(format!("it is longer than {CRON_BYTES_MAX} bytes")));
        }
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed);
        let read = parser.build().parse(cron.trim());
        let cron = read.map_err(|error| Error::Cron(error.to_string()))?;
        let zone = Some(zone).filter(|zone| zone.len() <= ZONE_BYTES_MAX);
        let zone = zone.and_then(|zone| zone.parse().ok()).ok_or(Error::Zone)?;
        Ok(Self { cron, zone })
    }

    /// The first firing after a moment; none when the pattern never fires again.
    #[must_use]
    pub fn next_after(&self, moment: Timestamp) -> Option<Timestamp> {
        let start = self.local(moment)?;
        self.cron.find_next_occurrence(&start, false).ok().map(of_local)
    }

    /// The last firing up to a moment, that moment included.
    #[must_use]
    pub fn last_until(&self, moment: Timestamp) -> Option<Timestamp> {
        let start = self.local(moment)?;
        self.cron.find_previous_occurrence(&start, true).ok().map(of_local)
    }

    /// The second of a moment.
    fn local(&self, moment: Timestamp) -> Option<DateTime<Tz>> {
        let utc: DateTime<Utc> = DateTime::from_timestamp(moment.unix_seconds(), 0)?;
        Some(utc.with_timezone(&self.zone))
    }
}

fn of_local(found: DateTime<Tz>) -> Timestamp {
    Timestamp::from_micros(found.timestamp().saturating_mul(1_000_000))
}
