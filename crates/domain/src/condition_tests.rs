//! Tests conditions: every operator on every kind of value, and the errors of invalid conditions.

use std::borrow::Cow;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::pattern::PATTERN_BYTES_MAX;
use crate::reference::Field;

/// A scope with inputs and a step `s` that has an output.
struct Known(Value);

impl Scope for Known {
    fn inputs(&self) -> &Value {
        &self.0
    }
    fn execution_id(&self) -> String {
        "e1".to_owned()
    }
    fn item(&self, _name: &str) -> Option<&Value> {
        None
    }
    fn step(&self, id: &str, field: Field) -> Option<Cow<'_, Value>> {
        (id == "s" && field == Field::Output).then(|| Cow::Owned(json!({"score": 0.75})))
    }
}

fn known() -> Known {
    Known(json!({
        "n": 5, "f": 5.0, "neg": -1, "big": u64::MAX, "text": "hello world", "five": "5",
        "yes": true, "none": null, "list": [1, "two", {"a": 1}], "object": {"a": 1, "b": 2},
        "empty": [], "day": "2026-11-20",
    }))
}

fn outcome(condition: &Value) -> Result<bool, String> {
    let condition = Condition::parse(condition)
        .map_err(|error| format!("{}: it {}", error.place, error.message))?;
    condition.holds(&known()).map_err(|error| error.to_string())
}

/// Checks the result of `operator` on an input and a value.
#[track_caller]
fn check(input: &str, operator: &str, value: Value, expect: bool) {
    for expression in [format!("{{{{inputs.{input}}}}}"), format!("$.inputs.{input}")] {
        let condition = json!({"expression": expression, "operator": operator, "value": value});
        assert_eq!(outcome(&condition), Ok(expect), "{condition}");
    }
}

#[track_caller]
fn check_error(condition: Value, expect: &str) {
    match outcome(&condition) {
        Ok(holds) => panic!("{condition} is read, and says {holds}"),
        Err(error) => assert!(error.contains(expect), "{error}"),
    }
}

#[test]
fn condition_equals_separates_types_and_unites_numbers() {
    for (input, value, expect) in [
        ("n", json!(5), true),
        ("n", json!(5.0), true),
        ("f", json!(5), true),
        ("n", json!("5"), false),
        ("five", json!("5"), true),
        ("five", json!(5), false),
        ("yes", json!(true), true),
        ("yes", json!("true"), false),
        ("none", json!(null), true),
        ("none", json!(""), false),
        ("object", json!({"b": 2.0, "a": 1}), true),
        ("object", json!({"a": 1}), false),
        ("list", json!([1.0, "two", {"a": 1}]), true),
        ("list", json!(["two", 1, {"a": 1}]), false),
        ("big", json!(u64::MAX - 1), false),
        ("n", json!("{{inputs.f}}"), true),
    ] {
        check(input, "equals", value.clone(), expect);
        check(input, "not_equals", value, !expect);
    }
}

#[test]
fn condition_order_compares_numbers_or_strings() {
    for (input, value, less, equal) in [
        ("n", json!(6), true, false),
        ("n", json!(5.0), false, true),
        ("n", json!(4.5), false, false),
        ("neg", json!(u64::MAX), true, false),
        ("big", json!(u64::MAX), false, true),
        ("big", json!(u64::MAX - 1), false, false),
        ("day", json!("2026-12-01"), true, false),
        ("day", json!("2026-11-20"), false, true),
        ("text", json!("hello"), false, false),
    ] {
        check(input, "less_than", value.clone(), less);
        check(input, "less_than_or_equal", value.clone(), less || equal);
        check(input, "greater_than", value.clone(), !less && !equal);
        check(input, "greater_than_or_equal", value, !less);
    }
    for (input, value) in
        [("five", json!(4)), ("n", json!("4")), ("none", json!(0)), ("list", json!([]))]
    {
        for operator in ["less_than", "less_than_or_equal", "greater_than", "greater_than_or_equal"]
        {
            check(input, operator, value.clone(), false);
        }
    }
}

