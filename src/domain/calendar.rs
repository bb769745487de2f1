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
use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};

use super::cron_field;
use super::spelling::nearest;
use super::time::Timestamp;

/// The longest pattern, in bytes: a list of every minute fits.
pub const CRON_BYTES_MAX: usize = 256;
/// The longest name of a time zone, in bytes.
const ZONE_BYTES_MAX: usize = 64;

/// What a pattern must be, for errors.
const FORM: &str = "cron must be 5 or 6 fields (second, minute, hour, day of month, month, day of week; \
                    the second may be left out) or a nickname such as @daily";
/// The patterns that have a name.
const NICKNAMES: [&str; 7] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
/// Abbreviations that people write for a time zone, which are not unique, with a zone that has them.
const ABBREVIATIONS: [(&str, &str); 11] = [
    ("PST", "America/Los_Angeles"),
    ("PDT", "America/Los_Angeles"),
    ("MDT", "America/Denver"),
    ("CST", "America/Chicago"),
    ("CDT", "America/Chicago"),
    ("EDT", "America/New_York"),
    ("BST", "Europe/London"),
    ("CEST", "Europe/Berlin"),
    ("MESZ", "Europe/Berlin"),
    ("IST", "Asia/Kolkata"),
    ("JST", "Asia/Tokyo"),
];

/// Why a pattern or a time zone cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{FORM}: {0}")]
    Form(String),
    #[error("cron: {0}")]
    Field(String),
    #[error("timezone must be the name of a time zone, such as Europe/Berlin or UTC{0}")]
    Zone(String),
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
    /// Reads a pattern and the IANA name of a time zone, as a client has written them.
    ///
    /// # Errors
    /// [`Error`] names the field that cannot be used, and what it may be.
    pub fn parse(cron: &str, zone: &str) -> Result<Self, Error> {
        check(cron)?;
        Self::load(cron, zone)
    }

    /// Reads what was stored: checks that an earlier release did not make are left out.
    ///
    /// # Errors
    /// As [`Calendar::parse`], in fewer words.
    pub fn load(cron: &str, zone: &str) -> Result<Self, Error> {
        let cron = read(cron).map_err(|error| Error::Form(error.to_string()))?;
        let known = Some(zone).filter(|zone| zone.len() <= ZONE_BYTES_MAX);
        let known = known.and_then(|zone| zone.parse().ok());
        let zone = known.ok_or_else(|| Error::Zone(zone_hint(zone)))?;
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

/// The pattern as the library reads it.
fn read(cron: &str) -> Result<Cron, CronError> {
    let cron = cron.trim();
    let cron = if cron.eq_ignore_ascii_case("@midnight") { "@daily" } else { cron };
    CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build().parse(cron)
}

/// Checks a pattern field by field, so that an error names the one that is wrong.
fn check(cron: &str) -> Result<(), Error> {
    if cron.len() > CRON_BYTES_MAX {
        return Err(Error::Form(format!("this is longer than {CRON_BYTES_MAX} bytes")));
    }
    let cron = cron.trim();
    if cron.starts_with('@') {
        if NICKNAMES.iter().any(|known| known.eq_ignore_ascii_case(cron)) {
            return Ok(());
        }
        let every = match cron.to_ascii_lowercase().starts_with("@every") {
            true => "; for a period write a step, such as */5 * * * * for every 5 minutes",
            false => "",
        };
        let known = NICKNAMES.join(", ");
        return Err(Error::Field(format!("'{cron}' is not one of {known}{every}")));
    }
    let fields: Vec<&str> = cron.split_whitespace().collect();
    if fields.first().is_some_and(|first| first.contains('=')) {
        let message = "name the time zone in the field timezone, not in the pattern";
        return Err(Error::Field(message.to_owned()));
    }
    let kinds = match fields.len() {
        5 => cron_field::ALL.get(1..),
        6 => Some(&cron_field::ALL[..]),
        7 => return Err(Error::Form("this has 7, and years are not supported".to_owned())),
        count => return Err(Error::Form(format!("this has {count}"))),
    };
    for (at, (kind, text)) in kinds.unwrap_or_default().iter().zip(&fields).enumerate() {
        kind.check(text).map_err(Error::Field)?;
        let mut alone = vec!["*"; fields.len()];
        if let Some(field) = alone.get_mut(at) {
            *field = text;
        }
        if read(&alone.join(" ")).is_err() {
            return Err(Error::Field(kind.refusal(text)));
        }
    }
    Ok(())
}

/// The time zone that was probably meant, as the end of a sentence.
fn zone_hint(wrong: &str) -> String {
    let is = |name: &str| name.eq_ignore_ascii_case(wrong);
    let city = |name: &str| name.rsplit('/').next().is_some_and(is);
    let all: Vec<&str> = chrono_tz::TZ_VARIANTS.iter().map(|zone| zone.name()).collect();
    let spelled = all.iter().copied().find(|name| is(name));
    let short = ABBREVIATIONS.iter().find(|(short, _)| is(short)).map(|(_, zone)| *zone);
    let near = || match wrong.len() <= ZONE_BYTES_MAX {
        true => nearest(wrong, &all),
        false => None,
    };
    let meant = spelled.or(short).or_else(|| all.iter().copied().find(|name| city(name)));
    meant.or_else(near).map(|name| format!("; did you mean {name}?")).unwrap_or_default()
}

fn of_local(found: DateTime<Tz>) -> Timestamp {
    Timestamp::from_micros(found.timestamp().saturating_mul(1_000_000))
}
