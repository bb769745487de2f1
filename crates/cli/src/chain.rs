//! `orrery chain`: creates, lists, changes and deletes fallback chains.

use std::path::Path;

use anyhow::Context as _;
use clap::Subcommand;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Shape;
use super::admin::Admin;
use super::file;
use super::key::understood;
use super::output::{self, Column, Output};
use orrery_config::Config;
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_domain::chain::Entry;
use orrery_domain::spelling;
use orrery_runtime::regular_file;
use orrery_wire::operator::{Chain, Chains};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Create a chain: the models to try, in order, when the primary model fails
    Create {
        #[command(flatten)]
        chain: Named,
        /// The entries as JSON or TOML, or @FILE, such as [{"model": "small", "input_map": {"text":
        /// "{{input.prompt}}"}}]
        #[arg(long, value_name = "ENTRIES")]
        entries: String,
        #[command(flatten)]
        shape: Shape,
    },
    /// Replace the entries of a chain; predictions that already use it keep the old ones
    Update {
        #[command(flatten)]
        chain: Named,
        /// The entries, as for create
        #[arg(long, value_name = "ENTRIES")]
        entries: String,
        #[command(flatten)]
        shape: Shape,
    },
    /// List the chains, of one organization or of all
    List {
        #[arg(long, value_name = "ORGANIZATION")]
        org: Option<String>,
        #[command(flatten)]
        shape: Shape,
    },
    /// Show one chain as JSON
    Show {
        #[command(flatten)]
        chain: Known,
    },
    /// Enable a chain
    Enable {
        #[command(flatten)]
        chain: Known,
    },
    /// Disable a chain; predictions that name it are rejected
    Disable {
        #[command(flatten)]
        chain: Known,
    },
    /// Delete a chain; predictions that already use it keep it
    Delete {
        #[command(flatten)]
        chain: Known,
    },
}

/// A chain to create or replace.
#[derive(Debug, clap::Args)]
pub(super) struct Named {
    #[command(flatten)]
    name: Name,
    /// The primary model of the chain
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// The organization of the chain
    #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
    org: String,
}

/// An existing chain.
#[derive(Debug, clap::Args)]
pub(super) struct Known {
    #[command(flatten)]
    name: Name,
    /// The primary model of the chain, needed if several models have a chain of this name
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// The organization of the chain
    #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
    org: String,
}

/// The name of a chain.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Name {
    /// The name of the chain: 1 to 50 characters of a-z, 0-9 and -
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// The same as an option, for scripts written for earlier versions
    #[arg(long = "name", value_name = "NAME", hide = true)]
    option: Option<String>,
}

impl Name {
    /// Returns the name that was given.
    fn text(&self) -> &str {
        self.name.as_ref().or(self.option.as_ref()).map_or("", String::as_str)
    }
}

/// A TOML document with the field `entries`. TOML does not allow an array without a name.
#[derive(Debug, Deserialize)]
struct File {
    entries: Vec<Entry>,
}

const COLUMNS: [Column; 6] = [
    Column::Text("MODEL"),
    Column::Text("NAME"),
    Column::Text("ORGANIZATION"),
    Column::Text("ENABLED"),
    Column::Text("FALLBACKS, IN ORDER"),
    Column::Text("CHANGED"),
];

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    let admin = super::service::admin(config).await?;
    match command {
        Command::Create { chain, entries, shape } => {
            let body = chain.with("entries", read(&entries)?);
            show(admin.post("/admin/chains", &body).await?, shape)
        }
        Command::Update { chain, entries, shape } => {
            let body = chain.with("entries", read(&entries)?);
            show(admin.put("/admin/chains", &body).await?, shape)
        }
        Command::List { org, shape } => {
            let query = org
                .map_or_else(String::new, |org| format!("?{}", query(&[("organization", &org)])));
            let answer: Chains = understood(admin.get(&format!("/admin/chains{query}")).await?)?;
            Output::new(shape.json).show(&answer, &COLUMNS, answer.chains.iter().map(row))
        }
        Command::Show { chain } => output::json(&find(&admin, &chain).await?),
        Command::Enable { chain } => switch(&admin, &chain, true).await,
        Command::Disable { chain } => switch(&admin, &chain, false).await,
        Command::Delete { chain } => {
            let Chain { organization, model, name, .. } = find(&admin, &chain).await?;
            let query =
                query(&[("organization", &organization), ("model", &model), ("name", &name)]);
            admin.delete(&format!("/admin/chains?{query}")).await?;
            output::note(&format!("Chain {name} of {model} is deleted."));
            Ok(())
        }
    }
}

impl Named {
    /// Returns the request body with one more field.
    fn with(&self, field: &str, value: Value) -> Value {
        let name = self.name.text();
        let mut body = json!({"organization": self.org, "model": self.model, "name": name});
        if let Value::Object(fields) = &mut body {
            fields.insert(field.to_owned(), value);
        }
        body
    }
}

async fn switch(admin: &Admin, chain: &Known, enabled: bool) -> anyhow::Result<()> {
    let Chain { organization, model, name, .. } = find(admin, chain).await?;
    let body =
        json!({"organization": organization, "model": model, "name": name, "enabled": enabled});
    admin.put("/admin/chains", &body).await?;
    let state = if enabled { "enabled" } else { "disabled" };
    output::note(&format!("Chain {name} of {model} is {state}."));
    Ok(())
}

