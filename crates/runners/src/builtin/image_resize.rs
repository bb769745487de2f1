//! `image-resize`: resizes, crops and converts an image.

use image::DynamicImage;
use image::imageops::FilterType;
use serde_json::{Value, json};

use super::images::Head;
use super::{Builtin, Work, images, number, refuse, text};
use orrery_domain::attempt::Failure;
use orrery_domain::model::OutputType;

/// Maximum width and height of the result in pixels, which keeps every run fast.
const SIDE_MAX: u32 = 4096;
/// Bytes per pixel while scaling: four 32-bit numbers.
const INTERMEDIATE_PIXEL: u64 = 16;
/// Bytes per pixel allocated for encoding: the converted pixel, the file, and two base64 copies of
/// the file.
const ENCODED_PIXEL: u64 = 14;

pub(super) const MODEL: Builtin = Builtin {
    slug: "image-resize",
    title: "Image resize",
    description: "Resizes an image, crops it to a shape, or converts it to another format.",
    output_type: OutputType::Image,
    schema,
    work: Work::OnImage { weigh, run: resize },
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
                "description": "contain keeps the whole image within the box, cover fills the box and crops the rest, fill stretches to the box.",
                "enum": ["contain", "cover", "fill"],
                "default": "contain",
            },
            "format": {
                "type": "string",
                "title": "Format",
                "description": "The format of the result; by default, the format of the image. If it is given, only the first frame of an animated image is used.",
                "enum": ["png", "jpeg", "webp", "gif", "bmp"],
            },
        },
    })
}

/// The operations of a run: the region to crop, and the size to scale it to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Steps {
    /// x, y, width, height; cropping comes first, so that invisible pixels are never scaled.
    part: (u32, u32, u32, u32),
    width: u32,
    height: u32,
}

impl Steps {
    /// Returns an upper bound of a run's memory in bytes: the maximum of decoding, scaling and
    /// encoding, which run one after another.
    fn weigh(&self, head: &Head) -> u64 {
        let area = |width: u32, height: u32| u64::from(width) * u64::from(height);
        let own = area(head.width, head.height);
        let pixel = head.bytes_per_pixel;
        let (_, _, part_width, part_height) = self.part;
        let part = area(part_width, part_height);
        let result = area(self.width, self.height);
        let decoding = own * pixel * head.decoding_factor;
        // Scaling uses an intermediate image with the old width and the new height.
        let intermediate = area(part_width, self.height) * INTERMEDIATE_PIXEL;
        let cut_out = if part == own { 0 } else { part * pixel };
        let scaling = (own * pixel + cut_out).max(part * pixel + intermediate + result * pixel);
        // The converted pixels, the file, and two base64 copies of the file.
        let encoding = result * (pixel + ENCODED_PIXEL);
        2 * head.file_bytes + decoding.max(scaling).max(encoding)
    }
}

fn weigh(input: &Value, bytes: &[u8]) -> Result<u64, Failure> {
    let head = images::head(bytes)?;
    Ok(steps(head.width, head.height, input)?.weigh(&head))
}

fn resize(input: &Value, bytes: &[u8]) -> Result<Value, Failure> {
    let (image, own_format) = images::decode(bytes)?;
    let format = images::format_named(text(input, "format"));
    if format.is_none() && images::is_animated(bytes, own_format) {
        return Err(refuse(
            "image: is animated, and only single frames can be resized: give a format, such as png, \
             for the first frame",
        ));
    }
    let format = format.unwrap_or(own_format);
    let resized = steps(image.width(), image.height(), input)?.take(image);
    Ok(images::encode(&resized, format)?.into())
}

impl Steps {
    fn take(self, mut image: DynamicImage) -> DynamicImage {
        let (x, y, width, height) = self.part;
        if (width, height) != (image.width(), image.height()) {
            image = image.crop_imm(x, y, width, height);
        }
        if (width, height) == (self.width, self.height) {
            return image;
        }
        image.resize_exact(self.width, self.height, FilterType::CatmullRom)
    }
}

