//! Decisions: every shape and error, with a model whose beliefs are known; the cost of decisions;
//! and that the service answers either all questions of a request or none of them.

use std::collections::HashMap;

use orrery_api::Role;
use orrery_domain::account::EntryKind;
use orrery_domain::money::Usd;
use serde_json::{Value, json};

use crate::chat::newest_row;
use crate::support::{Answer, Ask, Service, Upstream};

/// Charges a thousandth of a dollar per token.
const PRICE: &str = "prices = [{ model = 'far', per_million_input_tokens = 1000.0, \
                     per_million_output_tokens = 1000.0 }]\n";
/// The additional belief of the model in the first option.
const BIAS: f64 = 3.0;

/// Returns the options in a prompt, by label.
fn options(request: &Value) -> Vec<(String, String)> {
    let prompt = request["messages"][1]["content"].as_str().unwrap();
    let lines = prompt.split("Options:\n").last().unwrap().lines();
    let options = lines.map_while(|line| line.split_once(") "));
    options.map(|(label, name)| (label.to_owned(), name.to_owned())).collect()
}

fn usage() -> Value {
    json!({"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10})
}

/// Returns the model's belief in an option by the first letter of its name: 3 for the `y` of yes, 1
/// for the `n` of no, otherwise the digit.
fn believes(name: &str) -> f64 {
    match name.chars().next().unwrap() {
        'y' => 3.0,
        digit => f64::from(digit.to_digit(10).unwrap_or(1)),
    }
}

fn logprobs(request: &Value) -> (u16, Value) {
    assert_eq!(request["logprobs"], true, "{request}");
    let options = options(request);
    let weights: Vec<f64> = options
        .iter()
        .enumerate()
        .map(|(place, (_, name))| believes(name) * if place == 0 { BIAS } else { 1.0 })
        .collect();
    let total: f64 = weights.iter().sum();
    let listed: Vec<Value> = options
        .iter()
        .zip(&weights)
        .map(|((label, _), weight)| json!({"token": label, "logprob": (weight / total).ln()}))
        .collect();
    let choice = json!({
        "message": {"role": "assistant", "content": "A"},
        "logprobs": {"content": [{"token": "A", "logprob": -0.1, "top_logprobs": listed}]},
    });
    (200, json!({"choices": [choice], "usage": usage()}))
}

/// Votes, like a model that reports no probabilities: six of eight votes follow its belief, and the
/// others pick the first option.
fn votes(request: &Value) -> (u16, Value) {
    let options = options(request);
    let best = options.iter().max_by(|a, b| believes(&a.1).total_cmp(&believes(&b.1))).unwrap();
    let is_sure = request["seed"].as_u64().is_none_or(|seed| seed % 8 < 6);
    let label = if is_sure { &best.0 } else { &options[0].0 };
    let content = json!({"answer": label}).to_string();
    let choice = json!({"message": {"role": "assistant", "content": content}, "logprobs": null});
    (200, json!({"choices": [choice], "usage": usage()}))
}

fn body(questions: Value) -> Value {
    json!({"model": "far", "state": "the printer burns", "questions": questions})
}

fn all_types() -> Value {
    json!({
        "urgent": {"type": "oul", "instructions": "Is it urgent?"},
        "late": {"type": "noul", "instructions": "Is it late?", "criteria": {"true": "after 18:00"}},
        "team": {
            "type": "choice", "instructions": "Who?", "criteria": {"1 it": null, "4 fire": "heat"},
        },
        "mood": {"type": "score", "instructions": "How?", "criteria": ["1 low", "2 mid", "1 high"]},
    })
}

fn ask(service: &Service, body: &Value) -> Ask {
    service.post("/v1/decisions", body)
}

fn close(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap();
    assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
}

#[track_caller]
fn expect_error(answer: &Answer, status: u16, param: Option<&str>, code: Option<&str>) -> String {
    let body = answer.expect(status);
    let found = (&body["error"]["param"], &body["error"]["code"]);
    assert_eq!(found, (&json!(param), &json!(code)), "{body}");
    body["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn decisions_by_logprobs_have_every_shape_without_position_bias() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    up.follows(logprobs);
    let answer = ask(&service, &body(all_types())).send().await;
    let said = answer.expect(200);
    let answers = &said["answers"];
    let names: Vec<&String> = answers.as_object().unwrap().keys().collect();
    assert_eq!(names, ["urgent", "late", "team", "mood"], "in the order of the questions");
    assert_eq!(answers["urgent"]["type"], "oul");
    close(&answers["urgent"]["oul"], 0.75);
    assert_eq!(answers["late"]["type"], "noul");
    close(&answers["late"]["noul"], 0.75);
    let team = &answers["team"];
    assert_eq!((&team["type"], &team["choice"]), (&json!("choice"), &json!("4 fire")));
    close(&team["confidence"], 0.8);
    close(&team["probabilities"]["1 it"], 0.2);
    let mood = &answers["mood"];
    close(&mood["probabilities"]["1"], mood["confidence"].as_f64().unwrap());
    let sum: f64 =
        mood["probabilities"].as_object().unwrap().values().map(|p| p.as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-9);
    close(&mood["score"], 1.0);
    assert_eq!(mood["legend"], json!({"0": "1 low", "1": "2 mid", "2": "1 high"}));
    assert_eq!(said["usage"], json!({"input_tokens": 72, "output_tokens": 8, "cost": 0.08}));
    assert_eq!(answer.header("x-decision-method"), "logprobs");
    let sent = up.newest();
    let found = (&sent["max_tokens"], &sent["temperature"], &sent["top_logprobs"]);
    assert_eq!(found, (&json!(1), &json!(0), &json!(20)));
    assert!(sent["messages"][1]["content"].as_str().unwrap().starts_with("State:\nthe printer"));
    let row = newest_row(&service, 1).await;
    assert_eq!(row["id"], answer.header("x-execution-id"));
    let found = (&row["type"], &row["model"], &row["status"], &row["output"]);
    assert_eq!(found, (&json!("decision"), &json!("far"), &json!("success"), &Value::Null));
    let expected = json!({
        "method": "logprobs", "upstream": true, "questions": 4, "calls": 8, "input_tokens": 72,
        "output_tokens": 8, "tokens_estimated": false, "priced": true,
    });
    assert_eq!(row["decision"], expected);
    let ledger = service.ledger().await;
    assert_eq!(ledger.len(), 1, "one charge for all answers");
    assert_eq!((ledger[0].kind, ledger[0].amount), (EntryKind::Charge, Usd::from_micros(-80_000)));
    for filter in ["type=decision", "model=far", "status=success"] {
        let found = service.get(&format!("/v2/executions?{filter}")).await.expect(200);
        assert_eq!(found["executions"][0]["id"], row["id"], "{filter}");
    }
    let none = service.get("/v2/executions?type=chat").await.expect(200);
    assert_eq!(none["executions"], json!([]));
}

#[tokio::test]
async fn decisions_are_bit_identical_and_mirrored_with_their_options() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    up.follows(logprobs);
    let team = |criteria: Value| {
        body(json!({"team": {"type": "choice", "instructions": "Who?", "criteria": criteria}}))
    };
    let given = team(json!({"1 a": null, "7 b": "x", "2 c": null}));
    let reversed = team(json!({"2 c": null, "7 b": "x", "1 a": null}));
    let first = ask(&service, &given).send().await;
    let again = ask(&service, &given).send().await;
    assert_eq!(first.text, again.text);
    let first = first.expect(200);
    let mirrored = ask(&service, &reversed).send().await.expect(200);
    for option in ["1 a", "7 b", "2 c"] {
        let of = |said: &Value| said["answers"]["team"]["probabilities"][option].clone();
        assert_eq!(of(&first), of(&mirrored), "{option}");
    }
    assert_eq!(first["answers"]["team"]["choice"], mirrored["answers"]["team"]["choice"]);
}

#[tokio::test]
async fn decisions_use_votes_if_model_gives_no_probabilities() {
    let up = Upstream::start().await;
    let lines = up.config(PRICE) + "[decisions]\naliases = { fast = 'far' }\n";
    let service = Service::configured(&lines).await;
    up.follows(votes);
    let mut body = body(all_types());
    body["model"] = json!("fast");
    let answer = ask(&service, &body).send().await;
    let said = answer.expect(200);
    assert_eq!(answer.header("x-decision-method"), "votes");
    // Votes 6 and 7 pick the first option, once in each of the two orders.
    close(&said["answers"]["urgent"]["oul"], 7.0 / 8.0);
    assert_eq!(said["answers"]["team"]["choice"], "4 fire");
    close(&said["answers"]["mood"]["probabilities"]["1"], 6.0 / 8.0);
    let format = &up.newest()["response_format"];
    assert_eq!(format["type"], "json_schema");
    let labels = &format["json_schema"]["schema"]["properties"]["answer"]["enum"];
    assert_eq!(labels[0], "A");
    let row = newest_row(&service, 1).await;
    let found = (&row["model"], &row["requested_model"], &row["decision"]["calls"]);
    assert_eq!(found, (&json!("far"), &json!("fast"), &json!(1 + 4 * 8)));
    assert_eq!(row["decision"]["method"], "votes");
    // If a server rejects requests for probabilities, the service requests votes from it instead.
    up.follows(|request| {
        let refusal = json!({"error": {"message": "logprobs are not supported"}});
        if request["logprobs"].is_null() { votes(request) } else { (400, refusal) }
    });
    let answer = ask(&service, &body).send().await;
    answer.expect(200);
    assert_eq!(answer.header("x-decision-method"), "votes");
}

#[tokio::test]
async fn decisions_of_local_model_share_its_concurrency() {
    let near = Upstream::start().await;
    let service = Service::start().await;
    let top = "concurrency = 1\n[cost]\ntype = 'fixed'\namount = 0.5\n";
    service.manifest(&near.manifest("near", "chat", top));
    near.follows(logprobs);
    let questions: serde_json::Map<String, Value> = (0..256)
        .map(|number| {
            (format!("q{number}"), json!({"type": "oul", "instructions": format!("{number}?")}))
        })
        .collect();
    let mut body = body(Value::Object(questions));
    body["model"] = json!("near");
    body["state"] = json!({"a": [1, null]});
    let said = ask(&service, &body).send().await.expect(200);
    assert_eq!(said["answers"].as_object().unwrap().len(), 256);
    assert_eq!(said["usage"]["cost"], 256.0, "a fixed price for each of the 512 answers");
    assert_eq!(near.newest()["model"], "real-near");
    let prompt = near.newest()["messages"][1]["content"].clone();
    assert!(prompt.as_str().unwrap().starts_with("State:\n{\"a\":[1,null]}\n"), "{prompt}");
    assert_eq!(newest_row(&service, 1).await["decision"]["upstream"], false);
}

#[tokio::test]
async fn decisions_are_answered_all_or_not_at_all() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    let is_bad = |request: &Value| request["messages"].to_string().contains("Is it late?");
    // The server neither assigns a probability to any label nor votes for one.
    up.follows(move |request| {
        let choice = json!({"message": {"content": "who knows"}, "logprobs": null});
        if is_bad(request) {
            (200, json!({"choices": [choice]}))
        } else {
            logprobs_or_vote(request)
        }
    });
    let answer = ask(&service, &body(all_types())).send().await;
    let message = expect_error(&answer, 502, Some("questions.late"), None);
    assert!(message.contains("'late'") && message.contains("0 of 8"), "{message}");
    let row = newest_row(&service, 1).await;
    assert_eq!(row["id"], answer.header("x-execution-id"));
    let found = (&row["status"], &row["execution_cost"], &row["error_classification"]);
    assert_eq!(found, (&json!("error"), &json!(0.0), &json!("provider_error")));
    up.follows(move |request| {
        let busy = json!({"error": {"message": "slow down", "code": "rpm"}});
        if is_bad(request) { (429, busy) } else { logprobs_or_vote(request) }
    });
    let answer = ask(&service, &body(all_types())).send().await;
    let message = expect_error(&answer, 429, Some("questions.late"), Some("rpm"));
    assert_eq!(message, "the question 'late' could not be answered: slow down");
    assert!(service.ledger().await.is_empty(), "nothing is charged");
}

fn logprobs_or_vote(request: &Value) -> (u16, Value) {
    if request["logprobs"] == true { logprobs(request) } else { votes(request) }
}

#[tokio::test]
async fn decisions_invalid_request_calls_no_model() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("")).await;
    let refused = async |body: &Value| ask(&service, body).undocumented().send().await;
    let missing = Some("missing_required_parameter");
    let invalid = Some("invalid_value");
    expect_error(&refused(&json!({})).await, 400, Some("model"), missing);
    let mut body = body(json!({"q": {"type": "oul", "instructions": "?"}}));
    body["temperature"] = json!(0);
    expect_error(&refused(&body).await, 400, Some("temperature"), invalid);
    for (question, param) in [
        (json!({"type": "oul", "instruction": "?"}), "questions.q.instructions"),
        (json!({"type": "maybe", "instructions": "?"}), "questions.q.type"),
        (json!({"type": "choice", "instructions": "?", "criteria": []}), "questions.q.criteria"),
    ] {
        let answer = refused(&self::body(json!({"q": question}))).await;
        assert_eq!(answer.expect(400)["error"]["param"], param);
    }
    let garbage = service.post("/v1/decisions", &json!({})).body("{\"model\"");
    expect_error(&garbage.send().await, 400, None, invalid);
    let large = service.refusal_of_large_body(Role::Base, "/v1/decisions").await;
    assert!(large.starts_with("HTTP/1.1 413") && large.contains("\"type\":\"invalid"), "{large}");
    let anonymous = service.ask(Role::Base, hyper::Method::POST, "/v1/decisions");
    anonymous.send().await.expect_text(401, r#"{"error":"Invalid or missing API key"}"#);
    assert_eq!(up.requests().len(), 0);
    let local = Service::start().await;
    let answer = ask(&local, &self::body(all_types())).send().await;
    expect_error(&answer, 404, Some("model"), Some("model_not_found"));
    let rows = local.get("/v2/executions").await.expect(200);
    assert_eq!(rows["executions"], json!([]));
}

