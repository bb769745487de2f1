//! Checks that the maps of the code name every crate: the table and the drawing in `src/main.rs`, and
//! the drawing in `docs/architecture.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// Returns the folders in `crates/`, each with the crates that its manifest lists as dependencies.
fn crates() -> BTreeMap<String, BTreeSet<String>> {
    let folders = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let named = folders.map(|folder| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let normal = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        let own = normal.lines().filter_map(|line| line.strip_prefix("orrery-"));
        let own = own.filter_map(|rest| rest.split(['.', ' ']).next()).map(str::to_owned).collect();
        (folder.file_name().unwrap().to_string_lossy().into_owned(), own)
    });
    named.collect()
}

/// Returns the lines of the first code block that opens with `fence`.
fn block<'t>(text: &'t str, fence: &str) -> Vec<&'t str> {
    let lines = text.lines().map(|line| line.strip_prefix("//!").unwrap_or(line).trim());
    let behind = lines.skip_while(|line| *line != fence).skip(1);
    behind.take_while(|line| *line != "```").collect()
}

/// Returns the names in the first column of the table.
fn table(text: &str) -> Vec<&str> {
    let cells = text.lines().filter_map(|line| line.strip_prefix("//! | `")?.split_once("` |"));
    cells.map(|(name, _)| name).collect()
}

/// Returns dependencies that the drawing does not show below their dependents, and crates that are
/// missing from it.
fn faults(drawing: &[&str], crates: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let named = |(row, line): (usize, &&str)| -> Vec<(String, usize)> {
        line.split_whitespace().map(|name| (name.to_owned(), row)).collect()
    };
    let rows: BTreeMap<String, usize> = drawing.iter().enumerate().flat_map(named).collect();
    let mut faults = Vec::new();
    for (name, dependencies) in crates {
        let Some(row) = rows.get(name) else {
            faults.push(format!("{name} is not drawn"));
            continue;
        };
        for below in dependencies.iter().filter(|other| rows.get(*other).is_none_or(|at| at <= row))
        {
            faults.push(format!("{name} depends on {below}, which is not drawn below it"));
        }
    }
    faults
}

#[test]
fn map_drawing_shows_each_crate_above_its_dependencies() {
    let text = read("src/main.rs");
    let crates = crates();
    assert!(crates.len() > 15, "only {} crates found", crates.len());
    assert_eq!(faults(&block(&text, "```text"), &crates), [""; 0]);
}

#[test]
fn map_table_names_each_crate_once() {
    let text = read("src/main.rs");
    let mut named = table(&text);
    named.sort_unstable();
    assert_eq!(named, crates().keys().collect::<Vec<_>>());
}

#[test]
fn map_architecture_page_shows_each_crate() {
    let text = read("docs/architecture.md");
    let drawing = block(&text, "```mermaid").join(" ");
    let is_part = |c: char| !(c.is_alphanumeric() || c == '_');
    let words: Vec<&str> = drawing.split(is_part).collect();
    for name in crates().keys() {
        assert!(words.contains(&name.as_str()), "{name} is not in the drawing");
    }
}

#[test]
fn map_check_finds_contradicting_drawing() {
    let of = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    let crates: BTreeMap<String, BTreeSet<String>> =
        [("low", of(&[])), ("middle", of(&["low"])), ("top", of(&["middle"]))]
            .map(|(name, below)| (name.to_owned(), below))
            .into();
    for (drawing, count) in [
        (vec!["top", "middle", "low"], 0),
        (vec!["top", "middle low"], 1),
        (vec!["middle", "top", "low"], 1),
        (vec!["top", "low"], 2),
    ] {
        assert_eq!(faults(&drawing, &crates).len(), count, "{drawing:?}");
    }
    assert_eq!(table("//! | crate | purpose |\n//! |---|---|\n//! | `a` | x `c` |\n"), ["a"]);
}
