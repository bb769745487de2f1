//! Converts tensors between nested arrays by name, as people write them, and flat data with a
//! shape, as the protocol sends them. This module does no I/O.

use serde_json::{Map, Value, json};

use super::metadata::{Datatype, Metadata, OWN_FORM, RANK_MAX, Tensor};
use orrery_domain::json_object::whole_number;

/// Maximum number of elements and arrays in one response after nesting.
const VALUES_MAX: usize = 8 * 1024 * 1024;

/// Builds the request body for an input. An input in the protocol's native format is used
/// unchanged; any other input contains the tensors by name, from which the body is built. `id` is
/// the id of the request.
///
/// # Errors
/// The fault in the input, as a sentence.
pub(super) fn request(
    input: &Value,
    metadata: Option<&Metadata>,
    id: &str,
) -> Result<Value, String> {
    let fields = input.as_object().ok_or_else(|| "the input must be an object".to_owned())?;
    let silent = Metadata::default();
    let known = metadata.unwrap_or(&silent);
    let mut body = Map::from_iter([("id".to_owned(), Value::from(id))]);
    if known.is_own_form(fields) {
        let stranger =
            fields.keys().find(|name| !OWN_FORM.contains(&name.as_str()) && *name != "id");
        if let Some(name) = stranger {
            return Err(format!(
                "'{name}' is given together with 'inputs': give each tensor by its name, or all in 'inputs'"
            ));
        }
        for name in OWN_FORM {
            if let Some(value) = fields.get(name) {
                body.insert(name.to_owned(), value.clone());
            }
        }
        return Ok(Value::Object(body));
    }
    if known.inputs.is_empty() {
        return Err(
            "the model does not describe its inputs: give them in 'inputs', in the form of the \
                    Open Inference Protocol"
                .to_owned(),
        );
    }
    let mut inputs = Vec::new();
    for (name, value) in fields {
        match known.input(name) {
            Some(tensor) => inputs.push(flattened(tensor, value)?),
            None if OWN_FORM.contains(&name.as_str()) => {
                body.insert(name.clone(), value.clone());
            }
            None => {
                let names: Vec<&str> = known.inputs.iter().map(|one| one.name.as_str()).collect();
                return Err(format!(
                    "the model has no input '{name}'; its inputs are {}",
                    names.join(", ")
                ));
            }
        }
    }
    body.insert("inputs".to_owned(), inputs.into());
    Ok(Value::Object(body))
}

/// Returns a tensor in the form in which the protocol sends it.
fn flattened(tensor: &Tensor, value: &Value) -> Result<Value, String> {
    let name = &tensor.name;
    let mut shape = Vec::new();
    let mut first = value;
    while let Value::Array(items) = first {
        shape.push(items.len());
        if shape.len() > RANK_MAX {
            return Err(format!("'{name}' has more than {RANK_MAX} dimensions"));
        }
        match items.first() {
            Some(item) => first = item,
            None => break,
        }
    }
    let datatype = Datatype::of(&tensor.datatype);
    let mut data = Vec::new();
    if !flatten(value, &shape, datatype, &mut data) {
        return Err(format!("'{name}' has rows of different lengths"));
    }
    if let Some(wanted) = &tensor.shape {
        if shape.is_empty() && tensor.takes_scalar() {
            shape = vec![1; wanted.len()];
        }
        let fits = |(length, wanted): (&usize, &i64)| {
            *wanted == -1 || u64::try_from(*wanted) == Ok(*length as u64)
        };
        if shape.len() != wanted.len() || !shape.iter().zip(wanted).all(fits) {
            return Err(format!(
                "'{name}' has the shape {shape:?}, but the model takes {wanted:?}"
            ));
        }
    }
    Ok(json!({"name": name, "shape": shape, "datatype": tensor.datatype, "data": data}))
}

/// Appends the elements of nested arrays; returns false if the arrays do not have that shape.
fn flatten(
    value: &Value,
    shape: &[usize],
    datatype: Option<Datatype>,
    data: &mut Vec<Value>,
) -> bool {
    match (value, shape.split_first()) {
        (Value::Array(items), Some((length, rest))) => {
            items.len() == *length && items.iter().all(|item| flatten(item, rest, datatype, data))
        }
        (Value::Array(_), None) => false,
        (_, Some(_)) => false,
        (element, None) => {
            data.push(whole(element, datatype));
            true
        }
    }
}

/// Converts an integer with a fractional part of zero, such as `3.0`, to an integer without a
/// fractional part.
fn whole(element: &Value, datatype: Option<Datatype>) -> Value {
    let float = element.as_f64().filter(|_| element.is_f64());
    match float {
        // Up to this bound, every integer is exact.
        #[expect(clippy::cast_possible_truncation, reason = "bounded, and without a fraction")]
        Some(number)
            if datatype.is_some_and(Datatype::is_whole)
                && number.fract() == 0.0
                && number.abs() <= 9_007_199_254_740_992.0 =>
        {
            (number as i64).into()
        }
        Some(_) | None => element.clone(),
    }
}

