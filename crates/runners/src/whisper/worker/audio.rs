//! Decodes audio of any length while it arrives: WAV, AIFF, MP3, FLAC, Ogg Vorbis, and AAC in MP4
//! or ADTS. The result is the input of Whisper models: one channel of 16,000 samples per second.
//!
//! The memory does not depend on the length of the audio, except for MP4, whose index may be at its
//! end. Damaged packets are skipped; a file that contains only damaged packets is rejected.

use std::io::{self, Cursor, Read};

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{
    Async, FixedAsync, Indexing, Resampler as _, SincInterpolationParameters,
    SincInterpolationType, WindowFunction,
};
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::common::Limit;
use symphonia::core::errors::Error as Fault;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, ReadOnlySource};
use symphonia::core::meta::MetadataOptions;

/// The sample rate of Whisper models, in samples per second.
pub(super) const RATE: u32 = 16_000;
/// Maximum length of the audio, in seconds.
pub(super) const SECONDS_MAX: u64 = 24 * 60 * 60;
/// Supported sample rates.
const RATES: std::ops::RangeInclusive<u32> = 1000..=768_000;
const CHANNELS_MAX: usize = 64;
/// Maximum size of an MP4 file, in bytes.
const MP4_MAX: u64 = 512 * 1024 * 1024;
/// Maximum size of a tag or a picture, in bytes; the decoder uses neither.
const TAG_MAX: usize = 64 * 1024;
/// Maximum number of damaged packets in a row.
const DAMAGED_MAX: u32 = 1000;
/// Length of the low-pass filter of a resampler, in samples.
const FILTER: usize = 64;
/// Number of samples that are resampled at a time.
const CHUNK: usize = 1024;

/// The error for audio that cannot be decoded; a sentence for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error(
        "the file is not audio that this model can decode ({0}): send WAV, MP3, FLAC, Ogg Vorbis, \
         AAC or M4A"
    )]
    Format(String),
    #[error("the audio is damaged: {0}")]
    Damaged(String),
    #[error("the audio has {0} channels; the maximum is {CHANNELS_MAX}")]
    Channels(usize),
    #[error("the audio has {0} samples per second, which is not supported")]
    Rate(u32),
    #[error("the audio is longer than {} hours", SECONDS_MAX / 3600)]
    TooLong,
    #[error("the file is larger than {MP4_MAX} bytes, which is too large for its format")]
    TooLarge,
    #[error("the audio did not arrive: {0}")]
    Cut(String),
}

/// Audio that is being decoded.
pub(super) struct Audio {
    format: Box<dyn FormatReader>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
    resampler: Option<Resampler>,
    interleaved: Vec<f32>,
    mono: Vec<f32>,
    /// Number of samples decoded so far, at the sample rate of Whisper models.
    taken: u64,
    damaged: u32,
    is_over: bool,
}

impl Audio {
    /// Opens audio that arrives from `source`.
    ///
    /// # Errors
    /// [`Error`]
    pub(super) fn open(source: impl Read + Send + Sync + 'static) -> Result<Self, Error> {
        let stream = MediaSourceStream::new(media(source)?, Default::default());
        let limits = MetadataOptions::default()
            .limit_tag_bytes(Limit::Maximum(TAG_MAX))
            .limit_visual_bytes(Limit::Maximum(TAG_MAX));
        let probe = symphonia::default::get_probe();
        let format = probe.probe(&Hint::new(), stream, FormatOptions::default(), limits);
        let format = format.map_err(|fault| unreadable(&fault))?;
        let track = format.default_track(TrackType::Audio);
        let track = track.ok_or_else(|| Error::Format("it has no audio".to_owned()))?;
        let parameters = track.codec_params.as_ref().and_then(|parameters| parameters.audio());
        let parameters =
            parameters.ok_or_else(|| Error::Format("its coding is unknown".to_owned()))?;
        let decoders = symphonia::default::get_codecs();
        let decoder = decoders.make_audio_decoder(parameters, &AudioDecoderOptions::default());
        let decoder = decoder.map_err(|fault| unreadable(&fault))?;
        Ok(Self {
            track: track.id,
            format,
            decoder,
            resampler: None,
            interleaved: Vec::new(),
            mono: Vec::new(),
            taken: 0,
            damaged: 0,
            is_over: false,
        })
    }

