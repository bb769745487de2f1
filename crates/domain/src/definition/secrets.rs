//! Finds, seals, unseals, masks and restores the credentials of a definition.
//!
//! A credential is a value in `auth`, a header or query parameter with a secret-looking name, or a
//! part of the URL (user name, password, secret parameter), in an `http` step or its fallback. A
//! value that is a single reference is not a credential: it names the source of the secret.
//!
//! At rest, each credential is replaced by an object `{"$sealed": text}`. Clients cannot write such
//! an object, because the compiler requires strings and numbers there. Definitions stored before
//! credentials were sealed contain no such objects and are read unchanged.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{PROBLEMS_MAX, Problem};
use crate::json_pointer::{JsonPointer, brief};
use crate::mask::{self, MASKED, is_secret_name, mask_url, url_secrets};
use crate::template::Template;

/// The only field of a sealed credential.
const SEALED: &str = "$sealed";
/// The fields of `auth` that contain credentials.
const AUTH_FIELDS: [&str; 4] = ["username", "password", "token", "value"];

/// The position of a credential in a definition.
struct Slot<'s> {
    /// The id of the step.
    step: &'s str,
    /// The field in the step, such as `headers/X-Vault-Token`.
    field: &'s str,
    /// The position as a JSON pointer into the definition.
    pointer: String,
    /// Scheme, host and port of the request, as written.
    origin: &'s str,
    /// Whether the field is the URL, of which only parts are secret.
    is_url: bool,
}

/// Returns whether a definition contains a credential, sealed or not.
#[must_use]
pub fn has_any(definition: &Value) -> bool {
    let mut found = false;
    visit(&mut definition.clone(), &mut |_, _| found = true);
    found
}

/// Seals the credentials of a definition for storage. `seal` encrypts one string.
///
/// # Errors
/// The error of `seal`.
pub fn seal<E>(
    mut definition: Value,
    mut seal: impl FnMut(&str) -> Result<String, E>,
) -> Result<Value, E> {
    let mut failed = None;
    visit(&mut definition, &mut |_, value| match seal(&value.to_string()) {
        Ok(sealed) => {
            let field = (SEALED.to_owned(), Value::String(sealed));
            *value = Value::Object(Map::from_iter([field]));
        }
        Err(error) => failed = Some(error),
    });
    failed.map_or(Ok(definition), Err)
}

/// Unseals the credentials of a definition. Returns whether all credentials could be unsealed; any
/// others stay sealed.
pub fn unseal(mut definition: Value, unseal: impl Fn(&str) -> Option<String>) -> (Value, bool) {
    let mut is_whole = true;
    visit(&mut definition, &mut |_, value| {
        let Some(sealed) = sealed(value) else { return };
        match unseal(sealed).and_then(|text| serde_json::from_str(&text).ok()) {
            Some(plain) => *value = plain,
            None => is_whole = false,
        }
    });
    (definition, is_whole)
}

