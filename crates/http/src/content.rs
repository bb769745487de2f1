//! Decodes content from other programs: content codings, character sets, and JSON, whose numbers
//! are not altered.

use std::borrow::Cow;
use std::io::{self, Read};

use bytes::Bytes;
use encoding_rs::{Encoding, UTF_8};
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde::de::DeserializeOwned;

use super::answers::{MODEL_VALUES_MAX, parse_aside};
use super::request::count_values;
use orrery_domain::json_fault;
use orrery_domain::wide_integer::wide_integer;

/// Maximum number of content codings of one body.
const CODINGS_MAX: usize = 2;
/// Maximum number of characters quoted from a number or a label in an error.
const QUOTED_CHARS: usize = 40;
/// The byte-order mark that some programs put before UTF-8 text.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// An error that makes a body unreadable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "the body has the content coding '{0}', which is not supported: send gzip, deflate or none"
    )]
    Coding(String),
    #[error("the body is not valid {0}, which its Content-Encoding names")]
    Damaged(&'static str),
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the body has the charset '{0}', which is not supported: send UTF-8")]
    Charset(String),
    #[error("the body is not valid {0}: name its charset in Content-Type, or send UTF-8")]
    Text(&'static str),
    #[error("it is not valid JSON: {0}")]
    Json(String),
    #[error("it holds more than {0} JSON values")]
    TooManyValues(usize),
    #[error("the number {0} does not fit into 64 bits and would change: send it as a string")]
    Number(String),
}

/// Decodes the content codings of a body and removes them from the headers. Returns at most `limit`
/// bytes.
///
/// # Errors
/// [`Error::Coding`], [`Error::Damaged`], [`Error::TooLarge`].
pub fn decode(headers: &mut HeaderMap, body: Bytes, limit: usize) -> Result<Bytes, Error> {
    if body.is_empty() || !headers.contains_key(CONTENT_ENCODING) {
        return Ok(body);
    }
    let named = headers.get_all(CONTENT_ENCODING).iter();
    let named = named.map(|value| String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase());
    let named = named.collect::<Vec<_>>().join(",");
    let codings = named.split(',').map(str::trim);
    let codings: Vec<_> =
        codings.filter(|name| !matches!(*name, "" | "identity" | "none")).collect();
    if codings.len() > CODINGS_MAX {
        return Err(Error::Coding(brief(&named)));
    }
    let mut body = body;
    for coding in codings.iter().rev() {
        body = match *coding {
            "gzip" | "x-gzip" => read_all(MultiGzDecoder::new(&*body), "gzip", limit)?,
            // Many servers send raw deflate without the zlib format, although RFC 9110 defines
            // `deflate` as zlib.
            "deflate" => read_all(ZlibDecoder::new(&*body), "deflate", limit)
                .or_else(|_not_zlib| read_all(DeflateDecoder::new(&*body), "deflate", limit))?,
            other => return Err(Error::Coding(brief(other))),
        };
    }
    headers.remove(CONTENT_ENCODING);
    if !codings.is_empty() {
        headers.remove(CONTENT_LENGTH);
    }
    Ok(body)
}

fn read_all(reader: impl Read, coding: &'static str, limit: usize) -> Result<Bytes, Error> {
    let mut all = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let read: io::Result<usize> = reader.take(most).read_to_end(&mut all);
    read.map_err(|_damaged| Error::Damaged(coding))?;
    if all.len() > limit { Err(Error::TooLarge(limit)) } else { Ok(all.into()) }
}

/// Returns a body as UTF-8 text without a byte-order mark. The mark determines the character set;
/// without a mark, the `charset` of `Content-Type` determines it.
///
/// # Errors
/// [`Error::Charset`], [`Error::Text`].
pub fn text<'b>(headers: &HeaderMap, body: &'b [u8]) -> Result<Cow<'b, str>, Error> {
    let encoding = encoding(headers, body)?;
    let (text, has_faults) = encoding.decode_with_bom_removal(body);
    if has_faults { Err(Error::Text(encoding.name())) } else { Ok(text) }
}

/// Returns the beginning of a body in UTF-8, without a byte-order mark. Invalid bytes, such as a
/// character that is truncated at the end, are replaced.
#[must_use]
pub fn start<'b>(headers: &HeaderMap, body: &'b [u8]) -> Cow<'b, [u8]> {
    match encoding(headers, body) {
        Ok(encoding) if encoding != UTF_8 => {
            let (text, _has_faults) = encoding.decode_with_bom_removal(body);
            Cow::Owned(text.into_owned().into_bytes())
        }
        Ok(_) | Err(_) => Cow::Borrowed(without_mark(body)),
    }
}