    /// Decodes until `samples` has at least `most` samples, or to the end. Returns whether the
    /// audio has ended.
    ///
    /// # Errors
    /// [`Error`]
    pub(super) fn read(&mut self, samples: &mut Vec<f32>, most: usize) -> Result<bool, Error> {
        while !self.is_over && samples.len() < most {
            let before = samples.len();
            self.decode(samples)?;
            self.taken += samples.len().saturating_sub(before) as u64;
            if self.taken > SECONDS_MAX * u64::from(RATE) {
                return Err(Error::TooLong);
            }
        }
        Ok(self.is_over)
    }

    /// Decodes the next packet.
    fn decode(&mut self, samples: &mut Vec<f32>) -> Result<(), Error> {
        let packet = match self.format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => return self.end(samples),
            Err(Fault::IoError(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return self.end(samples);
            }
            Err(Fault::DecodeError(reason)) => return self.note_damage(reason),
            Err(fault) => return Err(cut_or(&fault, Error::Damaged)),
        };
        if packet.track_id != self.track {
            return Ok(());
        }
        let decoded = match self.decoder.decode(&packet) {
            Ok(decoded) => decoded,
            Err(Fault::DecodeError(reason)) => return self.note_damage(reason),
            Err(Fault::IoError(_)) => return self.note_damage("a packet is cut off"),
            Err(fault) => return Err(cut_or(&fault, Error::Damaged)),
        };
        if decoded.is_empty() {
            return Ok(());
        }
        self.damaged = 0;
        let rate = decoded.spec().rate();
        let channels = decoded.spec().channels().count();
        if !(1..=CHANNELS_MAX).contains(&channels) {
            return Err(Error::Channels(channels));
        }
        if !RATES.contains(&rate) {
            return Err(Error::Rate(rate));
        }
        decoded.copy_to_vec_interleaved(&mut self.interleaved);
        self.mono.clear();
        // Damaged floating-point samples would spread through the resampler and the model.
        let finite = |sum: f32| if sum.is_finite() { sum } else { 0.0 };
        let mixed = self.interleaved.chunks_exact(channels);
        self.mono.extend(
            mixed.map(|frame| finite(frame.iter().sum::<f32>() / channels as f32)).map(clamped),
        );
        self.resample(rate, samples)
    }

    /// Appends the decoded samples to `samples`.
    fn resample(&mut self, rate: u32, samples: &mut Vec<f32>) -> Result<(), Error> {
        let is_same = self.resampler.as_ref().map_or(RATE, |resampler| resampler.rate) == rate;
        if !is_same {
            if let Some(resampler) = self.resampler.take() {
                resampler.finish(samples)?;
            }
            if rate != RATE {
                self.resampler = Some(Resampler::of(rate)?);
            }
        }
        match &mut self.resampler {
            Some(resampler) => resampler.push(&self.mono, samples),
            None => {
                samples.extend_from_slice(&self.mono);
                Ok(())
            }
        }
    }

    fn end(&mut self, samples: &mut Vec<f32>) -> Result<(), Error> {
        self.is_over = true;
        if let Some(resampler) = self.resampler.take() {
            resampler.finish(samples)?;
        }
        if self.taken == 0 && samples.is_empty() {
            return Err(Error::Damaged("no sound could be decoded".to_owned()));
        }
        Ok(())
    }

    fn note_damage(&mut self, reason: &str) -> Result<(), Error> {
        self.damaged += 1;
        if self.damaged > DAMAGED_MAX { Err(Error::Damaged(reason.to_owned())) } else { Ok(()) }
    }
}

/// Limits a sample to what whisper.cpp expects.
fn clamped(sample: f32) -> f32 {
    sample.clamp(-1.0, 1.0)
}

