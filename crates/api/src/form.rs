//! Multipart forms (RFC 7578), read part by part, so that a form needs only as much memory as one
//! chunk of its body. `uploads` and `media` read their fields.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::stream;
use hyper::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderMap, HeaderValue};
use multer::{Field, Multipart};
use percent_encoding::percent_decode_str;

use orrery_http::Request;
use orrery_records::files::{Files, Receiving};

/// Maximum size of a form field's head (boundary and headers), in bytes. The limit is accurate to
/// one chunk. The form parser may read two chunks, each as large as a connection's buffer, before
/// it searches for the end of a head, so the limit must be larger than two chunks.
const HEAD_MAX: usize = 1024 * 1024;

/// A form that is being read.
pub(crate) struct Form {
    parts: Multipart<'static>,
    failure: Failure,
    head: Head,
}

/// A part of a form.
pub(crate) struct Part {
    field: Field<'static>,
    failure: Failure,
}

impl Form {
    /// Starts to read the form in the body of a request. `what` names the field of the file, for
    /// the message about a body that is no form.
    ///
    /// # Errors
    /// 400 without a boundary.
    pub(crate) fn of(request: Box<Request>, what: &str) -> Result<Self, crate::Error> {
        let content_type = request.headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
        let boundary = content_type.and_then(|it| multer::parse_boundary(it).ok());
        let boundary = boundary.ok_or_else(|| {
            let message = format!("the body must be multipart/form-data with a field {what}");
            crate::Error::bad_request(message)
        })?;
        let failure = Failure::default();
        let head = Head::default();
        let bare = format!("--{boundary}\n").into_bytes();
        let pieces = pieces(request, failure.clone(), head.clone(), bare);
        let parts = Multipart::new(pieces, boundary);
        Ok(Self { parts, failure, head })
    }

    /// Returns the next part; the previous part must have been read.
    ///
    /// # Errors
    /// 400 for an invalid form, and the errors of [`Request::next_chunk`].
    pub(crate) async fn next(&mut self) -> Result<Option<Part>, crate::Error> {
        self.head.begins();
        let field = self.parts.next_field().await.map_err(|error| self.failure.of(&error))?;
        self.head.ended();
        Ok(field.map(|field| Part { field, failure: self.failure.clone() }))
    }
}

impl Part {
    /// Returns the name of the field.
    pub(crate) fn name(&self) -> Option<&str> {
        self.field.name()
    }

    /// Returns the filename.
    pub(crate) fn filename(&self) -> Option<String> {
        let extended = extended_name(self.field.headers());
        extended.or_else(|| self.field.file_name().map(str::to_owned))
    }

    /// Returns the media type as the client sent it, or an empty string.
    pub(crate) fn content_type(&self) -> &str {
        self.field.content_type().map_or("", AsRef::as_ref)
    }

    /// Stores the bytes of a file on disk.
    ///
    /// # Errors
    /// 400 for a file with a `Content-Transfer-Encoding`, 413 for a file above `files.max_bytes`.
    pub(crate) async fn receive(mut self, files: &Files) -> Result<Receiving, crate::Error> {
        check_encoding(self.field.headers())?;
        let mut receiving = files.receive(None).await?;
        while let Some(piece) = self.chunk().await? {
            receiving.write(&piece).await?;
        }
        Ok(receiving)
    }

    /// Returns a text of at most `most` bytes.
    ///
    /// # Errors
    /// 400 for a longer text, and for one that is not UTF-8.
    pub(crate) async fn text(mut self, most: usize) -> Result<String, crate::Error> {
        let mut text = Vec::new();
        while let Some(piece) = self.chunk().await? {
            text.extend_from_slice(&piece);
            if text.len() > most {
                let message = format!("a field other than the file may have at most {most} bytes");
                return Err(crate::Error::bad_request(message));
            }
        }
        String::from_utf8(text)
            .map_err(|_no_text| crate::Error::bad_request("a field is not UTF-8"))
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, crate::Error> {
        self.field.chunk().await.map_err(|error| self.failure.of(&error))
    }
}

/// The error that ended the body of a form early, if any.
#[derive(Clone, Default)]
struct Failure(Arc<Mutex<Option<crate::Error>>>);

impl Failure {
    fn set(&self, error: crate::Error) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Returns the error for the client: the cause of the failed read, or the form's own error.
    fn of(&self, error: &multer::Error) -> crate::Error {
        let read = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        read.unwrap_or_else(|| {
            crate::Error::bad_request(format!("the form cannot be read: {error}"))
        })
    }
}

/// Bytes received since the start of a field's head (boundary and headers). The form parser buffers
/// a head and searches it from its start with every chunk, so the length of a head must be bounded.
#[derive(Clone, Default)]
struct Head(Arc<Mutex<Option<usize>>>);

impl Head {
    fn begins(&self) {
        *self.lock() = Some(0);
    }

