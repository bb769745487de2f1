//! Parses a model's metadata from an Open Inference Protocol server: its tensors, and the request
//! schema derived from them. This module does no I/O.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::ModelInterface;
use orrery_domain::json_object::whole_number;
use orrery_domain::model::OutputType;
use orrery_schema::Schema;

/// Maximum number of input tensors of a model.
const TENSORS_MAX: usize = 256;
/// Maximum length of a tensor name, in characters.
const NAME_CHARS_MAX: usize = 256;
/// Maximum number of dimensions of a tensor.
pub(super) const RANK_MAX: usize = 16;
/// The input fields of the protocol's native format.
pub(super) const OWN_FORM: [&str; 3] = ["inputs", "outputs", "parameters"];

/// The datatypes that have a JSON representation in the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Datatype {
    Bool,
    Unsigned(u32),
    Signed(u32),
    Float(u32),
    Bytes,
}

/// An input tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    pub name: String,
    /// The datatype as spelled by the server.
    pub datatype: String,
    /// The shape, in which -1 means any length; `None` if the server does not report a shape.
    pub shape: Option<Vec<i64>>,
}

/// The input tensors of a model; empty if the server does not list them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Metadata {
    pub inputs: Vec<Tensor>,
}

impl Datatype {
    /// Returns the datatype with that name, or `None` if it has no JSON representation.
    pub(super) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "BOOL" => Self::Bool,
            "UINT8" => Self::Unsigned(8),
            "UINT16" => Self::Unsigned(16),
            "UINT32" => Self::Unsigned(32),
            "UINT64" => Self::Unsigned(64),
            "INT8" => Self::Signed(8),
            "INT16" => Self::Signed(16),
            "INT32" => Self::Signed(32),
            "INT64" => Self::Signed(64),
            "FP16" => Self::Float(16),
            "FP32" => Self::Float(32),
            "FP64" => Self::Float(64),
            "BYTES" => Self::Bytes,
            _ => return None,
        })
    }

    /// Returns whether the elements are integers.
    pub(super) const fn is_whole(self) -> bool {
        matches!(self, Self::Unsigned(_) | Self::Signed(_))
    }

    /// Returns the JSON type and the range of an element.
    fn schema(self) -> (&'static str, Map<String, Value>) {
        let mut range = Map::new();
        let mut bound = |low: Value, high: Value| {
            range.insert("minimum".to_owned(), low);
            range.insert("maximum".to_owned(), high);
        };
        let kind = match self {
            Self::Bool => "boolean",
            Self::Bytes => "string",
            Self::Unsigned(bits) => {
                bound(0.into(), (u64::MAX >> (64 - bits.clamp(1, 64))).into());
                "integer"
            }
            Self::Signed(bits) => {
                let shift = 64 - bits.clamp(1, 64);
                bound((i64::MIN >> shift).into(), (i64::MAX >> shift).into());
                "integer"
            }
            Self::Float(16) => {
                bound((-65504).into(), 65504.into());
                "number"
            }
            Self::Float(32) => {
                bound(f64::from(f32::MIN).into(), f64::from(f32::MAX).into());
                "number"
            }
            Self::Float(_) => "number",
        };
        (kind, range)
    }
}

impl Tensor {
    /// Returns whether a single element may be given instead of the complete tensor.
    pub(super) fn takes_scalar(&self) -> bool {
        self.shape.as_ref().is_none_or(|shape| is_single(shape))
    }

    /// Returns the schema of the tensor as nested arrays.
    fn schema(&self) -> Value {
        match Datatype::of(&self.datatype) {
            Some(datatype) => tensor_schema(datatype, self.shape.as_deref(), &self.describe()),
            // The datatype has no JSON representation, so the server validates this tensor.
            None => json!({"description": self.describe()}),
        }
    }

    fn describe(&self) -> String {
        match &self.shape {
            None => format!("{}, of any shape", self.datatype),
            Some(shape) => format!("{} {shape:?}", self.datatype),
        }
    }
}

/// Returns whether tensors of this shape can have a single element.
pub(crate) fn is_single(shape: &[i64]) -> bool {
    shape.iter().all(|length| matches!(length, -1 | 1))
}

/// Returns the schema of a tensor as nested arrays; a length of -1 means any length. A tensor that
/// can have a single element may also be given as this element.
pub(crate) fn tensor_schema(datatype: Datatype, shape: Option<&[i64]>, description: &str) -> Value {
    let (kind, range) = datatype.schema();
    let Some(shape) = shape else {
        return json!({"type": ["array", kind], "description": description});
    };
    let mut schema = Map::from_iter([("type".to_owned(), kind.into())]);
    schema.extend(range.clone());
    for length in shape.iter().rev() {
        schema = array_of(schema, *length);
    }
    if is_single(shape) && schema.get("type") == Some(&"array".into()) {
        // Keywords for arrays do not affect elements, and vice versa.
        schema.insert("type".to_owned(), json!(["array", kind]));
        schema.extend(range);
    }
    schema.insert("description".to_owned(), description.into());
    Value::Object(schema)
}

