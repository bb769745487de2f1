//! Isolation: an execution that crashes the process is not repeated forever.
//!
//! Only a crash that left evidence counts: a fatal signal, or a kill for want of memory (see `in_flight`). A
//! process that somebody killed with SIGKILL proves nothing against what it was running, and neither does the
//! loss of the machine.
//!
//! What was running at a crash is suspected. What was running at two crashes, without progress between them, is
//! held back until the service is up. Then it runs first and alone, for [`Options::isolation`] at most; after
//! that other work starts beside it, and the suspects still run one at a time. If the process crashes again,
//! the execution that ran alone is the cause. So is the only one that ran at all three crashes, if the crash
//! was a fault of the process itself. The cause ends with `internal_error`; without proof an execution stays
//! suspected.
//!
//! [`Options::isolation`]: crate::engine::Options::isolation

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::domain::attempt::{Attempt, Outcome};
use crate::domain::classify::ErrorClass;
use crate::domain::execution::{Execution, Fault, Work};
use crate::domain::ids::{ExecutionId, OrganizationId};
use crate::domain::machine;
use crate::domain::step::Step;
use crate::engine::scheduler::admission::Entry;
use crate::engine::scheduler::dispatch::ExecutionPermit;
use crate::engine::scheduler::in_flight::{Crash, InFlight, Previous, Run, Suspect};
use crate::engine::{Engine, Error, Inner, rows};
use crate::runtime::memory;
use crate::storage::{self, Commit};

/// Crashes after which an execution is held back and runs alone.
const QUARANTINE_AFTER: u32 = 2;
/// How often the memory is measured while a suspect runs alone.
const GROWTH_INTERVAL: Duration = Duration::from_millis(50);
/// Growth of the memory from which a kill for want of memory is the fault of the suspect that ran alone.
const GROWTH_MIN: u64 = 64 << 20;

/// What a crash says about the executions that were running.
#[derive(Default)]
struct CrashVerdict {
    suspects: Vec<Suspect>,
    /// It ran at three crashes, and at the last one nothing else can be the cause.
    culprit: Option<Execution>,
    /// What ran when the process died: the first to run again.
    ran: BTreeSet<ExecutionId>,
}

/// What is known of one execution.
#[derive(Default)]
struct Evidence {
    suspects: Vec<Suspect>,
    running: Vec<Run>,
}

impl Engine {
    /// How often the process crashed while each of these ran: what is suspected now, or, of a
    /// service that is stopped, what its next start will suspect.
    #[must_use]
    pub fn crashes(&self) -> HashMap<ExecutionId, u32> {
        let found = InFlight::read(self.inner.store.folder());
        let mut crashes = HashMap::new();
        for Suspect { run, deaths, .. } in &found.suspects {
            let known = crashes.entry(run.id).or_insert(0);
            *known = (*deaths).max(*known);
        }
        if found.crash.is_some() && !self.inner.is_recovered() {
            let running: BTreeSet<_> = found.running.iter().map(|run| run.id).collect();
            running.into_iter().for_each(|id| *crashes.entry(id).or_insert(0) += 1);
        }
        crashes
    }

    /// The service stops in order: what runs still is suspected of nothing.
    pub fn stopped(&self) {
        self.inner.in_flight.close();
    }
}

impl Inner {
    /// Judges what the crash before this start left, ends what is guilty, and starts a new record.
    /// Answers which executions are held back, in the order in which they are to run.
    pub(in crate::engine) async fn judge_crash(
        self: &Arc<Self>,
    ) -> Result<Vec<(ExecutionId, OrganizationId)>, Error> {
        let folder = self.store.folder();
        let judged = self.judge(InFlight::read(folder)).await?;
        if let Some(guilty) = judged.culprit {
            self.fail_culprit(guilty).await?;
        }
        // Only now: a kill before this finds the same record again.
        if let Err(error) = self.in_flight.open(folder, &judged.suspects) {
            tracing::error!(%error, "running executions cannot be recorded");
        }
        let quarantined =
            judged.suspects.iter().filter(|suspect| suspect.deaths >= QUARANTINE_AFTER);
        let quarantined: BTreeSet<_> =
            quarantined.map(|one| (one.run.id, one.run.organization)).collect();
        self.quarantined().extend(quarantined.iter().map(|(id, _)| *id));
        let mut quarantined: Vec<_> = quarantined.into_iter().collect();
        quarantined.sort_by_key(|(id, _)| !judged.ran.contains(id));
        Ok(quarantined)
    }

