//! Converts WAV files with PCM samples to tensors.

use std::f32::consts::PI;

use tract_onnx::prelude::Tensor;

use crate::onnx::element::bytes;
use crate::onnx::preparation::Audio;

/// Maximum number of samples of a channel, before and after resampling: more than ten minutes at
/// 48 kHz.
const SAMPLES_MAX: usize = 32 * 1024 * 1024;
const CHANNELS_MAX: u16 = 8;
const RATES: std::ops::RangeInclusive<u32> = 1_000..=192_000;
/// Number of zero crossings on each side of the resampling filter.
const CROSSINGS: f32 = 16.0;
const PCM: u16 = 1;
const FLOAT: u16 = 3;
/// The format code of files whose extension contains the actual format code.
const EXTENSIBLE: u16 = 0xfffe;

/// The format of the samples.
#[derive(Debug, Clone, Copy)]
struct Format {
    code: u16,
    channels: u16,
    rate: u32,
    bits: u16,
}

/// Decodes a WAV file and converts it to a tensor of mono samples.
///
/// # Errors
/// The fault in the file, as a phrase.
pub(super) fn tensor(audio: &Audio, file: &[u8]) -> Result<Tensor, String> {
    let (format, data) = chunks(file)?;
    let samples = mono(format, data)?;
    let samples = resampled(&samples, format.rate, audio.sample_rate)?;
    let mut shape = vec![1; audio.rank.max(1)];
    if let Some(last) = shape.last_mut() {
        *last = samples.len();
    }
    Tensor::from_shape(&shape, &samples).map_err(|error| error.to_string())
}

/// Returns the format and the samples of a WAV file.
fn chunks(file: &[u8]) -> Result<(Format, &[u8]), String> {
    let mut rest = file.strip_prefix(b"RIFF").and_then(|rest| rest.get(4..));
    rest = rest.and_then(|rest| rest.strip_prefix(b"WAVE"));
    let mut rest = rest.ok_or("not a WAV file")?;
    let mut format = None;
    while let (Some(name), Some(length)) = (bytes::<4>(&mut rest), bytes(&mut rest)) {
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        // Programs that write to a pipe do not know the length.
        let (content, after) = rest.split_at_checked(length).unwrap_or((rest, &[]));
        match &name {
            b"fmt " => format = Some(format_of(content).ok_or("its format is cut off")?),
            b"data" => return Ok((format.ok_or("its format is missing")?, content)),
            _ => {}
        }
        // Chunks begin at even positions.
        rest = after.get(length % 2..).unwrap_or_default();
    }
    Err("it has no samples".to_owned())
}

fn format_of(mut content: &[u8]) -> Option<Format> {
    let code = u16::from_le_bytes(bytes(&mut content)?);
    let channels = u16::from_le_bytes(bytes(&mut content)?);
    let rate = u32::from_le_bytes(bytes(&mut content)?);
    let _bytes_per_second: [u8; 4] = bytes(&mut content)?;
    let _bytes_per_frame: [u8; 2] = bytes(&mut content)?;
    let bits = u16::from_le_bytes(bytes(&mut content)?);
    let code = match code {
        EXTENSIBLE => {
            let mut subformat = content.get(8..)?;
            u16::from_le_bytes(bytes(&mut subformat)?)
        }
        code => code,
    };
    Some(Format { code, channels, rate, bits })
}

/// Returns the mean of all channels for each moment, from -1 to 1.
fn mono(format: Format, data: &[u8]) -> Result<Vec<f32>, String> {
    let Format { code, channels, rate, bits } = format;
    if !(1..=CHANNELS_MAX).contains(&channels) {
        return Err(format!("it has {channels} channels; 1 to {CHANNELS_MAX} are supported"));
    }
    if !RATES.contains(&rate) {
        return Err(format!("it has {rate} samples per second"));
    }
    let read: fn(&[u8]) -> Option<f32> = match (code, bits) {
        (PCM, 8) => {
            |mut sample| Some((f32::from(u8::from_le_bytes(bytes(&mut sample)?)) - 128.0) / 128.0)
        }
        (PCM, 16) => {
            |mut sample| Some(f32::from(i16::from_le_bytes(bytes(&mut sample)?)) / 32768.0)
        }
        (PCM, 24) => |mut sample| {
            let [a, b, c] = bytes(&mut sample)?;
            Some(i32::from_le_bytes([0, a, b, c]) as f32 / 2_147_483_648.0)
        },
        (PCM, 32) => {
            |mut sample| Some(i32::from_le_bytes(bytes(&mut sample)?) as f32 / 2_147_483_648.0)
        }
        (FLOAT, 32) => |mut sample| Some(f32::from_le_bytes(bytes(&mut sample)?)),
        _ => {
            return Err(format!(
                "its samples have the format {code} with {bits} bits; PCM with 8, 16, 24 or 32 bits \
                 and floating-point numbers with 32 bits are supported"
            ));
        }
    };
    let width = usize::from(bits / 8);
    let frame = width * usize::from(channels);
    if data.len() / frame > SAMPLES_MAX {
        return Err(format!("it has more than {SAMPLES_MAX} samples"));
    }
    let mean = |frame: &[u8]| {
        let sum: f32 = frame.chunks_exact(width).filter_map(read).sum();
        sum / f32::from(channels)
    };
    Ok(data.chunks_exact(frame).map(mean).collect())
}