fn array_of(items: Map<String, Value>, length: i64) -> Map<String, Value> {
    let mut array = Map::new();
    array.insert("type".to_owned(), "array".into());
    array.insert("items".to_owned(), items.into());
    if length >= 0 {
        array.insert("minItems".to_owned(), length.into());
        array.insert("maxItems".to_owned(), length.into());
    }
    array
}

/// Parses the tensors of a model's metadata, and derives its interface.
///
/// # Errors
/// The fault, as a phrase that follows "its metadata".
pub(super) fn read(document: &Value) -> Result<(Metadata, ModelInterface), String> {
    let listed = match document.get("inputs") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(listed)) => listed,
        Some(_) => return Err("has inputs that are not a list".to_owned()),
    };
    if listed.len() > TENSORS_MAX {
        return Err(format!("has more than {TENSORS_MAX} inputs"));
    }
    let mut inputs: Vec<Tensor> = Vec::with_capacity(listed.len());
    for one in listed {
        let tensor = tensor(one)?;
        if inputs.iter().any(|known| known.name == tensor.name) {
            return Err(format!("has two inputs named '{}'", tensor.name));
        }
        inputs.push(tensor);
    }
    let metadata = Metadata { inputs };
    let schema = Schema::compile(&metadata.schema());
    let schema = schema.map_err(|error| format!("leads to an invalid schema: {error}"))?;
    Ok((metadata, ModelInterface { schema: Arc::new(schema), output_type: OutputType::Object }))
}

fn tensor(listed: &Value) -> Result<Tensor, String> {
    let text = |name: &str| listed.get(name).and_then(Value::as_str);
    let name =
        text("name").filter(|name| !name.is_empty() && name.chars().nth(NAME_CHARS_MAX).is_none());
    let name = name.ok_or_else(|| "has an input without a name".to_owned())?;
    let datatype = text("datatype").unwrap_or_default();
    let lengths = |shape: &Vec<Value>| -> Option<Vec<i64>> {
        shape.iter().map(|length| whole_number(length).filter(|length| *length >= -1)).collect()
    };
    let shape = match listed.get("shape") {
        None | Some(Value::Null) => None,
        Some(Value::Array(shape)) if shape.len() <= RANK_MAX => Some(
            lengths(shape)
                .ok_or_else(|| format!("has the input '{name}' with an invalid shape"))?,
        ),
        Some(_) => {
            return Err(format!(
                "has the input '{name}' with a shape that is not a list of at most {RANK_MAX} lengths"
            ));
        }
    };
    Ok(Tensor { name: name.to_owned(), datatype: datatype.to_owned(), shape })
}

impl Metadata {
    /// Returns the tensor with that name.
    pub(super) fn input(&self, name: &str) -> Option<&Tensor> {
        self.inputs.iter().find(|tensor| tensor.name == name)
    }

    /// Returns whether an input is in the protocol's native format, as opposed to having a tensor
    /// named `inputs`.
    pub(super) fn is_own_form(&self, input: &Map<String, Value>) -> bool {
        input.get("inputs").is_some_and(Value::is_array) && self.input("inputs").is_none()
    }

    /// Returns a schema that accepts each tensor by name, or the protocol's native format.
    fn schema(&self) -> Value {
        let mut properties = Map::new();
        for tensor in &self.inputs {
            properties.insert(tensor.name.clone(), tensor.schema());
        }
        let names: Vec<&str> = self.inputs.iter().map(|tensor| tensor.name.as_str()).collect();
        for (name, schema) in own_form() {
            properties.entry(name).or_insert(schema);
        }
        let mut schema = json!({
            "type": "object", "properties": properties, "additionalProperties": false,
        });
        let rule = if self.input("inputs").is_some() {
            json!({"required": names})
        } else if names.is_empty() {
            json!({"required": ["inputs"]})
        } else {
            json!({"if": {"required": ["inputs"]}, "else": {"required": names}})
        };
        if let (Value::Object(schema), Value::Object(rule)) = (&mut schema, rule) {
            schema.extend(rule);
        }
        schema
    }
}

