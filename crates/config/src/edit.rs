//! Changes one key of a configuration's text and keeps everything else: comments, order and blank
//! lines.

use toml_edit::{DocumentMut, Item, Key, Table, TableLike, Value};

/// One key with its new value.
#[derive(Clone, PartialEq, Eq)]
pub struct Setting {
    key: String,
    /// The value as TOML.
    value: String,
}

impl Setting {
    /// Creates a setting. `value` is TOML such as `true`, `["a"]` or `"text"`; anything that is not
    /// TOML is a string, so that strings need no quotes.
    ///
    /// # Errors
    /// Returns a message if `key` is not a key such as `log.level`.
    pub fn new(key: &str, value: &str) -> Result<Self, String> {
        Key::parse(key).map_err(|_invalid| format!("{key:?} is not a key such as log.level"))?;
        let value = match value.trim().parse::<Value>() {
            Ok(_) => value.trim().to_owned(),
            Err(_text) => Value::from(value).to_string(),
        };
        Ok(Self { key: key.to_owned(), value })
    }

    /// Returns the key, such as `log.level`.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    fn path(&self) -> Vec<Key> {
        Key::parse(&self.key).unwrap_or_default()
    }
}

/// Returns `text` with this setting. If the option is commented out, as in `#model = "llama"`, the
/// commented-out line is replaced.
///
/// # Errors
/// Returns a message if the text is not TOML, or a part of the key is not a table.
pub fn set(text: &str, setting: &Setting) -> Result<String, String> {
    // If the text has only comments, `toml_edit` would move them after the key.
    let is_empty = text.parse::<DocumentMut>().is_ok_and(|document| document.is_empty());
    let switched_on = switched_on(text, setting);
    if is_empty && switched_on.is_none() && !text.trim().is_empty() {
        return Ok(format!("{}\n\n{}", text.trim_end(), set("", setting)?));
    }
    let text = switched_on.as_deref().unwrap_or(text);
    let mut document: DocumentMut =
        text.parse().map_err(|error: toml_edit::TomlError| error.message().to_owned())?;
    let path = setting.path();
    let Some((last, tables)) = path.split_last() else { return Ok(text.to_owned()) };
    let mut table: &mut dyn TableLike = document.as_table_mut();
    for name in tables {
        let inside = table.entry(name.get()).or_insert_with(|| {
            let mut table = Table::new();
            table.set_implicit(true);
            Item::Table(table)
        });
        let key = setting.key();
        table = inside
            .as_table_like_mut()
            .ok_or_else(|| format!("{key}: `{}` is not a table", name.get()))?;
    }
    let mut value: Value =
        setting.value.parse().map_err(|error: toml_edit::TomlError| error.message().to_owned())?;
    match table.get_mut(last.get()).and_then(Item::as_value_mut) {
        // Keep the comment after the value.
        Some(before) => {
            *value.decor_mut() = before.decor().clone();
            *before = value;
        }
        None => {
            table.insert(last.get(), Item::Value(value));
        }
    }
    Ok(document.to_string())
}

/// Returns whether `text` sets the key.
pub(super) fn has(text: &str, key: &str) -> bool {
    let Ok(document) = text.parse::<DocumentMut>() else { return false };
    let mut parts = key.split('.');
    let first = parts.next().and_then(|part| document.get(part));
    parts.try_fold(first, |item, part| Some(item?.get(part))).flatten().is_some()
}

/// Replaces the commented-out line of the option with the setting; returns `None` if there is no
/// such line.
fn switched_on(text: &str, setting: &Setting) -> Option<String> {
    let mut table = String::new();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let shown = lines.iter_mut().find(|line| {
        if let Some(heading) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            table = format!("{heading}.");
        }
        let option = line.strip_prefix('#').and_then(|line| line.split_once(" = "));
        option.is_some_and(|(name, _)| format!("{table}{name}") == setting.key)
    })?;
    let name = shown.trim_start_matches('#').split_once(" = ")?.0.to_owned();
    *shown = format!("{name} = {}", setting.value);
    let text = lines.join("\n") + "\n";
    // The text is invalid if another line also sets the key.
    text.parse::<DocumentMut>().is_ok().then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, key: &str, value: &str, expect: &str) {
        let setting = Setting::new(key, value).unwrap();
        assert_eq!(set(text, &setting).unwrap(), expect, "{key} = {value}");
        assert!(has(expect, key), "{key}");
    }

    #[test]
    fn set_keeps_comments_order_and_blank_lines() {
        let text = "# Head.\na = 1 # one\n\n[log] # how\nlevel = \"info\"   # loud\nb = 2\n";
        check(text, "log.level", "warn", &text.replace("info", "warn"));
        check(text, "a", "[2]", &text.replace("a = 1", "a = [2]"));
        check(text, "log.access", "true", &format!("{text}access = true\n"));
        check(text, "c", "x y", &text.replace("# one\n", "# one\nc = \"x y\"\n"));
        check(text, "agent.model", "llama", &format!("{text}\n[agent]\nmodel = \"llama\"\n"));
        check("# Head.\n", "a.b", "1", "# Head.\n\n[a]\nb = 1\n");
        check("", "data_dir", "/x", "data_dir = \"/x\"\n");
        check("x = { y = 1 }\n", "x.y", "2", "x = { y = 2 }\n");
    }

    #[test]
    fn set_replaces_option_that_is_commented_out() {
        let text = "#model = 1\n[agent]\n# Its model.\n#model = \"llama\"\nmax = 1\n[limits]\n#rate.burst = 2\n";
        check(text, "agent.model", "x", &text.replace("#model = \"llama\"", "model = \"x\""));
        check(text, "limits.rate.burst", "3", &text.replace("#rate.burst = 2", "rate.burst = 3"));
        let both = "[agent]\n#model = \"a\"\nmodel = \"b\"\n";
        check(both, "agent.model", "c", "[agent]\n#model = \"a\"\nmodel = \"c\"\n");
    }

    #[test]
    fn set_refuses_key_inside_a_value() {
        let error = set("a = 1\n", &Setting::new("a.b", "2").unwrap()).unwrap_err();
        assert_eq!(error, "a.b: `a` is not a table");
        assert!(Setting::new("a b", "1").unwrap_err().contains("is not a key"));
    }
}
