//! Local language models: a file with random weights, chat, predictions, and recovery after a
//! model's process has exited.

use http_body_util::BodyExt;
use orrery_http::event_stream::EventReader;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Service, gguf, signal, until};

const PRICE: &str = "[cost]\ntype = 'usage_based'\nper_million_input_tokens = 100.0\n\
                     per_million_output_tokens = 1000.0\n";

/// Starts a service with one model, `small`.
async fn service(more: &str) -> Service {
    let service = Service::start().await;
    gguf::write(&service.models().join("small.gguf"), &gguf::SMALL, "Small", 7);
    service.manifest(&manifest("small", "small.gguf", more));
    service
}

fn manifest(slug: &str, file: &str, more: &str) -> String {
    format!(
        "slug = '{slug}'\n{PRICE}[runner]\ntype = 'llm'\nfile = '{file}'\nthreads = 1\n{more}\n"
    )
}

fn ask(content: &str, more: Value) -> Value {
    let mut body = json!({"model": "small", "max_tokens": 20, "seed": 11,
        "messages": [{"role": "user", "content": content}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn chat(service: &Service, body: Value) -> Value {
    service.post("/v1/chat/completions", &body).send().await.expect(200)
}

/// Returns the events of a stream, and whether it ended with `[DONE]`.
async fn streamed(service: &Service, mut body: Value) -> (Vec<Value>, bool) {
    body["stream"] = true.into();
    let answer = service.post("/v1/chat/completions", &body).open().await;
    assert_eq!(answer.status(), 200);
    let mut reader = EventReader::new(1 << 20);
    let mut events = Vec::new();
    let mut stream = answer.into_body();
    while let Some(frame) = stream.frame().await {
        reader.push(&frame.unwrap().into_data().unwrap());
        while let Some(event) = reader.next_event().unwrap() {
            let Some(data) = event.data else { continue };
            if data == "[DONE]" {
                return (events, true);
            }
            events.push(serde_json::from_slice(&data).unwrap());
        }
    }
    (events, false)
}

fn text_of(events: &[Value]) -> String {
    let parts = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    parts.collect()
}

#[tokio::test]
async fn llm_answers_are_equal_for_same_seed_whole_and_streamed() {
    let service = service("").await;
    let whole = chat(&service, ask("hello", json!({}))).await;
    let choice = &whole["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(!text.is_empty());
    assert_eq!(whole["model"], "small");
    // "<s>user: hello\nassistant: " in single characters: the leading space, 24 characters, and the
    // BOS token.
    let usage = &whole["usage"];
    assert!(usage["completion_tokens"].as_u64().unwrap() <= 20);
    let prompt = usage["prompt_tokens"].as_u64().unwrap();
    assert!((24..=27).contains(&prompt), "{usage}");
    let (events, done) =
        streamed(&service, ask("hello", json!({"stream_options": {"include_usage": true}}))).await;
    assert!(done);
    assert_eq!(text_of(&events), text);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let last = events.last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["prompt_tokens"]), (&json!([]), &json!(prompt)));
    let cost = prompt as f64 * 1e-4 + usage["completion_tokens"].as_f64().unwrap() * 1e-3;
    assert!((usage["cost"].as_f64().unwrap() - cost).abs() < 2e-6, "{usage}, not {cost}");
    let other = chat(&service, ask("hello", json!({"seed": 12}))).await;
    assert_ne!(other["choices"][0]["message"]["content"], text);
    let greedy = ask("hello", json!({"temperature": 0, "seed": null}));
    let first = chat(&service, greedy.clone()).await["choices"].clone();
    assert_eq!(first, chat(&service, greedy).await["choices"]);
}

#[tokio::test]
async fn llm_follows_sampling_parameters() {
    let service = service("").await;
    let whole = chat(&service, ask("x", json!({"n": 3, "max_tokens": 5}))).await;
    let texts: Vec<&Value> =
        whole["choices"].as_array().unwrap().iter().map(|one| &one["message"]["content"]).collect();
    assert_eq!(texts.len(), 3);
    assert!(texts[0] != texts[1] || texts[1] != texts[2], "{texts:?}");
    // The letter z is token 259 + 'z' - '!' + 1; with a bias of 100, the model always samples it.
    let z = 259 + u32::from('z') - u32::from('!') + 1;
    let biased =
        chat(&service, ask("x", json!({"logit_bias": {z.to_string(): 100}, "max_tokens": 4})))
            .await;
    assert_eq!(biased["choices"][0]["message"]["content"], "zzzz");
    assert_eq!(biased["choices"][0]["finish_reason"], "length");
    let stop = json!({"logit_bias": {z.to_string(): 100}, "stop": ["zzz"]});
    let stopped = chat(&service, ask("x", stop)).await;
    assert_eq!(stopped["choices"][0]["message"]["content"], "");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let likely =
        chat(&service, ask("x", json!({"logprobs": true, "top_logprobs": 4, "max_tokens": 3})))
            .await;
    let content = likely["choices"][0]["logprobs"]["content"].as_array().unwrap();
    for token in content {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 4);
        assert!(
            top.windows(2).all(|pair| pair[0]["logprob"].as_f64() >= pair[1]["logprob"].as_f64())
        );
        let sum: f64 = top.iter().map(|one| one["logprob"].as_f64().unwrap().exp()).sum();
        assert!(sum <= 1.0001, "{sum}");
    }
}

#[tokio::test]
async fn llm_refusals_name_the_field() {
    let service = service("context = 256").await;
    for (more, param, code) in [
        (
            json!({"messages": [{"role": "user", "content": "x".repeat(300)}]}),
            "messages",
            "context_length_exceeded",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b"}}]}]}),
            "messages[0].content",
            "invalid_value",
        ),
        (json!({"min_p": 2}), "min_p", "invalid_value"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}}),
            "response_format.json_schema.schema",
            "invalid_value",
        ),
        // The pattern describes 6,561 characters, each of which is optional.
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema":
                {"type": "string", "pattern": "^((((a?){9}){9}){9}){9}$"}}}}),
            "response_format.json_schema.schema",
            "invalid_value",
        ),
    ] {
        let refused = service.post("/v1/chat/completions", &ask("x", more)).send().await;
        let error = refused.expect(400)["error"].clone();
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!(code)), "{error}");
        if code == "context_length_exceeded" {
            let message = error["message"].as_str().unwrap();
            assert!(
                message.contains("has 256 tokens") && message.contains("the prompt has 3"),
                "{message}"
            );
        }
    }
    let vectors = service.post("/v1/embeddings", &json!({"model": "small", "input": "x"}));
    vectors.send().await.expect(400);
}

