//! The document that `orrery apply` reads: organizations by name, each with its resources by name.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::{Map, Value};

use crate::{file, workflow};
use orrery_domain::key_policy::KeyPolicy;
use orrery_domain::secret::VALUE_BYTES_MAX;
use orrery_wire::apply::{self as written, Key, Source};
use orrery_wire::key_policy::{self, KeyPolicyChange};

/// Fields that the service lists with a key's restrictions, but that are not restrictions.
const NOT_CHANGED: [&str; 2] = ["spend", "budget_reset_at"];

/// A parsed document.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) organizations: BTreeMap<String, Wanted>,
}

/// The desired resources of one organization. Resources that are not listed are left unchanged.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) limits: Option<Map<String, Value>>,
    pub(super) keys: BTreeMap<String, Key>,
    /// The values of secrets, read from the sources that the document names.
    pub(super) secrets: BTreeMap<String, Secret>,
    pub(super) chains: BTreeMap<String, Map<String, Value>>,
    pub(super) workflows: Vec<workflow::Wanted>,
    pub(super) schedules: BTreeMap<String, Map<String, Value>>,
    pub(super) webhook_endpoints: BTreeMap<String, Map<String, Value>>,
}

/// The value of a secret, which is never printed.
pub(super) struct Secret(pub(super) String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Document {
    /// Reads the document and the files to which it refers. Relative paths are resolved against the
    /// folder that contains the document.
    ///
    /// # Errors
    /// Returns an error that names the file and the first invalid item.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::of(file::read(path)?, folder)
            .with_context(|| format!("{} is not valid", path.display()))
    }

    fn of(value: Value, folder: &Path) -> anyhow::Result<Self> {
        if !value.is_object() {
            bail!("the file must be an object with organizations");
        }
        let written: written::Document = file::typed(value)?;
        let mut organizations = BTreeMap::new();
        for (name, one) in written.organizations {
            let wanted = resolve(one, folder);
            let wanted = wanted.with_context(|| format!("organization {name}"))?;
            organizations.insert(name, wanted);
        }
        Ok(Self { organizations })
    }
}

fn resolve(written: written::Organization, folder: &Path) -> anyhow::Result<Wanted> {
    let mut wanted = Wanted {
        limits: written.limits,
        chains: written.chains.unwrap_or_default(),
        schedules: written.schedules.unwrap_or_default(),
        webhook_endpoints: written.webhook_endpoints.unwrap_or_default(),
        ..Wanted::default()
    };
    for (name, key) in written.keys.unwrap_or_default() {
        let key = key.unwrap_or_default();
        check_policy(&key.policy).with_context(|| format!("key {name}"))?;
        wanted.keys.insert(name, key);
    }
    for (name, source) in written.secrets.unwrap_or_default() {
        let value = value_of(source, folder).with_context(|| format!("secret {name}"))?;
        wanted.secrets.insert(name, value);
    }
    for (slug, fields) in written.workflows.unwrap_or_default() {
        let read = || {
            let value = match referred(&fields)? {
                Some(path) => file::read(&folder.join(path))?,
                None => Value::Object(fields),
            };
            workflow::Wanted::read(&slug, value)
        };
        wanted.workflows.push(read().with_context(|| format!("workflow {slug}"))?);
    }
    Ok(wanted)
}

/// Returns the path if a workflow refers to a file with the field `file`.
fn referred(fields: &Map<String, Value>) -> anyhow::Result<Option<&str>> {
    match fields.get("file") {
        None => Ok(None),
        Some(Value::String(path)) if fields.len() == 1 => Ok(Some(path)),
        Some(_) => bail!("file must be a path and the only field"),
    }
}

/// Checks the restrictions of a key before anything is applied. The service would reject them only
/// after it has made other changes.
fn check_policy(policy: &Map<String, Value>) -> anyhow::Result<()> {
    let shown = serde_json::to_value(key_policy::KeyPolicy::default())?;
    let mut known: Vec<&str> =
        shown.as_object().into_iter().flatten().map(|(name, _)| &**name).collect();
    known.retain(|name| !NOT_CHANGED.contains(name));
    if let Some(unknown) = policy.keys().find(|name| !known.contains(&name.as_str())) {
        let (unknown, known) = (file::quotable(unknown), known.join("`, `"));
        bail!("unknown field `{unknown}`, expected one of `expires`, `{known}`");
    }
    let change: KeyPolicyChange = file::typed(policy.clone().into())?;
    let checked = change.apply(KeyPolicy::default());
    checked.map(drop).map_err(|wrong| anyhow::anyhow!("{} {}", wrong.path, wrong.message))
}

