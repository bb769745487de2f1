//! Audio and images: forms and answers that are streamed, charged, converted and refused.

use bytes::Bytes;
use hyper::{Method, Request};
use orrery_api::Role;
use orrery_domain::money::Usd;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::chat::newest_row;
use crate::support::{Answer, Service, Upstream, until, within};

const PRICES: &str = "prices = [{ model = 'far', per_audio_minute = 0.6, \
                      per_million_characters = 100.0, per_image = 0.04 }]\n";
const COST: &str = "[cost]\ntype = 'usage_based'\nper_audio_minute = 0.6\n\
                    per_million_characters = 100.0\nper_image = 0.04\n";
const ENFORCED: &str = "[billing]\nenforce = true\n";
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg==";

/// A WAV file of two seconds.
fn wav() -> String {
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    file.extend(16_u32.to_le_bytes());
    file.extend(b"\x20\0\0\0\x02\0\x10\0data\x40\0\0\0");
    file.resize(file.len() + 64, 0);
    String::from_utf8(file).unwrap()
}

/// Returns a service with the models `ears`, `voice` and `brush` on one server, and an upstream.
async fn start(more: &str) -> (Upstream, Upstream, Service) {
    let up = Upstream::start().await;
    let near = Upstream::start().await;
    let service = Service::configured(&format!("{}{more}", up.config(PRICES))).await;
    for (slug, kind) in [("ears", "transcriptions"), ("voice", "speech"), ("brush", "images")] {
        let manifest = near.manifest(slug, kind, "");
        service.manifest(&manifest.replace("[runner]", &format!("{COST}[runner]")));
    }
    (up, near, service)
}

/// Builds a form; a field whose name has a `;` also has a filename.
fn form(parts: &[(&str, &str)]) -> String {
    let part = |(name, value): &(&str, &str)| {
        let (name, file) = name.split_once(';').unwrap_or((name, ""));
        let file = if file.is_empty() {
            String::new()
        } else {
            format!("; filename=\"{file}\"\r\nContent-Type: audio/wav")
        };
        format!("--b0\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{value}\r\n")
    };
    format!("{}--b0--\r\n", parts.iter().map(part).collect::<String>())
}

async fn send(service: &Service, path: &str, parts: &[(&str, &str)]) -> Answer {
    let ask = service.ask(Role::Base, Method::POST, path).key(&service.key);
    ask.header("content-type", "multipart/form-data; boundary=b0").body(form(parts)).send().await
}

async fn transcribe(service: &Service, model: &str, more: &[(&str, &str)]) -> Answer {
    let wav = wav();
    let mut parts = vec![("model", model), ("file;a.wav", wav.as_str())];
    parts.extend(more);
    send(service, "/v1/audio/transcriptions", &parts).await
}

/// Returns the parts of a form that a server received: names, with a filename, and contents.
fn parts(request: &Request<Bytes>) -> Vec<(String, String)> {
    let kind = request.headers()["content-type"].to_str().unwrap();
    let boundary = format!("--{}", kind.split_once("boundary=").unwrap().1);
    let text = String::from_utf8(request.body().to_vec()).unwrap();
    let length: usize = request.headers()["content-length"].to_str().unwrap().parse().unwrap();
    assert_eq!(length, text.len());
    let whole = text.strip_suffix(&format!("{boundary}--\r\n")).unwrap();
    let part = |part: &str| {
        let (head, value) = part.split_once("\r\n\r\n").unwrap();
        let name = head.split("name=\"").nth(1).unwrap().split('"').next().unwrap();
        let file = head.split_once("filename=\"").map(|(_, rest)| rest.split('"').next().unwrap());
        let name = file.map_or_else(|| name.to_owned(), |file| format!("{name};{file}"));
        (name, value.strip_suffix("\r\n").unwrap().to_owned())
    };
    whole.split(&format!("{boundary}\r\n")).skip(1).map(part).collect()
}

fn newest(server: &Upstream) -> Vec<(String, String)> {
    parts(server.requests().last().unwrap())
}

fn has(parts: &[(String, String)], name: &str, value: &str) -> bool {
    parts.iter().any(|(one, other)| one == name && other == value)
}

