//! Random definitions: each one compiles or is rejected, and compiled plans can run.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::reference::Root;

/// The shape of a random step without its name.
#[derive(Debug, Clone)]
struct Shape {
    kind: usize,
    /// The visible step to which the step refers.
    refers: prop::sample::Index,
    /// Whether the step also refers to, or depends on, arbitrary names.
    strays: bool,
    depends: Option<prop::sample::Index>,
    blocks: [Vec<Shape>; 2],
}

fn any_shapes() -> impl Strategy<Value = Vec<Shape>> {
    let fields = |kinds| {
        let strays = prop::bool::weighted(0.04);
        (
            kinds,
            any::<prop::sample::Index>(),
            strays,
            prop::option::weighted(0.3, any::<prop::sample::Index>()),
        )
    };
    let leaf = fields(0..5_usize).prop_map(|(kind, refers, strays, depends)| {
        let blocks = [Vec::new(), Vec::new()];
        Shape { kind, refers, strays, depends, blocks }
    });
    let shape = leaf.prop_recursive(3, 12, 4, move |inner| {
        let block = || prop::collection::vec(inner.clone(), 1..3);
        (fields(5..8_usize), block(), block()).prop_map(
            |((kind, refers, strays, depends), one, two)| Shape {
                kind,
                refers,
                strays,
                depends,
                blocks: [one, two],
            },
        )
    });
    prop::collection::vec(shape, 1..6)
}

/// Writes a block of steps. `sight` contains the visible steps, `count` is the number of steps so
/// far.
fn write(shapes: &[Shape], sight: &mut Vec<String>, count: &mut usize) -> Vec<Value> {
    let mut beside: Vec<String> = Vec::new();
    let mut steps = Vec::new();
    for shape in shapes {
        let id = format!("s{count}");
        *count += 1;
        let target = match (shape.strays, sight.is_empty()) {
            (true, _) => Some(format!("s{}", shape.refers.index(12))),
            (false, true) => None,
            (false, false) => Some(sight[shape.refers.index(sight.len())].clone()),
        };
        let text =
            target.map_or("{{inputs.x}}".to_owned(), |target| format!("{{{{{target}.output}}}}"));
        let mut inside = |block: &[Shape]| {
            let mut inner = sight.clone();
            let steps = write(block, &mut inner, count);
            (steps, inner.split_off(sight.len()))
        };
        let [one, two] = &shape.blocks;
        let mut step = match shape.kind {
            0 => http(&id),
            1 => json!({"step_id": id, "type": "pass", "result": text}),
            2 | 3 => model(&id, &text),
            4 => json!({"step_id": id, "type": "workflow", "workflow": "w", "inputs": {"x": text}}),
            5 | 6 => {
                let ((one, seen_in_one), (two, seen_in_two)) = (inside(one), inside(two));
                sight.extend(seen_in_one.into_iter().chain(seen_in_two));
                if shape.kind == 5 {
                    json!({"step_id": id, "type": "parallel",
                           "branches": [{"steps": one}, {"steps": two}]})
                } else {
                    json!({"step_id": id, "type": "choice",
                           "condition": {"expression": text, "operator": "exists"},
                           "condition_met_branch": {"steps": one},
                           "default_branch": {"steps": two}})
                }
            }
            _ => {
                let (steps, _) = inside(one);
                json!({"step_id": id, "type": "map", "items": text, "steps": steps,
                       "item_name": format!("item{count}")})
            }
        };
        if let Some(depends) = shape.depends {
            let names = match (shape.strays, beside.is_empty()) {
                (true, _) => vec![format!("s{}", depends.index(12))],
                (false, true) => vec![],
                (false, false) => vec![beside[depends.index(beside.len())].clone()],
            };
            step = with(step, "depends_on", json!(names));
        }
        beside.push(id.clone());
        sight.push(id);
        steps.push(step);
    }
    steps
}

fn definition_of(shapes: &[Shape]) -> Value {
    json!({"steps": write(shapes, &mut Vec::new(), &mut 0)})
}

