//! The files of the crate with their modules, found by following the `mod` lines from `lib.rs` like
//! the compiler, so that orphaned files are found too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// One Rust file.
#[derive(Debug)]
pub struct File {
    /// The path from the crate's root, with `/`: `src/domain/money.rs`.
    pub path: String,
    /// Its module: `["domain", "money"]`; for `lib.rs` and for files that are not modules, the bare
    /// name.
    pub module: Vec<String>,
    pub text: String,
}

impl File {
    /// The top-level module that it is or belongs to.
    pub fn top_module(&self) -> &str {
        self.module.first().map_or("", String::as_str)
    }

    /// Its module depth.
    pub fn depth(&self) -> usize {
        self.module.len()
    }

    /// Whether it contains only tests.
    pub fn is_test(&self) -> bool {
        let is_beside = self.path.ends_with("_tests.rs") || self.path.ends_with("/tests.rs");
        is_beside || self.path.contains("/tests/") || self.path.starts_with("tests/")
    }
}

const RUST: &[&str] = &["rs"];

/// All Rust files, and faults of their placement.
#[derive(Debug)]
pub struct Tree {
    pub files: Vec<File>,
    pub faults: Vec<String>,
}

impl Tree {
    /// The tree of the crate in the folder `root`.
    pub fn of_crate(root: &Path) -> Self {
        let mut tree = Self { files: Vec::new(), faults: Vec::new() };
        for name in ["lib", "main"] {
            tree.follow(root, &root.join(format!("src/{name}.rs")), Vec::new(), name);
        }
        for folder in ["tests", "benches"] {
            let mut programs = Self { files: Vec::new(), faults: Vec::new() };
            for path in programs_in(&root.join(folder)) {
                programs.follow(root, &path, Vec::new(), "main");
            }
            // Several programs may share a file.
            let shared = programs.files.into_iter().map(|file| (file.path.clone(), file));
            let files: BTreeMap<String, File> = shared.collect();
            let module = vec![folder.to_owned()];
            tree.files
                .extend(files.into_values().map(|file| File { module: module.clone(), ..file }));
            tree.faults.append(&mut programs.faults);
        }
        let followed: BTreeSet<String> = tree.files.iter().map(|file| file.path.clone()).collect();
        for folder in ["src", "tests", "benches"] {
            for path in files_below(&root.join(folder), RUST) {
                let path = name_from(root, &path);
                if !followed.contains(&path) {
                    tree.faults.push(format!("{path}: no `mod` line leads to it"));
                }
            }
        }
        tree
    }

    /// Adds the file and those of its `mod` lines.
    fn follow(&mut self, root: &Path, path: &Path, module: Vec<String>, name: &str) {
        let Ok(text) = fs::read_to_string(path) else {
            self.faults.push(format!("{}: cannot be read", name_from(root, path)));
            return;
        };
        let is_folder = matches!(name, "lib" | "main" | "mod");
        for (child, at) in modules_of(&text) {
            let mut module = module.clone();
            module.push(child.clone());
            let folder = path.parent().unwrap();
            if let Some(at) = at {
                self.follow(root, &folder.join(at), module, &child);
                continue;
            }
            let folder = if is_folder { folder.to_path_buf() } else { folder.join(name) };
            let flat = folder.join(format!("{child}.rs"));
            let deep = folder.join(&child);
            if flat.exists() {
                self.follow(root, &flat, module, &child);
            } else {
                self.follow(root, &deep.join("mod.rs"), module, "mod");
            }
        }
        let module = if module.is_empty() { vec![name.to_owned()] } else { module };
        self.files.push(File { path: name_from(root, path), module, text });
    }
}

/// The modules that a file declares with files of their own, each with its `#[path]`, if any.
fn modules_of(text: &str) -> Vec<(String, Option<String>)> {
    let mut modules = Vec::new();
    let mut path = None;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            path = rest.strip_suffix("\"]").map(str::to_owned);
            continue;
        }
        let declaration = line.strip_suffix(';').map(|line| {
            let behind = line.strip_prefix("pub").unwrap_or(line);
            let behind = behind
                .strip_prefix('(')
                .map_or(behind, |scope| scope.split_once(')').map_or(behind, |(_, behind)| behind));
            behind.trim_start()
        });
        if let Some(name) = declaration.and_then(|line| line.strip_prefix("mod ")) {
            modules.push((name.to_owned(), path.take()));
        } else if !line.starts_with("#[") {
            path = None;
        }
    }
    modules
}

/// The files that cargo compiles as a test or benchmark: `x.rs` and `x/main.rs`.
fn programs_in(folder: &Path) -> Vec<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.parent() == Some(folder)
            || path.ends_with("main.rs") && path.parent().and_then(Path::parent) == Some(folder)
    };
    files_below(folder, RUST).into_iter().filter(is_program).collect()
}

/// The files below `folder` with one of the extensions; none if the folder does not exist.
pub fn files_below(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return files };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path, endings));
        } else if path.extension().is_some_and(|end| endings.iter().any(|ending| end == *ending)) {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn name_from(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/")
}

#[test]
fn tree_parses_mod_lines() {
    let text = "mod a;\npub mod b;\npub(super) mod c;\npub(in crate::x) mod d;\nmod e {\n}\n\
        #[cfg(test)]\n#[path = \"f_tests.rs\"]\nmod tests;\n#[path = \"g.rs\"]\nfn g() {}\nmod h;\n\
        // mod i;\nlet mod_j = 1;\n";
    let modules = modules_of(text);
    let names: Vec<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d", "tests", "h"]);
    let paths: Vec<Option<&str>> = modules.iter().map(|(_, path)| path.as_deref()).collect();
    assert_eq!(paths, [None, None, None, None, Some("f_tests.rs"), None]);
}

#[test]
fn tree_check_finds_orphan_and_missing_files() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("src/main.rs", "");
    write("src/lib.rs", "mod a;\npub mod b;\nmod gone;\n");
    write("src/a.rs", "mod c;\n#[path = \"a_tests.rs\"]\nmod tests;\n");
    write("src/a/c.rs", "");
    write("src/a_tests.rs", "");
    write("src/b/mod.rs", "mod d;\n");
    write("src/b/d.rs", "");
    write("src/b/orphan.rs", "");
    write("tests/it/main.rs", "mod e;\n");
    write("tests/it/e.rs", "");
    write("tests/it/orphan.rs", "");
    write("tests/f.rs", "#[path = \"f/g.rs\"]\nmod g;\n");
    write("tests/f/g.rs", "");
    let tree = Tree::of_crate(folder.path());
    let mut modules: Vec<String> =
        tree.files.iter().map(|file| format!("{} {}", file.path, file.module.join("::"))).collect();
    modules.sort();
    assert_eq!(
        modules,
        [
            "src/a.rs a",
            "src/a/c.rs a::c",
            "src/a_tests.rs a::tests",
            "src/b/d.rs b::d",
            "src/b/mod.rs b",
            "src/lib.rs lib",
            "src/main.rs main",
            "tests/f.rs tests",
            "tests/f/g.rs tests",
            "tests/it/e.rs tests",
            "tests/it/main.rs tests",
        ]
    );
    assert_eq!(
        tree.faults,
        [
            "src/gone/mod.rs: cannot be read",
            "src/b/orphan.rs: no `mod` line leads to it",
            "tests/it/orphan.rs: no `mod` line leads to it",
        ]
    );
}
