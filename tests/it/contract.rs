//! The contract of all runners: every runner passes the same suite. A prediction succeeds, fails,
//! times out and is cancelled in the same way, regardless of its model's runner.

use std::path::Path;

use orrery_api::Role;
use serde_json::{Value, json};

use crate::support::{Cog, MlServer, Provider, Receiver, Service, lane_is_free, until};

/// The price of a model, as in its manifest.
const COST: &str = "[cost]\ntype = 'fixed'\namount = 0.25\n";

/// A runner under test.
struct Subject {
    /// The manifest's `[runner]`, and its `output_type` if it needs one.
    output_type: &'static str,
    runner: String,
    /// Returns the input that makes the model succeed (`good`), fail (`fail`) or take long
    /// (`slow`).
    input: fn(&str) -> Value,
    /// The output for `good`; `None` if it is a file.
    output: Option<Value>,
    fails_with: &'static str,
    /// The timeout for `slow`.
    timeout: &'static str,
}

fn order(order: &str) -> Value {
    json!({"do": order})
}

impl Subject {
    fn manifest(&self, slug: &str, top: &str) -> String {
        let Self { output_type, runner, .. } = self;
        let output_type = match *output_type {
            "" => String::new(),
            output_type => format!("output_type = '{output_type}'\n"),
        };
        format!("slug = '{slug}'\n{output_type}{top}\n{COST}[runner]\n{runner}\n")
    }

    /// Checks a successful prediction.
    fn check(&self, prediction: &Value) {
        assert_eq!(prediction["status"], "success", "{prediction}");
        match &self.output {
            Some(output) => assert_eq!(prediction["output"], *output),
            None => assert!(prediction["output"].as_str().unwrap().contains("/v1/files/")),
        }
    }
}

/// A service with the models `one`, which has a concurrency of 1, and `brief`, which has a short
/// timeout.
struct Contract<'c> {
    service: &'c Service,
    subject: &'c Subject,
    receiver: Receiver,
}

impl<'c> Contract<'c> {
    async fn new(service: &'c Service, subject: &'c Subject) -> Self {
        service.manifest(&subject.manifest("one", "concurrency = 1"));
        service.manifest(&subject.manifest("brief", &format!("timeout = '{}'", subject.timeout)));
        Self { service, subject, receiver: Receiver::start().await }
    }

    fn fields(&self, order: &str) -> Value {
        json!({"input": (self.subject.input)(order), "webhook_url": self.receiver.url()})
    }

    /// Checks that a success is charged once, announced once, and has a complete event stream.
    async fn success(&mut self) {
        let Self { service, subject, .. } = *self;
        let id = service.create_with("one", self.fields("good")).await;
        let done = service.ended(&id).await;
        subject.check(&done);
        assert_eq!(done["metrics"]["cost"], 0.25);
        assert_eq!(done["attempts"].as_array().unwrap().len(), 1);
        let hook = self.receiver.next().await.json();
        assert_eq!((&hook["execution_id"], &hook["status"]), (&json!(id), &json!("completed")));
        assert_eq!(hook["output"], done["output"]);
        let events = format!("/v1/prediction/{id}/events");
        let events = service.ask(Role::Base, hyper::Method::GET, &events);
        let events = events.key(&service.key).send().await;
        assert!(events.text.contains("event: status\n") && events.text.contains("event: end\n"));
    }

    /// Checks that a failure is classified and free, and that its message names the model.
    async fn failure(&mut self) {
        let id = self.service.create_with("one", self.fields("fail")).await;
        let failed = self.service.ended(&id).await;
        assert_eq!(failed["status"], "error", "{failed}");
        assert_eq!(failed["error_classification"], self.subject.fails_with, "{failed}");
        assert!(!failed["error"].as_str().unwrap().is_empty());
        assert_eq!(self.receiver.next().await.json()["status"], "failed");
    }

    async fn timeout(&mut self) {
        let id = self.service.create_with("brief", self.fields("slow")).await;
        let late = self.service.ended(&id).await;
        assert_eq!(late["error_classification"], "execution_timeout", "{late}");
        assert!(late["error"].as_str().unwrap().contains("'brief'"), "{late}");
        assert_eq!(self.receiver.next().await.json()["error"], "ExecutionTimeout");
    }

