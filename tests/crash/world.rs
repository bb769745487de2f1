//! A service under test with its models, its webhook receivers, one key, and the book of what was
//! acknowledged.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::load::{Book, Load, Shared};
use crate::providers::Providers;
use crate::support::dice::Dice;
use crate::support::eventually;
use crate::support::service::{Service, Setup};
use crate::verdict;

/// Clients that create predictions at one time.
const CLIENTS: usize = 32;

/// A service whose models and receivers are up, with a key.
pub struct World {
    pub setup: Setup,
    pub providers: Arc<Providers>,
    pub book: Shared,
    pub dice: Dice,
    pub key: String,
}

impl World {
    /// Configuration in `folder`, data in `data`; with it the first start.
    pub fn new(folder: &Path, data: &Path) -> (Self, Service) {
        // A reserve for the small disks of these tests.
        Self::configured(folder, data, "[limits]\ndisk_reserve = \"64MiB\"\n")
    }

    /// As `new`, with more lines for the configuration.
    pub fn configured(folder: &Path, data: &Path, more: &str) -> (Self, Service) {
        let dice = Dice::seeded();
        let providers = Providers::start();
        let setup = Setup::new(folder, data, more);
        providers.add_models(&setup);
        let service = setup.start();
        let key = setup.create_key();
        let book = Book::shared(&setup);
        (Self { setup, providers, book, dice, key }, service)
    }

    pub fn load(&mut self) -> Load {
        Load::start(CLIENTS, &self.setup, &self.key, &self.providers, &self.book, &mut self.dice)
    }

    pub fn acknowledged(&self) -> usize {
        self.book.lock().unwrap().acknowledged.len()
    }

    /// Returns at a random moment under load: after some acknowledgements, and a little more.
    pub fn wait_for_a_random_moment(&mut self) {
        let wanted = self.acknowledged() + usize::try_from(self.dice.within(1..250)).unwrap();
        eventually("predictions are acknowledged", || {
            (self.acknowledged() >= wanted).then_some(())
        });
        std::thread::sleep(Duration::from_micros(self.dice.within(0..20_000)));
    }

    /// Load, a random moment, SIGKILL.
    pub fn kill_under_load(&mut self, service: Service) {
        let load = self.load();
        self.wait_for_a_random_moment();
        service.kill();
        load.end();
        Book::assert_none_refused(&self.book);
    }

    pub fn check_all(&self) -> verdict::Ends {
        self.check_all_beside(0)
    }

    /// As `check_all`, where work outside the book has cost so many micro-dollars.
    pub fn check_all_beside(&self, micros: i64) -> verdict::Ends {
        verdict::check_all(&self.setup, &self.key, &self.providers, &self.book, micros)
    }
}
