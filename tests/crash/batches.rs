//! A batch while the service is killed again and again: each line is answered and charged once.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::chat::start_server;
use crate::support::count_from;
use crate::support::random::Random;
use crate::support::service::Setup;
use crate::verdict;

/// The cost of an answer in microdollars: two tokens at a thousandth of a dollar each.
const COST: i64 = 2000;
/// Time between two kills, in milliseconds.
const LIFETIME: std::ops::Range<u64> = 50..1500;

fn lines(count: u64) -> String {
    let line = |id: u64| {
        let body = json!({
            "model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}],
        });
        let url = "/v1/chat/completions";
        format!(
            "{}\n",
            json!({"custom_id": id.to_string(), "method": "POST", "url": url, "body": body})
        )
    };
    (0..count).map(line).collect()
}

#[test]
fn batch_under_kills_answers_and_charges_each_line_once() {
    let count = u64::from(count_from("ORRERY_CRASH_BATCH", 300));
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[billing]\nenforce = true\n[router]\nupstream_url = \"{}\"\n\
         prices = [{{ model = \"m\", per_million_input_tokens = 1000.0, \
         per_million_output_tokens = 1000.0 }}]\n",
        start_server()
    );
    let setup = Setup::new(folder.path(), &folder.path().join("data"), &config);
    let mut service = setup.start();
    let key = setup.create_key();
    setup.run(&["balance", "top-up", "--amount", "1000"]);
    let form = format!(
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
         --b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n\
         {}\r\n--b--\r\n",
        lines(count)
    );
    let headers = [("Content-Type", "multipart/form-data; boundary=b")];
    let file = setup.client(&key).post("/v1/files", &headers, &form).unwrap();
    assert_eq!(file.status(), 201, "{}", file.text());
    let request = json!({
        "input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    });
    let made = setup.client(&key).post("/v1/batches", &[], &request.to_string()).unwrap();
    assert_eq!(made.status(), 200, "{}", made.text());
    let path = format!("/v1/batches/{}", made.json()["id"].as_str().unwrap());
    let mut random = Random::seeded();
    let (mut kills, mut done) = (0, 0);
    loop {
        std::thread::sleep(Duration::from_millis(random.within(LIFETIME)));
        let batch = setup.client(&key).get(&path).unwrap().json();
        let counts = &batch["request_counts"];
        assert!(counts["completed"].as_u64().unwrap() >= done, "{done} were done: {batch}");
        done = counts["completed"].as_u64().unwrap();
        if batch["status"] == "completed" {
            break;
        }
        service.kill();
        kills += 1;
        service = setup.start();
    }
    let batch = setup.client(&key).get(&path).unwrap().json();
    assert_eq!(batch["request_counts"], json!({"total": count, "completed": count, "failed": 0}));
    let output = format!("/v1/files/{}/content", batch["output_file_id"].as_str().unwrap());
    let output = setup.client(&key).get(&output).unwrap().text();
    let mut answered: HashMap<String, usize> = HashMap::new();
    for line in output.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["response"]["body"]["choices"][0]["message"]["content"], "hello");
        *answered.entry(line["custom_id"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    assert!(answered.len() as u64 == count && answered.values().all(|times| *times == 1));
    let spent = i64::try_from(count).unwrap() * COST;
    let balance = verdict::balance(&mut setup.client(&key));
    assert_eq!(balance, 1_000_000_000 - spent, "each line is charged once");
    let used = verdict::usage(&mut setup.client(&key));
    assert_eq!(used, (count, spent), "each line is counted once");
    println!("{count} lines, {kills} kills");
    drop(service);
}
