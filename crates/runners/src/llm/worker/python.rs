//! Parses tool calls in Python notation, as Llama 4, LFM2 and OLMo write them: `[f(city="Paris",
//! days=3), g()]`.

use serde_json::{Map, Number, Value};

use super::tools::Call;

/// Maximum nesting of lists and dictionaries.
const DEPTH_MAX: usize = 64;

/// Parses a text that is a list of calls; returns an empty list if the text contains anything else.
#[must_use]
pub(super) fn calls(text: &str) -> Vec<Call> {
    let mut reader = Reader { rest: text.trim() };
    let list = reader.list();
    list.filter(|_| reader.rest.trim().is_empty()).unwrap_or_default()
}

struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn list(&mut self) -> Option<Vec<Call>> {
        let is_listed = self.skip("[");
        let mut calls = Vec::new();
        loop {
            let name = self.name()?;
            self.skip("(").then_some(())?;
            let mut fields = Map::new();
            while !self.skip(")") {
                let key = self.name()?.to_owned();
                self.skip("=").then_some(())?;
                let value = self.value(DEPTH_MAX)?;
                fields.insert(key, value);
                if !self.skip(",") {
                    self.skip(")").then_some(())?;
                    break;
                }
            }
            calls.push(Call { name: name.to_owned(), arguments: Value::from(fields).to_string() });
            if self.skip(",") || (!is_listed && !self.rest.trim().is_empty()) {
                continue;
            }
            return (!is_listed || self.skip("]")).then_some(calls);
        }
    }

    /// Skips the mark if it comes next, and returns whether it did.
    fn skip(&mut self, mark: &str) -> bool {
        let rest = self.rest.trim_start();
        let behind = rest.strip_prefix(mark);
        self.rest = behind.unwrap_or(rest);
        behind.is_some()
    }

    fn name(&mut self) -> Option<&'t str> {
        let rest = self.rest.trim_start();
        let is_part = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.' | '-');
        let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        let (name, behind) = rest.split_at_checked(end).filter(|(name, _)| !name.is_empty())?;
        self.rest = behind;
        Some(name)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        let first = self.rest.trim_start().chars().next()?;
        match first {
            '"' | '\'' => self.text().map(Value::String),
            '[' | '(' => {
                self.rest = self.rest.trim_start().get(1..)?;
                let end = if first == '[' { "]" } else { ")" };
                let mut items = Vec::new();
                while !self.skip(end) {
                    items.push(self.value(depth)?);
                    if !self.skip(",") {
                        return self.skip(end).then_some(items.into());
                    }
                }
                Some(items.into())
            }
            '{' => {
                self.skip("{");
                let mut fields = Map::new();
                while !self.skip("}") {
                    let key = self.text()?;
                    self.skip(":").then_some(())?;
                    fields.insert(key, self.value(depth)?);
                    if !self.skip(",") {
                        return self.skip("}").then_some(fields.into());
                    }
                }
                Some(fields.into())
            }
            _ => self.word(),
        }
    }

    fn word(&mut self) -> Option<Value> {
        let rest = self.rest.trim_start();
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || "+-._".contains(letter);
        let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at_checked(end)?;
        self.rest = behind;
        match word {
            "True" | "true" => Some(true.into()),
            "False" | "false" => Some(false.into()),
            "None" | "null" => Some(Value::Null),
            number => number.parse::<Number>().ok().map(Value::Number),
        }
    }

    fn text(&mut self) -> Option<String> {
        let rest = self.rest.trim_start();
        let quote = rest.chars().next().filter(|first| matches!(first, '"' | '\''))?;
        let mut text = String::new();
        let mut letters = rest.char_indices().skip(1);
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\\' => {
                    let (_, escaped) = letters.next()?;
                    text.push(match escaped {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        other => other,
                    });
                }
                end if end == quote => {
                    self.rest = rest.get(at + 1..)?;
                    return Some(text);
                }
                other => text.push(other),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_calls_are_parsed_with_their_values() {
        let read = |text: &str| {
            let all = calls(text).into_iter();
            all.map(|call| format!("{}{}", call.name, call.arguments)).collect::<Vec<_>>().join(" ")
        };
        for (text, expected) in [
            ("[f(city=\"Paris\", days=3)]", r#"f{"city":"Paris","days":3}"#),
            (
                " [f(), g(x=[1, -2.5e3], y={'a': None, \"b\": True})] ",
                r#"f{} g{"x":[1,-2500.0],"y":{"a":null,"b":true}}"#,
            ),
            ("[a.b(t='it\\'s\\n', u=(1,),)]", r#"a.b{"t":"it's\n","u":[1]}"#),
            ("f(x=\"é, (]\")", r#"f{"x":"é, (]"}"#),
            ("[1, 2, 3]", ""),
            ("[f(x=1)", ""),
            ("[f(x=1)] and more", ""),
            ("[f(x=print)]", ""),
            ("[see (above)]", ""),
            ("", ""),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
        let deep = format!("[f(x={}{})]", "[".repeat(100), "]".repeat(100));
        assert_eq!(read(&deep), "");
    }
}
