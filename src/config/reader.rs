//! Reads TOML section by section: each key is asked for by name with its default, and what nobody
//! asked for is an unknown key.
//!
//! A fault never stops the reading: the default stands in, and the fault is noted with its place.
//! So the reader ends with a whole value and the list of everything that is wrong.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Fault;
use crate::written::{nearest, place};

/// A value that is not what its key expects, and where it stands (bytes of the file).
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) at: Range<usize>,
    pub(super) message: String,
}

/// What reading one value gives.
pub(super) type Parsed<T> = Result<T, Vec<Problem>>;

/// A key that the service knows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Known {
    pub(super) path: String,
    /// Whether leaving it out means a default, and not "off".
    pub(super) has_default: bool,
}

/// One pass over one file.
#[derive(Debug)]
pub(super) struct Reader<'t> {
    text: &'t str,
    faults: RefCell<Vec<Fault>>,
    known: RefCell<Vec<Known>>,
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, faults: RefCell::default(), known: RefCell::default() }
    }

    /// The document. Where it is no TOML, notes every such place and gives an empty document: what
    /// could be guessed of a broken one would only add faults that are none.
    pub(super) fn document(&self) -> DeTable<'t> {
        let (document, errors) = DeTable::parse_recoverable(self.text);
        if errors.is_empty() {
            return document.into_inner();
        }
        for error in errors {
            self.fault(error.span().as_ref(), format!("not TOML: {}", error.message()));
        }
        DeTable::new()
    }

    /// Notes a fault at `at`, or at no place in particular.
    pub(super) fn fault(&self, at: Option<&Range<usize>>, message: String) {
        let (line, column) = at.map_or((0, 0), |span| place(self.text, span.start));
        self.faults.borrow_mut().push(Fault { line, column, message });
    }

    /// All faults in the order of lines, and all keys that were asked for.
    pub(super) fn finish(self) -> (Vec<Fault>, Vec<Known>) {
        let mut faults = self.faults.into_inner();
        faults.sort();
        faults.dedup();
        (faults, self.known.into_inner())
    }
}

/// One table of the file; also where the file leaves it out, so that defaults are read alike.
#[derive(Debug)]
pub(super) struct Section<'r> {
    reader: &'r Reader<'r>,
    path: String,
    table: Option<&'r DeTable<'r>>,
    names: Vec<&'static str>,
}

impl<'r> Section<'r> {
    /// Reads the whole document with `read`.
    pub(super) fn root<T>(
        reader: &'r Reader<'r>,
        document: &'r DeTable<'r>,
        read: impl FnOnce(&mut Self) -> T,
    ) -> T {
        Self { reader, path: String::new(), table: Some(document), names: Vec::new() }.run(read)
    }

    /// The value of `name`, or `default` where it is left out or wrong.
    pub(super) fn get<T>(
        &mut self,
        name: &'static str,
        default: T,
        parse: impl FnOnce(&Spanned<DeValue<'_>>) -> Parsed<T>,
    ) -> T {
        self.read(name, true, parse).unwrap_or(default)
    }

    /// The value of `name`; `None` where it is left out or wrong.
    pub(super) fn optional<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&Spanned<DeValue<'_>>) -> Parsed<T>,
    ) -> Option<T> {
        self.read(name, false, parse)
    }

    /// The table `name`, read with `read`.
    pub(super) fn section<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Section<'r>) -> T,
    ) -> T {
        self.names.push(name);
        let table = self.find(name).and_then(|value| self.table_of(name, value));
        Section { reader: self.reader, path: self.join(name), table, names: Vec::new() }.run(read)
    }

    /// The table `name`, whose keys are the operator's own and whose values are tables that `read`
    /// reads.
    pub(super) fn entries<T>(
        &mut self,
        name: &'static str,
        mut read: impl FnMut(&mut Section<'r>) -> T,
    ) -> BTreeMap<String, T> {
        self.know(name, false);
        let entries = self.find(name).and_then(|value| self.table_of(name, value));
        let mut result = BTreeMap::new();
        for (key, value) in entries.into_iter().flatten() {
            let key: &str = key.get_ref();
            let table = self.table_of(&format!("{name}.{key}"), value);
            let path = self.join(&format!("{name}.*"));
            let section = Section { reader: self.reader, path, table, names: Vec::new() };
            result.insert(key.to_owned(), section.run(&mut read));
        }
        result
    }

    /// Where the value of `name` stands, if it is written.
    pub(super) fn span(&self, name: &str) -> Option<Range<usize>> {
        self.find(name).map(Spanned::span)
    }

    /// Notes a fault at the value of `name`.
    pub(super) fn fault(&self, name: &str, message: String) {
        self.reader.fault(self.span(name).as_ref(), message);
    }

    /// Notes a fault at `at`, or at no place in particular.
    pub(super) fn fault_at(&self, at: Option<&Range<usize>>, message: String) {
        self.reader.fault(at, message);
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
        match parse(self.find(name)?) {
            Ok(value) => Some(value),
            Err(problems) => {
                for problem in problems {
                    let message = format!("`{}`: {}", self.join(name), problem.message);
                    self.reader.fault(Some(&problem.at), message);
                }
                None
            }
        }
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
            self.reader.fault(Some(&value.span()), message);
        }
        table
    }

    fn join(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn refuse_unknown(&self) {
        for (key, _) in self.table.into_iter().flatten() {
            let name: &str = key.get_ref();
            if self.names.contains(&name) {
                continue;
            }
            let hint = nearest(name, &self.names)
                .map_or(String::new(), |known| format!("; did you mean `{known}`?"));
            let message = format!("unknown key `{}`{hint}", self.join(name));
            self.reader.fault(Some(&key.span()), message);
        }
    }
}
