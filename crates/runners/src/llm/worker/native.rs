//! Parses tool calls in the native formats of model families whose output is not constrained by a
//! grammar here, and removes the markers from the text.

use serde_json::{Map, Value};

use super::python;
use super::tools::{Call, Form};

/// The markers that start native calls.
pub(super) const MARKS: [&str; 20] = [
    "<function=",
    "<|tool_call|>",
    "<|tool_call>",
    "functools[",
    DEEPSEEK,
    "<|tool_calls_section_begin|>",
    LFM,
    LLAMA,
    "[TOOL_CALLS]",
    "<|channel|>commentary",
    "<|start|>assistant",
    DSML,
    PYTHON,
    "<|START_ACTION|>",
    "<TOOLCALL>",
    "<tool_calls>",
    "<minimax:tool_call>",
    "<seed:tool_call>",
    "<function_calls>",
    GEMMA,
];
/// Gemma 3 writes calls in a code block of Python.
const GEMMA: &str = "```tool_code";
const DEEPSEEK: &str = "<｜tool▁calls▁begin｜>";
/// LFM2 writes calls in Python notation between these markers.
const LFM: &str = "<|tool_call_start|>";
/// Llama 4 may write calls after this marker.
const LLAMA: &str = "<|python_start|>";
/// Llama 3 writes this marker before calls, even if its template does not show it.
pub(super) const PYTHON: &str = "<|python_tag|>";
const DSML: &str = "<｜DSML｜";
/// Texts that identify control tokens within calls.
const PARTS: [&str; 14] = [
    "tool_call",
    "TOOL_CALL",
    "TOOLCALL",
    "tool▁call",
    "tool▁sep",
    "ACTION",
    "ARGS",
    "CALL_ID",
    "arg_",
    "python_",
    "DSML",
    "constrain",
    "invoke",
    "function",
];
/// Maximum number of calls in one response.
const CALLS_MAX: usize = 32;

/// A parser of one format; returns an empty list for text in any other format.
type Reader<'r> = &'r dyn Fn(&str) -> Vec<Call>;

/// Returns whether a control token belongs to calls.
#[must_use]
pub(super) fn is_part(token: &str) -> bool {
    PARTS.iter().any(|part| token.contains(part))
}

/// Parses the calls in a text that starts with a marker of any format, or with the marker of
/// `form`.
#[must_use]
pub(super) fn calls(text: &str, form: Form) -> Vec<Call> {
    let readers: [Reader<'_>; 10] = [
        &functions,
        &lists,
        &|text| sections(text, &KIMI),
        &|text| sections(text, &DEEP),
        &channels,
        &invocations,
        &pythonic,
        &named,
        &|text| keyed(text, form == Form::Free),
        &fenced,
    ];
    let mut found = readers.into_iter().map(|read| read(text));
    let mut calls = found.find(|calls| !calls.is_empty()).unwrap_or_default();
    calls.truncate(CALLS_MAX);
    calls
}

/// Removes the markers from a text that does not contain calls after all. Tags that are ordinary
/// text are removed only if `has_tools`.
#[must_use]
pub(super) fn unmarked(text: &str, has_tools: bool) -> String {
    let mut shown = String::with_capacity(text.len());
    let words =
        ["<|channel|>commentary", "<|start|>assistant", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"];
    let text = words.iter().fold(text.to_owned(), |text, word| text.replace(word, ""));
    let mut rest = text.as_str();
    while let Some((before, tag)) = rest.split_once('<') {
        shown.push_str(before);
        let begins = |tags: &[&str]| tags.iter().any(|begin| tag.starts_with(begin));
        let is_tag = begins(&["|", "｜", "/｜"])
            || (has_tools && begins(&["function=", "/function>", "parameter=", "/parameter>"]));
        match tag.split_once('>') {
            Some((_, behind)) if is_tag => rest = behind,
            _ if is_tag => return shown,
            _ => {
                shown.push('<');
                rest = tag;
            }
        }
    }
    shown.push_str(rest);
    shown
}

fn call(name: &str, arguments: &Value) -> Option<Call> {
    let name = name.trim();
    let is_call = !name.is_empty() && arguments.is_object();
    is_call.then(|| Call { name: name.to_owned(), arguments: arguments.to_string() })
}

/// Parses JSON at the beginning of a text.
fn json(text: &str) -> Option<Value> {
    serde_json::Deserializer::from_str(text).into_iter::<Value>().next()?.ok()
}

/// Parses JSON values separated by semicolons, which is how Llama writes several calls.
fn in_turn(text: &str) -> Vec<Value> {
    let mut values = Vec::new();
    let mut rest = Some(text);
    while let Some(text) = rest {
        let mut read = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let Some(Ok(value)) = read.next() else { break };
        values.push(value);
        rest = text.get(read.byte_offset()..).and_then(|rest| rest.trim_start().strip_prefix(';'));
    }
    values
}

/// Returns the text as JSON if it is valid JSON, and otherwise as a string.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_text| text.into())
}

