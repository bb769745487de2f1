//! The outbox's loop: receives new deliveries in memory, finds due deliveries on the disk, starts
//! attempts as the dispatcher allows, and runs one disk job at a time.
//!
//! The loop never blocks on the disk or on a receiver: attempts run in their own tasks, and a disk
//! job is polled concurrently. During a shutdown, attempts may outlive the loop, within the grace
//! period. Deliveries that do not fit in memory stay on the disk, where later scans find them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, OptionFuture};
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinError;
use tokio::time::Instant;

use super::attempt::{self, AttemptError, Context, Report};
use super::disk_jobs::{self, DiskJob, Failed, JobOutput, ParkedEndpoint, ParkedPage, Scanned};
use super::dispatcher::{Admission, CircuitChange, Dispatcher, Health, Item};
use super::gauges::Metrics;
use super::test_delivery;
use orrery_domain::ids::ExecutionId;
use orrery_domain::time::Timestamp;
use orrery_runtime::{self as runtime, Tasks};
use orrery_storage::Key;

/// Maximum number of deliveries waiting to be parked; any other deliveries stay in the due index
/// for now.
const PARKING_MAX: usize = 1024;
/// Maximum time between checks of the clock, because clocks can be set and machines can sleep.
const RESCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the sweep for parked rows that are missing in memory.
const PARKED_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum time between two passes over the due index: each pass also reads the rows that are
/// already in memory.
const PASS_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of deliveries that one job fails as expired.
const EXPIRED_MAX: usize = 128;
/// Pause after a store error.
const FAILURE_BACKOFF: Duration = Duration::from_secs(1);

type Ended = (Item, Result<Result<Report, AttemptError>, JoinError>);

enum Event {
    Stop,
    Fresh(Item),
    Test(test_delivery::Job),
    Answered((Item, Health)),
    Ended(Ended),
    DiskJob(Result<JobOutput, Failed>),
    Rescan,
    Tick,
}

/// The loop and its state. Each outbox runs one loop.
pub(super) struct SendLoop {
    context: Arc<Context>,
    fresh: mpsc::Receiver<Item>,
    asked: mpsc::Receiver<test_delivery::Job>,
    /// Test deliveries that are queued in the dispatcher.
    tests: HashMap<ExecutionId, test_delivery::Job>,
    look: Arc<Notify>,
    figures: watch::Sender<Metrics>,
    dispatcher: Dispatcher,
    attempts: FuturesUnordered<BoxFuture<'static, Ended>>,
    /// The receivers' responses. Each attempt sends one response, and the dispatcher limits the
    /// number of attempts.
    answers: mpsc::Receiver<(Item, Health)>,
    answer: mpsc::Sender<(Item, Health)>,
    disk_job: Option<BoxFuture<'static, Result<JobOutput, Failed>>>,
    to_park: Vec<Item>,
    expiring: Vec<Item>,
    circuits: Vec<CircuitChange>,
    circuits_read: bool,
    pass: Pass,
    /// The earliest due time among the rows that were not yet due at the last scan.
    next_due: Option<Timestamp>,
    sweep: Sweep,
    /// Selects whether the scan, the refill or the sweep goes first, so that none of the three
    /// starves the others.
    turn: u8,
    /// No job starts before this time.
    pause: Option<Instant>,
    /// No new pass starts before this time.
    next_pass: Instant,
    tick: Instant,
}

/// The state of a pass over the due index, from its beginning to the last row that is due now.
#[derive(Debug, PartialEq, Eq)]
enum Pass {
    /// No pass is needed.
    None,
    /// A pass is needed: there may be due rows.
    Wanted,
    /// A pass is in progress and continues after this key. `again`: rows were added in the
    /// meantime, perhaps before this key. `stuck`: the last page did not fit in memory.
    Under { after: Option<Key>, again: bool, stuck: bool },
}

#[derive(Debug)]
enum Sweep {
    At(Instant),
    Under { after: Option<Key> },
}

impl SendLoop {
    pub(super) fn new(
        context: Arc<Context>,
        fresh: mpsc::Receiver<Item>,
        asked: mpsc::Receiver<test_delivery::Job>,
        look: Arc<Notify>,
        figures: watch::Sender<Metrics>,
    ) -> Self {
        let now = runtime::monotonic_now();
        let (answer, answers) = mpsc::channel(context.options.in_flight.max(1));
        Self {
            dispatcher: Dispatcher::new(&context.options),
            context,
            fresh,
            asked,
            tests: HashMap::new(),
            look,
            figures,
            attempts: FuturesUnordered::new(),
            answers,
            answer,
            disk_job: None,
            to_park: Vec::new(),
            expiring: Vec::new(),
            circuits: Vec::new(),
            circuits_read: false,
            pass: Pass::Wanted,
            next_due: None,
            sweep: Sweep::At(now),
            turn: 0,
            pause: None,
            next_pass: now,
            tick: now,
        }
    }

