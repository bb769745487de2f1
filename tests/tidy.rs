//! Checks of the code's form: every file begins with a description, has a readable size, and
//! contains no markers of unfinished work; manifests share the lints and respect reserved
//! dependencies; documents and maps are consistent. Rules that clippy can check are not repeated
//! here.
//!
//! Each rule is a function from a file to its faults. A test below runs every rule on bad snippets:
//! a rule that finds no fault in its bad snippets is broken.

#![expect(clippy::unwrap_used, reason = "helpers of a test: a panic here is the test's failure")]

#[path = "tidy/docs.rs"]
mod docs;
#[path = "tidy/map.rs"]
mod map;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/paste.rs"]
mod paste;
#[path = "tidy/tree.rs"]
mod tree;

use std::fs;
use std::path::Path;

use tree::{File, Tree};

/// Maximum number of lines in a file that is not a test.
const LINES_MAX: usize = 600;
/// Maximum number of lines in a test file; tests contain long tables.
const TEST_LINES_MAX: usize = 700;

/// Dependencies that only the named crates may have, each with the reason.
const RESERVED: &[(&str, &[&str], &str)] = &[
    ("sled", &["storage"], "no other crate knows the storage engine"),
    ("clap", &["cli", "guard", "runners"], "no other crate reads the command line"),
    ("rmcp", &["agent"], "no other crate speaks the Model Context Protocol as a client"),
    ("llama-cpp-2", &["runners"], "no other crate runs language models"),
    ("whisper-rs", &["whisper"], "it must be linked with llama.cpp's ggml"),
    ("symphonia", &["runners"], "audio is decoded only in a sandbox"),
    ("tract-onnx", &["runners"], "no other crate runs ONNX files"),
];

/// Markers of unfinished work, forbidden everywhere including comments.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("db", "g!"),
];

/// The attribute of a test that needs more than Rust, followed by what it needs.
const EXTERNAL: &str = concat!("#[ig", "nore = \"needs ");
const IGNORE: &str = "ignore";
/// The attribute that contains an error's message.
const ERROR: &str = concat!("#[err", "or(");

/// Returns whether the header comment is missing or the file has too many lines.
fn faults_of_form(file: &File) -> Vec<String> {
    let mut faults = Vec::new();
    let says = file.text.strip_prefix("//! ").is_some_and(|rest| rest.trim_start().len() > 10);
    if !says {
        faults.push("it does not open with `//!` and what it is".to_owned());
    }
    let most = if file.is_test() { TEST_LINES_MAX } else { LINES_MAX };
    let lines = file.text.lines().count();
    if lines > most {
        faults.push(format!("{lines} lines, more than {most}: split it"));
    }
    let stem = file.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
    let own_tests = format!("#[path = \"{stem}_tests.rs\"]");
    let paths = file.text.lines().filter(|line| line.starts_with("#[path"));
    if file.path.contains("src/") && paths.into_iter().any(|line| line != own_tests) {
        faults.push(format!("#[path] leads elsewhere than to its own tests, {stem}_tests.rs"));
    }
    faults
}

/// Returns errors whose message contains their source, which a chain of causes would then show
/// twice.
fn faults_of_errors(file: &File) -> Vec<String> {
    let mut faults = Vec::new();
    for part in file.text.split(ERROR).skip(1) {
        let Some((message, variant)) = part.split_once(")]") else { continue };
        let variant = variant.split("\n}").next().unwrap_or_default();
        let is_named = has_word(variant, "source:") && has_word(message, "source");
        let is_first = ["#[from]", "#[source]"].iter().any(|mark| variant.contains(mark))
            && ["{0", ".0"].iter().any(|first| message.contains(first));
        if is_named || is_first {
            faults.push(format!("the message {message} contains the source of its error"));
        }
    }
    faults
}

/// Returns the reserved dependencies that the crate `name` must not have, and lints that it does
/// not share.
fn faults_of_manifest(name: &str, manifest: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if !manifest.contains("[lints]\nworkspace = true") {
        faults.push("it does not share the lints of the workspace".to_owned());
    }
    for (dependency, crates, reason) in RESERVED {
        let is_there = manifest.lines().any(|line| {
            line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with(['.', ' ']))
        });
        if is_there && !crates.contains(&name) {
            faults.push(format!("{dependency}: {reason}"));
        }
    }
    faults
}

/// Returns whether `line` contains `word`, but not as a part of a longer word.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let ends_open = word.ends_with(|c| !is_part(c));
        !before.is_some_and(is_part) && (ends_open || !after.is_some_and(is_part))
    })
}

