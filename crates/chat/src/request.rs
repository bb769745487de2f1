//! Parses a request: validates the fields that the router depends on, and forwards the others.
//!
//! Fields that the types of `wire::chat` do not name are forwarded unchanged. An invalid value of a
//! named field is rejected, with the name of the field, before any model is called.

use bytes::Bytes;
use hyper::header::HeaderValue;
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};

use orrery_domain::chat::Operation;
use orrery_domain::invalid_request::InvalidRequest;
use orrery_domain::raw_object::RawObject;
use orrery_domain::token_bound::TokenBound;
use orrery_runners::openai::stream_options::StreamOptions;
use orrery_wire::chat::{ANSWERS_MAX, CompletionRequest, EmbeddingsRequest};
use orrery_wire::completions::{CompletionRequest as TextRequest, Document, RerankRequest};
use orrery_wire::request::{Mismatch, has_field, read};

/// The option that requests the usage at the end of a stream.
const INCLUDE_USAGE: &str = "include_usage";
/// The fields that determine only whether and how an answer is streamed.
const STREAMING: [&str; 2] = ["stream", "stream_options"];
/// The path of OpenAI's Responses API under the `/v1` of a server.
const RESPONSES: &str = "/responses";
/// The path of Anthropic's Messages API under the `/v1` of a server.
const MESSAGES: &str = "/messages";

/// The format of a request and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// OpenAI's, for the operation.
    Chat,
    /// That of OpenAI's Responses API, which only an upstream reads.
    Responses,
    /// That of Anthropic's Messages API, which only an upstream reads.
    Messages,
}

/// The headers of a request in the format of Anthropic's Messages API.
#[derive(Debug, Clone, Default)]
pub struct MessageHeaders {
    /// `anthropic-beta`
    pub beta: Option<HeaderValue>,
    /// The ID of the request, for errors.
    pub request_id: String,
}

