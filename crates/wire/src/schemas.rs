//! The JSON Schemas of the files that people write, for editors: `orrery schema NAME` and
//! `GET /schemas/{name}.json`.
//!
//! The schemas are generated from the types that read the files, or from types that describe what a
//! compiler accepts.

use schemars::JsonSchema;
use serde_json::Value;

use crate::{apply, request};

/// Returns the schema of a kind of file; `None` if there is no schema with this name.
#[must_use]
pub fn of(name: &str) -> Option<Value> {
    match name {
        "workflow" => Some(of_type::<apply::Workflow>()),
        "apply" => Some(of_type::<apply::Document>()),
        _ => None,
    }
}

/// Returns the complete schema of a type.
pub(crate) fn of_type<T: JsonSchema>() -> Value {
    let mut settings = request::settings();
    settings.meta_schema = Some("https://json-schema.org/draft/2020-12/schema".into());
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schema_of_apply_file_follows_its_types() {
        let schema = jsonschema::validator_for(&of("apply").unwrap()).unwrap();
        let read = |document: &Value| serde_json::from_value::<apply::Document>(document.clone());
        let good = json!({"organizations": {"acme": {
            "limits": {"running": 4, "queued": null},
            "keys": {"ci": {"expires": "90d", "models": ["llama*"], "max_budget": 10.5}, "old": null},
            "secrets": {"vault": {"env": "V"}, "file": {"file": "f"}},
            "workflows": {
                "a": {"file": "a.yaml"},
                "b": {"name": "B", "description": "d", "definition": {"steps": [
                    {"step_id": "s", "type": "pass", "result": 1}]}},
            },
            "chains": {"c": {"model": "m", "entries": [{"model": "n"}], "enabled": false}},
            "schedules": {"s": {"workflow": "a", "cron": "@daily", "inputs": {}},
                "t": {"model": "m", "version": "1", "input": {}, "cron": "@hourly", "paused": true}},
            "webhook_endpoints": {"w": {"url": "https://a.example/", "events": ["workflow.failed"]}},
        }, "empty": {}}});
        assert!(read(&good).is_ok());
        assert!(schema.is_valid(&good));
        for (place, value, is_refused_when_read) in [
            ("/organizations/acme/secret", json!({}), true),
            ("/organizations/acme/secrets/vault", json!({"value": "x"}), true),
            ("/organizations/acme/limits", json!([]), true),
            // The command or the service rejects these files.
            ("/organizations/acme/keys/ci", json!({"key": "smk_x"}), false),
            ("/organizations/acme/keys/ci", json!({"rpm_limit": 0}), false),
            ("/organizations/acme/limits/running", json!("many"), false),
            ("/organizations/acme/workflows/b/definition/steps/0/type", json!("pas"), false),
            ("/organizations/acme/workflows/b/named", json!("B"), false),
            ("/organizations/acme/chains/c/entries", json!([]), false),
            ("/organizations/acme/schedules/s/croon", json!("x"), false),
            ("/organizations/acme/webhook_endpoints/w/events", json!(["no"]), false),
        ] {
            let mut bad = good.clone();
            let (table, name) = place.rsplit_once('/').unwrap();
            let table = bad.pointer_mut(table).unwrap();
            match table.as_object_mut() {
                Some(table) => drop(table.insert(name.to_owned(), value)),
                None => *table.pointer_mut(&format!("/{name}")).unwrap() = value,
            }
            assert!(!schema.is_valid(&bad), "{place}");
            assert_eq!(read(&bad).is_err(), is_refused_when_read, "{place}");
        }
    }
}
