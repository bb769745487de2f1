//! Checks references from code to documents and links between documents: each must lead to an
//! existing file and heading.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::tree::files_below;

/// Folders whose text files may refer to documents.
const FOLDERS: [&str; 5] = ["src", "crates", "tests", "benches", "docs"];
/// Extensions of files in the root folder that may refer to documents.
const ENDINGS: &[&str] = &["rs", "md", "toml", "py"];
const FILES: [&str; 5] =
    ["README.md", "CONTRIBUTING.md", "SECURITY.md", "config.example.toml", "clippy.toml"];
/// This file: its tables contain wrong references on purpose.
const OWN: &str = "tests/tidy/docs.rs";
/// Documents outside `docs/` that texts refer to.
const OTHER_DOCUMENTS: [&str; 3] = ["CONTRIBUTING.md", "benches/README.md", "tests/README.md"];
/// The path with which code refers to the specification.
const SPEC: &str = "spec/";
/// Prefixes of the paths that a document names in code style.
const PATHS: [&str; 9] =
    ["src/", "crates/", "tests/", "docs/", "benches/", "fuzz/", ".ci/", ".github/", "static/"];

/// A document that a text refers to, with the headings named.
#[derive(Debug, PartialEq, Eq)]
struct Reference {
    path: String,
    headings: Vec<String>,
}

/// Joins a comment's lines, so that references that span two lines are found.
fn joined(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for line in text.lines() {
        let line = line.trim();
        let bare = ["//!", "///", "//", "#"].iter().find_map(|sign| line.strip_prefix(sign));
        joined.push_str(bare.unwrap_or(line).trim());
        joined.push(' ');
    }
    joined
}

/// Returns the references in a text, written as `` `docs/FILE.md`, "Heading" and "Heading" ``.
fn references(text: &str) -> Vec<Reference> {
    let text = joined(text);
    let mut found = Vec::new();
    for (at, _) in text.match_indices('`') {
        let Some((path, mut behind)) = text[at + 1..].split_once('`') else { continue };
        let is_document = path.starts_with("docs/") || OTHER_DOCUMENTS.contains(&path);
        if !is_document || !path.ends_with(".md") || path.contains([' ', '<']) {
            continue;
        }
        let mut headings = Vec::new();
        while let Some(rest) =
            behind.strip_prefix(", \"").or_else(|| behind.strip_prefix(" and \""))
            && let Some((heading, rest)) = rest.split_once('"')
        {
            headings.push(heading.to_owned());
            behind = rest;
        }
        found.push(Reference { path: path.to_owned(), headings });
    }
    found
}

/// Returns the headings of a document.
fn headings(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        if !is_code && let Some(heading) = line.strip_prefix('#') {
            found.insert(heading.trim_start_matches('#').trim().to_owned());
        }
    }
    found
}

/// Returns the anchor of a heading: in lower case, with hyphens for spaces and no other
/// punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Returns the targets of a document's links within the repository: `path#anchor`.
fn links(text: &str) -> Vec<&str> {
    let ends = text.match_indices("](").filter_map(|(at, _)| text[at + 2..].split_once(')'));
    let targets = ends.map(|(target, _)| target);
    targets.filter(|target| !target.contains(':') && !target.contains(' ')).collect()
}

/// Returns the repository paths that a document names in code style; characters such as `<` or `*`
/// mark a pattern.
fn paths(text: &str) -> Vec<&str> {
    let inside = text.split('`').skip(1).step_by(2);
    let of_here = inside.filter(|path| PATHS.iter().any(|start| path.starts_with(start)));
    of_here.filter(|path| !path.contains(|c: char| "<>*{} …\n".contains(c))).collect()
}

/// Returns whether a line is a marker of an unfinished merge.
fn is_conflict(line: &str) -> bool {
    ["<<<<<<< ", ">>>>>>> "].iter().any(|marker| line.starts_with(marker))
}

