//! Tests of decoding: the decoded sound, and damaged or hostile files.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "samples and places in small files"
)]

use proptest::prelude::*;

use super::*;

const MP3: &[u8] = include_bytes!("../../../tests/audio/tone.mp3");
const FLAC: &[u8] = include_bytes!("../../../tests/audio/tone.flac");
const OGG: &[u8] = include_bytes!("../../../tests/audio/tone.ogg");
const M4A: &[u8] = include_bytes!("../../../tests/audio/tone.m4a");

/// Returns a WAV file with a tone of 440 Hz; `kind` is 1 for integers and 3 for floating-point
/// numbers.
fn wav(rate: u32, channels: u16, frames: u32, kind: u16) -> Vec<u8> {
    let width: u16 = if kind == 3 { 4 } else { 2 };
    let bytes = frames * u32::from(channels * width);
    let mut file = b"RIFF".to_vec();
    file.extend((36 + bytes).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0");
    file.extend(kind.to_le_bytes());
    file.extend(channels.to_le_bytes());
    file.extend(rate.to_le_bytes());
    file.extend((rate * u32::from(channels * width)).to_le_bytes());
    file.extend((channels * width).to_le_bytes());
    file.extend((width * 8).to_le_bytes());
    file.extend(b"data");
    file.extend(bytes.to_le_bytes());
    for frame in 0..frames {
        let time = f64::from(frame) / f64::from(rate);
        let sample = (time * 440.0 * std::f64::consts::TAU).sin() as f32 / 2.0;
        for _ in 0..channels {
            match kind {
                3 => file.extend(sample.to_le_bytes()),
                _ => file.extend(((sample * 32_767.0) as i16).to_le_bytes()),
            }
        }
    }
    file
}

/// Decodes a file, in parts.
fn decoded(file: &[u8]) -> Result<Vec<f32>, Error> {
    let mut audio = Audio::open(Cursor::new(file.to_vec()))?;
    let mut samples = Vec::new();
    let mut most = 0;
    loop {
        most += 4000;
        if audio.read(&mut samples, most)? {
            return Ok(samples);
        }
    }
}

/// Returns the frequency of a tone: half of its zero crossings per second.
fn frequency(samples: &[f32]) -> f64 {
    let crossings = samples.windows(2).filter(|pair| (pair[0] < 0.0) != (pair[1] < 0.0)).count();
    crossings as f64 / 2.0 / (samples.len() as f64 / f64::from(RATE))
}

#[test]
fn audio_of_every_rate_has_16000_samples_per_second() {
    for (rate, channels, kind) in [
        (16_000, 1, 1),
        (16_000, 2, 3),
        (44_100, 2, 1),
        (48_000, 6, 1),
        (8000, 1, 3),
        (22_050, 1, 1),
        (192_000, 1, 1),
        (11_025, 2, 3),
    ] {
        let samples = decoded(&wav(rate, channels, rate * 2, kind)).unwrap();
        assert!(samples.len().abs_diff(32_000) <= 1, "{rate}: {}", samples.len());
        assert!((frequency(&samples) - 440.0).abs() < 1.0, "{rate}: {}", frequency(&samples));
        let loudest = samples.iter().fold(0.0_f32, |loudest, sample| loudest.max(sample.abs()));
        assert!((0.45..0.55).contains(&loudest), "{rate}: {loudest}");
        // The beginning is not delayed.
        let start = samples.iter().position(|sample| sample.abs() > 0.25).unwrap();
        assert!(start < 32, "{rate}: {start}");
    }
}

#[test]
fn audio_in_every_format_is_decoded() {
    for (name, file) in [("mp3", MP3), ("flac", FLAC), ("ogg", OGG), ("m4a", M4A)] {
        let samples = decoded(file).unwrap();
        // Lossy formats may pad the end.
        assert!(samples.len().abs_diff(16_000) < 1600, "{name}: {}", samples.len());
        let middle = &samples[4000..12_000];
        assert!((frequency(middle) - 440.0).abs() < 4.0, "{name}: {}", frequency(middle));
    }
}

#[test]
fn audio_that_cannot_be_decoded_is_rejected_with_a_reason() {
    let text = vec![b'x'; 100_000];
    for (file, said) in [
        (&b""[..], "is not audio"),
        (b"RIFF", "is not audio"),
        (&text, "is not audio"),
        (&wav(16_000, 1, 0, 1), "no sound could be decoded"),
        (&wav(999, 1, 1000, 1), "999 samples per second"),
        (&OGG[..200], "is not audio"),
    ] {
        let reason = decoded(file).unwrap_err().to_string();
        assert!(reason.contains(said), "{reason}, not {said}");
    }
}

#[test]
fn audio_that_is_cut_off_is_decoded_up_to_there() {
    let file = wav(16_000, 1, 16_000, 1);
    assert_eq!(decoded(&file[..44 + 16_000]).unwrap().len(), 8000);
}

#[test]
fn audio_that_never_ends_is_read_in_parts() {
    /// A WAV file that claims to be endless.
    struct Endless {
        head: Cursor<Vec<u8>>,
    }
    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let read = self.head.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            buffer.fill(0);
            Ok(buffer.len())
        }
    }
    let mut head = wav(16_000, 1, 0, 1);
    head[4..8].fill(0xff);
    head[40..].fill(0xff);
    let mut audio = Audio::open(Endless { head: Cursor::new(head) }).unwrap();
    let mut samples = Vec::new();
    for _ in 0..100 {
        samples.clear();
        assert!(!audio.read(&mut samples, 16_000).unwrap());
        assert!(samples.len() < 32_000);
    }
}

#[test]
fn audio_with_impossible_samples_is_made_harmless() {
    let mut file = wav(16_000, 1, 1000, 3);
    for (index, sample) in [f32::NAN, f32::INFINITY, 1e30, -1e30].into_iter().enumerate() {
        let at = 44 + index * 4;
        file[at..at + 4].copy_from_slice(&sample.to_le_bytes());
    }
    let samples = decoded(&file).unwrap();
    assert_eq!(samples[..4], [0.0, 0.0, 1.0, -1.0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn audio_that_is_damaged_is_decoded_or_rejected(
        kind in 0..5_usize,
        at in 0.0..1.0_f64,
        bytes in prop::collection::vec(any::<u8>(), 1..16),
        end in 0.0..2.0_f64,
    ) {
        let mut file = match kind {
            0 => wav(44_100, 2, 4000, 1),
            1 => MP3.to_vec(),
            2 => FLAC.to_vec(),
            3 => OGG.to_vec(),
            _ => M4A.to_vec(),
        };
        // Damages headers as often as the rest of the file.
        let most = if at < 0.5 { 200 } else { file.len() - bytes.len() };
        let at = (at * 2.0).fract() * most as f64;
        let at = (at as usize).min(file.len() - bytes.len());
        file[at..at + bytes.len()].copy_from_slice(&bytes);
        file.truncate((file.len() as f64 * end.min(1.0)) as usize);
        if let Ok(samples) = decoded(&file) {
            prop_assert!(samples.len() < 100 * RATE as usize);
            prop_assert!(samples.iter().all(|sample| sample.abs() <= 1.5));
        }
    }
}
