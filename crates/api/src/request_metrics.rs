//! Request metrics: counts by host, method, route and status, and durations by host.
//!
//! Looking up a labeled metric costs several allocations and a registry access each time. The
//! handles are therefore cached here. The number of handles is small, because there are only a few
//! combinations of routes, methods and statuses.

use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::Duration;

use hyper::{Method, StatusCode};
use metrics::{Counter, Histogram};

use super::Role;

/// The labels of a host's counter: method, route and status.
type Labels = (&'static str, &'static str, StatusCode);

/// The request metrics of one host.
#[derive(Debug)]
pub(crate) struct RequestMetrics {
    role: Role,
    requests: RwLock<HashMap<Labels, Counter>>,
    /// A single histogram for all routes, because each histogram has many series.
    seconds: OnceLock<Histogram>,
}

impl RequestMetrics {
    /// Creates the metrics of a host without any requests.
    #[must_use]
    pub(crate) fn new(role: Role) -> Self {
        Self { role, requests: RwLock::default(), seconds: OnceLock::new() }
    }

    /// Counts one response. `route` is the route's pattern, or empty if no route matched.
    pub(crate) fn count(
        &self,
        method: &Method,
        route: &'static str,
        status: StatusCode,
        took: Duration,
    ) {
        let host = self.role.as_str();
        let seconds = || metrics::histogram!("orrery_request_seconds", "host" => host);
        self.seconds.get_or_init(seconds).record(took);
        let labels = (known_method(method), route, status);
        let known = self.requests.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(requests) = known.get(&labels) {
            return requests.increment(1);
        }
        drop(known);
        let requests = self.register(labels);
        requests.increment(1);
        self.requests.write().unwrap_or_else(PoisonError::into_inner).insert(labels, requests);
    }

    fn register(&self, (method, route, status): Labels) -> Counter {
        let host = self.role.as_str();
        metrics::counter!(
            "orrery_requests_total",
            "host" => host, "method" => method, "route" => route, "status" => status.as_str().to_owned()
        )
    }
}

/// Returns the metric label for a method. All nonstandard methods share one label.
fn known_method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn request_metrics_register_each_label_set_once_and_count_each_request() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let of_host = RequestMetrics::new(Role::Control);
        let took = Duration::from_millis(3);
        metrics::with_local_recorder(&recorder, || {
            for method in [Method::GET, Method::GET, Method::from_bytes(b"BREW").unwrap()] {
                of_host.count(&method, "/of-this-test", StatusCode::OK, took);
            }
            of_host.count(&Method::GET, "/of-this-test", StatusCode::NOT_FOUND, took);
        });
        assert_eq!(of_host.requests.read().unwrap().len(), 3);
        let text = handle.render();
        for line in [
            "orrery_requests_total{host=\"control\",method=\"GET\",route=\"/of-this-test\",status=\"200\"} 2",
            "orrery_requests_total{host=\"control\",method=\"other\",route=\"/of-this-test\",status=\"200\"} 1",
            "orrery_requests_total{host=\"control\",method=\"GET\",route=\"/of-this-test\",status=\"404\"} 1",
            "orrery_request_seconds_count{host=\"control\"} 4",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
