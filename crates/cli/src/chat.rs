//! `orrery chat`: a conversation in the terminal with any model of the chat router. Answers are
//! streamed. Without a terminal, the command sends the message from standard input and prints one
//! answer. The conversation is only in memory, but the organization's history lists each call.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::admin::Admin;
use super::chain::query;
use super::output;
use orrery_config::Config;
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_domain::spelling::nearest;
use orrery_http::event_stream::EventReader;
use orrery_runtime as runtime;

/// Maximum size of an event, in bytes.
const EVENT_MAX: usize = 1024 * 1024;
/// Maximum size of a message, in bytes.
const MESSAGE_MAX: u64 = 4 * 1024 * 1024;
/// Maximum number of models listed in an error.
const MODELS_SHOWN: usize = 10;
const NO_MODEL: &str = "there is no chat model: put a .gguf file into the models folder, or \
                        configure an upstream (docs/chat.md)";
const HELP: &str = "/reset starts a new conversation   /model NAME changes the model   \
                    /models lists the models   /exit quits";

#[derive(Debug, clap::Args)]
pub(super) struct Chat {
    /// The model [default: the first chat model]
    #[arg(value_name = "MODEL")]
    model: Option<String>,
    /// A system message to start the conversation with
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// The organization to bill; its history lists the calls
    #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
    org: String,
}

/// A conversation with a model.
struct Conversation {
    admin: Admin,
    path: String,
    model: String,
    /// Whether an upstream is configured. The upstream may serve models that no list contains.
    has_upstream: bool,
    system: Option<Value>,
    messages: Vec<Value>,
}

/// A model that can be called.
#[derive(Debug, Deserialize)]
struct Listed {
    id: String,
    source: String,
    kind: Option<String>,
    status: String,
}

/// Parses a streamed answer and prints its text.
struct Shown {
    reader: EventReader,
    text: String,
    usage: Option<Value>,
    error: Option<String>,
    is_done: bool,
}

pub(super) async fn run(asked: Chat, config: &Config) -> anyhow::Result<()> {
    let admin = Admin::running(config).await.context(
        "no service runs on this data folder: start it with `orrery serve`, then chat from another \
         terminal",
    )?;
    let models = models(&admin).await?;
    let has_upstream = !config.router.upstreams.is_empty();
    let model = match asked.model {
        Some(model) => known(model, &models, has_upstream)?,
        None => first(&models)?,
    };
    let mut conversation = Conversation {
        path: format!("/admin/chat?{}", query(&[("organization", &asked.org)])),
        system: asked.system.map(|text| json!({"role": "system", "content": text})),
        messages: Vec::new(),
        has_upstream,
        admin,
        model,
    };
    if !io::stdin().is_terminal() {
        let mut text = String::new();
        io::stdin().lock().take(MESSAGE_MAX).read_to_string(&mut text)?;
        return conversation.say(text.trim()).await;
    }
    output::note(&format!("{}   {HELP}", conversation.model));
    conversation.converse().await
}

/// Returns the chat models.
async fn models(admin: &Admin) -> anyhow::Result<Vec<Listed>> {
    let catalog = admin.get("/admin/chat/models").await?;
    let data = catalog.get("data").cloned().unwrap_or_default();
    let models: Vec<Listed> = serde_json::from_value(data)?;
    let chats = |model: &Listed| model.kind.as_deref().is_none_or(|kind| kind == "chat");
    Ok(models.into_iter().filter(chats).collect())
}

fn first(models: &[Listed]) -> anyhow::Result<String> {
    let usable = models.iter().find(|model| model.status == "ok");
    let model = usable.or(models.first()).context(NO_MODEL)?;
    Ok(model.id.clone())
}

