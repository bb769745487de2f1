//! `text-sentiment`: how positive or negative an English text sounds, by the VADER rules.

use serde_json::{Value, json};
use vader_sentimental::SentimentIntensityAnalyzer;

use super::{Builtin, Work, text, weight};
use crate::domain::attempt::Failure;
use crate::domain::model::OutputType;

/// The rules look at every pair of neighbours and at emoji by search; longer texts take too long.
const LENGTH_MAX: u64 = 20_000;
/// From here on a text counts as positive, and below its negative as negative: VADER's own bounds.
const THRESHOLD: f64 = 0.05;

pub(super) const MODEL: Builtin = Builtin {
    slug: "text-sentiment",
    title: "Sentiment",
    description: "Rates how positive or negative a short English text sounds.",
    output_type: OutputType::Object,
    schema,
    work: Work::Pure {
        weigh: |input| weight::of_text(input, "text", weight::WORDS_EACH),
        run: rate,
    },
};

fn schema() -> Value {
    json!({
        "type": "object",
        "required": ["text"],
        "additionalProperties": false,
        "properties": {
            "text": {
                "type": "string",
                "title": "Text",
                "description": "One or a few sentences, in English.",
                "maxLength": LENGTH_MAX,
            },
        },
    })
}

fn rate(input: &Value) -> Result<Value, Failure> {
    let scores = SentimentIntensityAnalyzer::new().polarity_scores(text(input, "text"));
    let label = if scores.compound >= THRESHOLD {
        "positive"
    } else if scores.compound <= -THRESHOLD {
        "negative"
    } else {
        "neutral"
    };
    Ok(json!({
        "label": label,
        "score": scores.compound,
        "positive": scores.pos,
        "neutral": scores.neu,
        "negative": scores.neg,
    }))
}
