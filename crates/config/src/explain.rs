//! Lists each key with its effective value and the source of the value, and writes a file that
//! contains all keys.
//!
//! A key's default is its value in `config.example.toml`, which a test compares with the defaults
//! in the code. Some defaults depend on the service instead.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value as Json, json};
use toml::de::{DeTable, DeValue};

use super::edit::{self, Setting};
use super::source::Source;
use super::{Config, EXAMPLE, Error, exposed, sections};

/// The first line of `config.example.toml`.
const EXAMPLE_TITLE: &str = "# Orrery's configuration: every key with its default.\n";
/// The first lines of a file with all effective values.
const TITLE: &str = "# Orrery's configuration: every key with the value that applied when `orrery \
                     config init`\n# wrote this file. The default applies again to a key that is removed.\n";

/// The key for the disk space that new work must leave free. The example file has no value for it.
const DISK_RESERVE: &str = "limits.disk_reserve";

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum From {
    Default,
    File,
    Flag,
}

impl From {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Flag => "flag",
        }
    }
}

/// A key with its effective value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub key: String,
    /// The value, with secrets masked. Null if the key is not set and has no default.
    pub value: Json,
    pub from: From,
}

/// Lists each key with its value.
///
/// # Errors
/// All errors in the configuration.
pub fn rows(source: &Source) -> Result<(Config, Vec<Row>), Vec<Error>> {
    let read = source.read();
    if !read.errors.is_empty() {
        return Err(read.errors);
    }
    let text = parsed(&read.text);
    let written = parsed(&read.written);
    let example = parsed(EXAMPLE);
    let of_service = of_service(&read.config);
    let rows = read.known.iter().map(|known| {
        let key = known.path.as_str();
        let is_flagged = |flag: &String| {
            flag == key || flag.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))
        };
        let from = match () {
            () if read.flagged.iter().any(is_flagged) => From::Flag,
            () if at(&written, key).is_some() => From::File,
            () => From::Default,
        };
        let masked = |value: &DeValue<'_>| exposed::masked(key, value);
        let value = of_service.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone());
        let value =
            value.or_else(|| at(&text, key).map(masked)).or_else(|| at(&example, key).map(masked));
        Row { key: known.path.clone(), value: value.unwrap_or_default(), from }
    });
    let rows = rows.collect();
    Ok((read.config, rows))
}

/// Returns the text of a configuration file: `config.example.toml` with the values of `config`.
/// Paths below `folder`, the file's own folder, are written as relative paths. `settings` override
/// the values.
///
/// # Errors
/// Returns a message if a value cannot be written.
pub fn file(config: &Config, folder: &Path, settings: &[Setting]) -> Result<String, String> {
    let mut text = EXAMPLE.replacen(EXAMPLE_TITLE, TITLE, 1);
    let example = parsed(EXAMPLE);
    for (key, value) in of_service(config) {
        let default = at(&example, &key).map(|default| exposed::masked(&key, default));
        if default.is_none_or(|default| default == value) {
            continue;
        }
        let value = match value.as_str().and_then(|path| inside(Path::new(path), folder)) {
            Some(path) => path.into(),
            None => value,
        };
        let written = toml::Value::try_from(&value).map_err(|error| error.to_string())?;
        text = edit::set(&text, &Setting::new(&key, &written.to_string())?)?;
    }
    if let Some(size) = disk_reserve(config) {
        text = edit::set(&text, &Setting::new(DISK_RESERVE, &size)?)?;
    }
    settings.iter().try_fold(text, |text, setting| edit::set(&text, setting))
}

/// Returns the JSON Schema of a configuration file, for editors. The descriptions are the comments
/// of `config.example.toml`.
#[must_use]
pub fn schema() -> Json {
    let mut schema = sections::schema();
    let (mut table, mut comment, mut is_of_keys) = (String::new(), String::new(), false);
    for line in EXAMPLE.lines() {
        let option = line.strip_prefix('#').filter(|rest| !rest.starts_with([' ', '#']));
        if let Some(heading) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            table = format!("{heading}.");
            describe(&mut schema, heading, &comment);
            comment.clear();
        } else if let Some((name, _)) = option.unwrap_or(line).split_once(" = ").filter(|_| {
            option.is_some() || line.starts_with(|first: char| first.is_ascii_lowercase())
        }) {
            describe(&mut schema, &format!("{table}{name}"), &comment);
            is_of_keys = true;
        } else if let Some(text) = line.strip_prefix("# ") {
            // A comment describes all keys up to the next comment.
            if std::mem::take(&mut is_of_keys) {
                comment.clear();
            }
            comment.push_str(if comment.is_empty() { "" } else { " " });
            comment.push_str(text);
        } else {
            comment.clear();
        }
    }
    schema
}

