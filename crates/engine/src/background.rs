//! Chat calls in the background: the engine schedules such a call, and ends it exactly once. An
//! implementation of [`Calls`], in a crate above the engine, asks the model. A call that a crash
//! interrupts is repeated; it is charged in the commit that ends it.

use std::pin::Pin;
use std::sync::{Arc, PoisonError, Weak};

use serde_json::value::RawValue;

use crate::active::ActiveExecution;
use crate::{Engine, Error, Inner};
use orrery_domain::chat::Call;
use orrery_domain::execution::{Execution, Fault};
use orrery_domain::machine::call;
use orrery_domain::money::Usd;
use orrery_domain::payload::Payload;
use orrery_storage::Commit;

/// The outcome of a call.
#[derive(Debug)]
pub struct CallEnding {
    pub call: Call,
    /// `None` on success.
    pub fault: Option<Fault>,
    pub cost: Usd,
    /// The part of the answer that the history stores.
    pub output: Option<Box<RawValue>>,
    /// Written in the commit that ends the call.
    pub beside: Commit,
}

/// A future that resolves to a [`CallEnding`].
pub type CallFuture<'a> = Pin<Box<dyn Future<Output = Result<CallEnding, Error>> + Send + 'a>>;

/// Makes calls.
pub trait Calls: Send + Sync {
    /// Makes a call. The future is dropped when the call is cancelled or the service stops.
    ///
    /// # Errors
    /// [`Error`] if the service is temporarily unable to read or write; the call is repeated later.
    fn run<'a>(&'a self, execution: &'a Execution) -> CallFuture<'a>;
}

impl Engine {
    /// Sets the implementation that makes calls. Called once, before [`Engine::recover`].
    pub fn set_calls(&self, calls: Weak<dyn Calls>) {
        *self.inner.calls.lock().unwrap_or_else(PoisonError::into_inner) = Some(calls);
    }
}

impl Inner {
    /// Makes the call in the cell.
    pub(crate) async fn run_call(self: &Arc<Self>, active: &ActiveExecution) -> Result<(), Error> {
        let Some(execution) = self.begin_exchange(active).await? else { return Ok(()) };
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let calls = calls.and_then(|calls| calls.upgrade()).ok_or(Error::Stopping)?;
        let ended = tokio::select! {
            biased;
            () = active.stop.cancelled() => return Ok(()),
            ended = calls.run(&execution) => ended,
        };
        let mut state = active.state.lock().await;
        let Some(loaded) = state.as_mut() else { return Ok(()) };
        if loaded.execution.status.is_final() {
            // The call was cancelled while it was ending.
            return Ok(());
        }
        let CallEnding { call, fault, cost, output, beside } = ended?;
        let mut commit = beside;
        let mut next = loaded.execution.clone();
        if let Some(output) = output {
            let output = self.store.write_payload(next.id, output).await?;
            self.store.record_usage(&mut commit, next.organization, next.id, output.len());
            next.output = Some(output);
        }
        // The history contains no conversation.
        let input = std::mem::replace(&mut next.input, Payload::nothing());
        self.store.release(&mut commit, &input);
        let effects = call::end(&mut next, call::Ended { call, fault, cost }, self.clock.now());
        self.write(commit, &next, &effects, None).await?;
        loaded.execution = next;
        drop(state);
        self.store.remove_payload(&input).await?;
        Ok(())
    }
}
