//! Reads the response of an OpenAI-compatible server until its kind is known: a stream, JSON, an
//! error response, or something else. Shared by the chat router and predictions.
//!
//! Media types are ignored, because many servers send wrong ones. Content codings are decoded,
//! although none is requested.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http_body_util::BodyExt;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::response::Parts;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::failure::{Failure, broken, cut, misunderstood, said_of, too_late};
use super::shape;
use orrery_domain::chat::Operation;
use orrery_domain::classify::ErrorClass;
use orrery_domain::raw_object::RawObject;
use orrery_http::content::{self, BYTE_ORDER_MARK};
use orrery_http::event_stream::{Event, EventReader};
use orrery_http::places::Arriving;
use orrery_http::sse::HEARTBEAT;
use orrery_runtime as runtime;

/// The media type of arbitrary bytes.
const BYTES: &str = "application/octet-stream";
/// Longest event of a stream in bytes: an image is one event.
pub const EVENT_MAX: usize = 16 * 1024 * 1024;
/// Values of `Content-Encoding` that mean no coding, including charsets, which belong in
/// `Content-Type`.
const NO_CODINGS: [&str; 8] =
    ["", "identity", "none", "binary", "utf-8", "utf8", "us-ascii", "iso-8859-1"];
/// Compressed bytes decoded at a time; they expand at most a thousandfold.
const DECODED_AT_ONCE: usize = 4 * 1024;
/// Maximum number of bytes read of an error response, and the timeout for reading it.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// The body of a response with its content coding removed.
#[derive(Debug)]
pub struct Body {
    arriving: Arriving,
    decoder: Option<Box<Decoder>>,
    /// Received bytes that have not been decoded yet.
    coded: Bytes,
    translation: Option<Box<dyn Translate>>,
}

/// Translates the body of a response while it is read.
pub trait Translate: fmt::Debug + Send + Sync {
    /// Returns the translation of the next bytes, as far as it is complete.
    ///
    /// # Errors
    /// A phrase that follows "its answer".
    fn push(&mut self, piece: &[u8]) -> Result<Bytes, String>;

    /// Returns the rest of the translation, at the end of the response.
    ///
    /// # Errors
    /// As [`Translate::push`].
    fn end(&mut self) -> Result<Bytes, String>;
}

/// The error of reading an interrupted body.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error(transparent)]
    Connection(#[from] hyper::Error),
    #[error("its content coding is damaged")]
    Damaged,
    #[error("it {0}")]
    Untranslated(String),
}

/// A streaming decoder of a content coding.
#[derive(Debug)]
enum Decoder {
    Gzip(MultiGzDecoder<Vec<u8>>),
    Zlib(ZlibDecoder<Vec<u8>>),
    /// Deflated data without zlib's header, which some servers send.
    Raw(DeflateDecoder<Vec<u8>>),
    /// Deflated data whose first byte has not arrived yet.
    Deflate,
}

impl Decoder {
    /// Returns the decoder for the response's content coding. Charsets and other names that mean no
    /// coding are ignored.
    ///
    /// # Errors
    /// The name of an unsupported coding.
    fn of(headers: &HeaderMap) -> Result<Option<Self>, String> {
        let codings = headers.get_all(CONTENT_ENCODING).iter();
        let codings = codings.map(|value| String::from_utf8_lossy(value.as_bytes()));
        let names = codings.map(|names| names.to_ascii_lowercase()).collect::<Vec<_>>().join(",");
        let is_coding = |name: &&str| !NO_CODINGS.contains(name);
        let names: Vec<&str> = names.split(',').map(str::trim).filter(is_coding).collect();
        match names.as_slice() {
            [] => Ok(None),
            ["gzip" | "x-gzip"] => Ok(Some(Self::Gzip(MultiGzDecoder::new(Vec::new())))),
            ["deflate"] => Ok(Some(Self::Deflate)),
            _ => Err(cut(&names.join(", "))),
        }
    }

