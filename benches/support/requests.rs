//! Reads the requests of a connection, for servers that stand in for models and receivers.

pub(crate) use orrery_cli::load::Requests;
