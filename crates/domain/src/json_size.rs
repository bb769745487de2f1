//! The size of JSON values, as text and in memory.

use std::io;

use serde_json::Value;

/// Bytes that JSON syntax adds to values.
pub(super) const BRACKETS: usize = 2;
pub(super) const COMMA: usize = 1;
pub(super) const QUOTES: usize = 2;
pub(super) const QUOTES_COLON_COMMA: usize = 4;
/// Memory that an object's field takes in addition to its name and value: the hash, the index
/// entry, and the spare capacity of a growing map.
const FIELD_BYTES: usize = 64;

/// Average memory of a value or a field name, used if only the number of values and names is known.
const COUNTED_BYTES: usize = 48;

/// The approximate size of a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// Bytes of the JSON text. Strings count without their escapes, so that counting long strings
    /// is cheap.
    pub text: usize,
    /// Bytes of the value in memory. A list of small numbers takes ten times the memory of its
    /// text.
    pub memory: usize,
}

impl Size {
    /// Returns the size of `value`.
    #[must_use]
    pub fn of(value: &Value) -> Self {
        Self::counted(usize::MAX, |budget| budget.count(value))
    }

    /// Returns the size that `count` measures, up to `most` bytes of text.
    pub(super) fn counted(most: usize, count: impl FnOnce(&mut Budget) -> Option<()>) -> Self {
        let mut budget = Budget::new(most);
        let text = count(&mut budget).map_or(most, |()| most.saturating_sub(budget.left));
        Self { text, memory: budget.memory }
    }

    /// Estimates the size of a value that has `text` bytes of JSON text and consists of `values`
    /// values and field names.
    #[must_use]
    pub const fn bound(text: usize, values: usize) -> Self {
        Self { text, memory: text.saturating_add(values.saturating_mul(COUNTED_BYTES)) }
    }

    /// Returns the sum of both sizes.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            text: self.text.saturating_add(other.text),
            memory: self.memory.saturating_add(other.memory),
        }
    }
}

/// A byte budget. As a writer, it only counts the bytes written.
pub(super) struct Budget {
    left: usize,
    pub(super) limit: usize,
    /// Memory of the values counted so far.
    memory: usize,
}

impl Budget {
    pub(super) const fn new(limit: usize) -> Self {
        Self { left: limit, limit, memory: 0 }
    }

    pub(super) fn spend(&mut self, bytes: usize) -> Option<()> {
        self.left = self.left.checked_sub(bytes)?;
        Some(())
    }

    /// Counts a value as JSON. Returns `None` if the budget is exhausted.
    pub(super) fn count(&mut self, value: &Value) -> Option<()> {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => {
                self.hold(0);
                serde_json::to_writer(self, value).ok()
            }
            Value::String(text) => {
                self.hold(text.len());
                self.spend(text.len().saturating_add(QUOTES))
            }
            Value::Array(items) => {
                self.open()?;
                items.iter().try_for_each(|item| {
                    self.spend(COMMA)?;
                    self.count(item)
                })
            }
            Value::Object(fields) => {
                self.open()?;
                fields.iter().try_for_each(|(name, value)| {
                    self.count_field(name)?;
                    self.count(value)
                })
            }
        }
    }

    /// Counts the brackets of an array or an object.
    pub(super) fn open(&mut self) -> Option<()> {
        self.hold(0);
        self.spend(BRACKETS)
    }

    /// Counts the name of a field.
    pub(super) fn count_field(&mut self, name: &str) -> Option<()> {
        self.memory = self.memory.saturating_add(FIELD_BYTES).saturating_add(name.len());
        self.spend(name.len().saturating_add(QUOTES_COLON_COMMA))
    }

    /// Counts values that are inserted into a string.
    pub(super) fn count_as_text(
        &mut self,
        count: impl FnOnce(&mut Self) -> Option<()>,
    ) -> Option<()> {
        let (memory, left) = (self.memory, self.left);
        let counted = count(self);
        self.memory = memory;
        self.hold(left.saturating_sub(self.left));
        counted
    }

    fn hold(&mut self, heap: usize) {
        self.memory = self.memory.saturating_add(size_of::<Value>()).saturating_add(heap);
    }
}

impl io::Write for Budget {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.spend(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the length of the JSON text of `value`, in bytes.
pub(super) fn json_bytes(value: &Value) -> usize {
    let mut budget = Budget::new(usize::MAX);
    match serde_json::to_writer(&mut budget, value) {
        Ok(()) => budget.limit.saturating_sub(budget.left),
        Err(_spent) => usize::MAX,
    }
}

/// Returns whether the JSON text of `value` has at most `limit` bytes; stops counting at the limit.
pub(super) fn fits_in(value: &Value, limit: usize) -> bool {
    serde_json::to_writer(Budget::new(limit), value).is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn size_counts_text_and_memory() {
        let value = size_of::<Value>();
        for (of, text, memory) in [
            (json!(12), 2, value),
            (json!("abc"), 5, value + 3),
            (json!([1, 2, 3]), 8, 4 * value),
            (json!({"ab": null}), 12, 2 * value + FIELD_BYTES + 2),
        ] {
            assert_eq!(Size::of(&of), Size { text, memory }, "{of}");
        }
        let numbers = Size::of(&json!(vec![1; 1000]));
        assert!(numbers.memory > 10 * numbers.text, "{numbers:?}");
        let counted = Size::counted(10, |budget| budget.count(&json!(vec![1; 1000])));
        assert!(counted.text == 10 && counted.memory < 10 * value, "{counted:?}");
        let text = Size::counted(100, |budget| {
            budget.count_as_text(|budget| budget.count(&json!([1, 2, 3])))
        });
        assert_eq!(text, Size { text: 8, memory: value + 8 });
    }
}