/// Returns the model, or an error if the model is known not to support chat.
fn known(model: String, models: &[Listed], has_upstream: bool) -> anyhow::Result<String> {
    if has_upstream || models.iter().any(|listed| listed.id == model) {
        return Ok(model);
    }
    let ids: Vec<&str> = models.iter().map(|listed| listed.id.as_str()).collect();
    match nearest(&model, &ids) {
        _ if ids.is_empty() => bail!("the model {model} does not support chat: {NO_MODEL}"),
        Some(near) => bail!("the model {model} does not support chat; did you mean {near}?"),
        None => {
            let working = models.iter().filter(|model| model.status == "ok");
            let working = working.map(|model| model.id.as_str()).take(MODELS_SHOWN);
            let others = match working.collect::<Vec<_>>().join(", ").as_str() {
                "" => "no chat model works: `orrery model list` shows the reason".to_owned(),
                working => format!("models that do: {working}"),
            };
            bail!("the model {model} does not support chat; {others}")
        }
    }
}

impl Conversation {
    /// Reads messages from the terminal until the end of the input.
    async fn converse(&mut self) -> anyhow::Result<()> {
        loop {
            eprint_now("\n> ")?;
            let Some(line) = read_line().await? else { return Ok(()) };
            let line = line.trim();
            match line.split_once(' ').map_or((line, ""), |(word, rest)| (word, rest.trim())) {
                ("", _) => {}
                ("/exit" | "/quit", _) => return Ok(()),
                ("/help", _) => output::note(HELP),
                ("/reset", _) => {
                    self.messages.clear();
                    output::note("new conversation");
                }
                ("/model", "") => output::note(&self.model),
                ("/model", name) => {
                    let models = models(&self.admin).await?;
                    match known(name.to_owned(), &models, self.has_upstream) {
                        Ok(model) => {
                            self.model = model;
                            output::note(&format!("model: {name}"));
                        }
                        Err(error) => output::note(&format!("{error:#}")),
                    }
                }
                ("/models", _) => {
                    for model in models(&self.admin).await? {
                        output::note(&format!("{}  {}  {}", model.id, model.source, model.status));
                    }
                }
                (word, _) if word.starts_with('/') => output::note(HELP),
                _ => {
                    if let Err(error) = self.say(line).await {
                        output::note(&format!("{error:#}"));
                    }
                }
            }
        }
    }

