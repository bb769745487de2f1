//! Reads YAML, JSON and TOML files within size limits, and writes YAML that reads back unchanged.
//!
//! A path may be a link to a private file. The user of this command may read that file, but other
//! people who see the command's messages may not. Errors therefore quote nothing from a file except
//! words that look like field names.

use std::collections::HashSet;
use std::fmt;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_path_to_error::Segment;

use super::yaml_fault;
use orrery_http::content;
use orrery_runtime::regular_file;

/// Maximum size of a file in bytes: the default limit of a request body.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Maximum nesting depth of lists and objects.
pub(super) const DEPTH_MAX: usize = 100;
/// Maximum number of values in one file, including values repeated by aliases.
pub(super) const VALUES_MAX: usize = 200_000;
/// Maximum number of aliases in one file.
pub(super) const ALIASES_MAX: usize = 1_000;
/// Maximum length of a name that an error quotes.
const QUOTED_MAX: usize = 40;

/// Parses a file in the format that its extension indicates.
///
/// # Errors
/// Returns an error when the file cannot be read, is too large, or is not valid in that format.
pub(super) fn read(path: &Path) -> anyhow::Result<Value> {
    let shown = path.display();
    let text = read_text(path, FILE_BYTES_MAX)?;
    match extension(path).as_str() {
        "yaml" | "yml" => yaml(&text).with_context(|| format!("{shown} cannot be used")),
        "json" => json(&text).with_context(|| format!("{shown} cannot be used")),
        "toml" => toml(&text).with_context(|| format!("{shown} cannot be used")),
        _ => bail!("{shown} must end with .yaml, .yml, .json or .toml"),
    }
}

/// Rejects a link in `folder` to a file outside of the folder, such as a private file that the
/// author of the link cannot read. A broken link is not rejected here, but reading it fails.
///
/// # Errors
/// Returns an error that names the link.
pub(super) fn check_within(path: &Path, folder: &Path) -> anyhow::Result<()> {
    let (Ok(file), Ok(within)) = (path.canonicalize(), folder.canonicalize()) else {
        return Ok(());
    };
    if !file.starts_with(within) {
        let (path, folder) = (path.display(), folder.display());
        bail!("the target of the link {path} is outside of {folder}: replace the link with a copy");
    }
    Ok(())
}

/// Returns the file extension in lower case.
pub(super) fn extension(path: &Path) -> String {
    path.extension().and_then(std::ffi::OsStr::to_str).unwrap_or_default().to_ascii_lowercase()
}

/// Reads a text file of at most `most` bytes.
///
/// # Errors
/// Returns an error when the file cannot be read, is larger, or is not UTF-8.
pub(super) fn read_text(path: &Path, most: u64) -> anyhow::Result<String> {
    let shown = path.display();
    let file = regular_file::open(path).with_context(|| format!("{shown} cannot be opened"))?;
    let mut bytes = Vec::new();
    let mut within = file.take(most.saturating_add(1));
    within.read_to_end(&mut bytes).with_context(|| format!("{shown} cannot be read"))?;
    if bytes.len() as u64 > most {
        bail!("{shown} has more than {most} bytes");
    }
    let Ok(mut text) = String::from_utf8(bytes) else {
        bail!("{shown} is not UTF-8 text: save it in UTF-8");
    };
    if let Some(rest) = text.strip_prefix('\u{feff}') {
        text = rest.to_owned();
    }
    Ok(text)
}

/// Parses a YAML document. Parsing stops when a limit is exceeded, so a hostile document takes few
/// resources.
///
/// # Errors
/// Returns an error with the line and column of the invalid part.
pub(super) fn yaml(text: &str) -> anyhow::Result<Value> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX,
            max_nodes: VALUES_MAX,
            max_events: VALUES_MAX * 3,
            max_aliases: ALIASES_MAX,
            max_anchors: ALIASES_MAX,
            max_recorded_anchor_events: VALUES_MAX,
            max_documents: 1,
        },
        strict_booleans: true,
        with_snippet: false,
    };
    let value = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        anyhow::anyhow!("it is not valid YAML: {}", yaml_fault::sentence(&error))
    })?;
    yaml_fault::check_numbers(text)?;
    Ok(value)
}

/// Serializes a value as YAML.
///
/// # Errors
/// Returns an error when the value has no YAML form.
pub(super) fn to_yaml(value: &Value) -> anyhow::Result<String> {
    serde_saphyr::to_string(value)
        .map_err(|error| anyhow::anyhow!("it cannot be written as YAML: {error}"))
}

