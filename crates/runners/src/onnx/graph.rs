//! Reads the inputs and outputs of an ONNX file, which is a protocol buffer, without reading its
//! weights.
//!
//! Counts, lengths and nesting are limited, and no allocation depends on a length stated in the
//! file. The numbers of fields are those of `onnx.proto` of the ONNX project.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufRead, BufReader, Seek};
use std::path::Path;

use super::element::Element;
use orrery_runtime::regular_file;

/// Maximum number of fields in the parts of the file that are read.
const FIELDS_MAX: u32 = 4 * 1024 * 1024;
/// Maximum number of inputs and of outputs.
const TENSORS_MAX: usize = 256;
/// Maximum number of tensors of weights.
const WEIGHTS_MAX: usize = 128 * 1024;
/// Maximum number of dimensions of a tensor.
pub(super) const RANK_MAX: usize = 8;
/// Maximum length of a name, in bytes.
const NAME_MAX: u64 = 256;
/// Maximum length of a dimension.
const LENGTH_MAX: u64 = 1 << 32;

/// The error for a rejected file, as a phrase that follows the file's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Error(String);

impl Error {
    fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    fn invalid() -> Self {
        Self::new("is not an ONNX file")
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Self::new("is cut off; is it still being copied?");
        }
        Self(format!("cannot be read: {error}"))
    }
}

/// The inputs and outputs of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Graph {
    pub inputs: Vec<Tensor>,
    pub outputs: Vec<Tensor>,
    /// Size of the file, in bytes.
    pub file_bytes: u64,
}

/// The name and the type of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub name: String,
    pub element: Element,
    /// `None` if the model does not declare a shape.
    pub shape: Option<Vec<Dimension>>,
}

/// The length of a tensor along one axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Dimension {
    Fixed(usize),
    /// Any length, which is the same for all dimensions with this name.
    Named(String),
    Any,
}

impl fmt::Display for Tensor {
    /// Writes the type as `float32 [batch, 3, ?]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.element.as_str())?;
        let Some(shape) = &self.shape else { return f.write_str(" of any shape") };
        let lengths: Vec<String> = shape
            .iter()
            .map(|dimension| match dimension {
                Dimension::Fixed(length) => length.to_string(),
                Dimension::Named(name) => name.clone(),
                Dimension::Any => "?".to_owned(),
            })
            .collect();
        write!(f, " [{}]", lengths.join(", "))
    }
}

impl Graph {
    /// Reads the description of the model in a file.
    ///
    /// # Errors
    /// The fault in the file.
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let file = match regular_file::open(path) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(Error::new("is not a file"));
            }
            file => file?,
        };
        let length = file.metadata()?.len();
        Self::parse(BufReader::with_capacity(64 * 1024, file), length)
    }

    /// Reads a description like [`Graph::read`], from a source with `length` bytes.
    fn parse(source: impl BufRead + Seek, length: u64) -> Result<Self, Error> {
        let mut reader = Reader { source, at: 0, fields: 0 };
        let mut found = Found::default();
        let mut has_graph = false;
        // The fields of ModelProto.
        reader.message(length, |reader, number, content| match (number, content) {
            (7, Content::Bytes(end)) => {
                has_graph = true;
                reader.graph(end, &mut found)
            }
            _ => Ok(()),
        })?;
        if !has_graph {
            return Err(Error::invalid());
        }
        let is_input = |tensor: &Declared| !found.initializers.contains(&tensor.name);
        let inputs = found.inputs.into_iter().filter(is_input);
        let inputs = inputs.map(|one| one.known("input")).collect::<Result<Vec<_>, _>>()?;
        let outputs = found.outputs.into_iter().map(|one| one.known("output"));
        let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
        if outputs.is_empty() {
            return Err(Error::new("has no outputs"));
        }
        for (word, tensors) in [("inputs", &inputs), ("outputs", &outputs)] {
            if tensors.len() > TENSORS_MAX {
                return Err(Error(format!("has more than {TENSORS_MAX} {word}")));
            }
            let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            let is_double =
                |(at, name): (usize, &&str)| names.iter().take(at).any(|one| one == name);
            if let Some((_, name)) = names.iter().enumerate().find(|one| is_double(*one)) {
                return Err(Error(format!("has two {word} named '{name}'")));
            }
        }
        Ok(Self { inputs, outputs, file_bytes: length })
    }
}

