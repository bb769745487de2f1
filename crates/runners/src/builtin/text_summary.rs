//! `text-summary`: selects the most informative sentences of a text, in their original order.
//!
//! The summary is extractive and uses the frequency measure of Luhn (1958): a sentence's score is
//! the sum of its topical words' frequencies divided by its length. The model never generates
//! sentences.

use std::collections::HashMap;

use serde_json::{Value, json};
use unicode_segmentation::UnicodeSegmentation;

use super::words::StopWords;
use super::{Builtin, TEXT_MAX, Work, number, text, weight};
use orrery_domain::attempt::Failure;
use orrery_domain::model::OutputType;

const DEFAULT_SENTENCES: u32 = 3;

pub(super) const MODEL: Builtin = Builtin {
    slug: "text-summary",
    title: "Summary",
    description: "Picks the most informative sentences of a text, in their order.",
    output_type: OutputType::String,
    schema,
    work: Work::Pure {
        weigh: |input| weight::of_text(input, "text", weight::WORDS_EACH),
        run: summarize,
    },
};

fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["text"],
        "additionalProperties": false,
        "properties": {
            "text": {"type": "string", "title": "Text", "maxLength": TEXT_MAX},
            "sentences": {
                "type": "integer",
                "title": "Number of sentences",
                "minimum": 1,
                "maximum": 50,
                "default": DEFAULT_SENTENCES,
            },
        },
    })
}

fn summarize(input: &Value) -> Result<Value, Failure> {
    let text = text(input, "text");
    let stop_words = StopWords::of_language_of(text);
    let sentences: Vec<&str> =
        text.unicode_sentences().map(str::trim).filter(|sentence| !sentence.is_empty()).collect();
    let words: Vec<Vec<String>> =
        sentences.iter().map(|sentence| stop_words.topical(sentence)).collect();
    let mut frequencies: HashMap<&str, usize> = HashMap::new();
    for word in words.iter().flatten() {
        *frequencies.entry(word).or_default() += 1;
    }
    let score = |words: &Vec<String>| {
        let sum: usize = words.iter().filter_map(|word| frequencies.get(word.as_str())).sum();
        density(sum, words.len())
    };
    let mut ranked: Vec<(usize, f64)> = words.iter().map(score).enumerate().collect();
    ranked.sort_by(|(a, score_a), (b, score_b)| score_b.total_cmp(score_a).then(a.cmp(b)));
    let count =
        usize::try_from(number(input, "sentences", DEFAULT_SENTENCES)).unwrap_or(usize::MAX);
    let mut chosen: Vec<usize> = ranked.into_iter().take(count).map(|(index, _)| index).collect();
    chosen.sort_unstable();
    let chosen = chosen.into_iter().filter_map(|index| sentences.get(index).copied());
    Ok(chosen.collect::<Vec<_>>().join(" ").into())
}

/// Returns the score of a sentence. The square root prevents a short sentence that repeats the
/// topic's name from outranking long ones.
#[expect(clippy::cast_precision_loss, reason = "counts of words stay far below 2^53")]
fn density(sum: usize, words: usize) -> f64 {
    if words == 0 { 0.0 } else { sum as f64 / (words as f64).sqrt() }
}
