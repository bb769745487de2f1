//! The patterns that strings in requests must match, with the sentences that report a mismatch, and
//! the transforms that add the patterns to the schemas of fields.
//!
//! A pattern must mean the same in ECMAScript, Python and Rust, because the OpenAPI documents
//! publish it.

use orrery_domain::file::NAME_MAX as FILE_NAME_MAX;
use schemars::Schema;
use serde_json::json;

/// A pattern of strings.
#[derive(Debug)]
pub struct Pattern {
    /// The regular expression that schemas contain.
    pub regex: &'static str,
    /// The rest of a sentence that begins with the field.
    pub sentence: &'static str,
    accepts: fn(&str) -> bool,
}

/// A string with a character other than whitespace.
pub const FILLED: Pattern =
    Pattern { regex: r"\S", sentence: "is required", accepts: |text| !text.trim().is_empty() };

/// A string without control characters.
pub const LINE: Pattern = Pattern {
    regex: r"^[^\u0000-\u001f\u007f-\u009f]*$",
    sentence: "must not contain control characters",
    accepts: |text| !text.chars().any(char::is_control),
};

/// A string without NUL.
pub const WITHOUT_NUL: Pattern = Pattern {
    regex: r"^[^\u0000]*$",
    sentence: "must not contain NUL characters",
    accepts: |text| !text.contains('\0'),
};

/// An absolute URL of a web server, or an empty string.
pub const OPTIONAL_WEB_URL: Pattern = Pattern {
    regex: r"^$|^[hH][tT][tT][pP][sS]?:",
    sentence: "must be an absolute http or https URL",
    accepts: |text| text.is_empty() || is_web_url(text),
};

/// An absolute URL of a web server.
pub const WEB_URL: Pattern = Pattern {
    regex: r"^[hH][tT][tT][pP][sS]?:",
    sentence: "must be an absolute http or https URL",
    accepts: is_web_url,
};

/// The name of a fallback chain.
pub const CHAIN_NAME: Pattern = Pattern {
    regex: "^[a-z0-9-]{1,50}$",
    sentence: "must have 1 to 50 characters of a-z, 0-9 and -",
    accepts: orrery_domain::chain::is_name,
};

/// The name of a webhook endpoint, or an empty string.
pub const ENDPOINT_NAME: Pattern = Pattern {
    regex: "^[A-Za-z0-9._-]{0,64}$",
    sentence: "must have 1 to 64 characters of a-z A-Z 0-9 . _ -",
    accepts: |text| text.is_empty() || orrery_domain::webhook_endpoint::is_name(text),
};

/// An email address, roughly. The service sends no mail: the address is only the login name.
pub const EMAIL: Pattern = Pattern {
    regex: r"^\s*[^@\s\u0000-\u001f\u007f]+@[^@\s\u0000-\u001f\u007f]+\s*$",
    sentence: "is not an email address, such as ada@example.com",
    accepts: |text| orrery_domain::member::is_email(text.trim()),
};

/// An [`EMAIL`], or a blank string.
pub const OPTIONAL_EMAIL: Pattern = Pattern {
    regex: r"^\s*$|^\s*[^@\s\u0000-\u001f\u007f]+@[^@\s\u0000-\u001f\u007f]+\s*$",
    sentence: EMAIL.sentence,
    accepts: |text| text.trim().is_empty() || EMAIL.accepts(text),
};

/// The name of a file without folders.
pub const FILE_NAME: Pattern = Pattern {
    regex: r"^[^/\\\u0000-\u001f\u007f-\u009f]{1,255}$",
    sentence: "must be a plain name of 1 to 255 characters, without / and \\",
    accepts: |text| {
        (1..=FILE_NAME_MAX).contains(&text.chars().count())
            && !text.chars().any(|c| c.is_control() || c == '/' || c == '\\')
    },
};

/// A SHA-256 hash.
pub const SHA256: Pattern = Pattern {
    regex: "^[0-9a-fA-F]{64}$",
    sentence: "must have 64 hexadecimal digits",
    accepts: |text| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()),
};

/// The period of a budget.
pub const BUDGET_PERIOD: Pattern = Pattern {
    regex: "^(1mo|[1-9][0-9]{0,3}[mhdw]( [1-9][0-9]{0,3}[mhdw]){0,3})$",
    sentence: "must be a duration of minutes, hours, days or weeks, such as 30d or 12h, or 1mo",
    accepts: is_budget_period,
};

/// The content of a compaction.
pub const COMPACTION: Pattern = Pattern {
    regex: "^summary:",
    sentence: "must be the content of a compaction of this service",
    accepts: |text| text.starts_with("summary:"),
};

