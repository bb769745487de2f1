//! Housekeeping: removes leftovers of a crash once after a start, and expired data while the
//! service runs. Expired files are removed every minute, other data every hour, or more often if a
//! retention is shorter than ten hours. If a sweep takes longer than its interval, the next sweep
//! follows at once, so that even large amounts of data are removed in time.
//!
//! Each layer removes its own data in small batches. Nothing is removed while the machine's clock
//! is more than a day ahead of the trusted time, see `runtime::clock`, because the clock may have
//! jumped.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orrery_api::{Keep, Services};
use orrery_domain::ids::{FileId, Id, PayloadId};
use orrery_domain::time::{Now, Timestamp};
use orrery_records::result_cache::ResultCache;
use orrery_runtime::{self as runtime, Clock, Tasks};
use orrery_storage::{Commit, Key, SweepOptions, Swept, Table};

/// Interval of the sweep for expired files. The sweep is a single read if no file has expired.
const EVERY: Duration = Duration::from_secs(60);
/// Maximum number of [`EVERY`] intervals between two sweeps of other data.
const OTHERS_EVERY_MAX: u32 = 60;
/// Minimum number of sweeps within the shortest retention period.
const SWEEPS_EACH: u32 = 10;

/// Number of intervals between two records of the trusted time.
const RECORD_TIME_EVERY: u32 = 10;
/// Delay before the next attempt after a failure.
const RECORD_RETRY: Duration = Duration::from_secs(1);

/// File that lists refused sweeps, for `orrery check`; absent if no sweep was refused.
pub(crate) const REFUSED: &str = "sweep.refused";

/// Sweeps until shutdown. Unfinished writes with ids older than `started` were interrupted by the
/// end of the previous process. `accepts_loss` means that the operator has permitted the removal of
/// any number of files.
pub(crate) async fn run(
    services: Arc<Services>,
    tasks: Tasks,
    started: PayloadId,
    accepts_loss: bool,
) {
    tasks.spawn(record_time_jumps(Arc::clone(&services), tasks.clone()));
    let options = SweepOptions { now: services.clock.believed(), accepts_loss };
    let payloads = services.store.sweep_payloads(started, options).await;
    let files = services.files.sweep(FileId::from(started.bytes()), options).await;
    let refusals: Vec<String> = [
        report_startup_sweep("payloads", payloads.map_err(anyhow::Error::from)),
        report_startup_sweep("files", files.map_err(anyhow::Error::from)),
    ]
    .into_iter()
    .flatten()
    .collect();
    note_refusals(&services.store.folder().join(REFUSED), &refusals);
    let mut until_others = 0;
    for look in (0..RECORD_TIME_EVERY).cycle() {
        let next_look = runtime::monotonic_now() + EVERY;
        if look == 0 {
            let _recorded_or_logged = record_time(&services).await;
        }
        let are_others_due = until_others == 0;
        if are_others_due {
            until_others = looks_between(&services.live.load().keep);
        }
        until_others -= 1;
        if is_ahead(&services.clock, are_others_due) {
            tokio::select! {
                () = tasks.stopping() => return,
                () = tokio::time::sleep_until(next_look) => continue,
            }
        }
        report("expired files", services.files.remove_expired().await);
        if are_others_due {
            report("token counts of past days", services.chat.forget_past_days().await);
            tokio::select! {
                () = tasks.stopping() => return,
                () = others(&services) => {}
            }
        }
        tokio::select! {
            () = tasks.stopping() => return,
            () = tokio::time::sleep_until(next_look) => {}
        }
    }
}

/// Returns the number of intervals between sweeps of data with a retention period; at least one.
fn looks_between(keep: &Keep) -> u32 {
    let Keep { executions, payloads, deliveries, sessions, responses } = *keep;
    let shortest = executions.min(payloads).min(deliveries).min(sessions).min(responses);
    let looks = (shortest / SWEEPS_EACH).as_secs() / EVERY.as_secs();
    u32::try_from(looks).unwrap_or(OTHERS_EVERY_MAX).clamp(1, OTHERS_EVERY_MAX)
}