#[tokio::test]
async fn transcription_is_passed_on_and_charged_by_the_second() {
    let (up, near, service) = start("").await;
    let verbose = json!({"task": "transcribe", "text": "Hi.", "duration": 1.5, "segments": []});
    for (model, server, sent, answer) in [
        ("ears", &near, "verbose_json", verbose.clone()),
        ("far", &up, "json", json!({"text": "Hi.", "usage": {"type": "duration", "seconds": 2}})),
    ] {
        server.answers(200, answer.to_string());
        let more = [("language", "en"), ("timestamp_granularities[]", "word"), ("x", "y")];
        let said = transcribe(&service, model, &more).await.expect(200);
        let seconds = if model == "ears" { 1.5 } else { 2.0 };
        let usage = json!({"type": "duration", "seconds": 2, "cost": seconds * 0.01});
        let usage_is = |usage: &Value, other: &Value| {
            (usage["seconds"].as_f64(), &usage["cost"])
                == (other["seconds"].as_f64(), &other["cost"])
        };
        assert_eq!(said["text"], "Hi.");
        assert!(usage_is(&said["usage"], &usage), "{said}");
        assert_eq!(said.get("segments"), None, "json was asked for");
        let parts = newest(server);
        assert!(has(&parts, "file;a.wav", &wav()), "{parts:?}");
        assert!(has(&parts, "response_format", sent), "{parts:?}");
        for (name, value) in more {
            assert!(has(&parts, name, value), "{parts:?}");
        }
        let real = if model == "ears" { "real-ears" } else { "far" };
        assert!(has(&parts, "model", real), "{parts:?}");
        assert_eq!(server.requests()[0].uri().path(), "/v1/audio/transcriptions");
    }
    let row = newest_row(&service, 2).await;
    let call = &row["chat"];
    assert_eq!(
        (&call["operation"], &call["audio_seconds"]),
        (&json!("transcriptions"), &json!(2.0))
    );
    assert_eq!(row["execution_cost"], 0.02);
    // The server reports nothing, or nonsense: the head of the file counts.
    for answer in [json!({"text": ""}), json!({"text": "", "duration": 1e300})] {
        near.answers(200, answer.to_string());
        let said = transcribe(&service, "ears", &[]).await.expect(200);
        assert_eq!((&said["text"], &said["usage"]["cost"]), (&json!(""), &json!(0.02)));
    }
    near.answers(200, verbose.to_string());
    let whole = transcribe(&service, "ears", &[("response_format", "verbose_json")]).await;
    assert_eq!(whole.expect(200)["segments"], json!([]));
    let wav = wav();
    let body = [("file;b.wav", wav.as_str()), ("model", "ears"), ("temperature", "0")];
    near.answers(200, verbose.to_string());
    let said = send(&service, "/openai/v1/audio/translations", &body).await.expect(200);
    assert_eq!(said["text"], "Hi.");
    assert_eq!(near.requests().last().unwrap().uri().path(), "/v1/audio/translations");
}

