//! `orrery decide`: asks a chat model typed questions about a state, and prints the probabilities
//! as bars.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use super::Shape;
use super::chain::query;
use super::output::{Column, Output};
use super::service;
use orrery_config::Config;
use orrery_domain::account::DEFAULT_ORGANIZATION;
use orrery_runtime::regular_file;

/// The width of a bar of 100 %, in characters.
const BAR_WIDTH: u32 = 20;
/// Time limit for a response: longer than the service's own time limit.
const PATIENCE: Duration = Duration::from_secs(660);

/// Ask a chat model questions about a text or JSON value, each with a given type of answer
#[derive(Debug, clap::Args)]
#[command(after_help = "Questions:
  'urgent: Is it urgent?'                   yes or no
  'team(it|facilities): Who has to act?'    one of these options
  'mood[panic|worried|calm]: How calm?'     a level of this scale, lowest first

Example:
  orrery decide --model llama --state @mail.txt --question 'urgent: Is it urgent?'")]
pub(super) struct Decide {
    /// The chat model: an alias of the configuration, a slug, or an id of the upstream
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// The state that the questions are about: text, @FILE, or @- for standard input. A JSON object
    /// or array is sent as JSON
    #[arg(long, value_name = "STATE")]
    state: String,
    /// A question with its name, in one of the forms below; repeatable
    #[arg(long = "question", value_name = "QUESTION", required = true)]
    questions: Vec<String>,
    /// The organization to bill
    #[arg(long, value_name = "ORGANIZATION", default_value = DEFAULT_ORGANIZATION)]
    org: String,
    #[command(flatten)]
    shape: Shape,
}

pub(super) async fn run(asked: Decide, config: &Config) -> anyhow::Result<()> {
    let mut questions = Map::new();
    for text in &asked.questions {
        let (name, question) = question(text)?;
        if questions.insert(name.clone(), question).is_some() {
            bail!("duplicate question '{name}'");
        }
    }
    let state = state(&asked.state)?;
    let body = json!({"model": asked.model, "state": state, "questions": questions});
    let admin = service::admin(config).await?;
    let query = query(&[("organization", &asked.org)]);
    let path = format!("/admin/decisions?{query}");
    let answer = admin.post_within(&path, &body, PATIENCE).await?;
    let columns =
        [Column::Text("QUESTION"), Column::Text("ANSWER"), Column::Number("%"), Column::Text("")];
    let answers = answer.get("answers").and_then(Value::as_object);
    let rows: Vec<Vec<String>> =
        answers.into_iter().flatten().flat_map(|(name, answer)| rows(name, answer)).collect();
    let output = Output::new(asked.shape.json);
    output.show(&answer, &columns, rows)?;
    if !output.is_json() {
        let usage = |field: &str| answer.pointer(&format!("/usage/{field}")).cloned();
        let number = |field: &str| usage(field).and_then(|value| value.as_u64()).unwrap_or(0);
        let cost = usage("cost").and_then(|value| value.as_f64()).unwrap_or(0.0);
        let input = number("input_tokens");
        let said = number("output_tokens");
        super::output::note(&format!("{input} input tokens, {said} output tokens, {cost:.6} USD"));
    }
    Ok(())
}

/// Returns the state in the form that the request requires.
fn state(text: &str) -> anyhow::Result<Value> {
    let text = match text.strip_prefix('@') {
        None => text.to_owned(),
        Some("-") => {
            let mut read = String::new();
            std::io::stdin().read_to_string(&mut read).context("standard input cannot be read")?;
            read
        }
        Some(path) => regular_file::read_to_string(Path::new(path))
            .with_context(|| format!("{path} cannot be read"))?,
    };
    let parsed = serde_json::from_str::<Value>(&text).ok();
    let json = parsed.filter(|value| value.is_object() || value.is_array());
    Ok(json.unwrap_or(Value::String(text)))
}

