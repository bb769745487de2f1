//! Orrery.

pub mod accounts;
pub mod billing;
pub mod domain;
pub mod engine;
pub mod http;
pub mod idempotency;
pub mod runners;
pub mod runtime;
pub mod storage;
pub mod webhooks;
