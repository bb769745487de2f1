//! Isolation: an execution that crashes the process is not retried forever.
//!
//! Only a crash with evidence of its cause counts: a fatal signal or an OOM kill (see `in_flight`).
//! A SIGKILL or a reboot is no evidence against the executions that were running.
//!
//! Executions running at a crash become suspects. An execution that was running at two crashes,
//! without progress in between, is quarantined at the next start. Once the service has started,
//! quarantined executions run before all other work and one at a time. After at most
//! [`Options::isolation`], other work starts alongside them. If the process crashes again while a
//! quarantined execution is the only one running, that execution is the culprit. If the process
//! itself raised the fatal signal, a quarantined execution is also the culprit if it is the only
//! execution that was running at all three crashes. The culprit fails with `internal_error`.
//! Without such proof, an execution remains a suspect.
//!
//! [`Options::isolation`]: crate::Options::isolation

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::scheduler::admission::Entry;
use crate::scheduler::dispatch::ExecutionPermit;
use crate::scheduler::in_flight::{Crash, InFlight, Previous, Run, Suspect};
use crate::{Engine, Error, Inner, rows};
use orrery_domain::attempt::{Attempt, Outcome};
use orrery_domain::classify::ErrorClass;
use orrery_domain::execution::{Execution, Fault, Work};
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::machine;
use orrery_domain::step::Step;
use orrery_runtime::memory;
use orrery_storage::{self as storage, Commit};

/// The number of crashes after which an execution is quarantined and runs alone.
const QUARANTINE_AFTER: u32 = 2;
/// Interval of memory measurements while a suspect runs alone.
const GROWTH_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum memory growth for which an OOM kill is blamed on the suspect that ran alone.
const GROWTH_MIN: u64 = 64 << 20;

/// Tracks the executions that may have killed the process.
#[derive(Debug, Default)]
pub(crate) struct Isolation {
    /// Executions in flight, for recovery after a crash.
    pub(crate) in_flight: InFlight,
    /// Executions that are held back until each of them can run alone.
    quarantined: Mutex<HashSet<ExecutionId>>,
    /// The quarantined execution that is running now.
    suspect: Mutex<Option<ExecutionId>>,
}

impl Isolation {
    pub(crate) fn quarantined(&self) -> MutexGuard<'_, HashSet<ExecutionId>> {
        self.quarantined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_suspect(&self, id: Option<ExecutionId>) {
        *self.suspect.lock().unwrap_or_else(PoisonError::into_inner) = id;
    }

    /// Whether this execution was quarantined and is running now.
    pub(crate) fn runs_as_suspect(&self, id: ExecutionId) -> bool {
        *self.suspect.lock().unwrap_or_else(PoisonError::into_inner) == Some(id)
    }
}

/// The conclusions about the executions that were running at a crash.
#[derive(Default)]
struct CrashVerdict {
    suspects: Vec<Suspect>,
    /// The execution that was running at three crashes, if nothing else can have caused the last
    /// crash.
    culprit: Option<Execution>,
    /// The executions that were running when the process died; they are retried first.
    ran: BTreeSet<ExecutionId>,
}

/// The evidence about one execution.
#[derive(Default)]
struct Evidence {
    suspects: Vec<Suspect>,
    running: Vec<Run>,
}

impl Engine {
    /// Returns the number of crashes during which each execution ran. While the service is stopped,
    /// this includes a crash that the next start will detect.
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

    /// Records an orderly stop, so that the executions that are still running do not become
    /// suspects.
    pub fn stopped(&self) {
        self.inner.isolation.in_flight.close();
    }
}

