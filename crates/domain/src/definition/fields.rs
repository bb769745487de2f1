//! Readers for the objects of a definition. Each reader adds its problems to a list, as sentences
//! that name the owner and the field. Fields that are never read are reported as unknown.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value};

use super::{Error, PROBLEMS_MAX, Problem};
use crate::json_object::{Found, JsonObject};
use crate::json_pointer::{JsonPointer, brief, brief_pointer};
use crate::reference;
use crate::template::{Template, check_names};

/// The problems found so far. Readers of nested objects share the list by reference.
#[derive(Debug, Default)]
pub(super) struct Problems {
    found: RefCell<Vec<Problem>>,
    /// Whether the definition is already stored. If so, checks that earlier releases did not make
    /// are skipped.
    is_stored: bool,
}

impl Problems {
    pub(super) fn of_stored() -> Self {
        Self { is_stored: true, ..Self::default() }
    }

    /// Adds a problem, or drops it if the list is full.
    pub(super) fn add(&self, path: impl ToString, message: impl Into<String>) {
        let mut problems = self.found.borrow_mut();
        if problems.len() < PROBLEMS_MAX {
            problems.push(Problem { path: path.to_string(), message: message.into() });
        }
    }

    /// Returns whether no problem has been found so far.
    pub(super) fn is_empty(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// Returns whether further problems would be dropped.
    pub(super) fn is_full(&self) -> bool {
        self.found.borrow().len() >= PROBLEMS_MAX
    }

    pub(super) fn into_result(self) -> Result<(), Error> {
        let mut problems = self.found.into_inner().into_iter();
        match problems.next() {
            Some(first) => Err(Error { first, others: problems.collect() }),
            None => Ok(()),
        }
    }
}

/// Reads the fields of one object.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    problems: &'a Problems,
    /// The start of an error message: `step 'draw'`.
    owner: &'a str,
    /// The path from the owner to this object, each field followed by a slash.
    prefix: String,
    place: JsonPointer<'a>,
    object: JsonObject,
}

impl<'a> Fields<'a> {
    pub(super) fn new(
        problems: &'a Problems,
        owner: &'a str,
        place: JsonPointer<'a>,
        fields: Map<String, Value>,
    ) -> Self {
        Self { problems, owner, prefix: String::new(), place, object: fields.into() }
    }

    /// Returns the reader of the object in field `name`.
    pub(super) fn nested<'b>(&'b self, name: &'b str, fields: Map<String, Value>) -> Fields<'b> {
        let prefix = format!("{}{name}/", self.prefix);
        let place = self.place.field(name);
        Fields { problems: self.problems, owner: self.owner, prefix, place, object: fields.into() }
    }