/// Returns the outputs in a response as nested arrays, by name.
///
/// # Errors
/// The fault, as a phrase that follows "its answer".
pub(super) fn outputs(answer: &mut Value) -> Result<Value, String> {
    let Some(Value::Array(outputs)) = answer.get_mut("outputs").map(Value::take) else {
        return Err("has no outputs".to_owned());
    };
    let mut left = VALUES_MAX;
    let mut named = Map::new();
    for mut output in outputs {
        let name = output.get("name").and_then(Value::as_str).map(str::to_owned);
        let name = name.ok_or_else(|| "has an output without a name".to_owned())?;
        let shape = lengths(output.get("shape"))
            .ok_or_else(|| format!("has the output '{name}' without a shape"))?;
        let data = match output.get_mut("data").map(Value::take) {
            Some(data @ Value::Array(_)) => data,
            Some(Value::Null) | None => {
                return Err(format!("has the output '{name}' without data in JSON"));
            }
            // A scalar.
            Some(one) => Value::Array(vec![one]),
        };
        let mut elements = Vec::new();
        if !spread(data, 0, &mut elements) {
            return Err(format!("has the output '{name}' with more than {RANK_MAX} dimensions"));
        }
        let count = elements.len();
        let mut elements = elements.into_iter();
        let is_whole = elements_of(&shape) == Some(count);
        let nested = if is_whole { nest(&shape, &mut elements, &mut left) } else { None };
        let nested = nested.ok_or_else(|| {
            if is_whole {
                format!("has more than {VALUES_MAX} values")
            } else {
                format!("has the output '{name}' of the shape {shape:?} with {count} elements")
            }
        })?;
        if named.insert(name.clone(), nested).is_some() {
            return Err(format!("has two outputs named '{name}'"));
        }
    }
    Ok(Value::Object(named))
}

/// Parses the lengths of a shape.
fn lengths(shape: Option<&Value>) -> Option<Vec<usize>> {
    let lengths = shape?.as_array().filter(|lengths| lengths.len() <= RANK_MAX)?;
    lengths.iter().map(whole_number).collect()
}

/// Returns the number of elements of a shape, or `None` on overflow.
pub(crate) fn elements_of(shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1_usize, |count, length| count.checked_mul(*length))
}

/// Flattens nested arrays, because some servers send nested data.
fn spread(data: Value, depth: usize, elements: &mut Vec<Value>) -> bool {
    let Value::Array(items) = data else {
        elements.push(data);
        return true;
    };
    depth < RANK_MAX && items.into_iter().all(|item| spread(item, depth + 1, elements))
}

/// Builds arrays of that shape; returns `None` if there would be too many values: a shape with a
/// zero has no elements, but may have any number of empty arrays.
pub(crate) fn nest(
    shape: &[usize],
    elements: &mut impl Iterator<Item = Value>,
    left: &mut usize,
) -> Option<Value> {
    *left = left.checked_sub(1)?;
    let Some((length, rest)) = shape.split_first() else { return elements.next() };
    // Do not start an array that does not fit.
    if *length > *left {
        return None;
    }
    let items: Option<Vec<Value>> = (0..*length).map(|_| nest(rest, elements, left)).collect();
    items.map(Value::Array)
}

#[cfg(test)]
mod tests {
    use super::super::metadata;
    use super::*;

    fn known() -> Metadata {
        let inputs = json!([
            {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "n", "datatype": "INT32", "shape": [1, 1]},
            {"name": "s", "datatype": "BYTES", "shape": [-1]},
            {"name": "any", "datatype": "FP64"},
        ]);
        metadata::read(&json!({"inputs": inputs})).unwrap().0
    }

    fn sent(input: Value) -> Result<Value, String> {
        request(&input, Some(&known()), "i")
    }

