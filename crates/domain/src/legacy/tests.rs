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
fn legacy_workflow_with_wrong_shape_is_rejected() {
    let with = |change: &dyn Fn(&mut Fields)| {
        let mut fields = sample();
        change(&mut fields);
        definition(&fields, None).unwrap_err().to_string()
    };
    assert_eq!(with(&|it| it.steps = json!({})), "steps must be an array");
    assert_eq!(with(&|it| it.steps = json!([7])), "steps[0] must be an object");
    assert_eq!(with(&|it| it.steps[1]["params"] = json!(7)), "steps[1].params must be an object");
    assert_eq!(
        with(&|it| it.steps[1]["model_slug"] = json!("")),
        "steps[1].model_slug is required"
    );
    let name = "each of inputs must have a name without braces and brackets";
    assert_eq!(with(&|it| it.inputs = json!([{"type": "string"}])), name);
    let default = "the default_value 'x' of the input 'n' is not of type number";
    assert_eq!(with(&|it| it.inputs[2]["default_value"] = json!("x")), default);
    let wide = "123456789012345678901234567890";
    let default = format!(
        "the default_value '{wide}' of the input 'n' has an integer that does not fit into 64 bits"
    );
    assert_eq!(with(&|it| it.inputs[2]["default_value"] = json!(wide)), default);
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

/// Comparing each reference with each input, and each step with each stored step, would take
/// minutes.
#[test]
fn legacy_workflow_long_lists_are_rejected_before_comparison() {
    let with = |change: &dyn Fn(&mut Fields)| {
        let mut fields = sample();
        change(&mut fields);
        definition(&fields, None).unwrap_err().to_string()
    };
    let named = |most: usize| {
        let items = (0..most).map(|number| json!({"name": format!("n{number}"), "type": "string"}));
        Value::Array(items.collect())
    };
    let text = "{{x}}".repeat(200_000);
    let flood = |it: &mut Fields| {
        it.inputs = named(500_000);
        it.steps[1]["params"]["text"] = json!(text);
    };
    assert_eq!(with(&flood), "inputs must have at most 1000 items");
    assert_eq!(with(&|it| it.outputs = named(1001)), "outputs must have at most 1000 items");
    assert_eq!(with(&|it| it.steps = named(501)), "steps must have at most 500 items");
    let name = "each of inputs must have a name of at most 128 bytes";
    assert_eq!(with(&|it| it.inputs = json!([{"name": "n".repeat(129)}])), name);
}

#[test]
fn legacy_workflow_reference_matches_longest_input_name() {
    let mut fields = sample();
    fields.inputs = json!([
        {"name": "a", "type": "object"}, {"name": "a.b", "type": "object"}, {"name": "ä[0]", "type": "string"},
    ]);
    fields.outputs = json!([]);
    fields.steps[1]["params"] = json!({
        "one": "{{a}} {{a.c}} {{a.b}} {{a.b.c}} {{ab}} {{ä[0].d}} {{ä[1]}}",
    });
    let made = definition(&fields, None).unwrap();
    let expect = "{{inputs.a}} {{inputs.a.c}} {{inputs['a.b']}} {{inputs['a.b'].c}} {{ab}} \
                  {{inputs['ä[0]'].d}} {{ä[1]}}";
    assert_eq!(made["steps"][1]["params"]["one"], expect);
}
