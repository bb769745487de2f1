//! Language models with random weights, as GGUF files: small ones for tests, large ones for
//! benchmarks. The models generate gibberish, deterministic for each seed, from a vocabulary of
//! single characters.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// The size of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub embedding: u64,
    pub layers: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub feed_forward: u64,
    /// The context length used in training, as stated in the header.
    pub context: u32,
    /// The data type of the matrices.
    pub weights: Weights,
    /// Text whose words are also tokens, besides the single characters.
    pub words: &'static str,
}

/// The data type of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weights {
    F32,
    Q8_0,
}

/// About half a megabyte.
pub(crate) const SMALL: Shape = Shape {
    embedding: 64,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    feed_forward: 128,
    context: 2048,
    weights: Weights::F32,
    words: "",
};

/// A chat template that outputs roles and tools.
pub(crate) const TEMPLATE: &str = "{{ bos_token }}{% if tools %}{{ tools | tojson }}\n{% endif %}\
    {% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
    {% if add_generation_prompt %}assistant: {% endif %}";

const ALIGNMENT: u64 = 32;
/// Byte tokens start after `<unk>`, `<s>` and `</s>`.
const FIRST_BYTE: usize = 3;
/// One token per byte value.
const BYTES: usize = 256;

/// A header entry that replaces a default entry.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Entry<'e> {
    Text(&'e str),
    Whole(u32),
    Number(f32),
    Texts(&'e [&'e str]),
}

/// Writes a model.
pub(crate) fn write(path: &Path, shape: &Shape, name: &str, seed: u64) {
    write_with(path, shape, name, seed, &[]);
}

/// Writes a model with other entries in its header.
pub(crate) fn write_with(
    path: &Path,
    shape: &Shape,
    name: &str,
    seed: u64,
    entries: &[(&'static str, Entry<'_>)],
) {
    let tokens = tokens(shape.words);
    let tensors = tensors(shape, tokens.len() as u64);
    write_file(path, metadata(shape, name, &tokens, entries), &tensors, seed);
}

/// Writes a small model that rates documents by their relevance to a query.
pub(crate) fn write_reranker(path: &Path, seed: u64) {
    let shape = &SMALL;
    let whole = |size: u64| Entry::Whole(u32::try_from(size).unwrap());
    let entries = [
        ("general.architecture", Entry::Text("qwen3")),
        ("qwen3.context_length", Entry::Whole(shape.context)),
        ("qwen3.embedding_length", whole(shape.embedding)),
        ("qwen3.block_count", whole(shape.layers)),
        ("qwen3.feed_forward_length", whole(shape.feed_forward)),
        ("qwen3.attention.head_count", whole(shape.heads)),
        ("qwen3.attention.head_count_kv", whole(shape.kv_heads)),
        ("qwen3.attention.layer_norm_rms_epsilon", Entry::Number(1e-5)),
        ("qwen3.pooling_type", Entry::Whole(4)),
        ("qwen3.classifier.output_labels", Entry::Texts(&["yes", "no"])),
        ("tokenizer.chat_template.rerank", Entry::Text("Query: {query}\nDocument: {document}\n")),
    ];
    let tokens = tokens(shape.words);
    let mut tensors = tensors(shape, tokens.len() as u64);
    for layer in 0..shape.layers {
        for part in ["attn_q_norm", "attn_k_norm"] {
            tensors.push(Tensor {
                name: format!("blk.{layer}.{part}.weight"),
                dimensions: vec![shape.embedding / shape.heads],
                weights: Weights::F32,
                scale: None,
                zeros: 0..0,
            });
        }
    }
    tensors.push(Tensor::matrix("cls.output.weight".to_owned(), [shape.embedding, 2], 0.1));
    write_file(path, metadata(shape, "Rater", &tokens, &entries), &tensors, seed);
}

