//! Waiting for an execution to end, and what an unfinished execution is waiting for.

use std::time::Duration;

use crate::scheduler::lanes;
use crate::scheduler::retries::Delay;
use crate::{Engine, Error};
use orrery_domain::execution::Execution;
use orrery_domain::ids::{ExecutionId, OrganizationId};
use orrery_domain::waits_for::WaitsFor;

impl Engine {
    /// Returns the execution once it has ended or `patience` has elapsed.
    ///
    /// # Errors
    /// The same errors as [`Engine::get`].
    pub async fn wait(
        &self,
        organization: OrganizationId,
        id: ExecutionId,
        patience: Duration,
    ) -> Result<Execution, Error> {
        let waiter = self.inner.waiters.register(id);
        let woken = waiter.woken();
        let execution = self.get(organization, id).await?;
        if execution.status.is_final() || patience.is_zero() {
            return Ok(execution);
        }
        tokio::select! {
            () = woken => self.get(organization, id).await,
            () = tokio::time::sleep(patience) => self.get(organization, id).await,
            () = self.inner.tasks.stopping() => Ok(execution),
        }
    }

    /// Describes what an unfinished prediction is waiting for, or whether a workflow execution is
    /// waiting for an event or to be resumed. Returns `None` if the execution is not waiting.
    #[must_use]
    pub fn waiting_for(&self, execution: &Execution) -> Option<String> {
        match execution.waits_for() {
            Some(WaitsFor::Event) => return Some("waiting for an event".to_owned()),
            Some(WaitsFor::Resume) => return Some("paused".to_owned()),
            None => {}
        }
        let prediction = execution.prediction()?;
        if !execution.status.is_final()
            && let Some(delay) = self.inner.retries.find(execution.id)
        {
            let Delay { cause, failures, at } = delay;
            return Some(format!("waiting for a retry: {cause}; failures: {failures}, next: {at}"));
        }
        if execution.status.is_final() || prediction.running().is_some() {
            return None;
        }
        if self.inner.isolation.quarantined().contains(&execution.id) {
            return Some(
                "held: the execution was running when the service crashed, and will be retried \
                 alone"
                    .into(),
            );
        }
        if self.paused_since().is_some_and(|since| execution.created_at < since) {
            return Some(
                "held until `orrery resume`: the execution was restored from a backup".into(),
            );
        }
        if let Some(at) = prediction.aside_until {
            let attempt = prediction.attempts.len().saturating_add(1);
            return Some(format!("waiting for attempt {attempt}, which begins at {at}"));
        }
        let (place, running) = self.inner.views.lane_position(execution);
        let place = place.map_or_else(
            || format!("behind the first {} executions", lanes::WINDOW),
            |position| format!("position {position}"),
        );
        // `running` counts only the organization's own work. The number can be 0 because other
        // organizations hold all permits.
        let running = if running == 0 { String::new() } else { format!(", {running} running") };
        Some(format!("queued: {place} in lane {}{running}", prediction.model()))
    }
}
