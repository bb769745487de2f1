//! Model detail (`docs/spec/models.md`, "Model detail").

use bytes::Bytes;

use super::Model;
use orrery_wire as wire;

/// Returns the detail of a model.
#[must_use]
pub fn detail(model: &Model) -> wire::model::Model<'_> {
    wire::model::Model::of(
        model.slug.as_str(),
        &model.title,
        model.output_type,
        model.schema.text(),
        model.pricing.as_ref(),
    )
}

/// Returns the detail as JSON text, which is rendered once and then cached, since a model never
/// changes.
#[must_use]
pub fn detail_json(model: &Model) -> Bytes {
    let render = || serde_json::to_vec(&detail(model)).unwrap_or_default().into();
    model.detail.get_or_init(render).clone()
}