/// Writes a LoRA adapter for models of this shape.
pub(crate) fn write_adapter(path: &Path, shape: &Shape, seed: u64) {
    const RANK: u64 = 4;
    let mut meta = Metadata::default();
    meta.text("general.architecture", "llama");
    meta.text("general.type", "adapter");
    meta.text("adapter.type", "lora");
    meta.number("adapter.lora.alpha", 4.0);
    let name = |part: &str| format!("blk.0.attn_q.weight.lora_{part}");
    let tensors = [
        Tensor::matrix(name("a"), [shape.embedding, RANK], 1.0),
        Tensor::matrix(name("b"), [RANK, shape.embedding], 1.0),
    ];
    write_file(path, meta, &tensors, seed);
}

fn write_file(path: &Path, meta: Metadata, tensors: &[Tensor], seed: u64) {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).unwrap());
    let header = header(meta, tensors);
    file.write_all(&header).unwrap();
    pad(&mut file, header.len() as u64);
    let mut noise = Noise(seed | 1);
    for tensor in tensors {
        let bytes = tensor.write(&mut file, &mut noise);
        pad(&mut file, bytes);
    }
    file.flush().unwrap();
}

struct Tensor {
    name: String,
    dimensions: Vec<u64>,
    weights: Weights,
    /// The range of the matrix's values; `None` if all are one.
    scale: Option<f32>,
    /// Rows that contain only zeros.
    zeros: std::ops::Range<usize>,
}

impl Tensor {
    fn matrix(name: String, dimensions: [u64; 2], scale: f32) -> Self {
        let dimensions = dimensions.to_vec();
        Self { name, dimensions, weights: Weights::F32, scale: Some(scale), zeros: 0..0 }
    }

    fn elements(&self) -> u64 {
        self.dimensions.iter().product()
    }

    fn bytes(&self) -> u64 {
        match self.weights {
            Weights::F32 => self.elements() * 4,
            Weights::Q8_0 => self.elements() / 32 * 34,
        }
    }

    fn write(&self, file: &mut impl Write, noise: &mut Noise) -> u64 {
        let row = self.dimensions[0];
        for number in 0..self.elements() / row {
            let is_zero = self.zeros.contains(&usize::try_from(number).unwrap());
            self.write_row(file, noise, row, is_zero);
        }
        self.bytes()
    }

    fn write_row(&self, file: &mut impl Write, noise: &mut Noise, row: u64, is_zero: bool) {
        let scale = if is_zero { Some(0.0) } else { self.scale };
        match (self.weights, scale) {
            (Weights::F32, None) => (0..row).for_each(|_| put(file, &1.0_f32.to_le_bytes())),
            (Weights::F32, Some(scale)) => {
                (0..row).for_each(|_| put(file, &(noise.number() * scale).to_le_bytes()));
            }
            (Weights::Q8_0, scale) => {
                // A block: a 16-bit scale, then 32 8-bit numbers.
                let scale = half(scale.unwrap_or(1.0) / 127.0);
                for _ in 0..row / 32 {
                    put(file, &scale.to_le_bytes());
                    (0..4).for_each(|_| put(file, &noise.next().to_le_bytes()));
                }
            }
        }
    }
}

