//! Formats a transcript for OpenAI's clients and for predictions.

use std::fmt::Write as _;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde_json::{Value, json};

use super::request::{Ask, Format};

/// Recognized speech. All times are in hundredths of a second.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Transcript {
    /// The code of the language.
    pub language: String,
    /// The language's English name.
    pub language_name: String,
    pub duration: i64,
    pub segments: Vec<Segment>,
}

/// A sentence or a part of one.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Segment {
    pub start: i64,
    pub end: i64,
    pub text: String,
    pub tokens: Vec<i32>,
    /// The average logarithm of the probability of the tokens.
    pub logprob: f64,
    /// The probability that the segment contains no speech.
    pub no_speech: f32,
    /// The words, if they were asked for.
    pub words: Vec<Word>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Word {
    pub start: i64,
    pub end: i64,
    pub text: String,
}

impl Segment {
    /// Moves all times by a number of ticks.
    pub(super) fn shift(&mut self, by: i64) {
        self.start += by;
        self.end += by;
        for word in &mut self.words {
            word.start += by;
            word.end += by;
        }
    }
}

impl Transcript {
    /// Returns the text of all segments.
    pub(super) fn text(&self) -> String {
        let text: String = self.segments.iter().map(|segment| segment.text.as_str()).collect();
        text.trim().to_owned()
    }

    /// Returns the answer in the requested format, and its media type.
    pub(super) fn answer(&self, ask: &Ask) -> (&'static str, String) {
        match ask.format {
            Format::Text => ("text/plain", self.text() + "\n"),
            Format::Srt => ("application/x-subrip", self.srt()),
            Format::Vtt => ("text/vtt", self.vtt()),
            Format::Verbose => ("application/json", self.verbose(ask).to_string()),
            Format::Json | Format::Stream | Format::Progress => {
                let answer = json!({"text": self.text(), "usage": self.usage()});
                ("application/json", answer.to_string())
            }
        }
    }

    /// Returns the usage in OpenAI's format.
    pub(super) fn usage(&self) -> Value {
        json!({"type": "duration", "seconds": seconds(self.duration).ceil()})
    }

    fn verbose(&self, ask: &Ask) -> Value {
        let of_segment = |(id, segment): (usize, &Segment)| {
            json!({
                "id": id,
                "seek": segment.start,
                "start": seconds(segment.start),
                "end": seconds(segment.end),
                "text": segment.text,
                "tokens": segment.tokens,
                "temperature": ask.temperature,
                "avg_logprob": segment.logprob,
                "compression_ratio": compression(&segment.text),
                "no_speech_prob": segment.no_speech,
            })
        };
        let segments: Vec<Value> = self.segments.iter().enumerate().map(of_segment).collect();
        let mut answer = json!({
            "task": if ask.is_translation { "translate" } else { "transcribe" },
            "language": self.language_name,
            "duration": seconds(self.duration),
            "text": self.text(),
            "segments": segments,
            "usage": self.usage(),
        });
        if ask.wants_words
            && let Some(answer) = answer.as_object_mut()
        {
            let words = self.segments.iter().flat_map(|segment| &segment.words).map(Word::json);
            answer.insert("words".to_owned(), words.collect());
        }
        answer
    }

    /// Returns the output of a prediction.
    pub(super) fn output(&self, ask: &Ask) -> Value {
        let of_segment = |segment: &Segment| {
            let (start, end) = (seconds(segment.start), seconds(segment.end));
            let mut shown = json!({"start": start, "end": end, "text": segment.text.trim()});
            if ask.wants_words
                && let Some(shown) = shown.as_object_mut()
            {
                shown.insert("words".to_owned(), segment.words.iter().map(Word::json).collect());
            }
            shown
        };
        json!({
            "text": self.text(),
            "language": self.language,
            "duration": seconds(self.duration),
            "segments": self.segments.iter().map(of_segment).collect::<Vec<Value>>(),
        })
    }

    fn srt(&self) -> String {
        let mut text = String::new();
        for (index, segment) in self.segments.iter().enumerate() {
            let (start, end) = (clock(segment.start, ','), clock(segment.end, ','));
            let number = index + 1;
            // Writing to a string cannot fail.
            let _infallible =
                write!(text, "{number}\n{start} --> {end}\n{}\n\n", line(&segment.text));
        }
        // An answer must not be empty.
        if text.is_empty() { "\n".to_owned() } else { text }
    }

