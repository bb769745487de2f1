//! Tests what clients receive for generated text in the formats of various model families.

use super::*;
use crate::llm::worker::thinking::Thinking;

/// Returns what the client receives for a text: thinking, content, and the names of calls.
fn read(calls: Calls, text: &str, finish: Finish) -> (String, String, String) {
    let reading = Reading { calls, thinking: Thinking::Maybe, is_legacy: false };
    let mut choice = Choice::new(0, reading, false);
    let mut all = Split::default();
    for letter in text.chars() {
        let Split { reasoning, content } = choice.take(letter.encode_utf8(&mut [0; 4]));
        all.reasoning.push_str(&reasoning);
        all.content.push_str(&content);
    }
    let end = End { finish, prompt_tokens: 1, cached_tokens: 0, completion_tokens: 1 };
    let (rest, calls) = choice.take_rest(&end);
    let names: Vec<String> = calls.into_iter().map(|call| call.name).collect();
    (all.reasoning + &rest.reasoning, all.content + &rest.content, names.join(","))
}

#[test]
fn answer_parses_calls_of_later_families() {
    let parameters = "{\"name\": \"f\", \"parameters\": {}}";
    let bare = Calls::Maybe(Form::Bare);
    for (calls, text, finish, expected) in [
        (bare, format!("```json\n{parameters}\n```"), Finish::Stop, ("", "", "f")),
        (
            bare,
            "```json\n{\"a\": 1}\n```".to_owned(),
            Finish::Stop,
            ("", "```json\n{\"a\": 1}\n```", ""),
        ),
        (bare, "```sh\nls\n```".to_owned(), Finish::Stop, ("", "```sh\nls\n```", "")),
        (Calls::Maybe(Form::Python), "[f(x=1), g()]".to_owned(), Finish::Stop, ("", "", "f,g")),
        (Calls::Maybe(Form::Python), "[1, 2] are".to_owned(), Finish::Stop, ("", "[1, 2] are", "")),
        (
            Calls::Maybe(Form::Args),
            "a[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{\"x\": 1}".to_owned(),
            Finish::Stop,
            ("", "a", "f,g"),
        ),
        (
            Calls::Maybe(Form::Free),
            "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"
                .to_owned(),
            Finish::Stop,
            ("", "", "f"),
        ),
        (
            Calls::Maybe(Form::Free),
            "<tool_call>g\n</tool_call>".to_owned(),
            Finish::Stop,
            ("", "", "g"),
        ),
        (
            Calls::Maybe(Form::Free),
            "<tool_call>g<arg_key>x</arg_key><arg_value>y</arg_value></tool_call>".to_owned(),
            Finish::Stop,
            ("", "", "g"),
        ),
    ] {
        let (thinking, content, names) = read(calls, &text, finish);
        assert_eq!((thinking.as_str(), content.as_str(), names.as_str()), expected, "{text}");
    }
}

#[test]
fn answer_in_required_format_or_calls_are_told_apart() {
    let call = "{\"name\": \"f\", \"parameters\": {}}";
    for (form, text, expected) in [
        (Form::Tagged, format!("<tool_call>{call}</tool_call>"), ("", "", "f")),
        (Form::Tagged, "{\"a\": \"<tool_call>\"}".to_owned(), ("", "{\"a\": \"<tool_call>\"}", "")),
        (Form::Args, "[TOOL_CALLS]f[ARGS]{}".to_owned(), ("", "", "f")),
        (Form::Args, "[1]".to_owned(), ("", "[1]", "")),
        (Form::Bare, call.to_owned(), ("", "", "f")),
        (Form::Python, call.to_owned(), ("", "", "f")),
        (Form::Bare, "{\"name\": \"Bob\"}".to_owned(), ("", "{\"name\": \"Bob\"}", "")),
        (Form::Bare, "{\"a\": \"<function=f>\"}".to_owned(), ("", "{\"a\": \"<function=f>\"}", "")),
    ] {
        let (thinking, content, names) = read(Calls::Instead(form), &text, Finish::Stop);
        assert_eq!((&*thinking, &*content, &*names), expected, "{text}");
    }
}

