//! Shortages of this machine that pass: no descriptors, memory, processes or disk space left. They
//! say nothing about what was asked of it, which is to be tried again after a pause.

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

/// Whether an error is a shortage of this machine.
#[must_use]
pub fn is_shortage(error: &io::Error) -> bool {
    match Errno::from_io_error(error) {
        Some(errno) => SHORTAGES.contains(&errno),
        // A library may have put words around the system's error.
        None => mentions_shortage(&error.to_string()),
    }
}

/// As [`is_shortage`], for an error of which only the text is known: the system's own ends with its
/// number.
#[must_use]
pub fn mentions_shortage(text: &str) -> bool {
    SHORTAGES.iter().any(|errno| text.contains(&format!("(os error {})", errno.raw_os_error())))
}

/// Calls `attempt` until it does something else than fail for a shortage, or until `limit` is over.
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

/// Growing pauses between attempts, within a limit of time.
#[derive(Debug)]
pub struct Pauses {
    until: Instant,
    next: Duration,
}

impl Pauses {
    /// Pauses that are over before `limit` is.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        Self { until: monotonic_now() + limit, next: FIRST_PAUSE }
    }

    /// Waits for the next pause; false, at once, when it would not be over in time.
    pub async fn wait(&mut self) -> bool {
        if self.left() <= self.next {
            return false;
        }
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
        true
    }

    /// What is left of the limit.
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
