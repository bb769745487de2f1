//! Tests of OpenAI's Responses API: all formats together, the grouping of items, and streams.

use orrery_wire::responses::CreateRequest as Wire;
use orrery_wire::responses::answer::{Response, Status};
use orrery_wire::responses::event::Event as Sent;
use orrery_wire::responses::{Input, Item};

use super::*;
use crate::Event;
use crate::responses::{
    Head, Ids, StreamWriter as Writer, begun, identify, of_input, read as of_responses, replay,
    replay_begin, response_of_item, settings, write_answer as write_response,
};

fn wire(body: Value) -> Result<(Wire, Vec<Item>), String> {
    let mut wire: Wire = read(body).map_err(|error| error.to_string())?;
    let items = match std::mem::replace(&mut wire.input, Input::Items(Vec::new())) {
        Input::Items(items) => items,
        Input::Text(_) => Vec::new(),
    };
    Ok((wire, items))
}

fn request_of(body: Value) -> Request {
    let (wire, items) = wire(body).unwrap();
    of_responses(wire, items)
}

fn with_items(items: Value) -> Value {
    json!({"model": "m", "input": items})
}

#[track_caller]
fn chat_of(items: Value) -> Value {
    write(&request_of(with_items(items)), ModelServer::Other)["messages"].clone()
}

/// Writes a request in the format of responses.
fn in_responses(request: &Request) -> Value {
    let items = request.messages.iter().flat_map(items_of).collect::<Value>();
    let choice = request.tool_choice.as_ref().map(|choice| match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::Named(name) => json!({"type": "function", "name": name}),
    });
    let tool = |tool: &Tool| {
        json!({
            "type": "function", "name": tool.name, "description": tool.description,
            "parameters": tool.parameters, "strict": tool.is_strict,
        })
    };
    let format = request.format.as_ref().map(|format| match format {
        Format::JsonObject => json!({"type": "json_object"}),
        Format::JsonSchema { schema, is_strict, .. } => {
            json!({"type": "json_schema", "name": "answer", "schema": schema, "strict": is_strict})
        }
    });
    let effort = match request.thinking {
        Thinking::On(Some(Effort::Low)) => Some("low"),
        Thinking::On(_) => Some("high"),
        Thinking::Unset | Thinking::Off => None,
    };
    json!({
        "model": request.model, "input": items,
        "tools": request.tools.iter().map(tool).collect::<Value>(),
        "tool_choice": choice, "parallel_tool_calls": request.parallel_calls,
        "text": {"format": format}, "reasoning": {"effort": effort},
        "max_output_tokens": request.token_limit, "temperature": request.temperature,
        "top_p": request.top_p, "stream": request.is_stream, "user": request.user,
    })
}

fn items_of(message: &Message) -> Vec<Value> {
    let mut items = Vec::new();
    let mut content = Vec::new();
    for part in &message.parts {
        match part {
            Part::Text(text) if message.role == Role::Assistant => {
                content.push(json!({"type": "output_text", "text": text, "annotations": []}));
            }
            Part::Text(text) => content.push(json!({"type": "input_text", "text": text})),
            Part::Image(Image::Url { url, .. }) => {
                content.push(json!({"type": "input_image", "image_url": url}));
            }
            Part::Image(Image::Data { media_type, base64 }) => {
                let url = format!("data:{media_type};base64,{base64}");
                content.push(json!({"type": "input_image", "image_url": url, "detail": null}));
            }
            Part::Reasoning(Reasoning { text, signature }) => items.push(json!({
                "type": "reasoning", "id": "rs_1", "summary": [],
                "content": [{"type": "reasoning_text", "text": text}],
                "encrypted_content": signature,
            })),
            Part::ToolResult { id, parts, .. } => {
                let [Part::Text(text)] = parts.as_slice() else { unreachable!("plain results") };
                let kind = "function_call_output";
                items.push(json!({"type": kind, "call_id": id, "output": text}));
            }
            Part::ToolCall(_) | Part::Refusal(_) => {}
        }
    }
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    items.push(json!({"type": "message", "role": role, "content": content}));
    items.extend(message.parts.iter().filter_map(|part| {
        let Part::ToolCall(ToolCall { id, name, arguments }) = part else { return None };
        let kind = "function_call";
        Some(json!({"type": kind, "call_id": id, "name": name, "arguments": arguments}))
    }));
    items
}

