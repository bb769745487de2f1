//! Masks secrets: decides which names look secret, and hides their values.
//!
//! A name is split into parts at every character that is not a letter and at camel-case word
//! boundaries. A name looks secret if one of its parts is in the list: `X-Vault-Token`, `apiKey`
//! and `client_secret` do, `max_tokens`, `monkey` and `passenger` do not.

use serde_json::{Map, Value};

/// Shown in place of a secret.
pub const MASKED: &str = "***";

/// The parts that make a name look secret, in lower case.
const SECRET_PARTS: [&str; 17] = [
    "apikey",
    "auth",
    "authorization",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "key",
    "pass",
    "passphrase",
    "passwd",
    "password",
    "pwd",
    "secret",
    "sig",
    "signature",
    "token",
];

/// Returns whether a value with this name is likely to be a secret.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    let mut begin = 0;
    let mut before: Option<char> = None;
    let mut chars = name.char_indices().peekable();
    while let Some((index, c)) = chars.next() {
        let after = chars.peek().map(|(_, after)| *after);
        let begins_word = c.is_uppercase()
            && before.is_some_and(|before| {
                before.is_lowercase()
                    || (before.is_uppercase() && after.is_some_and(char::is_lowercase))
            });
        if !c.is_alphabetic() || begins_word {
            if name.get(begin..index).is_some_and(is_secret_part) {
                return true;
            }
            begin = if begins_word { index } else { index.saturating_add(c.len_utf8()) };
        }
        before = Some(c);
    }
    name.get(begin..).is_some_and(is_secret_part)
}

fn is_secret_part(part: &str) -> bool {
    if part.is_ascii() {
        return SECRET_PARTS.iter().any(|secret| part.eq_ignore_ascii_case(secret));
    }
    let lower = || part.chars().flat_map(char::to_lowercase);
    SECRET_PARTS.iter().any(|secret| lower().eq(secret.chars()))
}

