//! Complete answers: whether they are what the client asked for, what they used, and the form in
//! which the client gets them.

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::Failure;
use super::length::of_subtitles;
use super::request::{Asked, Request, Wanted};
use crate::relay::event_of;
use orrery_domain::chat::Operation;
use orrery_domain::classify::ErrorClass;
use orrery_domain::money::Usd;
use orrery_domain::raw_object::RawObject;
use orrery_http::content;
use orrery_records::files::{self, Files, Origin};
use orrery_runners::openai::answer;
use orrery_runners::openai::failure::misunderstood;
use orrery_runners::openai::shape::{self, Counts};
use orrery_wire::media::{ImageFormat, TranscriptFormat};

/// What a model reports about its answer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Measured {
    pub counts: Counts,
    /// The length of the audio.
    pub seconds: Option<f64>,
    pub images: u64,
    /// Bytes of text in the answer.
    pub bytes: u64,
}

impl Measured {
    /// Adds the usage in an object.
    pub(super) fn add(&mut self, object: &Map<String, Value>) {
        if let Some(counts) = object.get("usage").and_then(|usage| {
            shape::counts_in(&Map::from_iter([("usage".to_owned(), usage.clone())]))
        }) {
            self.counts.update(counts);
        }
        let in_usage = object.get("usage").and_then(|usage| usage.get("seconds"));
        let seconds = object.get("duration").or(in_usage);
        let seconds = seconds.and_then(|seconds| {
            seconds.as_f64().or_else(|| seconds.as_str().and_then(|text| text.parse().ok()))
        });
        self.seconds = seconds.or(self.seconds);
    }
}

/// A complete answer.
#[derive(Debug)]
pub(super) enum Complete {
    Object(RawObject),
    Text(Bytes),
}

/// Checks an answer that is not streamed.
///
/// # Errors
/// [`Failure`] if it is not what was asked for.
pub(super) fn check(
    request: Want,
    asked: Asked,
    name: &str,
    text: &Bytes,
) -> Result<(Complete, Measured), Failure> {
    let Want { operation, wanted } = request;
    let in_json = |format: TranscriptFormat| {
        use TranscriptFormat as F;
        asked == Asked::Verbose || matches!(format, F::Json | F::VerboseJson | F::DiarizedJson)
    };
    match wanted {
        Wanted::Transcript(format) if !in_json(format) => return of_text(name, format, text),
        Wanted::Transcript(_) | Wanted::Speech | Wanted::Images(_) => {}
    }
    let unread = |error: content::Error| misunderstood(name, &format!("its answer: {error}"));
    content::check_values(text).map_err(unread)?;
    let answer = answer::parse(Some(operation), name, text)?;
    let mut measured = Measured::default();
    let small = ["usage", "duration"]
        .into_iter()
        .filter_map(|field| Some((field.to_owned(), answer.value::<Value>(field)?)));
    measured.add(&small.collect());
    if let Wanted::Transcript(format) = wanted {
        let said: String = answer.value("text").unwrap_or_default();
        measured.bytes = said.len() as u64;
        if asked == Asked::Verbose {
            return Ok((shortened(name, format, said, measured)?, measured));
        }
    } else {
        measured.images =
            answer.value::<Vec<&RawValue>>("data").map_or(0, |data| data.len() as u64);
    }
    Ok((Complete::Object(answer), measured))
}

/// The part of a request on which its answer depends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Want {
    pub operation: Operation,
    pub wanted: Wanted,
}

impl From<&Request> for Want {
    fn from(request: &Request) -> Self {
        Self { operation: request.operation, wanted: request.wanted }
    }
}

