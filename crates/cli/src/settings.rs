//! `orrery config`: writes the configuration file, shows the effective settings and their origin,
//! and changes one key.
//!
//! The command never writes a configuration that the service would reject. A file is replaced
//! atomically, so that a reader never sees a partial file. The file keeps its owner and
//! permissions.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Subcommand;
use hyper::Uri;
use rustix::fs::{Gid, Uid, fchown};
use rustix::process::{getegid, geteuid};
use serde_json::Value;

use super::output::{self, Column, Output};
use super::{Shape, check, place, unusable};
use orrery_config::edit::{self, Setting};
use orrery_config::{Config, FILE_BYTES_MAX, Flags, Source, explain, exposed, reader};
use orrery_wire::service::RunningService;

/// The first lines of a file that `config set` creates.
const HEAD: &str =
    "# Orrery's configuration, on top of the defaults. `orrery config show` lists all keys.\n";
/// The only setting whose value for production differs from the default. Receivers can verify the
/// signature of a webhook, so requests need not contain the secret itself.
const PRODUCTION: (&str, &str) = ("webhooks.send_plain_secret", "false");
/// Permission bits for users who are neither the owner nor in the group.
const OTHERS: u32 = 0o007;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Write the current settings to a configuration file that explains each key
    Init {
        /// Write the configuration for an installed service instead: on all networks, with TLS; to
        /// /etc/orrery/config.toml unless --config names another file
        #[arg(long)]
        production: bool,
    },
    /// Print each key with its value and where the value comes from; secrets are masked
    Show(Shape),
    /// Change one key of the configuration file, and keep its comments and order
    Set {
        /// The key, such as agent.model
        key: String,
        /// The value as in the file, such as true, 10 or ["a", "b"]; text needs no quotes
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
}

pub(super) async fn run(command: Command, file: Option<&Path>) -> anyhow::Result<()> {
    match command {
        Command::Init { production } => init(file, production).await,
        Command::Show(shape) => {
            show(&source(place::file_or_found(file)), &Output::new(shape.json)).await
        }
        Command::Set { key, value } => {
            let setting = Setting::new(&key, &value).map_err(anyhow::Error::msg)?;
            set(&source(place::file_or_found(file)), &setting).await
        }
    }
}

fn source(file: Option<PathBuf>) -> Source {
    Source { file, flags: Flags::default() }
}

async fn init(file: Option<&Path>, production: bool) -> anyhow::Result<()> {
    let installed = || Path::new(place::INSTALLED).to_path_buf();
    let named = file.map(Path::to_path_buf).or_else(|| production.then(installed));
    let target = source(named);
    let path = target.path();
    if path.exists() {
        let shown = output::short(&path);
        bail!(
            "{} exists: `orrery config set KEY VALUE` changes one key of the file",
            shown.display()
        );
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let text = if production {
        let setting = Setting::new(PRODUCTION.0, PRODUCTION.1).map_err(anyhow::Error::msg)?;
        explain::file(&Config::for_installed(), folder, &[setting])
    } else {
        explain::file(&current().await?, folder, &[])
    };
    let text = text.map_err(anyhow::Error::msg)?;
    refuse_faults(&target, "", &text)?;
    write(&path, &text)?;
    let shown = output::short(&path);
    let shown = shown.display();
    output::note(&match file.is_some() || production {
        true => format!("{shown} is written. `orrery --config {shown} serve` uses it."),
        false => {
            format!("{shown} is written. `orrery` in this folder uses it from its next start.")
        }
    });
    Ok(())
}

/// Returns the effective configuration of a service in the current folder that has no configuration
/// file, with the addresses of the running service, if any.
async fn current() -> anyhow::Result<Config> {
    let config = Config::defaults();
    let running = check::running(&config).await;
    let Some(flags) = running.as_ref().and_then(addresses) else { return Ok(config) };
    let source = Source { file: None, flags };
    source.load().map_err(|faults| unusable(&source, &faults))
}

/// Returns flags that make a service listen on the same addresses as the running one.
fn addresses(running: &RunningService) -> Option<Flags> {
    let base = running.listening.iter().find(|host| host.host == "base")?;
    let url: Uri = base.url.parse().ok()?;
    let host = url.host()?.trim_matches(['[', ']']);
    // If the host is a name and not an address, the service listens on all addresses and uses the
    // machine's name in its URLs.
    let listen = host.parse().unwrap_or(IpAddr::from([0, 0, 0, 0]));
    Some(Flags { listen: Some(listen), port: url.port_u16(), set: Vec::new() })
}

async fn show(source: &Source, output: &Output) -> anyhow::Result<()> {
    let (config, rows) = explain::rows(source).map_err(|faults| unusable(source, &faults))?;
    let cells = rows.iter().map(|row| {
        let value = match &row.value {
            Value::Null => "off".to_owned(),
            Value::String(text) => text.clone(),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                row.value.to_string()
            }
        };
        vec![row.key.clone(), value, row.from.as_str().to_owned()]
    });
    let columns = [Column::Text("KEY"), Column::Text("VALUE"), Column::Text("FROM")];
    output.show(&rows, &columns, cells)?;
    if let Some(file) = &config.file {
        output::note(&format!("The file is {}.", output::short(file).display()));
    }
    note_other_file(&config).await;
    Ok(())
}

