//! Templates and their references: parsing, resolved values, and error messages.

use std::time::Instant;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::reference::{Field, REFERENCE_BYTES_MAX};

/// A workflow in progress.
struct Middle {
    inputs: Value,
    item: Value,
}

impl Scope for Middle {
    fn inputs(&self) -> &Value {
        &self.inputs
    }

    fn execution_id(&self) -> String {
        "0192f0c1".to_owned()
    }

    fn item(&self, name: &str) -> Option<&Value> {
        (name == "photo").then_some(&self.item)
    }

    fn step(&self, id: &str, field: Field) -> Option<Cow<'_, Value>> {
        let value = match (id, field) {
            ("draw", Field::Output) => json!(["a.png", {"size": 7}]),
            ("draw", Field::Primary) => json!("a.png"),
            ("draw", Field::Status) => json!("completed"),
            ("call", Field::Body | Field::Output) => json!({"answer": {"to": [1, 2.5, null]}}),
            ("call", Field::StatusCode) => json!(201),
            ("call", Field::Headers) => json!({"Content-Type": "text/plain", "x-list": ["1"]}),
            _ => return None,
        };
        Some(Cow::Owned(value))
    }
}

fn middle() -> Middle {
    Middle {
        inputs: json!({
            "prompt": "a cat", "n": 3, "big": 9_007_199_254_740_993_u64, "f": 0.1, "yes": true,
            "none": null, "a": {"b": [{"c": "deep"}, [1, 2]]}, "odd key.": "odd", "": "empty",
        }),
        item: json!({"url": "p.png", "output": "not a step's"}),
    }
}

fn resolved(template: &Value) -> Result<Value, Error> {
    Template::parse(template)?.resolve(&middle(), RESOLVED_BYTES_MAX)
}

#[track_caller]
fn check(template: Value, expect: Value) {
    assert_eq!(resolved(&template), Ok(expect), "{template}");
}

#[track_caller]
fn check_error(template: Value, expect: &str) {
    assert_eq!(resolved(&template).map_err(|error| error.to_string()), Err(expect.to_owned()));
}

#[test]
fn template_lone_reference_keeps_its_type() {
    check(json!("{{inputs.prompt}}"), json!("a cat"));
    check(json!("{{inputs.n}}"), json!(3));
    check(json!("{{inputs.big}}"), json!(9_007_199_254_740_993_u64));
    check(json!("{{inputs.none}}"), json!(null));
    check(json!("{{inputs.a}}"), json!({"b": [{"c": "deep"}, [1, 2]]}));
    check(json!("{{inputs}}"), middle().inputs);
    check(json!("{{draw.output}}"), json!(["a.png", {"size": 7}]));
    check(json!("{{draw.primary}}"), json!("a.png"));
    check(json!("{{draw.status}}"), json!("completed"));
    check(json!("{{call.status_code}}"), json!(201));
    check(json!("{{execution.id}}"), json!("0192f0c1"));
    check(json!("{{photo}}"), middle().item);
    check(json!("{{photo.output}}"), json!("not a step's"));
}

#[test]
fn template_paths_traverse_objects_and_arrays() {
    check(json!("{{inputs.a.b[0].c}}"), json!("deep"));
    check(json!("{{inputs.a.b[1][1]}}"), json!(2));
    check(json!("{{inputs.a.b.0.c}}"), json!("deep"));
    check(json!("{{inputs['odd key.']}}"), json!("odd"));
    check(json!("{{inputs[\"odd key.\"]}}"), json!("odd"));
    check(json!("{{inputs['']}}"), json!("empty"));
    check(json!("{{draw.output[1].size}}"), json!(7));
    check(json!("{{call.body.answer.to[1]}}"), json!(2.5));
    check(json!("{{ inputs.n }}"), json!(3));
    check(json!("{{\tphoto.url\n}}"), json!("p.png"));
}

#[test]
fn template_only_header_names_ignore_case() {
    check(json!("{{call.headers.content-type}}"), json!("text/plain"));
    check(json!("{{call.headers['CONTENT-TYPE']}}"), json!("text/plain"));
    check(json!("{{call.headers.X-List[0]}}"), json!("1"));
    check(json!("{{call.headers}}"), json!({"Content-Type": "text/plain", "x-list": ["1"]}));
    check_error(json!("{{inputs.Prompt}}"), "{{inputs.Prompt}} resolves to nothing");
}

