//! `text-sentiment`: rates the sentiment of English text by the VADER rules.

use std::borrow::Cow;

use serde_json::{Value, json};
use vader_sentimental::SentimentIntensityAnalyzer;

use super::{Builtin, Work, text, weight};
use orrery_domain::attempt::Failure;
use orrery_domain::model::OutputType;

/// Maximum text length: the rules compare neighboring words and search for emoji, so longer texts
/// would take too long.
const LENGTH_MAX: u64 = 20_000;
/// A text with at least this score is positive, and a text with at most the negated value is
/// negative; these are VADER's own thresholds.
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

/// Returns the contribution of exclamation and question marks, computed as the library does.
fn emphasis(text: &str) -> f64 {
    let count = |mark: u8| text.bytes().filter(|byte| *byte == mark).take(5).map(|_| 1.0).sum();
    let exclamation: f64 = count(b'!');
    let question: f64 = count(b'?');
    let question = if question > 3.0 { 0.96 } else { question * 0.18 };
    question + exclamation.min(4.0) * 0.292
}

/// Normalizes a sum to the range from -1 to 1, as VADER does.
fn normalized(sum: f64) -> f64 {
    sum / (sum * sum + 15.0).sqrt()
}

/// Rewrites the text so that the library, which follows an older version, rates it by two rules of
/// the reference: "no" before a word that has a sentiment negates that word, and a single question
/// mark amplifies nothing.
fn with_current_rules<'t>(
    text: &'t str,
    analyzer: &SentimentIntensityAnalyzer<'_>,
) -> Cow<'t, str> {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let is_no = |word: &&str| word.eq_ignore_ascii_case("no");
    let has_single_mark = text.bytes().filter(|byte| *byte == b'?').count() == 1;
    if !has_single_mark && !words.iter().any(is_no) {
        return text.into();
    }
    let has_sentiment = |word: &str| analyzer.polarity_scores(word).compound != 0.0;
    for at in 1..words.len() {
        if let Some([word, next]) = words.get_mut(at - 1..=at)
            && is_no(word)
            && has_sentiment(next)
        {
            *word = if *word == "NO" { "NOT" } else { "not" };
        }
    }
    let text = words.join(" ");
    Cow::Owned(if has_single_mark { text.replace('?', "") } else { text })
}

fn rate(input: &Value) -> Result<Value, Failure> {
    let analyzer = SentimentIntensityAnalyzer::new();
    let text = &*with_current_rules(text(input, "text"), &analyzer);
    let mut scores = analyzer.polarity_scores(text);
    // Emphasis amplifies a sentiment. Unlike the reference implementation, the library also
    // subtracts the emphasis from a sum of zero.
    if scores.compound < 0.0 && (scores.compound - normalized(-emphasis(text))).abs() < f64::EPSILON
    {
        scores.compound = 0.0;
    }
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