fn tensors(shape: &Shape, vocabulary: u64) -> Vec<Tensor> {
    let Shape { embedding, layers, heads, kv_heads, feed_forward, weights, .. } = *shape;
    let matrix = |name: String, from: u64, to: u64, scale: f32| Tensor {
        name,
        dimensions: vec![from, to],
        weights,
        scale: Some(scale),
        zeros: 0..0,
    };
    let norm = |name: String| Tensor {
        name,
        dimensions: vec![embedding],
        weights: Weights::F32,
        scale: None,
        zeros: 0..0,
    };
    // Scale the weights so that products of random numbers neither vanish nor saturate.
    let even = |from: u64| (3.0 / from as f32).sqrt();
    let kv = embedding / heads * kv_heads;
    let mut output = matrix("output.weight".into(), embedding, vocabulary, 4.0 * even(embedding));
    // Zero rows make byte tokens rare, since they are not valid text.
    output.zeros = FIRST_BYTE..FIRST_BYTE + BYTES;
    let mut all = vec![
        matrix("token_embd.weight".into(), embedding, vocabulary, 1.0),
        norm("output_norm.weight".into()),
        output,
    ];
    for layer in 0..layers {
        let named = |part: &str| format!("blk.{layer}.{part}.weight");
        all.extend([
            norm(named("attn_norm")),
            matrix(named("attn_q"), embedding, embedding, even(embedding)),
            matrix(named("attn_k"), embedding, kv, even(embedding)),
            matrix(named("attn_v"), embedding, kv, even(embedding)),
            matrix(named("attn_output"), embedding, embedding, even(embedding)),
            norm(named("ffn_norm")),
            matrix(named("ffn_gate"), embedding, feed_forward, even(embedding)),
            matrix(named("ffn_up"), embedding, feed_forward, even(embedding)),
            matrix(named("ffn_down"), feed_forward, embedding, even(feed_forward)),
        ]);
    }
    all
}

