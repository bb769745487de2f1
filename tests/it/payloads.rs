//! Payloads over the 64 KiB that the store itself keeps: files beside it, the same to clients.

use serde_json::{Value, json};

use crate::support::{Provider, Receiver, Service};

fn files(service: &Service) -> usize {
    fn count(folder: &std::path::Path) -> usize {
        let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
        entries
            .map(|entry| entry.unwrap().path())
            .map(|path| if path.is_dir() { count(&path) } else { 1 })
            .sum()
    }
    count(&service.config.data_dir.join("payloads"))
}

#[tokio::test]
async fn large_inputs_outputs_and_webhooks_come_back_whole() {
    let service = Service::start().await;
    let provider = Provider::start().await;
    let mut receiver = Receiver::start().await;
    service.manifest(&provider.manifest("echo", "/echo", ""));
    let small = service.create("echo", json!({"text": "small"})).await;
    service.ended(&small).await;
    assert_eq!(files(&service), 0);

    let text: String = ('a'..='z').cycle().take(300_000).collect();
    let input = json!({"text": text, "unicode": "\u{1f30c}".repeat(1000)});
    let fields = json!({"input": input, "webhook_url": receiver.url()});
    let id = service.create_with("echo", fields).await;
    let prediction = service.ended(&id).await;
    assert_eq!(prediction["input"], input);
    assert_eq!(prediction["output"], input);
    assert_eq!(files(&service), 3, "an input, an output, a webhook's body");
    let hook = receiver.next().await;
    assert_eq!(hook.json()["output"], input);

    let service = service.restart().await;
    let again: Value = service.ended(&id).await;
    assert_eq!((&again["input"], &again["output"]), (&input, &input));
}

#[tokio::test]
async fn a_body_at_the_limit_is_taken_and_one_byte_more_is_not() {
    let service = Service::configured("limits.body_bytes = '64KiB'\n").await;
    let body = |length: usize| {
        let empty = r#"{"model":"text-template","version":"1","input":{"template":""}}"#;
        let text = "x".repeat(length - empty.len());
        empty.replace(r#""template":"""#, &format!(r#""template":"{text}""#))
    };
    let ask = |text: String| {
        let post = service.post("/v1/prediction/", &Value::Null);
        post.body(text).send()
    };
    ask(body(65_536)).await.expect(200);
    let refused = ask(body(65_537)).await;
    refused.expect_error(413, "the request body is larger than 65536 bytes");
}
