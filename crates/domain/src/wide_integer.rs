//! Finds integers in JSON text that parsing would change.

/// Returns the first integer of valid JSON that does not fit into 64 bits: parsed, it would become a
/// floating-point number and lose digits.
#[must_use]
pub fn wide_integer(json: &[u8]) -> Option<&str> {
    let mut rest = json;
    while let Some(start) = rest.iter().position(|byte| matches!(byte, b'"' | b'-' | b'0'..=b'9')) {
        rest = rest.get(start..)?;
        if rest.first() == Some(&b'"') {
            rest = after_string(rest.get(1..)?);
            continue;
        }
        let is_number = |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
        let end = rest.iter().position(|byte| !is_number(byte)).unwrap_or(rest.len());
        let (number, after) = rest.split_at_checked(end)?;
        rest = after;
        // Integers of up to 18 digits always fit.
        if end > 18 && !number.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
            let number = std::str::from_utf8(number).ok()?;
            if number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
                return Some(number);
            }
        }
    }
    None
}

/// Returns the bytes after the closing quotation mark of a string.
fn after_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
        let is_end = rest.get(at) == Some(&b'"');
        let next = at.saturating_add(if is_end { 1 } else { 2 });
        rest = rest.get(next..).unwrap_or_default();
        if is_end {
            return rest;
        }
    }
    &[]
}
