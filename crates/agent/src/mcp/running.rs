//! The running calls, indexed by API key and request id. A client cancels a call by the request id
//! that the client chose: because the server is stateless, a call has no other id. The calls are
//! held only in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use orrery_domain::ids::{ExecutionId, KeyId};

/// The key and the client's request id.
type Name = (KeyId, String);

/// The running calls. There are never more running calls than requests in flight.
#[derive(Debug, Clone, Default)]
pub struct Running(Arc<Mutex<HashMap<Name, Vec<ExecutionId>>>>);

/// A call's entry; dropping it removes the entry.
#[derive(Debug)]
pub struct Place {
    running: Running,
    key: Name,
    execution: ExecutionId,
}

impl Running {
    /// Adds a running call.
    pub fn enter(&self, key: KeyId, request: String, execution: ExecutionId) -> Place {
        let key = (key, request);
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.entry(key.clone()).or_default().push(execution);
        Place { running: self.clone(), key, execution }
    }

    /// Returns the call with this key and request id. Returns `None` if two clients of one key use
    /// the same id, because cancelling the wrong call would be worse than cancelling none.
    pub fn find(&self, key: KeyId, request: &str) -> Option<ExecutionId> {
        let calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match calls.get(&(key, request.to_owned()))?.as_slice() {
            [only] => Some(*only),
            _ => None,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut calls = self.running.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = calls.get_mut(&self.key) {
            same.retain(|execution| *execution != self.execution);
            if same.is_empty() {
                calls.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mcp_call_is_found_by_key_and_unique_id() {
        let running = Running::default();
        let one: KeyId = [1; 16].into();
        let other: KeyId = [2; 16].into();
        let first = running.enter(one, "3".to_owned(), [7; 16].into());
        assert_eq!(running.find(one, "3"), Some([7; 16].into()));
        assert_eq!(running.find(other, "3"), None, "another key's");
        assert_eq!(running.find(one, "4"), None);
        let second = running.enter(one, "3".to_owned(), [8; 16].into());
        assert_eq!(running.find(one, "3"), None, "used twice");
        drop(first);
        assert_eq!(running.find(one, "3"), Some([8; 16].into()));
        drop(second);
        assert!(running.0.lock().unwrap().is_empty());
    }
}
