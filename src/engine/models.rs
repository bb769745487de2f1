//! What the engine needs to know of a model: how to run it and within which limits.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::model::{OutputType, Pricing};
use crate::runners::Runner;

/// A model as the engine sees it. A snapshot: a reload of the catalog changes the next one only.
#[derive(Debug, Clone)]
pub struct Work {
    pub runner: Arc<dyn Runner>,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// How many may run at once.
    pub concurrency: usize,
    /// How many may wait.
    pub queue_limit: usize,
    pub output_type: OutputType,
    /// `None`: costs nothing.
    pub pricing: Option<Pricing>,
}

/// Where models are looked up, by slug, at the moment of each use.
pub trait Models: Send + Sync {
    /// The model, or `None` when the catalog has it no more.
    fn work(&self, slug: &str) -> Option<Work>;
}
