//! Grammars of strings: patterns, formats, lengths, and enumerations.

use std::fmt::Write as _;

use regex_syntax::hir::{Class, ClassUnicode, Hir, HirKind, Look, Repetition};
use serde_json::Value;

use super::places::Leaf;
use super::{Builder, Error, REPEATED_PLAINLY};

/// Maximum size of a pattern in characters, with repetitions expanded. The cost per token can grow
/// quadratically with the size.
const PATTERN_CHARS_MAX: u64 = 512;
const CONTRADICTION: &str = "no text matches both its pattern or format and its lengths";
/// The enforced formats. Other formats are ignored, as JSON Schema allows.
const FORMATS: [(&str, &str); 10] = [
    ("date", DATE),
    ("time", TIME),
    ("date-time", ""),
    ("duration", "^P([0-9]{1,4}D(T[0-9]{1,2}H)?|T[0-9]{1,4}[HMS]|[0-9]{1,4}[YMW])$"),
    ("uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"),
    (
        "email",
        "^[A-Za-z0-9_+-]{1,32}([.][A-Za-z0-9_+-]{1,30}){0,2}@[a-z0-9]{1,30}(-[a-z0-9]{1,30})?([.][a-z]{2,20}){1,3}$",
    ),
    ("hostname", "^[a-z0-9]{1,30}(-[a-z0-9]{1,30})?([.][a-z0-9]{1,30}(-[a-z0-9]{1,30})?){0,3}$"),
    ("ipv4", "^(IP[.]){3}IP$"),
    ("ipv6", "^([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$"),
    (
        "uri",
        "^[a-z][a-z0-9+.-]{1,20}://[A-Za-z0-9-]{1,60}([.][A-Za-z0-9-]{1,60}){0,4}(:[1-9][0-9]{0,4})?(/[A-Za-z0-9._~-]*){0,16}([?][A-Za-z0-9._~=&+-]*)?$",
    ),
];
const DATE: &str = "^[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))$";
const TIME: &str = "^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$";
const OCTET: &str = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

impl Builder<'_, '_> {
    /// Returns the expression for a string.
    pub(super) fn string(&mut self, leaf: &Leaf) -> Result<String, Error> {
        let Leaf { schema, place } = leaf;
        let (least, most) = leaf.bounds("minLength", "maxLength")?;
        let pattern = match schema.get("pattern") {
            None | Some(Value::Null) => None,
            Some(Value::String(pattern)) => Some(pattern.clone()),
            Some(_) => return Err(Error::new(place, "pattern must be a string")),
        };
        let format = of_format(schema.get("format").and_then(Value::as_str).unwrap_or_default());
        if self.is_strict && pattern.is_some() && format.is_some() {
            let why =
                "format and pattern cannot be enforced together: omit one of them, or omit strict";
            return Err(Error::new(place, why));
        }
        if let Some(pattern) = pattern.or(format) {
            let pattern = self.read(&pattern, place)?;
            let pattern = self.of_length(pattern, least, most, place)?;
            return self.pattern(&pattern, place);
        }
        if least == 0 && most.is_none() {
            return Ok("string".to_owned());
        }
        let inside = self.repeated("char", least, most, place)?;
        Ok(format!("\"\\\"\" {inside} \"\\\"\""))
    }

    /// Parses a pattern with ECMAScript semantics.
    fn read(&mut self, pattern: &str, place: &str) -> Result<Hir, Error> {
        let shown: String = pattern.chars().take(60).collect();
        let wrong = |why: &str| Error::new(place, format!("the pattern '{shown}' {why}"));
        let rust = jsonschema_regex::to_rust_regex(pattern)
            .map_err(|()| wrong("is not a regular expression of ECMAScript"))?;
        let hir = regex_syntax::parse(&rust).map_err(|error| {
            let said = error.to_string();
            let why = said.lines().last().unwrap_or_default().trim_start_matches("error: ");
            wrong(&format!("cannot be enforced: {why}"))
        })?;
        let chars = described(&hir);
        if chars > PATTERN_CHARS_MAX {
            return Err(wrong(&format!(
                "describes {chars} characters, and at most {PATTERN_CHARS_MAX} are supported: repeat \
                 less often, or use maxLength"
            )));
        }
        self.spend(usize::try_from(chars).unwrap_or(usize::MAX) / 8, place)?;
        Ok(hir)
    }

