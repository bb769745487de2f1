//! Creates the members of the dashboard from the configuration.

use orrery_config::{self as config, Config};
use orrery_records::members::{Members, Options};
use orrery_runtime::Clock;
use orrery_storage::{Sealer, Store};

/// Opens the members of a store.
pub(crate) fn members(config: &Config, store: &Store, sealer: &Sealer, clock: &Clock) -> Members {
    let config::Dashboard { session_idle, session_max, require_second_factor, .. } =
        config.dashboard;
    let options = Options { session_idle, session_max, require_second_factor };
    Members::new(store.clone(), sealer.clone(), clock.clone(), options)
}