/// Parses JSON. Rejects objects that have two fields with the same name.
fn json(text: &str) -> anyhow::Result<Value> {
    let value = content::parse(text.as_bytes())?;
    let unique: Result<Unique, _> = serde_json::from_str(text);
    unique.map_err(|error| anyhow::anyhow!(without_contents(&error.to_string())))?;
    Ok(value)
}

/// A deserializer for JSON that rejects duplicate keys.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self, A::Error> {
        let mut names = HashSet::new();
        while let Some((name, Self)) = fields.next_entry::<String, Self>()? {
            if let Some(name) = names.replace(name) {
                return Err(de::Error::custom(format!("duplicate key {name:?}")));
            }
        }
        Ok(self)
    }
}

fn toml(text: &str) -> anyhow::Result<Value> {
    let table: toml::Table = from_toml(text).context("it is not valid TOML")?;
    // TOML dates become strings, because JSON has no date type.
    Ok(serde_json::to_value(table)?)
}

/// Parses TOML into a type.
///
/// # Errors
/// Returns an error with the line and column of the invalid part, without the line itself.
pub(super) fn from_toml<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let what = without_contents(error.message());
        let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
            return anyhow::anyhow!(what);
        };
        let line = before.split('\n').count();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        anyhow::anyhow!("line {line} column {column}: {what}")
    })
}

/// Converts a value from a file to a type.
///
/// # Errors
/// Returns an error with the path of the invalid part.
pub(super) fn typed<T: DeserializeOwned>(value: Value) -> anyhow::Result<T> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let what = without_contents(&error.inner().to_string());
        let shown = |segment: &Segment| match segment {
            Segment::Seq { index } => Some(index.to_string()),
            Segment::Map { key } | Segment::Enum { variant: key } => Some(quotable(key).to_owned()),
            Segment::Unknown => None,
        };
        let place: Vec<String> = error.path().iter().filter_map(shown).collect();
        match place.is_empty() {
            true => anyhow::anyhow!(what),
            false => anyhow::anyhow!("{}: {what}", place.join(".")),
        }
    })
}

/// Returns a name from a file in the form in which errors may quote it. A text that does not look
/// like a field name is replaced, because it may be the contents of a private file.
pub(super) fn quotable(name: &str) -> &str {
    let is_name = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '-' | ' ');
    if name.len() <= QUOTED_MAX && name.chars().all(is_name) { name } else { "(not a name)" }
}