    /// Runs until the service stops.
    pub(super) async fn run(mut self, tasks: Tasks) {
        loop {
            let now = self.context.clock.steady();
            let instant = runtime::monotonic_now();
            self.dispatcher.reopen(now);
            self.start_attempts(&tasks);
            if self.disk_job.is_none() {
                let job = self.next_disk_job(now, instant);
                self.disk_job = job.map(|job| self.begin(job, now));
            }
            self.publish_metrics();
            match self.event(&tasks, now, instant).await {
                Event::Stop => return,
                Event::Fresh(item) => {
                    if !self.admit(item) {
                        self.want_pass();
                    }
                }
                Event::Test(job) => self.start_test(job),
                Event::Answered((item, health)) => self.answered(&item, health),
                Event::Ended(ended) => self.ended(ended),
                Event::DiskJob(done) => {
                    self.disk_job = None;
                    self.disk_job_ended(done);
                }
                Event::Rescan => self.want_pass(),
                Event::Tick => self.tick(now, instant),
            }
        }
    }

    async fn event(&mut self, tasks: &Tasks, now: Timestamp, instant: Instant) -> Event {
        let next = self.next_wakeup(now, instant);
        tokio::select! {
            () = tasks.stopping() => Event::Stop,
            Some(item) = self.fresh.recv() => Event::Fresh(item),
            Some(job) = self.asked.recv() => Event::Test(job),
            Some(answered) = self.answers.recv() => Event::Answered(answered),
            Some(ended) = self.attempts.next() => Event::Ended(ended),
            Some(done) = OptionFuture::from(self.disk_job.as_mut()) => Event::DiskJob(done),
            () = self.look.notified() => Event::Rescan,
            () = tokio::time::sleep_until(next) => Event::Tick,
        }
    }

    fn start_attempts(&mut self, tasks: &Tasks) {
        while let Some(mut item) = self.dispatcher.next() {
            let carried = item.carried.take();
            let context = Arc::clone(&self.context);
            let attempted = item.clone();
            let answer = self.answer.clone();
            let trial = self.tests.remove(&item.execution);
            let attempt = tasks.spawn(async move {
                let answered = |health| {
                    // If the channel is full or closed, the response is reported when the attempt
                    // ends.
                    let _said_later = answer.try_send((attempted.clone(), health));
                };
                match trial {
                    Some(job) => Ok(job.run(&context).await),
                    None => attempt::make(&context, &attempted, carried, answered).await,
                }
            });
            self.attempts.push(Box::pin(async move { (item, attempt.await) }));
        }
    }

    /// Frees the receiver's slot before the outcome is on the disk.
    fn answered(&mut self, item: &Item, health: Health) {
        let now = self.context.clock.steady();
        let parked = self.dispatcher.answered(item, health, now);
        self.park(parked);
    }

    fn ended(&mut self, (item, result): Ended) {
        // The attempt's response was sent earlier, and must not be mistaken for the response to a
        // later attempt.
        while let Ok((answered, health)) = self.answers.try_recv() {
            self.answered(&answered, health);
        }
        let now = self.context.clock.steady();
        let health = match result {
            Ok(Ok(Report::Made { health, next })) => {
                self.next_due = self.next_due.into_iter().chain(next).min();
                health
            }
            Ok(Ok(Report::StaleRow)) => Health::Unknown,
            Ok(Err(AttemptError::Local(reason))) => {
                metrics::counter!("orrery_webhook_unsent_total").increment(1);
                if self.pause.is_none() {
                    tracing::error!(reason, "webhooks delayed: this machine cannot send");
                }
                self.back_off()
            }
            Ok(Err(AttemptError::Outbox(error))) => {
                tracing::error!(
                    execution = %item.execution, %error,
                    "failed to record webhook attempt"
                );
                self.back_off()
            }
            Err(error) => {
                tracing::error!(
                    execution = %item.execution, %error,
                    "webhook attempt ended unexpectedly"
                );
                self.back_off()
            }
        };
        let parked = self.dispatcher.finish(&item, health, now);
        self.park(parked);
        self.resume_scan();
    }

    /// Parks the deliveries of a receiver whose circuit has opened.
    fn park(&mut self, items: Vec<Item>) {
        for item in items {
            match self.tests.remove(&item.execution) {
                // A test delivery is not on the disk, so it cannot be parked and is refused.
                Some(_refused) => self.dispatcher.forget(&[item]),
                None => self.to_park.push(item),
            }
        }
    }

