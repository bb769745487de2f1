//! stub
use crate::domain::time::Timestamp;
use crate::runtime::Tasks;
use std::path::Path;
#[derive(Debug, thiserror::Error)]
#[error("none")]
pub struct Error;
#[derive(Debug)]
pub struct Certificates;
pub struct Summary {
    pub names: Vec<String>,
    pub not_after: Timestamp,
}
impl Certificates {
    pub fn self_signed(_: &Path, _: &[String], _: Timestamp) -> Result<Self, Error> {
        Err(Error)
    }
    pub fn files(_: &Path, _: &Path) -> Result<Self, Error> {
        Err(Error)
    }
    pub fn acceptor(&self) -> tokio_rustls::TlsAcceptor {
        panic!()
    }
    pub fn watch(&self, _: &Tasks) {}
}
pub fn inspect(_: &Path, _: &Path, _: Timestamp) -> Result<Summary, Error> {
    Err(Error)
}