    /// Applies `minLength` and `maxLength` to a pattern.
    fn of_length(
        &self,
        pattern: Hir,
        least: u64,
        most: Option<u64>,
        place: &str,
    ) -> Result<Hir, Error> {
        if least == 0 && most.is_none() {
            return Ok(pattern);
        }
        if let HirKind::Concat(parts) = pattern.kind()
            && let [start, middle, end] = parts.as_slice()
            && [start.kind(), end.kind()]
                == [&HirKind::Look(Look::Start), &HirKind::Look(Look::End)]
            && let HirKind::Repetition(repetition) = middle.kind()
            && matches!(repetition.sub.kind(), HirKind::Class(_))
        {
            let length = |length: u64| u32::try_from(length).unwrap_or(u32::MAX);
            let mut repetition = repetition.clone();
            repetition.min = repetition.min.max(length(least));
            let most = most.map(length);
            repetition.max = repetition.max.map_or(most, |max| Some(max.min(most.unwrap_or(max))));
            if repetition.max.is_some_and(|max| max < repetition.min) {
                return Err(Error::new(place, CONTRADICTION));
            }
            let middle = Hir::repetition(repetition);
            return Ok(Hir::concat(vec![start.clone(), middle, end.clone()]));
        }
        let (shortest, longest) = lengths(&pattern);
        if most.is_some_and(|most| shortest > most) || longest.is_some_and(|most| most < least) {
            return Err(Error::new(place, CONTRADICTION));
        }
        let is_short = longest.is_some_and(|longest| longest <= most.unwrap_or(u64::MAX));
        if self.is_strict && !(shortest >= least && (most.is_none() || is_short)) {
            let why =
                "minLength and maxLength cannot be enforced together with this pattern or format";
            return Err(Error::new(place, why));
        }
        Ok(pattern)
    }

    /// Returns the expression for a string with a pattern.
    fn pattern(&mut self, pattern: &Hir, place: &str) -> Result<String, Error> {
        let inside = self.matching(pattern, Ends { is_first: true, is_last: true }, place)?;
        Ok(format!("\"\\\"\" {inside} \"\\\"\""))
    }

    /// Returns the expression for text that a part of a pattern matches. Unless the pattern is
    /// anchored, arbitrary text may precede and follow the match.
    fn matching(&mut self, part: &Hir, ends: Ends, place: &str) -> Result<String, Error> {
        let before = if ends.is_first { "char* " } else { "" };
        let behind = if ends.is_last { " char*" } else { "" };
        let inside = match part.kind() {
            HirKind::Capture(group) => return self.matching(&group.sub, ends, place),
            HirKind::Alternation(parts) => {
                let all: Result<Vec<String>, Error> =
                    parts.iter().map(|part| self.matching(part, ends, place)).collect();
                return Ok(any_of(all?));
            }
            HirKind::Concat(parts) => return self.in_turn(parts, ends, place),
            HirKind::Look(Look::Start) if ends.is_first => return Ok(behind.trim().to_owned()),
            HirKind::Look(Look::End) if ends.is_last => return Ok(before.trim().to_owned()),
            HirKind::Look(_) => {
                let why = "a pattern has an anchor or a word boundary in the middle";
                return Err(Error::new(place, why));
            }
            HirKind::Empty => String::new(),
            HirKind::Literal(text) => {
                let text = String::from_utf8_lossy(&text.0);
                let json = Value::from(text).to_string();
                literal(inner(&json))
            }
            HirKind::Class(class) => self.class(class, place)?,
            HirKind::Repetition(repetition) => self.repetition(repetition, place)?,
        };
        let all = format!("{before}{inside}{behind}");
        Ok(all.trim().to_owned())
    }

    fn in_turn(&mut self, parts: &[Hir], ends: Ends, place: &str) -> Result<String, Error> {
        let Ends { mut is_first, mut is_last } = ends;
        let mut parts = parts;
        while let ([start, rest @ ..], true) = (parts, is_first)
            && *start.kind() == HirKind::Look(Look::Start)
        {
            (parts, is_first) = (rest, false);
        }
        while let ([rest @ .., end], true) = (parts, is_last)
            && *end.kind() == HirKind::Look(Look::End)
        {
            (parts, is_last) = (rest, false);
        }
        let count = parts.len();
        let mut all = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let ends =
                Ends { is_first: is_first && index == 0, is_last: is_last && index + 1 == count };
            let one = self.matching(part, ends, place)?;
            if !one.is_empty() {
                all.push(one);
            }
        }
        Ok(all.join(" "))
    }

    fn repetition(&mut self, repetition: &Repetition, place: &str) -> Result<String, Error> {
        let within = self.matching(&repetition.sub, Ends::default(), place)?;
        if within.is_empty() || repetition.max == Some(0) {
            return Ok(String::new());
        }
        let rule = self.rules.add(&within);
        self.repeated(&rule, repetition.min.into(), repetition.max.map(u64::from), place)
    }

    /// Returns the expression for a character class, in JSON string notation.
    fn class(&mut self, class: &Class, place: &str) -> Result<String, Error> {
        let unsupported = || Error::new(place, "a pattern has an empty character class");
        let Class::Unicode(class) = class else { return Err(unsupported()) };
        self.spend(class.ranges().len() / 8, place)?;
        let all = in_json(class);
        if all.is_empty() { Err(unsupported()) } else { Ok(any_of(all)) }
    }
}

