//! The page about the metrics, generated from their descriptions in `telemetry`.

use std::sync::Mutex;

use ::metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use orrery_telemetry as telemetry;

use super::page::Page;

/// Collects metric descriptions: name, type, unit, meaning.
#[derive(Default)]
struct Descriptions(Mutex<Vec<[String; 4]>>);

impl Descriptions {
    fn add(&self, name: &KeyName, kind: &str, unit: Option<Unit>, text: &SharedString) {
        let unit = unit.map(|unit| unit.as_str().to_owned()).unwrap_or_default();
        let row = [format!("`{}`", name.as_str()), kind.to_owned(), unit, text.to_string()];
        self.0.lock().unwrap().push(row);
    }
}

impl Recorder for Descriptions {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.add(&key, "counter", unit, &text);
    }
    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.add(&key, "gauge", unit, &text);
    }
    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.add(&key, "histogram", unit, &text);
    }
    fn register_counter(&self, _key: &Key, _metadata: &Metadata<'_>) -> Counter {
        Counter::noop()
    }
    fn register_gauge(&self, _key: &Key, _metadata: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _key: &Key, _metadata: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Returns the process metrics. These metrics have no descriptions in `telemetry`, so they are
/// parsed from rendered metrics.
fn of_process() -> Vec<[String; 4]> {
    let text = telemetry::process_metrics();
    let help = text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    help.map(|(name, meaning)| {
        let kind = text
            .lines()
            .find_map(|line| line.strip_prefix("# TYPE ")?.strip_prefix(name)?.strip_prefix(' '));
        let kind = kind.unwrap_or_default().to_owned();
        [format!("`{name}`"), kind, String::new(), meaning.to_owned()]
    })
    .collect()
}

pub(super) fn page() -> String {
    let descriptions = Descriptions::default();
    with_local_recorder(&descriptions, telemetry::describe);
    let mut rows = descriptions.0.into_inner().unwrap();
    rows.sort();
    let mut page = Page::new("Metrics reference", "the descriptions of the metrics");
    page.text(
        "`GET /metrics` of the listener `metrics.listen` serves these metrics in Prometheus's text \
         format, each with the meaning below. [Metrics](../monitoring.md#metrics) says which of \
         them to watch and to alert on. A gauge or a counter with labels appears with its first \
         value; other counters start at 0.",
    );
    let head = ["metric", "type", "unit", "meaning"];
    page.heading(2, "The service");
    page.table(head, &rows);
    page.heading(2, "The process");
    page.text("Under the names that Prometheus's client libraries use:");
    page.table(head, &of_process());
    page.finish()
}
