//! `orrery serve`: starts logging and the service, and prints the welcome text on a terminal.
//!
//! The first API key and the dashboard setup link are created only if standard output is a
//! terminal; otherwise, they would end up in a log.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::first_run::{self, Welcome};
use super::{output, values};
use orrery_app::FirstStart;
use orrery_config::edit::Setting;
use orrery_config::secret::{self, replaceable_by_others};
use orrery_config::{Config, FIRST_PORT_MAX, Flags, Secret, Source, TlsMode};
use orrery_telemetry as telemetry;

/// Run the service
#[derive(Debug, Default, clap::Args)]
pub(super) struct Serve {
    /// Start even if payload or file folders are missing, and lift the limit on orphan cleanup for
    /// this start
    #[arg(long)]
    accept_loss: bool,
    /// Listen on this address, such as 0.0.0.0, instead of the configured one
    #[arg(long, value_name = "ADDRESS", value_parser = values::address)]
    listen: Option<IpAddr>,
    /// The port of the base host, instead of the configured one; the other hosts use the next four
    /// ports, the metrics the fifth
    #[arg(long, value_name = "PORT", value_parser = port)]
    port: Option<u16>,
    /// Serve all hosts on this address, such as 0.0.0.0:443, or, without a value, on the base
    /// host's address: base at /, the others below /workflows, /flows, /agent and /dashboard
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1)]
    one_port: Option<Option<SocketAddr>>,
    /// Set a key of the configuration for this start, such as agent.model=llama; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<Setting>,
    /// Create the API key in this file at the first start, for automation: smk_ and at least 32
    /// characters. The environment variable ORRERY_BOOTSTRAP_KEY can hold the key instead
    #[arg(long, value_name = "FILE")]
    bootstrap_key_file: Option<PathBuf>,
}

/// The environment variable with the bootstrap key.
const BOOTSTRAP_KEY: &str = "ORRERY_BOOTSTRAP_KEY";

impl Serve {
    /// Returns the configuration of the service. The flags override the file.
    ///
    /// # Errors
    /// Returns an error when the file, a flag or the bootstrap key is invalid.
    pub(super) fn configuration(&self, file: Option<&Path>) -> anyhow::Result<Config> {
        let flags = Flags { listen: self.listen, port: self.port, set: self.set.clone() };
        let mut source = Source { file: file.map(Path::to_path_buf), flags };
        if let Some(address) = self.one_port {
            let addresses = match address {
                Some(address) => vec![address],
                None => super::loaded(&source)?.hosts.base.listen,
            };
            let addresses: Vec<String> = addresses.iter().map(|one| format!("'{one}'")).collect();
            let value = format!("[{}]", addresses.join(", "));
            let setting = Setting::new("hosts.one_port", &value).map_err(anyhow::Error::msg)?;
            source.flags.set.push(setting);
        }
        let mut config = super::loaded(&source)?;
        if source.file.is_none()
            && let Some(found) = &config.file
        {
            refuse_foreign(found)?;
        }
        config.accept_loss = self.accept_loss;
        config.bootstrap_key = self.bootstrap_key()?;
        Ok(config)
    }

    fn bootstrap_key(&self) -> anyhow::Result<Option<Secret>> {
        if let Some(file) = &self.bootstrap_key_file {
            return secret::from_file(file).map(Some).map_err(anyhow::Error::msg);
        }
        Ok(std::env::var(BOOTSTRAP_KEY).ok().filter(|key| !key.is_empty()).map(Secret::from))
    }
}

/// Rejects a configuration file that was found rather than given, if other users can change the
/// file: a configuration can name programs that the service runs.
fn refuse_foreign(file: &Path) -> anyhow::Result<()> {
    match replaceable_by_others(file) {
        Some(reason) => anyhow::bail!("{reason}, or name it with --config {}", file.display()),
        None => Ok(()),
    }
}

/// Parses a port number that leaves enough higher ports for the other hosts.
fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| (1..=FIRST_PORT_MAX).contains(port));
    port.ok_or(format!("write a port from 1 to {FIRST_PORT_MAX}, such as 9000"))
}

pub(super) async fn run(config: Config) -> anyhow::Result<()> {
    refuse_unwritable(&config)?;
    telemetry::start_logs(&config.log)?;
    if !output::on_a_terminal() {
        return super::service::serve(config, false, |_nothing| {
            tracing::info!(
                "ready; `orrery key create --name NAME` creates a key; `orrery owner link` creates the link \
                 that sets up the dashboard"
            );
        })
        .await;
    }
    let greeted = config.clone();
    let greet = move |first| {
        // A failure to print the greeting is not an error: `orrery key create` creates keys.
        drop(output::raw(greeting(&greeted, &first).as_bytes()));
    };
    // Boxed, because the future holds the whole configuration.
    Box::pin(super::service::serve(config, true, greet)).await
}

