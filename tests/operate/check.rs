//! `orrery check`: its findings before a start, and the user whose permissions the check uses.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};

use crate::support::service::Setup;

#[test]
fn check_uses_permissions_of_data_owner() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let open = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(folder.path(), open(0o755)).unwrap();
    let key = folder.path().join("key.pem");
    std::fs::write(&key, "").unwrap();
    std::fs::set_permissions(&key, open(0o600)).unwrap();
    let tls = format!("[tls]\nmode = 'files'\ncertificate = {key:?}\nprivate_key = {key:?}\n");
    let setup = Setup::new(folder.path(), &data, &tls);
    let is_root = std::fs::metadata(&data).unwrap().uid() == 0;
    if is_root {
        chown(&data, Some(65_534), Some(65_534)).unwrap();
    }
    let (is_good, found, _) = setup.try_run(&["check", "--json"]);
    assert!(!is_good);
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    let findings = found["findings"].as_array().unwrap();
    let of = |subject: &str| findings.iter().find(|found| found["subject"] == subject);
    // The check of an ordinary user finds that the certificate is empty; root's check finds that
    // the service's user cannot read it.
    let tls = of("tls").unwrap()["detail"].as_str().unwrap();
    assert_eq!(tls.to_lowercase().contains("permission denied"), is_root, "{tls}");
    assert_eq!(of("user").is_some(), is_root, "{found}");
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0, "a check makes nothing");
}
