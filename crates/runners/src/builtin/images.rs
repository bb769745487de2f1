//! Reads and writes images: input is decoded under limits; output is a `data:` URI, which the engine
//! stores as a file.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::codecs::gif::GifDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::metadata::Orientation;
use image::{
    AnimationDecoder, DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, Rgb, RgbImage,
    Rgba,
};

use super::refuse;
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;

/// Maximum size of an image file, in bytes.
pub(crate) const FILE_MAX: usize = 20 * 1024 * 1024;
/// Maximum width and height, in pixels.
pub(super) const SIDE_MAX: u32 = 10_000;
/// Memory budget for parsing an image header (embedded profiles and texts), in addition to the file
/// itself.
pub(super) const HEAD_MAX: u64 = 32 * 1024 * 1024;
/// Memory budget for decoding: a small file can expand to gigabytes.
const DECODED_MAX: u64 = 256 * 1024 * 1024;

/// Properties from the header of an image file. Width and height are those of the upright image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub width: u32,
    pub height: u32,
    /// Bytes per pixel of the decoded image.
    pub bytes_per_pixel: u64,
    /// Peak memory of decoding, as a multiple of the decoded image's memory.
    pub decoding_factor: u64,
    pub file_bytes: u64,
}

/// Reads the header of an image file without decoding pixels.
pub(super) fn head(bytes: &[u8]) -> Result<Head, Failure> {
    let (reader, format) = reader(bytes)?;
    let mut decoder = reader.into_decoder().map_err(|error| unreadable(&error))?;
    let (mut width, mut height) = decoder.dimensions();
    let turn = orientation(&mut decoder);
    if matches!(
        turn,
        Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH
    ) {
        (width, height) = (height, width);
    }
    // Other decoders also keep the coefficients of a progressive JPEG, or planes and frames, in
    // memory. Rotating an image needs memory for a second image.
    let is_plain = matches!(format, ImageFormat::Png | ImageFormat::Bmp);
    let decoding_factor = match (is_plain, turn) {
        (true, Orientation::NoTransforms) => 1,
        (true, _) => 2,
        (false, _) => 3,
    };
    Ok(Head {
        width,
        height,
        bytes_per_pixel: u64::from(decoder.color_type().bytes_per_pixel()),
        decoding_factor,
        file_bytes: bytes.len() as u64,
    })
}

/// Decodes an image, rotates it upright according to its EXIF data, and detects its format. Decodes
/// only the first frame of an animated image.
pub(crate) fn decode(bytes: &[u8]) -> Result<(DynamicImage, ImageFormat), Failure> {
    let (head, _) = reader(bytes)?;
    let turn = orientation(&mut head.into_decoder().map_err(|error| unreadable(&error))?);
    let (reader, format) = reader(bytes)?;
    let mut image = reader.decode().map_err(|error| unreadable(&error))?;
    image.apply_orientation(turn);
    Ok((image, format))
}

/// Returns how to rotate a photo: cameras store the pixels in sensor order and record the rotation
/// in EXIF data. Invalid EXIF data is ignored.
fn orientation(decoder: &mut impl ImageDecoder) -> Orientation {
    decoder.orientation().unwrap_or(Orientation::NoTransforms)
}

/// Returns whether an image has more than one frame.
pub(super) fn is_animated(bytes: &[u8], format: ImageFormat) -> bool {
    let file = || Cursor::new(bytes);
    if format == ImageFormat::Gif {
        return GifDecoder::new(file()).is_ok_and(|mut decoder| {
            let is_limited = decoder.set_limits(limits()).is_ok();
            is_limited && decoder.into_frames().nth(1).is_some()
        });
    }
    let is_animated_webp = || WebPDecoder::new(file()).is_ok_and(|one| one.has_animation());
    let is_animated_png = || PngDecoder::new(file()).and_then(|one| one.is_apng()).unwrap_or(false);
    (format == ImageFormat::WebP && is_animated_webp())
        || (format == ImageFormat::Png && is_animated_png())
}

fn unreadable(error: &dyn std::fmt::Display) -> Failure {
    refuse(format!("image: cannot be read: {error}"))
}

type Reader<'b> = ImageReader<Cursor<&'b [u8]>>;

/// Creates an image reader with limits on pixels and memory.
fn reader(bytes: &[u8]) -> Result<(Reader<'_>, ImageFormat), Failure> {
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let mut reader = reader.map_err(|error| unreadable(&error))?;
    let format = reader.format().ok_or_else(|| refuse("image: unknown format"))?;
    reader.limits(limits());
    Ok((reader, format))
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    limits.max_alloc = Some(DECODED_MAX);
    limits
}

/// Returns the image format for a format name in inputs.
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

/// Encodes the image as a `data:` URI.
pub(super) fn encode(image: &DynamicImage, format: ImageFormat) -> Result<String, Failure> {
    let mut bytes = Cursor::new(Vec::new());
    // PNG supports every pixel type. The other formats need 8 bits per channel, and JPEG has no
    // transparency.
    let plain = match (format, image.color().has_alpha()) {
        (ImageFormat::Png, _) => None,
        (ImageFormat::Jpeg, true) => Some(DynamicImage::from(on_white(image))),
        (_, true) => Some(DynamicImage::from(image.to_rgba8())),
        (_, false) => Some(DynamicImage::from(image.to_rgb8())),
    };
    plain.as_ref().unwrap_or(image).write_to(&mut bytes, format).map_err(|error| {
        Failure::new(ErrorClass::InternalError, format!("the image cannot be written: {error}"))
    })?;
    Ok(data_uri(format.to_mime_type(), bytes.get_ref()))
}

/// Puts an image on a white background.
fn on_white(image: &DynamicImage) -> RgbImage {
    let image = image.to_rgba8();
    RgbImage::from_fn(image.width(), image.height(), |x, y| {
        let Rgba([red, green, blue, alpha]) = *image.get_pixel(x, y);
        let (shown, white) = (u32::from(alpha), 255 * (255 - u32::from(alpha)));
        let blend = |part: u8| u8::try_from((u32::from(part) * shown + white + 127) / 255);
        Rgb([red, green, blue].map(|part| blend(part).unwrap_or(u8::MAX)))
    })
}

/// Encodes bytes as a `data:` URI.
pub(super) fn data_uri(content_type: &str, bytes: &[u8]) -> String {
    format!("data:{content_type};base64,{}", STANDARD.encode(bytes))
}
