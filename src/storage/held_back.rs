//! What a restore holds back: the rows of a backup that would make the service act.
//!
//! A restored box may have a twin that is alive. So a restore puts the rows by which executions run
//! and webhooks go out into a table of their own, under the keys that they had, and nothing of the
//! service reads that table. Only `orrery resume` puts them back.

use super::key::{Key, Table};

/// The tables whose rows make the service act.
const ACTING: [Table; 5] =
    [Table::Lane, Table::Timer, Table::Due, Table::Parked, Table::ScheduleDue];

/// Where a row of a backup is put by a restore.
#[must_use]
pub fn hold_back(key: Key) -> Key {
    let tag = key.as_bytes().first();
    if ACTING.iter().any(|table| tag == Some(&(*table as u8))) {
        return all().raw(key.as_bytes());
    }
    key
}

/// The table that a held row comes from, and the key that it had there.
#[must_use]
pub fn original(held: &Key) -> Option<(Table, Key)> {
    let key = held.as_bytes().strip_prefix(all().as_bytes())?;
    let table = ACTING.into_iter().find(|table| key.first() == Some(&(*table as u8)))?;
    Some((table, Key::from_bytes(key)))
}

/// All rows that are held back.
#[must_use]
pub fn all() -> Key {
    Key::table(Table::CarriedOver)
}

/// Says, as long as it is there, that the store was restored and has not been resumed; the value is
/// the moment of the restore, sortable.
#[must_use]
pub fn paused() -> Key {
    Key::table(Table::Meta).text("paused")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::ExecutionId;

    #[test]
    fn held_back_rows_keep_their_original_keys() {
        let id = ExecutionId::from([7; 16]);
        for table in ACTING {
            let key = Key::table(table).text("x").id(id);
            let held = hold_back(key.clone());
            assert!(held.as_bytes().starts_with(all().as_bytes()));
            assert_eq!(original(&held), Some((table, key)));
            // A backup of a box that is paused: its held rows stay as they are.
            assert_eq!(hold_back(held.clone()), held);
        }
        for table in [Table::Execution, Table::Delivery, Table::Circuit, Table::Meta] {
            let key = Key::table(table).id(id);
            assert_eq!((hold_back(key.clone()), original(&key)), (key.clone(), None));
        }
    }
}
