//! Orrery.

pub mod accounts;
pub mod api;
pub mod billing;
pub mod catalog;
pub mod cli;
pub mod config;
pub mod dashboard;
pub mod domain;
pub mod engine;
pub mod http;
pub mod idempotency;
pub mod nearest;
pub mod runners;
pub mod runtime;
pub mod schema;
pub mod storage;
pub mod telemetry;
pub mod webhooks;