/// Fetches the chain of this name and, if given, this model.
async fn find(admin: &Admin, known: &Known) -> anyhow::Result<Chain> {
    let query = query(&[("organization", &known.org)]);
    let answer: Chains = understood(admin.get(&format!("/admin/chains?{query}")).await?)?;
    only(answer.chains, known.name.text(), known.model.as_deref())
}

/// Selects the only chain of this name and, if given, this model.
fn only(chains: Vec<Chain>, name: &str, model: Option<&str>) -> anyhow::Result<Chain> {
    let is_it =
        |chain: &Chain| chain.name == name && model.is_none_or(|model| chain.model == model);
    let names: Vec<&str> = chains.iter().map(|chain| chain.name.as_str()).collect();
    let hint = spelling::hint(name, &names);
    let mut found: Vec<Chain> = chains.into_iter().filter(is_it).collect();
    if found.len() > 1 {
        let models: Vec<&str> = found.iter().map(|chain| chain.model.as_str()).collect();
        anyhow::bail!(
            "several models have a chain {name}: choose one with --model ({})",
            models.join(", ")
        );
    }
    found.pop().with_context(|| match model {
        Some(model) => {
            format!(
                "the model {model} has no chain {name}{hint}; `orrery chain list` lists all chains"
            )
        }
        None => format!("there is no chain {name}{hint}; `orrery chain list` lists all chains"),
    })
}

fn show(answer: Value, shape: Shape) -> anyhow::Result<()> {
    let chain: Chain = understood(answer)?;
    Output::new(shape.json).show(&chain, &COLUMNS, [row(&chain)])
}

fn row(chain: &Chain) -> Vec<String> {
    let models: Vec<&str> = chain.entries.iter().map(|entry| entry.model.as_str()).collect();
    vec![
        chain.model.clone(),
        chain.name.clone(),
        chain.organization.clone(),
        if chain.enabled { "yes" } else { "no" }.to_owned(),
        models.join(", "),
        chain.updated_at.to_string(),
    ]
}

pub(super) fn query(pairs: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

/// Parses entries given as JSON, as TOML (`[[entries]]`), or as the name of a file with either.
fn read(given: &str) -> anyhow::Result<Value> {
    let text = match given.strip_prefix('@') {
        Some(file) => regular_file::read_to_string(Path::new(file))
            .with_context(|| format!("{file} cannot be read"))?,
        None => given.to_owned(),
    };
    let json = match serde_json::from_str::<Vec<Entry>>(&text) {
        Ok(entries) => return Ok(serde_json::to_value(entries)?),
        Err(error) => file::without_contents(&error.to_string()),
    };
    if text.trim_start().starts_with(['[', '{']) && !text.contains("[[entries]]") {
        return Err(anyhow::anyhow!(json))
            .context("the entries must be a JSON array of {model, input_map}");
    }
    let file: File = file::from_toml(&text)
        .context("the entries must be a JSON array, or TOML with [[entries]]")?;
    Ok(serde_json::to_value(file.entries)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_chain_name_alone_suffices_if_unique() {
        let chain = |name: &str, model: &str| -> Chain {
            serde_json::from_value(json!({
                "id": "0192f0c1-8a52-7c3b-9d1e-2f3a4b5c6d7e", "organization": "default",
                "name": name, "model": model, "entries": [], "enabled": true,
                "created_at": "2026-11-20T09:30:00Z", "updated_at": "2026-11-20T09:30:00Z",
            }))
            .unwrap()
        };
        let all = || vec![chain("safe", "a"), chain("safe", "b"), chain("fast", "b")];
        assert_eq!(only(all(), "fast", None).unwrap().model, "b");
        assert_eq!(only(all(), "safe", Some("b")).unwrap().model, "b");
        let error = only(all(), "safe", None).unwrap_err().to_string();
        assert!(error.contains("--model (a, b)"), "{error}");
        assert!(only(all(), "fast", Some("a")).is_err() && only(all(), "none", None).is_err());
    }

    #[test]
    fn cli_chain_entries_accept_json_toml_or_file() {
        let expect = json!([{"model": "b", "input_map": {"text": "{{input.prompt}}"}}]);
        let json = r#"[{"model": "b", "input_map": {"text": "{{input.prompt}}"}}]"#;
        let toml = "[[entries]]\nmodel = 'b'\ninput_map = { text = '{{input.prompt}}' }\n";
        assert_eq!(read(json).unwrap(), expect);
        assert_eq!(read(toml).unwrap(), expect);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chain.toml");
        std::fs::write(&path, toml).unwrap();
        assert_eq!(read(&format!("@{}", path.display())).unwrap(), expect);
        for bad in ["[{]", "[1]", "model = 'b'", "@/nowhere/at/all"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        // The file may be a link to a private one.
        for text in [
            "root:*:20228:0:::",
            "[[entries]]\nmodel = 20228",
            "[[entries]]\n'root:*:20228' = 1",
            "[{\"root:*:20228\": 1}]",
            "[\"root:*:20228\"]",
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", read(&format!("@{}", path.display())).unwrap_err());
            assert!(!error.contains("20228"), "{error}");
        }
    }
}
