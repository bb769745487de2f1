//! Any JSON is compiled into a plan or refused in words; of a plan, no step waits for one that
//! comes from another block or that does not exist.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orrery_domain::definition::{PROBLEMS_MAX, Plan};
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let Ok(definition) = serde_json::from_slice::<Value>(bytes) else { return };
    match Plan::compile(Some(&definition), &|model| !model.contains("gone")) {
        Err(error) => {
            assert!((1..=PROBLEMS_MAX).contains(&error.problems().count()));
            assert!(error.problems().all(|problem| !problem.message.is_empty()));
        }
        Ok(plan) => {
            for step in plan.steps() {
                assert_eq!(plan.waits_for(step).count(), step.waits_for.len());
                assert!(plan.waits_for(step).all(|other| other.parent == step.parent));
                assert!(!step.waits_for.contains(&step.position));
            }
            // What is stored is the text; it gives the same plan.
            let again = serde_json::from_str(&definition.to_string()).expect("it was JSON");
            let again = Plan::compile(Some(&again), &|_| true).expect("it was compiled before");
            assert_eq!(again.steps().count(), plan.steps().count());
        }
    }
});
