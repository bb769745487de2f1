//! Records a fatal signal in a file that survives the process.
//!
//! SIGKILL leaves no note, so a process that dies without a note was killed by another process or
//! by the kernel. `si_code` and `si_pid` (sigaction(2)) distinguish a signal caused by the process
//! itself, such as SIGSEGV or the SIGABRT of a failed allocation, from a signal sent by another
//! process, such as the SIGABRT of systemd's watchdog.
//!
//! This module is one of the four places that use `unsafe`: it installs a signal handler that calls
//! only functions listed in signal-safety(7), and calls _exit(2), which has no preconditions.

#![expect(unsafe_code, reason = "a signal handler is installed, and _exit called: see above")]

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};

/// The size of a note, in bytes.
pub const NOTE_BYTES: usize = 2;

/// The signals that leave a note.
const SIGNALS: [libc::c_int; 4] = [libc::SIGSEGV, libc::SIGABRT, libc::SIGBUS, libc::SIGILL];

/// The file's descriptor; negative if there is no file.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
static OFFSET: AtomicI64 = AtomicI64::new(0);
/// Owns the file, so that the descriptor stays open.
static FILE: Mutex<Option<Arc<File>>> = Mutex::new(None);
/// The previous action of each signal, in the order of [`SIGNALS`].
static PREVIOUS: OnceLock<Vec<libc::sigaction>> = OnceLock::new();

/// Ends this process without running the destructors of static variables. exit(3) runs these
/// destructors, and if other threads still use the variables, the process may end with SIGSEGV
/// instead of `code`.
pub fn exit_at_once(code: i32) -> ! {
    // SAFETY: the call has no preconditions, and does not return.
    unsafe { libc::_exit(code) }
}

/// The origin of a fatal signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Origin {
    /// The process itself: an error in its code, or abort(3).
    Itself = 1,
    /// Another process sent the signal.
    Other = 2,
}

/// A note: the signal's number and its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    pub signal: u8,
    pub origin: Origin,
}

impl Note {
    /// Decodes a note. Returns `None` if the process left no note.
    #[must_use]
    pub fn read(bytes: [u8; NOTE_BYTES]) -> Option<Self> {
        let [signal, origin] = bytes;
        let origin = match origin {
            1 => Origin::Itself,
            2 => Origin::Other,
            _ => return None,
        };
        (signal != 0).then_some(Self { signal, origin })
    }

    /// Encodes the note.
    #[must_use]
    pub const fn bytes(self) -> [u8; NOTE_BYTES] {
        [self.signal, self.origin as u8]
    }
}

/// Arranges that a fatal signal writes a [`Note`] at `offset` of `file` before the signal's
/// previous action is taken.
pub fn leave_in(file: Arc<File>, offset: i64) {
    static INSTALL: Once = Once::new();
    let mut kept = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    // The handler writes no note while the descriptor and the offset do not match.
    DESCRIPTOR.store(-1, Ordering::SeqCst);
    OFFSET.store(offset, Ordering::SeqCst);
    DESCRIPTOR.store(file.as_raw_fd(), Ordering::SeqCst);
    *kept = Some(file);
    INSTALL.call_once(install);
}

fn install() {
    let mut previous = Vec::with_capacity(SIGNALS.len());
    for signal in SIGNALS {
        // SAFETY: an all-zero `sigaction` is a valid value of that C struct, and sigaction(2) only
        // writes to it.
        previous.push(unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            action
        });
    }
    if PREVIOUS.set(previous).is_err() {
        return;
    }
    for signal in SIGNALS {
        // SAFETY: the handler has the signature that SA_SIGINFO requires, and calls only
        // async-signal-safe functions. SA_ONSTACK: after a stack overflow, the handler runs on the
        // alternate stack that std set up.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Writes the note, restores the signal's previous action, and raises the signal again.
extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `info`; si_pid is read only if a process sent the signal
    // (si_code of at most 0). getpid, pwrite, sigaction and raise are async-signal-safe.
    unsafe {
        let was_sent = (*info).si_code <= 0;
        let by_other = was_sent && (*info).si_pid() != libc::getpid();
        let origin = if by_other { Origin::Other } else { Origin::Itself };
        let note = Note { signal: u8::try_from(signal).unwrap_or(u8::MAX), origin }.bytes();
        let descriptor = DESCRIPTOR.load(Ordering::SeqCst);
        if descriptor >= 0 {
            let offset = OFFSET.load(Ordering::SeqCst);
            libc::pwrite(descriptor, note.as_ptr().cast(), NOTE_BYTES, offset);
        }
        let position = SIGNALS.iter().position(|known| *known == signal);
        let previous = PREVIOUS.get().zip(position).and_then(|(all, at)| all.get(at));
        if let Some(previous) = previous {
            libc::sigaction(signal, previous, std::ptr::null_mut());
        }
        // A fault recurs when this handler returns; a sent signal has to be raised again.
        if was_sent {
            libc::raise(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crash_note_round_trips_and_rejects_other_bytes() {
        for origin in [Origin::Itself, Origin::Other] {
            let note = Note { signal: 6, origin };
            assert_eq!(Note::read(note.bytes()), Some(note));
        }
        for none in [[0, 0], [6, 0], [0, 1], [6, 3]] {
            assert_eq!(Note::read(none), None, "{none:?}");
        }
    }
}
