//! The routes for audio and images in OpenAI's format (`docs/spec/chat.md`, "Audio and images").
//!
//! Files of a request are streamed to disk, and from there to the model. Audio and events of an
//! answer are streamed to the client.

use futures_util::stream;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;

use super::Context;
use super::chat::{EXECUTION, caller_of, failures, identified};
use super::doc::{Doc, ErrorForm, RequestDoc, ResponseDoc};
use super::form::{Form, Part};
use super::uploads::check_name;
use orrery_chat::media::{self, FilePart, Input, MediaAnswer};
use orrery_domain::chat::Operation;
use orrery_domain::file;
use orrery_domain::invalid_request::InvalidRequest;
use orrery_http::budget::Lease;
use orrery_http::{Response, body, response, sse, trace_context};
use orrery_records::files::Files;
use orrery_wire::media::{
    ImageAnswer, ImageEditForm, ImageRequest, MediaStreamEvent, SpeechRequest, Transcript,
    TranscriptionForm, TranslationForm,
};

/// Maximum number of parts of a form.
const PARTS_MAX: usize = 64;
/// Maximum number of images in a form, including the mask.
const FILES_MAX: usize = 17;
/// Maximum size of the fields of a form other than files, in bytes, in total.
const FIELDS_MAX: usize = 256 * 1024;
/// Maximum length of a field's name, in bytes.
const NAME_MAX: usize = 64;

const TAG: &str = "media";

pub(crate) const TRANSCRIPTIONS: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::form::<TranscriptionForm>()),
    responses: failures!(ResponseDoc::json_text_or_events::<Transcript, MediaStreamEvent>(
        200,
        "The transcript in the requested format; with `stream`, server-sent events"
    )),
    description: "Writes down what is said in an audio file, in OpenAI's format, with a local \
                  model of the kind `transcriptions` or a model of the upstream. Other fields are \
                  passed on to the model. The cost is in `usage.cost` of a JSON answer. Errors \
                  have OpenAI's format.",
    ..Doc::new(TAG, "create_transcription", "Transcribe an audio file")
};

/// `POST /v1/audio/transcriptions`
pub(crate) async fn transcriptions(context: Context) -> Result<Response, crate::Error> {
    by_form(context, Operation::Transcriptions, |name| name == "file", 1).await
}

pub(crate) const TRANSLATIONS: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::form::<TranslationForm>()),
    responses: failures!(ResponseDoc::json_or_text::<Transcript>(
        200,
        "The translation in the requested format"
    )),
    description: "Writes down in English what is said in an audio file, in OpenAI's format, with a \
                  local model of the kind `transcriptions` or a model of the upstream. Other \
                  fields are passed on to the model. The cost is in `usage.cost` of a JSON answer. \
                  Errors have OpenAI's format.",
    ..Doc::new(TAG, "create_translation", "Translate an audio file into English")
};

/// `POST /v1/audio/translations`
pub(crate) async fn translations(context: Context) -> Result<Response, crate::Error> {
    by_form(context, Operation::Translations, |name| name == "file", 1).await
}

pub(crate) const SPEECH: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<SpeechRequest>()),
    responses: failures!(ResponseDoc::raw(
        200,
        "*/*",
        "The audio; with `stream_format: sse`, server-sent events"
    )),
    description: "Reads a text aloud, in OpenAI's format, with a local model of the kind `speech` \
                  or a model of the upstream. The audio is sent as it arrives; if the model fails \
                  after that, the connection breaks. Other fields are passed on to the model. \
                  Errors have OpenAI's format.",
    ..Doc::new(TAG, "create_speech", "Read a text aloud")
};

/// `POST /v1/audio/speech`
pub(crate) async fn speech(context: Context) -> Result<Response, crate::Error> {
    by_json(context, Operation::Speech).await
}

pub(crate) const IMAGES: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::json::<ImageRequest>()),
    responses: failures!(ResponseDoc::json_or_events::<ImageAnswer, MediaStreamEvent>(
        200,
        "The images; with `stream`, server-sent events"
    )),
    description: "Makes images from a prompt, in OpenAI's format, with a local model of the kind \
                  `images` or a model of the upstream. With `response_format: url`, the images are \
                  stored as files of the organization. Other fields are passed on to the model. \
                  The cost is in `usage.cost`. Errors have OpenAI's format.",
    ..Doc::new(TAG, "create_image", "Make images")
};

/// `POST /v1/images/generations`
pub(crate) async fn images(context: Context) -> Result<Response, crate::Error> {
    by_json(context, Operation::Images).await
}

