//! The list of models in Anthropic's format.

use schemars::JsonSchema;
use serde::Serialize;

use crate::Time;

/// The models that Anthropic's clients can call, all in one page.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageModels")]
pub struct Models<'a> {
    /// Local models by slug, then the agent, then the models that the upstream lists.
    pub data: Vec<Model<'a>>,
    /// Always false.
    pub has_more: bool,
    /// The ID of the first model. Null if there is none.
    pub first_id: Option<&'a str>,
    /// The ID of the last model. Null if there is none.
    pub last_id: Option<&'a str>,
}

/// A model that Anthropic's clients can call.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageModel")]
pub struct Model<'a> {
    /// Always `model`.
    #[serde(rename = "type")]
    #[schemars(extend("const" = "model"))]
    pub kind: &'static str,
    /// The value to use for `model` in requests.
    pub id: &'a str,
    /// The same as the ID.
    pub display_name: &'a str,
    /// When the model was created. The start of 1970 if unknown.
    pub created_at: Time,
}
