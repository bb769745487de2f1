//! Whisper models with weights that always produce the same transcript, whatever they hear, and
//! audio files.
//!
//! Each token leads to the next one, as in a list: the decoder's hidden state is the code of the
//! last token, and the only decoder layer with an effect adds the code of the next token.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// The transcript of every ten seconds of audio.
pub(crate) const TEXT: &str = " Hello world.";
/// The text of a translation.
pub(crate) const TRANSLATION: &str = " Translated";
/// Seconds of audio for which the model writes its text once.
pub(crate) const STRETCH: usize = 10;

/// The size of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub state: usize,
    pub heads: usize,
    pub layers: usize,
    /// 1500 in all real models; fewer make the model fast.
    pub audio_context: usize,
    /// 51,864 for only English, 51,865 for all languages.
    pub vocabulary: usize,
}

/// About seven megabytes.
pub(crate) const SMALL: Shape =
    Shape { state: 64, heads: 1, layers: 1, audio_context: 100, vocabulary: 51_865 };
/// The same with more work for each second of audio.
pub(crate) const SLOW: Shape = Shape { audio_context: 1500, ..SMALL };

const MELS: usize = 80;
const FREQUENCIES: usize = 201;
const TEXT_CONTEXT: usize = 448;
/// Bytes are the first tokens.
const HELLO: usize = 256;
const WORLD: usize = 257;
const TRANSLATED: usize = 258;

const F32: i32 = 0;
const F16: i32 = 1;
/// 1 as a 16-bit floating-point number.
const ONE: u16 = 0x3c00;

/// Returns the tokens that follow each other; `None` ends the list.
fn followers(vocabulary: usize) -> Vec<(usize, Option<usize>)> {
    // Models for all languages have one more token before the special ones.
    let shift = usize::from(vocabulary > 51_864);
    let end_of_text = 50_256 + shift;
    let start = end_of_text + 1;
    let english = start + 1;
    let translate = 50_357 + shift;
    let transcribe = translate + 1;
    let zero = 50_363 + shift;
    let later = zero + 2;
    // Two times follow each other where a part of the audio ends: else, the rest is skipped.
    let next = zero + STRETCH * 50;
    let end = next - 1;
    let begin = if shift == 1 { english } else { zero };
    vec![
        (start, Some(begin)),
        (english, None),
        (transcribe, Some(zero)),
        (translate, Some(later)),
        (zero, Some(HELLO)),
        (later, Some(TRANSLATED)),
        (HELLO, Some(WORLD)),
        (WORLD, Some(end)),
        (TRANSLATED, Some(end)),
        (end, Some(next)),
        (next, Some(end_of_text)),
        (end_of_text, None),
    ]
}

/// Writes a model.
pub(crate) fn write(path: &Path, shape: &Shape) {
    let mut out = BufWriter::new(File::create(path).unwrap());
    let Shape { state, heads, layers, audio_context, vocabulary } = *shape;
    let sizes = [vocabulary, audio_context, state, heads, layers];
    let more = [TEXT_CONTEXT, state, heads, layers, MELS, 1, MELS, FREQUENCIES];
    numbers(&mut out, &[0x6767_6d6c]);
    for size in sizes.into_iter().chain(more) {
        numbers(&mut out, &[whole(size)]);
    }
    out.write_all(&vec![0; MELS * FREQUENCIES * 4]).unwrap();
    let words = [&TEXT[..6], &TEXT[6..], TRANSLATION];
    numbers(&mut out, &[256 + whole(words.len())]);
    for byte in 0..=u8::MAX {
        numbers(&mut out, &[1]);
        out.write_all(&[byte]).unwrap();
    }
    for word in words {
        numbers(&mut out, &[whole(word.len())]);
        out.write_all(word.as_bytes()).unwrap();
    }
    encoder(&mut out, shape);
    decoder(&mut out, shape);
    out.flush().unwrap();
}

fn whole(number: usize) -> i32 {
    i32::try_from(number).unwrap()
}

fn numbers(out: &mut impl Write, numbers: &[i32]) {
    for number in numbers {
        out.write_all(&number.to_le_bytes()).unwrap();
    }
}

/// Writes the head of a tensor.
fn head(out: &mut impl Write, name: &str, kind: i32, sizes: &[usize]) {
    numbers(out, &[whole(sizes.len()), whole(name.len()), kind]);
    for size in sizes {
        numbers(out, &[whole(*size)]);
    }
    out.write_all(name.as_bytes()).unwrap();
}

fn zeros(out: &mut impl Write, name: &str, kind: i32, sizes: &[usize]) {
    head(out, name, kind, sizes);
    let width = if kind == F32 { 4 } else { 2 };
    out.write_all(&vec![0; sizes.iter().product::<usize>() * width]).unwrap();
}

