//! Checks the machine, the data folder and the backups without opening the store: for `orrery
//! check` before a start, for `orrery doctor`, and for the dashboard. The checks are read-only,
//! except for temporary files.

mod backup;
mod disk;
mod folders;
mod host;
mod models;
mod secrets;
mod tls;

use std::path::{Path, PathBuf};

use url::Url;

use super::rotation;
use orrery_api::{Doctor, Finding, Listening, RunningService};
use orrery_config::{Config, McpTransport, TlsMode, UpstreamKind, exposed, values};
use orrery_domain::time::Timestamp;
use orrery_runners::command;

pub use self::disk::is_in_memory;
pub use self::folders::free_bytes;
pub use self::models::check as check_manifest;

/// Creates the doctor of a service with this configuration.
pub(crate) fn of(config: &Config) -> Doctor {
    let config = config.clone();
    let private = private(&config);
    let hosts = hosts(&config);
    let read = backup::Read::default();
    let late_backup = backup::late(&config.backup);
    let metrics = config.metrics.listen.iter().map(|address| Listening {
        host: "metrics".to_owned(),
        url: format!("http://{address}/metrics"),
    });
    let started = RunningService {
        pid: std::process::id(),
        file: config.file.clone(),
        listening: metrics.collect(),
    };
    Doctor::new(move |now| findings(&config, now, &read), late_backup, private, hosts, started)
}

/// Returns all findings that need neither the store nor a running service.
#[must_use]
pub fn without_store(config: &Config, now: Timestamp) -> Vec<Finding> {
    findings(config, now, &backup::Read::default())
}

/// Returns the findings that can be determined before a start, for `orrery check`.
#[must_use]
pub fn settled(config: &Config, now: Timestamp) -> Vec<Finding> {
    let mut found = folders::findings(config);
    found.extend(exposed(config).map(|warning| secrets::exposed(&warning)));
    found.extend(upstreams_without_path(config));
    found.extend(missing_programs(config));
    found.push(host::sandbox());
    found.push(host::language_models());
    found.extend(host::graphics());
    found.extend(models::findings(&config.models_dir, &crate::server_groups(config)));
    found.extend(models::unknown_names(config));
    found.extend(tls::findings(config, now));
    found.extend(backup::encryption(&config.backup));
    if rotation::is_under_way(&config.data_dir) {
        let finding = Finding::warning("seal", rotation::UNDER_WAY).about("rotation");
        found.push(finding.mended_by("orrery seal rotate"));
    }
    found
}

/// Warns about URLs of upstreams without a path, because most servers have their API under `/v1`.
fn upstreams_without_path(config: &Config) -> impl Iterator<Item = Finding> {
    let others = config.router.upstreams.iter();
    let others = others.filter(|one| !matches!(one.kind, UpstreamKind::Azure { .. }));
    others.filter_map(|upstream| {
        let (detail, meant) = values::without_path(&upstream.url)?;
        let finding = Finding::warning("upstream", format!("{} {detail}", upstream.setting()));
        let key = if upstream.name.is_empty() { "upstream_url" } else { "url" };
        Some(finding.mended_by(format!("{key} = \"{meant}\"")))
    })
}

/// Warns about configured programs that do not exist.
fn missing_programs(config: &Config) -> Vec<Finding> {
    let servers = config.agent.mcp_servers.iter().filter_map(|server| match &server.transport {
        McpTransport::Program { command, directory, .. } => {
            let missing = command::missing(command, directory)?;
            Some(format!("the server '{}' of agent.mcp_servers: {missing}", server.name))
        }
        McpTransport::Http { .. } => None,
    });
    // The service starts the program with `/` as its working directory.
    let after = command::missing(&config.backup.after, Path::new("/"));
    let after = after.map(|missing| format!("backup.after: {missing}"));
    let finding = |detail: String| Finding::warning("program", detail.as_str()).about(detail);
    servers.chain(after).map(finding).collect()
}

/// Warns about secrets in the configuration and the manifests that other users can read.
pub(crate) fn exposed(config: &Config) -> impl Iterator<Item = String> {
    let manifests = models::manifest_files(&config.models_dir).unwrap_or_default();
    let files: Vec<PathBuf> = config.file.iter().cloned().chain(manifests).collect();
    files.into_iter().filter_map(|file| exposed::warning(&file))
}

fn findings(config: &Config, now: Timestamp, read: &backup::Read) -> Vec<Finding> {
    let mut found = settled(config, now);
    found.extend(disk::findings(&config.data_dir));
    found.extend(host::findings());
    found.extend(secrets::findings(&config.data_dir));
    found.push(backup::age(&config.backup, now));
    found.extend(read.newest(&config.backup));
    found
}

