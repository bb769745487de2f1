//! The process that runs one model (`orrery onnx-worker …`), on the socket that is the process's
//! standard input.
//!
//! The process enters its sandbox before it opens the model's file: from then on, the process can
//! read only that file. It decodes the images and audio files of clients, so that a decoder that
//! crashes or grows affects only this process. The process exits when the service does.

#[cfg(feature = "onnx")]
mod audio;
#[cfg(feature = "onnx")]
mod boot;
#[cfg(feature = "onnx")]
mod engine;
#[cfg(feature = "onnx")]
mod picture;
#[cfg(feature = "onnx")]
mod server;

use std::io;

use crate::llm::worker::CommonArgs;

/// The route that runs the model.
pub(super) const RUN: &str = "/run";

/// The settings of the process. Each thread runs the model for one request at a time.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct WorkerArgs {
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Returns an error if this build cannot run models, as a phrase that follows "the model 'x':".
#[must_use]
pub const fn unsupported() -> Option<&'static str> {
    if cfg!(feature = "onnx") {
        return None;
    }
    Some("this build cannot run ONNX files: build it with the feature `onnx`")
}

/// Serves the model until the service stops it, and returns the exit code of the process.
///
/// # Errors
/// Fails if standard input is not a socket, or if the connection breaks.
#[cfg(feature = "onnx")]
pub fn run(args: &WorkerArgs) -> io::Result<u8> {
    boot::run(args)
}

/// Does nothing, because this build does not support running models.
///
/// # Errors
/// Never fails.
#[cfg(not(feature = "onnx"))]
pub fn run(_args: &WorkerArgs) -> io::Result<u8> {
    Ok(crate::llm::worker::NOT_STARTED)
}