    async fn judge(&self, found: Previous) -> Result<CrashVerdict, Error> {
        let mut all = BTreeMap::<_, Evidence>::new();
        for suspect in found.suspects {
            let of = (suspect.run.id, suspect.run.organization);
            all.entry(of).or_default().suspects.push(suspect);
        }
        let mut judged = CrashVerdict {
            ran: found.running.iter().map(|run| run.id).collect(),
            ..CrashVerdict::default()
        };
        for run in found.running.into_iter().filter(|_| found.crash.is_some()) {
            all.entry((run.id, run.organization)).or_default().running.push(run);
        }
        let is_proof = found.crash.is_some_and(|crash| proves(crash, all.values()));
        for ((id, organization), evidence) in all {
            let Some((execution, progress)) = self.read_unfinished(organization, id).await? else {
                continue;
            };
            match weigh(&evidence, progress, is_proof) {
                Some(suspects) => judged.suspects.extend(suspects),
                None => judged.culprit = Some(execution),
            }
        }
        if let Some(crash) = found.crash {
            let (running, suspects) = (judged.ran.len(), judged.suspects.len());
            tracing::warn!(?crash, running, suspects, "the previous process crashed");
        }
        Ok(judged)
    }

    /// The execution, unless it has ended, and how far it has come: what of it has ended.
    async fn read_unfinished(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Option<(Execution, u64)>, Error> {
        let key = rows::execution(organization, id);
        let execution = match self.store.read::<Execution>(&key).await {
            Ok(found) => found,
            Err(error @ storage::Error::Malformed(_)) => {
                tracing::error!(execution = %id, %error, "an execution cannot be read");
                None
            }
            Err(error) => return Err(error.into()),
        };
        let Some(execution) = execution.filter(|one| !one.status.is_final()) else {
            return Ok(None);
        };
        let ended = |attempts: &[Attempt]| {
            attempts.iter().filter(|attempt| attempt.outcome != Outcome::Running).count()
        };
        let progress = match &execution.work {
            Work::Prediction(prediction) => ended(&prediction.attempts),
            Work::Workflow(_) | Work::Agent(_) => {
                let steps = self.read_steps(id).await?;
                let of_step =
                    |step: &Step| usize::from(step.status.is_final()) + ended(&step.attempts);
                steps.iter().map(|(_, step)| of_step(step)).sum()
            }
            Work::Chat(_) | Work::Decision(_) => 0,
        };
        Ok(Some((execution, progress as u64)))
    }

    /// Ends an execution that killed the process while it ran alone. Nothing of it is run or
    /// compiled for that.
    async fn fail_culprit(self: &Arc<Self>, mut execution: Execution) -> Result<(), Error> {
        let cause = "the service crashed three times while this was running, and nothing else was \
                     running at all three crashes; it is not run again";
        let fault = Fault::new("InternalError", ErrorClass::InternalError, cause);
        let id = execution.id;
        let now = execution.stamp(self.clock.now());
        let mut commit = Commit::new();
        let mut effects = Vec::new();
        if execution.has_steps() {
            let steps = self.sum_cost(&mut execution).await?;
            effects = machine::abandon(steps.iter().map(|(_, step)| step));
            for (instance, mut step) in steps {
                if step.abandon(&fault, now) {
                    commit.put(rows::step(id, &instance), &step)?;
                }
            }
        }
        effects.extend(machine::fail_permanently(&mut execution, fault, now));
        let body = match &execution.work {
            Work::Prediction(_) | Work::Chat(_) | Work::Decision(_) | Work::Agent(_) => {
                crate::engine::run::outcome::webhook_body(&execution, None).map_err(|error| {
                    crate::engine::run::commit::not_serializable("webhook body", &error)
                })?
            }
            Work::Workflow(_) => self.workflow_body(&execution, None, Vec::new()).await?,
        };
        self.write(commit, &execution, &effects, Some(body)).await?;
        metrics::counter!("orrery_executions_abandoned_total").increment(1);
        tracing::error!(execution = %id, "an execution crashed the service and is ended");
        Ok(())
    }

    /// Runs what is held back, one at a time, at first with nothing else running.
    pub(in crate::engine) async fn run_quarantined(
        self: Arc<Self>,
        quarantined: Vec<(ExecutionId, OrganizationId)>,
    ) {
        let all_start = tokio::time::sleep(self.options.isolation);
        tokio::pin!(all_start);
        for (id, organization) in quarantined {
            if self.tasks.is_stopping() {
                return;
            }
            tracing::warn!(
                execution = %id,
                "the service crashed twice while this was running: now it runs alone"
            );
            let run = self.run_suspect(organization, id);
            tokio::pin!(run);
            if self.lanes().holds_starts() {
                tokio::select! {
                    () = &mut run => continue,
                    () = self.note_growth() => {}
                    () = &mut all_start => {}
                }
                self.start_others();
            }
            run.await;
        }
        self.start_others();
    }

    /// Records how the memory grows while a suspect runs alone; never returns.
    async fn note_growth(&self) {
        let base = memory::resident();
        let mut most = 0;
        let mut samples = tokio::time::interval(GROWTH_INTERVAL);
        loop {
            samples.tick().await;
            let growth = memory::resident().saturating_sub(base) as u64;
            if growth > most {
                most = growth;
                self.in_flight.note_growth(growth);
            }
        }
    }

    pub(super) fn start_others(self: &Arc<Self>) {
        self.lanes().hold_starts(false);
        self.scheduler.wake();
    }

    async fn run_suspect(self: &Arc<Self>, organization: OrganizationId, id: ExecutionId) {
        let execution = match self.read_unfinished(organization, id).await {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(execution = %id, %error, "an execution cannot go on");
                None
            }
        };
        // A cancel may have taken it.
        if !self.quarantined().remove(&id) {
            return;
        }
        let Some((execution, _)) = execution else { return };
        let lane = execution.lane();
        self.open_lane(&lane);
        let started = self.lanes().start_quarantined(&lane, organization, id);
        let Some(task) = started else { return };
        let permit = ExecutionPermit::new(Arc::clone(self), Arc::from(lane), id, task);
        self.set_suspect(Some(id));
        permit.run(Entry { organization, active: None }).await;
        self.set_suspect(None);
    }

