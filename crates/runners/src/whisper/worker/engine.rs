//! Recognizes speech with whisper.cpp, one request at a time.
//!
//! Audio of any length is recognized in windows of bounded length. A window may end in the middle
//! of a sentence, so the speech at its end is recognized again at the beginning of the next window.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, MutexGuard, PoisonError};

use orrery_whisper::whisper_rs::{
    FullParams, SamplingStrategy, SegmentCallbackData, WhisperContext, WhisperContextParameters,
    WhisperError, WhisperSegment, WhisperState, get_lang_id, get_lang_str, get_lang_str_full,
};
use tokio::sync::mpsc::UnboundedSender as Sender;

use super::WorkerArgs;
use super::audio::{Audio, RATE};
use super::request::{Ask, PROMPT_MAX, end_of};
use super::transcript::{Segment, Transcript, Word};
use crate::llm::worker::log;
use crate::llm::worker::request::Refusal;

/// Number of samples in a tick: a hundredth of a second, whisper.cpp's unit of time.
const TICK: usize = RATE as usize / 100;
/// Maximum length of a window, in ticks. Its samples and their spectrum take about 150 MB.
const WINDOW: usize = 10 * 60 * 100;
/// Ticks at the end of a window in which speech may be cut off.
const EDGE: i64 = 100;
/// Ticks that whisper.cpp recognizes at a time; no segment is longer.
const STRETCH: i64 = 30 * 100;
/// Minimum length of audio, in ticks. Shorter audio is padded with silence, because whisper.cpp
/// ignores it.
const SHORTEST: usize = 110;

/// A request to recognize speech.
pub(super) struct Job {
    pub ask: Ask,
    pub audio: Box<dyn Read + Send + Sync>,
    /// Not bounded, so that a slow client does not stop the engine; the length of the audio bounds it.
    /// When the receiver is dropped, the client has left.
    pub events: Sender<Event>,
}

/// An event of a request.
#[derive(Debug)]
pub(super) enum Event {
    /// A segment was recognized. The times are in ticks.
    Heard {
        start: i64,
        end: i64,
        text: String,
    },
    Done(Box<Transcript>),
    Failed(Refusal),
}

/// A loaded model.
pub(super) struct Engine {
    context: WhisperContext,
    threads: i32,
    beam: i32,
    language: Option<String>,
}

impl Engine {
    /// Loads the model.
    ///
    /// # Errors
    /// If whisper.cpp cannot load the file, or has not enough memory.
    pub(super) fn load(args: &WorkerArgs) -> Result<Self, WhisperError> {
        let mut parameters = WhisperContextParameters::default();
        parameters.use_gpu(false);
        let context = WhisperContext::new_with_params(&args.common.file, parameters)?;
        // Fails if there is too little memory.
        drop(context.create_state()?);
        Ok(Self {
            context,
            threads: i32::try_from(args.common.threads).unwrap_or(1),
            beam: i32::try_from(args.beam).unwrap_or(1),
            language: args.language.clone(),
        })
    }