const ALL: [&Pattern; 13] = [
    &FILLED,
    &LINE,
    &WITHOUT_NUL,
    &OPTIONAL_WEB_URL,
    &WEB_URL,
    &CHAIN_NAME,
    &ENDPOINT_NAME,
    &EMAIL,
    &OPTIONAL_EMAIL,
    &FILE_NAME,
    &SHA256,
    &BUDGET_PERIOD,
    &COMPACTION,
];

fn is_budget_period(text: &str) -> bool {
    let is_span = |part: &str| {
        let digits = part.strip_suffix(['m', 'h', 'd', 'w']).unwrap_or_default();
        (1..=4).contains(&digits.len())
            && !digits.starts_with('0')
            && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let parts = || text.split(' ');
    text == "1mo" || (parts().count() <= 4 && parts().all(is_span))
}

fn is_web_url(text: &str) -> bool {
    let scheme = text.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    matches!(scheme.as_deref(), Some("http" | "https"))
}

impl Pattern {
    /// Returns the pattern with this regular expression.
    #[must_use]
    pub fn named(regex: &str) -> Option<&'static Self> {
        ALL.into_iter().find(|pattern| pattern.regex == regex)
    }

    /// Returns whether the text matches the pattern.
    #[must_use]
    pub fn accepts(&self, text: &str) -> bool {
        (self.accepts)(text)
    }
}

macro_rules! transforms {
    ($($name:ident: $pattern:ident;)+) => {$(
        #[doc = concat!("Adds [`", stringify!($pattern), "`] to the schema of a field.")]
        pub fn $name(schema: &mut Schema) {
            schema.insert("pattern".to_owned(), $pattern.regex.into());
        }
    )+};
}

transforms! {
    line: LINE;
    filled: FILLED;
    without_nul: WITHOUT_NUL;
    web_url: WEB_URL;
    optional_web_url: OPTIONAL_WEB_URL;
    chain_name: CHAIN_NAME;
    endpoint_name: ENDPOINT_NAME;
    email: EMAIL;
    optional_email: OPTIONAL_EMAIL;
    file_name: FILE_NAME;
    sha256: SHA256;
    budget_period: BUDGET_PERIOD;
    compaction: COMPACTION;
}

/// Adds [`FILLED`] and [`LINE`] to the schema of a field.
pub fn name(schema: &mut Schema) {
    schema.insert("allOf".to_owned(), json!([{"pattern": FILLED.regex}]));
    line(schema);
}

/// Adds [`FILLED`] to the schema of an array's items.
pub fn each_filled(schema: &mut Schema) {
    each(schema, filled);
}

/// Adds [`WEB_URL`] and [`LINE`] to the schema of an array's items.
pub fn each_web_url(schema: &mut Schema) {
    each(schema, |items| {
        items.insert("allOf".to_owned(), json!([{"pattern": WEB_URL.regex}]));
        line(items);
    });
}

/// Adds [`FILLED`] and [`LINE`] to the schema of an array's items.
pub fn each_name(schema: &mut Schema) {
    each(schema, name);
}

/// Sets the schema of a field to that of a time or an empty string.
pub fn optional_time(schema: &mut Schema) {
    schema.insert("anyOf".to_owned(), json!([{"format": "date-time"}, {"const": ""}]));
}

/// Sets the schema of a field to that of an unparsed time.
pub fn time(schema: &mut Schema) {
    schema.insert("format".to_owned(), "date-time".into());
}

/// Sets the schema of a field to that of an unparsed ID.
pub fn uuid(schema: &mut Schema) {
    schema.insert("format".to_owned(), "uuid".into());
}

/// Applies a transform to the items of an array.
fn each(schema: &mut Schema, transform: fn(&mut Schema)) {
    if let Some(Ok(items)) = schema.get_mut("items").map(<&mut Schema>::try_from) {
        transform(items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_accept_what_their_expressions_match() {
        let texts = [
            "",
            " ",
            "\n",
            "a",
            " a ",
            "a\nb",
            "\u{0}",
            "a\u{7}",
            "é",
            "\u{85}",
            "http://h/",
            "HTTPS:x",
            "httpx:",
            "ftp://h",
            "a-b-9",
            "A.b_C",
            &"a".repeat(50),
            &"a".repeat(51),
            &"a".repeat(64),
            &"a".repeat(65),
            &"0".repeat(64),
            &"g".repeat(64),
        ];
        for pattern in ALL {
            let regex = regex::Regex::new(pattern.regex).unwrap();
            for text in texts {
                assert_eq!(pattern.accepts(text), regex.is_match(text), "{pattern:?} {text:?}");
            }
        }
    }
}
