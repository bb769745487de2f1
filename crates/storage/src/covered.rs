//! The key ranges of the readable pages of a damaged tree, and the gaps between these ranges.

use std::collections::BTreeMap;
use std::ops::Bound;

/// The key ranges of pages.
#[derive(Debug, Default)]
pub(super) struct Covered {
    /// From low key to high key (exclusive); an empty high key is the end of the tree.
    ranges: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Covered {
    pub(super) fn has(&self, key: &[u8]) -> bool {
        let before =
            self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
        before.is_some_and(|(_, high)| high.is_empty() || key < high.as_slice())
    }

    pub(super) fn add(&mut self, mut low: Vec<u8>, mut high: Vec<u8>) {
        // Merge the new range with all ranges that it touches.
        while let Some(from) = self.touching(&low, &high) {
            let to = self.ranges.remove(&from).unwrap_or_default();
            low = low.min(from);
            high = if high.is_empty() || to.is_empty() { Vec::new() } else { high.max(to) };
        }
        self.ranges.insert(low, high);
    }

    fn touching(&self, low: &[u8], high: &[u8]) -> Option<Vec<u8>> {
        let last = if high.is_empty() {
            self.ranges.last_key_value()
        } else {
            self.ranges.range::<[u8], _>((Bound::Unbounded, Bound::Included(high))).next_back()
        };
        let (from, _) = last.filter(|(_, to)| to.is_empty() || to.as_slice() >= low)?;
        Some(from.clone())
    }

    pub(super) fn holes(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut holes = Vec::new();
        let mut from = Some(Vec::new());
        for (low, high) in &self.ranges {
            if let Some(from) = from.take().filter(|from| from < low) {
                holes.push((from, low.clone()));
            }
            from = Some(high.clone()).filter(|high| !high.is_empty());
        }
        holes.extend(from.map(|from| (from, Vec::new())));
        holes
    }
}
