//! The process from the operator's perspective: the binary with its arguments, signals and files,
//! on its own data folders and loopback addresses. The clients' perspective is tested in
//! `tests/it`.
//!
//! Each subject has its own file. No test needs root, the internet or a program that Linux systems
//! lack.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test fails by a panic, and shows what it has drawn and the service's log"
)]

#[path = "operate/acme.rs"]
mod acme;
#[path = "operate/alerts.rs"]
mod alerts;
#[path = "operate/backups.rs"]
mod backups;
#[path = "operate/bench.rs"]
mod bench;
#[path = "operate/check.rs"]
mod check;
#[path = "operate/commands.rs"]
mod commands;
#[path = "operate/configuration.rs"]
mod configuration;
#[path = "operate/doctor.rs"]
mod doctor;
#[path = "operate/document_answers.rs"]
mod document_answers;
#[path = "operate/document_blocks.rs"]
mod document_blocks;
#[path = "operate/document_page.rs"]
mod document_page;
#[path = "operate/documents.rs"]
mod documents;
#[path = "operate/executions.rs"]
mod executions;
#[path = "operate/files.rs"]
mod files;
#[path = "operate/metrics.rs"]
mod metrics;
#[path = "operate/models.rs"]
mod models;
#[path = "operate/places.rs"]
mod places;
#[path = "operate/pull.rs"]
mod pull;
#[path = "operate/recipes.rs"]
mod recipes;
#[path = "operate/reload.rs"]
mod reload;
#[path = "operate/start_and_stop.rs"]
mod start_and_stop;
#[path = "operate/stores.rs"]
mod stores;
#[path = "operate/stub.rs"]
mod stub;
mod support;
#[path = "operate/top.rs"]
mod top;
#[path = "operate/upgrade.rs"]
mod upgrade;
