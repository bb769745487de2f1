//! `orrery workflow push`, `pull` and `diff`: workflows as files in a folder, one file each, for
//! version control.
//!
//! The fields of each file are compared with the workflow and its latest version on the service,
//! and the plan is printed before any change is sent.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use crate::admin::Admin;
use crate::chain::query;
use crate::diff::Texts;
use crate::{diff, file, output};
use orrery_domain::mask::MASKED;

/// The fields of a file, in the order in which they are written.
const FIELDS: [&str; 8] = [
    "name",
    "description",
    "categories",
    "tags",
    "locked",
    "production",
    "allowed_to_share",
    "definition",
];
/// Maximum number of files read from a folder and its subfolders.
const FILES_MAX: usize = 10_000;
/// Maximum nesting depth of folders.
const DEPTH_MAX: usize = 16;
/// Number of workflows fetched per request.
const PAGE: usize = 100;

/// A workflow as defined by a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    /// The file name without its extension, or the key in an `apply` file.
    pub(crate) slug: String,
    pub(crate) fields: Map<String, Value>,
}

/// A workflow on the service, with the fields that a file has.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Existing {
    id: String,
    slug: String,

    versions: Vec<String>,
    fields: Map<String, Value>,
}

/// One change to make to a workflow.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    Create(Wanted),
    Change {
        slug: String,
        id: String,
        /// The workflow's own fields that differ from the file.
        change: Map<String, Value>,
        /// The version to add.
        version: Option<(String, Map<String, Value>)>,
        texts: Texts,
    },
}

impl Wanted {
    /// Parses and validates the fields of a file. Omitted fields keep the service's values.
    pub(crate) fn read(slug: &str, value: Value) -> anyhow::Result<Self> {
        let Value::Object(given) = value else { bail!("it must be an object with {}", known()) };
        if let Some(unknown) = given.keys().find(|name| !FIELDS.contains(&name.as_str())) {
            let unknown = file::quotable(unknown);
            bail!("unknown field '{unknown}': expected one of {}", known());
        }
        for required in ["name", "description", "definition"] {
            if given.get(required).is_none_or(Value::is_null) {
                bail!("{required} is required");
            }
        }
        Ok(Self { slug: slug.to_owned(), fields: given })
    }
}

fn known() -> String {
    FIELDS.join(", ")
}

/// Returns the steps that make the service's workflows match `wanted`. Other workflows are not
/// touched.
pub(crate) fn plan(wanted: &[Wanted], existing: &[Existing]) -> anyhow::Result<Vec<Step>> {
    let mut steps = Vec::new();
    for one in wanted {
        let by_slug = existing.iter().find(|other| other.slug == one.slug);
        // The service derives a workflow's slug from its name, so a file for a new workflow may
        // have a file name that differs from the slug.
        let by_name = || {
            let named = |other: &&Existing| {
                other.fields.get("name") == one.fields.get("name")
                    && !wanted.iter().any(|file| file.slug == other.slug)
            };
            existing.iter().find(named)
        };
        match by_slug.or_else(by_name) {
            None => steps.push(Step::Create(one.clone())),
            Some(other) => steps.extend(difference(one, other)?),
        }
    }
    Ok(steps)
}

fn difference(wanted: &Wanted, existing: &Existing) -> anyhow::Result<Option<Step>> {
    let mut after = existing.fields.clone();
    for (name, value) in &wanted.fields {
        after.insert(name.clone(), value.clone());
    }
    let differs = |name: &&str| after.get(*name) != existing.fields.get(*name);
    let of_version = ["allowed_to_share", "definition"];
    let own: Vec<&str> = FIELDS
        .into_iter()
        .filter(|name| !of_version.contains(name))
        .filter(|name| differs(name))
        .collect();
    let needs_version = of_version.iter().any(differs);
    if own.is_empty() && !needs_version {
        return Ok(None);
    }
    let take = |name: &&str| Some(((*name).to_owned(), after.get(*name)?.clone()));
    let version = needs_version.then(|| {
        let id = next_version(&existing.versions);
        let mut fields: Map<String, Value> = of_version.iter().filter_map(take).collect();
        fields.insert("version_id".to_owned(), json!(id));
        (id, fields)
    });
    let texts = Texts { before: text_of(&existing.fields)?, after: text_of(&after)? };
    Ok(Some(Step::Change {
        slug: existing.slug.clone(),
        id: existing.id.clone(),
        change: own.iter().filter_map(take).collect(),
        version,
        texts,
    }))
}

