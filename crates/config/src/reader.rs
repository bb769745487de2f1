//! Strict reader of TOML files, table by table: the configuration and the manifests.
//!
//! Callers request each key by name and type. Every key that no caller requested is an error,
//! reported with its line and the most similar key of the same table. Errors do not stop the
//! reader: a default replaces the invalid value, so that one pass finds all errors of a file.

use std::cell::{Cell, RefCell};
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value as Json, json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toml::value::{Date, Datetime};

use super::{Error, values};
use orrery_domain::spelling::nearest;
use orrery_runtime::regular_file;

/// An error about a value, with the value's byte range in the file.
#[derive(Debug)]
pub struct Problem {
    pub at: Range<usize>,
    pub message: String,
    /// The JSON Schema of the expected values, if the value has another type.
    pub expects: Option<Json>,
}

/// The result of parsing one value.
pub type Parsed<T> = Result<T, Vec<Problem>>;

/// A key that the service knows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Known {
    pub path: String,
    /// Whether omitting the key selects a default rather than "off".
    pub has_default: bool,
}

/// One pass over one file.
#[derive(Debug)]
pub struct Reader<'t> {
    text: &'t str,
    /// Whether the text is not valid TOML, so that no key can be reported as missing.
    is_broken: Cell<bool>,
    errors: RefCell<Vec<Error>>,
    known: RefCell<Vec<Known>>,
    /// The tables that were requested.
    sections: RefCell<Vec<String>>,
    unknown: RefCell<Vec<Unknown>>,
    /// The schemas of the keys, if the reader describes documents instead of reading one.
    described: Option<RefCell<Described>>,
}

/// The keys of a kind of document, with the JSON Schemas of their values.
#[derive(Debug, Default)]
struct Described {
    keys: Vec<(String, Json)>,
    required: Vec<String>,
}

/// An unrequested key. The error message about this key depends on keys that are read later.
#[derive(Debug)]
struct Unknown {
    at: Range<usize>,
    table: String,
    name: String,
    /// The most similar key of the same table.
    near: Option<&'static str>,
    /// The keys of the table; `None` if the table may have any keys. The unrequested key is then an
    /// error only if another key was probably meant.
    names: Option<Vec<&'static str>>,
}

/// Maximum number of locations that are suggested for a key.
const PLACES_MAX: usize = 3;
/// Keys that set the address in other services; `ADDRESS_HINT` names the key that sets it here.
const ADDRESSES: [&str; 5] = ["port", "host", "address", "bind", "listen"];
const ADDRESS_HINT: &str = "each host has its own address, such as `hosts.base.listen = \"127.0.0.1:8080\"`; \
                            `hosts.one_port` serves all on one";

impl<'t> Reader<'t> {
    pub fn new(text: &'t str) -> Self {
        Self {
            text,
            is_broken: Cell::default(),
            errors: RefCell::default(),
            known: RefCell::default(),
            sections: RefCell::default(),
            unknown: RefCell::default(),
            described: None,
        }
    }

    /// Creates a reader that describes documents: [`Reader::schema`] returns the schema of the
    /// documents that the reader would accept. `text` sets the keys that determine which other keys
    /// are valid, such as the type of a runner.
    pub fn describing(text: &'t str) -> Self {
        Self { described: Some(RefCell::default()), ..Self::new(text) }
    }

    /// Returns the JSON Schema of the described documents.
    pub fn schema(self) -> Json {
        let Described { keys, required } = self.described.unwrap_or_default().into_inner();
        let mut root = closed();
        for (path, schema) in keys {
            let (table, name) = path.rsplit_once('.').unwrap_or(("", &path));
            if let Some(properties) = properties_of(&mut root, table) {
                properties.insert(name.to_owned(), schema);
            }
        }
        for path in required {
            let (table, name) = path.rsplit_once('.').unwrap_or(("", &path));
            let mut parts = table.split('.').filter(|part| !part.is_empty());
            let place = parts.try_fold(&mut root, |place, part| {
                place.get_mut("properties").and_then(|properties| properties.get_mut(part))
            });
            let required = place
                .and_then(Json::as_object_mut)
                .map(|table| table.entry("required").or_insert_with(|| json!([])));
            if let Some(Json::Array(required)) = required {
                required.push(name.into());
            }
        }
        root
    }

