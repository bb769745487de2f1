//! The tables `[runner.inputs]` and `[runner.outputs]` of a manifest: how a file becomes an input
//! tensor, and what the scores in an output tensor mean. This module does no I/O except reading a
//! file of labels.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::graph::{Dimension, Tensor};
use orrery_config::reader::{Parsed, read_file};
use orrery_config::values;

/// Maximum width and height of an input image, in pixels.
const SIDE_MAX: u32 = 4096;
/// Maximum number of channels of an input image.
const CHANNELS_MAX: usize = 4;
const SAMPLE_RATES: std::ops::RangeInclusive<u32> = 1_000..=192_000;
/// Maximum number of labels of an output, and the maximum size of their file in bytes.
const LABELS_MAX: usize = 100_000;
const LABELS_FILE_MAX: u64 = 8 * 1024 * 1024;
/// Default number of labels in an output.
const DEFAULT_TOP: usize = 5;

/// How a file becomes a tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Preparation {
    Image(Image),
    Audio(Audio),
}

/// How an image becomes a tensor: each channel of each pixel is converted to
/// `(channel * scale - mean) / std`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Image {
    /// Width and height; by default those that the model declares, or else those of the image.
    #[serde(default)]
    pub size: Option<[u32; 2]>,
    #[serde(default)]
    pub layout: Layout,
    /// By default, `gray` if the model takes one channel.
    #[serde(default)]
    pub color: Option<Color>,
    /// One number for all channels, or one for each.
    #[serde(default)]
    pub mean: Vec<f32>,
    #[serde(default)]
    pub std: Vec<f32>,
    /// By default, 1/255 for floating-point elements, and 1 for others.
    #[serde(default)]
    pub scale: Option<f32>,
    /// The number of dimensions of the tensor: 4, or 3 without the first one.
    #[serde(default)]
    pub rank: usize,
}

/// The order of the dimensions of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Layout {
    #[default]
    Nchw,
    Nhwc,
}

/// The channels of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Color {
    Rgb,
    Bgr,
    Gray,
}

impl Color {
    /// Returns the number of channels.
    pub(super) const fn channels(self) -> usize {
        match self {
            Self::Rgb | Self::Bgr => 3,
            Self::Gray => 1,
        }
    }
}

/// How a WAV file becomes a tensor: mono samples from -1 to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Audio {
    /// Samples per second.
    pub sample_rate: u32,
    /// The number of dimensions of the tensor, of which all but the last have the length 1.
    #[serde(default)]
    pub rank: usize,
}

/// What the scores of an output mean.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Labels {
    pub labels: Vec<String>,
    /// Number of labels in the result.
    pub top: usize,
    /// Whether the scores are logits, which softmax turns into probabilities.
    pub softmax: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLabels {
    labels: LabelSource,
    top: Option<usize>,
    #[serde(default)]
    softmax: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum LabelSource {
    File(String),
    List(Vec<String>),
}

/// Tables by the name of the tensor.
pub(super) type Named<T> = BTreeMap<String, T>;

/// Parses `[runner.inputs]`.
pub(super) fn inputs(value: &values::Value<'_>) -> Parsed<Named<Preparation>> {
    let entry = |name: &str, value: &values::Value<'_>| {
        let prepared: Preparation = of_json(value, input_schema)?;
        match check(&prepared) {
            Ok(()) => Ok((name.to_owned(), prepared)),
            Err(reason) => Err(values::problem(value, format!("`{name}`: {reason}"))),
        }
    };
    values::map(entry)(value).map(BTreeMap::from_iter)
}

/// Parses `[runner.outputs]`. A file of labels is relative to `folder`.
pub(super) fn outputs(
    folder: &Path,
) -> impl Fn(&values::Value<'_>) -> Parsed<Named<Labels>> + use<'_> {
    move |value| {
        let entry = |name: &str, value: &values::Value<'_>| {
            let labels = labels(of_json(value, output_schema)?, folder);
            let labels =
                labels.map_err(|reason| values::problem(value, format!("`{name}`: {reason}")))?;
            Ok((name.to_owned(), labels))
        };
        values::map(entry)(value).map(BTreeMap::from_iter)
    }
}