/// Returns the `json` or the `text` of a verbose transcript.
fn shortened(
    name: &str,
    format: TranscriptFormat,
    mut said: String,
    measured: Measured,
) -> Result<Complete, Failure> {
    if format == TranscriptFormat::Text {
        said.push('\n');
        return Ok(Complete::Text(said.into()));
    }
    let mut short = RawObject::default();
    let mut set = short.set("text", &said);
    if let Some(seconds) = measured.seconds {
        let usage = json!({"type": "duration", "seconds": seconds.ceil()});
        set = set.and_then(|()| short.set("usage", &usage));
    }
    set.map_err(|error| unwritable(name, &error))?;
    Ok(Complete::Object(short))
}

/// Checks a transcript as text or subtitles.
fn of_text(
    name: &str,
    format: TranscriptFormat,
    text: &Bytes,
) -> Result<(Complete, Measured), Failure> {
    let trimmed = text.trim_ascii();
    if text.is_empty() {
        return Err(misunderstood(name, "its answer is empty"));
    }
    let start = String::from_utf8_lossy(trimmed.get(..15).unwrap_or(trimmed)).to_ascii_lowercase();
    if start.starts_with("<!doctype") || start.starts_with("<html") || start.starts_with("<?xml") {
        return Err(misunderstood(name, "its answer is an HTML or XML page"));
    }
    if trimmed.starts_with(b"{")
        && let Ok(object) = serde_json::from_slice::<Map<String, Value>>(trimmed)
    {
        let said = object.get("text").and_then(Value::as_str);
        let (Some(said), TranscriptFormat::Text) = (said, format) else {
            let failure = shape::failure_in(&Value::Object(object));
            let otherwise = || misunderstood(name, "its answer is not in the requested format");
            return Err(failure.unwrap_or_else(otherwise));
        };
        let mut measured = Measured { bytes: said.len() as u64, ..Measured::default() };
        measured.add(&object);
        return Ok((Complete::Text(format!("{said}\n").into()), measured));
    }
    let words = String::from_utf8_lossy(text);
    let is_subtitles = format != TranscriptFormat::Text;
    let is_expected = match format {
        TranscriptFormat::Vtt => words.trim_start().starts_with("WEBVTT"),
        TranscriptFormat::Srt => trimmed.is_empty() || words.contains("-->"),
        TranscriptFormat::Text
        | TranscriptFormat::Json
        | TranscriptFormat::VerboseJson
        | TranscriptFormat::DiarizedJson => true,
    };
    if !is_expected {
        return Err(misunderstood(name, "its answer is not in the requested format"));
    }
    let seconds = if is_subtitles { of_subtitles(&words) } else { None };
    let measured = Measured { seconds, bytes: text.len() as u64, ..Measured::default() };
    Ok((Complete::Text(text.clone()), measured))
}

/// Converts an answer into the events of a stream, for servers that ignore `stream`.
pub(super) fn events_of(want: Want, name: &str, answer: &RawObject) -> Result<Bytes, Failure> {
    let event = |event: &Value| event_of(event.to_string().as_bytes());
    if let Wanted::Transcript(_) = want.wanted {
        let said: String = answer.value("text").unwrap_or_default();
        let usage: Option<Value> = answer.value("usage");
        let delta = event(&json!({"type": "transcript.text.delta", "delta": said}));
        let mut done = json!({"type": "transcript.text.done", "text": said});
        if let (Some(usage), Some(done)) = (usage, done.as_object_mut()) {
            done.insert("usage".to_owned(), usage);
        }
        return Ok([delta, event(&done)].concat().into());
    }
    let of_edit = want.operation == Operation::ImageEdits;
    let kind = if of_edit { "image_edit.completed" } else { "image_generation.completed" };
    let mut events = Vec::new();
    for mut image in answer.value::<Vec<RawObject>>("data").unwrap_or_default() {
        let text = image.set("type", kind).and_then(|()| image.text());
        events.extend_from_slice(&event_of(&text.map_err(|error| unwritable(name, &error))?));
    }
    Ok(events.into())
}

