//! A multipart form (RFC 7578): its parts as received from a client, and the body that is sent to a
//! model's server or process. Files are read from disk while they are sent.

use bytes::Bytes;
use futures_util::stream;

use crate::upstream::Content;
use orrery_domain::ids::ExecutionId;
use orrery_http::form_data::{file_head, part_head};
use orrery_http::{self as http, body};
use orrery_records::files::Temporary;
use orrery_runners::whisper::ask;

/// Number of bytes read from disk at a time.
const BLOCK: usize = 64 * 1024;

/// The parts of a form.
#[derive(Debug, Default)]
pub struct Form {
    /// The fields other than files, in order.
    pub fields: Vec<(String, String)>,
    pub files: Vec<FilePart>,
}

/// A file of a form.
#[derive(Debug)]
pub struct FilePart {
    /// The name of the field.
    pub name: String,
    pub filename: Option<String>,
    pub content_type: String,
    pub content: Temporary,
}

impl Form {
    /// Returns the last value of a field.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().rev();
        values.find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Sets a field to one value, or removes it.
    pub(super) fn set(&mut self, name: &str, value: Option<&str>) {
        self.fields.retain(|(field, _)| field != name);
        if let Some(value) = value {
            self.fields.push((name.to_owned(), value.to_owned()));
        }
    }

    /// Returns the form as the body of a request. `id` makes the boundary unique.
    pub(super) fn encode(&self, id: ExecutionId) -> Encoded {
        // The random bits of the ID do not occur in the content, except with negligible
        // probability.
        let boundary = format!("orrery-{}", id.to_string().replace('-', ""));
        let mut segments = Vec::new();
        let mut text = String::new();
        for (name, value) in &self.fields {
            text.push_str(&part_head(&boundary, name));
            text.push_str("\r\n\r\n");
            text.push_str(value);
            text.push_str("\r\n");
        }
        for file in &self.files {
            let FilePart { name, filename, content_type, content } = file;
            text.push_str(&part_head(&boundary, name));
            text.push_str(&file_head(filename.as_deref().unwrap_or("file"), content_type));
            segments.push(Segment::Text(std::mem::take(&mut text).into()));
            segments.push(Segment::File(content.clone()));
            text.push_str("\r\n");
        }
        text.push_str(&format!("--{boundary}--\r\n"));
        segments.push(Segment::Text(text.into()));
        let media_type = format!("multipart/form-data; boundary={boundary}");
        Encoded { media_type, segments }
    }

    /// Returns the form as the body of a request to a local process.
    pub(super) fn frame(&self) -> Encoded {
        let fields = ask::encode(&self.fields).into();
        let files = self.files.iter().map(|file| Segment::File(file.content.clone()));
        let segments = std::iter::once(Segment::Text(fields)).chain(files).collect();
        Encoded { media_type: ask::MEDIA_TYPE.to_owned(), segments }
    }
}

/// A form as the body of a request.
#[derive(Debug)]
pub(super) struct Encoded {
    media_type: String,
    segments: Vec<Segment>,
}

#[derive(Debug, Clone)]
enum Segment {
    Text(Bytes),
    File(Temporary),
}

impl Segment {
    fn size(&self) -> u64 {
        match self {
            Self::Text(text) => text.len() as u64,
            Self::File(file) => file.size(),
        }
    }
}

impl Content for Encoded {
    fn media_type(&self) -> String {
        self.media_type.clone()
    }

    fn size(&self) -> u64 {
        self.segments.iter().map(Segment::size).sum()
    }

    fn body(&self) -> http::Body {
        let segments = self.segments.clone().into_iter();
        body::stream(stream::try_unfold((segments, None), |(mut segments, open)| async move {
            let (file, offset): (Temporary, u64) = match open {
                Some(open) => open,
                None => match segments.next() {
                    None => return Ok(None),
                    Some(Segment::Text(text)) => return Ok(Some((text, (segments, None)))),
                    Some(Segment::File(file)) => (file, 0),
                },
            };
            let block = Bytes::from(file.read_at(offset, BLOCK).await?);
            let offset = offset.saturating_add(block.len() as u64);
            let open = (offset < file.size()).then_some((file, offset));
            Ok(Some((block, (segments, open))))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_runtime::new_id;

    #[test]
    fn form_names_cannot_add_headers() {
        let mut form = Form::default();
        form.fields.push(("a\"\r\nX: y".to_owned(), "1".to_owned()));
        let encoded = form.encode(new_id());
        let [Segment::Text(text)] = &encoded.segments[..] else { panic!("{encoded:?}") };
        let text = std::str::from_utf8(text).unwrap();
        assert!(text.contains("name=\"a%22%0D%0AX: y\"\r\n\r\n1\r\n"), "{text}");
        assert_eq!(encoded.size(), text.len() as u64);
    }
}
