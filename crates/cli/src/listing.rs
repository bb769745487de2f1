//! Handles lists and resources that the API returns as JSON: fetches the pages of a list, prints it
//! as a table, and finds a resource by its id or name. Commands whose routes have their own types
//! in `orrery_wire::operator` do not use this module.

use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::{Map, Value};

use super::admin::{Admin, segment};
use super::chain::query;
use super::output::{Column, Output};
use super::{Shape, file};
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_http::content;

/// Maximum size of a file with JSON, in bytes: the default limit of a request body.
const JSON_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The organization on whose behalf a command acts.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Owner {
    /// The organization
    #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
    org: String,
}

impl Owner {
    /// Returns a client that acts on behalf of the organization.
    pub(super) fn of(&self, mut admin: Admin) -> Admin {
        admin.act_for(&self.org);
        admin
    }
}

/// A column of a table, and JSON pointers to its value. The first value that is not null is shown.
pub(super) type Field = (Column, &'static [&'static str]);

/// A kind of resource with a list route.
pub(super) struct Kind {
    /// The path of the list.
    pub path: &'static str,
    /// The field of the response that contains the list.
    pub list: &'static str,
    /// The field with the resource's id.
    pub id: &'static str,
    /// The field with the resource's name, which users can give instead of the id.
    pub name: &'static str,
    /// The word for the resource in messages.
    pub noun: &'static str,
    /// The command that lists the resources.
    pub command: &'static str,
    /// The number of resources per page; 0 if the list has no pages.
    pub page: usize,
    pub fields: &'static [Field],
}

impl Kind {
    /// Returns all resources, or the first `most`.
    pub(super) async fn all(&self, admin: &Admin, most: usize) -> anyhow::Result<Vec<Value>> {
        let mut found: Vec<Value> = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let (offset, limit) = (found.len().to_string(), self.page.min(most).to_string());
            let asked = match &cursor {
                Some(cursor) => vec![("limit", limit.as_str()), ("cursor", cursor)],
                None if found.is_empty() => vec![("limit", limit.as_str())],
                None => vec![("limit", limit.as_str()), ("offset", &offset)],
            };
            let path = match self.page {
                0 => self.path.to_owned(),
                _ => format!("{}?{}", self.path, query(&asked)),
            };
            let mut answer = admin.get(&path).await?;
            let page = answer.get_mut(self.list).and_then(Value::as_array_mut).map(std::mem::take);
            let page =
                page.with_context(|| format!("the service's answer has no {}", self.list))?;
            let is_last = self.page == 0 || page.len() < self.page.min(most);
            found.extend(page);
            cursor = answer.get("next_cursor").and_then(Value::as_str).map(str::to_owned);
            let has_more = answer.get("has_more").is_none_or(|more| more == &Value::Bool(true));
            if is_last || !has_more || found.len() >= most {
                found.truncate(most);
                return Ok(found);
            }
        }
    }

    /// Prints resources as a table or, with `--json`, as an object with the list's field.
    pub(super) fn show(&self, resources: Vec<Value>, shape: Shape) -> anyhow::Result<()> {
        let columns: Vec<Column> = self.fields.iter().map(|(column, _)| *column).collect();
        let rows: Vec<Vec<String>> = resources.iter().map(|one| self.row(one)).collect();
        let whole = Map::from_iter([(self.list.to_owned(), Value::Array(resources))]);
        Output::new(shape.json).show(&whole, &columns, rows)
    }

    fn row(&self, resource: &Value) -> Vec<String> {
        let cell = |(_, pointers): &Field| {
            let values = pointers.iter().filter_map(|pointer| resource.pointer(pointer));
            values.map(text).find(|text| !text.is_empty()).unwrap_or_default()
        };
        self.fields.iter().map(cell).collect()
    }

    /// Returns the resource with this id or name.
    ///
    /// # Errors
    /// Returns an error if no resource has this id or name, or several resources have the name.
    pub(super) async fn find(&self, admin: &Admin, wanted: &str) -> anyhow::Result<Value> {
        self.only(self.all(admin, usize::MAX).await?, wanted)
    }

    fn only(&self, resources: Vec<Value>, wanted: &str) -> anyhow::Result<Value> {
        let (noun, command) = (self.noun, self.command);
        let is = |one: &Value, field: &str| one.get(field).and_then(Value::as_str) == Some(wanted);
        let mut named = Vec::new();
        for one in resources {
            if is(&one, self.id) {
                return Ok(one);
            }
            if is(&one, self.name) {
                named.push(one);
            }
        }
        if named.len() > 1 {
            let ids: Vec<String> =
                named.iter().filter_map(|one| one.get(self.id)).map(text).collect();
            bail!(
                "{} {noun}s are named {wanted}: give the id of one ({})",
                ids.len(),
                ids.join(", ")
            );
        }
        named.pop().with_context(|| {
            format!("no {noun} has the id or name {wanted}; `{command}` lists them")
        })
    }

    /// Returns the path of the resource with this id or name.
    pub(super) async fn path_of(&self, admin: &Admin, wanted: &str) -> anyhow::Result<String> {
        let found = self.find(admin, wanted).await?;
        let id = found.get(self.id).and_then(Value::as_str).unwrap_or_default();
        Ok(format!("{}/{}", self.path, segment(id)))
    }
}

