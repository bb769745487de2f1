//! Separates thinking from the rest of a model's response: the text between tags, the first of
//! which may be in the prompt.

/// The tags around thinking.
pub const TAGS: [(&str, &str); 7] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
];
/// Headers that a model writes before its actual response.
const HEADERS: [&str; 2] =
    ["<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>"];
/// Tokens that occur in [`TAGS`] and [`HEADERS`] but are not tags by themselves.
const PARTS: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>"];

/// Whether a response can contain thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// The response contains no thinking, because a grammar constrains it.
    Never,
    /// The response may start with thinking.
    Maybe,
    /// The prompt has opened thinking; this tag closes it.
    Begun(&'static str),
}

/// A part of a response.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Split {
    pub reasoning: String,
    pub content: String,
}

/// Splits a response as its text arrives.
#[derive(Debug)]
pub struct Divider {
    state: State,
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No text has been returned since the beginning, or since thinking ended.
    Start {
        is_behind: bool,
    },
    Thinking {
        close: &'static str,
        is_new: bool,
    },
    Content,
}

/// Whether a control token belongs to thinking.
#[must_use]
pub fn is_part(token: &str) -> bool {
    PARTS.contains(&token) || TAGS.iter().any(|(open, close)| [open, close].contains(&&token))
}

/// Returns the tag that closes thinking opened in a prompt.
#[must_use]
pub fn begun_in(prompt: &str) -> Option<&'static str> {
    let prompt = prompt.trim_end();
    TAGS.iter().find(|(open, _)| prompt.ends_with(open)).map(|(_, close)| *close)
}

impl Divider {
    /// Creates a divider at the beginning of a response.
    #[must_use]
    pub const fn new(thinking: Thinking) -> Self {
        let state = match thinking {
            Thinking::Never => State::Content,
            Thinking::Maybe => State::Start { is_behind: false },
            Thinking::Begun(close) => State::Thinking { close, is_new: true },
        };
        Self { state, held: String::new() }
    }

    /// Adds text, and returns the parts that are certain.
    pub fn push(&mut self, text: &str) -> Split {
        self.held.push_str(text);
        let mut split = Split::default();
        while self.step(&mut split) {}
        split
    }

    /// Returns the rest at the end of the response.
    pub fn end(&mut self) -> Split {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Thinking { .. } => {
                Split { reasoning: rest.trim_end().into(), ..Split::default() }
            }
            State::Start { is_behind: true } => {
                Split { content: rest.trim_start().into(), ..Split::default() }
            }
            State::Start { is_behind: false } | State::Content => {
                Split { content: rest, ..Split::default() }
            }
        }
    }

    /// Moves the parts that are certain to `split`. Returns whether there may be more.
    fn step(&mut self, split: &mut Split) -> bool {
        match self.state {
            State::Content => {
                split.content.push_str(&std::mem::take(&mut self.held));
                false
            }
            State::Start { is_behind } => self.start(split, is_behind),
            State::Thinking { close, is_new } => self.think(split, close, is_new),
        }
    }

    fn start(&mut self, split: &mut Split, is_behind: bool) -> bool {
        let text = self.held.trim_start();
        for (open, close) in TAGS {
            if let Some(rest) = text.strip_prefix(open) {
                self.held = rest.to_owned();
                self.state = State::Thinking { close, is_new: true };
                return true;
            }
        }
        if let Some(rest) = HEADERS.iter().find_map(|header| text.strip_prefix(header)) {
            self.held = rest.to_owned();
            self.state = State::Content;
            return true;
        }
        let mut marks = TAGS.iter().map(|(open, _)| open).chain(&HEADERS);
        if marks.any(|mark| mark.starts_with(text)) {
            return false;
        }
        split.content.push_str(if is_behind { text } else { &self.held });
        self.held.clear();
        self.state = State::Content;
        false
    }

    fn think(&mut self, split: &mut Split, close: &'static str, is_new: bool) -> bool {
        if is_new {
            self.held = self.held.trim_start().to_owned();
            if self.held.is_empty() {
                return false;
            }
            self.state = State::Thinking { close, is_new: false };
        }
        if let Some((thought, rest)) = self.held.split_once(close) {
            split.reasoning.push_str(thought.trim_end());
            self.held = rest.to_owned();
            self.state = State::Start { is_behind: true };
            return true;
        }
        // The end of the text may be the beginning of the tag, or the whitespace before it.
        let most = self.held.len().min(close.len() - 1);
        let ends = |length: &usize| {
            self.held.get(self.held.len() - length..).is_some_and(|end| close.starts_with(end))
        };
        let tag = (1..=most).rev().find(ends).unwrap_or(0);
        let before = self.held.get(..self.held.len() - tag).unwrap_or_default().trim_end().len();
        let rest = self.held.split_off(before);
        split.reasoning.push_str(&std::mem::replace(&mut self.held, rest));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(thinking: Thinking, text: &str, size: usize) -> (String, String) {
        let mut divider = Divider::new(thinking);
        let letters: Vec<char> = text.chars().collect();
        let mut all = Split::default();
        let mut add = |split: Split| {
            all.reasoning.push_str(&split.reasoning);
            all.content.push_str(&split.content);
        };
        for part in letters.chunks(size) {
            add(divider.push(&part.iter().collect::<String>()));
        }
        add(divider.end());
        (all.reasoning, all.content)
    }

    #[test]
    fn thinking_is_separated_from_answer_at_any_chunk_size() {
        for (thinking, text, reasoning, content) in [
            (
                Thinking::Maybe,
                "<think>\nLet me see. 2+2\n</think>\n\nFour!!",
                "Let me see. 2+2",
                "Four!!",
            ),
            (
                Thinking::Begun("</think>"),
                "I count 2+2\n</think>\n\nFour!!",
                "I count 2+2",
                "Four!!",
            ),
            (Thinking::Begun("</think>"), "cut in </thi", "cut in </thi", ""),
            (Thinking::Maybe, "<think>\n\n</think>\n\nFour", "", "Four"),
            (Thinking::Maybe, "\n<thinking>a < b\n\nc</thinking>d", "a < b\n\nc", "d"),
            (Thinking::Maybe, "[THINK]a[/THINK]b", "a", "b"),
            (Thinking::Maybe, "<seed:think>é🌙</seed:think>é", "é🌙", "é"),
            (
                Thinking::Maybe,
                "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
                "a",
                "b",
            ),
            (Thinking::Maybe, "<|channel|>final<|message|>b", "", "b"),
            (
                Thinking::Maybe,
                " no <think>tag</think> at the front",
                "",
                " no <think>tag</think> at the front",
            ),
            (Thinking::Maybe, "<thi", "", "<thi"),
            (Thinking::Maybe, "", "", ""),
            (Thinking::Never, "<think>{}", "", "<think>{}"),
        ] {
            for size in [1, 2, 3, 7, 1000] {
                let expected = (reasoning.to_owned(), content.to_owned());
                assert_eq!(divided(thinking, text, size), expected, "{text} by {size}");
            }
        }
    }

    #[test]
    fn thinking_opened_by_prompt_is_detected_at_its_end() {
        assert_eq!(begun_in("<|im_start|>assistant\n<think>\n"), Some("</think>"));
        assert_eq!(begun_in("assistant\n[THINK]"), Some("[/THINK]"));
        assert_eq!(begun_in("<think>\n\n</think>\n\n"), None);
        assert!(is_part("<|channel|>") && is_part("</think>") && !is_part("<|im_end|>"));
    }
}
