//! Orrery: one binary that turns one Linux box into an AI model service.
//!
//! This is the map for those who change the code. Users read `README.md` and `docs/`.
//!
//! # Layers
//!
//! An arrow may only be followed to the left; `tests/tidy.rs` holds it.
//!
//! ```text
//! domain <- wire <- (storage, http, runtime) <- (runners, catalog, engine, workflows, chains, webhooks,
//!           accounts, billing, idempotency, dashboard, schema) <- api <- app <- cli <- main
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`domain`] | plain data and pure functions: ids, money, executions, the machine; workflow definitions to checked plans |
//! | [`wire`] | the JSON that clients and receivers read and write, and its schemas |
//! | [`storage`] | a write-ahead log, a memtable and a tree; a write is durable when it returns |
//! | [`http`] | server, router, calls, replies, TLS; the outbound client and its egress guard |
//! | [`runtime`] | the doors to clock, randomness and tasks |
//! | [`schema`] | JSON Schemas, compiled once, nothing ever fetched |
//! | [`written`], [`secret`] | what people write in files, and the secrets that it refers to |
//! | [`runners`] | input to output: the built-in models, and any HTTP inference server |
//! | [`guard`] | the process between the service and a worker of a `command` model; the sandbox of the built-in models' processes |
//! | [`catalog`] | manifests to models, reloaded while the service runs |
//! | [`engine`] | takes work, runs it, brings every accepted id to exactly one end |
//! | [`workflows`] | stored definitions and their versions, compiled when they are run |
//! | [`chains`] | which models stand in for one that fails |
//! | [`webhooks`] | the durable outbox: every asked-for completion is announced at least once |
//! | [`files`] | bytes that belong to an organization, under their digest, with a URL |
//! | [`backup`] | everything in one file, written while the service runs; restored only when it is whole |
//! | [`links`] | URLs that open one thing of an organization without its key |
//! | [`audit`] | who did what, in the commit of what was done |
//! | [`accounts`], [`billing`], [`idempotency`] | who calls, what they have, what they asked before |
//! | [`api`] | what clients see: the route table on one screen, one file for each resource |
//! | [`app`] | the composition root: opens all of it in order, stops it in reverse |
//! | [`config`], [`telemetry`], [`cli`] | one file of settings, logs and metrics, the command line |
//!
//! # The way of a request
//!
//! `http::server` accepts and bounds it, `api::dispatch` gives it an id, finds its route, checks key
//! and rate, calls the handler, and turns whatever comes back into one answer, one log line, one
//! count. A handler parses, calls one verb of a layer below, replies.
//!
//! # The way of an execution
//!
//! 1. `engine::submit` reserves a place in the lane of the model or workflow, then commits the
//!    execution, its row in the lane and what has to stand beside it. Only then is the request
//!    answered.
//! 2. `engine::lanes` says who runs next: lanes in turn, each first in, first out, under its cap.
//!    Only a window on a lane's head is in memory, the rest waits on the disk.
//! 3. `engine::executor` takes it: [`domain::machine`] changes the state and names the effects.
//!    Durable effects (the lane's row, the charge, the webhook's delivery) are committed together
//!    with the state; volatile ones follow the commit. A prediction tries its chain of models; a
//!    workflow takes its plan's steps, each finished one a row committed before the next begins, and
//!    goes aside to the timers while nothing but a long wait is left.
//! 4. `webhooks::outbox` sends the delivery until the receiver acknowledges it or the schedule ends.
//!
//! # Invariants
//!
//! - **Commit, then act.** Nobody answers, starts or sends anything on a write that has not returned.
//! - **Nothing is visible before it is durable.** Readers see a group of commits as a whole, after its
//!   record in the log is synced; its hooks run after that, and its answers come last.
//! - Every unfinished execution has exactly one row, in one lane or in the timers; a finished one has
//!   none. Recovery is nothing but reading those rows.
//! - What a workflow does next follows from its plan and its finished steps alone.
//! - Outcome, charge, webhook and lane stand in one commit.
//! - An attempt's number is its fence: a report that carries another one changes nothing.
//! - Whoever changes an execution holds its cell's lock until the commit has returned.
//! - Every queue, body, window, cache and loop has a limit with a name.
//! - There is no `unsafe` but in `storage::durable`, `runtime::memory` and `guard::sandbox`, and no
//!   clock, spawn or random number but through [`runtime`].
//! - What clients send for the built-in models is parsed in sandboxed processes, not in the service.

pub mod accounts;
pub mod api;
pub mod app;
pub mod audit;
pub mod backup;
pub mod billing;
pub mod catalog;
pub mod chains;
pub mod cli;
pub mod config;
pub mod dashboard;
pub mod domain;
pub mod engine;
pub mod files;
pub mod guard;
pub mod http;
pub mod idempotency;
pub mod links;
pub mod runners;
pub mod runtime;
pub mod schema;
pub mod secret;
pub mod storage;
pub mod telemetry;
pub mod webhooks;
pub mod wire;
pub mod workflows;
pub mod written;
