//! A request's place at a server, and what is noted of it: whether the server answered, in its state, in
//! the metrics, and in a line of the log when that changes whether it is used.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Group;
use super::endpoint::{Change, Endpoint};
use crate::domain::attempt::Failure;
use crate::domain::classify::ErrorClass;
use crate::http::client;
use crate::http::connector;
use crate::runtime;

/// A place at a server. Dropping it gives the place back.
#[derive(Debug)]
pub struct Lease {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) group: Arc<Group>,
    /// For messages, and the labels of the metrics where there are several servers.
    pub(super) model: String,
    pub(super) has_metrics: bool,
    pub(super) begun: Instant,
    pub(super) patience: Duration,
    pub(super) is_noted: bool,
    pub(super) has_place: bool,
}

impl Lease {
    /// The server's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.endpoint.url
    }

    /// Notes how the request ended: `None` with an answer. Only the first note of a place counts.
    pub fn note(&mut self, failure: Option<&Failure>) {
        match failure {
            Some(failure) if failure.class == ErrorClass::ProviderUnavailable => {
                self.missed(&failure.message);
            }
            Some(_) | None => self.answered(),
        }
    }

    pub(super) fn answered(&mut self) {
        if !std::mem::replace(&mut self.is_noted, true) {
            self.count("answered");
            report(&self.model, &self.endpoint, self.endpoint.answered(self.begun));
        }
    }

    pub(super) fn missed(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.is_noted, true) {
            self.count("missed");
            let now = runtime::monotonic_now();
            report(&self.model, &self.endpoint, self.endpoint.missed(self.begun, now, reason));
        }
    }

    /// Notes a request that got no answer; whether another server may be asked.
    pub(super) fn note_error(&mut self, error: &client::Error) -> bool {
        use connector::Error as E;
        match error {
            client::Error::Connection(
                E::Resolve { .. } | E::Connect { .. } | E::Tls { .. } | E::Timeout { .. },
            ) => {
                self.missed(&error.to_string());
                true
            }
            client::Error::Timeout { .. } | client::Error::Protocol { .. } => {
                self.missed(&error.to_string());
                false
            }
            // It says nothing about the server.
            client::Error::Connection(
                E::Local { .. } | E::Forbidden(_) | E::LeadsAstray { .. } | E::NoHost,
            ) => {
                self.is_noted = true;
                false
            }
            client::Error::TooLarge { .. } | client::Error::Content(_) => {
                self.answered();
                false
            }
        }
    }

    /// Gives the place back before the end.
    pub(super) fn give_back(&mut self) {
        if std::mem::take(&mut self.has_place) {
            self.endpoint.give_back();
            self.group.changed.notify_waiters();
        }
    }

    fn count(&self, outcome: &'static str) {
        if self.has_metrics {
            metrics::counter!(
                "orrery_endpoint_requests_total",
                "model" => self.model.clone(),
                "endpoint" => self.endpoint.name.clone(),
                "outcome" => outcome
            )
            .increment(1);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The engine ends a run that is out of time by dropping it.
        if !self.is_noted && self.begun.elapsed() >= self.patience {
            let reason = format!("no answer within {:?}", self.patience);
            self.missed(&reason);
        }
        self.give_back();
    }
}

/// Logs that a server is left out, or is used again; nothing else.
pub(super) fn report(model: &str, endpoint: &Endpoint, change: Option<Change>) {
    let server = endpoint.name.as_str();
    match change {
        Some(Change::Out(reason)) => {
            tracing::warn!(model, server, reason, "a server of a model is left out");
        }
        Some(Change::In) => tracing::info!(model, server, "a server of a model is used"),
        None => {}
    }
}
