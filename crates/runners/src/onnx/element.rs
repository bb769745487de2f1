//! Element types of tensors, and the conversion between JSON and their bytes: little-endian, in
//! row-major order. This module does no I/O.
//!
//! 16-bit floating-point numbers are transferred as 32-bit numbers, and a string is preceded by its
//! length in bytes as a 32-bit number.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::oip::metadata::Datatype;
use orrery_domain::json_object::integer;

/// An element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Element {
    Float32,
    Uint8,
    Int8,
    Uint16,
    Int16,
    Int32,
    Int64,
    String,
    Bool,
    Float16,
    Float64,
    Uint32,
    Uint64,
}

impl Element {
    /// Returns the type with this code (`TensorProto.DataType` in onnx.proto); `None` if the runner
    /// does not support it.
    pub(super) const fn of_code(code: u64) -> Option<Self> {
        Some(match code {
            1 => Self::Float32,
            2 => Self::Uint8,
            3 => Self::Int8,
            4 => Self::Uint16,
            5 => Self::Int16,
            6 => Self::Int32,
            7 => Self::Int64,
            8 => Self::String,
            9 => Self::Bool,
            10 => Self::Float16,
            11 => Self::Float64,
            12 => Self::Uint32,
            13 => Self::Uint64,
            _ => return None,
        })
    }

    /// Returns the name that clients see.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Uint8 => "uint8",
            Self::Int8 => "int8",
            Self::Uint16 => "uint16",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::String => "string",
            Self::Bool => "bool",
            Self::Float16 => "float16",
            Self::Float64 => "float64",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
        }
    }

    /// Returns the corresponding type of the Open Inference Protocol, which determines the schema.
    pub(super) const fn datatype(self) -> Datatype {
        match self {
            Self::Float32 => Datatype::Float(32),
            Self::Uint8 => Datatype::Unsigned(8),
            Self::Int8 => Datatype::Signed(8),
            Self::Uint16 => Datatype::Unsigned(16),
            Self::Int16 => Datatype::Signed(16),
            Self::Int32 => Datatype::Signed(32),
            Self::Int64 => Datatype::Signed(64),
            Self::String => Datatype::Bytes,
            Self::Bool => Datatype::Bool,
            Self::Float16 => Datatype::Float(16),
            Self::Float64 => Datatype::Float(64),
            Self::Uint32 => Datatype::Unsigned(32),
            Self::Uint64 => Datatype::Unsigned(64),
        }
    }

    /// Returns whether the elements are floating-point numbers.
    pub(super) const fn is_float(self) -> bool {
        matches!(self.datatype(), Datatype::Float(_))
    }

    /// Appends the bytes of an element; returns false if the value is not of this type.
    pub(super) fn append(self, value: &Value, data: &mut Vec<u8>) -> bool {
        match self.datatype() {
            Datatype::Bool => match value.as_bool() {
                Some(flag) => data.push(flag.into()),
                None => return false,
            },
            Datatype::Bytes => {
                let Some(text) = value.as_str() else { return false };
                let Ok(length) = u32::try_from(text.len()) else { return false };
                data.extend_from_slice(&length.to_le_bytes());
                data.extend_from_slice(text.as_bytes());
            }
            Datatype::Unsigned(bits) => {
                let most = i128::from(u64::MAX >> (64 - bits.clamp(1, 64)));
                return whole(value, 0..=most, bits, data);
            }
            Datatype::Signed(bits) => {
                let shift = 64 - bits.clamp(1, 64);
                let range = i128::from(i64::MIN >> shift)..=i128::from(i64::MAX >> shift);
                return whole(value, range, bits, data);
            }
            Datatype::Float(bits) => {
                let Some(number) = value.as_f64() else { return false };
                let most = match bits {
                    16 => 65504.0,
                    32 => f64::from(f32::MAX),
                    _ => f64::MAX,
                };
                if number.abs() > most {
                    return false;
                }
                #[expect(clippy::cast_possible_truncation, reason = "it is within the range")]
                match bits {
                    64 => data.extend_from_slice(&number.to_le_bytes()),
                    _ => data.extend_from_slice(&(number as f32).to_le_bytes()),
                }
            }
        }
        true
    }

    /// Takes the first element of `data`; returns `None` if there is none. A number that JSON does
    /// not have, such as an infinity, becomes null.
    pub(super) fn take(self, data: &mut &[u8]) -> Option<Value> {
        Some(match self {
            Self::Float32 | Self::Float16 => f32::from_le_bytes(bytes(data)?).into(),
            Self::Float64 => f64::from_le_bytes(bytes(data)?).into(),
            Self::Uint8 => u8::from_le_bytes(bytes(data)?).into(),
            Self::Int8 => i8::from_le_bytes(bytes(data)?).into(),
            Self::Uint16 => u16::from_le_bytes(bytes(data)?).into(),
            Self::Int16 => i16::from_le_bytes(bytes(data)?).into(),
            Self::Int32 => i32::from_le_bytes(bytes(data)?).into(),
            Self::Int64 => i64::from_le_bytes(bytes(data)?).into(),
            Self::Uint32 => u32::from_le_bytes(bytes(data)?).into(),
            Self::Uint64 => u64::from_le_bytes(bytes(data)?).into(),
            Self::Bool => (bytes::<1>(data)? != [0]).into(),
            Self::String => text(data)?.into(),
        })
    }
}

