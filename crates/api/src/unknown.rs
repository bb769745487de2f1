//! Handles unknown names in requests. Unknown query parameters are rejected, because ignoring a
//! misspelled filter would return wrong results. Unknown body fields are accepted, because clients
//! for other versions may send additional fields, and the response lists them as warnings. With
//! `Prefer: handling=strict` (RFC 7240), unknown body fields are rejected as well.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, WARNING};
use hyper::{HeaderMap, StatusCode};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::doc::{ErrorForm, Kind};
use super::responses::TAG as RESPONSES;
use super::{Access, ROUTES, Role, Route, vendors};
use orrery_domain::spelling;
use orrery_http::body;
use orrery_http::fields::FieldCheck;
use orrery_http::{Request, Response};
use orrery_records::signed_urls;

const PREFER: HeaderName = HeaderName::from_static("prefer");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
const STRICT: &str = "handling=strict";
/// Maximum size, in bytes, of a response whose body includes the warnings. Larger responses have
/// the warnings only in a header.
const ANSWER_MAX: usize = 64 * 1024;

/// The top-level field names of each route's body, by the route's first host, operation ID and
/// path.
type Known = HashMap<(Option<Role>, &'static str, &'static str), Arc<[String]>>;
static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    ROUTES.iter().filter_map(|route| Some((key_of(route), known_of(route)?))).collect()
});

fn key_of(route: &Route) -> (Option<Role>, &'static str, &'static str) {
    (route.hosts.first().copied(), route.doc.id, route.path)
}

/// Rejects parameters that are not in the route's documentation, and repeated parameters that take
/// one value. With a link, unknown parameters are ignored, because mail programs and social media
/// append parameters to links. So they are on the routes of vendors' APIs.
///
/// # Errors
/// 400; the message suggests a similar known name, or names the repeated parameter.
pub(crate) fn check_query(
    route: &Route,
    request: &Request,
    form: ErrorForm,
    is_by_link: bool,
) -> Result<(), crate::Error> {
    let query = &request.query;
    let is_lenient = is_by_link || vendors::ignores_parameters(route, form, &request.headers);
    // The operator's routes are called only by this program, and pages parse their own parameters.
    let is_page = route.access == Access::Public && route.hosts == [Role::Dashboard];
    if route.access == Access::Local || is_page || is_lenient {
        return Ok(());
    }
    let mut known: Vec<&str> = route.doc.query.iter().map(|param| param.name).collect();
    if route.access == Access::Link {
        known.push(signed_urls::PARAMETER);
    }
    if let Some(name) = query.names().find(|name| !known.contains(name)) {
        return Err(crate::Error::bad_request(spelling::unknown(
            "query parameter",
            name,
            name,
            &known,
        )));
    }
    for param in route.doc.query {
        let message = match param.kind {
            Kind::Texts => continue,
            Kind::ListOf(_) => "separate its values by commas",
            Kind::Text
            | Kind::Uuid
            | Kind::Time
            | Kind::Day
            | Kind::Whole { .. }
            | Kind::OneOf(_) => "it takes one value",
        };
        if query.all(param.name).nth(1).is_some() {
            let message = format!("{} is in the query more than once: {message}", param.name);
            return Err(crate::Error::bad_request(message));
        }
    }
    Ok(())
}

/// Returns whether responses of this route report unknown request fields.
pub(crate) fn names_fields(route: &Route) -> bool {
    KNOWN.contains_key(&key_of(route))
}

/// Returns the check for request bodies on this route; `None` if any field is allowed.
pub(crate) fn check_of(route: &Route, headers: &HeaderMap) -> Option<FieldCheck> {
    let known = KNOWN.get(&key_of(route))?;
    let preferences = headers.get_all(PREFER);
    let mut preferences =
        preferences.iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    // A value may be quoted and followed by parameters (RFC 7240, section 2).
    let is_strict = preferences.any(|one| {
        let preference = one.split(';').next().unwrap_or_default();
        preference.replace([' ', '\t', '"'], "").eq_ignore_ascii_case(STRICT)
    });
    Some(FieldCheck::new(Arc::clone(known), is_strict))
}

