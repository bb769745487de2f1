//! stub
use crate::http::{Reply, reply};
use hyper::header::HeaderValue;
pub fn asset(_path: &str, _if_none_match: Option<&HeaderValue>) -> Option<Reply> {
    Some(reply::text(hyper::StatusCode::OK, "soon"))
}
