//! The rows of schedules in the store: records by organization, and timers by time.

use orrery_domain::ids::{Id as _, OrganizationId, ScheduleId};
use orrery_domain::schedule::Schedule;
use orrery_domain::time::Timestamp;
use orrery_storage::rotation::{Rotation, Watch};
use orrery_storage::{self as storage, Commit, Key, Store, Table};

/// Returns the row of a schedule.
pub(super) fn schedule(organization: OrganizationId, id: ScheduleId) -> Key {
    of_organization(organization).id(id)
}

/// Returns the prefix of an organization's schedules, oldest first.
pub(super) fn of_organization(organization: OrganizationId) -> Key {
    all().id(organization)
}

/// Returns the prefix of the schedules of all organizations.
pub(super) fn all() -> Key {
    Key::table(Table::Schedule)
}

/// Returns the prefix of all timers.
pub(super) fn timers() -> Key {
    Key::table(Table::ScheduleDue)
}

/// Returns the row of a schedule's timer. The row's value is the organization's ID.
pub(super) fn timer(due: Timestamp, id: ScheduleId) -> Key {
    timers().time(due).id(id)
}

/// Parses the time, the organization and the schedule of a timer.
pub(super) fn parse_timer(
    key: &Key,
    value: &[u8],
) -> Option<(Timestamp, OrganizationId, ScheduleId)> {
    let moment = key.as_bytes().get(1..9)?.try_into().ok().map(Timestamp::from_sortable)?;
    let organization: [u8; 16] = value.try_into().ok()?;
    Some((moment, organization.into(), key.last_id()?))
}

/// Moves a schedule's timer to the due time in its record.
pub(super) fn set_timer(commit: &mut Commit, before: Option<Timestamp>, schedule: &Schedule) {
    if let Some(before) = before.filter(|before| schedule.due != Some(*before)) {
        commit.delete(timer(before, schedule.id));
    }
    if let Some(due) = schedule.due {
        commit.put_bytes(timer(due, schedule.id), schedule.organization.bytes().to_vec());
    }
}

/// Encrypts the webhook secrets of all schedules again when `seal.key` is rotated.
///
/// # Errors
/// When the store cannot be read or written, or when `watch` fails. Commits made before the error
/// remain.
pub async fn reseal(
    store: &Store,
    rotation: &mut Rotation,
    watch: &mut Watch<'_>,
) -> Result<(), storage::Error> {
    fn secret(schedule: &mut Schedule) -> Option<&mut String> {
        schedule.webhook.as_mut()?.secret.as_mut()
    }
    rotation.records(store, all(), secret, watch).await
}
