//! Computes the probabilities of an answer from a model's label scores. The functions are pure and
//! their results bitwise reproducible: terms are sorted before they are summed, so that the order
//! of the options does not affect rounding.

use super::request::{Kind, Question};
use orrery_wire::decision::Answer;

/// Lower bound of a label's log-probability. Without it, a label that a server reports as
/// impossible in one order of the options would outweigh the label's score in the other order.
const LOGPROB_MIN: f64 = -50.0;

/// A token that the model considered for the next position.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub text: String,
    /// The natural logarithm of the token's probability.
    pub logprob: f64,
}

/// Returns the log-probabilities of the first `count` labels, in order; `None` if no label is among
/// the tokens. A label that is missing gets the probability of the last listed token or an equal
/// share of the unlisted probability, whichever is smaller.
#[must_use]
pub(super) fn of_labels(tokens: &[Token], count: usize) -> Option<Vec<f64>> {
    let bounded = |logprob: f64| {
        if logprob.is_nan() { LOGPROB_MIN } else { logprob.clamp(LOGPROB_MIN, 0.0) }
    };
    let listed: Vec<Option<f64>> = super::prompt::labels(count)
        .map(|label| {
            let same = tokens.iter().filter(|token| token.text.trim() == label);
            let all: Vec<f64> = same.map(|token| bounded(token.logprob)).collect();
            (!all.is_empty()).then(|| bounded(log_sum(&all)))
        })
        .collect();
    let missing = listed.iter().filter(|label| label.is_none()).count();
    if missing == count {
        return None;
    }
    let all: Vec<f64> = tokens.iter().map(|token| bounded(token.logprob)).collect();
    let last = all.iter().copied().fold(0.0, f64::min);
    #[expect(clippy::cast_precision_loss, reason = "at most 26")]
    let share = (1.0 - log_sum(&all).exp()).max(0.0) / missing.max(1) as f64;
    let unlisted = bounded(last.min(share.ln()));
    Some(listed.into_iter().map(|label| label.unwrap_or(unlisted)).collect())
}

/// Averages, in log space, the probabilities of options that were scored in the given and in the
/// reversed order. `reversed` is in the order in which the model saw the options.
#[must_use]
pub(super) fn of_both_orders(given: &[f64], reversed: &[f64]) -> Vec<f64> {
    let given = normalized(given);
    let reversed = normalized(reversed);
    let both = given.iter().zip(reversed.iter().rev());
    let mean: Vec<f64> = both.map(|(one, other)| f64::midpoint(*one, *other)).collect();
    normalized(&mean).into_iter().map(f64::exp).collect()
}

/// Returns each option's share of the votes.
#[must_use]
pub(super) fn of_votes(votes: &[u32]) -> Vec<f64> {
    let total: u32 = votes.iter().sum();
    votes.iter().map(|count| f64::from(*count) / f64::from(total.max(1))).collect()
}

/// Normalizes log-probabilities so that the probabilities sum to 1.
fn normalized(logprobs: &[f64]) -> Vec<f64> {
    let total = log_sum(logprobs);
    logprobs.iter().map(|logprob| logprob - total).collect()
}

/// Returns the logarithm of the sum of the exponentials of `logprobs`.
fn log_sum(logprobs: &[f64]) -> f64 {
    let mut sorted = logprobs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let most = sorted.last().copied().unwrap_or(0.0);
    let sum: f64 = sorted.iter().map(|logprob| (logprob - most).exp()).sum();
    most + sum.ln()
}

