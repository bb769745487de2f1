//! Isolation: an execution that may kill the process is not repeated forever.
//!
//! What was running when the process crashed is suspected. What was running at two crashes, without
//! progress of its own between them, is held back until the service is up, and then runs while
//! nothing else does. If the process dies then too, that execution is the cause, and it ends with
//! `internal_error`. Where others ran beside it, nothing is proven: it stays suspected.
//!
//! Nothing else may start while suspects run alone, for [`ALONE_MAX`] at most; what is suspected
//! still runs one at a time after that, beside other work. A crash counts only while the machine
//! stays up: see `in_flight`.

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
use crate::engine::scheduler::in_flight::{InFlight, Previous, Run, Suspect};
use crate::engine::{Engine, Error, Inner, rows};
use crate::storage::{self, Commit};

/// Crashes after which an execution is held back and runs alone.
const QUARANTINE_AFTER: u32 = 2;
/// For how long, after a start, suspects may keep everything else waiting.
const ALONE_MAX: Duration = Duration::from_secs(30);

/// What a crash says about the executions that were running.
#[derive(Default)]
struct CrashVerdict {
    suspects: Vec<Suspect>,
    /// It ran alone when the process died again.
    culprit: Option<Execution>,
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
        if found.crashed && !self.inner.is_recovered() {
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
    ) -> Result<BTreeSet<(ExecutionId, OrganizationId)>, Error> {
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
        Ok(quarantined)
    }

    async fn judge(&self, found: Previous) -> Result<CrashVerdict, Error> {
        let mut all = BTreeMap::<_, Evidence>::new();
        for suspect in found.suspects {
            let of = (suspect.run.id, suspect.run.organization);
            all.entry(of).or_default().suspects.push(suspect);
        }
        for run in found.running.into_iter().filter(|_| found.crashed) {
            all.entry((run.id, run.organization)).or_default().running.push(run);
        }
        let running = all.values().filter(|evidence| !evidence.running.is_empty()).count();
        let mut judged = CrashVerdict::default();
        for ((id, organization), evidence) in all {
            let Some((execution, progress)) = self.read_unfinished(organization, id).await? else {
                continue;
            };
            match weigh(&evidence, progress, running == 1) {
                Some(suspects) => judged.suspects.extend(suspects),
                None => judged.culprit = Some(execution),
            }
        }
        if found.crashed {
            let suspects = judged.suspects.len();
            tracing::warn!(running, suspects, "the last run of the service ended in a crash");
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
        let cause = "the service crashed three times while this was running, the last time with \
                     nothing else running; it is not run again";
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
        quarantined: BTreeSet<(ExecutionId, OrganizationId)>,
    ) {
        let all_start = tokio::time::sleep(ALONE_MAX);
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
            tokio::select! {
                () = &mut run => continue,
                () = &mut all_start, if self.lanes().holds_starts() => {}
            }
            self.start_others();
            run.await;
        }
        self.start_others();
    }

    fn start_others(self: &Arc<Self>) {
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

/// What is suspected of an execution after a crash, or `None` when it is guilty. What is known of a
/// run counts as long as its execution has made no progress, or the same attempt was running again.
fn weigh(evidence: &Evidence, progress: u64, was_alone: bool) -> Option<Vec<Suspect>> {
    let is_running = |run: &Run| evidence.running.contains(run);
    let counts =
        |one: &&Suspect| one.progress == progress || (one.run.attempt != 0 && is_running(&one.run));
    let known: HashMap<Run, u32> =
        evidence.suspects.iter().filter(counts).map(|one| (one.run, one.deaths)).collect();
    let was_held = known.values().any(|deaths| *deaths >= QUARANTINE_AFTER);
    if was_held && was_alone && !evidence.running.is_empty() {
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
