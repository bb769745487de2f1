//! The JSON that clients, webhook receivers and the command line read and write: plain types,
//! converted from the domain's types.
//!
//! Each object has a single type, wherever it is sent: the detail of an execution is also the body
//! of its webhook, and the legacy formats are converted from the same view. The types derive their
//! JSON Schemas, from which `api::openapi` builds the hosts' OpenAPI documents; the comment on a
//! field becomes its description there. Requests are checked
//! against the same schemas ([`request`]).
//!
//! These types are never stored as records. Only the command line parses responses, and only those
//! of the control socket ([`operator`]).

pub mod activity;
pub mod admin;
pub mod agent;
pub mod agent_event;
pub mod answer;
pub mod apply;
pub mod batch;
pub mod bulk_job;
pub mod chain;
pub mod chat;
pub mod completions;
pub mod decision;
pub mod definition;
pub mod delivery;
pub mod error;
pub mod event;
pub mod execution;
pub mod file;
pub mod history;
pub mod key_policy;
pub mod legacy;
pub mod limits;
pub mod mcp;
pub mod media;
pub mod member;
pub mod messages;
pub mod metadata;
pub mod model;
pub mod ollama;
pub mod openai;
pub mod operator;
pub mod pattern;
pub mod prediction;
pub mod replicate;
pub mod request;
pub mod responses;
pub mod scalars;
pub mod schedule;
pub mod schemas;
pub mod secret;
pub mod service;
pub mod usage;

pub mod trigger;
pub mod webhook_endpoint;
pub mod worker;
pub mod workflow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

pub use self::scalars::{AttemptStatus, ExecutionStatus, PredictionStatus, Time};

/// A payload's JSON text, or the reason why it is missing.
#[derive(Debug, Default)]
pub struct Text {
    pub text: Option<Box<RawValue>>,
    /// Why the payload is missing or damaged.
    pub error: Option<String>,
}

impl Text {
    /// Creates a payload that was read.
    #[must_use]
    pub const fn of(text: Box<RawValue>) -> Self {
        Self { text: Some(text), error: None }
    }

    /// Creates a payload that cannot be read.
    #[must_use]
    pub const fn missing(error: String) -> Self {
        Self { text: None, error: Some(error) }
    }
}

/// Distinguishes a null field from an omitted one.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}
