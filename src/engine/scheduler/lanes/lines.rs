//! What waits, in a line for each organization: the lines take turns, each first in, first out.

use std::collections::VecDeque;

#[derive(Debug)]
pub struct Lines<K, T> {
    /// In the order of their turns; none is empty.
    lines: VecDeque<(K, VecDeque<T>)>,
    len: usize,
}

impl<K, T> Default for Lines<K, T> {
    fn default() -> Self {
        Self { lines: VecDeque::new(), len: 0 }
    }
}

impl<K: Copy + Eq, T> Lines<K, T> {
    pub const fn len(&self) -> usize {
        self.len
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Those who have something here, the one whose turn it is first.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.lines.iter().map(|(key, _)| *key)
    }

    /// How much of one is here.
    pub fn len_of(&self, key: K) -> usize {
        self.lines.iter().find(|(held, _)| *held == key).map_or(0, |(_, line)| line.len())
    }

    pub fn push_back(&mut self, key: K, item: T) {
        self.insert(key, item, |_| false);
    }

    /// Puts an item before the first one of its line for which `is_behind` holds.
    pub fn insert(&mut self, key: K, item: T, is_behind: impl Fn(&T) -> bool) {
        self.len += 1;
        match self.lines.iter_mut().find(|(held, _)| *held == key) {
            Some((_, line)) => {
                let at = line.iter().position(is_behind).unwrap_or(line.len());
                line.insert(at, item);
            }
            None => self.lines.push_back((key, VecDeque::from([item]))),
        }
    }

    /// Puts an item before all others.
    pub fn push_front(&mut self, key: K, item: T) {
        self.insert(key, item, |_| true);
        if let Some(line) = self.at(key).and_then(|at| self.lines.remove(at)) {
            self.lines.push_front(line);
        }
    }

    /// Takes the next item; then it is the turn of the others.
    pub fn pop(&mut self) -> Option<T> {
        let key = self.keys().next()?;
        self.pop_of(key)
    }

    /// Takes the next item of one; then it is the turn of the others.
    pub fn pop_of(&mut self, key: K) -> Option<T> {
        let (key, mut line) = self.at(key).and_then(|at| self.lines.remove(at))?;
        let item = line.pop_front()?;
        self.len = self.len.saturating_sub(1);
        if !line.is_empty() {
            self.lines.push_back((key, line));
        }
        Some(item)
    }

    /// Takes the item for which `is_it` holds out of its line.
    pub fn remove(&mut self, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let removed = self.lines.iter_mut().find_map(|(_, line)| {
            let at = line.iter().position(&is_it)?;
            line.remove(at)
        });
        self.lines.retain(|(_, line)| !line.is_empty());
        self.len = self.len.saturating_sub(usize::from(removed.is_some()));
        removed
    }

    /// How many items are taken before the one for which `is_it` holds, as it is now.
    pub fn before(&self, is_it: impl Fn(&T) -> bool) -> Option<usize> {
        let found =
            |(at, (_, line)): (usize, &(K, VecDeque<T>))| Some((at, line.iter().position(&is_it)?));
        let (own, ahead) = self.lines.iter().enumerate().find_map(found)?;
        let taken = self.lines.iter().enumerate().map(|(at, (_, line))| match at == own {
            true => ahead,
            false => line.len().min(ahead + usize::from(at < own)),
        });
        Some(taken.sum())
    }

    fn at(&self, key: K) -> Option<usize> {
        self.lines.iter().position(|(held, _)| *held == key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_take_turns_and_keep_their_order() {
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
        let rest: Vec<_> = std::iter::from_fn(|| lines.pop()).collect();
        assert_eq!(rest, [29, 10, 21, 30, 12, 22]);
        assert!(lines.is_empty() && lines.keys().next().is_none());
    }
}
