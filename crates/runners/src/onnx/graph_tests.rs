//! Valid, truncated and hostile files.

use std::io::Cursor;

use super::*;
use crate::onnx::files::{self, Dim, FLOAT, INT64, Model, message, number};

fn read(bytes: &[u8]) -> Result<Graph, String> {
    let length = u64::try_from(bytes.len()).unwrap();
    Graph::parse(Cursor::new(bytes), length).map_err(|error| error.to_string())
}

fn small() -> Model {
    Model::new().node("Identity", &["x"], &["y"]).output("y", FLOAT)
}

#[test]
fn onnx_graph_lists_inputs_without_weights() {
    let model = Model::new()
        .input("image", FLOAT, &[Dim::Named("batch"), Dim::Fixed(3), Dim::Any])
        .input("w", FLOAT, &[Dim::Fixed(1)])
        .shapeless_input("state", INT64)
        .input("scalar", 10, &[])
        .weights("w", &[1], &[1.0])
        .output("y", FLOAT);
    let graph = read(&model.bytes()).unwrap();
    let shown: Vec<String> =
        graph.inputs.iter().map(|tensor| format!("{}: {tensor}", tensor.name)).collect();
    assert_eq!(
        shown,
        ["image: float32 [batch, 3, ?]", "state: int64 of any shape", "scalar: float16 []"]
    );
    assert_eq!((graph.outputs.len(), graph.outputs[0].name.as_str()), (1, "y"));
}

#[test]
fn onnx_graph_treats_negative_and_nameless_dimensions_as_any_length() {
    let dims = [Dim::Fixed(u64::MAX), Dim::Named("?"), Dim::Named("")];
    let graph = read(&small().input("x", FLOAT, &dims).bytes()).unwrap();
    assert_eq!(graph.inputs[0].shape, Some(vec![Dimension::Any; 3]));
}

#[test]
fn onnx_graph_rejects_invalid_files() {
    let many =
        (0..=TENSORS_MAX).fold(small(), |model, n| model.input(&format!("x{n}"), FLOAT, &[]));
    let external = [message(8, b"w"), number(14, 1)].concat();
    let no_tensor = [message(1, b"x"), message(2, &message(4, &[]))].concat();
    for (file, says) in [
        (b"GGUF".to_vec(), "is not an ONNX file"),
        (Vec::new(), "is not an ONNX file"),
        (b"<html>an error page</html>".to_vec(), "is "),
        (number(1, 8), "is not an ONNX file"),
        (Model::new().bytes(), "has no outputs"),
        (many.bytes(), "has more than 256 inputs"),
        (small().input("x", FLOAT, &[Dim::Any; 9]).bytes(), "more than 8 dimensions"),
        (small().input("x", 16, &[]).bytes(), "'x' with the unsupported element type 16"),
        (small().input("", FLOAT, &[]).bytes(), "has an input without a name"),
        (small().input(&"x".repeat(257), FLOAT, &[]).bytes(), "has a name of over 256 bytes"),
        (small().input("x", FLOAT, &[]).input("x", FLOAT, &[]).bytes(), "has two inputs named 'x'"),
        (small().raw(5, &external).bytes(), "has its weights in other files"),
        (small().raw(12, &no_tensor).bytes(), "the output 'x', which is not a tensor"),
        ([small().bytes(), message(7, &[0x0b])].concat(), "is not an ONNX file"),
        ([0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f].to_vec(), "is cut off"),
        ([0x08].repeat(20), "is not an ONNX file"),
    ] {
        let error = read(&file).unwrap_err();
        assert!(error.contains(says), "{error}, not {says}");
    }
}

#[test]
fn onnx_graph_survives_truncation_and_mutation() {
    let whole = files::powers(3).bytes();
    let graph = read(&whole).unwrap();
    for end in 0..whole.len() {
        assert!(read(&whole[..end]).is_err(), "cut off at {end}");
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut changed = whole.clone();
            changed[at] ^= 1 << bit;
            // The reader must return; whether the file is still valid depends on the bit.
            drop(read(&changed));
        }
    }
    assert_eq!(graph.inputs.len(), 2);
}
