//! Random choices that a seed reproduces (SplitMix64).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;

/// A source of random choices.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// Creates a source from `ORRERY_TEST_SEED` or a fresh seed. Prints the seed, so that a failure
    /// can be reproduced.
    pub(crate) fn seeded() -> Self {
        let given = std::env::var("ORRERY_TEST_SEED").ok();
        let seed = given.map_or_else(
            || RandomState::new().build_hasher().finish(),
            |text| text.parse().unwrap_or_else(|_| panic!("ORRERY_TEST_SEED={text:?}")),
        );
        eprintln!("random choices: ORRERY_TEST_SEED={seed}");
        Self { state: seed }
    }

    /// Derives an independent source, for example one per thread.
    pub(crate) fn fork(&mut self) -> Self {
        Self { state: self.next() }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in a non-empty range. The modulo bias does not matter here.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// Returns true once in `times` calls on average.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.within(0..times) == 0
    }
}
