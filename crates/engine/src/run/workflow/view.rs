//! The values to which references resolve: the inputs, the items of the enclosing maps, and the
//! ended steps.
//!
//! Only values that a template refers to are read and parsed. Parsed outputs are cached up to a
//! limit, so that a map does not parse the same large output for every item.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::Actor;
use crate::Error;
use orrery_domain::definition::StepIndex;
use orrery_domain::ids::ExecutionId;
use orrery_domain::machine::workflow::StepProgress;
use orrery_domain::reference::{Field, Scope};
use orrery_domain::secret;
use orrery_domain::step::{HttpResponse, Instance, Status};

/// Maximum bytes of cached outputs per execution; beyond that, the cache is cleared.
const VALUES_BYTES_MAX: u64 = 8 << 20;

/// Cached outputs.
#[derive(Debug, Default)]
pub(super) struct Values {
    cached: HashMap<Instance, Arc<Value>>,
    bytes: u64,
}

/// The values that one template can refer to.
#[derive(Debug)]
pub(super) struct View {
    id: ExecutionId,
    inputs: Arc<Value>,
    /// The current item of each enclosing map, by name.
    items: Vec<(String, Arc<Vec<Value>>, usize)>,
    steps: HashMap<String, StepView>,
    /// The links of steps that wait for events.
    resume_urls: HashMap<String, Value>,
    /// Secrets for the requests of the step; empty for other steps.
    secrets: secret::Values,
}

#[derive(Debug)]
struct StepView {
    status: Status,
    output: Option<Arc<Value>>,
    answer: Option<Arc<HttpResponse>>,
    event: Option<Value>,
}

impl Actor {
    /// Builds the view for step `at`, which is inside the map items `items`, with the outputs of
    /// the steps in `uses`.
    pub(super) async fn view(
        &mut self,
        progress: &StepProgress,
        at: StepIndex,
        items: &[u32],
        uses: &[StepIndex],
    ) -> Result<View, Error> {
        let plan = Arc::clone(&self.plan);
        let mut steps = HashMap::with_capacity(uses.len());
        let mut resume_urls = HashMap::new();
        for position in uses {
            let Some(planned) = plan.at(*position) else { continue };
            if let Some(event) = planned.kind.event() {
                let url =
                    self.inner.views.resume_url(self.organization, self.api_key, self.id, event);
                resume_urls.insert(planned.id.clone(), Value::String(url));
            }
            let depth = plan.maps_around(*position).len();
            let Some(items) = items.get(..depth) else { continue };
            let instance = Instance { step: *position, items: items.to_vec() };
            let Some(step) = progress.step(&instance) else { continue };
            let status = step.status;
            let answer = step.answer.clone();
            let event = planned.kind.event().zip(step.event).map(|(event, source)| {
                serde_json::json!({"name": event.name, "source": source.as_str()})
            });
            let output = match &step.output {
                Some(payload) if step.status == Status::Completed => {
                    Some(self.value(instance, payload).await?)
                }
                _ => None,
            };
            steps.insert(planned.id.clone(), StepView { status, output, answer, event });
        }
        let mut around = plan.maps_around(at);
        if items.len() > around.len() {
            // The output template of a map can refer to the map's own items.
            around.extend(plan.at(at));
        }
        let mut named = Vec::new();
        for (depth, map) in around.into_iter().enumerate() {
            let orrery_domain::definition::Kind::Map(kind) = &map.kind else { continue };
            let outer = items.get(..depth).unwrap_or_default().to_vec();
            let all = self.items.get(&Instance { step: map.position, items: outer });
            let number = items.get(depth).and_then(|number| usize::try_from(*number).ok());
            if let (Some(all), Some(number)) = (all, number) {
                named.push((kind.item_name.clone(), Arc::clone(all), number));
            }
        }
        let secrets = secret::Values::default();
        let inputs = Arc::clone(&self.inputs);
        Ok(View { id: self.id, inputs, items: named, steps, resume_urls, secrets })
    }

    /// Like [`Actor::view`], for a step that sends a request. Includes the current values of the
    /// secrets to which the step refers. The secrets belong to the workflow's owner.
    pub(super) async fn view_with_secrets(
        &mut self,
        progress: &StepProgress,
        instance: &Instance,
    ) -> Result<View, Error> {
        let plan = Arc::clone(&self.plan);
        let uses = plan.uses(instance.step);
        let mut view = self.view(progress, instance.step, &instance.items, uses).await?;
        let names = plan.secrets_of(instance.step);
        if let Some(owner) = self.owner.filter(|_| !names.is_empty()) {
            view.secrets = self.inner.plans.secrets(owner, names).await?;
        }
        Ok(view)
    }

    /// Reads and parses an output.
    async fn value(
        &mut self,
        instance: Instance,
        payload: &orrery_domain::payload::Payload,
    ) -> Result<Arc<Value>, Error> {
        if let Some(value) = self.values.cached.get(&instance) {
            return Ok(Arc::clone(value));
        }
        let text = self.inner.store.read_payload(payload).await?;
        let text = self.inner.files.render_links(self.organization, text);
        let value: Value = serde_json::from_str(text.get())
            .map_err(|error| orrery_storage::Error::malformed("output", error))?;
        let value = Arc::new(value);
        let bytes = payload.len();
        if self.values.bytes.saturating_add(bytes) > VALUES_BYTES_MAX {
            self.values = Values::default();
        }
        self.values.bytes = self.values.bytes.saturating_add(bytes);
        self.values.cached.insert(instance, Arc::clone(&value));
        Ok(value)
    }
}

impl Scope for View {
    fn inputs(&self) -> &Value {
        &self.inputs
    }

    fn execution_id(&self) -> String {
        self.id.to_string()
    }

    fn item(&self, name: &str) -> Option<&Value> {
        let (_, all, number) = self.items.iter().rev().find(|(held, ..)| held == name)?;
        all.get(*number)
    }

    fn secret(&self, name: &str) -> Option<&str> {
        self.secrets.get(name)
    }

    fn step(&self, id: &str, field: Field) -> Option<Cow<'_, Value>> {
        if field == Field::ResumeUrl {
            return self.resume_urls.get(id).map(Cow::Borrowed);
        }
        let seen = self.steps.get(id)?;
        match field {
            Field::Event => seen.event.as_ref().map(Cow::Borrowed),
            Field::ResumeUrl => None,
            Field::Status => Some(Cow::Owned(seen.status.as_str().into())),
            Field::Output | Field::Body => seen.output.as_deref().map(Cow::Borrowed),
            Field::Primary => {
                let output = seen.output.as_deref()?;
                let first = output.as_array().map(|items| items.first());
                first.unwrap_or(Some(output)).map(Cow::Borrowed)
            }
            Field::StatusCode => Some(Cow::Owned(seen.answer.as_ref()?.status_code.into())),
            Field::Headers => {
                Some(Cow::Owned(Value::Object(seen.answer.as_ref()?.headers.clone())))
            }
        }
    }
}