#[tokio::test]
async fn transcription_as_text_or_subtitles_is_checked() {
    let (up, near, service) = start("").await;
    let srt = "1\n00:00:00,000 --> 00:00:01,000\nHi.\n";
    let vtt = "WEBVTT\n\n00:00.000 --> 00:01.000\nHi.\n";
    for (count, (format, text, cost)) in
        (1..).zip([("srt", srt, 0.01), ("vtt", vtt, 0.01), ("text", "Hi.\n", 0.02)])
    {
        up.answers(200, text);
        let said = transcribe(&service, "far", &[("response_format", format)]).await;
        assert_eq!((said.status, said.text.as_str()), (200, text));
        assert_eq!(said.header("content-type"), "text/plain; charset=utf-8");
        assert_eq!(newest_row(&service, count).await["execution_cost"], cost, "{format}");
    }
    // A local model whose price depends on the length is asked for it.
    near.answers(400, r#"{"error":{"message":"unsupported response_format"}}"#);
    near.answers(200, "Hi.\n");
    let said = transcribe(&service, "ears", &[("response_format", "text")]).await;
    assert_eq!((said.status, said.text.as_str()), (200, "Hi.\n"));
    assert!(has(&newest(&near), "response_format", "text"));
    near.answers(200, json!({"text": "Hi.", "duration": 1}).to_string());
    let said = transcribe(&service, "ears", &[("response_format", "text")]).await;
    assert_eq!((said.status, said.text.as_str()), (200, "Hi.\n"));
    for (format, answer) in [
        ("text", ""),
        ("text", "<!DOCTYPE html><p>"),
        ("srt", "Hi."),
        ("vtt", srt),
        ("vtt", "{\"text\":\"Hi.\"}"),
        ("text", "{\"error\":\"out of memory\"}"),
        ("json", ""),
        ("json", "<html>"),
        ("json", "{}"),
        ("json", "{\"text\":1}"),
        ("json", "{\"error\":{\"message\":\"out of memory\"}}"),
    ] {
        up.answers(200, answer);
        let failed = transcribe(&service, "far", &[("response_format", format)]).await;
        let error = failed.expect(502);
        assert_eq!(error["error"]["type"], "upstream_error", "{error}");
        if answer.contains("memory") {
            assert!(error["error"]["message"].as_str().unwrap().contains("out of memory"));
        }
    }
    let row = newest_row(&service, 16).await;
    assert_eq!((&row["status"], &row["execution_cost"]), (&json!("error"), &json!(0.0)));
}

#[tokio::test]
async fn transcription_is_streamed() {
    let (up, _near, service) = start("").await;
    let feed = up.streams();
    let delta = json!({"type": "transcript.text.delta", "delta": "Hi."});
    let done = json!({"type": "transcript.text.done", "text": "Hi.",
        "usage": {"type": "tokens", "input_tokens": 14, "output_tokens": 3, "total_tokens": 17}});
    feed.event(&delta);
    feed.event(&done);
    drop(feed);
    let said = transcribe(&service, "far", &[("stream", "true")]).await;
    assert_eq!(said.text, format!("data: {delta}\n\ndata: {done}\n\n"));
    assert_eq!(said.header("content-type"), "text/event-stream");
    let row = newest_row(&service, 1).await;
    assert_eq!((&row["execution_cost"], &row["chat"]["input_tokens"]), (&json!(0.02), &json!(14)));
    // A server that ignores `stream`.
    up.answers(200, r#"{"text":"Hi."}"#);
    let said = transcribe(&service, "far", &[("stream", "true")]).await;
    let whole = json!({"type": "transcript.text.done", "text": "Hi."});
    assert_eq!(said.text, format!("data: {delta}\n\ndata: {whole}\n\n"));
    let feed = up.streams();
    feed.event(&delta);
    feed.event(&json!({"error": {"message": "out of memory"}}));
    drop(feed);
    let said = transcribe(&service, "far", &[("stream", "true")]).await;
    assert!(said.text.contains("out of memory") && !said.text.contains("done"), "{}", said.text);
    let row = newest_row(&service, 3).await;
    assert_eq!((&row["status"], &row["execution_cost"]), (&json!("error"), &json!(0.0)));
}

#[tokio::test]
async fn speech_is_streamed_and_charged_by_the_character() {
    let (up, near, service) = start("").await;
    for (model, server) in [("voice", &near), ("far", &up)] {
        let feed = server.streams_as("audio/mpeg");
        feed.raw("ID3");
        let body = json!({"model": model, "input": "Grüezi", "voice": "a", "speed": 1.5, "x": 1});
        let answer = service.post("/openai/v1/audio/speech", &body).open().await;
        assert_eq!(answer.headers()["content-type"], "audio/mpeg");
        let mut audio = answer.into_body();
        let first = within("piece", http_body_util::BodyExt::frame(&mut audio)).await;
        assert_eq!(first.unwrap().unwrap().into_data().unwrap(), "ID3", "before the end");
        feed.raw("more");
        drop(feed);
        let rest = http_body_util::BodyExt::collect(audio).await.unwrap().to_bytes();
        assert_eq!(rest, "more");
        let real = if model == "voice" { "real-voice" } else { "far" };
        let sent = json!({"model": real, "input": "Grüezi", "voice": "a", "speed": 1.5, "x": 1});
        assert_eq!(server.newest(), sent);
    }
    let row = newest_row(&service, 2).await;
    assert_eq!((&row["execution_cost"], &row["chat"]["characters"]), (&json!(0.0006), &json!(6)));
    let ask = || service.post("/v1/audio/speech", &json!({"model": "far", "input": "Hi"}));
    // The connection breaks, and nothing is charged.
    let feed = up.streams_as("audio/mpeg");
    feed.raw("ID3");
    let mut broken = ask().open().await.into_body();
    within("piece", http_body_util::BodyExt::frame(&mut broken)).await.unwrap().unwrap();
    feed.cut();
    assert!(http_body_util::BodyExt::collect(broken).await.is_err());
    assert_eq!(newest_row(&service, 3).await["execution_cost"], 0.0);
    // The client leaves, which stops the model.
    let feed = up.streams_as("audio/mpeg");
    feed.raw("ID3");
    let mut left = ask().open().await.into_body();
    within("piece", http_body_util::BodyExt::frame(&mut left)).await.unwrap().unwrap();
    drop(left);
    up.hung_up(1).await;
    let row = newest_row(&service, 4).await;
    assert_eq!((&row["status"], &row["execution_cost"]), (&json!("cancelled"), &json!(0.0002)));
    drop(feed);
    for (kind, text) in [
        ("application/json", "{\"error\":{\"message\":\"no voice\"}}"),
        ("text/html", "<p>"),
        ("application/octet-stream", "<html>"),
        ("audio/mpeg", ""),
    ] {
        up.answers_with(200, ("content-type", kind), text);
        let error = ask().send().await.expect(502);
        assert_eq!(error["error"]["type"], "upstream_error", "{error}");
    }
    assert_eq!(newest_row(&service, 8).await["execution_cost"], 0.0);
}

#[tokio::test]
async fn images_become_files_or_bytes() {
    let (up, near, service) = start("").await;
    let two = json!({"created": 1, "data": [{"b64_json": PNG, "revised_prompt": "x"}, {"b64_json": PNG}]});
    let body = |model: &str, format: Value| json!({"model": model, "prompt": "a cat", "n": 2, "size": "1x1", "response_format": format});
    near.answers(200, two.to_string());
    let made = service.post("/v1/images/generations", &body("brush", json!("url"))).send().await;
    let made = made.expect(200);
    assert_eq!((&made["created"], &made["usage"]["cost"]), (&json!(1), &json!(0.08)));
    assert_eq!(made["data"][0]["revised_prompt"], "x");
    assert_eq!(near.newest()["response_format"], "b64_json");
    assert_eq!(
        (&near.newest()["size"], &near.newest()["model"]),
        (&json!("1x1"), &json!("real-brush"))
    );
    for image in made["data"].as_array().unwrap() {
        assert_eq!(image.get("b64_json"), None);
        let url = image["url"].as_str().unwrap();
        let path = url.split_once("/v1").unwrap().1;
        let found = service.ask(Role::Base, Method::GET, &format!("/v1{path}")).open().await;
        assert_eq!(
            (found.status().as_u16(), &found.headers()["content-type"].to_str().unwrap()),
            (200, &"image/png")
        );
    }
    assert_eq!(service.get("/v1/files/usage").await.expect(200)["count"], 2);
    for format in [json!("b64_json"), Value::Null] {
        up.answers(200, two.to_string());
        let made =
            service.post("/v1/images/generations", &body("far", format.clone())).undocumented();
        let made = made.send().await.expect(200);
        assert_eq!(
            (&made["data"][1]["b64_json"], &made["usage"]["cost"]),
            (&json!(PNG), &json!(0.08))
        );
        assert_eq!(up.newest()["response_format"], format);
    }
    let row = newest_row(&service, 3).await;
    assert_eq!((&row["chat"]["images"], &row["chat"]["operation"]), (&json!(2), &json!("images")));
    // A server that knows no `response_format`.
    up.answers(400, r#"{"error":{"message":"Unknown parameter: 'response_format'."}}"#);
    up.answers(200, two.to_string());
    let made = service.post("/v1/images/generations", &body("far", json!("url"))).send().await;
    assert!(made.expect(200)["data"][0]["url"].as_str().unwrap().contains("/v1/files/"));
    assert_eq!(up.newest().get("response_format"), None);
    for answer in [
        r#"{"data":[]}"#,
        r#"{"data":[{}]}"#,
        r#"{"data":[{"b64_json":""}]}"#,
        r#"{"data":[{"b64_json":"%"}]}"#,
        r#"{"error":"no memory","data":[{"b64_json":"AAAA"}]}"#,
        "<html>",
        "",
    ] {
        up.answers(200, answer);
        let failed =
            service.post("/v1/images/generations", &body("far", json!("url"))).send().await;
        failed.expect(502);
    }
    assert_eq!(newest_row(&service, 11).await["execution_cost"], 0.0);
}

#[tokio::test]
async fn image_edits_send_all_files() {
    let (up, near, service) = start("").await;
    let one = json!({"data": [{"b64_json": PNG}]}).to_string();
    for (server, model, path) in
        [(&near, "brush", "/v1/images/edits"), (&up, "far", "/openai/v1/images/edits")]
    {
        server.answers(200, one.clone());
        let sent = [
            ("image[];a.png", "one"),
            ("image[];b.png", "two"),
            ("mask;m.png", "three"),
            ("model", model),
            ("prompt", "a hat"),
            ("n", "1"),
        ];
        let made = send(&service, path, &sent).await.expect(200);
        assert_eq!(
            (&made["data"][0]["b64_json"], &made["usage"]["cost"]),
            (&json!(PNG), &json!(0.04))
        );
        let parts = newest(server);
        for (name, value) in &sent[..3] {
            assert!(has(&parts, name, value), "{parts:?}");
        }
        assert_eq!(server.requests().last().unwrap().uri().path(), "/v1/images/edits");
    }
    let feed = up.streams();
    let event = json!({"type": "image_edit.completed", "b64_json": PNG});
    feed.event(&event);
    drop(feed);
    let sent = [("image;a.png", "one"), ("model", "far"), ("prompt", "a hat"), ("stream", "true")];
    let made = send(&service, "/v1/images/edits", &sent).await;
    assert_eq!(made.text, format!("data: {event}\n\n"));
    assert_eq!(newest_row(&service, 3).await["execution_cost"], 0.04);
}

#[tokio::test]
async fn media_limits_and_wrong_models_are_named() {
    let (up, near, service) = start("").await;
    for (body, param) in [
        (json!({"model": "voice"}), "input"),
        (json!({"model": "voice", "input": ""}), "input"),
        (json!({"model": "voice", "input": "x".repeat(32_769)}), "input"),
        (json!({"model": "voice", "input": "x", "speed": 5}), "speed"),
        (json!({"model": "voice", "input": "x", "stream_format": "y"}), "stream_format"),
    ] {
        let answer = service.post("/v1/audio/speech", &body).undocumented().send().await;
        assert_eq!(answer.expect(400)["error"]["param"], param);
    }
    for (body, param) in [
        (json!({"model": "brush"}), "prompt"),
        (json!({"model": "brush", "prompt": "x", "n": 11}), "n"),
        (json!({"model": "brush", "prompt": "x", "response_format": "png"}), "response_format"),
    ] {
        let answer = service.post("/v1/images/generations", &body).undocumented().send().await;
        assert_eq!(answer.expect(400)["error"]["param"], param);
    }
    for (more, param) in [
        (("temperature", "hot"), "temperature"),
        (("temperature", "2"), "temperature"),
        (("response_format", "pdf"), "response_format"),
        (("stream", "maybe"), "stream"),
        (("timestamp_granularities[]", "letter"), "timestamp_granularities[].0"),
    ] {
        let error = transcribe(&service, "ears", &[more]).await.expect(400);
        assert!(error["error"]["param"].as_str().unwrap().starts_with(&param[..4]), "{error}");
    }
    let none = send(&service, "/v1/audio/transcriptions", &[("model", "ears")]).await.expect(400);
    assert_eq!(none["error"]["param"], "file");
    let empty = [("file;a.wav", ""), ("model", "ears")];
    let empty = send(&service, "/v1/audio/transcriptions", &empty).await.expect(400);
    assert_eq!(empty["error"]["message"], "file is empty");
    let error = transcribe(&service, "voice", &[]).await.expect(400);
    let message = error["error"]["message"].as_str().unwrap();
    let says = "supports speech (POST /v1/audio/speech), not transcriptions";
    assert!(message.contains(says), "{message}");
    let body = json!({"model": "ears", "input": "x"});
    let error = service.post("/v1/audio/speech", &body).send().await.expect(400);
    let message = error["error"]["message"].as_str().unwrap();
    let says = "supports transcriptions (POST /v1/audio/transcriptions) and translations";
    assert!(message.contains(says), "{message}");
    let body = json!({"model": "brush", "messages": [{"role": "user", "content": "x"}]});
    let error = service.post("/v1/chat/completions", &body).send().await.expect(400);
    let says = "supports image generations (POST /v1/images/generations) and image edits";
    assert!(error["error"]["message"].as_str().unwrap().contains(says), "{error}");
    assert_eq!((up.requests().len(), near.requests().len()), (0, 0));
    let alone = Service::start().await;
    let error = alone.post("/v1/audio/speech", &json!({"model": "x", "input": "x"})).send().await;
    assert_eq!(error.expect(404)["error"]["code"], "model_not_found");
}

#[tokio::test]
async fn media_costs_are_reserved_at_their_bound() {
    let (up, _near, service) = start(ENFORCED).await;
    let billing = &service.running.services.billing;
    let top_up = |micros| billing.top_up(service.organization.id, Usd::from_micros(micros));
    let speak = |count: usize| {
        let body = json!({"model": "far", "input": "x".repeat(count)});
        service.post("/v1/audio/speech", &body)
    };
    top_up(19_999).await.unwrap();
    transcribe(&service, "far", &[]).await.expect(402);
    speak(200).send().await.expect(402);
    let body = json!({"model": "far", "prompt": "x"});
    service.post("/v1/images/generations", &body).send().await.expect(402);
    assert_eq!(up.requests().len(), 0);
    top_up(1).await.unwrap();
    // The server reports more than the file can have.
    up.answers(200, json!({"text": "Hi.", "duration": 3600}).to_string());
    transcribe(&service, "far", &[]).await.expect(200);
    let balance = billing.balance(service.organization.id).await.unwrap();
    assert_eq!(balance.micros(), 0);
}

#[tokio::test]
async fn media_models_are_listed_with_their_kind() {
    let (up, _near, service) = start("").await;
    up.answers(200, r#"{"data":[]}"#);
    let list = service.get("/openai/v1/models").await.expect(200);
    let all = list["data"].as_array().unwrap().iter();
    let kinds: Vec<(&str, &str)> =
        all.map(|one| (one["id"].as_str().unwrap(), one["kind"].as_str().unwrap())).collect();
    assert_eq!(kinds, [("brush", "images"), ("ears", "transcriptions"), ("voice", "speech")]);
    assert_eq!(list["data"][1]["pricing"]["per_audio_minute"], 0.6);
    let anthropic = service.get("/v1/models?format=anthropic").await.expect(200);
    assert_eq!(anthropic["data"], json!([]), "they cannot converse");
}

#[tokio::test]
async fn predictions_speak_and_make_images() {
    let (_up, near, service) = start("").await;
    let manifest = near.manifest("aloud", "speech", "").replace("'string'", "'audio'");
    service.manifest(&manifest.replace("[runner]", &format!("{COST}[runner]")));
    near.answers_with(200, ("content-type", "audio/mpeg"), "ID3");
    let id = service.create("aloud", json!({"input": "Hi", "voice": "a"})).await;
    let run = service.ended(&id).await;
    assert!(run["output"].as_str().unwrap().contains("/v1/files/"), "{run}");
    assert_eq!(run["metrics"]["cost"], 0.0002);
    near.answers(200, json!({"data": [{"url": "http://h/a.png"}]}).to_string());
    let id = service.create("brush", json!({"prompt": "x"})).await;
    let run = service.ended(&id).await;
    assert_eq!(run["metrics"]["cost"], 0.04);
    let body = json!({"model": "ears", "version": "1", "input": {"file": "data:,x"}});
    let run = service.post("/v1/prediction/run", &body).send().await;
    assert!(run.text.contains("POST /v1/audio/transcriptions"), "{}", run.text);
}

/// Hostile forms: each gets an answer, and leaves nothing on disk.
#[tokio::test]
async fn media_hostile_forms_are_refused() {
    let up = Upstream::start().await;
    let near = Upstream::start().await;
    let limits = "files.max_bytes = '1MiB'\nlimits.body_timeout = '1s'\n";
    let service = Service::configured(&format!("{limits}{}", up.config(""))).await;
    service.manifest(&near.manifest("ears", "transcriptions", ""));
    let path = "/v1/audio/transcriptions";
    let post = |kind: &str, body: Vec<u8>| {
        let ask = service.ask(Role::Base, Method::POST, path).key(&service.key);
        ask.header("content-type", kind).body(body).undocumented()
    };
    let kind = "multipart/form-data; boundary=b0";
    let many: Vec<(&str, &str)> = vec![("a", "b"); 65];
    let two = [("file;a", "x"), ("file;b", "y"), ("model", "ears")];
    let large = "x".repeat(1024 * 1024 + 1);
    let too_large = [("file;a", large.as_str()), ("model", "ears")];
    let long = "x".repeat(256 * 1024 + 1);
    let long = [("prompt", long.as_str())];
    let huge_head = format!("--b0\r\nContent-Disposition: form-data; x=\"{}", "x".repeat(3 << 20));
    let name = "n".repeat(65);
    for (kind, body, status, words) in [
        ("multipart/form-data", form(&two).into_bytes(), 400, "must be multipart/form-data"),
        ("application/json", b"{}".to_vec(), 400, "must be multipart/form-data with a field file"),
        (kind, form(&many).into_bytes(), 400, "at most 64 parts"),
        (kind, form(&two).into_bytes(), 400, "at most 1 files"),
        (kind, form(&[(name.as_str(), "x")]).into_bytes(), 400, "the name of a field"),
        (kind, form(&too_large).into_bytes(), 413, "larger than"),
        (kind, form(&long).into_bytes(), 400, "at most 262144 bytes"),
        (kind, huge_head.into_bytes(), 413, ""),
        (kind, form(&[("file;../a", "x")]).into_bytes(), 400, "filename must be a plain name"),
        (kind, b"--b0\r\n".to_vec(), 400, "the form cannot be read"),
        (kind, b"--b0\nx".to_vec(), 400, "must end in CRLF"),
        (kind, Vec::new(), 400, ""),
    ] {
        let answer = post(kind, body).send().await;
        let error = answer.expect(status);
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{words}: {error}");
    }
    // Forms that stop, or stall, in the middle of their file.
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {}\r\nContent-Type: {kind}\r\n\
         Content-Length: 1000\r\n\r\n--b0\r\nContent-Disposition: form-data; name=\"file\"; \
         filename=\"a\"\r\n\r\nabc",
        service.key
    );
    let mut stream = TcpStream::connect(service.address(Role::Base)).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut said = Vec::new();
    let _ended = within("end of the connection", stream.read_to_end(&mut said)).await;
    let stalled = service.raw(head.as_bytes()).await;
    assert!(stalled.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{stalled}");
    assert!(stalled.contains("no byte of the body arrived"), "{stalled}");
    assert_eq!((up.requests().len(), near.requests().len()), (0, 0));
    let incoming = service.config.data_dir.join("files").join("incoming");
    let is_empty = || std::fs::read_dir(&incoming).map_or(true, |mut all| all.next().is_none());
    until("empty folder", async || is_empty().then_some(())).await;
}

#[tokio::test]
async fn media_endless_answers_are_cut_off() {
    let (up, _near, service) = start("").await;
    let feed = up.streams_as("audio/mpeg");
    let block = "x".repeat(4 << 20);
    for _ in 0..65 {
        feed.raw(&block);
    }
    let answer = service.post("/v1/audio/speech", &json!({"model": "far", "input": "Hi"}));
    let mut body = answer.open().await.into_body();
    let mut seen: usize = 0;
    let end = loop {
        match http_body_util::BodyExt::frame(&mut body).await {
            Some(Ok(frame)) => seen += frame.into_data().map_or(0, |data| data.len()),
            other => break other,
        }
    };
    assert!(matches!(end, Some(Err(_))) && seen <= 256 << 20, "{seen}");
    assert_eq!(newest_row(&service, 1).await["execution_cost"], 0.0);
}
