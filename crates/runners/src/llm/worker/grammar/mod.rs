//! Compiles JSON Schemas into grammars (GBNF) that constrain llama.cpp's output.
//!
//! llama.cpp's own converter omits what it cannot express, takes cubic time for optional
//! properties, and does not terminate for some schemas of 3 KB. Here, each location in a schema
//! becomes one rule: references share their rules and may be recursive, alternatives are flattened
//! to avoid left recursion, and the cost of a schema is computed before llama.cpp sees the grammar.

mod numbers;
mod objects;
mod places;
mod strings;

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use self::places::{Choices, Leaf};
pub(super) use self::strings::literal;

/// Cost limit over all schemas of a request: one unit per subschema, property, value and expanded
/// repetition.
const COST_MAX: usize = 20_000;
/// Approximate limit on the copied parts of schemas in bytes: alternatives and `allOf` copy the
/// keywords next to them.
const COPIED_MAX: usize = 64 * 1024 * 1024;
/// Maximum size of a grammar, in bytes.
const BYTES_MAX: usize = 2 * 1024 * 1024;
/// The largest `maxItems` or similar bound that a grammar enforces; larger bounds are ignored,
/// because no generated text is that long. A larger `minItems` or `minLength` is rejected.
const REPEATED_MAX: u64 = 200_000;
/// Repetitions up to this count are written out; larger ones are built from blocks.
const REPEATED_PLAINLY: u64 = 64;

/// Predefined rules.
const PRIMITIVES: &str = r#"
ws ::= ( " " | "\n" [ \t]{0,32} )?
char ::= [^"\\\x00-\x1F\x7F\uD800-\uDFFF\U00110000-\U001FFFFF] | "\\" ( ["\\bfnrt] | "u" ( [0-9a-cefA-CEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} ) )
string ::= "\"" char* "\""
whole ::= "0" | [1-9] [0-9]{0,15}
integer ::= "-"? whole
number ::= "-"? whole ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,2} )?
boolean ::= "true" | "false"
null ::= "null"
pair ::= string ws ":" ws value
object ::= "{" ws ( pair ( "," ws pair )* ws )? "}"
array ::= "[" ws ( value ( "," ws value )* ws )? "]"
value ::= object | array | string | number | boolean | null
"#;

/// The keyword or value that cannot be enforced, and its location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why} (at {place})")]
pub(super) struct Error {
    place: String,
    why: String,
}

impl Error {
    fn new(place: &str, why: impl Into<String>) -> Self {
        const PLACE_MAX: usize = 200;
        let place = if place.is_empty() { "its root" } else { place };
        let place = place.chars().take(PLACE_MAX).collect();
        Self { place, why: why.into() }
    }
}

/// The rules of one grammar.
#[derive(Debug)]
pub(super) struct Rules {
    text: String,
    names: usize,
    cost: usize,
    copied: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self { text: PRIMITIVES.to_owned(), names: 0, cost: 0, copied: 0 }
    }
}

impl Rules {
    /// Adds the rules of a schema, and returns the expression for a matching value. With
    /// `is_strict`, keywords that no grammar can express are errors.
    ///
    /// # Errors
    /// [`Error`]; in this case, nothing is added.
    pub(super) fn schema(&mut self, schema: &Value, is_strict: bool) -> Result<String, Error> {
        let (bytes, cost, copied) = (self.text.len(), self.cost, self.copied);
        let mut builder = Builder {
            rules: self,
            root: schema,
            is_strict,
            named: HashMap::new(),
            queue: Vec::new(),
        };
        let built = builder.build();
        if built.is_err() {
            self.text.truncate(bytes);
            (self.cost, self.copied) = (cost, copied);
        }
        built
    }

    /// Adds a rule and returns its name.
    pub(super) fn add(&mut self, expression: &str) -> String {
        let name = self.name();
        self.define(&name, expression);
        name
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("r{}", self.names)
    }

    fn define(&mut self, name: &str, expression: &str) {
        // Writing to a String cannot fail.
        let _written = writeln!(self.text, "{name} ::= {expression}");
    }

