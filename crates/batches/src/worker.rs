//! The worker: runs open batches in turns, so that a long batch does not delay other batches.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::Instant;

use super::input::{self, Input};
use super::lines::{Answered, Answers, LineRecord, Request};
use super::{Batches, Error, output, rows};
use orrery_domain::batch::{Batch, InputError, Output, Status};
use orrery_domain::ids::{BatchId, OrganizationId};
use orrery_records::files;
use orrery_runtime::{Recurring, Tasks, monotonic_now};
use orrery_storage::{Change, Commit};

/// Maximum number of batches that run at the same time.
const RUNNING_MAX: usize = 4;
/// Maximum number of lines of one batch that are answered at the same time.
const LINES_AT_ONCE: usize = 8;
/// Maximum number of lines that a batch starts in one turn.
const LINES_OF_A_TURN: usize = 64;
/// Maximum number of batches whose state stays in memory between turns, about 1 MB each.
const CACHED_MAX: usize = 16;
/// Maximum number of calls for a line whose calls fail with transient errors.
const ATTEMPTS_MAX: u32 = 4;

/// A batch that is being answered.
#[derive(Debug)]
struct State {
    input: Arc<Input>,
    /// The lines without an answer.
    pending: VecDeque<u32>,
}

/// The result of a turn.
#[derive(Debug)]
enum Turn {
    /// There is more work.
    More(Option<State>),
    Ended,
    /// The batch is blocked for now, for example because the balance is used up.
    Later(Option<State>),
}

/// The result of answering a line.
#[derive(Debug, PartialEq, Eq)]
enum LineEnd {
    Answered,
    Blocked,
    Stopping,
}

type Batched = (OrganizationId, BatchId);

/// The open batches.
#[derive(Debug, Default)]
struct Queue {
    /// The batches that wait for a turn, longest wait first.
    waiting: VecDeque<Batched>,
    /// The batches that are blocked, and until when.
    blocked: Vec<(Instant, Batched)>,
    /// The batches that have a turn.
    running: Vec<Batched>,
    known: HashSet<BatchId>,
    states: HashMap<BatchId, State>,
}

impl Queue {
    fn add(&mut self, organization: OrganizationId, batch: BatchId) {
        if self.known.insert(batch) {
            self.waiting.push_back((organization, batch));
        }
    }

    /// Starts the next turn, for a batch of the organization with the fewest running batches.
    fn start_turn(&mut self) -> Option<(Batched, Option<State>)> {
        if self.running.len() >= RUNNING_MAX {
            return None;
        }
        let running_of = |organization: OrganizationId| {
            self.running.iter().filter(|(of, _)| *of == organization).count()
        };
        let waiting = self.waiting.iter().enumerate();
        let (next, _) = waiting.min_by_key(|(_, (of, _))| running_of(*of))?;
        let batched = self.waiting.remove(next)?;
        self.running.push(batched);
        Some((batched, self.states.remove(&batched.1)))
    }

    fn end_turn(&mut self, batched: Batched, turn: Turn, blocked_for: Duration) {
        self.running.retain(|one| *one != batched);
        let state = match turn {
            Turn::Ended => {
                self.known.remove(&batched.1);
                return;
            }
            Turn::More(state) => {
                self.waiting.push_back(batched);
                state
            }
            Turn::Later(state) => {
                self.blocked.push((monotonic_now() + blocked_for, batched));
                state
            }
        };
        if let Some(state) = state
            && self.states.len() < CACHED_MAX
        {
            self.states.insert(batched.1, state);
        }
    }

    /// Moves the batches that are no longer blocked back to the queue.
    fn unblock(&mut self) {
        let now = monotonic_now();
        let waiting = &mut self.waiting;
        self.blocked.retain(|(until, batched)| {
            if *until <= now {
                waiting.push_back(*batched);
            }
            *until > now
        });
    }
}