/// Returns whether [`mask_value`] would hide anything.
#[must_use]
pub fn has_secrets(value: &Value) -> bool {
    match value {
        Value::Object(fields) => {
            fields.iter().any(|(name, value)| is_secret(name, value) || has_secrets(value))
        }
        Value::Array(items) => items.iter().any(has_secrets),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Returns whether a value with this name must be hidden. Nulls and booleans contain no secret.
fn is_secret(name: &str, value: &Value) -> bool {
    !value.is_null() && !value.is_boolean() && is_secret_name(name)
}

/// Masks every value that has a secret name, at any depth, except nulls and booleans.
pub fn mask_value(value: &mut Value) {
    match value {
        Value::Object(fields) => mask_fields(fields),
        Value::Array(items) => items.iter_mut().for_each(mask_value),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Masks the fields of an object as [`mask_value`] does.
pub fn mask_fields(fields: &mut Map<String, Value>) {
    for (name, value) in fields {
        if is_secret(name, value) {
            *value = MASKED.into();
        } else {
            mask_value(value);
        }
    }
}

/// Masks a request body. In JSON and forms, values with secret-looking names are masked.
#[must_use]
pub fn mask_text(text: &str) -> String {
    if text.trim_start().starts_with(['{', '['])
        && let Ok(mut value) = serde_json::from_str::<Value>(text)
    {
        let before = value.clone();
        mask_value(&mut value);
        return if value == before { text.to_owned() } else { value.to_string() };
    }
    let is_form = !text.is_empty()
        && !text.contains(char::is_whitespace)
        && text.split('&').all(|pair| pair.contains('='));
    if !is_form {
        return text.to_owned();
    }
    let mut masked = text.to_owned();
    replace_all(&mut masked, form_secrets(text, 0), |_| Some(MASKED.to_owned()));
    masked
}

/// A secret part of a string: its name and its byte range.
pub type Found = (String, std::ops::Range<usize>);

/// The name used for the user name and password of a URL.
pub const USERINFO: &str = "@";

/// Finds the secrets in a URL, which may contain references: the user name and password, and the
/// query parameters with secret names, in order of position.
#[must_use]
pub fn url_secrets(url: &str) -> Vec<Found> {
    let mut found = Vec::new();
    // A scheme can only be at the beginning, since a path or query may contain another URL.
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    let scheme = scheme.filter(|scheme| !scheme.contains(['/', '?', '#']));
    let authority = scheme.map_or(0, |scheme| scheme.len().saturating_add(3));
    let rest = url.get(authority..).unwrap_or_default();
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    if let Some(at) = rest.get(..end).and_then(|authority| authority.rfind('@'))
        && at > 0
    {
        found.push((USERINFO.to_owned(), authority..authority.saturating_add(at)));
    }
    let path_end = url.find('#').unwrap_or(url.len());
    if let Some((path, query)) = url.get(..path_end).and_then(|url| url.split_once('?')) {
        found.extend(form_secrets(query, path.len().saturating_add(1)));
    }
    found
}

/// Masks the secrets in a URL.
#[must_use]
pub fn mask_url(url: &str) -> String {
    let mut masked = url.to_owned();
    replace_all(&mut masked, url_secrets(url), |_| Some(MASKED.to_owned()));
    masked
}

/// Replaces each found part with the string that `other` returns, or leaves it unchanged if `other`
/// returns `None`.
pub fn replace_all(
    text: &mut String,
    found: Vec<Found>,
    mut other: impl FnMut(&Found) -> Option<String>,
) {
    for part in found.into_iter().rev() {
        if let Some(other) = other(&part) {
            text.replace_range(part.1, &other);
        }
    }
}

/// Finds the secret values in `name=value&…`. `start` is the byte offset of `form` in the complete
/// string.
fn form_secrets(form: &str, start: usize) -> Vec<Found> {
    let mut found = Vec::new();
    let mut at = start;
    for pair in form.split('&') {
        if let Some((name, value)) = pair.split_once('=')
            && !value.is_empty()
            && is_secret_name(name)
        {
            let from = at.saturating_add(name.len()).saturating_add(1);
            found.push((name.to_owned(), from..from.saturating_add(value.len())));
        }
        at = at.saturating_add(pair.len()).saturating_add(1);
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn mask_recognizes_secret_names_by_whole_parts() {
        for name in [
            "X-Vault-Token",
            "token",
            "API_KEY",
            "apiKey",
            "APIKey",
            "apikey",
            "client_secret",
            "Authorization",
            "x-amz-signature",
            "sig",
            "Cookie",
            "password",
            "dbPass",
            "auth",
            "key2",
            "proxy-authorization",
            "sessionToken",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in [
            "max_tokens",
            "monkey",
            "passenger",
            "author",
            "significant",
            "design",
            "keyboard",
            "compass",
            "X-Kind",
            "",
            "secretary",
            "Content-Type",
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn mask_hides_values_of_secret_names_at_any_depth() {
        let mut value = json!({
            "a": [{"token": "t", "b": "shown"}], "secret": {"x": 1}, "pass": null, "auth": true,
            "key": 7,
        });
        assert!(has_secrets(&value));
        mask_value(&mut value);
        let expect = json!({
            "a": [{"token": "***", "b": "shown"}], "secret": "***", "pass": null, "auth": true,
            "key": "***",
        });
        assert_eq!(value, expect);
        for (text, shown) in [
            (r#"{"token":"t","n":1}"#, r#"{"token":"***","n":1}"#),
            (r#"{ "n": 1.50 }"#, r#"{ "n": 1.50 }"#),
            ("a=1&token=t&b=", "a=1&token=***&b="),
            ("the token=t is here", "the token=t is here"),
            ("plain", "plain"),
        ] {
            assert_eq!(mask_text(text), shown);
        }
    }

    #[test]
    fn mask_finds_secrets_where_it_would_hide_something() {
        for (value, expect) in [
            (json!([{"a": {"apiKey": 1}}]), true),
            (json!({"tokens": {"token": []}}), true),
            (json!({"a": [{"b": "token"}], "pass": null, "auth": true}), false),
            (json!("token"), false),
        ] {
            let mut masked = value.clone();
            mask_value(&mut masked);
            assert_eq!((has_secrets(&value), masked != value), (expect, expect), "{value}");
        }
    }

    #[test]
    fn mask_hides_credentials_in_urls() {
        for (url, shown) in [
            ("https://u:p@h:1/a?q=1&api_key=k#f", "https://***@h:1/a?q=1&api_key=***#f"),
            ("https://tok@h", "https://***@h"),
            ("https://h/a@b?sig=s&x", "https://h/a@b?sig=***&x"),
            ("https://h/?api_key={{inputs.k}}", "https://h/?api_key=***"),
            ("https://h/#token=t", "https://h/#token=t"),
            ("{{inputs.url}}", "{{inputs.url}}"),
            ("https://h/?key=http://u:p@other/&n=1", "https://h/?key=***&n=1"),
            ("?key=://a@b", "?key=***"),
        ] {
            assert_eq!(mask_url(url), shown);
            assert_eq!(mask_url(shown), shown, "masking twice changes nothing");
        }
    }

    proptest! {
        #[test]
        fn mask_never_panics_and_is_idempotent(text in "\\PC{0,60}") {
            let masked = mask_url(&text);
            prop_assert_eq!(mask_url(&masked), masked);
            drop(mask_text(&text));
        }
    }
}
