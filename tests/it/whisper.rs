//! Speech recognition on this machine: a model that always writes the same text, audio of all
//! formats, windows, predictions, and clients that leave.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::Method;
use orrery_api::Role;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::chat::newest_row;
use crate::support::{Answer, Service, signal, until, whisper};

const COST: &str = "[cost]\ntype = 'usage_based'\nper_audio_minute = 0.6\n";

/// Starts a service with one model, `ears`.
async fn service(shape: &whisper::Shape, more: &str) -> Service {
    let service = Service::start().await;
    whisper::write(&service.models().join("ggml-ears.bin"), shape);
    service.manifest(&format!(
        "slug = 'ears'\n{COST}[runner]\ntype = 'whisper'\nfile = 'ggml-ears.bin'\nthreads = 1\n{more}\n"
    ));
    service
}

/// Builds a form with an audio file.
fn form(fields: &[(&str, &str)], audio: &[u8]) -> Bytes {
    let mut form = Vec::new();
    for (name, value) in fields {
        let part =
            format!("--b0\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        form.extend(part.as_bytes());
    }
    form.extend(
        b"--b0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n",
    );
    form.extend(audio);
    form.extend(b"\r\n--b0--\r\n");
    form.into()
}

async fn send(service: &Service, path: &str, fields: &[(&str, &str)], audio: &[u8]) -> Answer {
    let ask = service.ask(Role::Base, Method::POST, path).key(&service.key);
    let ask = ask.header("content-type", "multipart/form-data; boundary=b0");
    ask.body(form(fields, audio)).send().await
}

async fn transcribe(service: &Service, more: &[(&str, &str)], audio: &[u8]) -> Answer {
    let fields: Vec<(&str, &str)> = [("model", "ears")].iter().chain(more).copied().collect();
    send(service, "/v1/audio/transcriptions", &fields, audio).await
}

/// Returns the transcript of audio that takes the model this many stretches.
fn text(stretches: usize) -> String {
    whisper::TEXT.repeat(stretches).trim().to_owned()
}

#[tokio::test]
async fn whisper_transcribes_in_every_format() {
    let service = service(&whisper::SMALL, "").await;
    let audio = whisper::wav(44_100, 2, 12.5);
    let said = transcribe(&service, &[], &audio).await.expect(200);
    assert_eq!(said["text"], text(2));
    let cost = said["usage"]["cost"].as_f64().unwrap();
    assert!((cost - 0.125).abs() < 1e-6, "{said}");
    let row = newest_row(&service, 1).await;
    assert_eq!(row["chat"]["audio_seconds"], 12.5, "{row}");
    let plain = transcribe(&service, &[("response_format", "text")], &audio).await;
    assert_eq!(plain.text, text(2) + "\n");
    let srt = transcribe(&service, &[("response_format", "srt")], &audio).await;
    assert_eq!(
        srt.text,
        "1\n00:00:00,000 --> 00:00:09,980\nHello world.\n\n\
         2\n00:00:10,000 --> 00:00:12,500\nHello world.\n\n"
    );
    let vtt = transcribe(&service, &[("response_format", "vtt")], &audio).await;
    assert!(vtt.text.starts_with("WEBVTT\n\n00:00:00.000 --> 00:00:09.980\nHello"), "{}", vtt.text);
    let verbose = [
        ("response_format", "verbose_json"),
        ("timestamp_granularities[]", "word"),
        ("temperature", "0"),
        ("prompt", "Hello, everyone."),
    ];
    let said = transcribe(&service, &verbose, &audio).await.expect(200);
    assert_eq!((&said["language"], &said["duration"]), (&json!("english"), &json!(12.5)));
    let segment = &said["segments"][1];
    assert_eq!((&segment["start"], &segment["end"]), (&json!(10.0), &json!(12.5)), "{segment}");
    assert!(segment["avg_logprob"].as_f64().unwrap() > -0.1, "{segment}");
    let words: Vec<&Value> =
        said["words"].as_array().unwrap().iter().map(|one| &one["word"]).collect();
    assert_eq!(words, ["Hello", "world.", "Hello", "world."]);
}

#[tokio::test]
async fn whisper_translates() {
    let service = service(&whisper::SMALL, "").await;
    let audio = whisper::wav(16_000, 1, 5.0);
    let fields = [("model", "ears"), ("response_format", "verbose_json")];
    let said = send(&service, "/v1/audio/translations", &fields, &audio).await.expect(200);
    assert_eq!(said["text"], whisper::TRANSLATION.trim());
    assert_eq!((&said["task"], &said["segments"][0]["start"]), (&json!("translate"), &json!(0.04)));
}

#[tokio::test]
async fn whisper_streams_the_text_as_it_is_recognized() {
    let service = service(&whisper::SMALL, "").await;
    let streamed =
        transcribe(&service, &[("stream", "true")], &whisper::wav(16_000, 1, 30.0)).await;
    assert_eq!(streamed.status, 200);
    let events = streamed.text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
    let (last, deltas) = events.split_last().unwrap();
    let deltas: Vec<&str> = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(deltas, ["Hello world.", " Hello world.", " Hello world."]);
    assert_eq!((&last["type"], &last["text"]), (&json!("transcript.text.done"), &json!(text(3))));
}

#[tokio::test]
async fn whisper_hears_long_audio_in_windows() {
    let service = service(&whisper::SMALL, "beam = 1").await;
    // The second window begins within the last stretch of the first.
    let seconds = 16 * 60 + 5;
    let audio = whisper::wav(8000, 1, f64::from(seconds));
    let fields = [("response_format", "verbose_json")];
    let said = transcribe(&service, &fields, &audio).await.expect(200);
    let segments = said["segments"].as_array().unwrap();
    assert_eq!(said["duration"], f64::from(seconds));
    let times: Vec<f64> =
        segments.iter().map(|segment| segment["start"].as_f64().unwrap()).collect();
    for (index, time) in times.iter().enumerate() {
        assert!((time - index as f64 * 10.0).abs() < 1e-9, "{times:?}");
    }
    assert_eq!(times.len(), 97);
}

#[tokio::test]
async fn whisper_prediction_has_segments_and_a_log() {
    let service = service(&whisper::SMALL, "").await;
    let audio = whisper::wav(22_050, 1, 15.0);
    let source = format!("data:audio/wav;base64,{}", STANDARD.encode(&audio));
    let input = json!({"input": {"audio": source, "words": true, "language": "en"}});
    let id = service.create_with("ears", input).await;
    let done = service.ended(&id).await;
    let output = &done["output"];
    assert_eq!((&output["text"], &output["language"]), (&json!(text(2)), &json!("en")), "{done}");
    assert_eq!(output["duration"], 15.0);
    assert_eq!(output["segments"][1]["start"], 10.0);
    assert_eq!(output["segments"][0]["words"][0]["word"], "Hello");
    let logs = done["logs"].to_string();
    assert!(logs.contains("[00:00:10.000 --> 00:00:15.000] Hello world."), "{logs}");
    assert_eq!(done["metrics"]["cost"], 0.15, "{done}");
    let wrong = json!({"input": {"audio": "data:audio/wav;base64,AAAA"}});
    let failed = service.ended(&service.create_with("ears", wrong).await).await;
    assert_eq!(failed["error_classification"], "invalid_user_input", "{failed}");
    let message = failed["error"].as_str().unwrap();
    assert!(message.contains("'ears'") && message.contains("not audio"), "{message}");
    let translated = json!({"input": {"audio": source, "translate": true}});
    let done = service.ended(&service.create_with("ears", translated).await).await;
    assert!(done["output"]["text"].as_str().unwrap().starts_with("Translated"), "{done}");
}

#[tokio::test]
async fn whisper_refusals_name_the_field() {
    let service = service(&whisper::SMALL, "").await;
    let audio = whisper::wav(16_000, 1, 1.0);
    for (fields, audio, param) in [
        (&[("language", "xx")][..], &audio[..], "language"),
        (&[("response_format", "diarized_json")], &audio, "response_format"),
        (&[], b"no audio at all, only some text", "file"),
        (&[], &audio[..44], "file"),
    ] {
        let refused = transcribe(&service, fields, audio).await.expect(400);
        assert_eq!(refused["error"]["param"], param, "{refused}");
    }
    // The process survives: it answers the next request.
    assert_eq!(transcribe(&service, &[], &audio).await.expect(200)["text"], text(1));
}

#[tokio::test]
async fn whisper_file_without_manifest_is_a_model_at_once() {
    let service = Service::start().await;
    whisper::write(&service.models().join("ggml-Tiny_Q.bin"), &whisper::SMALL);
    std::fs::write(service.models().join("ggml-broken.bin"), "lmgg and no more").unwrap();
    std::fs::write(service.models().join("pytorch_model.bin"), "something else").unwrap();
    let _report = service.running.services.catalog.reload();
    let model = service.get("/v1/models/ggml-tiny-q").await.expect(200);
    assert_eq!(model["output_type"], "object", "{model}");
    let audio = whisper::wav(16_000, 1, 3.0);
    let path = "/v1/audio/transcriptions";
    let said = send(&service, path, &[("model", "ggml-tiny-q")], &audio).await.expect(200);
    assert_eq!(said["text"], text(1));
    let refused = send(&service, path, &[("model", "ggml-broken")], &audio).await.expect(503);
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("ggml-broken.bin claims"), "{message}");
    let unknown = send(&service, path, &[("model", "pytorch-model")], &audio).await;
    assert_eq!(unknown.status, 404, "{}", unknown.text);
}

