//! Checks the scripts of the dashboard and of the documentation: no code or markup is created from
//! text, no other origin is used, and vendored files match `static/vendor/README.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::tree::files_below;

/// Strings forbidden in scripts and the page, and why.
const FORBIDDEN: &[(&str, &str)] = &[
    ("innerHTML", "put text in as text"),
    ("outerHTML", "put text in as text"),
    ("insertAdjacentHTML", "put text in as text"),
    ("document.write", "put text in as text"),
    ("eval(", "text is not code"),
    ("new Function", "text is not code"),
    ("style=\"", "the policy forbids inline styles: use a class, or an object of properties"),
    ("style='", "as above"),
    ("javascript:", "a link leads to an address"),
    ("onclick=", "the policy forbids inline code"),
    ("src=\"http", "nothing comes from another origin"),
    ("import(\"http", "nothing comes from another origin"),
    ("from \"http", "nothing comes from another origin"),
    ("fetch(\"http", "nothing is asked of another origin"),
];
/// Maximum number of lines in a script, the same as for source files: the formatter puts each
/// statement on its own line.
const LINES_MAX: usize = 600;

fn faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for (forbidden, instead) in FORBIDDEN.iter().filter(|(word, _)| line.contains(word)) {
            faults.push(format!("line {number}: {forbidden}: {instead}"));
        }
    }
    faults
}

#[test]
fn pages_contain_no_code_from_text_and_nothing_from_outside() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = workspace.join("static").canonicalize().unwrap();
    let mut found = Vec::new();
    let mut scripts = 0;
    let mut files = files_below(&root, &["js", "html", "css"]);
    files.extend(files_below(&workspace.join("packaging/site"), &["js", "hbs", "css"]));
    for path in files.into_iter().filter(|path| !path.starts_with(root.join("vendor"))) {
        scripts += 1;
        let name = path.display();
        let text = fs::read_to_string(&path).unwrap();
        found.extend(faults(&text).iter().map(|fault| format!("{name}: {fault}")));
        if text.lines().count() > LINES_MAX {
            found.push(format!("{name}: more than {LINES_MAX} lines: split it"));
        }
        let is_script = path.extension().is_some_and(|ending| ending == "js");
        if is_script && !text.starts_with("// ") {
            found.push(format!("{name}: it does not open with what it is"));
        }
        // Code may be loaded only from this folder, by relative paths, because the page may be
        // served below a path.
        for part in text.split(" from \"").skip(1) {
            let target = part.split('"').next().unwrap_or_default();
            let is_relative = target.starts_with("./") || target.starts_with("../");
            let target = path.parent().unwrap().join(target).canonicalize();
            let is_here = target.is_ok_and(|target| target.starts_with(&root));
            if is_script && !(is_relative && is_here) {
                found.push(format!("{name}: it imports what is not in static/"));
            }
        }
    }
    assert!(scripts > 10, "only {scripts} files found");
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn pages_rules_find_bad_snippets() {
    for bad in FORBIDDEN.iter().map(|(word, _)| *word) {
        assert!(!faults(&format!("x = {bad}")).is_empty(), "{bad}");
    }
    assert!(faults("style=${{ left: 0 }} fetch(path)").is_empty());
}

#[test]
fn pages_vendored_code_has_the_recorded_hash() {
    let vendor = Path::new(env!("CARGO_MANIFEST_DIR")).join("static/vendor");
    let readme = fs::read_to_string(vendor.join("README.md")).unwrap();
    for path in files_below(&vendor, &["js"]) {
        let mut hash = String::new();
        for byte in Sha256::digest(fs::read(&path).unwrap()) {
            write!(hash, "{byte:02x}").unwrap();
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let recorded = format!("SHA-256 of `{name}`: `{hash}`");
        assert!(readme.contains(&recorded), "{name} is not the recorded one: {hash}");
    }
}
