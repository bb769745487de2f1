//! Compaction of conversations in OpenAI's Responses API.

use serde_json::{Value, json};

use crate::support::{Service, Upstream};

#[tokio::test]
async fn compaction_stands_for_a_conversation() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    up.says("Hello Alice!", 1, 1);
    let create = json!({"model": "far", "input": "My name is Alice."});
    let first = service.post("/v1/responses", &create).send().await.expect(200);

    up.says("The user is called Alice.", 20, 6);
    let compact = json!({"model": "far", "previous_response_id": first["id"],
        "input": [{"role": "user", "content": "I live in Rome."}], "prompt_cache_key": "k"});
    let made = service.post("/v1/responses/compact", &compact).send().await.expect(200);
    assert_eq!(
        (&made["object"], &made["usage"]["total_tokens"]),
        (&json!("response.compaction"), &json!(26))
    );
    let said: Vec<Value> = up.newest()["messages"].as_array().unwrap().clone();
    assert_eq!(said[0]["content"], "My name is Alice.");
    assert_eq!((said[1]["content"].as_str(), said.len()), (Some("Hello Alice!"), 3));
    assert_eq!(said[2]["content"][0]["text"], "I live in Rome.");
    let asked = said[2]["content"][1]["text"].as_str().unwrap();
    assert!(asked.starts_with("Summarize our conversation"), "{asked}");
    let item = &made["output"][0];
    assert_eq!(
        (&item["type"], made["output"].as_array().unwrap().len()),
        (&json!("compaction"), 1)
    );

    up.says("Alice.", 1, 1);
    let next = json!({"model": "far",
        "input": [item, {"role": "user", "content": "What is my name?"}]});
    let answered = service.post("/v1/responses", &next).send().await.expect(200);
    let said = up.newest();
    assert_eq!(said["messages"][0]["role"], "system");
    let summary = said["messages"][0]["content"].as_str().unwrap();
    assert!(summary.ends_with("The user is called Alice."), "{summary}");
    let items = format!("/v1/responses/{}/input_items", answered["id"].as_str().unwrap());
    let items = service.get(&items).await.expect(200);
    assert!(items.to_string().contains("\"type\":\"compaction\""), "{items}");

    up.says("Still Alice.", 1, 1);
    let again = json!({"model": "far", "previous_response_id": answered["id"], "input": "Sure?"});
    service.post("/v1/responses", &again).send().await.expect(200);
    assert_eq!(up.newest()["messages"][0]["content"], summary);
}

#[tokio::test]
async fn compaction_that_cannot_be_made_or_read_is_refused() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    for (body, param) in [
        (json!({"input": "a"}), "model"),
        (json!({"model": "far"}), "input"),
        (json!({"model": "far", "input": null, "previous_response_id": null}), "input"),
        (
            json!({"model": "far", "input": [{"type": "compaction", "encrypted_content": "gAAA"}]}),
            "input",
        ),
    ] {
        let refused = service.post("/v1/responses/compact", &body).undocumented().send().await;
        let named = refused.expect(400)["error"]["param"].clone();
        assert!(named.as_str().unwrap().starts_with(param), "{named} {body}");
    }
    assert_eq!(up.requests().len(), 0);
    up.says(" ", 1, 1);
    let empty = service.post("/v1/responses/compact", &json!({"model": "far", "input": "a"}));
    let error = empty.send().await.expect(502)["error"].clone();
    assert_eq!(error["message"], "the model's answer has no text");
}