/// Sets the description of a key or a table.
fn describe(schema: &mut Json, key: &str, text: &str) {
    let place = key.split('.').try_fold(schema, |place, part| {
        place.get_mut("properties").and_then(|properties| properties.get_mut(part))
    });
    if let Some(Json::Object(place)) = place.filter(|_| !text.is_empty()) {
        place.insert("description".to_owned(), text.into());
    }
}

/// Returns a path below `folder` as a path relative to `folder`.
fn inside(path: &Path, folder: &Path) -> Option<String> {
    match path.strip_prefix(folder).ok()?.to_str()? {
        "" => Some(".".to_owned()),
        path => Some(path.to_owned()),
    }
}

/// Returns the keys whose defaults depend on the service, with their values.
fn of_service(config: &Config) -> Vec<(String, Json)> {
    let listen = |addresses: &[std::net::SocketAddr]| match addresses {
        [one] => json!(one.to_string()),
        many => many.iter().map(ToString::to_string).collect(),
    };
    let path = |path: &Path| json!(path.display().to_string());
    let mut rows = vec![
        ("data_dir".to_owned(), path(&config.data_dir)),
        ("models_dir".to_owned(), path(&config.models_dir)),
        ("backup.folder".to_owned(), path(&config.backup.folder)),
        ("audit.folder".to_owned(), path(&config.audit.folder)),
        ("metrics.listen".to_owned(), listen(&config.metrics.listen)),
        ("egress.allow".to_owned(), config.egress.allow.iter().map(ToString::to_string).collect()),
        ("compat.optional_version".to_owned(), json!(config.compat.optional_version)),
        (DISK_RESERVE.to_owned(), json!(disk_reserve(config))),
    ];
    for (name, host) in config.hosts.named() {
        rows.push((format!("hosts.{name}.listen"), listen(&host.listen)));
        rows.push((format!("hosts.{name}.public_url"), json!(host.public_url)));
    }
    rows
}

/// Returns the disk reserve as it is written in files; `None` if the reserve depends on the disk.
fn disk_reserve(config: &Config) -> Option<String> {
    const GIB: u64 = 1 << 30;
    let bytes = config.limits.disk_reserve?;
    Some(if bytes % GIB == 0 { format!("{}GiB", bytes / GIB) } else { bytes.to_string() })
}

fn parsed(text: &str) -> DeTable<'_> {
    DeTable::parse(text).map(toml::Spanned::into_inner).unwrap_or_default()
}