/// Restores the trusted time of the previous process. If none is stored, as on a first start, the
/// machine's clock is trusted.
///
/// # Errors
/// Returns an error if the store cannot be read.
pub(crate) async fn restore_time(services: &Services) -> anyhow::Result<()> {
    if let Some(believed) = read_time(services, &time_key()).await? {
        // If no work is due at a specific time, the last clock reading is ignored, which undoes the
        // effects of a temporarily wrong clock.
        let awaits_moment =
            services.engine.awaits_moment().await? || services.outbox.awaits_moment().await?;
        let last = read_reading(services).await?.filter(|_| awaits_moment);
        services.clock.restore(believed, last);
    }
    Ok(())
}

async fn read_time(services: &Services, key: &Key) -> anyhow::Result<Option<Timestamp>> {
    let row = services.store.get(key).await?;
    Ok(row.and_then(|bytes| bytes.try_into().ok()).map(Timestamp::from_sortable))
}

async fn read_reading(services: &Services) -> anyhow::Result<Option<Now>> {
    let row = services.store.get(&reading_key()).await?;
    let Some(row) = row else { return Ok(None) };
    let (times, _rest) = row.as_chunks::<8>();
    let [steady, wall] = *times else { return Ok(None) };
    Ok(Some(Now { wall: Timestamp::from_sortable(wall), steady: Timestamp::from_sortable(steady) }))
}

/// Records the time whenever the machine's clock jumps, until shutdown. After a jump, delays are
/// measured by the steady time, which may differ from the machine's clock.
async fn record_time_jumps(services: Arc<Services>, tasks: Tasks) {
    loop {
        tokio::select! {
            () = tasks.stopping() => return,
            () = services.clock.jumped() => {}
        }
        report_jump(&services.clock);
        while !record_time(&services).await {
            tokio::select! {
                () = tasks.stopping() => return,
                () = tokio::time::sleep(RECORD_RETRY) => {}
            }
        }
    }
}

/// Returns the row of the trusted time.
fn time_key() -> Key {
    Key::table(Table::Meta).text("believed time")
}

/// Returns the row of the last clock reading: the steady time, then the time of the machine's
/// clock.
fn reading_key() -> Key {
    Key::table(Table::Meta).text("latest time")
}

/// Records the trusted time and the last clock reading, and returns whether the write succeeded.
async fn record_time(services: &Services) -> bool {
    let believed = services.clock.believed();
    let last = services.clock.reading();
    let mut commit = Commit::new();
    commit.put_bytes(time_key(), believed.sortable().to_vec());
    let reading = [last.steady.sortable(), last.wall.sortable()].concat();
    commit.put_bytes(reading_key(), reading);
    let recorded = services.store.commit(commit).await;
    if let Err(error) = &recorded {
        tracing::error!(%error, "failed to record the time");
    }
    recorded.is_ok()
}

fn report_jump(clock: &Clock) {
    let Now { wall, steady } = clock.reading();
    if let Some(ahead) = clock.ahead() {
        report_ahead(clock, ahead);
    } else if steady > wall {
        let back = humantime::format_duration(steady.since(wall)).to_string();
        tracing::warn!(back, now = %wall, "the machine's clock was set back; due work stays due");
    } else {
        tracing::warn!(now = %wall, "the machine's clock was set forward");
    }
}

/// Returns whether deletion by age is currently suspended.
fn is_ahead(clock: &Clock, says_so: bool) -> bool {
    let Some(ahead) = clock.ahead() else { return false };
    metrics::counter!("orrery_sweeps_refused_total").increment(1);
    if says_so {
        report_ahead(clock, ahead);
    }
    true
}

fn report_ahead(clock: &Clock, ahead: Duration) {
    let ahead = humantime::format_duration(ahead).to_string();
    let believed = clock.believed();
    tracing::error!(
        ahead, %believed, now = %clock.now(),
        "nothing is deleted by age: the machine's clock is ahead of the time that this service has \
         seen. Set the clock right; if it is right, no action is needed"
    );
}

