//! The outbox's rows: their keys, and their records.
//!
//! | table | key | value |
//! |---|---|---|
//! | `Delivery` | organization, execution (newest first) | [`Contents`]: written once |
//! | `DeliveryProgress` | the same | [`DeliveryProgress`]; absent while no attempt was made |
//! | `DeliveryStanding` | organization, status, created at and execution (newest first) | the receiver |
//! | `Due` | time, organization, execution | [`Due`] |
//! | `Parked` | receiver, time, organization, execution | [`Due`] |
//! | `Circuit` | receiver | [`Circuit`] |
//! | `WebhookEndpoint` | organization, 1, endpoint | `Endpoint` of `domain::webhook_endpoint` |
//! | `WebhookEndpoint` | organization, 0 | a counter of changes to the list |
//! | `EndpointDelivery` | organization, execution, delivery | empty |
//!
//! The key of a delivery to an endpoint, or of an update, contains the delivery's own id in place of
//! the execution's: [`Delivery::row`].
//!
//! An unfinished delivery has exactly one row in `Due` or `Parked`; a finished delivery has none.
//! At startup, only these two tables therefore have to be read. The rows that change with each
//! attempt are small, regardless of the body's size.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Error;
use orrery_domain::delivery::{self, Delivery, DeliveryProgress, Status, Target, Webhook};
use orrery_domain::ids::{DeliveryId, EndpointId, ExecutionId, OrganizationId};
use orrery_domain::payload::Payload;
use orrery_domain::time::Timestamp;
use orrery_domain::trace;
use orrery_domain::webhook_endpoint::Event;
use orrery_storage::record::decode;
use orrery_storage::rotation::{Rotation, Watch};
use orrery_storage::{self as storage, Commit, Key, Record, Store, Table};

/// The contents and target of a delivery: the part that never changes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Contents {
    pub(super) id: DeliveryId,
    pub(super) webhook: Webhook,
    pub(super) body: Payload,
    pub(super) created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) endpoint: Option<ToEndpoint>,
    /// The execution to which an update belongs; `None` for other deliveries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) update_of: Option<ExecutionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) origin: Option<Arc<trace::Origin>>,
}

/// Additional data of a delivery to an endpoint.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct ToEndpoint {
    pub(super) id: EndpointId,
    pub(super) event: Event,
    /// The execution that caused the event.
    pub(super) execution: ExecutionId,
}

impl Record for Contents {
    const NAME: &'static str = "delivery";
}

/// A row of the due index or of the parked rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Due {
    /// The receiver's scheme, host and port; stored here so that a failing receiver can be
    /// recognized without reading the delivery.
    pub(super) receiver: String,
}

impl Record for Due {
    const NAME: &'static str = "due delivery";
}

/// An open circuit, stored so that failing receivers are still known after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Circuit {
    /// Number of consecutive failures.
    pub(super) failures: u32,
    /// The earliest time at which the next probe may be sent.
    pub(super) open_until: Timestamp,
}

impl Record for Circuit {
    const NAME: &'static str = "circuit";
}

/// The index that contains the row of a due delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowIndex {
    Due,
    Parked,
}

/// Returns the key of a delivery's contents.
#[must_use]
pub fn delivery(organization: OrganizationId, execution: ExecutionId) -> Key {
    Key::table(Table::Delivery).id(organization).id_newest_first(execution)
}

/// Returns the key of a delivery's progress.
#[must_use]
pub fn progress(organization: OrganizationId, execution: ExecutionId) -> Key {
    Key::table(Table::DeliveryProgress).id(organization).id_newest_first(execution)
}

/// Returns the prefix of the rows for an organization's deliveries with this status, newest first;
/// the values are the receivers.
#[must_use]
pub(super) fn status_rows(organization: OrganizationId, status: Status) -> Key {
    of_status(organization, status).raw(&[1])
}

/// Returns the key of the counter for the rows of [`status_rows`].
#[must_use]
pub(super) fn status_count(organization: OrganizationId, status: Status) -> Key {
    of_status(organization, status).raw(&[0])
}

fn of_status(organization: OrganizationId, status: Status) -> Key {
    let letter = match status {
        Status::Pending => b'p',
        Status::Delivered => b'd',
        Status::Failed => b'f',
    };
    Key::table(Table::DeliveryStanding).id(organization).raw(&[letter])
}