/// Returns the paths that findings may contain, with their replacements for members of
/// organizations.
fn private(config: &Config) -> Vec<(String, &'static str)> {
    let file = config.file.as_deref().unwrap_or(Path::new(""));
    let mut private = vec![
        (config.backup.folder.display().to_string(), "the backup folder"),
        (config.data_dir.display().to_string(), "the data folder"),
        (config.models_dir.display().to_string(), "the models folder"),
        (file.display().to_string(), "the configuration"),
    ];
    if let TlsMode::Files { certificate, private_key } = &config.tls.mode {
        private.push((certificate.display().to_string(), "the certificate"));
        private.push((private_key.display().to_string(), "the private key"));
    }
    if let TlsMode::Acme(acme) = &config.tls.mode {
        private.push((acme.cache.display().to_string(), "the ACME cache"));
    }
    private.retain(|(path, _)| !path.is_empty());
    // Longest first, because one path may be part of another.
    private.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    private
}

/// Returns the host names in the configuration.
fn hosts(config: &Config) -> Vec<String> {
    let servers = config.agent.mcp_servers.iter().filter_map(|server| match &server.transport {
        McpTransport::Http { url, .. } => Some(url.as_str()),
        McpTransport::Program { .. } => None,
    });
    let urls = config.router.upstreams.iter().map(|upstream| upstream.url.as_str()).chain(servers);
    let names = urls.filter_map(|url| Some(Url::parse(url).ok()?.domain()?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_config::{McpServer, Upstream};

    #[test]
    fn doctor_looks_up_configured_hosts_once() {
        let mut config = Config::defaults();
        assert!(hosts(&config).is_empty());
        let upstream = |url: &str| vec![Upstream::of(url.to_owned())];
        config.router.upstreams = upstream("https://models.example/v1");
        assert_eq!(hosts(&config), ["models.example"]);
        config.router.upstreams = upstream("http://127.0.0.1:8090/v1");
        assert!(hosts(&config).is_empty());
    }

    #[test]
    fn upstream_without_path_is_a_warning() {
        let said = |url: &str| {
            let mut config = Config::defaults();
            config.router.upstreams = vec![Upstream::of(url.to_owned())];
            upstreams_without_path(&config).find_map(|finding| finding.mend)
        };
        let mend = Some("upstream_url = \"http://box.lan:9000/v1\"".to_owned());
        for bare in ["http://box.lan:9000", "http://box.lan:9000/"] {
            assert_eq!(said(bare), mend, "{bare}");
        }
        for good in ["https://models.example/v1", "http://127.0.0.1:9000/api", "http://h/openai/v2"]
        {
            assert_eq!(said(good), None, "{good}");
        }
        assert!(upstreams_without_path(&Config::defaults()).next().is_none());
    }

    #[test]
    fn programs_of_the_configuration_that_are_missing_are_warnings() {
        let mut config = Config::defaults();
        assert!(missing_programs(&config).is_empty());
        config.backup.after = vec!["no-such-program".to_owned()];
        config.agent.mcp_servers = vec![McpServer {
            name: "notes".to_owned(),
            transport: McpTransport::Program {
                command: vec!["/bin/sh".to_owned(), "gone.sh".to_owned()],
                directory: PathBuf::from("/srv/no"),
                env: Vec::new(),
                writable: Vec::new(),
                memory_bytes: None,
            },
            allow: None,
        }];
        let said: Vec<String> =
            missing_programs(&config).into_iter().map(|finding| finding.detail).collect();
        assert_eq!(
            said,
            [
                "the server 'notes' of agent.mcp_servers: the script 'gone.sh' does not exist in \
                 /srv/no",
                "backup.after: the program 'no-such-program' does not exist in PATH, or cannot be run",
            ]
        );
    }

    #[test]
    fn findings_contain_full_paths() {
        let mut config = Config::defaults();
        config.data_dir = orrery_config::absolute(Path::new("data"));
        let doctor = of(&config);
        let hidden = |detail: &str| doctor.for_members(Finding::good("secrets", detail)).detail;
        assert_eq!(hidden("the data is there"), "the data is there");
        let whole = std::env::current_dir().unwrap().join("data");
        assert_eq!(hidden(&format!("{} is there", whole.display())), "the data folder is there");
    }

    #[test]
    fn findings_for_members_contain_no_paths() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::defaults();
        config.data_dir = folder.path().join("data");
        config.models_dir = config.data_dir.join("models.d");
        config.backup.folder = config.data_dir.join("backups");
        let certificate = folder.path().join("cert.pem");
        config.tls.mode = TlsMode::Files { private_key: certificate.clone(), certificate };
        let doctor = of(&config);
        let now = Timestamp::from_micros(0);
        let shown = folder.path().to_str().unwrap();
        let found = doctor.findings(now);
        assert!(found.iter().any(|one| one.detail.contains(shown)), "{found:?}");
        for finding in found {
            let finding = doctor.for_members(finding);
            assert!(!finding.detail.contains(shown) && finding.mend.is_none(), "{finding:?}");
        }
    }
}