/// Returns the decoder's source, which streams the audio, or first reads all of it if the format
/// requires that.
fn media(mut source: impl Read + Send + Sync + 'static) -> Result<Box<dyn MediaSource>, Error> {
    /// The position of the type in an MP4 file.
    const HEAD: usize = 8;
    let cut = |error: io::Error| Error::Cut(error.to_string());
    let mut head = Vec::new();
    source.by_ref().take(HEAD as u64).read_to_end(&mut head).map_err(cut)?;
    let is_mp4 = head.get(4..HEAD) == Some(b"ftyp");
    let mut source = Cursor::new(head).chain(source);
    if !is_mp4 {
        return Ok(Box::new(ReadOnlySource::new(source)));
    }
    let mut whole = Vec::new();
    source.by_ref().take(MP4_MAX + 1).read_to_end(&mut whole).map_err(cut)?;
    if whole.len() as u64 > MP4_MAX {
        return Err(Error::TooLarge);
    }
    Ok(Box::new(Cursor::new(whole)))
}

fn unreadable(fault: &Fault) -> Error {
    let is_short = matches!(fault, Fault::IoError(_));
    cut_or(fault, |reason| {
        Error::Format(if is_short { "it is too short".to_owned() } else { reason })
    })
}

/// Returns the error for a connection that broke, or else the error that `make` makes.
fn cut_or(fault: &Fault, make: impl FnOnce(String) -> Error) -> Error {
    if let Fault::IoError(error) = fault
        && error.kind() == io::ErrorKind::ConnectionAborted
    {
        return Error::Cut(error.to_string());
    }
    make(fault.to_string())
}

/// Converts one channel to the sample rate of Whisper models.
struct Resampler {
    inner: Async<f32>,
    rate: u32,
    pending: Vec<f32>,
    /// Numbers of input and output samples so far.
    taken: u64,
    made: u64,
    /// Number of samples of the filter's delay that are still to be dropped.
    delay: usize,
}

impl Resampler {
    fn of(rate: u32) -> Result<Self, Error> {
        let parameters = SincInterpolationParameters::new(FILTER, WindowFunction::BlackmanHarris2)
            .interpolation(SincInterpolationType::Linear);
        let ratio = f64::from(RATE) / f64::from(rate);
        let inner = Async::new_sinc(ratio, 1.0, &parameters, CHUNK, 1, FixedAsync::Input);
        let inner = inner.map_err(|_invalid| Error::Rate(rate))?;
        let delay = inner.output_delay();
        Ok(Self { inner, rate, pending: Vec::new(), taken: 0, made: 0, delay })
    }

    fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> Result<(), Error> {
        self.taken += samples.len() as u64;
        self.pending.extend_from_slice(samples);
        let mut at = 0;
        while self.pending.len() - at >= self.inner.input_frames_next() {
            let chunk = self.inner.input_frames_next();
            self.process(at, chunk, out)?;
            at += chunk;
        }
        self.pending.drain(..at);
        Ok(())
    }

    /// Appends the last samples.
    fn finish(mut self, out: &mut Vec<f32>) -> Result<(), Error> {
        let expected = self.taken * u64::from(RATE) / u64::from(self.rate);
        let mut left = self.pending.len();
        while self.made < expected {
            self.process(0, left, out)?;
            left = 0;
        }
        let excess = usize::try_from(self.made - expected).unwrap_or(0);
        out.truncate(out.len().saturating_sub(excess));
        Ok(())
    }

    /// Resamples a chunk of the pending samples; missing samples are silence.
    fn process(&mut self, at: usize, length: usize, out: &mut Vec<f32>) -> Result<(), Error> {
        let failed = |error: String| Error::Damaged(error);
        let chunk = self.pending.get(at..at + length).unwrap_or_default();
        let input = InterleavedSlice::new(chunk, 1, length);
        let input = input.map_err(|error| failed(error.to_string()))?;
        let partial = Indexing::new().partial_len(length);
        let made = self.inner.process(&input, Some(&partial));
        let made = made.map_err(|error| failed(error.to_string()))?.take_data();
        let dropped = self.delay.min(made.len());
        self.delay -= dropped;
        let made = made.get(dropped..).unwrap_or_default();
        self.made += made.len() as u64;
        // The filter overshoots at the edges of loud sounds.
        out.extend(made.iter().copied().map(clamped));
        Ok(())
    }
}

#[cfg(test)]
#[path = "audio_tests.rs"]
mod tests;
