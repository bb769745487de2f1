//! `text-language`: detects the language of a text.

use serde_json::{Value, json};
use whatlang::{Lang, Script};

use super::{Builtin, TEXT_MAX, Work, refuse, text, weight};
use orrery_domain::attempt::Failure;
use orrery_domain::model::OutputType;

pub(super) const MODEL: Builtin = Builtin {
    slug: "text-language",
    title: "Language detection",
    description: "Detects which of about seventy languages a text is written in.",
    output_type: OutputType::Object,
    schema,
    work: Work::Pure {
        weigh: |input| weight::of_text(input, "text", weight::WORDS_EACH),
        run: detect,
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
                "description": "A sentence or more; longer texts give more certain answers.",
                "minLength": 1,
                "maxLength": TEXT_MAX,
            },
        },
    })
}

fn detect(input: &Value) -> Result<Value, Failure> {
    let found = whatlang::detect(text(input, "text"))
        .ok_or_else(|| refuse("the text has no letters from which to detect a language"))?;
    let (language, script): (Lang, Script) = (found.lang(), found.script());
    Ok(json!({
        "language": language.code(),
        "name": language.eng_name(),
        "script": script.name(),
        "confidence": found.confidence(),
        "reliable": found.is_reliable(),
    }))
}