/// Makes up for what formats write in different ways: the place of results, data URLs, and the name
/// of a format.
fn normal(mut request: Request) -> Request {
    let mut messages: Vec<Message> = Vec::new();
    for mut message in std::mem::take(&mut request.messages) {
        for part in &mut message.parts {
            if let Part::Image(Image::Url { url, .. }) = part {
                *part = Part::Image(image_of(url));
            }
        }
        let is_result = |part: &Part| matches!(part, Part::ToolResult { .. });
        let continues = |last: &&mut Message| {
            last.role == Role::User
                && message.role == Role::User
                && last.parts.iter().all(is_result)
        };
        match messages.last_mut().filter(continues) {
            Some(last) => last.parts.extend(message.parts),
            None => messages.push(message),
        }
    }
    if let Some(Format::JsonSchema { name, .. }) = &mut request.format {
        *name = name.take().filter(|name| name != "answer");
    }
    if request.thinking == Thinking::Off {
        request.thinking = Thinking::Unset;
    }
    Request { messages, ..request }
}

fn head() -> Head {
    let (wire, _) = wire(with_items(json!([{"role": "user", "content": "hi"}]))).unwrap();
    Head {
        ids: Ids { response: "resp_7".to_owned(), shows_reasoning: false },
        created_at: 5,
        settings: settings(&wire),
    }
}

/// Writes the events of a stream; returns also the response that the last one has.
fn streamed(chunks: &[Value]) -> (Vec<Sent>, Response) {
    let mut reader = StreamReader::default();
    let mut writer = Writer::new(head());
    let mut events = Vec::new();
    writer.start(&mut events);
    for chunk in chunks {
        for event in reader.event(chunk.to_string().as_bytes()).unwrap() {
            if let Some(failed) = writer.event(event, &mut events) {
                return (events, failed);
            }
        }
    }
    let response = writer.finish(&mut events, 9);
    writer.last(response.clone(), &mut events);
    (events, response)
}

/// Checks the numbers and the order of a stream's events, and that its pieces add up to its items.
#[track_caller]
fn check_stream(events: &[Sent], response: &Response) {
    let mut output: Vec<Value> = Vec::new();
    let mut pieces = std::collections::BTreeMap::<(usize, usize), String>::new();
    for (number, event) in events.iter().enumerate() {
        let name = event.kind.name();
        let event = serde_json::to_value(event).unwrap();
        assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(number)));
        let at = |field: &str| event[field].as_u64().map_or(0, |at| usize::try_from(at).unwrap());
        let place = (at("output_index"), at("content_index"));
        if name.ends_with(".delta") {
            pieces.entry(place).or_default().push_str(event["delta"].as_str().unwrap());
        }
        match name {
            "response.output_item.added" => {
                assert_eq!(output.len(), place.0);
                output.push(event["item"].clone());
            }
            "response.output_item.done" => {
                assert_eq!(output[place.0]["id"], event["item"]["id"]);
                output[place.0] = event["item"].clone();
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(pieces[&place], event["text"].as_str().unwrap());
            }
            "response.function_call_arguments.done" => {
                let pieces = pieces.get(&place).cloned().unwrap_or_default();
                assert_eq!(pieces, event["arguments"].as_str().unwrap());
            }
            _ => {}
        }
    }
    assert_eq!(json!(output), serde_json::to_value(&response.outcome.output).unwrap());
}

/// Checks that a response is repeated with the same kinds of events as its stream.
#[track_caller]
fn check_replay(response: &Value) {
    let events = replay(response);
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let begin = replay_begin(response);
    assert_eq!(begin, events[..begin.len()]);
    assert_eq!(&events.last().unwrap()["response"], response);
    let done = events.iter().filter(|event| event["type"] == "response.output_item.done");
    let items: Vec<&Value> = done.map(|event| &event["item"]).collect();
    assert_eq!(json!(items), response["output"]);
}

