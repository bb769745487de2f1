//! The KV cache of the model's context: the tokens of each sequence, the generation that uses it,
//! and the free space. Tokens of completed generations stay cached until the space is needed, so
//! that a continued conversation, or a conversation with the same beginning, is not recomputed.

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::token::LlamaToken;

use super::engine::Answer;

/// Minimum length of a common prefix that is worth copying, in tokens.
const COPY_MIN: usize = 16;

/// One sequence.
#[derive(Debug)]
pub(super) struct Slot {
    /// The sequence number in llama.cpp.
    pub id: i32,
    /// The tokens that the context stores for the sequence.
    pub cached: Vec<LlamaToken>,
    pub answer: Option<Box<Answer>>,
    /// The number of leading tokens shared with another sequence, and the index of that sequence.
    shared: (usize, usize),
    last_used: u64,
}

impl Slot {
    /// Returns the number of tokens that the sequence does not share.
    fn own(&self) -> usize {
        self.cached.len().saturating_sub(self.shared.0)
    }

    /// Returns the number of tokens that the generation needs now, excluding shared tokens.
    fn needed(&self) -> usize {
        let answer = self.answer.as_ref().map_or(0, |answer| answer.tokens.len());
        answer.saturating_sub(self.shared.0)
    }
}

/// All sequences of a context.
#[derive(Debug)]
pub(super) struct Slots {
    pub all: Vec<Slot>,
    /// Capacity of the context, in tokens.
    room: usize,
    /// Whether a sequence can be truncated; recurrent models do not support this.
    can_cut: bool,
    clock: u64,
}

impl Slots {
    /// Creates empty sequences.
    #[must_use]
    pub(super) fn new(count: u32, room: usize, can_cut: bool) -> Self {
        let slot =
            |id: i32| Slot { id, cached: Vec::new(), answer: None, shared: (0, 0), last_used: 0 };
        let count = i32::try_from(count).unwrap_or(1);
        Self { all: (0..count).map(slot).collect(), room, can_cut, clock: 0 }
    }

    /// Returns whether any sequence has an active generation.
    #[must_use]
    pub(super) fn is_active(&self) -> bool {
        self.all.iter().any(|slot| slot.answer.is_some())
    }

    /// Assigns the generation to a free sequence if there is enough space; otherwise returns the
    /// generation.
    pub(super) fn admit(
        &mut self,
        context: &mut LlamaContext<'_>,
        mut answer: Box<Answer>,
    ) -> Result<(), Box<Answer>> {
        let Some((index, donor, common)) = self.place(&answer.tokens) else { return Err(answer) };
        let from_other = if donor == index { 0 } else { common };
        let others: usize = self.all.iter().map(Slot::needed).sum();
        let active = self.all.iter().filter(|slot| slot.answer.is_some()).count();
        let needed = (answer.tokens.len() + 1).saturating_sub(from_other);
        // Reserve some space for the progress of each active generation.
        if active > 0 && others + needed + active * COPY_MIN > self.room {
            return Err(answer);
        }
        if donor == index {
            self.cut(context, index, common);
        } else {
            self.cut(context, index, 0);
            self.copy(context, donor, index, common);
        }
        answer.cached_tokens = self.all.get(index).map_or(0, |slot| slot.cached.len());
        self.clock += 1;
        answer.admitted = self.clock;
        if let Some(slot) = self.all.get_mut(index) {
            slot.answer = Some(answer);
        }
        Ok(())
    }

    /// Returns the best free sequence for these tokens, the sequence whose prefix it reuses, and
    /// the length of that prefix.
    fn place(&self, tokens: &[LlamaToken]) -> Option<(usize, usize, usize)> {
        // The last token is always computed, because its output is sampled.
        let most = tokens.len().saturating_sub(1);
        let common = |slot: &Slot| {
            let same = slot.cached.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            if self.can_cut {
                same.min(most)
            } else if same == slot.cached.len() && same <= most {
                same
            } else {
                0
            }
        };
        let free = self.all.iter().enumerate().filter(|(_, slot)| slot.answer.is_none());
        let by_use = |slot: &Slot| std::cmp::Reverse(slot.last_used);
        let best = free.clone().max_by_key(|(_, slot)| (common(slot), by_use(slot)))?;
        let own = common(best.1);
        let donor = self.all.iter().enumerate().max_by_key(|(_, slot)| common(slot))?;
        let of_donor = common(donor.1);
        if !self.can_cut || of_donor < own + COPY_MIN {
            return Some((best.0, best.0, own));
        }
        let oldest = free.max_by_key(|(_, slot)| by_use(slot))?;
        if oldest.0 == donor.0 {
            return Some((donor.0, donor.0, of_donor));
        }
        Some((oldest.0, donor.0, of_donor))
    }

