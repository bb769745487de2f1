//! Conversion of workflows to the legacy format and back.

use serde_json::{Value, json};

use super::Workflow;
use orrery_domain::definition::Plan;
use orrery_domain::ids::WorkflowId;
use orrery_domain::legacy::{Fields, definition, sample};
use orrery_domain::workflow;

fn seen(definition: &Value) -> Workflow {
    let mut workflow = workflow::Workflow::sample(WorkflowId::from([0; 16]));
    "v1".clone_into(&mut workflow.latest);
    Workflow::of(&workflow, definition)
}

fn again(view: &Workflow) -> Fields {
    Fields {
        workspace_id: view.workspace_id.clone(),
        thumbnail_url: view.thumbnail_url.clone(),
        inputs: json!(view.inputs),
        outputs: json!(view.outputs),
        steps: json!(view.steps),
        nodes_json: view.nodes_json.clone(),
        edges_json: view.edges_json.clone(),
    }
}

#[test]
fn legacy_workflow_round_trips() {
    let mut fields = sample();
    fields.steps[1]["params"]["text"] = json!("{{a.output}}");
    let made = definition(&fields, None).unwrap();
    Plan::compile(Some(&made), &|_| true).unwrap();
    let seen = seen(&made);
    assert_eq!((&seen.nodes_json, &seen.edges_json), (&fields.nodes_json, &fields.edges_json));
    assert_eq!(seen.steps[0].params["image"], "{{Image 1}}");
    assert_eq!(seen.steps[0].model_version, "7");
    assert_eq!(json!(seen.outputs), fields.outputs);
    let edge = json!({"id": "a-b", "source": "a", "target": "b", "type": "default"});
    assert_eq!(json!(seen.edges), json!([edge]));
    let names: Vec<_> = seen.inputs.iter().map(|input| input.default_value.as_str()).collect();
    assert_eq!(names, ["", "", "2.5"]);
    let twice = definition(&again(&seen), Some(&made)).unwrap();
    assert_eq!(twice, made);
}

#[test]
fn legacy_workflow_shows_changes_and_keeps_newer_fields() {
    let mut fields = sample();
    fields.steps[1]["params"]["text"] = json!("{{a.output}}");
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
