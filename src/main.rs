//! Orrery: one binary that turns one Linux box into an AI model service.
//!
//! This is the map of the code for contributors. `CONTRIBUTING.md` describes how to build, test and
//! extend it, `docs/architecture.md` shows how the parts work together, and `docs/spec/README.md`,
//! "The contract", lists what clients rely on. Users read `README.md` and `docs/`.
//!
//! This crate is the binary: it selects the allocator (`.cargo/config.toml` has its settings) and
//! runs the command line. Everything else is a library crate in `crates/`.
//!
//! # Layers
//!
//! A crate depends only on crates in rows below its own. Cargo enforces that a crate uses only the
//! crates in its manifest; `tests/tidy/map.rs` compares the manifests with the drawing, and the
//! table with the folders.
//!
//! ```text
//! orrery
//! cli
//! app
//! api
//! agent       responses
//! chat        backup
//! catalog     workflows
//! engine
//! runners     webhooks    alerts      batches
//! records     guard       telemetry   whisper
//! storage     http        config      dialects
//! wire        runtime
//! domain      schema
//! ```
//!
//! | crate | purpose |
//! |---|---|
//! | `domain` | plain data and pure functions: ids, money, executions, the state machine; compiling workflow definitions to plans |
//! | `schema` | JSON Schemas: compiled once, never fetched |
//! | `wire` | the JSON of the APIs and of webhooks, and its schemas |
//! | `dialects` | translation between the formats of AI clients and servers; pure functions |
//! | `runtime` | the only access to clocks, randomness and tasks |
//! | `storage` | a write-ahead log, a memtable and a tree; a write is durable when it returns |
//! | `http` | server, router, requests, responses, TLS; the outbound client and its egress guard |
//! | `config` | the configuration file; the strict TOML reader and the secrets, both shared with manifests |
//! | `telemetry` | logs and metrics |
//! | `guard` | the process between the service and the worker of a `command` model; the sandbox of built-in models |
//! | `whisper` | whisper.cpp, linked with the ggml of llama.cpp |
//! | `records` | the repositories of an organization: accounts, members, billing, secrets, schedules, files, chains, the audit log |
//! | `webhooks` | the durable outbox: at-least-once delivery of completions |
//! | `alerts` | tells the operator of the doctor's findings |
//! | `runners` | running models: built-in, programs, and inference servers |
//! | `engine` | accepts and runs executions; each completes exactly once. Traces of completed executions |
//! | `workflows` | stored definitions and their versions, compiled at run time |
//! | `catalog` | loads models from manifests, and reloads them at run time |
//! | `chat` | the chat router: OpenAI-compatible chat and embeddings, by local models or the upstream; typed decisions |
//! | `agent` | an agent that uses models and workflows for a client, with memory |
//! | `responses` | stored responses of OpenAI's Responses API, and the conversations that continue them |
//! | `batches` | files of requests that are answered in the background, each line once |
//! | `backup` | online backups in one file; only complete ones are restored |
//! | `api` | the HTTP APIs: the route table on one screen, one file per resource; the embedded dashboard |
//! | `app` | the composition root: starts everything in order and stops it in reverse |
//! | `cli` | the command line, and the load generator of `orrery bench` |
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
//! 2. `engine::scheduler::lanes` selects the next execution: lanes take turns; each lane is first
//!    in, first out, with its own concurrency limit. Only the head of a lane is in memory; the rest
//!    is on disk.
//! 3. `engine::scheduler::dispatch` starts the execution: `domain::machine` computes the new state
//!    and its effects. Durable effects (the lane's row, the charge, the webhook delivery) are
//!    committed together with the state; volatile ones follow the commit. A prediction tries its
//!    chain of models. A workflow runs the steps of its plan, commits each finished step before the
//!    next one starts, and moves its row to the timers while it has nothing to do but wait.
//! 4. `webhooks::outbox` sends the delivery until the receiver acknowledges it or no retries are
//!    left.
//!
//! # Invariants
//!
//! - **Commit, then act.** No response is sent, and no work is started, before the write has
//!   returned.
//! - **Nothing is visible before it is durable.** Readers see either all of a group of commits or
//!   none, and only after its log record is synced; then its hooks run; callers get their results
//!   last.
//! - Every unfinished execution has exactly one row, in one lane or in the timers; a finished one
//!   has none. Recovery reads only those rows.
//! - The next action of a workflow depends only on its plan and its finished steps.
//! - The outcome, the charge, the webhook and the lane row of an execution are written in one
//!   commit.
//! - The number of an attempt is its fencing token: a report with another number is ignored.
//! - Code that changes an execution holds the lock of its entry in `engine::active` until the
//!   commit has returned.
//! - Every queue, body, window, cache and loop has a named limit.
//! - `unsafe` exists only in `storage::durable`, `runtime::memory`, `runtime::crash_note` and
//!   `guard::sandbox`; clocks, tasks and random numbers come only from `runtime`.
//! - Client input of built-in models is parsed in sandboxed processes, not in the service.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    orrery_cli::main()
}
