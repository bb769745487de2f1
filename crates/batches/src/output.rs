//! The output files of a batch. Each file is written as a stream of the stored answers, so that a
//! batch of any size takes little memory.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::input::{self, Input};
use super::{Batches, Error, lines, rows};
use orrery_domain::batch::{Batch, CONTENT_TYPE, LineAnswer, OUTPUT_PURPOSE, Output};
use orrery_domain::ids::{BatchId, FileId, OrganizationId};
use orrery_records::files::Report;
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Commit, Page, Store};

/// Maximum number of lines in memory while a file is written.
const QUEUED_LINES: usize = 16;
/// Maximum number of rows that are deleted in one commit.
const DELETED_AT_ONCE: usize = 500;

/// Reads the lines that a task sends.
struct Lines {
    incoming: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl Read for Lines {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.incoming.blocking_recv() {
                Some(next) => self.current = next?,
                None => return Ok(0),
            }
        }
        let taken = self.current.split_to(self.current.len().min(into.len()));
        if let Some(into) = into.get_mut(..taken.len()) {
            into.copy_from_slice(&taken);
        }
        Ok(taken.len())
    }
}

impl Batches {
    /// Writes an output file and returns its id. `expired` contains the lines that were not
    /// answered in time, which are written to the error file.
    pub(crate) async fn write_output(
        &self,
        batch: &Batch,
        output: Output,
        expired: Option<(&Arc<Input>, &[u32])>,
    ) -> Result<FileId, Error> {
        let (sender, incoming) = mpsc::channel(QUEUED_LINES);
        let report = Report {
            id: output.file(batch.id),
            organization: batch.organization,
            filename: output.filename(batch.id),
            content_type: CONTENT_TYPE,
            purpose: OUTPUT_PURPOSE,
        };
        let source = Box::new(Lines { incoming, current: Bytes::new() });
        let writing = self.shared.files.keep_report(report, source, Commit::new());
        let sending = async {
            if let Err(error) = self.send_lines(batch.id, output, expired, &sender).await {
                // The error makes the reader of the lines fail, so no file is written.
                let _closed = sender.send(Err(io::Error::other(error))).await;
            }
            drop(sender);
        };
        let (written, ()) = tokio::join!(writing, sending);
        Ok(written?.id)
    }

    async fn send_lines(
        &self,
        batch: BatchId,
        output: Output,
        expired: Option<(&Arc<Input>, &[u32])>,
        lines: &mpsc::Sender<io::Result<Bytes>>,
    ) -> Result<(), Error> {
        let store = &self.shared.store;
        let mut scan = store.scan(rows::answers(batch));
        while let Some((_, row)) = scan.next().await? {
            let answer: LineAnswer = decode(&row)?;
            if answer.is_error == (output == Output::Errors) {
                let line = store.read_payload(&answer.line).await?;
                // The receiver is dropped only if the file cannot be written, and the receiver's
                // task reports that error.
                let _closed = lines.send(Ok(with_break(line.get()))).await;
            }
        }
        let Some((input, numbers)) = expired else { return Ok(()) };
        for number in numbers {
            let text = input.read(*number).await.map_err(orrery_records::files::Error::Disk)?;
            let line = input::parse(&text).map_err(io::Error::other);
            let line = line.map_err(orrery_records::files::Error::Disk)?;
            let line = lines::expired(&line.custom_id)?;
            let _closed = lines.send(Ok(with_break(line.get()))).await;
        }
        Ok(())
    }
}

fn with_break(line: &str) -> Bytes {
    format!("{line}\n").into()
}

/// Deletes the stored answers of a batch.
pub(crate) async fn forget_answers(
    store: &Store,
    organization: OrganizationId,
    batch: BatchId,
) -> Result<(), storage::Error> {
    loop {
        let found = store.page(Page::of(rows::answers(batch), DELETED_AT_ONCE)).await?;
        let mut commit = Commit::new();
        if found.is_empty() {
            store.release_usage(&mut commit, organization, [batch]).await?;
            return store.commit(commit).await;
        }
        let mut payloads = Vec::new();
        for (key, row) in found {
            let answer: LineAnswer = decode(&row)?;
            store.release(&mut commit, &answer.line);
            commit.delete(key);
            payloads.push(answer.line);
        }
        store.commit(commit).await?;
        for payload in payloads {
            store.remove_payload(&payload).await?;
        }
    }
}
