//! The metrics of requests, by host, method, route and status.
//!
//! A labelled metric costs a handful of allocations and a look into the registry each time that it
//! is named. Here each is named once and kept: the sets of labels are few, since routes, known
//! methods and statuses are.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use hyper::{Method, StatusCode};
use metrics::{Counter, Histogram};

use super::Role;

/// What tells the metrics of one host apart: method, route and status.
type Labels = (&'static str, &'static str, StatusCode);

/// The meters of one host.
#[derive(Debug)]
pub struct Meters {
    role: Role,
    held: RwLock<HashMap<Labels, Meter>>,
}

#[derive(Debug, Clone)]
struct Meter {
    requests: Counter,
    seconds: Histogram,
}

impl Meters {
    /// Meters of a host that has answered nothing yet.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self { role, held: RwLock::default() }
    }

    /// Counts one answer. `route` is the pattern, empty where none was found.
    pub fn count(&self, method: &Method, route: &'static str, status: StatusCode, took: Duration) {
        let labels = (known_method(method), route, status);
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(meter) = held.get(&labels) {
            return meter.count(took);
        }
        drop(held);
        let meter = self.register(labels);
        meter.count(took);
        self.held.write().unwrap_or_else(PoisonError::into_inner).insert(labels, meter);
    }

    fn register(&self, (method, route, status): Labels) -> Meter {
        let host = self.role.as_str();
        let seconds = metrics::histogram!(
            "orrery_request_seconds", "host" => host, "method" => method, "route" => route
        );
        let requests = metrics::counter!(
            "orrery_requests_total",
            "host" => host, "method" => method, "route" => route, "status" => status.as_str().to_owned()
        );
        Meter { requests, seconds }
    }
}

impl Meter {
    fn count(&self, took: Duration) {
        self.seconds.record(took);
        self.requests.increment(1);
    }
}

/// A method as a metrics label: whatever a client invents is one word.
fn known_method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn each_set_of_labels_is_registered_once_and_counted_each_time() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let meters = Meters::new(Role::Control);
        let took = Duration::from_millis(3);
        metrics::with_local_recorder(&recorder, || {
            for method in [Method::GET, Method::GET, Method::from_bytes(b"BREW").unwrap()] {
                meters.count(&method, "/of-this-test", StatusCode::OK, took);
            }
            meters.count(&Method::GET, "/of-this-test", StatusCode::NOT_FOUND, took);
        });
        assert_eq!(meters.held.read().unwrap().len(), 3);
        let text = handle.render();
        for line in [
            "orrery_requests_total{host=\"control\",method=\"GET\",route=\"/of-this-test\",status=\"200\"} 2",
            "orrery_requests_total{host=\"control\",method=\"other\",route=\"/of-this-test\",status=\"200\"} 1",
            "orrery_requests_total{host=\"control\",method=\"GET\",route=\"/of-this-test\",status=\"404\"} 1",
            "orrery_request_seconds_count{host=\"control\",method=\"GET\",route=\"/of-this-test\"} 3",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
