//! The length of an audio file: exact for the formats whose head states it, else bounded and
//! estimated from the size of the file.

use std::time::Duration;

/// Number of bytes at the start of a file in which its head is searched.
pub(super) const HEAD: usize = 4096;
/// The fewest bytes per second of audio that is not silence: the lowest bit rate of MP3.
const BYTES_PER_SECOND_MIN: u64 = 1000;
/// The bytes per second of a compressed file whose length is unknown: 32 kbit/s, which is common
/// for speech.
const BYTES_PER_SECOND_LIKELY: u64 = 4000;
/// The highest sample rate that a head may state.
const SAMPLE_RATE_MAX: u64 = 768_000;

/// The length of an audio file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Length {
    /// The length if nothing else is known.
    pub likely: Duration,
    /// The maximum length.
    pub most: Duration,
}

impl Length {
    /// Returns the length of a file of `size` bytes that begins with `head`.
    pub(super) fn of(head: &[u8], size: u64) -> Self {
        match stated(head, size) {
            Some(exact) => Self { likely: exact, most: exact },
            None => Self {
                likely: Duration::from_millis(size.saturating_mul(1000) / BYTES_PER_SECOND_LIKELY),
                most: Duration::from_millis(size.saturating_mul(1000) / BYTES_PER_SECOND_MIN),
            },
        }
    }

    /// Returns the length that a server reports, within the maximum.
    pub(super) fn reported(self, seconds: Option<f64>) -> Duration {
        let seconds = seconds.filter(|seconds| *seconds >= 0.0);
        let reported = seconds.map(|seconds| {
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(self.most)
        });
        reported.unwrap_or(self.likely)
    }
}

/// Returns the length that the head of a WAV or FLAC file states.
fn stated(head: &[u8], size: u64) -> Option<Duration> {
    if head.starts_with(b"fLaC") {
        return flac(head);
    }
    let is_wave = head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WAVE");
    if is_wave { wave(head, size) } else { None }
}

/// The chunks of a WAV file (RIFF): the format gives the bytes per second, and everything from the
/// chunk `data` to the end of the file counts as samples.
fn wave(head: &[u8], size: u64) -> Option<Duration> {
    /// Samples as integers, as floating-point numbers, or with a longer format chunk.
    const UNCOMPRESSED: [u16; 3] = [1, 3, 0xfffe];
    let mut at = 12;
    let mut bytes_per_second = None;
    loop {
        let name = head.get(at..at + 4)?;
        let length = u64::from(u32_at(head, at + 4)?);
        let content = at + 8;
        if name == b"fmt " {
            let channels = u64::from(u16_at(head, content + 2)?);
            let rate = u64::from(u32_at(head, content + 4)?);
            let bytes = u64::from(u16_at(head, content + 14)?).div_ceil(8);
            let is_known = UNCOMPRESSED.contains(&u16_at(head, content)?);
            let is_plausible = (1..=SAMPLE_RATE_MAX).contains(&rate) && channels * bytes > 0;
            bytes_per_second = (is_known && is_plausible).then_some(rate * channels * bytes);
        }
        if name == b"data" {
            let samples = size.saturating_sub(content as u64);
            let milliseconds = samples.saturating_mul(1000).div_ceil(bytes_per_second?);
            return Some(Duration::from_millis(milliseconds));
        }
        let padded = length.saturating_add(length % 2);
        at = content.checked_add(usize::try_from(padded).ok()?)?;
    }
}

/// The first metadata block of a FLAC file (RFC 9639, section 8.2).
fn flac(head: &[u8]) -> Option<Duration> {
    let bits = u64::from_be_bytes(head.get(18..26)?.try_into().ok()?);
    let rate = bits >> 44;
    let samples = bits & ((1 << 36) - 1);
    let is_stated = rate > 0 && samples > 0;
    is_stated.then(|| Duration::from_millis((samples * 1000).div_ceil(rate)))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Returns the end of the last cue of subtitles (SubRip or WebVTT), in seconds.
pub(super) fn of_subtitles(text: &str) -> Option<f64> {
    let ends = text.lines().filter_map(|line| line.split_once("-->")).filter_map(|(_, end)| {
        let time = end.split_whitespace().next()?.replace(',', ".");
        let parts = time.split(':').map(str::parse::<f64>);
        parts.into_iter().try_fold(0.0, |sum, part| Some(sum * 60.0 + part.ok()?))
    });
    ends.fold(None, |last: Option<f64>, end| Some(last.unwrap_or(0.0).max(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wav(rate: u32, channels: u16, bits: u16, data: usize) -> Vec<u8> {
        let mut file = b"RIFF\0\0\0\0WAVELIST\x03\0\0\0abc\0fmt \x10\0\0\0".to_vec();
        file.extend(1_u16.to_le_bytes());
        file.extend(channels.to_le_bytes());
        file.extend(rate.to_le_bytes());
        file.extend(0_u32.to_le_bytes());
        file.extend(0_u16.to_le_bytes());
        file.extend(bits.to_le_bytes());
        file.extend(b"data\xff\xff\xff\xff");
        file.resize(file.len() + data, 0);
        file
    }

    fn length(file: &[u8]) -> (u128, u128) {
        let length = Length::of(&file[..file.len().min(HEAD)], file.len() as u64);
        (length.likely.as_millis(), length.most.as_millis())
    }

    #[test]
    fn length_is_stated_by_the_head_or_bounded_by_the_size() {
        assert_eq!(length(&wav(16_000, 1, 16, 48_000)), (1500, 1500));
        assert_eq!(length(&wav(8_000, 2, 8, 8_000)), (500, 500));
        let flac = [&b"fLaC\0\0\0\x22"[..], &[0; 10], &(44_100_u64 << 44 | 88_200).to_be_bytes()];
        assert_eq!(length(&flac.concat()), (2000, 2000));
        for other in [&b"ID3"[..], b"RIFF", b"RIFF\0\0\0\0WAVEdata", b"fLaC", b""] {
            let file = [other, &vec![0; 8000 - other.len()]].concat();
            assert_eq!(length(&file), (2000, 8000), "{other:?}");
        }
        // A head that states an implausible rate does not make the audio short.
        assert_eq!(length(&wav(u32::MAX, 1, 16, 4000 - 56)), (1000, 4000));
        assert_eq!(length(&wav(16_000, 0, 16, 4000 - 56)), (1000, 4000));
    }

    #[test]
    fn length_reported_by_a_server_is_within_the_bound() {
        let length = Length { likely: Duration::from_secs(2), most: Duration::from_secs(8) };
        for (reported, seconds) in [
            (None, 2),
            (Some(3.0), 3),
            (Some(1e300), 8),
            (Some(f64::INFINITY), 8),
            (Some(f64::NAN), 2),
            (Some(-1.0), 2),
            (Some(0.0), 0),
        ] {
            assert_eq!(length.reported(reported), Duration::from_secs(seconds), "{reported:?}");
        }
    }

    #[test]
    fn length_of_subtitles_is_the_end_of_the_last_cue() {
        for (text, seconds) in [
            ("1\n00:00:00,000 --> 00:01:02,500\nHi\n", Some(62.5)),
            (
                "WEBVTT\n\n00:01.000 --> 00:04.000 line:0\nHi\n\n00:04.000 --> 01:00:05.000\n",
                Some(3605.0),
            ),
            ("WEBVTT\n", None),
            ("a --> b", None),
        ] {
            assert_eq!(of_subtitles(text), seconds, "{text}");
        }
    }
}
