//! Checks with a grammar interpreter which texts a schema's grammar accepts, and which schemas are
//! rejected.

use std::collections::{HashMap, HashSet};

use serde_json::json;

use super::*;

/// A parsed grammar.
struct Reader {
    rules: HashMap<String, String>,
}

impl Reader {
    fn of(text: &str) -> Self {
        let rule = |line: &str| {
            let (name, expression) = line.split_once(" ::= ")?;
            Some((name.to_owned(), expression.to_owned()))
        };
        Self { rules: text.lines().filter_map(rule).collect() }
    }

    fn takes(&self, text: &str) -> bool {
        let letters: Vec<char> = text.chars().collect();
        self.rule("root", &letters, 0).contains(&letters.len())
    }

    /// Returns the positions where a match of a rule that starts at `from` may end.
    fn rule(&self, name: &str, text: &[char], from: usize) -> HashSet<usize> {
        let expression: Vec<char> =
            self.rules.get(name).unwrap_or_else(|| panic!("{name}")).chars().collect();
        let mut at = 0;
        let ends = self.alternatives(&expression, &mut at, text, &HashSet::from([from]));
        assert_eq!(at, expression.len(), "{name}");
        ends
    }

    fn alternatives(
        &self,
        expression: &[char],
        at: &mut usize,
        text: &[char],
        from: &HashSet<usize>,
    ) -> HashSet<usize> {
        let mut all = HashSet::new();
        loop {
            let mut ends = from.clone();
            while *at < expression.len() && !matches!(expression[*at], '|' | ')') {
                if expression[*at] == ' ' {
                    *at += 1;
                } else {
                    ends = self.item(expression, at, text, &ends);
                }
            }
            all.extend(ends);
            if *at < expression.len() && expression[*at] == '|' {
                *at += 1;
            } else {
                return all;
            }
        }
    }

    fn item(
        &self,
        expression: &[char],
        at: &mut usize,
        text: &[char],
        from: &HashSet<usize>,
    ) -> HashSet<usize> {
        let start = *at;
        let once = |from: &HashSet<usize>| {
            let mut at = start;
            let ends = self.once(expression, &mut at, text, from);
            (ends, at)
        };
        let (first, mut behind) = once(from);
        *at = behind;
        let (least, most) = match expression.get(behind) {
            Some('?') => (0, 1),
            Some('*') => (0, usize::MAX),
            Some('+') => (1, usize::MAX),
            Some('{') => {
                let inside: String =
                    expression[behind + 1..].iter().take_while(|one| **one != '}').collect();
                behind += inside.len() + 1;
                let (least, most) = inside.split_once(',').unwrap_or((&inside, &inside));
                (least.parse().unwrap(), most.parse().unwrap_or(usize::MAX))
            }
            _ => return first,
        };
        let mut all = if least == 0 { from.clone() } else { HashSet::new() };
        let mut ends = first;
        for count in 1..=most {
            if ends.is_empty() {
                break;
            }
            if count >= least {
                let known = all.len();
                all.extend(&ends);
                if count > least && all.len() == known {
                    break;
                }
            }
            if count < most {
                (ends, _) = once(&ends);
            }
        }
        *at = behind + 1;
        all
    }

    fn once(
        &self,
        expression: &[char],
        at: &mut usize,
        text: &[char],
        from: &HashSet<usize>,
    ) -> HashSet<usize> {
        match expression[*at] {
            '(' => {
                *at += 1;
                let ends = self.alternatives(expression, at, text, from);
                *at += 1;
                ends
            }
            '"' => {
                *at += 1;
                let mut ends = from.clone();
                while expression[*at] != '"' {
                    let letter = letter(expression, at);
                    ends.retain(|end| text.get(*end) == Some(&letter));
                    ends = ends.into_iter().map(|end| end + 1).collect();
                }
                *at += 1;
                ends
            }
            '[' => {
                *at += 1;
                let is_not = expression[*at] == '^';
                *at += usize::from(is_not);
                let mut ranges = Vec::new();
                while expression[*at] != ']' {
                    let first = letter(expression, at);
                    let is_range = expression[*at] == '-' && expression[*at + 1] != ']';
                    *at += usize::from(is_range);
                    let last = if is_range { letter(expression, at) } else { first };
                    ranges.push(first..=last);
                }
                *at += 1;
                let fits = |one: &char| ranges.iter().any(|range| range.contains(one)) != is_not;
                let ends = from.iter().filter(|end| text.get(**end).is_some_and(fits));
                ends.map(|end| end + 1).collect()
            }
            _ => {
                let name: String = expression[*at..]
                    .iter()
                    .take_while(|one| one.is_ascii_alphanumeric() || **one == '-')
                    .collect();
                *at += name.len();
                from.iter().flat_map(|end| self.rule(&name, text, *end)).collect()
            }
        }
    }
}