/// Simulates a plan: `choose` picks the next step among those that may start. A leaf step ends at
/// once; any other step ends when all steps inside it have ended.
fn run(plan: &Plan, mut choose: impl FnMut(usize) -> usize) {
    let mut started = HashSet::new();
    let mut done = HashSet::new();
    while done.len() < plan.steps().count() {
        let ready: Vec<&Step> = plan
            .steps()
            .filter(|step| !started.contains(&step.position))
            .filter(|step| step.parent.is_none_or(|parent| started.contains(&parent.step)))
            .filter(|step| step.waits_for.iter().all(|other| done.contains(other)))
            .collect();
        assert!(!ready.is_empty(), "nothing can go on:\n{}", outline(plan));
        let step = ready[choose(ready.len())];
        invariant_references_have_ended(plan, step, &done);
        started.insert(step.position);
        // Containers precede their nested steps, so a single backward pass ends all steps.
        for step in plan.steps().collect::<Vec<_>>().into_iter().rev() {
            let inner = step.kind.blocks();
            let mut inner = inner.iter().flat_map(|block| block.positions());
            if started.contains(&step.position) && inner.all(|inner| done.contains(inner)) {
                done.insert(step.position);
            }
        }
    }
}

fn invariant_references_have_ended(plan: &Plan, step: &Step, done: &HashSet<StepIndex>) {
    step.kind.visit(&mut |place, reference| {
        if let Root::Name(name) = reference.root()
            && let Some(other) = plan.step(name)
        {
            let has_ended = done.contains(&other.position);
            assert!(
                has_ended,
                "{} starts before {reference} at {place}\n{}",
                step.id,
                outline(plan)
            );
        }
    });
}

fn invariant_blocks_hold_together(plan: &Plan) {
    for step in plan.steps() {
        assert_eq!(plan.step(&step.id).map(|found| found.position), Some(step.position));
        for other in plan.waits_for(step) {
            assert_eq!(other.parent, step.parent, "{} waits for {}", step.id, other.id);
        }
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let words = vec![
        "step_id",
        "id",
        "type",
        "model",
        "http",
        "parallel",
        "choice",
        "map",
        "wait",
        "pass",
        "workflow",
        "version_id",
        "on_exhausted",
        "inputs",
        "steps",
        "branches",
        "condition",
        "condition_met_branch",
        "items",
        "params",
        "url",
        "auth",
        "retry",
        "fallback",
        "headers",
        "seconds",
        "result",
        "depends_on",
        "input_schema",
        "properties",
        "metadata",
        "output_mapping",
        "caption",
        "https://x/",
        "{{a.output}}",
        "a",
        "{{",
        "expression",
        "operator",
        "matches",
        "value",
        "$.inputs.a",
    ];
    let word = prop::sample::select(words);
    let leaf = prop_oneof![
        word.clone().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(8, 64, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((word.clone(), inner), 0..8).prop_map(|fields| {
                fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn definition_compiled_plan_runs_in_any_permitted_order(
        shapes in any_shapes(),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 64),
    ) {
        if let Ok(plan) = compile(&definition_of(&shapes)) {
            invariant_blocks_hold_together(&plan);
            let mut turn = choices.iter().cycle();
            run(&plan, |ready| turn.next().unwrap().index(ready));
        }
    }

    #[test]
    fn definition_any_json_compiles_or_is_rejected(definition in any_json(), step in any_json()) {
        for definition in [definition.clone(), json!({"steps": [step, definition]})] {
            if let Err(error) = compile(&definition) {
                prop_assert!(error.problems().all(|problem| problem.message.len() > 10));
                prop_assert!(error.problems().count() <= PROBLEMS_MAX);
            }
        }
    }
}

#[test]
fn definition_generator_yields_many_valid_definitions() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let compiled = (0..300)
        .filter(|_| {
            let shapes = any_shapes().new_tree(&mut runner).unwrap().current();
            compile(&definition_of(&shapes)).is_ok()
        })
        .count();
    assert!((150..300).contains(&compiled), "{compiled} of 300: the property above says little");
}