/// Returns the next version id: `v` and the highest existing version number plus one.
fn next_version(versions: &[String]) -> String {
    let numbers = versions.iter().filter_map(|id| id.strip_prefix('v')?.parse::<u64>().ok());
    format!("v{}", numbers.max().unwrap_or(0).saturating_add(1))
}

/// Formats the fields in the order of a file, without empty fields.
fn text_of(fields: &Map<String, Value>) -> anyhow::Result<String> {
    let mut ordered = Map::new();
    for name in FIELDS {
        if let Some(value) = fields.get(name).filter(|value| !is_default(name, value)) {
            ordered.insert(name.to_owned(), value.clone());
        }
    }
    file::to_yaml(&Value::Object(ordered))
}

fn is_default(name: &str, value: &Value) -> bool {
    match name {
        "categories" | "tags" => value.as_array().is_some_and(Vec::is_empty),
        "locked" | "production" | "allowed_to_share" => value == &Value::Bool(false),
        _ => false,
    }
}

impl Step {
    /// Formats this step as one line of the plan.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Create(wanted) => format!("create workflow {}", wanted.slug),
            Self::Change { slug, change, version, .. } => {
                let mut parts: Vec<String> = change.keys().cloned().collect();
                parts.extend(version.iter().map(|(id, _)| format!("version {id}")));
                format!("change workflow {slug}: {}", parts.join(", "))
            }
        }
    }

    /// Returns the workflow before and after the step, as YAML.
    pub(crate) fn texts(&self) -> anyhow::Result<Texts> {
        Ok(match self {
            Self::Create(wanted) => Texts { after: text_of(&wanted.fields)?, ..Texts::default() },
            Self::Change { texts, .. } => texts.clone(),
        })
    }

    /// Formats the change as a diff.
    pub(crate) fn diff(&self, in_colour: bool) -> anyhow::Result<String> {
        let name = match self {
            Self::Create(wanted) => &wanted.slug,
            Self::Change { slug, .. } => slug,
        };
        let Texts { before, after } = self.texts()?;
        let old = format!("service/{name}");
        let new = format!("file/{name}");
        Ok(diff::unified(&old, &before, &new, &after, in_colour))
    }

    /// Applies the step and returns the workflow's slug.
    pub(crate) async fn apply(&self, admin: &Admin) -> anyhow::Result<String> {
        match self {
            Self::Create(wanted) => {
                let mut body = wanted.fields.clone();
                let is_shared = body.remove("allowed_to_share") == Some(Value::Bool(true));
                // A locked workflow rejects changes, so the lock is set last.
                let lock = if is_shared { body.remove("locked") } else { None };
                let path = "/api/workflows/api/v1/workflows";
                let made = admin.post(path, &Value::Object(body.clone())).await?;
                let slug = made.get("slug").and_then(Value::as_str).unwrap_or_default().to_owned();
                if is_shared {
                    let version = made.get("latest_version_id").and_then(Value::as_str);
                    let version = version.unwrap_or("v1");
                    let take = |name: &str| Some((name.to_owned(), body.get(name)?.clone()));
                    let mut shared: Map<String, Value> =
                        ["definition", "production"].into_iter().filter_map(take).collect();
                    shared.insert("version_id".to_owned(), json!(version));
                    shared.insert("allowed_to_share".to_owned(), json!(true));
                    let version = format!("{path}/{slug}/versions/{version}");
                    admin.put(&version, &Value::Object(shared)).await?;
                }
                if let Some(lock) = lock.filter(|lock| *lock == Value::Bool(true)) {
                    admin.put(&format!("{path}/{slug}"), &json!({ "locked": lock })).await?;
                }
                Ok(slug)
            }
            Self::Change { slug, id, change, version, .. } => {
                let path = format!("/api/workflows/api/v1/workflows/{id}");
                // The workflow is unlocked in a separate request before the change, and locked
                // again after it.
                let mut change = change.clone();
                let locks = change.get("locked") == Some(&Value::Bool(true));
                if change.get("locked") == Some(&Value::Bool(false)) {
                    let unlock = json!({"locked": change.shift_remove("locked")});
                    admin.put(&path, &unlock).await?;
                }
                if !change.is_empty() && !locks {
                    admin.put(&path, &Value::Object(change.clone())).await?;
                }
                if let Some((version, fields)) = version {
                    let body = Value::Object(fields.clone());
                    admin.put(&format!("{path}/versions/{version}"), &body).await?;
                }
                if locks {
                    admin.put(&path, &Value::Object(change.clone())).await?;
                }
                Ok(slug.clone())
            }
        }
    }
}

