//! The fields of a cron pattern: their valid values, and error messages for invalid ones.

use super::spelling::nearest;

/// One field.
#[derive(Debug)]
pub struct CronField {
    name: &'static str,
    low: u32,
    high: u32,
    /// Names of values; the first name stands for `low`.
    names: &'static [&'static str],
    /// Syntax in addition to lists, ranges and steps, phrased as part of a sentence.
    others: &'static str,
    /// The characters of that additional syntax, which the library checks.
    marks: &'static [char],
}

const fn number(name: &'static str, high: u32) -> CronField {
    CronField { name, low: 0, high, names: &[], others: "", marks: &[] }
}

/// All fields in order.
pub const ALL: [CronField; 6] = [
    number("second", 59),
    number("minute", 59),
    number("hour", 23),
    CronField {
        low: 1,
        others: ", L (the last day) or 15W (the weekday nearest to the 15th)",
        marks: &['L', 'W'],
        ..number("day of month", 31)
    },
    CronField {
        low: 1,
        names: &[
            "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
        ],
        ..number("month", 12)
    },
    CronField {
        names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
        others: ", 5L (the last Friday) or MON#2 (the second Monday)",
        marks: &['L', '#'],
        ..number("day of week", 7)
    },
];

impl CronField {
    /// Checks the field's text.
    ///
    /// # Errors
    /// Returns a message that names the field, the problem and the valid values.
    pub fn check(&self, text: &str) -> Result<(), String> {
        let text = match self.names.first() {
            // A leading plus requires both this field and the day of month to match.
            Some(&"SUN") => text.strip_prefix('+').unwrap_or(text),
            _ => text,
        };
        let has_marks = |item: &str| item.to_ascii_uppercase().contains(self.marks);
        text.split(',').try_for_each(|item| match item {
            "" => Err(self.wrong(text, "a list has an empty entry")),
            "L" | "l" if self.high == 7 => {
                Err(self.wrong(item, "L needs a weekday, such as 5L (the last Friday)"))
            }
            // A month or day name such as JUL may contain a mark.
            item if has_marks(item) && self.value(item).is_none() => Ok(()),
            item => self.check_item(item).map_err(|what| self.wrong(item, &what)),
        })
    }

    /// Returns the error message for text that the library rejects although [`CronField::check`]
    /// accepts it.
    pub fn refusal(&self, text: &str) -> String {
        let Self { name, .. } = self;
        format!("the {name} '{text}' cannot be used: it may be {}", self.form())
    }

    fn wrong(&self, text: &str, what: &str) -> String {
        let Self { name, .. } = self;
        format!("the {name} '{text}' is wrong: {what}; it may be {}", self.form())
    }

    fn form(&self) -> String {
        let Self { low, high, names, others, .. } = self;
        let named = match (names.first(), names.last()) {
            (Some(first), Some(last)) => format!(" or {first} to {last}"),
            _ => String::new(),
        };
        format!(
            "*, {low} to {high}{named}, a list such as {low},{}, a range such as {low}-{}, a step such \
             as */2{others}",
            low + 2,
            low + 4
        )
    }

    fn check_item(&self, item: &str) -> Result<(), String> {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (item, None),
        };
        let every = match step.map(str::parse::<u32>) {
            None => None,
            Some(Ok(every)) if every > 0 => Some(every),
            Some(_) => return Err("a step must be a whole number above 0".to_owned()),
        };
        if matches!(range, "*" | "?") {
            return beyond(every, self.high - self.low, &self.low.to_string());
        }
        let Some((from, to)) = range.split_once('-') else {
            self.read(range)?;
            return match step {
                None => Ok(()),
                Some(step) => {
                    Err(format!("a step follows * or a range: write {range}-{}/{step}", self.high))
                }
            };
        };
        if from.is_empty() || to.is_empty() {
            return Err("a range needs both ends".to_owned());
        }
        // A range may end with Sunday.
        let is_sunday = self.high == 7 && to.eq_ignore_ascii_case("SUN");
        let (low, high) = (self.read(from)?, if is_sunday { 7 } else { self.read(to)? });
        if low <= high {
            return beyond(every, high - low, from);
        }
        let end = self.names.last().map_or(self.high.to_string(), |last| (*last).to_owned());
        let start = self.names.first().map_or(self.low.to_string(), |name| (*name).to_owned());
        Err(format!("a range goes from low to high: write {from}-{end},{start}-{to}"))
    }

    fn read(&self, value: &str) -> Result<u32, String> {
        let Self { low, high, names, .. } = self;
        if let Some(number) = self.value(value) {
            return match (low..=high).contains(&&number) {
                true => Ok(number),
                false => Err(format!("{value} is not from {low} to {high}")),
            };
        }
        let upper = value.to_ascii_uppercase();
        let begins = names.iter().copied().find(|known| upper.starts_with(known));
        match begins.or_else(|| nearest(&upper, names)) {
            Some(near) => Err(format!("'{value}' is not known, did you mean {near}?")),
            None => Err(format!("'{value}' is not known")),
        }
    }

    /// Returns the value of a number or name.
    fn value(&self, text: &str) -> Option<u32> {
        let named = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let named = named.and_then(|at| u32::try_from(at).ok()).map(|at| at + self.low);
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number with too many digits is out of every range.
        named.or_else(|| is_number.then(|| text.parse().unwrap_or(u32::MAX)))
    }
}

