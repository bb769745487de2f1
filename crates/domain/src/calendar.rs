//! Calendars: the times at which a cron pattern fires in a time zone.
//!
//! A pattern has 5 fields (minute, hour, day of month, month, day of week), or 6 with a leading
//! seconds field, or is a nickname such as `@daily`. A pattern with a single time of day is fixed;
//! a pattern with a list, range, step or wildcard in its second, minute or hour is not fixed. When
//! clocks go forward, a fixed pattern fires once after the gap, and any other pattern skips the
//! gap. When clocks go back, a fixed pattern fires in the first of the two hours, and any other
//! pattern fires in both hours.
//!
//! Pure: reads no clock, and the time zones are compiled in.

use std::fmt;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};

use super::cron_field;
use super::spelling::nearest;
use super::time::Timestamp;

/// Maximum length of a pattern in bytes, enough for a list of every minute.
pub const CRON_BYTES_MAX: usize = 256;
/// Maximum length of a time zone name in bytes.
const ZONE_BYTES_MAX: usize = 64;

/// The expected form of a pattern, for error messages.
const FORM: &str = "cron must be 5 or 6 fields (second, minute, hour, day of month, month, day of week; \
                    the second may be left out) or a nickname such as @daily";
/// The supported nicknames.
const NICKNAMES: [&str; 7] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
/// Common but ambiguous time zone abbreviations, each with a zone that uses it.
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

/// Why a pattern or a time zone is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{FORM}: {0}")]
    Form(String),
    #[error("cron: {0}")]
    Field(String),
    #[error("timezone must be the name of a time zone, such as Europe/Berlin or UTC{0}")]
    Zone(String),
}

/// A pattern with its time zone.
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
    /// Parses a pattern and an IANA time zone name from a client.
    ///
    /// # Errors
    /// [`Error`] names the invalid field and its valid values.
    pub fn parse(cron: &str, zone: &str) -> Result<Self, Error> {
        check(cron)?;
        Self::load(cron, zone)
    }

    /// Parses a stored pattern, without the checks that were added in later releases.
    ///
    /// # Errors
    /// The same errors as [`Calendar::parse`], but with less detail.
    pub fn load(cron: &str, zone: &str) -> Result<Self, Error> {
        let cron = read(cron).map_err(|error| Error::Form(error.to_string()))?;
        let known = Some(zone).filter(|zone| zone.len() <= ZONE_BYTES_MAX);
        let known = known.and_then(|zone| zone.parse().ok());
        let zone = known.ok_or_else(|| Error::Zone(zone_hint(zone)))?;
        Ok(Self { cron, zone })
    }

    /// Returns the first firing after `moment`; `None` if the pattern never fires again.
    #[must_use]
    pub fn next_after(&self, moment: Timestamp) -> Option<Timestamp> {
        let start = self.local(moment)?;
        self.cron.find_next_occurrence(&start, false).ok().map(of_local)
    }

    /// Returns the last firing at or before `moment`.
    #[must_use]
    pub fn last_until(&self, moment: Timestamp) -> Option<Timestamp> {
        let start = self.local(moment)?;
        self.cron.find_previous_occurrence(&start, true).ok().map(of_local)
    }

    /// Converts to local time, truncated to the second.
    fn local(&self, moment: Timestamp) -> Option<DateTime<Tz>> {
        let utc: DateTime<Utc> = DateTime::from_timestamp(moment.unix_seconds(), 0)?;
        Some(utc.with_timezone(&self.zone))
    }
}

/// Parses a pattern with the croner library.
fn read(cron: &str) -> Result<Cron, CronError> {
    let cron = cron.trim();
    let cron = if cron.eq_ignore_ascii_case("@midnight") { "@daily" } else { cron };
    CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build().parse(cron)
}

/// Checks a pattern field by field, so that the error can name the invalid field.
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

/// Suggests a time zone, phrased as the end of a sentence.
fn zone_hint(wrong: &str) -> String {
    if let Some(hint) = offset_hint(wrong) {
        return hint;
    }
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

/// Suggests a time zone for an offset such as `GMT+2` or `+02:00`. The names of zones with a fixed
/// offset have the reversed sign: `Etc/GMT-2` is two hours ahead of UTC.
fn offset_hint(wrong: &str) -> Option<String> {
    let upper = wrong.to_ascii_uppercase();
    let offset = ["GMT", "UTC"].iter().find_map(|name| upper.strip_prefix(name)).unwrap_or(&upper);
    let (reversed, digits) = match offset.split_at_checked(1)? {
        ("+", digits) => ('-', digits),
        ("-", digits) => ('+', digits),
        _ => return None,
    };
    let (hours, minutes) = match (digits.split_once(':'), digits.len()) {
        (Some(parts), _) => parts,
        (None, 4) => digits.split_at_checked(2)?,
        (None, _) => (digits, "00"),
    };
    let (hours, minutes): (u8, u8) = (hours.parse().ok()?, minutes.parse().ok()?);
    let zone = format!("Etc/GMT{reversed}{hours}");
    let is_zone = minutes == 0 && zone.parse::<Tz>().is_ok();
    let fixed = match is_zone {
        true => format!("{zone} (its sign is reversed) or "),
        false => String::new(),
    };
    Some(format!("; write {fixed}a city such as Europe/Berlin"))
}

fn of_local(found: DateTime<Tz>) -> Timestamp {
    Timestamp::from_micros(found.timestamp().saturating_mul(1_000_000))
}
