//! The service from the clients' perspective. The tests start it in this process on free loopback
//! ports, call it over real connections, and compare each documented error with its text.
//!
//! One file per resource; shared code is in `support`. No test sleeps to wait for a result. No test
//! uses the network beyond this machine, except the tests that `cargo test` ignores, which download
//! packages from PyPI.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by a panic")]

mod add_model_screens;
mod admin_api;
mod agent;
mod agent_memory;
mod agent_servers;
mod agreement;
mod alerts;
mod answers;
mod audit;
mod background_responses;
mod backups;
mod bad_input;
mod batches;
mod billing;
mod browser;
mod budget_screens;
mod builtins;
mod bulk_jobs;
mod cancel;
mod cell_screens;
mod chains;
mod chat;
mod chat_accounting;
mod chat_screens;
mod children;
mod comfyui;
mod commands;
mod completions;
mod contract;
mod cors;
mod cost;
mod dashboard;
mod dashboard_flows;
mod decisions;
#[cfg(feature = "llama")]
mod decisions_local;
mod deliveries;
mod detail_screens;
mod documentation;
mod edit_screens;
mod endpoints;
mod erasure;
mod events;
mod executions;
mod fence;
mod files;
mod files_of_people;
mod flow_screens;
mod flows;
mod foreign_pages;
mod history;
mod hostile_ai;
mod hosts;
mod idempotency;
mod key_limits;
mod keys;
mod limits;
mod links;
mod live_screens;
#[cfg(feature = "llama")]
mod llm;
#[cfg(feature = "llama")]
mod llm_files;
#[cfg(feature = "llama")]
mod llm_limits;
#[cfg(feature = "llama")]
mod llm_schemas;
mod llm_streams;
mod managed;
mod mcp;
mod media;
mod messages;
mod models;
mod named_secrets;
mod native_responses;
mod oidc;
mod ollama;
mod one_port;
#[cfg(feature = "onnx")]
mod onnx;
mod openai_client;
mod openai_place;
mod openapi;
mod orchestration_screens;
mod organization_limits;
mod pauses;
mod payloads;
mod predictions;
mod pull;
mod refusal_screens;
mod reload;
mod replicate;
mod replicate_webhooks;
mod responses;
mod responses_compact;
mod result_cache;
mod retention;
mod role_screens;
mod roles;
mod router;
mod routes;
mod runs;
mod schedules;
mod screens;
mod seal;
mod second_factor;
mod secret_screens;
mod secrets;
mod stored_responses;
mod support;
mod tracing;
mod tree_screens;
mod unknown;
mod upkeep_screens;
mod uploads;
mod upstream_cases;
mod upstream_kinds;
mod upstreams;
mod usage;
mod usage_screens;
mod values;
mod webhook_endpoints;
mod webhooks;
#[cfg(feature = "whisper")]
mod whisper;
mod workflows;