/// Rejects a step that is longer than its range, because such a step matches only the first value.
fn beyond(step: Option<u32>, span: u32, first: &str) -> Result<(), String> {
    match step {
        Some(step) if step > span => {
            Err(format!("a step above {span} matches only {first}: write {first}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::calendar::Calendar;

    #[test]
    fn cron_errors_name_field_and_allowed_values() {
        for (cron, said) in [
            (
                "60 * * * *",
                "cron: the minute '60' is wrong: 60 is not from 0 to 59; it may be *, 0 to 59",
            ),
            ("0 24 * * *", "the hour '24'"),
            ("0 0 0 * *", "the day of month '0'"),
            ("0 0 * 13 *", "the month '13'"),
            ("0 0 * * 8", "the day of week '8'"),
            ("61 0 0 * * *", "the second '61'"),
            ("0 9 * * monday", "'monday' is not known, did you mean MON?"),
            ("0 9 * Januar *", "'Januar' is not known, did you mean JAN?"),
            ("0 9 * * MNO", "did you mean MON?"),
            ("0 9 * * FRI-MON", "a range goes from low to high: write FRI-SAT,SUN-MON"),
            ("0 22-2 * * *", "write 22-23,0-2"),
            ("0 9 * * 1,", "a list has an empty entry"),
            ("0 9 * * MON,,TUE", "a list has an empty entry"),
            ("1/5 * * * *", "a step follows * or a range: write 1-59/5"),
            ("*/0 * * * *", "a step must be a whole number above 0"),
            ("*/61 * * * *", "the minute '*/61' is wrong: a step above 59 matches only 0: write 0"),
            ("0 */25 * * *", "a step above 23 matches only 0: write 0"),
            ("0 0 */40 * *", "a step above 30 matches only 1: write 1"),
            ("*/100 * * * * *", "a step above 59 matches only 0"),
            ("0 0 * MAR-MAY/3 *", "a step above 2 matches only MAR: write MAR"),
            ("0 9-17/10 * * *", "a step above 8 matches only 9: write 9"),
            ("0 x * * *", "'x' is not known"),
            ("0 0 * * L", "the day of week 'L' is wrong: L needs a weekday"),
            ("-5 * * * *", "the minute '-5' is wrong: a range needs both ends"),
            ("0 9- * * *", "the hour '9-' is wrong: a range needs both ends"),
            ("0 0 40W * *", "the day of month '40W'"),
            ("0 0 * * MON#7", "the day of week 'MON#7'"),
            (
                "* * *",
                "5 or 6 fields (second, minute, hour, day of month, month, day of week; the second may be left out) or a nickname such as @daily: this has 3",
            ),
            ("0 0 0 * * * 2027", "years are not supported"),
            ("@every 5m", "such as */5 * * * *"),
            ("@noon", "'@noon' is not one of @yearly"),
            ("CRON_TZ=Europe/Berlin 0 9 * * *", "name the time zone in the field timezone"),
            ("", "this has 0"),
        ] {
            let error = Calendar::parse(cron, "UTC").unwrap_err().to_string();
            assert!(error.contains(said), "{cron}: {error}");
            assert!(!error.contains("Component") && !error.contains("illegal"), "{cron}: {error}");
        }
    }

    #[test]
    fn cron_patterns_of_every_form_are_accepted() {
        for cron in [
            "* * * * *",
            "*/5 * * * *",
            "0,30 9-17 * * MON-FRI",
            "0 0 L * *",
            "0 0 15W * *",
            "0 0 LW * *",
            "0 0 ? * MON#2",
            "0 0 * * FRI-SUN",
            "0 0 * * 5L",
            "0 0 * JUL,Aug sat",
            "0 0 1 * +MON",
            "0 0 1-7/2 * 7",
            "1-59/5 * * * * *",
            "*/59 */23 */30 */11 *",
            "@Daily",
            "@midnight",
            " @weekly ",
        ] {
            assert!(Calendar::parse(cron, "UTC").is_ok(), "{cron}");
        }
    }

    #[test]
    fn time_zone_error_suggests_intended_zone() {
        for (zone, meant) in [
            ("Europe/Berln", "Europe/Berlin"),
            ("europe/berlin", "Europe/Berlin"),
            ("Berlin", "Europe/Berlin"),
            ("PST", "America/Los_Angeles"),
            ("America/NewYork", "America/New_York"),
        ] {
            let error = Calendar::parse("@daily", zone).unwrap_err().to_string();
            assert!(error.ends_with(&format!("; did you mean {meant}?")), "{zone}: {error}");
        }
        let error = Calendar::parse("@daily", "Mars/Olympus").unwrap_err().to_string();
        assert!(!error.contains("did you mean"), "{error}");
        for (offset, zone) in [
            ("GMT+2", "Etc/GMT-2"),
            ("GMT-5", "Etc/GMT+5"),
            ("utc+1", "Etc/GMT-1"),
            ("+02:00", "Etc/GMT-2"),
            ("-0300", "Etc/GMT+3"),
            ("UTC+14", "Etc/GMT-14"),
        ] {
            let error = Calendar::parse("@daily", offset).unwrap_err().to_string();
            let hint = format!("; write {zone} (its sign is reversed) or a city such as Europe/");
            assert!(error.contains(&hint), "{offset}: {error}");
            let zone: chrono_tz::Tz = zone.parse().unwrap();
            assert!(zone.name().starts_with("Etc/GMT"));
        }
        for offset in ["+05:30", "UTC-13", "GMT+99", "GMT+5:45"] {
            let error = Calendar::parse("@daily", offset).unwrap_err().to_string();
            assert!(error.ends_with("; write a city such as Europe/Berlin"), "{offset}: {error}");
        }
    }

    #[test]
    fn cron_pattern_stored_earlier_is_still_accepted() {
        for cron in ["0 9 * * 1,", "0 9 * * MON,,TUE"] {
            assert!(Calendar::load(cron, "UTC").is_ok(), "{cron}");
        }
    }
}
