//! The repositories of an organization: what belongs to it, each kind in a module of its own.
//!
//! | module | content |
//! |---|---|
//! | [`accounts`] | organizations and API keys |
//! | [`members`] | people who use the dashboard: sessions, links, roles |
//! | [`billing`] | balances and the ledger |
//! | [`secrets`] | named secrets, sealed at rest |
//! | [`schedules`] | what starts when: decided and started in one commit |
//! | [`idempotency`] | the first answers to repeated requests |
//! | [`files`] | stored files, by digest, each with a URL |
//! | [`chains`] | fallback chains |
//! | [`audit`] | the audit log, written in the commit of the audited change |
//! | [`signed_urls`] | URLs that open one thing of an organization without its key |
//! | [`limits`] | the limits of organizations, in memory |
//!
//! A repository reads and writes records in the store. It never answers a request, runs a model or
//! opens a connection. Schedules start executions through a trait that `app` implements.

pub mod accounts;
pub mod audit;
pub mod billing;
pub mod chains;
pub mod files;
pub mod idempotency;
pub mod limits;
pub mod members;
pub mod schedules;
pub mod secrets;
pub mod signed_urls;
