//! Validates the parameters of model steps against the schemas of their models when the definition
//! is stored, as far as the values are known: references are validated when the step runs.

use std::sync::Arc;

use serde_json::Value;

use super::definitions::place_of;
use orrery_domain::definition::{Kind, PROBLEMS_MAX, Plan, Problem};
use orrery_domain::template::{self, Template};
use orrery_schema::{Known, Schema};

/// The models that definitions may refer to.
pub trait Models: Send + Sync {
    /// Returns the request schema of a model, or `None` if there is no such model.
    fn schema(&self, slug: &str) -> Option<Arc<Schema>>;
    /// Returns the existing slug that is closest to an unknown one.
    fn nearest(&self, slug: &str) -> Option<String>;
}

/// Parameters and their model.
struct Given<'p> {
    slug: &'p str,
    params: &'p Template,
    /// The field of the step that contains the parameters.
    field: &'static str,
}

/// Returns the problems of the parameters of a plan's model steps and of the steps' fallbacks.
pub fn problems(definition: Option<&Value>, plan: &Plan, models: &dyn Models) -> Vec<Problem> {
    let mut problems = Vec::new();
    for step in plan.steps() {
        let Kind::Model(model) = &step.kind else { continue };
        let own = Given { slug: &model.slug, params: &model.params, field: "params" };
        let fallback = model.fallback.as_ref().map(|fallback| Given {
            slug: &fallback.slug,
            params: &fallback.params,
            field: "fallback/params",
        });
        for given in std::iter::once(own).chain(fallback) {
            let Some(schema) = models.schema(given.slug) else { continue };
            let violations = violations(&schema, given.params);
            problems.extend(violations.into_iter().map(|violation| {
                let Given { slug, field, .. } = given;
                let id = &step.id;
                let path = format!("{}{}", place_of(definition, id, field), violation.path);
                let message = violation.message;
                let message =
                    format!("step '{id}': {field} do not fit the model '{slug}': {message}");
                Problem { path, message }
            }));
        }
        if problems.len() >= PROBLEMS_MAX {
            problems.truncate(PROBLEMS_MAX);
            break;
        }
    }
    problems
}

/// Adds the closest slug to a problem about an unknown model.
pub fn with_hint(definition: Option<&Value>, models: &dyn Models, mut problem: Problem) -> Problem {
    let slug = definition.and_then(|whole| whole.pointer(&problem.path)).and_then(Value::as_str);
    let unknown = slug
        .filter(|_| problem.path.ends_with("/model"))
        .filter(|slug| models.schema(slug).is_none());
    if let Some(near) = unknown.and_then(|slug| models.nearest(slug)) {
        problem.message.push_str(&format!(": did you mean {near}?"));
    }
    problem
}

fn violations(schema: &Schema, params: &Template) -> Vec<orrery_schema::Violation> {
    schema.certain_violations(params.outline(), &|pointer| match params.known_at(pointer) {
        template::Known::Whole => Known::Whole,
        template::Known::Parts => Known::Parts,
        template::Known::Text => Known::Text,
        template::Known::Nothing => Known::Nothing,
    })
}
