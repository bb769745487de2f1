//! Detects secrets in configurations and manifests that other users can read.
//!
//! Secrets are recognized by the key's name or by a password in a URL, so new keys need no
//! annotation. References such as `${file:…}` are not secrets.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::FILE_BYTES_MAX;
use super::reader::read_file;

/// Permission bits of users who are neither the owner nor in the group.
const OTHERS: u32 = 0o007;
/// Words in a key's name that mark a secret.
const WORDS: [&str; 8] =
    ["key", "apikey", "token", "secret", "password", "passphrase", "authorization", "cookie"];
/// Exceptions: keys whose value is a file's path.
const PATHS: [&str; 1] = ["tls.private_key"];
/// Maximum depth of nested tables.
const DEPTH_MAX: usize = 16;

/// Returns a warning if the file at `path` contains secrets and other users can read it.
#[must_use]
pub fn warning(path: &Path) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.mode() & 0o777;
    if mode & OTHERS == 0 {
        return None;
    }
    let text = read_file(path, FILE_BYTES_MAX).ok()?;
    let (document, _errors) = DeTable::parse_recoverable(&text);
    let mut found = Vec::new();
    look(document.get_ref(), "", 0, &mut found);
    let first = found.first()?;
    let shown = path.display();
    Some(format!(
        "{shown} has mode {mode:04o}, so other users can read the secret in `{first}`: write it as \
         \"${{file:PATH}}\", or run chmod o-rwx on the file"
    ))
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
            for item in items {
                look_at(item.get_ref(), name, path, depth + 1, found);
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

/// Returns whether a string is a secret, as opposed to a reference to one.
fn is_secret(name: &str, path: &str, text: &str) -> bool {
    let refers = text.is_empty() || text.contains("${") || text.contains("{{");
    if refers || PATHS.contains(&path) {
        return false;
    }
    let name = name.to_ascii_lowercase();
    let is_named =
        name.split(['_', '-']).any(|part| WORDS.contains(&part)) && !name.ends_with("_file");
    let has_password = || url::Url::parse(text).is_ok_and(|url| url.password().is_some());
    is_named || has_password()
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
        ] {
            let warning = said(text, 0o644).unwrap();
            assert!(warning.contains(key) && warning.contains("mode 0644"), "{warning}");
            assert!(!warning.contains("sk-upstream"), "{warning}");
            assert_eq!(said(text, 0o640), None, "{text}");
            assert_eq!(said(text, 0o600), None, "{text}");
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
            "[runner]\nurl = 'http://127.0.0.1:5000/token'",
        ] {
            assert_eq!(said(text, 0o644), None, "{text}");
        }
    }
}