/// Returns the workflows of the organization, each with the definition of its latest version.
pub(crate) async fn existing(admin: &Admin) -> anyhow::Result<Vec<Existing>> {
    let mut found = Vec::new();
    loop {
        let offset = found.len().to_string();
        let limit = PAGE.to_string();
        let asked = [
            ("limit", &*limit),
            ("offset", &*offset),
            ("sort_key", "created_at"),
            ("sort_direction", "asc"),
        ];
        let page = admin.get(&format!("/api/workflows/api/v1/workflows?{}", query(&asked))).await?;
        let workflows = page.get("workflows").and_then(Value::as_array).cloned();
        let workflows = workflows.unwrap_or_default();
        let is_last = workflows.len() < PAGE;
        for workflow in workflows {
            found.push(with_definition(admin, &workflow).await?);
        }
        if is_last {
            return Ok(found);
        }
    }
}

async fn with_definition(admin: &Admin, workflow: &Value) -> anyhow::Result<Existing> {
    let text = |name: &str| {
        let value = workflow.get(name).and_then(Value::as_str).map(str::to_owned);
        value.with_context(|| format!("the service's answer has no {name}"))
    };
    let (id, latest) = (text("workflow_id")?, text("latest_version_id")?);
    let path = format!("/api/workflows/api/v1/workflows/{id}/versions/{latest}");
    let version = admin.get(&path).await?;
    let mut fields = Map::new();
    for name in FIELDS {
        let of_version = ["allowed_to_share", "definition"].contains(&name);
        let source = if of_version { &version } else { workflow };
        fields.insert(name.to_owned(), source.get(name).cloned().unwrap_or_default());
    }
    let versions = workflow.get("versions").and_then(Value::as_array).into_iter().flatten();
    let id_of = |version: &Value| Some(version.get("version_id")?.as_str()?.to_owned());
    Ok(Existing { slug: text("slug")?, id, versions: versions.filter_map(id_of).collect(), fields })
}

