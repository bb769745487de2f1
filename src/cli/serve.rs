//! `orrery serve`: logs on, service on, and on a terminal a word of welcome.
//!
//! A first key is made only where a person reads standard output; elsewhere it would end in a log.

use crate::config::Config;
use crate::telemetry;

pub(super) async fn run(config: Config) -> anyhow::Result<()> {
    telemetry::start_logs(&config.log)?;
    super::service::serve(config).await
}
