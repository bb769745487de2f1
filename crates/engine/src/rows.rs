//! The keys of the engine's records in the store.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use orrery_domain::definition::StepIndex;
use orrery_domain::execution::{Execution, Kind, Status};
use orrery_domain::ids::{BulkId, ExecutionId, Id, OrganizationId, WorkflowId};
use orrery_domain::step::{EventSource, Instance};
use orrery_domain::time::Timestamp;
use orrery_storage::rotation::{Rotation, Watch};
use orrery_storage::{self as storage, Key, Record, Store, Table};

/// An event that was sent to an execution for a waiting step.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SentEvent {
    pub payload: Box<RawValue>,
    pub source: EventSource,
    pub at: Timestamp,
}

impl Record for SentEvent {
    const NAME: &'static str = "event";
}

/// Key prefix of the events that were sent to an execution.
#[must_use]
pub fn events(execution: ExecutionId) -> Key {
    Key::table(Table::StepEvent).id(execution)
}

/// Key of an event that was sent to an execution.
#[must_use]
pub fn event(execution: ExecutionId, name: &str) -> Key {
    events(execution).text(name)
}

/// Key of an execution; keys sort by organization, newest first.
#[must_use]
pub fn execution(organization: OrganizationId, id: ExecutionId) -> Key {
    Key::table(Table::Execution).id(organization).id_newest_first(id)
}

/// Key prefix of all executions of an organization.
#[must_use]
pub fn executions_of(organization: OrganizationId) -> Key {
    Key::table(Table::Execution).id(organization)
}

/// Key of an unfinished execution in its lane; keys sort by organization, oldest first. The row's
/// value is empty.
#[must_use]
pub fn queued(lane: &str, organization: OrganizationId, id: ExecutionId) -> Key {
    queue_of(lane, organization).id(id)
}

/// Key prefix of a lane.
#[must_use]
pub fn queue(lane: &str) -> Key {
    Key::table(Table::Lane).text(lane)
}

/// Key prefix of an organization's rows in a lane.
#[must_use]
pub fn queue_of(lane: &str, organization: OrganizationId) -> Key {
    queue(lane).id(organization)
}

/// Returns the key right before the row of an execution in its lane.
#[must_use]
pub fn before(lane: &str, organization: OrganizationId, id: ExecutionId) -> Key {
    let number = u128::from_be_bytes(id.bytes());
    let before = ExecutionId::from(number.saturating_sub(1).to_be_bytes());
    queued(lane, organization, before)
}

/// Key prefix of all lanes.
#[must_use]
pub fn queues() -> Key {
    Key::table(Table::Lane)
}

/// Key prefix of all workflow lanes, as named by `lane_of_workflow`.
#[must_use]
pub fn queues_of_workflows() -> Key {
    Key::table(Table::Lane).raw(b"workflow:")
}

/// Parses the lane's name and the ids from a lane row; `None` for any other key.
#[must_use]
pub fn parse_queued(key: &Key) -> Option<(String, OrganizationId, ExecutionId)> {
    let (_, rest) = key.as_bytes().split_first()?;
    let (rest, id) = rest.split_last_chunk::<16>()?;
    let (name, organization) = rest.split_last_chunk::<16>()?;
    let name = std::str::from_utf8(name.strip_suffix(b"\0")?).ok()?;
    Some((name.to_owned(), OrganizationId::from(*organization), ExecutionId::from(*id)))
}

/// Key prefix of an execution's steps outside of maps, in definition order.
#[must_use]
pub fn outer_steps(execution: ExecutionId) -> Key {
    Key::table(Table::Step).id(execution).raw(&[0])
}

/// Key prefix of all steps of an execution.
#[must_use]
pub fn steps(execution: ExecutionId) -> Key {
    Key::table(Table::Step).id(execution)
}

/// Key of a step. Keys sort by map depth, then by definition order, then by item.
#[must_use]
pub fn step(execution: ExecutionId, instance: &Instance) -> Key {
    let depth = u8::try_from(instance.items.len()).unwrap_or(u8::MAX);
    let key = steps(execution).raw(&[depth]).raw(&instance.step.number().to_be_bytes());
    instance.items.iter().fold(key, |key, item| key.raw(&item.to_be_bytes()))
}

