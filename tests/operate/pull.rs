//! `orrery model pull` against a hub on loopback: choices, digests, redirects, resumed, changed,
//! damaged and hostile downloads.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::stub::{Stub, respond};
use crate::support::eventually;
use crate::support::http::Message;
use crate::support::server::Gate;
use crate::support::service::Setup;

const COMMIT: &str = "0123456789012345678901234567890123456789";
const TOKEN: &str = "hf_secret";
/// A repository with a file of ten bytes.
const TEN: &[(&str, &[u8])] = &[("m.gguf", b"0123456789")];
/// A size that does not fit into the buffers of a connection.
const LARGE: usize = 32 * 1024 * 1024;

/// Returns the contents of a file, which depend on `seed`.
fn content(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

fn digest(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Answers a request for a file, with the range that the request states.
fn serve(request: &Message, out: &mut TcpStream, content: &[u8], etag: &str) {
    let range = request
        .header("range")
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let is_same = request.header("if-range").is_none_or(|known| known == etag);
    let total = content.len();
    match range.filter(|_| is_same) {
        Some(start) if start < total => {
            let range = format!("bytes {start}-{}/{total}", total - 1);
            let headers = [("ETag", etag), ("Content-Range", range.as_str())];
            respond(out, 206, &headers, &content[start..]);
        }
        Some(_) => {
            let range = format!("bytes */{total}");
            respond(out, 416, &[("ETag", etag), ("Content-Range", range.as_str())], b"");
        }
        None => respond(out, 200, &[("ETag", etag)], content),
    }
}

/// Returns the hub's answer about a repository.
fn listing(files: &[(&str, &[u8])]) -> String {
    let sibling = |(path, content): &(&str, &[u8])| {
        let (size, sha256) = (content.len(), digest(content));
        json!({"rfilename": path, "size": size, "lfs": {"sha256": sha256, "size": size}})
    };
    let siblings: Vec<Value> = files.iter().map(sibling).collect();
    json!({"id": "me/model", "sha": COMMIT, "siblings": siblings}).to_string()
}

/// Starts a hub with the repository `me/model`. Files come from the hub itself.
fn hub(files: &[(&'static str, Vec<u8>)]) -> Stub {
    let files = files.to_vec();
    Stub::start(move |request, out| {
        let path = request.second_word();
        let of_file = path.strip_prefix(&format!("/me/model/resolve/{COMMIT}/"));
        if path == "/api/models/me/model/revision/main?blobs=true" {
            let all: Vec<(&str, &[u8])> =
                files.iter().map(|(path, content)| (*path, content.as_slice())).collect();
            respond(out, 200, &[], listing(&all).as_bytes());
        } else if let Some((_, content)) = files.iter().find(|(path, _)| Some(*path) == of_file) {
            serve(request, out, content, "\"1\"");
        } else {
            respond(out, 404, &[], b"");
        }
    })
}

/// A folder with a configuration; the models folder is `models.d`.
struct Place {
    folder: TempDir,
    setup: Setup,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
        Self { folder, setup }
    }

    fn models(&self) -> PathBuf {
        self.folder.path().join("models.d")
    }

    /// Returns the names of the files in the models folder.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.models()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.models().join(name)).unwrap()
    }

    fn token(&self) -> String {
        let path = self.folder.path().join("token");
        fs::write(&path, format!("{TOKEN}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Pulls; returns whether it succeeded, and its output.
    fn pull(&self, arguments: &[&str]) -> (bool, String, String) {
        self.setup.try_run(&[&["model", "pull"][..], arguments].concat())
    }

    fn pulls(&self, arguments: &[&str]) -> (String, String) {
        let (is_good, printed, said) = self.pull(arguments);
        assert!(is_good, "{arguments:?}: {said}");
        (printed, said)
    }

    fn fails(&self, arguments: &[&str]) -> String {
        let (is_good, printed, said) = self.pull(arguments);
        assert!(!is_good, "{arguments:?}: {printed} {said}");
        said
    }

    /// Pulls until the server has sent half of the file, then kills the command.
    fn pull_half(&self, gate: &Gate, arguments: &[&str], part: &str) {
        let mut command = self.setup.command(&[&["model", "pull"][..], arguments].concat());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let part = self.models().join(part);
        eventually("half of the file is on the disk", || {
            let length = fs::metadata(&part).map_or(0, |data| data.len());
            (gate.held() == 1 && length >= LARGE as u64 / 2).then_some(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        gate.open();
    }
}

/// Serves one file at any path. The first response stops at half of the file until the gate opens;
/// later responses contain what the request asks for. `next` is the file and its version after the
/// first request.
fn interrupted(
    gate: &Gate,
    (first, etag): (Vec<u8>, &'static str),
    next: (Vec<u8>, &'static str),
) -> Stub {
    let gate = gate.clone();
    let count = AtomicU32::new(0);
    Stub::start(move |request, out| {
        if count.fetch_add(1, Ordering::SeqCst) > 0 {
            return serve(request, out, &next.0, next.1);
        }
        let length = first.len();
        let head = format!("HTTP/1.1 200 -\r\nETag: {etag}\r\nContent-Length: {length}\r\n\r\n");
        out.write_all(head.as_bytes()).unwrap();
        out.write_all(&first[..length / 2]).unwrap();
        gate.pass();
    })
}

#[test]
fn pull_takes_default_quantization_and_image_encoder() {
    let model = content(70_000, 1);
    let hub = hub(&[
        ("README.md", b"read me".to_vec()),
        ("m-Q8_0.gguf", content(90_000, 2)),
        ("m-Q4_K_M.gguf", model.clone()),
        ("mmproj-F16.gguf", content(10, 3)),
    ]);
    let place = Place::new();
    let arguments = ["hf:me/model", "--endpoint", &hub.url(""), "--json"];
    let (printed, _) = place.pulls(&arguments);
    let report: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(report["quantization"], "Q4_K_M");
    assert_eq!(report["files"][0]["sha256"], digest(&model));
    assert_eq!(report["files"][0]["verified"], true);
    assert_eq!(place.names(), ["m-Q4_K_M.gguf", "m-Q4_K_M.mmproj.gguf"]);
    assert_eq!(place.read("m-Q4_K_M.gguf"), model);
    // A second command verifies the files and downloads nothing.
    let before = hub.requests().len();
    let (_, said) = place.pulls(&arguments);
    assert!(said.contains("m-Q4_K_M.gguf is complete already"), "{said}");
    assert_eq!(hub.requests().len(), before + 1);
    // Another file with the same name stays.
    fs::write(place.models().join("m-Q4_K_M.gguf"), "mine").unwrap();
    let said = place.fails(&arguments);
    assert!(said.contains("exists already") && said.contains("--into"), "{said}");
    assert_eq!(place.read("m-Q4_K_M.gguf"), b"mine");
}

#[test]
fn pull_says_what_the_repository_has() {
    let hub = hub(&[("m-Q5_K_M.gguf", content(50, 1)), ("m-Q8_0.gguf", content(80, 2))]);
    let place = Place::new();
    let endpoint = ["--endpoint", &hub.url("")];
    let fails = |source: &str| place.fails(&[&[source][..], &endpoint].concat());
    let said = fails("hf:me/model:Q4_K_M");
    assert!(said.contains("me/model has no quantization Q4_K_M; it has Q5_K_M, Q8_0"), "{said}");
    let said = fails("hf:me/model:x.gguf");
    assert!(said.contains("no file x.gguf; it has m-Q5_K_M.gguf, m-Q8_0.gguf"), "{said}");
    let said = fails("hf:me/other");
    assert!(said.contains("/me/other does not exist (404 Not Found)"), "{said}");
    assert!(fails("me/model").contains("write hf:OWNER/REPO"));
    let (_, said) = place.pulls(&["hf:me/model", endpoint[0], endpoint[1]]);
    assert!(said.contains("has no Q4_K_M: taking Q5_K_M, the smallest above it"), "{said}");
}

#[test]
fn pull_puts_parts_into_their_own_folder() {
    let parts = [content(50, 1), content(60, 2)];
    let hub = hub(&[
        ("Q4/m-Q4_K_M-00001-of-00002.gguf", parts[0].clone()),
        ("Q4/m-Q4_K_M-00002-of-00002.gguf", parts[1].clone()),
    ]);
    let place = Place::new();
    let (printed, said) = place.pulls(&["hf:me/model", "--endpoint", &hub.url("")]);
    assert_eq!(printed.lines().count(), 2, "{printed}");
    assert!(said.contains("orrery model add llama-server --model"), "{said}");
    assert_eq!(place.names(), ["m-Q4_K_M"]);
    for (number, part) in parts.iter().enumerate() {
        let name = format!("m-Q4_K_M/m-Q4_K_M-0000{}-of-00002.gguf", number + 1);
        assert_eq!(&place.read(&name), part);
    }
    let more = ["--sha256", &digest(&parts[0])];
    let arguments = ["hf:me/model", "--endpoint", &hub.url("")];
    let said = place.fails(&[&arguments[..], &more].concat());
    assert!(said.contains("--sha256 is for one file"), "{said}");
}

#[test]
fn gated_repository_says_how_to_get_access() {
    let gated = Stub::start(|request, out| {
        let is_known = request.header("authorization") == Some(&*format!("Bearer {TOKEN}"));
        respond(out, if is_known { 403 } else { 401 }, &[], b"");
    });
    let place = Place::new();
    let said = place.fails(&["hf:me/model", "--endpoint", &gated.url("")]);
    assert!(said.contains("accept the model's terms") && said.contains("--token-file"), "{said}");
    let token = place.token();
    let said = place.fails(&["hf:me/model", "--endpoint", &gated.url(""), "--token-file", &token]);
    assert!(said.contains("refuses the token (403 Forbidden)"), "{said}");
    assert!(!said.contains(TOKEN), "{said}");
    // The hub lists the files of a gated repository for everybody.
    let listed = Stub::start(|request, out| {
        let is_list = request.second_word().starts_with("/api/");
        respond(out, if is_list { 200 } else { 401 }, &[], listing(TEN).as_bytes());
    });
    let said = place.fails(&["hf:me/model", "--endpoint", &listed.url("/")]);
    assert!(said.contains(&format!("{} is gated", listed.url("/me/model"))), "{said}");
}

#[test]
fn pull_never_writes_a_manifest() {
    let server = Stub::start(|_, out| respond(out, 200, &[], b"slug = 'a'\n"));
    let place = Place::new();
    let said = place.fails(&[&server.url("/a.TOML")]);
    assert!(said.contains("would be a manifest"), "{said}");
    assert!(place.names().is_empty());
}

#[test]
fn token_never_goes_to_another_host() {
    let model = content(1000, 1);
    let sent = model.clone();
    let store = Stub::start(move |request, out| serve(request, out, &sent, "\"1\""));
    let target = store.url("/signed?key=1");
    let listed = model.clone();
    let hub = Stub::start(move |request, out| {
        if request.second_word().starts_with("/api/") {
            let files = listing(&[("m.gguf", &listed[..])]);
            return respond(out, 200, &[], files.as_bytes());
        }
        respond(out, 302, &[("Location", target.as_str())], b"");
    });
    let place = Place::new();
    let token = place.token();
    place.pulls(&["hf:me/model", "--endpoint", &hub.url(""), "--token-file", &token]);
    assert_eq!(place.read("m.gguf"), model);
    let bearer = format!("Bearer {TOKEN}");
    let hub = hub.requests();
    assert_eq!(hub.len(), 2);
    assert!(hub.iter().all(|request| request.header("authorization") == Some(bearer.as_str())));
    assert!(store.requests().iter().all(|request| request.header("authorization").is_none()));
}

#[test]
fn redirects_obey_egress_rules() {
    let place = Place::new();
    for (target, part) in [
        ("http://169.254.169.254/m.gguf", "169.254.169.254 is not allowed"),
        ("file:///etc/passwd", "neither http nor https"),
    ] {
        let away = Stub::start(move |_, out| respond(out, 302, &[("Location", target)], b""));
        let said = place.fails(&[&away.url("/m.gguf")]);
        assert!(said.contains(part), "{said}");
    }
    let around = Stub::start(|_, out| respond(out, 302, &[("Location", "/m.gguf")], b""));
    let said = place.fails(&[&around.url("/m.gguf")]);
    assert!(said.contains("too many redirects"), "{said}");
}

#[test]
fn killed_pull_is_resumed() {
    let model = content(LARGE, 1);
    let gate = Gate::default();
    let server = interrupted(&gate, (model.clone(), "\"1\""), (model.clone(), "\"1\""));
    let place = Place::new();
    let url = server.url("/a/m.gguf");
    place.pull_half(&gate, &[&url], "m.gguf.part");
    let kept = fs::metadata(place.models().join("m.gguf.part")).unwrap().len();
    assert!(kept >= LARGE as u64 / 2);
    let (_, said) = place.pulls(&[&url]);
    assert!(said.contains("Resuming after"), "{said}");
    assert!(place.read("m.gguf") == model, "the contents differ");
    assert_eq!(place.names(), ["m.gguf"]);
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].header("range"), Some(&*format!("bytes={kept}-")));
    assert_eq!(requests[1].header("if-range"), Some("\"1\""));
}

#[test]
fn changed_file_starts_again() {
    let (old, new) = (content(LARGE, 1), content(LARGE / 2 + 5, 2));
    let gate = Gate::default();
    let server = interrupted(&gate, (old, "\"1\""), (new.clone(), "\"2\""));
    let place = Place::new();
    let url = server.url("/m.gguf");
    place.pull_half(&gate, &[&url], "m.gguf.part");
    let (_, said) = place.pulls(&[&url]);
    assert!(said.contains("The file has changed at its source"), "{said}");
    assert!(place.read("m.gguf") == new, "the contents differ");
}

#[test]
fn file_without_strong_validator_starts_again() {
    let (old, new) = (content(LARGE, 1), content(LARGE, 2));
    let gate = Gate::default();
    let server = interrupted(&gate, (old, "W/\"1\""), (new.clone(), "W/\"1\""));
    let place = Place::new();
    let url = server.url("/m.gguf");
    place.pull_half(&gate, &[&url], "m.gguf.part");
    place.pulls(&[&url]);
    assert!(place.read("m.gguf") == new, "the contents differ");
    assert_eq!(server.requests()[1].header("range"), None);
}

#[test]
fn broken_connection_is_resumed_by_the_same_command() {
    let model = content(200_000, 1);
    let sent = model.clone();
    let count = AtomicU32::new(0);
    let server = Stub::start(move |request, out| {
        // The first three answers end early.
        if count.fetch_add(1, Ordering::SeqCst) >= 3 {
            return serve(request, out, &sent, "\"1\"");
        }
        let start = request.header("range").map_or(0, |range| {
            range.trim_start_matches("bytes=").trim_end_matches('-').parse::<usize>().unwrap()
        });
        let (total, left) = (sent.len(), sent.len() - start);
        let head = match start {
            0 => "HTTP/1.1 200 -\r\n".to_owned(),
            _ => {
                format!("HTTP/1.1 206 -\r\nContent-Range: bytes {start}-{}/{total}\r\n", total - 1)
            }
        };
        let head = format!("{head}ETag: \"1\"\r\nContent-Length: {left}\r\n\r\n");
        out.write_all(head.as_bytes()).unwrap();
        out.write_all(&sent[start..start + 40_000]).unwrap();
    });
    let place = Place::new();
    place.pulls(&[&server.url("/m.gguf"), "--sha256", &digest(&model)]);
    assert!(place.read("m.gguf") == model, "the contents differ");
    assert_eq!(server.requests().len(), 4);
}

#[test]
fn wrong_digest_leaves_no_file() {
    let model = content(1000, 1);
    let right = STANDARD.encode(Sha256::digest(&model));
    let wrong = STANDARD.encode(Sha256::digest(b"other"));
    let server = Stub::start(move |request, out| {
        let stated = if request.second_word().contains("wrong") { &wrong } else { &right };
        let stated = format!("sha-256=:{stated}:");
        respond(out, 200, &[("Repr-Digest", stated.as_str())], &model);
    });
    let place = Place::new();
    let said = place.fails(&[&server.url("/wrong.gguf")]);
    assert!(said.contains("the SHA-256 of the download is"), "{said}");
    assert!(place.names().is_empty(), "{:?}", place.names());
    let said = place.fails(&[&server.url("/m.gguf"), "--sha256", &digest(b"other")]);
    assert!(said.contains("has another SHA-256"), "{said}");
    let (_, said) = place.pulls(&[&server.url("/m.gguf")]);
    assert!(!said.contains("was not verified"), "{said}");
}

#[test]
fn hostile_answers_are_refused() {
    let server = Stub::start(|request, out| match request.second_word() {
        "/short.gguf" => {
            let _closed = out.write_all(b"HTTP/1.1 200 -\r\nContent-Length: 1000\r\n\r\n");
        }
        "/page.gguf" => respond(out, 200, &[("Content-Type", "text/html")], b"<html>"),
        "/coded.gguf" => respond(out, 200, &[("Content-Encoding", "gzip")], b"x"),
        "/huge.gguf" => {
            let _closed = out.write_all(b"HTTP/1.1 200 -\r\nContent-Length: 9999999999999\r\n\r\n");
        }
        "/range.gguf" => respond(out, 206, &[("Content-Range", "bytes 5-9/10")], b"56789"),
        "/" => respond(out, 200, &[], b"x"),
        _ => respond(out, 500, &[], b""),
    });
    let place = Place::new();
    for (path, part) in [
        ("/short.gguf", "the connection broke"),
        ("/page.gguf", "is a web page, not a file"),
        ("/coded.gguf", "sends a compressed file"),
        ("/huge.gguf", "is larger than 1099511627776 bytes"),
        ("/range.gguf", "answers only a part"),
        ("/", "has no file name"),
        ("/x.gguf", "fails at the moment (500"),
    ] {
        let said = place.fails(&[&server.url(path)]);
        assert!(said.contains(part), "{path}: {said}");
    }
    let left = place.names().into_iter().filter(|name| !name.ends_with(".part"));
    assert_eq!(left.count(), 0, "{:?}", place.names());
}

#[test]
fn files_are_not_larger_than_announced() {
    // The hub states 10 bytes; the file never ends.
    let hub = Stub::start(|request, out| {
        if request.second_word().starts_with("/api/") {
            return respond(out, 200, &[], listing(TEN).as_bytes());
        }
        let _ended = out.write_all(b"HTTP/1.1 200 -\r\nTransfer-Encoding: chunked\r\n\r\n");
        while out.write_all(b"8\r\n01234567\r\n").is_ok() {}
    });
    let place = Place::new();
    let said = place.fails(&["hf:me/model", "--endpoint", &hub.url("")]);
    assert!(said.contains("the source sends more than 10 bytes"), "{said}");
    let lying = Stub::start(|request, out| {
        if request.second_word().starts_with("/api/") {
            return respond(out, 200, &[], listing(TEN).as_bytes());
        }
        respond(out, 200, &[], b"01234567");
    });
    let said = place.fails(&["hf:me/model", "--endpoint", &lying.url("")]);
    assert!(said.contains("has 8 bytes instead of 10"), "{said}");
}

#[test]
fn pull_leaves_the_reserve_of_the_disk() {
    let server = Stub::start(|_, out| respond(out, 200, &[], b"x"));
    let place = Place::new();
    let config = fs::read_to_string(place.setup.config()).unwrap();
    let config = config.replace("disk_reserve = \"64MiB\"", "disk_reserve = \"60TiB\"");
    fs::write(place.setup.config(), config).unwrap();
    let said = place.fails(&[&server.url("/m.gguf")]);
    assert!(said.contains("free bytes above its reserve"), "{said}");
}

#[test]
fn pull_reads_a_folder_instead_of_a_hub() {
    let place = Place::new();
    let hub = place.folder.path().join("hub");
    let put = |name: &str, content: &[u8]| {
        let path = hub.join("me/model").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    put("m-Q4_K_M.gguf", b"small");
    put("whisper/ggml-tiny.bin", b"tiny");
    place.pulls(&["hf:me/model", "--endpoint", "hub"]);
    assert_eq!(place.read("m-Q4_K_M.gguf"), b"small");
    let into = place.folder.path().join("elsewhere");
    let (printed, _) = place.pulls(&[
        "hf:me/model:ggml-tiny.bin",
        "--endpoint",
        &format!("file://{}", hub.display()),
        "--into",
        into.to_str().unwrap(),
        "--sha256",
        &digest(b"tiny"),
    ]);
    assert_eq!(Path::new(printed.trim()), into.join("ggml-tiny.bin"));
    assert_eq!(fs::read(into.join("ggml-tiny.bin")).unwrap(), b"tiny");
    let said = place.fails(&["hf:me/none", "--endpoint", "hub"]);
    assert!(said.contains("hub/me/none does not exist"), "{said}");
}
