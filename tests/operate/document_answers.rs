//! Compares a document's sample output with actual output: the same fields, and the same values if
//! they are deterministic.

use serde_json::Value;

/// Returns the last JSON value of the output, if the output or its last line is JSON.
pub(crate) fn last_value(printed: &str) -> Option<Value> {
    let all = crate::documents::values(printed).ok().and_then(|values| values.into_iter().last());
    all.or_else(|| serde_json::from_str(printed.lines().last()?).ok())
}

/// Returns the first difference between a sample value and an actual one. `…` inside a string
/// matches anything, and a string that ends with `…` matches any string with the same beginning.
/// Numbers and times are ignored, and so is the length of a list whose sample elements all match.
pub(crate) fn difference(shown: &Value, printed: &Value, at: &str) -> Option<String> {
    match (shown, printed) {
        (Value::Object(shown), Value::Object(printed)) => {
            let names = |map: &serde_json::Map<String, Value>| {
                let mut names: Vec<String> = map.keys().cloned().collect();
                names.sort();
                names
            };
            if names(shown) != names(printed) {
                return Some(format!(
                    "{at}: {:?} is shown, {:?} printed",
                    names(shown),
                    names(printed)
                ));
            }
            let mut fields = shown.iter();
            fields.find_map(|(name, value)| {
                difference(value, &printed[name], &format!("{at}/{name}"))
            })
        }
        (Value::Array(shown), Value::Array(printed)) if shown.len() <= printed.len() => {
            let mut pairs = shown.iter().zip(printed).enumerate();
            pairs.find_map(|(index, (shown, printed))| {
                difference(shown, printed, &format!("{at}/{index}"))
            })
        }
        (Value::Number(_), Value::Number(_)) => None,
        (Value::String(shown), Value::String(printed)) => {
            let is_time = |text: &str| chrono::DateTime::parse_from_rfc3339(text).is_ok();
            // The beginning of an id or a digest.
            let is_begun = shown.ends_with('…') && !printed.is_empty();
            let fits = is_begun || is_like(shown, printed) || (is_time(shown) && is_time(printed));
            (!fits).then(|| format!("{at}: {shown:?} is shown, {printed:?} printed"))
        }
        (shown, printed) => {
            (shown != printed).then(|| format!("{at}: {shown} is shown, {printed} printed"))
        }
    }
}

/// Returns whether a string matches the sample, in which `…` matches anything; whitespace is
/// ignored.
pub(crate) fn is_like(shown: &str, printed: &str) -> bool {
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    let (shown, printed) = (bare(shown), bare(printed));
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

#[test]
fn answers_differ_if_fields_or_fixed_values_differ() {
    let same = |shown: &str, printed: &str| {
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        difference(&value(shown), &value(printed), "").is_none()
    };
    assert!(same(
        r#"{"a": "0199…", "b": 1, "c": [1]}"#,
        r#"{"c": [2, 3], "a": "01990", "b": 7.5}"#
    ));
    assert!(same(r#""2026-11-20T09:30:00.123Z""#, r#""2027-01-01T00:00:00.000Z""#));
    for (shown, printed) in [
        (r#"{"a": 1}"#, r#"{"a": 1, "b": 2}"#),
        (r#"{"a": 1, "b": 2}"#, r#"{"a": 1}"#),
        (r#""success""#, r#""error""#),
        ("null", "1"),
        ("[1, 2]", "[1]"),
        (r#""a…b""#, r#""abc""#),
    ] {
        assert!(!same(shown, printed), "{shown} {printed}");
    }
    assert!(is_like("a … c\n", "a b\n c") && is_like("a", " a\n") && !is_like("a", "ab"));
}
