//! `orrery chain`: saves, shows, switches and deletes fallback chains.

use std::path::Path;

use anyhow::Context as _;
use clap::Subcommand;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Shape;
use super::admin::Admin;
use super::key::understood;
use super::output::{self, Column, Output};
use crate::config::Config;
use crate::domain::account::DEFAULT_ORGANIZATION;
use crate::domain::chain::Entry;
use crate::wire::operator::{Chain, Chains};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Create a chain: the models to run, in order, when another one fails
    Create {
        #[command(flatten)]
        chain: Named,
        /// JSON or TOML, or @FILE: [{"model": "small", "input_map": {"text": "{{input.prompt}}"}}]
        #[arg(long, value_name = "ENTRIES")]
        entries: String,
        #[command(flatten)]
        shape: Shape,
    },
    /// Replace the entries of a chain, for new predictions
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
        chain: Named,
    },
    /// Enable a chain
    Enable {
        #[command(flatten)]
        chain: Named,
    },
    /// Disable a chain; predictions that name it are refused
    Disable {
        #[command(flatten)]
        chain: Named,
    },
    /// Delete a chain; predictions that already use it keep it
    Delete {
        #[command(flatten)]
        chain: Named,
    },
}

/// Which chain.
#[derive(Debug, clap::Args)]
pub(super) struct Named {
    /// 1 to 50 characters of a-z, 0-9 and -
    #[arg(long, value_name = "NAME")]
    name: String,
    /// The primary model of the chain
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// The organization of the chain
    #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
    org: String,
}

/// Entries in TOML need a name.
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
            let query = query(&[
                ("organization", &chain.org),
                ("model", &chain.model),
                ("name", &chain.name),
            ]);
            admin.delete(&format!("/admin/chains?{query}")).await?;
            output::note(&format!("Chain {} of {} is deleted.", chain.name, chain.model));
            Ok(())
        }
    }
}

impl Named {
    /// The request's body with one more field.
    fn with(&self, field: &str, value: Value) -> Value {
        let mut body = json!({"organization": self.org, "model": self.model, "name": self.name});
        if let Value::Object(fields) = &mut body {
            fields.insert(field.to_owned(), value);
        }
        body
    }
}

async fn switch(admin: &Admin, chain: &Named, enabled: bool) -> anyhow::Result<()> {
    admin.put("/admin/chains", &chain.with("enabled", enabled.into())).await?;
    let state = if enabled { "enabled" } else { "disabled" };
    output::note(&format!("Chain {} of {} is {state}.", chain.name, chain.model));
    Ok(())
}

async fn find(admin: &Admin, named: &Named) -> anyhow::Result<Chain> {
    let query = query(&[("organization", &named.org)]);
    let answer: Chains = understood(admin.get(&format!("/admin/chains?{query}")).await?)?;
    let is_it = |chain: &Chain| chain.model == named.model && chain.name == named.name;
    answer
        .chains
        .into_iter()
        .find(is_it)
        .with_context(|| format!("the model {} has no chain {}", named.model, named.name))
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

/// Entries as they are given: JSON, TOML (`[[entries]]`), or a file of either.
fn read(given: &str) -> anyhow::Result<Value> {
    let text = match given.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(Path::new(file))
            .with_context(|| format!("{file} cannot be read"))?,
        None => given.to_owned(),
    };
    let json = match serde_json::from_str::<Vec<Entry>>(&text) {
        Ok(entries) => return Ok(serde_json::to_value(entries)?),
        Err(error) => error,
    };
    if text.trim_start().starts_with(['[', '{']) && !text.contains("[[entries]]") {
        return Err(json).context("the entries must be a JSON array of {model, input_map}");
    }
    let file: File = toml::from_str(&text)
        .context("the entries must be a JSON array, or TOML with [[entries]]")?;
    Ok(serde_json::to_value(file.entries)?)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
