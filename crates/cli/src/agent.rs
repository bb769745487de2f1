//! `orrery agent`: a conversation with the agent at the terminal.
//!
//! Responses go to standard output; tool calls, media links and costs go to standard error. The
//! command needs a running service, which stores the conversation, so the same `--session` resumes
//! it.

use std::io::{BufRead as _, IsTerminal as _, Write};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::admin::Admin;
use super::chain::query;
use super::output::{self, plain};
use orrery_config::Config;
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_domain::ids::SessionId;
use orrery_runtime::new_id;

/// Maximum size of an event, in bytes.
const EVENT_MAX: usize = 16 * 1024 * 1024;
/// Maximum number of characters of a tool's input to print.
const INPUT_SHOWN: usize = 200;

/// Talk to the agent of the running service
#[derive(Debug, clap::Args)]
pub(super) struct Agent {
    /// The message to send; without it, each line of standard input is one message
    message: Option<String>,
    /// The session to continue or create; without it, a new session
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Model and step budget: `eco` uses the cheaper model and a quarter of the steps
    #[arg(long, value_parser = ["max", "eco"], default_value = "max")]
    mode: String,
    /// `agent` does the work, `plan` describes how, `ask` only reads
    #[arg(long, value_parser = ["agent", "plan", "ask"], default_value = "agent")]
    behavior: String,
    /// The organization to bill
    #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
    org: String,
}

pub(super) async fn run(asked: Agent, config: &Config) -> anyhow::Result<()> {
    let Some(admin) = Admin::running(config).await else {
        bail!("no service runs on this data folder; start it with `orrery serve`");
    };
    let session = asked.session.clone().unwrap_or_else(|| new_id::<SessionId>().to_string());
    if let Some(message) = &asked.message {
        return exchange(&admin, &asked, &session, message).await;
    }
    let is_interactive = std::io::stdin().is_terminal();
    if is_interactive {
        let resume = format!("`orrery agent --session {}` resumes it", plain(&session));
        output::note(&format!("Session {}: {resume}. End with Ctrl-D.", plain(&session)));
    }
    loop {
        if is_interactive {
            output::raw(b"> ")?;
        }
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        if read.context("standard input cannot be read")? == 0 {
            return Ok(());
        }
        let message = line.trim();
        if message.is_empty() {
            continue;
        }
        match exchange(&admin, &asked, &session, message).await {
            // The conversation continues after an error.
            Err(error) if is_interactive => output::error(&error),
            done => done?,
        }
    }
}

async fn exchange(
    admin: &Admin,
    asked: &Agent,
    session: &str,
    message: &str,
) -> anyhow::Result<()> {
    let body = json!({
        "message": message, "session_id": session, "mode": asked.mode, "behavior": asked.behavior,
    });
    let path = format!("/admin/agent/chat?{}", query(&[("organization", &asked.org)]));
    let mut events = Events::default();
    admin.post_stream(&path, &body, &mut events).await?;
    match events.error {
        Some(error) => bail!("{error}"),
        None => Ok(()),
    }
}

/// Parses server-sent events from a byte stream and prints them.
#[derive(Debug, Default)]
struct Events {
    unread: Vec<u8>,
    /// The error that ended the exchange, if any.
    error: Option<String>,
}

impl Write for Events {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.unread.extend_from_slice(bytes);
        if self.unread.len() > EVENT_MAX {
            return Err(std::io::Error::other("an event of the service is too long"));
        }
        while let Some(end) = self.unread.windows(2).position(|two| two == b"\n\n") {
            let frame: Vec<u8> = self.unread.drain(..end + 2).collect();
            let text = String::from_utf8_lossy(&frame);
            let data = text.lines().find_map(|line| line.strip_prefix("data: "));
            let event = data.and_then(|data| serde_json::from_str::<Value>(data).ok());
            if let Some(event) = event {
                self.show(&event)?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Events {
    fn show(&mut self, event: &Value) -> std::io::Result<()> {
        let text = |name: &str| event.get(name).and_then(Value::as_str).unwrap_or_default();
        let field = |name: &str| event.get(name).cloned().unwrap_or_default();
        match text("type") {
            "message" => writeln!(std::io::stdout().lock(), "{}", lines(text("content")))?,
            "text_response" => output::note(&lines(text("content"))),
            "clarification_needed" => {
                writeln!(std::io::stdout().lock(), "{}", lines(text("question")))?;
                for option in field("options").as_array().into_iter().flatten() {
                    output::note(&format!("  - {}", plain(option.as_str().unwrap_or_default())));
                }
            }
            "tool_call" => {
                let input: String = field("input").to_string().chars().take(INPUT_SHOWN).collect();
                output::note(&format!("· {} {}", plain(text("name")), plain(&input)));
            }
            "generation_response" => {
                for made in field("generations").as_array().into_iter().flatten() {
                    let url = made.get("url").and_then(Value::as_str).unwrap_or_default();
                    output::note(&format!("  {}", plain(url)));
                }
            }
            "workflow_created" => {
                output::note(&format!("  workflow {}", plain(text("workflow_id"))));
            }
            "workflow_updated" => {
                let workflow = plain(text("workflow_id"));
                output::note(&format!("  workflow {workflow} {}", plain(text("version_id"))));
            }
            "execution_completed" => {
                output::note(&format!("  execution {}", plain(text("status"))));
                for url in field("all_outputs").as_array().into_iter().flatten() {
                    output::note(&format!("  {}", plain(url.as_str().unwrap_or_default())));
                }
            }
            "execution_started" => {
                output::note(&format!("  execution {}", plain(text("execution_id"))));
            }
            "status" => output::note(&format!("· {}", plain(text("message")))),
            "thinking_delta" => output::note(&lines(text("content"))),
            "progress" => {
                let percent = field("percent").as_u64().map(|percent| format!(" {percent} %"));
                let message = plain(text("message"));
                output::note(&format!("  {message}{}", percent.unwrap_or_default()));
            }
            "execution_progress" if field("step_id").is_string() => {
                let (done, all) = (field("completed_steps"), field("total_steps"));
                let (step, status) = (plain(text("step_id")), plain(text("step_status")));
                output::note(&format!("  step {done} of {all}: {step} {status}"));
            }
            "error" => self.error = Some(plain(text("message"))),
            "complete" => {
                let cost = field("cost").as_f64().unwrap_or(0.0);
                let time = field("total_time_ms").as_f64().unwrap_or(0.0) / 1000.0;
                output::note(&format!("{time:.1} s, {cost:.6} USD"));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Retains line breaks and removes other control characters.
fn lines(text: &str) -> String {
    text.lines()
        .map(|line| if line.is_empty() { String::new() } else { plain(line) })
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_events_are_parsed_across_chunk_boundaries() {
        let mut events = Events::default();
        let text = "id: 0-1\ndata: {\"type\":\"tool_call\",\"name\":\"x\\u001b[2J\",\"input\":{}}\n\n\
                    id: end-1\ndata: {\"type\":\"error\",\"message\":\"no\"}\n\n: keep-alive\n\n\
                    data: [DONE]\n\n";
        for piece in text.as_bytes().chunks(7) {
            events.write_all(piece).unwrap();
        }
        assert_eq!(events.error.as_deref(), Some("no"));
        assert!(events.unread.is_empty());
        assert_eq!(lines("a\u{1b}\n\nb"), "a\u{fffd}\n\nb");
    }
}