    /// Checks that a running prediction can be cancelled, and that this frees its slot for the next
    /// one.
    async fn cancel(&mut self) {
        let Self { service, subject, .. } = *self;
        let id = service.create_with("one", self.fields("slow")).await;
        let path = format!("/v1/prediction/{id}");
        until("run", async || {
            let status = service.get(&path).await.expect(200)["status"].clone();
            (status == "processing").then_some(())
        })
        .await;
        let next = service.create_with("one", self.fields("good")).await;
        service.cancel(&id).await.expect(200);
        assert_eq!(service.ended(&id).await["status"], "cancelled");
        subject.check(&service.ended(&next).await);
        let hook = self.receiver.next().await.json();
        assert_eq!(hook["execution_id"], next, "a cancel is not announced");
        assert!(self.receiver.is_empty());
    }
}

/// Runs the complete contract for a runner.
async fn hold(service: &Service, subject: &Subject) {
    let mut contract = Contract::new(service, subject).await;
    contract.success().await;
    contract.failure().await;
    contract.timeout().await;
    contract.cancel().await;
    assert_eq!(service.ledger().await.len(), 2, "successes cost, and nothing else does");
    lane_is_free(service, "one").await;
}

#[tokio::test]
async fn builtin() {
    /// Returns an image; for `slow`, it has so many pixels that reading it takes a while.
    fn image(order: &str) -> Value {
        let side = if order == "slow" { 6000 } else { 2 };
        let pixels = image_of(side);
        let format = if order == "fail" { "data:image/png;base64,AAAA" } else { &pixels };
        json!({"image": format, "width": 8, "height": 8})
    }
    hold(
        &Service::start().await,
        &Subject {
            output_type: "image",
            runner: "type = 'builtin'\nname = 'image-resize'".to_owned(),
            input: image,
            output: None,
            fails_with: "invalid_user_input",
            timeout: "5ms",
        },
    )
    .await;
}

/// Returns a single-color PNG square as a `data:` URI.
fn image_of(side: u32) -> String {
    use base64::Engine;
    let mut bytes = std::io::Cursor::new(Vec::new());
    let image = image::DynamicImage::new_rgb8(side, side);
    image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    let text = base64::engine::general_purpose::STANDARD.encode(bytes.get_ref());
    format!("data:image/png;base64,{text}")
}

#[tokio::test]
async fn http() {
    let provider = Provider::start().await;
    let subject = Subject {
        output_type: "object",
        runner: format!("type = 'http'\nurl = '{}'\noutput = '/output'", provider.url("/do")),
        input: order,
        output: Some(order("good")),
        fails_with: "provider_error",
        timeout: "100ms",
    };
    hold(&Service::start().await, &subject).await;
    provider.hung_up(2).await;
}

#[cfg(feature = "onnx")]
#[tokio::test]
async fn onnx() {
    use orrery_runners::onnx::files;

    let service = Service::start().await;
    std::fs::write(service.models().join("powers.onnx"), files::powers(64).bytes()).unwrap();
    let subject = Subject {
        output_type: "",
        runner: "type = 'onnx'\nfile = 'powers.onnx'".to_owned(),
        input: |order| match order {
            "good" => json!({"x": [[1], [0]], "z": [[1], [0]]}),
            "fail" => json!({"x": [[1], [0]], "z": [[1]]}),
            _slow => json!({"x": vec![[0.01]; 1500], "z": vec![[0.01]; 1500]}),
        },
        output: Some(json!({"y": {"shape": [2, 1], "type": "float32", "data": [[1.0], [0.0]]}})),
        fails_with: "invalid_user_input",
        timeout: "500ms",
    };
    hold(&service, &subject).await;
}

#[tokio::test]
async fn comfyui() {
    let service = Service::start().await;
    let server = crate::comfyui::Comfy::start().await;
    let subject = Subject {
        output_type: "",
        runner: server.runner(&service),
        input: order,
        output: None,
        fails_with: "provider_error",
        timeout: "500ms",
    };
    hold(&service, &subject).await;
}