    /// Returns the grammar, with `root` as its first rule.
    #[must_use]
    pub(super) fn text(mut self, root: &str, expression: &str) -> String {
        self.define(root, expression);
        self.text
    }
}

/// Builds the rules of one schema.
struct Builder<'r, 's> {
    rules: &'r mut Rules,
    root: &'s Value,
    is_strict: bool,
    /// Rule names by location in the schema.
    named: HashMap<String, String>,
    /// Locations that have a rule name but no rule yet.
    queue: Vec<(String, Leaf)>,
}

impl Builder<'_, '_> {
    fn build(&mut self) -> Result<String, Error> {
        let root = self.value(self.root, "")?;
        // A loop instead of recursion, because references may nest deeply.
        while let Some((name, leaf)) = self.queue.pop() {
            let expression = self.leaf(&leaf)?;
            self.rules.define(&name, &expression);
            if self.rules.text.len() > BYTES_MAX {
                return Err(too_large(&leaf.place));
            }
        }
        Ok(root)
    }

    /// Adds `units` to the cost.
    fn spend(&mut self, units: usize, place: &str) -> Result<(), Error> {
        self.rules.cost = self.rules.cost.saturating_add(units);
        if self.rules.cost > COST_MAX { Err(too_large(place)) } else { Ok(()) }
    }

    /// Adds the size of a copied part of the schema.
    fn copy(&mut self, part: &Fields, place: &str) -> Result<(), Error> {
        self.rules.copied = self.rules.copied.saturating_add(bytes_of(part) + place.len());
        if self.rules.copied > COPIED_MAX { Err(too_large(place)) } else { Ok(()) }
    }

    /// Returns the expression for a value that matches a schema.
    fn value(&mut self, schema: &Value, place: &str) -> Result<String, Error> {
        let Choices { leaves, literals, .. } = self.choices(schema, place)?;
        let mut all = Vec::new();
        if !literals.is_empty() {
            all.push(strings::one_of(literals));
        }
        for leaf in leaves {
            let name = self.named(leaf);
            if !all.contains(&name) {
                all.push(name);
            }
        }
        match all.as_slice() {
            [] => Err(Error::new(place, "no value matches it")),
            [only] => Ok(only.clone()),
            _ => Ok(format!("( {} )", all.join(" | "))),
        }
    }

    /// Returns the name of the rule for a location.
    fn named(&mut self, leaf: Leaf) -> String {
        if let Some(primitive) = leaf.primitive() {
            return primitive.to_owned();
        }
        if let Some(name) = self.named.get(&leaf.place) {
            return name.clone();
        }
        let name = self.rules.name();
        self.named.insert(leaf.place.clone(), name.clone());
        self.queue.push((name.clone(), leaf));
        name
    }

    fn leaf(&mut self, leaf: &Leaf) -> Result<String, Error> {
        match leaf.kind() {
            Some("object") => self.object(leaf),
            Some("array") => self.array(leaf),
            Some("string") => self.string(leaf),
            Some("integer") => numbers::integer(leaf),
            Some("number") => numbers::number(leaf),
            Some(kind @ ("boolean" | "null")) => Ok(kind.to_owned()),
            None => Ok("value".to_owned()),
            Some(other) => {
                let other: String = other.chars().take(40).collect();
                Err(Error::new(&leaf.place, format!("'{other}' is not a type of JSON Schema")))
            }
        }
    }

