//! Structural rules of the code: permitted imports between modules, a header and a bounded length
//! for every file, restricted use of external interfaces, and no unfinished work. Rules that clippy
//! can enforce are not repeated here.
//!
//! Each rule is a function from a file to its faults, with a table of bad snippets below: a rule
//! that finds nothing in them is broken.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of a test: a panic here is the test's failure"
)]

#[path = "tidy/code.rs"]
mod code;
#[path = "tidy/docs.rs"]
mod docs;
#[path = "tidy/map.rs"]
mod map;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/paste.rs"]
mod paste;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/tree.rs"]
mod tree;

use std::collections::BTreeSet;
use std::path::Path;

use code::Code;
use tree::{File, Tree};

/// The layers, from bottom to top: each module of `src/` with the modules it may import, all of
/// them in earlier rows. A new module needs a row; a new import needs an entry here, and a reason
/// in its commit.
const LAYERS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("wire", &["domain"]),
    ("schema", &[]),
    ("runtime", &["domain"]),
    ("guard", &["runtime"]),
    ("storage", &["domain", "runtime"]),
    ("http", &["domain", "runtime", "wire"]),
    ("config", &["domain", "runtime"]),
    ("telemetry", &["config", "runtime"]),
    ("dashboard", &["http"]),
    ("audit", &["domain", "runtime", "storage", "wire"]),
    ("limits", &["domain"]),
    // For measurements only: no part of the service imports it.
    ("load", &["domain", "runtime"]),
    ("signed_urls", &["domain", "runtime", "storage"]),
    // Accounts tell the signed URLs which keys are valid.
    ("accounts", &["audit", "domain", "limits", "runtime", "signed_urls", "storage"]),
    ("members", &["audit", "domain", "runtime", "storage"]),
    ("billing", &["audit", "domain", "runtime", "storage"]),
    ("secrets", &["audit", "domain", "runtime", "storage"]),
    ("schedules", &["audit", "domain", "runtime", "storage"]),
    ("idempotency", &["domain", "runtime", "storage"]),
    ("files", &["domain", "limits", "runtime", "signed_urls", "storage"]),
    ("backup", &["audit", "config", "domain", "files", "runtime", "storage"]),
    ("webhooks", &["audit", "domain", "http", "runtime", "storage"]),
    ("runners", &["config", "domain", "files", "guard", "http", "runtime", "schema", "wire"]),
    (
        "engine",
        &[
            "billing",
            "domain",
            "files",
            "http",
            "limits",
            "runners",
            "runtime",
            "signed_urls",
            "storage",
            "webhooks",
            "wire",
        ],
    ),
    ("chains", &["audit", "domain", "runtime", "schema", "storage"]),
    ("workflows", &["domain", "engine", "runtime", "schema", "secrets", "storage"]),
    ("traces", &["domain", "engine", "http", "runtime"]),
    // The catalog tells the engine which models exist.
    ("catalog", &["config", "domain", "engine", "runners", "runtime", "schema", "wire"]),
    (
        "chat",
        &[
            "billing", "catalog", "chains", "domain", "engine", "http", "runners", "runtime",
            "storage", "wire",
        ],
    ),
    (
        "agent",
        &[
            "catalog",
            "chat",
            "config",
            "domain",
            "engine",
            "files",
            "http",
            "runners",
            "runtime",
            "schema",
            "signed_urls",
            "storage",
            "wire",
            "workflows",
        ],
    ),
    ("decisions", &["chat", "domain", "engine", "http", "runtime", "wire"]),
    (
        "api",
        &[
            "accounts",
            "agent",
            "audit",
            "backup",
            "billing",
            "catalog",
            "chains",
            "chat",
            "config",
            "dashboard",
            "decisions",
            "domain",
            "engine",
            "files",
            "http",
            "idempotency",
            "members",
            "runtime",
            "schedules",
            "schema",
            "secrets",
            "signed_urls",
            "storage",
            "telemetry",
            "webhooks",
            "wire",
            "workflows",
        ],
    ),
    (
        "app",
        &[
            "accounts",
            "agent",
            "api",
            "audit",
            "backup",
            "billing",
            "catalog",
            "chains",
            "chat",
            "config",
            "decisions",
            "domain",
            "engine",
            "files",
            "guard",
            "http",
            "idempotency",
            "members",
            "runners",
            "runtime",
            "schedules",
            "schema",
            "secrets",
            "signed_urls",
            "storage",
            "telemetry",
            "traces",
            "webhooks",
            "workflows",
        ],
    ),
    (
        "cli",
        &[
            "app",
            "backup",
            "config",
            "domain",
            "guard",
            "http",
            "load",
            "runners",
            "runtime",
            "telemetry",
            "wire",
        ],
    ),
    ("main", &["cli"]),
];

