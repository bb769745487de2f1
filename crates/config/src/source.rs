//! The sources of a configuration: a file overrides the defaults, and flags override the file.
//!
//! Without `--config`, the service reads [`LOCAL_FILE`], if that file exists. Keys that
//! [`LOCAL_FILE`] omits have the same defaults as without a file, so that adding the file changes
//! neither the data folder nor the ports. Keys that a file named by `--config` omits have the
//! defaults of an installed service.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::edit::{self, Setting};
use super::reader::{Known, read_file};
use super::sections::{self, Defaults};
use super::{Config, Error, FILE_BYTES_MAX, absolute, secret};

/// The configuration of a service that is started without `--config`, relative to its working
/// folder.
pub const LOCAL_FILE: &str = "orrery-data/config.toml";

/// How a configuration is read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// The file named by `--config`; with `None`, the service reads [`LOCAL_FILE`], if that file
    /// exists.
    pub file: Option<PathBuf>,
    pub flags: Flags,
}

/// The command-line settings, which override the settings in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// The address of every host.
    pub listen: Option<IpAddr>,
    /// The port of the base host. The ports of the other hosts and the metrics port follow this
    /// port.
    pub port: Option<u16>,
    /// Further settings, which override `listen` and `port`.
    pub set: Vec<Setting>,
}

/// The text of a file with the flags applied, and the configuration that was read from it.
pub(super) struct Read {
    pub(super) config: Config,
    pub(super) errors: Vec<Error>,
    pub(super) known: Vec<Known>,
    /// The file's text.
    pub(super) written: String,
    /// The file's text with the flags applied.
    pub(super) text: String,
    /// The keys that the flags set.
    pub(super) flagged: Vec<String>,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) =
            text.split_once('=').ok_or("write KEY=VALUE, such as log.level=debug")?;
        Self::new(key.trim(), value)
    }
}

impl fmt::Debug for Setting {
    /// Omits the value, which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Setting({})", self.key())
    }
}

impl Source {
    /// Returns the source of a service whose configuration is the file at `path`.
    #[must_use]
    pub fn of_file(path: &Path) -> Self {
        Self { file: Some(path.to_path_buf()), flags: Flags::default() }
    }

    /// Returns the file that is read: the file named by `--config`, or [`LOCAL_FILE`].
    #[must_use]
    pub fn path(&self) -> PathBuf {
        absolute(self.file.as_deref().unwrap_or(Path::new(LOCAL_FILE)))
    }

    /// Returns whether the file is [`LOCAL_FILE`]. The defaults for this file must not depend on
    /// whether `--config` names it.
    fn is_local(&self) -> bool {
        self.path() == absolute(Path::new(LOCAL_FILE))
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// All errors in the file, in line order. If there are none, all errors in the flags.
    pub fn load(&self) -> Result<Config, Vec<Error>> {
        let (config, errors) = self.examine();
        if errors.is_empty() { Ok(config) } else { Err(errors) }
    }

    /// Reads the configuration as far as possible; defaults replace invalid values. This function
    /// is for `orrery check`, which continues after errors. The service must not run with a
    /// configuration that has errors.
    #[must_use]
    pub fn examine(&self) -> (Config, Vec<Error>) {
        let read = self.read();
        (read.config, read.errors)
    }

    /// Checks `text` as the text of this file, without the flags.
    #[must_use]
    pub fn check(&self, text: &str) -> Vec<Error> {
        let (_config, errors, _known) = sections::read(text, &self.folder(), &self.defaults());
        errors
    }

    pub(super) fn read(&self) -> Read {
        let path = self.path();
        let mut errors = Vec::new();
        let is_there = self.file.is_some() || path.exists();
        let mut written = String::new();
        if is_there {
            secret::hide_from_programs(&path);
            match read_file(&path, FILE_BYTES_MAX) {
                Ok(text) => written = text,
                Err(message) => errors.push(Error { line: 0, column: 0, message }),
            }
        }
        let (mut config, more, known) = sections::read(&written, &self.folder(), &self.defaults());
        errors.extend(more);
        let mut read =
            Read { text: written.clone(), flagged: Vec::new(), config, errors, known, written };
        if read.errors.is_empty() {
            self.apply_flags(&mut read);
        }
        config = read.config;
        config.file = is_there.then_some(path);
        config.source = self.clone();
        Read { config, ..read }
    }

    /// Returns the folder against which relative paths are resolved, whether or not the file
    /// exists.
    fn folder(&self) -> PathBuf {
        self.path().parent().map(Path::to_path_buf).unwrap_or_default()
    }

    fn defaults(&self) -> Defaults {
        let defaults = match self.is_local() {
            true => Defaults::without_a_file(),
            false => Defaults::with_a_file(),
        };
        defaults.listening_on(self.flags.listen, self.flags.port)
    }

    /// Applies the flags to a text without errors.
    fn apply_flags(&self, read: &mut Read) {
        let moved = self.flags.moved(&read.config, &read.text);
        let mut errors = Vec::new();
        for setting in moved.iter().chain(&self.flags.set) {
            match edit::set(&read.text, setting) {
                Ok(text) => read.text = text,
                Err(message) => errors.push(message),
            }
            read.flagged.push(setting.key().to_owned());
        }
        if !read.flagged.is_empty() {
            let (config, more, _) = sections::read(&read.text, &self.folder(), &self.defaults());
            read.config = config;
            errors.extend(more.into_iter().map(|error| error.message));
        }
        let flag = if self.flags.set.is_empty() { "--listen, --port" } else { "--set" };
        let of_flags =
            |message| Error { line: 0, column: 0, message: format!("{flag}: {message}") };
        read.errors.extend(errors.into_iter().map(of_flags));
    }
}

impl Flags {
    /// Returns the addresses that the file sets, changed according to `--listen` and `--port`. For
    /// other addresses, the changed defaults apply.
    fn moved(&self, config: &Config, text: &str) -> Vec<Setting> {
        let hosts = config.hosts.named().into_iter().zip(0..);
        let hosts = hosts.map(|((name, host), offset)| {
            let port = self.port.map(|port| port.saturating_add(offset));
            (format!("hosts.{name}.listen"), &host.listen, self.listen, port)
        });
        let port = self.port.map(sections::metrics_port);
        let metrics = ("metrics.listen".to_owned(), &config.metrics.listen, None, port);
        let written = hosts.chain([metrics]).filter(|(key, _, address, port)| {
            (address.is_some() || port.is_some()) && edit::has(text, key)
        });
        let settings = written.filter_map(|(key, listen, address, port)| {
            let moved = listen.iter().map(|from| {
                SocketAddr::new(address.unwrap_or(from.ip()), port.unwrap_or(from.port()))
            });
            let mut moved: Vec<String> = moved.map(|address| format!("\"{address}\"")).collect();
            moved.dedup();
            Setting::new(&key, &format!("[{}]", moved.join(", "))).ok()
        });
        settings.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn source(text: &str, flags: Flags) -> (tempfile::TempDir, Source) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        fs::write(&file, text).unwrap();
        (folder, Source { file: Some(file), flags })
    }