    /// Frees space for this many more tokens by evicting cached sequences. Returns whether enough
    /// space was freed.
    pub(super) fn make_room(&mut self, context: &mut LlamaContext<'_>, more: usize) -> bool {
        while self.used() + more > self.room {
            if !self.forget_oldest(context) {
                return false;
            }
        }
        true
    }

    /// Evicts the least recently used sequence. Returns whether there was such a sequence.
    pub(super) fn forget_oldest(&mut self, context: &mut LlamaContext<'_>) -> bool {
        let idle = self.all.iter().enumerate();
        let idle = idle.filter(|(_, slot)| slot.answer.is_none() && !slot.cached.is_empty());
        let Some((index, _)) = idle.min_by_key(|(_, slot)| slot.last_used) else { return false };
        self.cut(context, index, 0);
        true
    }

    /// Removes and returns the most recently admitted generation, unless it is the only generation.
    pub(super) fn take_youngest(&mut self, context: &mut LlamaContext<'_>) -> Option<Box<Answer>> {
        let active = self.all.iter().enumerate().filter_map(|(index, slot)| {
            slot.answer.as_ref().map(|answer| (answer.admitted, index))
        });
        if active.clone().count() < 2 {
            return None;
        }
        let (_, index) = active.max()?;
        let answer = self.all.get_mut(index)?.answer.take();
        self.cut(context, index, 0);
        answer
    }

    /// Removes a completed generation; its tokens stay cached.
    pub(super) fn release(&mut self, index: usize) -> Option<Box<Answer>> {
        self.clock += 1;
        let slot = self.all.get_mut(index)?;
        slot.last_used = self.clock;
        slot.answer.take()
    }

    /// Clears all sequences, because the state of the context is unknown after an error.
    pub(super) fn clear(&mut self, context: &mut LlamaContext<'_>) {
        context.clear_kv_cache();
        for slot in &mut self.all {
            slot.cached.clear();
            slot.shared = (0, 0);
        }
    }

    fn used(&self) -> usize {
        self.all.iter().map(Slot::own).sum()
    }

    /// Truncates a sequence to its first `keep` tokens.
    fn cut(&mut self, context: &mut LlamaContext<'_>, index: usize, keep: usize) {
        let Some(slot) = self.all.get_mut(index) else { return };
        if slot.cached.len() <= keep {
            return;
        }
        let id = u32::try_from(slot.id).ok();
        let from = u32::try_from(keep).ok().filter(|from| *from > 0);
        let is_cut = context.clear_kv_cache_seq(id, from, None).unwrap_or(false);
        let keep = if is_cut || keep == 0 { keep } else { 0 };
        if !is_cut {
            // Removing a whole sequence always succeeds.
            let _removed = context.clear_kv_cache_seq(id, None, None);
        }
        slot.cached.truncate(keep);
        slot.shared.0 = slot.shared.0.min(keep);
        for other in self.all.iter_mut().filter(|other| other.shared.1 == index) {
            // Tokens after the first `keep` tokens are no longer shared.
            other.shared.0 = other.shared.0.min(keep);
        }
    }

    fn copy(&mut self, context: &mut LlamaContext<'_>, from: usize, to: usize, length: usize) {
        let Some(tokens) = self.all.get(from).and_then(|slot| slot.cached.get(..length)) else {
            return;
        };
        let tokens = tokens.to_vec();
        let source = self.all.get(from).map_or(0, |slot| slot.id);
        let Some(slot) = self.all.get_mut(to) else { return };
        let end = u32::try_from(length).ok();
        if context.copy_kv_cache_seq(source, slot.id, Some(0), end).is_ok() {
            slot.cached = tokens;
            slot.shared = (length, from);
        }
    }
}
