//! A valid request for audio or images: the fields that the router reads, the request's bound, and
//! the bodies to send.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value};

use super::form::Form;
use super::length::{HEAD, Length};
use super::{Error, Failure, Input};
use crate::request::known_fields;
use crate::upstream::Content;
use orrery_domain::chat::{Media, Operation, Tokens, estimate};
use orrery_domain::classify::ErrorClass;
use orrery_domain::ids::ExecutionId;
use orrery_domain::invalid_request::InvalidRequest;
use orrery_domain::raw_object::RawObject;
use orrery_wire::media::{
    ImageEditForm, ImageFormat, ImageRequest, SpeechRequest, SpeechStream, TranscriptFormat,
    TranscriptionForm, TranslationForm,
};
use orrery_wire::request::{Mismatch, read};

/// Upper bounds of tokens, for models whose tokens have a price: per second of audio that a model
/// hears and of text that it writes about the audio, per character that it reads aloud, per image
/// that it sees or makes, and for the rest of an answer.
const HEARD_PER_SECOND: u64 = 50;
const WRITTEN_PER_SECOND: u64 = 10;
const SPOKEN_PER_CHARACTER: u64 = 20;
const PER_IMAGE: u64 = 16_384;
const BESIDE: u64 = 1024;

/// The fields of forms that are numbers or flags in the types of `wire::media`.
const NUMBERS: [&str; 2] = ["temperature", "n"];
const FLAGS: [&str; 1] = ["stream"];
/// The field whose value the answer of a model's server depends on.
const FORMAT: &str = "response_format";

/// What the client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Transcript(TranscriptFormat),
    /// Audio, or server-sent events.
    Speech,
    Images(Option<ImageFormat>),
}

/// A valid request.
#[derive(Debug)]
pub(super) struct Request {
    pub operation: Operation,
    /// The model id, exactly as the client sent it.
    pub model: String,
    /// Whether the client wants server-sent events.
    pub is_stream: bool,
    pub wanted: Wanted,
    /// The length of the audio to transcribe.
    pub length: Option<Length>,
    /// The maximum usage.
    pub most: Media,
    pub tokens: Tokens,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Json(RawObject),
    Form(Form),
}

/// The `response_format` that a model's server is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// As the client sent it.
    AsSent,
    /// A transcript with the length of the audio.
    Verbose,
    /// Images as bytes.
    Bytes,
    /// No format, for servers that know only one.
    Omitted,
}

impl Request {
    /// Validates a request.
    ///
    /// # Errors
    /// [`Error::Invalid`], which names the field; [`Error::Files`] if a file cannot be read.
    pub(super) async fn read(operation: Operation, input: Input) -> Result<Self, Error> {
        match input {
            Input::Json(body) => {
                let body =
                    if body.trim_ascii().is_empty() { Bytes::from_static(b"{}") } else { body };
                let fields: RawObject = serde_json::from_slice(&body)
                    .map_err(|error| InvalidRequest::body(&body, &error))?;
                let is_speech = operation == Operation::Speech;
                Ok(if is_speech { Self::of_speech(fields)? } else { Self::of_images(fields)? })
            }
            Input::Form(form) if operation == Operation::ImageEdits => Ok(Self::of_edit(form)?),
            Input::Form(form) => Self::of_audio(operation, form).await,
        }
    }

    fn of_speech(fields: RawObject) -> Result<Self, InvalidRequest> {
        let known: SpeechRequest = known_fields(&fields)?;
        let characters = known.input.chars().count() as u64;
        let bytes = known.input.len() + known.instructions.map_or(0, |text| text.len());
        let output = characters.saturating_mul(SPOKEN_PER_CHARACTER).saturating_add(BESIDE);
        Ok(Self {
            operation: Operation::Speech,
            model: known.model,
            is_stream: known.stream_format == Some(SpeechStream::Sse),
            wanted: Wanted::Speech,
            length: None,
            most: Media { characters: Some(characters), ..Media::default() },
            tokens: Tokens::estimated(bytes as u64, output),
            body: Body::Json(fields),
        })
    }