/// Parses a table; `schema` describes it for editors.
fn of_json<T: for<'d> Deserialize<'d>>(
    value: &values::Value<'_>,
    schema: fn() -> Value,
) -> Parsed<T> {
    if value.get_ref().as_table().is_none() {
        return Err(values::wrong_type(value, "a table", schema()));
    }
    serde_json::from_value(values::json(value)?)
        .map_err(|error| values::problem(value, error.to_string()))
}

fn input_schema() -> Value {
    let numbers = json!({"type": "array", "items": {"type": "number"}});
    let side = json!({"type": "integer", "minimum": 1, "maximum": SIDE_MAX});
    let rates = SAMPLE_RATES;
    json!({"oneOf": [
        {
            "type": "object",
            "required": ["kind"],
            "additionalProperties": false,
            "properties": {
                "kind": {"const": "image"},
                "size": {"type": "array", "items": side, "minItems": 2, "maxItems": 2},
                "layout": {"enum": ["nchw", "nhwc"]},
                "color": {"enum": ["rgb", "bgr", "gray"]},
                "mean": numbers,
                "std": numbers,
                "scale": {"type": "number"},
            },
        },
        {
            "type": "object",
            "required": ["kind", "sample_rate"],
            "additionalProperties": false,
            "properties": {
                "kind": {"const": "audio"},
                "sample_rate": {
                    "type": "integer", "minimum": rates.start(), "maximum": rates.end(),
                },
            },
        },
    ]})
}

fn output_schema() -> Value {
    json!({
        "type": "object",
        "required": ["labels"],
        "additionalProperties": false,
        "properties": {
            "labels": {"type": ["string", "array"], "items": {"type": "string"}},
            "top": {"type": "integer", "minimum": 1, "maximum": LABELS_MAX},
            "softmax": {"type": "boolean"},
        },
    })
}

/// Checks the numbers of a table.
fn check(prepared: &Preparation) -> Result<(), String> {
    match prepared {
        Preparation::Image(image) => {
            let is_side = |side: &u32| (1..=SIDE_MAX).contains(side);
            if image.rank != 0 {
                return Err("unknown field `rank`".to_owned());
            }
            if !image.size.iter().flatten().all(is_side) {
                return Err(format!("`size` has two numbers from 1 to {SIDE_MAX}"));
            }
            for (name, numbers) in [("mean", &image.mean), ("std", &image.std)] {
                if numbers.len() > CHANNELS_MAX || !numbers.iter().all(|number| number.is_finite())
                {
                    return Err(format!("`{name}` has one number, or one for each channel"));
                }
            }
            if image.std.contains(&0.0) {
                return Err("`std` must not be 0".to_owned());
            }
            match image.scale {
                Some(scale) if !scale.is_finite() => Err("`scale` must be finite".to_owned()),
                _ => Ok(()),
            }
        }
        Preparation::Audio(audio) if audio.rank != 0 => Err("unknown field `rank`".to_owned()),
        Preparation::Audio(audio) if !SAMPLE_RATES.contains(&audio.sample_rate) => {
            let (from, to) = (SAMPLE_RATES.start(), SAMPLE_RATES.end());
            Err(format!("`sample_rate` must be from {from} to {to}"))
        }
        Preparation::Audio(_) => Ok(()),
    }
}

fn labels(written: WrittenLabels, folder: &Path) -> Result<Labels, String> {
    let WrittenLabels { labels, top, softmax } = written;
    let labels: Vec<String> = match labels {
        LabelSource::List(labels) => labels,
        LabelSource::File(file) => {
            let path = folder.join(file);
            let text = read_file(&path, LABELS_FILE_MAX)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            text.lines().map(|line| line.trim().to_owned()).collect()
        }
    };
    if labels.is_empty() || labels.len() > LABELS_MAX {
        return Err(format!("`labels` must be 1 to {LABELS_MAX} labels"));
    }
    let top = top.unwrap_or(DEFAULT_TOP).min(labels.len());
    if top == 0 {
        return Err("`top` must be at least 1".to_owned());
    }
    Ok(Labels { labels, top, softmax })
}