impl Batches {
    /// Runs the open batches until the service stops. While `is_held_back` returns true, as after a
    /// restore, no batch is started.
    pub async fn run(
        self,
        answers: Arc<dyn Answers>,
        tasks: Tasks,
        is_held_back: impl Fn() -> bool + Send,
    ) {
        let mut queue = Queue::default();
        let mut turns = FuturesUnordered::new();
        let mut trouble = Recurring::default();
        // Whether the queue has all open batches.
        let mut is_complete = false;
        loop {
            if !is_held_back() {
                if !is_complete {
                    is_complete = self.queue_open(&mut queue, &mut trouble).await;
                }
                queue.unblock();
                while let Some((batched, state)) = queue.start_turn() {
                    let turn = self.clone().take_turn(Arc::clone(&answers), batched, state);
                    turns.push(tasks.spawn_for(batched.0, turn).map(move |turn| (batched, turn)));
                }
            }
            tokio::select! {
                () = tasks.stopping() => return,
                () = self.shared.changed.notified() => is_complete = false,
                () = tokio::time::sleep(self.shared.delays.blocked) => {}
                Some((batched, turn)) = turns.next() => {
                    // A panic is logged by the runtime; the batch continues in its next turn.
                    let turn = turn.unwrap_or(Turn::Later(None));
                    queue.end_turn(batched, turn, self.shared.delays.blocked);
                }
            }
        }
    }

    /// Adds the unfinished batches to the queue, oldest first. Returns false if they cannot be read.
    async fn queue_open(&self, queue: &mut Queue, trouble: &mut Recurring) -> bool {
        match self.shared.store.owners(rows::all_open()).await {
            Ok(open) => {
                open.into_iter().for_each(|(of, batch)| queue.add(of, batch));
                true
            }
            Err(error) => {
                let error = format!("cannot read the open batches: {error}");
                if trouble.is_news(&error) {
                    tracing::error!("{error}");
                }
                false
            }
        }
    }

    async fn take_turn(
        self,
        answers: Arc<dyn Answers>,
        (organization, id): Batched,
        state: Option<State>,
    ) -> Turn {
        match self.turn(answers, organization, id, state).await {
            Ok(turn) => turn,
            Err(error) => {
                tracing::error!(batch = %id, %error, "cannot continue a batch");
                Turn::Later(None)
            }
        }
    }

    async fn turn(
        &self,
        answers: Arc<dyn Answers>,
        organization: OrganizationId,
        id: BatchId,
        state: Option<State>,
    ) -> Result<Turn, Error> {
        let key = rows::batch(organization, id);
        let Some(batch) = self.shared.store.read::<Batch>(&key).await? else {
            return Ok(Turn::Ended);
        };
        match batch.status {
            Status::Validating => self.validate(&batch).await,
            Status::InProgress => {
                let Some(mut state) = self.state(&batch, state).await? else {
                    self.lose_input(&batch).await?;
                    return Ok(Turn::More(None));
                };
                let is_late = self.shared.clock.believed() >= batch.expires_at;
                if !is_late && !state.pending.is_empty() {
                    let end = self.answer_lines(&answers, &batch, &mut state).await?;
                    return Ok(match end {
                        LineEnd::Answered => Turn::More(Some(state)),
                        LineEnd::Blocked | LineEnd::Stopping => Turn::Later(Some(state)),
                    });
                }
                self.change(&batch, |batch, now| {
                    batch.status = Status::Finalizing;
                    batch.finalizing_at = Some(now);
                })
                .await?;
                Ok(Turn::More(Some(state)))
            }
            Status::Finalizing => {
                let state = self.state(&batch, state).await?;
                self.finish(&batch, state.as_ref()).await?;
                Ok(Turn::More(None))
            }
            Status::Cancelling => {
                self.finish(&batch, None).await?;
                Ok(Turn::More(None))
            }
            Status::Completed | Status::Expired | Status::Failed | Status::Cancelled => {
                output::forget_answers(&self.shared.store, organization, id).await?;
                let mut commit = Commit::new();
                commit.delete(rows::open(id));
                self.shared.store.commit(commit).await?;
                Ok(Turn::Ended)
            }
        }
    }

