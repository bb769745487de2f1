//! Tests accepted and rejected schemas, valid and invalid inputs, and limits on their cost.

use serde_json::json;

use super::*;

fn check(schema: &Value, value: Value) -> String {
    match Schema::compile(schema).map(|schema| schema.check(value)) {
        Err(error) => format!("schema: {error}"),
        Ok(Ok(value)) => value.to_string(),
        Ok(Err(violations)) => violations
            .into_iter()
            .map(|violation| format!("{}: {}", violation.path, violation.message))
            .collect::<Vec<_>>()
            .join("; "),
    }
}

#[test]
fn schema_check_fills_defaults_or_names_violations() {
    let schema = json!({
        "type": "object",
        "required": ["prompt"],
        "properties": {
            "prompt": {"type": "string", "maxLength": 5},
            "size": {"type": "integer", "default": 3, "minimum": 1},
            "nested": {"$ref": "#/$defs/nested"},
            "list": {"type": "array", "items": {"properties": {"b": {"default": true}}}},
            "a/b~c": {"type": "integer"},
        },
        "$defs": {"nested": {"type": "object", "properties": {"a": {"default": "x"}}}},
    });
    for (value, expect) in [
        (json!({"prompt": "hi"}), r#"{"prompt":"hi","size":3}"#),
        (json!({"prompt": "", "size": 7}), r#"{"prompt":"","size":7}"#),
        (
            json!({"prompt": "", "nested": {}, "list": [{}]}),
            r#"{"prompt":"","nested":{"a":"x"},"list":[{"b":true}],"size":3}"#,
        ),
        (json!({}), "/prompt: missing required field 'prompt'"),
        (json!({"prompt": 7}), r#"/prompt: 'prompt' is wrong: value is not of type "string""#),
        (
            json!({"prompt": "", "a/b~c": "x"}),
            r#"/a~1b~0c: 'a/b~c' is wrong: value is not of type "integer""#,
        ),
        (
            json!({"prompt": "secret", "size": 0}),
            "/prompt: 'prompt' is wrong: value is longer than 5 characters; \
             /size: 'size' is wrong: value is less than the minimum of 1",
        ),
        (json!([]), r#": value is not of type "object""#),
    ] {
        assert_eq!(check(&schema, value), expect);
    }
}

#[test]
fn schema_violations_name_unknown_fields_with_bounded_path() {
    let closed =
        json!({"properties": {"o": {"additionalProperties": false, "properties": {"a/b": {}}}}});
    for (value, expect) in [
        (json!({"o": {"a~b": 1}}), "/o/a~0b: unknown field 'a~b'"),
        (
            json!({"o": {"x": 1, "y": 2}}),
            "/o: 'o' is wrong: Additional properties are not allowed ('x', 'y' were unexpected)",
        ),
        (json!({"o": {"a/b": 1}}), r#"{"o":{"a/b":1}}"#),
    ] {
        assert_eq!(check(&closed, value), expect);
    }
    let long = "n".repeat(PATH_BYTES_MAX);
    for (schema, value) in [
        (json!({"properties": {"o": {"additionalProperties": {"type": "null"}}}}), json!(1)),
        (
            json!({"properties": {"o": {"properties": {long.as_str(): {"required": ["x"]}}}}}),
            json!({}),
        ),
    ] {
        let violations =
            Schema::compile(&schema).unwrap().check(json!({"o": {long.as_str(): value}}));
        assert_eq!(violations.unwrap_err()[0].path, "/o");
    }
}

#[test]
fn schema_fetches_nothing_and_bounds_hostile_schemas() {
    let deep = (0..100).fold(json!({}), |inner, _| json!({"not": inner}));
    for (schema, expect) in [
        (json!({"$ref": "http://127.0.0.1:1/schema"}), "leaves the document"),
        (json!({"properties": {"a": {"$ref": "file:///etc/passwd"}}}), "leaves the document"),
        (json!({"allOf": [{"$dynamicRef": "other.json"}]}), "leaves the document"),
        (json!({"$schema": "http://127.0.0.1:1/meta"}), "schema: "),
        (json!({"$ref": "#/nowhere"}), "schema: not a valid JSON Schema"),
        (json!({"$ref": "#", "default": 1}), "refer to itself"),
        (json!({"allOf": vec![json!({"$ref": "#"}); 100]}), "refer to itself"),
        (json!({"$ref": "#/$defs/a", "$defs": {"a": {"$id": "b"}}}), "only the root"),
        (json!({"type": "strin"}), "schema: not a valid JSON Schema"),
        (json!({"pattern": "("}), "schema: not a valid JSON Schema"),
        (json!({"pattern": "(?=look)"}), "schema: not a valid JSON Schema"),
        (json!({"pattern": "((a{999}){999}){999}"}), "schema: not a valid JSON Schema"),
        (deep, "nest"),
        (json!({"allOf": vec![json!({"pattern": "a"}); 101]}), "100 patterns"),
        (json!({"description": "x".repeat(BYTES_MAX)}), "bytes"),
    ] {
        let said = check(&schema, json!("a"));
        assert!(said.starts_with("schema: ") && said.contains(expect), "{said}");
    }
    let slow = Schema::compile(&json!({"pattern": "^(a+)+$"})).unwrap();
    assert!(slow.check(json!(format!("{}!", "a".repeat(50_000)))).is_err());
}

#[test]
fn schema_violations_are_capped() {
    let schema = json!({"items": {"type": "string"}});
    let many = Schema::compile(&schema).unwrap().check(json!(vec![0; 1000])).unwrap_err();
    assert_eq!(many.len(), VIOLATIONS_MAX);
}
/// Returns a chain of `levels` definitions, each of which refers to the next through `apply`.
fn chain(levels: usize, apply: &dyn Fn(Value) -> Value) -> Value {
    let mut definitions: serde_json::Map<String, Value> = (0..levels)
        .map(|level| {
            let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
            (format!("d{level}"), apply(next))
        })
        .collect();
    definitions.insert(format!("d{levels}"), json!({"type": "string"}));
    json!({"$ref": "#/$defs/d0", "$defs": definitions})
}

/// The schemas have a few KiB each, but validating or compiling them takes 2^40 steps.
#[test]
fn schema_with_exponential_expansion_is_rejected() {
    let twice = |keyword: &'static str| move |next: Value| json!({keyword: [next, next]});
    let dynamic = json!({
        "$dynamicRef": "#a",
        "$defs": {"a": {"$dynamicAnchor": "a", "allOf": [{"$dynamicRef": "#b"}, {"$dynamicRef": "#b"}]},
            "b": {"$dynamicAnchor": "b", "type": "string"}},
    });
    assert!(Schema::compile(&dynamic).is_ok());
    let nested = (0..30)
        .fold(json!({}), |inner, _| json!({"allOf": [inner], "unevaluatedProperties": false}));
    for schema in [
        chain(40, &twice("allOf")),
        chain(40, &twice("anyOf")),
        chain(40, &twice("oneOf")),
        chain(40, &twice("prefixItems")),
        chain(40, &|next| json!({"properties": {"a": next, "b": next}})),
        chain(40, &|next| json!({"if": next, "then": next})),
        chain(40, &|next| json!({"not": next, "items": next})),
        chain(40, &|next| json!({"dependentSchemas": {"a": next, "b": next}})),
        chain(40, &|next| json!({"allOf": [next], "unevaluatedProperties": false})),
        chain(40, &|next| json!({"oneOf": [next], "unevaluatedItems": {"type": "null"}})),
        nested,
    ] {
        let refused = Schema::compile(&schema).unwrap_err();
        assert_eq!(refused, Error::TooExpanded, "{schema}");
        assert!(refused.to_string().contains("100000 subschemas"), "{refused}");
    }
    let long = chain(10_000, &|next| json!({"allOf": [next]}));
    assert_eq!(Schema::compile(&long).unwrap_err(), Error::TooDeepInPlace);
    let loops = json!({"$ref": "#/$defs/a", "$defs": {
        "a": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "null"}]}, "b": {"not": {"$ref": "#/$defs/a"}},
    }});
    assert_eq!(Schema::compile(&loops).unwrap_err(), Error::RefersToItself);
}

#[test]
fn schema_expansion_limit_permits_common_schemas() {
    let recursive = json!({
        "type": "object",
        "properties": {
            "left": {"$ref": "#"}, "right": {"$ref": "#"}, "name": {"$ref": "#/$defs/name%20it"},
            "more": {"type": "array", "items": {"$ref": "#any"}},
        },
        "$defs": {"name it": {"type": "string"}, "b": {"$anchor": "any", "type": "integer"}},
    });
    let value = json!({"left": {"right": {"name": "a"}}, "more": [1, 2]});
    assert_eq!(check(&recursive, value.clone()), value.to_string());
    assert!(
        check(&recursive, json!({"left": {"right": {"name": 1}}})).starts_with("/left/right/name")
    );
    assert!(Schema::compile(&chain(9, &|next| json!({"oneOf": [next, {"type": "null"}]}))).is_ok());
}

/// A recursive schema that applies itself twice to each level of the value takes 2^100 steps.
#[test]
fn schema_check_rejects_input_that_takes_too_many_steps() {
    let twice = json!({"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}});
    let deep = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({"a": inner}));
    assert_eq!(check(&twice, deep(10)), deep(10).to_string());
    let twice = Schema::compile(&twice).unwrap();
    // Equal parts are counted once; otherwise, counting would take as long as validating.
    assert!(matches!(twice.attempt(deep(100), STEPS_MAX), Attempt::Over(_)));
    // Filling in defaults follows the same paths, and visits each subschema once.
    let filled = json!({"properties": {
        "a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, "b": {"default": 1},
    }});
    let compiled = Schema::compile(&filled).unwrap();
    let mut value = deep(100);
    assert_eq!(defaults::fill(&compiled.nodes, &mut value, 10_000), Ok(()));
    assert_eq!(value["a"]["a"]["a"]["b"], 1);
    let wide = json!({"items": {"enum": (0..1000).collect::<Vec<_>>()}});
    let said = check(&wide, json!(vec![0; 100_000]));
    assert!(said.contains("checking the value takes more than 33554432 steps"), "{said}");
    let pattern = json!({"pattern": "(a|b|c|d|e){200}x{200}"});
    assert!(check(&pattern, json!("a".repeat(4_000_000))).contains("steps"));
}

#[test]
fn schema_defaults_are_bounded_in_total_bytes() {
    let schema = json!({"items": {"properties": {"a": {"default": "x".repeat(100_000)}}}});
    let said = check(&schema, json!(vec![json!({}); 1000]));
    assert_eq!(
        said,
        ": the schema's defaults would make the value larger by more than 8388608 bytes"
    );
}

/// The test uses the default stack size of threads, in an unoptimized build.
#[test]
fn schema_validates_deepest_measurable_input_on_thread_stack() {
    let properties = json!({"a": {"$ref": "#"}, "b": {"type": "string"}});
    let part = (0..20).fold(
        json!({ "properties": properties }),
        |inner, _| json!({"anyOf": [{"type": "null"}, inner]}),
    );
    let deep = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({"a": inner}));
    let schema = Schema::compile(&part).unwrap();
    let fits = |levels: usize| work::measure(&schema, &deep(levels), STEPS_MAX).is_ok();
    let most = (1..120).take_while(|levels| fits(*levels)).last().unwrap();
    assert!((20..119).contains(&most), "{most}");
    assert!(schema.check(deep(most)).is_ok());
    let mut wrong = deep(most);
    *wrong.pointer_mut(&"/a".repeat(most - 1)).unwrap() = json!({"a": 1, "b": 1});
    assert_eq!(schema.check(wrong).unwrap_err().len(), 1);
    let message = schema.check(deep(119)).unwrap_err().remove(0).message;
    assert!(message.contains("steps"), "{message}");
}

#[test]
fn schema_violations_of_large_input_stay_short() {
    let schema = Schema::compile(&json!({"items": {"type": "string"}})).unwrap();
    let violations = schema.check(json!(vec![0; 600_000])).unwrap_err();
    assert_eq!(violations.len(), 1);
    assert_eq!(violations[0].path, "/0");
    let schema = json!({"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}});
    let violations = Schema::compile(&schema).unwrap().check(json!(vec![0; 600_000])).unwrap_err();
    assert!(violations[0].message.contains("too large to locate the violation"), "{violations:?}");
    let named = Schema::compile(&json!({"required": ["x".repeat(5000)]})).unwrap();
    let message = named.check(json!({})).unwrap_err().remove(0).message;
    assert_eq!(message.chars().count(), MESSAGE_MAX + 1);
}

#[tokio::test]
async fn schema_checks_only_small_input_and_simple_schema_inline() {
    let compile = |schema: Value| std::sync::Arc::new(Schema::compile(&schema).unwrap());
    assert!(compile(json!({"type": "object"})).is_inline);
    assert!(!compile(json!({"pattern": "a"})).is_inline);
    assert!(!compile(json!({"description": "x".repeat(INLINE_BYTES)})).is_inline);
    // The inline check would take too many steps, but the result is still complete.
    let numbers = compile(json!({"items": {"type": "number", "default": 1}}));
    let many = json!(vec![1; 1000]);
    assert!(matches!(numbers.attempt(many.clone(), INLINE_STEPS), Attempt::Over(_)));
    assert_eq!(numbers.check_off_thread(many.clone(), Patience::Request).await, Ok(many));
    let long = json!(["x".repeat(INLINE_BYTES)]);
    let refused = numbers.check_off_thread(long, Patience::Request).await;
    assert!(matches!(refused, Err(ValidationError::Violations(_))));
}

#[tokio::test]
async fn schema_off_thread_check_survives_panics() {
    let schema = std::sync::Arc::new(Schema::compile(&json!({"type": "object"})).unwrap());
    let checked = schema.check_off_thread(json!({"a": 1}), Patience::Request).await;
    assert_eq!(checked, Ok(json!({"a": 1})));
    let refused = schema.check_off_thread(json!(1), Patience::Execution).await;
    assert!(
        matches!(refused, Err(ValidationError::Violations(violations)) if violations.len() == 1)
    );
    assert_eq!(compile(|| 7).await, Ok(7));
    let broken: Result<(), _> = compile(|| panic!("broken")).await;
    assert_eq!(broken, Err(Unavailable::Panicked));
    for _ in 0..=COMPILATIONS_MAX {
        assert!(
            compile(|| panic!("a place is free again")).await.is_err_and(|_: Unavailable| true)
        );
    }
    assert_eq!(compile(|| 8).await, Ok(8));
}
