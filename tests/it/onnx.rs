//! Models from ONNX files: tensors, images and labels, and recovery after a model's process has
//! exited.

use orrery_runners::onnx::files::{self, Dim, FLOAT, INT64, Model};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Service, signal, until};

/// Starts a service with one model, `m`.
async fn service(model: &Model, more: &str) -> Service {
    let service = Service::start().await;
    std::fs::write(service.models().join("m.onnx"), model.bytes()).unwrap();
    service.manifest(&format!("slug = 'm'\n[runner]\ntype = 'onnx'\nfile = 'm.onnx'\n{more}\n"));
    service
}

/// Runs the model; returns the prediction.
async fn run(service: &Service, model: &str, input: Value) -> Value {
    let id = service.create(model, input).await;
    service.ended(&id).await
}

/// Returns the process id of the only loaded model.
async fn process(service: &Service) -> u32 {
    let file = service.models().join("m.onnx");
    until("process", async || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let mut ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.find(|id| {
            let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("onnx-worker") && line.contains(file.to_str().unwrap())
        })
    })
    .await
}

#[tokio::test]
async fn onnx_file_dropped_into_the_folder_is_a_model() {
    let service = Service::start().await;
    std::fs::write(service.models().join("My_Line.onnx"), files::line().bytes()).unwrap();
    std::fs::write(service.models().join("broken.onnx"), "<html>").unwrap();
    let _report = service.running.services.catalog.reload();
    let model = service.get("/v1/models/my-line").await.expect(200);
    assert_eq!((&model["title"], &model["output_type"]), (&json!("my-line"), &json!("object")));
    let x = &model["request_schema"]["properties"]["x"];
    assert_eq!(x["description"], "float32 [n].", "{model}");
    for (x, y) in [(json!([1, 2.5]), json!([3.0, 6.0])), (json!([0]), json!([1.0]))] {
        let shape = json!([y.as_array().unwrap().len()]);
        let done = run(&service, "my-line", json!({"x": x})).await;
        let expected = json!({"y": {"shape": shape, "type": "float32", "data": y}});
        assert_eq!(done["output"], expected, "{done}");
    }
    let failed = run(&service, "broken", json!({})).await;
    let said = failed["error"].as_str().unwrap();
    assert!(said.contains("broken.onnx is not an ONNX file"), "{said}");
    let broken = service.running.services.catalog.get("broken").unwrap();
    assert!(broken.failing().unwrap().contains("is not an ONNX file"));
}

#[tokio::test]
async fn onnx_input_is_checked_before_the_run() {
    let service = service(&files::powers(2), "").await;
    for (input, says) in [
        (json!({"x": [[1]]}), "missing required field 'z'"),
        (json!({"x": [[1, 2]], "z": [[1]]}), "'x.0' is wrong"),
        (json!({"x": [[1]], "z": [["a"]]}), "'z.0"),
    ] {
        let body = json!({"model": "m", "version": "1", "input": input});
        let refused = service.post("/v1/prediction/", &body).send().await;
        assert_eq!(refused.status, 400, "{}", refused.text);
        assert!(refused.text.contains(says), "{}", refused.text);
    }
    let failed = run(&service, "m", json!({"x": [[1], [2]], "z": [[1]]})).await;
    assert_eq!(failed["error_classification"], "invalid_user_input");
    let said = failed["error"].as_str().unwrap();
    assert!(said.contains("the dimension 'n' is 2 in 'x', but 1 in 'z'"), "{said}");
}

#[tokio::test]
async fn onnx_image_and_labels_follow_the_manifest() {
    let model = Model::new()
        .input("image", FLOAT, &[Dim::Fixed(1), Dim::Fixed(3), Dim::Fixed(1), Dim::Fixed(1)])
        .raw(1, &flatten())
        .output("scores", FLOAT);
    let tables = "[runner.inputs.image]\nkind = 'image'\nscale = 1.0\n\
                  [runner.outputs.scores]\nlabels = ['red', 'green', 'blue']\ntop = 2\n";
    let service = service(&model, tables).await;
    let mut png = std::io::Cursor::new(Vec::new());
    let picture = image::RgbImage::from_pixel(8, 8, image::Rgb([5, 250, 9]));
    picture.write_to(&mut png, image::ImageFormat::Png).unwrap();
    let url = {
        use base64::Engine as _;
        let encoded = base64::engine::general_purpose::STANDARD.encode(png.into_inner());
        format!("data:image/png;base64,{encoded}")
    };
    let done = run(&service, "m", json!({"image": url})).await;
    let expected = json!({"scores": [
        {"label": "green", "score": 250.0}, {"label": "blue", "score": 9.0},
    ]});
    assert_eq!(done["output"], expected, "{done}");
    for (url, says) in [
        ("data:text/plain;base64,eHg=", "'image': unknown format"),
        ("http://127.0.0.1:1/x.png", "'image': "),
        ("file:///etc/passwd", "'image': "),
    ] {
        let failed = run(&service, "m", json!({"image": url})).await;
        assert_eq!(failed["error_classification"], "invalid_user_input", "{failed}");
        assert!(failed["error"].as_str().unwrap().contains(says), "{failed}");
    }
}

/// Returns a node `Flatten` from `image` to `scores`.
fn flatten() -> Vec<u8> {
    let parts = [(1, "image"), (2, "scores"), (4, "Flatten")];
    parts.iter().flat_map(|(field, text)| files::message(*field, text.as_bytes())).collect()
}

#[tokio::test]
async fn onnx_model_that_tract_cannot_run_says_why() {
    let model = Model::new()
        .input("x", INT64, &[Dim::Any])
        .node("NoSuchOperator", &["x"], &["y"])
        .output("y", INT64);
    let service = service(&model, "").await;
    let failed = run(&service, "m", json!({"x": [1]})).await;
    let said = failed["error"].as_str().unwrap();
    assert!(said.contains("operators that tract does not have: NoSuchOperator"), "{said}");
    assert_eq!(failed["error_classification"], "provider_unavailable");
}

#[tokio::test]
async fn onnx_process_is_restarted_after_it_is_killed() {
    let service = service(&files::line(), "").await;
    assert_eq!(run(&service, "m", json!({"x": [1]})).await["status"], "success");
    let local = service.running.services.catalog.get("m").unwrap().runner.local().unwrap();
    assert!(local.resident_bytes.is_some_and(|bytes| bytes > 0) && local.file_bytes > 0);
    assert!(signal(process(&service).await, Signal::KILL));
    until("restart", async || {
        let done = run(&service, "m", json!({"x": [1]})).await;
        (done["status"] == "success").then_some(())
    })
    .await;
}

#[tokio::test]
async fn onnx_run_beyond_its_memory_fails_alone() {
    let service = service(&files::powers(2), "memory_bytes = '64MiB'").await;
    let column = vec![[1.0]; 6000];
    let failed = run(&service, "m", json!({"x": column, "z": column})).await;
    assert_eq!(failed["error_classification"], "provider_error", "{}", failed["error"]);
    let done = run(&service, "m", json!({"x": [[1]], "z": [[1]]})).await;
    assert_eq!(done["output"]["y"]["data"], json!([[1.0]]), "{done}");
}

#[tokio::test]
async fn onnx_idle_model_is_unloaded() {
    let service = service(&files::line(), "idle_unload = '1s'").await;
    run(&service, "m", json!({"x": [1]})).await;
    let runner = service.running.services.catalog.get("m").unwrap().runner.clone();
    assert!(runner.local().unwrap().resident_bytes.is_some());
    until("unloading", async || runner.local().unwrap().resident_bytes.is_none().then_some(()))
        .await;
}