/// Returns whether a body is UTF-8, as declared by its charset; if the charset is unknown, the
/// bytes are checked.
#[must_use]
pub fn is_utf8(headers: &HeaderMap, body: &[u8]) -> bool {
    match encoding(headers, body) {
        Ok(encoding) => encoding == UTF_8,
        Err(_unknown) => std::str::from_utf8(body).is_ok(),
    }
}

/// Returns the character set of a body: from its byte-order mark, or else from the `charset` of
/// `Content-Type`.
fn encoding(headers: &HeaderMap, body: &[u8]) -> Result<&'static Encoding, Error> {
    match (Encoding::for_bom(body), charset(headers)) {
        (Some((encoding, _)), _) => Ok(encoding),
        (None, None) => Ok(UTF_8),
        (None, Some(label)) => {
            Encoding::for_label(label.as_bytes()).ok_or_else(|| Error::Charset(brief(&label)))
        }
    }
}

/// Returns whether `Content-Type` declares a body to be JSON: `application/json`, `text/json`, or a
/// type that ends in `+json`.
#[must_use]
pub fn claims_json(headers: &HeaderMap) -> bool {
    let kind = content_type(headers).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    matches!(kind.as_str(), "application/json" | "text/json") || kind.ends_with("+json")
}

/// Parses the JSON of a model's response, ignoring its `Content-Type`.
///
/// # Errors
/// As [`text`] and [`parse`]; [`Error::TooManyValues`].
pub async fn json<T: DeserializeOwned + Send + 'static>(
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<T, Error> {
    let bytes = body.len();
    let (headers, body) = (headers.clone(), body.clone());
    let parse = move || {
        let text = text(&headers, &body)?;
        check_values(text.as_bytes())?;
        parse(text.as_bytes())
    };
    let parsed = parse_aside(bytes, parse).await;
    parsed.unwrap_or_else(|| Err(Error::Json("it cannot be parsed".to_owned())))
}

/// Checks that a model's response does not exceed the memory limit.
///
/// # Errors
/// [`Error::TooManyValues`]
pub fn check_values(text: &[u8]) -> Result<(), Error> {
    match count_values(text) > MODEL_VALUES_MAX {
        true => Err(Error::TooManyValues(MODEL_VALUES_MAX)),
        false => Ok(()),
    }
}

/// Parses JSON; ignores a leading byte-order mark.
///
/// # Errors
/// [`Error::Json`]; [`Error::Number`] for an integer that parsing would change.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, Error> {
    let text = without_mark(text);
    let value = serde_json::from_slice(text)
        .map_err(|error| Error::Json(json_fault::with_position(text, &error)))?;
    check_numbers(text)?;
    Ok(value)
}

/// Checks the numbers in valid JSON.
///
/// # Errors
/// [`Error::Number`] for an integer that does not fit into 64 bits: parsed, it would become a
/// floating-point number and lose digits.
pub fn check_numbers(json: &[u8]) -> Result<(), Error> {
    match wide_integer(json) {
        Some(number) => Err(Error::Number(brief(number))),
        None => Ok(()),
    }
}

/// Returns the bytes without the UTF-8 byte-order mark that some programs put before text.
#[must_use]
pub fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes)
}

/// Returns the text of a header value: UTF-8, or else ISO-8859-1, which HTTP/1.0 used.
#[must_use]
pub fn header_text(value: &HeaderValue) -> Cow<'_, str> {
    let bytes = value.as_bytes();
    let latin = |_not_utf8| Cow::Owned(bytes.iter().map(|byte| char::from(*byte)).collect());
    std::str::from_utf8(bytes).map_or_else(latin, Cow::Borrowed)
}

fn content_type(headers: &HeaderMap) -> Option<&str> {
    headers.get(CONTENT_TYPE)?.to_str().ok()
}

/// Returns the `charset` of `Content-Type`, in lower case.
fn charset(headers: &HeaderMap) -> Option<String> {
    let parameters = content_type(headers)?.split(';').skip(1);
    let mut named = parameters.filter_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then_some(value)
    });
    let label = named.next()?.trim().trim_matches(['"', '\'']).trim();
    (!label.is_empty()).then(|| label.to_ascii_lowercase())
}

fn brief(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
#[path = "content_tests.rs"]
mod tests;
