//! Conversion of the legacy form to a definition.

use serde_json::json;

use super::*;
use crate::definition::Plan;

#[test]
fn legacy_workflow_converts_to_definition() {
    let made = definition(&sample(), None).unwrap();
    assert_eq!(
        made["input_schema"],
        json!({"type": "object", "required": ["Image 1"], "properties": {
            "prompt": {"type": "string", "default": ""},
            "Image 1": {"type": "string"},
            "n": {"type": "number", "default": 2.5},
        }})
    );
    let first = json!({"step_id": "a", "name": "First", "type": "model", "model": "m", "params": {
        "text": "a {{inputs.prompt}} of {{inputs.n}}, \\{{prompt}}",
        "image": "{{inputs['Image 1']}}"}});
    assert_eq!(made["steps"][0], first);
    assert_eq!(made["steps"][1]["params"]["text"], "{{a.output}} {{prompts}}");
    assert_eq!(made["metadata"]["output_mapping"], json!({"result": "{{b.output}}"}));
    let faults = Plan::compile(Some(&made), &|_| true).unwrap_err();
    assert!(faults.to_string().contains("prompts"), "an unknown name is the compiler's to refuse");
}

#[test]
fn legacy_workflow_with_wrong_fields_is_rejected() {
    let with = |change: &dyn Fn(&mut Shape)| {
        let mut shape = sample();
        change(&mut shape);
        definition(&shape, None).unwrap_err().to_string()
    };
    assert_eq!(with(&|it| it.steps[1].model_slug = None), "steps[1].model_slug is required");
    let named = |name: &str| {
        let name = name.to_owned();
        with(&move |it| {
            it.inputs = Some(vec![NewInput { name: name.clone(), ..NewInput::default() }])
        })
    };
    assert_eq!(named("{a}"), "each of inputs must have a name without braces and brackets");
    let long = "é".repeat(names::NAME_BYTES_MAX);
    assert_eq!(named(&long), "each of inputs must have a name of at most 128 bytes");
    let default = "the default_value 'x' of the input 'n' is not of type number";
    let wrong = |it: &mut Shape| it.inputs.as_mut().unwrap()[2].default_value = Some(json!("x"));
    assert_eq!(with(&wrong), default);
    let wide = "123456789012345678901234567890";
    let default = format!(
        "the default_value '{wide}' of the input 'n' has an integer that does not fit into 64 bits"
    );
    let wrong = |it: &mut Shape| it.inputs.as_mut().unwrap()[2].default_value = Some(json!(wide));
    assert_eq!(with(&wrong), default);
    for (text, kind) in [
        (wide, "number"),
        ("-9223372036854775809", "integer"),
        ("[1, 99999999999999999999]", "array"),
    ] {
        assert_eq!(typed(text, kind), None, "{text}");
    }
    assert_eq!(typed("18446744073709551615", "integer"), Some(json!(u64::MAX)));
    assert_eq!(typed("1e30", "number"), Some(json!(1e30)));
}

#[test]
fn legacy_workflow_reference_matches_longest_input_name() {
    let mut fields = sample();
    let input = |name: &str| NewInput { name: name.to_owned(), ..NewInput::default() };
    fields.inputs = Some(["a", "a.b", "ä[0]"].map(input).into());
    fields.outputs = None;
    let one = "{{a}} {{a.c}} {{a.b}} {{a.b.c}} {{ab}} {{ä[0].d}} {{ä[1]}}";
    fields.steps[1].params = Some(Map::from_iter([("one".to_owned(), one.into())]));
    let made = definition(&fields, None).unwrap();
    let expect = "{{inputs.a}} {{inputs.a.c}} {{inputs['a.b']}} {{inputs['a.b'].c}} {{ab}} \
                  {{inputs['ä[0]'].d}} {{ä[1]}}";
    assert_eq!(made["steps"][1]["params"]["one"], expect);
}
