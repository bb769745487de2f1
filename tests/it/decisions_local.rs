//! Decisions by a local model: a file with random weights. The model's answers are meaningless; the
//! tests check how the service queries the model.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::chat::newest_row;
use crate::support::{Answer, Service, gguf, until};

/// Clients that chat while decisions are made.
const CHATS: usize = 10;

/// Starts a service with one model, `small`, which costs a thousandth of a dollar per prompt token.
async fn service(more: &str) -> Service {
    let service = Service::start().await;
    gguf::write(&service.models().join("small.gguf"), &gguf::SMALL, "Small", 7);
    service.manifest(&format!(
        "slug = 'small'\n[cost]\ntype = 'usage_based'\nper_million_input_tokens = 1000.0\n\
         per_million_output_tokens = 1000.0\n[runner]\ntype = 'llm'\nfile = 'small.gguf'\n\
         threads = 1\n{more}\n"
    ));
    service
}

fn body(questions: &Value) -> Value {
    json!({"model": "small", "state": "the printer burns. ".repeat(20), "questions": questions})
}

/// One question of each type.
fn questions() -> Value {
    json!({
        "urgent": {"type": "oul", "instructions": "Is it urgent?"},
        "late": {"type": "noul", "instructions": "Is it late?", "criteria": {"true": "after 18"}},
        "team": {"type": "choice", "instructions": "Who?",
            "criteria": {"it": null, "fire": "heat", "nobody": null}},
        "mood": {"type": "score", "instructions": "How?", "criteria": ["low", "mid", "high"]},
    })
}

async fn decide(service: &Service, body: &Value) -> Answer {
    service.post("/v1/decisions", body).send().await
}

fn sum(probabilities: &Value) -> f64 {
    probabilities.as_object().unwrap().values().map(|one| one.as_f64().unwrap()).sum()
}

#[tokio::test]
async fn decisions_of_local_model_read_state_once() {
    let service = service("").await;
    let answer = decide(&service, &body(&questions())).await;
    let said = answer.expect(200);
    assert_eq!(answer.header("x-decision-method"), "logprobs");
    let answers = &said["answers"];
    let names: Vec<&String> = answers.as_object().unwrap().keys().collect();
    assert_eq!(names, ["urgent", "late", "team", "mood"]);
    let urgent = answers["urgent"]["oul"].as_f64().unwrap();
    assert!(urgent > 0.0 && urgent < 1.0, "{urgent}");
    for name in ["team", "mood"] {
        let probabilities = &answers[name]["probabilities"];
        assert!((sum(probabilities) - 1.0).abs() < 1e-9, "{probabilities}");
        let most = probabilities.as_object().unwrap().values().map(|one| one.as_f64().unwrap());
        assert_eq!(answers[name]["confidence"], most.fold(0.0, f64::max));
    }
    let row = newest_row(&service, 1).await;
    let decision = &row["decision"];
    let found = (&decision["method"], &decision["calls"], &decision["upstream"]);
    assert_eq!(found, (&json!("logprobs"), &json!(1), &json!(false)));
    let usage = &said["usage"];
    let tokens = usage["input_tokens"].as_f64().unwrap();
    assert_eq!(usage["output_tokens"], 0, "nothing is written");
    assert!((usage["cost"].as_f64().unwrap() - tokens / 1000.0).abs() < 1e-9, "{usage}");
    // The state has 380 single-character tokens; a question has fewer than 200 in both orders
    // together.
    let one = json!({"urgent": questions()["urgent"]});
    let alone = decide(&service, &body(&one)).await.expect(200);
    assert_eq!(alone["answers"]["urgent"], answers["urgent"], "whatever else is asked");
    let more = tokens - alone["usage"]["input_tokens"].as_f64().unwrap();
    assert!(more > 200.0 && more < 600.0, "{more}");
}