/// Gives the images of an answer the form that the client wants. Bytes become files of the
/// organization in `origin`.
///
/// # Errors
/// [`Failure`] if an image is invalid or cannot be stored.
pub(super) async fn with_images(
    name: &str,
    answer: &mut RawObject,
    format: Option<ImageFormat>,
    files: &Files,
    origin: Origin<'_>,
) -> Result<(), Failure> {
    let mut images: Vec<RawObject> = answer.value("data").unwrap_or_default();
    match format {
        None => return Ok(()),
        Some(ImageFormat::B64Json) => {
            if images.iter().all(|image| image.get("b64_json").is_some()) {
                return Ok(());
            }
            return Err(misunderstood(name, "its answer has URLs instead of the requested bytes"));
        }
        Some(ImageFormat::Url) => {}
    }
    for (index, image) in images.iter_mut().enumerate() {
        let url: Option<String> = image.value("url");
        let encoded: Option<String> = image.value("b64_json");
        image.remove("b64_json");
        let uri = encoded.map(|encoded| format!("data:{};base64,{encoded}", type_of(&encoded)));
        let attempt_key = format!("image {index}");
        let origin = Origin { attempt_key: &attempt_key, ..origin };
        let given = Value::from(uri.or(url).unwrap_or_default());
        let kept = files.keep_artefacts(origin, given, None).await;
        let kept = kept.map_err(|error| unkept(name, &error))?;
        image.set("url", &kept).map_err(|error| unwritable(name, &error))?;
    }
    let written = serde_json::value::to_raw_value(&images);
    let written = written.map_err(|error| unwritable(name, &error))?;
    // The links get the host of this service.
    let rendered = files.render_links(origin.organization, written);
    answer.set("data", &rendered).map_err(|error| unwritable(name, &error))
}

fn unkept(name: &str, error: &files::Error) -> Failure {
    match error {
        files::Error::Invalid(_) | files::Error::TooLarge { .. } => {
            misunderstood(name, &format!("its image cannot be stored: {error}"))
        }
        files::Error::Damaged(_) | files::Error::Disk(_) | files::Error::Storage(_) => {
            tracing::error!(%error, "failed to store an image");
            Failure::new(503, ErrorClass::InternalError, "the image cannot be stored")
        }
    }
}

/// Returns the media type of an image by the start of its base64.
fn type_of(encoded: &str) -> &'static str {
    let starts = [
        ("/9j/", "image/jpeg"),
        ("UklGR", "image/webp"),
        ("R0lGOD", "image/gif"),
        ("iVBORw0KGgo", "image/png"),
    ];
    let found = starts.into_iter().find(|(start, _)| encoded.starts_with(start));
    found.map_or("image/png", |(_, kind)| kind)
}

/// Adds the cost to the `usage` of an answer.
pub(super) fn with_cost(
    name: &str,
    want: Want,
    answer: &mut RawObject,
    audio_ms: Option<u64>,
    cost: Usd,
) -> Result<Bytes, Failure> {
    let usage = answer.value::<Map<String, Value>>("usage");
    let mut usage = usage.unwrap_or_else(|| match want.wanted {
        // Clients expect one of the forms of OpenAI's usage.
        Wanted::Transcript(_) => {
            let seconds = audio_ms.unwrap_or(0).div_ceil(1000);
            Map::from_iter([
                ("type".to_owned(), "duration".into()),
                ("seconds".to_owned(), seconds.into()),
            ])
        }
        Wanted::Images(_) | Wanted::Speech => {
            let counts = ["input_tokens", "output_tokens", "total_tokens"];
            let details = json!({"image_tokens": 0, "text_tokens": 0});
            let mut usage = Map::from_iter(counts.map(|name| (name.to_owned(), 0.into())));
            usage.insert("input_tokens_details".to_owned(), details);
            usage
        }
    });
    usage.insert("cost".to_owned(), cost.dollars().into());
    let text = answer.set("usage", &usage).and_then(|()| answer.text());
    Ok(text.map_err(|error| unwritable(name, &error))?.into())
}

fn unwritable(name: &str, error: &serde_json::Error) -> Failure {
    misunderstood(name, &format!("its answer cannot be written: {error}"))
}