/// The parts of the graph that have been read so far.
#[derive(Debug, Default)]
struct Found {
    inputs: Vec<Declared>,
    outputs: Vec<Declared>,
    /// The names of the weights. Older files also list these as inputs.
    initializers: HashSet<String>,
}

/// An input or output as declared.
#[derive(Debug, Default)]
struct Declared {
    name: String,
    /// Whether the type is a tensor.
    is_tensor: bool,
    element: u64,
    shape: Option<Vec<Dimension>>,
}

impl Declared {
    fn known(self, word: &str) -> Result<Tensor, Error> {
        let Self { name, is_tensor, element, shape } = self;
        if name.is_empty() {
            return Err(Error(format!("has an {word} without a name")));
        }
        if !is_tensor {
            let message = format!(
                "has the {word} '{name}', which is not a tensor: export the model without maps and \
                 sequences (for scikit-learn: zipmap=False)"
            );
            return Err(Error(message));
        }
        let element = Element::of_code(element).ok_or_else(|| {
            Error(format!("has the {word} '{name}' with the unsupported element type {element}"))
        })?;
        Ok(Tensor { name, element, shape })
    }
}

/// The content of a field.
#[derive(Debug, Clone, Copy)]
enum Content {
    Number(u64),
    /// The position at which the bytes of a text or a message end.
    Bytes(u64),
    Fixed,
}

/// A source and the position in it.
struct Reader<S> {
    source: S,
    at: u64,
    /// Number of fields read so far.
    fields: u32,
}