    fn set_suspect(&self, id: Option<ExecutionId>) {
        *self.suspect.lock().unwrap_or_else(PoisonError::into_inner) = id;
    }

    /// Whether this execution was held back and runs now.
    pub(in crate::engine) fn runs_as_suspect(&self, id: ExecutionId) -> bool {
        *self.suspect.lock().unwrap_or_else(PoisonError::into_inner) == Some(id)
    }
}

/// Whether an execution was held back, by how often its runs were running at a crash.
fn was_held(mut deaths: impl Iterator<Item = u32>) -> bool {
    deaths.any(|deaths| deaths >= QUARANTINE_AFTER)
}

fn deaths_of(suspects: &[Suspect]) -> impl Iterator<Item = u32> {
    suspects.iter().map(|suspect| suspect.deaths)
}

/// Whether a crash proves which execution caused it, if one that was held back was running.
fn proves<'e>(crash: Crash, all: impl Iterator<Item = &'e Evidence>) -> bool {
    let running: Vec<&Evidence> = all.filter(|evidence| !evidence.running.is_empty()).collect();
    let was_alone = running.len() == 1;
    let held = running.iter().filter(|evidence| was_held(deaths_of(&evidence.suspects))).count();
    match crash {
        // All others that ran were not running at the two crashes before.
        Crash::Fault => was_alone || held == 1,
        Crash::Signal => was_alone,
        Crash::OutOfMemory { growth } => was_alone && growth >= GROWTH_MIN,
    }
}

/// What is suspected of an execution after a crash, or `None` when it is guilty. What is known of a
/// run counts as long as its execution has made no progress, or the same attempt was running again.
fn weigh(evidence: &Evidence, progress: u64, is_proof: bool) -> Option<Vec<Suspect>> {
    let is_running = |run: &Run| evidence.running.contains(run);
    let counts =
        |one: &&Suspect| one.progress == progress || (one.run.attempt != 0 && is_running(&one.run));
    let known: HashMap<Run, u32> =
        evidence.suspects.iter().filter(counts).map(|one| (one.run, one.deaths)).collect();
    if was_held(known.values().copied()) && is_proof && !evidence.running.is_empty() {
        return None;
    }
    let runs: BTreeSet<Run> = known.keys().chain(&evidence.running).copied().collect();
    let suspect = |run: Run| {
        let deaths = known.get(&run).copied().unwrap_or(0) + u32::from(is_running(&run));
        Suspect { run, deaths: deaths.min(QUARANTINE_AFTER), progress }
    };
    Some(runs.into_iter().map(suspect).collect())
}

#[cfg(test)]
#[path = "isolation_tests.rs"]
mod tests;