/// Parses the step instance from a step row; `None` for any other key.
#[must_use]
pub fn parse_step(key: &Key) -> Option<Instance> {
    let rest = key.as_bytes().get(17..)?;
    let (depth, rest) = rest.split_first()?;
    let (number, items) = rest.split_first_chunk::<2>()?;
    let (items, []) = items.as_chunks::<4>() else { return None };
    let items: Vec<u32> = items.iter().map(|item| u32::from_be_bytes(*item)).collect();
    let step = StepIndex::new(u16::from_be_bytes(*number));
    (items.len() == usize::from(*depth)).then_some(Instance { step, items })
}

/// Keys of an execution tree's counters: the number of descendants, their bytes, and the number of
/// ended descendants.
#[must_use]
pub fn tree(root: ExecutionId) -> [Key; 3] {
    let of_root = Key::table(Table::Tree).id(root);
    [of_root.clone().raw(b"d"), of_root.clone().raw(b"b"), of_root.raw(b"e")]
}

/// Encodes the value of a timer row.
#[must_use]
pub fn timer_value(organization: OrganizationId) -> Vec<u8> {
    organization.bytes().to_vec()
}

/// Key of an execution that is suspended until `due` and not in its lane. The row's value is the
/// organization's id.
#[must_use]
pub fn timer(due: Timestamp, id: ExecutionId) -> Key {
    timers().time(due).id(id)
}

/// Reserved due time: a child for which this execution may be waiting has ended.
pub const CHILD_ENDED: Timestamp = Timestamp::from_micros(0);
/// Reserved due time: the step that was waiting for this execution has ended, so the execution must
/// be cancelled.
pub const ABANDONED: Timestamp = Timestamp::from_micros(1);

/// Key prefix of all timers, earliest first.
#[must_use]
pub fn timers() -> Key {
    Key::table(Table::Timer)
}

/// Parses the due time and the ids from a timer row; `None` for any other row.
#[must_use]
pub fn parse_timer(key: &Key, value: &[u8]) -> Option<(Timestamp, OrganizationId, ExecutionId)> {
    let due = key.as_bytes().get(1..)?.first_chunk::<8>()?;
    let organization: [u8; 16] = value.try_into().ok()?;
    Some((Timestamp::from_sortable(*due), OrganizationId::from(organization), key.last_id()?))
}

/// Key of a counted list of the ids of an organization's executions of a workflow.
#[must_use]
pub fn of_workflow(organization: OrganizationId, workflow: WorkflowId) -> Key {
    Key::table(Table::WorkflowExecution).id(organization).id(workflow)
}

/// Encodes the value of a row in a list of executions.
#[must_use]
pub fn id_value(id: ExecutionId) -> Vec<u8> {
    id.bytes().to_vec()
}

/// The statuses that lists of workflow executions distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Queued, running or suspended.
    Unfinished = 1,
    Completed = 2,
    Failed = 3,
    Cancelled = 4,
}

impl From<Status> for Standing {
    fn from(status: Status) -> Self {
        match status {
            Status::Created | Status::Processing => Self::Unfinished,
            Status::Success => Self::Completed,
            Status::Error => Self::Failed,
            Status::Cancelled => Self::Cancelled,
        }
    }
}

/// Key prefix of an organization's executions of a workflow, by status.
#[must_use]
pub fn standings(organization: OrganizationId, workflow: WorkflowId) -> Key {
    Key::table(Table::WorkflowStatus).id(organization).id(workflow)
}

/// Key of a counted list of the ids of executions with a final status, latest end first.
#[must_use]
pub fn ended(standings: &Key, standing: Standing) -> Key {
    standings.clone().raw(&[standing as u8])
}

