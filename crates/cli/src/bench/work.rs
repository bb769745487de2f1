//! Measures the service over its public API: creating and running predictions, workflows, webhooks,
//! files, tokens. Each function measures one round.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::private::{HELD, INSTANT, LANGUAGE, Private};
use crate::load::{Answer, Connection, Load, StandIn, form, get, get_with_key, post};
use orrery_runtime as runtime;
use orrery_telemetry::exposition::samples;

/// Time limit for started work to complete.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The fraction of a burst's duration during which executions are triggered. The rest of the time
/// is for completing the executions.
const TRIGGERING: f64 = 0.4;
/// The input of every create request. With this input, each execution has a record of about 400
/// bytes.
const TEXT: &str = "A quiet harbour at dusk, two boats, soft light, and a heron on the pier.";
/// Number of tokens to generate, and number of prompt characters to read, in one round.
const WRITTEN: u32 = 64;
const READ: usize = 1200;

impl Private {
    fn create(&self, model: &str, more: Value) -> String {
        let mut body = json!({"model": model, "version": "1", "input": {"text": TEXT}});
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        body.to_string()
    }

    fn prediction(&self, path: &str, model: &str, more: Value) -> Arc<[u8]> {
        post(self.base, path, &self.key, &self.create(model, more))
    }

    /// Measures durable creates per second, for a model that never responds.
    pub(super) async fn create_rate(
        &self,
        connections: u64,
        time: Duration,
    ) -> anyhow::Result<f64> {
        let request = self.prediction("/v1/prediction", HELD, Value::Null);
        rate(Load { address: self.base, connections, request }, time).await
    }

    /// Measures completed predictions per second over the `run` route, for a model that responds
    /// immediately.
    pub(super) async fn run_rate(&self, connections: u64, time: Duration) -> anyhow::Result<f64> {
        let request = self.prediction("/v1/prediction/run", INSTANT, Value::Null);
        rate(Load { address: self.base, connections, request }, time).await
    }

    /// Measures the duration of single runs, one after another, in seconds.
    pub(super) async fn run_times(&self, time: Duration) -> anyhow::Result<Vec<f64>> {
        let request = self.prediction("/v1/prediction/run", INSTANT, Value::Null);
        let mut connection = Connection::open(self.base).await?;
        let begun = runtime::monotonic_now();
        let mut times = Vec::new();
        while times.is_empty() || begun.elapsed() < time {
            let before = runtime::monotonic_now();
            good(connection.ask(&request).await?)?;
            times.push(before.elapsed().as_secs_f64());
        }
        Ok(times)
    }

