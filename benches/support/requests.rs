//! The requests of one connection, for the servers that stand in for models and receivers.

pub use orrery::load::Requests;
