//! Runs a model with tract.
//!
//! A model whose dimensions all have fixed lengths has one plan. Other models have a plan for all
//! shapes if tract can derive one, and otherwise plans for the most recent shapes.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tract_onnx::prelude::*;
use tract_onnx::tract_hir::internal::{Factoid as _, TractErrorContext as _, bail};

use super::{audio, picture};
use crate::oip::tensors::elements_of;
use crate::onnx::element::{Element, text};
use crate::onnx::message::{self, Content, ELEMENTS_MAX, Part};
use crate::onnx::preparation::Preparation;

/// Maximum number of plans for shapes.
const PLANS_MAX: usize = 8;
/// Maximum length of an error message, in characters.
const REASON_CHARS_MAX: usize = 500;

type Plan = Arc<TypedRunnableModel>;
/// The shapes of all inputs.
type Shapes = Vec<TVec<usize>>;

/// A loaded model.
#[derive(Debug)]
pub(super) struct Engine {
    /// The model for further plans; `None` if all shapes are fixed, so that there is only one plan.
    model: Option<InferenceModel>,
    /// The inputs' names and types, in the model's order.
    inputs: Vec<(String, DatumType)>,
    outputs: Vec<String>,
    /// The plan for all shapes, if there is one.
    general: Option<Plan>,
    /// The plans for the latest shapes, the most recent one last.
    shaped: Mutex<Vec<(Shapes, Plan)>>,
}

impl Engine {
    /// Loads a model.
    ///
    /// # Errors
    /// The reason, as a phrase.
    pub(super) fn load(file: &Path) -> Result<Self, String> {
        Self::try_load(file).map_err(|error| reason(&error))
    }

    fn try_load(file: &Path) -> TractResult<Self> {
        let proto = tract_onnx::onnx().proto_model_for_path(file)?;
        let read = |ignores_hints: bool| {
            let onnx = tract_onnx::onnx().with_ignore_value_info(ignores_hints);
            onnx.model_for_proto_model(&proto)
        };
        let model = read(false)?;
        let missing = missing_operators(&model);
        if !missing.is_empty() {
            let missing: Vec<String> = missing.into_iter().collect();
            bail!("it needs operators that tract does not have: {}", missing.join(", "));
        }
        let shapes = model
            .input_outlets()?
            .iter()
            .map(|outlet| model.outlet_fact(*outlet)?.shape.as_concrete_finite());
        let is_fixed = shapes.collect::<TractResult<Option<Vec<_>>>>()?.is_some();
        // The file's hints about intermediate tensors make a plan better, but may be wrong, and
        // contradict the shapes of a request.
        let plain = read(true)?;
        let general = plan(model).or_else(|error| plan(plain.clone()).map_err(|_same| error));
        let general = if is_fixed { Some(general?) } else { general.ok() };
        let model = plain;
        let mut inputs = Vec::new();
        for outlet in model.input_outlets()? {
            let kind = model.outlet_fact(*outlet)?.datum_type.concretize();
            let name = model.node(outlet.node).name.clone();
            let kind = kind.with_context(|| format!("the input '{name}' has no type"))?;
            inputs.push((name, kind));
        }
        let outputs = model.output_outlets()?.iter().map(|outlet| {
            let label = model.outlet_label(*outlet);
            label.map_or_else(|| model.node(outlet.node).name.clone(), str::to_owned)
        });
        let outputs = outputs.collect();
        let model = (!is_fixed).then_some(model);
        Ok(Self { model, inputs, outputs, general, shaped: Mutex::default() })
    }