impl Preparation {
    /// Completes the table with what the model declares.
    ///
    /// # Errors
    /// Fails if the input cannot hold such a file.
    pub(super) fn completed(&self, tensor: &Tensor) -> Result<Self, String> {
        match self {
            Self::Image(image) => image.completed(tensor).map(Self::Image),
            Self::Audio(audio) => {
                let rank = tensor.shape.as_ref().map_or(1, Vec::len);
                if rank == 0 || !tensor.element.is_float() {
                    return Err(format!("takes {tensor}, not the samples of an audio file"));
                }
                Ok(Self::Audio(Audio { rank, ..audio.clone() }))
            }
        }
    }

    /// Returns the schema of the field that refers to the file.
    pub(super) fn schema(&self, tensor: &Tensor) -> Value {
        let what = match self {
            Self::Image(_) => "PNG, JPEG, WebP, GIF or BMP image",
            Self::Audio(_) => "WAV file with PCM samples",
        };
        let description = format!(
            "A data: URI, an http(s) URL or the URL of a stored file: a {what}, which becomes {tensor}."
        );
        json!({"type": "string", "format": "uri", "description": description})
    }
}

impl Image {
    fn completed(&self, tensor: &Tensor) -> Result<Self, String> {
        let wrong = || format!("takes {tensor}, not an image with the layout {:?}", self.layout);
        let unknown = vec![Dimension::Any; 4];
        let shape = tensor.shape.as_ref().unwrap_or(&unknown);
        let rank = shape.len();
        if !(3..=4).contains(&rank) || tensor.element == super::element::Element::String {
            return Err(wrong());
        }
        let [a, b, c] = shape.last_chunk().ok_or_else(wrong)?;
        let (channels, height, width) = match self.layout {
            Layout::Nchw => (a, b, c),
            Layout::Nhwc => (c, a, b),
        };
        let fixed = |dimension: &Dimension| match dimension {
            Dimension::Fixed(length) => Some(*length),
            Dimension::Named(_) | Dimension::Any => None,
        };
        let color = match (self.color, fixed(channels)) {
            (Some(color), None) => color,
            (Some(color), Some(declared)) if color.channels() == declared => color,
            (None, Some(1)) => Color::Gray,
            (None, Some(3) | None) => Color::Rgb,
            (Some(_) | None, Some(_)) => return Err(wrong()),
        };
        let count = color.channels();
        for (name, numbers) in [("mean", &self.mean), ("std", &self.std)] {
            if numbers.len() > 1 && numbers.len() != count {
                return Err(format!("`{name}` has {} numbers for {count} channels", numbers.len()));
            }
        }
        let side = |dimension| u32::try_from(fixed(dimension)?).ok();
        let size = self.size.or_else(|| Some([side(width)?, side(height)?]));
        if size.iter().flatten().any(|side| !(1..=SIDE_MAX).contains(side)) {
            return Err(format!("takes {tensor}; a side has at most {SIDE_MAX} pixels"));
        }
        let default_scale = if tensor.element.is_float() { 1.0 / 255.0 } else { 1.0 };
        Ok(Self {
            size,
            color: Some(color),
            scale: Some(self.scale.unwrap_or(default_scale)),
            rank,
            ..self.clone()
        })
    }
}

impl Labels {
    /// Returns the labels with the highest scores: a list, or a list for each row if there are
    /// several rows of scores.
    ///
    /// # Errors
    /// The fault, as a phrase that follows the output's name.
    pub(super) fn ranked(&self, shape: &[usize], scores: &[f64]) -> Result<Value, String> {
        let count = self.labels.len();
        if shape.last() != Some(&count) {
            return Err(format!("has the shape {shape:?}, but there are {count} labels"));
        }
        let mut rows: Vec<Value> = scores.chunks(count).map(|row| self.row(row)).collect();
        Ok(if rows.len() == 1 { rows.remove(0) } else { rows.into() })
    }

    fn row(&self, scores: &[f64]) -> Value {
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
        let shown = |score: f64| if self.softmax { (score - most).exp() / sum } else { score };
        let mut ranked: Vec<(f64, &String)> = scores.iter().copied().zip(&self.labels).collect();
        ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let best = ranked.into_iter().take(self.top);
        best.map(|(score, label)| json!({"label": label, "score": shown(score)})).collect()
    }
}

#[cfg(test)]
#[path = "preparation_tests.rs"]
mod tests;
