//! The input file: one request per line. The entire file is checked before the first line is
//! answered.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::BuildHasher;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use orrery_domain::batch::{CUSTOM_ID_MAX, ERRORS_MAX, Endpoint, InputError, LINE_MAX, LINES_MAX};
use orrery_domain::json_fault;

/// A line of the input file.
#[derive(Debug, Deserialize)]
pub(crate) struct Line<'a> {
    pub custom_id: String,
    method: String,
    url: String,
    #[serde(borrow)]
    pub body: &'a RawValue,
}

/// The part of a line's body that the check reads.
#[derive(Debug, Deserialize)]
struct Body {
    #[serde(default)]
    stream: Option<bool>,
}

/// The position of a line in the file.
#[derive(Debug, Clone, Copy)]
struct Place {
    start: u64,
    bytes: usize,
}

/// The positions of all lines in a file.
#[derive(Debug)]
pub(crate) struct Input {
    path: PathBuf,
    places: Vec<Place>,
}

impl Input {
    /// Finds the lines of a file. Blank lines are skipped.
    ///
    /// # Errors
    /// If the file cannot be read, has too many lines, or has a line that is too long; the message
    /// names the problem.
    fn open(path: &Path) -> io::Result<Result<Self, InputError>> {
        let mut reader = BufReader::with_capacity(256 * 1024, File::open(path)?);
        let mut places = Vec::new();
        let (mut start, mut number) = (0_u64, 0_u64);
        loop {
            number += 1;
            let (bytes, is_blank, is_end) = next_line(&mut reader)?;
            if bytes > LINE_MAX {
                let message = format!("the line is longer than {LINE_MAX} bytes");
                return Ok(Err(error("line_too_long", message, Some(number), None)));
            }
            if !is_blank {
                places.push(Place { start, bytes });
            }
            if places.len() > LINES_MAX {
                let message = format!("the file has more than {LINES_MAX} lines");
                return Ok(Err(error("too_many_lines", message, None, None)));
            }
            if is_end {
                break;
            }
            start += bytes as u64;
        }
        if places.is_empty() {
            let message = "the file has no lines".to_owned();
            return Ok(Err(error("empty_file", message, None, None)));
        }
        Ok(Ok(Self { path: path.to_owned(), places }))
    }

    /// Returns the number of lines.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.places.len()).unwrap_or(u32::MAX)
    }

    /// Reads a line, which is numbered from 0.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) async fn read(self: &Arc<Self>, line: u32) -> io::Result<Bytes> {
        let input = Arc::clone(self);
        blocking(move || {
            let missing = || io::Error::from(io::ErrorKind::UnexpectedEof);
            let place = input.places.get(line as usize).copied().ok_or_else(missing)?;
            read_at(&File::open(&input.path)?, place)
        })
        .await
    }

    /// Checks all lines against the rules of batches. Rules of the endpoint are checked when a line
    /// is answered.
    fn check(&self, endpoint: Endpoint) -> io::Result<Vec<InputError>> {
        let file = File::open(&self.path)?;
        let mut errors = Vec::new();
        let hasher = RandomState::new();
        let mut known: HashSet<(u64, usize)> = HashSet::with_capacity(self.places.len());
        for (number, place) in (1..).zip(&self.places) {
            let text = read_at(&file, *place)?;
            let checked = check_line(&text, endpoint);
            let invalid = match &checked {
                Err(invalid) => Some(invalid.clone()),
                // Two ids with the same hash and length count as the same id. The chance of a false
                // match is one in a billion per file.
                Ok(id) if !known.insert((hasher.hash_one(id), id.len())) => {
                    let message = format!("the custom_id {id:?} is not unique");
                    Some(error("duplicate_custom_id", message, None, Some("custom_id")))
                }
                Ok(_) => None,
            };
            if let Some(invalid) = invalid {
                errors.push(InputError { line: Some(number), ..invalid });
                if errors.len() >= ERRORS_MAX {
                    break;
                }
            }
        }
        Ok(errors)
    }
}

