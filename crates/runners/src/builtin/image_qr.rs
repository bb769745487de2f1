//! `image-qr`: renders text as a QR code.

use image::{DynamicImage, ImageFormat, Luma};
use qrcode::render::svg;
use qrcode::{EcLevel, QrCode};
use serde_json::{Value, json};

use super::{Builtin, Work, images, number, refuse, text};
use orrery_domain::attempt::Failure;
use orrery_domain::model::OutputType;

const DEFAULT_SIZE: u32 = 256;

pub(super) const MODEL: Builtin = Builtin {
    slug: "image-qr",
    title: "QR code",
    description: "Draws a QR code of a text, as PNG or SVG.",
    output_type: OutputType::Image,
    schema,
    work: Work::Pure { weigh, run: draw },
};

fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["text"],
        "additionalProperties": false,
        "properties": {
            "text": {"type": "string", "title": "Text", "minLength": 1, "maxLength": 2900},
            "size": {
                "type": "integer",
                "title": "Size",
                "description": "Minimum width and height, in pixels.",
                "minimum": 32,
                "maximum": 2048,
                "default": DEFAULT_SIZE,
            },
            "correction": {
                "type": "string",
                "title": "Error correction",
                "description": "How much damage the code tolerates: low 7 %, medium 15 %, quartile 25 %, high 30 %.",
                "enum": ["low", "medium", "quartile", "high"],
                "default": "medium",
            },
            "format": {"type": "string", "title": "Format", "enum": ["png", "svg"], "default": "png"},
        },
    })
}

/// Estimates the memory for a run: the pixels, at most a margin more than requested, and their
/// encoded forms.
fn weigh(input: &Value) -> u64 {
    let side = u64::from(number(input, "size", DEFAULT_SIZE)).saturating_add(256);
    side.saturating_mul(side).saturating_mul(8)
}

fn draw(input: &Value) -> Result<Value, Failure> {
    let level = match text(input, "correction") {
        "low" => EcLevel::L,
        "quartile" => EcLevel::Q,
        "high" => EcLevel::H,
        _ => EcLevel::M,
    };
    let code = QrCode::with_error_correction_level(text(input, "text"), level);
    let code = code.map_err(|error| refuse(format!("the text does not fit a QR code: {error}")))?;
    let size = number(input, "size", DEFAULT_SIZE);
    if text(input, "format") == "svg" {
        let drawn = code.render::<svg::Color<'_>>().min_dimensions(size, size).build();
        return Ok(images::data_uri("image/svg+xml", drawn.as_bytes()).into());
    }
    let drawn = code.render::<Luma<u8>>().min_dimensions(size, size).build();
    Ok(images::encode(&DynamicImage::from(drawn), ImageFormat::Png)?.into())
}
