//! The store that a command uses: only `serve` creates one, and the other commands report the store
//! that they found.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::service::Setup;

/// Runs the binary in a folder, without a configuration.
fn orrery(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orrery"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command.env_remove("ORRERY_CONFIG").env_remove("NOTIFY_SOCKET").output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn command_without_service_creates_no_store_and_names_searched_places() {
    // On a machine with an installed Orrery, the commands find the installed service.
    let is_installed = Path::new("/etc/orrery").exists() || Path::new("/var/lib/orrery").exists();
    let folder = tempfile::tempdir().unwrap();
    let commands: [&[&str]; 6] = [
        &["key", "list"],
        &["execution", "list"],
        &["chain", "show", "safe"],
        &["verify"],
        &["seal", "rotate"],
        &["compact"],
    ];
    for arguments in commands.into_iter().filter(|_| !is_installed) {
        let output = orrery(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = said(&output);
        assert!(said.contains("no service was found: there is no store in "), "{said}");
        assert!(said.contains("--config FILE or ORRERY_CONFIG"), "{said}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "something was made");
}

#[test]
fn command_with_config_creates_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let setup = Setup::new(folder.path(), &data, "");
    let commands: [&[&str]; 4] =
        [&["key", "create", "--name", "x"], &["key", "list"], &["compact"], &["seal", "rotate"]];
    for arguments in commands {
        let said = setup.fail(arguments);
        assert!(said.contains("there is no store in "), "{said}");
        assert!(said.contains("`orrery serve` creates it"), "{said}");
        assert!(!data.exists(), "{arguments:?} made a folder");
    }
}

#[test]
fn command_finds_store_of_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("orrery-data");
    let setup = Setup::new(folder.path(), &data, "");
    drop(setup.start());
    let made = orrery(folder.path(), &["key", "create", "--name", "found"]);
    assert!(made.status.success(), "{}", said(&made));
    let key = String::from_utf8(made.stdout).unwrap();
    assert!(key.starts_with("smk_") && key.lines().count() == 1, "{key}");
    assert!(made.stderr.is_empty(), "a script captures the key without a word beside it");
    assert!(setup.run(&["key", "list"]).contains("found"));
}

#[test]
fn verify_with_running_service_suggests_backup() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    let said = setup.fail(&["verify"]);
    assert!(
        said.contains("a service is running on ") && said.contains("orrery backup FILE"),
        "{said}"
    );
}

#[test]
fn invalid_argument_values_are_rejected_with_an_example() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, example) in [
        (&["key", "create", "--name", "n", "--expires", "tomorrow"][..], "30m, 12h or 90d"),
        (&["balance", "top-up", "--amount", "abc"], "such as 12.50"),
        (&["balance", "top-up", "--amount", "-5"], "such as 12.50"),
        (&["execution", "list", "--limit", "all"], "such as 20"),
        (&["serve", "--port", "http"], "such as 9000"),
        (&["serve", "--listen", "box.lan"], "0.0.0.0"),
    ] {
        let output = orrery(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(said(&output).contains(example), "{}", said(&output));
    }
}

#[test]
fn key_is_deleted_by_unique_name() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    for name in ["laptop", "twice", "twice"] {
        setup.run(&["key", "create", "--name", name]);
    }
    setup.run(&["key", "delete", "laptop"]);
    let listed: serde_json::Value =
        serde_json::from_str(&setup.run(&["--json", "key", "list"])).unwrap();
    let keys = listed["keys"].as_array().unwrap();
    assert!(keys.iter().all(|key| key["name"] != "laptop"), "{listed}");
    assert!(setup.fail(&["key", "delete", "laptop"]).contains("no key has the id or name laptop"));
    let said = setup.fail(&["key", "delete", "twice"]);
    let twice: Vec<&str> = keys
        .iter()
        .filter(|key| key["name"] == "twice")
        .map(|key| key["id"].as_str().unwrap())
        .collect();
    assert_eq!(twice.len(), 2, "{listed}");
    assert!(twice.iter().all(|id| said.contains(id)), "{said}");
}