    /// Returns the reader of the object that is item `index` of this list, at `place`.
    pub(super) fn item<'b>(
        &'b self,
        index: usize,
        place: &'b JsonPointer<'b>,
        fields: Map<String, Value>,
    ) -> Fields<'b> {
        let prefix = format!("{}{index}/", self.prefix);
        let problems = self.problems;
        let owner = self.owner;
        let place = *place;
        Fields { problems, owner, prefix, place, object: fields.into() }
    }

    pub(super) const fn place(&self) -> &JsonPointer<'a> {
        &self.place
    }

    /// Returns whether the definition is already stored.
    pub(super) const fn is_stored(&self) -> bool {
        self.problems.is_stored
    }

    pub(super) const fn problems(&self) -> &'a Problems {
        self.problems
    }

    /// Reports a problem of the field `name`. `message` is the rest of a sentence that begins with
    /// the field.
    pub(super) fn refuse(&self, name: &str, message: impl AsRef<str>) {
        self.refuse_at(name, "", message);
    }

    /// Reports a problem of the value at the JSON pointer `inside` within the field `name`.
    pub(super) fn refuse_at(&self, name: &str, inside: &str, message: impl AsRef<str>) {
        let Self { owner, prefix, .. } = self;
        let shown = brief_pointer(inside);
        let message = format!("{owner}: {prefix}{}{shown} {}", brief(name), message.as_ref());
        self.problems.add(format!("{}{inside}", self.place.field(name)), message);
    }

    /// Reports a problem of the field `name` as a complete sentence.
    pub(super) fn say(&self, name: &str, sentence: impl AsRef<str>) {
        let message = format!("{}: {}", self.owner, sentence.as_ref());
        self.problems.add(self.place.field(name), message);
    }

    /// Takes the field `name`; `None` if it is absent or null.
    pub(super) fn take(&mut self, name: &'static str) -> Option<Value> {
        self.object.take(name)
    }

    pub(super) fn text(&mut self, name: &'static str) -> Option<String> {
        let text = self.object.text(name);
        self.checked(text)
    }

    /// Reads a required, non-empty string.
    pub(super) fn required_text(&mut self, name: &'static str) -> Option<String> {
        let text = self.object.text(name);
        let text = self.required(name, text)?;
        if text.is_empty() {
            self.refuse(name, "must not be empty");
            return None;
        }
        Some(text)
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Option<bool> {
        let flag = self.object.flag(name);
        self.checked(flag)
    }

    pub(super) fn number(
        &mut self,
        name: &'static str,
        range: &RangeInclusive<f64>,
    ) -> Option<f64> {
        let number = self.object.number(name, range);
        self.checked(number)
    }

    /// Reads a duration in seconds, possibly fractional.
    pub(super) fn seconds(
        &mut self,
        name: &'static str,
        range: &RangeInclusive<f64>,
    ) -> Option<Duration> {
        let seconds = self.number(name, range)?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    pub(super) fn whole(&mut self, name: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        let (start, end) = range.into_inner();
        let number = self.object.whole(name, &(start.into()..=end.into()));
        self.checked(number).and_then(|number| u32::try_from(number).ok())
    }

    pub(super) fn object(&mut self, name: &'static str) -> Option<Map<String, Value>> {
        let fields = self.object.object(name);
        self.checked(fields)
    }

    /// Reads a required object.
    pub(super) fn required_object(&mut self, name: &'static str) -> Option<Map<String, Value>> {
        let fields = self.object.object(name);
        self.required(name, fields)
    }

    pub(super) fn list(&mut self, name: &'static str) -> Option<Vec<Value>> {
        let items = self.object.list(name);
        self.checked(items)
    }

    /// Reads a required, non-empty list; `what` is the minimum in words, such as "one step".
    pub(super) fn required_list(&mut self, name: &'static str, what: &str) -> Option<Vec<Value>> {
        match self.object.list(name) {
            Ok(Some(items)) if !items.is_empty() => return Some(items),
            Ok(Some(_)) | Err(_) => {
                self.refuse(name, format!("must be an array of at least {what}"));
            }
            Ok(None) => self.refuse(name, format!("is required: at least {what}")),
        }
        None
    }

    /// Reads any JSON value, with references.
    pub(super) fn template(&mut self, name: &'static str) -> Option<Template> {
        let written = self.take(name)?;
        self.parse(name, &written)
    }

    /// Reads an object with references in its values.
    pub(super) fn object_template(&mut self, name: &'static str) -> Option<Template> {
        let written = Value::Object(self.object(name)?);
        self.parse(name, &written)
    }

    /// Reads a required string with references.
    pub(super) fn text_template(&mut self, name: &'static str) -> Option<Template> {
        let written = Value::String(self.required_text(name)?);
        self.parse(name, &written)
    }

    /// Parses the value of the field `name`.
    pub(super) fn parse(&self, name: &str, written: &Value) -> Option<Template> {
        let checked = self.check_names(written).and_then(|()| Template::parse(written));
        checked.map_err(|error| self.refuse_reference(name, &error)).ok()
    }

    /// Rejects references in the field names of `written`, except in stored definitions, because
    /// earlier releases accepted them.
    pub(super) fn check_names(&self, written: &Value) -> Result<(), reference::Error> {
        if self.is_stored() { Ok(()) } else { check_names(written) }
    }

    /// Reports an invalid reference in the field `name`.
    pub(super) fn refuse_reference(&self, name: &str, error: &reference::Error) {
        let message = format!("is wrong: {} {}", error.reference, error.kind);
        self.refuse_at(name, &error.place, message);
    }

    /// Reports the fields that were never read. `what` is the kind of object, with its article.
    pub(super) fn end(self, what: &str) {
        let known = self.object.known().join(", ");
        for unknown in self.object.unread().take(PROBLEMS_MAX) {
            let Self { owner, prefix, .. } = &self;
            let name = brief(unknown);
            let message =
                format!("{owner}: unknown field '{prefix}{name}'; {what} may have {known}");
            self.problems.add(self.place.field(unknown), message);
        }
    }

    fn checked<T>(&self, found: Found<T>) -> Option<T> {
        found.unwrap_or_else(|mismatch| {
            self.refuse(mismatch.field, mismatch.message);
            None
        })
    }

    fn required<T>(&self, name: &str, found: Found<T>) -> Option<T> {
        if matches!(found, Ok(None)) {
            self.refuse(name, "is required");
        }
        self.checked(found)
    }
}