/// Returns the fields of the protocol's native format.
fn own_form() -> [(String, Value); 3] {
    let tensor = json!({
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "datatype": {"type": "string"},
            "parameters": {"type": "object"},
            "data": {"type": ["array", "string", "number", "boolean"]},
        },
    });
    let [inputs, outputs, parameters] = OWN_FORM.map(str::to_owned);
    [
        (
            inputs,
            json!({
                "type": "array", "minItems": 1, "items": tensor,
                "description": "The tensors in the form of the Open Inference Protocol, instead of \
                                each by its name",
            }),
        ),
        (
            outputs,
            json!({
                "type": "array",
                "items": {"type": "object", "required": ["name"]},
                "description": "The requested outputs, in the form of the protocol",
            }),
        ),
        (parameters, json!({"type": "object", "description": "Parameters of the request"})),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(inputs: Value) -> Arc<Schema> {
        read(&json!({"name": "m", "inputs": inputs})).unwrap().1.schema
    }

    #[test]
    fn oip_schema_follows_datatypes_and_shapes() {
        let of = |datatype: &str, shape: Value| {
            schema(json!([{"name": "x", "datatype": datatype, "shape": shape}]))
        };
        for (datatype, shape, good, bad) in [
            ("BOOL", json!([1]), json!([true]), json!([1])),
            ("UINT8", json!([-1]), json!([0, 255]), json!([256])),
            ("UINT8", json!([1]), json!(7), json!(-1)),
            ("INT8", json!([1]), json!([-128]), json!([-129])),
            ("INT16", json!([1]), json!(32767), json!(32768)),
            ("UINT16", json!([1]), json!(65535), json!(65536)),
            ("INT32", json!([1]), json!(-2147483648_i64), json!(2147483648_i64)),
            ("UINT32", json!([1]), json!(4294967295_u32), json!(4294967296_u64)),
            ("INT64", json!([1]), json!(i64::MIN), json!(9223372036854775808_u64)),
            ("UINT64", json!([1]), json!(u64::MAX), json!(-1)),
            ("INT32", json!([1]), json!(3.0), json!(3.5)),
            ("FP16", json!([1]), json!(65504), json!(65505)),
            ("FP32", json!([1]), json!(3e38), json!(3.5e38)),
            ("FP64", json!([]), json!(1e300), json!("1")),
            ("BYTES", json!([-1]), json!(["a", ""]), json!([1])),
            ("FP32", json!([-1, 2]), json!([[1, 2], [3, 4]]), json!([[1, 2], [3]])),
            ("FP32", json!([2]), json!([1, 2]), json!(1)),
            ("FP32", json!([-1, 1]), json!([]), json!([1])),
            ("FP32", json!([1, -1]), json!(5), json!([[1], [2]])),
            ("BF16", json!([1]), json!("whatever"), json!(null)),
        ] {
            let schema = of(datatype, shape.clone());
            let check = |value: &Value| schema.check(json!({"x": value}));
            assert!(check(&good).is_ok(), "{datatype} {shape} {good}: {:?}", check(&good));
            let is_known = datatype != "BF16";
            assert_eq!(check(&bad).is_err(), is_known, "{datatype} {shape} {bad}");
        }
    }

    #[test]
    fn oip_schema_accepts_tensors_by_name_or_native_form() {
        let two = schema(json!([
            {"name": "x", "datatype": "FP32", "shape": [-1]},
            {"name": "y", "datatype": "BYTES", "shape": [1]},
        ]));
        let own = json!({"name": "x", "shape": [1], "datatype": "FP32", "data": [1]});
        for good in [json!({"x": [1], "y": "a"}), json!({"inputs": [own], "parameters": {"a": 1}})]
        {
            assert!(two.check(good.clone()).is_ok(), "{good}: {:?}", two.check(good.clone()));
        }
        for (bad, says) in [
            (json!({"x": 1}), "missing required field 'y'"),
            (json!({"x": 1, "y": "a", "z": 1}), "'z'"),
            (json!({"inputs": []}), "'inputs' is wrong"),
            (json!({"inputs": [{"name": "x"}]}), "missing required field 'shape'"),
        ] {
            let said = format!("{:?}", two.check(bad.clone()).unwrap_err());
            assert!(said.contains(says), "{bad}: {said}");
        }
        let silent = schema(json!(null));
        assert!(silent.check(json!({})).is_err() && silent.check(json!({"x": 1})).is_err());
        // A tensor may have the name of a field of the protocol.
        let odd = schema(json!([{"name": "inputs", "datatype": "BYTES", "shape": [-1]}]));
        assert!(odd.check(json!({"inputs": ["a"]})).is_ok());
        assert!(odd.check(json!({})).is_err());
    }

    #[test]
    fn oip_rejects_unusable_metadata() {
        let many: Vec<Value> = (0..=TENSORS_MAX).map(|n| json!({"name": n.to_string()})).collect();
        let deep = vec![1; RANK_MAX + 1];
        for (inputs, says) in [
            (json!("x"), "has inputs that are not a list"),
            (json!(many), "has more than 256 inputs"),
            (json!([{"datatype": "FP32"}]), "has an input without a name"),
            (json!([{"name": "x"}, {"name": "x"}]), "has two inputs named 'x'"),
            (json!([{"name": "x", "shape": ["a"]}]), "with an invalid shape"),
            (json!([{"name": "x", "shape": [-2]}]), "with an invalid shape"),
            (json!([{"name": "x", "shape": deep}]), "not a list of at most 16 lengths"),
        ] {
            let error = read(&json!({"inputs": inputs})).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