pub(crate) const IMAGE_EDITS: Doc = Doc {
    errors: ErrorForm::OpenAi,
    request: Some(RequestDoc::form::<ImageEditForm>()),
    responses: failures!(ResponseDoc::json_or_events::<ImageAnswer, MediaStreamEvent>(
        200,
        "The images; with `stream`, server-sent events"
    )),
    description: "Changes images as a prompt says, in OpenAI's format, with a local model of the \
                  kind `images` or a model of the upstream. With `response_format: url`, the new \
                  images are stored as files of the organization. Other fields are passed on to \
                  the model. The cost is in `usage.cost`. Errors have OpenAI's format.",
    ..Doc::new(TAG, "edit_image", "Change images")
};

/// `POST /v1/images/edits`
pub(crate) async fn image_edits(context: Context) -> Result<Response, crate::Error> {
    let is_file = |name: &str| matches!(name, "image" | "image[]" | "mask");
    by_form(context, Operation::ImageEdits, is_file, FILES_MAX).await
}

async fn by_json(mut context: Context, operation: Operation) -> Result<Response, crate::Error> {
    let caller = caller_of(&context)?;
    let body = context.request.body().await?;
    let lease = context.services.bodies.lease(&context.request.peer);
    let services = &context.services;
    let origin = |id| context.origin(id);
    let answer = services.chat.media(caller, operation, Input::Json(body), lease, origin).await?;
    Ok(respond(answer))
}

/// Makes a call whose request is a form. `is_file` tells which fields are files.
async fn by_form(
    context: Context,
    operation: Operation,
    is_file: fn(&str) -> bool,
    files: usize,
) -> Result<Response, crate::Error> {
    let caller = caller_of(&context)?;
    let Context { services, request, .. } = context;
    let peer = request.peer;
    let note = request.note.clone();
    let trace = trace_context::of(&request.headers);
    let origin = move |id| {
        note.started(id);
        trace
    };
    let mut fields = services.bodies.lease(&peer);
    let place = if operation == Operation::ImageEdits { "image" } else { "file" };
    let form = Form::of(request, place)?;
    let form = read(form, is_file, files, &services.files, &mut fields).await?;
    let lease = services.bodies.lease(&peer);
    // Boxed, because the future of a call is large.
    let call = services.chat.media(caller, operation, Input::Form(form), lease, origin);
    let answer = Box::pin(call).await?;
    drop(fields);
    Ok(respond(answer))
}

/// Reads a form. Its files go to disk, and its other fields count toward the budget of `lease`.
async fn read(
    mut form: Form,
    is_file: fn(&str) -> bool,
    files_max: usize,
    files: &Files,
    lease: &mut Lease,
) -> Result<media::Form, crate::Error> {
    let mut read = media::Form::default();
    let mut bytes: usize = 0;
    while let Some(part) = form.next().await? {
        if read.fields.len() + read.files.len() == PARTS_MAX {
            let message = format!("a form may have at most {PARTS_MAX} parts");
            return Err(InvalidRequest::whole(message).into());
        }
        let name = part.name().unwrap_or_default().to_owned();
        if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
            let message = format!("the name of a field must have 1 to {NAME_MAX} bytes");
            return Err(InvalidRequest::whole(message).into());
        }
        if !is_file(&name) {
            let text = part.text(FIELDS_MAX - bytes).await?;
            bytes += text.len();
            lease.grow_to(bytes).map_err(|_full| orrery_http::request::busy())?;
            read.fields.push((name, text));
            continue;
        }
        if read.files.len() == files_max {
            let message = format!("a form may have at most {files_max} files");
            return Err(InvalidRequest::field(name, message).into());
        }
        read.files.push(received(name, part, files).await?);
    }
    Ok(read)
}

/// Stores a file of a form until the call ends.
async fn received(name: String, part: Part, files: &Files) -> Result<FilePart, crate::Error> {
    let filename = part.filename().filter(|filename| !filename.is_empty());
    let filename = filename.as_deref().map(check_name).transpose()?;
    let content_type = file::content_type(part.content_type());
    let content = part.receive(files).await?.into_temporary().await?;
    Ok(FilePart { name, filename, content_type, content })
}

fn respond(answer: MediaAnswer) -> Response {
    match answer {
        MediaAnswer::Whole { execution, content_type, body } => {
            identified(execution, response::with_type(StatusCode::OK, content_type, body))
        }
        MediaAnswer::Stream { execution, content_type, pieces } => {
            let pieces = stream::unfold(pieces, |mut pieces| async move {
                let piece = pieces.recv().await?;
                Some((piece, pieces))
            });
            let mut answer = sse::stream(stream::empty());
            *answer.body_mut() = body::stream(pieces);
            answer.headers_mut().insert(CONTENT_TYPE, content_type);
            identified(execution, answer)
        }
    }
}
