//! Errors of the engine.

use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_domain::execution::Execution;
use orrery_domain::money::Usd;
use orrery_records::billing::{OverBudget, Unreserved};
use orrery_records::key_policies::Refused;
use orrery_storage as storage;

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model's queue is full. Nothing was created.
    #[error("queue is full")]
    QueueFull { queued: usize },
    /// The organization has reached its limit of queued executions. Nothing was created.
    #[error("this organization is limited to {limit} queued executions and has {queued}")]
    TooManyQueued { limit: usize, queued: usize },
    /// The model's queue is full because the model does not respond. Nothing was created.
    #[error("the model '{model}' does not answer: {reason}")]
    Failing { model: String, reason: String },
    /// The balance is too low. Nothing was created.
    #[error("payment required")]
    Unpaid { balance: Usd, reserved: Usd, needed: Usd },
    /// The budget of the key does not cover the work. Nothing was created.
    #[error(transparent)]
    OverBudget(OverBudget),
    /// The policy of the key does not allow the work. Nothing was created.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The organization's storage quota is used up. Nothing was created.
    #[error("storage quota exceeded: {used} of {quota} bytes used")]
    OverQuota { quota: u64, used: u64 },
    /// The organization has no such execution.
    #[error("execution not found")]
    NotFound,
    /// The execution has already ended. Contains its status as shown to clients.
    #[error("execution has already ended with status {0}")]
    AlreadyEnded(&'static str),
    /// The event has already been answered.
    #[error("the event '{0}' has already been answered")]
    AlreadyAnswered(String),
    /// The execution has reached its limit of stored events.
    #[error("the execution already has {0} events")]
    TooManyEvents(usize),
    /// The organization has reached its limit of running bulk jobs.
    #[error("{0} bulk jobs are already running: wait for one, or cancel it")]
    TooManyJobs(usize),
    /// Only ended executions can be deleted.
    #[error("the execution has not ended")]
    NotEnded,
    /// The store was restored and has not been resumed.
    #[error("this store was restored from a backup and waits for `orrery resume`")]
    HeldBack,
    /// Only failed or cancelled executions can be redriven.
    #[error("only a failed or cancelled execution can be redriven")]
    NotRedrivable,
    /// Retention has deleted the execution's inputs.
    #[error("the execution's inputs are no longer stored")]
    Forgotten,
    #[error(transparent)]
    Storage(#[from] storage::Error),
    /// The service is shutting down and accepts no new work.
    #[error("the service is stopping")]
    Stopping,
}

impl Error {
    pub(super) const fn ended(execution: &Execution) -> Self {
        Self::AlreadyEnded(execution.status.word(execution.kind()))
    }
}

impl Error {
    /// Returns the failure of a call that the key may not make, or that the balance or the key's
    /// budget does not cover; any other error stays an error. The call can be retried if the amount
    /// would suffice without the reservations of other work.
    pub(crate) fn of_call(self) -> Result<Failure, Self> {
        let (is_passing, message) = match self {
            Self::Unpaid { balance, reserved, needed } => (
                balance > Usd::ZERO && balance >= needed,
                format!(
                    "payment required: the call may cost {needed} USD, the balance is {balance} \
                     USD, of which {reserved} USD are reserved"
                ),
            ),
            Self::OverBudget(over) => (over.is_passing(), format!("payment required: {over}")),
            Self::Refused(refused) => (false, refused.to_string()),
            Self::QueueFull { .. }
            | Self::TooManyQueued { .. }
            | Self::Failing { .. }
            | Self::OverQuota { .. }
            | Self::NotFound
            | Self::AlreadyEnded(_)
            | Self::AlreadyAnswered(_)
            | Self::TooManyEvents(_)
            | Self::TooManyJobs(_)
            | Self::NotEnded
            | Self::HeldBack
            | Self::NotRedrivable
            | Self::Forgotten
            | Self::Storage(_)
            | Self::Stopping => return Err(self),
        };
        let class = match is_passing {
            true => ErrorClass::ProviderUnavailable,
            false => ErrorClass::InvalidModelConfig,
        };
        Ok(Failure::new(class, message))
    }
}

impl From<Unreserved> for Error {
    fn from(error: Unreserved) -> Self {
        match error {
            Unreserved::Short { balance, reserved, needed } => {
                Self::Unpaid { balance, reserved, needed }
            }
            Unreserved::OverBudget(over) => Self::OverBudget(over),
            Unreserved::Storage(error) => Self::Storage(error),
        }
    }
}
