//! Transient resource shortages of this machine: no free descriptors, memory, processes or disk
//! space. A shortage does not mean that the operation itself is invalid, so the operation should be
//! retried after a pause.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::Instant;

use super::monotonic_now;

const SHORTAGES: [Errno; 7] = [
    Errno::MFILE,
    Errno::NFILE,
    Errno::NOMEM,
    Errno::NOBUFS,
    Errno::AGAIN,
    Errno::NOSPC,
    Errno::DQUOT,
];
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The maximum time for which the store waits for a file descriptor.
const DESCRIPTOR_WAIT_MAX: Duration = Duration::from_mins(10);

/// Whether an error is a resource shortage of this machine.
#[must_use]
pub fn is_shortage(error: &io::Error) -> bool {
    match Errno::from_io_error(error) {
        Some(errno) => SHORTAGES.contains(&errno),
        // A library may have wrapped the system's error in a message.
        None => mentions_shortage(&error.to_string()),
    }
}

/// Like [`is_shortage`], for an error of which only the message is known. The system's messages end
/// with the error number.
#[must_use]
pub fn mentions_shortage(text: &str) -> bool {
    SHORTAGES.iter().any(|errno| text.contains(&ending(*errno)))
}

/// Returns the end of a system error's message.
fn ending(errno: Errno) -> String {
    format!("(os error {})", errno.raw_os_error())
}

/// Calls `attempt` until it succeeds, fails for another reason, or `limit` has passed.
///
/// # Errors
/// The last error of `attempt`.
pub async fn when_able<T>(
    limit: Duration,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let mut pauses = Pauses::within(limit);
    loop {
        match attempt() {
            Err(error) if is_shortage(&error) && pauses.wait().await => {}
            result => return result,
        }
    }
}

/// Whether an error message says that this process or machine has no free file descriptor.
#[must_use]
pub fn lacks_descriptor(error: &str) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.contains(&ending(*errno)))
}

/// Retries `attempt` while no file descriptor is free, and blocks this thread for up to
/// [`DESCRIPTOR_WAIT_MAX`]. Meanwhile, other connections and files release descriptors.
///
/// # Errors
/// The last error of `attempt`.
pub fn with_descriptor<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let until = monotonic_now() + DESCRIPTOR_WAIT_MAX;
    let mut pause = FIRST_PAUSE;
    loop {
        match attempt() {
            Err(error) if lacks_descriptor(&error.to_string()) && monotonic_now() < until => {
                tracing::warn!(
                    %error,
                    "store waiting for a free file descriptor; raise the limit of \
                     open files (LimitNOFILE, ulimit -n) if this repeats"
                );
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
            result => return result,
        }
    }
}

/// Growing pauses between attempts, within a time limit.
#[derive(Debug)]
pub struct Pauses {
    until: Instant,
    next: Duration,
}

impl Pauses {
    /// Creates pauses that end before `limit`.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        Self { until: monotonic_now() + limit, next: FIRST_PAUSE }
    }

    /// Waits for the next pause. Returns false immediately if the pause would exceed the limit.
    pub async fn wait(&mut self) -> bool {
        if self.left() <= self.next {
            return false;
        }
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
        true
    }

    /// The remaining time.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(monotonic_now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_is_recognized_by_errno_and_by_text() {
        for (errno, is_short) in [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::NOSPC, true),
            (Errno::CONNREFUSED, false),
            (Errno::IO, false),
        ] {
            let error = io::Error::from(errno);
            assert_eq!(is_shortage(&error), is_short, "{error}");
            assert_eq!(mentions_shortage(&format!("no connections: {error}")), is_short, "{error}");
        }
        assert!(!mentions_shortage("no records found for the name (os error 240)"));
    }

    #[test]
    fn only_descriptor_shortage_is_waited_out() {
        let mut left = vec![Errno::MFILE, Errno::NFILE, Errno::MFILE];
        let done = with_descriptor(|| left.pop().map_or(Ok(7), |errno| Err(errno.into())));
        assert_eq!(done.unwrap(), 7);
        for errno in [Errno::NOSPC, Errno::IO] {
            let mut tried = 0;
            let failed = with_descriptor(|| -> io::Result<()> {
                tried += 1;
                Err(errno.into())
            });
            assert_eq!((Errno::from_io_error(&failed.unwrap_err()), tried), (Some(errno), 1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn shortage_retry_stops_on_success_or_time_limit() {
        let tried = std::cell::Cell::new(0);
        let attempt = |good_at| {
            tried.set(tried.get() + 1);
            if tried.get() == good_at { Ok(good_at) } else { Err(Errno::MFILE.into()) }
        };
        let limit = Duration::from_secs(10);
        assert_eq!(when_able(limit, || attempt(4)).await.unwrap(), 4);
        tried.set(0);
        assert!(is_shortage(&when_able(limit, || attempt(0)).await.unwrap_err()));
        assert!((10..20).contains(&tried.get()), "{}", tried.get());
        tried.set(0);
        let other = when_able(limit, || -> io::Result<()> {
            tried.set(tried.get() + 1);
            Err(io::ErrorKind::NotFound.into())
        });
        assert_eq!((other.await.unwrap_err().kind(), tried.get()), (io::ErrorKind::NotFound, 1));
    }
}
