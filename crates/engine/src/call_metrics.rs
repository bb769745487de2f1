//! The metrics of calls, from OpenTelemetry's conventions for generative AI.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::Histogram;

use crate::traces::derive;
use orrery_domain::chat::{self, Operation};

/// The series that the recorder has for each model. The registry looks a series up by all of its
/// labels, which takes longer than the rest of the recording.
#[derive(Default)]
pub(crate) struct CallMetrics {
    of_models: Mutex<HashMap<String, Vec<Series>>>,
}

struct Series {
    operation: Operation,
    is_upstream: bool,
    seconds: Histogram,
    input_tokens: Histogram,
    output_tokens: Histogram,
}

impl CallMetrics {
    /// Records an ended call. Upstream models without a price share a label, because clients can
    /// send any model id to an upstream.
    pub(crate) fn record(&self, call: &chat::Call, run_time: Duration) {
        let model = if call.is_upstream && !call.is_priced { "other" } else { &call.model };
        let is_of_call = |series: &&Series| {
            series.operation == call.operation && series.is_upstream == call.is_upstream
        };
        let mut of_models = self.of_models.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = of_models.get(model).and_then(|all| all.iter().find(is_of_call)) {
            series.record(call, run_time);
            return;
        }
        let series = Series::of(call, model);
        series.record(call, run_time);
        of_models.entry(model.to_owned()).or_default().push(series);
    }
}

impl Series {
    fn of(call: &chat::Call, model: &str) -> Self {
        let labels = [
            ("gen_ai_operation_name", derive::operation(call.operation).to_owned()),
            ("gen_ai_provider_name", derive::provider(call).to_owned()),
            ("gen_ai_request_model", model.to_owned()),
        ];
        let tokens = |kind: &str| {
            let [operation, provider, model] = labels.clone();
            let labels = [operation, provider, model, ("gen_ai_token_type", kind.to_owned())];
            metrics::histogram!("gen_ai_client_token_usage", &labels)
        };
        Self {
            operation: call.operation,
            is_upstream: call.is_upstream,
            seconds: metrics::histogram!("gen_ai_client_operation_duration_seconds", &labels),
            input_tokens: tokens("input"),
            output_tokens: tokens("output"),
        }
    }

    fn record(&self, call: &chat::Call, run_time: Duration) {
        self.seconds.record(run_time);
        let count = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
        self.input_tokens.record(count(call.tokens.input));
        self.output_tokens.record(count(call.tokens.output));
    }
}
