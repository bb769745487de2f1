//! Orrery: one binary that turns one Linux box into an AI model service.
//!
//! This is the map for those who change the code. `CONTRIBUTING.md` says how to build, test and extend
//! it, `docs/architecture.md` draws how the parts work together, `docs/spec/README.md`, "The contract"
//! lists what clients rely on. Users read `README.md` and `docs/`.
//!
//! # Layers
//!
//! A module imports only modules in the rows below its own. `LAYERS` in `tests/tidy.rs` lists the
//! permitted imports of each; a test compares it with the imports, with this drawing and with the table.
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
//! | module | what it is |
//! |---|---|
//! | [`domain`] | plain data and pure functions: ids, money, executions, the state machine; workflow definitions to checked plans |
//! | [`wire`] | the JSON that clients and receivers read and write, and its schemas |
//! | [`schema`] | JSON Schemas, compiled once, nothing ever fetched |
//! | [`runtime`] | the only access to clocks, randomness and tasks |
//! | [`guard`] | the process between the service and a worker of a `command` model; the sandbox of the built-in models' processes |
//! | [`storage`] | a write-ahead log, a memtable and a tree; a write is durable when it returns |
//! | [`http`] | server, router, requests, responses, TLS; the outbound client and its egress guard |
//! | [`config`] | the configuration file; the strict TOML reader and the secrets that it shares with the manifests |
//! | [`telemetry`] | logs and metrics |
//! | [`dashboard`] | the embedded files of the dashboard |
//! | [`audit`] | the audit log: who did what, in the commit of what was done |
//! | [`load`] | the load generator of `orrery bench` and `benches/`, and a server that stands in for models |
//! | [`limits`] | the limits of organizations in memory, for those who enforce them |
//! | [`signed_urls`] | signed URLs that open one thing of an organization without its key |
//! | [`accounts`], [`billing`], [`idempotency`] | organizations and keys, balances and ledger, the first answers to repeated requests |
//! | [`members`] | the people who use the dashboard: their sessions, their links, what they may do |
//! | [`secrets`] | named secrets of organizations, sealed at rest, for the requests of workflows |
//! | [`schedules`] | what starts when: decided and started in one commit |
//! | [`files`] | bytes that belong to an organization, stored by digest, each with a URL |
//! | [`backup`] | everything in one file, written while the service runs; restored only when it is complete |
//! | [`webhooks`] | the durable outbox: every requested completion is delivered at least once |
//! | [`runners`] | input to output: the built-in models, programs, and inference servers |
//! | [`engine`] | accepts work, runs it, brings every accepted id to exactly one end |
//! | [`chains`] | fallback chains: the models to try when one fails |
//! | [`workflows`] | stored definitions and their versions, compiled when they are run |
//! | [`traces`] | the spans of what has ended, exported to a collector |
//! | [`catalog`] | manifests to models, reloaded while the service runs |
//! | [`chat`] | the chat router: OpenAI's chat and embeddings, by local models or the upstream |
//! | [`agent`] | an agent that uses models and workflows on behalf of a client, and remembers |
//! | [`decisions`] | typed questions about one state, answered with probabilities by chat models |
//! | [`api`] | what clients see: the route table on one screen, one file for each resource |
//! | [`app`] | the composition root: opens everything in order, stops it in reverse |
//! | [`cli`] | the command line |
//!
//! # The path of a request
//!
//! `http::server` accepts and bounds it. `api::dispatch` assigns an id, finds the route, checks key and
//! rate, calls the handler, and turns the result into one answer, one log line and one count. A handler
//! parses, calls one function of a layer below, and replies.
//!
//! # The path of an execution
//!
//! 1. `engine::scheduler::submit` reserves a slot in the lane of the model or workflow, then commits the
//!    execution, its row in the lane and everything that belongs to it. Only then is the request
//!    answered.
//! 2. `engine::scheduler::lanes` decides who runs next: the lanes take turns, each first in, first out, under its
//!    own cap. Only the head of a lane is in memory, the rest is on the disk.
//! 3. `engine::scheduler::dispatch` starts it: [`domain::machine`] computes the new state and its effects. Durable
//!    effects (the lane's row, the charge, the webhook's delivery) are committed together with the
//!    state; volatile ones follow the commit. A prediction tries its chain of models. A workflow runs
//!    the steps of its plan, commits each finished step before the next one starts, and moves to the
//!    timers while it only waits.
//! 4. `webhooks::outbox` sends the delivery until the receiver acknowledges it or the schedule ends.
//!
//! # Invariants
//!
//! - **Commit, then act.** No code answers, starts or sends anything before the write has returned.
//! - **Nothing is visible before it is durable.** Readers see a group of commits as a whole, after its
//!   record in the log is synced; its hooks run after that, and its answers come last.
//! - Every unfinished execution has exactly one row, in one lane or in the timers; a finished one has
//!   none. Recovery only reads those rows.
//! - What a workflow does next follows from its plan and its finished steps alone.
//! - Outcome, charge, webhook and lane row are one commit.
//! - The number of an attempt is its fencing token: a report with another number changes nothing.
//! - Code that changes an execution holds the lock of its entry in `engine::active` until the commit has returned.
//! - Every queue, body, window, cache and loop has a limit with a name.
//! - `unsafe` exists only in `storage::durable`, `runtime::memory`, `runtime::crash_note` and `guard::sandbox`; clocks, tasks
//!   and random numbers come only from [`runtime`].
//! - What clients send for the built-in models is parsed in sandboxed processes, not in the service.

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