    /// Checks the input file.
    async fn validate(&self, batch: &Batch) -> Result<Turn, Error> {
        let checked = match self.input_path(batch).await? {
            Some(path) => input::check(path, batch.endpoint).await.map_err(files::Error::Disk)?,
            None => Err(vec![input_deleted()]),
        };
        let (total, errors) = match &checked {
            Ok(input) => (u64::from(input.len()), Vec::new()),
            Err(errors) => (0, errors.clone()),
        };
        let begin = |batch: &mut Batch, now| {
            batch.total = total;
            if errors.is_empty() {
                batch.status = Status::InProgress;
                batch.in_progress_at = Some(now);
            } else {
                batch.status = Status::Failed;
                batch.errors.clone_from(&errors);
                batch.ended_at = Some(now);
            }
        };
        self.change(batch, begin).await?;
        let state = checked
            .ok()
            .map(|input| State { pending: (0..input.len()).collect(), input: Arc::new(input) });
        Ok(Turn::More(state))
    }

    /// Returns the state of a batch; `None` if its input file was deleted.
    async fn state(&self, batch: &Batch, state: Option<State>) -> Result<Option<State>, Error> {
        if state.is_some() {
            return Ok(state);
        }
        let Some(path) = self.input_path(batch).await? else { return Ok(None) };
        let input = Arc::new(input::reopen(path).await.map_err(files::Error::Disk)?);
        let mut answered = HashSet::new();
        let mut scan = self.shared.store.scan(rows::answers(batch.id));
        while let Some((key, _)) = scan.next().await? {
            answered.extend(rows::line_of(&key));
        }
        let pending = (0..input.len()).filter(|line| !answered.contains(line)).collect();
        Ok(Some(State { input, pending }))
    }

    /// Returns the path of the input file; `None` if the file was deleted.
    async fn input_path(&self, batch: &Batch) -> Result<Option<std::path::PathBuf>, Error> {
        let found = self.shared.files.find(batch.organization, batch.input_file).await?;
        Ok(found.map(|(_, path)| path))
    }

    /// Ends a batch whose input file was deleted.
    async fn lose_input(&self, batch: &Batch) -> Result<(), Error> {
        self.change(batch, |batch, now| {
            batch.status = Status::Finalizing;
            batch.finalizing_at = Some(now);
            batch.errors = vec![input_deleted()];
        })
        .await
    }

    /// Answers the next lines, several at a time.
    async fn answer_lines(
        &self,
        answers: &Arc<dyn Answers>,
        batch: &Batch,
        state: &mut State,
    ) -> Result<LineEnd, Error> {
        let mut running = FuturesUnordered::new();
        let mut started = 0;
        let mut end = LineEnd::Answered;
        loop {
            while end == LineEnd::Answered
                && running.len() < LINES_AT_ONCE
                && started < LINES_OF_A_TURN
                && self.is_in_progress(batch).await?
                && let Some(line) = state.pending.pop_front()
            {
                started += 1;
                let text = state.input.read(line).await;
                let answering = self.answer_line(answers, batch, line, text);
                running.push(answering.map(move |end| (line, end)));
            }
            let Some((line, ended)) = running.next().await else { return Ok(end) };
            match ended {
                Ok(LineEnd::Answered) => {}
                Ok(blocked) => {
                    state.pending.push_front(line);
                    end = blocked;
                }
                Err(error) => {
                    state.pending.push_front(line);
                    end = LineEnd::Blocked;
                    tracing::warn!(batch = %batch.id, line, %error, "cannot answer a line");
                }
            }
        }
    }

    async fn is_in_progress(&self, batch: &Batch) -> Result<bool, Error> {
        let key = rows::batch(batch.organization, batch.id);
        let now = self.shared.store.read::<Batch>(&key).await?;
        Ok(now.is_some_and(|batch| batch.status == Status::InProgress))
    }

