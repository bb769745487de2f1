//! Grammars of bounded numbers, built digit by digit.

use serde_json::Value;

use super::Error;
use super::places::Leaf;

/// Minimum size assumed for a range that has only one bound.
const OPEN: f64 = 999_999_999_999.0;
/// Larger bounds are ignored: unbounded numbers have at most 16 digits and stay below this value.
const BOUND_MAX: f64 = 1e16;
/// The maximum number of decimal places of bounded numbers: as many as their bounds have, but at
/// least `DECIMALS` and at most this many.
const DECIMALS_MAX: u32 = 6;
const DECIMALS: u32 = 4;
/// Maximum bound, scaled to an integer, that is written digit by digit. The grammar excludes
/// numbers with so many decimal places that the scaled bound would exceed this value.
const SCALED_MAX: f64 = 1e18;

/// The bounds of a leaf.
struct Bounds {
    least: Option<f64>,
    most: Option<f64>,
    is_above: bool,
    is_below: bool,
}

/// Returns the expression for an integer.
pub(super) fn integer(leaf: &Leaf) -> Result<String, Error> {
    let Some(bounds) = bounds(leaf)? else { return Ok("integer".to_owned()) };
    let all = bounds.scaled(0);
    if all.is_empty() { Err(none_fits(leaf)) } else { Ok(format!("( {} )", all.join(" | "))) }
}

/// Returns the expression for a number.
pub(super) fn number(leaf: &Leaf) -> Result<String, Error> {
    let Some(bounds) = bounds(leaf)? else { return Ok("number".to_owned()) };
    let given = [bounds.least, bounds.most].into_iter().flatten().map(decimals).max().unwrap_or(0);
    let mut all = Vec::new();
    for places in 0..=given.clamp(DECIMALS, DECIMALS_MAX) {
        all.extend(bounds.scaled(places));
    }
    if all.is_empty() { Err(none_fits(leaf)) } else { Ok(format!("( {} )", all.join(" | "))) }
}

fn none_fits(leaf: &Leaf) -> Error {
    Error::new(&leaf.place, "no number is between its minimum and its maximum")
}

fn bounds(leaf: &Leaf) -> Result<Option<Bounds>, Error> {
    let read = |name: &str| match leaf.schema.get(name) {
        None | Some(Value::Null | Value::Bool(_)) => Ok(None),
        Some(value) => {
            let number = value.as_f64().filter(|number| number.is_finite());
            number
                .map(Some)
                .ok_or_else(|| Error::new(&leaf.place, format!("{name} must be a number")))
        }
    };
    // In draft 4, exclusiveness is a separate flag.
    let flag = |name: &str| leaf.schema.get(name) == Some(&Value::Bool(true));
    let (minimum, above) = (read("minimum")?, read("exclusiveMinimum")?);
    let (maximum, below) = (read("maximum")?, read("exclusiveMaximum")?);
    let is_above = flag("exclusiveMinimum")
        || above.is_some_and(|above| minimum.is_none_or(|minimum| minimum <= above));
    let is_below = flag("exclusiveMaximum")
        || below.is_some_and(|below| maximum.is_none_or(|maximum| maximum >= below));
    let least = if flag("exclusiveMinimum") || !is_above { minimum } else { above };
    let most = if flag("exclusiveMaximum") || !is_below { maximum } else { below };
    let least = least.filter(|least| *least >= -BOUND_MAX);
    let most = most.filter(|most| *most <= BOUND_MAX);
    if least.is_none() && most.is_none() {
        return Ok(None);
    }
    if let (Some(least), Some(most)) = (least, most)
        && least > most
    {
        return Err(Error::new(&leaf.place, "its minimum is larger than its maximum"));
    }
    Ok(Some(Bounds { least, most, is_above, is_below }))
}

/// Counts the decimal places of a number.
fn decimals(number: f64) -> u32 {
    let text = format!("{number}");
    let behind = text.split_once('.').map_or(0, |(_, behind)| behind.len());
    u32::try_from(behind).unwrap_or(u32::MAX)
}