/// Returns random nested schemas of all kinds.
fn schema(random: &mut u64, depth: u32) -> Value {
    let mut next = |below: u64| {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*random >> 33) % below
    };
    match next(if depth == 0 { 5 } else { 8 }) {
        0 => json!({"type": "integer", "minimum": 0, "maximum": next(1000)}),
        1 => json!({"type": "boolean"}),
        2 => json!({"type": "string", "maxLength": 1 + next(8)}),
        3 => json!({"enum": ["a", 5, null, "b c"]}),
        4 => json!({"const": {"x": [1, "y"]}}),
        5 => {
            json!({"type": "array", "items": schema(random, depth - 1), "minItems": 1, "maxItems": 3})
        }
        6 => json!({"anyOf": [schema(random, depth - 1), {"type": "null"}]}),
        _ => {
            let first = schema(random, depth - 1);
            let second = schema(random, depth - 1);
            json!({"type": "object", "properties": {"first": first, "second": second},
                "required": ["first"], "additionalProperties": false})
        }
    }
}

#[tokio::test]
async fn llm_answer_by_json_schema_always_validates() {
    let service = service("").await;
    let mut random = 5;
    for number in 0..200 {
        let object = json!({"type": "object", "properties": {"value": schema(&mut random, 2)},
            "required": ["value"], "additionalProperties": false});
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": object}});
        let more = json!({"response_format": format, "max_tokens": 1500, "seed": number});
        let whole = chat(&service, ask("give me some", more)).await;
        let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(text)
            .unwrap_or_else(|error| panic!("{error}: {text}\nfor {object}\n{whole}"));
        assert!(jsonschema::is_valid(&object, &value), "{value} for {object}");
    }
}

