//! Tests the runner with scripted responses. Integration tests use a stub with ComfyUI's routes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::{RecordingProgress, stand_in};
use orrery_http::egress::Policy;

const GRAPH: &str = r#"{"1": {"class_type": "Say", "inputs": {"text": "hi"}},
                        "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}}}"#;

/// The ID of the prompt of the attempt `e:s:1`.
const ID: &str = "762fa551-4d66-4107-a00c-8891704e3660";
const HISTORY: &str = "GET /history/762fa551-4d66-4107-a00c-8891704e3660 HTTP/1.1";

/// Reads the `[runner]` table of a manifest beside the file `graph.json`.
fn read(graph: &str, rest: &str) -> Result<Options, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("graph.json"), graph).unwrap();
    let text = format!("url = 'http://127.0.0.1:1'\n{rest}");
    let reader = orrery_config::reader::Reader::new(&text);
    let table = reader.document();
    let options = Section::root(&reader, &table, |section| Options::read(section, folder.path()));
    let (errors, _) = reader.finish();
    match errors.first() {
        Some(error) => Err(error.message.clone()),
        None => Ok(options.unwrap()),
    }
}

fn runner(url: &str) -> ComfyRunner {
    let options = read(GRAPH, "graph = 'graph.json'\ninputs = { text = '1.inputs.text' }").unwrap();
    let model = Model::of_test("m", Duration::from_secs(20));
    let servers = model.servers(&Servers::of(&[url]), true, true, None, &Dependencies::none());
    ComfyRunner {
        graph: options.graph,
        model,
        client: Client::trusted(),
        sources: Sources::new(Policy::default(), None),
        tasks: Tasks::new(),
        servers,
        known: Mutex::default(),
    }
}

fn job() -> Job {
    Arc::<RecordingProgress>::default().job(json!({"text": "x"}))
}

/// The attempt began before a crash: its prompt waits, and then is in the history.
#[tokio::test]
async fn comfyui_repeated_attempt_follows_its_prompt() {
    let (url, asked) = stand_in::server(|line, _body, number| {
        let body = match (line, number) {
            (HISTORY, 0) => json!({}),
            ("GET /queue HTTP/1.1", _) => {
                json!({"queue_running": [], "queue_pending": [[4, ID, {}, {}, []]]})
            }
            (HISTORY, _) => json!({ID: {"outputs": {"2": {"text": ["said"]}}, "status": {}}}),
            (line, _) if line.starts_with("GET /ws?clientId=") => return (404, String::new()),
            other => panic!("{other:?}"),
        };
        (200, body.to_string())
    })
    .await;
    assert_eq!(runner(&url).run(job()).await.unwrap().output, "said");
    assert_eq!(asked.load(Ordering::SeqCst), 4, "history, queue, socket, history");
}

#[tokio::test]
async fn comfyui_maps_responses_to_error_classes() {
    for (history, class, says) in [
        (json!({"outputs": {}}), ErrorClass::ProviderError, "its graph returned no files"),
        (
            json!({"status": {"status_str": "error", "messages": [["execution_interrupted", {}]]}}),
            ErrorClass::ProviderError,
            "was cancelled by something other than this service",
        ),
        (
            json!({"status": {"status_str": "error"}}),
            ErrorClass::ProviderError,
            "its graph failed without a reason",
        ),
        (
            json!({"outputs": {"2": {"images": vec![json!({"filename": "x"}); 257]}}}),
            ErrorClass::ProviderError,
            "it returned more than 256 files",
        ),
    ] {
        let text = Box::leak(json!({ID: history}).to_string().into_boxed_str());
        let text: &'static str = text;
        let (url, _) = stand_in::server(move |_, _, _| (200, text.to_owned())).await;
        let failure = runner(&url).run(job()).await.unwrap_err().failure;
        assert_eq!(failure.class, class, "{failure:?}");
        assert!(failure.message.starts_with("the model 'm': "), "{failure:?}");
        assert!(failure.message.contains(says), "{failure:?}");
    }
}

#[tokio::test]
async fn comfyui_without_the_class_of_a_node_is_impaired() {
    let (url, _) = stand_in::server(|line, _, _| match line {
        "GET /system_stats HTTP/1.1" => (200, "{}".to_owned()),
        "GET /object_info/Say HTTP/1.1" => (200, "{}".to_owned()),
        other => panic!("{other}"),
    })
    .await;
    let runner = runner(&url);
    runner.maintain().await;
    let reason = "its server has no nodes of the class of node 1 (Say): install the extension";
    assert_eq!(runner.health(), Health::Impaired(reason.to_owned()));
    assert_eq!(runner.interface(), None);
}

#[test]
fn comfyui_refuses_mistakes_in_manifests() {
    let with = |inputs: &str| format!("graph = 'graph.json'\ninputs = {{ a = '{inputs}' }}");
    for (graph, rest, says) in [
        (GRAPH, with("1.text"), "an input of a node, such as"),
        (GRAPH, with("7.inputs.text"), "the graph has no node \"7\""),
        (GRAPH, with("2.inputs.source"), "\"source\" of node \"2\" is connected to node \"1\""),
        (r#"{"nodes": []}"#, with("1.inputs.a"), "export it with File, Export (API)"),
        ("{}", with("1.inputs.a"), "must have 1 to 10000 nodes"),
        (r#"{"1": {}}"#, with("1.inputs.a"), "has no `class_type` and `inputs`"),
        ("[", with("1.inputs.a"), "is not valid JSON"),
        (GRAPH, "graph = '../graph.json'".to_owned(), "must be a file in the manifest's folder"),
    ] {
        let error = read(graph, &rest).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}

/// The forms in which servers describe inputs, and the properties that they become.
#[test]
fn comfyui_maps_every_type_of_input() {
    for (declaration, expect) in [
        (
            json!(["INT", {"min": 1, "max": 9, "default": 3}]),
            json!({"type": "integer", "minimum": 1, "maximum": 9, "default": 3, "title": "text"}),
        ),
        (
            json!(["FLOAT", {"tooltip": "How much."}]),
            json!({"type": "number", "description": "How much.", "title": "text"}),
        ),
        (json!(["BOOLEAN"]), json!({"type": "boolean", "title": "text"})),
        // Uploads of other requests are not offered.
        (json!([["a", "orrery-0f.png", "b"]]), json!({"enum": ["a", "b"], "title": "text"})),
        (
            json!(["COMBO", {"options": ["x.png"], "image_upload": true}]),
            json!({"type": "string", "format": "uri", "title": "text"}),
        ),
    ] {
        let graph = GRAPH.replace("\"text\": \"hi\"", "");
        let inputs = "graph = 'graph.json'\ninputs = { text = '1.inputs.text' }";
        let graph = read(&graph, inputs).unwrap().graph;
        let class = json!({"input": {"optional": {"text": declaration}}});
        let classes = HashMap::from([("Say".to_owned(), class)]);
        let interface = interface::read(&graph, &classes).unwrap();
        assert_eq!(interface.model.schema.text()["properties"]["text"], expect);
        let class = json!({"input": {"required": {"text": ["MODEL"]}}});
        let classes = HashMap::from([("Say".to_owned(), class)]);
        let error = interface::read(&graph, &classes).unwrap_err();
        assert_eq!(error, "`inputs.text`: node 1 (Say): \"text\" must be connected");
    }
}
