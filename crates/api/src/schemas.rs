//! Serves the JSON Schemas of files that people write, for editors: `GET /schemas/{name}.json`.
//! `orrery schema` prints the same schemas.

use std::sync::LazyLock;

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Map, Value};

use super::Context;
use super::doc::{Doc, ResponseDoc};
use orrery_catalog as catalog;
use orrery_config::explain;
use orrery_http::{Response, response};
use orrery_wire as wire;

/// The kinds of files.
pub const NAMES: [&str; 4] = ["workflow", "manifest", "config", "apply"];

/// The texts of the schemas in the order of [`NAMES`]. The texts are generated only once, because
/// requests for the texts are neither authenticated nor limited.
static TEXTS: LazyLock<Vec<Bytes>> =
    LazyLock::new(|| NAMES.iter().map(|name| of(name).to_string().into()).collect());

/// Returns the schema of a kind of file; null if the name is unknown.
#[must_use]
pub fn of(name: &str) -> Value {
    let schema = match name {
        "config" => Some(explain::schema()),
        "manifest" => Some(catalog::manifest_schema()),
        _ => wire::schemas::of(name),
    };
    schema.unwrap_or_default()
}

pub(crate) const GET: Doc = Doc {
    responses: &[
        ResponseDoc::json::<Map<String, Value>>(200, "The JSON Schema"),
        ResponseDoc::error(404, "There is no schema with this name"),
    ],
    description: "Returns the JSON Schema of a kind of file: workflow files, model manifests, the \
                  configuration, or files for `orrery apply`. Editors complete and check these \
                  files with it. Needs no key.",
    ..Doc::new("service", "get_schema", "Get the JSON Schema of a kind of file, for editors")
};

/// `GET /schemas/{name}.json`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let name = context.request.param("schema").strip_suffix(".json").unwrap_or_default();
    let text = NAMES.iter().zip(&*TEXTS).find(|(known, _)| **known == name);
    let (_, text) = text.ok_or_else(|| {
        crate::Error::not_found(format!("the schemas are {}, each with .json", NAMES.join(", ")))
    })?;
    Ok(response::json_text(StatusCode::OK, text.clone()))
}
