//! The query string of a request, with lookup by name and range-checked numbers.

use std::ops::RangeInclusive;

use super::Error;
use orrery_domain::time::Timestamp;

/// Maximum number of parameters; any further parameters are ignored.
const PARAMETERS_MAX: usize = 100;

/// The parameters in their original order.
#[derive(Debug, Clone, Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Parses the text after the `?`.
    #[must_use]
    pub fn parse(text: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(text.unwrap_or_default().as_bytes());
        Self { pairs: pairs.into_owned().take(PARAMETERS_MAX).collect() }
    }

    /// Returns the names of all parameters.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the first value under `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns all values under `name`, in their original order.
    pub fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the integer under `name`, or `default` if it is absent.
    ///
    /// # Errors
    /// 400 with the allowed range.
    pub fn number(
        &self,
        name: &str,
        range: RangeInclusive<u64>,
        default: u64,
    ) -> Result<u64, Error> {
        let Some(text) = self.get(name) else { return Ok(default) };
        text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
            let low = range.start();
            let high = range.end();
            Error::bad_request(format!("{name} must be a whole number from {low} to {high}"))
        })
    }
}

/// Parses `text`, the value of the parameter or field `name`, as a time. Query decoding turns the
/// `+` of a time offset into a space, so a space is accepted as `+`.
///
/// # Errors
/// 400 with an example.
pub fn read_time(name: &str, text: &str) -> Result<Timestamp, Error> {
    let with_offset = text.rsplit_once(' ').filter(|(time, _)| time.contains(['T', 't', ' ']));
    let time = match with_offset {
        Some((time, offset)) => format!("{time}+{offset}").parse(),
        None => text.parse(),
    };
    time.map_err(|_no_time| {
        Error::bad_request(format!("{name} must be a time such as 2026-11-20T09:30:00Z"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_time_accepts_plain_plus() {
        let same = "2026-11-20T09:30:00Z".parse::<Timestamp>().unwrap();
        for text in [
            "2026-11-20T09:30:00Z",
            "2026-11-20t09:30:00z",
            "2026-11-20+09:30:00Z",
            "2026-11-20T09:30:00%2B00:00",
            "2026-11-20T10:30:00+01:00",
            "2026-11-20%2010:30:00.000+01:00",
            "2026-11-20T08:30:00-01:00",
        ] {
            let query = Query::parse(Some(&format!("at={text}")));
            assert_eq!(read_time("at", query.get("at").unwrap()).unwrap(), same, "{text}");
        }
        for text in ["2026-11-20", "yesterday 01:00", "1795167000", "2026-11-20T09:30:00  01:00"] {
            let error = read_time("at", text).unwrap_err();
            assert_eq!(error.message, "at must be a time such as 2026-11-20T09:30:00Z", "{text}");
        }
    }

    #[test]
    fn query_number_must_be_within_range() {
        let query = Query::parse(Some("limit=7&offset=-1&limit=9&name=a%20b+c"));
        assert_eq!(query.get("name"), Some("a b c"));
        assert_eq!(query.number("limit", 1..=100, 50).ok(), Some(7));
        assert_eq!(query.number("absent", 1..=100, 50).ok(), Some(50));
        let error = query.number("offset", 0..=10, 0).unwrap_err();
        assert_eq!(error.message, "offset must be a whole number from 0 to 10");
        let error = Query::parse(Some("limit=101")).number("limit", 1..=100, 50).unwrap_err();
        assert_eq!(error.message, "limit must be a whole number from 1 to 100");
    }
}
