//! Tests which request fields are read, in the forms that common clients send, and which are
//! rejected.

use serde_json::json;

use super::*;

fn refused(body: &Value) -> String {
    let refusal = Chat::read(body.to_string().as_bytes()).unwrap_err();
    assert_eq!(refusal.status, 400);
    refusal.param.unwrap_or_default()
}

fn with(more: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn request_refusals_name_the_field() {
    for (more, param) in [
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": ["hi"]}), "messages[0]"),
        (json!({"messages": [{"content": "hi"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{}"}]}]}),
            "messages[0].tool_calls[0].function",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "f"}}]}]}),
            "messages[0].tool_calls[0].function",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [null]}]}),
            "messages[0].tool_calls[0].function",
        ),
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"temperature": "warm"}), "temperature"),
        (json!({"top_p": 1.1}), "top_p"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -3}), "max_tokens"),
        (json!({"n": 17}), "n"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"stop": vec!["x"; 65]}), "stop"),
        (json!({"stop": ["x".repeat(2000)]}), "stop"),
        (json!({"logit_bias": {"a": 1}}), "logit_bias"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"tools": [{}]}), "tools[0].function"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": {"function": {"name": "g"}}}), "tool_choice"),
        (json!({"functions": [{}]}), "functions[0]"),
        (json!({"functions": "f"}), "functions"),
        (json!({"function_call": {"name": "g"}}), "function_call"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (
            json!({"response_format": {"type": "json_object", "schema": 5}}),
            "response_format.schema",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": "true"}}}),
            "response_format.json_schema.strict",
        ),
        (json!({"guided_json": "{"}), "guided_json"),
        (json!({"guided_regex": "a+"}), "guided_regex"),
        (json!({"guided_choice": ["a"]}), "guided_choice"),
        (json!({"grammar": "root ::= \"a\""}), "grammar"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema.schema"),
    ] {
        assert_eq!(refused(&with(&more)), param, "{more}");
    }
}

#[test]
fn request_reads_schemas_and_parameters_of_other_servers() {
    let schema = json!({"type": "array"});
    for more in [
        json!({"response_format": {"type": "json_object", "schema": schema}}),
        json!({"json_schema": schema}),
        json!({"guided_json": schema}),
        json!({"guided_json": schema.to_string()}),
        json!({"format": schema}),
    ] {
        let chat = Chat::read(with(&more).to_string().as_bytes()).unwrap();
        assert_eq!(chat.format.unwrap().schema, schema, "{more}");
    }
    for more in [json!({"format": "json"}), json!({"response_format": {"type": "json_object"}})] {
        let chat = Chat::read(with(&more).to_string().as_bytes()).unwrap();
        assert_eq!(chat.format.unwrap().schema, json!({"type": "object"}), "{more}");
    }
    let more = json!({"repetition_penalty": 1.5, "reasoning_effort": "low", "top_k": -1});
    let chat = Chat::read(with(&more).to_string().as_bytes()).unwrap();
    assert_eq!((chat.numbers.repeat_penalty, chat.numbers.top_k), (1.5, 0));
    assert_eq!(chat.template_values["reasoning_effort"], "low");
}

