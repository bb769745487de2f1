//! Models on ComfyUI servers, with a stub that has ComfyUI's routes and its WebSocket.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::SinkExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use orrery_api::Role;
use orrery_http::body;
use orrery_runtime::Tasks;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role as End;

use crate::support::{Service, respond, until};

/// The state of the stub server.
#[derive(Debug, Default)]
struct State {
    history: Map<String, Value>,
    /// The IDs of the prompts that run, with their graphs.
    running: Map<String, Value>,
    uploads: Vec<Bytes>,
    /// All prompts.
    prompts: Vec<Value>,
    interrupted: Vec<String>,
    /// The WebSocket of the newest client.
    socket: Option<mpsc::UnboundedSender<String>>,
}

/// A stub of ComfyUI: a prompt whose text is `good` ends at once, `fail` fails, and any other text
/// runs until [`Comfy::end`].
#[derive(Debug, Clone)]
pub(crate) struct Comfy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Comfy {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let server = Self { address: listener.local_addr().unwrap(), state: Arc::default() };
        let (tasks, serving) = (Tasks::new(), server.clone());
        let connections = tasks.clone();
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = serving.clone();
                let tasks = connections.clone();
                let service = service_fn(move |request| {
                    let (server, tasks) = (server.clone(), tasks.clone());
                    async move { Ok::<_, Infallible>(server.answer(request, &tasks).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades();
                connections.spawn(connection);
            }
        });
        server
    }

    /// Returns the `[runner]` table of a model with this server and the graph `graph.json`, which
    /// this method writes.
    pub(crate) fn runner(&self, service: &Service) -> String {
        let graph = json!({
            "1": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["4", 1]}},
            "2": {"class_type": "KSampler", "_meta": {"title": "Paint"},
                  "inputs": {"seed": 7, "steps": 20, "sampler_name": "euler", "positive": ["1", 0]}},
            "3": {"class_type": "LoadImage", "inputs": {"image": "example.png"}},
            "9": {"class_type": "SaveImage", "inputs": {"images": ["2", 0]}},
        });
        service.manifest_file("graph.json", &graph.to_string());
        format!(
            "type = 'comfyui'\nurl = 'http://{}'\ngraph = 'graph.json'\ninputs = {{ do = \
             '1.inputs.text', seed = '2.inputs.seed', steps = '2.inputs.steps', sampler = \
             '2.inputs.sampler_name', image = '3.inputs.image' }}",
            self.address
        )
    }

    /// Ends a prompt that runs.
    fn end(&self, id: &str) {
        let mut state = self.state.lock().unwrap();
        let _graph = state.running.remove(id).unwrap();
        state.history.insert(id.to_owned(), success());
        state.say(json!({"type": "executing", "data": {"node": null, "prompt_id": id}}));
    }

    async fn answer(&self, mut request: Request<Incoming>, tasks: &Tasks) -> orrery_http::Response {
        let path = request.uri().path().to_owned();
        if path == "/ws" {
            return self.socket(&mut request, tasks);
        }
        let query = request.uri().query().unwrap_or_default().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let json: Value = serde_json::from_slice(&body).unwrap_or_default();
        let mut state = self.state.lock().unwrap();
        let answer = match path.as_str() {
            "/system_stats" => json!({"system": {}, "devices": []}),
            "/queue" if json.is_object() => return respond(200, ""),
            "/queue" => {
                let running = state.running.iter();
                let running: Vec<Value> =
                    running.map(|(id, graph)| json!([0, id, graph])).collect();
                json!({"queue_running": running, "queue_pending": []})
            }
            "/interrupt" => {
                let id = json["prompt_id"].as_str().unwrap().to_owned();
                state.running.remove(&id);
                state.interrupted.push(id);
                return respond(200, "");
            }
            "/upload/image" => {
                state.uploads.push(body);
                json!({"name": format!("up{}.png", state.uploads.len()), "subfolder": "s", "type": "input"})
            }
            "/prompt" => match state.queue(json) {
                Ok(answer) => answer,
                Err(refusal) => return respond(400, refusal.to_string()),
            },
            "/view" => {
                let answer = Response::builder().header("content-type", "image/png");
                return answer.body(body::full(query)).unwrap();
            }
            _ => match path.split_once("/object_info/") {
                Some((_, class)) => describe(class),
                None => {
                    let id = path.strip_prefix("/history/").unwrap();
                    let entry = state.history.get(id);
                    entry.map_or_else(|| json!({}), |entry| json!({id: entry}))
                }
            },
        };
        respond(200, answer.to_string())
    }

    /// Opens a WebSocket.
    fn socket(&self, request: &mut Request<Incoming>, tasks: &Tasks) -> orrery_http::Response {
        let (say, mut said) = mpsc::unbounded_channel::<String>();
        self.state.lock().unwrap().socket = Some(say);
        let accept = derive_accept_key(request.headers()["sec-websocket-key"].as_bytes());
        let upgrade = hyper::upgrade::on(request);
        tasks.spawn(async move {
            let connection = TokioIo::new(upgrade.await.unwrap());
            let mut socket = WebSocketStream::from_raw_socket(connection, End::Server, None).await;
            socket.send(Message::Binary(Bytes::from_static(b"preview"))).await.unwrap();
            while let Some(text) = said.recv().await {
                if socket.send(Message::Text(text.into())).await.is_err() {
                    return;
                }
            }
        });
        let answer = Response::builder().status(101).header("connection", "upgrade");
        let answer = answer.header("upgrade", "websocket").header("sec-websocket-accept", accept);
        answer.body(body::full("")).unwrap()
    }
}

