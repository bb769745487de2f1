//! Random plans, derived from the bytes of a test case.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::definition::Plan;

/// The bytes that determine the shape of a plan; zeros once they are used up.
struct Dice<'d> {
    bytes: std::slice::Iter<'d, u8>,
    /// Whether steps have timeouts.
    deadlines: bool,
    /// The number of maps around the next step. Inside a map, no step waits for an event.
    maps: usize,
}

impl Dice<'_> {
    fn throw(&mut self, sides: u8) -> u8 {
        self.bytes.next().map_or(0, |byte| byte % sides)
    }
}

fn block(dice: &mut Dice<'_>, depth: u8, made: &mut usize) -> Value {
    let count = 1 + usize::from(dice.throw(4));
    let mut steps: Vec<Value> = Vec::new();
    for _ in 0..count {
        let earlier: Vec<String> =
            steps.iter().map(|step| step["step_id"].as_str().unwrap().to_owned()).collect();
        steps.push(step(dice, depth, made, &earlier));
    }
    steps.into()
}

fn step(dice: &mut Dice<'_>, depth: u8, made: &mut usize, earlier: &[String]) -> Value {
    *made += 1;
    let id = format!("s{made}");
    let kinds = if depth == 0 { 9 } else { 12 };
    let mut step = match dice.throw(kinds) {
        0..=2 => json!({"type": "model", "model": "m"}),
        3 => json!({"type": "http", "url": "http://h/"}),
        4 => json!({"type": "pass"}),
        5 => json!({"type": "wait", "seconds": 1}),
        6 => json!({"type": "workflow", "workflow": "w"}),
        7 => json!({"type": "workflow", "workflow": "w", "wait": false}),
        8 if dice.maps == 0 => event_wait(dice, &id),
        8 => json!({"type": "wait", "seconds": 2}),
        9 => {
            let branches = 1 + dice.throw(3);
            let branch = |_| json!({"steps": block(dice, depth - 1, made)});
            let branches: Vec<Value> = (0..branches).map(branch).collect();
            json!({"type": "parallel", "branches": branches})
        }
        10 => {
            let met = json!({"steps": block(dice, depth - 1, made)});
            let other = json!({"steps": block(dice, depth - 1, made)});
            let condition = json!({"expression": "{{execution.id}}", "operator": "exists"});
            json!({"type": "choice", "condition": condition, "condition_met_branch": met, "default_branch": other})
        }
        _ => {
            let (name, most) = (format!("i{made}"), 1 + dice.throw(2));
            dice.maps += 1;
            let steps = block(dice, depth - 1, made);
            dice.maps -= 1;
            json!({"type": "map", "items": [1], "item_name": name, "max_concurrency": most, "steps": steps})
        }
    };
    step["step_id"] = id.into();
    if dice.throw(4) == 0 {
        step["continue_on_error"] = true.into();
    }
    let calls = ["model", "http", "workflow"].contains(&step["type"].as_str().unwrap());
    if calls && dice.throw(3) == 0 {
        step["retry"] = json!({"max_attempts": 1 + dice.throw(3), "initial_delay_seconds": 1});
    }
    if calls && dice.throw(6) == 0 {
        step["on_exhausted"] = "pause".into();
    }
    if ["model", "http"].contains(&step["type"].as_str().unwrap()) {
        if dice.throw(4) == 0 {
            step["fallback"] = json!({"model": "other", "url": "http://other/"});
            let alien = if step["type"] == "model" { "url" } else { "model" };
            step["fallback"].as_object_mut().unwrap().remove(alien);
        }
    } else if dice.throw(5) == 0 && step["type"] != "pass" && dice.deadlines {
        step["timeout_seconds"] = 3.into();
    }
    if dice.throw(3) == 0 && !earlier.is_empty() {
        let named = usize::from(dice.throw(8)) % earlier.len();
        step["depends_on"] = json!([earlier[named]]);
    }
    step
}

fn event_wait(dice: &mut Dice<'_>, name: &str) -> Value {
    let mut event = json!({ "name": name });
    if dice.deadlines && dice.throw(2) == 0 {
        event["timeout_seconds"] = 2.into();
    }
    if dice.throw(2) == 0 {
        event["default"] = "nobody".into();
    }
    json!({"type": "wait", "event": event})
}

pub(super) fn plan(dice: &[u8], deadlines: bool) -> Arc<Plan> {
    let mut dice = Dice { bytes: dice.iter(), deadlines, maps: 0 };
    let steps = block(&mut dice, 2, &mut 0);
    Arc::new(Plan::compile(Some(&json!({"steps": steps})), &|_| true).unwrap())
}