#[test]
fn condition_contains_and_in_test_membership() {
    for (input, value, expect) in [
        ("text", json!("lo wo"), true),
        ("text", json!("xyz"), false),
        ("text", json!(""), true),
        ("five", json!(5), false),
        ("list", json!("two"), true),
        ("list", json!(1.0), true),
        ("list", json!({"a": 1.0}), true),
        ("list", json!([1]), false),
        ("empty", json!(null), false),
        ("object", json!("a"), false),
        ("n", json!(5), false),
    ] {
        check(input, "contains", value, expect);
    }
    for (input, value, expect) in [
        ("n", json!([1, 5.0]), true),
        ("n", json!(["5"]), false),
        ("n", json!([]), false),
        ("five", json!(["{{inputs.five}}"]), true),
        ("yes", json!("{{inputs.list}}"), false),
        ("object", json!([{"b": 2, "a": 1}]), true),
    ] {
        check(input, "in", value.clone(), expect);
        check(input, "not_in", value, !expect);
    }
}

#[test]
fn condition_matches_finds_pattern_anywhere() {
    for (input, pattern, expect) in [
        ("text", "o w", true),
        ("text", "^hello$", false),
        ("text", r"^\w+ \w+$", true),
        ("text", "(?i)WORLD", true),
        ("day", r"^\d{4}-\d\d-\d\d$", true),
        ("n", "5", false),
        ("list", "two", false),
    ] {
        check(input, "matches", json!(pattern), expect);
    }
    let hostile = Known(json!({"a": format!("{}!", "a".repeat(1 << 20))}));
    let condition =
        json!({"expression": "$.inputs.a", "operator": "matches", "value": "^(a+)+(a|a)*$"});
    assert_eq!(Condition::parse(&condition).unwrap().holds(&hostile), Ok(false));
}

#[test]
fn condition_exists_and_is_null_are_distinct() {
    for (input, exists, is_null, is_not_null) in [
        ("n", true, false, true),
        ("none", true, true, false),
        ("empty", true, false, true),
        ("gone", false, false, false),
        ("n.deep", false, false, false),
    ] {
        check(input, "exists", Value::Null, exists);
        check(input, "not_exists", Value::Null, !exists);
        check(input, "is_null", Value::Null, is_null);
        check(input, "is_not_null", Value::Null, is_not_null);
    }
}

#[test]
fn condition_missing_value_is_an_error_for_other_operators() {
    let missing = "{{inputs.gone}} resolves to nothing";
    for operator in ["equals", "not_equals", "less_than", "contains", "in", "not_in", "matches"] {
        let value = if operator.ends_with("in") { json!([1]) } else { json!("1") };
        check_error(
            json!({"expression": "{{inputs.gone}}", "operator": operator, "value": value}),
            missing,
        );
    }
    check_error(
        json!({"expression": "$.inputs.n", "operator": "equals", "value": "{{inputs.gone}}"}),
        missing,
    );
    check_error(
        json!({"expression": "$.inputs.n", "operator": "in", "value": "{{inputs.text}}"}),
        "{{inputs.text}} must resolve to an array",
    );
}

#[test]
fn condition_and_or_not_short_circuit() {
    let yes = json!({"expression": "{{s.output.score}}", "operator": "greater_than", "value": 0.5});
    let no = json!({"not": yes});
    let fails = json!({"expression": "$.inputs.gone", "operator": "equals", "value": 1});
    for (condition, expect) in [
        (json!({"and": [yes]}), true),
        (json!({"and": [yes, no]}), false),
        (json!({"or": [no, yes]}), true),
        (json!({"or": [no, no]}), false),
        (json!({"not": {"or": [no, {"and": [yes, {"not": no}]}]}}), false),
        (json!({"and": [no, fails]}), false),
        (json!({"or": [yes, fails]}), true),
    ] {
        assert_eq!(outcome(&condition), Ok(expect), "{condition}");
    }
    check_error(json!({"and": [yes, fails]}), "{{inputs.gone}} resolves to nothing");
}