    fn ended(&self) {
        *self.lock() = None;
    }

    /// Counts a chunk; returns false if the head is too long.
    fn takes(&self, bytes: usize) -> bool {
        let mut held = self.lock();
        let Some(before) = *held else { return true };
        *held = Some(before.saturating_add(bytes));
        before <= HEAD_MAX
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the body's chunks. `bare` is the expected first line of a form whose lines end in LF.
/// Such a form is rejected, because the parser would read the entire form without finding a field.
fn pieces(
    request: Box<Request>,
    failure: Failure,
    head: Head,
    bare: Vec<u8>,
) -> impl futures_util::Stream<Item = Result<Bytes, std::io::Error>> + Send {
    head.begins();
    let start = (request, failure, head, bare);
    stream::try_unfold(start, |(mut request, failure, head, bare)| async move {
        // The parser reads chunks as long as they are available. Yielding limits the parser to one
        // chunk at a time. Otherwise, the parser would buffer chunks without limit if they arrive
        // faster than the disk can store them.
        tokio::task::yield_now().await;
        match request.next_chunk().await {
            Ok(Some(piece)) if !head.takes(piece.len()) => {
                let message = format!("the headers of a field may have at most {HEAD_MAX} bytes");
                failure.set(crate::Error::bad_request(message));
                Err(std::io::ErrorKind::InvalidData.into())
            }
            Ok(Some(piece)) if !bare.is_empty() && piece.starts_with(&bare) => {
                let message = "the lines of the form must end in CRLF (RFC 2046), but the first \
                               line ends in LF";
                failure.set(crate::Error::bad_request(message));
                Err(std::io::ErrorKind::InvalidData.into())
            }
            // Only the first chunk is examined, because it contains the first line of the body.
            Ok(piece) => Ok(piece.map(|piece| (piece, (request, failure, head, Vec::new())))),
            Err(error) => {
                failure.set(error.into());
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
        }
    })
}

/// Returns the value of `filename*` (RFC 8187), which some clients send for names that are not
/// ASCII.
fn extended_name(headers: &HeaderMap) -> Option<String> {
    let disposition = headers.get(CONTENT_DISPOSITION)?.to_str().ok()?;
    let mut parameters = disposition.split(';').filter_map(|one| one.split_once('='));
    let (_, value) = parameters.find(|(name, _)| name.trim().eq_ignore_ascii_case("filename*"))?;
    let (charset, rest) = value.trim().split_once('\'')?;
    let (_language, encoded) = rest.split_once('\'')?;
    let name = percent_decode_str(encoded).decode_utf8().ok()?;
    charset.eq_ignore_ascii_case("utf-8").then(|| name.into_owned())
}

/// Rejects a file with a `Content-Transfer-Encoding`, because the service would store the encoded
/// bytes (RFC 7578, section 4.7).
fn check_encoding(headers: &HeaderMap) -> Result<(), crate::Error> {
    let encoding = headers.get("content-transfer-encoding").map(HeaderValue::as_bytes);
    match encoding.map(|encoding| encoding.trim_ascii().to_ascii_lowercase()).as_deref() {
        None | Some(b"binary" | b"8bit" | b"7bit") => Ok(()),
        Some(_) => Err(crate::Error::bad_request(
            "the file has a Content-Transfer-Encoding: send its bytes without one",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the limit, the parser would search a head of 100 MiB from its start 6,000 times.
    #[test]
    fn multipart_field_head_is_bounded_but_content_is_not() {
        let head = Head::default();
        head.begins();
        assert!(head.takes(HEAD_MAX) && head.takes(1));
        assert!(!head.takes(1), "it was too long before this piece");
        head.ended();
        assert!(head.takes(100 * 1024 * 1024) && head.takes(1));
        head.begins();
        assert!(head.takes(1));
    }
}
