//! `orrery config`, flags on top of a file, and the bootstrap key: what the first setting changes,
//! and what it leaves unchanged.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::support::eventually;
use crate::support::http::Client;
use crate::support::service::own_address;

/// The services of one folder, with their own address.
struct Place {
    folder: tempfile::TempDir,
    address: Ipv4Addr,
}

/// A service that is stopped at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), address: own_address() }
    }

    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("orrery-data/config.toml")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orrery"));
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        for variable in ["ORRERY_CONFIG", "ORRERY_BOOTSTRAP_KEY", "NOTIFY_SOCKET"] {
            command.env_remove(variable);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> String {
        let done = self.command(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", said(&done));
        String::from_utf8(done.stdout).unwrap()
    }

    fn fail(&self, arguments: &[&str]) -> String {
        let done = self.command(arguments).output().unwrap();
        assert_eq!(done.status.code(), Some(1), "{arguments:?}: {}", said(&done));
        said(&done)
    }

    /// Settings without which tests would share a port or need a large disk.
    fn own_settings(&self) -> [(String, String); 2] {
        [
            ("metrics.listen".to_owned(), format!("{}:9464", self.address)),
            ("limits.disk_reserve".to_owned(), "64MiB".to_owned()),
        ]
    }

    fn set_own(&self) {
        for (key, value) in self.own_settings() {
            self.run(&["config", "set", &key, &value]);
        }
    }

    /// Starts the service with flags that set its address.
    fn start_with_flags(&self, environment: &[(&str, &str)]) -> Running {
        let mut command = self.command(&["serve", "--listen", &self.address.to_string()]);
        for (key, value) in self.own_settings() {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        self.start(command.envs(environment.iter().copied()))
    }

    fn start(&self, command: &mut Command) -> Running {
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        let service = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut running = Running(service);
        eventually("the service answers", || {
            let ended = running.0.try_wait().unwrap();
            assert!(ended.is_none(), "{}", self.log());
            self.client("").get("/ready").ok().filter(|answer| answer.status() == 200).map(drop)
        });
        running
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn client(&self, key: &str) -> Client {
        Client::new(SocketAddr::from((self.address, 8080)), key)
    }

    fn accepts(&self, key: &str) -> bool {
        self.client(key).get("/v1/billing/balance").unwrap().status() != 401
    }

    /// Returns the value and the source of a key, as `config show` prints them.
    fn shown(&self, key: &str) -> (Value, String) {
        let rows: Value = serde_json::from_str(&self.run(&["config", "show", "--json"])).unwrap();
        let row = rows.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap();
        (row["value"].clone(), row["from"].as_str().unwrap().to_owned())
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn first_setting_keeps_data_keys_and_ports() {
    let place = Place::new();
    let service = place.start_with_flags(&[]);
    let key = place.run(&["key", "create", "--name", "kept"]).trim().to_owned();
    assert!(place.accepts(&key) && !place.accepts("smk_x"));
    let data = place.folder.path().canonicalize().unwrap().join("orrery-data");
    let data = Value::from(data.display().to_string());
    assert_eq!(place.shown("data_dir"), (data.clone(), "default".to_owned()));

    // The file sets only one key: everything else is as before.
    place.run(&["config", "set", "agent.model", "llama"]);
    assert_eq!(place.shown("agent.model"), ("llama".into(), "file".to_owned()));
    assert_eq!(place.shown("data_dir"), (data.clone(), "default".to_owned()));
    assert_eq!(place.shown("hosts.base.listen"), ("127.0.0.1:8080".into(), "default".to_owned()));
    assert_eq!(place.shown("compat.optional_version"), (true.into(), "default".to_owned()));
    drop(service);
    let service = place.start_with_flags(&[]);
    assert!(place.accepts(&key));
    fs::remove_file(place.file()).unwrap();

    // A file that contains all settings, so that the service needs no flags.
    let text = {
        place.run(&["config", "init"]);
        fs::read_to_string(place.file()).unwrap()
    };
    assert!(text.contains(&format!("listen = \"{}:8080\"", place.address)), "{text}");
    assert!(text.contains("\noptional_version = true\n"), "{text}");
    assert!(text.contains("\ndisk_reserve = \"2GiB\"\n"), "{text}");
    assert!(place.fail(&["config", "init"]).contains("`orrery config set KEY VALUE`"));
    place.set_own();
    let changed = fs::read_to_string(place.file()).unwrap();
    assert_eq!(changed.lines().count(), text.lines().count(), "comments and order are kept");
    drop(service);
    let _service = place.start(&mut place.command(&[]));
    assert!(place.accepts(&key));
    assert_eq!(place.shown("data_dir"), (data, "file".to_owned()));
    assert!(place.run(&["key", "list"]).contains("kept"));
    let check = place.run(&["check"]);
    assert!(check.contains("orrery-data/config.toml"), "{check}");
}

#[test]
fn setting_that_the_service_would_refuse_is_not_written() {
    let place = Place::new();
    let said = place.fail(&["config", "set", "agent.modle", "llama"]);
    assert!(said.contains("did you mean `model`?"), "{said}");
    assert!(!place.file().exists());
    let said = place.fail(&["serve", "--set", "limits.connections=0"]);
    assert!(said.contains("--set: `limits.connections`: expected a whole number"), "{said}");
    let checked = place.command(&["check", "--set", "log.level=loud"]).output().unwrap();
    assert_eq!(checked.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&checked.stdout).contains("--set: `log.level`"));
    // A secret makes the file private, and is never displayed.
    place.run(&["config", "set", "router.upstream_url", "https://models.example/v1"]);
    place.run(&["config", "set", "router.upstream_key", "sk-upstream"]);
    assert_eq!(fs::metadata(place.file()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(place.shown("router.upstream_key"), ("***".into(), "file".to_owned()));
    assert!(!place.run(&["config", "show"]).contains("sk-upstream"));
    fs::set_permissions(place.file(), fs::Permissions::from_mode(0o644)).unwrap();
    let checked = place.command(&["check"]).output().unwrap();
    let found = String::from_utf8_lossy(&checked.stdout);
    assert!(found.contains("can read the secret in"), "{found}");
}

#[test]
fn production_file_is_valid_and_sends_no_plain_secret() {
    let place = Place::new();
    place.run(&["--config", "box.toml", "config", "init", "--production"]);
    let text = fs::read_to_string(place.folder.path().join("box.toml")).unwrap();
    assert!(text.contains("\nsend_plain_secret = false\n"), "{text}");
    assert!(text.contains("data_dir = \"/var/lib/orrery\""), "{text}");
    let config = orrery_config::Config::load(Path::new(&place.folder.path().join("box.toml")));
    let config = config.unwrap();
    assert!(!config.webhooks.send_plain_secret && !config.compat.optional_version);
    assert_eq!(config.limits.disk_reserve, None, "it grows with the disk");
}

#[test]
fn bootstrap_key_is_made_once_and_never_again() {
    let place = Place::new();
    let key = "smk_0123456789abcdef0123456789ABCDEF";
    let mut short = place.command(&["serve"]);
    let refused = short.env("ORRERY_BOOTSTRAP_KEY", &key[..35]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("at least 32 characters"), "{}", said(&refused));
    assert!(!said(&refused).contains(&key[..35]), "the key is not printed");
    assert!(!place.folder.path().join("orrery-data").exists(), "nothing was made");

    let service = place.start_with_flags(&[("ORRERY_BOOTSTRAP_KEY", key)]);
    assert!(place.accepts(key));
    assert!(!place.log().contains(key));
    drop(service);
    let service = place.start_with_flags(&[("ORRERY_BOOTSTRAP_KEY", key)]);
    assert!(place.accepts(key));
    place.run(&["key", "delete", "bootstrap key"]);
    assert!(!place.accepts(key));
    drop(service);
    let file = place.folder.path().join("key");
    fs::write(&file, format!("{key}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(place.fail(&["serve", "--bootstrap-key-file", "key"]).contains("mode 0644"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let _service = place.start_with_flags(&[("ORRERY_BOOTSTRAP_KEY", key)]);
    assert!(!place.accepts(key), "it was deleted");
}
