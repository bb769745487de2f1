//! Parsers of argument values. Each error explains the format with an example.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use orrery_config as config;
use orrery_domain::money::Usd;
use orrery_domain::time::{self, SPAN_MAX, span_text};

/// Parses a duration, such as 90d.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let span = time::span(text).ok_or_else(|| {
        "write a number and a unit: 30m, 12h or 90d (for a date, count the days until it)"
            .to_owned()
    })?;
    if span < Duration::from_secs(1) {
        return Err("it must be at least one second, such as 12h or 90d".to_owned());
    }
    if span > SPAN_MAX {
        return Err(format!("it must be at most {} (1000 years)", span_text(SPAN_MAX)));
    }
    Ok(span)
}

/// Parses an amount in US dollars, such as 12.50.
pub(super) fn dollars(text: &str) -> Result<f64, String> {
    let sentence =
        "write US dollars as a number above 0 with up to six decimal places, such as 12.50";
    let amount = text.parse::<f64>().map_err(|_no_number| sentence.to_owned())?;
    Usd::from_dollars(amount).filter(|amount| *amount > Usd::ZERO).ok_or(sentence.to_owned())?;
    Ok(amount)
}

/// A limit, or no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit(pub(super) Option<u64>);

/// Parses an organization's limit: a number above 0, or `none`.
pub(super) fn limit(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    let number = text.parse().ok().filter(|number| *number > 0);
    let number = number.ok_or("write a whole number above 0, or none for no limit")?;
    Ok(Limit(Some(number)))
}

/// Parses a limit in bytes: a number above 0, a size as in the configuration, such as `10GB`, or
/// `none`.
pub(super) fn size_limit(text: &str) -> Result<Limit, String> {
    let bytes = config::values::bytes_of(text).filter(|bytes| *bytes > 0);
    bytes.map(|bytes| Limit(Some(bytes))).map_or_else(|| limit(text), Ok).map_err(|_not_a_number| {
        "write a number of bytes above 0, a size such as 10GB or 512MiB, or none for no limit"
            .to_owned()
    })
}

/// A budget in US dollars; `None` for no budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BudgetLimit(pub(super) Option<f64>);

/// Parses an organization's budget in US dollars, or `none`.
pub(super) fn budget_limit(text: &str) -> Result<BudgetLimit, String> {
    match text {
        "none" => Ok(BudgetLimit(None)),
        "0" => Ok(BudgetLimit(Some(0.0))),
        _ => dollars(text).map(|amount| BudgetLimit(Some(amount))),
    }
}

/// Parses an id as shown in a list.
pub(super) fn id<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_not_an_id| {
        "write a whole id as the list shows it, such as 0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e"
            .to_owned()
    })
}

/// Parses the number of items to return.
pub(super) fn count(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or("write a whole number, such as 20".to_owned())
}

/// Parses an address of this machine; `localhost` is 127.0.0.1.
pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    if text == "localhost" {
        return Ok(IpAddr::from([127, 0, 0, 1]));
    }
    text.parse().map_err(|_no_address| {
        "write an IP address of this machine: 0.0.0.0 for every network, 127.0.0.1 for this machine \
         alone; `--port` sets the port"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_values_are_parsed_or_rejected_with_an_example() {
        assert_eq!(span("90d"), Ok(Duration::from_secs(90 * 86_400)));
        assert!(span("tomorrow").unwrap_err().contains("90d"));
        assert!(span("0s").unwrap_err().contains("at least one second"));
        for long in ["9999999d", "100000y", "8000y"] {
            assert!(span(long).unwrap_err().contains("at most 365250d"), "{long}");
        }
        assert_eq!(dollars("12.5"), Ok(12.5));
        for wrong in ["abc", "-1", "0", "NaN", "1e300", "12,50"] {
            assert!(dollars(wrong).unwrap_err().contains("such as 12.50"), "{wrong}");
        }
        for (text, bytes) in
            [("10GB", 10_000_000_000), ("512MiB", 512 << 20), ("1000000", 1_000_000)]
        {
            assert_eq!(size_limit(text), Ok(Limit(Some(bytes))), "{text}");
        }
        assert_eq!(size_limit("none"), Ok(Limit(None)));
        for wrong in ["0", "0GB", "10 parsecs", "-1"] {
            assert!(size_limit(wrong).unwrap_err().contains("such as 10GB"), "{wrong}");
        }
        assert!(id::<orrery_domain::ids::KeyId>("17").unwrap_err().contains("such as 0192f0c1"));
        assert_eq!(count("20"), Ok(20));
        for wrong in ["0", "-1", "many"] {
            assert!(count(wrong).unwrap_err().contains("such as 20"), "{wrong}");
        }
        assert_eq!(address("localhost"), Ok(IpAddr::from([127, 0, 0, 1])));
        assert_eq!(address("::"), Ok("::".parse().unwrap()));
        for wrong in ["box.lan", "127.0.0.1:80", "8080"] {
            assert!(address(wrong).unwrap_err().contains("0.0.0.0"), "{wrong}");
        }
    }
}