    fn of_images(fields: RawObject) -> Result<Self, InvalidRequest> {
        let known: ImageRequest = known_fields(&fields)?;
        let images = known.n.unwrap_or(1);
        Ok(Self {
            operation: Operation::Images,
            model: known.model,
            is_stream: known.stream.unwrap_or(false),
            wanted: Wanted::Images(known.response_format),
            length: None,
            most: Media { images: Some(images), ..Media::default() },
            tokens: of_images(&known.prompt, 0, images),
            body: Body::Json(fields),
        })
    }

    fn of_edit(form: Form) -> Result<Self, InvalidRequest> {
        let seen = form.files.iter().filter(|file| file.name != "mask").count() as u64;
        if seen == 0 {
            return Err(InvalidRequest::missing("image"));
        }
        let known: ImageEditForm = known_in(&form, "mask")?;
        let images = known.n.unwrap_or(1);
        Ok(Self {
            operation: Operation::ImageEdits,
            model: known.model,
            is_stream: known.stream.unwrap_or(false),
            wanted: Wanted::Images(known.response_format),
            length: None,
            most: Media { images: Some(images), ..Media::default() },
            tokens: of_images(&known.prompt, seen, images),
            body: Body::Form(form),
        })
    }

    async fn of_audio(operation: Operation, form: Form) -> Result<Self, Error> {
        let Some(file) = form.files.first() else {
            return Err(InvalidRequest::missing("file").into());
        };
        let content = file.content.clone();
        if content.size() == 0 {
            return Err(InvalidRequest::field("file", "file is empty").into());
        }
        let (model, format, is_stream, prompt) = if operation == Operation::Translations {
            let known: TranslationForm = known_in(&form, "file")?;
            (known.model, known.response_format, false, known.prompt)
        } else {
            let known: TranscriptionForm = known_in(&form, "file")?;
            (known.model, known.response_format, known.stream.unwrap_or(false), known.prompt)
        };
        let head = content.read_at(0, HEAD).await?;
        let length = Length::of(&head, content.size());
        let seconds = length.most.as_secs().saturating_add(1);
        let prompt = prompt.map_or(0, |prompt| prompt.len() as u64);
        Ok(Self {
            operation,
            model,
            is_stream,
            wanted: Wanted::Transcript(format.unwrap_or(TranscriptFormat::Json)),
            length: Some(length),
            most: Media { audio_ms: Some(milliseconds(length.most)), ..Media::default() },
            tokens: Tokens::estimated(
                seconds.saturating_mul(HEARD_PER_SECOND).saturating_add(prompt),
                seconds.saturating_mul(WRITTEN_PER_SECOND).saturating_add(BESIDE),
            ),
            body: Body::Form(form),
        })
    }

    /// Returns the tokens of the request's text, for servers that do not count them.
    pub(super) fn prompt_tokens(&self) -> u64 {
        if self.operation == Operation::Speech { estimate(self.tokens.input) } else { 0 }
    }