impl<S: BufRead + Seek> Reader<S> {
    fn byte(&mut self) -> Result<u8, Error> {
        let mut byte = [0];
        self.source.read_exact(&mut byte)?;
        self.at += 1;
        let [byte] = byte;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Error::invalid())
    }

    fn skip_to(&mut self, end: u64) -> Result<(), Error> {
        let by = end.checked_sub(self.at).ok_or_else(Error::invalid)?;
        self.source.seek_relative(i64::try_from(by).map_err(|_huge| Error::invalid())?)?;
        self.at = end;
        Ok(())
    }

    /// Reads the fields of a message that ends at `end`. `field` gets the number and the content of
    /// each field, and need not read the content.
    fn message(
        &mut self,
        end: u64,
        mut field: impl FnMut(&mut Self, u64, Content) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while self.at < end {
            self.fields += 1;
            if self.fields > FIELDS_MAX {
                return Err(Error(format!("has more than {FIELDS_MAX} fields")));
            }
            let key = self.varint()?;
            let (content, after) = match key & 7 {
                0 => (Content::Number(self.varint()?), self.at),
                1 => (Content::Fixed, self.at.saturating_add(8)),
                2 => {
                    let length = self.varint()?;
                    let after = self.at.saturating_add(length);
                    (Content::Bytes(after), after)
                }
                5 => (Content::Fixed, self.at.saturating_add(4)),
                _ => return Err(Error::invalid()),
            };
            if key >> 3 == 0 {
                return Err(Error::invalid());
            }
            if after > end {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            field(self, key >> 3, content)?;
            self.skip_to(after)?;
        }
        Ok(())
    }

    fn text(&mut self, end: u64) -> Result<String, Error> {
        let length = end.checked_sub(self.at).filter(|length| *length <= NAME_MAX);
        let length = length.ok_or_else(|| Error(format!("has a name of over {NAME_MAX} bytes")))?;
        let bytes = (0..length).map(|_| self.byte()).collect::<Result<Vec<u8>, Error>>()?;
        String::from_utf8(bytes).map_err(|_invalid| Error::invalid())
    }

    /// Reads a GraphProto.
    fn graph(&mut self, end: u64, found: &mut Found) -> Result<(), Error> {
        self.message(end, |reader, number, content| {
            let Content::Bytes(end) = content else { return Ok(()) };
            let tensors = match number {
                5 => {
                    let name = reader.weights(end)?;
                    if found.initializers.len() >= WEIGHTS_MAX {
                        return Err(Error(format!("has more than {WEIGHTS_MAX} tensors")));
                    }
                    found.initializers.insert(name);
                    return Ok(());
                }
                11 => &mut found.inputs,
                12 => &mut found.outputs,
                _ => return Ok(()),
            };
            if tensors.len() >= WEIGHTS_MAX {
                return Err(Error(format!("has more than {WEIGHTS_MAX} tensors")));
            }
            tensors.push(reader.declared(end)?);
            Ok(())
        })
    }

    /// Reads the name in a TensorProto.
    fn weights(&mut self, end: u64) -> Result<String, Error> {
        let mut name = String::new();
        self.message(end, |reader, number, content| match (number, content) {
            (8, Content::Bytes(end)) => {
                name = reader.text(end)?;
                Ok(())
            }
            (14, Content::Number(1)) => Err(Error::new(
                "has its weights in other files, which is not supported: save the model as one file",
            )),
            _ => Ok(()),
        })?;
        Ok(name)
    }

    /// Reads a ValueInfoProto.
    fn declared(&mut self, end: u64) -> Result<Declared, Error> {
        let mut declared = Declared::default();
        self.message(end, |reader, number, content| match (number, content) {
            (1, Content::Bytes(end)) => {
                declared.name = reader.text(end)?;
                Ok(())
            }
            // The fields of TypeProto.
            (2, Content::Bytes(end)) => reader.message(end, |reader, number, content| {
                let (1, Content::Bytes(end)) = (number, content) else { return Ok(()) };
                declared.is_tensor = true;
                reader.tensor_type(end, &mut declared)
            }),
            _ => Ok(()),
        })?;
        Ok(declared)
    }

    /// Reads a TypeProto.Tensor.
    fn tensor_type(&mut self, end: u64, declared: &mut Declared) -> Result<(), Error> {
        self.message(end, |reader, number, content| match (number, content) {
            (1, Content::Number(code)) => {
                declared.element = code;
                Ok(())
            }
            (2, Content::Bytes(end)) => {
                let shape = declared.shape.insert(Vec::new());
                // The fields of TensorShapeProto.
                reader.message(end, |reader, number, content| {
                    let (1, Content::Bytes(end)) = (number, content) else { return Ok(()) };
                    if shape.len() == RANK_MAX {
                        let message = format!("has a tensor of more than {RANK_MAX} dimensions");
                        return Err(Error(message));
                    }
                    shape.push(reader.dimension(end)?);
                    Ok(())
                })
            }
            _ => Ok(()),
        })
    }

    /// Reads a TensorShapeProto.Dimension.
    fn dimension(&mut self, end: u64) -> Result<Dimension, Error> {
        let mut dimension = Dimension::Any;
        self.message(end, |reader, number, content| {
            match (number, content) {
                // Some exporters write -1 for any length.
                (1, Content::Number(length)) if length < LENGTH_MAX => {
                    let length = usize::try_from(length).map_err(|_invalid| Error::invalid())?;
                    dimension = Dimension::Fixed(length);
                }
                (2, Content::Bytes(end)) => {
                    let name = reader.text(end)?;
                    let is_name = !name.is_empty() && name != "?";
                    dimension = if is_name { Dimension::Named(name) } else { Dimension::Any };
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(dimension)
    }
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
