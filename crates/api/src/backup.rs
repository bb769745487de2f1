//! `GET /admin/backup`: streams a full backup to the client without storing a copy.

use std::io::{self, Write};

use bytes::Bytes;
use futures_util::stream;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Context;
use super::doc::Doc;
use orrery_backup::{self as backup, Source};
use orrery_http::body::BoxError;
use orrery_http::{Response, body};
use orrery_records::files::{BlobPin, Files};

/// The size of a chunk in bytes, and the number of chunks that are buffered for the client.
const PIECE: usize = 256 * 1024;
const PIECES: usize = 16;

pub(crate) const WRITE: Doc = Doc::new("admin", "admin_backup", "Stream a full backup");

/// `GET /admin/backup`
pub(crate) async fn write(context: Context) -> Result<Response, crate::Error> {
    let services = &context.services;
    let files = services.files.clone();
    let now = services.clock.now();
    let place = Source { store: services.store.clone(), files: files.clone() };
    let (pieces, written) = mpsc::channel(PIECES);
    let pin = files.pin();
    let writing = async move {
        let writing = tokio::task::spawn_blocking(move || {
            let out = Pieces { pieces, held: Vec::with_capacity(PIECE) };
            Ok(backup::write(&place, now, out, &mut |_| {})?.0.flush()?)
        });
        writing.await.unwrap_or_else(|panic| Err(io::Error::other(panic).into()))
    };
    let entry = services.audit.entry(&context.actor(), "backup.write", "to the caller");
    let writing = services.audit.follow(entry, writing);
    let body = stream::unfold(Some((written, writing, files, pin)), next_piece);
    let mut answer = Response::new(body::stream(body));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/zstd"));
    Ok(answer)
}

/// A backup in progress. If the client disconnects, this value is dropped, and the writer fails.
type Writing = (mpsc::Receiver<Bytes>, JoinHandle<Result<(), backup::Error>>, Files, BlobPin);

/// Returns the next chunk; after the last chunk, returns the result of the backup.
async fn next_piece(
    writing: Option<Writing>,
) -> Option<(Result<Bytes, BoxError>, Option<Writing>)> {
    let (mut written, writing, files, pin) = writing?;
    if let Some(piece) = written.recv().await {
        return Some((Ok(piece), Some((written, writing, files, pin))));
    }
    let ended = writing.await.unwrap_or_else(|panic| Err(io::Error::other(panic).into()));
    if let Err(error) = files.unpin(pin).await {
        tracing::error!(%error, "failed to remove orphaned payload files");
    }
    let error = ended.err()?;
    tracing::error!(%error, "backup interrupted");
    Some((Err(error.into()), None))
}

/// A writer that sends the backup in chunks and waits if the client reads slowly.
struct Pieces {
    pieces: mpsc::Sender<Bytes>,
    held: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        if self.held.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.held, Vec::with_capacity(PIECE));
        let sent = self.pieces.blocking_send(piece.into());
        sent.map_err(|_gone| {
            io::Error::new(io::ErrorKind::BrokenPipe, "the client stopped reading the backup")
        })
    }
}