/// Maximum lines of a file in `src/`.
const LINES_MAX: usize = 600;
/// Maximum lines of a test file: tables are long.
const TEST_LINES_MAX: usize = 700;

/// External interfaces that may be used only in the named files or folders.
const DOORS: &[(&str, &[&str], &str)] = &[
    (
        "unsafe",
        &[
            "src/storage/durable.rs",
            "src/runtime/memory.rs",
            "src/runtime/crash_note.rs",
            "src/guard/sandbox.rs",
        ],
        "the store's flush, the allocator's settings, the signal handler and the sandbox are the places with \
         unsafe code",
    ),
    ("sled", &["src/storage/"], "nothing else knows which engine keeps the data"),
    ("tokio::spawn", &["src/runtime/"], "start tasks through runtime::Tasks"),
    ("task::spawn", &["src/runtime/"], "start tasks through runtime::Tasks"),
    ("thread::spawn", &[], "a thread has a name: thread::Builder, in storage alone"),
    (
        "thread::Builder",
        &["src/storage/", "src/runners/llm/worker/boot.rs"],
        "threads beside tokio's are for storage, and for a language model in its own process",
    ),
    ("SystemTime::now", &["src/runtime/"], "take the time from runtime::Clock"),
    (
        "Instant::now",
        // The domain has no clock, but its tests may measure durations.
        &["src/runtime/", "src/domain/definition/tests/", "src/domain/template_tests.rs"],
        "take the monotonic time from runtime::monotonic_now",
    ),
    ("Utc::now", &[], "take the time from runtime::Clock"),
    ("now_v7", &["src/runtime/"], "make ids by runtime::new_id"),
    ("SystemRandom", &["src/runtime/"], "draw random bytes by runtime::random_bytes"),
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

/// The attribute of a test that needs more than Rust, with what it needs.
const EXTERNAL: &str = concat!("#[ig", "nore = \"needs ");
const IGNORE: &str = "ignore";

/// The modules that `file` imports but its layer may not.
fn faults_of_layers(file: &File, code: &Code) -> Vec<String> {
    let own = file.top_module();
    let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == own) else {
        return match own {
            "lib" => Vec::new(),
            _ => vec![format!("the module {own} has no row in LAYERS")],
        };
    };
    let imports = code.imports(file.depth());
    let foreign =
        imports.iter().filter(|(_, module)| module != own && !allowed.contains(&module.as_str()));
    foreign.map(|(line, module)| format!("line {line}: {own} may not import {module}")).collect()
}

/// A missing header comment, or too many lines.
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
    if file.path.starts_with("src/") && paths.into_iter().any(|line| line != own_tests) {
        faults.push(format!("#[path] leads elsewhere than to its own tests, {stem}_tests.rs"));
    }
    faults
}

/// External interfaces used in the wrong place.
fn faults_of_doors(file: &File, code: &Code) -> Vec<String> {
    let elsewhere = |places: &[&str]| !places.iter().any(|place| file.path.starts_with(place));
    let mut faults = Vec::new();
    for (door, places, reason) in DOORS.iter().filter(|(_, places, _)| elsewhere(places)) {
        for line in code.lines_with(door) {
            faults.push(format!("line {line}: {door}: {reason}; it belongs to {places:?}"));
        }
    }
    faults
}

