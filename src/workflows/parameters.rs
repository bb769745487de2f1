//! Parameters of model steps, checked against the schemas of their models when the definition is stored, as far
//! as they are known by then: what a reference gives is checked when the step runs.

use std::sync::Arc;

use serde_json::Value;

use super::definitions::place_of;
use crate::domain::definition::{Kind, PROBLEMS_MAX, Plan, Problem};
use crate::domain::template::{self, Template};
use crate::schema::{Known, Schema};

/// The request schema of a model; none where the catalog does not have it.
pub type SchemaOf = Arc<dyn Fn(&str) -> Option<Arc<Schema>> + Send + Sync>;

/// Parameters, and the model that gets them.
struct Given<'p> {
    slug: &'p str,
    params: &'p Template,
    /// The field of the step that has them.
    field: &'static str,
}

/// What is wrong with the parameters of a plan's model steps and of their fallbacks.
pub fn problems(definition: Option<&Value>, plan: &Plan, schema_of: &SchemaOf) -> Vec<Problem> {
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
            let Some(schema) = schema_of(given.slug) else { continue };
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

fn violations(schema: &Schema, params: &Template) -> Vec<crate::schema::Violation> {
    schema.certain_violations(params.outline(), &|pointer| match params.known_at(pointer) {
        template::Known::Whole => Known::Whole,
        template::Known::Parts => Known::Parts,
        template::Known::Text => Known::Text,
        template::Known::Nothing => Known::Nothing,
    })
}