/// Parses a letter of a literal or class.
fn letter(expression: &[char], at: &mut usize) -> char {
    let first = expression[*at];
    *at += 1;
    if first != '\\' {
        return first;
    }
    let second = expression[*at];
    *at += 1;
    let digits = match second {
        'n' => return '\n',
        'r' => return '\r',
        't' => return '\t',
        'x' => 2,
        'u' => 4,
        'U' => 8,
        other => return other,
    };
    let hex: String = expression[*at..*at + digits].iter().collect();
    *at += digits;
    // Some range bounds are not valid characters; use the nearest valid one.
    let code = u32::from_str_radix(&hex, 16).unwrap();
    char::from_u32(code).unwrap_or(if code < 0xE000 { '\u{D7FF}' } else { char::MAX })
}

fn grammar(schema: &Value, is_strict: bool) -> Result<String, Error> {
    let mut rules = Rules::default();
    let root = rules.schema(schema, is_strict)?;
    Ok(rules.text("root", &root))
}

/// Checks which texts a schema accepts and which it rejects.
fn check(schema: Value, taken: &[&str], refused: &[&str]) {
    let text = grammar(&schema, true).unwrap_or_else(|error| panic!("{error}: {schema}"));
    let reader = Reader::of(&text);
    for one in taken {
        assert!(reader.takes(one), "{one} is rejected for {schema}\n{text}");
    }
    for one in refused {
        assert!(!reader.takes(one), "{one} is accepted for {schema}\n{text}");
    }
}

