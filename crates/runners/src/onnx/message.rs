//! The messages between the service and a model's process: a line of JSON, followed by the bytes of
//! the tensors or files that the line lists. This module does no I/O.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::element::Element;
use super::graph::{Dimension, Graph, RANK_MAX, Tensor};
use super::preparation::{Labels, Named, Preparation};
use crate::oip::metadata::{is_single, tensor_schema};
use crate::oip::tensors::{elements_of, nest};
use orrery_http::request::JSON_VALUES_MAX;

/// Maximum number of elements of all tensors in a request, and of all tensors in a response.
pub(super) const ELEMENTS_MAX: usize = JSON_VALUES_MAX;

/// One input or output, whose bytes follow the line.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub name: String,
    pub content: Content,
    /// Number of bytes.
    pub bytes: usize,
}

/// What the bytes are.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Content {
    Tensor { element: Element, shape: Vec<usize> },
    File(Preparation),
}

/// The parts of a message with their bytes.
pub(crate) type Parts<'m> = Vec<(Part, &'m [u8])>;

/// Writes a message.
pub(crate) fn encode(parts: &[(Part, impl AsRef<[u8]>)]) -> Vec<u8> {
    let heads: Vec<&Part> = parts.iter().map(|(part, _)| part).collect();
    let mut message = json!(heads).to_string().into_bytes();
    message.push(b'\n');
    for (_, bytes) in parts {
        message.extend_from_slice(bytes.as_ref());
    }
    message
}

/// Reads a message; returns `None` if it is invalid.
pub(crate) fn decode(message: &[u8]) -> Option<Parts<'_>> {
    let end = message.iter().position(|byte| *byte == b'\n')?;
    let (head, rest) = message.split_at_checked(end)?;
    let heads: Vec<Part> = serde_json::from_slice(head).ok()?;
    let mut rest = rest.get(1..)?;
    let mut parts = Vec::new();
    for part in heads {
        let (bytes, after) = rest.split_at_checked(part.bytes)?;
        rest = after;
        parts.push((part, bytes));
    }
    rest.is_empty().then_some(parts)
}

/// Returns the request schema of a model.
pub(super) fn schema(graph: &Graph, prepared: &Named<Preparation>) -> Value {
    let of = |tensor: &Tensor| match prepared.get(&tensor.name) {
        Some(prepared) => prepared.schema(tensor),
        None => {
            let shape = tensor.shape.as_ref().map(|shape| lengths(shape));
            let description = format!("{tensor}.");
            tensor_schema(tensor.element.datatype(), shape.as_deref(), &description)
        }
    };
    let properties: Map<String, Value> =
        graph.inputs.iter().map(|tensor| (tensor.name.clone(), of(tensor))).collect();
    let required: Vec<&str> = graph.inputs.iter().map(|tensor| tensor.name.as_str()).collect();
    json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false,
    })
}

/// Returns the lengths of a shape, where -1 is any length.
fn lengths(shape: &[Dimension]) -> Vec<i64> {
    let length = |dimension: &Dimension| match dimension {
        Dimension::Fixed(length) => i64::try_from(*length).unwrap_or(i64::MAX),
        Dimension::Named(_) | Dimension::Any => -1,
    };
    shape.iter().map(length).collect()
}

/// The lengths of the named dimensions of a request, each with the input that set it.
#[derive(Debug, Default)]
pub(super) struct NamedLengths<'g> {
    known: Vec<(&'g str, usize, &'g str)>,
}

impl<'g> NamedLengths<'g> {
    /// Checks the shape of an input.
    fn check(&mut self, tensor: &'g Tensor, shape: &[usize]) -> Result<(), String> {
        let name = tensor.name.as_str();
        let Some(wanted) = &tensor.shape else { return Ok(()) };
        let fits = |(length, wanted): (&usize, &Dimension)| match wanted {
            Dimension::Fixed(wanted) => wanted == length,
            Dimension::Named(_) | Dimension::Any => true,
        };
        if shape.len() != wanted.len() || !shape.iter().zip(wanted).all(fits) {
            return Err(format!("'{name}' has the shape {shape:?}, but the model takes {tensor}"));
        }
        for (length, wanted) in shape.iter().zip(wanted) {
            let Dimension::Named(dimension) = wanted else { continue };
            match self.known.iter().find(|(known, ..)| known == dimension) {
                Some((_, other, of)) if other != length => {
                    return Err(format!(
                        "the dimension '{dimension}' is {other} in '{of}', but {length} in '{name}'"
                    ));
                }
                Some(_) => {}
                None => self.known.push((dimension, *length, name)),
            }
        }
        Ok(())
    }
}

