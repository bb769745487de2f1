//! A LoRA adapter, which changes the weights of a model in each of the model's contexts.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use llama_cpp_2::LlamaLoraAdapterInitError;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::model::{LlamaLoraAdapter, LlamaModel};

/// An adapter of a loaded model. Clones share the adapter.
#[derive(Debug, Clone)]
pub(super) struct Adapter {
    adapter: Arc<Mutex<LlamaLoraAdapter>>,
    scale: f32,
}

impl Adapter {
    /// Loads an adapter.
    ///
    /// # Errors
    /// If the file does not fit the model; llama.cpp logs the reason.
    pub(super) fn load(
        model: &mut LlamaModel,
        file: &Path,
        scale: f64,
    ) -> Result<Self, LlamaLoraAdapterInitError> {
        let adapter = model.lora_adapter_init(file)?;
        #[expect(clippy::cast_possible_truncation, reason = "a factor of at most 100")]
        let scale = scale as f32;
        Ok(Self { adapter: Arc::new(Mutex::new(adapter)), scale })
    }

    /// Applies the adapter to all computations of a context.
    ///
    /// # Errors
    /// The reason why llama.cpp refuses the adapter.
    pub(super) fn apply(&self, context: &mut LlamaContext<'_>) -> Result<(), String> {
        let mut adapter = self.adapter.lock().unwrap_or_else(PoisonError::into_inner);
        let applied = context.lora_adapter_set(&mut adapter, self.scale);
        applied.map_err(|error| format!("its adapter cannot be applied: {error}"))
    }
}