/// Returns the question's name, and the question in the form that the request requires.
fn question(text: &str) -> anyhow::Result<(String, Value)> {
    let expected = "expected 'name: question', 'name(a|b): question' or 'name[low|high]: question'";
    let colon = colon_of(text).with_context(|| format!("{text:?}: {expected}"))?;
    let head = text.get(..colon);
    let instructions = text.get(colon + 1..);
    let head = head.unwrap_or_default().trim();
    let instructions = instructions.unwrap_or_default();
    let instructions = instructions.trim();
    let (at, is_choice) = match (head.find('('), head.find('[')) {
        (Some(at), None) if head.ends_with(')') => (at, true),
        (None, Some(at)) if head.ends_with(']') => (at, false),
        (None, None) => {
            let question = json!({"type": "oul", "instructions": instructions});
            return Ok((head.to_owned(), question));
        }
        _ => bail!("{text:?}: {expected}"),
    };
    let inner = head.get(at + 1..head.len() - 1).unwrap_or_default();
    let parts = inner.split('|').map(|part| part.trim().to_owned());
    let question = if is_choice {
        let options: Map<String, Value> = parts.map(|part| (part, Value::Null)).collect();
        json!({"type": "choice", "instructions": instructions, "criteria": options})
    } else {
        let levels: Vec<String> = parts.collect();
        json!({"type": "score", "instructions": instructions, "criteria": levels})
    };
    Ok((head.get(..at).unwrap_or_default().trim().to_owned(), question))
}

/// Returns the index of the first colon outside the options, which ends the name and its options.
fn colon_of(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, character) in text.char_indices() {
        match character {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ':' if depth == 0 => return Some(at),
            _ => {}
        }
    }
    None
}

/// Returns a table row for each option of an answer.
fn rows(name: &str, answer: &Value) -> Vec<Vec<String>> {
    let field = |field: &str| answer.get(field);
    let yes = field("oul").or_else(|| field("noul")).and_then(Value::as_f64);
    let options: Vec<(String, f64)> = match yes {
        Some(yes) => vec![("yes".to_owned(), yes), ("no".to_owned(), 1.0 - yes)],
        None => {
            let legend = field("legend");
            let all = field("probabilities").and_then(Value::as_object);
            let shown = all.into_iter().flatten().map(|(option, probability)| {
                let meaning = legend.and_then(|legend| legend.get(option)?.as_str());
                let option =
                    meaning.map_or_else(|| option.clone(), |text| format!("{option} {text}"));
                (option, probability.as_f64().unwrap_or(0.0))
            });
            shown.collect()
        }
    };
    let line = |(option, probability): (String, f64)| {
        vec![name.to_owned(), option, format!("{:.1}", probability * 100.0), bar(probability)]
    };
    options.into_iter().map(line).collect()
}

/// Draws a bar with a resolution of one eighth of a character.
fn bar(probability: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most the width of the bar"
    )]
    let eighths = (probability.clamp(0.0, 1.0) * f64::from(BAR_WIDTH * 8)).round() as usize;
    let part = EIGHTHS.get(eighths % 8).copied().unwrap_or_default();
    // An empty cell would be printed as a dash.
    let bar = "█".repeat(eighths / 8) + part;
    if bar.is_empty() { " ".to_owned() } else { bar }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decide_parses_all_question_forms() {
        for (text, name, expected) in [
            (
                "urgent: Is it: urgent?",
                "urgent",
                json!({"type": "oul", "instructions": "Is it: urgent?"}),
            ),
            (
                "team (it | fire: now): Who?",
                "team",
                json!({"type": "choice", "instructions": "Who?", "criteria": {"it": null, "fire: now": null}}),
            ),
            (
                "mood[low|high]: How?",
                "mood",
                json!({"type": "score", "instructions": "How?", "criteria": ["low", "high"]}),
            ),
        ] {
            assert_eq!(question(text).unwrap(), (name.to_owned(), expected));
        }
        for wrong in ["urgent", "a(b: c", "a)b(: c"] {
            assert!(question(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn decide_bar_length_follows_probability() {
        let found = [0.0, 0.5, 1.0, 0.00625, f64::NAN].map(bar);
        let expected = [" ", "██████████", "████████████████████", "▏", " "];
        assert_eq!(found, expected);
    }

    #[test]
    fn decide_rows_show_every_option() {
        let shown = |answer: Value| {
            rows("q", &answer).into_iter().map(|row| row[1..3].join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(shown(json!({"type": "oul", "oul": 0.75})), ["yes 75.0", "no 25.0"]);
        let choice = json!({"choice": "b", "probabilities": {"a": 0.2, "b": 0.8}});
        assert_eq!(shown(choice), ["a 20.0", "b 80.0"]);
        let score = json!({"score": 0.5, "probabilities": {"0": 0.5, "1": 0.5}, "legend": {"0": "low", "1": "high"}});
        assert_eq!(shown(score), ["0 low 50.0", "1 high 50.0"]);
    }
}