#[test]
fn condition_syntax_errors_are_described() {
    let test = json!({"expression": "$.inputs.n", "operator": "exists"});
    let with = |operator: &str, value: Value| json!({"expression": "$.inputs.n", "operator": operator, "value": value});
    let faults: Vec<String> = [
        json!("{{inputs.n}}"),
        json!({}),
        json!({"and": []}),
        json!({"or": test}),
        json!({"and": [test, 7]}),
        json!({"and": [test], "or": [test]}),
        json!({"not": [test]}),
        json!({"expression": "inputs.n", "operator": "exists"}),
        json!({"expression": "a {{inputs.n}}", "operator": "exists"}),
        json!({"expression": "{{inputs..n}}", "operator": "exists"}),
        json!({"expression": "$.", "operator": "exists"}),
        json!({"expression": "$.inputs.n"}),
        json!({"expression": "$.inputs.n", "operator": "=="}),
        json!({"expression": "$.inputs.n", "operator": "exists", "values": 1}),
        json!({"expression": "$.inputs.n", "operator": "equals"}),
        with("exists", json!(1)),
        with("equals", json!(["{{"])),
        with("in", json!("text")),
        with("in", json!("{{inputs.n}}, {{inputs.f}}")),
        with("matches", json!(5)),
        with("matches", json!("(")),
        with("matches", json!("(?=look)")),
        with("matches", json!("((a{99}){99}){99}")),
        with("matches", json!("a".repeat(PATTERN_BYTES_MAX + 1))),
        (0..=DEPTH_MAX).fold(test.clone(), |inner, _| json!({"not": inner})),
        json!({"or": vec![test; TESTS_MAX + 1]}),
    ]
    .iter()
    .map(|condition| outcome(condition).unwrap_err())
    .collect();
    insta::assert_snapshot!(faults.join("\n"));
}

#[test]
fn condition_visits_references_and_counts_patterns() {
    let condition = Condition::parse(&json!({"and": [
        {"expression": "$.a.output", "operator": "matches", "value": "x"},
        {"not": {"expression": "{{b.output}}", "operator": "in", "value": ["{{inputs.c}}", 1]}},
    ]}))
    .unwrap();
    let mut seen = Vec::new();
    condition.visit(&mut |reference| seen.push(reference.to_string()));
    assert_eq!(seen, ["{{a.output}}", "{{b.output}}", "{{inputs.c}}"]);
    assert_eq!(condition.patterns(), 1);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-c]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-c]", inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn condition_equality_and_order_agree(left in any_json(), right in any_json()) {
        prop_assert!(same(&left, &left));
        prop_assert_eq!(same(&left, &right), same(&right, &left));
        prop_assert_eq!(compare(&left, &right), compare(&right, &left).map(Ordering::reverse));
        if compare(&left, &right) == Some(Ordering::Equal) {
            prop_assert!(same(&left, &right));
        }
    }

    #[test]
    fn condition_every_operator_evaluates_or_is_rejected(
        operator in prop::sample::select(OPERATORS.to_vec()),
        subject in any_json(),
        value in any_json(),
    ) {
        let condition = json!({"expression": "$.inputs.x", "operator": operator, "value": value});
        if let Ok(condition) = Condition::parse(&condition) {
            let scope = Known(json!({"x": subject}));
            prop_assert!(condition.holds(&scope).is_ok());
        }
    }
}

#[test]
fn condition_string_matches_takes_wildcards() {
    for (value, text, holds) in [
        ("*.png", "a.png", true),
        ("*.png", "a.png.txt", false),
        ("*.png", "apng", false),
        ("a*c", "a\nb\nc", true),
        ("a*c", "xabc", false),
        ("error", "an error here", true),
        ("e.r", "an error here", false),
        ("*", "", true),
    ] {
        let condition = json!(
            {"expression": "$.inputs.x", "operator": "string_matches", "value": value}
        );
        let condition = Condition::parse(&condition).unwrap();
        assert_eq!(condition.holds(&Known(json!({"x": text}))), Ok(holds), "{value} {text}");
    }
}
