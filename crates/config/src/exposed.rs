//! Detects secrets in configurations and manifests that other users can read.
//!
//! Secrets are recognized by the key's name or by a password in a URL, so new keys need no
//! annotation. References such as `${file:…}` are not secrets.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde_json::Value as Json;
use toml::de::{DeTable, DeValue};

use super::FILE_BYTES_MAX;
use super::reader::read_file;
use orrery_domain::mask::MASKED;

/// Permission bits of users who are neither the owner nor in the group.
const OTHERS: u32 = 0o007;
/// Words in a key's name that mark a secret.
const WORDS: [&str; 10] = [
    "key",
    "keys",
    "pat",
    "passwd",
    "password",
    "passphrase",
    "authorization",
    "cookie",
    "token",
    "secret",
];
/// Endings of words that mark a secret, as in `NOTION_APITOKEN`.
const ENDS: [&str; 5] = ["apikey", "token", "secret", "password", "passwd"];
/// Headers with secret values whose names contain none of [`WORDS`].
const HEADERS: [&str; 1] = ["x-honeycomb-team"];
/// Authentication schemes, which precede the credentials in a header's value.
const SCHEMES: [&str; 5] = ["basic", "bearer", "digest", "token", "apikey"];
/// Command-line options whose value is a header, as in curl.
const HEADER_OPTIONS: [&str; 2] = ["-H", "--header"];
/// The minimum length of a token, in bytes. Without this minimum, the locale `sk-SK` would count as
/// a token.
const TOKEN_MIN: usize = 20;
/// Prefixes of the tokens of well-known services.
const TOKENS: [&str; 10] =
    ["sk-", "ghp_", "gho_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "hf_", "smk_", "whsec_"];
/// Exceptions: keys whose value is a file's path, or the ID of a key.
const PATHS: [&str; 2] = ["tls.private_key", "hosts.ollama.key_id"];
/// Keys whose value is a secret although no word says so: the path of the URL of a chat's webhook
/// or of a topic of ntfy is one.
const URLS: [&str; 1] = ["alerts.url"];
/// Maximum depth of nested tables.
const DEPTH_MAX: usize = 16;

/// Returns a warning if the file at `path` contains secrets and other users can read it.
#[must_use]
pub fn warning(path: &Path) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.mode() & 0o777;
    if mode & OTHERS == 0 {
        return None;
    }
    let first = first_secret(&read_file(path, FILE_BYTES_MAX).ok()?)?;
    let shown = path.display();
    Some(format!(
        "{shown} has mode {mode:04o}, so other users can read the secret in `{first}`: write it as \
         \"${{file:PATH}}\", or run chmod o-rwx on the file"
    ))
}

/// Returns the key of the first secret in a file with this text.
#[must_use]
pub fn first_secret(text: &str) -> Option<String> {
    let (document, _errors) = DeTable::parse_recoverable(text);
    let mut found = Vec::new();
    look(document.get_ref(), "", 0, &mut found);
    found.into_iter().next()
}

/// Returns the value of `key` as JSON, with secrets masked.
pub(super) fn masked(key: &str, value: &DeValue<'_>) -> Json {
    let name = key.rsplit('.').next().unwrap_or(key);
    match value {
        DeValue::String(text) if is_secret(name, key, text) => MASKED.into(),
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Datetime(moment) => moment.to_string().into(),
        DeValue::Integer(number) => number.as_str().parse::<i64>().map_or(Json::Null, Json::from),
        DeValue::Float(number) => number.as_str().parse::<f64>().map_or(Json::Null, Json::from),
        DeValue::Table(table) => {
            let fields = table.iter().map(|(name, value)| {
                let name: &str = name.get_ref();
                (name.to_owned(), masked(&format!("{key}.{name}"), value.get_ref()))
            });
            Json::Object(fields.collect())
        }
        DeValue::Array(items) => {
            let mut found = Vec::new();
            look_at(value, name, key, 0, &mut found);
            let has_strings = items.iter().any(|item| item.get_ref().is_str());
            // In a list of strings, such as a command, a string may be secret because of the string
            // before it, so mask the entire list.
            if has_strings && !found.is_empty() {
                return MASKED.into();
            }
            items.iter().map(|item| masked(key, item.get_ref())).collect()
        }
    }
}

fn look(table: &DeTable<'_>, path: &str, depth: usize, found: &mut Vec<String>) {
    for (name, value) in table {
        let name: &str = name.get_ref();
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        look_at(value.get_ref(), name, &path, depth, found);
    }
}

