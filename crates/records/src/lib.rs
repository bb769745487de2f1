//! The repositories of an organization's resources, one module for each kind.
//!
//! | module | contents |
//! |---|---|
//! | [`accounts`] | organizations and API keys |
//! | [`members`] | people who use the dashboard: sessions, links, roles |
//! | [`billing`] | balances and the ledger |
//! | [`usage`] | requests, tokens and cost by key, model, day and month |
//! | [`secrets`] | named secrets, sealed at rest |
//! | [`schedules`] | schedules: a firing is decided and its work started in one commit |
//! | [`idempotency`] | the first responses to repeated requests |
//! | [`result_cache`] | results of models with a cache, by a hash of the request |
//! | [`files`] | stored files, by digest, each with a URL |
//! | [`chains`] | fallback chains |
//! | [`audit`] | the audit log, written in the commit of the audited change |
//! | [`signed_urls`] | URLs that open one resource of an organization without its key |
//! | [`limits`] | the limits of organizations, in memory |
//! | [`key_policies`] | the policies of API keys and what they count, in memory |
//!
//! A repository reads and writes records in the store. A repository never answers a request, runs a
//! model or opens a connection. Schedules start executions through a trait that `app` implements.

pub mod accounts;
pub mod audit;
pub mod billing;
pub mod chains;
pub mod files;
pub mod idempotency;
pub mod key_policies;
pub mod limits;
pub mod members;
pub mod result_cache;
pub mod schedules;
pub mod secrets;
pub mod signed_urls;
pub mod usage;
