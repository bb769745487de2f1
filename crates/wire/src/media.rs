//! Audio and images in OpenAI's format, limited to the fields that the router reads.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::chat::{MODEL_CHARS_MAX, StreamEnd};
use super::{openai, pattern};

/// Maximum length of a text to read aloud, in characters.
pub const SPEECH_CHARS_MAX: usize = 32_768;
/// Maximum length of the prompt of an image, in characters.
pub const IMAGE_PROMPT_CHARS_MAX: usize = 32_000;
/// Maximum number of images in an answer.
pub const IMAGES_MAX: u64 = 10;

/// A text to read aloud. Fields that are not listed here are passed to the model unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "SpeechRequest",
    example = json!({"model": "kokoro", "input": "Good morning.", "voice": "af_sky"})
)]
pub struct SpeechRequest {
    /// The slug of a local model of the kind `speech`, or a model ID exactly as the upstream lists
    /// it.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// The text to read aloud.
    #[schemars(length(min = 1, max = SPEECH_CHARS_MAX))]
    pub input: String,
    /// The name of the voice, or an object with its `id`, as the model knows it.
    pub voice: Option<Voice>,
    /// The format of the audio, such as `mp3`, `opus`, `aac`, `flac`, `wav` or `pcm`.
    pub response_format: Option<String>,
    /// The speed, where 1 is normal.
    #[schemars(range(min = 0.25, max = 4))]
    pub speed: Option<f64>,
    /// How to speak, for models that take instructions.
    #[schemars(length(max = SPEECH_CHARS_MAX))]
    pub instructions: Option<String>,
    /// Whether the answer is the audio itself, which is the default, or server-sent events.
    pub stream_format: Option<SpeechStream>,
}

/// A voice: its name, or an object with its ID.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "SpeechVoice")]
pub enum Voice {
    Name(String),
    Custom(CustomVoice),
}

/// A voice by its ID.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "SpeechCustomVoice")]
pub struct CustomVoice {
    /// The ID of the voice.
    pub id: String,
}

/// The form of speech.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SpeechStreamFormat")]
pub enum SpeechStream {
    Audio,
    Sse,
}

/// Images to make. Fields that are not listed here are passed to the model unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(
    rename = "ImageRequest",
    example = json!({"model": "sdxl", "prompt": "A lighthouse at dusk", "size": "1024x1024"})
)]
pub struct ImageRequest {
    /// The slug of a local model of the kind `images`, or a model ID exactly as the upstream lists
    /// it.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// What the images show.
    #[schemars(length(min = 1, max = IMAGE_PROMPT_CHARS_MAX))]
    pub prompt: String,
    /// The number of images.
    #[schemars(range(min = 1, max = IMAGES_MAX))]
    pub n: Option<u64>,
    /// The size, such as `1024x1024`.
    pub size: Option<String>,
    /// Whether the answer has URLs of files of this service, or the bytes in base64, which is the
    /// default.
    pub response_format: Option<ImageFormat>,
    /// Whether to stream the images as server-sent events.
    pub stream: Option<bool>,
}

/// The form of the images of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    Url,
    B64Json,
}

/// An audio file to transcribe. Other fields are passed to the model unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "TranscriptionForm")]
pub struct TranscriptionForm {
    /// The audio, with a filename.
    #[schemars(extend("format" = "binary"))]
    pub file: String,
    /// The slug of a local model of the kind `transcriptions`, or a model ID exactly as the
    /// upstream lists it.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// The language of the audio, such as `en`.
    pub language: Option<String>,
    /// Text that precedes the audio, or hints about its words.
    pub prompt: Option<String>,
    /// The format of the answer. Defaults to `json`.
    pub response_format: Option<TranscriptFormat>,
    /// The sampling temperature.
    #[schemars(range(min = 0, max = 1))]
    pub temperature: Option<f64>,
    /// Whether `verbose_json` has the times of words or of segments. May be repeated.
    #[serde(rename = "timestamp_granularities[]")]
    pub timestamp_granularities: Option<Vec<Granularity>>,
    /// Whether to stream the transcript as server-sent events.
    pub stream: Option<bool>,
}

/// An audio file to translate into English. Other fields are passed to the model unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "TranslationForm")]
pub struct TranslationForm {
    /// The audio, with a filename.
    #[schemars(extend("format" = "binary"))]
    pub file: String,
    /// The slug of a local model of the kind `transcriptions`, or a model ID exactly as the
    /// upstream lists it.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// English text that precedes the audio, or hints about its words.
    pub prompt: Option<String>,
    /// The format of the answer. Defaults to `json`.
    pub response_format: Option<TranscriptFormat>,
    /// The sampling temperature.
    #[schemars(range(min = 0, max = 1))]
    pub temperature: Option<f64>,
}

/// The format of a transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TranscriptFormat {
    Json,
    Text,
    Srt,
    Vtt,
    VerboseJson,
    DiarizedJson,
}

/// What has times in a verbose transcript.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "TimestampGranularity")]
pub enum Granularity {
    Word,
    Segment,
}

/// Images to change. Other fields are passed to the model unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ImageEditForm")]
pub struct ImageEditForm {
    /// The image to change. `image[]`, which may be repeated, sends several.
    #[schemars(extend("format" = "binary"))]
    pub image: Option<String>,
    /// The images to change, instead of `image`.
    #[serde(rename = "image[]")]
    #[schemars(extend("items" = {"type": "string", "format": "binary"}))]
    pub images: Option<Vec<String>>,
    /// An image whose transparent areas say where to change the first image.
    #[schemars(extend("format" = "binary"))]
    pub mask: Option<String>,
    /// The slug of a local model of the kind `images`, or a model ID exactly as the upstream lists
    /// it.
    #[schemars(length(max = MODEL_CHARS_MAX), transform = pattern::name)]
    pub model: String,
    /// What the images should show.
    #[schemars(length(min = 1, max = IMAGE_PROMPT_CHARS_MAX))]
    pub prompt: String,
    /// The number of images to make.
    #[schemars(range(min = 1, max = IMAGES_MAX))]
    pub n: Option<u64>,
    /// The size, such as `1024x1024`.
    pub size: Option<String>,
    /// Whether the answer has URLs of files of this service, or the bytes in base64, which is the
    /// default.
    pub response_format: Option<ImageFormat>,
    /// Whether to stream the images as server-sent events.
    pub stream: Option<bool>,
}

/// A transcript or translation. Models may add other fields.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Transcript {
    /// The text.
    pub text: String,
    /// What was used, and its cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<MediaUsage>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// The answer with images. Models may add other fields.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ImageAnswer")]
pub struct ImageAnswer {
    /// The images.
    pub data: Vec<Image>,
    /// What was used, and its cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<MediaUsage>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// An image. Models may add other fields.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnswerImage")]
pub struct Image {
    /// The URL of the file, which can be read without a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The bytes in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b64_json: Option<String>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// What a call for audio or images used. Models add other fields, such as `seconds` or
/// `input_tokens`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MediaUsage {
    /// The cost in US dollars.
    pub cost: f64,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// The data of an event of a streamed transcript or image. The model's events are forwarded byte
/// for byte. A stream that breaks ends with an error.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum MediaStreamEvent {
    Part(MediaPart),
    Error(openai::Error<'static>),
    End(StreamEnd),
}

/// A part of a streamed transcript or image, in the form of the model.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MediaPart {
    /// The type of the event, such as `transcript.text.delta`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#type: Option<String>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}