    fn set(settings: &[&str]) -> Flags {
        let set = settings.iter().map(|one| one.parse().unwrap()).collect();
        Flags { set, ..Flags::default() }
    }

    #[test]
    fn flags_override_file() {
        let text = "[log]\nlevel = \"warn\" # quiet\naccess = true\n";
        let flags = ["log.level=debug", "agent.model=llama", "limits.rate.burst=7"];
        let flags = [&flags[..], &["limits.rate.requests_per_second=5"]].concat();
        let (_folder, source) = source(text, set(&flags));
        let config = source.load().unwrap();
        assert_eq!((config.log.level.as_str(), config.log.access), ("debug", true));
        assert_eq!(config.agent.model.as_deref(), Some("llama"));
        assert_eq!(config.limits.rate.unwrap().burst.get(), 7);
        assert_eq!(config.file, source.file);
        assert_eq!(config.source.load().unwrap(), config, "a reload keeps the flags");
    }

    #[test]
    fn address_flags_move_addresses_of_file_and_of_defaults() {
        let text =
            "[hosts.base]\nlisten = [\"10.0.0.1:1\", \"10.0.0.2:1\"]\n[metrics]\nlisten = []\n";
        let port = Flags { port: Some(9000), ..Flags::default() };
        let (_folder, moved) = source(text, port);
        let config = moved.load().unwrap();
        let base: Vec<String> = config.hosts.base.listen.iter().map(ToString::to_string).collect();
        assert_eq!(base, ["10.0.0.1:9000", "10.0.0.2:9000"]);
        assert_eq!(config.hosts.dashboard.listen[0].to_string(), "0.0.0.0:9004");
        assert!(config.metrics.listen.is_empty(), "off stays off");
        let flags = Flags { listen: Some(IpAddr::from([127, 0, 0, 1])), ..Flags::default() };
        let (_folder, moved) = source(text, Flags { set: set(&["log.access=true"]).set, ..flags });
        let config = moved.load().unwrap();
        assert_eq!(config.hosts.base.listen, ["127.0.0.1:1".parse().unwrap()]);
        assert_eq!(config.hosts.flows.public_url, "http://127.0.0.1:8445");
    }

    #[test]
    fn faults_of_flags_have_no_place_in_the_file() {
        for (flag, expect) in [
            ("agent.modle=x", "--set: unknown key `agent.modle`; did you mean `model`?"),
            ("limits.connections=many", "--set: `limits.connections`: expected a whole number"),
            ("hosts.flows.listen=0.0.0.0:8443", "listen on one address"),
            ("log=1", "--set: `log`: expected a table"),
            ("data_dir.x=1", "--set: data_dir.x: `data_dir` is not a table"),
        ] {
            let (_folder, source) = source("data_dir = 'x'\n", set(&[flag]));
            let errors = source.load().unwrap_err();
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert!(said.iter().any(|one| one.contains(expect)), "{flag}: {said:?}");
            assert!(errors.iter().all(|error| error.line == 0), "{flag}: {said:?}");
        }
        let (_folder, source) = source("[log]\nlevel = 1\n", set(&["log.level=info"]));
        assert_eq!(source.load().unwrap_err()[0].line, 2, "the file must be valid by itself");
        assert!("log.level".parse::<Setting>().unwrap_err().contains("KEY=VALUE"));
    }

    #[test]
    fn setting_is_never_printed_with_its_value() {
        let flags = set(&["router.upstream_key=sk-secret"]);
        assert_eq!(format!("{:?}", flags.set), "[Setting(router.upstream_key)]");
    }
}
