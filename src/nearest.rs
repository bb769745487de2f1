//! The nearest known word to an unknown one, for messages that help whoever mistyped it.

/// Words further away than this many edits are not suggested.
const FARTHEST: usize = 3;

/// The known word that is nearest to `unknown`, if one is near enough.
#[must_use]
pub fn to<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|word| (strsim::damerau_levenshtein(unknown, word), *word))
        .filter(|(distance, word)| *distance <= FARTHEST && *distance < word.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// serde's sentence about an unknown field, with the nearest of `known` in place of the whole list;
/// every other sentence as it is.
#[must_use]
pub fn explain(message: &str, known: &[&str]) -> String {
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'));
    let Some((unknown, _)) = unknown else { return message.to_owned() };
    match to(unknown, known) {
        Some(near) => format!("unknown key '{unknown}', did you mean '{near}'?"),
        None => format!("unknown key '{unknown}'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        let known = ["listen", "public_url", "url"];
        assert_eq!(to("lisen", &known), Some("listen"));
        assert_eq!(to("xyz", &known), None);
        assert_eq!(to("certificate", &known), None);
        let sentence = "unknown field `lisetn`, expected `listen`";
        assert_eq!(explain(sentence, &known), "unknown key 'lisetn', did you mean 'listen'?");
        assert_eq!(explain("missing field `a`", &known), "missing field `a`");
    }
}