    /// Parses the document. If the text is not valid TOML, records all syntax errors and returns an
    /// empty document: reading an incomplete document would only add misleading errors.
    pub fn document(&self) -> DeTable<'t> {
        let (document, errors) = DeTable::parse_recoverable(self.text);
        if errors.is_empty() {
            return document.into_inner();
        }
        for error in errors {
            self.error(error.span().as_ref(), format!("not TOML: {}", error.message()));
        }
        self.is_broken.set(true);
        DeTable::new()
    }

    /// Records an error at `at`, or without a position.
    pub fn error(&self, at: Option<&Range<usize>>, message: String) {
        let (line, column) = at.map_or((0, 0), |span| line_column(self.text, span.start));
        self.errors.borrow_mut().push(Error { line, column, message });
    }

    /// Returns all errors in line order, and all requested keys.
    pub fn finish(self) -> (Vec<Error>, Vec<Known>) {
        for unknown in self.unknown.take() {
            let Some(hint) = self.hint(&unknown) else { continue };
            let message = format!("unknown key `{}`; {hint}", join(&unknown.table, &unknown.name));
            self.error(Some(&unknown.at), message);
        }
        let mut errors = self.errors.into_inner();
        errors.sort();
        errors.dedup();
        (errors, self.known.into_inner())
    }
}

impl Reader<'_> {
    /// Suggests the intended key: in TOML, every key after a heading belongs to that heading's
    /// table.
    fn hint(&self, unknown: &Unknown) -> Option<String> {
        let Unknown { table, name, near, names, .. } = unknown;
        let sections = self.sections.borrow();
        let known = self.known.borrow();
        let keys = known.iter().map(|known| known.path.as_str());
        let all: Vec<&str> = keys.chain(sections.iter().map(String::as_str)).collect();
        let mut outer = table.as_str();
        while !outer.is_empty() {
            outer = outer.rsplit_once('.').map_or("", |(outer, _)| outer);
            let path = join(outer, name);
            if !all.contains(&path.as_str()) {
                continue;
            }
            let is_section = sections.contains(&path);
            return Some(match (is_section, outer) {
                (true, _) => format!("`{name}` is a table of its own: write `[{path}]`"),
                (false, "") => {
                    format!("`{name}` belongs at the top of the file, above `[{table}]`")
                }
                (false, outer) => format!("`{name}` belongs below `[{outer}]`, above `[{table}]`"),
            });
        }
        let has_name = |path: &&&str| path.rsplit_once('.').is_some_and(|(_, last)| last == name);
        let places: Vec<String> =
            all.iter().filter(has_name).map(|path| format!("`{path}`")).collect();
        let is_address = table.is_empty() && ADDRESSES.contains(&name.as_str());
        Some(match (places.len(), near) {
            _ if is_address && names.is_some() => ADDRESS_HINT.to_owned(),
            (1..=PLACES_MAX, _) if names.is_some() => {
                format!("did you mean {}?", places.join(" or "))
            }
            (_, Some(near)) => format!("did you mean `{near}`?"),
            (_, None) => format!("the keys here are {}", names.as_ref()?.join(", ")),
        })
    }
}

/// Returns the schema of a table without keys.
fn closed() -> Json {
    json!({"type": "object", "properties": {}, "additionalProperties": false})
}

/// Returns the properties in the schema of a table, which is created if necessary.
fn properties_of<'s>(root: &'s mut Json, table: &str) -> Option<&'s mut Map<String, Json>> {
    let mut place = root;
    for part in table.split('.').filter(|part| !part.is_empty()) {
        let properties = place.get_mut("properties")?.as_object_mut()?;
        place = properties.entry(part).or_insert_with(closed);
    }
    place.get_mut("properties")?.as_object_mut()
}

/// Returns a value that no parser accepts.
fn probe() -> Spanned<DeValue<'static>> {
    let date = Date { year: 1979, month: 5, day: 27 };
    Spanned::new(0..0, DeValue::Datetime(Datetime { date: Some(date), time: None, offset: None }))
}

fn join(table: &str, name: &str) -> String {
    if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") }
}