/// Builds the answer to a question from the probabilities of its options.
#[must_use]
pub(super) fn answer(question: &Question, probabilities: &[f64]) -> Answer {
    let named = || question.options.iter().zip(probabilities);
    // If options tie, the first one wins.
    let best = probabilities
        .iter()
        .copied()
        .enumerate()
        .fold((0, f64::MIN), |best, one| if one.1 > best.1 { one } else { best });
    let (place, confidence) = best;
    let first = probabilities.first().copied().unwrap_or_default();
    match question.kind {
        Kind::Oul => Answer::Oul { oul: first },
        Kind::Noul => Answer::Noul { noul: first },
        Kind::Choice => Answer::Choice {
            choice: question.options.get(place).map(|o| o.name.clone()).unwrap_or_default(),
            confidence,
            probabilities: named().map(|(option, p)| (option.name.clone(), *p)).collect(),
        },
        Kind::Score => {
            #[expect(clippy::cast_precision_loss, reason = "at most 26")]
            let score = probabilities.iter().enumerate().map(|(level, p)| level as f64 * p).sum();
            let level = |(level, value)| (usize::to_string(&level), value);
            Answer::Score {
                score,
                confidence,
                probabilities: probabilities.iter().copied().enumerate().map(level).collect(),
                legend: question
                    .options
                    .iter()
                    .enumerate()
                    .map(|(level, option)| (level.to_string(), option.name.clone()))
                    .collect(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::request::Choice;

    fn token(text: &str, logprob: f64) -> Token {
        Token { text: text.to_owned(), logprob }
    }

    fn close(found: &[f64], expected: &[f64]) -> bool {
        found.len() == expected.len()
            && found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-12)
    }

    #[test]
    fn label_probabilities_sum_spellings_and_bound_unlisted_labels() {
        let tokens =
            [token("A", 0.4_f64.ln()), token(" A", 0.2_f64.ln()), token("x", 0.3_f64.ln())];
        let found = of_labels(&tokens, 3).unwrap();
        let left = 0.1_f64 / 2.0;
        let found: Vec<f64> = found.into_iter().map(f64::exp).collect();
        assert!(close(&found, &[0.6, left, left]), "{found:?}");
        assert_eq!(of_labels(&[token("The", -0.1)], 2), None);
        assert_eq!(of_labels(&[], 2), None);
        let absurd = [token("A", f64::NAN), token("B", 7.0), token("C", f64::NEG_INFINITY)];
        assert_eq!(of_labels(&absurd, 3).unwrap(), [LOGPROB_MIN, 0.0, LOGPROB_MIN]);
    }

    #[test]
    fn probabilities_average_both_orders_in_log_space() {
        // The option shown first is overrated by the same factor in both orders, which cancels out.
        let bias = 3.0_f64.ln();
        let a = 0.7_f64.ln();
        let b = 0.3_f64.ln();
        let found = of_both_orders(&[a + bias, b], &[b + bias, a]);
        assert!(close(&found, &[0.7, 0.3]), "{found:?}");
    }

    proptest::proptest! {
        #[test]
        fn probabilities_add_up_to_one_and_mirror_with_the_options(
            pairs in proptest::collection::vec((-40.0..0.0_f64, -40.0..0.0_f64), 2..26),
        ) {
            let (given, reversed): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let found = of_both_orders(&given, &reversed);
            assert!((found.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            // The mirrored request shows the reversed order first.
            let mut mirrored = of_both_orders(&reversed, &given);
            mirrored.reverse();
            assert_eq!(found, mirrored, "bit by bit");
        }
    }

    #[test]
    fn answers_have_the_shape_of_their_type() {
        let of = |kind: Kind| {
            let option = |name: &str| Choice { name: name.to_owned(), guidance: None };
            let options = vec![option("low"), option("mid"), option("high")];
            let name = "q".to_owned();
            let instructions = "?".to_owned();
            let question = Question { name, kind, instructions, options };
            serde_json::to_string(&answer(&question, &[0.25, 0.25, 0.5])).unwrap()
        };
        assert_eq!(of(Kind::Oul), r#"{"type":"oul","oul":0.25}"#);
        assert_eq!(of(Kind::Noul), r#"{"type":"noul","noul":0.25}"#);
        assert_eq!(
            of(Kind::Choice),
            r#"{"type":"choice","choice":"high","confidence":0.5,"probabilities":{"low":0.25,"mid":0.25,"high":0.5}}"#
        );
        assert_eq!(
            of(Kind::Score),
            r#"{"type":"score","score":1.25,"confidence":0.5,"probabilities":{"0":0.25,"1":0.25,"2":0.5},"legend":{"0":"low","1":"mid","2":"high"}}"#
        );
    }
}
