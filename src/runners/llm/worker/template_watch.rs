//! Watches what chat templates take. Jinja computes with values of any size, and no instruction of a template can be
//! interrupted: a text that is doubled, or a search through a long list. So one that takes too much memory or
//! time ends this process, with a sentence for the client; the service starts another one.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::NOT_STARTED;
use crate::guard::sandbox::OwnMemory;
use crate::runtime::monotonic_now;

/// Memory that the process may take more while templates are rendered, in bytes.
const MEMORY_MAX: u64 = 512 * MIB;
/// How long a template may be rendered.
const TIME_MAX: Duration = Duration::from_secs(30);
/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(5);
const MIB: u64 = 1024 * 1024;

/// The beginnings of all renderings that are going on, by number.
static RUNNING: Mutex<Vec<(u64, Instant)>> = Mutex::new(Vec::new());
static BEGUN: Condvar = Condvar::new();

/// A rendering, until this is dropped.
#[derive(Debug)]
pub struct Rendering(u64);

/// A rendering begins.
pub fn begin() -> Rendering {
    let mut running = running();
    let number = running.last().map_or(0, |(last, _)| last + 1);
    running.push((number, monotonic_now()));
    BEGUN.notify_one();
    Rendering(number)
}

impl Drop for Rendering {
    fn drop(&mut self) {
        running().retain(|(number, _)| *number != self.0);
    }
}

fn running() -> MutexGuard<'static, Vec<(u64, Instant)>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches for as long as the process lives; for a thread of its own.
pub fn watch(memory: &OwnMemory) {
    loop {
        let none = |running: &mut Vec<(u64, Instant)>| running.is_empty();
        drop(BEGUN.wait_while(running(), none).unwrap_or_else(PoisonError::into_inner));
        let Ok(before) = memory.data() else { return };
        loop {
            std::thread::sleep(LOOK);
            // Each removes itself, so that the first one is the oldest.
            let Some((_, since)) = running().first().copied() else { break };
            let growth = memory.data().unwrap_or_default().saturating_sub(before);
            if let Some(reason) = exceeded(growth, since.elapsed()) {
                // Standard error goes to the service, which shows its last line.
                drop(std::io::Write::write_all(&mut std::io::stderr(), reason.as_bytes()));
                std::process::exit(NOT_STARTED.into());
            }
        }
    }
}

/// Which limit is exceeded, in words that follow "the model 'x':".
fn exceeded(growth: u64, time: Duration) -> Option<String> {
    if growth > MEMORY_MAX {
        let most = MEMORY_MAX / MIB;
        return Some(format!("its chat template takes more than {most} MiB of memory\n"));
    }
    (time > TIME_MAX)
        .then(|| format!("its chat template takes longer than {} s\n", TIME_MAX.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_says_which_limit_a_template_exceeds() {
        assert_eq!(exceeded(MEMORY_MAX, TIME_MAX), None);
        let memory = exceeded(MEMORY_MAX + 1, Duration::ZERO).unwrap();
        assert_eq!(memory, "its chat template takes more than 512 MiB of memory\n");
        let time = exceeded(0, TIME_MAX + LOOK).unwrap();
        assert_eq!(time, "its chat template takes longer than 30 s\n");
    }

    #[test]
    fn watch_knows_the_oldest_rendering() {
        let first = begin();
        let second = begin();
        assert!(running().iter().any(|(number, _)| *number == second.0));
        let number = first.0;
        drop(first);
        assert!(running().iter().all(|(other, _)| *other != number));
    }
}
