//! `orrery model add`: writes the manifest of a model that a well-known server runs, from a recipe.
//!
//! A recipe is a file in `recipes`: a manifest whose first line describes it, and whose second line
//! is the next command to try. Placeholders stand for values: `"@SLUG@"`, `"@MODEL@"` (a name),
//! `"@FILE@"` (the path of a file), `"@NAME@"` (the model, or else the slug), `"@URL@"`,
//! `"@GRAPH@"` and `"@WORKER@"` (files beside the manifest), and `"@INPUTS@"` (the inputs of the
//! graph that requests usually fill in, as a table). The lines after `#[start]` are for a server
//! that the service starts, and the lines after `#[url DEFAULT]` are for a server that is already
//! running; `#[end]` ends either section.
//!
//! To add a recipe, add its file, its row in [`RECIPES`], and its row in
//! `static/screens/add_model.js`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde::Serialize;
use serde_json::Value;
use url::Url;

use super::give_to_service;
use crate::output::{self, Column, Output};
use crate::place::of_service;
use crate::{Shape, service};
use orrery_config::Config;
use orrery_domain::model::Slug;

/// Add a model that a well-known server runs, such as llama-server, vLLM or Ollama
///
/// The command writes a manifest into the models folder. Without a recipe, it lists the recipes.
#[derive(Debug, clap::Args)]
pub(crate) struct Add {
    /// The recipe, as `orrery model add` lists it
    #[arg(value_name = "RECIPE")]
    recipe: Option<String>,
    /// The name by which clients call the model [default: the name of the recipe]
    #[arg(long, value_name = "NAME", requires = "recipe")]
    slug: Option<Slug>,
    /// The URL of a server that runs already; without it, the service starts the server
    #[arg(long, value_name = "URL", requires = "recipe", value_parser = server_url)]
    url: Option<Url>,
    /// The model: the path of its file, or what the server calls it
    #[arg(long, value_name = "FILE_OR_NAME", requires = "recipe")]
    model: Option<String>,
    /// The file with the graph, in its API form, for recipes that run graphs
    #[arg(long, value_name = "FILE", requires = "recipe")]
    graph: Option<PathBuf>,
    /// Replace an existing manifest
    #[arg(long, requires = "recipe")]
    force: bool,
    #[command(flatten)]
    shape: Shape,
}

/// A recipe.
#[derive(Debug)]
struct Recipe {
    name: &'static str,
    text: &'static str,
    /// The program that is written beside the manifest, and its extension.
    worker: Option<(&'static str, &'static str)>,
}

macro_rules! recipe {
    ($name:literal) => {
        recipe!($name, None)
    };
    ($name:literal, $worker:expr) => {
        Recipe {
            name: $name,
            text: include_str!(concat!("recipes/", $name, ".toml")),
            worker: $worker,
        }
    };
}

/// All recipes, in the order of the list.
const RECIPES: &[Recipe] = &[
    recipe!("llama-server"),
    recipe!("vllm"),
    recipe!("ollama"),
    recipe!("tei"),
    recipe!("whisper-server"),
    recipe!("speaches"),
    recipe!("piper"),
    recipe!("sd-server"),
    recipe!("comfyui"),
    recipe!("diffusers", Some((include_str!("recipes/diffusers.py"), "py"))),
];

/// Names of the ComfyUI node inputs that requests usually fill in.
const GRAPH_INPUTS: [&str; 12] = [
    "text",
    "prompt",
    "seed",
    "noise_seed",
    "steps",
    "cfg",
    "width",
    "height",
    "length",
    "image",
    "audio",
    "video",
];
/// Maximum number of inputs to write to a manifest.
const GRAPH_INPUTS_MAX: usize = 64;

/// The values that replace a recipe's placeholders.
#[derive(Debug, Default)]
struct Values {
    slug: String,
    /// `None` if the service starts the server.
    url: Option<String>,
    model: Option<String>,
    graph: Option<String>,
    /// The inputs of the graph that requests fill in: a table in TOML.
    inputs: String,
    worker: Option<String>,
}

