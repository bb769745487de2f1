//! Orrery.

pub mod cli;
pub mod config;
pub mod domain;
// pub mod engine;
pub mod http;
pub mod runners;
pub mod runtime;
pub mod storage;
pub mod telemetry;
