//! JSON Schemas that constrain a local model's answers and tool calls: references, patterns, and
//! schemas made to exhaust memory or time.

use std::time::Duration;

use orrery_runtime as runtime;
use serde_json::{Value, json};

use crate::support::{Service, gguf};

async fn service() -> Service {
    let service = Service::start().await;
    gguf::write(&service.models().join("small.gguf"), &gguf::SMALL, "Small", 7);
    let runner = "type = 'llm'\nfile = 'small.gguf'\nthreads = 1\ncontext = 65536\nparallel = 1";
    service.manifest(&format!("slug = 'small'\n[runner]\n{runner}\n"));
    service
}

fn ask(more: Value) -> Value {
    let mut body = json!({"model": "small", "max_tokens": 1500, "seed": 3,
        "messages": [{"role": "user", "content": "x"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn format(schema: &Value, is_strict: bool) -> Value {
    json!({"response_format": {"type": "json_schema",
        "json_schema": {"name": "x", "strict": is_strict, "schema": schema}}})
}

async fn message(service: &Service, more: Value) -> Value {
    let answer = service.post("/v1/chat/completions", &ask(more)).send().await.expect(200);
    answer["choices"][0]["message"].clone()
}

async fn refused(service: &Service, more: Value) -> Value {
    service.post("/v1/chat/completions", &ask(more)).send().await.expect(400)["error"].clone()
}

/// Returns the schema of a nested model as written by Pydantic.
fn nested() -> Value {
    json!({"type": "object", "required": ["a", "b"], "additionalProperties": false,
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}},
        "$defs": {"A": {"type": "object", "required": ["x"], "additionalProperties": false,
            "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}}}}})
}

fn tool(name: &str, parameters: &Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

#[tokio::test]
async fn schema_with_references_constrains_answers_and_tool_calls() {
    let service = service().await;
    let message_of = message(&service, format(&nested(), true)).await;
    let value: Value = serde_json::from_str(message_of["content"].as_str().unwrap()).unwrap();
    assert!(jsonschema::is_valid(&nested(), &value), "{value}");
    // A tool whose schema cannot be enforced does not affect the other tools.
    let broken = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/Nowhere"}}});
    let tools = json!([tool("broken", &broken), tool("save", &nested())]);
    let choice = |name: &str| json!({"type": "function", "function": {"name": name}});
    let more = json!({"tools": tools, "tool_choice": choice("save"), "parallel_tool_calls": false});
    let called = message(&service, more.clone()).await;
    let arguments = called["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert!(jsonschema::is_valid(&nested(), &arguments), "{arguments}");
    let more = json!({"tools": tools, "max_tokens": 5});
    assert!(message(&service, more).await["content"].is_string());
    // If the tool is strict, the error names its location.
    let mut strict = tools;
    strict[0]["function"]["strict"] = true.into();
    let error = refused(&service, json!({"tools": strict})).await;
    assert_eq!(error["param"], "tools[0].function.parameters");
    let said = error["message"].as_str().unwrap();
    assert!(said.contains("#/$defs/Nowhere"), "{said}");
}

#[tokio::test]
async fn schema_beside_tools_constrains_answers_and_tools_stay_callable() {
    let service = service().await;
    let only = |values: Value| json!({"type": "object", "required": ["d"], "additionalProperties": false, "properties": {"d": {"enum": values}}});
    let tools = json!([tool("f", &only(json!(["c"])))]);
    let named = json!({"type": "function", "function": {"name": "f"}});
    // The biased token is the first letter of a tool call, and of an answer in the format.
    let bias =
        |letter: char| json!({(259 + u32::from(letter) - u32::from('!') + 1).to_string(): 100});
    for format in
        [format(&only(json!(["a"])), true), json!({"response_format": {"type": "json_object"}})]
    {
        for (choice, first, is_call) in [
            (json!("required"), '{', true),
            (named.clone(), '{', true),
            (json!("auto"), '<', true),
            (json!("auto"), '{', false),
            (json!("none"), '<', false),
        ] {
            let mut more = json!({"tools": tools, "tool_choice": choice, "logit_bias": bias(first),
                "parallel_tool_calls": false, "max_tokens": 300});
            more["response_format"] = format["response_format"].clone();
            let message = message(&service, more).await;
            let name = &message["tool_calls"][0]["function"]["name"];
            assert_eq!(*name == "f", is_call, "{choice} {first}: {message}");
            assert_eq!(message["content"].is_null(), is_call, "{choice} {first}: {message}");
        }
    }
}

#[tokio::test]
async fn legacy_functions_are_called_like_tools() {
    let service = service().await;
    let function = json!({"name": "f", "parameters": {"type": "object", "required": ["d"],
        "additionalProperties": false, "properties": {"d": {"enum": ["c"]}}}});
    let more = json!({"functions": [function], "function_call": {"name": "f"}});
    let whole = service.post("/v1/chat/completions", &ask(more.clone())).send().await.expect(200);
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "function_call");
    let call = &choice["message"]["function_call"];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!((&call["name"], arguments), (&json!("f"), json!({"d": "c"})));
    assert!(choice["message"].get("tool_calls").is_none());
    let mut stream = more;
    stream["stream"] = true.into();
    let events = service.post("/v1/chat/completions", &ask(stream)).send().await.text;
    assert!(
        events.contains("\"function_call\":{\"name\":\"f\"") && !events.contains("tool_calls"),
        "{events}"
    );
    let none = message(
        &service,
        json!({"functions": [function], "function_call": "none", "max_tokens": 5}),
    )
    .await;
    assert!(none.get("function_call").is_none(), "{none}");
}

#[tokio::test]
async fn schema_patterns_are_enforced_or_rejected() {
    let service = service().await;
    let with = |property: Value| json!({"type": "object", "required": ["d"], "additionalProperties": false, "properties": {"d": property}});
    for property in [
        json!({"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"}),
        json!({"type": "string", "pattern": r"^[\w.-]{1,8}\s\/$"}),
        json!({"type": "string", "format": "uuid"}),
        json!({"type": "string", "format": "date-time"}),
        json!({"type": "number", "minimum": 0.5, "maximum": 2.25}),
        json!({"type": "string", "pattern": "^[a-z]+$", "minLength": 90, "maxLength": 120}),
    ] {
        let schema = with(property);
        let message = message(&service, format(&schema, true)).await;
        let value: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
        let options = jsonschema::options().should_validate_formats(true);
        let is_valid = options.build(&schema).unwrap().is_valid(&value);
        assert!(is_valid, "{message} for {schema}");
    }
    for (property, why) in [
        (json!({"type": "string", "pattern": "^(?!x)y$"}), "look-around"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
    ] {
        let error = refused(&service, format(&with(property), true)).await;
        assert_eq!(error["param"], "response_format.json_schema.schema");
        let said = error["message"].as_str().unwrap();
        assert!(said.contains(why) && said.contains("/properties/d"), "{said}");
    }
}

#[tokio::test]
async fn hostile_schema_costs_neither_time_nor_memory() {
    let service = service().await;
    message(&service, json!({"max_tokens": 1})).await;
    let resident = || {
        let model = service.running.services.catalog.get("small").unwrap();
        model.runner.local().unwrap().resident_bytes.unwrap()
    };
    let before = resident();
    let mut chain = json!({"$ref": "#/$defs/a0", "$defs": {"a40": {"type": "null"}}});
    for number in 0..40 {
        let next = json!({"$ref": format!("#/$defs/a{}", number + 1)});
        chain["$defs"][format!("a{number}")] = json!({"anyOf": [next, next]});
    }
    let properties = |count: u32, is_required: bool| {
        let names: Vec<String> = (0..count).map(|number| format!("p{number}")).collect();
        let all: serde_json::Map<String, Value> =
            names.iter().map(|name| (name.clone(), json!({"type": "null"}))).collect();
        let required = if is_required { names } else { Vec::new() };
        json!({"type": "object", "properties": all, "required": required})
    };
    // The prompt also contains the tools; the tokens of the test model are single letters.
    for (schema, answers) in [
        (json!({"type": "array", "items": {}, "minItems": 5, "maxItems": 2}), false),
        (chain, true),
        (properties(500, false), true),
        (properties(5_000, false), false),
        (properties(8_000, true), true),
    ] {
        for of_tool in [false, true] {
            let more = if of_tool {
                let mut tool = tool("f", &schema);
                tool["function"]["strict"] = true.into();
                json!({"tools": [tool], "tool_choice": "required"})
            } else {
                format(&schema, false)
            };
            let mut body = ask(more);
            body["max_tokens"] = 20.into();
            let begun = runtime::monotonic_now();
            let answer = service.post("/v1/chat/completions", &body).send().await;
            let took = begun.elapsed();
            // This takes a second on an idle machine; a check whose time grows exponentially would
            // take years.
            assert!(took < Duration::from_secs(120), "{took:?}");
            if answer.status == 200 {
                assert!(answers, "{schema}");
            } else {
                let answer = answer.expect(400);
                let said = answer["error"]["message"].as_str().unwrap();
                let words = ["minItems", "optional", "too large", "bytes", "shorten"];
                assert!(words.iter().any(|word| said.contains(word)), "{said}");
            }
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 100 * 1024 * 1024, "{grown} bytes");
}