fn steps(own_width: u32, own_height: u32, input: &Value) -> Result<Steps, Failure> {
    let width = number(input, "width", 0);
    let height = number(input, "height", 0);
    let whole = (0, 0, own_width, own_height);
    if width == 0 && height == 0 {
        if own_width > SIDE_MAX || own_height > SIDE_MAX {
            return Err(refuse(format!("image: give a width or height up to {SIDE_MAX}")));
        }
        return Ok(Steps { part: whole, width: own_width, height: own_height });
    }
    // A missing side is computed from the other side and the aspect ratio.
    let follow = |given: u32, own_given: u32, own: u32| side(own, given, own_given).min(SIDE_MAX);
    let width = if width == 0 { follow(height, own_height, own_width) } else { width };
    let height = if height == 0 { follow(width, own_width, own_height) } else { height };
    // Whether the image has a wider aspect ratio than the box.
    let is_wider =
        u64::from(own_width) * u64::from(height) > u64::from(own_height) * u64::from(width);
    Ok(match text(input, "fit") {
        "cover" if is_wider => {
            let part = side(own_height, width, height).min(own_width);
            Steps { part: ((own_width - part) / 2, 0, part, own_height), width, height }
        }
        "cover" => {
            let part = side(own_width, height, width).min(own_height);
            Steps { part: (0, (own_height - part) / 2, own_width, part), width, height }
        }
        "fill" => Steps { part: whole, width, height },
        _ if is_wider => {
            Steps { part: whole, width, height: side(own_height, width, own_width).min(height) }
        }
        _ => Steps { part: whole, width: side(own_width, height, own_height).min(width), height },
    })
}

/// Returns `length * to / from`, rounded, but at least 1.
fn side(length: u32, to: u32, from: u32) -> u32 {
    let from = u64::from(from.max(1));
    let scaled = (u64::from(length) * u64::from(to) + from / 2) / from;
    u32::try_from(scaled.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(own: (u32, u32), input: Value) -> ((u32, u32, u32, u32), (u32, u32)) {
        let steps = steps(own.0, own.1, &input).unwrap();
        (steps.part, (steps.width, steps.height))
    }

    #[test]
    fn image_resize_scales_only_the_visible_part() {
        for (own, input, part, size) in [
            ((100, 50), json!({"width": 50}), (0, 0, 100, 50), (50, 25)),
            ((100, 50), json!({"width": 30, "height": 30}), (0, 0, 100, 50), (30, 15)),
            ((50, 100), json!({"width": 30, "height": 30}), (0, 0, 50, 100), (15, 30)),
            (
                (100, 50),
                json!({"width": 30, "height": 30, "fit": "cover"}),
                (25, 0, 50, 50),
                (30, 30),
            ),
            (
                (50, 100),
                json!({"width": 30, "height": 30, "fit": "cover"}),
                (0, 25, 50, 50),
                (30, 30),
            ),
            (
                (100, 50),
                json!({"width": 30, "height": 40, "fit": "fill"}),
                (0, 0, 100, 50),
                (30, 40),
            ),
            (
                (10_000, 1),
                json!({"width": 4096, "height": 4096, "fit": "cover"}),
                (4999, 0, 1, 1),
                (4096, 4096),
            ),
            (
                (1, 10_000),
                json!({"width": 7, "height": 4096, "fit": "cover"}),
                (0, 4707, 1, 585),
                (7, 4096),
            ),
            ((10_000, 1), json!({"width": 4096}), (0, 0, 10_000, 1), (4096, 1)),
            ((30, 20), json!({}), (0, 0, 30, 20), (30, 20)),
        ] {
            assert_eq!(of(own, input.clone()), (part, size), "{own:?} {input}");
        }
    }

    #[test]
    fn image_resize_memory_estimate_counts_all_pixels() {
        let head = |width, height| Head {
            width,
            height,
            bytes_per_pixel: 4,
            decoding_factor: 1,
            file_bytes: 0,
        };
        let mib = |own: (u32, u32), input: Value| {
            steps(own.0, own.1, &input).unwrap().weigh(&head(own.0, own.1)) >> 20
        };
        let large = json!({"width": 4096, "height": 4096, "fit": "cover"});
        assert_eq!(mib((10_000, 1), large), 288);
        let stretched = json!({"width": 4096, "height": 4096, "fit": "fill"});
        assert_eq!(
            mib((10_000, 1), stretched),
            689,
            "an intermediate image of 10000 x 4096 pixels"
        );
        assert_eq!(mib((6000, 4000), json!({"width": 800})), 141);
        assert_eq!(mib((100, 100), json!({})), 0);
    }
}