    /// Recognizes speech until no client is left.
    pub(super) fn run(&self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            if job.events.is_closed() {
                continue;
            }
            let Job { ask, audio, events } = job;
            // A decoder may panic on a damaged file.
            let work = AssertUnwindSafe(|| self.transcribe(&ask, audio, &events));
            let ended = catch_unwind(work)
                .unwrap_or_else(|_panic| Err(Refusal::of("file", "the audio is damaged")));
            *running() = None;
            let event = match ended {
                Ok(transcript) => Event::Done(Box::new(transcript)),
                Err(refusal) => Event::Failed(refusal),
            };
            // The client may have left.
            let _unheard = events.send(event);
        }
    }

    fn transcribe(
        &self,
        ask: &Ask,
        audio: Box<dyn Read + Send + Sync>,
        events: &Sender<Event>,
    ) -> Result<Transcript, Refusal> {
        let of_file = |error: super::audio::Error| Refusal::of("file", error.to_string());
        let mut audio = Audio::open(audio).map_err(of_file)?;
        let mut language = self.language(ask)?;
        // Data that a request leaves in a reused state would change the next transcript.
        let mut state = self.context.create_state().map_err(|error| failed(&error))?;
        let mut samples = Vec::new();
        let mut done = Transcript::default();
        let mut start = 0;
        loop {
            let is_last = audio.read(&mut samples, WINDOW * TICK).map_err(of_file)?;
            let length = ticks(samples.len());
            if is_last && samples.len() < SHORTEST * TICK {
                samples.resize(SHORTEST * TICK, 0.0);
            }
            let certain = if is_last { i64::MAX } else { length - STRETCH };
            let now = Running { events: events.clone(), offset: start, length, certain, sent: 0 };
            *running() = Some(now);
            self.recognize(&mut state, ask, &samples, language, &done)?;
            let sent = running().as_ref().map_or(0, |now| now.sent);
            let found = state.full_lang_id_from_state();
            language = language.or_else(|| get_lang_str(found));
            let mut heard: Vec<Segment> =
                state.as_iter().map(|one| self.segment(ask, &one)).collect();
            let next = if is_last { length } else { cut(&mut heard, length) };
            for (index, mut segment) in heard.into_iter().enumerate() {
                segment.end = segment.end.min(length).max(segment.start);
                segment.shift(start);
                if index >= sent {
                    let Segment { start, end, ref text, .. } = segment;
                    let _left = events.send(Event::Heard { start, end, text: text.clone() });
                }
                done.segments.push(segment);
            }
            if is_last {
                done.duration = start + length;
                done.language = language.unwrap_or("en").to_owned();
                let name = get_lang_id(&done.language).and_then(get_lang_str_full);
                done.language_name = name.unwrap_or("english").to_owned();
                return Ok(done);
            }
            samples.drain(..usize::try_from(next).unwrap_or(0) * TICK);
            start += next;
        }
    }

    /// Returns the language of the audio; `None` means to detect it.
    fn language(&self, ask: &Ask) -> Result<Option<&'static str>, Refusal> {
        let wanted = ask.language.as_deref().or(self.language.as_deref());
        let wanted = wanted.filter(|code| *code != "auto");
        if self.context.is_multilingual() {
            return Ok(wanted.and_then(get_lang_id).and_then(get_lang_str));
        }
        match wanted {
            None | Some("en") => Ok(Some("en")),
            Some(other) => {
                let message = format!("this model knows only English, not {other:?}");
                Err(Refusal::of("language", message))
            }
        }
    }

    /// Recognizes the speech in one window.
    fn recognize(
        &self,
        state: &mut WhisperState,
        ask: &Ask,
        samples: &[f32],
        language: Option<&str>,
        before: &Transcript,
    ) -> Result<(), Refusal> {
        let strategy = if self.beam > 1 {
            SamplingStrategy::BeamSearch { beam_size: self.beam, patience: -1.0 }
        } else {
            SamplingStrategy::Greedy { best_of: 5 }
        };
        let text = before.text();
        let prompt = if before.segments.is_empty() {
            ask.prompt.as_str()
        } else {
            end_of(&text, PROMPT_MAX)
        };
        // A token has at least one byte.
        let tokens = match prompt.is_empty() || prompt.contains('\0') {
            true => Vec::new(),
            false => self.context.tokenize(prompt, prompt.len() + 1).unwrap_or_default(),
        };
        let mut parameters = FullParams::new(strategy);
        parameters.set_n_threads(self.threads);
        parameters.set_language(language);
        parameters.set_translate(ask.is_translation);
        parameters.set_temperature(ask.temperature);
        parameters.set_token_timestamps(ask.wants_words);
        parameters.set_no_context(true);
        parameters.set_tokens(&tokens);
        parameters.set_print_progress(false);
        parameters.set_print_realtime(false);
        parameters.set_print_timestamps(false);
        parameters.set_print_special(false);
        // The callbacks are never freed, so they capture nothing: see `RUNNING`.
        parameters.set_segment_callback_safe_lossy::<_, fn(SegmentCallbackData)>(
            note as fn(SegmentCallbackData),
        );
        // This type, because `whisper-rs` calls the callback as if it had the type of the box.
        type Callback = Box<dyn FnMut() -> bool>;
        parameters.set_abort_callback_safe::<_, Callback>(Box::new(is_abandoned) as Callback);
        state.full(parameters, samples).map_err(|error| failed(&error))
    }

    fn segment(&self, ask: &Ask, found: &WhisperSegment<'_>) -> Segment {
        let mut segment = Segment {
            start: found.start_timestamp(),
            end: found.end_timestamp(),
            text: found.to_str_lossy().unwrap_or_default().into_owned(),
            no_speech: found.no_speech_probability(),
            ..Segment::default()
        };
        let mut bytes = Vec::new();
        let mut sum = 0.0;
        for index in 0..found.n_tokens() {
            let Some(token) = found.get_token(index) else { continue };
            let data = token.token_data();
            sum += f64::from(data.plog);
            segment.tokens.push(data.id);
            if !ask.wants_words || data.id >= self.context.token_eot() {
                continue;
            }
            let text = token.to_bytes().unwrap_or_default();
            // A word begins with a space.
            if text.starts_with(b" ") || segment.words.is_empty() {
                bytes.clear();
                segment.words.push(Word { start: data.t0, ..Word::default() });
            }
            bytes.extend_from_slice(text);
            if let Some(word) = segment.words.last_mut() {
                word.end = data.t1;
                word.text = String::from_utf8_lossy(&bytes).trim().to_owned();
            }
        }
        segment.logprob = sum / f64::from(found.n_tokens().max(1));
        segment
    }
}

