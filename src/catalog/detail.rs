//! Model detail, as `spec/api.md` "Models" shows it.

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::Model;
use crate::domain::model::Pricing;

/// The specification's constant; deprecated there.
const VERSION: &str = "0.0.1";
const DISCLAIMER: &str = "Pricing is an estimate and may change as rates are updated.";
const USAGE_BASED: &str = "Usage-based pricing";

/// A model as clients read it. Every key is always there.
#[derive(Debug, Serialize)]
pub struct ModelDetail<'a> {
    title: &'a str,
    slug: &'a str,
    version: &'static str,
    output_type: &'static str,
    request_schema: &'a Value,
    cost: Option<Cost>,
}

#[derive(Debug, Serialize)]
struct Cost {
    currency: &'static str,
    r#type: &'static str,
    /// US dollars.
    amount: Option<f64>,
    unit: Option<&'static str>,
    estimate: String,
    description: &'static str,
}

/// The detail of a model.
#[must_use]
pub fn detail(model: &Model) -> ModelDetail<'_> {
    ModelDetail {
        title: &model.title,
        slug: model.slug.as_str(),
        version: VERSION,
        output_type: model.output_type.as_str(),
        request_schema: model.schema.text(),
        cost: model.pricing.as_ref().map(cost),
    }
}

/// The same as JSON text; rendered at the first call and then kept, since a model never changes.
#[must_use]
pub fn detail_json(model: &Model) -> Bytes {
    let render = || serde_json::to_vec(&detail(model)).unwrap_or_default().into();
    model.detail.get_or_init(render).clone()
}

fn cost(pricing: &Pricing) -> Cost {
    let (r#type, amount, unit, estimate) = match pricing {
        Pricing::Fixed { amount } => {
            let dollars = amount.dollars();
            ("fixed", Some(dollars), Some("execution"), format!("${dollars} per execution"))
        }
        Pricing::UsageBased { estimate, .. } => {
            let estimate = estimate.clone().unwrap_or_else(|| USAGE_BASED.to_owned());
            ("usage_based", None, None, estimate)
        }
    };
    Cost { currency: "USD", r#type, amount, unit, estimate, description: DISCLAIMER }
}