/// Parses `<function=name>{…}</function>` and
/// `<function=name><parameter=key>value</parameter></function>`.
fn functions(text: &str) -> Vec<Call> {
    let one = |part: &str| {
        let (name, body) = part.split_once('>')?;
        // A call without its end tag may lack arguments, so it is ignored.
        let body = body.split_once("</function>")?.0.trim();
        if body.starts_with('{') {
            return call(name, &json(body)?);
        }
        let pair = |part: &str| {
            let (key, rest) = part.split_once('>')?;
            let text = rest.split_once("</parameter>")?.0;
            Some((key.to_owned(), value(text.trim_matches('\n'))))
        };
        let fields: Map<String, Value> =
            body.split("<parameter=").skip(1).filter_map(pair).collect();
        call(name, &fields.into())
    };
    text.split("<function=").skip(1).filter_map(one).collect()
}

/// Parses `<|tool_call|>[{"name": …, "arguments": …}]`, `functools[…]`, `<|python_tag|>{…}` and
/// others.
fn lists(text: &str) -> Vec<Call> {
    let marks = [
        "<|tool_call|>",
        "<|tool_call>",
        "functools",
        "<|tool_call_start|>",
        PYTHON,
        "<|START_ACTION|>",
        "<TOOLCALL>",
        "<tool_calls>",
    ];
    let text = text.trim_start();
    let Some(rest) = marks.iter().find_map(|mark| text.strip_prefix(mark)) else {
        return Vec::new();
    };
    let mut list = Vec::new();
    for value in in_turn(rest) {
        if let Value::Array(items) = value {
            list.extend(items);
        } else {
            list.push(value);
        }
    }
    let one = |value: &Value| {
        let arguments = value.get("arguments").or(value.get("parameters"));
        let name = value.get("name").or(value.get("tool_name"))?.as_str()?;
        call(name, arguments.unwrap_or(&Value::Object(Map::new())))
    };
    list.iter().filter_map(one).collect()
}

/// Parses the format of LFM2 and Llama 4: `[name(key="value")]`, with or without a tag around it.
fn pythonic(text: &str) -> Vec<Call> {
    let text = text.trim();
    let text = text.strip_prefix(PYTHON).unwrap_or(text);
    let within = |begin: &str, end: &str| {
        let inside = text.strip_prefix(begin)?;
        Some(inside.split(end).next().unwrap_or(inside))
    };
    let inside = within(LFM, "<|tool_call_end|>").or(within(LLAMA, "<|python_end|>"));
    let inside = inside.or(within(GEMMA, "```"));
    python::calls(inside.unwrap_or(text))
}

/// Parses the format of Mistral since Small 3.2: `[TOOL_CALLS]name[ARGS]{…}`, optionally with a
/// call id in between.
fn named(text: &str) -> Vec<Call> {
    let one = |part: &str| {
        let (name, rest) = part.split_at_checked(part.find(['[', '{'])?)?;
        let arguments = rest.split_once("[ARGS]").map_or(rest, |(_, arguments)| arguments);
        call(name, &json(arguments)?)
    };
    text.split("[TOOL_CALLS]").skip(1).filter_map(one).collect()
}