/// Writes a vector of one number.
fn same(out: &mut impl Write, name: &str, size: usize, number: f32) {
    head(out, name, F32, &[size]);
    for _ in 0..size {
        out.write_all(&number.to_le_bytes()).unwrap();
    }
}

/// Writes a matrix that is zero except for ones at the given rows and columns.
fn ones(out: &mut impl Write, name: &str, [columns, rows]: [usize; 2], at: &[(usize, usize)]) {
    head(out, name, F16, &[columns, rows]);
    let mut cells = vec![0_u16; columns * rows];
    for (row, column) in at {
        cells[row * columns + column] = ONE;
    }
    out.write_all(&cells.iter().flat_map(|cell| cell.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
}

/// Writes an attention layer that does nothing.
fn attention(out: &mut impl Write, name: &str, state: usize) {
    same(out, &format!("{name}_ln.weight"), state, 1.0);
    same(out, &format!("{name}_ln.bias"), state, 0.0);
    for part in ["query", "key", "value", "out"] {
        zeros(out, &format!("{name}.{part}.weight"), F16, &[state, state]);
        if part != "key" {
            same(out, &format!("{name}.{part}.bias"), state, 0.0);
        }
    }
}

/// Writes a layer between attention layers; `at` are the ones of its second matrix.
fn forward(out: &mut impl Write, name: &str, state: usize, at: &[(usize, usize)]) {
    same(out, &format!("{name}_ln.weight"), state, 1.0);
    same(out, &format!("{name}_ln.bias"), state, 0.0);
    let diagonal: Vec<(usize, usize)> = at.iter().map(|(_, from)| (*from, *from)).collect();
    ones(out, &format!("{name}.0.weight"), [state, 4 * state], &diagonal);
    same(out, &format!("{name}.0.bias"), 4 * state, 0.0);
    ones(out, &format!("{name}.2.weight"), [4 * state, state], at);
    same(out, &format!("{name}.2.bias"), state, 0.0);
}

fn encoder(out: &mut impl Write, &Shape { state, layers, audio_context, .. }: &Shape) {
    zeros(out, "encoder.positional_embedding", F32, &[state, audio_context]);
    zeros(out, "encoder.conv1.weight", F16, &[3, MELS, state]);
    zeros(out, "encoder.conv1.bias", F32, &[1, state]);
    zeros(out, "encoder.conv2.weight", F16, &[3, state, state]);
    zeros(out, "encoder.conv2.bias", F32, &[1, state]);
    same(out, "encoder.ln_post.weight", state, 1.0);
    same(out, "encoder.ln_post.bias", state, 0.0);
    for layer in 0..layers {
        attention(out, &format!("encoder.blocks.{layer}.attn"), state);
        forward(out, &format!("encoder.blocks.{layer}.mlp"), state, &[]);
    }
}

fn decoder(out: &mut impl Write, &Shape { state, layers, vocabulary, .. }: &Shape) {
    let followers = followers(vocabulary);
    let code = |token: usize| followers.iter().position(|(one, _)| *one == token).unwrap();
    zeros(out, "decoder.positional_embedding", F32, &[state, TEXT_CONTEXT]);
    let codes: Vec<(usize, usize)> = followers.iter().map(|(one, _)| (*one, code(*one))).collect();
    ones(out, "decoder.token_embedding.weight", [state, vocabulary], &codes);
    // Makes the model certain.
    same(out, "decoder.ln.weight", state, 5.0);
    same(out, "decoder.ln.bias", state, 0.0);
    let next = followers.iter().filter_map(|(one, next)| Some((code((*next)?), code(*one))));
    let next: Vec<(usize, usize)> = next.collect();
    for layer in 0..layers {
        attention(out, &format!("decoder.blocks.{layer}.attn"), state);
        attention(out, &format!("decoder.blocks.{layer}.cross_attn"), state);
        let is_last = layer + 1 == layers;
        forward(
            out,
            &format!("decoder.blocks.{layer}.mlp"),
            state,
            if is_last { &next } else { &[] },
        );
    }
}

/// Returns a WAV file with a tone.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "all numbers are small"
)]
pub(crate) fn wav(rate: u32, channels: u16, seconds: f64) -> Vec<u8> {
    let frames = (f64::from(rate) * seconds) as u32;
    let bytes = frames * u32::from(channels) * 2;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + bytes).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0");
    file.extend(channels.to_le_bytes());
    file.extend(rate.to_le_bytes());
    file.extend((rate * u32::from(channels) * 2).to_le_bytes());
    file.extend((channels * 2).to_le_bytes());
    file.extend(b"\x10\0data");
    file.extend(bytes.to_le_bytes());
    for frame in 0..frames {
        let time = f64::from(frame) / f64::from(rate);
        let sample = ((time * 440.0 * std::f64::consts::TAU).sin() * 8000.0) as i16;
        for _ in 0..channels {
            file.extend(sample.to_le_bytes());
        }
    }
    file
}
