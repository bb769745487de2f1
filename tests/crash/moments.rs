//! Point-in-time recovery: with a full backup, the log archive, and the log of a killed store, any
//! moment of a run under load can be restored.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use orrery_domain::time::Timestamp;
use orrery_runtime::Clock;

use crate::Random;
use crate::World;
use crate::load::Ask;
use crate::support::service::Setup;
use crate::support::{count_from, eventually};

const CLIENTS: usize = 8;
/// One in this many inputs is a separate payload file, and one in this many requests uploads a
/// file.
const LARGE_EVERY: u64 = 20;
const FILE_EVERY: u64 = 25;

/// A resource as seen by a reader, with the times of the observations in microseconds.
#[derive(Debug)]
struct Seen {
    path: String,
    /// The resource did not exist before this time.
    asked: u64,
    /// The service had acknowledged the resource by this time.
    acknowledged: u64,
    /// The resource's last response, and the time at which that response arrived.
    end: Vec<u8>,
    ended: u64,
}

fn now() -> u64 {
    u64::try_from(Clock::system().now().micros()).unwrap()
}

fn shown(micros: u64) -> String {
    Timestamp::from_micros(i64::try_from(micros).unwrap()).to_string()
}

#[test]
fn restore_to_any_moment_is_what_was_acknowledged_by_then() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let backups = folder.path().join("backups");
    let more = format!("[backup]\nevery = \"1h\"\nlog = \"1s\"\nfolder = {backups:?}\n");
    let (mut world, service) = World::configured(folder.path(), &data, &more);
    let backup = eventually("a full backup", || {
        files_of(&backups).into_iter().find(|path| path.ends_with(".backup"))
    });
    let total = u64::from(count_from("ORRERY_CRASH_MOMENTS", 120));
    let seen = load(&mut world, total);
    eventually("some of the log is kept", || {
        let chains = files_of(&backups.join("log"));
        let mut files = chains.iter().flat_map(|chain| files_of(Path::new(chain)));
        files.any(|path| path.ends_with(".log")).then_some(())
    });
    service.kill();
    let verified = world.setup.run(&["verify", &backup]);
    assert!(verified.contains("files of the log archive"), "{verified}");

    let first = seen.iter().map(|seen| seen.acknowledged).min().unwrap();
    let last = seen.iter().map(|seen| seen.ended).max().unwrap();
    let mut moments: Vec<u64> =
        (0..if total < 1000 { 3 } else { 9 }).map(|_| world.random.within(first..last)).collect();
    // Also restore to the end of the log, where nothing may be lost.
    moments.push(now());
    for (number, moment) in moments.into_iter().enumerate() {
        // Times have millisecond precision, and a restore includes all of the given millisecond.
        let moment = moment / 1000 * 1000 + 999;
        let into = folder.path().join(format!("restored-{number}/data"));
        let into_text = into.to_str().unwrap();
        let data_text = data.to_str().unwrap();
        let arguments = ["--live-log", data_text, "--into", into_text, "--until", &shown(moment)];
        world.setup.run(&[&["restore", &backup][..], &arguments].concat());
        let setup = Setup::new(folder.path(), &into, "");
        compare(&setup, &world, &seen, moment);
    }
}

/// Returns a response body without the service's address.
fn text(setup: &Setup, body: &[u8]) -> String {
    String::from_utf8(body.to_vec()).unwrap().replace(&setup.base().to_string(), "HOST")
}

/// Compares the responses of a service on the restored folder with the recorded ones.
fn compare(setup: &Setup, world: &World, seen: &[Seen], moment: u64) {
    let _service = setup.start();
    let before = &world.setup;
    let mut client = setup.client(&world.key);
    let mut there = 0;
    let mut ended = 0;
    for seen in seen {
        let answer = client.get(&seen.path).unwrap();
        let at = shown(moment);
        if seen.acknowledged <= moment {
            assert_eq!(answer.status(), 200, "{} was acknowledged before {at}", seen.path);
            there += 1;
        }
        if seen.asked > moment {
            assert_eq!(answer.status(), 404, "{} is younger than {at}", seen.path);
        }
        if seen.ended <= moment {
            let found = text(setup, &answer.body);
            let end = text(before, &seen.end);
            let [shown, expected] = [&found, &end].map(|text| &text[..text.len().min(1000)]);
            assert!(found == end, "{} was at {at}: {expected}\nand is: {shown}", seen.path);
            ended += 1;
        }
    }
    println!("{}: {there} acknowledged, {ended} of them ended, all there", shown(moment));
}

/// Creates predictions and files with many concurrent clients, and polls each prediction until it
/// ends.
fn load(world: &mut World, total: u64) -> Vec<Seen> {
    let turns = Arc::new(AtomicU64::new(0));
    let seen = Arc::<Mutex<Vec<Seen>>>::default();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let turns = Arc::clone(&turns);
            let seen = Arc::clone(&seen);
            let setup = world.setup.clone();
            let key = world.key.clone();
            let mut random = world.random.fork();
            std::thread::spawn(move || {
                while turns.fetch_add(1, Ordering::Relaxed) < total {
                    let one = turn(&setup, &key, &mut random);
                    seen.lock().unwrap().push(one);
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    std::mem::take(&mut *seen.lock().unwrap())
}

fn turn(setup: &Setup, key: &str, random: &mut Random) -> Seen {
    let mut client = setup.client(key);
    let asked = now();
    if random.once_in(FILE_EVERY) {
        let content = format!("{:x}", random.next()).repeat(500);
        let form = format!(
            "--b0\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n{content}\r\n--b0--\r\n"
        );
        let form_type = [("Content-Type", "multipart/form-data; boundary=b0")];
        let file = client.post("/v1/files", &form_type, &form).unwrap().json();
        let acknowledged = now();
        let path = format!("/v1/files/{}/content", file["id"].as_str().unwrap());
        return Seen { path, asked, acknowledged, end: content.into_bytes(), ended: acknowledged };
    }
    let padding = if random.once_in(LARGE_EVERY) { 70_000 } else { 0 };
    let ask = Ask::template(random.next(), padding);
    let answer = client.post("/v1/prediction/", &[], ask.body()).unwrap();
    let acknowledged = now();
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let path = format!("/v1/prediction/{}", answer.json()["predictionID"].as_str().unwrap());
    let end = eventually("it ends", || {
        let answer = client.get(&format!("{path}?wait=10")).unwrap();
        (answer.json()["status"] == "success").then_some(answer.body)
    });
    Seen { path, asked, acknowledged, end, ended: now() }
}

fn files_of(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().to_str().unwrap().to_owned()).collect()
}
