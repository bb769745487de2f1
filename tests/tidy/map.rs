//! Checks that the maps of the code agree: the drawing and the table in `src/lib.rs`, the drawing
//! in `docs/architecture.md`, and the permitted imports.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::LAYERS;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The lines of the first code block that opens with `fence`.
fn block<'t>(text: &'t str, fence: &str) -> Vec<&'t str> {
    let lines = text.lines().map(|line| line.strip_prefix("//!").unwrap_or(line).trim());
    let behind = lines.skip_while(|line| *line != fence).skip(1);
    behind.take_while(|line| *line != "```").collect()
}

/// The row of each module in a drawing, from the top. A module drawn twice counts at its last
/// place.
fn rows<'t>(drawing: &[&'t str]) -> BTreeMap<&'t str, usize> {
    let named = |(row, line): (usize, &&'t str)| line.split_whitespace().map(move |m| (m, row));
    drawing.iter().enumerate().flat_map(|row| named(row).collect::<Vec<_>>()).collect()
}

/// The modules in the first column of the table.
fn table(text: &str) -> Vec<&str> {
    let cells = text.lines().filter_map(|line| line.strip_prefix("//! | [`")?.split_once(" |"));
    let names = cells.flat_map(|(cell, _)| cell.split("[`"));
    names.filter_map(|name| Some(name.split_once("`]")?.0)).collect()
}

/// The faults of a drawing in which each row may import the rows below.
fn faults_of_rows(drawing: &[&str], layers: &[(&str, &[&str])]) -> Vec<String> {
    let rows = rows(drawing);
    let mut faults = Vec::new();
    for (module, imports) in layers {
        let Some(row) = rows.get(module) else {
            faults.push(format!("{module} is not drawn"));
            continue;
        };
        let above = imports.iter().filter(|import| rows.get(*import).is_some_and(|at| at <= row));
        faults.extend(above.map(|import| format!("{module} imports {import}, not below it")));
    }
    let is_layer = |name: &&&str| layers.iter().any(|(module, _)| module == *name);
    let unknown = rows.keys().filter(|name| !is_layer(name));
    faults.extend(unknown.map(|name| format!("{name} is drawn and is not a module")));
    faults
}

#[test]
fn map_drawing_in_crate_docs_matches_layers() {
    let text = read("src/lib.rs");
    let faults = faults_of_rows(&block(&text, "```text"), LAYERS);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn map_table_in_crate_docs_names_each_module_once() {
    let text = read("src/lib.rs");
    let mut named = table(&text);
    named.sort_unstable();
    let mut modules: Vec<&str> =
        LAYERS.iter().map(|(module, _)| *module).filter(|module| *module != "main").collect();
    modules.sort_unstable();
    assert_eq!(named, modules);
}

/// Nested modules that a text names in code style, such as `engine::submit`, and that do not exist.
fn missing_modules<'t>(text: &'t str, root: &Path) -> Vec<&'t str> {
    let paths = text.split('`').skip(1).step_by(2).filter(|path| path.contains("::"));
    let is_there = |path: &&str| {
        let file = root.join("src").join(path.replace("::", "/"));
        file.with_extension("rs").exists() || file.join("mod.rs").exists()
    };
    paths.filter(|path| !is_there(path)).collect()
}

#[test]
fn map_crate_docs_name_only_existing_modules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for path in ["src/lib.rs", "docs/architecture.md"] {
        assert_eq!(missing_modules(&read(path), root), [""; 0], "{path}");
    }
    assert_eq!(missing_modules("`domain::machine`, `domain::none`", root), ["domain::none"]);
}

#[test]
fn map_architecture_page_shows_each_module() {
    let text = read("docs/architecture.md");
    let drawing = block(&text, "```mermaid").join(" ");
    let is_part = |c: char| !(c.is_alphanumeric() || c == '_');
    let words: Vec<&str> = drawing.split(is_part).collect();
    for (module, _) in LAYERS {
        assert!(words.contains(module), "{module} is not in the drawing");
    }
}

#[test]
fn map_check_finds_contradicting_drawing() {
    const LAYERS: &[(&str, &[&str])] = &[("low", &[]), ("middle", &["low"]), ("top", &["middle"])];
    for (drawing, count) in [
        (vec!["top", "middle", "low"], 0),
        (vec!["top", "middle low"], 1),
        (vec!["middle", "top", "low"], 1),
        (vec!["top", "low"], 1),
        (vec!["top", "middle", "low other"], 1),
    ] {
        assert_eq!(faults_of_rows(&drawing, LAYERS).len(), count, "{drawing:?}");
    }
    let text = "//! | module | what |\n//! |---|---|\n//! | [`a`], [`b`] | x [`c`] |\n";
    assert_eq!(table(text), ["a", "b"]);
}
