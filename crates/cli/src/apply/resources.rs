//! Computes the differences between a document and an organization, for each kind of resource.
//!
//! Fields that the document omits stay unchanged on the service. Resources are matched by name.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use super::document::Secret;
use super::{Act, Step, text_of};
use crate::admin::{Admin, segment};
use crate::chain::query;
use crate::diff::Texts;
use crate::key::understood;
use crate::{values, workflow};
use orrery_domain::key_policy::{BudgetPeriod, Scope};
use orrery_domain::time::Timestamp;
use orrery_wire::apply::Key;
use orrery_wire::limits::Limits;
use orrery_wire::operator::{Chains, Keys, Organization, SecretComparison, Secrets};

/// Number of schedules fetched per request.
const PAGE: usize = 100;
const ENDPOINTS: &str = "/api/base/v1/webhook-endpoints";
const SCHEDULES: &str = "/api/base/v1/schedules";

/// Plans the steps of one organization.
pub(super) struct Planner<'a> {
    admin: &'a Admin,
    organization: &'a str,
    /// Whether the organization exists. For a missing organization, nothing is fetched.
    exists: bool,
    pub(super) steps: Vec<Step>,
}

impl<'a> Planner<'a> {
    pub(super) const fn new(admin: &'a Admin, organization: &'a str, exists: bool) -> Self {
        Self { admin, organization, exists, steps: Vec::new() }
    }

    pub(super) fn add(&mut self, line: String, texts: Texts, act: Act) {
        let organization = self.organization.to_owned();
        self.steps.push(Step { organization, line, texts, act });
    }

    /// Fetches a list of this organization; `None` if the organization does not exist yet.
    async fn listed(&self, path: &str) -> anyhow::Result<Option<Value>> {
        if !self.exists {
            return Ok(None);
        }
        let query = query(&[("organization", self.organization)]);
        self.admin.get(&format!("{path}?{query}")).await.map(Some)
    }

    pub(super) async fn limits(&mut self, wanted: &Map<String, Value>) -> anyhow::Result<()> {
        let path = format!("/admin/organizations/{}", segment(self.organization));
        let mut shown = Map::new();
        if self.exists {
            let described: Organization = understood(self.admin.get(&path).await?)?;
            let Limits { requests_per_second, running, queued, storage_bytes, monthly_budget_usd } =
                described.limits;
            shown.insert("requests_per_second".to_owned(), json!(requests_per_second.limit));
            shown.insert("running".to_owned(), json!(running.limit));
            shown.insert("queued".to_owned(), json!(queued.limit));
            shown.insert("storage_bytes".to_owned(), json!(storage_bytes.limit));
            shown.insert("monthly_budget_usd".to_owned(), json!(monthly_budget_usd.limit));
        }
        if let Some(texts) = differences(wanted, &shown.into())? {
            let act = Act::Put { path: format!("{path}/limits"), body: wanted.clone().into() };
            self.add("change limits".to_owned(), texts, act);
        }
        Ok(())
    }