/// Finds and checks the lines of a file.
///
/// # Errors
/// If the file cannot be read.
pub(crate) async fn check(
    path: PathBuf,
    endpoint: Endpoint,
) -> io::Result<Result<Input, Vec<InputError>>> {
    blocking(move || {
        let input = match Input::open(&path)? {
            Ok(input) => input,
            Err(error) => return Ok(Err(vec![error])),
        };
        let errors = input.check(endpoint)?;
        Ok(if errors.is_empty() { Ok(input) } else { Err(errors) })
    })
    .await
}

/// Finds the lines of a file that was checked before.
///
/// # Errors
/// If the file cannot be read.
pub(crate) async fn reopen(path: PathBuf) -> io::Result<Input> {
    let opened = blocking(move || Input::open(&path)).await?;
    opened.map_err(|error| io::Error::other(error.message))
}

/// Skips a line. Returns the line's length including its line break, whether the line is blank, and
/// whether it is the last line.
fn next_line(reader: &mut impl BufRead) -> io::Result<(usize, bool, bool)> {
    let (mut bytes, mut is_blank) = (0_usize, true);
    loop {
        let block = reader.fill_buf()?;
        let end = block.iter().position(|byte| *byte == b'\n');
        let part = block.get(..end.unwrap_or(block.len())).unwrap_or_default();
        is_blank &= part.iter().all(u8::is_ascii_whitespace);
        let taken = end.map_or(block.len(), |end| end + 1);
        let is_end = block.is_empty();
        reader.consume(taken);
        bytes = bytes.saturating_add(taken);
        if end.is_some() || is_end || bytes > LINE_MAX {
            return Ok((bytes, is_blank, is_end));
        }
    }
}

fn read_at(file: &File, place: Place) -> io::Result<Bytes> {
    let mut bytes = vec![0; place.bytes];
    file.read_exact_at(&mut bytes, place.start)?;
    Ok(bytes.into())
}

/// Parses a line that was checked before.
///
/// # Errors
/// If the line is invalid.
pub(crate) fn parse(text: &[u8]) -> serde_json::Result<Line<'_>> {
    // A byte order mark is allowed at the start of the file.
    serde_json::from_slice(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text))
}

/// Returns the `custom_id` of a valid line.
fn check_line(text: &[u8], endpoint: Endpoint) -> Result<String, InputError> {
    let line = parse(text).map_err(|invalid| {
        let reason = json_fault::with_position(text, &invalid);
        let message =
            format!("the line is no object with custom_id, method, url and body: {reason}");
        error("invalid_json_line", message, None, None)
    })?;
    let length = line.custom_id.len();
    if length == 0 || length > CUSTOM_ID_MAX {
        let message = format!("custom_id must have 1 to {CUSTOM_ID_MAX} bytes");
        return Err(error("invalid_custom_id", message, None, Some("custom_id")));
    }
    if line.method != "POST" {
        let message = "method must be POST".to_owned();
        return Err(error("invalid_method", message, None, Some("method")));
    }
    if line.url != endpoint.as_str() {
        let message = format!("url must be {}, the endpoint of the batch", endpoint.as_str());
        return Err(error("invalid_url", message, None, Some("url")));
    }
    let is_object = line.body.get().starts_with('{');
    let body = serde_json::from_str::<Body>(line.body.get()).ok().filter(|_| is_object);
    let body = body.ok_or_else(|| {
        error("invalid_body", "body must be an object".to_owned(), None, Some("body"))
    })?;
    if body.stream == Some(true) {
        let message = "stream is not supported in a batch".to_owned();
        return Err(error("invalid_body", message, None, Some("body.stream")));
    }
    Ok(line.custom_id)
}

fn error(code: &str, message: String, line: Option<u64>, param: Option<&str>) -> InputError {
    InputError { code: code.to_owned(), message, line, param: param.map(str::to_owned) }
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}