/// Key prefix of an organization's executions of a kind and status, by lane, newest first; keys end
/// with inverted ids. Unfinished executions share one prefix; their status is in the row's value.
#[must_use]
pub fn standing(organization: OrganizationId, kind: Kind, status: Status) -> Key {
    let kind = match kind {
        Kind::Prediction => b'p',
        Kind::Workflow => b'w',
        Kind::Chat => b'c',
        Kind::Decision => b'd',
        Kind::Agent => b'a',
    };
    let status = if status.is_final() { byte_of(status) } else { b'u' };
    Key::table(Table::Standing).id(organization).raw(&[kind, status])
}

/// Returns the byte that encodes a status in a row.
#[must_use]
pub const fn byte_of(status: Status) -> u8 {
    match status {
        Status::Created => b'c',
        Status::Processing => b'r',
        Status::Success => b's',
        Status::Error => b'e',
        Status::Cancelled => b'x',
    }
}

/// Key of the row that contains the creation time up to which the payloads of ended executions have
/// been deleted.
#[must_use]
pub fn payloads_forgotten(organization: OrganizationId) -> Key {
    Key::table(Table::Meta).text("payloads forgotten").id(organization)
}

/// Key prefix of executions that were triggered together, oldest first; keys end with their ids.
#[must_use]
pub fn bulk(bulk: BulkId) -> Key {
    Key::table(Table::Bulk).id(bulk)
}

/// Reseals the webhook secrets of all executions.
///
/// # Errors
/// The errors of [`Rotation::records`].
pub async fn reseal(
    store: &Store,
    rotation: &mut Rotation,
    watch: &mut Watch<'_>,
) -> Result<(), storage::Error> {
    let executions = Key::table(Table::Execution);
    rotation.records(store, executions, webhook_secret, watch).await
}