    /// Decodes a piece, together with bytes held back earlier.
    fn decode(&mut self, piece: &[u8]) -> Result<Bytes, BodyError> {
        if let (Self::Deflate, Some(first)) = (&*self, piece.first()) {
            // The low half of zlib's first byte is the compression method, which is 8.
            let is_zlib = first & 0x0f == 8;
            *self = if is_zlib {
                Self::Zlib(ZlibDecoder::new(Vec::new()))
            } else {
                Self::Raw(DeflateDecoder::new(Vec::new()))
            };
        }
        let write = |to: &mut dyn Write| to.write_all(piece).and_then(|()| to.flush());
        let written = match self {
            Self::Gzip(decoder) => write(decoder),
            Self::Zlib(decoder) => write(decoder),
            Self::Raw(decoder) => write(decoder),
            Self::Deflate => Ok(()),
        };
        written.map_err(|_damaged| BodyError::Damaged)?;
        let decoded = match self {
            Self::Gzip(decoder) => std::mem::take(decoder.get_mut()),
            Self::Zlib(decoder) => std::mem::take(decoder.get_mut()),
            Self::Raw(decoder) => std::mem::take(decoder.get_mut()),
            Self::Deflate => Vec::new(),
        };
        Ok(decoded.into())
    }
}

impl Body {
    /// Creates the body of a response with these headers.
    ///
    /// # Errors
    /// [`Failure`] for an unsupported content coding.
    pub fn of(name: &str, headers: &HeaderMap, arriving: Arriving) -> Result<Self, Failure> {
        let decoder = Decoder::of(headers).map_err(|coding| {
            let what = format!("its answer is compressed ({coding}), which was not requested");
            misunderstood(name, &what)
        })?;
        let decoder = decoder.map(Box::new);
        Ok(Self { arriving, decoder, coded: Bytes::new(), translation: None })
    }

    /// Translates the body while it is read.
    #[must_use]
    pub fn translated(self, translation: Box<dyn Translate>) -> Self {
        Self { translation: Some(translation), ..self }
    }

    /// Returns the next bytes, or `None` at the end. Cancel-safe.
    ///
    /// # Errors
    /// Fails if the body is interrupted, or cannot be translated.
    pub async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            let piece = self.next_untranslated().await?;
            let Some(translation) = &mut self.translation else { return Ok(piece) };
            let translated = match &piece {
                Some(piece) => translation.push(piece),
                None => translation.end(),
            };
            let translated = translated.map_err(BodyError::Untranslated)?;
            if piece.is_none() {
                self.translation = None;
            }
            if !translated.is_empty() {
                return Ok(Some(translated));
            }
            if piece.is_none() {
                return Ok(None);
            }
        }
    }

    async fn next_untranslated(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            if let Some(decoder) = &mut self.decoder
                && self.coded.has_remaining()
            {
                let piece = self.coded.split_to(self.coded.len().min(DECODED_AT_ONCE));
                let decoded = decoder.decode(&piece)?;
                if decoded.is_empty() {
                    continue;
                }
                return Ok(Some(decoded));
            }
            let Some(frame) = self.arriving.frame().await else { return Ok(None) };
            let Ok(data) = frame?.into_data() else { continue };
            if self.decoder.is_some() {
                self.coded = data;
            } else if !data.is_empty() {
                return Ok(Some(data));
            }
        }
    }
}

/// Returns whether a response declares itself to be an event stream.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
}

/// Determines from the first bytes whether a response is a stream. Returns the bytes up to the
/// first part of the answer, or the bytes that have arrived by the time at which the client must
/// receive a first sign of progress. Media types are ignored, because many servers send wrong ones.
///
/// # Errors
/// [`Failure`], also if a stream fails before its answer begins.
pub async fn begin(
    name: &str,
    body: &mut Body,
    first_byte: Instant,
    is_declared: bool,
) -> Result<(bool, Option<Bytes>), Failure> {
    let now = runtime::monotonic_now();
    let first_sign = now.checked_add(HEARTBEAT).unwrap_or(now);
    let mut until = if is_declared { first_byte.min(first_sign) } else { first_byte };
    let mut read = BytesMut::new();
    let mut events = EventReader::new(EVENT_MAX);
    loop {
        let piece = match timeout_at(until, body.next()).await {
            Ok(Ok(piece)) => piece,
            Ok(Err(error)) => return Err(broken(name, &format!("its stream broke: {error}"))),
            Err(_elapsed) if read.is_empty() && until == first_byte => {
                return Err(too_late(name));
            }
            Err(_elapsed) => return Ok((true, (!read.is_empty()).then(|| read.freeze()))),
        };
        let is_over = piece.is_none();
        let mut piece = piece.unwrap_or_default();
        if read.is_empty() {
            piece = piece
                .strip_prefix(BYTE_ORDER_MARK)
                .map_or_else(|| piece.clone(), |rest| piece.slice_ref(rest));
        }
        read.extend_from_slice(&piece);
        match read.trim_ascii_start().first() {
            Some(b'{' | b'[') => return Ok((false, Some(read.freeze()))),
            Some(b'<') => return Err(misunderstood(name, "its answer is an HTML or XML page")),
            Some(_) | None => {}
        }
        events.push(&piece);
        let last = |events: &mut EventReader| if is_over { events.rest() } else { None };
        while let Some(event) = events.next_event().ok().flatten().or_else(|| last(&mut events)) {
            if begins_answer(name, &event)? {
                return Ok((true, Some(read.freeze())));
            }
            // From now on, the client waits for a sign of progress.
            until = until.min(first_sign);
        }
        if is_over {
            return Err(broken(name, "its stream ended before the answer began"));
        }
        if read.len() > EVENT_MAX {
            return Ok((true, Some(read.freeze())));
        }
    }
}

