//! `orrery key`: creates, lists and deletes API keys.
//!
//! A new key is the only text on standard output, so that a script can capture it. The full key is
//! shown only once.

use std::time::Duration;

use anyhow::bail;
use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::Shape;
use super::admin::Admin;
use super::key_policy::{self, KeyPolicyArgs};
use super::output::{self, Column, Output};
use orrery_config::Config;
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_domain::ids::KeyId;
use orrery_domain::time::span_text;
use orrery_wire::Time;
use orrery_wire::operator::{Key, Keys, NewKey};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Create a key. It is shown only once
    Create {
        /// What the key is for
        #[arg(long, value_name = "NAME")]
        name: String,
        /// The organization of the key
        #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
        org: String,
        /// Create an admin key: it administers the box over HTTP and belongs to no organization
        #[arg(long, conflicts_with = "org")]
        admin: bool,
        /// How long the key is valid, such as 90d [default: until it is deleted]
        #[arg(long, value_name = "TIME", value_parser = super::values::span)]
        expires: Option<Duration>,
        #[command(flatten)]
        policy: Box<KeyPolicyArgs>,
        #[command(flatten)]
        shape: Shape,
    },
    /// Change what a key may do, from the next request on; `none` removes a restriction
    Update {
        /// The id of the key as shown by `orrery key list`, or its name if it is unique
        #[arg(value_name = "ID_OR_NAME")]
        key: String,
        #[command(flatten)]
        policy: Box<KeyPolicyArgs>,
    },
    /// Refuse all requests with a key until it is unblocked
    Block {
        /// The id of the key as shown by `orrery key list`, or its name if it is unique
        #[arg(value_name = "ID_OR_NAME")]
        key: String,
    },
    /// Accept requests with a blocked key again
    Unblock {
        /// The id of the key as shown by `orrery key list`, or its name if it is unique
        #[arg(value_name = "ID_OR_NAME")]
        key: String,
    },
    /// Give a key a new text; its id, limits and history stay
    Rotate {
        /// The id of the key as shown by `orrery key list`, or its name if it is unique
        #[arg(value_name = "ID_OR_NAME")]
        key: String,
        /// How long the previous text still works, such as 24h, at most 30d [default: not at all]
        #[arg(long, value_name = "TIME", value_parser = super::values::span)]
        grace: Option<Duration>,
    },
    /// List the keys, of one organization or of all
    List {
        #[arg(long, value_name = "ORGANIZATION")]
        org: Option<String>,
        #[command(flatten)]
        shape: Shape,
    },
    /// Delete a key; requests with it are rejected from then on
    Delete {
        /// The id of the key as shown by `orrery key list`, or its name if it is unique
        #[arg(value_name = "ID_OR_NAME")]
        key: String,
    },
}

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    let admin = super::service::admin(config).await?;
    match command {
        Command::Create { name, org, admin: is_admin, expires, policy, shape } => {
            let owner = (!is_admin).then_some(org.as_str());
            create(&admin, &name, owner, expires, &policy, &Output::new(shape.json)).await
        }
        Command::Update { key, policy } => {
            let mut fields = Map::new();
            policy.add_to(&mut fields);
            if fields.is_empty() {
                bail!("name at least one restriction to change, such as --rpm 60");
            }
            change(&admin, &key, fields, "was changed. The change applies to the next request")
                .await
        }
        Command::Block { key } => {
            let fields = Map::from_iter([("blocked".to_owned(), json!(true))]);
            change(&admin, &key, fields, "is blocked. Requests with it are now rejected").await
        }
        Command::Unblock { key } => {
            let fields = Map::from_iter([("blocked".to_owned(), json!(false))]);
            change(&admin, &key, fields, "is no longer blocked").await
        }
        Command::Rotate { key, grace } => rotate(&admin, &key, grace).await,
        Command::List { org, shape } => {
            list(&admin, org.as_deref(), &Output::new(shape.json)).await
        }
        Command::Delete { key } => {
            let id = find(&admin, &key).await?;
            admin.delete(&format!("/admin/keys/{id}")).await?;
            output::note(&format!("Key {id} was deleted. Requests with it are now rejected."));
            Ok(())
        }
    }
}

async fn change(
    admin: &Admin,
    key: &str,
    fields: Map<String, Value>,
    said: &str,
) -> anyhow::Result<()> {
    let id = find(admin, key).await?;
    admin.put(&format!("/admin/keys/{id}"), &Value::Object(fields)).await?;
    output::note(&format!("Key {id} {said}."));
    Ok(())
}

async fn rotate(admin: &Admin, key: &str, grace: Option<Duration>) -> anyhow::Result<()> {
    let id = find(admin, key).await?;
    let wanted = json!({"grace_seconds": grace.map_or(0, |span| span.as_secs())});
    let path = format!("/admin/keys/{id}/rotate");
    let made: NewKey = understood(admin.post(&path, &wanted).await?)?;
    let previous = match grace {
        Some(grace) => format!("The previous text works for {} more.", span_text(grace)),
        None => "The previous text no longer works.".to_owned(),
    };
    output::note(&format!("Key {id} has a new text, which is printed this once. {previous}"));
    output::raw(format!("{}\n", made.key).as_bytes())
}