/// Returns markers of unfinished work.
fn faults_of_unfinished(file: &File) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(file.text.lines()) {
        for word in UNFINISHED.iter().filter(|word| has_word(line, word)) {
            faults.push(format!("line {number}: {word}"));
        }
        let attribute = line.trim_start();
        let ignores = attribute.starts_with("#[") && has_word(attribute, IGNORE);
        if ignores && !attribute.starts_with(EXTERNAL) {
            faults.push(format!("line {number}: only what needs more than Rust may be ignored"));
        }
    }
    faults
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn code_follows_the_tidy_rules() {
    let tree = Tree::of_workspace(root());
    assert!(tree.files.len() > 100, "only {} files found", tree.files.len());
    let mut faults = tree.faults.clone();
    for file in &tree.files {
        let mut found = faults_of_form(file);
        found.extend(faults_of_unfinished(file));
        found.extend(faults_of_errors(file));
        faults.extend(found.into_iter().map(|fault| format!("{}: {fault}", file.path)));
    }
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let found = faults_of_manifest(&name, &manifest);
        faults.extend(found.into_iter().map(|fault| format!("crates/{name}/Cargo.toml: {fault}")));
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

fn file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}

#[test]
fn manifest_check_finds_reserved_dependencies() {
    let lints = "[lints]\nworkspace = true\n";
    for (name, manifest, faults) in [
        ("storage", format!("[dependencies]\nsled.workspace = true\n{lints}"), 0),
        ("engine", format!("[dependencies]\nsled.workspace = true\n{lints}"), 1),
        ("engine", format!("[dependencies]\nsled = {{ workspace = true }}\n{lints}"), 1),
        ("engine", format!("[dependencies]\nsledge.workspace = true\n{lints}"), 0),
        ("engine", "[dependencies]\n".to_owned(), 1),
    ] {
        assert_eq!(faults_of_manifest(name, &manifest).len(), faults, "{name}: {manifest}");
    }
}

#[test]
fn form_check_finds_missing_header_and_overlong_file() {
    let long = |lines: usize| format!("//! What this is.\n{}", "\n".repeat(lines - 1));
    for (path, text, faults) in [
        ("src/a.rs", "//! What this is.\n".to_owned(), 0),
        ("src/a.rs", String::new(), 1),
        ("src/a.rs", "use std::io;\n//! What this is.\n".to_owned(), 1),
        ("src/a.rs", "// What this is.\n".to_owned(), 1),
        ("src/a.rs", "//!\n//! \n".to_owned(), 1),
        ("src/a.rs", long(LINES_MAX), 0),
        ("src/a.rs", long(LINES_MAX + 1), 1),
        ("src/a_tests.rs", long(TEST_LINES_MAX), 0),
        ("src/a/tests.rs", long(TEST_LINES_MAX), 0),
        ("tests/a.rs", long(TEST_LINES_MAX), 0),
        ("tests/a.rs", long(TEST_LINES_MAX + 1), 1),
        ("src/a.rs", "//! What this is.\n#[path = \"a_tests.rs\"]\nmod tests;".to_owned(), 0),
        ("src/a.rs", "//! What this is.\n#[path = \"b.rs\"]\nmod b;".to_owned(), 1),
        ("src/a/mod.rs", "//! What this is.\n#[path = \"tests.rs\"]\nmod tests;".to_owned(), 1),
    ] {
        let found = faults_of_form(&file(path, &text));
        assert_eq!(found.len(), faults, "{path}: {found:?}");
    }
}

#[test]
fn error_check_finds_messages_that_contain_their_source() {
    for (text, faults) in [
        ("    @(\"no: {source}\")]\n    Read { source: io::Error },", 1),
        ("    @(\"no {}\", hint(source))]\n    Read { path: PathBuf, source: E },", 1),
        ("    @(\"no: {0}\")]\n    Url(#[from] url::Error),", 1),
        ("    @(\n        \"no: {0}; {1}\"\n    )]\n    Url(#[source] E, String),", 1),
        ("    @(\"no: {error}\")]\n    Read { error: io::Error },", 0),
        ("    @(\"no {}\", path.display())]\n    Read { path: PathBuf, source: E },", 0),
        ("    @(\"no\")]\n    Url(#[from] url::Error),", 0),
        ("    @(\"no: {0}\")]\n    Url(E),\n}\nenum F { G(#[from] E) }", 0),
        ("    @(transparent)]\n    Url(#[from] url::Error),", 0),
    ] {
        let found = faults_of_errors(&file("src/a.rs", &text.replace("@(", ERROR)));
        assert_eq!(found.len(), faults, "{text}: {found:?}");
    }
}

#[test]
fn unfinished_check_finds_leftover_markers() {
    for word in UNFINISHED {
        for line in [format!("    // {word}: later"), format!("let a = 1; {word}(a)]")] {
            let found = faults_of_unfinished(&file("src/a.rs", &format!("//! A.\n{line}\n")));
            assert_eq!(found.len(), 1, "{line}: {found:?}");
            assert!(found[0].starts_with("line 2"), "{found:?}");
        }
    }
    for reason in [" = \"slow\"]", "]"] {
        let ignored = format!("    {}{reason}", EXTERNAL.split(' ').next().unwrap());
        assert_eq!(faults_of_unfinished(&file("tests/a.rs", &ignored)).len(), 1);
    }
    let external = format!("{EXTERNAL}python3: run tests/run\"]");
    assert_eq!(faults_of_unfinished(&file("tests/a.rs", &external)), [""; 0]);
    for line in ["let photodo = 1;", "XXXL", "a hacksaw ignores it"] {
        assert_eq!(faults_of_unfinished(&file("src/a.rs", line)), [""; 0], "{line}");
    }
}
