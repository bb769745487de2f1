//! `orrery reload` and SIGHUP: the configuration changes that take effect immediately, and that an
//! invalid file changes nothing.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::service::Setup;
use crate::support::{eventually, signal};

/// Returns the configuration file in a setup's folder.
fn config_of(folder: &Path) -> PathBuf {
    let mut entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.extension().is_some_and(|end| end == "toml")).unwrap()
}

fn reloaded(setup: &Setup) -> (bool, Value) {
    let (is_good, printed, said) = setup.try_run(&["reload", "--json"]);
    (is_good, serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{printed}{said}")))
}

#[test]
fn reload_applies_changes_and_names_those_that_need_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let service = setup.start();
    let key = setup.create_key();
    let file = config_of(folder.path());
    let before = fs::read_to_string(&file).unwrap();
    let (is_good, nothing) = reloaded(&setup);
    assert!(is_good && nothing["applied"] == serde_json::json!([]), "{nothing}");
    assert_eq!(
        nothing["needs_restart"],
        serde_json::json!([]),
        "a relative --config changes nothing"
    );

    let more = "[log]\nlevel = 'debug'\n[cors]\nallow_origins = ['https://app.example']\n\
        [limits.rate]\nrequests_per_second = 1\nburst = 1\n[engine]\nactive = 17\n";
    fs::write(&file, format!("{before}{more}")).unwrap();
    let (is_good, changed) = reloaded(&setup);
    assert!(is_good, "{changed}");
    let names = |field: &str| changed[field].to_string();
    for section in ["log.level", "cors", "limits.rate"] {
        assert!(names("applied").contains(section), "{changed}");
    }
    assert_eq!(changed["needs_restart"], serde_json::json!(["engine"]));
    // The limit is one request per second and key.
    let mut client = setup.client(&key);
    let answers: Vec<u16> =
        (0..50).map(|_| client.get("/v2/executions").unwrap().status()).collect();
    assert!(answers.contains(&200) && answers.contains(&429), "{answers:?}");
    assert!(setup.log_since(0).contains("\"level\":\"DEBUG\""), "the level has not changed");

    // With an invalid file, the service keeps its previous configuration, and the command fails
    // with the location of the error.
    fs::write(&file, format!("{before}{more}[limit]\nx = 1\n")).unwrap();
    let said = setup.fail(&["reload"]);
    assert!(said.contains(":30:2: unknown key `limit`"), "{said}");
    fs::write(folder.path().join("models.d/broken.toml"), "slug = 1\n").unwrap();
    fs::write(&file, &before).unwrap();
    let (is_good, broken) = reloaded(&setup);
    assert!(!is_good && broken["kept"].to_string().contains("broken.toml"), "{broken}");
    assert!(broken["applied"].to_string().contains("limits.rate"), "{broken}");

    // SIGHUP does the same.
    fs::remove_file(folder.path().join("models.d/broken.toml")).unwrap();
    fs::write(&file, format!("{before}[cors]\nallow_origins = ['*']\n")).unwrap();
    assert!(signal(service.pid(), Signal::HUP));
    eventually("the log tells of the reload", || {
        setup.log_since(0).contains("\"applied\":\"cors\"").then_some(())
    });
}

#[test]
fn unreadable_models_folder_is_not_logged_as_an_invalid_manifest() {
    for (file, content, said) in [
        ("models.d", "not a folder", "the models folder cannot be read"),
        ("models.d/broken.toml", "slug = 1\n", "broken.toml:1:8: "),
        ("models.d/--.gguf", "GGUF", "its name contains no valid slug"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
        if file == "models.d" {
            fs::remove_dir(folder.path().join(file)).unwrap();
        }
        fs::write(folder.path().join(file), content).unwrap();
        drop(setup.start());
        let log = setup.log_since(0);
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(said)).collect();
        let [line] = lines.as_slice() else { panic!("{file}: {log}") };
        assert!(line.contains("failed to load models; the last valid state"), "{line}");
        assert!(line.contains("\"level\":\"WARN\"") && !line.contains("manifest;"), "{line}");
    }
}

#[test]
fn reload_without_service_fails_with_reason() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    assert!(setup.fail(&["reload"]).contains("no service answers in "));
}
