//! One JSON object, read field by field: each fault becomes a sentence that names the owner and the
//! field, and whatever nobody asked for is unknown.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value};

use super::{Error, FAULTS_MAX, Fault};
use crate::domain::place::{Place, brief};
use crate::domain::template::Template;

/// The faults found so far. Readers of nested objects share it, so it is filled through a shared
/// reference.
#[derive(Debug, Default)]
pub(super) struct Faults(RefCell<Vec<Fault>>);

impl Faults {
    /// Adds a fault; beyond the most that are reported, it is dropped.
    pub(super) fn add(&self, path: impl ToString, message: impl Into<String>) {
        let mut faults = self.0.borrow_mut();
        if faults.len() < FAULTS_MAX {
            faults.push(Fault { path: path.to_string(), message: message.into() });
        }
    }

    /// Whether nothing was wrong so far.
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Whether more would be dropped.
    pub(super) fn is_full(&self) -> bool {
        self.0.borrow().len() >= FAULTS_MAX
    }

    pub(super) fn into_result(self) -> Result<(), Error> {
        let mut faults = self.0.into_inner().into_iter();
        match faults.next() {
            Some(first) => Err(Error { first, others: faults.collect() }),
            None => Ok(()),
        }
    }
}

/// An object that is being read.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    faults: &'a Faults,
    /// Who is at fault, as a sentence begins: `step 'draw'`.
    owner: &'a str,
    /// The fields that lead from the owner here, each with a slash behind it.
    prefix: String,
    place: Place<'a>,
    left: Map<String, Value>,
    asked: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub(super) const fn new(
        faults: &'a Faults,
        owner: &'a str,
        place: Place<'a>,
        fields: Map<String, Value>,
    ) -> Self {
        Self { faults, owner, prefix: String::new(), place, left: fields, asked: Vec::new() }
    }

    /// The reader of the object that the field `name` holds.
    pub(super) fn nested<'b>(&'b self, name: &'b str, fields: Map<String, Value>) -> Fields<'b> {
        Fields {
            faults: self.faults,
            owner: self.owner,
            prefix: format!("{}{name}/", self.prefix),
            place: self.place.field(name),
            left: fields,
            asked: Vec::new(),
        }
    }

    /// The reader of the object that is item `index` of the list here, at `place`.
    pub(super) fn item<'b>(
        &'b self,
        index: usize,
        place: &'b Place<'b>,
        fields: Map<String, Value>,
    ) -> Fields<'b> {
        let prefix = format!("{}{index}/", self.prefix);
        let (faults, owner, place) = (self.faults, self.owner, *place);
        Fields { faults, owner, prefix, place, left: fields, asked: Vec::new() }
    }

    pub(super) const fn place(&self) -> &Place<'a> {
        &self.place
    }

    pub(super) const fn faults(&self) -> &'a Faults {
        self.faults
    }

    /// Says what is wrong with the field `name`: `message` is the rest of a sentence.
    pub(super) fn refuse(&self, name: &str, message: impl AsRef<str>) {
        self.refuse_at(name, "", message);
    }

    /// Says what is wrong at the JSON pointer `inside` the field `name`.
    pub(super) fn refuse_at(&self, name: &str, inside: &str, message: impl AsRef<str>) {
        let Self { owner, prefix, .. } = self;
        let message = format!("{owner}: {prefix}{}{inside} {}", brief(name), message.as_ref());
        self.faults.add(format!("{}{inside}", self.place.field(name)), message);
    }

    /// Says a whole sentence about the field `name`.
    pub(super) fn say(&self, name: &str, sentence: impl AsRef<str>) {
        let message = format!("{}: {}", self.owner, sentence.as_ref());
        self.faults.add(self.place.field(name), message);
    }

    /// Takes the field `name` out; nothing when it is absent or null.
    pub(super) fn take(&mut self, name: &'static str) -> Option<Value> {
        self.asked.push(name);
        self.left.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Puts a field in, to be read like one that was there.
    pub(super) fn put(&mut self, name: &str, value: Value) {
        self.left.insert(name.to_owned(), value);
    }

    pub(super) fn text(&mut self, name: &'static str) -> Option<String> {
        let Value::String(text) = self.take(name)? else {
            return self.wrong(name, "is no text");
        };
        Some(text)
    }

    /// A text that must be there and hold something.
    pub(super) fn required_text(&mut self, name: &'static str) -> Option<String> {
        match self.take(name) {
            Some(Value::String(text)) if !text.is_empty() => Some(text),
            Some(Value::String(_)) => self.wrong(name, "is empty"),
            Some(_) => self.wrong(name, "is no text"),
            None => self.wrong(name, "is missing"),
        }
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Option<bool> {
        let Value::Bool(flag) = self.take(name)? else {
            return self.wrong(name, "is neither true nor false");
        };
        Some(flag)
    }

    pub(super) fn number(
        &mut self,
        name: &'static str,
        range: &RangeInclusive<f64>,
    ) -> Option<f64> {
        let number = self.take(name)?.as_f64().filter(|number| range.contains(number));
        number.or_else(|| {
            self.wrong(name, format!("is no number from {} to {}", range.start(), range.end()))
        })
    }

    /// A time in seconds, fractions included.
    pub(super) fn seconds(
        &mut self,
        name: &'static str,
        range: &RangeInclusive<f64>,
    ) -> Option<Duration> {
        let seconds = self.number(name, range)?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    pub(super) fn whole(&mut self, name: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        let number = self.take(name)?.as_u64().and_then(|number| u32::try_from(number).ok());
        number.filter(|number| range.contains(number)).or_else(|| {
            let (start, end) = range.into_inner();
            self.wrong(name, format!("is no whole number from {start} to {end}"))
        })
    }

    pub(super) fn object(&mut self, name: &'static str) -> Option<Map<String, Value>> {
        let Value::Object(fields) = self.take(name)? else {
            return self.wrong(name, "is no object");
        };
        Some(fields)
    }

    /// An object that must be there.
    pub(super) fn required_object(&mut self, name: &'static str) -> Option<Map<String, Value>> {
        match self.take(name) {
            Some(Value::Object(fields)) => Some(fields),
            Some(_) => self.wrong(name, "is no object"),
            None => self.wrong(name, "is missing"),
        }
    }

    pub(super) fn list(&mut self, name: &'static str) -> Option<Vec<Value>> {
        let Value::Array(items) = self.take(name)? else {
            return self.wrong(name, "is no array");
        };
        Some(items)
    }

    /// A list that must be there and hold something; `what` names one thing of it, with its
    /// number.
    pub(super) fn required_list(&mut self, name: &'static str, what: &str) -> Option<Vec<Value>> {
        match self.take(name) {
            Some(Value::Array(items)) if !items.is_empty() => Some(items),
            Some(_) => self.wrong(name, format!("is no array of at least {what}")),
            None => self.wrong(name, format!("is missing: at least {what} is needed")),
        }
    }

    /// Any JSON with references in it.
    pub(super) fn template(&mut self, name: &'static str) -> Option<Template> {
        let written = self.take(name)?;
        self.parse(name, &written)
    }

    /// An object with references in its values.
    pub(super) fn object_template(&mut self, name: &'static str) -> Option<Template> {
        let written = Value::Object(self.object(name)?);
        self.parse(name, &written)
    }

    /// A text with references in it, which must be there.
    pub(super) fn text_template(&mut self, name: &'static str) -> Option<Template> {
        let written = Value::String(self.required_text(name)?);
        self.parse(name, &written)
    }

    /// Parses what the field `name` held.
    pub(super) fn parse(&self, name: &str, written: &Value) -> Option<Template> {
        match Template::parse(written) {
            Ok(template) => Some(template),
            Err(error) => {
                let message = format!("is wrong: {} {}", error.reference, error.fault);
                self.refuse_at(name, &error.place, message);
                None
            }
        }
    }

    /// Refuses the fields that nobody has asked for. `what` names the kind of object, with its
    /// article.
    pub(super) fn end(self, what: &str) {
        for unknown in self.left.keys().take(FAULTS_MAX) {
            let Self { owner, prefix, .. } = &self;
            let (name, known) = (brief(unknown), self.asked.join(", "));
            let message =
                format!("{owner}: unknown field '{prefix}{name}'; {what} may have {known}");
            self.faults.add(self.place.field(unknown), message);
        }
    }

    fn wrong<T>(&self, name: &str, message: impl AsRef<str>) -> Option<T> {
        self.refuse(name, message);
        None
    }
}