    fn array(&mut self, leaf: &Leaf) -> Result<String, Error> {
        let Leaf { schema, place } = leaf;
        let (least, most) = leaf.bounds("minItems", "maxItems")?;
        let tuple = schema.get("prefixItems").or(schema.get("items").filter(|one| one.is_array()));
        let first = tuple.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let rest = match schema.get("items") {
            Some(items) if !items.is_array() => Some(items),
            // A tuple has only its listed items; additional items would be allowed but useless.
            _ if first.is_empty() => Some(&Value::Bool(true)),
            _ => schema.get("additionalItems").filter(|rest| rest.is_object()),
        };
        let mut items = Vec::new();
        for (index, item) in first.iter().enumerate() {
            items.push(self.value(item, &format!("{place}/prefixItems/{index}"))?);
        }
        if most.is_some_and(|most| most < items.len() as u64) {
            items.truncate(usize::try_from(most.unwrap_or(0)).unwrap_or(usize::MAX));
        }
        let listed = items.len() as u64;
        let mut inside = items.join(" \",\" ws ");
        let least = least.saturating_sub(listed);
        let most = most.map(|most| most.saturating_sub(listed));
        let rest = rest.filter(|rest| **rest != Value::Bool(false) && most != Some(0));
        match rest {
            Some(rest) => {
                let item = self.value(rest, &format!("{place}/items"))?;
                let list = self.list(&item, least, most, listed > 0, place)?;
                inside = format!("{inside} {list}");
            }
            None if least > 0 => {
                return Err(Error::new(place, "it lists fewer items than minItems demands"));
            }
            None => {}
        }
        Ok(format!("\"[\" ws {inside} \"]\""))
    }

    /// Returns comma-separated items with trailing whitespace; `goes_on` means that other items
    /// precede them.
    fn list(
        &mut self,
        item: &str,
        least: u64,
        most: Option<u64>,
        goes_on: bool,
        place: &str,
    ) -> Result<String, Error> {
        let further = self.rules.add(&format!("\",\" ws {item}"));
        if goes_on {
            return Ok(format!("{} ws", self.repeated(&further, least, most, place)?));
        }
        let (after, behind) = (least.saturating_sub(1), most.map(|most| most.saturating_sub(1)));
        let all = format!("{item} {} ws", self.repeated(&further, after, behind, place)?);
        Ok(if least == 0 { format!("( {all} )?") } else { all })
    }

    /// Repeats a rule. Large counts are built from blocks, so that the number of rules is only
    /// about twice the square root of the count.
    fn repeated(
        &mut self,
        rule: &str,
        least: u64,
        most: Option<u64>,
        place: &str,
    ) -> Result<String, Error> {
        if least > REPEATED_MAX {
            let why = format!("it demands more than {REPEATED_MAX} repetitions");
            return Err(Error::new(place, why));
        }
        let most = most.filter(|most| *most <= REPEATED_MAX);
        let largest = most.unwrap_or(least).max(1);
        if largest <= REPEATED_PLAINLY {
            self.spend(usize::try_from(largest).unwrap_or(usize::MAX), place)?;
            let most = most.map(|most| most.to_string()).unwrap_or_default();
            return Ok(format!("{rule}{{{least},{most}}}"));
        }
        let size = largest.isqrt() + 1;
        self.spend(usize::try_from(size * 4).unwrap_or(usize::MAX), place)?;
        let block = self.rules.add(&format!("{rule}{{{size}}}"));
        let demanded = format!("{block}{{{}}} {rule}{{{}}}", least / size, least % size);
        let Some(most) = most else { return Ok(format!("{demanded} {rule}*")) };
        let more = most - least;
        Ok(if more < size {
            format!("{demanded} {rule}{{0,{more}}}")
        } else {
            // Rounded down to whole blocks, so that the grammar stays nearly unambiguous.
            format!("{demanded} {block}{{0,{}}} {rule}{{0,{size}}}", more / size - 1)
        })
    }
}

/// Estimates the memory of fields, in bytes.
fn bytes_of(fields: &Fields) -> usize {
    const FIELD: usize = 128;
    fields.iter().map(|(name, value)| FIELD + name.len() + bytes_within(value)).sum()
}

fn bytes_within(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => {
            items.iter().map(|item| size_of::<Value>() + bytes_within(item)).sum()
        }
        Value::Object(fields) => bytes_of(fields),
    }
}

fn too_large(place: &str) -> Error {
    let why = format!(
        "the schema is too large for a grammar of {COST_MAX} rules: use fewer properties, values, \
         alternatives or repetitions"
    );
    Error::new(place, why)
}

/// The fields of a schema.
type Fields = Map<String, Value>;

#[cfg(test)]
mod tests;
