//! The history of deliveries: lists with exact totals, single deliveries, and redelivery on
//! request.
//!
//! Lists use an index by organization, status and creation time, with a row of about 80 bytes for
//! each delivery. If a list is filtered only by status, the total comes from a counter. With other
//! filters, the index is scanned. Only deliveries that are returned are read. A body never changes,
//! so a redelivery sends the same bytes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::outbox::Outbox;
use super::{Error, attempt, rows, test_delivery};
use orrery_domain::delivery::{self, Attempt, Delivery, Status, Webhook};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::payload::Payload;
use orrery_domain::time::Timestamp;
use orrery_domain::webhook_endpoint::{ENDPOINTS_MAX, Event};
use orrery_runtime::new_id;
use orrery_storage::commit::Expect;
use orrery_storage::{self as storage, Commit, Key, Page, Scan, Store};

/// Maximum number of deliveries in one replay; if the window contains more deliveries, it must be
/// replayed again.
pub(crate) const REPLAYED_MAX: usize = 100_000;
/// `Retry-After` for a refused test delivery.
const TEST_RETRY_AFTER: Duration = Duration::from_secs(5);
/// Maximum number of updates and deliveries to endpoints that are listed for one execution. No
/// execution has more deliveries to endpoints, but an execution may have more updates.
const OF_EXECUTION_MAX: usize = ENDPOINTS_MAX * Event::ALL.len();
/// Number of deliveries that a replay makes due per commit.
const REPLAY_BATCH_MAX: usize = 128;

/// The displayed status of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryState {
    /// The delivery waits for its first or next attempt.
    Pending,
    /// An attempt is in flight.
    Delivering,
    Delivered,
    Failed,
}

impl DeliveryState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Delivering, Self::Delivered, Self::Failed];

    /// Returns the state's name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivering => "delivering",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
        }
    }

    const fn stored(self) -> Status {
        match self {
            Self::Pending | Self::Delivering => Status::Pending,
            Self::Delivered => Status::Delivered,
            Self::Failed => Status::Failed,
        }
    }
}

impl From<Status> for DeliveryState {
    /// Returns the state while no attempt is in flight.
    fn from(status: Status) -> Self {
        match status {
            Status::Pending => Self::Pending,
            Status::Delivered => Self::Delivered,
            Status::Failed => Self::Failed,
        }
    }
}

/// The filter of a list.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub state: Option<DeliveryState>,
    pub execution: Option<ExecutionId>,
    /// The receiver's host, with or without its port.
    pub host: Option<String>,
    /// Created at or after this time.
    pub from: Option<Timestamp>,
    /// Created before this time.
    pub to: Option<Timestamp>,
}

/// A delivery and its current status.
#[derive(Debug)]
pub struct Recorded {
    pub delivery: Delivery,
    pub state: DeliveryState,
    /// Whether a redelivery would currently be accepted, as far as can be determined without
    /// reading the body.
    pub redeliverable: bool,
    /// Whether no attempt is in flight or due.
    pub is_still: bool,
    /// Time left until a redelivery is accepted.
    pub cooldown: Duration,
    /// The time of the next attempt. If the receiver's circuit is open, this time is not before the
    /// circuit's next probe.
    pub next_attempt_at: Option<Timestamp>,
}

