//! Words that carry a topic: what `text-summary` and `text-keywords` count.

use std::collections::HashSet;

use unicode_segmentation::UnicodeSegmentation;

/// Words with fewer letters carry no topic.
const LENGTH_MIN: usize = 3;

/// The words of one language that carry no topic.
pub(super) struct StopWords(HashSet<&'static str>);

impl StopWords {
    /// Those of the language that `text` is written in; English where that is unknown.
    pub(super) fn of_language_of(text: &str) -> Self {
        let code =
            whatlang::detect_lang(text).map_or("en", |language| two_letters(language.code()));
        let list = stop_words::lookup(code).or_else(|| stop_words::lookup("en"));
        Self(list.unwrap_or_default().iter().copied().collect())
    }

    /// The topical words of `text`, in lower case, in their order.
    pub(super) fn topical(&self, text: &str) -> Vec<String> {
        text.unicode_words().map(str::to_lowercase).filter(|word| self.is_topical(word)).collect()
    }

    /// Whether a word in lower case carries a topic.
    pub(super) fn is_topical(&self, word: &str) -> bool {
        word.chars().count() >= LENGTH_MIN
            && word.chars().any(char::is_alphabetic)
            && !self.0.contains(word)
    }
}

/// The two-letter code of the languages that the lists know, from the three-letter one.
fn two_letters(code: &str) -> &'static str {
    match code {
        "deu" => "de",
        "fra" => "fr",
        "spa" => "es",
        "ita" => "it",
        "por" => "pt",
        "nld" => "nl",
        "swe" => "sv",
        "dan" => "da",
        "nob" => "no",
        "fin" => "fi",
        "pol" => "pl",
        "ces" => "cs",
        "ron" => "ro",
        "hun" => "hu",
        "rus" => "ru",
        "ukr" => "uk",
        "tur" => "tr",
        "ell" => "el",
        _ => "en",
    }
}
