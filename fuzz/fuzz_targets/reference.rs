//! Any text is parsed as a template or refused; what it resolves to stays within its limit, and a
//! reference that is printed is read back as itself.

#![no_main]

use std::borrow::Cow;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use orrery_domain::reference::{Field, Reference, Scope};
use orrery_domain::template::Template;
use serde_json::{Value, json};

/// The most bytes that a text may resolve to here.
const LIMIT_BYTES: usize = 4096;

static INPUTS: LazyLock<Value> =
    LazyLock::new(|| json!({"a": {"b": [1, "two", null]}, "long": "x".repeat(1000)}));
static ITEM: LazyLock<Value> = LazyLock::new(|| json!({"url": "u"}));

struct Given;

impl Scope for Given {
    fn inputs(&self) -> &Value {
        &INPUTS
    }

    fn execution_id(&self) -> String {
        "id".to_owned()
    }

    fn item(&self, name: &str) -> Option<&Value> {
        (name == "item").then_some(&*ITEM)
    }

    fn step(&self, id: &str, field: Field) -> Option<Cow<'_, Value>> {
        match (id, field) {
            ("s", Field::Headers) => Some(Cow::Owned(json!({"Content-Type": "text/plain"}))),
            ("s", _) => Some(Cow::Borrowed(&INPUTS)),
            _ => None,
        }
    }
}

fuzz_target!(|text: &str| {
    let written = json!({"k": [text]});
    if let Ok(template) = Template::parse(&written) {
        for reference in template.references() {
            let printed = reference.to_string();
            let inside = printed.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
            let again = inside.and_then(|inside| Reference::parse(inside).ok());
            assert_eq!(again.as_ref(), Some(reference));
        }
        if let Ok(Value::Object(fields)) = template.resolve(&Given, LIMIT_BYTES) {
            let longest = fields.values().filter_map(|list| list[0].as_str()).map(str::len).max();
            assert!(longest.unwrap_or(0) <= LIMIT_BYTES);
        }
    }
});