#[tokio::test]
async fn pull() {
    let subject = Subject {
        output_type: "object",
        runner: "type = 'pull'".to_owned(),
        input: order,
        output: Some(order("good")),
        fails_with: "provider_error",
        timeout: "500ms",
    };
    let service = Service::start().await;
    // Creates the models before their workers claim jobs.
    drop(Contract::new(&service, &subject).await);
    tokio::select! {
        () = hold(&service, &subject) => {}
        () = crate::pull::obey(&service, "one") => {}
        () = crate::pull::obey(&service, "brief") => {}
    }
}

#[tokio::test]
async fn openai() {
    let provider = Provider::start().await;
    let url = provider.url("/do");
    let subject = Subject {
        output_type: "string",
        runner: format!("type = 'openai'\nkind = 'chat'\nmodel = 'm'\nurl = '{url}'"),
        input: |order| json!({"prompt": order}),
        output: Some(json!("said")),
        fails_with: "provider_error",
        timeout: "100ms",
    };
    hold(&Service::start().await, &subject).await;
    provider.hung_up(2).await;
}

#[tokio::test]
async fn cog() {
    let provider = Provider::start().await;
    let subject = Subject {
        output_type: "",
        runner: format!("type = 'cog'\nurl = '{}'", provider.url("/do")),
        input: order,
        output: Some(json!("said")),
        fails_with: "provider_error",
        timeout: "100ms",
    };
    let service = Service::start().await;
    hold(&service, &subject).await;
    provider.hung_up(2).await;
    until("cancels", async || {
        let requests = provider.requests();
        let cancels = requests.iter().filter(|one| one.uri().path().ends_with("/cancel"));
        (cancels.count() == 2).then_some(())
    })
    .await;
    // The catalog shows the interface described by the container.
    until("face", async || {
        let model = service.get("/v1/models/one").await.expect(200);
        (model["output_type"] == "string").then(|| {
            assert_eq!(model["request_schema"]["required"], json!(["do"]));
        })
    })
    .await;
    let body = json!({"model": "one", "version": "1", "input": {}});
    let refused = service.post("/v1/prediction/", &body).send().await.expect(400);
    assert_eq!(refused["error"], "invalid input: missing required field 'do'");
}

#[cfg(feature = "whisper")]
#[tokio::test]
async fn whisper() {
    use crate::support::whisper;

    /// Returns audio of few samples that is too long to be recognized in time for `slow`.
    fn audio(order: &str) -> Value {
        use base64::Engine;
        let wav = match order {
            "good" => whisper::wav(16_000, 1, 2.0),
            "slow" => whisper::wav(1000, 1, 1200.0),
            _ => b"no audio".to_vec(),
        };
        let text = base64::engine::general_purpose::STANDARD.encode(wav);
        json!({"audio": format!("data:audio/wav;base64,{text}")})
    }
    let service = Service::start().await;
    let file = service.models().join("ggml-small.bin");
    whisper::write(&file, &whisper::SLOW);
    let text = whisper::TEXT.trim();
    let segment = json!({"start": 0.0, "end": 2.0, "text": text});
    let subject = Subject {
        output_type: "",
        runner: format!("type = 'whisper'\nfile = {file:?}\nthreads = 1"),
        input: audio,
        output: Some(json!({
            "text": text, "language": "en", "duration": 2.0, "segments": [segment],
        })),
        fails_with: "invalid_user_input",
        timeout: "300ms",
    };
    hold(&service, &subject).await;
}

#[tokio::test]
async fn oip() {
    let provider = Provider::start().await;
    let subject = Subject {
        output_type: "",
        runner: format!("type = 'oip'\nmodel = 'm'\nurl = '{}'", provider.url("/do")),
        input: order,
        output: Some(json!({"said": [[1], [2]]})),
        fails_with: "provider_error",
        timeout: "100ms",
    };
    let service = Service::start().await;
    hold(&service, &subject).await;
    provider.hung_up(2).await;
    let body = json!({"model": "one", "version": "1", "input": {}});
    until("metadata", async || {
        let refused = service.post("/v1/prediction/", &body).send().await;
        (refused.status == 400).then(|| {
            assert!(refused.text.contains("invalid input: missing required field 'do'"));
        })
    })
    .await;
    let model = service.get("/v1/models/one").await.expect(200);
    assert_eq!(model["output_type"], "object");
    assert_eq!(model["request_schema"]["properties"]["do"]["description"], "BYTES [1]");
}