fn at<'a, 't>(table: &'a DeTable<'t>, key: &str) -> Option<&'a DeValue<'t>> {
    let (name, rest) = key.split_once('.').map_or((key, None), |(name, rest)| (name, Some(rest)));
    let value = table.get(name)?.get_ref();
    match rest {
        Some(rest) => at(value.as_table()?, rest),
        None => Some(value),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::super::Flags;
    use super::*;

    /// Returns the configuration without its source, so that only the settings are compared.
    fn settings(config: Config) -> Config {
        Config { file: None, source: Source::default(), ..config }
    }

    #[test]
    fn written_file_states_everything_that_holds_without_one() {
        let here = std::env::current_dir().unwrap();
        for (flags, folder) in [
            (Flags::default(), here.join("orrery-data")),
            (Flags { port: Some(9000), ..Flags::default() }, here.clone()),
            (Flags::default(), PathBuf::from("/elsewhere")),
        ] {
            let source = Source { file: None, flags };
            let config = source.load().unwrap();
            let text = file(&config, &folder, &[]).unwrap();
            assert!(text.starts_with(TITLE), "{text}");
            for defaults in
                [sections::Defaults::without_a_file(), sections::Defaults::with_a_file()]
            {
                let (read, errors, _) = sections::read(&text, &folder, &defaults);
                assert_eq!(errors, [], "{text}");
                assert_eq!(settings(read), settings(config.clone()), "{text}");
            }
        }
        let text = file(&Config::defaults(), &here.join("orrery-data"), &[]).unwrap();
        assert!(text.contains("\ndata_dir = \".\"\n"), "{text}");
        assert!(text.contains("\nmodels_dir = \"models.d\"\n"), "{text}");
    }

    #[test]
    fn schema_accepts_the_example_and_refuses_what_the_reader_refuses() {
        let schema = schema();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let json = |text: &str| serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
        assert!(validator.is_valid(&json(EXAMPLE)));
        assert!(
            validator
                .is_valid(&json(&file(&Config::for_installed(), Path::new("/"), &[]).unwrap()))
        );
        let source = Source::of_file(Path::new("/etc/orrery/config.toml"));
        for text in [
            "limits.body_bytes = 4096",
            "limits.body_bytes = '1 MiB'",
            "limits.rate.burst = 0",
            "hosts.base.listen = ['127.0.0.1:1', '[::1]:1']",
            "webhooks.schedule = []",
            "metrics.listen = []",
            "log.format = 'json'",
            "router.platform_fee = 1",
            "backup = { every = '1h', recipient = [] }",
            "agent.max_cost = 0.5",
            "agent.mcp_servers = [{ name = 'a', url = 'http://h' }]",
            "agent.mcp_servers = [{ name = 'a', command = ['x'], env = { A = 'b' } }]",
            "router.prices = [{ model = 'm', per_million_input_tokens = 1, per_million_output_tokens = 2 }]",
            "decisions.aliases = { a = 'b' }",
            // Both the schema and the reader reject these texts.
            "data_dri = 'x'",
            "data_dir = 3",
            "limits.connections = 0",
            "limits.connections = 'x'",
            "limits.sync_wait = 10",
            "log.level = 1",
            "log.format = 'xml'",
            "log = 1",
            "cors.allow_origins = 'x'",
            "router.platform_fee = 11",
            "router.prices = [{ model = 'm' }]",
            "agent.mcp_servers = [{}]",
            "agent.mcp_servers = [{ name = 'a' }]",
            "decisions.aliases = { a = 1 }",
            "limits.rate.brust = 1",
            "limits.body_bytes = 'eight'",
            "hosts.base.listen = 1",
            "billing.enabled = 'yes'",
        ] {
            let is_read = source.check(text).is_empty();
            let is_valid = validator.is_valid(&json(text));
            // The reader may reject more than the schema, because it also compares keys with each
            // other.
            assert!(is_valid || !is_read, "{text}: {:?}", source.check(text));
            let with_others = ["burst", "recipient"].iter().any(|key| text.contains(key));
            assert!(is_read || !is_valid || with_others, "{text}");
        }
        let place = |pointer: &str| schema.pointer(pointer).unwrap();
        let description = "/properties/log/properties/level/description";
        assert!(place(description).as_str().unwrap().starts_with("off, error, warn"));
        for key in sections::read("", Path::new("/"), &sections::Defaults::with_a_file()).2 {
            let pointer = format!("/properties/{}/type", key.path.replace('.', "/properties/"));
            let any = pointer.replace("/type", "/anyOf");
            let has_enum = schema.pointer(&pointer).or(schema.pointer(&any));
            assert!(
                has_enum.is_some(),
                "{}: {}",
                key.path,
                place(pointer.trim_end_matches("/type"))
            );
        }
    }

    #[test]
    fn production_file_is_the_example_with_its_settings() {
        let config = Config::for_installed();
        let off = [Setting::new("webhooks.send_plain_secret", "false").unwrap()];
        let text = file(&config, Path::new("/etc/orrery"), &off).unwrap();
        let changed: Vec<&str> =
            text.lines().filter(|line| !EXAMPLE.lines().any(|other| other == *line)).collect();
        let expect = TITLE.lines().chain(["send_plain_secret = false"]);
        assert_eq!(changed, expect.collect::<Vec<_>>());
    }

    #[test]
    fn rows_name_source_of_each_value_and_mask_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        let text = "data_dir = \"data\"\n[router]\nupstream_url = \"http://m/v1\"\nupstream_key = \"sk-x\"\n\
                    [decisions]\naliases = { a = \"b\" }\n";
        fs::write(&path, text).unwrap();
        let set = ["log.level=debug", "decisions.aliases.c=d"].map(|one| one.parse().unwrap());
        let flags = Flags { set: set.to_vec(), ..Flags::default() };
        let (_config, rows) = rows(&Source { file: Some(path), flags }).unwrap();
        let data = folder.path().join("data").display().to_string();
        for (key, value, from) in [
            ("data_dir", json!(data), From::File),
            ("backup.folder", json!(format!("{data}/backups")), From::Default),
            ("hosts.flows.listen", json!("0.0.0.0:8445"), From::Default),
            ("router.upstream_key", json!("***"), From::File),
            ("decisions.aliases", json!({"a": "b", "c": "d"}), From::Flag),
            ("log.level", json!("debug"), From::Flag),
            ("log.access", json!(false), From::Default),
            ("limits.sync_wait", json!("60s"), From::Default),
            ("limits.rate.burst", Json::Null, From::Default),
        ] {
            let row = rows.iter().find(|row| row.key == key).unwrap();
            assert_eq!((&row.value, row.from), (&value, from), "{key}");
        }
        assert!(!serde_json::to_string(&rows).unwrap().contains("sk-x"));
    }
}
