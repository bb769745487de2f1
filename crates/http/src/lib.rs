//! HTTP server and client: the server shared by all listeners, and the client with its egress
//! guard.
//!
//! Transport only: this crate handles methods, headers, bodies and TLS, and enforces the limits on
//! them. `api` interprets the requests. Ids of organizations and keys are used here only to share
//! limits fairly and to label log lines.
//!
//! Requests to addresses that clients choose use [`client::Client::guarded`]: the [`egress`] policy
//! is applied to the resolved addresses of each connection.

pub mod access_log;
pub mod answers;
pub mod authority;
pub mod basic_auth;
pub mod body;
pub mod budget;
pub mod client;
mod connection;
pub mod connector;
pub mod content;
mod date;
pub mod egress;
pub mod error;
pub mod event_stream;
mod exchange;
pub mod fields;
pub mod form_data;
mod head_lines;
pub mod media_type;
pub mod places;
mod pool;
pub mod port_holder;
pub mod query;
pub mod rate;
mod refused_head;
mod relay;
pub mod request;
pub mod request_id;
pub mod response;
pub mod router;
pub mod server;
pub mod sse;
pub mod tls;
pub mod trace_context;
pub mod unix_socket;
mod unread;

pub use body::Body;
pub use error::Error;
pub use request::{Peer, Request};
pub use response::Response;
