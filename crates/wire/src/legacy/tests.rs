//! Conversion of workflows to the legacy format and back.

use serde_json::{Value, json};

use super::Workflow;
use orrery_domain::definition::Plan;
use orrery_domain::ids::WorkflowId;
use orrery_domain::legacy::{Shape, definition, sample};
use orrery_domain::workflow;

fn seen(definition: &Value) -> Workflow {
    let mut workflow = workflow::Workflow::sample(WorkflowId::from([0; 16]));
    "v1".clone_into(&mut workflow.latest);
    Workflow::of(&workflow, definition)
}

fn again(view: &Workflow) -> Shape {
    let sent = json!({
        "workspace_id": view.workspace_id,
        "thumbnail_url": view.thumbnail_url,
        "inputs": view.inputs,
        "outputs": view.outputs,
        "steps": view.steps,
        "nodes_json": view.nodes_json,
        "edges_json": view.edges_json,
    });
    serde_json::from_value(sent).unwrap()
}

/// Returns the sample with a text that refers only to a step.
fn sample_of_step() -> Shape {
    let mut shape = sample();
    let params = shape.steps[1].params.as_mut().unwrap();
    params.insert("text".to_owned(), json!("{{a.output}}"));
    shape
}

#[test]
fn legacy_workflow_round_trips() {
    let fields = sample_of_step();
    let made = definition(&fields, None).unwrap();
    Plan::compile(Some(&made), &|_| true).unwrap();
    let seen = seen(&made);
    let drawn = (Some(seen.nodes_json.clone()), Some(seen.edges_json.clone()));
    assert_eq!(drawn, (fields.nodes_json, fields.edges_json));
    assert_eq!(seen.steps[0].params["image"], "{{Image 1}}");
    assert_eq!(seen.steps[0].model_version, "7");
    let output = json!({"name": "result", "type": "image", "value": "{{b.output}}"});
    assert_eq!(json!(seen.outputs), json!([output]));
    let edge = json!({"id": "a-b", "source": "a", "target": "b", "type": "default"});
    assert_eq!(json!(seen.edges), json!([edge]));
    let names: Vec<_> = seen.inputs.iter().map(|input| input.default_value.as_str()).collect();
    assert_eq!(names, ["", "", "2.5"]);
    let twice = definition(&again(&seen), Some(&made)).unwrap();
    assert_eq!(twice, made);
}

#[test]
fn legacy_workflow_shows_changes_and_keeps_newer_fields() {
    let fields = sample_of_step();
    let mut made = definition(&fields, None).unwrap();
    made["steps"][0]["fallback"] = json!({"model": "n"});
    made["steps"]
        .as_array_mut()
        .unwrap()
        .push(json!({"step_id": "c", "type": "wait", "seconds": 1, "depends_on": ["b"]}));
    let seen = seen(&made);
    assert_eq!(seen.steps[2].r#type, "wait");
    assert_eq!(seen.steps[2].params, json!({"seconds": 1, "depends_on": ["b"]}));
    assert!(seen.nodes_json.contains("\"c\""), "the drawing was of other steps");
    assert_eq!(seen.edges.len(), 2);
    let back = definition(&again(&seen), Some(&made)).unwrap();
    let mut expected = made["steps"].clone();
    expected[2] = json!({"step_id": "c", "name": "c", "type": "wait", "seconds": 1,
        "depends_on": ["b"]});
    assert_eq!(back["steps"], expected);
}
