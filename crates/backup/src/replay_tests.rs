//! Tests of replay plans for a machine whose clock was set back: commits that the backup contains
//! do not end a replay early, and a replay up to the time suggested in a message about a gap
//! reaches that gap.

use tempfile::TempDir;
use uuid::Uuid;

use super::super::chain::{name_of, write_group};
use super::super::write::Archive;
use super::super::{RECORDS, Range};
use super::*;

const STORE: Uuid = Uuid::from_u128(1);
const CHAIN: Uuid = Uuid::from_u128(2);

fn at(second: i64) -> Timestamp {
    Timestamp::from_micros(second * 1_000_000)
}

/// Writes a file with commits from `first` on, at these times in seconds.
fn add_file(log: &Path, first: u64, seconds: &[i64]) {
    let mut chunk = Vec::new();
    for (number, second) in (first..).zip(seconds) {
        let group = Group { number, time: at(*second), rows: BTreeMap::new() };
        write_group(&mut chunk, group).unwrap();
    }
    let last = first + seconds.len() as u64 - 1;
    let last_at = at(*seconds.last().unwrap());
    let range = Range { store: STORE, chain: CHAIN, first, last, last_at };
    let mut nothing = |_| {};
    let mut archive = Archive::begin(Vec::new(), at(0), &mut nothing).unwrap();
    archive.add_bytes(&format!("{RECORDS}00000000"), &chunk).unwrap();
    archive.summary.range = Some(range.clone());
    let (bytes, _summary) = archive.end().unwrap();
    let folder = folder_of(log, CHAIN);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(name_of(&range)), bytes).unwrap();
}

/// Returns the plan for a backup with the commits 1 and 2, taken at second 12.
fn planned(log: &TempDir, until: Option<Timestamp>) -> Result<Plan, Error> {
    let point = Point { store: STORE, chain: Some(CHAIN), record: 2, at: at(12) };
    let backup = Summary { point: Some(point), ..Summary::default() };
    let replay = Replay { log: Some(log.path().to_path_buf()), until, ..Replay::default() };
    replay.plan(&backup, &Keys::none(), &mut |_| {})
}

#[test]
fn replay_plan_ignores_times_of_commits_in_backup() {
    let log = tempfile::tempdir().unwrap();
    // The clock was ahead at commit 1, and was corrected before the backup.
    add_file(log.path(), 1, &[50, 11, 13]);
    add_file(log.path(), 4, &[14, 20]);
    add_file(log.path(), 6, &[21]);
    let plan = planned(&log, Some(at(15))).unwrap();
    assert_eq!((plan.files(), plan.last, plan.notes().len()), (2, 5, 0));
    let plan = planned(&log, None).unwrap();
    assert_eq!((plan.files(), plan.last, plan.latest), (3, 6, at(21)));
    assert!(plan.bytes() > 0);
}

#[test]
fn replay_plan_names_time_that_leads_to_gap() {
    let log = tempfile::tempdir().unwrap();
    // The clock was ahead at commit 3, and was corrected before commit 4.
    add_file(log.path(), 1, &[10, 11, 30]);
    add_file(log.path(), 4, &[13]);
    add_file(log.path(), 6, &[14]);
    let refused = planned(&log, None).unwrap_err().to_string();
    assert!(refused.contains("the commits 5 to 5 are missing"), "{refused}");
    let named = refused.split_once("--until ").unwrap().1.split_once(';').unwrap().0;
    let until = named.parse::<Timestamp>().unwrap();
    assert_eq!(until, at(30));
    let plan = planned(&log, Some(until.end_of_millisecond())).unwrap();
    assert_eq!((plan.files(), plan.last), (2, 4));
    assert!(plan.notes()[0].contains("the commits 5 to 5 are missing"), "{:?}", plan.notes());
    // The requested time is before the gap, or after the gap.
    assert_eq!(planned(&log, Some(at(13))).unwrap().files(), 1);
    assert!(matches!(planned(&log, Some(at(31))), Err(Error::Refused(_))));
}
