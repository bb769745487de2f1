//! A document under test: a folder with a service, and a shell that runs the document's commands.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::document_answers as answers;
use crate::document_blocks::{self as blocks, Block, Mark};
use crate::documents::values;
use crate::support::http::Message;
use crate::support::server::{Answer, Server};
use crate::support::service::{Setup, with_small_reserve};

#[path = "../it/support/python.rs"]
mod python;

/// Ports of the servers mentioned in documents: one captions images, and one implements OpenAI's
/// API.
const CAPTIONS: u16 = 5000;
const OPENAI: u16 = 8090;
/// The model that readers of the document download.
#[cfg(feature = "llama")]
const DOWNLOADED: &str = "Downloads/Qwen2.5-3B-Instruct-Q4_K_M.gguf";

/// Time limit of a document's script.
const PAGE_SECONDS: &str = "240";
/// A wrapper for `curl` that fails on HTTP errors, unless the document shows an error on purpose.
const CURL: &str = "#!/bin/sh\n[ -n \"${ERRORS_ARE_SHOWN:-}\" ] || set -- --fail-with-body \"$@\"\n\
    PATH=${PATH#*:}\nexec curl \"$@\"\n";

/// This test's replacements for the absolute paths and addresses in documents.
pub(crate) struct Places {
    folder: PathBuf,
    address: Ipv4Addr,
}