#[tokio::test]
async fn llm_tool_calls_follow_their_schema() {
    let service = service("").await;
    let parameters = json!({"type": "object", "properties": {
        "city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": false});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let tools = json!([tool("weather"), tool("tides")]);
    for (choice, names) in [
        (json!("required"), &["weather", "tides"][..]),
        (json!({"type": "function", "function": {"name": "tides"}}), &["tides"][..]),
    ] {
        let more = json!({"tools": tools, "tool_choice": choice, "max_tokens": 600, "parallel_tool_calls": false});
        let whole = chat(&service, ask("what now?", more.clone())).await;
        let choice = &whole["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        let function = &calls[0]["function"];
        assert!(names.contains(&function["name"].as_str().unwrap()));
        let arguments: Value =
            serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        assert!(jsonschema::is_valid(&parameters, &arguments), "{arguments}");
        let (events, _) = streamed(&service, ask("what now?", more)).await;
        let delta =
            events.iter().find_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array());
        assert_eq!(delta.unwrap()[0]["function"], *function);
    }
    let none = json!({"tools": tools, "tool_choice": "none"});
    let whole = chat(&service, ask("what now?", none)).await;
    assert_eq!(whole["choices"][0]["message"]["tool_calls"], Value::Null);
}

#[tokio::test]
async fn llm_model_runs_predictions_and_workflow_steps() {
    let service = service("").await;
    let id = service.create("small", json!({"prompt": "hello", "max_tokens": 8, "seed": 3})).await;
    let ended = service.ended(&id).await;
    assert_eq!(ended["status"], "success", "{ended}");
    let text = ended["output"].as_str().unwrap();
    let workflow = service
        .workflow(json!([{"step_id": "say", "type": "model", "model": "small",
            "params": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "seed": 3}}]))
        .await;
    let execution = service.trigger(&workflow, json!({"inputs": {}})).await;
    let completed = service.completed(&execution).await;
    assert!(completed.to_string().contains(&json!(text).to_string()), "{completed}");
}