    /// Pauses briefly after a store error or a bug, then scans the disk.
    fn back_off(&mut self) -> Health {
        self.pause = Some(runtime::monotonic_now() + FAILURE_BACKOFF);
        self.want_pass();
        Health::Unknown
    }

    /// Queues a test delivery for its receiver. If a normal delivery would be parked, refuses the
    /// test delivery.
    fn start_test(&mut self, job: test_delivery::Job) {
        match self.dispatcher.offer(job.item()) {
            Admission::Queued => drop(self.tests.insert(job.delivery.row(), job)),
            Admission::Park(item) => self.dispatcher.forget(&[item]),
            Admission::Full => {}
        }
    }

    /// Accepts a delivery into memory or schedules it to be parked; returns `false` if neither is
    /// possible.
    fn admit(&mut self, item: Item) -> bool {
        match self.dispatcher.offer(item) {
            Admission::Queued => true,
            Admission::Park(item) if self.to_park.len() < PARKING_MAX => {
                self.to_park.push(item);
                true
            }
            Admission::Park(item) => {
                self.dispatcher.forget(&[item]);
                false
            }
            Admission::Full => false,
        }
    }

    fn want_pass(&mut self) {
        match &mut self.pass {
            Pass::Under { again, .. } => *again = true,
            Pass::None | Pass::Wanted => self.pass = Pass::Wanted,
        }
    }

    fn resume_scan(&mut self) {
        if let Pass::Under { stuck, .. } = &mut self.pass {
            *stuck = false;
        }
    }