/// Parses the format of GLM:
/// `<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>`. A name alone is a
/// call only if `may_be_name`.
fn keyed(text: &str, may_be_name: bool) -> Vec<Call> {
    let one = |part: &str| {
        // A call without its end tag may lack arguments, so it is ignored.
        let part = part.split_once("</tool_call>")?.0.trim();
        let end = part.find("<arg_key>").or(may_be_name.then_some(part.len()))?;
        let (name, body) = part.split_at_checked(end)?;
        let pair = |part: &str| {
            let (key, rest) = part.split_once("</arg_key>")?;
            let text = rest.split_once("<arg_value>")?.1.split_once("</arg_value>")?.0;
            Some((key.trim().to_owned(), value(text)))
        };
        let is_name = |letter: char| letter.is_alphanumeric() || "_-.".contains(letter);
        let name = name.trim();
        let fields: Map<String, Value> = body.split("<arg_key>").skip(1).filter_map(pair).collect();
        if name.chars().all(is_name) { call(name, &fields.into()) } else { None }
    };
    text.split("<tool_call>").skip(1).filter_map(one).collect()
}

/// Parses JSON code blocks that contain the name and the arguments of a call.
fn fenced(text: &str) -> Vec<Call> {
    let one = |part: &str| {
        let value = json(part.strip_prefix("json").unwrap_or(part))?;
        let arguments = value.get("arguments").or(value.get("parameters"))?;
        call(value.get("name")?.as_str()?, arguments)
    };
    text.split("```").skip(1).step_by(2).filter_map(one).collect()
}

