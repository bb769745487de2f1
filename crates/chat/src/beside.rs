//! The caller's part of the commit that records a call, such as a copy of the answer.

use std::fmt;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use orrery_domain::ids::ExecutionId;
use orrery_storage::Commit;

/// Creates the caller's part of the commit that records a call, such as a copy of the answer.
pub struct Beside(Box<dyn FnOnce(ExecutionId, Bytes) -> BoxFuture<'static, Commit> + Send + Sync>);

impl Beside {
    /// The router calls `commit` with the ID of the call and its complete answer, unless it streams
    /// the answer. The returned commit becomes part of the commit that records the call. If that
    /// commit fails, nothing is stored.
    pub fn new<F>(commit: impl FnOnce(ExecutionId, Bytes) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Commit> + Send + 'static,
    {
        Self(Box::new(move |id, answer| Box::pin(commit(id, answer))))
    }

    pub(super) async fn commit(self, id: ExecutionId, answer: Bytes) -> Commit {
        (self.0)(id, answer).await
    }
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Beside")
    }
}
