//! Tests every block of `README.md` and of the pages in `docs` and `docs/tutorials`. Commands run as written, in the
//! order of their document and in one shell, against a service in that shell's folder. Settings,
//! manifests and JSON are parsed as the service parses them.
//!
//! The test replaces a document's addresses and absolute paths with its own, and changes nothing
//! else in a block. The test uses the internet only for PyPI and npm packages that a document
//! names.

use std::path::Path;
use std::process::Command;

use orrery_config::Config;
use serde_json::Value;

use crate::document_blocks::{self as blocks, Block, Mark};
use crate::document_page::{Page, Places};

/// A graph of ComfyUI with the inputs that the documents name.
const GRAPH: &str = r#"{
    "3": {"class_type": "KSampler", "inputs": {"seed": 1}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": ""}},
    "12": {"class_type": "LoadImage", "inputs": {"image": ""}}
}"#;
const DOCUMENTS: [&str; 32] = [
    "README.md",
    "docs/README.md",
    "docs/adding-models.md",
    "docs/administration.md",
    "docs/agent.md",
    "docs/api.md",
    "docs/architecture.md",
    "docs/backup.md",
    "docs/chat.md",
    "docs/clients.md",
    "docs/dashboard.md",
    "docs/decisions.md",
    "docs/durability.md",
    "docs/glossary.md",
    "docs/install.md",
    "docs/mcp.md",
    "docs/models.md",
    "docs/monitoring.md",
    "docs/operating.md",
    "docs/performance.md",
    "docs/scaling.md",
    "docs/security.md",
    "docs/store-format.md",
    "docs/troubleshooting.md",
    "docs/tutorials/agent.md",
    "docs/tutorials/gguf.md",
    "docs/tutorials/pipeline.md",
    "docs/tutorials/python-model.md",
    "docs/tutorials/webhooks.md",
    "docs/upgrade.md",
    "docs/webhooks.md",
    "docs/workflows.md",
];
/// Blocks that no test runs, with the reason. Keep the list short: readers trust the blocks.
const NOT_RUN: &[(&str, &str)] = &[
    ("README.md", "the service is already running"),
    ("README.md", "kills the service that runs the other commands"),
    ("README.md", "needs the run of the block above"),
    ("README.md", "clones this repository"),
    ("README.md", "builds the service and installs packages"),
    ("docs/adding-models.md", "needs the internet"),
    ("docs/adding-models.md", "needs the internet"),
    ("docs/adding-models.md", "needs llama-server"),
    ("docs/api.md", "needs a page in a browser"),
    ("docs/backup.md", "needs a key pair of age"),
    ("docs/backup.md", "needs a damaged store"),
    ("docs/backup.md", "needs a damaged store"),
    ("docs/chat.md", "needs a recording; tests/clients makes these calls"),
    (
        "docs/chat.md",
        "needs a model file and a recording; tests/it/whisper.rs makes these calls with small ones",
    ),
    ("docs/clients.md", "clients/test runs it"),
    ("docs/clients.md", "clients/test runs it"),
    ("docs/clients.md", "clients/test runs it"),
    ("docs/clients.md", "tests/clients runs the library"),
    ("docs/clients.md", "tests/clients runs the library"),
    ("docs/clients.md", "tests/clients runs the program"),
    ("docs/clients.md", "tests/clients runs the library"),
    ("docs/clients.md", "tests/clients runs the library"),
    ("docs/clients.md", "needs Claude Code"),
    ("docs/clients.md", "tests/clients runs the library"),
    ("docs/clients.md", "needs a Java runtime"),
    ("docs/install.md", "needs root and a certificate for the machine's name"),
    ("docs/install.md", "needs root and a certificate for the machine's name"),
    ("docs/install.md", "needs root and systemd"),
    ("docs/install.md", "needs root and systemd"),
    ("docs/install.md", "needs the installed service"),
    ("docs/models.md", "needs a second machine"),
    ("docs/models.md", "needs a second machine"),
    ("docs/monitoring.md", "needs root and systemd"),
    ("docs/monitoring.md", "needs a receiver"),
    ("docs/monitoring.md", "an example of a message"),
    ("docs/monitoring.md", "takes a minute of an idle machine"),
    ("docs/monitoring.md", "an example of a line"),
    ("docs/scaling.md", "needs a cluster"),
    ("docs/scaling.md", "needs a GPU"),
    ("docs/scaling.md", "needs a GPU"),
    ("docs/tutorials/webhooks.md", "the test has these packages"),
];

