//! Reads the requests on a connection, for servers that act as models and receivers.

pub(crate) use orrery_cli::load::Requests;