/// Returns the invalid references in the file at `path`, and its markers of unfinished merges.
fn faults(root: &Path, path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let read = |path: &str| fs::read_to_string(root.join(path));
    let is_document = path.ends_with(".md");
    let mut to_spec = 0;
    faults.extend(text.lines().filter(|line| is_conflict(line)).map(str::to_owned));
    for Reference { path, headings: named } in references(text) {
        to_spec += usize::from(path.starts_with("docs/spec/"));
        let Ok(document) = read(&path) else {
            faults.push(format!("{path} is not there"));
            continue;
        };
        if named.is_empty() && path.starts_with("docs/spec/") && !is_document {
            faults.push(format!("{path}: name a heading: `{path}`, \"Heading\""));
        }
        let there = headings(&document);
        let missing = named.iter().filter(|heading| !there.contains(*heading));
        faults.extend(missing.map(|heading| format!("{path} has no heading \"{heading}\"")));
    }
    if !is_document && joined(text).matches(SPEC).count() > to_spec {
        faults.push("refer to the contract as `docs/spec/FILE.md`, \"Heading\"".to_owned());
    }
    if !is_document {
        return faults;
    }
    for link in links(text) {
        let (file, wanted) = link.split_once('#').unwrap_or((link, ""));
        let folder = Path::new(path).parent().unwrap_or(Path::new(""));
        let target = if file.is_empty() { PathBuf::from(path) } else { folder.join(file) };
        let Ok(document) = fs::read_to_string(root.join(&target)) else {
            if !root.join(&target).exists() {
                faults.push(format!("the link {link} leads nowhere"));
            }
            continue;
        };
        let leads = wanted.is_empty() || headings(&document).iter().any(|h| anchor(h) == wanted);
        if !leads {
            faults.push(format!("the link {link} leads to no heading"));
        }
    }
    let missing = paths(text).into_iter().filter(|path| !root.join(path).exists());
    faults.extend(missing.map(|path| format!("{path} is not there")));
    faults
}

/// Returns the blocks that copy examples without saying that this needs a clone: an installed
/// package has no `docs/examples/`.
fn copies_without_clone(text: &str) -> Vec<&str> {
    let parts: Vec<&str> = text.split("\n\n").collect();
    let pairs = parts.windows(2).filter_map(|pair| Some((pair.first()?, pair.get(1)?)));
    let copies = |block: &str| block.starts_with("```") && block.contains("cp docs/examples/");
    let unsaid = pairs.filter(|(before, block)| copies(block) && !has_clone(before));
    let first = parts.first().filter(|block| copies(block));
    first.into_iter().copied().chain(unsaid.map(|(_, block)| *block)).collect()
}

fn has_clone(text: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric()).any(|word| word == "clone")
}

#[test]
fn docs_say_which_blocks_need_a_clone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = files_below(&root.join("docs"), &["md"]);
    pages.push(root.join("README.md"));
    let mut copies = 0;
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        copies += text.matches("cp docs/examples/").count();
        assert_eq!(copies_without_clone(&text), [""; 0], "{}", page.display());
    }
    assert!(copies >= 4, "only {copies} blocks found");
    let block = "```sh\ncp docs/examples/a.toml .\n```";
    for (text, faults) in [
        (format!("Paste this in a clone of it:\n\n{block}"), 0),
        (format!("Paste this:\n\n{block}"), 1),
        (format!("The cyclone:\n\n{block}\n\nA clone.\n\n{block}"), 1),
        (block.to_owned(), 1),
        ("Paste this:\n\n```sh\ncp a b\n```".to_owned(), 0),
    ] {
        assert_eq!(copies_without_clone(&text).len(), faults, "{text}");
    }
}

/// Returns the pages that a page links to.
fn linked(root: &Path, page: &Path) -> BTreeSet<PathBuf> {
    let text = fs::read_to_string(page).unwrap();
    let files = links(&text).into_iter().filter_map(|link| link.split('#').next());
    let pages = files.filter(|file| file.ends_with(".md"));
    let path = |file: &str| page.parent().unwrap().join(file).canonicalize().unwrap();
    pages.map(path).filter(|path| path.starts_with(root.join("docs"))).collect()
}

#[test]
fn contents_lead_to_every_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap();
    let contents = root.join("docs/README.md");
    let mut found = linked(&root, &contents);
    for folder in found.clone().iter().filter(|page| page.ends_with("README.md")) {
        found.extend(linked(&root, folder));
    }
    found.insert(contents);
    let all: BTreeSet<PathBuf> = files_below(&root.join("docs"), &["md"]).into_iter().collect();
    let missing: Vec<_> = all.difference(&found).collect();
    assert!(missing.is_empty(), "docs/README.md, the table of contents, lacks {missing:?}");
}

