//! Bit flips: a test kills the service, flips one bit of the stored data in a copy of the data
//! folder, and starts the service on that copy. Wherever the flipped bit is, acknowledged data must
//! never be missing or different without an error. After that, the service continues on the
//! original folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::eventually;
use crate::support::random::Random;
use crate::support::service::{Service, Setup};

/// Acknowledged data checked after each flip: paths and the bodies of their responses.
pub(crate) type Known = Vec<(String, Vec<u8>)>;

/// The part of the data folder in which a bit is flipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Tree,
    Log,
    Payload,
    File,
}

/// The parts in which a round flips bits.
const PARTS: [Part; 5] = [Part::Tree, Part::Log, Part::Tree, Part::Payload, Part::File];

/// The outcomes of flips.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub flips: u32,
    /// The start failed with a clear error.
    pub refused: u32,
    /// `orrery verify` or a response reported the damage.
    pub named: u32,
    /// All data was read unchanged.
    pub without_effect: u32,
}

/// Flips bits of an idle service's data, one after another. Kills the service first, and restarts
/// it at the end.
pub(crate) fn round(
    setup: &Setup,
    key: &str,
    service: Service,
    known: &Known,
    random: &mut Random,
) -> Tally {
    service.kill();
    let data = setup.data();
    let untouched = data.with_file_name("untouched");
    let rows = verified(setup).1;
    let mut tally = Tally::default();
    for part in PARTS {
        fs::rename(data, &untouched).unwrap();
        copy(&untouched, data);
        if let Some(place) = flip(data, part, random) {
            println!("flip of {place}");
            judge(setup, key, known, rows, part, &place, &mut tally);
        }
        fs::remove_dir_all(data).unwrap();
        fs::rename(&untouched, data).unwrap();
    }
    tally
}

/// Copies a data folder. Payload files and users' files are never rewritten, so the copy hard-links
/// them.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let is_shared = ["payloads", "files"].iter().any(|name| entry.file_name() == *name);
        let how = if is_shared { "-al" } else { "-a" };
        let done = Command::new("cp").arg(how).arg(entry.path()).arg(to).status().unwrap();
        assert!(done.success(), "{} is copied", entry.path().display());
    }
}

/// Flips one bit and returns its location; `None` if this part has no files.
fn flip(data: &Path, part: Part, random: &mut Random) -> Option<String> {
    let files = match part {
        Part::Tree => vec![data.join("store/db")],
        Part::Log => files_below(&data.join("store/log")),
        Part::Payload => files_below(&data.join("payloads")),
        Part::File => files_below(&data.join("files")),
    };
    let is_lost = |path: &PathBuf| path.components().any(|part| part.as_os_str() == "lost");
    let mut files: Vec<PathBuf> = files.into_iter().filter(|path| !is_lost(path)).collect();
    files.sort();
    if files.is_empty() {
        return None;
    }
    let count = u64::try_from(files.len()).unwrap();
    let path = &files[usize::try_from(random.within(0..count)).unwrap()];
    let mut bytes = fs::read(path).unwrap();
    // The bytes after the last nonzero byte are unused.
    let end = bytes.iter().rposition(|byte| *byte != 0)? + 1;
    let at = usize::try_from(random.within(0..u64::try_from(end).unwrap())).unwrap();
    bytes[at] ^= 1 << random.within(0..8);
    // Replace the file instead of changing it, because the original folder may share it (hard
    // link).
    let flipped = path.with_extension("flipped");
    fs::copy(path, &flipped).unwrap();
    fs::write(&flipped, bytes).unwrap();
    fs::rename(&flipped, path).unwrap();
    Some(format!("byte {at} of {}", path.strip_prefix(data).unwrap().display()))
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Returns whether `orrery verify` finds the data intact, how many rows it read, and its output.
fn verified(setup: &Setup) -> (bool, u64, String) {
    let (is_good, printed, said) = setup.try_run(&["verify", "--json"]);
    assert!(!said.contains("panicked"), "verify panics: {said}");
    let report: Value = serde_json::from_str(&printed).unwrap_or_default();
    (is_good, report["rows"].as_u64().unwrap_or_default(), format!("{}{said}", report["faults"]))
}

fn judge(
    setup: &Setup,
    key: &str,
    known: &Known,
    rows: u64,
    part: Part,
    place: &str,
    tally: &mut Tally,
) {
    tally.flips += 1;
    let (is_good, seen, said) = verified(setup);
    assert!(!is_good || seen == rows, "{place}: verify says nothing of {} rows", rows - seen);
    assert!(is_good || said.len() > 40, "{place}: verify says {said:?}");
    if matches!(part, Part::Payload | Part::File) && is_good {
        // The kill may have interrupted an upload before its record: nothing refers to that file.
        let path = setup.data().join(place.split(" of ").nth(1).unwrap());
        let aside = path.with_extension("aside");
        fs::rename(&path, &aside).unwrap();
        let is_unused = verified(setup).0;
        fs::rename(&aside, &path).unwrap();
        assert!(is_unused, "{place}: verify does not see it");
    }
    let from = setup.log_since(0).len();
    let mut service = setup.spawn();
    let is_up = eventually("the service is ready or refuses to start", || match service.ended() {
        Some(status) => {
            assert!(status.code().is_some_and(|code| code != 0), "{place}: {status}");
            Some(false)
        }
        None => service.is_ready().then_some(true),
    });
    let log = setup.log_since(from);
    assert!(!log.contains("panicked"), "{place}: {log}");
    if !is_up {
        let is_named = ["damage", "cannot be used"].iter().any(|words| log.contains(words));
        assert!(is_named, "{place}: refused without naming the damage: {log}");
        assert!(!is_good, "{place}: verify finds nothing, and the start is refused: {log}");
        tally.refused += 1;
        return;
    }
    let named = known.iter().filter(|(path, body)| is_named(setup, key, path, body, place));
    let named = named.count();
    match (is_good, named) {
        (true, 0) => tally.without_effect += 1,
        (true, _) => panic!("{place}: verify finds nothing, and answers name damage"),
        (false, _) => tally.named += 1,
    }
}

/// Returns whether a response reports damage; otherwise the response must be unchanged.
fn is_named(setup: &Setup, key: &str, path: &str, body: &[u8], place: &str) -> bool {
    // The service cuts off a download when it detects damage while streaming.
    let Ok(answer) = setup.client(key).get(path) else { return true };
    if answer.status() == 200 && answer.body == body {
        return false;
    }
    let text = answer.text();
    let says_so = match answer.status() {
        200 => text.contains("_error\":\"") && text.contains("damaged"),
        status => status >= 500,
    };
    assert!(says_so, "{place}: {path} was {} and is {text}", String::from_utf8_lossy(body));
    true
}