/// Resamples with a windowed sinc filter that removes the frequencies that the new rate cannot
/// represent.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positions are within the bounds of the samples"
)]
fn resampled(samples: &[f32], from: u32, to: u32) -> Result<Vec<f32>, String> {
    if from == to {
        return Ok(samples.to_vec());
    }
    let step = f64::from(from) / f64::from(to);
    let count = (samples.len() as f64 / step).round() as usize;
    if count > SAMPLES_MAX {
        return Err(format!("it has more than {SAMPLES_MAX} samples at {to} Hz"));
    }
    // The cut-off frequency, relative to that of the samples.
    let cutoff = (1.0 / step).min(1.0) as f32;
    let reach = (CROSSINGS / cutoff).ceil() as usize;
    let at = |index: usize| {
        let center = index as f64 * step;
        let first = (center as usize + 1).saturating_sub(reach);
        let near = samples.iter().enumerate().skip(first).take(2 * reach);
        let weighed = near.map(|(position, sample)| {
            let distance = (position as f64 - center) as f32 * cutoff;
            if distance.abs() >= CROSSINGS {
                return 0.0;
            }
            let window = 0.5 + 0.5 * (PI * distance / CROSSINGS).cos();
            let sinc = if distance == 0.0 { 1.0 } else { (PI * distance).sin() / (PI * distance) };
            sample * sinc * window
        });
        cutoff * weighed.sum::<f32>()
    };
    Ok((0..count).map(at).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a WAV file.
    fn wav(code: u16, channels: u16, rate: u32, bits: u16, data: &[u8]) -> Vec<u8> {
        let mut file = b"RIFF\0\0\0\0WAVELIST\x01\0\0\0x\0fmt \x10\0\0\0".to_vec();
        file.extend(code.to_le_bytes());
        file.extend(channels.to_le_bytes());
        file.extend(rate.to_le_bytes());
        file.extend([0; 6]);
        file.extend(bits.to_le_bytes());
        file.extend(b"data");
        file.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
        file.extend(data);
        file
    }

    fn samples(file: &[u8], rate: u32) -> Result<Vec<f32>, String> {
        let tensor = tensor(&Audio { sample_rate: rate, rank: 2 }, file)?;
        let view = tensor.try_as_plain_ram().unwrap();
        assert_eq!(tensor.shape(), [1, view.len()]);
        Ok(view.as_slice::<f32>().unwrap().to_vec())
    }

    #[test]
    fn onnx_audio_reads_every_width_and_mixes_channels() {
        for (code, bits, data) in [
            (PCM, 8, vec![0, 192]),
            (PCM, 16, vec![0, 128, 0, 64]),
            (PCM, 24, vec![0, 0, 128, 0, 0, 64]),
            (PCM, 32, vec![0, 0, 0, 128, 0, 0, 0, 64]),
            (FLOAT, 32, [(-1.0_f32).to_le_bytes(), 0.5_f32.to_le_bytes()].concat()),
        ] {
            let file = wav(code, 1, 16_000, bits, &data);
            assert_eq!(samples(&file, 16_000).unwrap(), [-1.0, 0.5], "{code} {bits}");
            let stereo = wav(code, 2, 16_000, bits, &data);
            assert_eq!(samples(&stereo, 16_000).unwrap(), [-0.25], "{code} {bits}");
        }
    }

    #[test]
    fn onnx_audio_is_resampled() {
        let tone = |rate: f32, count: u16| -> Vec<f32> {
            (0..count).map(|at| (2.0 * PI * 440.0 * f32::from(at) / rate).sin()).collect()
        };
        let bytes: Vec<u8> = tone(48_000.0, 9600).into_iter().flat_map(f32::to_le_bytes).collect();
        let got = samples(&wav(FLOAT, 1, 48_000, 32, &bytes), 16_000).unwrap();
        assert_eq!(got.len(), 3200);
        let wanted = tone(16_000.0, 3200);
        let differences = got.iter().zip(&wanted).map(|(a, b)| (a - b).abs());
        let inner = differences.skip(100).take(3000).fold(0.0, f32::max);
        assert!(inner < 0.01, "{inner}");
    }

    #[test]
    fn onnx_audio_refuses_other_and_broken_files() {
        for (file, says) in [
            (b"no file".to_vec(), "not a WAV file"),
            (b"RIFF\0\0\0\0WAVE".to_vec(), "no samples"),
            (b"RIFF\0\0\0\0WAVEdata\0\0\0\0".to_vec(), "its format is missing"),
            (b"RIFF\0\0\0\0WAVEfmt \x02\0\0\0\x01\0".to_vec(), "its format is cut off"),
            (wav(2, 1, 16_000, 4, &[0]), "the format 2 with 4 bits"),
            (wav(PCM, 9, 16_000, 16, &[0, 0]), "9 channels"),
            (wav(PCM, 0, 16_000, 16, &[0, 0]), "0 channels"),
            (wav(PCM, 1, 0, 16, &[0, 0]), "0 samples per second"),
        ] {
            let error = samples(&file, 16_000).unwrap_err();
            assert!(error.contains(says), "{error}, not {says}");
        }
        // A truncated file yields the samples before the cut.
        let whole = wav(PCM, 1, 16_000, 16, &[0, 64, 0, 64]);
        assert_eq!(samples(&whole[..whole.len() - 1], 16_000).unwrap(), [0.5]);
    }
}