/// A recipe in the list.
#[derive(Serialize)]
struct Listed {
    recipe: &'static str,
    description: &'static str,
    /// Whether the service can start the server.
    starts: bool,
}

/// An added model.
#[derive(Debug, Serialize)]
struct Added {
    slug: String,
    /// The manifest, and the files beside it.
    files: Vec<PathBuf>,
    /// The reasons why the manifest cannot be used yet.
    problems: Vec<String>,
    /// The next command to try.
    next: String,
}

/// Parses the URL of a server.
fn server_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let url = url.ok_or("write the URL of the server, such as http://127.0.0.1:8000/v1")?;
    if !url.username().is_empty() || url.password().is_some() {
        let message = "do not write a password into a manifest: leave it out of the URL, and add a \
                       line such as key = \"${file:/etc/orrery/key}\" to the manifest";
        return Err(message.to_owned());
    }
    Ok(url)
}

pub(super) fn run(asked: &Add, file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let output = Output::new(asked.shape.json);
    let Some(name) = &asked.recipe else {
        list(&output)?;
        return Ok(ExitCode::SUCCESS);
    };
    let Some(recipe) = RECIPES.iter().find(|recipe| recipe.name == name) else {
        let names: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
        bail!("there is no recipe {name}; the recipes are {}", names.join(", "));
    };
    let added = add(recipe, asked, &of_service(file)?)?;
    let is_usable = added.problems.is_empty();
    if output.is_json() {
        output::json(&added)?;
    } else {
        for file in &added.files {
            output::line(&file.display().to_string())?;
        }
        added.problems.iter().for_each(|problem| output::note(&format!("warning: {problem}")));
        output::note(&format!("Try it: {}", added.next));
    }
    Ok(if is_usable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list(output: &Output) -> anyhow::Result<()> {
    let listed: Vec<Listed> = RECIPES
        .iter()
        .map(|recipe| Listed {
            recipe: recipe.name,
            description: recipe.description(),
            starts: recipe.default_url().is_none() || recipe.has_start(),
        })
        .collect();
    let columns = [Column::Text("RECIPE"), Column::Text("SERVER"), Column::Text("MODEL")];
    let rows = listed.iter().map(|row| {
        let server = if row.starts { "Orrery starts it" } else { "runs already" };
        vec![row.recipe.to_owned(), server.to_owned(), row.description.to_owned()]
    });
    output.show(&listed, &columns, rows)
}

/// Writes the manifest and the files beside it, and checks the manifest.
fn add(recipe: &Recipe, asked: &Add, config: &Config) -> anyhow::Result<Added> {
    let folder = &config.models_dir;
    let slug = asked.slug.as_ref().map_or_else(|| recipe.name.to_owned(), Slug::to_string);
    let stem = slug.replace(['/', ':'], "-");
    let read = |path: &PathBuf| {
        fs::read(path).with_context(|| format!("{} cannot be read", path.display()))
    };
    let graph = asked.graph.as_ref().map(read).transpose()?;
    let values = Values {
        url: recipe.url(asked.url.as_ref())?,
        model: asked.model.clone(),
        graph: graph.as_ref().map(|_| format!("{stem}.json")),
        inputs: inputs_of(graph.as_deref().unwrap_or_default()),
        worker: recipe.worker.map(|(_, extension)| format!("{stem}-worker.{extension}")),
        slug,
    };
    let values = recipe.with_file(values, folder)?;
    let text = recipe.fill(&values)?;
    let manifest = folder.join(format!("{stem}.toml"));
    if manifest.try_exists().unwrap_or(true) && !asked.force {
        let manifest = manifest.display();
        bail!("{manifest} exists already: choose another --slug, or replace it with --force");
    }
    fs::create_dir_all(folder)
        .with_context(|| format!("{} cannot be created", folder.display()))?;
    // The manifest comes last, because the service reads it at once.
    let mut files = Vec::new();
    let worker = recipe.worker.map(|(program, _)| program.as_bytes());
    for (name, content) in [(&values.worker, worker), (&values.graph, graph.as_deref())] {
        if let Some((name, content)) = name.as_ref().zip(content) {
            files.push(write(folder.join(name), content, asked.force)?);
        }
    }
    files.insert(0, write(manifest.clone(), text.as_bytes(), asked.force)?);
    let problems = match service::check_manifest(&manifest, Some(config)) {
        Ok((_, concern)) => concern.into_iter().collect(),
        Err(faults) => faults,
    };
    let next = recipe.next_command().replace("@SLUG@", &values.slug);
    Ok(Added { slug: values.slug, files, problems, next })
}

/// Returns the graph's inputs that requests usually fill in, as a TOML table; the table is empty if
/// the file is not a graph in the API form.
fn inputs_of(graph: &[u8]) -> String {
    let nodes: serde_json::Map<String, Value> = serde_json::from_slice(graph).unwrap_or_default();
    let fields = nodes.iter().flat_map(|(node, value)| {
        let fields = value.get("inputs").and_then(Value::as_object).into_iter().flatten();
        let is_written = |value: &Value| value.is_string() || value.is_number();
        let usual = fields.filter(move |(name, value)| {
            GRAPH_INPUTS.contains(&name.as_str()) && is_written(value)
        });
        usual.map(move |(name, _)| (name.as_str(), node.as_str()))
    });
    let fields: Vec<(&str, &str)> = fields.take(GRAPH_INPUTS_MAX).collect();
    let entries: Vec<String> = fields
        .iter()
        .map(|(name, node)| {
            let is_one = fields.iter().filter(|(other, _)| other == name).count() == 1;
            let own = if is_one { (*name).to_owned() } else { format!("{name}_{node}") };
            // A JSON string is also a valid TOML string.
            format!("{} = {}", Value::from(own), Value::from(format!("{node}.inputs.{name}")))
        })
        .collect();
    format!("{{ {} }}", entries.join(", "))
}

/// Writes a file that becomes visible only when it is complete.
fn write(path: PathBuf, content: &[u8], is_replaced: bool) -> anyhow::Result<PathBuf> {
    let failed = || format!("{} cannot be written", path.display());
    let folder = path.parent().unwrap_or(Path::new("."));
    let file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder);
    let mut file = file.with_context(failed)?;
    file.write_all(content).with_context(failed)?;
    give_to_service(file.as_file(), folder).with_context(failed)?;
    file.as_file().sync_all().with_context(failed)?;
    let placed = if is_replaced { file.persist(&path) } else { file.persist_noclobber(&path) };
    placed.map_err(|error| error.error).with_context(failed)?;
    File::open(folder).and_then(|folder| folder.sync_all()).with_context(failed)?;
    Ok(path)
}

impl Recipe {
    /// Returns the sentence that describes the recipe.
    fn description(&self) -> &'static str {
        self.comment(0)
    }

    /// Returns the next command to try.
    fn next_command(&self) -> &'static str {
        self.comment(1).trim_start_matches("Try: ")
    }

    fn comment(&self, line: usize) -> &'static str {
        self.text.lines().nth(line).unwrap_or_default().trim_start_matches("# ")
    }

    fn has_start(&self) -> bool {
        self.text.lines().any(|line| line == "#[start]")
    }

    /// Returns the usual URL of the server; `None` if the recipe needs no server.
    fn default_url(&self) -> Option<&'static str> {
        self.text.lines().find_map(|line| line.strip_prefix("#[url ")?.strip_suffix(']'))
    }

    /// Returns the URL of the server; `None` if the service starts the server. A URL without a path
    /// gets the path of the default.
    fn url(&self, asked: Option<&Url>) -> anyhow::Result<Option<String>> {
        let default = self.default_url();
        let Some(asked) = asked else {
            return Ok(default.filter(|_| !self.has_start()).map(str::to_owned));
        };
        let Some(default) = default else { bail!("the recipe {} takes no --url", self.name) };
        let mut url = asked.clone();
        if url.path() == "/" {
            url.set_path(Url::parse(default)?.path());
        }
        Ok(Some(url.as_str().trim_end_matches('/').to_owned()))
    }

    /// Returns the lines of the manifest for a server that the service starts, or for a server that
    /// is already running.
    fn lines(&self, is_started: bool) -> impl Iterator<Item = &'static str> {
        let mut is_wanted = true;
        self.text.lines().filter(move |line| {
            is_wanted = match *line {
                "#[start]" => is_started,
                "#[end]" => true,
                line if line.starts_with("#[url ") => !is_started,
                _ => return is_wanted,
            };
            false
        })
    }

    /// Makes the path of a model file absolute. The path is relative to the folder of the command,
    /// or to the models folder.
    fn with_file(&self, values: Values, folder: &Path) -> anyhow::Result<Values> {
        let is_started = values.url.is_none();
        let wants_file = self.lines(is_started).any(|line| line.contains("\"@FILE@\""));
        let Some(path) = values.model.as_deref().filter(|_| wants_file) else { return Ok(values) };
        let places = [PathBuf::from(path), folder.join(path)];
        let Some(found) = places.into_iter().find(|path| path.is_file()) else {
            bail!("there is no file {path}; `orrery model pull` downloads model files");
        };
        let found = fs::canonicalize(&found).unwrap_or(found);
        let found = found.to_str().context("the path of the model is not UTF-8")?.to_owned();
        Ok(Values { model: Some(found), ..values })
    }

    /// Returns the manifest with the placeholders replaced.
    fn fill(&self, values: &Values) -> anyhow::Result<String> {
        let is_started = values.url.is_none();
        let (slug, model) = (Some(&values.slug), values.model.as_ref());
        let places = [
            ("SLUG", slug, ""),
            ("NAME", model.or(slug), ""),
            ("MODEL", model, "--model NAME, which says what the server calls the model"),
            ("FILE", model, "--model FILE, the model file, which `orrery model pull` downloads"),
            ("URL", values.url.as_ref(), ""),
            ("GRAPH", values.graph.as_ref(), "--graph FILE, the graph in its API form"),
            ("WORKER", values.worker.as_ref(), ""),
        ];
        let mut used = BTreeSet::new();
        let mut text = String::new();
        for line in self.lines(is_started) {
            let mut line = line.to_owned();
            if line.starts_with('#') {
                line = line.replace("@SLUG@", &values.slug);
            }
            line = line.replace("\"@INPUTS@\"", &values.inputs);
            for (name, value, needed) in places {
                let place = format!("\"@{name}@\"");
                if !line.contains(&place) || line.starts_with('#') {
                    continue;
                }
                let Some(value) = value else { bail!("the recipe {} needs {needed}", self.name) };
                if value.chars().any(char::is_control) {
                    bail!("the values of a manifest must not have control characters");
                }
                // A JSON string is also a valid TOML string.
                line = line.replace(&place, &serde_json::to_string(value)?);
                used.insert(name);
            }
            text.push_str(&line);
            text.push('\n');
        }
        let takes = |names: &[&str]| names.iter().any(|name| used.contains(name));
        let how = if is_started { "" } else { " for a server that runs already" };
        if model.is_some() && !takes(&["MODEL", "FILE", "NAME"]) {
            bail!("the recipe {} takes no --model{how}", self.name);
        }
        if values.graph.is_some() && !takes(&["GRAPH"]) {
            bail!("the recipe {} takes no --graph", self.name);
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(name: &str) -> &'static Recipe {
        RECIPES.iter().find(|recipe| recipe.name == name).unwrap()
    }

    fn values(url: Option<&str>, model: Option<&str>) -> Values {
        let text = |text: &str| text.to_owned();
        Values { slug: text("s"), url: url.map(text), model: model.map(text), ..Values::default() }
    }

    #[test]
    fn every_recipe_describes_itself_and_is_a_table() {
        for recipe in RECIPES {
            let (name, about) = (recipe.name, recipe.description());
            assert!(about.len() > 20 && !about.ends_with('.'), "{name}");
            assert!(recipe.text.lines().nth(1).unwrap().starts_with("# Try: "), "{name}");
            assert!(recipe.has_start() || recipe.default_url().is_some() || name == "diffusers");
            for is_started in [true, false] {
                let text: Vec<&str> = recipe.lines(is_started).collect();
                let text = text.join("\n");
                assert!(!text.contains("#["), "{text}");
                let table: Result<toml::Table, _> = text.parse();
                assert!(table.is_ok(), "{name}: {table:?}");
            }
        }
    }

    #[test]
    fn graph_gets_the_inputs_that_requests_usually_fill_in() {
        let graph =
            br#"{"6": {"inputs": {"text": "a", "clip": ["4", 1]}}, "7": {"inputs": {"text": "b"}},
            "3": {"inputs": {"seed": 1, "steps": ["9", 0], "denoise": 1}}}"#;
        let inputs = "{ \"text_6\" = \"6.inputs.text\", \"text_7\" = \"7.inputs.text\", \
                      \"seed\" = \"3.inputs.seed\" }";
        assert_eq!(inputs_of(graph), inputs);
        for other in ["", "[]", r#"{"nodes": []}"#] {
            assert_eq!(inputs_of(other.as_bytes()), "{  }");
        }
        let mut values = values(Some("http://h:8188"), None);
        values.graph = Some("s.json".to_owned());
        values.inputs = inputs.to_owned();
        let table: toml::Table = recipe("comfyui").fill(&values).unwrap().parse().unwrap();
        assert_eq!(table["runner"]["inputs"]["seed"].as_str(), Some("3.inputs.seed"));
        values.graph = None;
        let error = recipe("comfyui").fill(&values).unwrap_err().to_string();
        assert!(error.contains("needs --graph FILE"), "{error}");
    }

    #[test]
    fn dashboard_lists_the_same_recipes() {
        let page = include_str!("../../../../static/screens/add_model.js");
        for recipe in RECIPES {
            let (name, description) = (recipe.name, recipe.description());
            assert!(page.contains(&format!("name: \"{name}\"")), "{name}");
            assert!(page.contains(&format!("about: \"{description}\"")), "{name}: {description}");
        }
        assert_eq!(page.matches("about: \"").count(), RECIPES.len());
    }

    #[test]
    fn url_without_path_gets_the_usual_path() {
        for (name, url, expect) in [
            ("ollama", None, Some("http://127.0.0.1:11434/v1")),
            ("ollama", Some("http://box:11434"), Some("http://box:11434/v1")),
            ("ollama", Some("http://box/api/v1/"), Some("http://box/api/v1")),
            ("piper", Some("http://box:5000/"), Some("http://box:5000/synthesize")),
            ("llama-server", None, None),
        ] {
            let url = url.map(|url| server_url(url).unwrap());
            assert_eq!(recipe(name).url(url.as_ref()).unwrap().as_deref(), expect, "{name}");
        }
        let error = recipe("diffusers").url(Some(&server_url("http://h").unwrap())).unwrap_err();
        assert_eq!(error.to_string(), "the recipe diffusers takes no --url");
        for wrong in ["box:80", "ftp://box", "http://"] {
            assert!(server_url(wrong).unwrap_err().contains("such as http://"), "{wrong}");
        }
        assert!(
            server_url("http://me:secret@box").unwrap_err().contains("do not write a password")
        );
    }

    #[test]
    fn values_are_quoted_required_and_never_ignored() {
        let odd = "a\"b\\c'@SLUG@\u{202e}";
        let text = recipe("ollama").fill(&values(Some("http://h/v1"), Some(odd))).unwrap();
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["runner"]["model"].as_str(), Some(odd));
        assert_eq!(table["runner"]["url"].as_str(), Some("http://h/v1"));
        assert!(text.contains("# Try: orrery chat s\n"), "{text}");
        let fail = |name: &str, values: &Values| recipe(name).fill(values).unwrap_err().to_string();
        assert!(fail("ollama", &values(Some("http://h"), None)).contains("needs --model NAME"));
        assert!(fail("llama-server", &values(None, None)).contains("needs --model FILE"));
        assert!(fail("piper", &values(Some("http://h"), Some("m"))).contains("takes no --model"));
        assert!(fail("ollama", &values(Some("http://h"), Some("a\nb"))).contains("control"));
        let graph = Values { graph: Some("s.json".into()), ..values(Some("http://h"), Some("m")) };
        assert!(fail("ollama", &graph).contains("takes no --graph"));
    }
}