#[test]
fn grammar_follows_all_references() {
    let target = json!({"$anchor": "it", "type": "object", "required": ["x"],
        "properties": {"x": {"type": "integer"}}});
    // References as written by Pydantic, Zod and older tools.
    for (reference, definitions) in [
        ("#/$defs/A", json!({"$defs": {"A": target}})),
        ("#/definitions/A", json!({"definitions": {"A": target}})),
        ("#/properties/b", json!({})),
        ("#it", json!({"$defs": {"A": target}})),
    ] {
        let mut schema = json!({"type": "object", "required": ["a"], "properties": {
            "a": {"$ref": reference, "description": "an annotation"}, "b": target}});
        schema.as_object_mut().unwrap().extend(definitions.as_object().unwrap().clone());
        check(
            schema,
            &[r#"{"a":{"x":1}}"#, "{\"a\": {\"x\": -20}\n}"],
            &[r#"{"a":{}}"#, r#"{"a":{"x":"1"}}"#, "{}"],
        );
    }
    let list = json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["v", "next"], "additionalProperties": false}}});
    check(
        list,
        &[r#"{"v":1,"next":null}"#, r#"{"v":1,"next":{"v":2,"next":{"v":3,"next":null}}}"#],
        &[r#"{"v":1,"next":1}"#, r#"{"v":1}"#],
    );
    check(
        json!({"properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}),
        &[r#"{"children":[{},{"children":[]}]}"#],
        &[r#"{"children":[1]}"#],
    );
    let refused = grammar(&json!({"properties": {"a": {"$ref": "#/$defs/B"}}}), false);
    let said = refused.unwrap_err().to_string();
    assert_eq!(said, "$ref '#/$defs/B' points to nothing in this schema (at /properties/a)");
    for wrong in [json!({"$ref": "http://a/b"}), json!({"$ref": 5}), json!({"$ref": "#"})] {
        assert!(grammar(&wrong, false).is_err(), "{wrong}");
    }
}

#[test]
fn grammar_accepts_objects_with_any_optional_properties() {
    check(
        json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"const": 1}, "c": {"type": "null"}}, "required": ["b"]}),
        &[
            r#"{"b":1}"#,
            r#"{"a":null,"b":1}"#,
            r#"{"b":1,"c":null}"#,
            r#"{"a": null, "b": 1, "c": null}"#,
        ],
        &[
            "{}",
            r#"{"a":null}"#,
            r#"{"b":1,"b":1}"#,
            r#"{"b":1,}"#,
            r#"{"a":null"b":1}"#,
            r#"{,"b":1}"#,
            r#"{"b":1,"d":1}"#,
        ],
    );
    check(
        json!({"properties": {"a": true, "b": true}}),
        &["{}", "{ }", r#"{"a":1}"#, r#"{"b":[]}"#, r#"{"a":{},"b":"x"}"#],
        &[r#"{"b":1,"a":1}"#, "[]"],
    );
    check(
        json!({"type": "object", "properties": {"a": {"type": "null"}, "": {"type": "null"}}, "additionalProperties": {"type": "integer"}}),
        &["{}", r#"{"x":1}"#, r#"{"a":null,"ab":2,"b":3}"#, r#"{"":null}"#],
        &[r#"{"a":1}"#, r#"{"x":null}"#, r#"{"":1}"#],
    );
    check(
        json!({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2}),
        &[r#"{"a":1}"#, r#"{"a":1,"b":2}"#],
        &["{}", r#"{"a":1,"b":2,"c":3}"#],
    );
    check(json!({"type": "object", "required": ["x"]}), &[r#"{"x":[1]}"#], &["{}"]);
    check(
        json!({"type": "object", "properties": {}, "additionalProperties": false}),
        &["{}"],
        &[r#"{"a":1}"#],
    );
}

#[test]
fn grammar_merges_all_of_and_flattens_alternatives() {
    check(
        json!({"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"y": {"type": "null"}}, "required": ["y"]}],
            "$defs": {"a": {"type": "object", "properties": {"x": {"minimum": 0}}, "required": ["x"]}}}),
        &[r#"{"x":1,"y":null}"#],
        &[r#"{"x":1}"#, r#"{"y":null}"#, r#"{"x":-1,"y":null}"#],
    );
    check(
        json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        &[r#"{"a":null}"#, r#"{"b":null}"#, r#"{"a":null,"b":null}"#],
        &["{}"],
    );
    check(
        json!({"type": ["string", "null"], "maxLength": 1}),
        &["null", r#""a""#],
        &[r#""ab""#, "1"],
    );
    check(json!({"type": "integer", "nullable": true}), &["null", "5"], &["1.5"]);
    check(
        json!({"oneOf": [{"const": "ab"}, {"enum": ["a", "abc", 5]}, {"type": "boolean"}]}),
        &[r#""a""#, r#""ab""#, r#""abc""#, "5", "true"],
        &[r#""""#, r#""b""#, "null", "55"],
    );
    check(
        json!({"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}], "type": "integer"}),
        &["2", "3"],
        &["1", "4"],
    );
}

#[test]
fn grammar_enforces_keywords_beside_literals() {
    for (schema, taken, refused) in [
        (json!({"type": "integer", "enum": [1, 5, 9], "minimum": 4}), &["5", "9"][..], "1"),
        (json!({"enum": ["ab", "c"], "minLength": 2}), &[r#""ab""#], r#""c""#),
        (json!({"enum": ["abc", "c"], "maxLength": 1}), &[r#""c""#], r#""abc""#),
        (json!({"enum": ["x", "2024-01-01"], "format": "date"}), &[r#""2024-01-01""#], r#""x""#),
        (json!({"allOf": [{"enum": ["ab", "cd"]}, {"pattern": "^c"}]}), &[r#""cd""#], r#""ab""#),
        (json!({"enum": [[1], [1, 2]], "minItems": 2}), &["[1,2]"], "[1]"),
        (json!({"enum": [{}, {"a": 1}], "required": ["a"]}), &[r#"{"a":1}"#], "{}"),
        (json!({"enum": ["a", 5, null], "maximum": 3, "title": "x"}), &[r#""a""#, "null"], "5"),
        (
            json!({"$ref": "#/$defs/z", "enum": ["toolong", "ok"],
                "$defs": {"z": {"type": "string", "maxLength": 3}}}),
            &[r#""ok""#],
            r#""toolong""#,
        ),
    ] {
        check(schema, taken, &[refused]);
    }
    let said = grammar(&json!({"const": "cd", "pattern": "^a"}), false).unwrap_err();
    assert!(said.to_string().contains("no value matches"), "{said}");
    let beside = json!({"enum": ["ab"], "pattern": "^(?=a)"});
    assert!(grammar(&beside, false).is_ok());
    assert!(grammar(&beside, true).unwrap_err().to_string().contains("next to enum or const"));
}

#[test]
fn grammar_enforces_patterns_with_ecmascript_semantics() {
    for (pattern, taken, refused) in [
        (
            r"^\d{4}-\d{2}-\d{2}$",
            &["2024-01-31"][..],
            &["24-1-1", "x2024-01-31", "2024-01-311"][..],
        ),
        (r"^\w+\s\w+$", &["ab c_1"], &["ab", "ab  c", "é a"]),
        (r"^[\w.\-]+@[\w-]+\.(com|org)$", &["a.b-c@x-y.org"], &["a@b.net", "a b@c.org"]),
        (r"^\/api\/[^/]+$", &["/api/x"], &["/api/", "/api/x/y"]),
        ("b", &["b", "abc"], &["", "a"]),
        ("^a", &["a", "ab"], &["ba", ""]),
        ("a$", &["a", "ba"], &["ab"]),
        ("^a$|^b$", &["a", "b"], &["ab", ""]),
        ("^(?:ab|c){2}$", &["abc", "cc"], &["ab", "ababab"]),
        ("^$", &[""], &["a"]),
        ("^(a|)b?$", &["", "a", "b", "ab"], &["aa"]),
        ("^[^a-c]{1,3}$", &["xyz", "é"], &["a", "wxyz"]),
        (r"^[A-Z]\S*$", &["Ab"], &["ab", "A b"]),
    ] {
        let quoted =
            |all: &[&str]| all.iter().map(|one| json!(one).to_string()).collect::<Vec<_>>();
        let (taken, refused) = (quoted(taken), quoted(refused));
        let taken: Vec<&str> = taken.iter().map(String::as_str).collect();
        let refused: Vec<&str> = refused.iter().map(String::as_str).collect();
        check(json!({"type": "string", "pattern": pattern}), &taken, &refused);
    }
    // Characters that JSON escapes.
    check(json!({"pattern": "^[\"\\\\\n]$"}), &[r#""\"""#, r#""\\""#, r#""\n""#], &[r#""x""#]);
    check(
        json!({"pattern": "^[a-z]+$", "maxLength": 3, "minLength": 2}),
        &[r#""ab""#, r#""abc""#],
        &[r#""a""#, r#""abcd""#],
    );
    for (pattern, why) in [
        ("(?=a)b", "look-around"),
        (r"(a)\1", "backreferences"),
        ("(", "the pattern '('"),
        (r"a\bb", "word boundary"),
        ("^((((a?){9}){9}){9}){9}$", "describes 6561 characters"),
    ] {
        let said = grammar(&json!({"properties": {"p": {"pattern": pattern}}}), false);
        let said = said.unwrap_err().to_string();
        assert!(said.contains(why) && said.contains("/properties/p"), "{said}");
    }
    assert!(grammar(&json!({"properties": {"pattern": {"type": "string"}}}), true).is_ok());
}

#[test]
fn grammar_enforces_formats() {
    for (format, taken, refused) in [
        ("date", "2024-02-28", "2024-02-30"),
        ("time", "23:59:59Z", "24:00:00Z"),
        ("date-time", "2024-12-01T00:00:00.5+02:00", "2024-12-01"),
        ("uuid", "0193a1b2-aaaa-7bbb-8ccc-0123456789ab", "0193a1b2"),
        ("email", "a.b@example.org", "a b"),
        ("ipv4", "10.0.255.1", "10.0.256.1"),
        ("ipv6", "2001:db8:0:0:0:0:0:1", "2001"),
        ("uri", "https://example.org/a?b=c", "example"),
        ("hostname", "a-b.example.org", "-a"),
        ("duration", "P3DT4H", "3 days"),
    ] {
        let quoted = |one: &str| json!(one).to_string();
        check(json!({"type": "string", "format": format}), &[&quoted(taken)], &[&quoted(refused)]);
        let schema = json!({"type": "string", "format": format});
        let options = jsonschema::options().should_validate_formats(true);
        let validator = options.build(&schema).unwrap();
        assert_eq!(
            (validator.is_valid(&json!(taken)), validator.is_valid(&json!(refused))),
            (true, false),
            "{format}"
        );
    }
    check(json!({"type": "string", "format": "unheard-of"}), &[r#""x""#], &["1"]);
}

#[test]
fn grammar_enforces_lengths_and_bounds() {
    check(
        json!({"type": "string", "minLength": 2, "maxLength": 3}),
        &[r#""ab""#, r#""a\n\u00e9""#, r#""é月""#, r#""🌙🌙🌙""#],
        &[r#""a""#, r#""abcd""#, r#""é""#, r#""🌙🌙🌙🌙""#],
    );
    // Lengths next to a pattern also count characters, not bytes.
    for pattern in ["^[é月🌙]+$", "^é?月{1,2}$", "^(é月|🌙月é)$"] {
        let schema = json!({"pattern": pattern, "minLength": 1, "maxLength": 3});
        check(schema, &[r#""é月""#], &[r#""é月🌙é""#, r#""""#]);
    }
    let said = grammar(&json!({"pattern": "^é{2,9}月{2}$", "maxLength": 5}), true).unwrap_err();
    assert!(said.to_string().contains("together with this pattern"), "{said}");
    let long = |count: usize| json!("x".repeat(count)).to_string();
    check(
        json!({"type": "string", "minLength": 100, "maxLength": 1000}),
        &[&long(100), &long(101), &long(555), &long(950)],
        &[&long(99), &long(1001)],
    );
    check(
        json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}),
        &["[1]", "[1, 2]"],
        &["[]", "[1,2,3]"],
    );
    check(
        json!({"prefixItems": [{"const": 1}, {"type": "null"}], "items": false}),
        &["[1,null]"],
        &["[1]", "[1,null,2]"],
    );
    for (schema, taken, refused) in [
        (
            json!({"type": "integer", "minimum": -20, "maximum": 135}),
            &["-20", "-1", "0", "9", "99", "135"][..],
            &["-21", "136", "200", "1.5", "00"][..],
        ),
        (json!({"type": "integer", "exclusiveMinimum": 0}), &["1", "42", "100000"], &["0", "-1"]),
        (
            json!({"type": "integer", "maximum": 9_223_372_036_854_775_807_i64}),
            &["7", "-7"],
            &["x"],
        ),
        (
            json!({"type": "integer", "minimum": 5_000_000_000_000_i64}),
            &["5000000000001"],
            &["4999999999999"],
        ),
        (
            json!({"type": "number", "minimum": 0, "maximum": 1}),
            &["0", "1", "0.5", "0.1234", "1.0"],
            &["-1", "1.1", "2"],
        ),
        (
            json!({"type": "number", "minimum": -0.5, "exclusiveMaximum": 12.25}),
            &["-0.5", "12.2", "3.75", "11.9999"],
            &["-0.6", "12.25", "12.3"],
        ),
        (json!({"minimum": 0.1, "maximum": 0.9}), &["0.1", "0.9", "0.15"], &["0", "1", "0.95"]),
    ] {
        check(schema, taken, refused);
    }
}

#[test]
fn grammar_enforces_lengths_of_formats() {
    let date = |more: Value| {
        let mut schema = json!({"format": "date"});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    check(date(json!({"minLength": 5, "maxLength": 10})), &[r#""2024-01-31""#], &[r#""x""#]);
    for (more, is_strict, why) in [
        (json!({"maxLength": 5}), false, "no text matches"),
        (json!({"minLength": 11}), false, "no text matches"),
        (json!({"pattern": "^2"}), true, "format and pattern cannot be enforced together"),
        (json!({"format": "uri", "maxLength": 99}), true, "together with this pattern or format"),
    ] {
        let said = grammar(&date(more), is_strict).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
    assert!(grammar(&date(json!({"pattern": "^2"})), false).is_ok());
}

#[test]
fn grammar_rejects_unsatisfiable_schemas_with_their_place() {
    for (schema, why) in [
        (
            json!({"type": "array", "items": {}, "minItems": 5, "maxItems": 2}),
            "minItems is larger than maxItems",
        ),
        (
            json!({"type": "string", "minLength": 5, "maxLength": 2}),
            "minLength is larger than maxLength",
        ),
        (json!({"type": "integer", "minimum": 5, "maximum": 2}), "minimum is larger"),
        (json!({"type": "array", "minItems": 10_000_000}), "more than 200000 repetitions"),
        (json!({"type": "array", "minItems": -1}), "minItems must be a whole number"),
        (json!({"enum": []}), "enum must be"),
        (json!({"type": "string", "enum": [1]}), "no value matches"),
        (json!({"allOf": [{"type": "string"}, {"type": "null"}]}), "no value matches"),
        (json!({"type": "int"}), "'int' is not a type"),
        (json!({"anyOf": []}), "anyOf must be"),
    ] {
        let said = grammar(&json!({"type": "array", "items": schema}), false).unwrap_err();
        let said = said.to_string();
        assert!(said.contains(why) && said.ends_with("(at /items)"), "{said}");
    }
    assert!(grammar(&json!(false), false).is_err());
    // Keywords that no grammar can enforce are errors only in strict schemas.
    for more in [
        json!({"uniqueItems": true}),
        json!({"contains": {"const": 1}}),
        json!({"not": {"const": 1}}),
        json!({"$dynamicRef": "#n"}),
        json!({"extends": {"type": "null"}}),
        json!({"divisibleBy": 2}),
        json!({"properties": {}, "unevaluatedProperties": {"type": "null"}}),
    ] {
        assert!(grammar(&more, false).is_ok());
        assert!(grammar(&more, true).unwrap_err().to_string().contains("omit strict"));
    }
}

/// Each of these schemas exhausted the memory or a CPU in llama.cpp's converter.
#[test]
fn grammar_of_hostile_schema_is_small_or_rejected() {
    let chain = |keyword: &str, width: usize| {
        let mut defs = Fields::new();
        for number in 0..40 {
            let next = json!({"$ref": format!("#/$defs/a{}", number + 1)});
            defs.insert(format!("a{number}"), json!({ keyword: vec![next; width] }));
        }
        defs.insert("a40".to_owned(), json!({"type": "null"}));
        json!({"$ref": "#/$defs/a0", "$defs": defs})
    };
    let optional = |count: usize| {
        let all = (0..count).map(|number| (format!("p{number}"), json!({"type": "null"})));
        json!({"type": "object", "properties": all.collect::<Fields>()})
    };
    // Keywords next to alternatives are copied into each alternative.
    let names = (0..8_000).map(|number| (format!("q{number}"), json!({})));
    let wide = |keyword: &str, parts: Value| json!({keyword: parts, "properties": names.clone().collect::<Fields>()});
    for (schema, most) in [
        (wide("anyOf", vec![json!({}); 4_000].into()), None),
        (wide("oneOf", vec![json!({"required": ["q1"]}); 4_000].into()), None),
        (wide("allOf", vec![json!({"maxProperties": 5}); 4_000].into()), None),
        (wide("type", vec![json!("object"); 4_000].into()), None),
        (chain("anyOf", 2), Some(10_000)),
        (chain("oneOf", 100), Some(10_000)),
        (chain("allOf", 2), None),
        (optional(500), Some(100_000)),
        (optional(513), None),
        (optional(20_000), None),
        (json!({"enum": (0..30_000).collect::<Vec<_>>()}), None),
        (
            json!({"type": "array", "items": vec![json!({"maxLength": 200_000, "type": "string"}); 50]}),
            None,
        ),
        (json!({"type": "string", "maxLength": 5_000_000}), Some(5000)),
    ] {
        let made = grammar(&schema, false);
        let bytes = made.as_ref().ok().map(String::len);
        assert!(
            bytes.is_none_or(|bytes| most.is_some_and(|most| bytes < most))
                && bytes.is_some() == most.is_some(),
            "{bytes:?} of {most:?}"
        );
        if let Err(error) = made {
            let said = error.to_string();
            assert!(said.contains("too large") || said.contains("optional"), "{said}");
        }
    }
}

#[test]
fn grammar_closes_objects_by_unevaluated_properties() {
    check(json!({"type": "object", "unevaluatedProperties": false}), &["{}"], &[r#"{"a":1}"#]);
}

#[test]
fn grammar_survives_rejected_schema() {
    let mut rules = Rules::default();
    let first = rules.schema(&json!({"const": 1}), true).unwrap();
    let text = rules.text.clone();
    let broken =
        json!({"properties": {"a": {"type": "string", "maxLength": 3}, "b": {"type": "x"}}});
    assert!(rules.schema(&broken, false).is_err());
    assert_eq!(rules.text, text);
    let second = rules.schema(&json!({"type": "array", "items": {"const": 2}}), true).unwrap();
    let reader = Reader::of(&rules.text("root", &format!("{first} {second}")));
    assert!(reader.takes("1[2,2]"));
}