proptest! {
    #[test]
    fn request_in_all_formats_keeps_everything(request in request(false)) {
        let request = Request { top_k: None, stops: Vec::new(), ..request };
        let first = of_chat(&write(&request, ModelServer::Other));
        let second = normal(request_of(in_responses(&first)));
        prop_assert_eq!(&second, &request);
        let third: CreateRequest = read(in_messages(&second)).unwrap();
        prop_assert_eq!(normal(messages::read(third)), request);
    }

    #[test]
    fn items_of_an_input_can_be_its_input_again(request in request(false)) {
        let (wire, items) = wire(in_responses(&request)).unwrap();
        let mut shown = of_input(&items);
        identify(&mut shown, "resp_7");
        let again: Vec<Item> = serde_json::from_value(json!(shown)).unwrap();
        prop_assert_eq!(again.len(), items.len());
        prop_assert!(shown.iter().all(|item| response_of_item(item.id()) == Some("7")));
        let body = json!({"model": "m", "input": shown});
        prop_assert_eq!(normal(request_of(body)).messages, normal(of_responses(wire, items)).messages);
    }

    #[test]
    fn response_stream_adds_up_to_the_whole(message in assistant(), size in 1..6_usize) {
        let usage = json!({"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.5});
        let request = Request { messages: vec![message.clone()], ..Request::default() };
        let sent = write(&request, ModelServer::Other);
        let choice = json!({"message": sent["messages"][0], "finish_reason": "stop"});
        let whole = json!({"choices": [choice], "usage": usage});
        let whole = read_answer(whole.to_string().as_bytes()).unwrap();
        let whole = head().with(write_response(whole, &head().ids, 9));
        let deltas = deltas(&message, size);
        let chunks = deltas.iter().map(|delta| json!({"choices": [{"index": 0, "delta": delta}]}));
        let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
        let chunks: Vec<Value> =
            chunks.chain([end, json!({"choices": [], "usage": usage})]).collect();
        let (events, response) = streamed(&chunks);
        check_stream(&events, &response);
        let whole = serde_json::to_value(&whole).unwrap();
        prop_assert_eq!(&serde_json::to_value(&response).unwrap(), &whole);
        check_replay(&whole);
        let again: Vec<Item> = serde_json::from_value(whole["output"].clone()).unwrap();
        let again = crate::responses::conversation(again);
        prop_assert_eq!(again, vec![message]);
    }
}

#[test]
fn input_of_other_kinds_is_rejected_by_name() {
    let user = |part: Value| with_items(json!([{"role": "user", "content": [part]}]));
    let more = |more: Value| {
        let mut body = with_items(json!([{"role": "user", "content": "hi"}]));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let types =
        "message, function_call, function_call_output, reasoning, item_reference, compaction";
    for (body, message) in [
        (
            more(json!({"tools": [{"type": "web_search"}]})),
            "tools[0].type 'web_search' is not supported: only tools of the type function are",
        ),
        (more(json!({"tools": [{"name": "f"}]})), "tools[0].type is required"),
        (
            more(json!({"tool_choice": {"type": "file_search"}})),
            "tool_choice.type must be one of function, allowed_tools",
        ),
        (more(json!({"tool_choice": "any"})), "tool_choice must be one of none, auto, required"),
        (
            with_items(json!([{"type": "computer_call"}])),
            &format!("input[0].type must be one of {types}"),
        ),
        (with_items(json!([])), "input must not be empty"),
        (with_items(json!([{"content": "hi"}])), "input[0].role is required"),
        (with_items(json!([{"role": "user"}])), "input[0].content is required"),
        (
            user(json!({"type": "input_file", "file_id": "x"})),
            "input[0].content[0].type must be one of input_text, input_image",
        ),
        (
            user(json!({"type": "input_image", "file_id": "x"})),
            "input[0].content[0].image_url is required",
        ),
        (json!({"model": "m"}), "input is required"),
        (more(json!({"metadata": {"a": 1}})), "metadata.a must be a string"),
        (more(json!({"temperature": 3})), "temperature must be a number from 0 to 2"),
    ] {
        assert_eq!(wire(body.clone()).unwrap_err(), message, "{body}");
    }
}

#[test]
fn items_of_the_model_are_one_message_until_an_output() {
    let call =
        |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "ok"});
    let says = |text: &str| json!({"role": "assistant", "content": text});
    let reasoning = json!({
        "type": "reasoning", "summary": [], "encrypted_content": "reasoning_content:hm",
    });
    let roles = |messages: &Value| -> Vec<String> {
        let role = |message: &Value| message["role"].as_str().unwrap().to_owned();
        messages.as_array().unwrap().iter().map(role).collect()
    };
    let found = chat_of(json!([
        {"role": "developer", "content": "Be nice."}, {"role": "user", "content": "hi"},
        reasoning, says("Let me see."), call("a"), call("b"), output("a"), output("b"),
        says("So."), says("And so."),
    ]));
    let expected = ["system", "user", "assistant", "tool", "tool", "assistant", "assistant"];
    assert_eq!(roles(&found), expected);
    assert_eq!(found[2]["reasoning_content"], "hm");
    assert_eq!(found[2]["content"], "Let me see.");
    assert_eq!(found[2]["tool_calls"][1]["id"], "b");
    let late = chat_of(json!([call("a"), says("late"), output("a")]));
    assert_eq!(roles(&late), ["assistant", "tool"]);
    assert_eq!(late[0]["content"], "late");
}

#[test]
fn settings_select_the_fields_of_chat() {
    let body = json!({
        "model": "m", "input": "hi", "instructions": "Be nice.",
        "tools": [
            {"type": "function", "name": "a", "parameters": null}, {"type": "function", "name": "b"},
        ],
        "tool_choice": {
            "type": "allowed_tools", "mode": "required",
            "tools": [{"type": "function", "name": "b"}],
        },
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "reasoning": {"effort": "none"}, "safety_identifier": "u",
    });
    let sent = write(&request_of(body), ModelServer::Own);
    let empty = json!({"type": "object", "properties": {}});
    let tool = json!({"type": "function", "function": {"name": "b", "parameters": empty}});
    let expected = json!({
        "model": "m", "messages": [{"role": "system", "content": "Be nice."}],
        "tools": [tool], "tool_choice": "required", "response_format": {"type": "json_object"},
        "verbosity": "low", "reasoning_effort": "none", "user": "u",
        "chat_template_kwargs": {"enable_thinking": false},
    });
    assert_eq!(sent, expected);
    let image = json!({"type": "input_image", "image_url": "data:x", "detail": "low"});
    let content = json!([image]);
    let found = chat_of(json!([{"role": "user", "content": content}]));
    let url = json!({"url": "data:x", "detail": "low"});
    assert_eq!(found[0]["content"], json!([{"type": "image_url", "image_url": url}]));
    let silent = write(
        &request_of(with_items(json!([{"role": "user", "content": "hi"}]))),
        ModelServer::Own,
    );
    assert!(silent.get("chat_template_kwargs").is_none(), "the model decides");
}

#[test]
fn response_reports_why_it_ended() {
    let whole = |choice: Value| {
        let answer = json!({"choices": [choice]});
        let answer = read_answer(answer.to_string().as_bytes()).unwrap();
        write_response(answer, &head().ids, 9)
    };
    let said = |finish: &str| json!({"message": {"content": "a"}, "finish_reason": finish});
    for (choice, status, reason) in [
        (said("stop"), Status::Completed, None),
        (said("length"), Status::Incomplete, Some("max_output_tokens")),
        (said("content_filter"), Status::Incomplete, Some("content_filter")),
        (json!({"message": {"refusal": "no"}, "finish_reason": "stop"}), Status::Completed, None),
    ] {
        let response = whole(choice.clone());
        assert_eq!(response.status, status, "{choice}");
        assert_eq!(response.incomplete_details.map(|details| details.reason), reason);
        assert_eq!(response.completed_at.is_some(), status == Status::Completed);
    }
    let call = json!({"function": {"name": "f", "arguments": "{}"}});
    let response = whole(json!({"message": {"tool_calls": [call]}, "finish_reason": "stop"}));
    let output = serde_json::to_value(&response.output).unwrap();
    assert_eq!((&output[0]["id"], &output[0]["call_id"]), (&json!("fc_7_0"), &json!("call_7_0")));
}

#[test]
fn response_stream_keeps_mixed_calls_apart() {
    let begin = |index: u64| {
        let call = json!({"index": index, "function": {"name": "f", "arguments": ""}});
        json!({"choices": [{"delta": {"tool_calls": [call]}}]})
    };
    let more = |index: u64, text: &str| {
        let call = json!({"index": index, "function": {"arguments": text}});
        json!({"choices": [{"delta": {"tool_calls": [call]}}]})
    };
    let says = json!({"choices": [{"delta": {"content": "a"}}]});
    let no = json!({"choices": [{"delta": {"refusal": "no"}}]});
    let (events, response) = streamed(&[
        says.clone(),
        no,
        begin(0),
        begin(1),
        more(0, "{"),
        more(1, "[]"),
        more(0, "}"),
        says,
    ]);
    check_stream(&events, &response);
    let output = serde_json::to_value(&response.outcome.output).unwrap();
    assert_eq!(output[0]["content"][1], json!({"type": "refusal", "refusal": "no"}));
    assert_eq!((&output[1]["arguments"], &output[2]["arguments"]), (&json!("{}"), &json!("[]")));
    assert_eq!(output[3]["content"][0]["text"], "a");
}

#[test]
fn response_stream_that_fails_keeps_what_was_said() {
    let error = json!({"error": {"type": "rate_limit_error", "message": "slow down"}});
    let says = json!({"choices": [{"delta": {"content": "a"}}]});
    let (events, response) = streamed(&[says, error]);
    let names: Vec<&str> = events.iter().map(|event| event.kind.name()).collect();
    assert_eq!(names[names.len() - 2..], ["error", "response.failed"]);
    let numbers: Vec<u64> = events.iter().map(|event| event.sequence_number).collect();
    assert!(numbers.is_sorted_by(|a, b| a + 1 == *b), "{numbers:?}");
    let failed = serde_json::to_value(&response).unwrap();
    assert_eq!(failed["error"], json!({"code": "rate_limit_exceeded", "message": "slow down"}));
    assert_eq!((&failed["status"], &failed["usage"]), (&json!("failed"), &json!(null)));
    let item = &failed["output"][0];
    assert_eq!((&item["status"], &item["content"][0]["text"]), (&json!("incomplete"), &json!("a")));
}

#[test]
fn response_has_every_field_of_the_schema() {
    let response = serde_json::to_value(head().with(begun(Status::Queued))).unwrap();
    for field in [
        "id",
        "object",
        "created_at",
        "completed_at",
        "status",
        "error",
        "incomplete_details",
        "instructions",
        "max_output_tokens",
        "model",
        "output",
        "parallel_tool_calls",
        "previous_response_id",
        "reasoning",
        "store",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_p",
        "truncation",
        "usage",
        "user",
        "metadata",
        "background",
        "service_tier",
        "presence_penalty",
        "frequency_penalty",
        "top_logprobs",
        "max_tool_calls",
        "safety_identifier",
        "prompt_cache_key",
    ] {
        assert!(response.get(field).is_some(), "{field}");
    }
}

#[test]
fn response_stream_ignores_arguments_of_unknown_calls() {
    let mut sent = Vec::new();
    let late = Event::ToolArguments { call: 3, text: "{}".to_owned() };
    assert!(Writer::new(head()).event(late, &mut sent).is_none());
    assert!(sent.is_empty());
}
