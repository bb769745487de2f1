//! The messages that the history stores if `router.keep_content` is set, assembled from the events
//! of a stream. Text past the limit is dropped, and the message is marked as truncated.

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::meter::Choice;
use orrery_runners::openai::message::Messages;

/// Maximum bytes of text stored per call.
const CONTENT_MAX: usize = 1024 * 1024;

/// The messages received so far.
#[derive(Debug)]
pub(crate) struct Content {
    messages: Messages,
    truncated: bool,
}

impl Default for Content {
    fn default() -> Self {
        Self { messages: Messages::new(CONTENT_MAX), truncated: false }
    }
}

impl Content {
    /// Adds the text of a choice.
    pub(crate) fn add(&mut self, choice: &Choice<'_>) {
        let index = choice.index.and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
        if let Some(text) = &choice.text {
            let delta = Map::from_iter([("content".to_owned(), text.as_str().into())]);
            self.truncated |= !self.messages.add(index, delta);
        }
        let Some(said) = choice.said() else { return };
        let fields =
            [("content", said.content), ("refusal", said.refusal), ("tool_calls", said.tool_calls)];
        let delta: Map<String, Value> = fields
            .into_iter()
            .filter_map(|(name, text)| {
                Some((name.to_owned(), serde_json::from_str(text?.get()).ok()?))
            })
            .collect();
        self.truncated |= !self.messages.add(index, delta);
    }

    /// Returns the message, or an array if there are several choices; `None` if the answer is
    /// empty.
    #[must_use]
    pub(crate) fn into_json(self) -> Option<Box<RawValue>> {
        let mut messages: Vec<_> = self.messages.finish().collect();
        if self.truncated
            && let Some(last) = messages.last_mut()
        {
            last.insert("truncated".to_owned(), true.into());
        }
        let json = match messages.len() {
            0 => return None,
            1 => to_raw_value(&messages.swap_remove(0)),
            _ => to_raw_value(&messages),
        };
        json.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::meter::Meter;
    use super::*;

    fn kept(events: &[&str]) -> Option<String> {
        let mut meter = Meter::new(0, true);
        for event in events {
            meter.event(event.as_bytes()).unwrap();
        }
        meter.take_content().map(|json| json.get().to_owned())
    }

    #[test]
    fn content_is_assembled_from_stream_events() {
        let said = kept(&[
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"He"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"y"}}]}"#,
        ]);
        assert_eq!(said.as_deref(), Some(r#"{"role":"assistant","content":"Hey"}"#));
        assert_eq!(kept(&[r#"{"choices":[]}"#]), None);
    }

    #[test]
    fn content_joins_tool_calls_by_index_and_keeps_each_choice() {
        let said = kept(&[
            r#"{"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"a\""}}]}}]}"#,
            r#"{"choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}}]}"#,
        ]);
        let expected = r#"[{"role":"assistant","content":null},{"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"a\":1}"}}]}]"#;
        assert_eq!(said.as_deref(), Some(expected));
    }

    #[test]
    fn content_past_the_limit_is_marked() {
        let long = "x".repeat(CONTENT_MAX - 100);
        let event = |text: &str| format!(r#"{{"choices":[{{"delta":{{"content":"{text}"}}}}]}}"#);
        let said = kept(&[&event(&long), &event(&"y".repeat(200))]).unwrap();
        assert!(said.ends_with(r#"x","truncated":true}"#), "{}", &said[said.len() - 40..]);
    }
}