/// Parses concatenated JSON values.
pub(crate) fn values(text: &str) -> Result<Vec<Value>, serde_json::Error> {
    serde_json::Deserializer::from_str(text).into_iter().collect()
}

/// Returns the reason why a TOML text does not match the published schema of its kind.
fn misfit(kind: &str, text: &str) -> Option<String> {
    let printed = Command::new(env!("CARGO_BIN_EXE_orrery")).args(["schema", kind]).output();
    let schema: Value = serde_json::from_slice(&printed.unwrap().stdout).unwrap();
    let value: toml::Table = text.parse().unwrap();
    let value = serde_json::to_value(value).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let error = validator.validate(&value).err();
    error.map(|error| format!("the schema refuses {}: {error}", error.instance_path()))
}

/// Returns the parse error of a block that the test does not run.
fn fault(block: &Block, places: &Places) -> Option<String> {
    match block.language.as_str() {
        "json" => values(&block.text).err().map(|error| error.to_string()),
        "yaml" => serde_saphyr::from_str::<Value>(&block.text).err().map(|error| error.to_string()),
        // The document's service parses the saved file. One that is not run belongs to another
        // program.
        "toml" if matches!(block.mark, Some(Mark::File(_) | Mark::NotRun(_))) => None,
        "toml" => {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("it.toml");
            // This machine may lack the program.
            let text = places.put_into(&block.text).replace("\"llama-server\"", "\"true\"");
            std::fs::write(&file, text).unwrap();
            if block.text.contains("[runner]") {
                places.secret(&folder.path().join("token"), "secret");
                for name in ["shout.py", "ggml-base.bin", "mobilenet.onnx", "labels.txt"] {
                    std::fs::write(folder.path().join(name), "x\n").unwrap();
                }
                std::fs::write(folder.path().join("paint.json"), GRAPH).unwrap();
                std::fs::create_dir(folder.path().join("cache")).unwrap();
                let mut check = Command::new(env!("CARGO_BIN_EXE_orrery"));
                let checked = check.args(["model", "check"]).arg(&file).output().unwrap();
                let said = || String::from_utf8_lossy(&checked.stdout).into_owned();
                return (!checked.status.success()).then(said).or(misfit("manifest", &block.text));
            }
            if let Some(misfit) = misfit("config", &block.text) {
                return Some(misfit);
            }
            let faults: Vec<String> = match Config::load(&file) {
                Ok(_) => Vec::new(),
                Err(faults) => faults.iter().map(ToString::to_string).collect(),
            };
            (!faults.is_empty()).then(|| faults.join("\n"))
        }
        "sh" | "console" | "python" | "js" | "text" | "mermaid" => None,
        other => Some(format!("the language {other:?} is not one that is checked or run")),
    }
}