#[tokio::test]
async fn llm_answer_without_limit_ends_with_the_context() {
    let service = service("context = 64").await;
    let z = 259 + u32::from('z') - u32::from('!') + 1;
    for field in ["max_tokens", "max_completion_tokens"] {
        let more = json!({"logit_bias": {z.to_string(): 100}, "max_tokens": null, field: -1});
        let mut body = ask("x", more);
        if body["max_tokens"].is_null() {
            body.as_object_mut().unwrap().remove("max_tokens");
        }
        let choice = chat(&service, body.clone()).await["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "length");
        let text = choice["message"]["content"].as_str().unwrap();
        assert!((20..64).contains(&text.len()), "{text}");
        body.as_object_mut().unwrap().remove("model");
        let id = service.create("small", body).await;
        let ended = service.ended(&id).await;
        assert_eq!((&ended["status"], &ended["output"]), (&json!("success"), &json!(text)));
    }
}

#[tokio::test]
async fn llm_text_lengths_count_characters() {
    let service = service("").await;
    // The tokens of é, ß, 🌙 and 月, which follow the tokens of visible ASCII.
    let first = 259 + u32::from('~') - u32::from('!') + 2;
    let bias: Value = (first..first + 4).map(|token| (token.to_string(), json!(90))).collect();
    for length in [1, 3, 40] {
        let text = json!({"type": "string", "minLength": length, "maxLength": length});
        let schema = json!({"type": "object", "required": ["t"], "properties": {"t": text}});
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let more = json!({"response_format": format, "logit_bias": bias, "max_tokens": 300});
        let whole = chat(&service, ask("x", more)).await;
        let content = whole["choices"][0]["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(content).unwrap();
        let text = value["t"].as_str().unwrap();
        assert_eq!(text.chars().count(), length, "{content}");
        assert!(!text.is_ascii(), "{content}");
    }
}

#[tokio::test]
async fn llm_file_without_manifest_is_a_model() {
    let service = Service::start().await;
    gguf::write(&service.models().join("My_Model.Q8_0.gguf"), &gguf::SMALL, "My model", 7);
    std::fs::write(service.models().join("broken.gguf"), "GGUF and no more").unwrap();
    let _report = service.running.services.catalog.reload();
    let model = service.get("/v1/models/my-model.q8-0").await.expect(200);
    assert_eq!((&model["title"], &model["output_type"]), (&json!("My model"), &json!("string")));
    let body = json!({"model": "my-model.q8-0", "max_tokens": 3, "messages": [{"role": "user", "content": "x"}]});
    chat(&service, body).await;
    let body = json!({"model": "broken", "messages": [{"role": "user", "content": "x"}]});
    let refused = service.post("/v1/chat/completions", &body).send().await.expect(503);
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("broken.gguf is GGUF of version"), "{message}");
    assert!(message.contains("the model 'broken'"), "{message}");
}

/// Starts a service whose model `small` has its own chat template.
async fn with_template(template: &str) -> Service {
    let service = Service::start().await;
    gguf::write(&service.models().join("small.gguf"), &gguf::SMALL, "Small", 7);
    std::fs::write(service.models().join("own.jinja"), template).unwrap();
    service.manifest(&manifest("small", "small.gguf", "chat_template = 'own.jinja'"));
    service
}

#[tokio::test]
async fn llm_thinking_opened_by_template_is_reasoning_content() {
    let service = with_template("{{ messages[0].content }}\nassistant:\n<think>\n").await;
    let z = 259 + u32::from('z') - u32::from('!') + 1;
    let body = ask("x", json!({"logit_bias": {z.to_string(): 100}, "max_tokens": 4}));
    let whole = chat(&service, body.clone()).await;
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("zzzz"), &json!("")));
    let (events, _) = streamed(&service, body).await;
    let deltas = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["reasoning_content"].as_str());
    assert_eq!((deltas.collect::<String>(), text_of(&events)), ("zzzz".to_owned(), String::new()));
    let schema = json!({"type": "object", "required": ["a"], "additionalProperties": false,
                        "properties": {"a": {"type": "boolean"}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let bound =
        chat(&service, ask("x", json!({"response_format": format, "max_tokens": 60}))).await;
    let message = &bound["choices"][0]["message"];
    let content: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
    assert!(content["a"].is_boolean() && message.get("reasoning_content").is_none(), "{message}");
}

#[tokio::test]
async fn llm_required_calls_are_parsed_in_form_of_each_family() {
    let parameters = json!({"type": "object", "required": ["city"], "additionalProperties": false,
        "properties": {"city": {"enum": ["Rome", "Oslo"]}}});
    let tool =
        json!({"type": "function", "function": {"name": "weather", "parameters": parameters}});
    for template in [
        include_str!("../templates/deepseek_r1.jinja"),
        include_str!("../templates/deepseek_v3.jinja"),
        include_str!("../templates/kimi.jinja"),
        include_str!("../templates/gpt_oss.jinja"),
        include_str!("../templates/lfm2.jinja"),
        include_str!("../templates/mistral_small.jinja"),
        include_str!("../templates/qwen3.jinja"),
    ] {
        let service = with_template(template).await;
        for choice in
            [json!("required"), json!({"type": "function", "function": {"name": "weather"}})]
        {
            for is_parallel in [false, true] {
                let more = json!({"tools": [tool], "tool_choice": choice, "max_tokens": 400,
                    "parallel_tool_calls": is_parallel});
                let whole = chat(&service, ask("what now?", more)).await;
                let choice = &whole["choices"][0];
                assert_eq!(choice["finish_reason"], "tool_calls", "{choice}: {template}");
                let calls = choice["message"]["tool_calls"].as_array().unwrap();
                assert!(is_parallel || calls.len() == 1, "{choice}");
                for call in calls {
                    assert_eq!(call["function"]["name"], "weather");
                    let text = call["function"]["arguments"].as_str().unwrap();
                    let arguments: Value = serde_json::from_str(text).unwrap();
                    assert!(jsonschema::is_valid(&parameters, &arguments), "{arguments}");
                }
            }
        }
    }
}

#[tokio::test]
async fn llm_control_tokens_in_messages_are_text() {
    let service = service("").await;
    let tokens = async |content: &str| {
        let answer = chat(&service, ask(content, json!({"max_tokens": 1}))).await;
        answer["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    for hostile in ["</s>", "a<s>b", "</s></s>"] {
        let harmless = "x".repeat(hostile.len());
        assert_eq!(tokens(hostile).await, tokens(&harmless).await, "{hostile}");
    }
}

#[tokio::test]
async fn llm_template_that_cannot_be_parsed_is_reported() {
    for (template, expected) in [("{% if %}", true), ("{{ messages[0].content }}", false)] {
        let service = with_template(template).await;
        chat(&service, ask("x", json!({}))).await;
        let model = service.running.services.catalog.get("small").unwrap();
        let complaint = model.complaint().unwrap_or_default();
        assert_eq!(complaint.ends_with("ChatML is used"), expected, "{complaint}");
        assert_eq!((model.health_word(), model.failing()), ("ok", None));
    }
}

/// Returns the process id of the only loaded model.
async fn process_of(service: &Service) -> u32 {
    let own = std::process::id();
    let file = service.models().join("small.gguf");
    until("process", async || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let mut ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.find(|id| {
            let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let is_ours = line.contains("llm-worker") && line.contains(&format!("\0{own}\0"));
            is_ours && line.contains(file.to_str().unwrap())
        })
    })
    .await
}

#[tokio::test]
async fn llm_killed_process_loses_only_its_answers() {
    let service = service("").await;
    let z = 259 + u32::from('z') - u32::from('!') + 1;
    let long = json!({"logit_bias": {z.to_string(): 100}, "max_tokens": 1900, "stream": true});
    let answer = service.post("/v1/chat/completions", &ask("x", long)).open().await;
    let execution = answer.headers()["x-execution-id"].to_str().unwrap().to_owned();
    let mut stream = answer.into_body();
    let _first = stream.frame().await.unwrap().unwrap();
    assert!(signal(process_of(&service).await, Signal::KILL));
    let mut rest = String::new();
    while let Some(Ok(frame)) = stream.frame().await {
        rest.push_str(&String::from_utf8_lossy(&frame.into_data().unwrap()));
    }
    assert!(rest.contains("\"error\"") && !rest.contains("[DONE]"), "{rest}");
    // The next request starts a new process, and the ledger contains the tokens sent by the first
    // one.
    chat(&service, ask("x", json!({"max_tokens": 2}))).await;
    let rows = service.get("/v2/executions?type=chat").await.expect(200);
    let rows = rows["executions"].as_array().unwrap();
    let row = rows.iter().find(|row| row["id"] == execution.as_str());
    let row = row.expect("its row");
    assert_eq!(
        (&row["status"], &row["error_classification"]),
        (&json!("error"), &json!("provider_error"))
    );
    let cause = row["error_cause"].as_str().unwrap();
    assert!(cause.contains("its process ended (signal: 9 (SIGKILL)"), "{cause}");
    let charges = service.ledger().await.len();
    assert_eq!(charges, 2, "one for each");
}

#[tokio::test]
async fn llm_client_that_disconnects_stops_its_answer_at_once() {
    let service = service("parallel = 1").await;
    let z = 259 + u32::from('z') - u32::from('!') + 1;
    let long = json!({"logit_bias": {z.to_string(): 100}, "max_tokens": 1900, "stream": true});
    let answer = service.post("/v1/chat/completions", &ask("x", long)).open().await;
    let mut stream = answer.into_body();
    let _first = stream.frame().await.unwrap().unwrap();
    drop(stream);
    // The only sequence becomes free long before 1,900 tokens could be generated.
    chat(&service, ask("y", json!({"max_tokens": 1}))).await;
    let rows = service.get("/v2/executions?type=chat&limit=10").await.expect(200);
    let cancelled = rows["executions"].as_array().unwrap();
    let cancelled = cancelled.iter().find(|row| row["status"] == "cancelled").expect("cancelled");
    assert!(cancelled["chat"]["output_tokens"].as_u64().unwrap() < 1900, "{cancelled}");
}

#[tokio::test]
async fn llm_all_answers_complete_with_fewer_sequences() {
    let service = service("parallel = 2\ncontext = 512").await;
    let asking = (0..8).map(|number| {
        let more = json!({"max_tokens": 200, "seed": number, "temperature": 1.5});
        chat(&service, ask("a longer beginning that all of them have in common", more))
    });
    let answers = futures_util::future::join_all(asking).await;
    for answer in answers {
        let reason = answer["choices"][0]["finish_reason"].as_str().unwrap();
        assert!(["length", "stop"].contains(&reason));
    }
}

#[tokio::test]
async fn llm_idle_model_is_unloaded() {
    let service = service("idle_unload = '1s'").await;
    chat(&service, ask("x", json!({"max_tokens": 1}))).await;
    let model = service.running.services.catalog.get("small").unwrap();
    let local = || model.runner.local().unwrap();
    assert!(local().resident_bytes.unwrap() > 1_000_000);
    assert_eq!((local().context, local().quantization), (Some(2048), Some("F32")));
    until("unloaded", async || local().resident_bytes.is_none().then_some(())).await;
    chat(&service, ask("x", json!({"max_tokens": 1}))).await;
    assert!(local().resident_bytes.is_some());
}

#[tokio::test]
async fn llm_stops_with_the_service() {
    let service = service("load = 'at_start'").await;
    let id = process_of(&service).await;
    let service = service.restart().await;
    let folder = format!("/proc/{id}");
    until("end", async || (!std::path::Path::new(&folder).exists()).then_some(())).await;
    assert_ne!(process_of(&service).await, id);
}

#[tokio::test]
async fn llm_models_share_memory_budget() {
    // Each model takes about 260 MiB, so two fit into memory.
    let service = Service::configured("limits.model_memory_bytes = '600MiB'\n").await;
    let names = ["one", "two", "three"];
    for (name, seed) in names.iter().zip(1..) {
        let file = service.models().join(format!("{name}.gguf"));
        gguf::write(&file, &gguf::SMALL, name, seed);
    }
    let _report = service.running.services.catalog.reload();
    let loaded = || {
        let catalog = &service.running.services.catalog;
        let is_loaded = |name: &&&str| {
            catalog.get(name).unwrap().runner.local().unwrap().resident_bytes.is_some()
        };
        names.iter().filter(is_loaded).copied().collect::<Vec<_>>()
    };
    let ask = async |name: &str| {
        let body =
            json!({"model": name, "max_tokens": 2, "messages": [{"role": "user", "content": "x"}]});
        service.post("/v1/chat/completions", &body).send().await.expect(200);
    };
    for (name, expected) in [
        ("one", &["one"][..]),
        ("two", &["one", "two"]),
        ("three", &["two", "three"]),
        ("two", &["two", "three"]),
        ("one", &["one", "two"]),
    ] {
        ask(name).await;
        assert_eq!(loaded(), expected, "after {name}");
    }
    // With concurrent requests, each waits for its turn, and all succeed.
    futures_util::future::join_all(names.iter().map(|name| ask(name))).await;
    assert!(loaded().len() <= 2);
}

#[tokio::test]
async fn llm_model_over_memory_budget_reports_its_need() {
    let service = Service::configured("limits.model_memory_bytes = '100MiB'\n").await;
    gguf::write(&service.models().join("small.gguf"), &gguf::SMALL, "Small", 1);
    let _report = service.running.services.catalog.reload();
    let refused = service.post("/v1/chat/completions", &ask("x", json!({}))).send().await;
    let error = refused.expect(503)["error"].clone();
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("it needs about 25"), "{message}");
    assert!(message.contains("100 MiB are free"), "{message}");
}