#[tokio::test]
#[ignore = "needs python3 and PyPI: run tests/run"]
async fn oip_real_server() {
    let server = MlServer::start();
    let service = Service::start().await;
    let subject = Subject {
        output_type: "",
        runner: format!("type = 'oip'\nmodel = 'echo'\nurl = '{}'", server.url),
        input: |order| {
            let order = order.replace("good", "echo");
            json!({"numbers": [[1, 2], [3, 4.5]], "order": order, "small": 255})
        },
        output: Some(json!({"sums": [[3.0], [7.5]], "said": [["echo"]], "small": [[255]]})),
        fails_with: "provider_error",
        timeout: "500ms",
    };
    service.manifest(&subject.manifest("starts", ""));
    let catalog = &service.running.services.catalog;
    until("server", async || (catalog.get("starts").unwrap().health_word() == "ok").then_some(()))
        .await;
    hold(&service, &subject).await;
    until("metadata", async || {
        let model = service.get("/v1/models/one").await.expect(200);
        model["request_schema"]["properties"]["numbers"].is_object().then_some(())
    })
    .await;
    for (input, says) in [
        (json!({"numbers": [[1, 2]], "order": "echo", "small": 256}), "'small' is wrong: "),
        (json!({"numbers": [[1]], "order": "echo", "small": 1}), "'numbers.0' is wrong: "),
        (json!({"numbers": [[1, 2]], "order": "echo"}), "missing required field 'small'"),
    ] {
        let body = json!({"model": "one", "version": "1", "input": input});
        let refused = service.post("/v1/prediction/", &body).send().await.expect(400);
        assert!(refused["error"].as_str().unwrap().contains(says), "{refused}");
    }
    let own = json!([
        {"name": "numbers", "shape": [1, 2], "datatype": "FP32", "data": [1, 1]},
        {"name": "order", "shape": [2], "datatype": "BYTES", "data": ["ü", ""]},
        {"name": "small", "shape": [1], "datatype": "UINT8", "data": [0]},
    ]);
    let done = service.ended(&service.create("one", json!({"inputs": own})).await).await;
    assert_eq!(done["output"]["said"], json!([["ü"], [""]]), "{done}");
}

#[tokio::test]
#[ignore = "needs python3 and PyPI: run tests/run"]
async fn cog_real_server() {
    let cog = Cog::start();
    let service = Service::start().await;
    let subject = Subject {
        output_type: "",
        runner: format!("type = 'cog'\nurl = '{}'", cog.url),
        input: |order| json!({"text": "ab", "do": order.replace("good", "echo").replace("slow", "sleep"), "times": 2}),
        output: Some(json!("abab")),
        fails_with: "provider_error",
        timeout: "500ms",
    };
    service.manifest(&subject.manifest("starts", ""));
    let catalog = &service.running.services.catalog;
    until("container", async || {
        (catalog.get("starts").unwrap().health_word() == "ok").then_some(())
    })
    .await;
    hold(&service, &subject).await;
    until("face", async || {
        let model = service.get("/v1/models/one").await.expect(200);
        (model["output_type"] == "string").then(|| {
            let properties = model["request_schema"]["properties"].as_object().unwrap();
            assert_eq!(properties.keys().collect::<Vec<_>>(), ["text", "do", "times"]);
        })
    })
    .await;
    let body = json!({"model": "one", "version": "1", "input": {"text": "x", "times": 9}});
    service.post("/v1/prediction/", &body).send().await.expect(400);
    let id = service.create("one", json!({"text": "abc"})).await;
    let done = service.ended(&id).await;
    assert_eq!((&done["output"], &done["logs"]), (&json!("abc"), &json!("3 characters")));
}

fn command(mode: &str) -> Subject {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/workers/odd.py");
    Subject {
        output_type: "string",
        runner: format!("type = 'command'\nmode = '{mode}'\ncommand = ['python3', {script:?}]"),
        input: |order| json!({"do": order.replace("good", "echo"), "value": "said"}),
        output: Some(json!("said")),
        fails_with: "provider_error",
        timeout: "2s",
    }
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn command_persistent() {
    hold(&Service::start().await, &command("persistent")).await;
}

#[tokio::test]
#[ignore = "needs python3: run tests/run"]
async fn command_once() {
    hold(&Service::start().await, &command("once")).await;
}
