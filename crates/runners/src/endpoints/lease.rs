//! A lease of an endpoint for one request. Records whether the endpoint responded: in the
//! endpoint's state, in the metrics, and, if the outcome adds the endpoint to the rotation or
//! removes it, in the log.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Group;
use super::endpoint::{Change, Endpoint};
use crate::managed::InUse;
use orrery_domain::attempt::Failure;
use orrery_domain::classify::ErrorClass;
use orrery_http::client;
use orrery_http::connector;
use orrery_runtime as runtime;

/// A lease of an endpoint. Dropping this value returns the lease.
#[derive(Debug)]
pub struct Lease {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) group: Arc<Group>,
    /// The model's slug, used in messages, and as a metric label if there are several endpoints.
    pub(super) model: String,
    pub(super) has_metrics: bool,
    pub(super) begun: Instant,
    pub(super) patience: Duration,
    /// Whether an error response, or one that is not what was requested, counts as no response.
    pub(super) is_strict: bool,
    pub(super) is_noted: bool,
    pub(super) has_place: bool,
    /// The use of the server, if this service starts it.
    pub(super) in_use: Option<InUse>,
}

impl Lease {
    /// Returns the endpoint's URL.
    #[must_use]
    pub fn url(&self) -> Cow<'_, str> {
        let url = &self.endpoint.url;
        self.in_use.as_ref().map_or(Cow::Borrowed(url), |in_use| Cow::Owned(in_use.url(url)))
    }

    /// Returns whether the server has exited since this service started it; waits briefly for its
    /// exit. Records nothing on the endpoint then, since the next server is another one.
    pub(super) async fn has_lost_server(&mut self) -> bool {
        let Some(in_use) = &self.in_use else { return false };
        let has_ended = in_use.has_ended().await;
        self.is_noted |= has_ended;
        has_ended
    }

    /// Records the outcome of the request; `None` means that it received a response. Only the first
    /// call for each lease counts.
    pub fn note(&mut self, failure: Option<&Failure>) {
        let is_miss = |class| match class {
            ErrorClass::ProviderUnavailable => true,
            ErrorClass::ProviderError | ErrorClass::ExecutionTimeout => self.is_strict,
            ErrorClass::ContentModeration
            | ErrorClass::InvalidUserInput
            | ErrorClass::InvalidModelConfig
            | ErrorClass::ProviderAuth
            | ErrorClass::ProviderRateLimit
            | ErrorClass::InternalError
            | ErrorClass::Unknown => false,
        };
        match failure.filter(|failure| is_miss(failure.class)) {
            Some(failure) => self.missed(&failure.message),
            None => self.answered(),
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

    /// Records a request that received no response, and returns whether another endpoint may be
    /// tried.
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
            // These errors do not indicate a fault of the endpoint.
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

    /// Returns the lease early.
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
        // On timeout, the engine drops the run without recording an outcome, so record the miss
        // here.
        if !self.is_noted && self.begun.elapsed() >= self.patience {
            let reason = format!("no answer within {:?}", self.patience);
            self.missed(&reason);
        }
        self.give_back();
    }
}

/// Logs when an endpoint leaves or re-enters rotation.
pub(super) fn report(model: &str, endpoint: &Endpoint, change: Option<Change>) {
    let server = endpoint.name.as_str();
    match change {
        Some(Change::Out(reason)) => {
            tracing::warn!(model, server, reason, "endpoint removed from rotation");
        }
        Some(Change::In) => tracing::info!(model, server, "endpoint back in rotation"),
        None => {}
    }
}