    /// Runs the model on the inputs in a message, and returns the message with its outputs.
    ///
    /// # Errors
    /// The fault in the input, as a sentence.
    pub(super) fn run(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        let parts = message::decode(message).ok_or("the request cannot be read")?;
        let mut inputs: TVec<TValue> = tvec!();
        for (name, kind) in &self.inputs {
            let part = parts.iter().find(|(part, _)| part.name == *name);
            let (part, bytes) = part.ok_or_else(|| format!("'{name}' is missing"))?;
            let input = input(part, bytes).map_err(|what| format!("'{name}': {what}"))?;
            let input = input.cast_to_dt(*kind).map_err(|error| reason(&error))?;
            inputs.push(input.into_owned().into_tvalue());
        }
        let outputs = self.compute(inputs).map_err(|error| {
            format!("the model cannot compute with this input: {}", reason(&error))
        })?;
        let mut left = ELEMENTS_MAX;
        let mut parts = Vec::new();
        for (name, output) in self.outputs.iter().zip(outputs) {
            let count = elements_of(output.shape()).and_then(|count| left.checked_sub(count));
            left = count.ok_or_else(|| {
                format!("the outputs have more than {ELEMENTS_MAX} elements together")
            })?;
            let (element, bytes) = written(&output).map_err(|error| reason(&error))?;
            let content = Content::Tensor { element, shape: output.shape().to_vec() };
            parts.push((Part { name: name.clone(), content, bytes: bytes.len() }, bytes));
        }
        Ok(message::encode(&parts))
    }

    fn compute(&self, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        if let Some(general) = &self.general {
            match general.run(inputs.clone()) {
                // A plan for these shapes may succeed where the general plan does not.
                Err(_) if self.model.is_some() => {}
                done => return done,
            }
        }
        let shapes: Shapes = inputs.iter().map(|input| input.shape().into()).collect();
        self.plan_for(shapes)?.run(inputs)
    }

    /// Returns the plan for these shapes of the inputs.
    fn plan_for(&self, shapes: Shapes) -> TractResult<Plan> {
        let known = || self.shaped.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut known = known();
            if let Some(at) = known.iter().position(|(of, _)| *of == shapes) {
                let found = known.remove(at);
                let plan = Arc::clone(&found.1);
                known.push(found);
                return Ok(plan);
            }
        }
        let model = self.model.clone();
        let mut model = model.context("the model has no plan for these shapes")?;
        for (at, ((_, kind), shape)) in self.inputs.iter().zip(&shapes).enumerate() {
            model.set_input_fact(at, InferenceFact::dt_shape(*kind, shape.iter().copied()))?;
        }
        let made = plan(model)?;
        let mut known = known();
        if known.len() == PLANS_MAX {
            known.remove(0);
        }
        known.push((shapes, Arc::clone(&made)));
        Ok(made)
    }
}

fn plan(model: InferenceModel) -> TractResult<Plan> {
    model.into_optimized()?.into_runnable()
}

/// Returns the operators of a model that tract does not have.
fn missing_operators(model: &InferenceModel) -> BTreeSet<String> {
    let names = model.nodes().iter().map(|node| node.op.name());
    let missing = names.filter_map(|name| {
        Some(name.strip_prefix("Unimplemented(")?.strip_suffix(')')?.to_owned())
    });
    missing.collect()
}

