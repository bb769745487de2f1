//! The models of the catalog.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Time, chat, messages};
use orrery_domain::model::{OutputType, Pricing, VERSION};

const DISCLAIMER: &str = "Pricing is an estimate and may change as rates are updated.";
const USAGE_BASED: &str = "Usage-based pricing";

/// The state of a server that this service starts for a model.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct ModelLoadState {
    /// `unloaded`, `loading`, `ready`, `draining` (it stops once its requests have ended) or
    /// `failed`.
    #[schemars(extend("enum" = ["unloaded", "loading", "ready", "draining", "failed"]))]
    pub state: String,
    /// Since when the server has been in this state.
    pub since: Time,
    /// Why the server did not start, or how it last exited.
    pub reason: Option<String>,
    /// The memory that the server takes of its group, in bytes. Null without a group.
    pub memory: Option<u64>,
    /// The number of requests in flight.
    pub in_flight: usize,
}

/// The numbers of jobs and workers of a model with the runner `pull`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct ModelWorkers {
    /// The number of workers whose last request was at most one lease time ago.
    pub workers: usize,
    /// The number of jobs that no worker has claimed, without the runs in the model's queue.
    pub waiting: usize,
    /// The number of jobs that workers have claimed and not finished.
    pub leased: usize,
}

/// A model. All keys are always present.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(example = json!({
    "title": "Caption",
    "slug": "vendor/caption",
    "version": VERSION,
    "output_type": "string",
    "request_schema": {"type": "object", "properties": {"image": {"type": "string"}}},
    "cost": {
        "currency": "USD",
        "type": "fixed",
        "amount": 0.01,
        "unit": "execution",
        "estimate": "$0.01 per execution",
        "description": DISCLAIMER,
    },
}))]
pub struct Model<'a> {
    /// The title of the model.
    pub title: &'a str,
    /// The slug of the model, to use as `model` in predictions.
    pub slug: &'a str,
    /// Always `0.0.1`. Deprecated.
    #[schemars(extend("deprecated" = true))]
    pub version: &'static str,
    /// The type of the output.
    pub output_type: OutputType,
    /// The JSON Schema of the model's input.
    pub request_schema: &'a Value,
    /// The estimated cost. Null if unknown.
    pub cost: Option<Cost>,
}

impl<'a> Model<'a> {
    /// Returns the view of a model.
    #[must_use]
    pub fn of(
        slug: &'a str,
        title: &'a str,
        output_type: OutputType,
        request_schema: &'a Value,
        pricing: Option<&Pricing>,
    ) -> Self {
        let cost = pricing.map(Cost::from);
        Self { title, slug, version: VERSION, output_type, request_schema, cost }
    }
}

/// The list of models: the catalog, or the models that OpenAI's or Anthropic's clients can call.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ModelList")]
pub enum List<'a> {
    Catalog(Vec<Model<'a>>),
    OpenAi(chat::Models<'a>),
    Anthropic(messages::models::Models<'a>),
}

/// A model, in the catalog's, OpenAI's or Anthropic's format.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ModelDetail")]
pub enum Detail<'a> {
    Catalog(Model<'a>),
    OpenAi(chat::Model<'a>),
    Anthropic(messages::models::Model<'a>),
}

/// The cost of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ModelCost")]
pub struct Cost {
    /// Always `USD`.
    #[schemars(extend("const" = "USD"))]
    pub currency: &'static str,
    /// Whether the price is fixed.
    pub r#type: CostType,
    /// The price in US dollars. Null unless the price is fixed.
    pub amount: Option<f64>,
    /// Always `execution`. Null unless the price is fixed.
    pub unit: Option<&'static str>,
    /// The estimate as text for display.
    pub estimate: String,
    /// A note about the estimate.
    pub description: &'static str,
}

/// How the cost is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CostType {
    Fixed,
    UsageBased,
}

impl From<&Pricing> for Cost {
    fn from(pricing: &Pricing) -> Self {
        let (r#type, amount, unit, estimate) = match pricing {
            Pricing::Fixed { amount } => {
                let dollars = amount.dollars();
                let estimate = format!("${dollars} per execution");
                (CostType::Fixed, Some(dollars), Some("execution"), estimate)
            }
            Pricing::UsageBased { estimate, .. } => {
                let estimate = estimate.clone().unwrap_or_else(|| USAGE_BASED.to_owned());
                (CostType::UsageBased, None, None, estimate)
            }
        };
        Self { currency: "USD", r#type, amount, unit, estimate, description: DISCLAIMER }
    }
}
