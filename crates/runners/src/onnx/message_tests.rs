//! Schemas, requests and responses.

use orrery_schema::Schema;

use super::*;

fn one(name: &str, element: Element, shape: Option<Vec<Dimension>>) -> Tensor {
    Tensor { name: name.to_owned(), element, shape }
}

fn named(name: &str) -> Dimension {
    Dimension::Named(name.to_owned())
}

fn graph() -> Graph {
    Graph {
        inputs: vec![
            one("x", Element::Uint8, Some(vec![named("n"), Dimension::Fixed(2)])),
            one("z", Element::Float32, Some(vec![named("n")])),
            one("s", Element::Int64, Some(Vec::new())),
            one("t", Element::String, Some(vec![Dimension::Fixed(1)])),
            one("any", Element::Bool, None),
        ],
        outputs: Vec::new(),
        file_bytes: 0,
    }
}

#[test]
fn onnx_schema_follows_the_inputs() {
    let schema = schema(&graph(), &Named::new());
    assert_eq!(schema["properties"]["x"]["description"], "uint8 [n, 2].");
    assert_eq!(schema["required"], json!(["x", "z", "s", "t", "any"]));
    let schema = Schema::compile(&schema).unwrap();
    let input = json!({"x": [[1, 2]], "z": [0.5], "s": 3, "t": "a", "any": [[true]]});
    assert!(schema.check(input.clone()).is_ok());
    for (name, bad) in [
        ("x", json!([[1, 256]])),
        ("x", json!([[1]])),
        ("z", json!(["a"])),
        ("s", json!([3])),
        ("more", json!(1)),
    ] {
        let mut input = input.clone();
        input[name] = bad;
        assert!(schema.check(input.clone()).is_err(), "{input}");
    }
}

/// Converts the inputs with these names.
fn converted(input: &Value) -> Result<Vec<(Part, Vec<u8>)>, String> {
    let graph = graph();
    let mut named = NamedLengths::default();
    let mut left = 8;
    let given = graph.inputs.iter().filter(|tensor| input.get(&tensor.name).is_some());
    given.map(|one| tensor(one, &input[&one.name], &mut named, &mut left)).collect()
}

#[test]
fn onnx_tensor_is_flat_in_row_major_order() {
    let parts = converted(&json!({"x": [[1, 2], [3, 255]], "s": -1, "t": "ab"})).unwrap();
    assert_eq!(parts[0].1, [1, 2, 3, 255]);
    assert_eq!(parts[1].1, [255; 8]);
    assert_eq!(parts[2].1, [2, 0, 0, 0, b'a', b'b']);
    let shapes: Vec<&Content> = parts.iter().map(|(part, _)| &part.content).collect();
    let of = |element, shape: &[usize]| Content::Tensor { element, shape: shape.to_vec() };
    assert_eq!(
        shapes,
        [&of(Element::Uint8, &[2, 2]), &of(Element::Int64, &[]), &of(Element::String, &[1])]
    );
    let message = encode(&parts);
    let read = decode(&message).unwrap();
    assert!(read.iter().zip(&parts).all(|(a, b)| a.0 == b.0 && a.1 == b.1));
    assert!(decode(&message[..message.len() - 1]).is_none());
    assert!(decode(&[&message[..], b"x"].concat()).is_none());
    assert!(decode(b"[]").is_none());
}

#[test]
fn onnx_tensor_error_names_the_place() {
    let deep = (0..=RANK_MAX).fold(json!(true), |inner, _| json!([inner]));
    for (input, says) in [
        (json!({"x": [[1, 2], [3, 256]]}), "'x[1][1]' is 256, which is not a valid uint8"),
        (json!({"x": [[1, 2], [3]]}), "'x[1]' differs in its length"),
        (json!({"x": [[1, 2], 3]}), "'x[1]' differs in its length"),
        (json!({"x": [[1, [2]]]}), "'x[0][1]' differs in its length"),
        (json!({"x": [[1, 2, 3]]}), "'x' has the shape [1, 3], but the model takes uint8 [n, 2]"),
        (json!({"x": [[1, 2]], "z": [1, 2]}), "the dimension 'n' is 1 in 'x', but 2 in 'z'"),
        (json!({"z": [1, 2, 3, 4, 5, 6, 7, 8, 9]}), "more than 1000000 elements together"),
        (json!({"s": 1.5}), "'s' is 1.5, which is not a valid int64"),
        (json!({"any": deep}), "'any' has more than 8 dimensions"),
    ] {
        let error = converted(&input).unwrap_err();
        assert!(error.contains(says), "{error}, not {says}");
    }
}

#[test]
fn onnx_output_is_nested_with_its_shape() {
    let part = |name: &str, shape: &[usize], data: &[f32]| {
        let data: Vec<u8> = data.iter().flat_map(|number| number.to_le_bytes()).collect();
        let content = Content::Tensor { element: Element::Float32, shape: shape.to_vec() };
        (Part { name: name.to_owned(), content, bytes: data.len() }, data)
    };
    let message =
        encode(&[part("y", &[2, 1], &[1.5, f32::INFINITY]), part("p", &[1, 2], &[0.25, 0.75])]);
    let labels = Labels { labels: vec!["no".to_owned(), "yes".to_owned()], top: 1, softmax: false };
    let labels = Named::from([("p".to_owned(), labels)]);
    assert_eq!(
        output(&message, &labels).unwrap(),
        json!({
            "y": {"shape": [2, 1], "type": "float32", "data": [[1.5], [null]]},
            "p": [{"label": "yes", "score": 0.75}],
        })
    );
    for (shape, data) in
        [(vec![2], vec![1.0]), (vec![1 << 40, 0], vec![]), (vec![2_000_000], vec![])]
    {
        let message = encode(&[part("y", &shape, &data)]);
        assert!(output(&message, &Named::new()).unwrap_err().contains("more than 1000000 values"));
    }
    assert_eq!(output(b"x", &Named::new()).unwrap_err(), "cannot be read");
}
