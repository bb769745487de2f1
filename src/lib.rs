//! Orrery.

pub mod domain;
pub mod runners;
pub mod runtime;
pub mod storage;