#[test]
fn glossary_describes_yes_or_no_questions_as_decisions_do() {
    let read = |page: &str| {
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page)).unwrap()
    };
    let rows = |text: &str| -> Vec<Vec<String>> {
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().replace('`', "")).collect();
        text.lines().filter(|line| line.starts_with('|')).map(cells).collect()
    };
    let (decisions, glossary) = (rows(&read("decisions.md")), rows(&read("glossary.md")));
    let is_it = |row: &&Vec<String>| row.get(1).is_some_and(|term| term == "oul, noul");
    let decided = decisions.iter().find(is_it).unwrap();
    let explained = glossary.iter().find(is_it).unwrap();
    let answer = &decided[3];
    assert!(!answer.is_empty() && explained[2].ends_with(answer.as_str()), "{explained:?}");
}

#[test]
fn gitignore_holds_what_the_documented_commands_make() {
    let ignored = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(".gitignore"));
    let ignored = ignored.unwrap();
    for path in ["/config.toml", "/orrery-data", "/target"] {
        assert!(ignored.lines().any(|line| line == path), "{path} is not ignored");
    }
}

#[test]
fn docs_references_resolve() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<PathBuf> = FILES.iter().map(|file| root.join(file)).collect();
    files.extend(FOLDERS.iter().flat_map(|folder| files_below(&root.join(folder), ENDINGS)));
    assert!(files.len() > 300, "only {} files found", files.len());
    let mut found = Vec::new();
    for file in files {
        let path = file.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        if path != OWN {
            let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
            found.extend(faults(root, &path, &text).iter().map(|fault| format!("{path}: {fault}")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn docs_check_finds_broken_references() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("docs/spec")).unwrap();
    let spec = "# All\n\n## Request ids\n\n```\n# no heading\n```\n\n## What's next?\n";
    fs::write(folder.path().join("docs/spec/hosts.md"), spec).unwrap();
    fs::write(folder.path().join("docs/api.md"), "# API\n").unwrap();
    for (path, text, count) in [
        ("src/a.rs", "//! As `docs/spec/hosts.md`, \"Request ids\" says.", 0),
        ("src/a.rs", "    /// (`docs/spec/hosts.md`, \"Request\n    /// ids\" and \"All\").", 0),
        ("src/a.rs", "//! As `docs/spec/hosts.md`, \"Request\" says.", 1),
        ("src/a.rs", "//! (`docs/spec/hosts.md`, \"All\" and \"None\")", 1),
        ("src/a.rs", "//! (`docs/spec/hosts.md`, \"no heading\")", 1),
        ("src/a.rs", "//! As `docs/spec/hosts.md` says.", 1),
        ("src/a.rs", "//! As `docs/spec/none.md`, \"All\" says.", 1),
        ("src/a.rs", "//! As `spec/api.md` says.", 1),
        ("src/a.rs", "//! As docs/spec/hosts.md says.", 1),
        ("src/a.rs", "//! To add one: `CONTRIBUTING.md`.", 1),
        ("src/a.rs", "//! As `docs/api.md` says.", 0),
        ("docs/b.md", "[a](spec/hosts.md#request-ids) [b](api.md) [c](https://a.b/c)", 0),
        ("docs/b.md", "[a](spec/hosts.md#whats-next) [b](#b)\n# b\n", 1),
        ("docs/spec/hosts.md", "[a](#whats-next) [b](../api.md#api)", 0),
        ("docs/b.md", "[a](none.md) [b](spec/hosts.md#none)", 2),
        ("docs/b.md", "<<<<<<< HEAD\na\n=======\nb\n>>>>>>> 1234567 (Add b)\n", 2),
        ("docs/b.md", "`docs/spec/hosts.md`, `docs/none.rs`, `docs/<name>.rs`, `src/*.rs`", 1),
    ] {
        let found = faults(folder.path(), path, text);
        assert_eq!(found.len(), count, "{path}: {text}\n{found:?}");
    }
}