/// Removes from a parser's message the text that it quotes from the file, except names. The part of
/// the message that says what the parser expected stays.
pub(super) fn without_contents(message: &str) -> String {
    let expected = [", expected ", "expected ", ", there are no "];
    let end = expected.iter().filter_map(|word| message.rfind(word)).min().unwrap_or(message.len());
    let (found, expected) = message.split_at(end);
    let is_quote = |c: char| matches!(c, '`' | '"' | '\'');
    let (Some(start), Some(end)) = (found.find(is_quote), found.rfind(is_quote)) else {
        return message.to_owned();
    };
    let quoted = found.get(start + 1..end).unwrap_or_default();
    let (before, after) = (found.get(..=start), found.get(end.max(start + 1)..));
    format!(
        "{}{}{}{expected}",
        before.unwrap_or_default(),
        quotable(quoted),
        after.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn file_with_byte_order_mark_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("a.json", "{\"a\": 1}"), ("a.yaml", "a: 1"), ("a.toml", "a = 1")] {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("\u{feff}{text}")).unwrap();
            assert_eq!(read(&path).unwrap(), json!({"a": 1}), "{name}");
        }
        let path = folder.path().join("wide.json");
        std::fs::write(&path, "[123456789012345678901]").unwrap();
        assert!(format!("{:#}", read(&path).unwrap_err()).contains("does not fit into 64 bits"));
    }

    #[test]
    fn file_with_duplicate_keys_or_in_other_charset_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes, said) in [
            ("a.json", &b"{\"a\": 1, \"a\": 2}"[..], "duplicate key \"a\" at line 1"),
            ("b.json", b"[{\"x\": {\"b\": 1,\n\"b\": 1}}]", "duplicate key \"b\" at line 2"),
            ("c.yaml", b"a: 1\na: 2\n", "duplicate key \"a\""),
            ("d.toml", b"a = 1\na = 2\n", "duplicate key"),
            ("e.yaml", b"\xff\xfea\0:\0 \x001\0", "is not UTF-8 text: save it in UTF-8"),
            ("f.json", b"{\"a\": \"caf\xe9\"}", "is not UTF-8 text: save it in UTF-8"),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let error = format!("{:#}", read(&path).unwrap_err());
            assert!(error.contains(said), "{name}: {error}");
        }
        let path = folder.path().join("g.json");
        std::fs::write(&path, "[{\"a\": 1}, {\"a\": [1.5, null, true, -1, \"a\"]}]").unwrap();
        assert!(read(&path).is_ok());
    }

    #[test]
    fn file_errors_quote_only_names() {
        for (message, shown) in [
            ("unknown field `nmae`, expected `name`", "unknown field `nmae`, expected `name`"),
            (
                "unknown field `root:*:1`, expected `a`",
                "unknown field `(not a name)`, expected `a`",
            ),
            (
                "unknown field `a`, expected b`, expected `c`",
                "unknown field `(not a name)`, expected `c`",
            ),
            (
                "unknown field `x1`, there are no fields",
                "unknown field `(not a name)`, there are no fields",
            ),
            (
                "invalid type: string \"hunter2\", expected a map",
                "invalid type: string \"(not a name)\", expected a map",
            ),
            ("duplicate key 'root:*:20228'", "duplicate key '(not a name)'"),
            ("missing field `model`", "missing field `model`"),
            ("expected `,` or `}` at line 1 column 2", "expected `,` or `}` at line 1 column 2"),
            ("EOF while parsing", "EOF while parsing"),
            ("one ` only", "one ` only"),
        ] {
            assert_eq!(without_contents(message), shown);
        }
        let folder = tempfile::tempdir().unwrap();
        let line = "root:*:20228:0:99999:7:::\n";
        for (name, text) in [
            ("a.yaml", line.repeat(2)),
            ("b.yaml", format!("a: *{line}")),
            ("c.yaml", format!("{{'{line}")),
            ("a.json", line.to_owned()),
            ("b.json", format!("{{\"a\": {line}")),
            ("a.toml", line.to_owned()),
            ("b.toml", "'root:*:20228' = 1\n".repeat(2)),
            ("c.toml", "a = root:*:20228\n".to_owned()),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", read(&path).unwrap_err());
            assert!(!error.contains("20228"), "{name}: {error}");
            assert!(error.contains(name), "{name}: {error}");
        }
    }

    #[test]
    fn yaml_rejects_hostile_documents_early() {
        let mut laughs = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
        for level in 1..12 {
            let before = level - 1;
            let many = vec![format!("*a{before}"); 9].join(", ");
            writeln!(laughs, "a{level}: &a{level} [{many}]").unwrap();
        }
        for text in [
            laughs,
            "[".repeat(100_000),
            format!("{}1{}", "[".repeat(101), "]".repeat(101)),
            (0..100_000).map(|depth| " ".repeat(depth % 200) + "a:\n").collect(),
            "- x\n".repeat(VALUES_MAX + 1),
            "a: 1\na: 2\n".to_owned(),
            "a: 1\n---\nb: 2\n".to_owned(),
            "&a [*a]".to_owned(),
            "\0".to_owned(),
        ] {
            let start: String = text.chars().take(40).collect();
            assert!(yaml(&text).is_err(), "{start}");
        }
    }

    #[test]
    fn yaml_accepts_common_handwritten_forms() {
        let text = "
name: Greeting   # a comment
tags: [a, 'b']
base: &retry {max_attempts: 3}
definition:
  steps:
    - step_id: say
      type: pass
      retry: *retry
      result: \"{{inputs.name}}\"
      text: |
        two
        lines
      yes: no
";
        let read = yaml(text).unwrap();
        assert_eq!(
            read["definition"]["steps"][0],
            json!({
                "step_id": "say", "type": "pass", "retry": {"max_attempts": 3},
                "result": "{{inputs.name}}", "text": "two\nlines\n", "yes": "no",
            })
        );
        let names: Vec<&String> = read.as_object().unwrap().keys().collect();
        assert_eq!(names, ["name", "tags", "base", "definition"]);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let text = prop_oneof![
            "[ -~]{0,12}",
            "(yes|no|on|null|~|true|0x1f|1e3|012|1_000|.inf|- a|a: b|\\{\\{x\\}\\}|2020-01-01|<<|%|&a|\\*a)",
            "[a-zé\\n\\t :#'\"\\\\|>-]{0,20}",
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e9_f64..1e9).prop_map(Value::from),
            text.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((text.clone(), inner), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn yaml_round_trips(value in any_value()) {
            let text = to_yaml(&value).unwrap();
            let read = yaml(&text);
            prop_assert!(read.is_ok(), "{text}\n{read:?}");
            prop_assert_eq!(read.unwrap(), value, "{}", text);
        }

        #[test]
        fn yaml_of_any_text_never_panics(text in "[-\\[\\]{}:,&*!|>'\"%@`#? a-c\\n0-9]{0,80}") {
            let _either = yaml(&text);
        }
    }
}
