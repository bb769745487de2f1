//! `text-keywords`: extracts the significant words and phrases of a text.
//!
//! Uses the RAKE measure (Rose et al., 2010): stop words and punctuation split the text into
//! phrases; a word scores the total length of its phrases divided by its count, and a phrase the
//! sum of its words' scores.

use std::collections::HashMap;

use serde_json::{Value, json};
use unicode_segmentation::UnicodeSegmentation;

use super::words::StopWords;
use super::{Builtin, TEXT_MAX, Work, number, text, weight};
use orrery_domain::attempt::Failure;
use orrery_domain::model::OutputType;

/// Longer runs of topical words are lists or tables, not phrases.
const PHRASE_WORDS_MAX: usize = 5;
const DEFAULT_COUNT: u32 = 10;

pub(super) const MODEL: Builtin = Builtin {
    slug: "text-keywords",
    title: "Keywords",
    description: "Finds the words and phrases that a text is about, the most significant first.",
    output_type: OutputType::Array,
    schema,
    work: Work::Pure {
        weigh: |input| weight::of_text(input, "text", weight::WORDS_EACH),
        run: extract,
    },
};

fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["text"],
        "additionalProperties": false,
        "properties": {
            "text": {"type": "string", "title": "Text", "maxLength": TEXT_MAX},
            "count": {
                "type": "integer",
                "title": "Number of keywords",
                "minimum": 1,
                "maximum": 100,
                "default": DEFAULT_COUNT,
            },
        },
    })
}

fn extract(input: &Value) -> Result<Value, Failure> {
    let phrases = phrases(text(input, "text"));
    let mut counts: HashMap<&str, (usize, usize)> = HashMap::new();
    for word in phrases.iter().flatten() {
        counts.entry(word).or_default().0 += 1;
    }
    for phrase in &phrases {
        for word in phrase {
            counts.entry(word).or_default().1 += phrase.len();
        }
    }
    let mut scores: HashMap<String, f64> = HashMap::new();
    for phrase in &phrases {
        let score = phrase.iter().filter_map(|word| counts.get(word.as_str()));
        let score = score.map(|(count, lengths)| ratio(*lengths, *count)).sum();
        scores.insert(phrase.join(" "), score);
    }
    let mut ranked: Vec<(String, f64)> = scores.into_iter().collect();
    ranked.sort_by(|(a, score_a), (b, score_b)| score_b.total_cmp(score_a).then(a.cmp(b)));
    let count = usize::try_from(number(input, "count", DEFAULT_COUNT)).unwrap_or(usize::MAX);
    let keywords = ranked.into_iter().take(count);
    Ok(keywords.map(|(keyword, score)| json!({"keyword": keyword, "score": score})).collect())
}

/// Returns the runs of topical words between stop words, punctuation and line breaks.
fn phrases(text: &str) -> Vec<Vec<String>> {
    let stop_words = StopWords::of_language_of(text);
    let mut phrases = Vec::new();
    let mut phrase = Vec::new();
    for part in text.split_word_bounds() {
        let word = part.to_lowercase();
        if stop_words.is_topical(&word) {
            phrase.push(word);
        } else if part != " " && !phrase.is_empty() {
            phrases.push(std::mem::take(&mut phrase));
        }
    }
    phrases.push(phrase);
    phrases.retain(|phrase| (1..=PHRASE_WORDS_MAX).contains(&phrase.len()));
    phrases
}

#[expect(clippy::cast_precision_loss, reason = "counts of words stay far below 2^53")]
fn ratio(of: usize, to: usize) -> f64 {
    of as f64 / to.max(1) as f64
}