/// Returns an error if there is no configuration file and the data folder cannot be created in the
/// current folder.
fn refuse_unwritable(config: &Config) -> anyhow::Result<()> {
    let Some(folder) = config.data_dir.parent().filter(|_| config.file.is_none()) else {
        return Ok(());
    };
    if config.data_dir.exists() {
        return Ok(());
    }
    match access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        Err(refused @ (Errno::ACCESS | Errno::ROFS)) => anyhow::bail!(unwritable(folder, refused)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn unwritable(folder: &Path, refused: Errno) -> String {
    let shown = folder.display();
    let reason = match refused {
        Errno::ROFS => format!("{shown} is on a read-only file system"),
        _ => format!("this user may not write to {shown}"),
    };
    format!(
        "{reason}: start the service in a folder that you may write to, where it creates \
         ./orrery-data, or set `data_dir` in a configuration file (--config FILE)"
    )
}

/// Returns the greeting for a terminal, with the key and the link that a first start has created.
fn greeting(config: &Config, first: &FirstStart) -> String {
    let metrics = config.metrics.listen.first().map(|address| format!("http://{address}/metrics"));
    let hosts = config.hosts.named().map(|(name, host)| (name, host.public_url.as_str()));
    let metrics = metrics.as_deref().map(|url| ("metrics", url));
    let hosts: Vec<(&str, &str)> = hosts.into_iter().chain(metrics).collect();
    let self_made = !matches!(config.tls.mode, TlsMode::Files { .. } | TlsMode::Acme(_))
        && config.hosts.base.public_url.starts_with("https:");
    let authority = output::short(&config.data_dir.join("tls").join("ca.pem"));
    first_run::render(&Welcome {
        version: env!("CARGO_PKG_VERSION"),
        hosts: &hosts,
        data_dir: &output::short(&config.data_dir),
        key: first.key.as_deref(),
        setup_link: first.setup_link.as_deref(),
        authority: self_made.then_some(authority.as_path()),
        disk: first.disk,
        in_colour: output::in_colour(&std::io::stdout()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serve_without_config_takes_address_and_base_port() {
        let asked = Serve {
            listen: Some(IpAddr::from([0, 0, 0, 0])),
            port: Some(9000),
            ..Serve::default()
        };
        let config = asked.configuration(None).unwrap();
        let listens: Vec<String> =
            config.hosts.named().iter().map(|(_, host)| host.listen[0].to_string()).collect();
        let expect =
            ["0.0.0.0:9000", "0.0.0.0:9001", "0.0.0.0:9002", "0.0.0.0:9003", "0.0.0.0:9004"];
        assert_eq!(listens, expect);
        assert_eq!(config.metrics.listen[0].to_string(), "127.0.0.1:9005");
        assert!(config.egress.allow.is_empty(), "loopback is for a service of this machine alone");
        assert_eq!(Serve::default().configuration(None).unwrap(), Config::defaults());
        assert_eq!(port("65530"), Ok(65_530));
        for wrong in ["0", "65531", "http"] {
            assert!(port(wrong).unwrap_err().contains("such as 9000"), "{wrong}");
        }
    }

    #[test]
    fn serve_takes_no_configuration_that_others_can_change() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        std::fs::write(&file, "").unwrap();
        assert!(refuse_foreign(&file).is_ok());
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(&file, open).unwrap();
        let refused = refuse_foreign(&file).unwrap_err().to_string();
        assert!(refused.contains("chmod o-w") && refused.contains("--config"), "{refused}");
    }

    #[test]
    fn serve_in_unwritable_folder_names_a_way_out() {
        let folder = Path::new("/usr/share");
        for (refused, expect) in [
            (Errno::ACCESS, "this user may not write to /usr/share: start"),
            (Errno::ROFS, "/usr/share is on a read-only file system: start"),
        ] {
            let said = unwritable(folder, refused);
            assert!(said.starts_with(expect) && said.contains("that you may write to"), "{said}");
        }
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::defaults();
        config.data_dir = folder.path().join("orrery-data");
        assert!(refuse_unwritable(&config).is_ok());
    }

    #[test]
    fn greeting_passes_cacert_only_for_self_signed_tls() {
        let mut config = Config::defaults();
        let first = FirstStart { key: Some("smk_X".to_owned()), ..FirstStart::default() };
        assert!(!greeting(&config, &first).contains("--cacert"));
        config.hosts.base.public_url = "https://box.lan:8443".to_owned();
        let text = greeting(&config, &first);
        assert!(
            text.contains("--cacert './orrery-data/tls/ca.pem' https://box.lan:8443"),
            "{text}"
        );
        config.tls.mode = TlsMode::Files { certificate: "c".into(), private_key: "k".into() };
        assert!(!greeting(&config, &first).contains("--cacert"));
    }
}
