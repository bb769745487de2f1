//! Fallback chains: saved by the operator for an organization and a primary model, and looked up
//! when a prediction selects a chain.
//!
//! When a chain is saved, it is validated against the request schemas of its models: the mapped
//! input must be able to match each schema. This module never runs a model.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::{Map, Value};

use crate::audit::{Actor, Recorder};
use orrery_domain::chain::{Chain, ENTRIES_MAX, Entry, NAME_MAX, is_name};
use orrery_domain::ids::OrganizationId;
use orrery_domain::input_template::InputTemplate;
use orrery_domain::spelling;
use orrery_runtime::Clock;
use orrery_schema::{self as schema, Schema, Unavailable};
use orrery_storage::record::decode;
use orrery_storage::{self as storage, Commit, Key, Page, Store, Table};

/// Maximum number of chains of one organization; a list contains all of them.
const CHAINS_MAX: usize = 1_000;

/// Looks up the request schema of a model. The error message states that the model does not exist.
pub type SchemaOf<'a> = &'a (dyn Fn(&str) -> Result<Value, String> + Sync);

/// Errors of chain operations.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("a chain's name must have 1 to {NAME_MAX} characters of a-z, 0-9 and -")]
    InvalidName,
    #[error("{0}")]
    Invalid(String),
    #[error("the model {model} already has a chain {name}")]
    Exists { model: String, name: String },
    #[error("the model {model} has no chain {name}{hint}")]
    NotFound {
        model: String,
        name: String,
        /// A suggestion of a similar name, as the end of the message.
        hint: String,
    },
    #[error("there are {CHAINS_MAX} chains already; delete some first")]
    TooMany,
    /// The validation cannot be performed at the moment.
    #[error(transparent)]
    ValidationUnavailable(#[from] Unavailable),
    #[error(transparent)]
    Storage(#[from] storage::Error),
}

/// Changes to a chain. Fields that are `None` keep their value.
#[derive(Debug, Default)]
pub struct Change {
    pub entries: Option<Vec<Entry>>,
    pub enabled: Option<bool>,
}

/// The chains of a store.
#[derive(Debug, Clone)]
pub struct Chains {
    store: Store,
    clock: Clock,
    recorder: Recorder,
    /// The organizations that may have chains, so that a call of any other reads no rows. `None`
    /// until they are loaded.
    organizations: Arc<RwLock<Option<HashSet<OrganizationId>>>>,
}

impl Chains {
    /// Opens the chains of a store.
    #[must_use]
    pub fn new(store: Store, clock: Clock) -> Self {
        let recorder = Recorder::new(clock.clone());
        Self { store, clock, recorder, organizations: Arc::default() }
    }

    /// Loads which organizations have chains.
    ///
    /// # Errors
    /// [`Error::Storage`]
    pub async fn load(&self) -> Result<(), Error> {
        let prefix = Key::table(Table::Chain);
        let start = prefix.as_bytes().len();
        let mut found = HashSet::new();
        let mut rows = self.store.scan(prefix);
        while let Some((key, _)) = rows.next().await? {
            let id = key.as_bytes().get(start..).and_then(<[u8]>::first_chunk::<16>);
            found.extend(id.map(|id| OrganizationId::from(*id)));
        }
        *self.organizations.write().unwrap_or_else(PoisonError::into_inner) = Some(found);
        Ok(())
    }

    fn may_have(&self, organization: OrganizationId) -> bool {
        let found = self.organizations.read().unwrap_or_else(PoisonError::into_inner);
        found.as_ref().is_none_or(|found| found.contains(&organization))
    }

    /// Returns the same chains with `actor` as the audit log's actor.
    #[must_use]
    pub fn by(&self, actor: Actor) -> Self {
        Self { recorder: self.recorder.by(actor), ..self.clone() }
    }

    /// Saves a new chain, which is enabled.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::Invalid`] with the mismatch, [`Error::TooMany`],
    /// [`Error::Storage`].
    pub async fn create(
        &self,
        organization: OrganizationId,
        model: &str,
        name: &str,
        entries: Vec<Entry>,
        schema_of: SchemaOf<'_>,
    ) -> Result<Chain, Error> {
        if !is_name(name) {
            return Err(Error::InvalidName);
        }
        check(model, &entries, schema_of).await?;
        if self.list(organization).await?.len() >= CHAINS_MAX {
            return Err(Error::TooMany);
        }
        let now = self.clock.now();
        let chain = Chain {
            organization,
            model: model.to_owned(),
            name: name.to_owned(),
            enabled: true,
            entries,
            created_at: now,
            updated_at: now,
        };
        if let Some(found) =
            self.organizations.write().unwrap_or_else(PoisonError::into_inner).as_mut()
        {
            found.insert(organization);
        }
        let mut commit = Commit::of_new_work();
        commit.create(key(organization, model, name), &chain)?;
        self.recorder.add(&mut commit, "chain.create", subject(model, name), organization)?;
        let exists = Error::Exists { model: model.to_owned(), name: name.to_owned() };
        self.store.commit_or(commit, exists).await?;
        Ok(chain)
    }

    /// Returns a model's first enabled chain by name, if there is one.
    ///
    /// # Errors
    /// [`Error::Storage`]
    pub async fn first_enabled(
        &self,
        organization: OrganizationId,
        model: &str,
    ) -> Result<Option<Chain>, Error> {
        if !self.may_have(organization) {
            return Ok(None);
        }
        let prefix = Key::table(Table::Chain).id(organization).text(model);
        let chains: Vec<Chain> = self.store.records(Page::of(prefix, CHAINS_MAX)).await?;
        Ok(chains.into_iter().find(|chain| chain.enabled))
    }

    /// Changes a chain. The change applies to predictions created from then on.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Invalid`], [`Error::Storage`].
    pub async fn change(
        &self,
        organization: OrganizationId,
        model: &str,
        name: &str,
        change: Change,
        schema_of: SchemaOf<'_>,
    ) -> Result<Chain, Error> {
        let change = &change;
        let edit = |chain: Option<Chain>| async move {
            let Some(mut chain) = chain else {
                return Err(self.missing(organization, model, name).await?);
            };
            if let Some(entries) = &change.entries {
                check(model, entries, schema_of).await?;
                chain.entries.clone_from(entries);
            }
            chain.enabled = change.enabled.unwrap_or(chain.enabled);
            chain.updated_at = self.clock.now();
            let mut commit = Commit::of_new_work();
            self.recorder.add(&mut commit, "chain.change", subject(model, name), organization)?;
            Ok(storage::Change::Put(chain, commit))
        };
        self.store.update(&key(organization, model, name), edit).await
    }

    /// Deletes a chain. Predictions that already have a copy of the chain keep the copy.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Storage`].
    pub async fn delete(
        &self,
        organization: OrganizationId,
        model: &str,
        name: &str,
    ) -> Result<(), Error> {
        let mut commit = Commit::new();
        commit.delete_existing(key(organization, model, name));
        self.recorder.add(&mut commit, "chain.delete", subject(model, name), organization)?;
        if self.store.try_commit(commit).await? {
            return Ok(());
        }
        Err(self.missing(organization, model, name).await?)
    }

    /// Returns the chain that a prediction selects. Disabled chains are not found.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Storage`].
    pub async fn enabled(
        &self,
        organization: OrganizationId,
        model: &str,
        name: &str,
    ) -> Result<Chain, Error> {
        let row = match is_name(name) {
            true => self.store.get_often(&key(organization, model, name)).await?,
            false => None,
        };
        let found: Option<Chain> = row.map(|row| decode(&row)).transpose()?;
        match found.filter(|chain| chain.enabled) {
            Some(chain) => Ok(chain),
            None => Err(self.missing(organization, model, name).await?),
        }
    }

    /// Returns the error for a chain that does not exist or is disabled.
    async fn missing(
        &self,
        organization: OrganizationId,
        model: &str,
        name: &str,
    ) -> Result<Error, Error> {
        let chains = self.list(organization).await?;
        let usable = chains.iter().filter(|chain| chain.model == model && chain.enabled);
        let names: Vec<&str> = usable.map(|chain| chain.name.as_str()).collect();
        let hint = spelling::hint(name, &names);
        Ok(Error::NotFound { model: model.to_owned(), name: name.to_owned(), hint })
    }

    /// Lists an organization's chains by model and name.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub async fn list(&self, organization: OrganizationId) -> Result<Vec<Chain>, Error> {
        let page = Page::of(Key::table(Table::Chain).id(organization), CHAINS_MAX);
        Ok(self.store.records(page).await?)
    }
}