/// Appends an integer; returns false if the value is not an integer within the range.
fn whole(
    value: &Value,
    range: std::ops::RangeInclusive<i128>,
    bits: u32,
    data: &mut Vec<u8>,
) -> bool {
    let Some(number) = integer(value).filter(|number| range.contains(number)) else { return false };
    // In two's complement, the lower bytes are the value in the narrower type.
    let width = usize::try_from(bits / 8).unwrap_or_default();
    data.extend(number.to_le_bytes().into_iter().take(width));
    true
}

/// Takes the first `N` bytes.
pub(super) fn bytes<const N: usize>(data: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = data.split_first_chunk()?;
    *data = rest;
    Some(*first)
}

/// Takes a string, whose length comes first.
pub(super) fn text(data: &mut &[u8]) -> Option<String> {
    let length = usize::try_from(u32::from_le_bytes(bytes(data)?)).ok()?;
    let (text, rest) = data.split_at_checked(length)?;
    *data = rest;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn there_and_back(element: Element, value: &Value) -> Option<Value> {
        let mut data = Vec::new();
        if !element.append(value, &mut data) {
            assert!(data.is_empty(), "a refused element leaves no bytes");
            return None;
        }
        let mut left = data.as_slice();
        let back = element.take(&mut left);
        assert!(left.is_empty() && element.take(&mut left).is_none());
        back
    }

    #[test]
    fn element_bytes_are_inverse_of_json_within_range() {
        for (element, good, bad) in [
            (Element::Bool, json!([true, false]), json!([1, "true", null])),
            (Element::Uint8, json!([0, 255]), json!([-1, 256, 1.5, "1"])),
            (Element::Int8, json!([-128, 127]), json!([-129, 128])),
            (Element::Uint16, json!([0, 65535]), json!([65536])),
            (Element::Int16, json!([-32768, 32767]), json!([32768])),
            (Element::Int32, json!([i32::MIN, i32::MAX]), json!([2147483648_i64])),
            (Element::Uint32, json!([u32::MAX]), json!([4294967296_i64])),
            (Element::Int64, json!([i64::MIN, i64::MAX]), json!([u64::MAX, 1e300])),
            (Element::Uint64, json!([0, u64::MAX]), json!([-1])),
            (Element::Float16, json!([65504.0, -0.5]), json!([65505, "x"])),
            (Element::Float32, json!([1.5, -3.0]), json!([3.5e38, [1]])),
            (Element::Float64, json!([1e300, 0.1]), json!([true])),
            (Element::String, json!(["", "süß"]), json!([1])),
        ] {
            for value in good.as_array().unwrap() {
                assert_eq!(there_and_back(element, value).as_ref(), Some(value), "{element:?}");
            }
            for value in bad.as_array().unwrap() {
                assert_eq!(there_and_back(element, value), None, "{element:?} {value}");
            }
        }
        assert_eq!(there_and_back(Element::Int32, &json!(3.0)), Some(json!(3)));
        assert_eq!(
            Element::Float32.take(&mut f32::NAN.to_le_bytes().as_slice()),
            Some(Value::Null)
        );
    }

    #[test]
    fn element_names_are_those_of_the_protocol() {
        for code in 1..=13 {
            let element = Element::of_code(code).unwrap();
            assert_eq!(json!(element), element.as_str());
        }
        assert!([0, 14, 15, 16, u64::MAX].into_iter().all(|code| Element::of_code(code).is_none()));
    }
}
