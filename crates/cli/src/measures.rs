//! Formats rates, times, byte counts and durations in a short form.

const THOUSAND: f64 = 1000.0;
const KIB: f64 = 1024.0;
/// The placeholder for a missing value.
pub(super) const NONE: &str = "–";

/// Formats a whole number with thousands separators.
pub(super) fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value <= -0.5 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a quantity in at most six characters: `0`, `0.4`, `12.3`, `1,234`, `123k`, `1.2M`.
pub(super) fn amount(value: f64) -> String {
    match value {
        value if !value.is_finite() => NONE.to_owned(),
        value if value < 0.05 => "0".to_owned(),
        value if value < 99.95 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        value if value < 99_999.5 => grouped(value),
        value if value < 999_500.0 => format!("{:.0}k", value / THOUSAND),
        value => format!("{:.1}M", value / (THOUSAND * THOUSAND)),
    }
}

/// Formats a time in a suitable unit: `840 µs`, `1.2 ms`, `12 ms`, `3.4 s`, `5 min`.
pub(super) fn time(seconds: f64) -> String {
    let scaled = |value: f64, unit: &str| {
        let places = usize::from(value < 9.95);
        format!("{value:.places$} {unit}")
    };
    match seconds {
        seconds if !seconds.is_finite() => NONE.to_owned(),
        seconds if seconds < 999.5e-6 => format!("{:.0} µs", seconds * 1e6),
        seconds if seconds < 0.9995 => scaled(seconds * THOUSAND, "ms"),
        seconds if seconds < 99.5 => scaled(seconds, "s"),
        seconds if seconds < 5970.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.0} h", seconds / 3600.0),
    }
}

/// Formats a time, or returns the placeholder if the time is missing.
pub(super) fn time_or_none(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| NONE.to_owned(), time)
}

/// Formats a byte count: `512 B`, `1.5 MiB`, `23 GiB`.
pub(super) fn bytes(count: u64) -> String {
    let mut value = count as f64;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].iter();
    let mut unit = units.next().unwrap_or(&"");
    for next in units {
        if value < 999.5 {
            break;
        }
        value /= KIB;
        unit = next;
    }
    let places = usize::from(value < 9.95 && *unit != "B");
    format!("{value:.places$} {unit}")
}

/// Formats a duration such as an uptime: `12 s`, `04:05`, `03:04:05`, `12 d 03:04`.
pub(super) fn span(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let seconds = seconds.max(0.0) as u64;
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match seconds {
        0..60 => format!("{rest} s"),
        60..3600 => format!("{minutes:02}:{rest:02}"),
        3600..86_400 => format!("{hours:02}:{minutes:02}:{rest:02}"),
        _ => format!("{days} d {hours:02}:{minutes:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_are_short_and_in_one_unit() {
        let amounts = [0.0, 0.04, 0.26, 5.0, 12.34, 99.97, 1234.0, 123_456.0, 2e6, f64::NAN];
        let shown: Vec<String> = amounts.into_iter().map(amount).collect();
        assert_eq!(shown, ["0", "0", "0.3", "5", "12.3", "100", "1,234", "123k", "2.0M", NONE]);
        let times = [0.000_012, 0.001_23, 0.0123, 0.9, 1.0, 12.3, 300.0, 7200.0];
        let shown: Vec<String> = times.into_iter().map(time).collect();
        let expect = ["12 µs", "1.2 ms", "12 ms", "900 ms", "1.0 s", "12 s", "5 min", "2 h"];
        assert_eq!(shown, expect);
        let sizes = [0, 999, 1024, 1_572_864, 1 << 30, 23 << 30, u64::MAX];
        let shown: Vec<String> = sizes.into_iter().map(bytes).collect();
        let expect = ["0 B", "999 B", "1.0 KiB", "1.5 MiB", "1.0 GiB", "23 GiB", "16384 PiB"];
        assert_eq!(shown, expect);
        let spans = [0.4, 61.0, 3725.0, 1_036_845.0];
        let shown: Vec<String> = spans.into_iter().map(span).collect();
        assert_eq!(shown, ["0 s", "01:01", "01:02:05", "12 d 00:00"]);
        assert_eq!(grouped(-1234.4), "-1,234");
        assert_eq!(grouped(-0.2), "0");
    }
}
