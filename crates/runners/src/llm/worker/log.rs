//! Routes llama.cpp's log to standard error, and stores its last error to explain why a model
//! cannot be loaded.

use std::io;
use std::sync::{Mutex, PoisonError};

use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;

/// Maximum length of a reported error, in characters.
const SHOWN_MAX: usize = 500;

static LAST: Mutex<String> = Mutex::new(String::new());

/// Installs the log handler.
pub(crate) fn set_up() {
    tracing_subscriber::fmt()
        .with_max_level(Level::WARN)
        .without_time()
        .with_target(false)
        .with_level(false)
        .with_ansi(false)
        .with_writer(Lines)
        .init();
    llama_cpp_2::send_logs_to_tracing(llama_cpp_2::LogOptions::default());
}

/// Returns the last error on one line, or `None` if there was none.
pub(crate) fn last_error() -> Option<String> {
    let last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let line: String = last.chars().take(SHOWN_MAX).collect();
    Some(line).filter(|line| !line.is_empty())
}

/// Creates a writer for each line.
struct Lines;

/// A log line.
struct Line {
    is_error: bool,
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { is_error: false }
    }

    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> Line {
        Line { is_error: *meta.level() == Level::ERROR }
    }
}

impl io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_error {
            let text = String::from_utf8_lossy(bytes);
            let line = text.lines().rev().find(|line| !line.trim().is_empty());
            if let Some(line) = line {
                let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
                line.trim().clone_into(&mut last);
            }
        }
        io::Write::write(&mut io::stderr(), bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::Write::flush(&mut io::stderr())
    }
}