    /// Creates a workflow of three sequential HTTP calls to the server, and returns the request
    /// that triggers the workflow.
    pub(super) async fn workflow(&self, server: &StandIn) -> anyhow::Result<Arc<[u8]>> {
        let url = format!("http://{}/step", server.address());
        let step = |id: &str, input: &str| json!({"step_id": id, "type": "http", "method": "POST", "url": url, "body": {"n": input}});
        let steps = [
            step("a", "{{inputs.n}}"),
            step("b", "{{a.output.value}}"),
            step("c", "{{b.output.value}}"),
        ];
        let body = json!({"name": "Bench", "description": "bench", "definition": {"steps": steps}});
        let address = self.workflows;
        let made = post(address, "/api/v1/workflows", &self.key, &body.to_string());
        let made = good(Connection::open(address).await?.ask(&made).await?)?;
        let id = made.get("workflow_id").and_then(Value::as_str).context("a workflow has no id")?;
        Ok(post(address, &format!("/api/v1/{id}/trigger"), &self.key, r#"{"inputs":{"n":"7"}}"#))
    }

    /// Measures workflows per second in a burst over 64 connections, until the last workflow ends.
    pub(super) async fn workflow_rate(
        &self,
        trigger: &Arc<[u8]>,
        time: Duration,
    ) -> anyhow::Result<f64> {
        let ended = self.ended("workflow").await?;
        let begun = runtime::monotonic_now();
        let load = Load { address: self.workflows, connections: 64, request: Arc::clone(trigger) };
        let round = load.run(time.mul_f64(TRIGGERING)).await?;
        ensure!(round.other == 0, "a trigger was rejected");
        let expect = ended + round.good as f64;
        until("the workflows end", async || Ok(self.ended("workflow").await? >= expect)).await?;
        Ok(round.good as f64 / begun.elapsed().as_secs_f64())
    }

    /// Measures the time of single workflows from trigger to completion, in seconds.
    pub(super) async fn workflow_times(
        &self,
        trigger: &[u8],
        time: Duration,
    ) -> anyhow::Result<Vec<f64>> {
        let mut connection = Connection::open(self.workflows).await?;
        let begun = runtime::monotonic_now();
        let mut times = Vec::new();
        while times.is_empty() || begun.elapsed() < time {
            let before = runtime::monotonic_now();
            let taken = good(connection.ask(trigger).await?)?;
            let id = taken.get("execution_id").and_then(Value::as_str).context("no execution")?;
            let path = format!("/api/v1/executions/{id}?timeout=30");
            let asked = get_with_key(self.workflows, &path, &self.key);
            let detail = good(connection.ask(&asked).await?)?;
            let status = detail.get("status").and_then(Value::as_str);
            ensure!(status == Some("completed"), "a workflow ended as {status:?}");
            times.push(before.elapsed().as_secs_f64());
        }
        Ok(times)
    }

    /// Measures webhook deliveries per second: builds a backlog at a receiver that withholds its
    /// responses, then measures how fast the backlog drains once the receiver responds.
    pub(super) async fn delivery_rate(
        &self,
        server: &StandIn,
        time: Duration,
    ) -> anyhow::Result<f64> {
        let hook = format!("http://{}/hold", server.address());
        let request = self.prediction("/v1/prediction", INSTANT, json!({"webhook_url": hook}));
        server.hold(true);
        let ended = self.ended("prediction").await?;
        let load = Load { address: self.base, connections: 64, request };
        let round = load.run(time.mul_f64(TRIGGERING)).await?;
        ensure!(round.good > 0, "no prediction with a webhook was accepted");
        let expect = ended + round.good as f64;
        until("the predictions end", async || Ok(self.ended("prediction").await? >= expect))
            .await?;
        let before = server.answered();
        let begun = runtime::monotonic_now();
        server.hold(false);
        let arrived = async || Ok(server.answered().saturating_sub(before) >= round.good);
        until("the webhooks arrive", arrived).await?;
        Ok(round.good as f64 / begun.elapsed().as_secs_f64())
    }

    /// Measures the upload rate and the download rate of a file, in megabytes per second.
    pub(super) async fn file_rates(&self, bytes: usize) -> anyhow::Result<(f64, f64)> {
        let mut content = vec![0x5a; bytes];
        // Identical contents are stored only once, so the contents of each file differ.
        let number = runtime::random_bytes::<16>()?;
        content.as_mut_slice().write_all(&number)?;
        let request = form(self.base, "/v1/files", &self.key, &content);
        let mut connection = Connection::open(self.base).await?;
        let begun = runtime::monotonic_now();
        let made = good(connection.ask(&request).await?)?;
        let up = begun.elapsed().as_secs_f64();
        let id = made.get("id").and_then(Value::as_str).context("a file has no id")?;
        let asked = get_with_key(self.base, &format!("/v1/files/{id}/content"), &self.key);
        let begun = runtime::monotonic_now();
        let answer = connection.ask(&asked).await?;
        let down = begun.elapsed().as_secs_f64();
        ensure!(answer.status == 200, "a file download returned status {}", answer.status);
        ensure!(answer.length == bytes, "a downloaded file has a different length");
        let rate = |seconds: f64| bytes as f64 / seconds / 1e6;
        Ok((rate(up), rate(down)))
    }

    /// Measures the tokens per second that the language model reads and generates for one client.
    /// `number` makes each prompt different, so that no prompt cache is hit.
    pub(super) async fn token_rates(&self, number: usize) -> anyhow::Result<(f64, f64)> {
        let words = "the box counts words and stars while ";
        let prompt: String =
            format!("{number} ").chars().chain(words.chars().cycle()).take(READ).collect();
        let (read, reading) = self.chat(&prompt, 1, "prompt_tokens").await?;
        // With the same prompt again, all prompt tokens except the last are cached.
        let (written, writing) = self.chat(&prompt, WRITTEN, "completion_tokens").await?;
        Ok((read / reading, written / writing))
    }

    /// Requests one answer from the language model. Returns its number of tokens of one kind, and
    /// the duration in seconds.
    async fn chat(&self, prompt: &str, most: u32, counted: &str) -> anyhow::Result<(f64, f64)> {
        let body = json!({
            "model": LANGUAGE, "temperature": 0, "max_tokens": most,
            "messages": [{"role": "user", "content": prompt}],
        });
        let asked = post(self.base, "/v1/chat/completions", &self.key, &body.to_string());
        let begun = runtime::monotonic_now();
        let answer = Connection::open(self.base).await?.ask(&asked).await?;
        let seconds = begun.elapsed().as_secs_f64();
        let answer = good(answer).context("the language model does not answer")?;
        let tokens = answer.pointer(&format!("/usage/{counted}")).and_then(Value::as_f64);
        let tokens =
            tokens.filter(|tokens| *tokens > 0.0).context("the model generated no token")?;
        Ok((tokens, seconds))
    }

    /// Returns the number of completed executions of a kind.
    async fn ended(&self, kind: &str) -> anyhow::Result<f64> {
        let address: SocketAddr = self.metrics;
        let answer = whole(address, "/metrics").await?;
        let of_kind = samples(&answer).filter(|sample| {
            sample.name == "orrery_executions_total" && sample.label("kind") == Some(kind)
        });
        Ok(of_kind.map(|sample| sample.value).sum())
    }
}

/// Returns the body of a GET response.
async fn whole(address: SocketAddr, path: &str) -> anyhow::Result<String> {
    Ok(Connection::open(address).await?.ask(&get(address, path)).await?.text())
}

/// Returns successful responses per second. Any other response fails the measurement.
async fn rate(load: Load, time: Duration) -> anyhow::Result<f64> {
    let round = load.run(time).await?;
    ensure!(
        round.other == 0,
        "{} of {} requests were rejected",
        round.other,
        round.good + round.other
    );
    Ok(round.rate())
}

/// Returns the JSON of a successful response.
fn good(answer: Answer) -> anyhow::Result<Value> {
    let text = answer.text();
    ensure!((200..300).contains(&answer.status), "the service answered {}: {text}", answer.status);
    serde_json::from_str(&text).context("the service answered with something other than JSON")
}

async fn until(
    what: &str,
    mut is_so: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let begun = runtime::monotonic_now();
    while !is_so().await? {
        ensure!(
            begun.elapsed() < PATIENCE,
            "timed out after {} s waiting until {what}",
            PATIENCE.as_secs()
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}