/// The tokens around the parts of a call: start, separator between name and arguments, and end.
type Section = [&'static str; 3];
const KIMI: Section = ["<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"];
const DEEP: Section = ["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"];

fn sections(text: &str, [begin, between, end]: &Section) -> Vec<Call> {
    let one = |part: &str| {
        let (first, second) = part.split(end).next()?.split_once(between)?;
        // DeepSeek R1 and V3: the type, then the name, then a JSON code block.
        let (name, arguments) = match second.split_once("```json") {
            Some((name, block)) => (name, block),
            None => (first, second),
        };
        // Kimi: functions.name:0.
        let name = name.trim();
        let name = name.strip_prefix("functions.").unwrap_or(name);
        let name = name.split(':').next().unwrap_or(name);
        call(name, &json(arguments)?)
    };
    text.split(begin).skip(1).filter_map(one).collect()
}

/// Parses the Harmony format: `<|channel|>commentary to=functions.name …<|message|>{…}`.
fn channels(text: &str) -> Vec<Call> {
    let one = |part: &str| {
        let end = part.find(|letter: char| letter.is_whitespace() || letter == '<')?;
        let (name, rest) = part.split_at_checked(end)?;
        let (_, arguments) = rest.split_once("<|message|>")?;
        call(name, &json(arguments)?)
    };
    text.split("to=functions.").skip(1).filter_map(one).collect()
}

/// Parses `<invoke name="…"><parameter name="…">…`, the format of MiniMax and others. DeepSeek V3.2
/// writes `<｜DSML｜invoke name="…"><｜DSML｜parameter name="…" string="true">…`.
fn invocations(text: &str) -> Vec<Call> {
    let text = text.replace("｜DSML｜", "");
    let one = |part: &str| {
        let (name, body) = part.split_once("</invoke>")?.0.split_once("\">")?;
        let pair = |part: &str| {
            let (key, rest) = part.split_once('"')?;
            let (kind, rest) = rest.split_once('>')?;
            let text = rest.split("</parameter>").next()?;
            let is_text = kind.contains("true");
            Some((key.to_owned(), if is_text { text.into() } else { value(text) }))
        };
        let fields = body.split("<parameter name=\"").skip(1).filter_map(pair);
        call(name, &fields.collect::<Map<_, _>>().into())
    };
    text.split("<invoke name=\"").skip(1).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_calls_are_parsed_in_the_form_of_each_family() {
        for text in [
            "<function=f>{\"x\": 1}</function>",
            "<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
            "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"x\": 1}}]<|/tool_call|>",
            "<|tool_call|>{\"name\": \"f\", \"parameters\": {\"x\": 1}}",
            "functools[{\"name\": \"f\", \"arguments\": {\"x\": 1}}]",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"x\": 1}\n```\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\": 1}<｜tool▁call▁end｜>",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0\
             <|tool_call_argument_begin|>{\"x\": 1}<|tool_call_end|><|tool_calls_section_end|>",
            "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}",
            "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"x\": 1}",
            "<|tool_call_start|>[f(x=1)]<|tool_call_end|>",
            "<|python_start|>[f(x=1)]<|python_end|>",
            "[TOOL_CALLS]f[ARGS]{\"x\": 1}",
            "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"x\": 1}}",
            "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"x\": 1}",
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"x\" \
             string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            "<|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"x\": 1}}]\
             <|END_ACTION|>",
            "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"x\": 1}}]</TOOLCALL>",
            "<tool_calls>[{\"name\": \"f\", \"arguments\": {\"x\": 1}}]</tool_calls>",
            "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"x\">1</parameter>\n</invoke>\n\
             </minimax:tool_call>",
            "<function_calls><invoke name=\"f\"><parameter name=\"x\">1</parameter></invoke></function_calls>",
            "<seed:tool_call><function=f><parameter=x>1</parameter></function></seed:tool_call>",
            "```tool_code\nf(x=1)\n```",
        ] {
            let expected = Call { name: "f".to_owned(), arguments: "{\"x\":1}".to_owned() };
            assert_eq!(calls(text, Form::Tagged), [expected], "{text}");
            assert!(MARKS.iter().any(|mark| text.starts_with(mark)), "{text}");
            let cut = text.split('1').next().unwrap();
            assert_eq!(calls(cut, Form::Free), [], "{cut}");
        }
    }

    #[test]
    fn native_calls_without_markers_are_parsed() {
        for text in [
            "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
            "<tool_call>\nf<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>\n",
            "[f(x=1)]",
            "```json\n{\"name\": \"f\", \"parameters\": {\"x\": 1}}\n```",
            "```\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n```",
        ] {
            let expected = Call { name: "f".to_owned(), arguments: "{\"x\":1}".to_owned() };
            assert_eq!(calls(text, Form::Tagged), [expected], "{text}");
        }
        for text in ["<tool_call>f</tool_call>", "<tool_call>\nf\n</tool_call>\n"] {
            let expected = Call { name: "f".to_owned(), arguments: "{}".to_owned() };
            assert_eq!(calls(text, Form::Free), [expected], "{text}");
            assert_eq!(calls(text, Form::Tagged), [], "{text}");
        }
        let both = "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"x\": \"; {\"}}; \
                    {\"name\": \"g\", \"parameters\": {}}";
        let names: Vec<String> =
            calls(both, Form::Tagged).into_iter().map(|call| call.name).collect();
        assert_eq!(names, ["f", "g"]);
        for text in [
            "```json\n{\"name\": \"Bob\", \"age\": 3}\n```",
            "[1, 2]",
            "<tool_call>a b</tool_call>",
        ] {
            assert_eq!(calls(text, Form::Free), [], "{text}");
        }
    }

    #[test]
    fn native_markers_are_removed_from_text_that_is_not_a_call() {
        for (text, shown) in [
            ("<|channel|>commentary<|message|>a < b", "a < b"),
            ("<function=f>a</function> b", "a b"),
            ("<|tool_call|>a<b>c</b>", "a<b>c</b>"),
            ("<｜DSML｜x>a</｜DSML｜x", "a"),
        ] {
            assert_eq!(unmarked(text, true), shown);
        }
        assert_eq!(unmarked("<function=f>a<|python_tag|>b", false), "<function=f>ab");
    }
}