fn webhook_secret(execution: &mut Execution) -> Option<&mut String> {
    execution.webhook.as_mut()?.secret.as_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_domain::step::Step;
    use orrery_storage::record::{decode, encode};

    #[test]
    fn row_of_lane_encodes_lane_and_ids() {
        let organization = [1; 16].into();
        let id = [2; 16].into();
        let key = queued("model:a/b", organization, id);
        assert_eq!(parse_queued(&key), Some(("model:a/b".to_owned(), organization, id)));
        assert!(key.as_bytes().starts_with(queue_of("model:a/b", organization).as_bytes()));
        let before = before("model:a/b", organization, id);
        assert!(before < key && before > queue_of("model:a/b", organization));
        assert_eq!(parse_queued(&Key::table(Table::Lane)), None);
        assert_eq!(parse_queued(&queue("model:a/b").id(id)), None);
    }

    #[test]
    fn row_of_step_encodes_instance_and_sorts_outer_steps_first() {
        let of =
            |step, items: &[u32]| Instance { step: StepIndex::new(step), items: items.to_vec() };
        let id = [2; 16].into();
        let order =
            [of(0, &[]), of(499, &[]), of(1, &[0]), of(1, &[300]), of(2, &[0]), of(1, &[0, 0])];
        let keys: Vec<_> = order.iter().map(|instance| step(id, instance)).collect();
        assert!(keys.is_sorted());
        for (key, instance) in keys.iter().zip(order) {
            assert_eq!(parse_step(key), Some(instance.clone()));
            let is_outer = key.as_bytes().starts_with(outer_steps(id).as_bytes());
            assert_eq!(is_outer, instance.items.is_empty());
        }
        assert_eq!(parse_step(&steps(id)), None);
    }

    #[test]
    fn row_of_timer_encodes_due_time_and_ids() {
        let organization = [1; 16].into();
        let id = [2; 16].into();
        let due = Timestamp::from_micros(77);
        let parsed = parse_timer(&timer(due, id), &timer_value(organization));
        assert_eq!(parsed, Some((due, organization, id)));
        assert_eq!(parse_timer(&timers(), b""), None);
    }

    /// A stored agent exchange.
    const EXCHANGE: &str = concat!(
        "\u{1}{\"id\":\"07070707-0707-0707-0707-070707070707\",",
        "\"organization\":\"01010101-0101-0101-0101-010101010101\",",
        "\"key\":\"02020202-0202-0202-0202-020202020202\",\"source\":\"api\",",
        "\"status\":\"processing\",\"input\":{\"inline\":{\"prompt\":\"hi\"}},",
        "\"work\":{\"agent\":{\"session\":\"03030303-0303-0303-0303-030303030303\",",
        "\"session_name\":\"s\",\"model\":\"m\",\"mode\":\"eco\",\"behavior\":\"plan\",",
        "\"limits\":{\"steps\":24,\"time_ms\":300000,\"cost\":5},",
        "\"tokens\":{\"input\":1,\"output\":2},\"needs_clarification\":true}},\"cost\":2000,",
        "\"created_at\":1,\"started_at\":1}"
    );

    /// A stored prediction whose request carried a trace context.
    const TRACED: &str = concat!(
        "\u{1}{\"id\":\"07070707-0707-0707-0707-070707070707\",",
        "\"organization\":\"01010101-0101-0101-0101-010101010101\",",
        "\"key\":\"02020202-0202-0202-0202-020202020202\",\"source\":\"api\",",
        "\"status\":\"created\",\"input\":{\"inline\":{\"a\":1}},",
        "\"work\":{\"prediction\":{\"version\":\"0.0.1\",",
        "\"chain\":[{\"model\":\"caption\"}],\"position\":0}},\"cost\":0,\"created_at\":1,",
        "\"origin\":{\"parent\":\"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\",",
        "\"state\":\"a=1\",\"request_id\":\"r-1\"}}"
    );

    /// A stored paused execution that a step started.
    const CHILD: &str = concat!(
        "\u{1}{\"id\":\"07070707-0707-0707-0707-070707070707\",",
        "\"organization\":\"01010101-0101-0101-0101-010101010101\",",
        "\"key\":\"02020202-0202-0202-0202-020202020202\",\"source\":\"workflow\",",
        "\"status\":\"processing\",\"input\":{\"inline\":{}},",
        "\"work\":{\"workflow\":{\"workflow\":\"04040404-0404-0404-0404-040404040404\",",
        "\"version\":\"v1\",\"revision\":\"05050505-0505-0505-0505-050505050505\",",
        "\"owner\":\"01010101-0101-0101-0101-010101010101\",\"source_ip\":\"127.0.0.1\",",
        "\"schedule\":\"09090909-0909-0909-0909-090909090909\",",
        "\"parent\":{\"execution\":\"08080808-0808-0808-0808-080808080808\",\"step_id\":\"s\",",
        "\"depth\":2,\"is_waiting\":true},",
        "\"ran_ms\":5,\"paused\":{\"by\":\"key k\",\"since\":9}}},",
        "\"cost\":0,\"created_at\":1,\"started_at\":2}"
    );

    /// Golden bytes of release 0.1.0: a changed encoding needs a new record version and a
    /// migration.
    #[test]
    fn rows_match_golden_bytes() {
        let prediction = concat!(
            "\u{1}{\"id\":\"07070707-0707-0707-0707-070707070707\",",
            "\"organization\":\"01010101-0101-0101-0101-010101010101\",",
            "\"key\":\"02020202-0202-0202-0202-020202020202\",\"source\":\"api\",",
            "\"status\":\"success\",\"input\":{\"inline\":{\"a\":1}},",
            "\"work\":{\"prediction\":{\"version\":\"0.0.1\",",
            "\"chain\":[{\"model\":\"caption\"}],\"position\":0,",
            "\"attempts\":[{\"number\":1,\"model\":\"caption\",\"outcome\":\"success\",",
            "\"started_at\":2,\"completed_at\":3}]}},",
            "\"output\":{\"file\":{\"id\":\"03030303-0303-0303-0303-030303030303\",",
            "\"bytes\":70000,\"crc32\":9}},\"cost\":2000,",
            "\"webhook\":{\"url\":\"http://h/\",\"secret\":\"sealed\"},",
            "\"created_at\":1,\"started_at\":2,\"completed_at\":3}"
        );
        let run = concat!(
            "\u{1}{\"id\":\"07070707-0707-0707-0707-070707070707\",",
            "\"organization\":\"01010101-0101-0101-0101-010101010101\",",
            "\"key\":\"02020202-0202-0202-0202-020202020202\",\"source\":\"api\",",
            "\"status\":\"processing\",\"input\":{\"inline\":{}},",
            "\"work\":{\"workflow\":{\"workflow\":\"04040404-0404-0404-0404-040404040404\",",
            "\"version\":\"v1\",\"revision\":\"05050505-0505-0505-0505-050505050505\",",
            "\"bulk\":\"06060606-0606-0606-0606-060606060606\",",
            "\"redriven_from\":\"08080808-0808-0808-0808-080808080808\",",
            "\"ran_ms\":5,\"aside_until\":9}},\"cost\":0,\"created_at\":1,\"started_at\":2}"
        );
        let call = concat!(
            "\u{1}{\"id\":\"07070707-0707-0707-0707-070707070707\",",
            "\"organization\":\"01010101-0101-0101-0101-010101010101\",",
            "\"key\":\"02020202-0202-0202-0202-020202020202\",\"source\":\"api\",",
            "\"status\":\"success\",\"input\":{\"inline\":null},",
            "\"work\":{\"chat\":{\"operation\":\"chat\",\"model\":\"a/b\",",
            "\"requested_model\":\"c\",\"is_upstream\":false,\"is_stream\":true,",
            "\"tokens\":{\"input\":5,\"output\":6,\"is_estimated\":true},\"is_priced\":true,",
            "\"first_byte_ms\":7}},\"cost\":2000,",
            "\"created_at\":1,\"started_at\":1,\"completed_at\":3}"
        );
        let decision = concat!(
            "\u{1}{\"id\":\"07070707-0707-0707-0707-070707070707\",",
            "\"organization\":\"01010101-0101-0101-0101-010101010101\",",
            "\"key\":\"02020202-0202-0202-0202-020202020202\",\"source\":\"api\",",
            "\"status\":\"success\",\"input\":{\"inline\":null},",
            "\"work\":{\"decision\":{\"model\":\"a/b\",\"requested_model\":\"c\",",
            "\"is_upstream\":true,\"questions\":2,\"calls\":4,\"method\":\"votes\",",
            "\"tokens\":{\"input\":5,\"output\":6},\"is_priced\":true}},\"cost\":2000,",
            "\"created_at\":1,\"started_at\":1,\"completed_at\":3}"
        );
        for golden in [prediction, run, CHILD, call, decision, EXCHANGE, TRACED] {
            let execution: Execution = decode(golden.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(encode(&execution).unwrap()).unwrap(), golden);
        }
    }

    #[test]
    fn step_and_event_rows_match_golden_bytes() {
        let step = concat!(
            "\u{1}{\"status\":\"failed\",\"input\":{\"inline\":{\"a\":1}},",
            "\"fault\":{\"name\":\"StepFailed\",\"class\":\"provider_error\",\"cause\":\"it said no\"},",
            "\"attempts\":[{\"number\":1,\"outcome\":\"error\",\"failure\":{\"class\":\"provider_error\",",
            "\"message\":\"no\"},\"started_at\":2,\"completed_at\":3}],",
            "\"primary_error\":\"it broke\",\"due\":4,\"cost\":1,\"logs\":\"l\",",
            "\"answer\":{\"status_code\":500,\"headers\":{\"a\":\"b\"}},",
            "\"prediction\":\"03030303-0303-0303-0303-030303030303\",",
            "\"started_at\":2,\"completed_at\":3}"
        );
        let answered = concat!(
            "\u{1}{\"status\":\"completed\",\"output\":{\"inline\":5},\"due\":4,",
            "\"is_cut_short\":true,\"cost\":0,\"event\":\"link\",",
            "\"child\":\"03030303-0303-0303-0303-030303030303\",",
            "\"started_at\":2,\"completed_at\":3}"
        );
        for golden in [step, answered] {
            let read: Step = decode(golden.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(encode(&read).unwrap()).unwrap(), golden);
        }
        let event = "\u{1}{\"payload\":{\"a\": 1.50},\"source\":\"link\",\"at\":7}";
        let read: SentEvent = decode(event.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(encode(&read).unwrap()).unwrap(), event);
    }
}