impl State {
    fn say(&self, event: Value) {
        if let Some(socket) = &self.socket {
            let _is_open = socket.send(event.to_string()).is_ok();
        }
    }

    fn queue(&mut self, prompt: Value) -> Result<Value, Value> {
        // The real server refuses other IDs.
        let id: uuid::Uuid = prompt["prompt_id"].as_str().unwrap().parse().unwrap();
        let id = id.to_string();
        let graph = &prompt["prompt"];
        if graph["2"]["inputs"]["steps"] == 13 {
            let error = json!({"message": "Value not valid", "details": "steps is unlucky"});
            return Err(json!({
                "error": {"message": "Prompt outputs failed validation", "details": ""},
                "node_errors": {"2": {"errors": [error], "class_type": "KSampler"}},
            }));
        }
        match graph["1"]["inputs"]["text"].as_str().unwrap() {
            "good" => {
                self.history.insert(id.clone(), success());
            }
            "fail" => {
                let data = json!({"node_id": "2", "exception_message": "out of memory\n"});
                let messages = json!([["execution_start", {}], ["execution_error", data]]);
                let status = json!({"status_str": "error", "messages": messages});
                self.history.insert(id.clone(), json!({"outputs": {}, "status": status}));
            }
            _ => {
                self.running.insert(id.clone(), graph.clone());
            }
        }
        self.prompts.push(prompt);
        Ok(json!({"prompt_id": id, "number": 1, "node_errors": {}}))
    }
}

/// Returns the entry of a successful prompt, with a preview beside its file.
fn success() -> Value {
    json!({
        "outputs": {
            "5": {"images": [{"filename": "p.png", "subfolder": "", "type": "temp"}]},
            "9": {"images": [{"filename": "a b&.png", "subfolder": "x", "type": "output"}],
                  "animated": [false]},
        },
        "status": {"status_str": "success", "completed": true, "messages": []},
    })
}

/// Returns the description of a class of nodes, in both forms that servers use for choices.
fn describe(class: &str) -> Value {
    let required = match class {
        "CLIPTextEncode" => {
            json!({"text": ["STRING", {"multiline": true, "tooltip": "The prompt."}],
                                   "clip": ["CLIP"]})
        }
        "KSampler" => json!({
            "seed": ["INT", {"default": 0, "min": 0, "max": 18_446_744_073_709_551_615_u64,
                             "control_after_generate": true}],
            "steps": ["INT", {"default": 20, "min": 1, "max": 10000}],
            "sampler_name": ["COMBO", {"options": ["euler", "heun"]}],
        }),
        "LoadImage" => json!({"image": [["example.png"], {"image_upload": true}]}),
        _ => return json!({}),
    };
    json!({class: {"input": {"required": required}}})
}

