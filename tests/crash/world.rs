//! A service under test with its models, its webhook receivers, one key, and the log of
//! acknowledged predictions.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::load::{ClientLog, Load, Shared};
use crate::providers::Providers;
use crate::support::eventually;
use crate::support::random::Random;
use crate::support::service::{Service, Setup};
use crate::verdict;

/// Concurrent clients that create predictions.
const CLIENTS: usize = 32;

/// A service with running models and receivers, and a key.
pub(crate) struct World {
    pub setup: Setup,
    pub providers: Arc<Providers>,
    pub client_log: Shared,
    pub random: Random,
    pub key: String,
}

impl World {
    /// Creates the configuration in `folder` and the data in `data`; starts the service.
    pub(crate) fn new(folder: &Path, data: &Path) -> (Self, Service) {
        Self::configured(folder, data, "")
    }

    /// Like `new`, with more lines in the configuration.
    pub(crate) fn configured(folder: &Path, data: &Path, more: &str) -> (Self, Service) {
        let random = Random::seeded();
        let providers = Providers::start();
        let setup = Setup::new(folder, data, more);
        providers.add_models(&setup);
        let service = setup.start();
        let key = setup.create_key();
        let client_log = ClientLog::shared();
        (Self { setup, providers, client_log, random, key }, service)
    }

    pub(crate) fn load(&mut self) -> Load {
        Load::start(
            CLIENTS,
            &self.setup,
            &self.key,
            &self.providers,
            &self.client_log,
            &mut self.random,
        )
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.client_log.lock().unwrap().acknowledged.len()
    }

    /// Waits for a random moment under load: after several acknowledgements, plus a short pause.
    pub(crate) fn wait_for_a_random_moment(&mut self) {
        let wanted = self.acknowledged() + usize::try_from(self.random.within(1..250)).unwrap();
        eventually("predictions are acknowledged", || {
            (self.acknowledged() >= wanted).then_some(())
        });
        std::thread::sleep(Duration::from_micros(self.random.within(0..20_000)));
    }

    /// Starts a load, waits for a random moment, and kills the service with SIGKILL.
    pub(crate) fn kill_under_load(&mut self, service: Service) {
        let load = self.load();
        self.wait_for_a_random_moment();
        service.kill();
        load.end();
        ClientLog::assert_none_refused(&self.client_log);
    }

    pub(crate) fn check_all(&self) -> verdict::Ends {
        self.check_all_beside(0)
    }

    /// Like `check_all`, if work outside the clients' log has cost this many micro-dollars.
    pub(crate) fn check_all_beside(&self, micros: i64) -> verdict::Ends {
        verdict::check_all(&self.setup, &self.key, &self.providers, &self.client_log, micros)
    }
}
