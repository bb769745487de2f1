//! Plain data and pure functions: predictions, executions, charges and so on, and the rules for
//! changing them. [`machine`] is the state machine of executions; [`definition`] compiles workflows
//! to plans.
//!
//! Nothing here reads a clock, draws a random number, waits, or accesses a disk or a socket: time,
//! ids and outcomes are passed in as arguments. Equal arguments give equal results, so a step that
//! is repeated after a crash makes the same decisions.
//!
//! Nearly all other crates depend on this crate; it depends on none of them.

pub mod account;
pub mod agent;
pub mod attempt;
pub mod batch;
pub mod bulk;
pub mod bytes;
pub mod calendar;
pub mod chain;
pub mod chat;
pub mod classify;
pub mod condition;
pub mod cron_field;
pub mod decision;
pub mod definition;
pub mod delivery;
pub mod execution;
pub mod fault;
pub mod file;
pub mod hex;
pub mod histogram;
pub mod ids;
pub mod input_template;
pub mod invalid_request;
pub mod json_fault;
pub mod json_object;
pub mod json_pointer;
pub mod json_size;
pub mod key_policy;
pub mod lane;
pub mod legacy;
pub mod logs;
pub mod machine;
pub mod mask;
pub mod member;
pub mod model;
pub mod money;
pub mod pattern;
pub mod payload;
pub mod raw_object;

pub mod record;
pub mod reference;
pub mod replicate;
pub mod retry;
pub mod schedule;
mod schemas;
pub mod secret;
pub mod signature;
pub mod spelling;
pub mod step;
pub mod template;
pub mod time;
pub mod token_bound;
pub mod trace;
pub mod url_template;
pub mod usage;
pub mod waits_for;
pub mod webhook_endpoint;
pub mod wide_integer;
pub mod workflow;