#[tokio::test]
async fn decisions_reserve_maximum_cost() {
    let up = Upstream::start().await;
    let lines = up.config(PRICE) + "[billing]\nenforce = true\n";
    let service = Service::configured(&lines).await;
    up.follows(logprobs);
    let answer = ask(&service, &body(all_types())).send().await;
    expect_error(&answer, 402, None, Some("insufficient_quota"));
    assert_eq!(up.requests().len(), 0);
    let organization = service.organization.id;
    let billing = &service.running.services.billing;
    let ten = Usd::from_dollars(10.0).unwrap();
    billing
        .by(orrery_records::audit::Actor::operator("test"))
        .top_up(organization, ten)
        .await
        .unwrap();
    ask(&service, &body(all_types())).send().await.expect(200);
    let left = service.running.services.billing.balance(organization).await.unwrap();
    assert_eq!(left, Usd::from_dollars(9.92).unwrap());
    // No reservation is left: the whole balance is available again.
    for _ in 0..3 {
        ask(&service, &body(all_types())).send().await.expect(200);
    }
}

#[tokio::test]
async fn decisions_end_with_their_client_and_charge_received_tokens() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    let text = body(all_types()).to_string();
    let head = format!(
        "POST /v1/decisions HTTP/1.1\r\nhost: x\r\nx-api-key: {}\r\ncontent-length: {}\r\n\r\n",
        service.key,
        text.len()
    );
    let messages = json!([{}, {"content": "Options:\nA) yes\nB) no\n"}]);
    let (status, first) = logprobs(&json!({"logprobs": true, "messages": messages}));
    up.answers(status, first.to_string());
    up.is_silent();
    let mut client = tokio::net::TcpStream::connect(service.address(Role::Base)).await.unwrap();
    let request = [head.as_bytes(), text.as_bytes()].concat();
    tokio::io::AsyncWriteExt::write_all(&mut client, &request).await.unwrap();
    up.arrived(2).await;
    drop(client);
    up.hung_up(1).await;
    let row = newest_row(&service, 1).await;
    let found = (&row["status"], &row["execution_cost"], &row["decision"]["calls"]);
    assert_eq!(found, (&json!("cancelled"), &json!(0.01), &json!(1)));
}

