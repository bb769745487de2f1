//! Converts images to tensors.

use image::DynamicImage;
use image::imageops::FilterType;
use tract_onnx::prelude::{Tensor, tract_ndarray::Array4};

use crate::builtin::images;
use crate::onnx::preparation::{Color, Image, Layout};

/// Maximum width and height of an image that keeps its own size, in pixels.
const SIDE_MAX: u32 = 4096;

/// Decodes an image file and converts it to a tensor.
///
/// # Errors
/// The fault in the file, as a phrase.
pub(super) fn tensor(image: &Image, file: &[u8]) -> Result<Tensor, String> {
    let (decoded, _format) = images::decode(file)
        .map_err(|failure| failure.message.trim_start_matches("image: ").to_owned())?;
    let [width, height] = image.size.unwrap_or([decoded.width(), decoded.height()]);
    if width > SIDE_MAX || height > SIDE_MAX {
        return Err(format!(
            "the image has {width} x {height} pixels, more than {SIDE_MAX} a side"
        ));
    }
    let color = image.color.unwrap_or(Color::Rgb);
    // Transparency is removed first; otherwise, it would be scaled, too.
    let plain = match color {
        Color::Gray => DynamicImage::from(decoded.to_luma8()),
        Color::Rgb | Color::Bgr => DynamicImage::from(decoded.to_rgb8()),
    };
    drop(decoded);
    let plain = match (plain.width(), plain.height()) == (width, height) {
        true => plain,
        false => plain.resize_exact(width, height, FilterType::Triangle),
    };
    let channels = color.channels();
    let pixels = plain.as_bytes();
    let (width, height) = (width as usize, height as usize);
    let scale = image.scale.unwrap_or(1.0);
    let of = |numbers: &[f32], channel: usize, default: f32| {
        numbers.get(channel).or_else(|| numbers.first()).copied().unwrap_or(default)
    };
    let value = |y: usize, x: usize, channel: usize| {
        let source = if color == Color::Bgr { channels - 1 - channel } else { channel };
        let pixel = pixels.get((y * width + x) * channels + source).copied().unwrap_or_default();
        let (mean, std) = (of(&image.mean, channel, 0.0), of(&image.std, channel, 1.0));
        (f32::from(pixel) * scale - mean) / std
    };
    let tensor: Tensor = match image.layout {
        Layout::Nchw => {
            Array4::from_shape_fn((1, channels, height, width), |(_, c, y, x)| value(y, x, c))
        }
        Layout::Nhwc => {
            Array4::from_shape_fn((1, height, width, channels), |(_, y, x, c)| value(y, x, c))
        }
    }
    .into();
    if image.rank == 3 {
        let shape = tensor.shape().get(1..).unwrap_or_default().to_vec();
        return tensor.into_shape(&shape).map_err(|error| error.to_string());
    }
    Ok(tensor)
}

#[cfg(test)]
mod tests {
    use image::{ImageFormat, Rgb, RgbImage};

    use super::*;

    fn png(width: u32, height: u32) -> Vec<u8> {
        let image =
            RgbImage::from_fn(width, height, |x, y| Rgb([u8::from(x == 1), u8::from(y == 1), 255]));
        let mut file = std::io::Cursor::new(Vec::new());
        image.write_to(&mut file, ImageFormat::Png).unwrap();
        file.into_inner()
    }

    fn plain() -> Image {
        Image {
            size: None,
            layout: Layout::Nchw,
            color: None,
            mean: Vec::new(),
            std: Vec::new(),
            scale: Some(1.0),
            rank: 4,
        }
    }

    fn values(image: &Image) -> (Vec<usize>, Vec<f32>) {
        let tensor = tensor(image, &png(2, 1)).unwrap();
        let view = tensor.try_as_plain_ram().unwrap();
        (tensor.shape().to_vec(), view.as_slice::<f32>().unwrap().to_vec())
    }

    #[test]
    fn onnx_image_has_layout_color_and_scale() {
        let nchw = (vec![1, 3, 1, 2], vec![0.0, 1.0, 0.0, 0.0, 255.0, 255.0]);
        assert_eq!(values(&plain()), nchw);
        let nhwc = Image { layout: Layout::Nhwc, rank: 3, ..plain() };
        assert_eq!(values(&nhwc), (vec![1, 2, 3], vec![0.0, 0.0, 255.0, 1.0, 0.0, 255.0]));
        let bgr = Image { color: Some(Color::Bgr), ..plain() };
        assert_eq!(values(&bgr).1, [255.0, 255.0, 0.0, 0.0, 0.0, 1.0]);
        let gray = Image { color: Some(Color::Gray), ..plain() };
        assert_eq!(values(&gray).0, [1, 1, 1, 2]);
        let scaled = Image {
            scale: Some(1.0 / 255.0),
            mean: vec![0.0, 0.0, 0.5],
            std: vec![0.5],
            ..plain()
        };
        assert_eq!(values(&scaled).1[4..], [1.0, 1.0]);
        let resized = Image { size: Some([4, 2]), ..plain() };
        assert_eq!(values(&resized).0, [1, 3, 2, 4]);
        assert_eq!(tensor(&plain(), b"no image").unwrap_err(), "unknown format");
    }
}
