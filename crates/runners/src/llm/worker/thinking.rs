//! Separates thinking from the rest of a model's response. Thinking is the text between two tags,
//! the first of which may be in the prompt, or consists of messages in the Harmony format
//! (gpt-oss).

/// The tags around thinking.
pub(super) const TAGS: [(&str, &str); 12] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel>thought", "<channel|>"),
    ("Here is my thought process:", "Here is my response:"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
];
/// Texts that start the header of a Harmony message; the prompt may contain the header's beginning.
const HEADERS: [&str; 3] = ["<|channel|>", "<|start|>", FUNCTIONS];
/// The token between the header and the text of a Harmony message.
const MESSAGE: &str = "<|message|>";
/// Tokens that end a Harmony message. The last two start the next message, without an end token.
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"];
/// The recipient of a Harmony message that is a call.
const FUNCTIONS: &str = "to=functions.";

/// Whether a response can contain thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thinking {
    /// The response contains no thinking, because a grammar constrains it.
    Never,
    /// The response may start with thinking.
    Maybe,
    /// The prompt has opened thinking; this tag closes it.
    Begun(&'static str),
}

/// A part of a response. Calls are part of the content.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Split {
    pub reasoning: String,
    pub content: String,
}

/// Splits a response as its text arrives.
#[derive(Debug)]
pub(super) struct Divider {
    state: State,
    held: String,
    /// Whether content has been returned, so that another message starts a new paragraph.
    has_content: bool,
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
    /// The text is in the header of a Harmony message.
    Header,
    /// The text is in the body of a Harmony message.
    Message {
        kind: Message,
        is_new: bool,
    },
}

/// The purpose of a Harmony message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    /// Thinking, or a call to the model's own tools.
    Thought,
    /// The answer, or a preamble to calls.
    Said,
    Call,
}

/// Returns whether a control token belongs to thinking.
#[must_use]
pub(super) fn is_part(token: &str) -> bool {
    ENDS.contains(&token)
        || token == MESSAGE
        || TAGS.iter().any(|(open, close)| [open, close].contains(&&token))
}

/// Returns the tag that closes thinking opened in a prompt.
#[must_use]
pub(super) fn begun_in(prompt: &str) -> Option<&'static str> {
    let prompt = prompt.trim_end();
    TAGS.iter().find(|(open, _)| prompt.ends_with(open)).map(|(_, close)| *close)
}

impl Divider {
    /// Creates a divider at the beginning of a response.
    #[must_use]
    pub(super) const fn new(thinking: Thinking) -> Self {
        let state = match thinking {
            Thinking::Never => State::Content,
            Thinking::Maybe => State::Start { is_behind: false },
            Thinking::Begun(close) => State::Thinking { close, is_new: true },
        };
        Self { state, held: String::new(), has_content: false }
    }

    /// Adds text, and returns the parts whose kind is certain.
    pub(super) fn push(&mut self, text: &str) -> Split {
        self.held.push_str(text);
        let mut split = Split::default();
        while self.step(&mut split) {}
        split
    }

    /// Returns the rest at the end of the response.
    pub(super) fn end(&mut self) -> Split {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Thinking { .. } | State::Message { kind: Message::Thought, .. } => {
                Split { reasoning: rest.trim_end().into(), ..Split::default() }
            }
            // A header without a message contains neither thinking nor content.
            State::Header => Split::default(),
            State::Start { is_behind: true } => {
                Split { content: rest.trim_start().into(), ..Split::default() }
            }
            State::Start { is_behind: false } | State::Content | State::Message { .. } => {
                Split { content: rest, ..Split::default() }
            }
        }
    }

    /// Moves the parts whose kind is certain to `split`. Returns whether there may be more such
    /// parts.
    fn step(&mut self, split: &mut Split) -> bool {
        match self.state {
            State::Content => {
                split.content.push_str(&std::mem::take(&mut self.held));
                false
            }
            State::Start { is_behind } => self.start(split, is_behind),
            State::Thinking { close, is_new } => self.think(split, close, is_new),
            State::Header => self.header(split),
            State::Message { kind, is_new } => self.message(split, kind, is_new),
        }
    }

    fn start(&mut self, split: &mut Split, is_behind: bool) -> bool {
        let text = self.held.trim_start();
        if HEADERS.iter().any(|header| text.starts_with(header)) {
            self.state = State::Header;
            return true;
        }
        for (open, close) in TAGS {
            if let Some(rest) = text.strip_prefix(open) {
                self.held = rest.to_owned();
                self.state = State::Thinking { close, is_new: true };
                return true;
            }
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
        // The end of the text may be the whitespace before the closing tag, so hold it back.
        let before = without_beginning(&self.held, &[close]).trim_end().len();
        let rest = self.held.split_off(before);
        split.reasoning.push_str(&std::mem::replace(&mut self.held, rest));
        false
    }

    /// Reads the header of a Harmony message: `<|channel|>NAME to=RECIPIENT`, in any order.
    fn header(&mut self, split: &mut Split) -> bool {
        let Some((header, rest)) = self.held.split_once(MESSAGE) else { return false };
        let is_end = |letter: char| letter.is_whitespace() || letter == '<';
        let behind = |mark: &str| header.split_once(mark)?.1.trim_start().split(is_end).next();
        let kind = if let Some(name) = behind(FUNCTIONS) {
            // The call parser recognizes this form.
            split.content.push_str(&format!("<|channel|>commentary {FUNCTIONS}{name}{MESSAGE}"));
            Message::Call
        } else if header.contains("to=") || behind("<|channel|>") == Some("analysis") {
            Message::Thought
        } else {
            Message::Said
        };
        self.held = rest.to_owned();
        self.state = State::Message { kind, is_new: true };
        true
    }

    fn message(&mut self, split: &mut Split, kind: Message, is_new: bool) -> bool {
        let end = ENDS.iter().filter_map(|end| Some((self.held.find(end)?, *end))).min();
        let certain = without_beginning(&self.held, &ENDS).len();
        let rest = self.held.split_off(end.map_or(certain, |(at, _)| at));
        let text = std::mem::replace(&mut self.held, rest);
        if !text.is_empty() {
            self.state = State::Message { kind, is_new: false };
        }
        match kind {
            Message::Thought => split.reasoning.push_str(&text),
            Message::Call => split.content.push_str(&text),
            Message::Said => {
                if is_new && self.has_content && !text.is_empty() {
                    split.content.push_str("\n\n");
                }
                self.has_content |= !text.is_empty();
                split.content.push_str(&text);
            }
        }
        let Some((_, end)) = end else { return false };
        if !HEADERS.contains(&end) {
            self.held.drain(..end.len());
        }
        self.state = State::Start { is_behind: true };
        true
    }
}

