//! OpenAI's own client against the chat router: a local model, and one of the upstream.

use orrery::api::Role;
use serde_json::json;

use crate::support::{Service, Upstream, installed, upstream};

const PRICES: &str = "[[router.prices]]\nmodel = 'far'\nper_million_input_tokens = 100.0\n\
                      per_million_output_tokens = 1000.0\n";
const COST: &str = "[cost]\ntype = 'usage_based'\nper_million_input_tokens = 100.0\n\
                    per_million_output_tokens = 1000.0\n";

/// Puts the answers in line that `tests/openai/client.py` asks for.
fn script(server: &Upstream) -> upstream::Feed {
    server.says("Hi!", 3, 4);
    for _with_and_without_usage in 0..2 {
        let feed = server.streams();
        feed.say("one");
        feed.say(" two");
        feed.finish(3, 4);
    }
    let call = json!({"name": "weather", "arguments": r#"{"city":"Rome"}"#});
    let call = json!({"id": "call_1", "type": "function", "function": call});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let choice = json!({"index": 0, "message": message, "finish_reason": "tool_calls"});
    server.answers(200, json!({"choices": [choice]}).to_string());
    server.says(r#"{"name":"Rome","people":3}"#, 3, 4);
    let vector = |index: u32, numbers: [f32; 2]| json!({"index": index, "embedding": numbers});
    let vectors = [vector(0, [0.5, 0.25]), vector(1, [1.0, 0.0])];
    server.answers(200, json!({"object": "list", "data": vectors, "model": "m"}).to_string());
    let refusal = json!({"error": {"message": "slow down", "type": "tokens", "code": "busy"}});
    server.answers_with(429, ("retry-after", "7"), &refusal.to_string());
    let given_up = server.streams();
    given_up.say("one");
    given_up
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "external-tests"), ignore = "needs python3 and PyPI: run tests/run")]
async fn openai_python_client_works_unchanged() {
    let (up, near) = (Upstream::start().await, Upstream::start().await);
    let service = Service::configured(&up.config(PRICES)).await;
    service.manifest(
        &near.manifest("near", "chat", "").replace("[runner]", &format!("{COST}[runner]")),
    );
    service.manifest(&near.manifest("vectors", "embeddings", ""));
    let url = format!("http://{}/v1", service.address(Role::Base));
    let script_file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai/client.py");
    let python = tokio::task::spawn_blocking(|| installed("openai")).await.unwrap().join("python");
    for (server, models) in [(&near, ["near", "vectors"]), (&up, ["far", "far"])] {
        let given_up = script(server);
        let mut client = tokio::process::Command::new(&python);
        client.arg(script_file).args(models).current_dir(service.folder.path());
        client.env("ORRERY_TEST_URL", &url).env("ORRERY_TEST_KEY", &service.key);
        let output = client.env("PYTHONDONTWRITEBYTECODE", "1").kill_on_drop(true).output();
        let output = output.await.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{models:?}: {errors}");
        // The client that goes away stops its model.
        server.hung_up(1).await;
        drop(given_up);
        assert_eq!(server.requests().len(), 8);
    }
}