    fn vtt(&self) -> String {
        let mut text = "WEBVTT\n\n".to_owned();
        for segment in &self.segments {
            let (start, end) = (clock(segment.start, '.'), clock(segment.end, '.'));
            let _infallible = write!(text, "{start} --> {end}\n{}\n\n", line(&segment.text));
        }
        text
    }
}

impl Word {
    fn json(&self) -> Value {
        json!({"word": self.text, "start": seconds(self.start), "end": seconds(self.end)})
    }
}

/// Returns the line of a prediction's log for a segment.
pub(super) fn log_line(start: i64, end: i64, text: &str) -> String {
    format!("[{} --> {}] {}\n", clock(start, '.'), clock(end, '.'), line(text))
}

fn seconds(ticks: i64) -> f64 {
    ticks as f64 / 100.0
}

/// Returns a text as one line, in which nothing looks like the time of a subtitle.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<&str>>().join(" ").replace("-->", "->")
}

/// Formats a time as in subtitles, with `point` before the milliseconds.
fn clock(ticks: i64, point: char) -> String {
    let (minutes, rest) = (ticks / 6000, ticks % 6000);
    let (hours, minutes) = (minutes / 60, minutes % 60);
    format!("{hours:02}:{minutes:02}:{:02}{point}{:03}", rest / 100, rest % 100 * 10)
}

/// Returns the compression ratio of a text; a high ratio indicates repetitions.
fn compression(text: &str) -> f64 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to memory cannot fail.
    let compressed = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    let bytes = compressed.map_or(1, |compressed| compressed.len().max(1));
    text.len() as f64 / bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let segment = |start, end, text: &str| Segment {
            start,
            end,
            text: text.to_owned(),
            words: vec![Word { start, end, text: text.trim().to_owned() }],
            ..Segment::default()
        };
        Transcript {
            language: "de".to_owned(),
            language_name: "german".to_owned(),
            duration: 366_150,
            segments: vec![
                segment(0, 150, " Guten\nTag."),
                segment(366_000, 366_150, " Ende --> da."),
            ],
        }
    }

    fn ask(format: Format) -> Ask {
        let (language, prompt) = (None, String::new());
        let (temperature, wants_words, is_translation) = (0.0, true, false);
        Ask { format, language, prompt, temperature, wants_words, is_translation }
    }

    #[test]
    fn transcript_has_openais_formats() {
        let text = |format| transcript().answer(&ask(format)).1;
        assert_eq!(text(Format::Text), "Guten\nTag. Ende --> da.\n");
        assert_eq!(
            text(Format::Srt),
            "1\n00:00:00,000 --> 00:00:01,500\nGuten Tag.\n\n\
             2\n01:01:00,000 --> 01:01:01,500\nEnde -> da.\n\n"
        );
        assert_eq!(
            text(Format::Vtt),
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nGuten Tag.\n\n\
             01:01:00.000 --> 01:01:01.500\nEnde -> da.\n\n"
        );
        let json: Value = serde_json::from_str(&text(Format::Json)).unwrap();
        assert_eq!(json["usage"], json!({"type": "duration", "seconds": 3662.0}));
        let verbose: Value = serde_json::from_str(&text(Format::Verbose)).unwrap();
        assert_eq!(verbose["language"], "german");
        assert_eq!(verbose["segments"][1]["start"], 3660.0);
        assert_eq!(verbose["words"][0], json!({"word": "Guten\nTag.", "start": 0.0, "end": 1.5}));
        assert_eq!(verbose["task"], "transcribe");
    }

    #[test]
    fn transcript_without_segments_is_not_empty() {
        let silent = Transcript::default();
        assert_eq!(silent.answer(&ask(Format::Srt)).1, "\n");
        assert_eq!(silent.answer(&ask(Format::Text)).1, "\n");
        assert_eq!(silent.output(&ask(Format::Progress))["segments"], json!([]));
    }

    #[test]
    fn repetitions_have_a_high_compression_ratio() {
        assert!(compression(&"again ".repeat(50)) > 5.0);
        assert!(compression("A short text.") < 1.5);
    }

    #[test]
    fn log_has_a_line_for_each_segment() {
        assert_eq!(log_line(0, 6000, " a\nb"), "[00:00:00.000 --> 00:01:00.000] a b\n");
    }
}