/// Returns the text without an ending that may be the beginning of a mark.
fn without_beginning<'t>(text: &'t str, marks: &[&str]) -> &'t str {
    let longest = marks.iter().map(|mark| mark.len()).max().unwrap_or(0);
    let first = (text.len() + 1).saturating_sub(longest);
    let may_begin = |at: &usize| {
        text.get(*at..).is_some_and(|end| marks.iter().any(|mark| mark.starts_with(end)))
    };
    let at = (first..text.len()).find(may_begin).unwrap_or(text.len());
    text.get(..at).unwrap_or_default()
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

    /// Checks cases of text, thinking and content, at several chunk sizes.
    fn check(cases: &[(Thinking, &str, &str, &str)]) {
        for (thinking, text, reasoning, content) in cases {
            for size in [1, 2, 3, 7, 1000] {
                let expected = ((*reasoning).to_owned(), (*content).to_owned());
                assert_eq!(divided(*thinking, text, size), expected, "{text} by {size}");
            }
        }
    }

    #[test]
    fn harmony_messages_are_separated_at_any_chunk_size() {
        check(&[
            (
                Thinking::Maybe,
                "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
                "a",
                "b",
            ),
            (Thinking::Maybe, "<|channel|>final<|message|>b", "", "b"),
            (
                Thinking::Maybe,
                "<|channel|>commentary<|message|>a < b<|end|>\
                 <|start|>assistant<|channel|>final<|message|>c<|return|>",
                "",
                "a < b\n\nc",
            ),
            (
                Thinking::Maybe,
                "<|channel|>analysis to=python code<|message|>1+1<|call|><|start|>assistant\
                 <|channel|>final <|constrain|>json<|message|>{}",
                "1+1",
                "{}",
            ),
            (
                Thinking::Begun("<|end|>"),
                "a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|channel|>final<|message|>c",
                "ab",
                "c",
            ),
            (
                Thinking::Maybe,
                "to=functions.f<|channel|>commentary json<|message|>{\"x\": 1}<|call|>",
                "",
                "<|channel|>commentary to=functions.f<|message|>{\"x\": 1}",
            ),
            (Thinking::Maybe, "<|channel|>fin", "", ""),
        ]);
    }

    #[test]
    fn thinking_is_separated_from_answer_at_any_chunk_size() {
        check(&[
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
            (Thinking::Maybe, "◁think▷a◁/think▷b", "a", "b"),
            (Thinking::Maybe, "<thought>a</thought>b", "a", "b"),
            (Thinking::Maybe, "<|channel>thought\na\n<channel|>b", "a", "b"),
            (
                Thinking::Maybe,
                "Here is my thought process:\na\n\nHere is my response:\nb",
                "a",
                "b",
            ),
            (Thinking::Maybe, "Here is my answer: b", "", "Here is my answer: b"),
            (Thinking::Maybe, "<seed:think>é🌙</seed:think>é", "é🌙", "é"),
            (
                Thinking::Maybe,
                " no <think>tag</think> at the front",
                "",
                " no <think>tag</think> at the front",
            ),
            (Thinking::Maybe, "<thi", "", "<thi"),
            (Thinking::Maybe, "", "", ""),
            (Thinking::Never, "<think>{}", "", "<think>{}"),
        ]);
    }

    #[test]
    fn thinking_opened_by_prompt_is_detected_at_its_end() {
        assert_eq!(begun_in("<|im_start|>assistant\n<think>\n"), Some("</think>"));
        assert_eq!(begun_in("assistant\n[THINK]"), Some("[/THINK]"));
        assert_eq!(begun_in("<think>\n\n</think>\n\n"), None);
        assert!(is_part("<|channel|>") && is_part("</think>") && !is_part("<|im_end|>"));
    }
}