fn look_at(value: &DeValue<'_>, name: &str, path: &str, depth: usize, found: &mut Vec<String>) {
    match value {
        DeValue::String(text) if is_secret(name, path, text) => found.push(path.to_owned()),
        DeValue::Table(table) if depth < DEPTH_MAX => look(table, path, depth + 1, found),
        DeValue::Array(items) if depth < DEPTH_MAX => {
            // In a command, a secret may follow its option.
            let mut option = name;
            for item in items {
                look_at(item.get_ref(), option, path, depth + 1, found);
                let text = item.get_ref().as_str();
                option = text.filter(|text| text.starts_with('-')).unwrap_or(name);
            }
        }
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_)
        | DeValue::Table(_) => {}
    }
}

/// Returns whether a string is a secret rather than a reference to a secret.
fn is_secret(name: &str, path: &str, text: &str) -> bool {
    let refers = text.is_empty() || text.contains("${") || text.contains("{{");
    if refers || PATHS.contains(&path) {
        return false;
    }
    let in_url = || {
        url::Url::parse(text).is_ok_and(|url| {
            let mut query = url.query_pairs();
            url.password().is_some()
                || query.any(|(name, value)| is_named(&name) && !value.is_empty())
        })
    };
    let in_option =
        || text.starts_with('-') && text.split_once('=').is_some_and(|(n, _)| is_named(n));
    let is_token = text.len() >= TOKEN_MIN && TOKENS.iter().any(|start| text.starts_with(start));
    // A string that starts with `-` is an option, not the value of the previous option.
    (is_named(name) && !text.starts_with('-'))
        || URLS.contains(&path)
        || is_token
        || in_url()
        || in_option()
        || is_secret_header(name, path, text)
}

/// Returns whether a string is a header with credentials: the value of an entry in a table of
/// headers, or the header after a command-line option.
fn is_secret_header(name: &str, path: &str, text: &str) -> bool {
    let is_entry = path.strip_suffix(name).is_some_and(|table| table.ends_with("headers."));
    let joined = text.split_once('=').filter(|(option, _)| option.starts_with("--"));
    let (option, written) = joined.unwrap_or((name, text));
    let header = match is_entry {
        true => Some((name, text)),
        false => HEADER_OPTIONS.contains(&option).then(|| written.split_once(':')).flatten(),
    };
    header.is_some_and(|(name, value)| {
        let last = name.rsplit(['-', '_']).next().unwrap_or_default();
        let is_secret = is_named(name) || last.eq_ignore_ascii_case("auth");
        let scheme = value.trim().split_once(' ').map(|(scheme, _credentials)| scheme);
        let is_scheme = |scheme: &str| SCHEMES.iter().any(|one| scheme.eq_ignore_ascii_case(one));
        !value.trim().is_empty() && (is_secret || scheme.is_some_and(is_scheme))
    })
}

