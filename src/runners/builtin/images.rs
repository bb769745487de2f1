//! Images in and out: a `data:` URI or a URL in, decoded under limits, a `data:` URI out, of which
//! the engine makes a file.

use std::io::Cursor;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::Request;
use image::{DynamicImage, ImageFormat, ImageReader, Limits};

use super::{Bench, refuse};
use crate::domain::attempt::Failure;
use crate::domain::classify::ErrorClass;
use crate::http::client::{self, Overflow};

/// The largest image file, in bytes.
pub(super) const FILE_MAX: usize = 20 * 1024 * 1024;
/// The most pixels on a side.
pub(super) const SIDE_MAX: u32 = 10_000;
/// The memory that decoding may take: a small file can unfold to gigabytes.
const DECODED_MAX: u64 = 256 * 1024 * 1024;
/// How long fetching an image may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// The bytes behind a `data:` URI, one of our own files, or an http(s) URL.
pub(super) async fn load(bench: &Bench, source: &str) -> Result<Vec<u8>, Failure> {
    let Bench { client, policy, files, .. } = bench;
    if let Some(files) = files {
        let own = files.read_linked(source, FILE_MAX as u64).await;
        if let Some(bytes) = own.map_err(|error| refuse(format!("image: {error}")))? {
            return Ok(bytes);
        }
    }
    if let Some(data) = source.strip_prefix("data:") {
        let encoded = data.split_once(";base64,").map(|(_type, encoded)| encoded);
        let encoded = encoded.ok_or_else(|| refuse("image: a data: URI must be base64"))?;
        let bytes = STANDARD.decode(encoded.trim());
        return bytes.map_err(|error| refuse(format!("image: no valid base64: {error}")));
    }
    let url = policy.check_url(source).map_err(|error| refuse(format!("image: {error}")))?;
    let request = Request::get(url.as_str()).body(Bytes::new());
    let request = request.map_err(|error| refuse(format!("image: {error}")))?;
    let limits =
        client::Limits { total: FETCH_TIMEOUT, answer_bytes: FILE_MAX, overflow: Overflow::Fail };
    let answer = client.send(request, &limits).await;
    let answer = answer.map_err(|error| refuse(format!("image: {error}")))?;
    if !answer.status.is_success() {
        return Err(refuse(format!("image: the URL answered {}", answer.status.as_u16())));
    }
    Ok(answer.body.to_vec())
}

/// The decoded image and the format it came in.
pub(super) fn decode(bytes: &[u8]) -> Result<(DynamicImage, ImageFormat), Failure> {
    let fault =
        |error: &dyn std::fmt::Display| refuse(format!("image: it cannot be read: {error}"));
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let mut reader = reader.map_err(|error| fault(&error))?;
    let format = reader.format().ok_or_else(|| refuse("image: its format is not known"))?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    limits.max_alloc = Some(DECODED_MAX);
    reader.limits(limits);
    Ok((reader.decode().map_err(|error| fault(&error))?, format))
}

/// A format as inputs name it.
pub(super) fn format_named(name: &str) -> Option<ImageFormat> {
    match name {
        "png" => Some(ImageFormat::Png),
        "jpeg" => Some(ImageFormat::Jpeg),
        "webp" => Some(ImageFormat::WebP),
        "gif" => Some(ImageFormat::Gif),
        "bmp" => Some(ImageFormat::Bmp),
        _ => None,
    }
}

/// The image as a `data:` URI.
pub(super) fn encode(image: &DynamicImage, format: ImageFormat) -> Result<String, Failure> {
    let mut bytes = Cursor::new(Vec::new());
    // PNG takes every kind of pixel; the others take these, and JPEG no transparency.
    let plain = if format == ImageFormat::Png {
        None
    } else if image.color().has_alpha() && format != ImageFormat::Jpeg {
        Some(DynamicImage::from(image.to_rgba8()))
    } else {
        Some(DynamicImage::from(image.to_rgb8()))
    };
    plain.as_ref().unwrap_or(image).write_to(&mut bytes, format).map_err(|error| {
        Failure::new(ErrorClass::InternalError, format!("the image cannot be written: {error}"))
    })?;
    Ok(data_uri(format.to_mime_type(), bytes.get_ref()))
}

/// Bytes as a `data:` URI.
pub(super) fn data_uri(content_type: &str, bytes: &[u8]) -> String {
    format!("data:{content_type};base64,{}", STANDARD.encode(bytes))
}
