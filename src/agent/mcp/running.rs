//! The calls that run, by the key that made them and the id that its client gave them: a client of a
//! stateless server cancels a call by that id alone. In memory only, as long as the calls are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::domain::ids::{ExecutionId, KeyId};

/// The key, and the id that its client gave.
type Name = (KeyId, String);

/// The calls that run. Bounded by the requests in flight.
#[derive(Debug, Clone, Default)]
pub struct Running(Arc<Mutex<HashMap<Name, Vec<ExecutionId>>>>);

/// A call's place; dropping it gives the place up.
#[derive(Debug)]
pub struct Place {
    running: Running,
    key: Name,
    execution: ExecutionId,
}

impl Running {
    /// Notes a call that has begun.
    pub fn enter(&self, key: KeyId, request: String, execution: ExecutionId) -> Place {
        let key = (key, request);
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.entry(key.clone()).or_default().push(execution);
        Place { running: self.clone(), key, execution }
    }

    /// The call of that key and id. `None` also where two clients of one key have used the same id:
    /// which of them is meant cannot be known, and the other one's must not end.
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
    fn mcp_call_is_found_by_its_key_and_an_id_that_is_used_once() {
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
