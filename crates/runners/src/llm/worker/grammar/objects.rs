//! Grammars of objects: properties in schema order, each at most once, with one rule per property.

use std::collections::HashSet;

use serde_json::Value;

use super::places::Leaf;
use super::strings::{literal, other_than};
use super::{Builder, Error};

/// Maximum number of optional properties of one object. Each optional property is an alternative
/// that is tried for every token.
const OPTIONAL_MAX: usize = 512;
/// Maximum length in characters of a declared name that additional properties must differ from.
const NAME_MAX: usize = 128;

/// A property of an object.
struct Member {
    pair: String,
    is_required: bool,
}

/// The rules for the rest of an object.
struct Rest {
    /// The rule that applies after a property.
    after: String,
    /// The rule that applies before any property.
    first: String,
}

impl Builder<'_, '_> {
    /// Returns the expression for an object.
    pub(super) fn object(&mut self, leaf: &Leaf) -> Result<String, Error> {
        let Leaf { schema, place } = leaf;
        let (least, most) = leaf.bounds("minProperties", "maxProperties")?;
        let members = self.members(leaf)?;
        let unevaluated = schema.get("unevaluatedProperties").filter(|further| **further == false);
        let further = match schema.get("additionalProperties").or(unevaluated) {
            Some(Value::Bool(false)) => None,
            Some(further) => Some(further),
            // Additional properties would be allowed but useless.
            None => schema.get("properties").is_none().then_some(&Value::Bool(true)),
        };
        let further = match further {
            Some(further) => self.further(leaf, further)?,
            None => None,
        };
        if let (true, Some(pair)) = (members.is_empty(), &further) {
            let list = self.list(pair, least, most, false, place)?;
            return Ok(format!("\"{{\" ws {list} \"}}\""));
        }
        let required = members.iter().filter(|one| one.is_required).count() as u64;
        let listed = members.len() as u64;
        let may_be_more = most.is_some_and(|most| listed > most || further.is_some());
        if self.is_strict && (least > required || may_be_more) {
            let why = "minProperties and maxProperties cannot be enforced together with properties";
            return Err(Error::new(place, why));
        }
        let first = self.chain(&members, further);
        Ok(format!("\"{{\" ws {first} ws \"}}\""))
    }

    /// Returns the pairs of named properties, including required properties without a schema.
    fn members(&mut self, leaf: &Leaf) -> Result<Vec<Member>, Error> {
        let Leaf { schema, place } = leaf;
        let described = match schema.get("properties") {
            None => None,
            Some(Value::Object(described)) => Some(described),
            Some(_) => return Err(Error::new(place, "properties must be an object of schemas")),
        };
        let listed = schema.get("required").and_then(Value::as_array);
        let listed = listed.into_iter().flatten().filter_map(Value::as_str);
        let required: HashSet<&str> = listed.clone().collect();
        let described = described.into_iter().flatten();
        let optional = described.clone().filter(|(name, _)| !required.contains(name.as_str()));
        if optional.count() > OPTIONAL_MAX {
            let why = format!("more than {OPTIONAL_MAX} properties are optional");
            return Err(Error::new(place, why));
        }
        let mut members = Vec::new();
        let mut known = HashSet::new();
        for (name, schema) in described {
            known.insert(name.as_str());
            let is_required = required.contains(name.as_str());
            if *schema == Value::Bool(false) && !is_required {
                continue;
            }
            let at = format!("{place}/properties/{name}");
            let value = self.value(schema, &at)?;
            members.push(Member { pair: self.pair(name, &value), is_required });
        }
        for name in listed {
            if !known.insert(name) {
                continue;
            }
            let further = schema.get("additionalProperties").unwrap_or(&Value::Bool(true));
            let value = self.value(further, &format!("{place}/required/{name}"))?;
            members.push(Member { pair: self.pair(name, &value), is_required: true });
        }
        Ok(members)
    }

    fn pair(&mut self, name: &str, value: &str) -> String {
        let name = literal(&Value::from(name).to_string());
        self.rules.add(&format!("{name} ws \":\" ws {value}"))
    }

    /// Returns the pair of an additional property, or `None` if there can be none.
    fn further(&mut self, leaf: &Leaf, schema: &Value) -> Result<Option<String>, Error> {
        let names = leaf.schema.get("properties").and_then(Value::as_object);
        let names: Vec<&str> = names.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        if names.iter().any(|name| name.chars().count() > NAME_MAX) {
            return Ok(None);
        }
        let value = self.value(schema, &format!("{}/additionalProperties", leaf.place))?;
        let name = if names.is_empty() { "string".to_owned() } else { other_than(&names) };
        self.spend(names.len(), &leaf.place)?;
        Ok(Some(self.rules.add(&format!("{name} ws \":\" ws {value}"))))
    }

    /// Chains the properties, from last to first.
    fn chain(&mut self, members: &[Member], further: Option<String>) -> String {
        let mut rest = match further {
            None => Rest { after: String::new(), first: String::new() },
            Some(pair) => {
                let more = self.rules.add(&format!("\",\" ws {pair}"));
                let after = self.rules.add(&format!("{more}*"));
                let first = self.rules.add(&format!("( {pair} {after} )?"));
                Rest { after, first }
            }
        };
        let until = members.iter().position(|one| one.is_required).unwrap_or(members.len());
        for (index, Member { pair, is_required }) in members.iter().enumerate().rev() {
            let Rest { after, first } = rest;
            let next = match (is_required, first.is_empty()) {
                (true, _) => format!("{pair} {after}"),
                (false, true) => format!("( {pair} {after} )?"),
                (false, false) => format!("{pair} {after} | {first}"),
            };
            let behind = match is_required {
                true => format!("\",\" ws {pair} {after}"),
                false => format!("( \",\" ws {pair} )? {after}"),
            };
            // An object cannot start after a required property, so no `first` rule is needed there.
            let first = if index <= until { self.rules.add(&next) } else { String::new() };
            rest = Rest { after: self.rules.add(&behind), first };
        }
        rest.first
    }
}
