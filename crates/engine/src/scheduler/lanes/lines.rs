//! Round-robin queues: one FIFO queue, called a line, per key (such as an organization); the keys
//! take turns.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

#[derive(Debug)]
pub(super) struct Lines<K, T> {
    /// No line is empty.
    lines: HashMap<K, VecDeque<T>>,
    /// The keys that have a line, in turn order.
    turns: VecDeque<K>,
    len: usize,
}

impl<K, T> Default for Lines<K, T> {
    fn default() -> Self {
        Self { lines: HashMap::new(), turns: VecDeque::new(), len: 0 }
    }
}

impl<K: Copy + Eq + Hash, T> Lines<K, T> {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the keys that have items, in turn order.
    pub(super) fn keys(&self) -> impl Iterator<Item = K> {
        self.turns.iter().copied()
    }

    /// Returns the number of items of a key.
    pub(super) fn len_of(&self, key: K) -> usize {
        self.lines.get(&key).map_or(0, VecDeque::len)
    }

    pub(super) fn push_back(&mut self, key: K, item: T) {
        self.insert(key, item, |_| false);
    }

    /// Inserts an item before the items in its line for which `is_behind` holds.
    pub(super) fn insert(&mut self, key: K, item: T, is_behind: impl Fn(&T) -> bool) {
        self.len += 1;
        let line = self.lines.entry(key).or_insert_with(|| {
            self.turns.push_back(key);
            VecDeque::new()
        });
        let at = line.iter().rposition(|held| !is_behind(held)).map_or(0, |before| before + 1);
        line.insert(at, item);
    }

    /// Inserts an item before all others.
    pub(super) fn push_front(&mut self, key: K, item: T) {
        self.insert(key, item, |_| true);
        self.end_turn(key);
        self.turns.push_front(key);
    }

    /// Takes the next item with its key, and ends the turn of the key.
    pub(super) fn pop(&mut self) -> Option<(K, T)> {
        let key = self.keys().next()?;
        Some((key, self.pop_of(key)?))
    }

    /// Takes the next item of a key and ends its turn.
    pub(super) fn pop_of(&mut self, key: K) -> Option<T> {
        let line = self.lines.get_mut(&key)?;
        let item = line.pop_front()?;
        self.len = self.len.saturating_sub(1);
        let is_empty = line.is_empty();
        self.end_turn(key);
        if is_empty {
            self.lines.remove(&key);
        } else {
            self.turns.push_back(key);
        }
        Some(item)
    }

    /// Takes all items in the line of a key.
    pub(super) fn take(&mut self, key: K) -> VecDeque<T> {
        let line = self.lines.remove(&key).unwrap_or_default();
        if !line.is_empty() {
            self.end_turn(key);
        }
        self.len = self.len.saturating_sub(line.len());
        line
    }

    /// Removes the item for which `is_it` holds from its line.
    pub(super) fn remove(&mut self, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let (key, removed) = self.lines.iter_mut().find_map(|(key, line)| {
            let at = line.iter().position(&is_it)?;
            Some((*key, line.remove(at)?))
        })?;
        self.len = self.len.saturating_sub(1);
        if self.len_of(key) == 0 {
            self.lines.remove(&key);
            self.end_turn(key);
        }
        Some(removed)
    }

    /// Counts the items that would be taken before the one for which `is_it` holds.
    pub(super) fn before(&self, is_it: impl Fn(&T) -> bool) -> Option<usize> {
        let lines = || self.turns.iter().filter_map(|key| self.lines.get(key)).enumerate();
        let (own, ahead) =
            lines().find_map(|(at, line)| Some((at, line.iter().position(&is_it)?)))?;
        let taken = lines().map(|(at, line)| match at == own {
            true => ahead,
            false => line.len().min(ahead + usize::from(at < own)),
        });
        Some(taken.sum())
    }

    /// Removes a key from the turn order. The key is nearly always the first, so the search ends at
    /// once.
    fn end_turn(&mut self, key: K) {
        if let Some(at) = self.turns.iter().position(|held| *held == key) {
            self.turns.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::hash::Hasher;

    use super::*;

    #[test]
    fn lines_take_turns_and_keep_order() {
        let mut lines = Lines::<u8, u32>::default();
        for (key, item) in [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (2, 21)] {
            lines.push_back(key, item);
        }
        let places: Vec<_> = [10, 20, 30, 11, 21, 12]
            .map(|item| lines.before(|held| *held == item))
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(places, [0, 1, 2, 3, 4, 5]);
        assert_eq!((lines.len_of(1), lines.len_of(4)), (3, 0));
        lines.push_front(3, 29);
        lines.insert(2, 22, |held| *held > 22);
        assert_eq!(lines.remove(|held| *held == 11), Some(11));
        assert_eq!(lines.pop_of(2), Some(20));
        lines.push_back(4, 40);
        lines.push_back(4, 41);
        assert_eq!(lines.take(4), [40, 41]);
        lines.push_back(5, 50);
        assert_eq!(lines.remove(|held| *held == 50), Some(50));
        let rest: Vec<_> = std::iter::from_fn(|| lines.pop().map(|(_, item)| item)).collect();
        assert_eq!(rest, [29, 10, 21, 30, 12, 22]);
        assert!(lines.is_empty() && lines.keys().next().is_none());
        assert_eq!((lines.take(1).len(), lines.remove(|_| true)), (0, None));
    }

    /// A key that counts its comparisons.
    #[derive(Debug, Clone, Copy, Eq)]
    struct Counted(u32);

    thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            COMPARED.set(COMPARED.get() + 1);
            self.0 == other.0
        }
    }

    impl Hash for Counted {
        fn hash<H: Hasher>(&self, hasher: &mut H) {
            self.0.hash(hasher);
        }
    }

    #[test]
    fn lines_pop_without_searching_many_keys() {
        const KEYS: u32 = 2000;
        let mut lines = Lines::<Counted, u32>::default();
        for item in 0..KEYS * 2 {
            lines.push_back(Counted(item % KEYS), item);
            assert!(lines.len_of(Counted(item % KEYS)) > 0);
        }
        while lines.pop().is_some() {}
        let each = COMPARED.get() / KEYS as usize;
        assert!(each < 100, "{each} comparisons for each key");
    }
}
