//! The chat playground in a browser: a model whose stream is stopped and survives a reload, and the
//! agent with its tools, its media and its stored session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::support::chromium::Chromium;
use crate::support::{Service, Upstream};

const ENTER: &str = "\u{E007}";

impl Chromium {
    /// Sends a message with the keyboard.
    async fn says(&self, text: &str) {
        let field = self.find("//textarea[@aria-label='Your message']").await;
        field.send_keys(&format!("{text}{ENTER}")).await;
    }
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn chat_screens_stream_stop_and_survive_a_reload() {
    let up = Upstream::start().await;
    let service = Service::start().await;
    service.manifest(&up.manifest("talk", "chat", ""));
    let browser = Chromium::start().await;
    browser.set_up(&service).await;
    browser.open(&service, "/app/chat").await;
    let stream = up.streams();
    browser.says("Tell me of the stars").await;
    up.arrived(1).await;
    stream.say("There are <b>");
    browser.see("There are <b>").await;
    // The page shows the answer while it arrives, as plain text.
    stream.say("many</b>.");
    browser.see("There are <b>many</b>.").await;
    stream.finish(7, 3);
    browser.see("talk, 10 tokens").await;
    assert_eq!(
        up.newest()["messages"],
        json!([{"role": "user", "content": "Tell me of the stars"}])
    );
    // After a stop, the partial answer remains, and the service cancels the request to the model.
    let stream = up.streams();
    browser.says("And the planets?").await;
    up.arrived(2).await;
    assert_eq!(up.newest()["messages"].as_array().unwrap().len(), 3);
    stream.say("Eight of");
    browser.see("Eight of").await;
    browser.press("Stop").await;
    browser.see(", stopped").await;
    up.hung_up(1).await;
    browser.picture("chat").await;
    // A reload in the middle of an answer loses no text received so far.
    let stream = up.streams();
    browser.press("Answer again").await;
    up.arrived(3).await;
    stream.say("Eight planets, and");
    browser.see("Eight planets, and").await;
    browser.client.refresh().await.unwrap();
    browser.see("There are <b>many</b>.").await;
    browser.see("Eight planets, and").await;
    browser.see(", stopped").await;
    up.hung_up(2).await;
    // If a model fails in the middle of an answer, the page does not report an error of its own.
    for (part, said, ends) in [
        ("Half of", "The model failed: out of memory. Try again in a moment.", false),
        ("A third of", "its stream broke", true),
    ] {
        let stream = up.streams();
        browser.says("Once more").await;
        stream.say(part);
        browser.see(part).await;
        if ends {
            stream.cut();
        } else {
            stream.event(&json!({"error": {"message": "out of memory"}}));
        }
        browser.see(said).await;
        assert!(!browser.text().await.contains("in this page"), "{}", browser.text().await);
    }
    // A new conversation can be undone.
    browser.press("New conversation").await;
    browser.see("Write something below.").await;
    browser.see("The conversation is deleted.").await;
    browser.picture("chat-undo").await;
    browser.press("Undo").await;
    browser.see("There are <b>many</b>.").await;
    // The page shows the error of a failing model and offers to try again.
    up.answers(500, "{\"error\": {\"message\": \"the model is on fire\"}}");
    browser.says("Once more").await;
    browser.press("Try again").await;
    browser.is_accessible("chat").await;
    browser.expect_quiet_console(&["502 (Bad Gateway)", "500 (", "503 ("]).await;
    browser.leave().await;
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn chat_screens_send_images_to_vision_models() {
    let up = Upstream::start().await;
    let service = Service::start().await;
    service.manifest(&up.manifest("talk", "chat", ""));
    let browser = Chromium::start().await;
    browser.set_up(&service).await;
    browser.open(&service, "/app/chat").await;
    browser.see("Write something below.").await;
    let chooser = browser.client.find(fantoccini::Locator::Css("input[type=file]")).await.unwrap();
    chooser.send_keys(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).await.unwrap();
    browser.see("is not an image that the browser can read").await;
    chooser.send_keys(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictures/run.png")).await.unwrap();
    browser.find("//img[@alt='Image 1']").await;
    browser.is_accessible("chat with an image").await;
    let stream = up.streams();
    browser.says("What is this?").await;
    up.arrived(1).await;
    let content = up.newest()["messages"][0]["content"].clone();
    assert_eq!(content[0], json!({"type": "text", "text": "What is this?"}));
    let url = content[1]["image_url"]["url"].as_str().unwrap();
    assert!(url.starts_with("data:image/jpeg;base64,") && url.len() < 400_000, "{}", url.len());
    stream.say("A timeline.");
    stream.finish(7, 3);
    browser.see("talk, 10 tokens").await;
    browser.client.refresh().await.unwrap();
    browser.see("A timeline.").await;
    browser.find("//img[@alt='Image 1 of the message']").await;
    browser.picture("chat-image").await;
    browser.leave().await;
}

#[cfg(feature = "llama")]
#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn chat_screens_talk_with_a_local_model_and_survive_a_reload() {
    use crate::support::gguf;
    let service = Service::start().await;
    gguf::write(&service.models().join("small.gguf"), &gguf::SMALL, "Small", 7);
    service.manifest("slug = 'small'\n[runner]\ntype = 'llm'\nfile = 'small.gguf'\nthreads = 1\n");
    let browser = Chromium::start().await;
    browser.set_up(&service).await;
    browser.open(&service, "/app/chat").await;
    browser.see("Write something below.").await;
    browser.says("Tell me of the stars").await;
    // The model generates gibberish of any length; after that, the page shows the token count.
    browser.see(" tokens").await;
    let said = "return [...document.querySelectorAll('.message')].map((one) => one.innerText)";
    let before = browser.run(said).await;
    assert_eq!(before.as_array().unwrap().len(), 2, "{before}");
    browser.client.refresh().await.unwrap();
    browser.see(" tokens").await;
    assert_eq!(browser.run(said).await, before);
    // The conversation continues.
    browser.says("And the planets?").await;
    crate::support::until("second answer", async || {
        let text = browser.text().await;
        (text.matches(" tokens").count() == 2 && !text.contains("Stop")).then_some(())
    })
    .await;
    assert_eq!(browser.run(said).await.as_array().unwrap()[..2], before.as_array().unwrap()[..]);
    browser.leave().await;
}

/// Returns an assistant message with a tool call.
fn calls(tool: &str, arguments: Value) -> Value {
    let function = json!({"name": tool, "arguments": arguments.to_string()});
    let call = json!({"id": format!("call-{tool}"), "type": "function", "function": function});
    json!({"role": "assistant", "content": null, "tool_calls": [call]})
}

#[tokio::test]
#[ignore = "needs chromium: run tests/run"]
async fn chat_screens_show_agent_activity_and_memory() {
    let up = Upstream::start().await;
    let service = Service::configured(&(up.config("") + "[agent]\nmodel = 'far'\n")).await;
    let steps = json!([{"step_id": "greeting", "type": "pass", "result": "hello"}]);
    let workflow = service.workflow(steps).await;
    let messages = [
        calls("find_models", json!({"query": "qr code"})),
        calls("run_model", json!({"model": "image-qr", "input": {"text": "hello"}})),
        calls("run_workflow", json!({"workflow": workflow})),
        json!({"role": "assistant", "content": "Here is <i>your</i> code."}),
    ];
    let is_busy = Arc::new(AtomicBool::new(false));
    let busy = Arc::clone(&is_busy);
    up.follows(move |request| {
        if busy.load(Ordering::SeqCst) {
            return (503, json!({"error": {"message": "the model is busy: try again later."}}));
        }
        // The screen also requests the list of models.
        let Some(all) = request["messages"].as_array() else { return (200, json!({"data": []})) };
        let own = all.iter().rev().take_while(|message| message["role"] != "user");
        let said = own.filter(|message| message["role"] == "assistant").count();
        let message = messages.get(said).or(messages.last()).unwrap();
        let usage = json!({"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10});
        (200, json!({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}))
    });
    let browser = Chromium::start().await;
    browser.set_up(&service).await;
    browser.open(&service, "/app/chat").await;
    browser.press_tab("The agent").await;
    browser.says("Make a QR code").await;
    browser.see("Here is <i>your</i> code.").await;
    browser.see("find_models").await;
    browser.see("run_model").await;
    browser.see("Step 1 of 1: greeting completed").await;
    browser.find("//figure[@class='media']//img").await;
    browser.see("in Runs").await;
    browser.picture("chat-agent").await;
    browser.is_accessible("agent").await;
    // The service has stored the session that the address names.
    let session = browser.run("return new URLSearchParams(location.search).get('session')").await;
    assert!(session.as_str().unwrap().starts_with("chat-"), "{session}");
    browser.client.refresh().await.unwrap();
    browser.see("Make a QR code").await;
    browser.see("Here is <i>your</i> code.").await;
    browser.find("//figure[@class='media']//img").await;
    browser.says("Thank you").await;
    browser.see("Thank you").await;
    crate::support::until("second exchange", async || {
        let said = browser.text().await.matches("Here is <i>your</i> code.").count();
        (said == 2).then_some(())
    })
    .await;
    // The page describes a failure of the model in a sentence. A draft message is kept when another
    // session is chosen.
    is_busy.store(true, Ordering::SeqCst);
    browser.says("And now?").await;
    browser.see("The model is busy. Try again in a moment.").await;
    let field = "return document.querySelector('textarea').value";
    browser.find("//textarea[@aria-label='Your message']").await.send_keys("A long draft").await;
    browser.choose("Session", "A new one").await;
    browser.see("Ask for something").await;
    assert_eq!(browser.run(field).await, "A long draft");
    browser.choose("Session", session.as_str().unwrap()).await;
    browser.see("Make a QR code").await;
    assert_eq!(browser.run(field).await, "A long draft");
    browser.press("Forget the session").await;
    browser.press("Forget it").await;
    browser.see("Ask for something").await;
    browser.leave().await;
}