/// Logs the result of a sweep after a start, and returns the message if the sweep was refused.
fn report_startup_sweep(what: &'static str, swept: anyhow::Result<Swept>) -> Option<String> {
    let Swept { unused, total, moved, refused } = match swept {
        Ok(swept) => swept,
        Err(error) => {
            tracing::error!(%error, what, "failed to remove unreferenced files");
            return None;
        }
    };
    let held_back = if refused { unused } else { 0 };
    let gauge = metrics::gauge!("orrery_sweep_refused_files", "what" => what);
    gauge.set(u32::try_from(held_back).unwrap_or(u32::MAX));
    if refused {
        let sentence = format!(
            "{unused} of {total} files in {what} are unreferenced: too many to remove without \
             your confirmation. If the store is complete, start once with `orrery serve \
             --accept-loss`; otherwise restore the store from a backup"
        );
        tracing::error!(unused, total, what, "sweep refused: {sentence}");
        return Some(sentence);
    }
    if moved > 0 {
        tracing::info!(moved, total, what, "unreferenced files moved to `lost`");
    }
    None
}

fn note_refusals(path: &Path, refusals: &[String]) {
    let noted = if refusals.is_empty() {
        let is_absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        fs::remove_file(path).or_else(|error| if is_absent(&error) { Ok(()) } else { Err(error) })
    } else {
        fs::write(path, refusals.join("\n"))
    };
    if let Err(error) = noted {
        tracing::warn!(path = %path.display(), %error, "failed to record a refused sweep");
    }
}

async fn others(services: &Services) {
    let options = SweepOptions { now: services.clock.believed(), accepts_loss: false };
    report("days of lost payloads", services.store.empty_payload_trash(options).await);
    report("days of lost files", services.files.empty_trash(options).await);
    report("sessions and links of the dashboard", services.members.sweep().await);
    report("expired idempotency keys", services.idempotency.sweep().await);
    if let Err(error) = apply_retention(services).await {
        tracing::error!(%error, "retention failed");
    }
}

fn report<E: std::fmt::Display>(what: &str, swept: Result<usize, E>) {
    match swept {
        Ok(0) => {}
        Ok(swept) => tracing::info!(swept, "removed {what}"),
        Err(error) => tracing::error!(%error, "failed to remove {what}"),
    }
}

/// Deletes data that has exceeded the configured `[retention]`.
async fn apply_retention(services: &Services) -> anyhow::Result<()> {
    let keep = services.live.load().keep;
    let now = services.clock.believed();
    let results = ResultCache::new(services.store.clone(), services.clock.clone());
    for organization in services.accounts.organizations().await? {
        if let Some(cutoff) = now.before(keep.deliveries) {
            let swept = services.outbox.purge_before(organization.id, cutoff).await;
            report("old deliveries", swept);
        }
        let old = services.billing.usage().forget(organization.id, now).await;
        report("old usage counters", old);
        report("expired results", results.sweep(organization.id).await);
        let unused = services.agent.forget_unused(organization.id, keep.sessions).await;
        report("unused sessions", unused);
        if let Some(cutoff) = now.before(keep.responses) {
            let swept = services.responses.purge_before(organization.id, cutoff).await;
            report("old responses", swept);
        }
        if let Some(cutoff) = now.before(keep.executions) {
            let swept = services.engine.purge_before(organization.id, cutoff).await;
            report("old executions", swept);
        }
        if let Some(cutoff) = now.before(keep.payloads) {
            let swept = services.engine.purge_payloads_before(organization.id, cutoff).await;
            report("inputs and outputs of old executions", swept);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_follow_shortest_retention() {
        let day = Duration::from_secs(86_400);
        let keep = |executions| Keep {
            executions,
            payloads: 30 * day,
            deliveries: 30 * day,
            sessions: 30 * day,
            responses: 30 * day,
        };
        for (kept, looks) in [(90 * day, 60), (day / 24, 6), (EVERY, 1), (EVERY * 30, 3)] {
            assert_eq!(looks_between(&keep(kept)), looks, "{kept:?}");
        }
    }
}