/// Returns whether an event begins an answer. An event that reports a failure is an error, because
/// another model can still be tried.
fn begins_answer(name: &str, event: &Event) -> Result<bool, Failure> {
    let data = event.data.as_ref().map(|data| data.trim_ascii()).unwrap_or_default();
    if data.is_empty() {
        return Ok(false);
    }
    if data == b"[DONE]" {
        return Err(misunderstood(name, "its stream has no answer"));
    }
    if event.is_named("error") {
        return Err(shape::failure_in_error_event(data));
    }
    let event = shape::parse(data).ok_or_else(not_json)?;
    match shape::failure_in(&event) {
        Some(failure) => Err(failure),
        None => Ok(shape::has_answer(&event)),
    }
}

/// Returns the failure for a stream with an event that is not JSON.
pub fn not_json() -> Failure {
    let message = "the model's stream contains an event that is not valid JSON";
    Failure::new(502, ErrorClass::ProviderError, message)
}

/// Reads as much of an error response as arrives in time, and converts it with [`refused`].
pub async fn refusal(
    name: &str,
    head: &Parts,
    arriving: Arriving,
    authorization: Option<&HeaderValue>,
) -> Failure {
    let mut read = BytesMut::new();
    let reading = async {
        let Ok(mut body) = Body::of(name, &head.headers, arriving) else { return };
        while let Ok(Some(data)) = body.next().await {
            let room = REFUSAL_BYTES_MAX.saturating_sub(read.len());
            read.extend_from_slice(data.get(..room.min(data.len())).unwrap_or_default());
            if read.len() >= REFUSAL_BYTES_MAX {
                return;
            }
        }
    };
    // After the timeout, use the bytes that have arrived.
    let _ended = tokio::time::timeout(REFUSAL_TIMEOUT, reading).await;
    refused(name, head.status.as_u16(), &head.headers, &read, authorization)
}

/// Converts an error response into a failure. The failure has the status of the response. But if
/// that status is not an error status, or concerns this service's own key or account, the failure
/// has the status 502.
pub fn refused(
    name: &str,
    status: u16,
    headers: &HeaderMap,
    said: &[u8],
    authorization: Option<&HeaderValue>,
) -> Failure {
    let class = ErrorClass::of_http_status(status).unwrap_or(ErrorClass::ProviderError);
    if matches!(status, 401 | 402 | 407) {
        let message =
            format!("the model '{name}': its server rejects this service's credentials ({status})");
        return Failure::new(502, ErrorClass::ProviderAuth, message);
    }
    let text = String::from_utf8_lossy(said);
    let key = authorization.and_then(|value| value.to_str().ok());
    let key = key.map(|value| value.strip_prefix("Bearer ").unwrap_or(value));
    let key = key.filter(|key| !key.is_empty());
    let text = key.map_or_else(|| text.to_string(), |key| text.replace(key, "…"));
    let body: Value = serde_json::from_str(&text).unwrap_or_default();
    let mut failure = match body.get("error") {
        Some(error) if !error.is_null() => said_of(status, error.to_string().as_bytes()),
        Some(_) | None => {
            let said = if text.trim().is_empty() { "nothing more" } else { text.trim() };
            let message = format!("the model '{name}' answered {status}: {}", cut(said));
            Failure::new(status, class, message)
        }
    };
    failure.read_text(&text);
    failure.said.keep_limits(headers);
    if !(400..600).contains(&status) {
        failure.status = 502;
    }
    failure
}