    pub(super) async fn secrets(
        &mut self,
        wanted: &BTreeMap<String, Secret>,
    ) -> anyhow::Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let listed = self.listed("/admin/secrets").await?;
        let listed: Option<Secrets> = listed.map(understood).transpose()?;
        let known = listed.map(|listed| listed.secrets).unwrap_or_default();
        for (name, Secret(value)) in wanted {
            let path = "/admin/secrets".to_owned();
            let mut body = json!({"organization": self.organization, "name": name, "value": value});
            let exists = known.iter().any(|secret| secret.name == *name);
            if exists {
                let asked = with(body.clone(), "compare_only", true);
                let compared: SecretComparison = understood(self.admin.put(&path, &asked).await?)?;
                if compared.is_same {
                    continue;
                }
            }
            let verb = if exists { "change" } else { "create" };
            let act = Act::Put { path, body: body.take() };
            self.add(format!("{verb} secret {name}"), Texts::default(), act);
        }
        Ok(())
    }

    pub(super) async fn workflows(&mut self, wanted: &[workflow::Wanted]) -> anyhow::Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let existing = match self.exists {
            true => workflow::existing(self.admin).await?,
            false => Vec::new(),
        };
        for step in workflow::plan(wanted, &existing)? {
            self.add(step.line(), step.texts()?, Act::Workflow(Box::new(step)));
        }
        Ok(())
    }

    pub(super) async fn chains(
        &mut self,
        wanted: &BTreeMap<String, Map<String, Value>>,
    ) -> anyhow::Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let listed = self.listed("/admin/chains").await?;
        let listed: Option<Chains> = listed.map(understood).transpose()?;
        let known = listed.map(|listed| listed.chains).unwrap_or_default();
        for (name, fields) in wanted {
            let model = fields.get("model").and_then(Value::as_str);
            let model = model.with_context(|| format!("chain {name}: model is required"))?;
            let path = "/admin/chains".to_owned();
            let mut body = fields.clone();
            body.insert("organization".to_owned(), json!(self.organization));
            body.insert("name".to_owned(), json!(name));
            let chain = known.iter().find(|chain| chain.model == model && chain.name == *name);
            let Some(chain) = chain else {
                let texts = Texts { after: text_of(fields)?, ..Texts::default() };
                let enabled = body.remove("enabled");
                let line = format!("create chain {name} of {model}");
                let identity = json!({
                    "organization": self.organization, "model": model, "name": name,
                    "enabled": false,
                });
                self.add(line, texts, Act::Post { path: path.clone(), body: body.into() });
                if enabled == Some(Value::Bool(false)) {
                    let line = format!("disable chain {name} of {model}");
                    self.add(line, Texts::default(), Act::Put { path, body: identity });
                }
                continue;
            };
            let shown = json!({"model": model, "enabled": chain.enabled, "entries": chain.entries});
            if let Some(texts) = differences(fields, &shown)? {
                let line = format!("change chain {name} of {model}");
                self.add(line, texts, Act::Put { path, body: body.into() });
            }
        }
        Ok(())
    }

    pub(super) async fn webhook_endpoints(
        &mut self,
        wanted: &BTreeMap<String, Map<String, Value>>,
    ) -> anyhow::Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let listed = match self.exists {
            true => self.admin.get(ENDPOINTS).await?,
            false => json!({}),
        };
        let known = list_of(&listed, "webhook_endpoints");
        for (name, fields) in wanted {
            let mut body = fields.clone();
            body.insert("name".to_owned(), json!(name));
            let found = known.iter().find(|one| one.get("name") == Some(&json!(name)));
            let Some(found) = found else {
                let texts = Texts { after: text_of(fields)?, ..Texts::default() };
                let act = Act::Post { path: ENDPOINTS.to_owned(), body: body.into() };
                self.add(format!("create webhook endpoint {name}"), texts, act);
                continue;
            };
            if let Some(texts) = differences(fields, found)? {
                let id = found.get("id").and_then(Value::as_str).unwrap_or_default();
                let act = Act::Put { path: format!("{ENDPOINTS}/{id}"), body: body.into() };
                self.add(format!("change webhook endpoint {name}"), texts, act);
            }
        }
        Ok(())
    }

    pub(super) async fn schedules(
        &mut self,
        wanted: &BTreeMap<String, Map<String, Value>>,
    ) -> anyhow::Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let known = self.known_schedules().await?;
        for (name, fields) in wanted {
            if fields.contains_key("webhook_secret") {
                bail!(
                    "schedule {name}: webhook_secret must not be in the file: use a webhook endpoint"
                );
            }
            let mut body = fields.clone();
            let workflow = body.remove("workflow").and_then(|slug| Some(slug.as_str()?.to_owned()));
            if workflow.is_none() && !fields.contains_key("model") {
                bail!("schedule {name}: workflow or model is required");
            }
            body.insert("name".to_owned(), json!(name));
            let mut named = known.iter().filter(|one| one.get("name") == Some(&json!(name)));
            let (found, second) = (named.next(), named.next());
            if second.is_some() {
                bail!("schedule {name}: several schedules have this name");
            }
            let Some(found) = found else {
                let texts = Texts { after: text_of(fields)?, ..Texts::default() };
                let body = Value::Object(body);
                let act = match workflow {
                    Some(workflow) => Act::ScheduleOfWorkflow { workflow, body },
                    None => Act::Post { path: SCHEDULES.to_owned(), body },
                };
                self.add(format!("create schedule {name}"), texts, act);
                continue;
            };
            if let Some(workflow) = &workflow {
                self.check_workflow(name, workflow, found).await?;
            }
            let mut compared = fields.clone();
            compared.shift_remove("workflow");
            if let Some(input) = compared.shift_remove("input") {
                compared.insert("inputs".to_owned(), input);
            }
            if let Some(texts) = differences(&compared, found)? {
                let id = found.get("schedule_id").and_then(Value::as_str).unwrap_or_default();
                let act = Act::Put { path: self.path_of_schedule(found, id), body: body.into() };
                self.add(format!("change schedule {name}"), texts, act);
            }
        }
        Ok(())
    }

    /// Returns the path for changing a schedule. The path depends on the kind of schedule.
    fn path_of_schedule(&self, found: &Value, id: &str) -> String {
        match found.get("workflow_id").and_then(Value::as_str) {
            Some(workflow) => {
                format!("/api/workflows/api/v1/workflows/{}/schedules/{id}", segment(workflow))
            }
            None => format!("{SCHEDULES}/{id}"),
        }
    }

    async fn known_schedules(&self) -> anyhow::Result<Vec<Value>> {
        let mut known: Vec<Value> = Vec::new();
        if !self.exists {
            return Ok(known);
        }
        loop {
            let (limit, offset) = (PAGE.to_string(), known.len().to_string());
            let asked = query(&[("limit", &limit), ("offset", &offset)]);
            let page = self.admin.get(&format!("{SCHEDULES}?{asked}")).await?;
            let found = list_of(&page, "schedules");
            let is_last = found.len() < PAGE;
            known.extend(found);
            if is_last {
                return Ok(known);
            }
        }
    }

    /// Returns an error if the document moves a schedule to another workflow.
    async fn check_workflow(
        &self,
        name: &str,
        workflow: &str,
        found: &Value,
    ) -> anyhow::Result<()> {
        let path = format!("/api/workflows/api/v1/workflows/{}", segment(workflow));
        let named = self.admin.get(&path).await.with_context(|| format!("schedule {name}"))?;
        if named.get("workflow_id") != found.get("workflow_id") {
            bail!(
                "schedule {name}: it belongs to another workflow: delete it, or choose another name"
            );
        }
        Ok(())
    }

    pub(super) async fn keys(&mut self, wanted: &BTreeMap<String, Key>) -> anyhow::Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let listed = self.listed("/admin/keys").await?;
        let listed: Option<Keys> = listed.map(understood).transpose()?;
        let known = listed.map(|listed| listed.keys).unwrap_or_default();
        for (name, key) in wanted {
            let mut named = known.iter().filter(|one| one.described.name == *name);
            let (found, second) = (named.next(), named.next());
            if second.is_some() && !key.policy.is_empty() {
                bail!("key {name}: several keys have this name: use `orrery key update ID`");
            }
            if let Some(found) = found {
                let shown = serde_json::to_value(&found.policy)?;
                let mut wanted = key.policy.clone();
                if let Some(scopes @ Value::Array(_)) = wanted.get_mut("scopes") {
                    // The order of scopes has no meaning.
                    let sorted: BTreeSet<Scope> = serde_json::from_value(scopes.take())?;
                    *scopes = json!(sorted);
                }
                if let Some(texts) = differences(&wanted, &shown)? {
                    let path = format!("/admin/keys/{}", found.described.id);
                    let body = wanted.into();
                    self.add(format!("change key {name}"), texts, Act::Put { path, body });
                }
                continue;
            }
            let mut body = json!({
                "name": name, "organization": self.organization, "created_by": "orrery apply",
            });
            for (field, value) in &key.policy {
                body = with(body, field, value.clone());
            }
            if let Some(expires) = &key.expires {
                let span = values::span(expires);
                let span = span.map_err(|error| anyhow::anyhow!("key {name}: expires: {error}"))?;
                body = with(body, "expires_in_seconds", span.as_secs());
            }
            let texts = Texts { after: text_of(&key.policy)?, ..Texts::default() };
            self.add(format!("create key {name}"), texts, Act::Key(body));
        }
        Ok(())
    }
}