/// Parses the creation time and execution from a key of [`status_rows`].
pub(super) fn created_and_execution(key: &Key) -> Option<(Timestamp, ExecutionId)> {
    let tail: &[u8; 24] = key.as_bytes().last_chunk()?;
    let (time, _id) = tail.split_first_chunk::<8>()?;
    Some((Timestamp::from_sortable(time.map(|byte| !byte)), key.last_id_inverted()?))
}

/// Moves a delivery's row to the delivery's current status; `before` is `None` for a new delivery.
pub(super) fn move_status_row(commit: &mut Commit, delivery: &Delivery, before: Option<Status>) {
    let organization = delivery.organization;
    let now = delivery.progress.status;
    if before == Some(now) {
        return;
    }
    let row = |status| {
        status_rows(organization, status)
            .time_newest_first(delivery.created_at)
            .id_newest_first(delivery.row())
    };
    if let Some(before) = before {
        commit.delete(row(before));
        commit.add(status_count(organization, before), -1);
    }
    let receiver = delivery::receiver(&delivery.webhook.url);
    commit.put_bytes(row(now), receiver.into_bytes());
    commit.add(status_count(organization, now), 1);
}

/// Returns the key of a row in the due index.
#[must_use]
pub(super) fn due(due: Timestamp, organization: OrganizationId, execution: ExecutionId) -> Key {
    Key::table(Table::Due).time(due).id(organization).id(execution)
}

/// Returns the prefix of all rows that are parked for a receiver.
#[must_use]
pub(super) fn parked_at(receiver: &str) -> Key {
    Key::table(Table::Parked).text(receiver)
}

/// Returns the key of a row that is parked for a receiver.
#[must_use]
pub(super) fn parked(
    receiver: &str,
    due: Timestamp,
    organization: OrganizationId,
    execution: ExecutionId,
) -> Key {
    parked_at(receiver).time(due).id(organization).id(execution)
}

/// Returns a key after all rows that are parked for `receiver` and before the rows of the next
/// receiver: the name ends with a zero byte, which is incremented.
#[must_use]
pub(super) fn after_parked_at(receiver: &str) -> Key {
    Key::table(Table::Parked).raw(receiver.as_bytes()).raw(&[1])
}

/// Returns the key of a receiver's circuit.
#[must_use]
pub(super) fn circuit(receiver: &str) -> Key {
    Key::table(Table::Circuit).text(receiver)
}

/// Parses the receiver from a key of [`circuit`].
pub(super) fn receiver_of_circuit(key: &Key) -> Option<String> {
    let text = key.as_bytes().strip_suffix(&[0])?.get(1..)?;
    String::from_utf8(text.to_vec()).ok()
}

/// Parses the time, organization and execution at the end of a key of either index.
pub(super) fn moment_and_ids(key: &Key) -> Option<(Timestamp, OrganizationId, ExecutionId)> {
    let tail: &[u8; 40] = key.as_bytes().last_chunk()?;
    let (time, ids) = tail.split_first_chunk::<8>()?;
    let (organization, execution) = ids.split_first_chunk::<16>()?;
    let execution: [u8; 16] = *execution.first_chunk()?;
    Some((
        Timestamp::from_sortable(*time),
        OrganizationId::from(*organization),
        ExecutionId::from(execution),
    ))
}

/// Adds a delivery to the commit of its execution's completion: the contents, and a row in the due
/// index.
///
/// If the body is in a payload file, the caller must claim the file (`Store::claim`) in the same
/// commit.
///
/// # Errors
/// [`storage::Error`] if a record cannot be serialized.
pub fn enqueue(commit: &mut Commit, delivery: &Delivery) -> Result<(), storage::Error> {
    let Delivery {
        id,
        organization,
        execution,
        webhook,
        body,
        created_at,
        origin,
        progress: state,
        ..
    } = delivery;
    let row = delivery.row();
    let to_endpoint =
        |target: Target| ToEndpoint { id: target.id, event: target.event, execution: *execution };
    let contents = Contents {
        id: *id,
        webhook: webhook.clone(),
        body: body.clone(),
        created_at: *created_at,
        endpoint: delivery.endpoint.map(to_endpoint),
        update_of: delivery.is_update.then_some(*execution),
        origin: origin.clone(),
    };
    commit.put(self::delivery(*organization, row), &contents)?;
    if delivery.is_one_of_many() {
        commit.put_bytes(of_execution(*organization, *execution).id(*id), Vec::new());
    }
    if *state != DeliveryProgress::new(*created_at) {
        commit.put(progress(*organization, row), state)?;
    }
    if let Some(time) = state.next_attempt_at {
        let receiver = delivery::receiver(&webhook.url);
        commit.put(due(time, *organization, row), &Due { receiver })?;
    }
    move_status_row(commit, delivery, None);
    Ok(())
}