#[test]
fn answer_in_harmony_contains_no_markup() {
    let tagged = Calls::Maybe(Form::Tagged);
    for (calls, text, finish, expected) in [
        (
            tagged,
            "<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>commentary \
                  to=functions.g <|constrain|>json<|message|>{}"
                .to_owned(),
            Finish::Stop,
            ("t", "", "g"),
        ),
        (
            tagged,
            "<|channel|>commentary<|message|>p<|end|><|start|>assistant<|channel|>commentary \
                  to=functions.g <|constrain|>json<|message|>{}<|call|>"
                .to_owned(),
            Finish::Stop,
            ("", "p", "g"),
        ),
        (
            tagged,
            "<|channel|>commentary<|message|>p<|end|><|start|>assistant<|channel|>final<|message|>q"
                .to_owned(),
            Finish::Stop,
            ("", "p\n\nq", ""),
        ),
    ] {
        let (reasoning, content, names) = read(calls, &text, finish);
        assert_eq!((&*reasoning, &*content, &*names), expected, "{text}");
    }
}

#[test]
fn answer_without_tools_drops_calls() {
    let call = "{\"name\": \"f\", \"arguments\": {}}";
    let harmony = "<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>commentary \
                   to=functions.f <|constrain|>json<|message|>{}";
    for (form, text, expected) in [
        (Form::Tagged, format!("a <tool_call>{call}</tool_call>"), ("", "a ", "")),
        (Form::Bare, format!("<|python_tag|>{call}"), ("", "", "")),
        (Form::Bare, call.to_owned(), ("", call, "")),
        (Form::Python, "[1, 2] <function=f>".to_owned(), ("", "[1, 2] <function=f>", "")),
        (Form::Tagged, "write <tool_call> first".to_owned(), ("", "write <tool_call> first", "")),
        (Form::Tagged, harmony.to_owned(), ("t", "", "")),
    ] {
        let (thinking, content, names) = read(Calls::Dropped(form), &text, Finish::Stop);
        assert_eq!((&*thinking, &*content, &*names), expected, "{text}");
    }
}

#[test]
fn answer_contains_no_markup_of_thinking_or_calls() {
    let arguments = "{\"name\": \"f\", \"arguments\": {}}";
    let parameters = "{\"name\": \"f\", \"parameters\": {}}";
    let tagged = Calls::Maybe(Form::Tagged);
    let bare = Calls::Maybe(Form::Bare);
    let list = Calls::Maybe(Form::List);
    for (calls, text, finish, expected) in [
        (
            Calls::Dropped(Form::Tagged),
            "<think>\na\n</think>\n\nb".to_owned(),
            Finish::Stop,
            ("a", "b", ""),
        ),
        (Calls::Dropped(Form::Tagged), "<think>a <b".to_owned(), Finish::Length, ("a <b", "", "")),
        (
            tagged,
            format!("<think>a</think>b<tool_call>{arguments}</tool_call>"),
            Finish::Stop,
            ("a", "b", "f"),
        ),
        (tagged, "b<tool_call>{\"name\": ".to_owned(), Finish::Length, ("", "b", "")),
        (tagged, "b<tool_call>c</tool_call>".to_owned(), Finish::Stop, ("", "bc", "")),
        (
            tagged,
            "<think>a<tool_call></think>b".to_owned(),
            Finish::Stop,
            ("a<tool_call>", "b", ""),
        ),
        (list, format!("[TOOL_CALLS][{arguments}]"), Finish::Stop, ("", "", "f")),
        (
            tagged,
            format!("<|python_tag|>{parameters}; {parameters}"),
            Finish::Stop,
            ("", "", "f,f"),
        ),
        (list, format!("<|python_tag|>{arguments}"), Finish::Stop, ("", "", "f")),
        (bare, format!("<|python_tag|>{parameters}"), Finish::Stop, ("", "", "f")),
        (tagged, format!("a <|python_tag|>{parameters}"), Finish::Stop, ("", "a ", "f")),
        (tagged, "<|python_tag|>print(1)".to_owned(), Finish::Stop, ("", "print(1)", "")),
        (bare, format!("\n<|python_tag|> {parameters}"), Finish::Stop, ("", "", "f")),
        (bare, "<|python_tag|>print(1) {x}".to_owned(), Finish::Stop, ("", "print(1) {x}", "")),
        (bare, "a {b} c".to_owned(), Finish::Stop, ("", "a {b} c", "")),
        (bare, "a <function=g>{\"x\": 1}</function>".to_owned(), Finish::Stop, ("", "a ", "g")),
        (
            tagged,
            "é <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}".to_owned(),
            Finish::Stop,
            ("", "é ", "g"),
        ),
        (tagged, "a <b> <function".to_owned(), Finish::Stop, ("", "a <b> <function", "")),
        (list, "a<|tool_call|>[{\"na".to_owned(), Finish::Length, ("", "a", "")),
    ] {
        let (reasoning, content, names) = read(calls, &text, finish);
        assert_eq!((&*reasoning, &*content, &*names), expected, "{text}");
    }
}