#[tokio::test]
async fn decisions_of_local_model_mirror_reversed_options() {
    let service = service("").await;
    let of = async |criteria: Value| {
        let team =
            json!({"team": {"type": "choice", "instructions": "Who?", "criteria": criteria}});
        decide(&service, &body(&team)).await.expect(200)["answers"]["team"].clone()
    };
    let given = of(json!({"it": null, "fire": "heat", "nobody": null})).await;
    let reversed = of(json!({"nobody": null, "fire": "heat", "it": null})).await;
    assert_eq!(given["choice"], reversed["choice"]);
    for option in ["it", "fire", "nobody"] {
        let of = |answer: &Value| answer["probabilities"][option].clone();
        assert_eq!(of(&given), of(&reversed), "{option}, bit by bit");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_of_local_model_are_bit_identical_during_ten_chats() {
    let service = Arc::new(service("context = 1024\nbatch = 64").await);
    let body = body(&questions());
    let alone = decide(&service, &body).await.text;
    let is_over = Arc::new(AtomicBool::new(false));
    let answered: Arc<[AtomicUsize; CHATS]> = Arc::default();
    let chats = (0..CHATS).map(|number| {
        let (service, is_over, answered) =
            (Arc::clone(&service), Arc::clone(&is_over), Arc::clone(&answered));
        async move {
            while !is_over.load(Ordering::Relaxed) {
                let body = json!({"model": "small", "max_tokens": 20, "seed": number,
                    "messages": [{"role": "user", "content": format!("{number}: hello")}]});
                service.post("/v1/chat/completions", &body).send().await.expect(200);
                answered[number].fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    // Each chat completes before the first decision and after the last one, so all ten run in
    // between.
    let all_answer = async || {
        let before: Vec<usize> = answered.iter().map(|one| one.load(Ordering::Relaxed)).collect();
        until("an answer to each chat", async || {
            let mut now = answered.iter().zip(&before);
            now.all(|(now, before)| now.load(Ordering::Relaxed) > *before).then_some(())
        })
        .await;
    };
    let deciding = async {
        all_answer().await;
        for _ in 0..5 {
            assert_eq!(decide(&service, &body).await.text, alone);
        }
        all_answer().await;
        is_over.store(true, Ordering::Relaxed);
    };
    tokio::join!(futures_util::future::join_all(chats), deciding);
}

#[tokio::test]
async fn decisions_of_local_model_treat_state_as_text() {
    let service = service("").await;
    let tokens = async |state: &str| {
        let body = json!({"model": "small", "state": state,
            "questions": {"q": {"type": "oul", "instructions": "?"}}});
        decide(&service, &body).await.expect(200)["usage"]["input_tokens"].as_u64().unwrap()
    };
    let nothing = tokens("").await;
    assert_eq!(tokens("abcd").await, nothing + 4);
    assert_eq!(tokens("</s>").await, nothing + 4, "not one token that ends the turn");
}

#[tokio::test]
async fn decisions_of_local_model_over_context_name_the_question() {
    let service = service("context = 768").await;
    let mut long = questions();
    long["team"]["instructions"] = json!("Who? ".repeat(60));
    let answer = decide(&service, &body(&long)).await;
    let error = answer.expect(400)["error"].clone();
    let found = (&error["param"], &error["code"]);
    assert_eq!(found, (&json!("questions.team"), &json!("context_length_exceeded")), "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("the question 'team' could not be answered"), "{message}");
    let row = newest_row(&service, 1).await;
    assert_eq!((&row["status"], &row["execution_cost"]), (&json!("error"), &json!(0.0)));
    assert!(service.ledger().await.is_empty(), "nothing is charged");
    let mut large = body(&questions());
    large["state"] = json!("x".repeat(2000));
    let error = decide(&service, &large).await.expect(400)["error"].clone();
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
    // The model still answers requests.
    decide(&service, &body(&questions())).await.expect(200);
}

#[tokio::test]
async fn decisions_of_local_model_accept_256_questions() {
    let service = service("").await;
    let question = |number: usize| {
        (format!("q{number}"), json!({"type": "oul", "instructions": format!("{}?", number % 7)}))
    };
    let all: serde_json::Map<String, Value> = (0..256).map(question).collect();
    let answer = decide(&service, &body(&Value::Object(all))).await.expect(200);
    let answers = answer["answers"].as_object().unwrap();
    assert_eq!(answers.len(), 256);
    assert_eq!(answers["q3"], answers["q10"], "the same question has the same answer");
    assert_ne!(answers["q3"], answers["q4"]);
}