/// One table of the file. If the file omits the table, the section is empty, so that defaults are
/// read in the same way.
#[derive(Debug)]
pub struct Section<'r> {
    reader: &'r Reader<'r>,
    path: String,
    table: Option<&'r DeTable<'r>>,
    /// Byte range of the table, for errors about missing keys.
    at: Option<Range<usize>>,
    names: Vec<&'static str>,
    /// Keys that were already refused and are not suggested.
    refused: Vec<&'static str>,
    /// Whether unrequested keys are allowed.
    is_open: bool,
}

impl<'r> Section<'r> {
    /// Reads the whole document with `read`.
    pub fn root<T>(
        reader: &'r Reader<'r>,
        document: &'r DeTable<'r>,
        read: impl FnOnce(&mut Self) -> T,
    ) -> T {
        Self::new(reader, String::new(), Some(document), Some(0..0)).run(read)
    }

    const fn new(
        reader: &'r Reader<'r>,
        path: String,
        table: Option<&'r DeTable<'r>>,
        at: Option<Range<usize>>,
    ) -> Self {
        Self { reader, path, table, at, names: Vec::new(), refused: Vec::new(), is_open: false }
    }

    /// Returns the value of `name`, or `default` if the value is absent or invalid.
    pub fn get<T>(
        &mut self,
        name: &'static str,
        default: T,
        parse: impl FnOnce(&Spanned<DeValue<'_>>) -> Parsed<T>,
    ) -> T {
        self.read(name, true, parse).unwrap_or(default)
    }

    /// Returns the value of `name`; `None` if the value is absent or invalid.
    pub fn optional<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&Spanned<DeValue<'_>>) -> Parsed<T>,
    ) -> Option<T> {
        self.read(name, false, parse)
    }

