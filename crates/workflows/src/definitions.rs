//! Definitions: validated when they are stored, compiled when needed, and cached up to a limit.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::parameters::{self, Models};
use super::rows::{self, Definition};
use super::{Error, Workflows};
use orrery_domain::definition::{PROBLEMS_MAX, Plan, Problem, secrets};
use orrery_domain::ids::{OrganizationId, RevisionId, WorkflowId};
use orrery_domain::json_pointer::JsonPointer;
use orrery_engine::{Call, CalleeFuture, OwnerFuture, PlanFuture, Plans, SecretsFuture};
use orrery_schema::{self as schema, Schema, Unavailable};
use orrery_storage::{self as storage, Commit};

/// Limits of the cache of compiled definitions; when a limit is exceeded, the cache is cleared.
const CACHED: usize = 2000;
const CACHED_BYTES: usize = 32 * 1024 * 1024;

/// A compiled definition.
#[derive(Debug)]
pub struct Compiled {
    pub plan: Arc<Plan>,
    /// The input schema; `None` accepts anything.
    pub inputs: Option<Arc<Schema>>,
    /// The schemas of event payloads by event name; other events accept anything.
    pub events: HashMap<String, Arc<Schema>>,
    /// Size of the definition, in bytes.
    bytes: usize,
}

/// A valid definition.
#[derive(Debug)]
pub(crate) struct Checked {
    definition: Option<Value>,
    text: Box<RawValue>,
    compiled: Compiled,
}

impl Checked {
    pub(crate) fn plan(&self) -> &Plan {
        &self.compiled.plan
    }

    /// Returns the JSON pointer to a step's field in the definition.
    pub(crate) fn place_of(&self, step: &str, field: &str) -> String {
        place_of(self.definition.as_ref(), step, field)
    }

    pub(crate) fn into_compiled(self) -> Compiled {
        self.compiled
    }
}

/// The cache of compiled definitions.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    compiled: HashMap<RevisionId, Arc<Compiled>>,
    bytes: usize,
}

impl Cache {
    pub(crate) fn get(&self, revision: RevisionId) -> Option<Arc<Compiled>> {
        self.lock().compiled.get(&revision).cloned()
    }