fn key(organization: OrganizationId, model: &str, name: &str) -> Key {
    Key::table(Table::Chain).id(organization).text(model).text(name)
}

/// Returns a chain's name in the audit log.
fn subject(model: &str, name: &str) -> String {
    format!("{name} of {model}")
}

// --- compatibility ---

/// Validates a chain against the request schemas of its models.
async fn check(model: &str, entries: &[Entry], schema_of: SchemaOf<'_>) -> Result<(), Error> {
    let primary = schema_of(model).map_err(Error::Invalid)?;
    if entries.is_empty() || entries.len() > ENTRIES_MAX {
        return Err(Error::Invalid(format!("a chain must have 1 to {ENTRIES_MAX} entries")));
    }
    let mut pairs = Vec::new();
    for (number, entry) in (1_usize..).zip(entries) {
        if entry.model == model {
            let message = format!("entry {number}: {model} cannot be its own fallback");
            return Err(Error::Invalid(message));
        }
        let fallback = schema_of(&entry.model).map_err(Error::Invalid)?;
        pairs.push((number, entry.clone(), fallback));
    }
    let check = move || {
        for (number, entry, fallback) in pairs {
            fits(&primary, &fallback, entry.input_map.as_ref()).map_err(|fault| {
                Error::Invalid(format!("entry {number}, model {}: {fault}", entry.model))
            })?;
        }
        Ok(())
    };
    schema::compile(check).await?
}