    /// Returns the value of the required key `name`; `None` if the value is absent or invalid.
    pub fn required<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&Spanned<DeValue<'_>>) -> Parsed<T>,
    ) -> Option<T> {
        let value = self.read(name, false, parse);
        self.need(name);
        value
    }

    /// Reads the table `name` with `read`; an absent table is read as an empty table.
    pub fn section<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Section<'r>) -> T,
    ) -> T {
        self.know_section(name);
        let table = self.find(name).and_then(|value| self.table_of(name, value));
        Section::new(self.reader, self.join(name), table, self.span(name)).run(read)
    }

    /// Reads the table `name` with `read` if the table is present.
    pub fn optional_section<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Section<'r>) -> Option<T>,
    ) -> Option<T> {
        self.know_section(name);
        let Some(value) = self.find(name) else {
            if self.reader.described.is_some() {
                Section::new(self.reader, self.join(name), None, None).run(read);
            }
            return None;
        };
        let table = self.table_of(name, value)?;
        Section::new(self.reader, self.join(name), Some(table), Some(value.span())).run(read)
    }

    /// Reads the required table `name` with `read`.
    pub fn required_section<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Section<'r>) -> Option<T>,
    ) -> Option<T> {
        let value = self.optional_section(name, read);
        self.need(name);
        value
    }

    /// Records an error if `name` is absent.
    pub fn need(&self, name: &str) {
        if let Some(described) = &self.reader.described {
            described.borrow_mut().required.push(self.join(name));
            return;
        }
        if self.find(name).is_none() && !self.reader.is_broken.get() {
            self.reader.error(self.at.as_ref(), format!("`{}` is missing", self.join(name)));
        }
    }

    /// Refuses `name`, and all keys in it, with `reason`.
    pub fn refuse(&mut self, name: &'static str, reason: &str) {
        if self.span(name).is_some() {
            self.error(name, format!("`{}`: {reason}", self.join(name)));
        }
        self.refused.push(name);
    }

    /// Allows unrequested keys, for a table whose kind is unknown.
    pub const fn ignore_others(&mut self) {
        self.is_open = true;
    }

    /// Rejects a key of a table that may have any keys, if a key of an outer table or the key
    /// `near` was probably meant. `table` is the path of the key's table, relative to this table.
    pub fn suspect(&self, at: Range<usize>, table: &str, name: &str, near: Option<&'static str>) {
        let (table, name) = (self.join(table), name.to_owned());
        self.reader.unknown.borrow_mut().push(Unknown { at, table, name, near, names: None });
    }

    /// Returns the byte range of the value of `name`, if present.
    pub fn span(&self, name: &str) -> Option<Range<usize>> {
        self.find(name).map(Spanned::span)
    }

    /// Records an error at the value of `name`.
    pub fn error(&self, name: &str, message: String) {
        self.reader.error(self.span(name).as_ref(), message);
    }

    /// Records an error at `at`, or without a position.
    pub fn error_at(&self, at: Option<&Range<usize>>, message: String) {
        self.reader.error(at, message);
    }

    fn run<T>(mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        let result = read(&mut self);
        self.refuse_unknown();
        result
    }

    fn read<T>(
        &mut self,
        name: &'static str,
        has_default: bool,
        parse: impl FnOnce(&Spanned<DeValue<'_>>) -> Parsed<T>,
    ) -> Option<T> {
        self.know(name, has_default);
        let found = self.find(name);
        if let Some(described) = &self.reader.described {
            let (schema, value) = match found {
                Some(value) => (json!({"const": values::json(value).ok()?}), parse(value).ok()),
                None => (values::expected(parse(&probe())), None),
            };
            described.borrow_mut().keys.push((self.join(name), schema));
            return value;
        }
        match parse(found?) {
            Ok(value) => Some(value),
            Err(problems) => {
                for problem in problems {
                    let message = format!("`{}`: {}", self.join(name), problem.message);
                    self.reader.error(Some(&problem.at), message);
                }
                None
            }
        }
    }

    fn know_section(&mut self, name: &'static str) {
        self.names.push(name);
        self.reader.sections.borrow_mut().push(self.join(name));
    }

    fn know(&mut self, name: &'static str, has_default: bool) {
        self.names.push(name);
        let known = Known { path: self.join(name), has_default };
        self.reader.known.borrow_mut().push(known);
    }

    fn find(&self, name: &str) -> Option<&'r Spanned<DeValue<'r>>> {
        self.table?.iter().find(|(key, _)| *key.get_ref() == name).map(|(_, value)| value)
    }

    fn table_of(&self, name: &str, value: &'r Spanned<DeValue<'r>>) -> Option<&'r DeTable<'r>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            let found = value.get_ref().type_str();
            let message = format!("`{}`: expected a table, found {found}", self.join(name));
            self.reader.error(Some(&value.span()), message);
        }
        table
    }

    fn join(&self, name: &str) -> String {
        join(&self.path, name)
    }

    fn refuse_unknown(&self) {
        if self.is_open {
            return;
        }
        for (key, _) in self.table.into_iter().flatten() {
            let name: &str = key.get_ref();
            if self.names.contains(&name) || self.refused.contains(&name) {
                continue;
            }
            self.reader.unknown.borrow_mut().push(Unknown {
                at: key.span(),
                table: self.path.clone(),
                name: name.to_owned(),
                near: nearest(name, &self.names),
                names: Some(self.names.clone()),
            });
        }
    }
}

/// Reads the text of a file of at most `limit` bytes.
///
/// # Errors
/// Returns a message with the file's path and the problem.
pub fn read_file(path: &Path, limit: u64) -> Result<String, String> {
    let shown = path.display();
    let file = regular_file::open(path).map_err(|error| format!("cannot open {shown}: {error}"))?;
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot read {shown}: {error}"))?;
    if bytes.len() as u64 > limit {
        return Err(format!("{shown} is larger than {limit} bytes"));
    }
    String::from_utf8(bytes).map_err(|error| format!("{shown} is not UTF-8: {error}"))
}

/// Reads a JSON file in the folder of a manifest; the path `file` must stay within the folder.
///
/// # Errors
/// Returns a message with the problem.
pub fn json_beside(file: &str, folder: &Path, limit: u64) -> Result<serde_json::Value, String> {
    let is_plain = |part| matches!(part, std::path::Component::Normal(_));
    if !Path::new(file).components().all(is_plain) {
        return Err("must be a file in the manifest's folder".to_owned());
    }
    let text = read_file(&folder.join(file), limit)?;
    serde_json::from_str(&text).map_err(|error| format!("is not valid JSON: {error}"))
}

/// Returns the line and column of a byte offset in `text`. The line and the column start at 1; the
/// column is in characters.
fn line_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(line_start..).unwrap_or("").chars().count() + 1;
    (before.matches('\n').count() + 1, column)
}