    /// Answers a line, and repeats calls that fail with a transient error.
    async fn answer_line(
        &self,
        answers: &Arc<dyn Answers>,
        batch: &Batch,
        line: u32,
        text: io::Result<Bytes>,
    ) -> Result<LineEnd, Error> {
        let text = text.map_err(files::Error::Disk)?;
        let parsed = input::parse(&text).map_err(io::Error::other).map_err(files::Error::Disk)?;
        let body = text.slice_ref(parsed.body.get().as_bytes());
        let mut backoff = self.shared.delays.first_backoff;
        for attempt in 1..=ATTEMPTS_MAX {
            let store = self.shared.store.clone();
            let is_last = attempt == ATTEMPTS_MAX;
            let record = LineRecord::new(store, batch, line, &parsed.custom_id, is_last);
            let request = Request {
                organization: batch.organization,
                key: batch.key,
                source: batch.source,
                endpoint: batch.endpoint,
                body: body.clone(),
                record: record.clone(),
            };
            match answers.answer(request).await {
                Answered::Refused { status, body } => {
                    record.refuse(status, &body).await?;
                    return Ok(LineEnd::Answered);
                }
                Answered::Called if record.is_durable() => return Ok(LineEnd::Answered),
                Answered::Called => {}
                Answered::Later => return Ok(LineEnd::Blocked),
                Answered::Stopping => return Ok(LineEnd::Stopping),
            }
            if !self.is_in_progress(batch).await? {
                return Ok(LineEnd::Blocked);
            }
            tokio::time::sleep(backoff).await;
            backoff *= 4;
        }
        Ok(LineEnd::Blocked)
    }

    /// Writes the output files and ends the batch. `state` contains the lines that were not
    /// answered in time.
    async fn finish(&self, batch: &Batch, state: Option<&State>) -> Result<(), Error> {
        let progress = self.progress(batch.clone()).await?;
        let late: Vec<u32> =
            state.map(|state| state.pending.iter().copied().collect()).unwrap_or_default();
        let output_file = match progress.completed {
            0 => None,
            _ => Some(self.write_output(batch, Output::Answers, None).await?),
        };
        let expired = state.filter(|_| !late.is_empty()).map(|state| (&state.input, &*late));
        let error_file = match (progress.failed, expired) {
            (0, None) => None,
            (_, expired) => Some(self.write_output(batch, Output::Errors, expired).await?),
        };
        let status = match (batch.status, batch.errors.is_empty(), late.is_empty()) {
            (Status::Cancelling, _, _) => Status::Cancelled,
            (_, false, _) => Status::Failed,
            (_, true, false) => Status::Expired,
            (_, true, true) => Status::Completed,
        };
        self.change(batch, |batch, now| {
            batch.status = status;
            batch.output_file = output_file;
            batch.error_file = error_file;
            batch.ended_at = Some(now);
        })
        .await
    }

    /// Changes the row of a batch that may be cancelled or deleted concurrently. `change` is
    /// applied only if the status is still that of `before`.
    async fn change(
        &self,
        before: &Batch,
        change: impl Fn(&mut Batch, orrery_domain::time::Timestamp),
    ) -> Result<(), Error> {
        let key = rows::batch(before.organization, before.id);
        let changed = |batch: Option<Batch>| {
            let now = self.shared.clock.now();
            let changed = batch.ok_or(Error::NotFound).map(|mut batch| {
                if batch.status != before.status {
                    return Change::Keep(batch);
                }
                change(&mut batch, now);
                Change::Put(batch, Commit::new())
            });
            async move { changed }
        };
        match self.shared.store.update(&key, changed).await {
            Ok(_) | Err(Error::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn input_deleted() -> InputError {
    InputError {
        code: "input_file_deleted".to_owned(),
        message: "the input file was deleted or has expired".to_owned(),
        line: None,
        param: Some("input_file_id".to_owned()),
    }
}
