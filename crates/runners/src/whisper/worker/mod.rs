//! The process that recognizes speech with one model (`orrery whisper-worker …`): whisper.cpp behind
//! OpenAI's routes for audio, on the socket that is the process's standard input.
//!
//! | module | |
//! |---|---|
//! | `server` | receives requests and sends answers |
//! | `request` | validates the fields of a request |
//! | `audio` | decodes and resamples audio while it arrives |
//! | `engine` | recognizes speech, one request at a time, in windows of bounded length |
//! | `transcript` | formats transcripts |
//!
//! The process enters its sandbox before it opens the model's file, and from then on can read only
//! that file. Decoders and whisper.cpp may crash at any time; the process keeps no state that a
//! crash could lose.

#[cfg(feature = "whisper")]
mod audio;
#[cfg(feature = "whisper")]
mod engine;
#[cfg(feature = "whisper")]
mod request;
#[cfg(feature = "whisper")]
mod server;
#[cfg(feature = "whisper")]
mod transcript;

use std::io;

use crate::llm::worker::CommonArgs;

/// The settings of the process.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct WorkerArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Number of alternatives to search
    #[arg(long, value_name = "COUNT")]
    pub beam: u32,
    /// The language of audio whose request names none
    #[arg(long, value_name = "CODE")]
    pub language: Option<String>,
}

/// Serves the model until the service stops it, and returns the exit code of the process.
///
/// # Errors
/// Fails if standard input is not a socket, or if the connection breaks.
#[cfg(feature = "whisper")]
pub fn run(args: &WorkerArgs) -> io::Result<u8> {
    server::run(args)
}

/// Does nothing, because this build does not support recognizing speech.
///
/// # Errors
/// Never fails.
#[cfg(not(feature = "whisper"))]
pub fn run(_args: &WorkerArgs) -> io::Result<u8> {
    Ok(crate::llm::worker::NOT_STARTED)
}
