//! The two shapes, there and back.

use serde_json::json;

use super::*;
use crate::domain::definition::Plan;

fn fields() -> Fields {
    Fields {
        workspace_id: "w".to_owned(),
        thumbnail_url: "http://h/t.png".to_owned(),
        inputs: json!([
            {"name": "prompt", "type": "string", "default_value": ""},
            {"name": "Image 1", "type": "image"},
            {"name": "n", "type": "number", "default_value": "2.5"},
        ]),
        outputs: json!([{"name": "result", "type": "image", "value": "{{b.output}}"}]),
        steps: json!([
            {"id": "a", "name": "First", "type": "1019Model", "model_slug": "m",
             "model_version": "7", "params": {"text": "a {{ prompt }} of {{n}}, \\{{prompt}}",
             "image": "{{Image 1}}"}},
            {"id": "b", "name": "b", "type": "1019Model", "model_slug": "m",
             "model_version": "0.0.1", "params": {"text": "{{a.output}} {{prompts}}"}},
        ]),
        nodes_json: "[{\"id\": 1}]".to_owned(),
        edges_json: "[ ]".to_owned(),
    }
}

fn again(view: &View) -> Fields {
    Fields {
        workspace_id: view.workspace_id.clone(),
        thumbnail_url: view.thumbnail_url.clone(),
        inputs: view.inputs.clone().into(),
        outputs: view.outputs.clone().into(),
        steps: view.steps.clone().into(),
        nodes_json: view.nodes_json.clone(),
        edges_json: view.edges_json.clone(),
    }
}

#[test]
fn the_older_shape_becomes_a_definition() {
    let made = definition(&fields(), None).unwrap();
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
fn there_and_back_is_the_same() {
    let mut fields = fields();
    fields.steps[1]["params"]["text"] = json!("{{a.output}}");
    let made = definition(&fields, None).unwrap();
    Plan::compile(Some(&made), &|_| true).unwrap();
    let seen = view(&made);
    assert_eq!((&seen.nodes_json, &seen.edges_json), (&fields.nodes_json, &fields.edges_json));
    assert_eq!(seen.steps[0]["params"]["image"], "{{Image 1}}");
    assert_eq!(seen.steps[0]["model_version"], "7");
    assert_eq!(seen.outputs, *fields.outputs.as_array().unwrap());
    assert_eq!(seen.edges, [json!({"id": "a-b", "source": "a", "target": "b", "type": "default"})]);
    let names: Vec<_> = seen.inputs.iter().map(|input| &input["default_value"]).collect();
    assert_eq!(names, ["", "", "2.5"]);
    let twice = definition(&again(&seen), Some(&made)).unwrap();
    assert_eq!(twice, made);
}

#[test]
fn what_the_other_host_changed_shows_and_its_own_fields_stay() {
    let mut fields = fields();
    fields.steps[1]["params"]["text"] = json!("{{a.output}}");
    let mut made = definition(&fields, None).unwrap();
    made["steps"][0]["fallback"] = json!({"model": "n"});
    made["steps"]
        .as_array_mut()
        .unwrap()
        .push(json!({"step_id": "c", "type": "wait", "seconds": 1, "depends_on": ["b"]}));
    let seen = view(&made);
    assert_eq!(seen.steps[2]["type"], "wait");
    assert_eq!(seen.steps[2]["params"], json!({"seconds": 1, "depends_on": ["b"]}));
    assert!(seen.nodes_json.contains("\"c\""), "the drawing was of other steps");
    assert_eq!(seen.edges.len(), 2);
    let back = definition(&again(&seen), Some(&made)).unwrap();
    let mut expected = made["steps"].clone();
    expected[2] = json!({"step_id": "c", "name": "c", "type": "wait", "seconds": 1,
        "depends_on": ["b"]});
    assert_eq!(back["steps"], expected);
}

#[test]
fn another_shape_is_refused_in_words() {
    let with = |change: &dyn Fn(&mut Fields)| {
        let mut fields = fields();
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
    let default = "the default_value 'x' of the input 'n' is no number";
    assert_eq!(with(&|it| it.inputs[2]["default_value"] = json!("x")), default);
}

/// Each reference against each input, each step against each held step: minutes, were they compared
/// one by one.
#[test]
fn long_lists_are_refused_before_they_are_compared() {
    let with = |change: &dyn Fn(&mut Fields)| {
        let mut fields = fields();
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
fn the_longest_name_of_an_input_counts() {
    let mut fields = fields();
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