async fn create(
    admin: &Admin,
    name: &str,
    organization: Option<&str>,
    expires: Option<Duration>,
    policy: &KeyPolicyArgs,
    output: &Output,
) -> anyhow::Result<()> {
    let mut wanted = json!({
        "name": name,
        "organization": organization,
        "admin": organization.is_none(),
        "created_by": creator(),
    });
    if let Some(fields) = wanted.as_object_mut() {
        policy.add_to(fields);
        if let Some(span) = expires {
            fields.insert("expires_in_seconds".to_owned(), json!(span.as_secs()));
        }
    }
    let created: NewKey = understood(admin.post("/admin/keys", &wanted).await?)?;
    if output.is_json() {
        return output::json(&created);
    }
    // A script that captures the key needs no explanation.
    if output::on_a_terminal() {
        output::note(&introduction(&created.described));
    }
    output::raw(format!("{}\n", created.key).as_bytes())
}

/// Describes a new key, whose text follows on the next line.
fn introduction(key: &Key) -> String {
    let owner = match key.admin {
        true => "for administering the box".to_owned(),
        false => format!("of organization {}", key.organization),
    };
    let valid = key.expires_at.map_or("until it is deleted".to_owned(), |at| format!("until {at}"));
    let Key { id, name, .. } = key;
    format!("Key {id} ({name}) {owner}, valid {valid}. Copy it now; it will not be shown again:")
}

async fn list(admin: &Admin, organization: Option<&str>, output: &Output) -> anyhow::Result<()> {
    let path = organization.map_or("/admin/keys".to_owned(), |name| {
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("organization", name)
            .finish();
        format!("/admin/keys?{query}")
    });
    let answer: Keys = understood(admin.get(&path).await?)?;
    let columns = [
        "ID",
        "KEY",
        "NAME",
        "ORGANIZATION",
        "CREATED BY",
        "CREATED",
        "EXPIRES",
        "LAST USED",
        "SPENT",
        "LIMITS",
    ];
    let rows = answer.keys.iter().map(|listed| {
        let key = &listed.described;
        vec![
            key.id.to_string(),
            format!("{}…", key.prefix),
            key.name.clone(),
            if key.admin { "(admin)".to_owned() } else { key.organization.clone() },
            key.created_by.clone(),
            key.created_at.to_string(),
            or_never(key.expires_at),
            or_never(listed.last_used_at),
            listed.policy.spend.to_string(),
            key_policy::summary(&listed.policy),
        ]
    });
    output.show(&answer, &columns.map(Column::Text), rows)
}

/// Resolves an id or a name to the id of a key.
async fn find(admin: &Admin, key: &str) -> anyhow::Result<KeyId> {
    if let Ok(id) = key.parse() {
        return Ok(id);
    }
    let answer: Keys = understood(admin.get("/admin/keys").await?)?;
    let named =
        answer.keys.iter().map(|listed| &listed.described).filter(|found| found.name == key);
    let ids: Vec<KeyId> = named.map(|found| found.id).collect();
    match ids.as_slice() {
        [id] => Ok(*id),
        [] => bail!("no key has the id or name {key}; `orrery key list` lists all keys"),
        several => {
            let ids: Vec<String> = several.iter().map(ToString::to_string).collect();
            bail!("{} keys are named {key}: give the id of one ({})", ids.len(), ids.join(", "))
        }
    }
}

fn or_never(time: Option<Time>) -> String {
    time.map_or("never".to_owned(), |time| time.to_string())
}

/// Parses a response into its documented type.
pub(super) fn understood<T: serde::de::DeserializeOwned>(answer: Value) -> anyhow::Result<T> {
    use anyhow::Context as _;
    serde_json::from_value(answer)
        .context("the running service sent an unexpected answer: is it a different version?")
}

/// Returns the name to record as the key's creator, from the environment. The name is
/// informational, not authenticated.
fn creator() -> String {
    let user = ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    user.filter(|name| !name.is_empty()).unwrap_or("command line".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn introduction_names_owner_and_validity() {
        let key = json!({
            "id": "0198c0de-0000-7000-8000-000000000001", "prefix": "smk_abc", "name": "laptop",
            "organization": "acme", "created_by": "cli", "created_at": "2026-11-27T00:00:00Z",
            "expires_at": null,
        });
        let mut key: Key = serde_json::from_value(key).unwrap();
        let said = introduction(&key);
        assert!(
            said.contains(" (laptop) of organization acme, valid until it is deleted."),
            "{said}"
        );
        key.admin = true;
        key.expires_at = Some(key.created_at);
        let said = introduction(&key);
        assert!(said.contains(" for administering the box, valid until 2026-"), "{said}");
    }
}