/// Adds the progress of a delivery that becomes due again, and its row in the due index.
pub(super) fn make_due(commit: &mut Commit, delivery: &Delivery) -> Result<(), storage::Error> {
    let Delivery { organization, webhook, progress: state, .. } = delivery;
    let row = delivery.row();
    commit.put(progress(*organization, row), state)?;
    if let Some(time) = state.next_attempt_at {
        let receiver = delivery::receiver(&webhook.url);
        commit.put(due(time, *organization, row), &Due { receiver })?;
    }
    Ok(())
}

/// Loads a stored delivery; returns `None` if the delivery does not exist.
///
/// # Errors
/// [`Error::Store`] if the disk cannot be read or a record is damaged.
pub async fn load(
    store: &Store,
    organization: OrganizationId,
    execution: ExecutionId,
) -> Result<Option<Delivery>, Error> {
    let found = store.get_many(&keys(organization, execution)).await?;
    let [contents, progress] = found.as_slice() else { return Ok(None) };
    Ok(assemble(organization, execution, contents.as_deref(), progress.as_deref())?)
}

/// Like [`load`] for many deliveries, in order. An unreadable delivery is also returned as `None`.
///
/// # Errors
/// [`Error::Store`] if the disk cannot be read.
pub(super) async fn load_many(
    store: &Store,
    ids: &[(OrganizationId, ExecutionId)],
) -> Result<Vec<Option<Delivery>>, Error> {
    let keys: Vec<Key> = ids.iter().flat_map(|(owner, id)| keys(*owner, *id)).collect();
    let found = store.get_many(&keys).await?;
    let assembled =
        ids.iter().zip(found.as_chunks().0).map(|((owner, id), [contents, progress])| {
            assemble(*owner, *id, contents.as_deref(), progress.as_deref()).unwrap_or_default()
        });
    Ok(assembled.collect())
}

/// Returns a delivery's keys: of its contents and of its progress.
fn keys(organization: OrganizationId, execution: ExecutionId) -> [Key; 2] {
    [delivery(organization, execution), progress(organization, execution)]
}

fn assemble(
    organization: OrganizationId,
    execution: ExecutionId,
    contents: Option<&[u8]>,
    progress: Option<&[u8]>,
) -> Result<Option<Delivery>, storage::Error> {
    let Some(contents) = contents else { return Ok(None) };
    let contents: Contents = decode(contents)?;
    let Contents { id, webhook, body, created_at, endpoint: to, update_of, origin } = contents;
    let execution = to.map(|to| to.execution).or(update_of).unwrap_or(execution);
    let endpoint = to.map(|to| Target { id: to.id, event: to.event });
    let progress = match progress {
        Some(bytes) => decode(bytes)?,
        None => DeliveryProgress::new(created_at),
    };
    Ok(Some(Delivery {
        id,
        organization,
        execution,
        endpoint,
        is_update: update_of.is_some(),
        webhook,
        body,
        created_at,
        origin,
        progress,
    }))
}

/// Returns the prefix of the rows for an execution's updates and deliveries to endpoints; their keys
/// end with the deliveries' ids.
#[must_use]
pub(super) fn of_execution(organization: OrganizationId, execution: ExecutionId) -> Key {
    Key::table(Table::EndpointDelivery).id(organization).id(execution)
}

/// Returns the prefix of the endpoints of all organizations and the counters of their lists.
pub(super) fn all_endpoints() -> Key {
    Key::table(Table::WebhookEndpoint)
}

/// Returns the prefix of an organization's endpoints, oldest first.
pub(super) fn endpoints(organization: OrganizationId) -> Key {
    all_endpoints().id(organization).raw(&[1])
}

/// Returns the counter of changes to the list of an organization's endpoints or to their names.
pub(super) fn endpoint_changes(organization: OrganizationId) -> Key {
    all_endpoints().id(organization).raw(&[0])
}

/// Returns the key of an endpoint.
pub(super) fn endpoint(organization: OrganizationId, id: EndpointId) -> Key {
    endpoints(organization).id(id)
}

/// Returns whether a row of [`all_endpoints`] is an endpoint.
pub(super) fn is_endpoint(key: &Key) -> bool {
    key.as_bytes().get(17) == Some(&1)
}

