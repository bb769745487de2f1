//! Validates the parameters of model steps and the inputs of workflow steps against the schemas of
//! their models and workflows. When a definition is stored, only known values are validated; the
//! values of references are validated when the step runs.

use std::sync::Arc;

use serde_json::Value;

use super::definitions::place_of;
use orrery_domain::definition::{Kind, PROBLEMS_MAX, Plan, Problem};
use orrery_domain::template::{self, Template};
use orrery_schema::{Known, Schema, Violation};

/// The models that definitions may refer to.
pub trait Models: Send + Sync {
    /// Returns the request schema of a model, or `None` if there is no such model.
    fn schema(&self, slug: &str) -> Option<Arc<Schema>>;
    /// Returns the existing slug that is closest to an unknown one.
    fn nearest(&self, slug: &str) -> Option<String>;
}

/// The values that a step passes to a model or to a workflow.
pub(crate) struct Given<'p> {
    pub step: &'p str,
    /// The field of the step that contains the values.
    pub field: &'static str,
    /// The model or workflow, as it is named in messages.
    pub target: String,
    pub values: &'p Template,
}

impl Given<'_> {
    /// Returns the violations of `schema` that are certain before the step runs. `place` is the
    /// JSON pointer to the values in the definition.
    pub(crate) fn problems(&self, schema: &Schema, place: &str) -> Vec<Problem> {
        let Self { step, field, target, values } = self;
        let known = |pointer: &str| match values.known_at(pointer) {
            template::Known::Whole => Known::Whole,
            template::Known::Parts => Known::Parts,
            template::Known::Text => Known::Text,
            template::Known::Nothing => Known::Nothing,
        };
        let violations = schema.certain_violations(values.outline(), &known).into_iter();
        let problem = |Violation { path, message }| Problem {
            path: format!("{place}{path}"),
            message: format!("step '{step}': {field} do not fit the {target}: {message}"),
        };
        violations.map(problem).collect()
    }
}

/// Returns the problems in the parameters of a plan's model steps and their fallbacks.
pub(crate) fn problems(
    definition: Option<&Value>,
    plan: &Plan,
    models: &dyn Models,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for step in plan.steps() {
        let Kind::Model(model) = &step.kind else { continue };
        let own = ("params", &model.slug, &model.params);
        let fallback = model.fallback.as_ref();
        let fallback = fallback.map(|other| ("fallback/params", &other.slug, &other.params));
        for (field, slug, values) in std::iter::once(own).chain(fallback) {
            let Some(schema) = models.schema(slug) else { continue };
            let given = Given { step: &step.id, field, target: format!("model '{slug}'"), values };
            problems.extend(given.problems(&schema, &place_of(definition, &step.id, field)));
        }
        if problems.len() >= PROBLEMS_MAX {
            problems.truncate(PROBLEMS_MAX);
            break;
        }
    }
    problems
}

/// Adds the closest slug to a problem about an unknown model.
pub(crate) fn with_hint(
    definition: Option<&Value>,
    models: &dyn Models,
    mut problem: Problem,
) -> Problem {
    let slug = definition.and_then(|whole| whole.pointer(&problem.path)).and_then(Value::as_str);
    let unknown = slug
        .filter(|_| problem.path.ends_with("/model"))
        .filter(|slug| models.schema(slug).is_none());
    if let Some(near) = unknown.and_then(|slug| models.nearest(slug)) {
        problem.message.push_str(&format!(": did you mean {near}?"));
    }
    problem
}
