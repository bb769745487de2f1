//! Models, each with its only version.

use std::sync::Arc;

use hyper::StatusCode;

use super::{CURSOR, Context, Doc, NO_MODEL, ResponseDoc, Role, Services, doc, url_of};
use orrery_catalog as catalog;
use orrery_domain::replicate::{LOCAL_OWNER, owner_and_name};
use orrery_http::{Response, response};
use orrery_wire::replicate::{COG_VERSION, Model, Page, Version};

/// Number of models in a page.
const PAGE: usize = 25;

pub(crate) const LIST: Doc = Doc {
    query: &[CURSOR],
    responses: &[ResponseDoc::json::<Page<Model>>(200, "A page of the models")],
    description: "Returns a page of 25 models, each with its version and the version's schema. \
                  The built-in utilities come last.",
    ..doc("replicate_list_models", "List models")
};

/// `GET /replicate/v1/models?cursor=`
pub(crate) async fn list(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let skipped = context.request.query.number("cursor", 0..=u64::from(u32::MAX), 0)?;
    let skipped = usize::try_from(skipped)?;
    let all = services.catalog.list_for_people();
    let url = |skipped: usize| match skipped {
        0 => url_of(services, "models"),
        _ => url_of(services, &format!("models?cursor={skipped}")),
    };
    let end = skipped.saturating_add(PAGE);
    let page = Page {
        previous: (skipped > 0).then(|| url(skipped.saturating_sub(PAGE))),
        next: (end < all.len()).then(|| url(end)),
        results: all.iter().skip(skipped).take(PAGE).map(|model| view(services, model)).collect(),
    };
    Ok(response::json(StatusCode::OK, &page))
}

pub(crate) const GET: Doc = Doc {
    responses: &[ResponseDoc::json::<Model>(200, "The model"), NO_MODEL],
    description: "Returns a model with its version and the version's schema. The owner of a model \
                  whose slug has no `/` is `local`.",
    ..doc("replicate_get_model", "Get a model")
};

/// `GET /replicate/v1/models/{owner}/{name}`
pub(crate) async fn get(context: Context) -> Result<Response, crate::Error> {
    let model = in_path(&context)?;
    Ok(response::json(StatusCode::OK, &view(&context.services, &model)))
}

pub(crate) const VERSIONS: Doc = Doc {
    responses: &[ResponseDoc::json::<Page<Version>>(200, "The version"), NO_MODEL],
    description: "Returns the only version of a model, as a list.",
    ..doc("replicate_list_versions", "List the versions of a model")
};

/// `GET /replicate/v1/models/{owner}/{name}/versions`
pub(crate) async fn versions(context: Context) -> Result<Response, crate::Error> {
    let model = in_path(&context)?;
    let results = vec![version(&context.services, &model)];
    Ok(response::json(StatusCode::OK, &Page { previous: None, next: None, results }))
}

pub(crate) const VERSION: Doc = Doc {
    responses: &[ResponseDoc::json::<Version>(200, "The version"), NO_MODEL],
    description: "Returns a version of a model with its schema.",
    ..doc("replicate_get_version", "Get a version of a model")
};

/// `GET /replicate/v1/models/{owner}/{name}/versions/{version}`
pub(crate) async fn get_version(context: Context) -> Result<Response, crate::Error> {
    let model = in_path(&context)?;
    if model.version_id() != context.request.param("version") {
        return Err(crate::Error::not_found("version not found"));
    }
    Ok(response::json(StatusCode::OK, &version(&context.services, &model)))
}

/// Returns the model in the path.
///
/// # Errors
/// 404 for an unknown model.
pub(super) fn in_path(context: &Context) -> Result<Arc<catalog::Model>, crate::Error> {
    let request = &context.request;
    find(&context.services, request.param("owner"), request.param("name"))
}

/// Returns the model that a prediction names by `version`: the ID of a version, `owner/name`, or
/// `owner/name:id`.
///
/// # Errors
/// 422 for an unknown version, as in Replicate's API.
pub(super) fn of_version(
    services: &Services,
    version: &str,
) -> Result<Arc<catalog::Model>, crate::Error> {
    let catalog = &services.catalog;
    let found = match version.split_once('/') {
        None => catalog.of_version(version),
        Some((owner, name)) => catalog.of_owner(owner, name).or_else(|| {
            let (name, id) = name.rsplit_once(':')?;
            catalog.of_owner(owner, name).filter(|model| model.version_id() == id)
        }),
    };
    found.ok_or_else(|| {
        crate::Error::unprocessable(
            "the version does not exist: version must be the ID of a version, owner/name, or \
             owner/name:id, and GET /replicate/v1/models lists the models",
        )
    })
}

fn find(services: &Services, owner: &str, name: &str) -> Result<Arc<catalog::Model>, crate::Error> {
    services.catalog.of_owner(owner, name).ok_or_else(|| {
        let slug = format!("{owner}/{name}");
        let near = services.catalog.nearest(if owner == LOCAL_OWNER { name } else { &slug });
        let near = near.map(|slug| {
            let (owner, name) = owner_and_name(&slug);
            format!("{owner}/{name}")
        });
        crate::Error::not_found("model not found").with_near(near)
    })
}

fn view(services: &Services, model: &catalog::Model) -> Model {
    let slug = model.slug.as_str();
    let url = format!("{}/v1/models/{slug}", services.url_of(Role::Base));
    Model::of(slug, &model.description, url, version(services, model))
}

fn version(services: &Services, model: &catalog::Model) -> Version {
    Version {
        id: model.version_id().to_owned(),
        created_at: services.started_at.into(),
        cog_version: COG_VERSION,
        openapi_schema: catalog::openapi(model).as_object().cloned().unwrap_or_default(),
    }
}
