//! The token allowance of a request. The allowance is reserved before the call, and a stream that
//! exceeds the allowance is cut off.

use super::error::Failure;
use super::request::Request;
use orrery_domain::chat::Tokens;
use orrery_domain::classify::ErrorClass;

/// Maximum bytes of streamed text per allowed output token: more than the average of any language.
const BYTES_PER_TOKEN_MAX: u64 = 16;
/// Bytes that a stream may have in addition, to allow for a few long tokens.
const BYTES_FREE: u64 = 1024;

/// The maximum number of tokens for the answers to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowance {
    tokens: Tokens,
    /// Bytes of the prompts, if the answers begin with them.
    echoed: u64,
    /// Whether the request itself limits the output.
    is_requested: bool,
}

impl Allowance {
    /// Returns the allowance of a request to a model with a context of `context` tokens, if known.
    #[must_use]
    pub(crate) fn of(request: &Request, context: Option<u32>) -> Self {
        let bound = request.bound;
        let echoed = if request.echoes { bound.echoed_bytes() } else { 0 };
        Self { tokens: bound.tokens(context), echoed, is_requested: bound.is_limited() }
    }

    #[must_use]
    pub(crate) const fn tokens(self) -> Tokens {
        self.tokens
    }

    /// Returns a failure if a stream of `bytes` bytes of text exceeds the allowance. A limit that
    /// the request did not set is enforced only if `is_reserved` is true.
    #[must_use]
    pub(crate) fn exceeded(self, name: &str, bytes: u64, is_reserved: bool) -> Option<Failure> {
        let output = self.tokens.output;
        let most = output.saturating_mul(BYTES_PER_TOKEN_MAX).saturating_add(BYTES_FREE);
        let most = most.saturating_add(self.echoed);
        if bytes <= most || !(self.is_requested || is_reserved) {
            return None;
        }
        let message = if self.is_requested {
            format!(
                "the model '{name}' ignored max_tokens: its answer is far longer than {output} tokens"
            )
        } else {
            format!(
                "the answer of the model '{name}' is far longer than the {output} tokens that are reserved \
                 for a request without a maximum; set max_tokens"
            )
        };
        Some(Failure::new(502, ErrorClass::ProviderError, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orrery_domain::chat::{OUTPUT_TOKENS_RESERVED, Operation};

    fn allowance(fields: &str, context: Option<u32>) -> Allowance {
        let body = format!(
            "{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"12345678\"}}]{fields}}}"
        );
        Allowance::of(&Request::read(Operation::Chat, body.as_bytes()).unwrap(), context)
    }

    #[test]
    fn allowance_is_the_requested_maximum_or_the_default_within_the_context() {
        for (fields, context, output) in [
            ("", None, OUTPUT_TOKENS_RESERVED),
            ("", Some(2048), 2048),
            (",\"n\":3", None, 3 * OUTPUT_TOKENS_RESERVED),
            (",\"max_tokens\":7", None, 7),
            (",\"max_tokens\":-1", Some(2048), 2048),
            (",\"max_tokens\":7,\"max_completion_tokens\":-1", None, 7),
            (",\"max_tokens\":7,\"max_completion_tokens\":5,\"n\":2", Some(2048), 14),
            (",\"max_tokens\":100000", Some(2048), 2048),
            (",\"max_tokens\":4294967295,\"n\":128", None, 4_294_967_295 * 128),
        ] {
            assert_eq!(allowance(fields, context).tokens().output, output, "{fields}");
        }
    }

    #[test]
    fn allowance_cuts_off_only_excessive_answers() {
        let one = allowance(",\"max_tokens\":1", None);
        assert_eq!(one.exceeded("m", BYTES_FREE + 16, false), None);
        let failure = one.exceeded("m", BYTES_FREE + 17, false).unwrap();
        assert!(failure.message.contains("max_tokens"), "{}", failure.message);
        let open = allowance("", None);
        let most = OUTPUT_TOKENS_RESERVED * BYTES_PER_TOKEN_MAX + BYTES_FREE;
        assert_eq!(open.exceeded("m", u64::MAX, false), None, "nothing is reserved");
        assert_eq!(open.exceeded("m", most, true), None);
        assert!(open.exceeded("m", most + 1, true).is_some());
        let body = br#"{"model":"m","prompt":"12345678","max_tokens":1,"echo":true}"#;
        let echo = Allowance::of(&Request::read(Operation::Completions, body).unwrap(), None);
        assert_eq!(echo.exceeded("m", BYTES_FREE + 16 + 8, false), None, "with its prompt");
        assert!(echo.exceeded("m", BYTES_FREE + 16 + 9, false).is_some());
        // English averages more than four bytes per token.
        let small = allowance("", Some(2048));
        assert_eq!(small.exceeded("m", 2048 * 5, true), None);
    }
}