    pub(crate) fn put(&self, revision: RevisionId, compiled: Compiled) -> Arc<Compiled> {
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

/// Validates a definition as written by a client, off the request threads. `models` is `None` for a
/// stored definition, whose models may have changed since it was stored.
pub(crate) async fn check(
    definition: Option<Value>,
    models: Option<Arc<dyn Models>>,
) -> Result<Checked, Error> {
    let text = to_raw_value(&definition).map_err(|error| Error::invalid(error.to_string()))?;
    let check = move || {
        let compiled = compile(definition.as_ref(), text.get().len(), models.as_deref())?;
        Ok(Checked { definition, text, compiled })
    };
    schema::compile(check).await?
}

fn compile(
    definition: Option<&Value>,
    bytes: usize,
    models: Option<&dyn Models>,
) -> Result<Compiled, Error> {
    let plan = match models {
        Some(models) => Plan::compile(definition, &|slug| models.schema(slug).is_some()),
        None => Plan::load(definition),
    };
    let problems = match (&plan, models) {
        (Ok(plan), Some(models)) => parameters::problems(definition, plan, models),
        (Err(error), Some(models)) => {
            let problems = error.problems().cloned();
            problems.map(|problem| parameters::with_hint(definition, models, problem)).collect()
        }
        (Ok(_), None) => Vec::new(),
        (Err(error), None) => error.problems().cloned().collect(),
    };
    Error::of_problems(problems)?;
    let plan = plan.map_err(|error| Error::invalid(error.to_string()))?;
    let inputs = plan.input_schema().map(Schema::compile).transpose().map_err(|error| {
        let message = format!("definition: input_schema: {error}");
        let path = format!("/input_schema{}", error.path());
        let problem = Problem { path, message: message.clone() };
        Error::Invalid { message, problems: vec![problem] }
    })?;
    let mut events = HashMap::new();
    for (step, event) in plan.events() {
        let Some(schema) = &event.schema else { continue };
        let schema = Schema::compile(schema).map_err(|error| {
            let message = format!("step '{}': event/schema: {error}", step.id);
            let path = place_of(definition, &step.id, "event/schema") + error.path();
            let problems = vec![Problem { path, message: message.clone() }];
            Error::Invalid { message, problems }
        })?;
        events.insert(event.name.clone(), Arc::new(schema));
    }
    let inputs = inputs.map(Arc::new);
    Ok(Compiled { plan: Arc::new(plan), inputs, events, bytes })
}

/// Returns the JSON pointer to a field of the step with this id, or an empty string if there is no
/// such step.
pub(crate) fn place_of(definition: Option<&Value>, step: &str, field: &str) -> String {
    let found = definition.and_then(|whole| find_step(whole, step, &JsonPointer::Root));
    found.map(|step| format!("{step}/{field}")).unwrap_or_default()
}

/// Finds the step with this id, which is unique in a definition. Searches only blocks of steps,
/// because parameters may contain anything.
fn find_step(within: &Value, id: &str, at: &JsonPointer<'_>) -> Option<String> {
    within.as_object()?.iter().find_map(|(name, inner)| {
        let at = at.field(name);
        match (name.as_str(), inner) {
            ("steps", Value::Array(steps)) => steps.iter().enumerate().find_map(|(index, step)| {
                let at = at.item(index);
                let own = step.get("step_id").or_else(|| step.get("id"));
                let is_it = own.and_then(Value::as_str) == Some(id);
                if is_it { Some(at.to_string()) } else { find_step(step, id, &at) }
            }),
            ("branches", Value::Array(branches)) => {
                let mut branches = branches.iter().enumerate();
                branches.find_map(|(index, branch)| find_step(branch, id, &at.item(index)))
            }
            ("condition_met_branch" | "default_branch", branch) => find_step(branch, id, &at),
            _ => None,
        }
    })
}

impl Workflows {
    /// Returns a definition as shown to clients: as written, with credentials masked.
    ///
    /// # Errors
    /// [`Error::NoVersion`] if there is no such revision; [`Error::Storage`].
    pub async fn definition(&self, revision: RevisionId) -> Result<Box<RawValue>, Error> {
        let text = self.stored_text(revision).await?;
        let definition = parse(&text)?;
        if !secrets::has_any(&definition) {
            return Ok(text);
        }
        let (definition, _) = self.unseal(definition);
        Ok(to_raw_value(&secrets::mask(definition)).map_err(malformed)?)
    }

    async fn stored_text(&self, revision: RevisionId) -> Result<Box<RawValue>, Error> {
        let stored: Option<Definition> = self.store.read(&rows::definition(revision)).await?;
        let stored = stored.ok_or(Error::NoVersion)?;
        Ok(self.store.read_payload(&stored.definition).await?)
    }

    /// Returns a definition as written, including credentials.
    async fn unsealed(&self, revision: RevisionId) -> Result<Value, Error> {
        let text = self.stored_text(revision).await?;
        let (definition, is_whole) = self.unseal(parse(&text)?);
        if is_whole {
            return Ok(definition);
        }
        let reason = "its credentials cannot be read with this data folder's seal.key";
        Err(storage::Error::malformed("definition", reason).into())
    }

    fn unseal(&self, definition: Value) -> (Value, bool) {
        secrets::unseal(definition, |sealed| self.sealer.unseal(sealed).ok())
    }

    /// Restores stored credentials where a client sent masked values. `stored` are the revisions
    /// that may contain the credentials, most likely first.
    pub(super) async fn restore_secrets(
        &self,
        definition: Option<Value>,
        stored: &[RevisionId],
    ) -> Result<Option<Value>, Error> {
        let Some(mut definition) = definition else { return Ok(None) };
        if !secrets::has_masks(&definition) {
            return Ok(Some(definition));
        }
        let mut known = Vec::new();
        for revision in stored {
            known.push(self.unsealed(*revision).await?);
            match secrets::restore(definition.clone(), &known) {
                Ok(restored) => return Ok(Some(restored)),
                Err(_more_to_look_at) => {}
            }
        }
        definition = secrets::restore(definition, &known).map_err(|problems| {
            let message = problems.first().map(|first| first.message.clone()).unwrap_or_default();
            Error::Invalid { message, problems }
        })?;
        Ok(Some(definition))
    }

    /// Rejects a definition that refers to secrets that the organization does not have.
    pub(super) async fn check_secrets(
        &self,
        organization: OrganizationId,
        plan: &Plan,
    ) -> Result<(), Error> {
        let names: BTreeSet<&str> = plan.secrets().iter().map(|one| one.name.as_str()).collect();
        let missing = self.secrets.missing(organization, names).await?;
        let uses = plan.secrets().iter().filter(|one| missing.contains(&one.name.as_str()));
        let problems = uses.take(PROBLEMS_MAX).map(|one| {
            let step = plan.at(one.step).map_or("", |step| step.id.as_str());
            let name = &one.name;
            let message = format!(
                "step '{step}': {{{{secrets.{name}}}}} refers to a secret that does not exist: \
                 set it first"
            );
            Problem { path: one.path.clone(), message }
        });
        Error::of_problems(problems.collect())
    }

    /// Returns the compiled definition. A model that has been removed since is not an error: only
    /// the step that uses it fails.
    ///
    /// # Errors
    /// [`Error::NoVersion`], [`Error::Storage`]; [`Error::Invalid`] for a definition that an
    /// earlier release accepted and this release rejects.
    pub async fn compiled(&self, revision: RevisionId) -> Result<Arc<Compiled>, Error> {
        if let Some(compiled) = self.cache.get(revision) {
            return Ok(compiled);
        }
        let definition = self.unsealed(revision).await?;
        let checked = check(Some(definition), None).await?;
        Ok(self.cache.put(revision, checked.into_compiled()))
    }

    /// Adds a definition to the commit that refers to it.
    pub(super) async fn write_definition(
        &self,
        commit: &mut Commit,
        workflow: WorkflowId,
        revision: RevisionId,
        checked: &Checked,
    ) -> Result<(), Error> {
        let text = match &checked.definition {
            Some(definition) if secrets::has_any(definition) => {
                let sealed = secrets::seal(definition.clone(), |text| self.sealer.seal(text));
                let sealed = sealed.map_err(|error| storage::Error::Unavailable {
                    reason: format!("a credential cannot be sealed: {error}"),
                })?;
                to_raw_value(&sealed).map_err(malformed)?
            }
            Some(_) | None => checked.text.clone(),
        };
        let definition = self.store.write_payload(revision, text).await?;
        self.store.claim(commit, &definition);
        commit.put(rows::definition(revision), &Definition { workflow, definition })?;
        Ok(())
    }
}

fn parse(text: &RawValue) -> Result<Value, Error> {
    Ok(serde_json::from_str(text.get()).map_err(malformed)?)
}

pub(super) fn malformed(error: serde_json::Error) -> storage::Error {
    storage::Error::malformed("definition", error)
}

impl Plans for Workflows {
    fn plan(&self, revision: RevisionId) -> PlanFuture<'_> {
        Box::pin(async move {
            let compiled = loop {
                match self.compiled(revision).await {
                    // An execution can wait until the validation is no longer busy.
                    Err(Error::ValidationUnavailable(Unavailable::Busy)) => {}
                    compiled => break compiled,
                }
            };
            match compiled {
                Ok(compiled) => Ok(Some(Arc::clone(&compiled.plan))),
                Err(Error::Storage(error)) if !error.is_final() => Err(error),
                Err(error) => {
                    tracing::error!(%revision, %error, "stored definition is unusable");
                    Ok(None)
                }
            }
        })
    }

    fn callee(&self, organization: OrganizationId, call: Call) -> CalleeFuture<'_> {
        Box::pin(self.find_callee(organization, call))
    }

    fn count_run(&self, commit: &mut Commit, workflow: WorkflowId, version: &str) {
        super::count_trigger(commit, workflow, version);
    }

    fn secrets(&self, organization: OrganizationId, names: Vec<String>) -> SecretsFuture<'_> {
        Box::pin(async move { self.secrets.values(organization, &names).await })
    }

    fn owner(&self, workflow: WorkflowId) -> OwnerFuture<'_> {
        Box::pin(async move {
            match self.by_id(workflow).await {
                Ok(workflow) => Ok(Some(workflow.organization)),
                Err(Error::Storage(error)) => Err(error),
                Err(_not_found) => Ok(None),
            }
        })
    }
}