fn value_of(source: Source, folder: &Path) -> anyhow::Result<Secret> {
    let mut value = match source {
        Source::Env(name) => std::env::var(&name).with_context(|| {
            format!("the environment variable {name} is not set, or is not valid UTF-8")
        })?,
        Source::File(path) => {
            file::read_text(&folder.join(path), (VALUE_BYTES_MAX as u64).saturating_add(2))?
        }
    };
    // Remove one trailing line break, as `orrery secret set` does.
    if value.ends_with('\n') {
        value.pop();
        if value.ends_with('\r') {
            value.pop();
        }
    }
    Ok(Secret(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(value: Value) -> String {
        format!("{:#}", Document::of(value, Path::new("/nowhere")).unwrap_err())
    }

    #[test]
    fn apply_document_reads_secrets_only_from_files() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("value"), "hunter2-and-more\r\n").unwrap();
        let workflow = "name: A\ndescription: d\ndefinition: {steps: []}\n";
        std::fs::write(folder.path().join("a.yaml"), workflow).unwrap();
        let document = json!({"organizations": {"acme": {
            "secrets": {"vault": {"file": "value"}},
            "workflows": {"a": {"file": "a.yaml"}},
            "keys": {"ci": null, "old": {"expires": "90d"}},
        }, "empty": {}}});
        let read = Document::of(document, folder.path()).unwrap();
        let acme = &read.organizations["acme"];
        assert_eq!(acme.secrets["vault"].0, "hunter2-and-more");
        assert_eq!(acme.workflows[0].fields["name"], "A");
        assert_eq!(acme.keys["old"].expires.as_deref(), Some("90d"));
        assert!(!format!("{read:?}").contains("hunter2"), "{read:?}");
    }

    #[test]
    fn apply_document_errors_name_the_fault() {
        for (organization, message) in [
            (json!({"secret": {}}), "unknown field `secret`"),
            (
                json!({"secrets": {"a": "hunter2"}}),
                "unknown variant `(not a name)`, expected `env`",
            ),
            (json!({"root:*:20228": {}}), "unknown field `(not a name)`, expected one of `limits`"),
            (json!({"secrets": {"a": {"value": "x"}}}), "unknown variant `value`"),
            (json!({"secrets": {"a": {"file": "none"}}}), "/nowhere/none cannot be opened"),
            (json!({"keys": {"a": {"key": "smk_x"}}}), "unknown field `key`"),
            (json!({"keys": {"a": {"spend": 1}}}), "key a: unknown field `spend`"),
            (json!({"keys": {"a": {"models": "gpt"}}}), "key a: models: invalid type: string"),
            (json!({"keys": {"a": {"scopes": ["chats"]}}}), "key a: scopes"),
            (json!({"keys": {"a": {"budget_duration": "soon"}}}), "key a: budget_duration must be"),
            (json!({"workflows": {"a": {"name": "x"}}}), "workflow a: description is required"),
            (json!("a"), "organizations.acme: invalid type: string"),
            (json!({"secret": {}}), "organizations.acme.secret: unknown field `secret`"),
            (json!({"keys": ["a"]}), "organizations.acme.keys: invalid type: sequence"),
            (
                json!({"keys": {"a": {"expires": 5}}}),
                "organizations.acme.keys.a.expires: invalid type: integer `(not a name)`, expected a string",
            ),
            (
                json!({"chains": {"hunter2": [1]}}),
                "organizations.acme.chains.(not a name): invalid type: sequence, expected a map",
            ),
            (json!({"workflows": {"a": {"file": "x", "name": "y"}}}), "the only field"),
        ] {
            let text = refused(json!({"organizations": {"acme": organization}}));
            assert!(text.contains(message), "{text}");
        }
        assert!(refused(json!({"organisations": {}})).contains("unknown field `organisations`"));
        assert_eq!(
            refused(json!({"organizations": ["a"]})),
            "organizations: invalid type: sequence, expected a map"
        );
    }

    #[test]
    fn apply_document_errors_name_each_file_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orrery.yaml");
        std::fs::write(folder.path().join("flow.yaml"), "name: [").unwrap();
        let flow = "organizations: {acme: {workflows: {a: {file: flow.yaml}}}}";
        for (text, files) in [
            ("organizations: [", &["orrery.yaml"][..]),
            ("organizations: [a]", &["orrery.yaml"]),
            ("[]", &["orrery.yaml"]),
            (flow, &["orrery.yaml", "flow.yaml"]),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", Document::read(&path).unwrap_err());
            for file in files {
                assert_eq!(error.matches(file).count(), 1, "{error}");
            }
            assert!(error.matches("cannot be used").count() <= 1, "{error}");
        }
    }
}
