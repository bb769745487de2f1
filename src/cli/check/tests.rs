//! The whole report, from a configuration on disk.

use super::*;

#[test]
fn check_broken_config_does_not_stop_other_checks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, "data_dir = \"data\"\nlimit = 3\n[log]\nlevel = \"loud\"\n").unwrap();
    let (config, findings) = configuration(Some(&path));
    assert_eq!(config.data_dir, folder.path().join("data"));
    let faults: Vec<&str> = findings.iter().map(|finding| finding.detail.as_str()).collect();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].starts_with(&format!("{}:2:1: unknown key `limit`", path.display())));
}

#[test]
fn check_warns_about_plain_http_on_a_network() {
    let mut config = Config::defaults();
    let now = Timestamp::from_micros(0);
    assert_eq!(tls(&config, now)[0].verdict, Verdict::Good);
    config.tls.mode = TlsMode::Off;
    assert_eq!(tls(&config, now)[0].verdict, Verdict::Good);
    config.hosts.agent.listen = vec!["0.0.0.0:8446".parse().unwrap()];
    let found = tls(&config, now).remove(0);
    assert_eq!(found.verdict, Verdict::Warning);
    assert!(found.detail.contains("0.0.0.0:8446"), "{}", found.detail);
}

#[test]
fn check_accepts_missing_models_folder() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(manifests(&folder.path().join("models.d"))[0].verdict, Verdict::Good);
    assert!(manifests(folder.path())[0].detail.contains("0 of 0"));
}