/// The request in progress. Callbacks are called by the thread of the engine only.
static RUNNING: Mutex<Option<Running>> = Mutex::new(None);

struct Running {
    events: Sender<Event>,
    /// Start of the window, in ticks.
    offset: i64,
    /// Length of the window, in ticks.
    length: i64,
    /// Segments that end before this time of the window are not recognized again.
    certain: i64,
    /// Number of segments of the window that were reported.
    sent: usize,
}

fn running() -> MutexGuard<'static, Option<Running>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports a segment as soon as it was recognized.
fn note(found: SegmentCallbackData) {
    let mut now = running();
    let Some(now) = now.as_mut() else { return };
    let is_next = usize::try_from(found.segment) == Ok(now.sent);
    if !is_next || found.end_timestamp > now.certain {
        return;
    }
    now.sent += 1;
    // The last segment may end in the silence that whisper.cpp appends.
    let end = found.end_timestamp.min(now.length).max(found.start_timestamp);
    let (start, end) = (found.start_timestamp + now.offset, end + now.offset);
    // The client may have left.
    let _left = now.events.send(Event::Heard { start, end, text: found.text });
}

/// Returns whether the client has left.
fn is_abandoned() -> bool {
    running().as_ref().is_none_or(|now| now.events.is_closed())
}

fn failed(error: &WhisperError) -> Refusal {
    let why = log::last_error().unwrap_or_else(|| error.to_string());
    Refusal::because(500, format!("whisper.cpp cannot recognize the audio: {why}"))
}

fn ticks(samples: usize) -> i64 {
    i64::try_from(samples / TICK).unwrap_or(i64::MAX)
}

/// Drops the segments at the end of a window that another window follows, and returns the start of
/// the next window.
fn cut(segments: &mut Vec<Segment>, length: i64) -> i64 {
    let edge = length - EDGE;
    let kept = segments.iter().rposition(|one| one.end <= edge).map_or(0, |last| last + 1);
    let next = segments.get(kept).map_or(edge, |first| first.start);
    let kept_until = segments.get(kept.wrapping_sub(1)).map_or(0, |last| last.end);
    // The window must move on, also after a segment of an impossible length.
    if next < length - 2 * STRETCH {
        return edge;
    }
    segments.truncate(kept);
    next.max(kept_until).min(edge)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut_at(ends: &[(i64, i64)], length: i64) -> (usize, i64) {
        let segment =
            |(start, end): &(i64, i64)| Segment { start: *start, end: *end, ..Segment::default() };
        let mut segments: Vec<Segment> = ends.iter().map(segment).collect();
        let next = cut(&mut segments, length);
        (segments.len(), next)
    }

    #[test]
    fn window_is_cut_before_the_first_segment_that_may_be_incomplete() {
        for (segments, kept, next) in [
            (&[(0, 2000), (2000, 8000), (8000, 9000)][..], 2, 8000),
            (&[(0, 2000), (2000, 8000)], 2, 8900),
            (&[(0, 9000)], 1, 8900),
            (&[], 0, 8900),
            // A pause before the incomplete segment.
            (&[(0, 2000), (7000, 8950)], 1, 7000),
            // A segment that begins before the end of the one before.
            (&[(0, 8000), (7500, 8950)], 1, 8000),
        ] {
            assert_eq!(cut_at(segments, 9000), (kept, next), "{segments:?}");
        }
    }
}