impl Inner {
    /// Evaluates the crash before this start, if any, fails the culprit, and starts a new record.
    /// Returns the quarantined executions in the order in which they will run.
    pub(crate) async fn judge_crash(
        self: &Arc<Self>,
    ) -> Result<Vec<(ExecutionId, OrganizationId)>, Error> {
        let folder = self.store.folder();
        let judged = self.judge(InFlight::read(folder)).await?;
        if let Some(guilty) = judged.culprit {
            self.fail_culprit(guilty).await?;
        }
        // Open the new record last: if the process is killed before this point, the next start
        // finds the old record.
        if let Err(error) = self.isolation.in_flight.open(folder, &judged.suspects) {
            tracing::error!(%error, "cannot record running executions");
        }
        let quarantined =
            judged.suspects.iter().filter(|suspect| suspect.deaths >= QUARANTINE_AFTER);
        let quarantined: BTreeSet<_> =
            quarantined.map(|one| (one.run.id, one.run.organization)).collect();
        self.isolation.quarantined().extend(quarantined.iter().map(|(id, _)| *id));
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

    /// Returns the execution if it is unfinished, with its progress: the number of its attempts and
    /// steps that have ended.
    async fn read_unfinished(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
    ) -> Result<Option<(Execution, u64)>, Error> {
        let key = rows::execution(organization, id);
        let execution = match self.store.read::<Execution>(&key).await {
            Ok(found) => found,
            Err(error @ storage::Error::Malformed(_)) => {
                tracing::error!(execution = %id, %error, "cannot read an execution");
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

    /// Fails an execution that crashed the process, without running or compiling any part of the
    /// execution.
    async fn fail_culprit(self: &Arc<Self>, mut execution: Execution) -> Result<(), Error> {
        let cause = "the service crashed three times while this execution was running, and no other \
                     execution was running at all three crashes; it will not be run again";
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
                crate::run::outcome::webhook_body(&execution, None)
                    .map_err(|error| storage::Error::malformed("webhook body", error))?
            }
            Work::Workflow(_) => self.views.workflow_body(&execution, None, Vec::new()).await?,
        };
        self.write(commit, &execution, &effects, Some(body)).await?;
        metrics::counter!("orrery_executions_abandoned_total").increment(1);
        tracing::error!(execution = %id, "failed an execution that crashed the service");
        Ok(())
    }

    /// Runs the quarantined executions one at a time. At first, no other work runs.
    pub(crate) async fn run_quarantined(
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
                "running alone after two crashes"
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

    /// Records the memory growth while a suspect runs alone. Never returns.
    async fn note_growth(&self) {
        let base = memory::resident();
        let mut most = 0;
        let mut samples = tokio::time::interval(GROWTH_INTERVAL);
        loop {
            samples.tick().await;
            let growth = memory::resident().saturating_sub(base) as u64;
            if growth > most {
                most = growth;
                self.isolation.in_flight.note_growth(growth);
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
                tracing::error!(execution = %id, %error, "cannot run a quarantined execution");
                None
            }
        };
        // The execution may have been cancelled.
        if !self.isolation.quarantined().remove(&id) {
            return;
        }
        let Some((execution, _)) = execution else { return };
        let lane = execution.lane();
        self.open_lane(&lane);
        let started = self.lanes().start_quarantined(&lane, organization, id);
        let Some(task) = started else { return };
        let permit = ExecutionPermit::new(Arc::clone(self), Arc::from(lane), id, task);
        self.isolation.set_suspect(Some(id));
        permit.run(Entry { organization, active: None }).await;
        self.isolation.set_suspect(None);
    }
}

/// Whether an execution was quarantined, according to the crash counts of its runs.
fn was_held(mut deaths: impl Iterator<Item = u32>) -> bool {
    deaths.any(|deaths| deaths >= QUARANTINE_AFTER)
}

fn deaths_of(suspects: &[Suspect]) -> impl Iterator<Item = u32> {
    suspects.iter().map(|suspect| suspect.deaths)
}

/// Whether it is proven that the quarantined execution that was running caused the crash.
fn proves<'e>(crash: Crash, all: impl Iterator<Item = &'e Evidence>) -> bool {
    let running: Vec<&Evidence> = all.filter(|evidence| !evidence.running.is_empty()).collect();
    let was_alone = running.len() == 1;
    let held = running.iter().filter(|evidence| was_held(deaths_of(&evidence.suspects))).count();
    match crash {
        // If only one of the running executions was quarantined, the others were not running at the
        // two earlier crashes.
        Crash::Fault => was_alone || held == 1,
        Crash::Signal => was_alone,
        Crash::OutOfMemory { growth } => was_alone && growth >= GROWTH_MIN,
    }
}

/// Returns the runs of an execution that remain suspects after a crash, or `None` if the execution
/// is the culprit. Evidence about a run counts as long as its execution has made no progress or the
/// same attempt was running again.
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
