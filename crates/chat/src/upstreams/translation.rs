//! Upstreams with Anthropic's Messages API: a chat completion is translated before it is sent, and
//! the answer while it is read, so that the rest of the router sees chat completions only.

use bytes::{Bytes, BytesMut};
use serde_json::Value;

use crate::error::Failure;
use crate::upstream::Content;
use orrery_dialects::messages::{self, Origin, Read, StreamReader};
use orrery_dialects::{Event, Unreadable, chat};
use orrery_domain::classify::ErrorClass;
use orrery_http::answers;
use orrery_http::event_stream::EventReader;
use orrery_runners::openai::answer::{EVENT_MAX, Translate};

/// Maximum size of an answer that is not streamed, in bytes.
const ANSWER_MAX: usize = 64 * 1024 * 1024;

/// Translates the answer to one request.
#[derive(Debug)]
pub(crate) struct Translation {
    /// In Unix seconds.
    created: i64,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// Nothing has arrived.
    Unknown,
    Whole(BytesMut),
    Stream(Box<Stream>),
}

#[derive(Debug)]
struct Stream {
    events: EventReader,
    reader: StreamReader,
    /// `None` until the answer begins.
    writer: Option<chat::StreamWriter>,
}

impl Translation {
    /// Translates a request. `created` is the time of its answer, in Unix seconds.
    ///
    /// # Errors
    /// [`Failure`] for a request that the API cannot express.
    pub(crate) async fn begin(
        name: &str,
        content: &dyn Content,
        created: i64,
    ) -> Result<(Bytes, Self), Failure> {
        let body = content.whole().unwrap_or_default();
        let length = body.len();
        let translated = answers::parse_aside(length, move || request_of(&body)).await;
        let text = translated.unwrap_or_else(|| Err("cannot be translated".to_owned()));
        let text = text.map_err(|what| {
            let message = format!("the model '{name}' {what}");
            Failure::new(400, ErrorClass::InvalidUserInput, message)
        })?;
        Ok((text, Self { created, form: Form::Unknown }))
    }

    fn frame(&self, origin: Origin) -> chat::Frame {
        let Origin { id, model } = origin;
        chat::Frame { id, model, created: self.created }
    }

    fn pieces(&mut self) -> Result<Bytes, Unreadable> {
        let created = self.created;
        let Form::Stream(stream) = &mut self.form else { return Ok(Bytes::new()) };
        let mut written = BytesMut::new();
        loop {
            let event = stream.events.next_event();
            let event =
                event.map_err(|too_long| Unreadable(format!("is a stream whose {too_long}")))?;
            let Some(event) = event else { return Ok(written.freeze()) };
            let Some(data) = &event.data else { continue };
            match stream.reader.event(data)? {
                Read::Begun(Origin { id, model }) => {
                    let frame = chat::Frame { id, model, created };
                    stream.writer = Some(chat::StreamWriter::new(frame));
                }
                Read::Done => written.extend_from_slice(b"data: [DONE]\n\n"),
                Read::Events(events) => {
                    for event in events {
                        stream.write(event, created, &mut written);
                    }
                }
            }
        }
    }
}

impl Stream {
    fn write(&mut self, event: Event, created: i64, written: &mut BytesMut) {
        let writer = self.writer.get_or_insert_with(|| {
            let (id, model) = (String::new(), String::new());
            chat::StreamWriter::new(chat::Frame { id, model, created })
        });
        written.extend_from_slice(b"data: ");
        written.extend_from_slice(writer.event(event).to_string().as_bytes());
        written.extend_from_slice(b"\n\n");
    }
}

impl Translate for Translation {
    fn push(&mut self, piece: &[u8]) -> Result<Bytes, String> {
        if matches!(self.form, Form::Unknown) {
            self.form = match piece.trim_ascii_start().first() {
                None => return Ok(Bytes::new()),
                Some(b'{' | b'[' | b'<') => Form::Whole(BytesMut::new()),
                Some(_) => Form::Stream(Box::new(Stream {
                    events: EventReader::new(EVENT_MAX),
                    reader: StreamReader::default(),
                    writer: None,
                })),
            };
        }
        match &mut self.form {
            Form::Whole(read) if read.len().saturating_add(piece.len()) > ANSWER_MAX => {
                Err(format!("is larger than {ANSWER_MAX} bytes"))
            }
            Form::Whole(read) => {
                read.extend_from_slice(piece);
                Ok(Bytes::new())
            }
            Form::Stream(stream) => {
                stream.events.push(piece);
                self.pieces().map_err(|error| error.0)
            }
            Form::Unknown => Ok(Bytes::new()),
        }
    }

    fn end(&mut self) -> Result<Bytes, String> {
        let Form::Whole(read) = std::mem::replace(&mut self.form, Form::Unknown) else {
            return Ok(Bytes::new());
        };
        match messages::read_answer(&read) {
            Ok((origin, answer)) => {
                Ok(chat::write_answer(answer, &self.frame(origin)).to_string().into())
            }
            // The reader of the chat completion says what is wrong with it.
            Err(_) => Ok(read.freeze()),
        }
    }
}

/// Translates a chat completion.
///
/// # Errors
/// A phrase that follows the model's name.
fn request_of(body: &[u8]) -> Result<Bytes, String> {
    let body: Value =
        serde_json::from_slice(body).map_err(|error| format!("cannot be requested: {error}"))?;
    let request = chat::read(&body).map_err(|error| error.0)?;
    Ok(messages::write(&request).to_string().into())
}
