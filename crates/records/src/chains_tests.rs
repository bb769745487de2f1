//! Tests of chains on a real store, and of the compatibility of two schemas.

use serde_json::json;

use super::*;
use orrery_storage::Options;
use orrery_storage::record::encode;

fn schema(slug: &str) -> Result<Value, String> {
    Ok(match slug {
        "primary" => json!({"type": "object", "required": ["prompt"], "properties": {
            "prompt": {"type": "string"}, "size": {"type": "integer"}, "fast": {"type": "boolean"}}}),
        "same" => json!({"type": "object", "required": ["prompt"],
            "properties": {"prompt": {"type": "string"}, "steps": {"type": "integer", "default": 4}}}),
        "other" => json!({"type": "object", "required": ["text"], "properties": {
            "text": {"type": "string", "maxLength": 5}, "scale": {"type": "number"}}}),
        "any" => json!({"type": "object"}),
        _ => return Err(format!("there is no model {slug}")),
    })
}

fn entry(model: &str, input_map: Value) -> Entry {
    let input_map = input_map.as_object().cloned();
    Entry { model: model.to_owned(), input_map }
}

#[tokio::test]
async fn chain_input_map_must_satisfy_model_schema() {
    let none = Value::Null;
    for (entry, expect) in [
        (entry("same", none.clone()), ""),
        (entry("any", none.clone()), ""),
        (entry("other", json!({"text": "{{input.prompt}}"})), ""),
        (entry("other", json!({"text": "p: {{input.prompt}}", "scale": "{{input.size}}"})), ""),
        (entry("other", json!({"text": "fixed", "scale": 2})), ""),
        (
            entry("other", none.clone()),
            "it requires 'text', which it would not receive: map it in input_map",
        ),
        (entry("other", json!({})), "it requires 'text'"),
        (entry("other", json!({"text": "{{input.nope}}"})), "{{input.nope}} refers to an input"),
        (entry("other", json!({"text": "{{input.fast}}"})), "'text' has another type"),
        (
            entry("other", json!({"text": "a", "scale": "x{{input.size}}"})),
            "'scale' does not accept a string",
        ),
        (entry("other", json!({"text": "too long"})), "'text': value is longer"),
        (entry("other", json!({"text": "a", "more": 1})), "it has no input 'more'"),
        (
            entry("other", json!({"text": "{{prompt}}"})),
            "'text': {{prompt}} is not a reference to the input",
        ),
        (entry("primary", none.clone()), "cannot be its own fallback"),
        (entry("gone", none), "there is no model gone"),
    ] {
        let said = check("primary", std::slice::from_ref(&entry), &schema).await;
        let said = said.map_or_else(|error| error.to_string(), |()| String::new());
        assert!(said.contains(expect) && said.is_empty() == expect.is_empty(), "{entry:?}: {said}");
    }
    assert!(check("gone", &[entry("same", Value::Null)], &schema).await.is_err());
    assert!(check("primary", &[], &schema).await.is_err());
}

#[tokio::test]
async fn chain_is_created_toggled_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { folder: folder.path().to_path_buf(), inline_bytes: 4096 };
    let chains = Chains::new(Store::open(&options).unwrap(), Clock::system());
    let (owner, other): (OrganizationId, OrganizationId) = ([1; 16].into(), [2; 16].into());
    let entries = || vec![entry("same", Value::Null)];
    let made = chains.create(owner, "primary", "safe", entries(), &schema).await.unwrap();
    assert_eq!(chains.enabled(owner, "primary", "safe").await.unwrap(), made);
    let again = chains.create(owner, "primary", "safe", entries(), &schema).await;
    assert!(matches!(again, Err(Error::Exists { .. })));
    for name in ["", "Safe", "a b", &"a".repeat(51)] {
        let refused = chains.create(owner, "primary", name, entries(), &schema).await;
        assert!(matches!(refused, Err(Error::InvalidName)), "{name}");
    }
    for (organization, model, name) in [
        (other, "primary", "safe"),
        (owner, "same", "safe"),
        (owner, "primary", "no"),
        (owner, "primary", ""),
    ] {
        let missed = chains.enabled(organization, model, name).await;
        assert!(matches!(missed, Err(Error::NotFound { .. })));
    }
    let said = chains.enabled(owner, "primary", "saef").await.unwrap_err().to_string();
    assert_eq!(said, "the model primary has no chain saef: did you mean safe?");
    let switch = |enabled| Change { entries: None, enabled: Some(enabled) };
    chains.change(owner, "primary", "safe", switch(false), &schema).await.unwrap();
    assert!(chains.enabled(owner, "primary", "safe").await.is_err());
    chains.change(owner, "primary", "safe", switch(true), &schema).await.unwrap();
    let wrong = Change { entries: Some(vec![entry("other", Value::Null)]), enabled: None };
    assert!(chains.change(owner, "primary", "safe", wrong, &schema).await.is_err());
    assert_eq!(chains.list(owner).await.unwrap().len(), 1);
    chains.delete(owner, "primary", "safe").await.unwrap();
    let missed = chains.delete(owner, "primary", "safe").await;
    assert!(matches!(missed, Err(Error::NotFound { .. })));
    assert_eq!(chains.list(owner).await.unwrap(), []);
}

/// The bytes that release 0.1.0 writes. Changing them requires a new record version and a
/// migration.
#[test]
fn chain_matches_golden_bytes() {
    let golden = concat!(
        "\u{1}{\"organization\":\"01010101-0101-0101-0101-010101010101\",",
        "\"model\":\"a/b\",\"name\":\"safe\",\"enabled\":true,",
        "\"entries\":[{\"model\":\"c\",\"input_map\":{\"x\":\"{{input.y}}\"}},{\"model\":\"d\"}],",
        "\"created_at\":1,\"updated_at\":2}"
    );
    let read: Chain = decode(golden.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(encode(&read).unwrap()).unwrap(), golden);
}