/// Parses a complete response as an object. An error with a success status is a failure, and so is
/// a response without the result of the operation; if `operation` is `None`, any contents are
/// accepted.
///
/// # Errors
/// [`Failure`]
pub fn parse(operation: Option<Operation>, name: &str, text: &[u8]) -> Result<RawObject, Failure> {
    if text.trim_ascii().is_empty() {
        return Err(misunderstood(name, "its answer is empty"));
    }
    let answer: RawObject = serde_json::from_slice(text)
        .map_err(|_other| misunderstood(name, "its answer is not a JSON object"))?;
    let mut may_be_failure = answer.get("error").is_some();
    let is_answer = match operation {
        None => true,
        Some(Operation::Chat | Operation::Completions) => {
            let choices: Vec<RawObject> = answer.value("choices").unwrap_or_default();
            let parts = ["message", "text", "delta"];
            may_be_failure |= choices.iter().any(|choice| {
                let is_error = choice.get("finish_reason") == Some("\"error\"");
                is_error || choice.get("error").is_some()
            });
            choices.iter().any(|choice| parts.iter().any(|part| choice.get(part).is_some()))
        }
        Some(Operation::Embeddings) => {
            answer.value::<Vec<IgnoredAny>>("data").is_some_and(|data| !data.is_empty())
        }
        Some(Operation::Rerank) => {
            let is_list = |name| answer.value::<Vec<IgnoredAny>>(name).is_some();
            is_list("results") || is_list("data")
        }
        Some(Operation::Transcriptions | Operation::Translations) => {
            answer.value::<Cow<'_, str>>("text").is_some()
        }
        Some(Operation::Images | Operation::ImageEdits) => {
            let images: Vec<RawObject> = answer.value("data").unwrap_or_default();
            let is_image = |image: &RawObject| {
                let is_text =
                    |name| image.value::<Cow<'_, str>>(name).is_some_and(|it| !it.is_empty());
                is_text("b64_json") || is_text("url")
            };
            !images.is_empty() && images.iter().all(is_image)
        }
        // Its answers are bytes.
        Some(Operation::Speech) => false,
    };
    if is_answer && !may_be_failure {
        return Ok(answer);
    }
    let said = serde_json::from_slice(text).ok().and_then(|answer| shape::failure_in(&answer));
    match said {
        Some(failure) => Err(failure),
        None if is_answer => Ok(answer),
        None => Err(misunderstood(name, "its answer has none of the requested content")),
    }
}

/// Checks the start of a response that should be audio, and returns its media type.
///
/// # Errors
/// [`Failure`] for an empty response, for JSON, which is the server's error, and for text.
pub fn audio_type(name: &str, headers: &HeaderMap, start: &[u8]) -> Result<String, Failure> {
    if start.is_empty() {
        return Err(misunderstood(name, "its answer is empty"));
    }
    let declared = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let declared = declared.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_audio = declared.starts_with("audio/");
    // No container of audio begins with these bytes, but raw samples may.
    let is_text = !is_audio && matches!(start.trim_ascii_start().first(), Some(b'{' | b'[' | b'<'));
    if is_text || declared.starts_with("text/") || declared.ends_with("json") {
        let said = serde_json::from_slice(start).ok().and_then(|said| shape::failure_in(&said));
        let otherwise = || misunderstood(name, "its answer is text, not audio");
        return Err(said.unwrap_or_else(otherwise));
    }
    Ok(if is_audio { declared } else { BYTES.to_owned() })
}

/// Returns the text of a complete response, in UTF-8 and without a byte-order mark.
///
/// # Errors
/// [`Failure`] for an unsupported charset, and for text that is not valid in its charset.
pub fn utf8(name: &str, headers: &HeaderMap, body: Bytes) -> Result<Bytes, Failure> {
    let text = content::text(headers, &body);
    let text = text.map_err(|error| misunderstood(name, &format!("in its answer, {error}")))?;
    Ok(match text {
        Cow::Borrowed(text) => body.slice_ref(text.as_bytes()),
        Cow::Owned(text) => text.into(),
    })
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