/// Formats a value as the cell of a table.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// Parses JSON given as an argument, or as @FILE.
///
/// # Errors
/// Returns an error that names the argument.
pub(super) fn json_argument(argument: &str, given: &str) -> anyhow::Result<Value> {
    let text = match given.strip_prefix('@') {
        Some(path) => file::read_text(Path::new(path), JSON_BYTES_MAX)?,
        None => given.to_owned(),
    };
    content::parse(text.as_bytes()).with_context(|| format!("{argument} cannot be used"))
}

/// Creates a request body from the fields that have a value.
pub(super) fn body_of<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let given = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(given.collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const THINGS: Kind = Kind {
        path: "/things",
        list: "things",
        id: "id",
        name: "name",
        noun: "thing",
        command: "orrery thing list",
        page: 0,
        fields: &[
            (Column::Text("ID"), &["/id"]),
            (Column::Text("OF"), &["/of/none", "/of/one"]),
            (Column::Text("ON"), &["/on"]),
            (Column::Number("COUNT"), &["/count"]),
        ],
    };

    #[test]
    fn list_row_shows_first_value_that_is_there() {
        let one =
            json!({"id": "a", "of": {"none": null, "one": ["x", "y"]}, "on": true, "count": 7});
        assert_eq!(THINGS.row(&one), ["a", "x, y", "yes", "7"]);
        assert_eq!(THINGS.row(&json!({"id": "b"})), ["b", "", "", ""]);
    }

    #[test]
    fn resource_is_found_by_id_or_unique_name() {
        let all = || {
            ["a", "b", "c"]
                .map(|id| json!({"id": id, "name": if id == "a" { "b" } else { "n" }}))
                .to_vec()
        };
        let id = |wanted: &str| THINGS.only(all(), wanted).map(|one| one["id"].clone());
        assert_eq!(id("b").unwrap(), "b", "an id takes precedence over a name");
        let several = id("n").unwrap_err().to_string();
        assert_eq!(several, "2 things are named n: give the id of one (b, c)");
        assert!(id("z").unwrap_err().to_string().contains("`orrery thing list`"));
    }

    #[test]
    fn json_argument_is_text_or_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("input.json");
        std::fs::write(&path, "{\"a\": 1}").unwrap();
        let file = format!("@{}", path.display());
        assert_eq!(json_argument("--input", &file).unwrap(), json!({"a": 1}));
        assert_eq!(json_argument("--input", "[1]").unwrap(), json!([1]));
        let error = json_argument("--input", "{a").unwrap_err().to_string();
        assert_eq!(error, "--input cannot be used");
    }
}
