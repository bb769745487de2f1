//! Spelling suggestions for keys, parameters and fields: the known name that is nearest to a
//! misspelled name.

/// Maximum edit distance of a suggestion.
const EDITS_MAX: usize = 3;
/// Number of letters for which one edit is allowed, so that `port` is not taken for a misspelling
/// of `cors`.
const LETTERS_PER_EDIT: usize = 3;
/// Minimum length of an unknown name for suggestions that begin or end with it.
const BEGINNING_MIN: usize = 4;

/// Maximum length of a name, in characters. Longer names get no suggestion.
const NAME_MAX: usize = 512;
/// Maximum number of characters of a path that a message shows.
const SHOWN_CHARS_MAX: usize = 60;
/// Maximum number of known names compared. The number is limited because a client may send a long
/// list.
pub const COMPARED_MAX: usize = 2000;

/// Returns the known name nearest to `unknown`, ignoring case, if it is near enough.
#[must_use]
pub fn nearest<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    if unknown.chars().nth(NAME_MAX).is_some() {
        return None;
    }
    let unknown = &unknown.to_lowercase();
    let known = known.get(..COMPARED_MAX).unwrap_or(known);
    // The length difference is a lower bound for the edit distance, so the time depends only on the
    // known names.
    let letters = unknown.chars().count();
    let by_edits = known
        .iter()
        .filter(|name| name.chars().count().abs_diff(letters) <= EDITS_MAX)
        .map(|name| (strsim::damerau_levenshtein(unknown, &name.to_lowercase()), *name))
        .filter(|(distance, name)| {
            let longer = name.chars().count().max(letters);
            *distance <= EDITS_MAX.min(longer / LETTERS_PER_EDIT)
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name);
    let begins = |name: &&str| letters >= BEGINNING_MIN && name.to_lowercase().starts_with(unknown);
    let ends = |name: &&str| {
        let name = name.to_lowercase();
        let before = name.strip_suffix(unknown.as_str()).filter(|_| letters >= BEGINNING_MIN);
        before.is_some_and(|before| before.ends_with(['-', '_', '/', '.']))
    };
    // The shortest candidate is the best guess.
    let shortest = |is_near: &dyn Fn(&&str) -> bool| {
        known.iter().copied().filter(is_near).min_by_key(|name| name.len())
    };
    by_edits.or_else(|| shortest(&begins)).or_else(|| shortest(&ends))
}

/// Returns the end of a message about an unknown name: `: did you mean NAME?`, or nothing.
#[must_use]
pub fn hint(unknown: &str, known: &[&str]) -> String {
    nearest(unknown, known).map(|near| format!(": did you mean {near}?")).unwrap_or_default()
}

/// Returns a sentence that reports an unknown name and suggests a similar one. The sentence is safe
/// as a header value. `path` is the path to the name, and ends with the name.
#[must_use]
pub fn unknown(what: &str, path: &str, name: &str, known: &[&str]) -> String {
    let is_plain = |letter: char| letter.is_ascii_graphic() && !matches!(letter, '"' | '\\');
    let shown = path.chars().take(SHOWN_CHARS_MAX);
    let shown: String = shown.map(|letter| if is_plain(letter) { letter } else { '?' }).collect();
    match nearest(name, known) {
        Some(near) => format!("unknown {what} {shown}: did you mean {near}?"),
        None if known.is_empty() => format!("unknown {what} {shown}: none are accepted here"),
        None => format!("unknown {what} {shown}: expected one of {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_suggests_only_near_names() {
        let known = ["listen", "public_url", "url", "webhook_secret", "webhook_url", "version_id"];
        for (unknown, near) in [
            ("lisen", Some("listen")),
            ("webhook", Some("webhook_url")),
            ("version", Some("version_id")),
            ("xyz", None),
            ("certificate", None),
            ("", None),
            ("webhook_urlsss", Some("webhook_url")),
            ("uri", Some("url")),
            ("url_pattern", None),
            ("secret", Some("webhook_secret")),
            ("SECRET", Some("webhook_secret")),
            ("cret", None),
            ("part", None),
            ("LISTEN", Some("listen")),
        ] {
            assert_eq!(nearest(unknown, &known), near, "{unknown}");
        }
        // These are different words.
        for (unknown, known) in
            [("output_type", "output"), ("port", "cors"), ("api", "base"), ("schedule", "seal")]
        {
            assert_eq!(nearest(unknown, &[known]), None, "{unknown}");
        }
        assert_eq!(nearest("inputs", &["model", "input"]), Some("input"));
        let slugs = ["text-language", "text-sentiment", "team/large-chat"];
        assert_eq!(nearest("sentiment", &slugs), Some("text-sentiment"));
        assert_eq!(nearest("large-chat", &slugs), Some("team/large-chat"));
        assert_eq!(hint("language", &slugs), ": did you mean text-language?");
        assert_eq!(hint("age", &slugs), "");
        // Computing all edit distances would take a billion steps.
        assert_eq!(nearest(&"x".repeat(20_000_000), &known), None);
    }
}