impl Bounds {
    /// Returns expressions for the numbers with this many decimal places.
    fn scaled(&self, places: u32) -> Vec<String> {
        let factor = 10_f64.powi(places.cast_signed());
        let of = |bound: f64| {
            let exact = bound * factor;
            // Remove the rounding error of binary fractions.
            let near = exact.round();
            if (near / factor - bound).abs() < f64::EPSILON { near } else { exact }
        };
        let open = |other: Option<f64>| OPEN.max(other.unwrap_or(0.0).abs() * 10.0);
        let least = of(self.least.unwrap_or_else(|| -open(self.most)));
        let most = of(self.most.unwrap_or_else(|| open(self.least)));
        let mut low = least.ceil();
        if self.is_above && (low - least).abs() < f64::EPSILON {
            low += 1.0;
        }
        let mut high = most.floor();
        if self.is_below && (most - high).abs() < f64::EPSILON {
            high -= 1.0;
        }
        if low.abs().max(high.abs()) > SCALED_MAX {
            return Vec::new();
        }
        let mut all = Vec::new();
        if low < 0.0 {
            let from = natural((-high).max(1.0), -low, places);
            all.extend(from.into_iter().map(|one| format!("\"-\" {one}")));
        }
        all.extend(natural(low.max(0.0), high, places));
        all
    }
}

/// Returns expressions for the non-negative integers from `low` to `high`, with a decimal point
/// before the last `places` digits.
fn natural(low: f64, high: f64, places: u32) -> Vec<String> {
    let mut all = Vec::new();
    if high < low {
        return all;
    }
    let places = usize::try_from(places).unwrap_or(0);
    let padded = |number: f64| format!("{number:0>width$.0}", width = places + 1);
    let (low, high) = (padded(low), padded(high));
    for digits in low.len()..=high.len() {
        let from =
            if digits == low.len() { low.clone() } else { format!("1{}", "0".repeat(digits - 1)) };
        let to = if digits == high.len() { high.clone() } else { "9".repeat(digits) };
        let from: Vec<char> = from.chars().collect();
        let to: Vec<char> = to.chars().collect();
        all.push(between(&from, &to, places));
    }
    all
}

/// Returns an expression for the digit strings from one number to another of the same length, with
/// a decimal point before the last `places` digits.
fn between(from: &[char], to: &[char], places: usize) -> String {
    let ([a, low @ ..], [b, high @ ..]) = (from, to) else { return String::new() };
    let point = if places > 0 && from.len() == places { "\".\" " } else { "" };
    if a == b {
        return format!("{point}\"{a}\" {}", between(low, high, places));
    }
    let mut all = Vec::new();
    let (mut first, mut last) = (*a, *b);
    let nines = vec!['9'; low.len()];
    let zeros = vec!['0'; low.len()];
    if low != zeros {
        all.push(format!("\"{a}\" {}", between(low, &nines, places)));
        first = next(first, 1);
    }
    let rest = (high != nines).then(|| format!("\"{b}\" {}", between(&zeros, high, places)));
    if rest.is_some() {
        last = next(last, -1);
    }
    if first <= last {
        all.push(format!("[{first}-{last}] {}", any(low.len(), places)));
    }
    all.extend(rest);
    format!("{point}( {} )", all.join(" | "))
}

/// Returns the digit before or after this one.
fn next(digit: char, step: i32) -> char {
    let code = u32::from(digit).saturating_add_signed(step);
    char::from_u32(code).unwrap_or(digit)
}

/// Returns an expression for this many arbitrary digits.
fn any(digits: usize, places: usize) -> String {
    if places > 0 && digits >= places {
        let whole = digits - places;
        let whole = if whole > 0 { format!("[0-9]{{{whole}}} ") } else { String::new() };
        return format!("{whole}\".\" [0-9]{{{places}}}");
    }
    if digits == 0 { String::new() } else { format!("[0-9]{{{digits}}}") }
}