#[tokio::test]
async fn comfyui_describes_its_inputs_and_fills_them_in() {
    let comfy = Comfy::start().await;
    let service = Service::start().await;
    service.manifest(&format!("slug = 'paint'\n[runner]\n{}\n", comfy.runner(&service)));
    let model = until("interface", async || {
        let model = service.get("/v1/models/paint").await.expect(200);
        model["request_schema"]["properties"]["do"].is_object().then_some(model)
    })
    .await;
    assert_eq!(model["output_type"], "image");
    let properties = &model["request_schema"]["properties"];
    assert_eq!(properties["do"]["default"], "a cat");
    assert_eq!(properties["do"]["description"], "The prompt.");
    assert_eq!(properties["steps"]["maximum"], 10000);
    assert_eq!(properties["sampler"]["enum"], json!(["euler", "heun"]));
    assert_eq!(properties["image"]["format"], "uri");
    assert!(properties["seed"].get("default").is_none(), "{properties}");
    for wrong in [json!({"steps": 0}), json!({"sampler": "x"}), json!({"other": 1})] {
        let body = json!({"model": "paint", "version": "1", "input": wrong});
        service.post("/v1/prediction/", &body).send().await.expect(400);
    }
    let input = json!({"do": "good", "sampler": "heun", "image": "data:image/png;base64,AAEC"});
    let done = service.ended(&service.create("paint", input).await).await;
    assert_eq!(done["status"], "success", "{done}");
    let prompt = comfy.state.lock().unwrap().prompts[0].clone();
    let inputs = |node: &str| prompt["prompt"][node]["inputs"].clone();
    assert_eq!(inputs("1"), json!({"text": "good", "clip": ["4", 1]}));
    assert_eq!(inputs("3"), json!({"image": "s/up1.png"}));
    assert_eq!((&inputs("2")["steps"], &inputs("2")["sampler_name"]), (&json!(20), &json!("heun")));
    assert!(done["logs"].as_str().unwrap().contains(&format!("seed: {}", inputs("2")["seed"])));
    let upload = comfy.state.lock().unwrap().uploads[0].clone();
    assert!(upload.windows(5).any(|bytes| bytes == b"\0\x01\x02\r\n"), "{upload:?}");
    // The stub returns the query of the URL as the content of the file.
    let path = done["output"].as_str().unwrap().strip_prefix(service.url(Role::Base)).unwrap();
    let file = service.get(path).await;
    assert_eq!(file.text, "filename=a+b%26.png&subfolder=x&type=output");
    let refused = service.create("paint", json!({"do": "good", "steps": 13})).await;
    let refused = service.ended(&refused).await;
    assert_eq!(refused["error_classification"], "invalid_user_input", "{refused}");
    let says = "refused the graph: node 2 (Paint): Value not valid: steps is unlucky";
    assert!(refused["error"].as_str().unwrap().contains(says), "{refused}");
}

#[tokio::test]
async fn comfyui_reports_progress_over_its_socket() {
    let comfy = Comfy::start().await;
    let service = Service::start().await;
    service.manifest(&format!("slug = 'paint'\n[runner]\n{}\n", comfy.runner(&service)));
    let id = service.create("paint", json!({"do": "slow"})).await;
    let prompt = until("prompt", async || {
        let state = comfy.state.lock().unwrap();
        state.running.keys().next().cloned().filter(|_| state.socket.is_some())
    })
    .await;
    {
        let state = comfy.state.lock().unwrap();
        state.say(json!({"type": "executing", "data": {"node": "2", "prompt_id": prompt}}));
        state.say(json!({"type": "status", "data": {"status": {}}}));
        for (value, prompt) in [(3, prompt.as_str()), (20, prompt.as_str()), (9, "other")] {
            let data = json!({"value": value, "max": 20, "node": "2", "prompt_id": prompt});
            state.say(json!({"type": "progress", "data": data}));
        }
    }
    let logs = until("progress", async || {
        let logs = service.get(&format!("/v1/prediction/{id}")).await.expect(200)["logs"].clone();
        logs.as_str().filter(|logs| logs.contains("20 of 20")).map(str::to_owned)
    })
    .await;
    assert!(logs.contains("node 2 (Paint)\nnode 2 (Paint): 3 of 20\n"), "{logs}");
    assert!(!logs.contains("9 of 20"), "{logs}");
    comfy.end(&prompt);
    assert_eq!(service.ended(&id).await["status"], "success");
}

#[tokio::test]
async fn comfyui_interrupts_cancelled_prompts_and_notices_lost_ones() {
    let comfy = Comfy::start().await;
    let service = Service::start().await;
    service.manifest(&format!("slug = 'paint'\n[runner]\n{}\n", comfy.runner(&service)));
    let running = async || {
        until("prompt", async || comfy.state.lock().unwrap().running.keys().next().cloned()).await
    };
    let id = service.create("paint", json!({"do": "slow"})).await;
    let prompt = running().await;
    service.cancel(&id).await.expect(200);
    until("interrupt", async || {
        (comfy.state.lock().unwrap().interrupted == [prompt.clone()]).then_some(())
    })
    .await;
    let id = service.create("paint", json!({"do": "slow"})).await;
    let prompt = running().await;
    comfy.state.lock().unwrap().running.remove(&prompt);
    let lost = service.ended(&id).await;
    assert_eq!(lost["error_classification"], "provider_unavailable", "{lost}");
    assert!(lost["error"].as_str().unwrap().contains("no longer knows the prompt"), "{lost}");
}
