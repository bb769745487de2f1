//! Where the engine's records stand in the store. To add a table: see `storage::key`.

use crate::domain::execution::Execution;
use crate::domain::ids::{ExecutionId, Id, OrganizationId};
use crate::storage::{Key, Record, Table};

impl Record for Execution {
    const NAME: &'static str = "execution";
}

/// An execution: by organization, newest first.
#[must_use]
pub fn execution(organization: OrganizationId, id: ExecutionId) -> Key {
    Key::table(Table::Execution).id(organization).id_newest_first(id)
}

/// All of an organization's executions.
#[must_use]
pub fn executions_of(organization: OrganizationId) -> Key {
    Key::table(Table::Execution).id(organization)
}

/// An unfinished execution in its lane, oldest first. The row's value is the organization's id.
#[must_use]
pub fn queued(lane: &str, id: ExecutionId) -> Key {
    queue(lane).id(id)
}

/// The value of a row in a lane.
#[must_use]
pub fn queued_value(organization: OrganizationId) -> Vec<u8> {
    organization.bytes().to_vec()
}

/// A whole lane.
#[must_use]
pub fn queue(lane: &str) -> Key {
    Key::table(Table::Lane).text(lane)
}

/// All lanes.
#[must_use]
pub fn queues() -> Key {
    Key::table(Table::Lane)
}

/// The lane's name and the ids behind a row of a lane; `None` when it is no such row.
#[must_use]
pub fn parse_queued(key: &Key, value: &[u8]) -> Option<(String, OrganizationId, ExecutionId)> {
    let id = key.last_id()?;
    let (_, rest) = key.as_bytes().split_first()?;
    let (name, _id) = rest.split_at_checked(rest.len().checked_sub(16)?)?;
    let name = std::str::from_utf8(name.strip_suffix(b"\0")?).ok()?;
    let organization: [u8; 16] = value.try_into().ok()?;
    Some((name.to_owned(), OrganizationId::from(organization), id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::record::{decode, encode};

    #[test]
    fn a_row_of_a_lane_names_its_lane_and_ids() {
        let (organization, id) = ([1; 16].into(), [2; 16].into());
        let key = queued("model:a/b", id);
        let parsed = parse_queued(&key, &queued_value(organization));
        assert_eq!(parsed, Some(("model:a/b".to_owned(), organization, id)));
        assert_eq!(parse_queued(&Key::table(Table::Lane), b""), None);
        assert_eq!(parse_queued(&key, b"short"), None);
    }

    /// The bytes that release 0.1.0 writes: a change here needs a new version and a way up.
    #[test]
    fn golden_bytes_of_an_execution() {
        let golden = concat!(
            "\u{1}{\"id\":\"07070707-0707-0707-0707-070707070707\",",
            "\"organization\":\"01010101-0101-0101-0101-010101010101\",",
            "\"key\":\"02020202-0202-0202-0202-020202020202\",\"source\":\"api\",",
            "\"version\":\"0.0.1\",\"status\":\"success\",\"input\":{\"inline\":{\"a\":1}},",
            "\"chain\":[{\"model\":\"caption\"}],\"position\":0,",
            "\"attempts\":[{\"number\":1,\"model\":\"caption\",\"outcome\":\"success\",",
            "\"started_at\":2,\"completed_at\":3}],",
            "\"output\":{\"file\":{\"id\":\"03030303-0303-0303-0303-030303030303\",",
            "\"bytes\":70000,\"crc32\":9}},\"cost\":2000,",
            "\"webhook\":{\"url\":\"http://h/\",\"secret\":\"sealed\"},",
            "\"created_at\":1,\"started_at\":2,\"completed_at\":3}"
        );
        let execution: Execution = decode(golden.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(encode(&execution).unwrap()).unwrap(), golden);
    }
}
