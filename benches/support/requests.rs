//! Reads the requests of a connection, for servers that stand in for models and receivers.

pub use orrery_cli::load::Requests;