#[tokio::test]
async fn decisions_store_answers_if_configured() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config("keep_content = true\n")).await;
    up.follows(logprobs);
    let said = ask(&service, &body(all_types())).send().await.expect(200);
    let row = newest_row(&service, 1).await;
    let kept: HashMap<String, Value> =
        serde_json::from_str(row["output"].as_str().unwrap()).unwrap();
    assert_eq!(serde_json::to_value(kept).unwrap(), said["answers"]);
}

#[tokio::test]
async fn decide_command_prints_a_table_with_bars() {
    let up = Upstream::start().await;
    let service = Service::configured(&up.config(PRICE)).await;
    up.follows(logprobs);
    let folder = service.folder.path();
    std::fs::write(folder.join("mail.txt"), "the printer burns").unwrap();
    let command = tokio::process::Command::new(env!("CARGO_BIN_EXE_orrery"))
        .args(["--config", "config.toml", "decide", "--model", "far", "--state", "@mail.txt"])
        .args(["--question", "urgent: Is it urgent?", "--question", "team(1 it|4 fire): Who?"])
        .current_dir(folder)
        .output();
    let done = crate::support::within("end of the command", command).await.unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    let noted = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{noted}");
    let lines: Vec<&str> = said.lines().map(str::trim_end).collect();
    assert_eq!(lines[1], "urgent    yes     75.0  ███████████████", "{said}");
    assert_eq!(lines[4], "team      4 fire  80.0  ████████████████", "{said}");
    assert!(noted.contains("36 input tokens, 4 output tokens, 0.040000 USD"), "{noted}");
    let row = newest_row(&service, 1).await;
    assert_eq!(row["api_key_id"], "00000000-0000-0000-0000-000000000000");
}
