//! The Rust files of the workspace, found by following the `mod` lines of each crate like the
//! compiler, so that orphaned files are found too.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// One Rust file.
#[derive(Debug)]
pub(crate) struct File {
    /// The path from the workspace's root, with `/`: `crates/domain/src/money.rs`.
    pub path: String,
    pub text: String,
}

impl File {
    /// Returns whether the file contains only tests.
    pub(crate) fn is_test(&self) -> bool {
        let is_beside = self.path.ends_with("_tests.rs") || self.path.ends_with("/tests.rs");
        is_beside || self.path.contains("/tests/") || self.path.starts_with("tests/")
    }
}

const RUST: &[&str] = &["rs"];

/// All Rust files, and faults in their placement.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub files: Vec<File>,
    pub faults: Vec<String>,
}

impl Tree {
    /// Reads the tree of the workspace in the folder `root`.
    pub(crate) fn of_workspace(root: &Path) -> Self {
        let mut tree = Self::default();
        let folders = fs::read_dir(root.join("crates")).into_iter().flatten();
        let mut sources: Vec<PathBuf> =
            folders.map(|entry| entry.unwrap().path().join("src")).collect();
        sources.push(root.join("src"));
        sources.sort();
        let mut seen = BTreeSet::new();
        for source in &sources {
            for name in ["lib.rs", "main.rs"].iter().filter(|name| source.join(name).exists()) {
                tree.follow(root, &source.join(name), &mut seen);
            }
        }
        for folder in ["tests", "benches"] {
            for path in programs_in(&root.join(folder)) {
                tree.follow(root, &path, &mut seen);
            }
        }
        sources.extend([root.join("tests"), root.join("benches")]);
        for path in sources.iter().flat_map(|folder| files_below(folder, RUST)) {
            if !seen.contains(&path) {
                tree.faults.push(format!("{}: no `mod` line leads to it", name_from(root, &path)));
            }
        }
        tree
    }

    /// Adds the file and the files of its `mod` lines. Programs may share a file.
    fn follow(&mut self, root: &Path, path: &Path, seen: &mut BTreeSet<PathBuf>) {
        let Ok(text) = fs::read_to_string(path) else {
            self.faults.push(format!("{}: cannot be read", name_from(root, path)));
            return;
        };
        if !seen.insert(path.to_path_buf()) {
            return;
        }
        let folder = path.parent().unwrap();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        let below = match stem.as_str() {
            "lib" | "main" | "mod" => folder.to_path_buf(),
            name => folder.join(name),
        };
        // The modules of a program are next to it.
        let is_program = [root.join("tests"), root.join("benches")].contains(&folder.to_path_buf());
        let below = if is_program { folder.to_path_buf() } else { below };
        for (child, at) in modules_of(&text) {
            let flat = below.join(format!("{child}.rs"));
            let file = match at {
                Some(at) => folder.join(at),
                None if flat.exists() => flat,
                None => below.join(child).join("mod.rs"),
            };
            self.follow(root, &file, seen);
        }
        self.files.push(File { path: name_from(root, path), text });
    }
}

/// Returns the modules that a file declares and that have their own files, each with its `#[path]`,
/// if any.
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

/// Returns the files that cargo compiles as a test or benchmark: `x.rs` and `x/main.rs`.
fn programs_in(folder: &Path) -> Vec<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.parent() == Some(folder)
            || path.ends_with("main.rs") && path.parent().and_then(Path::parent) == Some(folder)
    };
    files_below(folder, RUST).into_iter().filter(is_program).collect()
}

/// Returns the files below `folder` with one of the extensions; none if the folder does not exist.
pub(crate) fn files_below(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
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
    write("crates/x/src/lib.rs", "mod a;\npub mod b;\nmod gone;\n");
    write("crates/x/src/a.rs", "mod c;\n#[path = \"a_tests.rs\"]\nmod tests;\n");
    write("crates/x/src/a/c.rs", "");
    write("crates/x/src/a_tests.rs", "");
    write("crates/x/src/b/mod.rs", "mod d;\n");
    write("crates/x/src/b/d.rs", "");
    write("crates/x/src/b/orphan.rs", "");
    write("tests/it/main.rs", "mod e;\n");
    write("tests/it/e.rs", "");
    write("tests/it/orphan.rs", "");
    write("tests/f.rs", "#[path = \"f/g.rs\"]\nmod g;\n");
    write("tests/f/g.rs", "");
    let tree = Tree::of_workspace(folder.path());
    let mut paths: Vec<&str> = tree.files.iter().map(|file| file.path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!(
        paths,
        [
            "crates/x/src/a.rs",
            "crates/x/src/a/c.rs",
            "crates/x/src/a_tests.rs",
            "crates/x/src/b/d.rs",
            "crates/x/src/b/mod.rs",
            "crates/x/src/lib.rs",
            "src/main.rs",
            "tests/f.rs",
            "tests/f/g.rs",
            "tests/it/e.rs",
            "tests/it/main.rs",
        ]
    );
    assert_eq!(
        tree.faults,
        [
            "crates/x/src/gone/mod.rs: cannot be read",
            "crates/x/src/b/orphan.rs: no `mod` line leads to it",
            "tests/it/orphan.rs: no `mod` line leads to it",
        ]
    );
}
