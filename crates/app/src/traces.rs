//! The export of traces.

use super::options;
use orrery_api::Services;
use orrery_config::Config;
use orrery_engine::traces::Traces;
use orrery_http::client::Client;
use orrery_http::places;
use orrery_runtime::Tasks;

/// Exports the spans of all executions that end from now on, if the configuration enables the
/// export. A reload can enable or disable it.
pub(super) fn export(config: &Config, services: &Services, tasks: &Tasks) -> Traces {
    let traces = Traces::new(options::trace_target(config));
    let of_executions = traces.clone();
    services
        .engine
        .set_on_end(Box::new(move |execution, facts| of_executions.ended(execution, facts)));
    let of_deliveries = traces.clone();
    services.outbox.set_on_attempt(Box::new(move |delivery| of_deliveries.attempted(delivery)));
    // The URL is trusted because, like the URLs in manifests, it is configured by the operator.
    let client = Client::trusted().with_share(places::Share::Deliveries);
    let (engine, clock) = (services.engine.clone(), services.clock.clone());
    tasks.spawn(traces.clone().run(tasks.clone(), engine, client, clock));
    traces
}
