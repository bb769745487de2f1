//! A shifted clock for tests of the entire binary: an offset from the machine's time.
//!
//! Active only in builds with debug assertions, and only if the environment variable [`VARIABLE`]
//! names a file. The file contains a signed number of microseconds in 8 bytes, little-endian, and a
//! test may rewrite it while the service runs. Release builds contain none of this code.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The environment variable that names the file.
const VARIABLE: &str = "ORRERY_TEST_CLOCK";
/// How long a value read from the file is cached.
const HOLDS: Duration = Duration::from_millis(5);

struct Shift {
    /// The file, which is kept open so that it can be read even if no descriptors are free.
    file: File,
    last: Mutex<(Instant, i64)>,
}

#[expect(clippy::disallowed_methods, reason = "part of the access to the machine's clock")]
fn now() -> Instant {
    Instant::now()
}

/// The microseconds to add to the machine's time. If the file cannot be read, the last value is
/// used.
pub(super) fn micros() -> i64 {
    static SHIFT: OnceLock<Option<Shift>> = OnceLock::new();
    let shift = SHIFT.get_or_init(|| {
        let file = File::open(std::env::var_os(VARIABLE)?).ok()?;
        let micros = read(&file).unwrap_or_default();
        Some(Shift { file, last: Mutex::new((now(), micros)) })
    });
    let Some(Shift { file, last }) = shift else { return 0 };
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    if last.0.elapsed() >= HOLDS {
        *last = (now(), read(file).unwrap_or(last.1));
    }
    last.1
}

fn read(file: &File) -> Option<i64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some(i64::from_le_bytes(bytes))
}
