//! Writes small ONNX files for tests and benchmarks: protocol buffers with the fields of
//! `onnx.proto`.

/// The element types (`TensorProto.DataType`).
pub const FLOAT: u64 = 1;
pub const INT64: u64 = 7;

/// A dimension of an input.
#[derive(Debug, Clone, Copy)]
pub enum Dim {
    Fixed(u64),
    Named(&'static str),
    Any,
}

/// A model that is being written.
#[derive(Debug, Clone, Default)]
pub struct Model {
    graph: Vec<u8>,
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let byte = u8::try_from(number & 0x7f).unwrap_or_default();
        number >>= 7;
        if number == 0 {
            bytes.push(byte);
            return bytes;
        }
        bytes.push(byte | 0x80);
    }
}

/// Returns a field with a number.
#[must_use]
pub fn number(field: u64, number: u64) -> Vec<u8> {
    [varint(field << 3), varint(number)].concat()
}

/// Returns a field with bytes: a text, or a message that consists of the bytes of its fields.
#[must_use]
pub fn message(field: u64, content: &[u8]) -> Vec<u8> {
    let length = varint(content.len() as u64);
    [&varint(field << 3 | 2), &length, content].concat()
}

/// Returns a ValueInfoProto.
fn value(name: &str, element: u64, shape: Option<&[Dim]>) -> Vec<u8> {
    let dims = shape.unwrap_or_default().iter().map(|dim| match dim {
        Dim::Fixed(length) => message(1, &number(1, *length)),
        Dim::Named(name) => message(1, &message(2, name.as_bytes())),
        Dim::Any => message(1, &[]),
    });
    let dims: Vec<u8> = dims.flatten().collect();
    let shape = shape.map_or_else(Vec::new, |_| message(2, &dims));
    let kind = message(2, &message(1, &[number(1, element), shape].concat()));
    [message(1, name.as_bytes()), kind].concat()
}

impl Model {
    /// Starts an empty model.
    #[must_use]
    pub fn new() -> Self {
        Self { graph: message(2, b"g") }
    }

    fn with(mut self, field: u64, content: &[u8]) -> Self {
        self.graph.extend(message(field, content));
        self
    }

    /// Adds an input.
    #[must_use]
    pub fn input(self, name: &str, element: u64, shape: &[Dim]) -> Self {
        self.with(11, &value(name, element, Some(shape)))
    }

    /// Adds an input of any shape.
    #[must_use]
    pub fn shapeless_input(self, name: &str, element: u64) -> Self {
        self.with(11, &value(name, element, None))
    }

    /// Adds an output.
    #[must_use]
    pub fn output(self, name: &str, element: u64) -> Self {
        self.with(12, &value(name, element, None))
    }

    /// Adds an encoded field to the graph, unchanged.
    #[must_use]
    pub fn raw(self, field: u64, content: &[u8]) -> Self {
        self.with(field, content)
    }

    /// Adds an operation.
    #[must_use]
    pub fn node(self, operator: &str, inputs: &[&str], outputs: &[&str]) -> Self {
        let names = |field, names: &[&str]| -> Vec<u8> {
            names.iter().flat_map(|name| message(field, name.as_bytes())).collect()
        };
        let node = [names(1, inputs), names(2, outputs), message(4, operator.as_bytes())].concat();
        self.with(1, &node)
    }

    /// Adds weights.
    #[must_use]
    pub fn weights(self, name: &str, shape: &[u64], numbers: &[f32]) -> Self {
        let dims: Vec<u8> = shape.iter().flat_map(|length| number(1, *length)).collect();
        let data: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let kind = number(2, FLOAT);
        let tensor = [dims, kind, message(8, name.as_bytes()), message(9, &data)].concat();
        self.with(5, &tensor)
    }

    /// Returns the file.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        // The version of the format, and of the set of operators.
        let operators = message(8, &number(2, 13));
        [number(1, 8), operators, message(7, &self.graph)].concat()
    }
}

/// Returns a model with the output `y = x * 2 + 1` for vectors of any length.
#[must_use]
pub fn line() -> Model {
    Model::new()
        .input("x", FLOAT, &[Dim::Named("n")])
        .weights("two", &[1], &[2.0])
        .weights("one", &[1], &[1.0])
        .node("Mul", &["x", "two"], &["twice"])
        .node("Add", &["twice", "one"], &["y"])
        .output("y", FLOAT)
}

/// Returns a model whose time grows with the cube of the length of its two inputs: `y` is
/// `(x xᵀ)ᵐ z`, computed from left to right.
#[must_use]
pub fn powers(m: usize) -> Model {
    let column = [Dim::Named("n"), Dim::Fixed(1)];
    let mut model = Model::new()
        .input("x", FLOAT, &column)
        .input("z", FLOAT, &column)
        .node("Transpose", &["x"], &["row"])
        .node("MatMul", &["x", "row"], &["p0"]);
    for power in 1..m {
        let (before, after) = (format!("p{}", power - 1), format!("p{power}"));
        model = model.node("MatMul", &[&before, "p0"], &[&after]);
    }
    let last = format!("p{}", m - 1);
    model.node("MatMul", &[&last, "z"], &["y"]).output("y", FLOAT)
}