/// Reseals every sealed credential. `reseal` returns the new sealed string, or `None` to keep the
/// old one. Returns whether anything changed.
///
/// # Errors
/// The error of `reseal`.
pub fn reseal<E>(
    definition: &mut Value,
    reseal: &mut impl FnMut(&str) -> Result<Option<String>, E>,
) -> Result<bool, E> {
    if let Some(text) = sealed(definition) {
        let Some(text) = reseal(text)? else { return Ok(false) };
        *definition = Value::Object(Map::from_iter([(SEALED.to_owned(), Value::String(text))]));
        return Ok(true);
    }
    let mut has_changed = false;
    // The recursion ends because the JSON parser limits the nesting depth.
    match definition {
        Value::Array(items) => {
            for item in items {
                has_changed |= self::reseal(item, reseal)?;
            }
        }
        Value::Object(fields) => {
            for (_, value) in fields {
                has_changed |= self::reseal(value, reseal)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Ok(has_changed)
}

/// Masks the credentials of an unsealed definition for clients. Credentials that are still sealed
/// are masked completely.
#[must_use]
pub fn mask(mut definition: Value) -> Value {
    visit(&mut definition, &mut |slot, value| {
        *value = match value.as_str().filter(|_| slot.is_url) {
            Some(url) => mask_url(url).into(),
            None => MASKED.into(),
        };
    });
    definition
}

/// Returns whether a client's definition has a mask in place of a credential.
#[must_use]
pub fn has_masks(definition: &Value) -> bool {
    let mut found = false;
    visit(&mut definition.clone(), &mut |slot, value| found |= is_masked(slot, value));
    found
}

/// Replaces every mask with the stored credential. `stored` contains unsealed definitions; the
/// first one that has the credential is used. A credential is restored only for the request for
/// which it was stored (the same field of the same step, with the same scheme, host and port), so
/// that a client that does not know the credential cannot redirect it to another host.
///
/// # Errors
/// One problem for each mask without a stored credential.
pub fn restore(mut definition: Value, stored: &[Value]) -> Result<Value, Vec<Problem>> {
    let mut held: HashMap<(String, String, String), Value> = HashMap::new();
    for stored in stored {
        visit(&mut stored.clone(), &mut |slot, value| {
            if slot.is_url {
                for (name, secret) in parts_of(value) {
                    held.entry(key(slot, &name)).or_insert(secret.into());
                }
            } else {
                held.entry(key(slot, "")).or_insert_with(|| value.clone());
            }
        });
    }
    let mut problems = Vec::new();
    visit(&mut definition, &mut |slot, value| {
        if !is_masked(slot, value) {
            return;
        }
        let is_restored = match (value, held.get(&key(slot, ""))) {
            (Value::String(url), _) if slot.is_url => restore_url(url, slot, &held),
            (value, Some(secret)) => {
                *value = secret.clone();
                true
            }
            (_, None) => false,
        };
        if !is_restored && problems.len() < PROBLEMS_MAX {
            let message = format!(
                "step '{}': {} is masked, and no secret is stored for it and this host: write \
                 the secret itself",
                brief(slot.step),
                brief(slot.field),
            );
            problems.push(Problem { path: slot.pointer.clone(), message });
        }
    });
    if problems.is_empty() { Ok(definition) } else { Err(problems) }
}

fn key(slot: &Slot<'_>, part: &str) -> (String, String, String) {
    let origin = slot.origin.to_ascii_lowercase();
    (slot.step.to_owned(), format!("{} {part}", slot.field), origin)
}

fn restore_url(
    url: &mut String,
    slot: &Slot<'_>,
    held: &HashMap<(String, String, String), Value>,
) -> bool {
    let text = url.clone();
    let mut is_restored = true;
    mask::replace_all(url, url_secrets(&text), |(name, range)| {
        if text.get(range.clone()) != Some(MASKED) {
            return None;
        }
        let secret = held.get(&key(slot, name)).and_then(Value::as_str);
        is_restored &= secret.is_some();
        secret.map(str::to_owned)
    });
    is_restored
}

/// Returns the secret parts of a URL, by name.
fn parts_of(url: &Value) -> Vec<(String, String)> {
    let url = url.as_str().unwrap_or_default();
    let part = |(name, range): mask::Found| Some((name, url.get(range)?.to_owned()));
    url_secrets(url).into_iter().filter_map(part).collect()
}

fn is_masked(slot: &Slot<'_>, value: &Value) -> bool {
    if slot.is_url {
        return parts_of(value).iter().any(|(_, part)| part == MASKED);
    }
    value.as_str() == Some(MASKED)
}

fn sealed(value: &Value) -> Option<&str> {
    let fields = value.as_object().filter(|fields| fields.len() == 1)?;
    fields.get(SEALED)?.as_str()
}

// --- search ---

type See<'v> = dyn FnMut(&Slot<'_>, &mut Value) + 'v;

/// Calls `see` with every credential of a definition, even an invalid one. The URL of a request is
/// visited before its other fields, which use the origin of the URL as changed by `see`.
fn visit(definition: &mut Value, see: &mut See<'_>) {
    visit_steps(definition.get_mut("steps"), &JsonPointer::Root.field("steps"), see);
}

fn visit_steps(steps: Option<&mut Value>, place: &JsonPointer<'_>, see: &mut See<'_>) {
    for (index, step) in steps.and_then(Value::as_array_mut).into_iter().flatten().enumerate() {
        let (place, Some(fields)) = (place.item(index), step.as_object_mut()) else { continue };
        visit_step(fields, &place, see);
    }
}

fn visit_step(fields: &mut Map<String, Value>, place: &JsonPointer<'_>, see: &mut See<'_>) {
    if fields.get("type").and_then(Value::as_str) == Some("http") {
        let id = fields.get("step_id").or_else(|| fields.get("id")).and_then(Value::as_str);
        let id = id.unwrap_or_default().to_owned();
        visit_request(fields, &id, "", place, see);
        if let Some(fallback) = fields.get_mut("fallback").and_then(Value::as_object_mut) {
            visit_request(fallback, &id, "fallback/", &place.field("fallback"), see);
        }
    }
    visit_steps(fields.get_mut("steps"), &place.field("steps"), see);
    for name in ["condition_met_branch", "default_branch"] {
        let within = place.field(name);
        let steps = fields.get_mut(name).and_then(|branch| branch.get_mut("steps"));
        visit_steps(steps, &within.field("steps"), see);
    }
    let branches = fields.get_mut("branches").and_then(Value::as_array_mut);
    for (index, branch) in branches.into_iter().flatten().enumerate() {
        let list = place.field("branches");
        visit_steps(branch.get_mut("steps"), &list.item(index).field("steps"), see);
    }
}

fn visit_request(
    fields: &mut Map<String, Value>,
    step: &str,
    prefix: &str,
    place: &JsonPointer<'_>,
    see: &mut See<'_>,
) {
    if let Some(url) = fields.get_mut("url")
        && (sealed(url).is_some() || url.as_str().is_some_and(|url| !url_secrets(url).is_empty()))
    {
        let field = format!("{prefix}url");
        let pointer = place.field("url").to_string();
        let origin = origin_of(url);
        see(&Slot { step, field: &field, pointer, origin: &origin, is_url: true }, url);
    }
    let origin = fields.get("url").map(origin_of).unwrap_or_default();
    for list in ["auth", "headers", "query_params"] {
        let entries = fields.get_mut(list).and_then(Value::as_object_mut);
        for (name, value) in entries.into_iter().flatten() {
            let is_credential = if list == "auth" {
                AUTH_FIELDS.contains(&name.as_str())
            } else {
                is_secret_name(name)
            };
            if is_credential && !value.is_null() && !is_reference(value) {
                let field = format!("{prefix}{list}/{name}");
                let pointer = place.field(list).field(name).to_string();
                let slot = Slot { step, field: &field, pointer, origin: &origin, is_url: false };
                see(&slot, value);
            }
        }
    }
}

/// Returns the scheme, host and port as written, without user name and password.
fn origin_of(url: &Value) -> String {
    let url = url.as_str().unwrap_or_default();
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let authority = rest.get(..end).unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}")
}

/// Returns whether the value is a single reference.
fn is_reference(value: &Value) -> bool {
    Template::parse(value).is_ok_and(|template| template.reference().is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written() -> Value {
        let request = |host: &str| {
            json!({
                "url": format!("https://u:hidden@{host}/p?q=1&api_key=hidden"),
                "headers": {"X-Vault-Token": "hidden", "X-Kind": "shown"},
                "query_params": {"sig": ["hidden", 1], "n": 1, "token": "{{inputs.token}}"},
            })
        };
        let mut http = request("h");
        http["step_id"] = json!("a");
        http["type"] = json!("http");
        http["auth"] = json!({"type": "basic", "username": "hidden", "password": "hidden"});
        http["fallback"] = request("h2");
        let mut inner = http.clone();
        inner["step_id"] = json!("b");
        json!({"steps": [
            http,
            {"step_id": "p", "type": "parallel", "branches": [{"steps": [
                {"step_id": "c", "type": "choice", "default_branch": {"steps": [
                    {"step_id": "m", "type": "map", "steps": [inner]}]}}]}]},
            {"step_id": "m", "type": "model", "params": {"token": "a model's own"}},
        ]})
    }

    fn reversed(text: &str) -> String {
        text.chars().rev().collect()
    }

    fn stored() -> Value {
        seal::<()>(written(), |text| Ok(reversed(text))).unwrap()
    }

    #[test]
    fn definition_credentials_are_sealed_and_unsealed() {
        let stored = stored();
        assert!(!stored.to_string().contains("hidden"), "{stored}");
        assert!(stored.to_string().contains("shown"));
        assert_eq!(unseal(stored.clone(), |text| Some(reversed(text))), (written(), true));
        let (locked, is_whole) = unseal(stored.clone(), |_| None);
        assert_eq!((&locked, is_whole), (&stored, false));
        assert!(!mask(locked).to_string().contains(SEALED));
        // A definition stored before sealing was introduced.
        assert_eq!(unseal(written(), |_| None), (written(), true));
    }

    #[test]
    fn definition_masked_credentials_can_be_written_back() {
        let seen = mask(written());
        let text = seen.to_string();
        assert!(!text.contains("hidden") && text.contains("{{inputs.token}}"), "{text}");
        assert!(text.contains("https://***@h/p?q=1&api_key=***"), "{text}");
        assert_eq!(mask(seen.clone()), seen, "masking twice changes nothing");
        assert!(has_masks(&seen) && !has_masks(&written()) && has_any(&written()));
        assert_eq!(restore(seen.clone(), &[written()]), Ok(written()));
        let mut edited = seen;
        edited["steps"][0]["url"] = json!("https://***@h/other?api_key=***&n=2");
        edited["steps"][0]["headers"]["X-Vault-Token"] = json!("new");
        let restored = restore(edited, &[written()]).unwrap();
        let step = &restored["steps"][0];
        assert_eq!(step["url"], "https://u:hidden@h/other?api_key=hidden&n=2");
        assert_eq!(step["headers"]["X-Vault-Token"], "new");
        assert_eq!(step["auth"], written()["steps"][0]["auth"]);
    }

    #[test]
    fn definition_mask_without_stored_secret_is_rejected() {
        let one = |change: &dyn Fn(&mut Value)| {
            let mut seen = mask(written());
            change(&mut seen["steps"][0]);
            restore(seen, &[written()]).unwrap_err().remove(0)
        };
        assert_eq!(restore(mask(written()), &[]).unwrap_err().len(), 16);
        let renamed = one(&|step| step["step_id"] = json!("z"));
        assert!(renamed.message.starts_with("step 'z': url is masked"), "{}", renamed.message);
        let moved = one(&|step| step["headers"] = json!({"X-New-Token": "***"}));
        assert_eq!(moved.path, "/steps/0/headers/X-New-Token");
        // If the secret were sent to another host, it would leak to the author of this definition.
        let stolen = one(&|step| step["url"] = json!("https://evil/p"));
        assert_eq!(stolen.path, "/steps/0/auth/username");
    }
}