/// Lists the workflow files in a folder and its subfolders, sorted by path. Hidden files and
/// folders are skipped.
fn files_of(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut folders = vec![(root.to_owned(), 0)];
    let mut files = Vec::new();
    while let Some((folder, depth)) = folders.pop() {
        let shown = folder.display();
        let listed = fs::read_dir(&folder).with_context(|| format!("{shown} cannot be read"))?;
        for entry in listed {
            let entry = entry.with_context(|| format!("{shown} cannot be read"))?;
            let path = entry.path();
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if depth == DEPTH_MAX {
                    bail!("{} is more than {DEPTH_MAX} folders deep", path.display());
                }
                folders.push((path, depth + 1));
            } else if ["yaml", "yml", "json"].contains(&file::extension(&path).as_str()) {
                if files.len() == FILES_MAX {
                    bail!("{} has more than {FILES_MAX} files", folder.display());
                }
                file::check_within(&path, root)?;
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Reads the workflows in a folder's files, by slug.
fn read_folder(folder: &Path) -> anyhow::Result<BTreeMap<String, (PathBuf, Wanted)>> {
    let mut found = BTreeMap::new();
    for path in files_of(folder)? {
        let Some(slug) = path.file_stem().and_then(OsStr::to_str) else { continue };
        let wanted = Wanted::read(slug, file::read(&path)?);
        let wanted = wanted.with_context(|| format!("{} cannot be used", path.display()))?;
        if let Some((other, _)) = found.insert(slug.to_owned(), (path.clone(), wanted)) {
            bail!("{} and {} are the same workflow", other.display(), path.display());
        }
    }
    Ok(found)
}

async fn planned(admin: &Admin, folder: &Path) -> anyhow::Result<Vec<Step>> {
    let files = read_folder(folder)?;
    if files.is_empty() {
        let shown = folder.display();
        output::note(&format!("{shown} has no files that end with .yaml, .yml or .json."));
    }
    let wanted: Vec<Wanted> = files.into_values().map(|(_, wanted)| wanted).collect();
    plan(&wanted, &existing(admin).await?)
}

pub(super) async fn push(admin: &Admin, folder: &Path, dry_run: bool) -> anyhow::Result<()> {
    let steps = planned(admin, folder).await?;
    for step in &steps {
        output::line(&step.line())?;
    }
    if steps.is_empty() {
        output::note("Nothing to do: the service matches the files.");
        return Ok(());
    }
    if dry_run {
        output::note("Nothing was changed: this is a dry run.");
        return Ok(());
    }
    for step in &steps {
        let slug = step.apply(admin).await.with_context(|| step.line())?;
        if let Step::Create(wanted) = step
            && wanted.slug != slug
        {
            let from = &wanted.slug;
            output::note(&format!("The workflow of the file {from} has the slug {slug}."));
        }
    }
    output::note(&format!("Done: {} changed.", steps.len()));
    Ok(())
}

pub(super) async fn show_diff(admin: &Admin, folder: &Path) -> anyhow::Result<()> {
    let in_colour = output::in_colour(&std::io::stdout());
    for step in planned(admin, folder).await? {
        output::raw(step.diff(in_colour)?.as_bytes())?;
    }
    Ok(())
}

pub(super) async fn pull(admin: &Admin, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)
        .with_context(|| format!("{} cannot be created", folder.display()))?;
    let files = read_folder(folder)?;
    let (mut written, mut masked) = (0, Vec::new());
    for workflow in existing(admin).await? {
        let text = text_of(&workflow.fields)?;
        let known = files.get(&workflow.slug);
        // A file with equivalent contents is not rewritten, so that it keeps its formatting and
        // comments.
        if let Some((_, wanted)) = known
            && difference(wanted, &workflow)?.is_none()
        {
            continue;
        }
        let default = folder.join(format!("{}.yaml", workflow.slug));
        let path = known.map_or(&default, |(path, _)| path);
        let text = match file::extension(path).as_str() {
            "json" => format!("{:#}\n", file::yaml(&text)?),
            _ => text,
        };
        replace(path, &text)?;
        if text.contains(MASKED) {
            masked.push(workflow.slug.clone());
        }
        written += 1;
        output::line(&path.display().to_string())?;
    }
    output::note(&format!("Done: {written} written."));
    if !masked.is_empty() {
        output::note(&format!(
            "Credentials of {} are written as {MASKED}: a push keeps the service's values. Named secrets \
             ({{{{secrets.NAME}}}}) need no mask.",
            masked.join(", ")
        ));
    }
    Ok(())
}

/// Replaces a file atomically.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let shown = path.display();
    let part = path.with_extension("part");
    fs::write(&part, text)
        .and_then(|()| fs::rename(&part, path))
        .with_context(|| format!("{shown} cannot be written"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workflow_files_are_found_in_subfolders_and_in_any_case() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let text = "{name: a, description: d, definition: {steps: []}}";
        for name in ["one.YAML", "two.Yml", "sub/three.yaml", "sub/deep/four.json"] {
            let json = "{\"name\": \"a\", \"description\": \"d\", \"definition\": {}}";
            file(name, if name.ends_with("json") { json } else { text });
        }
        for name in [".git/config.yaml", ".hidden.yaml", "readme.md"] {
            file(name, "no workflow");
        }
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
        };
        link("sub/three.yaml", "five.yaml");
        let found: Vec<String> = read_folder(folder.path()).unwrap().into_keys().collect();
        assert_eq!(found, ["five", "four", "one", "three", "two"]);
        file("sub/one.yaml", text);
        let error = read_folder(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("are the same workflow"), "{error}");
        link("/etc/passwd", ".out");
        for name in ["out.yaml", "sub/out.json"] {
            link(&folder.path().join(".out").display().to_string(), name);
            let error = read_folder(folder.path()).unwrap_err().to_string();
            assert!(error.contains(&format!("{name} is outside")), "{error}");
            fs::remove_file(folder.path().join(name)).unwrap();
        }
    }

    fn fields(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    fn existing(slug: &str, definition: &Value) -> Existing {
        Existing {
            id: format!("id of {slug}"),
            slug: slug.to_owned(),
            versions: vec!["v1".to_owned(), "v10".to_owned(), "draft".to_owned()],
            fields: fields(json!({
                "name": slug, "description": "d", "categories": [], "tags": ["a"], "locked": false,
                "production": false, "allowed_to_share": false, "definition": definition,
            })),
        }
    }

    fn wanted(slug: &str, value: Value) -> Wanted {
        Wanted::read(slug, value).unwrap()
    }

    #[test]
    fn workflow_plan_contains_only_differences() {
        let steps = json!({"steps": []});
        let there = [existing("one", &steps), existing("two", &steps)];
        let same = json!({"name": "one", "description": "d", "definition": steps});
        assert_eq!(plan(&[wanted("one", same.clone())], &there).unwrap(), []);
        let changed = json!({"name": "one", "description": "new", "definition": {"steps": [1]}});
        let planned = plan(&[wanted("one", changed)], &there).unwrap();
        let lines: Vec<String> = planned.iter().map(Step::line).collect();
        assert_eq!(lines, ["change workflow one: description, version v11"]);
        let diff = planned[0].diff(false).unwrap();
        assert!(diff.contains("-description: d\n+description: new\n"), "{diff}");
        let other = json!({"name": "three", "description": "d", "definition": steps});
        let planned = plan(&[wanted("three", other)], &there).unwrap();
        assert_eq!(planned[0].line(), "create workflow three");
        // If the file name is not a slug, the file matches the workflow with the same `name`,
        // unless another file has the slug of that workflow.
        assert_eq!(plan(&[wanted("1-one", same.clone())], &there).unwrap(), []);
        let both = [wanted("1-one", same.clone()), wanted("one", same)];
        assert_eq!(plan(&both, &there).unwrap().len(), 1);
    }

    #[test]
    fn workflow_file_with_unknown_or_missing_fields_is_rejected() {
        for (value, message) in [
            (json!([]), "it must be an object with name, "),
            (json!({"name": "a", "steps": []}), "unknown field 'steps': expected one of name, "),
            (json!({"name": "a", "description": "d"}), "definition is required"),
        ] {
            let refused = Wanted::read("a", value).unwrap_err().to_string();
            assert!(refused.starts_with(message), "{refused}");
        }
    }
}