/// Checks whether the mapped input of `primary` can match `fallback`: every required field is
/// present, each constant is valid, and no type is incompatible.
fn fits(primary: &Value, fallback: &Value, map: Option<&Map<String, Value>>) -> Result<(), String> {
    let required = fallback.get("required").and_then(Value::as_array).into_iter().flatten();
    for name in required.filter_map(Value::as_str) {
        let is_there = match map {
            Some(map) => map.contains_key(name),
            None => may_have(primary, name),
        };
        let has_default = property(fallback, name).is_some_and(|one| one.get("default").is_some());
        if !is_there && !has_default {
            return Err(format!(
                "it requires '{name}', which it would not receive: map it in input_map"
            ));
        }
    }
    for (name, value) in map.into_iter().flatten() {
        if !may_have(fallback, name) {
            return Err(format!("it has no input '{name}'"));
        }
        let template = InputTemplate::parse(value).map_err(|error| format!("'{name}': {error}"))?;
        for source in template.sources() {
            if !may_have(primary, source) {
                let whole = format!("{{{{input.{source}}}}}");
                return Err(format!(
                    "'{name}': {whole} refers to an input that the primary model does not have"
                ));
            }
        }
        let Some(wanted) = property(fallback, name) else { continue };
        if let Some(value) = template.constant() {
            check_constant(wanted, value).map_err(|fault| format!("'{name}': {fault}"))?;
        } else if let Some(given) = template.field().and_then(|field| property(primary, field)) {
            if !share_a_type(given, wanted) {
                return Err(format!("'{name}' has another type than the value mapped to it"));
            }
        } else if template.is_text() && !admits(wanted, "string") {
            return Err(format!("'{name}' does not accept a string"));
        }
    }
    Ok(())
}

fn check_constant(schema: &Value, value: &Value) -> Result<(), String> {
    // A property's schema that refers to another part of the document cannot be compiled on its
    // own.
    let Ok(schema) = Schema::compile(schema) else { return Ok(()) };
    let first = |violations: Vec<orrery_schema::Violation>| {
        violations.into_iter().next().map_or_else(String::new, |one| one.message)
    };
    schema.check(value.clone()).map(drop).map_err(first)
}

fn property<'s>(schema: &'s Value, name: &str) -> Option<&'s Value> {
    schema.get("properties")?.get(name)
}

/// Returns whether an input with this schema may contain the field.
fn may_have(schema: &Value, name: &str) -> bool {
    let names = schema.get("properties").and_then(Value::as_object);
    let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    // If the schema lists its fields, other fields are treated as mistakes.
    names.is_none_or(|names| names.contains_key(name) || (names.is_empty() && !is_closed))
}

fn types(schema: &Value) -> Option<Vec<&str>> {
    match schema.get("type")? {
        Value::String(one) => Some(vec![one]),
        Value::Array(several) => Some(several.iter().filter_map(Value::as_str).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

fn admits(schema: &Value, kind: &str) -> bool {
    types(schema).is_none_or(|types| types.contains(&kind))
}

fn share_a_type(given: &Value, wanted: &Value) -> bool {
    let (Some(given), Some(wanted)) = (types(given), types(wanted)) else { return true };
    let both = |kind: &str| {
        wanted.contains(&kind)
            || (kind == "integer" && wanted.contains(&"number"))
            || (kind == "number" && wanted.contains(&"integer"))
    };
    given.into_iter().any(both)
}

#[cfg(test)]
#[path = "chains_tests.rs"]
mod tests;