    fn begin(&self, job: DiskJob, now: Timestamp) -> BoxFuture<'static, Result<JobOutput, Failed>> {
        let context = Arc::clone(&self.context);
        Box::pin(async move { disk_jobs::run(&context, job, now).await })
    }

    fn next_disk_job(&mut self, now: Timestamp, instant: Instant) -> Option<DiskJob> {
        if self.pause.is_some_and(|until| instant < until) {
            return None;
        }
        self.pause = None;
        self.circuits.extend(self.dispatcher.take_changes());
        if !self.circuits_read {
            return Some(DiskJob::ReadCircuits);
        }
        if !self.circuits.is_empty() {
            return Some(DiskJob::KeepCircuits(std::mem::take(&mut self.circuits)));
        }
        if !self.to_park.is_empty() {
            return Some(DiskJob::Park(std::mem::take(&mut self.to_park)));
        }
        if !self.expiring.is_empty() {
            let count = self.expiring.len().min(EXPIRED_MAX);
            return Some(DiskJob::Expire(self.expiring.drain(..count).collect()));
        }
        self.turn = (self.turn + 1) % 3;
        (0..3).find_map(|offset| match (self.turn + offset) % 3 {
            0 => self.next_scan(now, instant),
            1 => self.next_load(),
            _ => self.next_find(instant),
        })
    }

    fn next_scan(&mut self, now: Timestamp, instant: Instant) -> Option<DiskJob> {
        if self.pass == Pass::None && self.next_due.is_some_and(|due| due <= now) {
            self.pass = Pass::Wanted;
        }
        if !self.dispatcher.has_room() {
            return None;
        }
        match &self.pass {
            Pass::Wanted if instant >= self.next_pass => {
                self.pass = Pass::Under { after: None, again: false, stuck: false };
                self.next_pass = instant + PASS_INTERVAL;
                self.next_due = None;
                Some(DiskJob::Scan { after: None })
            }
            Pass::Under { after, stuck: false, .. } => Some(DiskJob::Scan { after: after.clone() }),
            Pass::Under { stuck: true, .. } | Pass::Wanted | Pass::None => None,
        }
    }

    fn next_load(&mut self) -> Option<DiskJob> {
        self.dispatcher.next_to_refill().map(DiskJob::LoadParked)
    }

    fn next_find(&mut self, instant: Instant) -> Option<DiskJob> {
        match &self.sweep {
            Sweep::At(time) if *time > instant => None,
            Sweep::At(_) => Some(DiskJob::FindParked { after: None }),
            Sweep::Under { after } => Some(DiskJob::FindParked { after: after.clone() }),
        }
    }

    fn disk_job_ended(&mut self, done: Result<JobOutput, Failed>) {
        let now = self.context.clock.steady();
        match done {
            Ok(JobOutput::Circuits(circuits)) => {
                self.circuits_read = true;
                for (receiver, circuit) in circuits {
                    self.dispatcher.restore_circuit(&receiver, circuit, now);
                }
            }
            Ok(JobOutput::Scanned(scanned)) => self.scanned(scanned),
            Ok(JobOutput::Parked(items)) => {
                self.dispatcher.parked(&items);
                self.resume_scan();
            }
            Ok(JobOutput::LoadedParked { receiver, items, complete }) => {
                self.dispatcher.refilled(&receiver, items, complete);
            }
            Ok(JobOutput::KeptCircuits) => {}
            Ok(JobOutput::FoundParked(swept)) => self.swept(swept, now),
            Ok(JobOutput::Expired(items)) => self.dispatcher.forget(&items),
            Err(failed) => self.disk_job_failed(failed),
        }
    }

    fn scanned(&mut self, scanned: Scanned) {
        let Pass::Under { mut after, again, .. } = std::mem::replace(&mut self.pass, Pass::Wanted)
        else {
            return;
        };
        self.next_due = self.next_due.into_iter().chain(scanned.next_due).min();
        let mut stuck = false;
        for item in scanned.items {
            let key = item.key();
            if !self.admit(item) {
                stuck = true;
                break;
            }
            after = Some(key);
        }
        self.pass = match (stuck || !scanned.ended, again) {
            (true, _) => Pass::Under { after, again, stuck },
            (false, true) => Pass::Wanted,
            (false, false) => Pass::None,
        };
    }

    fn swept(&mut self, swept: ParkedPage, now: Timestamp) {
        self.sweep = match swept.after {
            Some(key) => Sweep::Under { after: Some(key) },
            None => Sweep::At(runtime::monotonic_now() + PARKED_INTERVAL),
        };
        for ParkedEndpoint { receiver, oldest, circuit, overdue } in swept.found {
            if !self.dispatcher.restore_endpoint(&receiver, oldest, circuit, now) {
                // There is currently no room in memory for more receivers.
                self.sweep = Sweep::At(runtime::monotonic_now() + PARKED_INTERVAL);
            }
            for item in overdue {
                if self.dispatcher.reserve(&item) {
                    self.expiring.push(item);
                }
            }
        }
    }

    fn disk_job_failed(&mut self, failed: Failed) {
        tracing::error!(error = %failed.error, "the webhook outbox cannot use the store");
        self.back_off();
        match failed.job {
            DiskJob::ReadCircuits => {}
            DiskJob::Scan { .. } => self.pass = Pass::Wanted,
            DiskJob::Park(items) | DiskJob::Expire(items) => self.dispatcher.forget(&items),
            DiskJob::LoadParked(refill) => self.dispatcher.refill_failed(&refill.receiver),
            DiskJob::KeepCircuits(mut changes) => {
                changes.append(&mut self.circuits);
                self.circuits = changes;
            }
            DiskJob::FindParked { .. } => {
                self.sweep = Sweep::At(runtime::monotonic_now() + PARKED_INTERVAL)
            }
        }
    }

    /// Returns the time at which the loop must wake up even without a notification.
    fn next_wakeup(&self, now: Timestamp, instant: Instant) -> Instant {
        // A running job wakes the loop when it ends; no other job can start before then.
        if self.disk_job.is_some() {
            return self.tick;
        }
        let in_time = |time: Option<Timestamp>| {
            time.filter(|time| *time > now).map(|time| instant + time.since(now))
        };
        let sweep = match self.sweep {
            Sweep::At(time) => Some(time),
            Sweep::Under { .. } => None,
        };
        [
            in_time(self.next_due),
            in_time(self.dispatcher.next_reopening()),
            self.pause,
            sweep,
            (self.pass == Pass::Wanted || self.next_due.is_some_and(|due| due <= now))
                .then_some(self.next_pass),
        ]
        .into_iter()
        .flatten()
        .filter(|time| *time > instant)
        .fold(self.tick, Instant::min)
    }

    fn tick(&mut self, now: Timestamp, instant: Instant) {
        if instant < self.tick {
            return;
        }
        self.tick = instant + RESCAN_INTERVAL;
        self.resume_scan();
        let oldest = self.dispatcher.oldest_due();
        let lag = oldest.map_or(Duration::ZERO, |oldest| now.since(oldest));
        metrics::gauge!("orrery_webhook_lag_seconds").set(lag.as_secs_f64());
    }

    fn publish_metrics(&self) {
        let figures = Metrics {
            held: self.dispatcher.queued(),
            most_held: self.figures.borrow().most_held.max(self.dispatcher.queued()),
            in_flight: self.dispatcher.in_flight(),
            open_circuits: self.dispatcher.open_circuits(),
        };
        let changed = self.figures.send_if_modified(|shown| {
            let changed = *shown != figures;
            *shown = figures;
            changed
        });
        if changed {
            figures.publish();
        }
    }
}