    /// Sends a message and prints the answer. Ctrl-C stops the answer, but the part already
    /// received stays in the conversation.
    async fn say(&mut self, text: &str) -> anyhow::Result<()> {
        if text.is_empty() {
            bail!("no message: write one to standard input");
        }
        let said = json!({"role": "user", "content": text});
        let messages: Vec<&Value> =
            self.system.iter().chain(&self.messages).chain([&said]).collect();
        let request = json!({
            "model": self.model,
            "messages": messages,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let begun = runtime::monotonic_now();
        let mut shown = Shown::new();
        let answering = self.admin.post_stream(&self.path, &request, &mut shown);
        tokio::select! {
            answered = answering => answered?,
            interrupted = tokio::signal::ctrl_c() => interrupted?,
        }
        if let Some(error) = shown.error {
            bail!("{error}");
        }
        output::raw(b"\n")?;
        shown.sum_up(begun.elapsed());
        self.messages.push(said);
        self.messages.push(json!({"role": "assistant", "content": shown.text}));
        Ok(())
    }
}

impl Shown {
    fn new() -> Self {
        Self {
            reader: EventReader::new(EVENT_MAX),
            text: String::new(),
            usage: None,
            error: None,
            is_done: false,
        }
    }

    fn take(&mut self, data: &[u8]) -> io::Result<()> {
        if data == b"[DONE]" {
            self.is_done = true;
            return Ok(());
        }
        let chunk: Value = serde_json::from_slice(data).map_err(io::Error::other)?;
        if let Some(message) = chunk.pointer("/error/message").and_then(Value::as_str) {
            self.error = Some(message.to_owned());
        }
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            self.usage = Some(usage.clone());
        }
        if let Some(text) = chunk.pointer("/choices/0/delta/content").and_then(Value::as_str) {
            self.text.push_str(text);
            output::text(text)?;
        }
        Ok(())
    }

    /// Prints the token counts, duration and cost of an answer.
    fn sum_up(&self, time: Duration) {
        let of_usage = |name: &str| self.usage.as_ref().and_then(|usage| usage.get(name));
        let count = |name: &str| of_usage(name).and_then(Value::as_u64);
        let (Some(read), Some(written)) = (count("prompt_tokens"), count("completion_tokens"))
        else {
            return;
        };
        if !io::stderr().is_terminal() {
            return;
        }
        let seconds = time.as_secs_f64();
        let cost = of_usage("cost").and_then(Value::as_f64).unwrap_or(0.0);
        let cost = if cost > 0.0 { format!(", ${cost:.6}") } else { String::new() };
        output::note(&format!(
            "{read} input tokens, {written} output tokens in {seconds:.1} s{cost}"
        ));
    }
}

/// Parses the stream and prints its text as pieces are written to this value.
impl Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.reader.push(bytes);
        while let Some(event) = self.reader.next_event().map_err(io::Error::other)? {
            if let Some(data) = event.data {
                self.take(&data)?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn eprint_now(text: &str) -> io::Result<()> {
    io::stderr().write_all(text.as_bytes())?;
    io::stderr().flush()
}

/// Reads a line from the terminal; `None` at the end of the input.
async fn read_line() -> anyhow::Result<Option<String>> {
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        let read = io::stdin().lock().take(MESSAGE_MAX).read_line(&mut line)?;
        Ok::<_, io::Error>((read > 0).then_some(line))
    });
    Ok(line.await??)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(id: &str, status: &str) -> Listed {
        Listed {
            id: id.to_owned(),
            source: "local".to_owned(),
            kind: None,
            status: status.to_owned(),
        }
    }

    #[test]
    fn chat_rejects_unknown_model_before_first_message() {
        let models = [model("llama", "ok"), model("qwen", "failing")];
        let said = |name: &str, models: &[Listed]| {
            known(name.to_owned(), models, false).map_err(|error| error.to_string())
        };
        assert_eq!(said("qwen", &models), Ok("qwen".to_owned()));
        for (name, models, expect) in [
            ("lama", &models[..], "did you mean llama?"),
            ("nope", &models, "models that do: llama"),
            ("nope", &models[1..], "no chat model works: `orrery model list` shows the reason"),
            ("nope", &[], "put a .gguf file"),
        ] {
            let said = said(name, models).unwrap_err();
            assert!(said.starts_with(&format!("the model {name} does not support chat")), "{said}");
            assert!(said.ends_with(expect) || models.is_empty() && said.contains(expect), "{said}");
        }
        let of_upstream = known("gpt-x".to_owned(), &models, true).unwrap();
        assert_eq!(of_upstream, "gpt-x", "the upstream may serve what it does not list");
    }

    #[test]
    fn chat_uses_first_chat_model_by_default() {
        assert_eq!(first(&[model("a", "failing"), model("b", "ok")]).unwrap(), "b");
        assert_eq!(first(&[model("a", "failing")]).unwrap(), "a");
        assert!(first(&[]).unwrap_err().to_string().contains(".gguf"));
    }

    #[test]
    fn chat_collects_text_usage_and_errors_from_stream() {
        let mut shown = Shown::new();
        let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n: keep-alive\n\n\
                      data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n";
        for piece in stream.as_bytes().chunks(7) {
            shown.write_all(piece).unwrap();
        }
        assert_eq!((shown.text.as_str(), shown.is_done), ("a", true));
        assert_eq!(shown.usage, Some(json!({"prompt_tokens": 1})));
        shown.write_all(b"data: {\"error\":{\"message\":\"gone\"}}\n\n").unwrap();
        assert_eq!(shown.error.as_deref(), Some("gone"));
    }
}