    #[test]
    fn oip_request_flattens_nested_arrays() {
        let body = sent(json!({"x": [[1, 2], [3, 4.5]], "n": 3.0, "s": "a", "any": [[[7]]]}));
        let expected = json!({"id": "i", "inputs": [
            {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4.5]},
            {"name": "n", "shape": [1, 1], "datatype": "INT32", "data": [3]},
            {"name": "s", "shape": [1], "datatype": "BYTES", "data": ["a"]},
            {"name": "any", "shape": [1, 1, 1], "datatype": "FP64", "data": [7]},
        ]});
        assert_eq!(body.unwrap(), expected);
        let empty = sent(json!({"x": [], "s": []}));
        assert_eq!(empty.unwrap_err(), "'x' has the shape [0], but the model takes [-1, 2]");
        let none = sent(json!({"s": [], "parameters": {"a": 1}})).unwrap();
        assert_eq!(none["inputs"][0]["shape"], json!([0]));
        assert_eq!(none["parameters"], json!({"a": 1}));
    }

    #[test]
    fn oip_request_in_native_form_is_passed_through() {
        let own = json!([{"name": "z", "shape": [1], "datatype": "BF16", "data": [1]}]);
        let input = json!({"inputs": own, "outputs": [{"name": "y"}], "id": "theirs"});
        for known in [None, Some(&known())] {
            let body = request(&input, known, "ours").unwrap();
            assert_eq!(body, json!({"id": "ours", "inputs": own, "outputs": [{"name": "y"}]}));
        }
    }

    #[test]
    fn oip_request_error_explains_invalid_input() {
        let deep = (0..=RANK_MAX).fold(json!(1), |inner, _| json!([inner]));
        for (input, says) in [
            (json!([]), "the input must be an object"),
            (json!({"x": [[1, 2], [3]]}), "'x' has rows of different lengths"),
            (json!({"x": [[1, 2], 3]}), "'x' has rows of different lengths"),
            (json!({"x": [1, [2]]}), "'x' has rows of different lengths"),
            (json!({"x": [[1, 2, 3]]}), "'x' has the shape [1, 3], but the model takes [-1, 2]"),
            (json!({"x": 1}), "'x' has the shape [], but the model takes [-1, 2]"),
            (json!({"any": deep}), "'any' has more than 16 dimensions"),
            (json!({"q": 1}), "the model has no input 'q'; its inputs are x, n, s, any"),
            (json!({"inputs": [], "x": 1}), "'x' is given together with 'inputs'"),
        ] {
            let error = sent(input.clone()).unwrap_err();
            assert!(error.contains(says), "{input}: {error}");
        }
        let error = request(&json!({"x": 1}), None, "i").unwrap_err();
        assert!(error.starts_with("the model does not describe its inputs"), "{error}");
    }

    fn came(outputs_: Value) -> Result<Value, String> {
        outputs(&mut json!({"outputs": outputs_}))
    }

    #[test]
    fn oip_outputs_are_nested_by_shape() {
        let output = |shape: Value, data: Value| {
            came(json!([{"name": "y", "shape": shape, "datatype": "FP32", "data": data}]))
        };
        for (shape, data, nested) in [
            (json!([2, 2]), json!([1, 2, 3, 4]), json!([[1, 2], [3, 4]])),
            (json!([2, 2]), json!([[1, 2], [3, 4]]), json!([[1, 2], [3, 4]])),
            (json!([1]), json!(["a"]), json!(["a"])),
            (json!([]), json!([true]), json!(true)),
            (json!([]), json!(5), json!(5)),
            (json!([2, 0]), json!([]), json!([[], []])),
            (json!([0]), json!([]), json!([])),
        ] {
            assert_eq!(output(shape.clone(), data).unwrap(), json!({"y": nested}), "{shape}");
        }
        let two = came(json!([
            {"name": "a", "shape": [1], "data": [1]}, {"name": "b", "shape": [1], "data": [2]},
        ]));
        assert_eq!(two.unwrap(), json!({"a": [1], "b": [2]}));
    }

    #[test]
    fn oip_rejects_garbage_outputs() {
        let deep = (0..RANK_MAX + 2).fold(json!(1), |inner, _| json!([inner]));
        let one = |shape: Value, data: Value| json!([{"name": "y", "shape": shape, "data": data}]);
        for (outputs_, says) in [
            (json!(null), "has no outputs"),
            (json!([{"shape": [1], "data": [1]}]), "has an output without a name"),
            (json!([{"name": "y", "data": [1]}]), "has the output 'y' without a shape"),
            (one(json!([-1]), json!([1])), "without a shape"),
            (one(json!([1]), json!(null)), "without data in JSON"),
            (one(json!([2]), json!([1])), "of the shape [2] with 1 elements"),
            (one(json!([u64::MAX, 2]), json!([1])), "with 1 elements"),
            (one(json!([1_000_000_000_u64, 0]), json!([])), "has more than 8388608 values"),
            (one(json!([1_000_000, 1_000_000, 0]), json!([])), "has more than 8388608 values"),
            (one(json!([1]), deep), "with more than 16 dimensions"),
            (
                json!([{"name": "y", "shape": [0], "data": []}, {"name": "y", "shape": [0], "data": []}]),
                "has two outputs named 'y'",
            ),
        ] {
            let error = came(outputs_.clone()).unwrap_err();
            assert!(error.contains(says), "{outputs_}: {error}");
        }
    }
}