/// Returns whether the values of this key, header, option or parameter are secrets.
fn is_named(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_word = |part: &str| WORDS.contains(&part) || ENDS.iter().any(|end| part.ends_with(end));
    let has_word = name.split(['_', '-']).any(is_word) && !name.ends_with("file");
    has_word || HEADERS.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Returns the warning for a file with this text and mode.
    fn said(text: &str, mode: u32) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        warning(&path)
    }

    #[test]
    fn secret_in_readable_file_is_reported() {
        for (text, key) in [
            ("[router]\nupstream_key = 'sk-upstream'", "`router.upstream_key`"),
            ("[[router.upstreams]]\nkeys = ['abc', 'def']", "`router.upstreams.keys`"),
            (
                "telemetry.otlp_headers = { authorization = 'Bearer x' }",
                "`telemetry.otlp_headers.authorization`",
            ),
            ("[runner]\nenv = { LANG = 'C', OPENAI_API_KEY = 'x' }", "`runner.env.OPENAI_API_KEY`"),
            ("[runner]\nheaders.X-Api-Key = 'x'", "`runner.headers.X-Api-Key`"),
            (
                "agent.mcp_servers = [{ name = 'a', headers = { Cookie = 'x' } }]",
                "`agent.mcp_servers.headers.Cookie`",
            ),
            ("[runner]\nurls = ['http://me:word@box.lan/']", "`runner.urls`"),
            ("[alerts]\nurl = 'https://ntfy.sh/topic'", "`alerts.url`"),
            ("[runner]\nenv = { GITHUB_PAT = 'x' }", "`runner.env.GITHUB_PAT`"),
            ("[runner]\nenv = { NOTION_APITOKEN = 'x' }", "`runner.env.NOTION_APITOKEN`"),
            ("[runner]\nenv = { HUB = 'hf_0123456789abcdefghij' }", "`runner.env.HUB`"),
            (
                "telemetry.otlp_headers.\"x-honeycomb-team\" = 'x'",
                "`telemetry.otlp_headers.x-honeycomb-team`",
            ),
            ("[runner]\ncommand = ['x', '--token', 'abc']", "`runner.command`"),
            ("[runner]\ncommand = ['x', '--api-key=abc']", "`runner.command`"),
            ("[runner]\nurl = 'http://box.lan/?api_key=abc'", "`runner.url`"),
            ("[runner]\nheaders.X-Auth = 'Basic bWU6d29yZA=='", "`runner.headers.X-Auth`"),
            ("[runner]\nheaders.X-Auth = 'abc'", "`runner.headers.X-Auth`"),
            ("[runner]\nheaders.X-User = 'bearer abc'", "`runner.headers.X-User`"),
            (
                "telemetry.otlp_headers = { x-scope = 'Token abc' }",
                "`telemetry.otlp_headers.x-scope`",
            ),
            (
                "agent.mcp_servers = [{ name = 'a', headers = { X-Auth = 'Basic abc' } }]",
                "`agent.mcp_servers.headers.X-Auth`",
            ),
            ("[runner]\ncommand = ['curl', '-H', 'X-Auth: Basic abc']", "`runner.command`"),
            ("[runner]\ncommand = ['curl', '-H', 'Authorization: abc']", "`runner.command`"),
            ("[runner]\ncommand = ['curl', '--header=X-User: Bearer abc']", "`runner.command`"),
            ("[runner]\ncommand = ['x', '-token', 'abc']", "`runner.command`"),
        ] {
            let warning = said(text, 0o644).unwrap();
            assert!(warning.contains(key) && warning.contains("mode 0644"), "{warning}");
            assert!(!warning.contains("sk-upstream"), "{warning}");
            assert_eq!(said(text, 0o640), None, "{text}");
            assert_eq!(said(text, 0o600), None, "{text}");
        }
    }

    #[test]
    fn secrets_in_values_are_masked() {
        for (text, expect) in [
            ("key = 'sk-upstream'", r#"{"key":"***"}"#),
            ("key = '${file:key}'", r#"{"key":"${file:key}"}"#),
            (
                "headers = { Cookie = 'x', Accept = 'y' }",
                r#"{"headers":{"Cookie":"***","Accept":"y"}}"#,
            ),
            ("after = ['copy', '--token', 'abc']", r#"{"after":"***"}"#),
            ("upstreams = [{ keys = ['abc', 'def'] }]", r#"{"upstreams":[{"keys":"***"}]}"#),
            ("after = ['copy', 'to']", r#"{"after":["copy","to"]}"#),
            (
                "servers = [{ name = 'a', env = { API_TOKEN = 'x' }, n = 1.5, b = true }]",
                r#"{"servers":[{"name":"a","env":{"API_TOKEN":"***"},"n":1.5,"b":true}]}"#,
            ),
        ] {
            let table = DeValue::Table(DeTable::parse(text).unwrap().into_inner());
            assert_eq!(masked("", &table).to_string(), expect, "{text}");
        }
    }

    #[test]
    fn references_and_other_settings_are_not_secrets() {
        for text in [
            "[router]\nupstream_key = '${file:key}'",
            "[runner]\nheaders = { Authorization = 'Bearer ${env:TOKEN}', Accept = 'x' }",
            "[backup]\npassphrase_file = '/etc/orrery/passphrase'",
            "[tls]\nprivate_key = '/etc/orrery/key.pem'",
            "[runner]\nbody = { token = '{{input.token}}' }",
            "[limits]\ntokens_per_day = 5",
            "[request_schema]\nproperties.key = { type = 'string' }\nrequired = ['key']",
            "[runner]\nurl = 'http://127.0.0.1:5000/token?page=1&token='",
            "[runner]\ncommand = ['x', '--token', '--verbose', '--token-file', '/run/token']",
            "[runner]\ncommand = ['x', '--token', '${file:token}']",
            "[runner]\nheaders = { X-Auth = 'Basic ${file:key}', X-Mode = 'basic', X-Note = 'two words' }",
            "[runner]\nheaders = { X-Auth = '', X-Auth-Mode = 'none' }",
            "[runner]\ncommand = ['curl', '-H', 'Accept: text/plain', '--header=X-Mode: basic']",
            "title = 'Basic sentiment'\ndescription = 'Token counter'",
            "[runner]\nenv = { PATH = '/bin', MAX_TOKENS = '5', MONKEY = 'x', LANG = 'sk-SK' }",
        ] {
            assert_eq!(said(text, 0o644), None, "{text}");
        }
    }
}
