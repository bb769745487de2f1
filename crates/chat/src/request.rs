//! Parses a request: validates the fields that the router depends on, and forwards the others.
//!
//! Fields that the types of `wire::chat` do not name are forwarded unchanged. An invalid value of a
//! named field is rejected, with the name of the field, before any model is called.

use bytes::Bytes;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use orrery_domain::chat::Operation;
use orrery_domain::invalid_request::InvalidRequest;
use orrery_domain::raw_object::RawObject;
use orrery_domain::token_bound::TokenBound;
use orrery_runners::openai::stream_options::StreamOptions;
use orrery_wire::chat::{CompletionRequest, EmbeddingsRequest};
use orrery_wire::request::{Mismatch, field_names, read};

/// The option that requests the usage at the end of a stream.
const INCLUDE_USAGE: &str = "include_usage";

/// A valid request.
#[derive(Debug)]
pub(crate) struct Request {
    pub operation: Operation,
    /// The model id, exactly as the client sent it.
    pub model: String,
    /// The fallback chain that the request names.
    pub selector: Option<String>,
    pub is_stream: bool,
    /// Whether the client wants the usage at the end of a stream.
    pub wants_usage: bool,
    /// The limit on the request's tokens.
    pub bound: TokenBound,
    fields: RawObject,
}

impl Request {
    /// Parses and validates a body.
    ///
    /// # Errors
    /// [`InvalidRequest`], which names the field.
    pub(crate) fn read(operation: Operation, body: &[u8]) -> Result<Self, InvalidRequest> {
        let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
        let fields: RawObject =
            serde_json::from_slice(body).map_err(|error| InvalidRequest::body(body, &error))?;
        match operation {
            Operation::Chat => Self::of_chat(fields),
            Operation::Embeddings => Self::of_embeddings(fields),
        }
    }

    fn of_chat(mut fields: RawObject) -> Result<Self, InvalidRequest> {
        let known: CompletionRequest = known_fields(&fields)?;
        fields.remove("fallback_selector");
        // Some clients send -1 to mean "no limit", which some servers reject.
        let limits = [
            ("max_tokens", known.max_tokens),
            ("max_completion_tokens", known.max_completion_tokens),
        ];
        for (name, limit) in limits {
            if limit == Some(-1) {
                fields.remove(name);
            }
        }
        Ok(Self {
            operation: Operation::Chat,
            model: known.model,
            selector: known.fallback_selector.filter(|name| !name.is_empty()),
            is_stream: known.stream.unwrap_or(false),
            wants_usage: known.stream_options.and_then(|one| one.include_usage).unwrap_or(false),
            bound: TokenBound::of(&fields),
            fields,
        })
    }

    fn of_embeddings(mut fields: RawObject) -> Result<Self, InvalidRequest> {
        let known: EmbeddingsRequest = known_fields(&fields)?;
        fields.remove("fallback_selector");
        Ok(Self {
            operation: Operation::Embeddings,
            model: known.model,
            selector: known.fallback_selector.filter(|name| !name.is_empty()),
            is_stream: false,
            wants_usage: false,
            bound: TokenBound::of(&fields).without_answer(),
            fields,
        })
    }

    /// Returns the request that a fallback chain's mapping builds from these fields; `None` if that
    /// request is invalid.
    #[must_use]
    pub(crate) fn mapped(&self, fields: &Map<String, Value>) -> Option<Self> {
        let mut body = self.fields.clone();
        let kept = ["model", "stream", "stream_options"];
        let stays = |name: &str| kept.contains(&name);
        body.retain(stays);
        for (name, value) in fields.iter().filter(|(name, _)| !stays(name)) {
            body.set(name, value).ok()?;
        }
        Self::read(self.operation, &body.text().ok()?).ok()
    }

    /// Returns the body to send to a model. `model` is the server's name for the model; with
    /// `None`, the client's name is used. A stream is requested with its usage, unless the server
    /// rejects `stream_options`.
    ///
    /// # Errors
    /// Returns an error if the body cannot be serialized.
    pub(crate) fn body(
        &self,
        model: Option<&str>,
        options: StreamOptions,
    ) -> Result<Bytes, serde_json::Error> {
        let mut body = self.fields.clone();
        if let Some(model) = model {
            body.set("model", model)?;
        }
        if options == StreamOptions::Omitted {
            body.remove("stream_options");
        } else if self.is_stream {
            let mut own: RawObject = body.value("stream_options").unwrap_or_default();
            own.retain(|name| options == StreamOptions::AsSent || name == INCLUDE_USAGE);
            own.set(INCLUDE_USAGE, &true)?;
            body.set("stream_options", &own)?;
        }
        Ok(body.text()?.into())
    }

    /// Returns whether the client set any of the `stream_options` other than the option that the
    /// router sets.
    #[must_use]
    pub(crate) fn has_own_stream_options(&self) -> bool {
        let options: Option<RawObject> = self.fields.value("stream_options");
        options.is_some_and(|options| options.names().any(|name| name != INCLUDE_USAGE))
    }

    /// Returns the request as a JSON value for a fallback chain's mapping.
    ///
    /// # Errors
    /// Returns an error if the request is nested too deeply.
    pub(crate) fn value(&self) -> Result<Value, serde_json::Error> {
        serde_json::from_slice(&self.fields.text()?)
    }
}

/// Reads the fields that the type names; the others are forwarded unparsed.
fn known_fields<T: DeserializeOwned + JsonSchema + 'static>(
    fields: &RawObject,
) -> Result<T, InvalidRequest> {
    let mut known = Map::new();
    for name in field_names::<T>() {
        let Some(text) = fields.get(&name) else { continue };
        let value: Value = serde_json::from_str(text).map_err(|error| {
            InvalidRequest::field(name.clone(), format!("{name} cannot be read: {error}"))
        })?;
        known.insert(name, value);
    }
    read(Value::Object(known)).map_err(Mismatch::of_field)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
