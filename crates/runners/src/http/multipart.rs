//! Requests that upload files in a form (`multipart/form-data`).

use std::borrow::Cow;

use bytes::Bytes;
use hyper::header::HeaderValue;
use serde_json::Value;

use crate::source::Sources;
use orrery_config::reader::{Parsed, Section};
use orrery_config::values::{self, problem};
use orrery_domain::input_template::InputTemplate;
use orrery_domain::reference;
use orrery_http::form_data::{file_head, part_head};
use orrery_runtime::turns::Turn;

/// Maximum total size of the files in one request, in bytes.
const FILES_MAX: usize = 32 * 1024 * 1024;
/// Maximum number of files in one request.
const FILES_COUNT_MAX: usize = 32;
/// Maximum number of parts of a form.
const PARTS_MAX: usize = 1000;
/// Maximum size of everything in a form except files, in bytes.
const TEXT_MAX: usize = 8 * 1024 * 1024;

/// The form that a manifest describes.
#[derive(Debug, PartialEq)]
pub(super) struct Form {
    fields: Vec<(String, InputTemplate)>,
    /// The names of the fields whose values refer to files.
    files: Vec<String>,
}

/// A form that cannot be built from an input.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("its form: {0}")]
    Template(reference::Error),
    #[error("its form has more than {PARTS_MAX} fields")]
    Parts,
    #[error("the fields of its form are larger than {TEXT_MAX} bytes")]
    Size,
    #[error("'{field}' of its form: {reason}")]
    File { field: String, reason: String },
}

impl Form {
    /// Reads the keys `multipart` and `files`.
    pub(super) fn read(section: &mut Section<'_>) -> Option<Self> {
        let fields = section.optional("multipart", values::map(field));
        let files = section.get("files", Vec::new(), values::list(values::string));
        let Some(fields) = fields else {
            if !files.is_empty() {
                section.error(
                    "files",
                    "`files` requires `multipart`: it lists the fields that contain files"
                        .to_owned(),
                );
            }
            return None;
        };
        for name in &files {
            if !fields.iter().any(|(field, _)| field == name) {
                section.error("files", format!("{name:?} is not a field of `multipart`"));
            }
        }
        Some(Self { fields, files })
    }

    /// Replaces the references to the input with their values, and reads the files.
    pub(super) async fn encode(
        &self,
        input: &Value,
        sources: &Sources,
        boundary: &str,
    ) -> Result<Encoded, Error> {
        let most = if self.files.is_empty() { TEXT_MAX } else { TEXT_MAX + FILES_MAX };
        let mut memory = sources.memory(most).await;
        let mut parts = Parts { boundary, body: Vec::new(), count: 0, files: 0, file_bytes: 0 };
        for (name, template) in &self.fields {
            let values = match template.fill(input).map_err(Error::Template)? {
                Value::Null => continue,
                Value::Array(values) => values,
                value @ (Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Object(_)) => vec![value],
            };
            for value in values {
                let text = value.as_str();
                let text = text.map_or_else(|| Cow::Owned(value.to_string()), Cow::Borrowed);
                match self.files.contains(name) {
                    true => parts.add_file(name, &text, sources).await?,
                    false => parts.add(name, "\r\n\r\n", text.as_bytes())?,
                }
            }
        }
        let mut body = parts.body;
        body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        memory.shrink_to(body.len());
        let kind = HeaderValue::try_from(format!("multipart/form-data; boundary={boundary}"));
        let kind = kind.unwrap_or(const { HeaderValue::from_static("multipart/form-data") });
        Ok(Encoded { kind, body: body.into(), memory })
    }
}

/// A form as the body of a request.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) kind: HeaderValue,
    pub(super) body: Bytes,
    /// The permit for the memory of the body.
    pub(super) memory: Turn,
}

/// The parts of a form so far.
struct Parts<'a> {
    boundary: &'a str,
    body: Vec<u8>,
    count: usize,
    files: usize,
    file_bytes: usize,
}

impl Parts<'_> {
    /// Adds a part; `head` is the end of its head.
    fn add(&mut self, name: &str, head: &str, content: &[u8]) -> Result<(), Error> {
        self.count = self.count.saturating_add(1);
        if self.count > PARTS_MAX {
            return Err(Error::Parts);
        }
        for bytes in [part_head(self.boundary, name).as_bytes(), head.as_bytes(), content, b"\r\n"]
        {
            self.body.extend_from_slice(bytes);
        }
        if self.body.len().saturating_sub(self.file_bytes) > TEXT_MAX {
            return Err(Error::Size);
        }
        Ok(())
    }

    /// Adds the file to which `source` refers.
    async fn add_file(&mut self, name: &str, source: &str, sources: &Sources) -> Result<(), Error> {
        let wrong = |reason: String| Error::File { field: name.to_owned(), reason };
        self.files = self.files.saturating_add(1);
        if self.files > FILES_COUNT_MAX {
            return Err(wrong(format!("more than {FILES_COUNT_MAX} files")));
        }
        let left = FILES_MAX.saturating_sub(self.file_bytes);
        let file = sources.read(source, left).await;
        let file = file.map_err(|error| match error.is_too_large() {
            true => wrong(format!("all files together are larger than {FILES_MAX} bytes")),
            false => wrong(error.to_string()),
        })?;
        self.file_bytes = self.file_bytes.saturating_add(file.bytes.len());
        self.add(name, &file_head(&file.name, &file.content_type), &file.bytes)
    }
}

/// Reads one field of the form.
fn field(name: &str, value: &values::Value<'_>) -> Parsed<(String, InputTemplate)> {
    if name.is_empty() {
        return Err(problem(value, "the name of a field must not be empty".to_owned()));
    }
    let template = InputTemplate::parse(&values::json(value)?);
    let template = template.map_err(|error| problem(value, error.to_string()))?;
    Ok((name.to_owned(), template))
}