#[tokio::test]
async fn whisper_model_that_knows_only_english_rejects_other_languages() {
    let service = Service::start().await;
    let shape = whisper::Shape { vocabulary: 51_864, ..whisper::SMALL };
    whisper::write(&service.models().join("ggml-tiny.en.bin"), &shape);
    let _report = service.running.services.catalog.reload();
    let audio = whisper::wav(16_000, 1, 3.0);
    let path = "/v1/audio/transcriptions";
    let said = send(&service, path, &[("model", "ggml-tiny.en")], &audio).await.expect(200);
    assert_eq!(said["text"], text(1));
    let german = [("model", "ggml-tiny.en"), ("language", "de")];
    let refused = send(&service, path, &german, &audio).await.expect(400);
    assert_eq!(refused["error"]["param"], "language", "{refused}");
}

#[tokio::test]
async fn whisper_starts_again_after_its_process_died() {
    let service = service(&whisper::SMALL, "").await;
    let audio = whisper::wav(16_000, 1, 3.0);
    transcribe(&service, &[], &audio).await.expect(200);
    assert!(signal(worker(&service).unwrap(), Signal::KILL));
    until("death", async || worker(&service).is_none().then_some(())).await;
    until("restart", async || {
        let answer = transcribe(&service, &[], &audio).await;
        (answer.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn whisper_stops_when_the_client_leaves() {
    let service = service(&whisper::SLOW, "").await;
    let catalog = &service.running.services.catalog;
    let audio = whisper::wav(16_000, 1, 3.0);
    transcribe(&service, &[], &audio).await.expect(200);
    let long = whisper::wav(1000, 1, 1200.0);
    let source = format!("data:audio/wav;base64,{}", STANDARD.encode(&long));
    let id = service.create_with("ears", json!({"input": {"audio": source}})).await;
    until("a segment", async || {
        let shown = service.get(&format!("/v1/prediction/{id}")).await.expect(200);
        shown["logs"].to_string().contains("Hello").then_some(())
    })
    .await;
    service.cancel(&id).await.expect(200);
    assert_eq!(service.ended(&id).await["status"], "cancelled");
    // The engine is free for the next request.
    assert_eq!(transcribe(&service, &[], &audio).await.expect(200)["text"], text(1));
    let model = catalog.get("ears").unwrap();
    assert!(model.runner.local().unwrap().resident_bytes.is_some());
}

/// Returns the process of the model.
fn worker(service: &Service) -> Option<u32> {
    let file = service.models().join("ggml-ears.bin").to_str().unwrap().to_owned();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|one| one.file_name().to_str()?.parse().ok()).find(|id: &u32| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("whisper-worker") && line.contains(&file)
    })
}
