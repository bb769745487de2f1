//! Only the service's user can access the files that the service writes, regardless of the umask.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use serde_json::json;

use crate::support::eventually;
use crate::support::service::Setup;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

/// Returns every path below a folder that other users can access, and the total number of paths.
fn open_to_others(folder: &Path) -> (Vec<PathBuf>, usize) {
    let mut open = Vec::new();
    let mut seen = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(path) = folders.pop() {
        seen += 1;
        if mode(&path) & 0o077 != 0 {
            open.push(path.clone());
        }
        if path.is_dir() {
            folders.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    (open, seen)
}

#[test]
fn files_written_by_service_are_private() {
    // Child processes inherit the umask.
    rustix::process::umask(Mode::empty());
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    assert_eq!(mode(&data), 0o777, "the test starts from an open folder");
    let setup = Setup::new(folder.path(), &data, "");
    let service = setup.start();
    let key = setup.create_key();
    let mut client = setup.client(&key);
    let text = "The sky over the harbour is dark. ".repeat(4000);
    let body = json!({"model": "text-keywords", "version": "1", "input": {"text": text}});
    let made = client.post("/v1/prediction", &[], &body.to_string()).unwrap().json();
    let path = format!("/v1/prediction/{}", made["predictionID"].as_str().unwrap());
    eventually("its end", || {
        let status = client.get(&path).unwrap().json()["status"].clone();
        (status == "success").then_some(())
    });
    let form = "--b0\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nbytes\r\n--b0--\r\n";
    let form_type = [("Content-Type", "multipart/form-data; boundary=b0")];
    assert_eq!(client.post("/v1/files", &form_type, form).unwrap().status() / 100, 2);
    let backup = folder.path().join("one.backup");
    setup.run(&["backup", backup.to_str().unwrap()]);
    let (open, seen) = open_to_others(&data);
    assert_eq!(open, [""; 0].map(PathBuf::from), "of {seen}");
    assert!(seen > 12, "only {seen} files and folders");
    assert_eq!(mode(&backup), 0o600);
    service.kill();

    let elsewhere = folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    setup.run(&["restore", backup.to_str().unwrap(), "--into", elsewhere.to_str().unwrap()]);
    assert_eq!(open_to_others(&elsewhere).0, [""; 0].map(PathBuf::from), "a restored folder");

    // A copy or an older version may have left permissions open; the next start fixes them.
    for path in ["seal.key", "store", "store/conf", ""] {
        fs::set_permissions(data.join(path), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let _service = setup.start();
    assert_eq!(open_to_others(&data).0, [""; 0].map(PathBuf::from), "after the next start");
}
