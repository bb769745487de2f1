//! Rows that a restore holds back, because they would trigger actions of the service.
//!
//! The original machine, from which the backup was taken, may still be running. So a restore moves
//! the rows that start executions and send webhooks into a separate table, under their original
//! keys. The service does not read this table; only `orrery resume` moves the rows back.

use super::key::{Key, Table};

/// The tables whose rows trigger actions.
const ACTING: [Table; 5] =
    [Table::Lane, Table::Timer, Table::Due, Table::Parked, Table::ScheduleDue];

/// Returns the key under which a restore stores a row of a backup.
#[must_use]
pub fn hold_back(key: Key) -> Key {
    let tag = key.as_bytes().first();
    if ACTING.iter().any(|table| tag == Some(&(*table as u8))) {
        return all().raw(key.as_bytes());
    }
    key
}

/// Returns the original table and key of a held-back row.
#[must_use]
pub fn original(held: &Key) -> Option<(Table, Key)> {
    let key = held.as_bytes().strip_prefix(all().as_bytes())?;
    let table = ACTING.into_iter().find(|table| key.first() == Some(&(*table as u8)))?;
    Some((table, Key::from_bytes(key)))
}

/// The prefix of all held-back rows.
#[must_use]
pub fn all() -> Key {
    Key::table(Table::CarriedOver)
}

/// The key of a row that exists from a restore until `orrery resume`. The row's value is the time
/// of the restore, in a sortable form.
#[must_use]
pub fn paused() -> Key {
    Key::table(Table::Meta).text("paused")
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_domain::ids::ExecutionId;

    #[test]
    fn held_back_rows_keep_their_original_keys() {
        let id = ExecutionId::from([7; 16]);
        for table in ACTING {
            let key = Key::table(table).text("x").id(id);
            let held = hold_back(key.clone());
            assert!(held.as_bytes().starts_with(all().as_bytes()));
            assert_eq!(original(&held), Some((table, key)));
            // In a backup of a paused service, the held-back rows keep their keys.
            assert_eq!(hold_back(held.clone()), held);
        }
        for table in [Table::Execution, Table::Delivery, Table::Circuit, Table::Meta] {
            let key = Key::table(table).id(id);
            assert_eq!((hold_back(key.clone()), original(&key)), (key.clone(), None));
        }
    }
}
