//! Model files besides chat and embedding models: rerankers, and LoRA adapters.

use serde_json::{Value, json};

use crate::support::{Service, gguf};

#[tokio::test]
async fn llm_reranker_sorts_documents_by_relevance() {
    let service = Service::start().await;
    gguf::write_reranker(&service.models().join("rater.gguf"), 7);
    assert!(service.running.services.catalog.reload().errors.is_empty());
    let model = service.get("/v1/models/rater").await.expect(200);
    assert_eq!(model["output_type"], "array");
    assert_eq!(model["request_schema"]["required"], json!(["query", "documents"]));
    let documents = ["red apples", "a", "the moon is far away", "green", "red apples"];
    let ask = async |fields: Value| {
        let mut body = json!({"model": "rater", "query": "fruit", "documents": documents});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        service.post("/v1/rerank", &body).send().await
    };
    let all = ask(json!({})).await.expect(200);
    let results = all["results"].as_array().unwrap();
    let score = |result: &Value| result["relevance_score"].as_f64().unwrap();
    assert!(results.is_sorted_by(|one, other| score(one) >= score(other)), "{all}");
    assert!(results.iter().all(|result| (0.0..=1.0).contains(&score(result))), "{all}");
    let of = |index: usize| results.iter().find(|result| result["index"] == index).unwrap();
    assert_eq!(results.len(), documents.len());
    assert!((score(of(0)) - score(of(4))).abs() < 1e-6, "the same text: {all}");
    assert!(score(of(0)) - score(of(1)) != 0.0, "other texts: {all}");
    assert!(all["usage"]["prompt_tokens"].as_u64().unwrap() > 60, "{all}");
    let best = ask(json!({"top_n": 1, "return_documents": true})).await.expect(200);
    let index = usize::try_from(results[0]["index"].as_u64().unwrap()).unwrap();
    assert_eq!(best["results"][0]["document"]["text"], documents[index]);
    assert_eq!(best["results"].as_array().unwrap().len(), 1);
    // One document at a time gets the same score as in a batch.
    for (index, document) in documents.iter().enumerate() {
        let one = ask(json!({"documents": [document]})).await.expect(200);
        let difference = score(&one["results"][0]) - score(of(index));
        assert!(difference.abs() < 1e-4, "{document}: {one} {all}");
    }
    let input = json!({"query": "fruit", "documents": documents});
    let done = service.ended(&service.create("rater", input).await).await;
    assert_eq!(done["output"].as_array().unwrap().len(), documents.len(), "{done}");
    for (fields, says) in [
        (json!({"documents": ["x".repeat(3000)]}), "this model's context has 2048"),
        (json!({"documents": []}), "documents"),
    ] {
        let refused = ask(fields).await.expect(400)["error"].clone();
        assert!(refused["message"].as_str().unwrap().contains(says), "{refused}");
    }
    let chat = json!({"model": "rater", "messages": [{"role": "user", "content": "x"}]});
    service.post("/v1/chat/completions", &chat).send().await.expect(400);
}

#[tokio::test]
async fn llm_adapter_changes_the_answers_of_its_model_only() {
    let service = Service::start().await;
    let models = service.models();
    gguf::write(&models.join("small.gguf"), &gguf::SMALL, "Small", 7);
    gguf::write_adapter(&models.join("tone.gguf"), &gguf::SMALL, 3);
    gguf::write_adapter(
        &models.join("wide.gguf"),
        &gguf::Shape { embedding: 96, ..gguf::SMALL },
        3,
    );
    for (slug, more) in [
        ("plain", ""),
        ("toned", "lora = 'tone.gguf'"),
        ("off", "lora = 'tone.gguf'\nlora_scale = 0"),
        ("wrong", "lora = 'wide.gguf'"),
    ] {
        service.manifest(&format!(
            "slug = '{slug}'\n[runner]\ntype = 'llm'\nfile = 'small.gguf'\nthreads = 1\n{more}\n"
        ));
    }
    // Adapters are not listed as models.
    let listed = service.get("/v1/models").await.expect(200);
    let slugs: Vec<&Value> = listed.as_array().unwrap().iter().map(|it| &it["slug"]).collect();
    assert!(!slugs.contains(&&json!("tone")) && slugs.contains(&&json!("toned")), "{slugs:?}");
    let ask = |model: &str| {
        let message = json!({"role": "user", "content": "hello"});
        json!({"model": model, "max_tokens": 30, "seed": 5, "temperature": 0, "messages": [message]})
    };
    let said = async |model: &str| {
        let answer = service.post("/v1/chat/completions", &ask(model)).send().await.expect(200);
        answer["choices"][0]["message"]["content"].clone()
    };
    let plain = said("plain").await;
    assert_eq!(said("off").await, plain);
    assert_ne!(said("toned").await, plain);
    let failed = service.post("/v1/chat/completions", &ask("wrong")).send().await;
    assert!(failed.text.contains("llama.cpp cannot load its adapter"), "{}", failed.text);
}