/// A valid request.
#[derive(Debug)]
pub(crate) struct Request {
    pub operation: Operation,
    /// The format of the request and its answer.
    pub form: Form,
    /// The model id, exactly as the client sent it.
    pub model: String,
    /// The ids to try after `model`, in order.
    pub models: Vec<String>,
    /// The fallback chain that the request names.
    pub selector: Option<String>,
    pub is_stream: bool,
    /// Whether the client wants the usage at the end of a stream.
    pub wants_usage: bool,
    /// The limit on the request's tokens.
    pub bound: TokenBound,
    /// Whether the answers begin with their prompts.
    pub echoes: bool,
    /// What a request in the format of Anthropic's Messages API has beside its body.
    pub beside: MessageHeaders,
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
            Operation::Completions => Self::of_completions(fields),
            Operation::Rerank => Self::of_rerank(fields),
            Operation::Transcriptions
            | Operation::Translations
            | Operation::Speech
            | Operation::Images
            | Operation::ImageEdits => {
                let words = operation.words();
                Err(InvalidRequest::whole(format!("{words} cannot be requested here")))
            }
        }
    }

    /// Parses a request in the format of OpenAI's Responses API. The upstream checks its fields.
    ///
    /// # Errors
    /// [`InvalidRequest`], which names the field.
    pub(crate) fn read_response(body: &[u8]) -> Result<Self, InvalidRequest> {
        let fields: RawObject =
            serde_json::from_slice(body).map_err(|error| InvalidRequest::body(body, &error))?;
        let model: Option<String> = fields.value("model");
        let missing = || InvalidRequest::field("model", "model must be the ID of a model");
        Ok(Self {
            operation: Operation::Chat,
            form: Form::Responses,
            model: model.ok_or_else(missing)?,
            models: Vec::new(),
            selector: None,
            is_stream: fields.value("stream").unwrap_or(false),
            wants_usage: true,
            bound: TokenBound::of_response(&fields),
            echoes: false,
            beside: MessageHeaders::default(),
            fields,
        })
    }

    /// Parses a request in the format of Anthropic's Messages API with these headers. The upstream
    /// checks its fields.
    ///
    /// # Errors
    /// [`InvalidRequest`], which names the field.
    pub(crate) fn read_message(
        body: &[u8],
        beside: MessageHeaders,
    ) -> Result<Self, InvalidRequest> {
        let fields: RawObject =
            serde_json::from_slice(body).map_err(|error| InvalidRequest::body(body, &error))?;
        let bound = TokenBound::of(&fields);
        Ok(Self { form: Form::Messages, bound, beside, ..Self::read_response(body)? })
    }

    /// Returns the path under the `/v1` of the model's server.
    pub(crate) const fn path(&self) -> &'static str {
        match self.form {
            Form::Chat => self.operation.path(),
            Form::Responses => RESPONSES,
            Form::Messages => MESSAGES,
        }
    }

    fn of_chat(mut fields: RawObject) -> Result<Self, InvalidRequest> {
        // Clients may send only the chain.
        if fields.get("model").is_none()
            && let Some(models) = fields.value::<Vec<String>>("models")
            && let Some(first) = models.first()
        {
            let set = fields.set("model", first);
            set.map_err(|error| InvalidRequest::field("models", error.to_string()))?;
        }
        let known: CompletionRequest = known_fields(&fields)?;
        fields.remove("fallback_selector");
        fields.remove("models");
        let mut models: Vec<String> = Vec::new();
        for id in known.models.into_iter().flatten() {
            if id != known.model && !models.contains(&id) {
                models.push(id);
            }
        }
        remove_no_limit("max_tokens", known.max_tokens, &mut fields);
        remove_no_limit("max_completion_tokens", known.max_completion_tokens, &mut fields);
        Ok(Self {
            operation: Operation::Chat,
            form: Form::Chat,
            model: known.model,
            models,
            is_stream: known.writing.stream.unwrap_or(false),
            wants_usage: known.writing.wants_usage(),
            selector: known.writing.selector(),
            bound: TokenBound::of(&fields),
            echoes: false,
            beside: MessageHeaders::default(),
            fields,
        })
    }

    fn of_completions(mut fields: RawObject) -> Result<Self, InvalidRequest> {
        let known: TextRequest = known_fields(&fields)?;
        fields.remove("fallback_selector");
        remove_no_limit("max_tokens", known.max_tokens, &mut fields);
        let prompts = known.prompt.count() as u64;
        let answers = known.n.max(known.best_of).unwrap_or(1).saturating_mul(prompts);
        if answers > ANSWERS_MAX {
            let message = format!(
                "n or best_of, times the number of prompts, may be at most {ANSWERS_MAX}, not {answers}"
            );
            return Err(InvalidRequest::field("n", message));
        }
        Ok(Self {
            operation: Operation::Completions,
            form: Form::Chat,
            model: known.model,
            models: Vec::new(),
            is_stream: known.writing.stream.unwrap_or(false),
            wants_usage: known.writing.wants_usage(),
            selector: known.writing.selector(),
            bound: TokenBound::of(&fields).for_prompts(prompts),
            echoes: known.echo.unwrap_or(false),
            beside: MessageHeaders::default(),
            fields,
        })
    }

    fn of_rerank(mut fields: RawObject) -> Result<Self, InvalidRequest> {
        let known: RerankRequest = known_fields(&fields)?;
        fields.remove("fallback_selector");
        let documents: Vec<String> = known.documents.into_iter().map(Document::into_text).collect();
        // Every server takes texts, and some take nothing else.
        let set = fields.set("documents", &documents);
        set.map_err(|error| InvalidRequest::field("documents", error.to_string()))?;
        let count = documents.len() as u64;
        let bound = TokenBound::of(&fields).for_prompts(count).without_answer();
        Ok(Self {
            operation: Operation::Rerank,
            form: Form::Chat,
            model: known.model,
            models: Vec::new(),
            selector: known.fallback_selector.filter(|name| !name.is_empty()),
            is_stream: false,
            wants_usage: false,
            // The model reads the query with each document.
            bound: bound.repeating(known.query.len() as u64, count.saturating_sub(1)),
            echoes: false,
            beside: MessageHeaders::default(),
            fields,
        })
    }

    /// Returns what a rerank request asks for.
    #[must_use]
    pub(crate) fn rerank(&self) -> Rerank {
        let documents: Vec<IgnoredAny> = self.fields.value("documents").unwrap_or_default();
        let top_n: Option<u32> = self.fields.value("top_n");
        Rerank {
            documents: documents.len(),
            top_n: top_n.and_then(|top_n| usize::try_from(top_n).ok()).unwrap_or(usize::MAX),
            returns_documents: self.fields.value("return_documents").unwrap_or(false),
        }
    }

    /// Returns the documents of a rerank request.
    #[must_use]
    pub(crate) fn documents(&self) -> Vec<String> {
        self.fields.value("documents").unwrap_or_default()
    }

    fn of_embeddings(mut fields: RawObject) -> Result<Self, InvalidRequest> {
        let known: EmbeddingsRequest = known_fields(&fields)?;
        let inputs = known.input.count() as u64;
        fields.remove("fallback_selector");
        Ok(Self {
            operation: Operation::Embeddings,
            form: Form::Chat,
            model: known.model,
            models: Vec::new(),
            selector: known.fallback_selector.filter(|name| !name.is_empty()),
            is_stream: false,
            wants_usage: false,
            bound: TokenBound::of(&fields).for_prompts(inputs).without_answer(),
            echoes: false,
            beside: MessageHeaders::default(),
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
        if self.operation == Operation::Rerank {
            // The answer gets the documents of the request.
            body.remove("return_documents");
        }
        if options == StreamOptions::Omitted {
            body.remove("stream_options");
        } else if self.is_stream && self.form == Form::Chat {
            let mut own: RawObject = body.value("stream_options").unwrap_or_default();
            own.retain(|name| options == StreamOptions::AsSent || name == INCLUDE_USAGE);
            own.set(INCLUDE_USAGE, &true)?;
            body.set("stream_options", &own)?;
        }
        Ok(body.text()?.into())
    }

    /// Returns JSON that is the same for equal requests, whether or not they want a stream; `None`
    /// if equal requests may get different answers.
    #[must_use]
    pub(crate) fn repeatable(&self) -> Option<Vec<u8>> {
        let is_fixed = || self.fields.get("seed").is_some();
        let is_greedy = || self.fields.value("temperature") == Some(0.0);
        if self.form != Form::Chat || (self.operation.writes_text() && !is_greedy() && !is_fixed())
        {
            return None;
        }
        let fields = self.fields.fields().filter(|(name, _)| !STREAMING.contains(name));
        let mut fields: Vec<(&str, &str)> = fields.collect();
        fields.sort_unstable();
        serde_json::to_vec(&fields).ok()
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

/// What a rerank request asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rerank {
    /// The number of documents.
    pub documents: usize,
    /// The maximum number of results.
    pub top_n: usize,
    pub returns_documents: bool,
}

/// Removes a limit of -1, by which some clients mean "no limit", and which some servers reject.
fn remove_no_limit(name: &str, limit: Option<i64>, fields: &mut RawObject) {
    if limit == Some(-1) {
        fields.remove(name);
    }
}

/// Reads the fields that the type names; the others are forwarded unparsed.
pub(crate) fn known_fields<T: DeserializeOwned + JsonSchema + 'static>(
    fields: &RawObject,
) -> Result<T, InvalidRequest> {
    let mut known = Map::new();
    let is_known = has_field::<T>();
    for name in fields.names().filter(|name| is_known(name)) {
        let Some(text) = fields.get(name) else { continue };
        let value: Value = serde_json::from_str(text).map_err(|error| {
            InvalidRequest::field(name.to_owned(), format!("{name} cannot be read: {error}"))
        })?;
        known.insert(name.to_owned(), value);
    }
    read(Value::Object(known)).map_err(Mismatch::of_field)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