/// Converts nested arrays to a tensor. `left` is the number of elements that the request may still
/// have.
///
/// # Errors
/// The fault in the value, as a sentence.
pub(super) fn tensor<'g>(
    tensor: &'g Tensor,
    value: &Value,
    named: &mut NamedLengths<'g>,
    left: &mut usize,
) -> Result<(Part, Vec<u8>), String> {
    let name = &tensor.name;
    let mut shape = shape_of(value);
    if shape.len() > RANK_MAX {
        return Err(format!("'{name}' has more than {RANK_MAX} dimensions"));
    }
    let mut flat = Flat { tensor, data: Vec::new(), left, at: Vec::new() };
    flat.append(value, &shape)?;
    let data = flat.data;
    if let Some(wanted) = &tensor.shape
        && shape.is_empty()
        && is_single(&lengths(wanted))
    {
        shape = vec![1; wanted.len()];
    }
    named.check(tensor, &shape)?;
    let content = Content::Tensor { element: tensor.element, shape };
    Ok((Part { name: name.clone(), content, bytes: data.len() }, data))
}

/// Returns the shape of nested arrays, by their first elements. The result may have one dimension
/// more than is allowed.
pub(super) fn shape_of(value: &Value) -> Vec<usize> {
    let mut shape = Vec::new();
    let mut first = Some(value);
    while let Some(Value::Array(items)) = first
        && shape.len() <= RANK_MAX
    {
        shape.push(items.len());
        first = items.first();
    }
    shape
}

/// A tensor that is being written.
struct Flat<'a> {
    tensor: &'a Tensor,
    data: Vec<u8>,
    left: &'a mut usize,
    /// The indexes of the current array.
    at: Vec<usize>,
}

impl Flat<'_> {
    fn append(&mut self, value: &Value, shape: &[usize]) -> Result<(), String> {
        match (value, shape.split_first()) {
            (Value::Array(items), Some((length, rest))) if items.len() == *length => {
                for (index, item) in items.iter().enumerate() {
                    self.at.push(index);
                    self.append(item, rest)?;
                    self.at.pop();
                }
                Ok(())
            }
            (Value::Array(_), _) | (_, Some(_)) => {
                Err(format!("{} differs in its length from the arrays before it", self.place()))
            }
            (element, None) => {
                *self.left = self.left.checked_sub(1).ok_or_else(|| {
                    format!("the tensors have more than {ELEMENTS_MAX} elements together")
                })?;
                if self.tensor.element.append(element, &mut self.data) {
                    return Ok(());
                }
                let kind = self.tensor.element.as_str();
                let shown: String = element.to_string().chars().take(40).collect();
                Err(format!("{} is {shown}, which is not a valid {kind}", self.place()))
            }
        }
    }

    /// Returns the path of the current value.
    fn place(&self) -> String {
        let indexes: String = self.at.iter().map(|index| format!("[{index}]")).collect();
        format!("'{}{indexes}'", self.tensor.name)
    }
}

/// Converts the tensors of a response to the model's output.
///
/// # Errors
/// The fault, as a phrase that follows "its answer".
pub(super) fn output(message: &[u8], labels: &Named<Labels>) -> Result<Value, String> {
    let parts = decode(message).ok_or_else(|| "cannot be read".to_owned())?;
    let mut left = ELEMENTS_MAX;
    let mut outputs = Map::new();
    for (part, bytes) in parts {
        let Part { name, content: Content::Tensor { element, shape }, .. } = part else {
            return Err("contains a file".to_owned());
        };
        let mut rest = bytes;
        let mut elements = std::iter::from_fn(|| element.take(&mut rest));
        let shown = match labels.get(&name) {
            Some(labels) => {
                let count = elements_of(&shape).filter(|count| *count <= ELEMENTS_MAX);
                let scores = elements.map(|score| score.as_f64().unwrap_or(f64::NEG_INFINITY));
                let scores: Vec<f64> = scores.take(count.unwrap_or_default()).collect();
                let ranked = labels.ranked(&shape, &scores);
                ranked.map_err(|what| format!("'{name}' {what}"))?
            }
            None => {
                let data = nest(&shape, &mut elements, &mut left);
                let data = data.ok_or_else(|| format!("has more than {ELEMENTS_MAX} values"))?;
                json!({"shape": shape, "type": element, "data": data})
            }
        };
        outputs.insert(name, shown);
    }
    Ok(Value::Object(outputs))
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