/// Describes an error on one line, from the outermost cause to the innermost.
fn reason(error: &TractError) -> String {
    let text = format!("{error:#}").replace(['\n', '\r'], " ");
    match text.char_indices().nth(REASON_CHARS_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// Converts a part of a request to a tensor.
fn input(part: &Part, data: &[u8]) -> Result<Tensor, String> {
    match &part.content {
        Content::File(Preparation::Image(image)) => picture::tensor(image, data),
        Content::File(Preparation::Audio(audio)) => audio::tensor(audio, data),
        Content::Tensor { element, shape } => {
            read(*element, shape, data).map_err(|error| reason(&error))
        }
    }
}

/// Reads a tensor from its bytes.
fn read(element: Element, shape: &[usize], data: &[u8]) -> TractResult<Tensor> {
    fn of<T: Datum + Copy, const N: usize>(
        shape: &[usize],
        data: &[u8],
        read: fn([u8; N]) -> T,
    ) -> TractResult<Tensor> {
        let (elements, _rest) = data.as_chunks::<N>();
        let elements: Vec<T> = elements.iter().map(|bytes| read(*bytes)).collect();
        Tensor::from_shape(shape, &elements)
    }
    match element {
        Element::Float32 | Element::Float16 => of(shape, data, f32::from_le_bytes),
        Element::Float64 => of(shape, data, f64::from_le_bytes),
        Element::Uint8 => of(shape, data, u8::from_le_bytes),
        Element::Int8 => of(shape, data, i8::from_le_bytes),
        Element::Uint16 => of(shape, data, u16::from_le_bytes),
        Element::Int16 => of(shape, data, i16::from_le_bytes),
        Element::Int32 => of(shape, data, i32::from_le_bytes),
        Element::Int64 => of(shape, data, i64::from_le_bytes),
        Element::Uint32 => of(shape, data, u32::from_le_bytes),
        Element::Uint64 => of(shape, data, u64::from_le_bytes),
        Element::Bool => of(shape, data, |[byte]: [u8; 1]| byte != 0),
        Element::String => {
            let mut rest = data;
            let texts: Vec<String> = std::iter::from_fn(|| text(&mut rest)).collect();
            let texts = tract_ndarray::ArrayD::from_shape_vec(shape, texts)?;
            Ok(texts.into_tensor())
        }
    }
}

/// Returns the element type and the bytes of a tensor.
fn written(tensor: &Tensor) -> TractResult<(Element, Vec<u8>)> {
    fn of<T: Datum + Copy, const N: usize>(
        tensor: &Tensor,
        write: fn(T) -> [u8; N],
    ) -> TractResult<Vec<u8>> {
        let view = tensor.try_as_plain_ram()?;
        Ok(view.as_slice::<T>()?.iter().flat_map(|element| write(*element)).collect())
    }
    Ok(match tensor.datum_type().unquantized() {
        DatumType::F32 => (Element::Float32, of(tensor, f32::to_le_bytes)?),
        DatumType::F16 => {
            (Element::Float16, of(tensor.cast_to::<f32>()?.as_ref(), f32::to_le_bytes)?)
        }
        DatumType::F64 => (Element::Float64, of(tensor, f64::to_le_bytes)?),
        DatumType::U8 => (Element::Uint8, of(tensor, u8::to_le_bytes)?),
        DatumType::I8 => (Element::Int8, of(tensor, i8::to_le_bytes)?),
        DatumType::U16 => (Element::Uint16, of(tensor, u16::to_le_bytes)?),
        DatumType::I16 => (Element::Int16, of(tensor, i16::to_le_bytes)?),
        DatumType::I32 => (Element::Int32, of(tensor, i32::to_le_bytes)?),
        DatumType::I64 => (Element::Int64, of(tensor, i64::to_le_bytes)?),
        DatumType::U32 => (Element::Uint32, of(tensor, u32::to_le_bytes)?),
        DatumType::U64 => (Element::Uint64, of(tensor, u64::to_le_bytes)?),
        DatumType::Bool => (Element::Bool, of(tensor, |flag: bool| [u8::from(flag)])?),
        // Lengths of dimensions.
        DatumType::TDim => {
            (Element::Int64, of(tensor.cast_to::<i64>()?.as_ref(), i64::to_le_bytes)?)
        }
        DatumType::String => {
            let view = tensor.try_as_plain_ram()?;
            let mut data = Vec::new();
            for text in view.as_slice::<String>()? {
                data.extend_from_slice(&u32::try_from(text.len())?.to_le_bytes());
                data.extend_from_slice(text.as_bytes());
            }
            (Element::String, data)
        }
        DatumType::Blob | DatumType::QI8(_) | DatumType::QU8(_) | DatumType::QI32(_) => {
            bail!("outputs of the type {:?} are not supported", tensor.datum_type())
        }
    })
}