#[test]
fn template_reference_within_text_becomes_text() {
    check(json!("<{{inputs.prompt}}>"), json!("<a cat>"));
    check(json!("{{inputs.n}}{{inputs.f}}"), json!("30.1"));
    check(json!(" {{inputs.yes}}"), json!(" true"));
    check(json!("{{inputs.none}} "), json!("null "));
    check(json!("got {{draw.output}}"), json!(r#"got ["a.png",{"size":7}]"#));
    check(json!("{{inputs.prompt}}}"), json!("a cat}"));
}

#[test]
fn template_leaves_plain_text_untouched() {
    for plain in [
        json!("{single} }} { {"),
        json!(""),
        json!(null),
        json!([1, 2.5, true, {}]),
        json!({"z": 1, "a": 2}),
    ] {
        check(plain.clone(), plain);
    }
    check(json!(r"\{{inputs.n}}"), json!("{{inputs.n}}"));
    check(json!({r"\{{inputs.n}}": 1}), json!({"{{inputs.n}}": 1}));
    check(json!(r"\{{ {{inputs.n}} \{{"), json!("{{ 3 {{"));
    check(json!([r"\{{", "{{inputs.n}}"]), json!(["{{", 3]));
    assert_eq!(
        Template::parse(&json!({"a": r"\{{"})).unwrap().constant(),
        Some(&json!({"a": "{{"}))
    );
}

#[test]
fn template_fills_documents_in_written_order() {
    let filled =
        resolved(&json!({"z": "{{inputs.n}}", "a": [{"k": "{{photo.url}}!"}, 1]})).unwrap();
    assert_eq!(filled.to_string(), r#"{"z":3,"a":[{"k":"p.png!"},1]}"#);
}

#[test]
fn template_unresolved_reference_is_named_with_its_path() {
    check_error(
        json!({"p": ["x", "{{inputs.gone}}"]}),
        "{{inputs.gone}} at /p/1 resolves to nothing",
    );
    check_error(json!("a {{draw.output[9]}}"), "{{draw.output[9]}} resolves to nothing");
    check_error(json!("{{draw.body}}"), "{{draw.body}} resolves to nothing");
    check_error(json!("{{draw}}"), "{{draw}} resolves to nothing");
    check_error(json!("{{inputs.n.x}}"), "{{inputs.n.x}} resolves to nothing");
    check_error(json!("{{call.headers.etag}}"), "{{call.headers.etag}} resolves to nothing");
    check_error(json!("{{ghost.output}}"), "{{ghost.output}} resolves to nothing");
}

#[test]
fn template_syntax_errors_are_described() {
    let long = "a".repeat(REFERENCE_BYTES_MAX + 1);
    for (written, expect) in [
        ("{{", "{{ has no closing }}"),
        ("text {{inputs.a", "{{inputs.a has no closing }}"),
        (r"\{{ {{a", "{{a has no closing }}"),
        ("{{}}", "{{}} is empty"),
        ("{{  }}", "{{  }} is empty"),
        ("{{.a}}", "{{.a}} must start with a name of a-z A-Z 0-9 _ -"),
        ("{{{a}}}", "{{{a}} must start with a name of a-z A-Z 0-9 _ -"),
        ("{{ü}}", "{{ü}} must start with a name of a-z A-Z 0-9 _ -"),
        ("{{a..b}}", "{{a..b}} lacks a name after a dot"),
        ("{{a.}}", "{{a.}} lacks a name after a dot"),
        ("{{a. b}}", "{{a. b}} lacks a name after a dot"),
        (
            "{{a b}}",
            "{{a b}} must continue with a dot or a bracket after a name; references have no filters or operators",
        ),
        (
            "{{a.b | upper}}",
            "{{a.b | upper}} must continue with a dot or a bracket after a name; references have no filters or operators",
        ),
        (
            "{{inputs.x|upper}}",
            "{{inputs.x|upper}} must continue with a dot or a bracket after a name; references have no filters or operators",
        ),
        (
            "{{a.output+1}}",
            "{{a.output+1}} must continue with a dot or a bracket after a name; references have no filters or operators",
        ),
        (
            "{{a.output??b}}",
            "{{a.output??b}} must continue with a dot or a bracket after a name; references have no filters or operators",
        ),
        (
            "{{len(a.output)}}",
            "{{len(a.output)}} must continue with a dot or a bracket after a name; references have no filters or operators",
        ),
        (
            "{{a{{b}}",
            "{{a{{b}} must continue with a dot or a bracket after a name; references have no filters or operators",
        ),
        ("{{execution}}", "{{execution}} is unknown: the execution has only {{execution.id}}"),
        (
            "{{execution.id.x}}",
            "{{execution.id.x}} is unknown: the execution has only {{execution.id}}",
        ),
    ] {
        check_error(json!(written), expect);
    }
    for bad in ["[", "[]", "[-1]", "[+1]", "[1", "[a]", "['a]", "['a'", "[99999999999999999999]"] {
        assert_eq!(Reference::parse(&format!("a{bad}")), Err(ErrorKind::Bracket), "{bad}");
    }
    assert_eq!(Reference::parse(&long), Err(ErrorKind::Long));
    let error = resolved(&json!({"deep": [format!("{{{{{long}}}}}")]})).unwrap_err();
    assert_eq!((error.place.as_str(), error.kind), ("/deep/0", ErrorKind::Long));
    assert!(error.reference.len() < 100, "{}", error.reference);
}

#[test]
fn template_reference_bomb_is_stopped_before_copying() {
    let scope = Middle { inputs: json!({"a": "x".repeat(1 << 20)}), item: json!(null) };
    for bomb in [
        json!("{{inputs.a}}".repeat(1000)),
        json!(vec!["{{inputs.a}}"; 1000]),
        json!({"k": vec!["{{inputs}}"; 1000]}),
        json!("y{{inputs.a}}".repeat(8)),
    ] {
        let error =
            Template::parse(&bomb).unwrap().resolve(&scope, RESOLVED_BYTES_MAX).unwrap_err();
        assert_eq!(error.kind, ErrorKind::TooLarge(RESOLVED_BYTES_MAX));
    }
    let seven = Template::parse(&json!("{{inputs.a}}".repeat(7))).unwrap();
    let text = seven.resolve(&scope, RESOLVED_BYTES_MAX).unwrap();
    assert_eq!(text.as_str().unwrap().len(), 7 << 20);
    let constants = Template::parse(&json!({"k": ["12345"]})).unwrap();
    assert!(constants.resolve(&scope, 15).is_ok());
    assert!(constants.resolve(&scope, 14).is_err());
}

#[test]
fn template_depth_is_bounded_when_parsed_and_resolved() {
    let nest = |levels: usize| (1..levels).fold(json!(1), |inner, _| json!([inner]));
    assert!(Template::parse(&nest(DEPTH_MAX)).is_ok());
    assert_eq!(Template::parse(&nest(DEPTH_MAX + 1)).unwrap_err().kind, ErrorKind::TooDeep);
    let scope = Middle { inputs: json!({"deep": nest(DEPTH_MAX)}), item: json!(null) };
    let alone = Template::parse(&json!("{{inputs.deep}}")).unwrap();
    assert!(alone.resolve(&scope, RESOLVED_BYTES_MAX).is_ok());
    let wrapped = Template::parse(&json!(["{{inputs.deep}}"])).unwrap();
    let error = wrapped.resolve(&scope, RESOLVED_BYTES_MAX).unwrap_err();
    assert_eq!((error.place.as_str(), error.kind), ("/0", ErrorKind::TooDeep));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the domain has no clock; this test measures")]
fn template_parses_hostile_text_in_linear_time() {
    for unit in ["{{", "}}", r"\{{", "{{a}}", "{{a ", "{{ { ", "\\", "['"] {
        let text = json!(unit.repeat((8 << 20) / unit.len()));
        let began = Instant::now();
        let outcome = Template::parse(&text).map(|template| template.references().len());
        // Quadratic work on 8 MiB would take hours.
        assert!(began.elapsed().as_secs() < 20, "{unit}: {outcome:?}");
    }
}

#[test]
fn template_lists_references_with_their_paths() {
    let template = Template::parse(&json!({
        "b": "{{one.output}} and {{two['a b'][3]}}", "a": [0, "{{inputs.x}}", "{{execution.id}}"]
    }))
    .unwrap();
    let mut seen = Vec::new();
    template.visit(&JsonPointer::Root, &mut |place, reference| {
        seen.push(format!("{place} {reference}"))
    });
    assert_eq!(
        seen,
        ["/b {{one.output}}", "/b {{two['a b'][3]}}", "/a/1 {{inputs.x}}", "/a/2 {{execution.id}}"]
    );
}

proptest! {
    #[test]
    fn template_parse_and_resolve_never_panic(text in "([{}\\\\. \\[\\]'\"a0-]|inputs|\\PC){0,40}") {
        let value = json!({"k": [text]});
        if let Ok(template) = Template::parse(&value) {
            let outcome = template.resolve(&middle(), 1000);
            prop_assert!(outcome.is_err() || template.references().is_empty() || text.contains("{{"));
        }
    }

    #[test]
    fn template_without_double_braces_is_constant(text in "[^{]*") {
        let written = Value::String(text);
        let template = Template::parse(&written).unwrap();
        prop_assert_eq!(template.constant(), Some(&written));
    }

    #[test]
    fn template_resolved_size_is_within_limit(times in 0_usize..40, limit in 0_usize..200) {
        let template = Template::parse(&json!(["{{inputs.a}} ".repeat(times), {"k": "{{draw.output}}"}]));
        if let Ok(value) = template.unwrap().resolve(&middle(), limit) {
            // Quotation marks in a string are counted once and printed with a backslash.
            let quotes = value.to_string().matches('\\').count();
            prop_assert!(value.to_string().len() <= limit + quotes);
        }
    }

    #[test]
    fn template_size_is_counted_before_it_is_resolved(times in 0_usize..40, most in 0_usize..2000) {
        let written = json!([{"k": "{{inputs.a}} ".repeat(times)}, "{{draw.output}}", 7]);
        let template = Template::parse(&written).unwrap();
        let Size { text: bytes, memory } = template.size(&middle(), most);
        prop_assert!(bytes <= most);
        if let Ok(value) = template.resolve(&middle(), usize::MAX) {
            let text = value.to_string();
            // Brackets and quotation marks are not counted.
            let exact = text.len() - text.matches('\\').count();
            prop_assert!(bytes + 16 >= exact.min(most), "{} for {}", bytes, text);
            prop_assert!(bytes == most || memory + 64 >= Size::of(&value).memory);
        }
    }
}
