//! Topical words, as counted by `text-summary` and `text-keywords`: words that carry meaning.

use std::collections::HashSet;

use unicode_segmentation::UnicodeSegmentation;

/// Minimum length of a topical word, in characters.
const LENGTH_MIN: usize = 3;

/// Words of one language that carry no meaning of their own.
pub(super) struct StopWords(HashSet<&'static str>);

impl StopWords {
    /// Returns the stop words of the language of `text`, or the English ones if the language is
    /// unknown.
    pub(super) fn of_language_of(text: &str) -> Self {
        let code =
            whatlang::detect_lang(text).map_or("en", |language| two_letters(language.code()));
        let list = stop_words::lookup(code).or_else(|| stop_words::lookup("en"));
        Self(list.unwrap_or_default().iter().copied().collect())
    }

    /// Returns the topical words of `text`, in lower case and in order.
    pub(super) fn topical(&self, text: &str) -> Vec<String> {
        text.unicode_words().map(str::to_lowercase).filter(|word| self.is_topical(word)).collect()
    }

    /// Returns whether a lower-case word is topical.
    pub(super) fn is_topical(&self, word: &str) -> bool {
        word.chars().count() >= LENGTH_MIN
            && word.chars().any(char::is_alphabetic)
            && !self.0.contains(word)
    }
}

/// Maps three-letter language codes to the two-letter codes of the stop word lists.
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