impl Places {
    pub(crate) fn new(folder: &Path, address: Ipv4Addr) -> Self {
        let places = Self { folder: folder.to_owned(), address };
        for name in ["etc", "mnt/backup", "home/Downloads", "new", "srv/notes"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        for name in [
            "token",
            "key",
            "upstream-key",
            "search.key",
            "notes.key",
            "backup-passphrase",
            "oidc-secret",
        ] {
            places.secret(&folder.join("etc").join(name), "secret");
        }
        places
    }

    /// Writes a file that only its owner can read.
    pub(crate) fn secret(&self, path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Returns a block's text with this test's paths and addresses substituted.
    pub(crate) fn put_into(&self, text: &str) -> String {
        let below = |name: &str| self.folder.join(name).to_str().unwrap().to_owned();
        [
            ("/etc/orrery", below("etc")),
            ("/var/lib/orrery", below("orrery-data")),
            ("/mnt/backup", below("mnt/backup")),
            (" /new/", format!(" {}", below("new/"))),
            ("/srv/notes", below("srv/notes")),
            ("127.0.0.1", self.address.to_string()),
        ]
        .iter()
        .fold(text.to_owned(), |text, (written, here)| text.replace(written, here))
    }
}

/// A document to run.
pub(crate) struct Page {
    path: &'static str,
    blocks: Vec<Block>,
    /// The folder below `tests` that lists the PyPI packages that the document installs.
    packages: Option<&'static str>,
    /// The folder below `tests` that lists the npm packages that the document installs.
    modules: Option<&'static str>,
}

impl Page {
    pub(crate) fn new(path: &'static str) -> Self {
        Self { path, blocks: blocks::of(path), packages: None, modules: None }
    }

    pub(crate) fn with_python(self, packages: &'static str) -> Self {
        Self { packages: Some(packages), ..self }
    }

    pub(crate) fn with_node(self, modules: &'static str) -> Self {
        Self { modules: Some(modules), ..self }
    }

    /// Runs the commands, compares their output, and stores the steps shown in the document as a
    /// workflow.
    pub(crate) fn run(&self) {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let data = folder.join("orrery-data");
        let settings = self.blocks.iter().filter(|block| block.mark == Some(Mark::Configuration));
        let settings: String = settings.map(|block| block.text.as_str()).collect();
        let settings = Places::new(&folder, Ipv4Addr::LOCALHOST).put_into(&settings);
        let setup = Setup::new(&folder, &data, &settings);
        let places = Places::new(&folder, setup.base().ip().to_string().parse().unwrap());
        // The setup chooses the address of the document's servers, including those in the settings.
        let config = fs::read_to_string(setup.config()).unwrap();
        fs::write(setup.config(), config.replace("127.0.0.1", &places.address.to_string()))
            .unwrap();
        let at = |port| SocketAddr::new(setup.base().ip(), port);
        let _captions =
            Server::start_at(at(CAPTIONS), |_| (200, json!({"caption": "a cat"}).to_string()));
        let _openai = Server::start_at(at(OPENAI), speaks_openai);
        let _service = setup.start();
        // Without a configuration file, the service reads manifests from the data folder.
        symlink(folder.join("models.d"), data.join("models.d")).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let example = fs::read_to_string(root.join("config.example.toml")).unwrap();
        fs::write(folder.join("config.example.toml"), with_small_reserve(&example)).unwrap();
        let examples = folder.join("docs/examples");
        fs::create_dir_all(&examples).unwrap();
        for example in fs::read_dir(root.join("docs/examples")).unwrap() {
            let example = example.unwrap();
            // The folder `proxy` contains files that `tests/one-port` uses.
            if example.path().is_dir() {
                continue;
            }
            let text = fs::read_to_string(example.path()).unwrap();
            fs::write(examples.join(example.file_name()), places.put_into(&text)).unwrap();
        }
        #[cfg(feature = "llama")]
        crate::support::gguf::write(
            &folder.join("home").join(DOWNLOADED),
            &crate::support::gguf::SMALL,
            "Small",
            7,
        );
        let script = folder.join("page.sh");
        fs::write(&script, self.script(&folder, &places)).unwrap();
        let mut shell = Command::new("timeout");
        shell
            .args([PAGE_SECONDS, "bash"])
            .arg(&script)
            .current_dir(&folder)
            .env("HOME", folder.join("home"));
        shell.env("PATH", self.programs(&folder)).env("ORRERY_CONFIG", setup.config());
        shell.env("PYTHONDONTWRITEBYTECODE", "1");
        let done = shell.output().unwrap();
        let said = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let at = said("at");
        let at = at.trim();
        assert!(
            done.status.success(),
            "{}:{at}: this block fails:\n{}\nit printed:\n{}\nand said:\n{}\n{}",
            self.path,
            self.text_at(at),
            said(&format!("out.{at}")),
            said(&format!("err.{at}")),
            String::from_utf8_lossy(&done.stderr),
        );
        self.compare(&folder);
        self.store_steps(&setup);
    }

    fn text_at(&self, line: &str) -> &str {
        let line = line.split('.').next().unwrap_or_default();
        let block = self.blocks.iter().find(|block| block.line.to_string() == line);
        block.map_or("", |block| block.text.as_str())
    }

    /// Returns the document as one script, which writes each block's output to files named after
    /// the block's line.
    fn script(&self, folder: &Path, places: &Places) -> String {
        let address = places.address;
        let mut script = format!(
            "set -euo pipefail\nexec </dev/null\n\
             trap 'kill $(jobs -p) 2>/dev/null || :' EXIT\n\
             listens() {{\n  for _ in $(seq 400); do\n    \
             if (exec 3<>/dev/tcp/{address}/$1) 2>/dev/null; then return; fi\n    sleep 0.05\n  \
             done\n  return 1\n}}\n"
        );
        for block in &self.blocks {
            let (line, text) = (block.line, places.put_into(&block.text));
            if let Some(Mark::File(path)) = &block.mark {
                writeln!(script, "echo {line} >'{}/at'", folder.display()).unwrap();
                writeln!(script, "mkdir -p \"$(dirname '{path}')\"").unwrap();
                writeln!(script, "cat >'{path}' <<'END_OF_{line}'\n{text}END_OF_{line}").unwrap();
                if path.contains("models.d/") && path.ends_with(".toml") {
                    let check = format!("orrery model check {path} && orrery reload");
                    put(&mut script, &line.to_string(), folder, &check, "");
                }
            } else if block.is_run() && block.language == "console" {
                for (number, command) in block.commands().iter().enumerate() {
                    let fails = if command.shown.is_empty() { "" } else { " || :" };
                    let shown = if fails.is_empty() { "" } else { "1" };
                    let text = places.put_into(&command.line);
                    let run = format!("export ERRORS_ARE_SHOWN={shown}\n{text}");
                    put(&mut script, &format!("{line}.{number}"), folder, &run, fails);
                }
                script.push_str("export ERRORS_ARE_SHOWN=\n");
            } else if block.is_run() {
                let run = match block.language.as_str() {
                    "python" => {
                        format!(
                            "cat >page.py <<'END_OF_{line}'\n{text}END_OF_{line}\npython page.py"
                        )
                    }
                    "js" => {
                        format!(
                            "cat >page.mjs <<'END_OF_{line}'\n{text}END_OF_{line}\nnode page.mjs"
                        )
                    }
                    _ => text,
                };
                put(&mut script, &line.to_string(), folder, &run, "");
                if run.trim_end().ends_with('&') {
                    writeln!(script, "listens {}", port_of(&run)).unwrap();
                }
            }
        }
        script
    }

    /// Returns the search path: `orrery`, a `curl` that fails on errors, and the programs that the
    /// document installs.
    fn programs(&self, folder: &Path) -> String {
        let own = folder.join("bin");
        fs::create_dir(&own).unwrap();
        symlink(env!("CARGO_BIN_EXE_orrery"), own.join("orrery")).unwrap();
        fs::write(own.join("curl"), CURL).unwrap();
        fs::set_permissions(own.join("curl"), fs::Permissions::from_mode(0o755)).unwrap();
        let mut path = own.to_str().unwrap().to_owned();
        if let Some(packages) = self.packages {
            let programs = python::installed(packages);
            path = format!("{path}:{}", programs.display());
            if self.blocks.iter().any(|block| block.language == "js" && block.is_run()) {
                let fetch = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai/fetch.py");
                let python = programs.join("python");
                let modules = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openai-npm");
                let done = Command::new(python).arg(fetch).arg(&modules).output().unwrap();
                assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
                symlink(modules.join("node_modules"), folder.join("node_modules")).unwrap();
            }
        }
        if let Some(modules) = self.modules {
            let modules = node_modules(modules);
            symlink(modules, folder.join("node_modules")).unwrap();
        }
        format!("{path}:{}", std::env::var("PATH").unwrap())
    }

    /// Compares the output with the document.
    fn compare(&self, folder: &Path) {
        let printed = |at: &str| fs::read_to_string(folder.join(format!("out.{at}"))).unwrap();
        let mut before = 0;
        for block in &self.blocks {
            let place = format!("{}:{}", self.path, block.line);
            if block.mark == Some(Mark::Answer) {
                let shown = values(&block.text).unwrap().remove(0);
                let printed = printed(&before.to_string());
                let value = answers::last_value(&printed);
                let value = value.unwrap_or_else(|| panic!("{place}: no JSON came: {printed}"));
                if let Some(difference) = answers::difference(&shown, &value, "") {
                    panic!("{place}: {difference}");
                }
            }
            if block.is_run() && block.language == "console" {
                for (number, command) in block.commands().iter().enumerate() {
                    let printed = printed(&format!("{}.{number}", block.line));
                    let fits =
                        command.shown.is_empty() || answers::is_like(&command.shown, &printed);
                    assert!(fits, "{place}: {} is shown, and printed is {printed}", command.shown);
                }
            }
            if block.language == "sh" {
                before = block.line;
            }
        }
    }

    /// Stores all steps shown in the document, each once, as a single workflow.
    fn store_steps(&self, setup: &Setup) {
        let json = self.blocks.iter().filter(|block| block.language == "json");
        let values = json.flat_map(|block| values(&block.text).unwrap());
        let steps: BTreeMap<String, Value> = values
            .filter(|value| value["step_id"].is_string() && value["type"].is_string())
            .map(|step| (step["step_id"].as_str().unwrap().to_owned(), step))
            .collect();
        if steps.is_empty() {
            return;
        }
        let mut steps: Vec<Value> = steps.into_values().collect();
        // Put model steps first, because other steps refer to them.
        steps.sort_by_key(|step| step["type"] != "model");
        let body = json!({"name": "Shown", "description": "d", "definition": {"steps": steps}});
        let mut client = setup.client(&setup.create_key());
        let stored = client.post("/v1/workflows", &[], &body.to_string()).unwrap();
        assert_eq!(stored.status(), 201, "{}: {}", self.path, stored.text());
    }
}

/// Adds a command whose output goes to `out` and `err`, and records the command's name for failure
/// messages.
fn put(script: &mut String, name: &str, folder: &Path, run: &str, end: &str) {
    let folder = folder.display();
    writeln!(script, "echo {name} >'{folder}/at'").unwrap();
    let run = run.trim_end();
    writeln!(script, "{{\n{run}\n}} >'{folder}/out.{name}' 2>'{folder}/err.{name}'{end}").unwrap();
}

/// Returns the port of the server that a block starts: the one that it names, or 9000.
fn port_of(run: &str) -> u16 {
    let numbers = run.split(|letter: char| !letter.is_ascii_digit());
    let mut ports = numbers.filter_map(|number| number.parse().ok());
    ports.find(|port| (9000..9100).contains(port)).unwrap_or(9000)
}

/// Returns `node_modules` with the packages of `tests/<name>/package-lock.json`, which are
/// installed again if the list changes; without access to npm, the test fails.
fn node_modules(name: &str) -> PathBuf {
    let lists = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-npm"));
    fs::create_dir_all(&place).unwrap();
    let list = fs::read(lists.join("package-lock.json")).unwrap();
    let installed = place.join("installed");
    if fs::read(&installed).is_ok_and(|there| there == list) {
        return place.join("node_modules");
    }
    for file in ["package.json", "package-lock.json"] {
        fs::copy(lists.join(file), place.join(file)).unwrap();
    }
    let quiet = ["ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"];
    let done = Command::new("npm").args(quiet).arg("--prefix").arg(&place).output().unwrap();
    assert!(done.status.success(), "npm: {}", String::from_utf8_lossy(&done.stderr));
    fs::write(installed, list).unwrap();
    place.join("node_modules")
}

/// Implements OpenAI's API: greets, is certain of the first option, and returns the same embedding
/// for every input. If tools of an MCP server are offered, calls one with the last word of the
/// message, and answers with its result.
fn speaks_openai(request: &Message) -> Answer {
    let asked: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5});
    if request.second_word().ends_with("/embeddings") {
        let inputs = asked["input"].as_array().map_or(1, Vec::len);
        let vector =
            |index| json!({"object": "embedding", "index": index, "embedding": [0.5, 0.25]});
        let vectors: Vec<Value> = (0..inputs).map(vector).collect();
        let answer = json!({"object": "list", "data": vectors, "model": "m", "usage": usage});
        return (200, answer.to_string());
    }
    let message = match tool_step(&asked) {
        Some(message) => message,
        None => json!({"role": "assistant",
            "content": if asked["logprobs"] == true { "A" } else { "Hello!" }}),
    };
    let mut choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    if asked["logprobs"] == true {
        let top = ["A", "B", "C"].iter().zip([-0.1, -2.5, -4.0]);
        let top: Vec<Value> =
            top.map(|(token, logprob)| json!({"token": token, "logprob": logprob})).collect();
        choice["logprobs"] =
            json!({"content": [{"token": "A", "logprob": -0.1, "top_logprobs": top}]});
    }
    let answer = json!({"id": "c", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [choice], "usage": usage});
    (200, answer.to_string())
}

/// Returns the call of the first tool of an MCP server, or, after the call, its result as the
/// answer.
fn tool_step(asked: &Value) -> Option<Value> {
    let messages = asked["messages"].as_array()?;
    let last = messages.last()?;
    if last["role"] == "tool" {
        return Some(json!({"role": "assistant", "content": last["content"]}));
    }
    let mut tools = asked["tools"].as_array()?.iter().map(|tool| &tool["function"]);
    let tool = tools.find(|tool| tool["name"].as_str().is_some_and(|name| name.contains("__")))?;
    let field = tool["parameters"]["required"][0].as_str()?;
    let text = last["content"].to_string();
    let word = text.rsplit(|letter: char| !letter.is_alphabetic()).find(|word| !word.is_empty())?;
    let function = json!({"name": tool["name"], "arguments": json!({field: word}).to_string()});
    let call = json!({"id": "c", "type": "function", "function": function});
    Some(json!({"role": "assistant", "content": null, "tool_calls": [call]}))
}