    /// Returns the formats to ask a server for, in order: the next is for servers that reject the
    /// one before. `is_local` and `by_minute` say whether the model is in the catalog, and whether
    /// its price depends on the length of the audio.
    pub(super) fn formats(&self, is_local: bool, by_minute: bool) -> &'static [Asked] {
        match self.wanted {
            Wanted::Transcript(TranscriptFormat::Json | TranscriptFormat::Text)
                if is_local && by_minute && !self.is_stream =>
            {
                &[Asked::Verbose, Asked::AsSent]
            }
            Wanted::Images(Some(_)) if !self.is_stream => &[Asked::Bytes, Asked::Omitted],
            Wanted::Images(None) if is_local && !self.is_stream => &[Asked::Bytes, Asked::Omitted],
            Wanted::Transcript(_) | Wanted::Speech | Wanted::Images(_) => &[Asked::AsSent],
        }
    }

    /// Returns the body to send to a server, or to a process of this machine. `model` is the server's
    /// name for the model, if it differs from the client's.
    pub(super) fn content(
        &mut self,
        id: ExecutionId,
        model: Option<&str>,
        asked: Asked,
        is_process: bool,
    ) -> Result<Box<dyn Content>, Failure> {
        let sent = match self.wanted {
            Wanted::Transcript(format) => Some(spelled(format)),
            Wanted::Images(Some(ImageFormat::Url)) => Some("url"),
            Wanted::Images(Some(ImageFormat::B64Json)) => Some("b64_json"),
            Wanted::Speech | Wanted::Images(None) => None,
        };
        let format = match asked {
            Asked::AsSent => sent,
            Asked::Verbose => Some("verbose_json"),
            Asked::Bytes => Some("b64_json"),
            Asked::Omitted => None,
        };
        let model = model.unwrap_or(&self.model);
        match &mut self.body {
            Body::Json(fields) => {
                let mut set = fields.set("model", model);
                match format {
                    Some(format) => set = set.and_then(|()| fields.set(FORMAT, format)),
                    None if self.wanted != Wanted::Speech => fields.remove(FORMAT),
                    None => {}
                }
                let text = set.and_then(|()| fields.text()).map_err(|error| {
                    let message = format!("cannot build the request to the model: {error}");
                    Failure::new(500, ErrorClass::InternalError, message)
                })?;
                Ok(Box::new(Bytes::from(text)))
            }
            Body::Form(form) => {
                form.set("model", Some(model));
                form.set(FORMAT, format);
                Ok(Box::new(if is_process { form.frame() } else { form.encode(id) }))
            }
        }
    }
}

fn of_images(prompt: &str, seen: u64, made: u64) -> Tokens {
    let input = seen.saturating_mul(PER_IMAGE).saturating_add(prompt.len() as u64);
    Tokens::estimated(input, made.saturating_mul(PER_IMAGE))
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

const fn spelled(format: TranscriptFormat) -> &'static str {
    match format {
        TranscriptFormat::Json => "json",
        TranscriptFormat::Text => "text",
        TranscriptFormat::Srt => "srt",
        TranscriptFormat::Vtt => "vtt",
        TranscriptFormat::VerboseJson => "verbose_json",
        TranscriptFormat::DiarizedJson => "diarized_json",
    }
}

/// Reads the fields of a form as a type of `wire::media`. `file` is the field of the file, which is
/// present.
fn known_in<T>(form: &Form, file: &str) -> Result<T, InvalidRequest>
where
    T: serde::de::DeserializeOwned + schemars::JsonSchema + 'static,
{
    let mut known = Map::new();
    known.insert(file.to_owned(), Value::String(String::new()));
    for name in orrery_wire::request::field_names::<T>() {
        let value = if name.ends_with("[]") {
            let values = form.fields.iter().filter(|(field, _)| *field == name);
            let values: Vec<Value> = values.map(|(_, value)| value.as_str().into()).collect();
            if values.is_empty() { None } else { Some(Value::Array(values)) }
        } else {
            // Clients send fields without a value as empty text.
            form.get(&name).filter(|text| !text.is_empty()).map(|text| parsed(&name, text))
        };
        if let Some(value) = value {
            known.insert(name, value);
        }
    }
    read(Value::Object(known)).map_err(Mismatch::of_field)
}

/// Converts the text of a field into the value that its type has in JSON.
fn parsed(name: &str, text: &str) -> Value {
    let trimmed = text.trim();
    let is_number = NUMBERS.contains(&name);
    let value =
        if is_number {
            trimmed.parse::<u64>().ok().map(Value::from).or_else(|| {
                Some(Value::from(trimmed.parse::<f64>().ok()?)).filter(Value::is_number)
            })
        } else if FLAGS.contains(&name) {
            match trimmed.to_ascii_lowercase().as_str() {
                "true" | "1" => Some(Value::Bool(true)),
                "false" | "0" => Some(Value::Bool(false)),
                _ => None,
            }
        } else {
            None
        };
    value.unwrap_or_else(|| text.into())
}