/// Markers of unfinished work.
fn faults_of_unfinished(file: &File) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(file.text.lines()) {
        for word in UNFINISHED.iter().filter(|word| code::has_word(line, word)) {
            faults.push(format!("line {number}: {word}"));
        }
        let attribute = line.trim_start();
        let ignores = attribute.starts_with("#[") && code::has_word(attribute, IGNORE);
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
    let tree = Tree::of_crate(root());
    assert!(tree.files.len() > 100, "only {} files found", tree.files.len());
    let mut faults = tree.faults.clone();
    for file in &tree.files {
        let code = Code::of(&file.text);
        let mut found = faults_of_form(file);
        found.extend(faults_of_unfinished(file));
        if file.path.starts_with("src/") {
            found.extend(faults_of_layers(file, &code));
            found.extend(faults_of_doors(file, &code));
        }
        faults.extend(found.into_iter().map(|fault| format!("{}: {fault}", file.path)));
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn layers_are_acyclic_and_each_exists() {
    let mut below = BTreeSet::new();
    for (name, imports) in LAYERS {
        for import in *imports {
            assert!(below.contains(import), "{name} imports {import}, which is not below it");
        }
        assert!(imports.is_sorted(), "{name}: {imports:?}");
        assert!(below.insert(name), "{name} is listed twice");
    }
    let tree = Tree::of_crate(root());
    let there: BTreeSet<&str> = tree.files.iter().map(File::top_module).collect();
    for (name, _) in LAYERS {
        assert!(there.contains(name), "{name} has a row and no file");
    }
}

/// Unused permissions are removed from the table, so that it stays the map.
#[test]
fn layers_permit_no_unused_import() {
    let tree = Tree::of_crate(root());
    for (name, imports) in LAYERS {
        let files = tree.files.iter().filter(|file| file.top_module() == *name);
        let used: BTreeSet<String> = files
            .flat_map(|file| Code::of(&file.text).imports(file.depth()))
            .map(|(_, module)| module)
            .collect();
        for import in *imports {
            assert!(used.contains(*import), "{name} imports nothing of {import}");
        }
    }
}

fn file(path: &str, module: &str, text: &str) -> File {
    File {
        path: path.to_owned(),
        module: module.split("::").map(str::to_owned).collect(),
        text: text.to_owned(),
    }
}

#[test]
fn layer_check_finds_forbidden_imports_in_any_spelling() {
    for (module, text, faults) in [
        ("domain::money", "use crate::storage::Key;", 1),
        ("domain::money", "use crate::storage;", 1),
        ("domain::money", "use orrery::storage::Key;", 1),
        ("domain::money", "pub(crate) use crate::{storage::Key, domain::ids, runtime};", 2),
        (
            "domain::money",
            "use crate::{\n    domain::{ids, time},\n    http::{self, Response},\n};",
            1,
        ),
        ("domain::money", "fn f() { crate::storage::open() }", 1),
        ("domain::money", "fn f(key: &crate :: storage :: Key) {}", 1),
        ("domain::money", "json!({\"a\": crate::storage::KEY})", 1),
        ("domain::money", "use super::super::storage::Key;", 1),
        ("domain::money", "mod tests { use super::super::super::storage; }", 1),
        ("domain::money", "use crate::*;", 1),
        ("domain::money", "use crate as everything;", 1),
        ("domain", "use super::storage::Key;", 1),
        ("engine::scheduler", "use crate::api;", 1),
        ("engine::scheduler", "use crate::accounts::Accounts;", 1),
        ("webhooks", "use crate::engine;", 1),
        ("storage::store", "use crate::http::Response;", 1),
        ("main", "use orrery::{cli, app};", 1),
        ("novelty", "", 1),
        // Permitted imports, and code that only looks like an import.
        ("domain::money", "use crate::domain::ids;", 0),
        ("domain::money", "use super::ids;", 0),
        ("domain::money", "mod tests { use super::super::ids; }", 0),
        ("domain::money", "mod tests { use super::*; }\nuse super::ids;", 0),
        ("domain::money", "// as in crate::storage::Key", 0),
        ("domain::money", "/* crate::storage /* nested */ crate::http */", 0),
        ("domain::money", "let a = \"crate::storage \\\" crate::http\";", 0),
        ("domain::money", "let a = r#\"crate::storage \" crate::http\"#;", 0),
        ("domain::money", "let (a, b) = ('\"', crate::domain::X); let c = '\\''; // '", 0),
        ("domain::money", "fn f<'a>(a: &'a str) -> crate::domain::X<'a> {}", 0),
        ("domain::money", "let mycrate::storage = 1;", 0),
        ("engine::scheduler", "use crate::{domain::ids, storage, webhooks};", 0),
        ("lib", "pub mod storage;", 0),
    ] {
        let file = file("src/x.rs", module, text);
        let found = faults_of_layers(&file, &Code::of(text));
        assert_eq!(found.len(), faults, "{module}: {text}\n{found:?}");
    }
}

#[test]
fn door_check_finds_forbidden_calls() {
    for (path, text, faults) in [
        ("src/engine/mod.rs", "tokio::spawn(async {});", 1),
        ("src/engine/mod.rs", "use tokio::spawn;", 1),
        ("src/engine/mod.rs", "use tokio::task::{self, spawn};", 1),
        ("src/engine/mod.rs", "use tokio::{spawn, select};", 1),
        ("src/engine/mod.rs", "let now = std::time::SystemTime::now();", 1),
        ("src/engine/mod.rs", "let now = tokio::time::Instant::now();", 1),
        ("src/engine/mod.rs", "let now = at.unwrap_or_else(Instant::now);", 1),
        ("src/engine/mod.rs", "unsafe { f() }", 1),
        ("src/engine/mod.rs", "use sled::Db;", 1),
        ("src/engine/mod.rs", "std::thread::spawn(f);", 1),
        ("src/storage/store.rs", "std::thread::spawn(f); std::thread::Builder::new();", 1),
        ("src/storage/store.rs", "unsafe { f() }", 1),
        ("src/storage/durable.rs", "unsafe { f() }", 0),
        ("src/storage/store.rs", "use sled::Db;", 0),
        ("src/runtime/mod.rs", "tokio::spawn(async {}); SystemTime::now(); Uuid::now_v7();", 0),
        ("src/engine/mod.rs", "tokio::task::spawn_blocking(f); tasks.spawn(f);", 0),
        ("src/engine/mod.rs", "#![deny(unsafe_code)] // unsafe, sled, tokio::spawn", 0),
        ("src/engine/mod.rs", "let a = \"unsafe\"; let unsafely = 1;", 0),
    ] {
        let found = faults_of_doors(&file(path, "engine", text), &Code::of(text));
        assert_eq!(found.len(), faults, "{path}: {text}\n{found:?}");
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
        let found = faults_of_form(&file(path, "a", &text));
        assert_eq!(found.len(), faults, "{path}: {found:?}");
    }
}

#[test]
fn unfinished_check_finds_leftover_markers() {
    for word in UNFINISHED {
        for line in [format!("    // {word}: later"), format!("let a = 1; {word}(a)]")] {
            let found = faults_of_unfinished(&file("src/a.rs", "a", &format!("//! A.\n{line}\n")));
            assert_eq!(found.len(), 1, "{line}: {found:?}");
            assert!(found[0].starts_with("line 2"), "{found:?}");
        }
    }
    for reason in [" = \"slow\"]", "]"] {
        let ignored = format!("    {}{reason}", EXTERNAL.split(' ').next().unwrap());
        assert_eq!(faults_of_unfinished(&file("tests/a.rs", "a", &ignored)).len(), 1);
    }
    let external = format!("{EXTERNAL}python3: run tests/run\"]");
    assert_eq!(faults_of_unfinished(&file("tests/a.rs", "a", &external)), [""; 0]);
    for line in ["let photodo = 1;", "XXXL", "a hacksaw ignores it"] {
        assert_eq!(faults_of_unfinished(&file("src/a.rs", "a", line)), [""; 0], "{line}");
    }
}
