//! Definitions: checked when they are stored, compiled again when they are needed, kept compiled
//! up to a limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::rows::{self, Definition};
use super::{Error, ModelExists, Workflows};
use crate::domain::definition::{Fault, Plan};
use crate::domain::ids::{RevisionId, WorkflowId};
use crate::engine::{FindingPlan, Plans};
use crate::schema::Schema;
use crate::storage::Commit;
use crate::storage::record::Malformed;

/// Compiled definitions that are kept; past one of the limits, all are compiled again as they come.
const CACHED: usize = 2000;
const CACHED_BYTES: usize = 32 * 1024 * 1024;
/// A larger definition is checked on a thread of its own.
const CHECKED_HERE_BYTES: usize = 16 * 1024;

/// A definition, ready to be run.
#[derive(Debug)]
pub struct Compiled {
    pub plan: Arc<Plan>,
    /// What its inputs must be; none: anything.
    pub inputs: Option<Schema>,
    /// Bytes of the definition.
    bytes: usize,
}

/// A definition that was found good.
#[derive(Debug)]
pub struct Checked {
    text: Box<RawValue>,
    compiled: Compiled,
}

impl Checked {
    pub fn into_compiled(self) -> Compiled {
        self.compiled
    }
}

/// The compiled definitions in memory.
#[derive(Debug, Default)]
pub struct Cache {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    compiled: HashMap<RevisionId, Arc<Compiled>>,
    bytes: usize,
}

impl Cache {
    pub fn get(&self, revision: RevisionId) -> Option<Arc<Compiled>> {
        self.lock().compiled.get(&revision).cloned()
    }

    pub fn put(&self, revision: RevisionId, compiled: Compiled) -> Arc<Compiled> {
        let compiled = Arc::new(compiled);
        let mut held = self.lock();
        let bytes = held.bytes.saturating_add(compiled.bytes);
        if held.compiled.len() >= CACHED || bytes > CACHED_BYTES {
            *held = Held::default();
        }
        held.bytes = held.bytes.saturating_add(compiled.bytes);
        held.compiled.insert(revision, Arc::clone(&compiled));
        compiled
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks a definition as a client wrote it.
pub async fn check(definition: Option<Value>, model_exists: ModelExists) -> Result<Checked, Error> {
    let text = to_raw_value(&definition).map_err(|error| Error::invalid(error.to_string()))?;
    let is_small = text.get().len() <= CHECKED_HERE_BYTES;
    let check = move || {
        let compiled = compile(definition.as_ref(), text.get().len(), &*model_exists)?;
        Ok(Checked { text, compiled })
    };
    if is_small {
        return check();
    }
    let checking = tokio::task::spawn_blocking(check);
    checking.await.unwrap_or_else(|error| Err(Error::invalid(format!("definition: {error}"))))
}

fn compile(
    definition: Option<&Value>,
    bytes: usize,
    model_exists: &dyn Fn(&str) -> bool,
) -> Result<Compiled, Error> {
    let plan = Plan::compile(definition, model_exists).map_err(|error| Error::Invalid {
        message: error.to_string(),
        faults: error.faults().cloned().collect(),
    })?;
    let inputs = plan.input_schema().map(Schema::compile).transpose().map_err(|error| {
        let message = format!("definition: input_schema: {error}");
        let fault = Fault { path: "/input_schema".to_owned(), message: message.clone() };
        Error::Invalid { message, faults: vec![fault] }
    })?;
    Ok(Compiled { plan: Arc::new(plan), inputs, bytes })
}

impl Workflows {
    /// A definition as it was written.
    ///
    /// # Errors
    /// [`Error::NoVersion`] when there is no such revision; [`Error::Storage`].
    pub async fn definition(&self, revision: RevisionId) -> Result<Box<RawValue>, Error> {
        let stored: Option<Definition> = self.store.read(&rows::definition(revision)).await?;
        let stored = stored.ok_or(Error::NoVersion)?;
        Ok(self.store.read_payload(&stored.definition).await?)
    }

    /// A definition, compiled. A model that has gone since it was stored is no fault here: it fails
    /// its own step.
    ///
    /// # Errors
    /// [`Error::NoVersion`], [`Error::Storage`]; [`Error::Invalid`] for what an earlier release
    /// took and this one does not.
    pub async fn compiled(&self, revision: RevisionId) -> Result<Arc<Compiled>, Error> {
        if let Some(compiled) = self.cache.get(revision) {
            return Ok(compiled);
        }
        let text = self.definition(revision).await?;
        let definition: Value = serde_json::from_str(text.get())
            .map_err(|error| Malformed { record: "definition", reason: error.to_string() })?;
        let checked = check(Some(definition), Arc::new(|_: &str| true)).await?;
        Ok(self.cache.put(revision, checked.into_compiled()))
    }

    /// Puts a definition into the commit of what refers to it.
    pub(super) async fn write_definition(
        &self,
        commit: &mut Commit,
        workflow: WorkflowId,
        revision: RevisionId,
        checked: &Checked,
    ) -> Result<(), Error> {
        let definition = self.store.write_payload(checked.text.clone()).await?;
        self.store.claim(commit, &definition);
        commit.put(rows::definition(revision), &Definition { workflow, definition })?;
        Ok(())
    }
}

impl Plans for Workflows {
    fn plan(&self, revision: RevisionId) -> FindingPlan<'_> {
        Box::pin(async move {
            match self.compiled(revision).await {
                Ok(compiled) => Ok(Some(Arc::clone(&compiled.plan))),
                Err(Error::Storage(error)) if !error.is_final() => Err(error),
                Err(error) => {
                    tracing::error!(%revision, %error, "a stored definition cannot be used");
                    Ok(None)
                }
            }
        })
    }
}
