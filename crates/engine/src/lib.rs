//! The engine: accepts executions, runs them, and ends every accepted execution exactly once.
//!
//! [`Engine`] is the handle: cheap to clone, safe to call from any task.
//!
//! | folder | contents |
//! |---|---|
//! | `scheduler` | what runs next: lanes, dispatch, submission, recovery, timers, retries |
//! | `run` | how it runs: predictions, workflows, model attempts, commits, budgets |
//! | `query` | reads: history, lists, details, events, waiting requests |
//! | `bulk` | bulk jobs: one action on many executions |
//! | `traces` | spans of completed executions for the operator's collector |
//!
//! - An acknowledged submission is durable; a restart fails no execution.
//! - `domain::machine` decides every transition; this crate commits it, and then performs its
//!   volatile effects.
//! - An unfinished execution has exactly one row, in a lane or in the timers.
//! - Models, workflows, agent exchanges and chat calls in the background come from the crates above,
//!   through [`Models`], [`Plans`], [`Exchanges`] and [`Calls`].

pub mod query;
pub mod rows;
pub mod run;
pub mod traces;

mod active;
mod activity;
mod background;
mod bulk;
mod call_metrics;
mod calls;
mod cancel;
mod children;
mod consistency;
mod erasure;
mod error;
mod events;
mod exchanges;
mod handle;
mod models;
mod pause;
mod redrive;
mod resume;
mod retention;
mod scheduler;
mod trees;

use self::handle::Inner;

pub use self::activity::LaneActivity;
pub use self::calls::{EndedCall, Facts};
pub use self::error::Error;
pub use self::exchanges::{Ending, ExchangeFuture, ExchangeRun, Exchanges, StepCost, YieldedPlace};
pub use self::handle::{Dependencies, Engine, OnDelivery, OnEnd, Options};
pub use self::models::{
    Call, Callee, CalleeFuture, CheckInputFuture, ModelSpec, Models, OwnerFuture, PlanFuture,
    Plans, SecretsFuture,
};
pub use self::query::detail::Detail;
pub use self::query::events::NewEvents;
pub use self::query::follow::Follower;
pub use self::query::outline::Outline;
pub use self::query::unfinished::Aside;
pub use self::query::waiters::Waiter;
pub use self::resume::Resumed;
pub use self::run::attempt::{Report, call_runner, dry_run};
pub use self::scheduler::lanes::{Load, OrganizationLoad};
pub use self::scheduler::permit::ModelPermit;
pub use self::scheduler::retries::Backoff;
pub use self::scheduler::submit::Submission;
pub use self::trees::TreeLimits;
pub use background::{CallEnding, CallFuture, Calls};

#[cfg(test)]
mod children_tests;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod pause_tests;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod trees_tests;
#[cfg(test)]
mod workflow_tests;