#[test]
fn names_are_looked_up_verbatim() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    for name in ["a b", "a+b", "a/b", "a%20b", "a?b"] {
        for arguments in [&["org", "show", name][..], &["org", "limit", name, "--running", "1"]] {
            let said = setup.fail(arguments);
            assert!(said.contains(&format!("there is no organization {name}")), "{said}");
        }
        let said = setup.fail(&["chain", "show", name]);
        assert!(said.contains(&format!("there is no chain {name};")), "{said}");
    }
    for arguments in [&["org", "show", ""][..], &["org", "limit", "", "--running", "1"]] {
        assert!(setup.fail(arguments).contains("a name in the command is empty"), "{arguments:?}");
    }
    let entries = r#"[{"model": "text-keywords"}]"#;
    setup.run(&["chain", "create", "safe", "--model", "text-summary", "--entries", entries]);
    for (arguments, hint) in [
        (
            &["org", "show", "defualt"][..],
            "there is no organization defualt: did you mean default?",
        ),
        (&["chain", "show", "saef"], "there is no chain saef: did you mean safe?"),
        (&["model", "test", "text-sentimnt"], "model not found: did you mean text-sentiment?"),
        (&["model", "test", "sentiment"], "model not found: did you mean text-sentiment?"),
        (
            &["chain", "create", "new", "--model", "text-sumary", "--entries", "[]"],
            "there is no model text-sumary: did you mean text-summary?",
        ),
    ] {
        let said = setup.fail(arguments);
        assert!(said.contains(hint), "{said}");
    }
    let limits = setup.run(&["org", "limit", "default", "--storage", "10GB", "--json"]);
    assert!(limits.contains("10000000000"), "{limits}");
}

#[test]
fn start_that_cannot_listen_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let setup = Setup::new(folder.path(), &data, "");
    let taken = std::net::TcpListener::bind(setup.base()).unwrap();
    let said = setup.fail(&["serve"]);
    assert!(said.contains("listens there"), "{said}");
    assert!(!data.exists(), "a data folder was left behind");
    drop(taken);
    let pem = folder.path().join("server.pem");
    for content in [None, Some("not a certificate")] {
        if let Some(content) = content {
            std::fs::write(&pem, content).unwrap();
        }
        let files =
            "[tls]\nmode = 'files'\ncertificate = 'server.pem'\nprivate_key = 'server.pem'\n";
        let wrong = Setup::new(folder.path(), &data, files);
        let said = wrong.fail(&["serve"]);
        assert!(said.contains("server.pem"), "{said}");
        let causes = said.matches("No such file").count();
        assert_eq!(causes, usize::from(content.is_none()), "the cause is named once: {said}");
        assert!(!data.exists(), "a data folder was left behind");
    }
    let setup = Setup::new(folder.path(), &data, "");
    drop(setup.start());
    let _taken = std::net::TcpListener::bind(setup.base()).unwrap();
    setup.fail(&["serve"]);
    assert!(data.join("store").exists(), "the data of a service stays");
}

#[test]
fn backup_commands_explain_invalid_files() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    let said = setup.fail(&["backup", "missing/one.backup"]);
    assert!(said.contains("the folder missing does not exist: create it"), "{said}");
    std::fs::write(folder.path().join("notes.txt"), "not a backup").unwrap();
    for arguments in [&["verify", "notes.txt"][..], &["restore", "notes.txt", "--into", "new"]] {
        let said = setup.fail(arguments);
        assert!(said.contains("is it the right file?"), "{said}");
    }
    for (name, content) in [("empty", ""), ("short", "abc")] {
        std::fs::write(folder.path().join(name), content).unwrap();
        let said = setup.fail(&["verify", name]);
        assert!(said.contains("is it the right file?"), "{said}");
    }
    for (name, why) in [("gone.backup", "No such file"), ("data", "not a regular file")] {
        let said = setup.fail(&["verify", name]);
        assert!(said.contains(&format!("{name} cannot be read")) && said.contains(why), "{said}");
    }
}

#[test]
fn commands_that_need_a_stopped_service_report_only_that() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(folder.path(), &folder.path().join("data"), "");
    let _service = setup.start();
    for arguments in [&["compact"][..], &["seal", "rotate"], &["salvage", "--into", "rescued"]] {
        let said = setup.fail(arguments);
        assert!(said.contains("stop the service first") && !said.contains("backup"), "{said}");
    }
    assert!(!folder.path().join("rescued").exists(), "a refused command leaves nothing behind");
}
