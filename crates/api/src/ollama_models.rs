//! Ollama's API: what clients ask about the service and its models, and what it does not do.

use hyper::StatusCode;
use orrery_wire::ollama::{Description, Details, Model, Models, ShowRequest, Version};
use ring::digest::{SHA256, digest};
use serde_json::Map;

use super::chat;
use super::doc::{Doc, RequestDoc, ResponseDoc};
use super::ollama::id_of;
use super::{Context, Services};
use orrery_domain::hex::hex;
use orrery_domain::time::Timestamp;
use orrery_http::{Response, response};
use orrery_wire::chat::{Model as Callable, ModelKind};

/// The version of Ollama whose API this is: clients require a minimum.
const API_VERSION: &str = "0.12.0";
/// When a loaded model is unloaded, for clients: after fifteen idle minutes.
const KEPT_SECONDS: i64 = 15 * 60;

pub(crate) const ROOT: Doc = Doc {
    responses: &[ResponseDoc::raw(200, "text/plain", "A sentence")],
    ..Doc::new("ollama", "ollama_root", "Check that the host answers")
};

/// `GET /`, by whose text clients find a server.
pub(crate) async fn root(_context: Context) -> Result<Response, crate::Error> {
    Ok(response::text(StatusCode::OK, "Ollama is running".to_owned()))
}

pub(crate) const VERSION: Doc = Doc {
    responses: &[ResponseDoc::json::<Version>(200, "The version of the API")],
    ..Doc::new("ollama", "ollama_version", "Get the version of the API")
};

/// `GET /api/version`
pub(crate) async fn version(_context: Context) -> Result<Response, crate::Error> {
    Ok(response::json(StatusCode::OK, &Version { version: API_VERSION }))
}

pub(crate) const TAGS: Doc = Doc {
    responses: &[ResponseDoc::json::<Models>(200, "The models")],
    ..Doc::new("ollama", "ollama_tags", "List models")
};

/// `GET /api/tags`
pub(crate) async fn tags(context: Context) -> Result<Response, crate::Error> {
    Ok(response::json(StatusCode::OK, &Models { models: models(&context.services, false).await }))
}

pub(crate) const LOADED: Doc = Doc {
    responses: &[ResponseDoc::json::<Models>(200, "The loaded models")],
    ..Doc::new("ollama", "ollama_ps", "List loaded models")
};

/// `GET /api/ps`
pub(crate) async fn loaded(context: Context) -> Result<Response, crate::Error> {
    Ok(response::json(StatusCode::OK, &Models { models: models(&context.services, true).await }))
}

/// Lists the models that this API can call, or only the loaded ones.
async fn models(services: &Services, only_loaded: bool) -> Vec<Model> {
    let catalog = services.chat.models().await;
    let callable = chat::callable(services, &catalog);
    let callable = callable.into_iter().filter(is_callable);
    let shown = callable.filter_map(|model| {
        let local = local_of(services, model.id);
        let is_loaded = local.as_ref().is_some_and(|local| local.is_loaded);
        (!only_loaded || is_loaded).then(|| shown(services, &model, local, only_loaded))
    });
    shown.collect()
}

/// Whether this API has a route for a model.
fn is_callable(model: &Callable<'_>) -> bool {
    matches!(model.kind, None | Some(ModelKind::Chat | ModelKind::Embeddings))
}

/// A model that runs from a file.
#[derive(Debug, Clone, Copy)]
struct LocalModel {
    file_bytes: u64,
    quantization: Option<&'static str>,
    is_loaded: bool,
}

fn local_of(services: &Services, id: &str) -> Option<LocalModel> {
    let local = services.catalog.get(id)?.runner.local()?;
    Some(LocalModel {
        file_bytes: local.file_bytes,
        quantization: local.quantization,
        is_loaded: local.resident_bytes.is_some(),
    })
}

fn shown(
    services: &Services,
    model: &Callable<'_>,
    local: Option<LocalModel>,
    is_loaded: bool,
) -> Model {
    let digest = hex(digest(&SHA256, model.id.as_bytes()).as_ref());
    let end = services.clock.now().micros().saturating_add(KEPT_SECONDS * 1_000_000);
    Model {
        name: model.id.to_owned(),
        model: model.id.to_owned(),
        modified_at: created(model).into(),
        size: local.as_ref().map_or(0, |local| local.file_bytes),
        digest,
        details: details(local.as_ref()),
        expires_at: is_loaded.then(|| Timestamp::from_micros(end).into()),
        size_vram: is_loaded.then_some(0),
        context_length: model.context_length.filter(|_| is_loaded),
    }
}

fn created(model: &Callable<'_>) -> Timestamp {
    Timestamp::from_micros(model.created.saturating_mul(1_000_000))
}

fn details(local: Option<&LocalModel>) -> Details {
    let Some(local) = local else { return Details::default() };
    let quantization_level = local.quantization.unwrap_or_default();
    Details { format: "gguf", quantization_level, ..Details::default() }
}

pub(crate) const SHOW: Doc = Doc {
    request: Some(RequestDoc::json::<ShowRequest>()),
    responses: &[
        ResponseDoc::json::<Description>(200, "The model"),
        ResponseDoc::error(404, "Model not found"),
    ],
    ..Doc::new("ollama", "ollama_show", "Describe a model")
};

/// `POST /api/show`
pub(crate) async fn show(mut context: Context) -> Result<Response, crate::Error> {
    let request: ShowRequest = context.request.json().await?;
    let name = request.model.or(request.name).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| crate::Error::bad_request("model is required"))?;
    let services = &context.services;
    let id = id_of(services, &name);
    let catalog = services.chat.models().await;
    let callable = chat::callable(services, &catalog);
    let found = callable.iter().filter(|model| is_callable(model)).find(|model| model.id == id);
    let model =
        found.ok_or_else(|| crate::Error::not_found(format!("model '{name}' not found")))?;
    let is_embedding = matches!(model.kind, Some(ModelKind::Embeddings));
    let mut model_info = Map::new();
    model_info.insert("general.architecture".to_owned(), "orrery".into());
    if let Some(length) = model.context_length {
        model_info.insert("orrery.context_length".to_owned(), length.into());
    }
    let body = Description {
        modelfile: "",
        parameters: "",
        template: "",
        details: details(local_of(services, model.id).as_ref()),
        model_info,
        capabilities: if is_embedding { vec!["embedding"] } else { vec!["completion", "tools"] },
        modified_at: created(model).into(),
    };
    Ok(response::json(StatusCode::OK, &body))
}

pub(crate) const MANAGE: Doc = Doc {
    responses: &[ResponseDoc::error(501, "Not supported")],
    ..Doc::new("ollama", "ollama_manage", "Manage models, which this API does not do")
};

/// `POST /api/pull` and the other routes that change the models of a server.
pub(crate) async fn manage(context: Context) -> Result<Response, crate::Error> {
    let verb = context.request.path.trim_matches('/').rsplit('/').next().unwrap_or_default();
    let message = format!(
        "{verb} is not supported: the operator adds and removes models as files of the models folder"
    );
    Err(crate::Error::status(StatusCode::NOT_IMPLEMENTED, message))
}