/// The reason for refusing to send a delivery again.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("webhook not found")]
    NotFound,
    /// An attempt is in flight or due.
    #[error("delivery in flight")]
    InFlight,
    /// Other deliveries wait for the receiver, or the receiver's circuit is open. Only test
    /// deliveries are refused for this reason.
    #[error("other deliveries wait for this receiver")]
    Busy { wait: Duration },
    /// The endpoint is deleted or disabled.
    #[error("{0}")]
    NoEndpoint(&'static str),
    #[error("redelivered recently")]
    Cooldown { wait: Duration },
    #[error("payload no longer stored")]
    Gone,
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<storage::Error> for Refusal {
    fn from(error: storage::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// The result of a test delivery.
#[derive(Debug)]
pub struct TestDelivery {
    pub body: String,
    pub attempt: Attempt,
}

impl Filter {
    fn matches(&self, receiver: &str) -> bool {
        let Some(host) = &self.host else { return true };
        let Some((_, authority)) = receiver.split_once("://") else { return false };
        let name = authority.rsplit_once(':').map_or(authority, |(name, _port)| name);
        host.eq_ignore_ascii_case(authority) || host.eq_ignore_ascii_case(name)
    }

    /// Returns whether the list is filtered only by status, so that counters have the total.
    const fn is_plain(&self) -> bool {
        self.execution.is_none() && self.host.is_none() && self.from.is_none() && self.to.is_none()
    }
}

/// The index rows of one status, newest first.
struct Rows {
    scan: Scan,
    next: Option<(Timestamp, ExecutionId, String)>,
}

impl Rows {
    fn of(store: &Store, organization: OrganizationId, status: Status, filter: &Filter) -> Self {
        let prefix = rows::status_rows(organization, status);
        // The order is newest first, so rows newer than the window come before the window. `to` is
        // exclusive, `from` is inclusive.
        let behind = |time: Timestamp| prefix.clone().time_newest_first(time).raw(&[0xff; 17]);
        let (after, before) = (filter.to.map(behind), filter.from.map(behind));
        Self { scan: store.scan(Page { after, before, ..prefix.into() }), next: None }
    }

    /// Returns the creation time of the next row.
    async fn peek(&mut self) -> Result<Option<Timestamp>, Error> {
        while self.next.is_none()
            && let Some((key, receiver)) = self.scan.next().await?
        {
            let ids = rows::created_and_execution(&key).zip(String::from_utf8(receiver).ok());
            self.next = ids.map(|((created, execution), receiver)| (created, execution, receiver));
        }
        Ok(self.next.as_ref().map(|(created, ..)| *created))
    }
}

impl Outbox {
    /// Returns a page of an organization's deliveries, newest first, and the total number of
    /// matching deliveries.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn list(
        &self,
        organization: OrganizationId,
        filter: &Filter,
        offset: u64,
        limit: usize,
    ) -> Result<(Vec<Recorded>, u64), Error> {
        if let Some(execution) = filter.execution {
            let found = self.of_execution(organization, execution).await?;
            let found: Vec<_> = found.into_iter().filter(|one| is_within(one, filter)).collect();
            let total = found.len() as u64;
            let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
            return Ok((found.into_iter().skip(skipped).take(limit).collect(), total));
        }
        let (ids, total) = self.search(organization, filter, offset, limit).await?;
        let mut found = Vec::with_capacity(ids.len());
        for execution in ids {
            found.extend(self.find(organization, execution).await?);
        }
        Ok((found, total))
    }

    /// Returns the deliveries of an execution, newest first: its own webhook, and the deliveries to
    /// endpoints.
    async fn of_execution(
        &self,
        organization: OrganizationId,
        execution: ExecutionId,
    ) -> Result<Vec<Recorded>, Error> {
        let mut found: Vec<Recorded> =
            self.find(organization, execution).await?.into_iter().collect();
        let prefix = rows::of_execution(organization, execution);
        for (key, _) in self.context.store.page(Page::of(prefix, OF_EXECUTION_MAX)).await? {
            let Some(row) = key.last_id::<ExecutionId>() else { continue };
            found.extend(self.find(organization, row).await?);
        }
        found.sort_by_key(|one| std::cmp::Reverse((one.delivery.created_at, one.delivery.id)));
        Ok(found)
    }

    async fn search(
        &self,
        organization: OrganizationId,
        filter: &Filter,
        offset: u64,
        limit: usize,
    ) -> Result<(Vec<ExecutionId>, u64), Error> {
        let store = &self.context.store;
        let statuses = match filter.state {
            None => vec![Status::Pending, Status::Delivered, Status::Failed],
            Some(standing) => vec![standing.stored()],
        };
        let flying = self.in_flight(organization);
        let known = match filter.state {
            Some(DeliveryState::Pending | DeliveryState::Delivering) => None,
            _ if !filter.is_plain() => None,
            _ => Some(count(store, organization, &statuses).await?),
        };
        let mut sources: Vec<Rows> =
            statuses.iter().map(|status| Rows::of(store, organization, *status, filter)).collect();
        let mut found = Vec::new();
        let mut matched = 0_u64;
        while let Some((execution, receiver)) = newest(&mut sources).await? {
            let has_status = match filter.state {
                Some(DeliveryState::Pending) => !flying.contains(&execution),
                Some(DeliveryState::Delivering) => flying.contains(&execution),
                Some(DeliveryState::Delivered | DeliveryState::Failed) | None => true,
            };
            if !has_status || !filter.matches(&receiver) {
                continue;
            }
            if matched >= offset && found.len() < limit {
                found.push(execution);
            }
            matched += 1;
            if known.is_some() && found.len() >= limit {
                break;
            }
        }
        Ok((found, known.unwrap_or(matched)))
    }

    fn in_flight(&self, organization: OrganizationId) -> Vec<ExecutionId> {
        let in_flight = self.context.in_flight();
        let own = in_flight.iter().filter(|(owner, _)| *owner == organization);
        own.map(|(_, execution)| *execution).collect()
    }

    /// Returns a delivery in its current state.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn find(
        &self,
        organization: OrganizationId,
        execution: ExecutionId,
    ) -> Result<Option<Recorded>, Error> {
        let context = &self.context;
        let found = rows::load(&context.store, organization, execution).await?;
        let Some(delivery) = found else { return Ok(None) };
        let flies = context.in_flight().contains(&(organization, delivery.row()));
        let state = match delivery.progress.status {
            Status::Pending if flies => DeliveryState::Delivering,
            status @ (Status::Pending | Status::Delivered | Status::Failed) => status.into(),
        };
        let cooldown = self.cooldown_left(&delivery);
        let is_still = delivery.progress.rests(context.clock.steady());
        let redeliverable = is_still && cooldown.is_zero();
        let mut next_attempt_at = delivery.progress.next_attempt_at;
        if state == DeliveryState::Pending
            && let Some(circuit) = self.circuit(&delivery::receiver(&delivery.webhook.url)).await?
        {
            next_attempt_at = next_attempt_at.max(Some(circuit.until));
        }
        Ok(Some(Recorded { delivery, state, redeliverable, is_still, cooldown, next_attempt_at }))
    }

    /// Returns the body that a delivery sends.
    ///
    /// # Errors
    /// [`Refusal::Gone`] if the body is no longer stored, [`Refusal::Failed`].
    pub async fn body(&self, delivery: &Delivery) -> Result<String, Refusal> {
        match self.context.store.read_payload(&delivery.body).await {
            Ok(body) => Ok(body.get().to_owned()),
            Err(error) if error.is_final() => Err(Refusal::Gone),
            Err(error) => Err(error.into()),
        }
    }

    fn cooldown_left(&self, delivery: &Delivery) -> Duration {
        let cooldown = self.context.options.redelivery_cooldown;
        let now = self.context.clock.now();
        delivery.progress.cools_for(cooldown, now)
    }

    /// Sends a delivery again after it has finished, or while it waits for its next attempt: the
    /// same bytes with the same id, on a new schedule. When this function returns, the redelivery
    /// is durable.
    ///
    /// # Errors
    /// [`Refusal`]. On error, nothing is changed.
    pub async fn redeliver(
        &self,
        organization: OrganizationId,
        execution: ExecutionId,
    ) -> Result<Delivery, Refusal> {
        let one_at_a_time = Arc::clone(&self.context.taking_up).lock_owned().await;
        let found = rows::load(&self.context.store, organization, execution).await?;
        let mut delivery = found.ok_or(Refusal::NotFound)?;
        if !delivery.progress.rests(self.context.clock.steady()) {
            return Err(Refusal::InFlight);
        }
        if let Some(reason) = attempt::without_endpoint(&self.context, &delivery) {
            return Err(Refusal::NoEndpoint(reason));
        }
        let wait = self.cooldown_left(&delivery);
        if !wait.is_zero() {
            return Err(Refusal::Cooldown { wait });
        }
        self.body(&delivery).await?;
        let mut commit = Commit::of_new_work();
        self.take_up(&mut commit, &mut delivery)?;
        self.wake_after(&mut commit, vec![delivery.clone()], one_at_a_time);
        // If the commit conflicts, the next attempt has started in the meantime.
        self.context.store.commit_or(commit, Refusal::InFlight).await?;
        Ok(delivery)
    }

    /// Hands the deliveries over once the commit is durable, even if the caller has disconnected by
    /// then. Until the hand-over, `one_at_a_time` blocks other redeliveries, which would read the
    /// old state.
    fn wake_after(
        &self,
        commit: &mut Commit,
        taken: Vec<Delivery>,
        one_at_a_time: impl Send + 'static,
    ) {
        let outbox = self.clone();
        commit.after_durable(move || {
            taken.into_iter().for_each(|delivery| outbox.wake(delivery));
            drop(one_at_a_time);
        });
    }

    /// Makes a delivery due now in `commit`.
    fn take_up(&self, commit: &mut Commit, delivery: &mut Delivery) -> Result<(), Refusal> {
        let before = delivery.progress.status;
        let now = self.context.clock.now();
        if let Some(later) = delivery.progress.next_attempt_at {
            let row = rows::due(later, delivery.organization, delivery.row());
            commit.expect(Expect::Present(row.clone())).delete(row);
        }
        delivery.progress.redeliver(now);
        rows::make_due(commit, delivery)?;
        rows::move_status_row(commit, delivery, Some(before));
        Ok(())
    }

    /// Sends every failed delivery that was created within the window again, except deliveries that
    /// were redelivered recently or whose body is deleted. Returns the number of deliveries sent
    /// again.
    ///
    /// # Errors
    /// [`Refusal::Failed`]. Deliveries that were made due before the error are still sent.
    pub async fn replay(
        &self,
        organization: OrganizationId,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<usize, Refusal> {
        let one_at_a_time = Arc::new(Arc::clone(&self.context.taking_up).lock_owned().await);
        let store = &self.context.store;
        let filter = Filter { from: Some(from), to: Some(to), ..Filter::default() };
        let mut failed = [Rows::of(store, organization, Status::Failed, &filter)];
        let mut replayed = 0;
        loop {
            let mut commit = Commit::of_new_work();
            let mut taken = Vec::new();
            let mut is_complete = false;
            while taken.len() < REPLAY_BATCH_MAX && !is_complete {
                let Some((execution, _receiver)) = newest(&mut failed).await? else {
                    is_complete = true;
                    continue;
                };
                let found = rows::load(store, organization, execution).await?;
                let ready = found.filter(|delivery| {
                    delivery.progress.status == Status::Failed
                        && !delivery.is_update
                        && self.cooldown_left(delivery).is_zero()
                        && attempt::without_endpoint(&self.context, delivery).is_none()
                });
                let Some(mut delivery) = ready else { continue };
                match self.body(&delivery).await {
                    Ok(_body) => {
                        self.take_up(&mut commit, &mut delivery)?;
                        taken.push(delivery);
                    }
                    Err(Refusal::Gone) => {}
                    Err(refusal) => return Err(refusal),
                }
            }
            replayed += taken.len();
            self.wake_after(&mut commit, taken, Arc::clone(&one_at_a_time));
            store.commit(commit).await?;
            if is_complete || replayed >= REPLAYED_MAX {
                return Ok(replayed);
            }
        }
    }

    /// Sends one sample to `webhook` and returns the result. Nothing is stored or retried.
    ///
    /// # Errors
    /// [`Refusal::Busy`] if other deliveries wait for the receiver, or the receiver's circuit is
    /// open.
    pub async fn send_test(
        &self,
        organization: OrganizationId,
        webhook: Webhook,
        body: String,
    ) -> Result<TestDelivery, Refusal> {
        let now = self.context.clock.now();
        let nothing = Payload::nothing();
        let delivery = Delivery::new(new_id(), organization, new_id(), webhook, nothing, now);
        self.try_out(delivery, body).await
    }

    /// Sends a delivery that is not stored, and returns the result.
    ///
    /// # Errors
    /// As [`Outbox::send_test`].
    pub async fn try_out(&self, delivery: Delivery, body: String) -> Result<TestDelivery, Refusal> {
        let (done, attempt) = oneshot::channel();
        let job = test_delivery::Job { delivery, body: Bytes::from(body.clone()), done };
        let busy = || Refusal::Busy { wait: TEST_RETRY_AFTER };
        self.trials.try_send(job).map_err(|_full| busy())?;
        let patience = self.context.options.timeout.saturating_mul(2);
        match tokio::time::timeout(patience, attempt).await {
            Ok(Ok(attempt)) => Ok(TestDelivery { body, attempt }),
            Ok(Err(_refused)) => Err(busy()),
            Err(_elapsed) => Err(busy()),
        }
    }
}

/// Returns whether a delivery of the filter's execution also matches the filter's other conditions.
fn is_within(one: &Recorded, filter: &Filter) -> bool {
    let created = one.delivery.created_at;
    filter.state.is_none_or(|standing| standing == one.state)
        && filter.matches(&delivery::receiver(&one.delivery.webhook.url))
        && filter.from.is_none_or(|from| created >= from)
        && filter.to.is_none_or(|to| created < to)
}

/// Takes the newest row out of all sources.
async fn newest(sources: &mut [Rows]) -> Result<Option<(ExecutionId, String)>, Error> {
    let mut newest: Option<(Timestamp, usize)> = None;
    for (index, source) in sources.iter_mut().enumerate() {
        if let Some(created) = source.peek().await?
            && newest.is_none_or(|(known, _)| created > known)
        {
            newest = Some((created, index));
        }
    }
    let source = newest.and_then(|(_, index)| sources.get_mut(index));
    let taken = source.and_then(|source| source.next.take());
    Ok(taken.map(|(_, execution, receiver)| (execution, receiver)))
}

async fn count(
    store: &Store,
    organization: OrganizationId,
    statuses: &[Status],
) -> Result<u64, Error> {
    let keys: Vec<Key> =
        statuses.iter().map(|status| rows::status_count(organization, *status)).collect();
    let total: i64 = store.counters(&keys).await?.into_iter().sum();
    Ok(u64::try_from(total).unwrap_or_default())
}
