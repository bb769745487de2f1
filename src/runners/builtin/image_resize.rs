//! `image-resize`: resizes, crops and converts an image.

use image::DynamicImage;
use image::imageops::FilterType;
use serde_json::{Value, json};

use super::{Builtin, Work, images, number, refuse, text};
use crate::domain::attempt::Failure;
use crate::domain::model::OutputType;

/// The most pixels on a side of the result: what any run makes stays small enough to be quick.
const SIDE_MAX: u32 = 4096;

pub(super) const MODEL: Builtin = Builtin {
    slug: "image-resize",
    title: "Image resize",
    description: "Resizes an image, crops it to a shape, or converts it to another format.",
    output_type: OutputType::Image,
    schema,
    work: Work::OnImage(resize),
};

fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["image"],
        "additionalProperties": false,
        "properties": {
            "image": {
                "type": "string",
                "format": "uri",
                "title": "Image",
                "description": "A data: URI or an http(s) URL of a PNG, JPEG, WebP, GIF or BMP.",
            },
            "width": {"type": "integer", "title": "Width", "minimum": 1, "maximum": SIDE_MAX},
            "height": {"type": "integer", "title": "Height", "minimum": 1, "maximum": SIDE_MAX},
            "fit": {
                "type": "string",
                "title": "Fit",
                "description": "contain keeps the whole image within the box, cover fills the box \
                                and crops what is over, fill stretches to the box.",
                "enum": ["contain", "cover", "fill"],
                "default": "contain",
            },
            "format": {
                "type": "string",
                "title": "Format",
                "description": "The result's format; the image's own when it is not given.",
                "enum": ["png", "jpeg", "webp", "gif", "bmp"],
            },
        },
    })
}

fn resize(input: &Value, bytes: &[u8]) -> Result<Value, Failure> {
    let (image, own_format) = images::decode(bytes)?;
    let format = images::format_named(text(input, "format")).unwrap_or(own_format);
    let resized = fit(&image, input)?;
    Ok(images::encode(&resized, format)?.into())
}

fn fit(image: &DynamicImage, input: &Value) -> Result<DynamicImage, Failure> {
    let (own_width, own_height) = (image.width(), image.height());
    let (width, height) = (number(input, "width", 0), number(input, "height", 0));
    if width == 0 && height == 0 {
        if own_width > SIDE_MAX || own_height > SIDE_MAX {
            return Err(refuse(format!("image: give a width or height up to {SIDE_MAX}")));
        }
        return Ok(image.clone());
    }
    // A side that is not given follows from the other one by the image's shape.
    let follow = |given: u32, own_given: u32, own: u32| {
        let side = u64::from(own) * u64::from(given) / u64::from(own_given.max(1));
        u32::try_from(side.clamp(1, u64::from(SIDE_MAX))).unwrap_or(SIDE_MAX)
    };
    let width = if width == 0 { follow(height, own_height, own_width) } else { width };
    let height = if height == 0 { follow(width, own_width, own_height) } else { height };
    const FILTER: FilterType = FilterType::CatmullRom;
    Ok(match text(input, "fit") {
        "cover" => image.resize_to_fill(width, height, FILTER),
        "fill" => image.resize_exact(width, height, FILTER),
        _ => image.resize(width, height, FILTER),
    })
}