#[test]
fn document_blocks_are_valid_for_their_purpose() {
    let folder = tempfile::tempdir().unwrap();
    let places = Places::new(folder.path(), std::net::Ipv4Addr::LOCALHOST);
    let mut faults = Vec::new();
    let mut not_run = Vec::new();
    for document in DOCUMENTS {
        for block in blocks::of(document) {
            let found = fault(&block, &places);
            faults.extend(found.map(|fault| format!("{document}:{}: {fault}", block.line)));
            if let Some(Mark::NotRun(reason)) = block.mark {
                not_run.push((document, reason));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let not_run: Vec<_> = not_run.iter().map(|(at, reason)| (*at, reason.as_str())).collect();
    assert_eq!(not_run, NOT_RUN);
    let is_page = |path: &Path| path.extension().is_some_and(|extension| extension == "md");
    let pages = ["docs", "docs/tutorials"].iter().flat_map(|folder| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        std::fs::read_dir(folder).unwrap().filter(|page| is_page(&page.as_ref().unwrap().path()))
    });
    assert_eq!(pages.count() + 1, DOCUMENTS.len(), "a page is missing in DOCUMENTS");
}

#[test]
fn chat_page_shows_the_manifest_of_the_examples() {
    let example = include_str!("../../docs/examples/llama.toml");
    assert!(blocks::of("docs/chat.md").iter().any(|block| block.text == example));
}

#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn readme_runs_as_written() {
    Page::new("README.md").run();
}

#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn python_model_tutorial_runs_as_written() {
    Page::new("docs/tutorials/python-model.md").run();
}

#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn pipeline_tutorial_runs_as_written() {
    Page::new("docs/tutorials/pipeline.md").run();
}

#[test]
#[ignore = "needs curl, jq, nodejs, python3, PyPI and npm: run tests/run"]
fn webhooks_tutorial_runs_as_written() {
    Page::new("docs/tutorials/webhooks.md").with_python("webhooks").with_node("webhooks").run();
}

#[cfg(feature = "llama")]
#[test]
#[ignore = "needs curl, jq, python3 and PyPI: run tests/run"]
fn gguf_tutorial_runs_as_written() {
    Page::new("docs/tutorials/gguf.md").with_python("openai").run();
}

#[test]
#[ignore = "needs curl, jq, python3 and PyPI: run tests/run"]
fn agent_tutorial_runs_as_written() {
    Page::new("docs/tutorials/agent.md").with_python("mcp").run();
}

#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn troubleshooting_page_runs_as_written() {
    Page::new("docs/troubleshooting.md").run();
}

#[test]
#[ignore = "needs curl, jq, python3 and PyPI: run tests/run"]
fn api_page_runs_as_written() {
    Page::new("docs/api.md").with_python("openapi").run();
}

#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn workflows_page_runs_as_written() {
    Page::new("docs/workflows.md").run();
}

#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn webhooks_page_runs_as_written() {
    Page::new("docs/webhooks.md").run();
}

#[cfg(feature = "llama")]
#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn adding_models_page_runs_as_written() {
    Page::new("docs/adding-models.md").run();
}

#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn models_page_runs_as_written() {
    Page::new("docs/models.md").run();
}

#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn install_page_runs_as_written() {
    Page::new("docs/install.md").run();
}

#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn upgrade_page_runs_as_written() {
    Page::new("docs/upgrade.md").run();
}

#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn backup_page_runs_as_written() {
    Page::new("docs/backup.md").run();
}

#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn monitoring_page_runs_as_written() {
    Page::new("docs/monitoring.md").run();
}

#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn administration_page_runs_as_written() {
    Page::new("docs/administration.md").run();
}

#[cfg(feature = "llama")]
#[test]
#[ignore = "needs curl, jq, nodejs, python3, PyPI and npm: run tests/run"]
fn chat_page_runs_as_written() {
    Page::new("docs/chat.md").with_python("openai").run();
}

#[test]
#[ignore = "needs curl, jq, python3 and PyPI: run tests/run"]
fn agent_page_runs_as_written() {
    Page::new("docs/agent.md").with_python("openai").run();
}

#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn decisions_page_runs_as_written() {
    Page::new("docs/decisions.md").run();
}

#[test]
#[ignore = "needs curl, jq, python3 and PyPI: run tests/run"]
fn mcp_page_runs_as_written() {
    Page::new("docs/mcp.md").with_python("mcp").run();
}

#[test]
#[ignore = "needs curl, jq and python3: run tests/run"]
fn dashboard_page_runs_as_written() {
    Page::new("docs/dashboard.md").run();
}
