//! Checks the OpenAPI documents with public tools from PyPI (`tests/openapi/requirements.txt`): a
//! validator, schemathesis, and a client generator.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Method;
use orrery_api::{Role, openapi_of};
use serde_json::{Value, json};

use crate::support::{Service, Upstream, installed};

/// The hosts with APIs.
const HOSTS: [Role; 4] = [Role::Base, Role::Workflows, Role::Flows, Role::Agent];
/// Time limit of each program.
const PATIENCE: Duration = Duration::from_secs(240);
/// The checks that schemathesis applies to every response.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_schema_conformance,unsupported_method,ignored_auth";
/// Requests per operation, in addition to the requests that test parameter boundaries.
const EXAMPLES: &str = "8";

/// Returns the command of an installed program, to run in the given folder.
fn program(name: &str, folder: &Path) -> tokio::process::Command {
    let programs: PathBuf = installed("openapi");
    let mut command = tokio::process::Command::new(programs.join(name));
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", programs.display()));
    command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(folder).kill_on_drop(true);
    command
}

/// Runs a program; panics if it fails.
async fn run(command: &mut tokio::process::Command) {
    let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}:\n{said}\n{errors}");
}

/// Writes the host's document to a file and returns its path.
async fn document(service: &Service, role: Role) -> PathBuf {
    let text = service.ask(role, Method::GET, "/openapi.json").send().await.text;
    let path = service.folder.path().join(format!("{}.json", role.as_str()));
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
#[ignore = "needs python3 and PyPI: run tests/run"]
async fn openapi_documents_are_valid() {
    let service = Service::start().await;
    for role in HOSTS.into_iter().chain([Role::Dashboard]) {
        let document = document(&service, role).await;
        run(program("openapi-spec-validator", service.folder.path()).arg(document)).await;
    }
}

/// Creates a resource of each kind, so that not every response is a 404. Returns the path
/// parameters that name the resources, per operation where they differ.
async fn furnish(service: &Service) -> String {
    let steps = json!([{"step_id": "a", "type": "model", "model": "text-template",
        "params": {"template": "x"}}]);
    let workflow = service.workflow(steps).await;
    let execution = service.trigger(&workflow, json!({})).await;
    service.completed(&execution).await;
    let prediction = service.create("text-template", json!({"template": "x"})).await;
    service.ended(&prediction).await;
    let form = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\
                Content-Type: text/plain\r\n\r\nx\r\n--b--\r\n";
    let sent = service.ask(Role::Base, Method::POST, "/v1/files").key(&service.key);
    let sent = sent.header("content-type", "multipart/form-data; boundary=b").body(form);
    let file = sent.send().await.expect(201)["id"].clone();
    let of_predictions = format!("{{ \"path.id\" = \"{prediction}\" }}");
    let of_files = format!("{{ \"path.id\" = {file} }}");
    format!(
        "[parameters]\n\"path.workflow\" = \"{workflow}\"\n\"path.version\" = \"v1\"\n\
         \"path.execution\" = \"{execution}\"\n\"path.slug\" = \"text-template\"\n\
         [[operations]]\ninclude-path-regex = \"^/v1/prediction/\"\n\
         parameters = {of_predictions}\n\
         [[operations]]\ninclude-path-regex = \"^/v1/files/\"\n\
         parameters = {of_files}\n"
    )
}

/// Starts an exchange of the agent; returns the parameters that name it.
async fn exchange(service: &Service) -> String {
    let prompt = json!({"message": "Hello", "session_id": "known"});
    let asked = service.ask(Role::Agent, Method::POST, "/chat").key(&service.key);
    let answer = asked.json(&prompt).send().await;
    let task = answer.headers["x-task-id"].to_str().unwrap();
    format!("[parameters]\n\"path.task\" = \"{task}\"\n\"query.session_id\" = \"known\"\n")
}

/// Removes the schemas of event streams. They describe the data of one event, but schemathesis
/// would apply them to the entire stream. Tests of the streams compare their data with these
/// schemas.
fn remove_schemas_of_streams(part: &mut Value) {
    match part {
        Value::Object(fields) => {
            if let Some(stream) = fields.get_mut("text/event-stream") {
                *stream = json!({});
            }
            fields.values_mut().for_each(remove_schemas_of_streams);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_schemas_of_streams),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Sends valid and invalid requests based on the document, and checks each response against it. The
/// agent's upstream always returns the same answer.
async fn examine(role: Role) {
    let up = Upstream::start().await;
    up.follows(|_request| {
        let message = json!({"role": "assistant", "content": "Done."});
        let usage = json!({"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10});
        let choices = json!([{"index": 0, "message": message, "finish_reason": "stop"}]);
        (200, json!({"choices": choices, "usage": usage}))
    });
    let agent = up.config("") + "[agent]\nmodel = 'far'\n";
    let more = if role == Role::Agent { agent } else { String::new() };
    let service = Service::configured(&more).await;
    let mut known = furnish(&service).await;
    if role == Role::Agent {
        known = known.replacen("[parameters]\n", &exchange(&service).await, 1);
    }
    let config = service.folder.path().join("known.toml");
    std::fs::write(&config, known).unwrap();
    let url = service.url(role).to_owned();
    let mut document = service.ask(role, Method::GET, "/openapi.json").send().await.expect(200);
    remove_schemas_of_streams(&mut document);
    let described = service.folder.path().join("openapi.json");
    std::fs::write(&described, document.to_string()).unwrap();
    let schemathesis = |phases: &str, config: Option<&Path>| {
        let mut command = program("schemathesis", service.folder.path());
        if let Some(config) = config {
            command.arg("--config-file").arg(config);
        }
        command.arg("run").arg(&described);
        command.args(["--url", &url, "--no-color", "--checks", CHECKS]);
        command.args(["--max-examples", EXAMPLES, "--generation-deterministic"]);
        command.args(["--phases", phases]);
        command.args(["--suppress-health-check", "all", "--request-timeout", "40"]);
        command.args(["--header", &format!("X-API-Key: {}", service.key)]);
        // DELETE requests would remove the resources that the other requests read.
        command.args(["--exclude-method", "DELETE"]);
        command
    };
    run(&mut schemathesis("examples,coverage", None)).await;
    // For the same reason, no request may archive or delete the workflow that other requests use.
    let mut known = schemathesis("examples,coverage,fuzzing", Some(&config));
    run(known.args(["--exclude-operation-id", "update_workflow"])).await;
}

#[tokio::test]
#[ignore = "needs python3 and PyPI: run tests/run"]
async fn openapi_base_host_passes_schemathesis() {
    examine(Role::Base).await;
}

#[tokio::test]
#[ignore = "needs python3 and PyPI: run tests/run"]
async fn openapi_workflows_host_passes_schemathesis() {
    examine(Role::Workflows).await;
}

#[tokio::test]
#[ignore = "needs python3 and PyPI: run tests/run"]
async fn openapi_flows_host_passes_schemathesis() {
    examine(Role::Flows).await;
}

#[tokio::test]
#[ignore = "needs python3 and PyPI: run tests/run"]
async fn openapi_agent_host_passes_schemathesis() {
    examine(Role::Agent).await;
}

/// `tests/openapi/client.py` uses a client generated from the documents.
#[tokio::test]
#[ignore = "needs python3 and PyPI: run tests/run"]
async fn openapi_generated_client_works() {
    let service = Service::start().await;
    let folder = service.folder.path();
    for role in [Role::Base, Role::Flows] {
        let document = document(&service, role).await;
        let mut generate = program("openapi-python-client", folder);
        generate.args(["generate", "--meta", "none", "--path"]);
        generate.arg(document).arg("--output-path").arg(folder.join(role.as_str()));
        run(&mut generate).await;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openapi/client.py");
    let url = |role| format!("http://{}", service.address(role));
    let mut client = program("python", folder);
    client.arg(script).args([url(Role::Base), url(Role::Flows), service.key.clone()]);
    run(client.env("PYTHONPATH", folder)).await;
    let rows = service.get("/v2/executions").await.expect(200);
    assert_ne!(rows["executions"], Value::from(Vec::<Value>::new()));
}

#[tokio::test]
async fn openapi_states_api_version_and_deprecations() {
    let service = Service::start().await;
    let mut documents = Vec::new();
    for role in HOSTS {
        let document = service.ask(role, Method::GET, "/openapi.json").send().await.expect(200);
        assert_eq!(document["info"]["version"], "1.0.0", "{role:?}");
        assert_eq!(document["info"]["x-orrery-version"], env!("CARGO_PKG_VERSION"), "{role:?}");
        documents.push(document);
    }
    let [base, workflows, flows, _agent] = documents.as_slice() else {
        panic!("a host is missing")
    };
    for (document, path, method, is_deprecated) in [
        (base, "/v1/model", "get", true),
        (base, "/v1/executions", "get", true),
        (base, "/v2/executions", "get", false),
        (base, "/v1/workflows", "post", false),
        (workflows, "/api/v1/workflows", "post", true),
        (workflows, "/api/v1/categories", "get", true),
        (workflows, "/health", "get", false),
        (flows, "/api/v1", "get", false),
    ] {
        let operation = &document["paths"][path][method];
        assert!(operation.is_object(), "{path}");
        assert_eq!(operation["deprecated"] == true, is_deprecated, "{method} {path}");
    }
    let version = |document: &Value| {
        document["components"]["schemas"]["Model"]["properties"]["version"]["deprecated"].clone()
    };
    assert_eq!(version(base), true);
    // Fields that are optional on the base host are not listed as required.
    for (schema, optional) in [("NewWorkflow", "description"), ("NewVersion", "version_id")] {
        let required = |document: &Value| {
            let schema = &document["components"]["schemas"][schema];
            assert!(schema["properties"][optional].is_object(), "{schema}");
            let required = schema["required"].as_array().unwrap().iter();
            (required.clone().any(|name| name == optional), required.len())
        };
        let (by_base, of_base) = required(base);
        let (by_workflows, of_workflows) = required(workflows);
        assert_eq!((by_base, by_workflows), (false, true), "{schema}");
        assert_eq!(of_base + 1, of_workflows, "{schema}");
    }
}

/// Client generators name types after components, and read a response as bytes only if it has a
/// dedicated media type.
#[tokio::test]
async fn openapi_names_each_variant_and_response_media_type() {
    let service = Service::start().await;
    let document = service.ask(Role::Base, Method::GET, "/openapi.json").send().await.expect(200);
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for (name, tag) in
        [("DecisionsQuestion", "type"), ("DecisionsAnswer", "type"), ("WaitingFor", "reason")]
    {
        let schema = &schemas[name];
        assert_eq!(schema["discriminator"]["propertyName"], tag, "{name}");
        let mapping = schema["discriminator"]["mapping"].as_object().unwrap();
        assert_eq!(mapping.len(), schema["oneOf"].as_array().unwrap().len(), "{name}");
        for (value, place) in mapping {
            let component = place.as_str().unwrap().rsplit('/').next().unwrap();
            assert_eq!(schemas[component]["properties"][tag]["const"], *value, "{component}");
        }
    }
    for name in ["DecisionsQuestionChoice", "DecisionsAnswerScore", "WaitingForLane"] {
        assert!(schemas.contains_key(name), "{name}");
    }
    for name in ["PredictionAccepted", "Workflow"] {
        assert_eq!(schemas[name]["properties"]["warnings"]["type"], "array", "{name}");
    }
    assert_eq!(
        schemas["PredictionAccepted"]["properties"]["status"]["enum"],
        json!(["success", "cancelled"])
    );
    let content =
        &document["paths"]["/v1/files/{id}/content"]["get"]["responses"]["200"]["content"];
    assert!(content["application/octet-stream"].is_object(), "{content}");
}

/// Returns whether a text has at least one sentence.
fn is_described(text: &Value) -> bool {
    text.as_str().is_some_and(|text| text.len() > 5 && text.ends_with('.'))
}

#[tokio::test]
async fn openapi_describes_each_operation_and_tag() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let page_exists = |of: &Value| {
        let url = of["externalDocs"]["url"].as_str().unwrap_or_default();
        url.split_once("/blob/main/docs/").is_some_and(|(_, page)| docs.join(page).is_file())
    };
    for role in HOSTS.into_iter().chain([Role::Dashboard]) {
        let document = openapi_of(role, "");
        assert!(is_described(&document["info"]["description"]), "{role:?}");
        assert!(page_exists(&document), "{role:?}");
        let mut declared = BTreeSet::new();
        for tag in document["tags"].as_array().unwrap() {
            assert!(is_described(&tag["description"]) && page_exists(tag), "{role:?}: {tag}");
            declared.insert(tag["name"].as_str().unwrap());
        }
        let mut used = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let place = format!("{method} {path} of {role:?}");
                assert!(is_described(&operation["description"]), "{place}");
                assert_ne!(operation["description"], operation["summary"], "{place}");
                used.insert(operation["tags"][0].as_str().unwrap());
            }
        }
        for webhook in document["webhooks"].as_object().unwrap().values() {
            assert!(is_described(&webhook["post"]["description"]), "{webhook}");
            used.insert(webhook["post"]["tags"][0].as_str().unwrap());
        }
        assert_eq!(declared, used, "{role:?}");
    }
}

/// Adds the location of each property without a description, and of each variant for which client
/// generators would have to invent a name.
fn examine_schema(schema: &Value, place: &str, faults: &mut Vec<String>) {
    let Value::Object(fields) = schema else { return };
    for (name, property) in
        fields.get("properties").and_then(Value::as_object).into_iter().flatten()
    {
        let place = format!("{place}.{name}");
        if !is_described(&property["description"]) {
            faults.push(format!("{place} is not described"));
        }
        examine_schema(property, &place, faults);
    }
    for keyword in ["oneOf", "anyOf", "allOf"] {
        for variant in fields.get(keyword).and_then(Value::as_array).into_iter().flatten() {
            let is_type = variant["type"] == "object" || !variant["enum"].is_null();
            if variant["$ref"].is_null() && (is_type || keyword == "oneOf") {
                faults.push(format!("{place} has a variant without a name: {variant}"));
            }
            examine_schema(variant, &format!("{place}/{keyword}"), faults);
        }
    }
    if fields.contains_key("oneOf") && !fields.contains_key("discriminator") {
        faults.push(format!("{place} has no discriminator"));
    }
    for keyword in ["items", "additionalProperties"] {
        examine_schema(&schema[keyword], &format!("{place}/{keyword}"), faults);
    }
    let kinds = fields.get("type").and_then(Value::as_array);
    if kinds.is_some_and(|kinds| kinds.contains(&json!("object"))) {
        faults.push(format!("{place} is a nullable object without a name"));
    }
}

#[tokio::test]
async fn openapi_describes_each_schema_and_names_each_variant() {
    for role in HOSTS.into_iter().chain([Role::Dashboard]) {
        let document = openapi_of(role, "");
        let mut faults = Vec::new();
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            if !is_described(&schema["description"]) {
                faults.push(format!("{name} is not described"));
            }
            examine_schema(schema, name, &mut faults);
            let status = &schema["properties"]["status"];
            if status["type"] == "string" && status["enum"].is_null() && status["const"].is_null() {
                faults.push(format!("{name}.status is any string"));
            }
        }
        assert_eq!(faults, Vec::<String>::new(), "{role:?}");
    }
}

#[tokio::test]
async fn openapi_describes_the_data_of_each_stream() {
    let mut streams = 0;
    for role in HOSTS.into_iter().chain([Role::Dashboard]) {
        let document = openapi_of(role, "");
        let operations = document["paths"].as_object().unwrap().values();
        for operation in operations.flat_map(|methods| methods.as_object().unwrap().values()) {
            let content = &operation["responses"]["200"]["content"]["text/event-stream"];
            if content.is_null() {
                continue;
            }
            let place = content["schema"]["$ref"].as_str().unwrap();
            let name = place.rsplit('/').next().unwrap();
            let data = &document["components"]["schemas"][name];
            assert!(data["anyOf"].is_array() || data["oneOf"].is_array(), "{name}");
            streams += 1;
        }
    }
    assert_eq!(streams, 17);
}

/// `support/receiver.rs` checks each delivery of every test against these schemas.
#[tokio::test]
async fn openapi_describes_each_webhook() {
    let names = |role| -> Vec<String> {
        openapi_of(role, "")["webhooks"].as_object().unwrap().keys().cloned().collect()
    };
    let of_requests = ["prediction_ended", "replicate_prediction", "execution_ended"];
    let of_endpoints = [
        "prediction.started",
        "prediction.completed",
        "prediction.failed",
        "workflow.started",
        "workflow.completed",
        "workflow.failed",
        "endpoint.test",
    ];
    assert_eq!(names(Role::Base), [&of_requests[..], &of_endpoints].concat());
    assert_eq!(names(Role::Flows), ["execution_ended"]);
    assert_eq!(names(Role::Agent), Vec::<String>::new());
}