/// Returns an object with one more field.
fn with(mut body: Value, name: &str, value: impl Into<Value>) -> Value {
    if let Some(fields) = body.as_object_mut() {
        fields.insert(name.to_owned(), value.into());
    }
    body
}

fn list_of(answer: &Value, name: &str) -> Vec<Value> {
    answer.get(name).and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Returns the document's fields before and after, as YAML; `None` if both are equivalent.
fn differences(wanted: &Map<String, Value>, shown: &Value) -> anyhow::Result<Option<Texts>> {
    let mut before = Map::new();
    for (name, value) in wanted {
        let held = shown.get(name).cloned().unwrap_or_default();
        let is_same = is_same(value, &held);
        before.insert(name.clone(), if is_same { value.clone() } else { held });
    }
    if before == *wanted {
        return Ok(None);
    }
    Ok(Some(Texts { before: text_of(&before)?, after: text_of(wanted)? }))
}

/// Returns whether the service treats both values as equal: an empty value equals null, and the
/// same number, time or period can be written in different forms.
fn is_same(wanted: &Value, held: &Value) -> bool {
    let moment = |value: &Value| value.as_str()?.parse::<Timestamp>().ok();
    let period = |value: &Value| BudgetPeriod::parse(value.as_str()?);
    let is_nothing = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Number(_) | Value::Bool(true) | Value::Object(_) => false,
    };
    wanted == held
        || (wanted.is_null() || held.is_null() || wanted == "")
            && is_nothing(wanted)
            && is_nothing(held)
        || wanted.as_f64().is_some_and(|wanted| held.as_f64() == Some(wanted))
        || moment(wanted).is_some_and(|wanted| moment(held) == Some(wanted))
        || period(wanted).is_some_and(|wanted| period(held) == Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apply_differences_cover_only_fields_of_the_file() {
        let shown = json!({
            "url": "https://a/", "events": [], "disabled": false, "name": null,
            "starts_at": "2026-11-20T09:30:00.000Z",
        });
        let none = |wanted: Value| {
            let wanted = wanted.as_object().cloned().unwrap_or_default();
            differences(&wanted, &shown).unwrap()
        };
        assert_eq!(none(json!({})), None);
        assert_eq!(none(json!({"url": "https://a/", "events": []})), None);
        assert_eq!(none(json!({"events": null, "disabled": null})), None);
        let numbers = json!({"max_budget": 10.0, "budget_duration": "1day", "scopes": ["chat"]});
        let wanted = json!({"max_budget": 10, "budget_duration": "24h"});
        assert_eq!(differences(wanted.as_object().unwrap(), &numbers).unwrap(), None);
        assert_eq!(none(json!({"name": "", "starts_at": "2026-11-20T10:30:00+01:00"})), None);
        let Texts { before, after } =
            none(json!({"url": "https://b/", "disabled": false})).unwrap();
        assert!(before.contains("https://a/") && after.contains("https://b/"), "{before}{after}");
        assert!(before.contains("disabled: false") && !before.contains("events"), "{before}");
    }
}