/// Whether a part is at the beginning or the end of its pattern.
#[derive(Debug, Clone, Copy, Default)]
struct Ends {
    is_first: bool,
    is_last: bool,
}

fn of_format(format: &str) -> Option<String> {
    if format == "date-time" {
        return Some(format!("{}T{}", DATE.trim_end_matches('$'), TIME.trim_start_matches('^')));
    }
    let (_, pattern) = FORMATS.iter().find(|(name, _)| *name == format)?;
    Some(pattern.replace("IP", OCTET))
}

/// Counts the characters that an expression describes, with repetitions expanded.
fn described(expression: &Hir) -> u64 {
    let all = |parts: &[Hir]| parts.iter().map(described).fold(0, u64::saturating_add);
    match expression.kind() {
        HirKind::Empty | HirKind::Look(_) => 0,
        HirKind::Literal(literal) => literal.0.len() as u64,
        HirKind::Class(_) => 1,
        HirKind::Repetition(repetition) => {
            let times = u64::from(repetition.max.unwrap_or(repetition.min).max(1));
            // Repetitions of single characters are built from blocks.
            let is_class = matches!(repetition.sub.kind(), HirKind::Class(_));
            let times = if is_class { times.min(REPEATED_PLAINLY) } else { times };
            described(&repetition.sub).saturating_mul(times)
        }
        HirKind::Capture(group) => described(&group.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => all(parts),
    }
}

/// Returns the minimum and maximum length of a text that matches an expression; there is no maximum
/// if arbitrary text may surround the match.
fn lengths(expression: &Hir) -> (u64, Option<u64>) {
    let (least, most) = chars(expression);
    (least, most.filter(|_| is_anchored(expression)))
}

/// Returns whether the expression is anchored at both ends.
fn is_anchored(expression: &Hir) -> bool {
    match expression.kind() {
        HirKind::Capture(group) => is_anchored(&group.sub),
        HirKind::Alternation(parts) => parts.iter().all(is_anchored),
        HirKind::Concat(parts) => {
            let ends = [parts.first(), parts.last()].map(|part| part.map(Hir::kind));
            ends == [Some(&HirKind::Look(Look::Start)), Some(&HirKind::Look(Look::End))]
        }
        HirKind::Empty
        | HirKind::Look(_)
        | HirKind::Literal(_)
        | HirKind::Class(_)
        | HirKind::Repetition(_) => false,
    }
}

/// Returns the minimum and maximum number of characters that an expression describes.
fn chars(expression: &Hir) -> (u64, Option<u64>) {
    let times = |length: Option<u64>, times: Option<u32>| {
        if length == Some(0) { length } else { length?.checked_mul(times?.into()) }
    };
    match expression.kind() {
        HirKind::Empty | HirKind::Look(_) => (0, Some(0)),
        HirKind::Literal(text) => {
            let count = String::from_utf8_lossy(&text.0).chars().count() as u64;
            (count, Some(count))
        }
        HirKind::Class(_) => (1, Some(1)),
        HirKind::Capture(group) => chars(&group.sub),
        HirKind::Repetition(repetition) => {
            let (least, most) = chars(&repetition.sub);
            (least.saturating_mul(repetition.min.into()), times(most, repetition.max))
        }
        HirKind::Concat(parts) => parts.iter().map(chars).fold((0, Some(0)), |all, part| {
            (all.0.saturating_add(part.0), all.1.zip(part.1).and_then(|(a, b)| a.checked_add(b)))
        }),
        HirKind::Alternation(parts) => {
            let least = parts.iter().map(|part| chars(part).0).min().unwrap_or(0);
            let most = parts.iter().map(|part| chars(part).1);
            (least, most.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max()))
        }
    }
}

