//! The flags of `orrery key` that restrict a key, as the fields of a request.

use clap::Args;
use serde_json::{Map, Value, json};

use super::values::{self, Limit};
use orrery_domain::key_policy::{BudgetPeriod, Scope};

/// The value of a flag that removes a restriction.
const NONE: &str = "none";

#[derive(Debug, Default, Args)]
pub(super) struct KeyPolicyArgs {
    /// The models that the key may use, separated by commas; * stands for any text [default: all]
    #[arg(long, value_name = "MODELS", value_parser = list)]
    models: Option<Value>,
    /// What the key may do, separated by commas: predict, chat, workflow.run, workflow.write,
    /// files, read, secrets, worker [default: everything but worker]
    #[arg(long, value_name = "SCOPES", value_parser = scopes)]
    scope: Option<Value>,
    /// The maximum charges in US dollars, and the period: 10/30d, 10/1mo, or 10 for the lifetime of
    /// the key
    #[arg(long, value_name = "AMOUNT", value_parser = budget)]
    budget: Option<Budget>,
    /// The maximum number of requests per minute that start work
    #[arg(long, value_name = "NUMBER", value_parser = values::limit)]
    rpm: Option<Limit>,
    /// The maximum number of tokens per minute
    #[arg(long, value_name = "NUMBER", value_parser = values::limit)]
    tpm: Option<Limit>,
    /// The maximum number of requests in flight that start work
    #[arg(long, value_name = "NUMBER", value_parser = values::limit)]
    parallel: Option<Limit>,
    /// A tag, such as team=a. Repeat the flag for several tags
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// A JSON object with your own data about the key
    #[arg(long, value_name = "JSON", value_parser = object)]
    metadata: Option<Value>,
}

/// A budget with its period, or none of them.
#[derive(Debug, Clone, PartialEq)]
struct Budget {
    dollars: Option<f64>,
    period: Option<String>,
}

impl KeyPolicyArgs {
    /// Adds the given restrictions to the fields of a request.
    pub(super) fn add_to(&self, fields: &mut Map<String, Value>) {
        let mut add = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        if let Some(models) = &self.models {
            add("models", models.clone());
        }
        if let Some(scopes) = &self.scope {
            add("scopes", scopes.clone());
        }
        if let Some(Budget { dollars, period }) = &self.budget {
            add("max_budget", json!(dollars));
            add("budget_duration", json!(period));
        }
        for (name, limit) in [
            ("rpm_limit", self.rpm),
            ("tpm_limit", self.tpm),
            ("max_parallel_requests", self.parallel),
        ] {
            if let Some(Limit(limit)) = limit {
                add(name, json!(limit));
            }
        }
        match self.tag.as_slice() {
            [] => {}
            [only] if only == NONE => {
                add("tags", Value::Null);
            }
            tags => {
                add("tags", json!(tags));
            }
        }
        if let Some(metadata) = &self.metadata {
            add("metadata", metadata.clone());
        }
    }
}

/// Parses a comma-separated list, or `none`.
fn list(text: &str) -> Result<Value, String> {
    if text == NONE {
        return Ok(Value::Null);
    }
    let items: Vec<&str> = text.split(',').map(str::trim).collect();
    if items.iter().any(|item| item.is_empty()) {
        return Err("write names separated by commas, such as llama,gpt-*".to_owned());
    }
    Ok(json!(items))
}

/// Parses a comma-separated list of scopes, or `none`.
fn scopes(text: &str) -> Result<Value, String> {
    let value = list(text)?;
    let names = value.as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in names {
        if Scope::named(name).is_none() {
            let all = Scope::ALL.map(Scope::as_str).join(", ");
            return Err(format!("there is no scope {name}; the scopes are {all}"));
        }
    }
    Ok(value)
}

/// Parses an amount with an optional period, or `none`.
fn budget(text: &str) -> Result<Budget, String> {
    if text == NONE {
        return Ok(Budget { dollars: None, period: None });
    }
    let (amount, period) = match text.split_once('/') {
        Some((amount, period)) => (amount, Some(period)),
        None => (text, None),
    };
    let dollars = values::dollars(amount)?;
    let period = period.map(|period| {
        let parsed = BudgetPeriod::parse(period);
        let sentence = "write a period of at least a minute after the slash: 10/30d or 10/1mo";
        parsed.map(BudgetPeriod::text).ok_or_else(|| sentence.to_owned())
    });
    Ok(Budget { dollars: Some(dollars), period: period.transpose()? })
}

/// Parses a JSON object, or `none`.
fn object(text: &str) -> Result<Value, String> {
    if text == NONE {
        return Ok(Value::Null);
    }
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if value.is_object() { Ok(value) } else { Err("write a JSON object".to_owned()) }
}

/// Returns the restrictions of a listed key in a few words.
pub(super) fn summary(policy: &orrery_wire::key_policy::KeyPolicy) -> String {
    let mut parts = Vec::new();
    if policy.blocked {
        parts.push("blocked".to_owned());
    }
    if let Some(scopes) = &policy.scopes {
        let names: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
        parts.push(names.join(","));
    }
    if let Some(models) = &policy.models {
        parts.push(models.join(","));
    }
    if let Some(budget) = policy.max_budget {
        let period = policy.budget_duration.as_ref().map(|period| format!("/{period}"));
        parts.push(format!("{} of {budget}{} USD", policy.spend, period.unwrap_or_default()));
    }
    let rates = [
        (policy.rpm_limit.map(u64::from), "requests/min"),
        (policy.tpm_limit, "tokens/min"),
        (policy.max_parallel_requests.map(u64::from), "parallel"),
    ];
    parts.extend(rates.into_iter().filter_map(|(limit, unit)| Some(format!("{} {unit}", limit?))));
    if parts.is_empty() { "none".to_owned() } else { parts.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_flags_become_fields_and_none_removes_them() {
        let args = KeyPolicyArgs {
            models: Some(list("llama, gpt-*").unwrap()),
            scope: Some(scopes("chat,read").unwrap()),
            budget: Some(budget("10/30d").unwrap()),
            rpm: Some(Limit(Some(60))),
            tpm: Some(Limit(None)),
            tag: vec!["team=a".to_owned()],
            ..KeyPolicyArgs::default()
        };
        let mut fields = Map::new();
        args.add_to(&mut fields);
        assert_eq!(
            Value::Object(fields),
            json!({
                "models": ["llama", "gpt-*"], "scopes": ["chat", "read"], "max_budget": 10.0,
                "budget_duration": "30d", "rpm_limit": 60, "tpm_limit": null, "tags": ["team=a"],
            })
        );
        assert_eq!(list("none"), Ok(Value::Null));
        assert_eq!(budget("none").unwrap(), Budget { dollars: None, period: None });
        assert_eq!(budget("0.5/1mo").unwrap().period.as_deref(), Some("1mo"));
        for wrong in ["10/", "10/soon", "x", "-1", "10/5s"] {
            assert!(budget(wrong).is_err(), "{wrong}");
        }
        assert!(scopes("chat,everything").unwrap_err().contains("everything"));
        assert!(object("[1]").is_err() && list("a,,b").is_err());
    }
}
