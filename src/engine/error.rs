//! Why the engine refuses.

use crate::billing::Unreserved;
use crate::domain::execution::Execution;
use crate::domain::money::Usd;
use crate::storage;

/// Why the engine refuses.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model's queue holds its limit. Nothing was created.
    #[error("queue is full")]
    QueueFull { queued: usize },
    /// As many executions of the organization wait as its own limit lets. Nothing was created.
    #[error("this organization is limited to {limit} queued executions and has {queued}")]
    TooManyQueued { limit: usize, queued: usize },
    /// The model's queue holds its limit, and the model does not answer. Nothing was created.
    #[error("the model '{model}' does not answer: {reason}")]
    Failing { model: String, reason: String },
    /// The balance cannot pay for it. Nothing was created.
    #[error("payment required")]
    Unpaid { balance: Usd, reserved: Usd, needed: Usd },
    /// The organization's payloads have as many bytes as they may. Nothing was created.
    #[error(
        "the stored inputs and outputs of this organization may have {quota} bytes and have {used}"
    )]
    OverQuota { quota: u64, used: u64 },
    /// No such execution in this organization.
    #[error("execution not found")]
    NotFound,
    /// It has ended already, and not by a cancel: its status, as clients read it.
    #[error("execution has already ended with status {0}")]
    AlreadyEnded(&'static str),
    /// Nobody can answer the event any more.
    #[error("the event '{0}' has already been answered")]
    AlreadyAnswered(String),
    /// The execution keeps as many events as it may.
    #[error("the execution has {0} events already")]
    TooManyEvents(usize),
    /// As many bulk jobs of the organization are at work as may be.
    #[error("{0} bulk jobs are at work already: wait for one, or cancel it")]
    TooManyJobs(usize),
    /// Only what has ended can be deleted.
    #[error("the execution has not ended")]
    NotEnded,
    /// The store was restored and has not been resumed.
    #[error("this store was restored from a backup and waits for `orrery resume`")]
    HeldBack,
    /// Only what has failed or was cancelled can be taken up again.
    #[error("only a failed or cancelled execution can be redriven")]
    NotRedrivable,
    /// Its inputs were deleted by the configured retention.
    #[error("its inputs are no longer stored")]
    Forgotten,
    #[error(transparent)]
    Storage(#[from] storage::Error),
    /// The service is about to stop and takes no more work.
    #[error("the service is stopping")]
    Stopping,
}

impl Error {
    pub(super) const fn ended(execution: &Execution) -> Self {
        Self::AlreadyEnded(execution.status.word(execution.kind()))
    }
}

impl From<Unreserved> for Error {
    fn from(error: Unreserved) -> Self {
        match error {
            Unreserved::Short { balance, reserved, needed } => {
                Self::Unpaid { balance, reserved, needed }
            }
            Unreserved::Storage(error) => Self::Storage(error),
        }
    }
}

impl From<storage::record::Malformed> for Error {
    fn from(error: storage::record::Malformed) -> Self {
        Self::Storage(error.into())
    }
}
