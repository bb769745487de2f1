//! Orrery: one binary that turns one Linux box into an AI model service.
//!
//! This is the map of the code for contributors. `CONTRIBUTING.md` describes how to build, test and
//! extend it, `docs/architecture.md` shows how the parts work together, `docs/spec/README.md`, "The
//! contract" lists what clients rely on. Users read `README.md` and `docs/`.
//!
//! # Layers
//!
//! A module imports only modules in rows below its own. `LAYERS` in `tests/tidy.rs` lists the
//! permitted imports of each module; a test compares it with the actual imports, this drawing and
//! the table.
//!
//! ```text
//! main
//! cli
//! app
//! api
//! agent       decisions
//! chat
//! catalog     workflows   traces
//! engine      chains
//! runners     backup
//! files       accounts    billing     members     secrets     schedules
//! webhooks    signed_urls idempotency dashboard   telemetry
//! audit       limits      load
//! storage     http        guard       config
//! wire        runtime
//! domain      schema
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | [`domain`] | plain data and pure functions: ids, money, executions, the state machine; compiling workflow definitions to plans |
//! | [`wire`] | the JSON of the APIs and of webhooks, and its schemas |
//! | [`schema`] | JSON Schemas: compiled once, never fetched |
//! | [`runtime`] | the only access to clocks, randomness and tasks |
//! | [`guard`] | the process between the service and the worker of a `command` model; the sandbox of built-in models |
//! | [`storage`] | a write-ahead log, a memtable and a tree; a write is durable when it returns |
//! | [`http`] | server, router, requests, responses, TLS; the outbound client and its egress guard |
//! | [`config`] | the configuration file; the strict TOML reader and the secrets, both shared with manifests |
//! | [`telemetry`] | logs and metrics |
//! | [`dashboard`] | the embedded files of the dashboard |
//! | [`audit`] | the audit log: who did what, written in the same commit as the change |
//! | [`load`] | the load generator of `orrery bench` and `benches/`, and a stub server for models |
//! | [`limits`] | in-memory limits of organizations, for the modules that enforce them |
//! | [`signed_urls`] | signed URLs that give access to one resource of an organization without a key |
//! | [`accounts`], [`billing`], [`idempotency`] | organizations and keys, balances and the ledger, stored answers to repeated requests |
//! | [`members`] | the users of the dashboard: sessions, links, roles |
//! | [`secrets`] | named secrets of organizations, sealed at rest, for the requests of workflows |
//! | [`schedules`] | cron schedules: each firing is decided and started in one commit |
//! | [`files`] | content-addressed files of organizations, each with a URL |
//! | [`backup`] | online backups in one file; only complete ones are restored |
//! | [`webhooks`] | the durable outbox: at-least-once delivery of completions |
//! | [`runners`] | running models: built-in, programs, and inference servers |
//! | [`engine`] | accepts and runs executions; each completes exactly once |
//! | [`chains`] | fallback chains: the models to try if the primary one fails |
//! | [`workflows`] | stored definitions and their versions, compiled at run time |
//! | [`traces`] | spans of completed executions, exported to a collector |
//! | [`catalog`] | loads models from manifests, and reloads them at run time |
//! | [`chat`] | the chat router: OpenAI-compatible chat and embeddings, by local models or the upstream |
//! | [`agent`] | an agent that uses models and workflows for a client, with memory |
//! | [`decisions`] | typed questions about one state, answered by chat models with probabilities |
//! | [`api`] | the HTTP APIs: the route table on one screen, one file per resource |
//! | [`app`] | the composition root: starts everything in order and stops it in reverse |
//! | [`cli`] | the command line |
//!
//! # The path of a request
//!
//! `http::server` accepts the request and enforces limits. `api::dispatch` assigns an id, finds the
//! route, checks key and rate, calls the handler, and turns the result into one response, one log
//! line and one metric. A handler parses the request, calls one function of a layer below, and
//! replies.
//!
//! # The path of an execution
//!
//! 1. `engine::scheduler::submit` reserves a slot in the lane of the model or workflow, then
//!    commits the execution, its row in the lane and everything else that belongs to it. Only then
//!    is the request answered.
//! 2. `engine::scheduler::lanes` selects the next execution: lanes take turns; each is first in,
//!    first out, with its own concurrency cap. Only the head of a lane is in memory, the rest is on
//!    disk.
//! 3. `engine::scheduler::dispatch` starts the execution: [`domain::machine`] computes the new
//!    state and its effects. Durable effects (the lane's row, the charge, the webhook delivery) are
//!    committed together with the state; volatile ones follow the commit. A prediction tries its
//!    chain of models. A workflow runs the steps of its plan, commits each finished step before the
//!    next one starts, and moves to the timers while it only waits.
//! 4. `webhooks::outbox` sends the delivery until the receiver acknowledges it or its retries are
//!    used up.
//!
//! # Invariants
//!
//! - **Commit, then act.** Nothing is answered, started or sent before the write has returned.
//! - **Nothing is visible before it is durable.** Readers see a group of commits as a whole, after
//!   its log record is synced; then its hooks run, and answers come last.
//! - Every unfinished execution has exactly one row, in one lane or in the timers; a finished one
//!   has none. Recovery only reads those rows.
//! - The next action of a workflow depends only on its plan and its finished steps.
//! - Outcome, charge, webhook and lane row are written in one commit.
//! - The number of an attempt is its fencing token: a report with another number changes nothing.
//! - Code that changes an execution holds the lock of its entry in `engine::active` until the
//!   commit has returned.
//! - Every queue, body, window, cache and loop has a named limit.
//! - `unsafe` exists only in `storage::durable`, `runtime::memory`, `runtime::crash_note` and
//!   `guard::sandbox`; clocks, tasks and random numbers come only from [`runtime`].
//! - Client input of built-in models is parsed in sandboxed processes, not in the service.

pub mod accounts;
pub mod agent;
pub mod api;
pub mod app;
pub mod audit;
pub mod backup;
pub mod billing;
pub mod catalog;
pub mod chains;
pub mod chat;
pub mod cli;
pub mod config;
pub mod dashboard;
pub mod decisions;
pub mod domain;
pub mod engine;
pub mod files;
pub mod guard;
pub mod http;
pub mod idempotency;
pub mod limits;
pub mod load;
pub mod members;
pub mod runners;
pub mod runtime;
pub mod schedules;
pub mod schema;
pub mod secrets;
pub mod signed_urls;
pub mod storage;
pub mod telemetry;
pub mod traces;
pub mod webhooks;
pub mod wire;
pub mod workflows;
