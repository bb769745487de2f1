//! Retains the end of a process's standard error for diagnosis by the operator.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

/// Maximum number of bytes retained.
pub const TAIL_MAX: usize = 64 * 1024;

/// The latest bytes; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Tail {
    bytes: Arc<Mutex<VecDeque<u8>>>,
}

impl Tail {
    /// Reads `source` to its end.
    pub async fn drain(self, mut source: impl AsyncRead + Unpin) {
        let mut block = vec![0; 8 * 1024];
        while let Ok(count @ 1..) = source.read(&mut block).await {
            self.push(block.get(..count).unwrap_or_default());
        }
    }

    fn push(&self, more: &[u8]) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.extend(more);
        let excess = bytes.len().saturating_sub(TAIL_MAX);
        bytes.drain(..excess);
    }

    /// Returns the retained bytes as text.
    #[must_use]
    pub fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = bytes.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the last non-empty line.
    #[must_use]
    pub fn last_line(&self) -> Option<String> {
        self.text().lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stderr_tail_keeps_newest_bytes() {
        let tail = Tail::default();
        tail.clone().drain(&vec![b'x'; TAIL_MAX + 1][..]).await;
        assert_eq!(tail.text().len(), TAIL_MAX);
        tail.clone().drain(&b"\nlast\n \n"[..]).await;
        assert_eq!((tail.text().len(), tail.last_line().as_deref()), (TAIL_MAX, Some("last")));
    }
}
