//! Generates the pages of `docs/reference/` from the code. A test compares the generated pages with
//! the files. After a change, `INSTA_UPDATE=always cargo test -p orrery-cli reference` updates the
//! files.

mod commands;
mod errors;
mod files;
mod http;
mod metrics;
mod page;
mod types;

use std::fs;
use std::path::Path;

use orrery_api::Role;

/// All pages by file name.
fn pages() -> Vec<(&'static str, String)> {
    vec![
        ("http-base.md", http::page(Role::Base)),
        ("http-workflows.md", http::page(Role::Workflows)),
        ("http-flows.md", http::page(Role::Flows)),
        ("http-agent.md", http::page(Role::Agent)),
        ("http-dashboard.md", http::page(Role::Dashboard)),
        ("commands.md", commands::page()),
        ("configuration.md", files::configuration()),
        ("manifest.md", files::manifest()),
        ("metrics.md", metrics::page()),
        ("errors.md", errors::page()),
    ]
}

#[test]
fn reference_pages_are_what_the_code_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let is_update = std::env::var_os("INSTA_UPDATE").is_some_and(|value| value == "always");
    let mut outdated = Vec::new();
    let pages = pages();
    for (name, text) in &pages {
        let path = folder.join(name);
        if fs::read_to_string(&path).is_ok_and(|written| written == *text) {
            continue;
        }
        if is_update {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, text).unwrap();
        } else {
            outdated.push(*name);
        }
    }
    assert!(
        outdated.is_empty(),
        "outdated in docs/reference: {outdated:?}; INSTA_UPDATE=always rewrites them"
    );
    let files = fs::read_dir(folder).unwrap().count();
    assert_eq!(files, pages.len(), "docs/reference contains a file that nothing generates");
}