/// Returns the organization of a row of [`all_endpoints`].
pub(super) fn organization_of_endpoint(key: &Key) -> Option<OrganizationId> {
    let bytes = key.as_bytes().get(1..)?.first_chunk::<16>()?;
    Some(OrganizationId::from(*bytes))
}

/// Re-encrypts the secrets of all deliveries and endpoints.
///
/// # Errors
/// As [`Rotation::records`].
pub async fn reseal(
    store: &Store,
    rotation: &mut Rotation,
    watch: &mut Watch<'_>,
) -> Result<(), storage::Error> {
    let deliveries = Key::table(Table::Delivery);
    rotation.records(store, deliveries, secret, watch).await?;
    super::endpoints::reseal(store, rotation, watch).await
}

fn secret(contents: &mut Contents) -> Option<&mut String> {
    contents.webhook.secret.as_mut()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use orrery_domain::delivery::Attempt;
    use orrery_domain::webhook_endpoint::Endpoint;
    use orrery_storage::record::encode;

    fn text<T: Record>(record: &T) -> String {
        String::from_utf8(encode(record).unwrap()).unwrap()
    }

    #[test]
    fn row_of_traced_delivery_matches_golden_bytes() {
        let golden = "\u{1}{\"id\":\"01010101-0101-0101-0101-010101010101\",\
            \"webhook\":{\"url\":\"https://example.com/hook\"},\"body\":{\"inline\":1},\
            \"created_at\":7,\"origin\":{\
            \"parent\":\"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\",\
            \"state\":\"a=1\",\"request_id\":\"r-1\"}}";
        assert_eq!(text(&decode::<Contents>(golden.as_bytes()).unwrap()), golden);
    }

    #[test]
    fn webhook_rows_match_golden_bytes() {
        let contents = Contents {
            id: DeliveryId::from([1; 16]),
            webhook: Webhook {
                secret: Some("sealed".to_owned()),
                ..Webhook::unsigned("https://example.com/hook".to_owned())
            },
            body: serde_json::from_str(r#"{"inline":{"status":"completed",  "output":1.50}}"#)
                .unwrap(),
            created_at: Timestamp::from_micros(7),
            endpoint: None,
            update_of: None,
            origin: None,
        };
        let golden = "\u{1}{\"id\":\"01010101-0101-0101-0101-010101010101\",\
            \"webhook\":{\"url\":\"https://example.com/hook\",\"secret\":\"sealed\"},\
            \"body\":{\"inline\":{\"status\":\"completed\",  \"output\":1.50}},\"created_at\":7}";
        assert_eq!(text(&contents), golden);
        assert_eq!(text(&decode::<Contents>(golden.as_bytes()).unwrap()), golden);

        let to = ToEndpoint {
            id: EndpointId::from([2; 16]),
            event: Event::WorkflowFailed,
            execution: ExecutionId::from([3; 16]),
        };
        let contents = Contents { endpoint: Some(to), ..contents };
        let beside = "{\"id\":\"02020202-0202-0202-0202-020202020202\",\
            \"event\":\"workflow.failed\",\
            \"execution\":\"03030303-0303-0303-0303-030303030303\"}";
        let golden = golden
            .replace("\"created_at\":7}", &format!("\"created_at\":7,\"endpoint\":{beside}}}"));
        assert_eq!(text(&contents), golden);

        let update = "\u{1}{\"id\":\"01010101-0101-0101-0101-010101010101\",\
            \"webhook\":{\"url\":\"https://example.com/hook\",\
            \"replicate\":[\"start\",\"completed\"]},\"body\":{\"inline\":1},\"created_at\":7,\
            \"update_of\":\"03030303-0303-0303-0303-030303030303\"}";
        assert_eq!(text(&decode::<Contents>(update.as_bytes()).unwrap()), update);

        let mut progress = DeliveryProgress::new(Timestamp::from_micros(7));
        let attempt = Attempt {
            number: 1,
            status_code: Some(503),
            response: Some("busy".to_owned()),
            error: Some("the receiver answered 503".to_owned()),
            duration_ms: 12,
            redelivery: false,
            created_at: Timestamp::from_micros(8),
        };
        progress.note(attempt, Some(Timestamp::from_micros(9)));
        assert_eq!(progress.status, Status::Pending);
        let golden = "\u{1}{\"status\":\"pending\",\"attempts\":[{\"number\":1,\
            \"status_code\":503,\"response\":\"busy\",\"error\":\"the receiver answered 503\",\
            \"duration_ms\":12,\"redelivery\":false,\"created_at\":8}],\"round\":1,\
            \"redelivery\":false,\"next_attempt_at\":9}";
        assert_eq!(text(&progress), golden);
        assert_eq!(decode::<DeliveryProgress>(golden.as_bytes()).unwrap(), progress);

        let golden = "\u{1}{\"id\":\"07070707-0707-0707-0707-070707070707\",\
            \"organization\":\"02020202-0202-0202-0202-020202020202\",\"name\":\"orders\",\
            \"url\":\"https://a.example/\",\"events\":[\"prediction.completed\"],\
            \"models\":[\"m\"],\"workflows\":[\"03030303-0303-0303-0303-030303030303\"],\
            \"scheme\":\"v1a\",\"secret\":\"sealed\",\"public_key\":\"whpk_a\",\
            \"replaced\":{\"secret\":\"sealed too\",\"until\":9},\
            \"disabled\":{\"at\":8,\"reason\":\"failures\"},\"failing_since\":5,\
            \"created_at\":1,\"updated_at\":2}";
        let endpoint: Endpoint = decode(golden.as_bytes()).unwrap();
        assert_eq!(text(&endpoint), golden);
        let due = Due { receiver: "https://example.com:443".to_owned() };
        assert_eq!(text(&due), "\u{1}{\"receiver\":\"https://example.com:443\"}");
        let circuit = Circuit { failures: 10, open_until: Timestamp::from_micros(9) };
        assert_eq!(text(&circuit), "\u{1}{\"failures\":10,\"open_until\":9}");
        assert_eq!(decode::<Circuit>(text(&circuit).as_bytes()).unwrap(), circuit);
    }

    #[test]
    fn webhook_row_keys_match_golden_bytes() {
        let organization = OrganizationId::from([2; 16]);
        let execution = ExecutionId::from([0xf0; 16]);
        let ids = [[2; 16], [0xf0; 16]].concat();
        let time = 9_u64.to_be_bytes();
        assert_eq!(
            delivery(organization, execution).as_bytes(),
            [b"D".as_slice(), &[2; 16], &[0x0f; 16]].concat()
        );
        assert_eq!(
            progress(organization, execution).as_bytes(),
            [b"S".as_slice(), &[2; 16], &[0x0f; 16]].concat()
        );
        assert_eq!(
            due(Timestamp::from_micros(9), organization, execution).as_bytes(),
            [b"U".as_slice(), &time, &ids].concat()
        );
        assert_eq!(
            parked("http://a:80", Timestamp::from_micros(9), organization, execution).as_bytes(),
            [b"Whttp://a:80\0".as_slice(), &time, &ids].concat()
        );
        assert_eq!(circuit("http://a:80").as_bytes(), b"Chttp://a:80\0");
        let id = EndpointId::from([7; 16]);
        let key = endpoint(organization, id);
        assert_eq!(key.as_bytes(), [b"5".as_slice(), &[2; 16], &[1], &[7; 16]].concat());
        assert!(is_endpoint(&key) && !is_endpoint(&endpoint_changes(organization)));
        assert_eq!(organization_of_endpoint(&key), Some(organization));
        let of = of_execution(organization, execution).id(DeliveryId::from([1; 16]));
        assert_eq!(of.as_bytes(), [b"6".as_slice(), &ids, &[1; 16]].concat());
        let receiver = receiver_of_circuit(&circuit("http://a:80"));
        assert_eq!(receiver.as_deref(), Some("http://a:80"));
    }

    proptest! {
        #[test]
        fn webhook_parked_rows_of_endpoints_do_not_overlap(
            a in "https?://[a-z]{1,3}:[0-9]{1,2}", b in "https?://[a-z]{1,3}:[0-9]{1,2}",
            micros in 0_i64..i64::MAX, organization: [u8; 16], execution: [u8; 16],
        ) {
            let time = Timestamp::from_micros(micros);
            let ids = (OrganizationId::from(organization), ExecutionId::from(execution));
            let key = parked(&a, time, ids.0, ids.1);
            prop_assert_eq!(moment_and_ids(&key), Some((time, ids.0, ids.1)));
            prop_assert_eq!(moment_and_ids(&due(time, ids.0, ids.1)), Some((time, ids.0, ids.1)));
            prop_assert!(key < after_parked_at(&a) && key > parked_at(&a));
            let other = parked(&b, time, ids.0, ids.1);
            prop_assert_eq!(other < after_parked_at(&a), b <= a);
        }
    }
}
