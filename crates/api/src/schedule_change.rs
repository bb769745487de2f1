//! Changes to schedules: the fields of a body, validated and applied to the stored schedule.

use serde_json::{Map, Value};

use super::{Services, body};
use orrery_domain::delivery::Webhook;
use orrery_domain::schedule::{Overlap, Schedule, Target};
use orrery_domain::spelling;
use orrery_domain::time::Timestamp;
use orrery_http::Request;
use orrery_wire::schedule::{AnyTarget, Common, ModelRun, Secret, WorkflowRun};

/// Maximum size of an input as JSON, in bytes, so that the input fits in a record of the store.
const INPUT_BYTES_MAX: usize = 48 * 1024;

/// The validated fields of a body.
#[derive(Debug, Default)]
pub(crate) struct Change {
    pub(crate) cron: Option<String>,
    pub(crate) timezone: Option<String>,
    pub(crate) input: Option<Value>,
    pub(crate) model: Option<String>,
    /// The version of the workflow or model. For a workflow, an empty string means the latest
    /// version.
    pub(crate) version: Option<String>,
    pub(crate) fallback_selector: Option<String>,
    pub(crate) overlap: Option<Overlap>,
    pub(crate) catch_up_seconds: Option<u64>,
    pub(crate) jitter_seconds: Option<u32>,
    pub(crate) paused: Option<bool>,
    /// `Some(None)` removes the limit.
    pub(crate) starts_at: Option<Option<Timestamp>>,
    pub(crate) ends_at: Option<Option<Timestamp>>,
    /// `Some(None)` removes the webhook.
    pub(crate) webhook_url: Option<Option<String>>,
    /// The sealed secret. `Some(None)` removes it, so that deliveries are not signed.
    pub(crate) webhook_secret: Option<Option<String>>,
    /// `Some(None)` resets the field to the service's configuration.
    pub(crate) webhook_send_plain_secret: Option<Option<bool>>,
    /// An empty string means no name.
    pub(crate) name: Option<String>,
}

impl Change {
    /// Reads the fields that all schedules have.
    pub(crate) fn read(
        common: Common,
        secret: Secret,
        services: &Services,
    ) -> Result<Self, crate::Error> {
        let url = common.webhook_url.map(|url| body::webhook_url("webhook_url", url, services));
        let sealed = secret.webhook_secret.map(|secret| {
            let secret = Some(secret).filter(|secret| !secret.is_empty());
            secret.map(|secret| body::sealed_secret(&secret, services)).transpose()
        });
        Ok(Self {
            timezone: common.timezone,
            overlap: common.overlap,
            catch_up_seconds: common.catch_up_seconds,
            jitter_seconds: common.jitter_seconds,
            paused: common.paused,
            name: common.name,
            starts_at: common.starts_at.map(|text| moment("starts_at", &text)).transpose()?,
            ends_at: common.ends_at.map(|text| moment("ends_at", &text)).transpose()?,
            webhook_url: url.transpose()?,
            webhook_secret: sealed.transpose()?,
            webhook_send_plain_secret: secret.webhook_send_plain_secret,
            ..Self::default()
        })
    }

    pub(crate) fn run_workflow(&mut self, run: WorkflowRun) -> Result<(), crate::Error> {
        let WorkflowRun { inputs, version_id } = run;
        self.version = version_id;
        self.input = inputs.map(|inputs| checked_input("inputs", inputs)).transpose()?;
        Ok(())
    }

    pub(crate) fn run_model(&mut self, run: ModelRun) -> Result<(), crate::Error> {
        let ModelRun { input, fallback_selector } = run;
        self.fallback_selector = fallback_selector;
        self.input = input.map(|input| checked_input("input", input)).transpose()?;
        Ok(())
    }

    /// Reads the fields that only one kind of schedule has, and rejects the fields of the other
    /// kind.
    pub(crate) fn run_any(
        &mut self,
        target: AnyTarget,
        is_of_model: bool,
    ) -> Result<(), crate::Error> {
        let AnyTarget { cron, model, version, model_run, workflow_run } = target;
        let of_model = [
            ("model", model.is_some()),
            ("version", version.is_some()),
            ("input", model_run.input.is_some()),
            ("fallback_selector", model_run.fallback_selector.is_some()),
        ];
        let of_workflow = [
            ("inputs", workflow_run.inputs.is_some()),
            ("version_id", workflow_run.version_id.is_some()),
        ];
        let (known, others): (&[_], &[_]) =
            if is_of_model { (&of_model, &of_workflow) } else { (&of_workflow, &of_model) };
        if let Some((name, _)) = others.iter().find(|(_, is_given)| *is_given) {
            let known: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            let sentence = spelling::unknown("field", name, name, &known);
            return Err(crate::Error::bad_request(sentence));
        }
        self.cron = cron;
        if !is_of_model {
            return self.run_workflow(workflow_run);
        }
        self.run_model(model_run)?;
        self.model = model;
        self.version = version;
        Ok(())
    }

    /// Warns about a webhook secret for a schedule without a webhook.
    pub(crate) fn warn_of_secret_alone(&self, request: &Request, schedule: &Schedule) {
        if schedule.webhook.is_none() && matches!(self.webhook_secret, Some(Some(_))) {
            request.warn(body::SECRET_ALONE);
        }
    }

    pub(crate) fn apply(&self, schedule: &mut Schedule) {
        put(&mut schedule.cron, &self.cron);
        put(&mut schedule.timezone, &self.timezone);
        put(&mut schedule.input, &self.input);
        put(&mut schedule.overlap, &self.overlap);
        put(&mut schedule.catch_up_seconds, &self.catch_up_seconds);
        put(&mut schedule.jitter_seconds, &self.jitter_seconds);
        put(&mut schedule.paused, &self.paused);
        put(&mut schedule.starts_at, &self.starts_at);
        put(&mut schedule.ends_at, &self.ends_at);
        if let Some(url) = &self.webhook_url {
            let held = schedule.webhook.take();
            schedule.webhook = url.clone().map(|url| match held {
                Some(held) => Webhook { url, ..held },
                None => Webhook::unsigned(url),
            });
        }
        if let Some(webhook) = &mut schedule.webhook {
            put(&mut webhook.secret, &self.webhook_secret);
            put(&mut webhook.send_plain_secret, &self.webhook_send_plain_secret);
        }
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        put(&mut schedule.name, &self.name.as_ref().map(some));
        match &mut schedule.target {
            Target::Workflow { version, .. } => put(version, &self.version.as_ref().map(some)),
            Target::Model { model, version, fallback_selector } => {
                put(model, &self.model);
                put(version, &self.version);
                put(fallback_selector, &self.fallback_selector.as_ref().map(some));
            }
        }
    }
}

/// Replaces `held` if there is a new value.
fn put<T: Clone>(held: &mut T, given: &Option<T>) {
    if let Some(given) = given {
        held.clone_from(given);
    }
}

fn checked_input(name: &str, input: Map<String, Value>) -> Result<Value, crate::Error> {
    let input = Value::Object(input);
    if input.to_string().len() > INPUT_BYTES_MAX {
        let message = format!("{name} must have at most {INPUT_BYTES_MAX} bytes");
        return Err(crate::Error::bad_request(message));
    }
    Ok(input)
}

/// Parses a time; an empty string means no time.
fn moment(name: &str, text: &str) -> Result<Option<Timestamp>, crate::Error> {
    if text.is_empty() {
        return Ok(None);
    }
    let parsed = text.parse();
    parsed.map(Some).map_err(|error| crate::Error::bad_request(format!("{name} is {error}")))
}