async fn set(source: &Source, setting: &Setting) -> anyhow::Result<()> {
    let after = change(source, setting)?;
    output::note(&format!(
        "{} is changed. `orrery reload` applies the change to a running service, or reports that it \
         needs a restart.",
        output::short(&source.path()).display()
    ));
    if let Some(key) = exposed::first_secret(&after) {
        output::note(&format!(
            "The file contains the secret `{key}`. \"${{file:PATH}}\" reads a secret from another \
             file."
        ));
    }
    let (config, _faults) = source.examine();
    note_other_file(&config).await;
    Ok(())
}

/// Changes one key of the file, and returns the new text.
fn change(source: &Source, setting: &Setting) -> anyhow::Result<String> {
    let path = source.path();
    let before = match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => HEAD.to_owned(),
        _ => reader::read_file(&path, FILE_BYTES_MAX).map_err(anyhow::Error::msg)?,
    };
    let after = edit::set(&before, setting).map_err(anyhow::Error::msg)?;
    refuse_faults(source, &before, &after)?;
    write(&path, &after)?;
    Ok(after)
}

/// Returns an error if the service would reject the configuration `after`.
fn refuse_faults(source: &Source, before: &str, after: &str) -> anyhow::Result<()> {
    let faults = source.check(after);
    if faults.is_empty() {
        return Ok(());
    }
    let earlier = source.check(before);
    if !earlier.is_empty() {
        return Err(unusable(source, &earlier).context("nothing was changed"));
    }
    // Leave out the line numbers, because they refer to the changed text, which was not written.
    let faults: Vec<String> = faults.into_iter().map(|fault| fault.message).collect();
    bail!("{}; nothing was changed", faults.join("\n  "))
}

/// Prints a note if the service running on the configured data folder uses another configuration
/// file.
async fn note_other_file(config: &Config) {
    let running = check::running(config).await;
    if let Some(finding) = running.and_then(|running| check::other_file(config, running)) {
        output::note(&finding.detail);
    }
}

/// Replaces the file at `path`, or creates it.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let failed = || format!("{} cannot be written", path.display());
    let path = fs::canonicalize(path).unwrap_or_else(|_new| path.to_path_buf());
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).with_context(failed)?;
    let place = fs::metadata(folder).with_context(failed)?;
    let before = fs::metadata(&path).ok();
    let (uid, gid) =
        before.as_ref().map_or((place.uid(), place.gid()), |own| (own.uid(), own.gid()));
    // If only the owner and the group may open the folder, the file is private, too.
    let new = if place.mode() & OTHERS == 0 { 0o600 } else { 0o644 };
    let mut mode = before.map_or(new, |before| before.mode() & 0o777);
    if exposed::first_secret(text).is_some() && mode & OTHERS != 0 {
        // If the file belongs to another group, the service may have access to the file through
        // that group.
        mode = if gid == getegid().as_raw() { 0o600 } else { 0o640 };
    }
    let mut file =
        tempfile::Builder::new().prefix(".config-").tempfile_in(folder).with_context(failed)?;
    file.write_all(text.as_bytes()).with_context(failed)?;
    if geteuid().is_root() {
        fchown(file.as_file(), Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
            .with_context(failed)?;
    }
    file.as_file().set_permissions(fs::Permissions::from_mode(mode)).with_context(failed)?;
    file.as_file().sync_all().with_context(failed)?;
    file.persist(&path).map_err(|error| error.error).with_context(failed)?;
    File::open(folder).and_then(|folder| folder.sync_all()).with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_wire::service::Listening;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn set_changes_a_key_or_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join("config.toml");
        let source = Source::of_file(&path);
        let change =
            |key: &str, value: &str| super::change(&source, &Setting::new(key, value).unwrap());
        change("agent.model", "llama").unwrap();
        let text = format!("{HEAD}\n[agent]\nmodel = \"llama\"\n");
        assert_eq!((fs::read_to_string(&path).unwrap(), mode(&path)), (text.clone(), 0o644));
        for (key, value, expect) in [
            ("agent.modle", "x", "did you mean `model`?"),
            ("limits.connections", "many", "a whole number from 1 to 1000000, found \"many\""),
            ("hosts.flows.listen", "0.0.0.0:8443", "listen on one address"),
        ] {
            let error = change(key, value).unwrap_err().to_string();
            assert!(error.contains(expect) && error.contains("nothing was changed"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        change("router.upstream_url", "https://m.example/v1").unwrap();
        assert_eq!(mode(&path), 0o644);
        change("router.upstream_key", "sk-x").unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
        fs::write(&path, "[log]\nlevel = 1\n").unwrap();
        let error = format!("{:#}", change("log.access", "true").unwrap_err());
        assert!(error.contains("config.toml:2:9: `log.level`"), "{error}");
    }

    #[test]
    fn write_follows_a_link_and_keeps_the_mode() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "a = 1").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, "key = \"sk-x\"").unwrap();
        assert!(link.is_symlink());
        assert_eq!(
            (fs::read_to_string(&file).unwrap().as_str(), mode(&file)),
            ("key = \"sk-x\"", 0o640)
        );
    }

    #[test]
    fn addresses_of_running_service_are_kept() {
        for (url, listen, port) in [
            ("http://127.0.0.1:9000", "127.0.0.1", Some(9000)),
            ("http://[::1]:9000", "::1", Some(9000)),
            ("https://box.lan:8443", "0.0.0.0", Some(8443)),
        ] {
            let base = Listening { host: "base".to_owned(), url: url.to_owned() };
            let running = RunningService { pid: 1, file: None, listening: vec![base] };
            let flags = addresses(&running).unwrap();
            assert_eq!((flags.listen, flags.port), (Some(listen.parse().unwrap()), port), "{url}");
        }
    }
}