/// Adds warnings about the request's unknown fields to its response.
pub(crate) async fn warn(mut answer: Response, check: &FieldCheck) -> Response {
    if check.is_strict() {
        answer.headers_mut().insert(PREFERENCE_APPLIED, HeaderValue::from_static(STRICT));
    }
    let found = check.found();
    if found.is_empty() || !answer.status().is_success() {
        return answer;
    }
    for sentence in &found {
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{sentence}\"")) {
            answer.headers_mut().append(WARNING, value);
        }
    }
    let is_json = answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    let length = answer.body().size_hint().exact().and_then(|length| usize::try_from(length).ok());
    if !is_json || length.is_none_or(|length| length > ANSWER_MAX) {
        return answer;
    }
    let (parts, whole) = answer.into_parts();
    let Ok(whole) = whole.collect().await else {
        return Response::from_parts(parts, body::empty());
    };
    let whole = whole.to_bytes();
    Response::from_parts(parts, body::full(with_warnings(&whole, &found).unwrap_or(whole)))
}

/// Adds the unknown fields of a rejected body to the error, because one of them may be a misspelled
/// required field.
pub(crate) fn explain(error: crate::Error, check: &FieldCheck) -> crate::Error {
    let found = check.found();
    if error.status != StatusCode::BAD_REQUEST || found.is_empty() {
        return error;
    }
    error.with_hint(found.join("; "))
}

/// Returns the object's text with `warnings` appended; `None` if the text is not an object or
/// already has that field.
fn with_warnings(text: &[u8], found: &[String]) -> Option<Bytes> {
    let fields: BTreeMap<String, serde::de::IgnoredAny> = serde_json::from_slice(text).ok()?;
    if fields.contains_key("warnings") {
        return None;
    }
    let mut longer = text.trim_ascii_end().strip_suffix(b"}")?.to_vec();
    if !fields.is_empty() {
        longer.push(b',');
    }
    longer.extend_from_slice(b"\"warnings\":");
    longer.extend_from_slice(&serde_json::to_vec(found).ok()?);
    longer.push(b'}');
    Some(longer.into())
}

/// Returns the top-level field names in the schema of a route's body; `None` if the schema lists no
/// names.
fn known_of(route: &Route) -> Option<Arc<[String]>> {
    // OpenAI clients send fields that are meant for other servers, to which chat passes them on.
    let is_passed_on = route.doc.errors == ErrorForm::OpenAi && route.doc.tag != RESPONSES;
    if route.access == Access::Local || is_passed_on {
        return None;
    }
    let request = route.doc.request.filter(|one| one.media_type == "application/json")?;
    let mut generator = SchemaGenerator::new(SchemaSettings::draft2020_12());
    let schema = (request.schema?)(&mut generator);
    let definitions = generator.take_definitions(true);
    let mut names = BTreeSet::new();
    collect(schema.as_value(), &definitions, &mut names)?;
    if route.access == Access::BodyKey {
        names.insert("api_key".to_owned());
    }
    (!names.is_empty()).then(|| names.into_iter().collect())
}

/// Collects the property names of a schema and its subschemas. Returns `None` if the schema allows
/// any name.
fn collect(
    schema: &Value,
    definitions: &serde_json::Map<String, Value>,
    names: &mut BTreeSet<String>,
) -> Option<()> {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let name = reference.rsplit('/').next()?;
        return collect(definitions.get(name)?, definitions, names);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for part in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
            collect(part, definitions, names)?;
        }
    }
    let others = schema.get("additionalProperties");
    if others.is_some_and(|others| *others != Value::Bool(false)) {
        return None;
    }
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        names.extend(properties.keys().cloned());
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_added_to_objects_only() {
        let found = ["unknown field x".to_owned()];
        let added = |text: &str| {
            with_warnings(text.as_bytes(), &found)
                .map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
        };
        let warnings = r#""warnings":["unknown field x"]}"#;
        assert_eq!(added(r#"{"a":{}}"#), Some(format!(r#"{{"a":{{}},{warnings}"#)));
        assert_eq!(added("{}"), Some(format!("{{{warnings}")));
        for other in ["[{}]", "null", r#"{"warnings":1}"#, "", "{"] {
            assert_eq!(added(other), None, "{other}");
        }
    }

    #[test]
    fn routes_that_create_work_know_their_fields() {
        for (id, field) in [
            ("create_prediction", "webhook_url"),
            ("create_workflow", "definition"),
            ("trigger_workflow", "version_id"),
        ] {
            let mut known = KNOWN.iter().filter(|((_, known, _), _)| *known == id);
            let has = |names: &Arc<[String]>| names.iter().any(|name| name == field);
            assert!(known.any(|(_, names)| has(names)), "{id} does not know {field}");
        }
    }
}