/// Returns the texts of all tokens, and their types.
fn tokens(words: &str) -> Vec<(String, i32)> {
    const UNKNOWN: i32 = 2;
    const CONTROL: i32 = 3;
    const NORMAL: i32 = 1;
    const BYTE: i32 = 6;
    let mut all: Vec<(String, i32)> =
        vec![("<unk>".into(), UNKNOWN), ("<s>".into(), CONTROL), ("</s>".into(), CONTROL)];
    all.extend((0..BYTES).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    // How vocabularies of this kind represent a space.
    all.push(("\u{2581}".into(), NORMAL));
    all.extend(('!'..='~').map(|letter| (letter.to_string(), NORMAL)));
    all.extend(["é", "ß", "🌙", "月"].map(|letter| (letter.into(), NORMAL)));
    // The tokenizer merges a word from the left, so all of its prefixes are tokens.
    for word in words.split_whitespace().flat_map(|word| [format!("\u{2581}{word}"), word.into()]) {
        for (end, _) in word.char_indices().skip(2).chain([(word.len(), ' ')]) {
            let beginning = &word[..end];
            if all.iter().all(|(token, _)| token != beginning) {
                all.push((beginning.to_owned(), NORMAL));
            }
        }
    }
    all
}

fn metadata(
    shape: &Shape,
    name: &str,
    tokens: &[(String, i32)],
    entries: &[(&'static str, Entry<'_>)],
) -> Metadata {
    let replaced = entries.iter().map(|(key, _)| *key).collect();
    let mut meta = Metadata { replaced, ..Metadata::default() };
    meta.text("general.architecture", "llama");
    meta.text("general.name", name);
    meta.whole("llama.context_length", shape.context);
    meta.whole("llama.embedding_length", shape.embedding);
    meta.whole("llama.block_count", shape.layers);
    meta.whole("llama.feed_forward_length", shape.feed_forward);
    meta.whole("llama.attention.head_count", shape.heads);
    meta.whole("llama.attention.head_count_kv", shape.kv_heads);
    meta.number("llama.attention.layer_norm_rms_epsilon", 1e-5);
    meta.whole("llama.rope.dimension_count", shape.embedding / shape.heads);
    meta.text("tokenizer.ggml.model", "llama");
    let texts: Vec<&str> = tokens.iter().map(|(text, _)| text.as_str()).collect();
    meta.texts("tokenizer.ggml.tokens", &texts);
    meta.list("tokenizer.ggml.scores", 6, tokens.iter().map(|_| 0.0_f32.to_le_bytes()));
    let types = tokens.iter().map(|(_, kind)| kind.to_le_bytes());
    meta.list("tokenizer.ggml.token_type", 5, types);
    meta.whole("tokenizer.ggml.unknown_token_id", 0);
    meta.whole("tokenizer.ggml.bos_token_id", 1);
    meta.whole("tokenizer.ggml.eos_token_id", 2);
    meta.text("tokenizer.chat_template", TEMPLATE);
    meta.replaced.clear();
    for (key, entry) in entries {
        match entry {
            Entry::Text(value) => meta.text(key, value),
            Entry::Whole(value) => meta.whole(key, *value),
            Entry::Number(value) => meta.number(key, *value),
            Entry::Texts(values) => meta.texts(key, values),
        }
    }
    meta
}

fn header(meta: Metadata, tensors: &[Tensor]) -> Vec<u8> {
    let mut header = b"GGUF".to_vec();
    header.extend(3_u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend(meta.entries.to_le_bytes());
    header.extend(meta.bytes);
    let mut offset = 0_u64;
    for tensor in tensors {
        text(&mut header, &tensor.name);
        header.extend(u32::try_from(tensor.dimensions.len()).unwrap().to_le_bytes());
        tensor.dimensions.iter().for_each(|size| header.extend(size.to_le_bytes()));
        let kind: u32 = if tensor.weights == Weights::F32 { 0 } else { 8 };
        header.extend(kind.to_le_bytes());
        header.extend(offset.to_le_bytes());
        offset = (offset + tensor.bytes()).next_multiple_of(ALIGNMENT);
    }
    header
}

#[derive(Default)]
struct Metadata {
    entries: u64,
    bytes: Vec<u8>,
    /// Keys of the default entries that were replaced.
    replaced: Vec<&'static str>,
}

impl Metadata {
    /// Writes the key of an entry; returns false if the entry was replaced.
    fn key(&mut self, key: &str, kind: u32) -> bool {
        if self.replaced.contains(&key) {
            return false;
        }
        self.entries += 1;
        text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
        true
    }

    fn text(&mut self, key: &str, value: &str) {
        if self.key(key, 8) {
            text(&mut self.bytes, value);
        }
    }

    fn whole(&mut self, key: &str, value: impl TryInto<u32, Error: std::fmt::Debug>) {
        if self.key(key, 4) {
            self.bytes.extend(value.try_into().unwrap().to_le_bytes());
        }
    }

    fn number(&mut self, key: &str, value: f32) {
        if self.key(key, 6) {
            self.bytes.extend(value.to_le_bytes());
        }
    }

    fn list(&mut self, key: &str, kind: u32, values: impl ExactSizeIterator<Item = [u8; 4]>) {
        if !self.key(key, 9) {
            return;
        }
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        values.for_each(|value| self.bytes.extend(value));
    }

    fn texts(&mut self, key: &str, values: &[&str]) {
        if !self.key(key, 9) {
            return;
        }
        self.bytes.extend(8_u32.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| text(&mut self.bytes, value));
    }
}

fn text(to: &mut Vec<u8>, value: &str) {
    to.extend((value.len() as u64).to_le_bytes());
    to.extend(value.as_bytes());
}

fn put(file: &mut impl Write, bytes: &[u8]) {
    file.write_all(bytes).unwrap();
}

fn pad(file: &mut impl Write, written: u64) {
    let missing = written.next_multiple_of(ALIGNMENT) - written;
    put(file, &vec![0; usize::try_from(missing).unwrap()]);
}

/// Converts a number that is neither tiny nor huge to 16 bits.
fn half(number: f32) -> u16 {
    let bits = number.to_bits();
    if number == 0.0 {
        return 0;
    }
    // Convert the exponent bias from 127 to 15.
    let exponent = ((bits >> 23) & 0xff).saturating_sub(112).clamp(1, 30);
    let parts = ((bits >> 16) & 0x8000) | (exponent << 10) | ((bits >> 13) & 0x3ff);
    u16::try_from(parts).unwrap()
}

/// A pseudo-random number generator.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number from -1 to 1.
    fn number(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    }
}
