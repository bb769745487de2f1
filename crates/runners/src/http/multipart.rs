//! Requests in the form of a file upload (`multipart/form-data`).

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

/// Maximum size of all files of a request together, in bytes.
const FILES_MAX: usize = 32 * 1024 * 1024;
/// Maximum number of files of a request.
const FILES_COUNT_MAX: usize = 32;

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
                section.error("files", "`files` names fields of `multipart`".to_owned());
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

    /// Fills in the input, and reads the files. Returns the content type and the body.
    pub(super) async fn encode(
        &self,
        input: &Value,
        sources: &Sources,
        boundary: &str,
    ) -> Result<(HeaderValue, Bytes), Error> {
        let mut body: Vec<u8> = Vec::new();
        let mut left = FILES_MAX;
        let mut files = 0_usize;
        for (name, template) in &self.fields {
            let values = match template.fill(input).map_err(Error::Template)? {
                Value::Null => continue,
                Value::Array(values) => values,
                value @ (Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Object(_)) => vec![value],
            };
            let is_file = self.files.contains(name);
            for value in values {
                let text = value.as_str();
                let text = text.map_or_else(|| Cow::Owned(value.to_string()), Cow::Borrowed);
                body.extend_from_slice(part_head(boundary, name).as_bytes());
                if is_file {
                    let wrong = |reason: String| Error::File { field: name.clone(), reason };
                    files = files.saturating_add(1);
                    if files > FILES_COUNT_MAX {
                        return Err(wrong(format!("more than {FILES_COUNT_MAX} files")));
                    }
                    let file = sources.read(&text, left).await;
                    let file = file.map_err(|error| wrong(error.to_string()))?;
                    left = left.checked_sub(file.bytes.len()).ok_or_else(|| {
                        wrong(format!("all files together are larger than {FILES_MAX} bytes"))
                    })?;
                    body.extend_from_slice(file_head(&file.name, &file.content_type).as_bytes());
                    body.extend_from_slice(&file.bytes);
                } else {
                    body.extend_from_slice(b"\r\n\r\n");
                    body.extend_from_slice(text.as_bytes());
                }
                body.extend_from_slice(b"\r\n");
            }
        }
        body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        let kind = HeaderValue::try_from(format!("multipart/form-data; boundary={boundary}"));
        let kind = kind.unwrap_or(const { HeaderValue::from_static("multipart/form-data") });
        Ok((kind, body.into()))
    }
}

/// Reads one field of the form.
fn field(name: &str, value: &values::Value<'_>) -> Parsed<(String, InputTemplate)> {
    let template = InputTemplate::parse(&values::json(value)?);
    let template = template.map_err(|error| problem(value, error.to_string()))?;
    Ok((name.to_owned(), template))
}
