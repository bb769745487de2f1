//! The pages about the operator's files: the configuration and the model manifests.

use serde_json::Value;

use super::page::{Page, escape, outside_code};
use super::types;
use crate::manual::{Block, blocks};

pub(super) fn configuration() -> String {
    let schema = orrery_app::schema("config");
    let mut page = Page::new("Configuration reference", "config.example.toml and its schema");
    page.text(
        "The file is TOML; [Your first setting](../install.md#your-first-setting) says where it is. \
         A key that is not set has its default. `orrery config show` prints the effective settings, `orrery \
         check` reports mistakes, and `orrery schema config` prints the JSON Schema for editors. \
         `orrery serve --set KEY=VALUE` sets one key.",
    );
    let (mut section, mut rows) = (String::new(), Vec::new());
    for block in blocks() {
        if !matches!(block, Block::Keys { .. }) {
            page.table(KEY_HEAD, &std::mem::take(&mut rows));
        }
        match block {
            Block::Section(name) => {
                section = name.trim_matches(['[', ']']).to_owned();
                page.heading(2, name);
            }
            Block::Text(lines) => page.text(&prose(&lines.join(" "))),
            Block::Keys { keys, comment } => {
                rows.push(key_row(&schema, &section, &keys, &comment.join(" ")));
            }
        }
    }
    page.table(KEY_HEAD, &rows);
    page.finish()
}

const KEY_HEAD: [&str; 4] = ["key", "type", "default", "meaning"];

/// Returns the table row for keys that share one comment. `keys` contains lines of the example,
/// each with whether the key is off by default.
fn key_row(schema: &Value, section: &str, keys: &[(&str, bool)], comment: &str) -> [String; 4] {
    let mut cells = [const { Vec::new() }; 3];
    for (line, is_off) in keys {
        let (name, rest) = line.split_once(" = ").unwrap_or((line, ""));
        let path = if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") };
        let found = path.split('.').try_fold(schema, |place, part| place["properties"].get(part));
        cells[0].push(format!("`{name}`"));
        cells[1].push(found.map(types::of).unwrap_or_default());
        // The default or, for a key that is off, the example value. A comment may follow the value.
        let value = rest.split("  #").next().unwrap_or_default().trim();
        let value = if value.ends_with(['[', '{']) { "see the example" } else { value };
        cells[2].push(if *is_off {
            format!("none; such as `{value}`")
        } else {
            format!("`{value}`")
        });
    }
    let [names, kinds, values] = cells;
    let joined = |cells: Vec<String>| cells.join("<br>");
    [joined(names), joined(kinds), joined(values), prose(comment)]
}

pub(super) fn manifest() -> String {
    let schema = orrery_app::schema("manifest");
    let mut page = Page::new("Manifest reference", "the schema of manifests");
    page.text(
        "A manifest is a TOML file in `models_dir` that describes a model: [Models](../models.md) \
         shows examples for each runner. `orrery model check FILE` reports mistakes, and `orrery \
         schema manifest` prints the JSON Schema for editors.",
    );
    page.heading(2, "Keys of every manifest");
    page.table(FIELD_HEAD, &rows(&schema, &["cost", "runner"]));
    for (table, title) in [("cost", "Cost"), ("runner", "Runner")] {
        let of_table = &schema["properties"][table];
        page.heading(2, &format!("{title}: [{table}]"));
        page.text(&prose(of_table["description"].as_str().unwrap_or_default()));
        for variant in of_table["oneOf"].as_array().into_iter().flatten() {
            let name = variant["properties"]["type"]["const"].as_str().unwrap_or_default();
            page.heading(3, &format!("type = \"{name}\""));
            page.text(&prose(variant["description"].as_str().unwrap_or_default()));
            page.table(FIELD_HEAD, &rows(variant, &["type"]));
        }
    }
    page.finish()
}

const FIELD_HEAD: [&str; 3] = ["key", "type", "meaning"];

/// Returns the rows for the keys of a TOML table, except the keys in `except`.
fn rows(schema: &Value, except: &[&str]) -> Vec<[String; 3]> {
    let fields = types::fields(schema).into_iter();
    let fields = fields.filter(|field| !except.contains(&field.path.as_str()));
    let row = |field: types::Field<'_>| {
        let required = if field.is_required { "; required" } else { "" };
        let kind = format!("{}{required}", types::of(field.schema));
        assert!(!field.description().is_empty(), "{}: no description", field.path);
        [format!("`{}`", field.path), kind, prose(field.description())]
    };
    fields.map(row).collect()
}

fn prose(text: &str) -> String {
    outside_code(text, &escape)
}