#[test]
fn request_accepts_the_forms_of_tools_and_choices_of_common_clients() {
    let function = json!({"name": "f", "parameters": null});
    let read = |tool: Value, choice: Value| {
        let body = with(&json!({"tools": [tool], "tool_choice": choice}));
        Chat::read(body.to_string().as_bytes())
    };
    let tool = json!({"type": "function", "function": function});
    for (choice, expected) in [
        (json!(null), ToolChoice::Auto),
        (json!("auto"), ToolChoice::Auto),
        (json!({"type": "auto"}), ToolChoice::Auto),
        (json!("none"), ToolChoice::None),
        (json!({"type": "none"}), ToolChoice::None),
        (json!("required"), ToolChoice::Required),
        (json!("any"), ToolChoice::Required),
        (json!({"type": "any"}), ToolChoice::Required),
        (json!({"type": "function", "function": {"name": "f"}}), ToolChoice::Named("f".into())),
        (json!({"function": {"name": "f"}}), ToolChoice::Named("f".into())),
        (json!({"type": "tool", "name": "f"}), ToolChoice::Named("f".into())),
    ] {
        assert_eq!(read(tool.clone(), choice.clone()).unwrap().choice, expected, "{choice}");
    }
    for choice in [json!("f"), json!({"type": "allowed_tools"}), json!({}), json!({"type": "x"})] {
        let refusal = read(tool.clone(), choice.clone()).unwrap_err();
        assert_eq!(refusal.param.as_deref(), Some("tool_choice"), "{choice}");
    }
    assert!(read(json!({"function": function}), json!(null)).is_ok(), "the type is optional");
    for kind in ["custom", "web_search", "code_interpreter", "mcp"] {
        let refusal = read(json!({"type": kind, "name": "f"}), json!(null)).unwrap_err();
        assert_eq!(refusal.param.as_deref(), Some("tools[0].type"));
        assert!(refusal.message.contains(kind), "{}", refusal.message);
    }
    let flat = read(json!({"type": "function", "name": "f"}), json!(null)).unwrap_err();
    assert!(flat.message.contains("within 'function'"), "{}", flat.message);
}

#[test]
fn request_warns_of_fields_without_effect() {
    let warnings = |more: Value| Chat::read(with(&more).to_string().as_bytes()).unwrap().warnings;
    for (field, sentence) in [
        ("max_token", "field max_token is ignored: did you mean max_tokens?"),
        ("min_tokens", "field min_tokens is ignored"),
        ("ignore_eos", "field ignore_eos is ignored"),
        ("stop_token_ids", "field stop_token_ids is ignored"),
        ("modalities", "field modalities is ignored"),
    ] {
        let found = warnings(json!({field: 1, "user": "ann", "top_p": 1, "guided_json": {}}));
        assert!(found.len() == 1 && found[0].starts_with(sentence), "{found:?}");
    }
    assert!(warnings(json!({"min_tokens": null})).is_empty());
    let many = (0..99).map(|number| (format!("f{number}"), json!(1)));
    assert_eq!(warnings(many.collect::<Map<_, _>>().into()).len(), 10);
}

#[test]
fn request_reads_legacy_functions_as_tools() {
    let function = json!({"name": "f", "parameters": {"type": "object"}});
    for (choice, expected) in [
        (json!(null), ToolChoice::Auto),
        (json!("auto"), ToolChoice::Auto),
        (json!("none"), ToolChoice::None),
        (json!({"name": "f"}), ToolChoice::Named("f".to_owned())),
    ] {
        let body = with(&json!({"functions": [function], "function_call": choice}));
        let chat = Chat::read(body.to_string().as_bytes()).unwrap();
        assert_eq!((chat.choice, chat.is_legacy, &*chat.tools[0].name), (expected, true, "f"));
        assert_eq!(chat.tools[0].given["function"], function);
    }
    let both = with(&json!({"functions": [function], "tools": []}));
    let both = Chat::read(both.to_string().as_bytes()).unwrap();
    assert!(!both.is_legacy && both.tools.is_empty());
}

#[test]
fn request_joins_parts_and_opens_arguments() {
    let chat = Chat::read(
        json!({"messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function",
                 "function": {"name": "f", "arguments": "{\"x\":1}"}}]},
        ], "seed": -1, "logit_bias": {"7": -100}})
        .to_string()
        .as_bytes(),
    )
    .unwrap();
    assert_eq!(chat.messages[0]["content"], "ab");
    assert_eq!(chat.messages[1]["content"], "");
    assert_eq!(chat.messages[1]["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
    assert_eq!((chat.seed, chat.answers, chat.max_tokens), (Some(0), 1, None));
    assert_eq!(chat.bias, [(7, f32::NEG_INFINITY)]);
}
