//! axe-core, an accessibility checker for the page in a browser. The tests download it from npm's
//! registry to the build folder; the checker is not part of the repository.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::chromium::Chromium;
use super::within;

/// WCAG 2.0 to 2.2, levels A and AA.
const RULES: [&str; 5] = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];

static SCRIPT: OnceLock<String> = OnceLock::new();

/// Returns the script. The download needs npm's registry; without access to it, the test fails.
fn script() -> &'static str {
    SCRIPT.get_or_init(|| {
        let fetch = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/axe/fetch.py");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("axe");
        let output = Command::new("python3").arg(fetch).arg(folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let file = String::from_utf8(output.stdout).unwrap();
        std::fs::read_to_string(file.trim()).unwrap()
    })
}

impl Chromium {
    /// Checks that the page violates none of axe's rules.
    pub(crate) async fn is_accessible(&self, name: &str) {
        if self.run("return typeof window.axe").await == "undefined" {
            self.run(script()).await;
        }
        let run = "const done = arguments[arguments.length - 1]; \
                   axe.run(document, { runOnly: { type: 'tag', values: arguments[0] } }).then( \
                     (found) => done(found.violations.map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => `${node.html.slice(0, 160)} ${node.failureSummary}`).join(' | ')}`)), \
                     (error) => done([String(error)]));";
        let found =
            within("axe", self.client.execute_async(run, vec![json!(RULES)])).await.unwrap();
        assert_eq!(found, Value::Array(Vec::new()), "{name}");
    }
}
