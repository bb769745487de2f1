//! The accessibility tree of a page as text: role, name and state, one node per line.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// States listed after the role and the name.
const STATES: [&str; 10] = [
    "checked", "disabled", "expanded", "invalid", "modal", "pressed", "readonly", "required",
    "selected", "level",
];
/// Nodes that only repeat the text of their parent.
const REPEATED: [&str; 2] = ["InlineTextBox", "ListMarker"];

/// Returns the nodes listed by Chromium as text. Masks the parts that differ between runs.
pub(super) fn text_of(nodes: &Value) -> String {
    let all: HashMap<&str, &Value> = nodes
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (node["nodeId"].as_str().unwrap(), node))
        .collect();
    let mut text = String::new();
    if let Some(root) = nodes.get(0) {
        write(&all, root, 0, "", &mut text);
    }
    text
}

fn write(all: &HashMap<&str, &Value>, node: &Value, depth: usize, around: &str, text: &mut String) {
    let role = node["role"]["value"].as_str().unwrap_or_default();
    if REPEATED.contains(&role) {
        return;
    }
    let name = node["name"]["value"].as_str().unwrap_or_default();
    let is_bare =
        name.is_empty() && ["generic", "none", "paragraph", "LayoutTableRow"].contains(&role);
    let is_repeated = role == "StaticText" && name == around;
    let is_shown = node["ignored"] != true && !is_bare && !is_repeated;
    if is_shown {
        let states: String = node["properties"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|one| STATES.contains(&one["name"].as_str().unwrap_or_default()))
            .filter(|one| one["value"]["value"] != false && one["value"]["value"] != "false")
            .fold(String::new(), |mut states, one| {
                let _written =
                    write!(states, " {}={}", one["name"].as_str().unwrap(), one["value"]["value"]);
                states
            });
        let indent = "  ".repeat(depth);
        let name = masked(name);
        writeln!(text, "{indent}{role} {name:?}{}", states.replace('"', "")).unwrap();
    }
    let around = if is_shown { name } else { around };
    for child in node["childIds"].as_array().into_iter().flatten() {
        if let Some(child) = all.get(child.as_str().unwrap()) {
            write(all, child, depth + usize::from(is_shown), around, text);
        }
    }
}

/// Returns the name with masks for the parts that differ between runs: ids, times, durations,
/// numbers.
fn masked(name: &str) -> String {
    static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        [
            (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
            (r"\b[0-9a-f]{8,}\b", "ID"),
            (r"\bsmk_\w+", "KEY"),
            (r"\b[A-Z][a-z]{2} \d{1,2}, \d{4}, \d\d:\d\d:\d\d\b", "DATE"),
            (r"\b(\d{1,2} [A-Z][a-z]{2}|[A-Z][a-z]{2} \d{1,2}), (\d{4}|\d{2}:\d{2})\b", "DATE"),
            (r"\b[A-Z][a-z]{2} \d{4}\b", "MONTH"),
            (r"\bjust now\b|\b\d+ min ago\b", "AGO"),
            (r"\b\d+(\.\d+)? (ms|s|min|h|d)\b", "SPAN"),
            (r"\d+", "#"),
        ]
        .map(|(pattern, mask)| (Regex::new(pattern).unwrap(), mask))
        .into()
    });
    let mut name = name.to_owned();
    for (pattern, mask) in RULES.iter() {
        name = pattern.replace_all(&name, *mask).into_owned();
    }
    name
}
