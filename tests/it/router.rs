//! Embeddings, and the list of models that can be called.

use serde_json::{Value, json};

use crate::support::{Service, Upstream};

#[tokio::test]
async fn embeddings_are_passed_on_with_their_cost() {
    let up = Upstream::start().await;
    let near = Upstream::start().await;
    let price = "prices = [{ model = 'far', per_million_input_tokens = 100.0, \
                 per_million_output_tokens = 0.0 }]\n";
    let service = Service::configured(&up.config(price)).await;
    service.manifest(&near.manifest("near", "embeddings", ""));
    let answer = r#"{"object":"list","data":[{"embedding":[0.12345678901234567890]}],"usage":{"prompt_tokens":50,"total_tokens":50}}"#;
    for (model, server, cost) in [("far", &up, "0.005"), ("near", &near, "0.0")] {
        server.answers(200, answer);
        let body = json!({"model": model, "input": ["a", "b"], "encoding_format": "float"});
        let said = service.post("/v1/embeddings", &body).send().await;
        let expected = answer.replace("50}}", &format!("50,\"cost\":{cost}}}}}"));
        said.expect_text(200, &expected);
        assert_eq!(server.newest()["encoding_format"], "float");
        assert_eq!(server.requests()[0].uri().path(), "/v1/embeddings");
    }
    let rows = service.get("/v2/executions?type=chat").await.expect(200);
    let call = &rows["executions"][1]["chat"];
    let found = (&call["operation"], &call["input_tokens"], &call["output_tokens"]);
    assert_eq!(found, (&json!("embeddings"), &json!(50), &json!(0)));
    let wrong = service.post("/v1/embeddings", &json!({"model": "far", "input": []}));
    let error = wrong.undocumented().send().await.expect(400);
    assert_eq!(error["error"]["param"], "input");
}

#[tokio::test]
async fn router_catalog_lists_local_and_upstream_models() {
    let up = Upstream::start().await;
    let near = Upstream::start().await;
    let price = "platform_fee = 1.0\nprices = [{ model = 'far', per_million_input_tokens = 1.0, \
                 per_million_output_tokens = 2.0 }]\n";
    let service = Service::configured(&up.config(price)).await;
    service.manifest(&near.manifest("near", "chat", ""));
    service.manifest(&near.manifest("vectors", "embeddings", ""));
    service.manifest(&near.manifest("pictures", "images", ""));
    let far = json!({"id": "far", "created": 7, "owned_by": "them"});
    up.answers(200, json!({"data": [far, {"id": "near"}]}).to_string());
    let list = service.get("/v1/llm-router/model-catalog").await.expect(200);
    let models: Vec<(&str, &str, &Value)> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| {
            (model["id"].as_str().unwrap(), model["source"].as_str().unwrap(), &model["kind"])
        })
        .collect();
    let expected = [
        ("near", "local", &json!("chat")),
        ("vectors", "local", &json!("embeddings")),
        ("far", "upstream", &Value::Null),
    ];
    assert_eq!(models, expected);
    let pricing = json!({
        "per_answer": null, "per_second": null, "per_million_input_tokens": 2.0,
        "per_million_output_tokens": 4.0,
    });
    assert_eq!(list["data"][2]["pricing"], pricing, "with the fee");
    assert_eq!((&list["upstream"]["stale"], up.requests().len()), (&json!(false), 1));
    let again = service.get("/v1/llm-router/model-catalog").await.expect(200);
    assert_eq!((again, up.requests().len()), (list, 1), "the list is kept");
}

#[tokio::test]
async fn router_catalog_is_stale_while_the_upstream_is_down() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("catalog_ttl = '1s'\n")).await;
    up.answers(200, r#"{"data":[{"id":"far"}]}"#);
    let list = service.get("/v1/llm-router/model-catalog").await.expect(200);
    assert_eq!(list["upstream"]["stale"], false);
    for _ in 0..100 {
        up.answers(500, "down");
    }
    let stale = crate::support::until("stale list", async || {
        let list = service.get("/v1/llm-router/model-catalog").await.expect(200);
        (list["upstream"]["stale"] == true).then_some(list)
    })
    .await;
    assert_eq!(stale["data"], list["data"]);
    assert_eq!(stale["upstream"]["error"], "the upstream answered 500");
    assert_eq!(stale["upstream"]["fetched_at"], list["upstream"]["fetched_at"]);
}

#[tokio::test]
async fn router_catalog_without_upstream_is_local() {
    let service = Service::start().await;
    let list = service.get("/v1/llm-router/model-catalog").await;
    list.expect_text(200, r#"{"object":"list","data":[],"upstream":null}"#);
}