/// Returns the JSON notations of the characters in a class. Control characters without a short
/// escape are omitted.
fn in_json(class: &ClassUnicode) -> Vec<String> {
    let has = |letter: char| {
        class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&letter))
    };
    let mut plain = String::new();
    let mut add = |from: u32, until: u32| {
        if from <= until {
            // Writing to a String cannot fail.
            let _written = write!(plain, "\\U{from:08X}-\\U{until:08X}");
        }
    };
    for range in class.ranges() {
        let (mut from, end) = (u32::from(range.start()).max(0x20), u32::from(range.end()));
        for special in [u32::from('"'), u32::from('\\')] {
            if (from..=end).contains(&special) {
                add(from, special - 1);
                from = special + 1;
            }
        }
        // Surrogates are not characters.
        if (from..=end).contains(&0xD800) {
            add(from, 0xD7FF);
            from = 0xE000;
        }
        add(from, end);
    }
    let mut all = Vec::new();
    if !plain.is_empty() {
        all.push(format!("[{plain}]"));
    }
    for (letter, json) in [
        ('"', "\\\""),
        ('\\', "\\\\"),
        ('\n', "\\n"),
        ('\r', "\\r"),
        ('\t', "\\t"),
        ('\u{8}', "\\b"),
        ('\u{c}', "\\f"),
    ] {
        if has(letter) {
            all.push(literal(json));
        }
    }
    all
}

/// Returns an alternation whose branches may be empty.
fn any_of(mut all: Vec<String>) -> String {
    let count = all.len();
    all.retain(|one| !one.is_empty());
    let is_optional = all.len() < count;
    match (all.as_slice(), is_optional) {
        ([], _) => String::new(),
        ([only], false) => only.clone(),
        (several, false) => format!("( {} )", several.join(" | ")),
        (several, true) => format!("( {} )?", several.join(" | ")),
    }
}

/// Returns a JSON string without its quotation marks.
fn inner(json: &str) -> &str {
    json.get(1..json.len().saturating_sub(1)).unwrap_or_default()
}

/// Returns a quoted literal.
#[must_use]
pub(crate) fn literal(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns an alternation of texts as a prefix tree, so that each shared letter is tried once.
pub(super) fn one_of(mut texts: Vec<String>) -> String {
    texts.sort_unstable();
    texts.dedup();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    branches(&texts)
}

fn branches(texts: &[&str]) -> String {
    let mut all = Vec::new();
    for group in texts.chunk_by(|a, b| a.chars().next() == b.chars().next()) {
        let [first, .., last] = group else {
            all.extend(
                group
                    .iter()
                    .map(|text| if text.is_empty() { String::new() } else { literal(text) }),
            );
            continue;
        };
        // The texts are sorted, so the common prefix of the first and the last text is common to
        // all.
        let pairs = first.chars().zip(last.chars());
        let common: usize = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
        let begin = first.get(..common).unwrap_or_default();
        let rests: Vec<&str> = group.iter().filter_map(|text| text.get(common..)).collect();
        all.push(format!("{} {}", literal(begin), branches(&rests)));
    }
    any_of(all)
}

/// Returns an expression for the JSON of a name that differs from all of these.
pub(super) fn other_than(names: &[&str]) -> String {
    let mut names: Vec<String> =
        names.iter().map(|name| inner(&Value::from(*name).to_string()).to_owned()).collect();
    names.sort_unstable();
    names.dedup();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    format!("\"\\\"\" {} \"\\\"\"", differing(&names))
}

fn differing(names: &[&str]) -> String {
    let mut others = String::new();
    let mut all = Vec::new();
    let is_name = names.contains(&"");
    for group in names.chunk_by(|a, b| a.chars().next() == b.chars().next()) {
        let Some(letter) = group.first().and_then(|name| name.chars().next()) else { continue };
        let rests: Vec<&str> =
            group.iter().filter_map(|name| name.get(letter.len_utf8()..)).collect();
        all.push(format!("{} {}", literal(&letter.to_string()), differing(&rests)));
        // Writing to a String cannot fail.
        let _written = write!(others, "\\U{:08X}", u32::from(letter));
    }
    if others.is_empty() {
        all.push("char char*".to_owned());
    } else {
        all.push(format!("[^\"\\\\\\x00-\\x1F\\x7F{others}] char*"));
    }
    if is_name { format!("( {} )", all.join(" | ")) } else { format!("( {} )?", all.join(" | ")) }
}
