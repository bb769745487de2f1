//! Tests of the complete report for a configuration on disk.

use super::*;

#[test]
fn check_broken_config_does_not_stop_other_checks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, "data_dir = \"data\"\nlimit = 3\n[log]\nlevel = \"loud\"\n").unwrap();
    let (config, findings) = configuration(&Source::of_file(&path));
    assert_eq!(config.data_dir, folder.path().join("data"));
    let faults: Vec<&str> = findings.iter().map(|finding| finding.detail.as_str()).collect();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].starts_with(&format!("{}:2:1: unknown key `limit`", path.display())));
}
