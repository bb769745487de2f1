//! Parses and validates the header of a GGUF file before llama.cpp reads the file, because
//! llama.cpp does not validate enough for untrusted files.
//!
//! Counts, lengths and nesting are limited, and the file must be as long as its tensors require.
//! The weights are never read, long lists are skipped, and no allocation depends on a length stated
//! in the file.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use super::gguf_types::{tensor_type, width};
use orrery_runtime::regular_file;

const MAGIC: &[u8; 4] = b"GGUF";
/// The format versions that llama.cpp supports. Only little-endian files are supported.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;
const ENTRIES_MAX: u64 = 65_536;
const TENSORS_MAX: u64 = 65_536;
/// Maximum length of a key or a tensor's name, in bytes.
const NAME_MAX: u64 = 65_535;
/// Maximum length of a string, such as a chat template, in bytes.
const TEXT_MAX: u64 = 16 * 1024 * 1024;
/// Maximum length of a string that is retained, in bytes.
const TEXT_KEPT_MAX: u64 = 1024 * 1024;
/// Maximum number of elements in a list, such as the tokens of a vocabulary.
const LIST_MAX: u64 = 16 * 1024 * 1024;
/// Maximum size of the whole header, in bytes.
const HEADER_MAX: u64 = 1024 * 1024 * 1024;
const DIMENSIONS_MAX: u32 = 4;
/// The pooling type of models that rate documents.
const POOLING_RANK: u64 = 4;
/// Valid range of the number of layers.
const BLOCKS: std::ops::RangeInclusive<u64> = 1..=512;
/// Minimum context length, in tokens.
pub const CONTEXT_MIN: u32 = 16;
/// Maximum number of tokens of a vocabulary; the largest known vocabularies have 262,144.
const VOCABULARY_MAX: u64 = 1024 * 1024;
const VOCABULARY: &str = "tokenizer.ggml.tokens";
/// The list of the tokens' types, and the type of a token that is a single byte.
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
const BYTE_TOKEN: u64 = 6;
/// Maximum number of experts that llama.cpp supports.
const EXPERTS_MAX: u64 = 1024;
/// llama.cpp accesses tensor data at multiples of this alignment.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The type codes of strings and lists.
const TEXT: u32 = 8;
const LIST: u32 = 9;
const ALIGNMENT_MAX: u64 = 1024 * 1024;

/// The error for a rejected file, as a phrase that follows the file's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// Describes a file that other model files use.
const PART: &str = "is not a model by itself: name it in the manifest of its model";

impl Error {
    /// Returns whether the file is an adapter or an image encoder, which only serves other models.
    #[must_use]
    pub fn is_part(&self) -> bool {
        self.0 == PART
    }

    fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Self::new("is cut off in its header");
        }
        Self(format!("cannot be read: {error}"))
    }
}

/// Properties of a model, from its file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The architecture: `llama`, `qwen2`, `bert`, …
    pub architecture: String,
    /// Display name.
    pub name: Option<String>,
    /// Context length in training, in tokens.
    pub context_length: Option<u64>,
    /// Size of the file, in bytes.
    pub file_bytes: u64,
    /// Total number of elements of all tensors.
    pub parameters: u64,
    /// The most common data type of the weights, such as `Q4_K`.
    pub quantization: &'static str,
    /// Whether the model is an embedding model.
    pub is_embedding: bool,
    /// Whether the model rates documents by their relevance to a query.
    pub is_reranker: bool,
    /// Whether the file defines how token vectors are pooled.
    pub has_pooling: bool,
    /// KV cache size per token in bytes, with 16-bit values.
    pub token_bytes: u64,
}

/// A metadata value, reduced to the information that is used.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Number(u64),
    /// A floating-point number.
    Real(f64),
    Text(String),
    Vocabulary(Vocabulary),
    /// The largest number in a list.
    Largest(u64),
    Other,
}

/// Properties of a vocabulary that llama.cpp may not handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Vocabulary {
    /// Whether the vocabulary has duplicate tokens.
    has_doubles: bool,
    /// Whether the vocabulary has single-byte tokens.
    has_bytes: bool,
}

impl Header {
    /// Reads and validates the header of a file.
    ///
    /// # Errors
    /// The fault in the file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file = match regular_file::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                return Err(Error::new("is not a file"));
            }
            file => file?,
        };
        let length = file.metadata()?.len();
        Self::parse(BufReader::with_capacity(256 * 1024, file), length)
    }

    /// Reads a header like [`Header::read`], from a source with `length` bytes.
    fn parse(source: impl BufRead + Seek, length: u64) -> Result<Self, Error> {
        let mut reader = Reader { source, at: 0 };
        let magic: [u8; 4] = reader.bytes()?;
        if magic != *MAGIC {
            return Err(Error::new("is not a GGUF file"));
        }
        let version = reader.u32()?;
        if !VERSIONS.contains(&version) {
            let message = format!("is GGUF of version {version}; this program reads 2 and 3");
            return Err(Error(message));
        }
        let tensors = reader.u64()?;
        let entries = reader.u64()?;
        if tensors == 0 || tensors > TENSORS_MAX || entries > ENTRIES_MAX {
            let message = format!("claims {tensors} tensors and {entries} entries of metadata");
            return Err(Error(message));
        }
        let metadata = reader.metadata(entries)?;
        let weights = reader.tensors(tensors)?;
        let alignment = match metadata.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(Value::Number(bytes))
                if bytes.is_power_of_two()
                    && (DEFAULT_ALIGNMENT..=ALIGNMENT_MAX).contains(bytes) =>
            {
                *bytes
            }
            Some(_) => {
                let message = format!("has no valid alignment: {DEFAULT_ALIGNMENT} is usual");
                return Err(Error(message));
            }
        };
        let data = reader.at.next_multiple_of(alignment);
        let needed = weights.end.checked_add(data);
        let needed = needed.ok_or_else(|| Error::new("claims tensors of impossible size"))?;
        if length < needed {
            let message = format!(
                "is cut off: its tensors end at byte {needed}, the file at {length}; is it still \
                 being copied?"
            );
            return Err(Error(message));
        }
        describe(&metadata, &weights, length)
    }
}

/// Derives the model's properties from the metadata.
fn describe(
    metadata: &BTreeMap<String, Value>,
    weights: &Weights,
    file_bytes: u64,
) -> Result<Header, Error> {
    let text = |key: &str| match metadata.get(key) {
        Some(Value::Text(text)) if !text.trim().is_empty() => Some(text.clone()),
        _ => None,
    };
    let architecture = text("general.architecture");
    let architecture = architecture.ok_or_else(|| Error::new("does not name its architecture"))?;
    if matches!(text("general.type").as_deref(), Some("adapter" | "mmproj"))
        || architecture == "clip"
    {
        return Err(Error::new(PART));
    }
    let number = |key: &str| match metadata.get(&format!("{architecture}.{key}")) {
        Some(Value::Number(number) | Value::Largest(number)) => Some(*number),
        _ => None,
    };
    if matches!(metadata.get("split.count"), Some(Value::Number(2..))) {
        let message = "is one part of several: join them with llama.cpp's gguf-split --merge";
        return Err(Error::new(message));
    }
    if architecture.starts_with("t5") {
        return Err(Error::new("is an encoder-decoder model, which this program cannot run"));
    }
    check_vocabulary(metadata, text("tokenizer.ggml.model").as_deref())?;
    let context_length = number("context_length").filter(|length| *length > 0);
    if let Some(length) = context_length.filter(|length| *length < CONTEXT_MIN.into()) {
        let message =
            format!("declares a context of {length} tokens; the minimum is {CONTEXT_MIN}");
        return Err(Error(message));
    }
    for (key, value) in metadata.iter().filter(|(key, _)| key.ends_with("_epsilon")) {
        if let Value::Real(epsilon) = value
            && !(epsilon.is_finite() && *epsilon >= 0.0)
        {
            return Err(Error(format!(
                "has {} = {epsilon}, which must be a small number from 0",
                cut(key)
            )));
        }
    }
    let pooling = number("pooling_type");
    let has_pooling = pooling.is_some_and(|kind| kind > 0);
    let is_reranker = pooling == Some(POOLING_RANK);
    let blocks = number("block_count").unwrap_or(0);
    if !BLOCKS.contains(&blocks) {
        let message = format!("claims {blocks} layers; this program loads 1 to {}", BLOCKS.end());
        return Err(Error(message));
    }
    check_experts(&architecture, number)?;
    let heads = number("attention.head_count").unwrap_or(1).max(1);
    let width = number("embedding_length").unwrap_or(0) / heads;
    let heads = number("attention.head_count_kv").unwrap_or(heads);
    let keys = number("attention.key_length").unwrap_or(width);
    let values = number("attention.value_length").unwrap_or(width);
    let token_bytes =
        keys.saturating_add(values).saturating_mul(heads).saturating_mul(blocks).saturating_mul(2);
    Ok(Header {
        name: text("general.name"),
        context_length,
        file_bytes,
        parameters: weights.parameters,
        quantization: weights.quantization(),
        is_embedding: !is_reranker && (has_pooling || architecture.contains("bert")),
        is_reranker,
        has_pooling,
        token_bytes,
        architecture,
    })
}

/// Rejects numbers of experts, or of layers that predict further tokens, that llama.cpp cannot
/// handle.
fn check_experts(architecture: &str, number: impl Fn(&str) -> Option<u64>) -> Result<(), Error> {
    let count = |key| number(key).unwrap_or(0);
    let (experts, used) = (count("expert_count"), count("expert_used_count"));
    let (groups, used_groups) = (count("expert_group_count"), count("expert_group_used_count"));
    let are_groups_valid = groups <= 1
        || (groups < experts && experts % groups == 0 && (1..groups).contains(&used_groups));
    // llama.cpp ignores a single expert in models of this family.
    let is_dense = architecture.starts_with("hunyuan") && experts <= 1;
    let is_valid = match experts {
        _ if is_dense => true,
        0 => used == 0 && groups == 0,
        1..=EXPERTS_MAX => (1..=experts).contains(&used) && groups < experts && are_groups_valid,
        _ => false,
    };
    if !is_valid {
        let message = format!(
            "claims {experts} experts, {used} of which are used, in {groups} groups, {used_groups} of \
             which are used: these numbers contradict each other or exceed {EXPERTS_MAX}"
        );
        return Err(Error(message));
    }
    let (more, blocks) = (count("nextn_predict_layers"), count("block_count"));
    if more > blocks {
        return Err(Error(format!(
            "claims {more} of its {blocks} layers for multi-token prediction"
        )));
    }
    Ok(())
}

/// Rejects a vocabulary that llama.cpp cannot handle.
fn check_vocabulary(
    metadata: &BTreeMap<String, Value>,
    tokenizer: Option<&str>,
) -> Result<(), Error> {
    if matches!(tokenizer, Some("none" | "no_vocab")) {
        return Err(Error::new("has no vocabulary: this program cannot turn text into its tokens"));
    }
    if tokenizer == Some("bert")
        && let Some(Value::Vocabulary(types)) = metadata.get(TOKEN_TYPES)
        && types.has_bytes
    {
        let message =
            "has a vocabulary of a different kind than it declares: it has single-byte tokens";
        return Err(Error::new(message));
    }
    let Some(Value::Vocabulary(vocabulary)) = metadata.get(VOCABULARY) else { return Ok(()) };
    if vocabulary.has_doubles {
        return Err(Error::new("lists a token of its vocabulary twice"));
    }
    if tokenizer == Some("llama") && !vocabulary.has_bytes {
        let message =
            "has a vocabulary of a different kind than it declares: no token is a single byte";
        return Err(Error::new(message));
    }
    Ok(())
}

/// Totals computed from the tensors' descriptions.
#[derive(Debug, Default)]
struct Weights {
    parameters: u64,
    /// End of the last tensor, relative to the end of the header.
    end: u64,
    /// Bytes of weights per data type.
    by_type: BTreeMap<&'static str, u64>,
}

impl Weights {
    fn quantization(&self) -> &'static str {
        let most = self.by_type.iter().max_by_key(|(_, bytes)| **bytes);
        most.map_or("F32", |(name, _)| name)
    }
}

struct Reader<R> {
    source: R,
    at: u64,
}

impl<R: BufRead + Seek> Reader<R> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes)?;
        self.advance(N as u64)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn advance(&mut self, bytes: u64) -> Result<(), Error> {
        self.at = self.at.saturating_add(bytes);
        if self.at > HEADER_MAX {
            return Err(Error(format!("has a header of more than {HEADER_MAX} bytes")));
        }
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Error> {
        self.advance(bytes)?;
        let held = self.source.fill_buf()?.len();
        match usize::try_from(bytes) {
            Ok(few) if few <= held => self.source.consume(few),
            _ => {
                self.source.seek(SeekFrom::Start(self.at))?;
            }
        }
        Ok(())
    }

    /// Reads a string of at most `most` bytes. A string longer than `TEXT_KEPT_MAX` is returned as
    /// an empty string.
    fn text(&mut self, most: u64) -> Result<String, Error> {
        let length = self.u64()?;
        if length > most {
            return Err(Error(format!("has a text of {length} bytes in its header")));
        }
        if length > TEXT_KEPT_MAX {
            self.skip(length)?;
            return Ok(String::new());
        }
        let mut bytes = Vec::new();
        (&mut self.source).take(length).read_to_end(&mut bytes)?;
        if (bytes.len() as u64) < length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.advance(length)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn metadata(&mut self, entries: u64) -> Result<BTreeMap<String, Value>, Error> {
        let mut metadata = BTreeMap::new();
        for _ in 0..entries {
            let key = self.text(NAME_MAX)?;
            let kind = self.u32()?;
            let value = match (&*key, kind) {
                (VOCABULARY, LIST) => self.vocabulary()?,
                (TOKEN_TYPES, LIST) => self.token_types()?,
                _ => self.value(kind)?,
            };
            if !matches!(value, Value::Other) {
                metadata.insert(key, value);
            }
        }
        Ok(metadata)
    }

    fn value(&mut self, kind: u32) -> Result<Value, Error> {
        Ok(match kind {
            TEXT => Value::Text(self.text(TEXT_MAX)?),
            6 => Value::Real(f32::from_le_bytes(self.bytes()?).into()),
            12 => Value::Real(f64::from_le_bytes(self.bytes()?)),
            LIST => {
                let element = self.u32()?;
                let count = self.u64()?;
                self.list(element, count)?
            }
            _ => self.scalar(kind)?.map_or(Value::Other, Value::Number),
        })
    }

    /// Reads the tokens of a vocabulary; stores only their hashes while reading.
    fn vocabulary(&mut self) -> Result<Value, Error> {
        let element = self.u32()?;
        let count = self.u64()?;
        if element != TEXT {
            return self.list(element, count);
        }
        if count > VOCABULARY_MAX {
            return Err(Error(format!("claims a vocabulary of {count} tokens")));
        }
        let hashes = RandomState::new();
        let mut known = HashSet::new();
        let mut vocabulary = Vocabulary::default();
        for _ in 0..count {
            let token = self.text(TEXT_MAX)?;
            // llama.cpp assigns distinct names to empty tokens.
            vocabulary.has_doubles |= !token.is_empty() && !known.insert(hashes.hash_one(&token));
            vocabulary.has_bytes |= token.len() == 6 && token.starts_with("<0x");
        }
        Ok(Value::Vocabulary(vocabulary))
    }

    /// Reads the types of the tokens of a vocabulary.
    fn token_types(&mut self) -> Result<Value, Error> {
        let element = self.u32()?;
        let count = self.u64()?;
        if count > VOCABULARY_MAX {
            return Err(Error(format!("claims a vocabulary of {count} tokens")));
        }
        if width(element).is_none() {
            return self.list(element, count);
        }
        let mut types = Vocabulary::default();
        for _ in 0..count {
            types.has_bytes |= self.scalar(element)? == Some(BYTE_TOKEN);
        }
        Ok(Value::Vocabulary(types))
    }

    /// Skips a list; for a short list of numbers, returns the largest number.
    fn list(&mut self, element: u32, count: u64) -> Result<Value, Error> {
        const FEW: u64 = 1024;
        if count > LIST_MAX {
            return Err(Error(format!("has a list of {count} elements in its header")));
        }
        match (element, width(element)) {
            (TEXT, _) => {
                for _ in 0..count {
                    let length = self.u64()?;
                    if length > TEXT_MAX {
                        return Err(Error(format!("has a text of {length} bytes in its header")));
                    }
                    self.skip(length)?;
                }
                Ok(Value::Other)
            }
            (_, Some(_)) if count <= FEW => {
                let mut largest = None;
                for _ in 0..count {
                    largest = largest.max(self.scalar(element)?);
                }
                Ok(largest.map_or(Value::Other, Value::Largest))
            }
            (_, Some(width)) => self.skip(count.saturating_mul(width)).map(|()| Value::Other),
            (_, None) => Err(Error(format!("has a list of the unknown type {element}"))),
        }
    }

    /// Reads a scalar; returns `None` unless it is a non-negative integer.
    fn scalar(&mut self, kind: u32) -> Result<Option<u64>, Error> {
        let width = width(kind);
        let width =
            width.ok_or_else(|| Error(format!("has metadata of the unknown type {kind}")))?;
        let mut bytes = [0; 8];
        let used = usize::try_from(width).unwrap_or(bytes.len());
        self.source.read_exact(bytes.get_mut(..used).unwrap_or_default())?;
        self.advance(width)?;
        let number = u64::from_le_bytes(bytes);
        Ok(match kind {
            // Unsigned types and booleans.
            0 | 2 | 4 | 7 | 10 => Some(number),
            // Signed types, if the sign bit is clear.
            1 | 3 | 5 | 11 if number >> (width * 8 - 1) == 0 => Some(number),
            _ => None,
        })
    }

    fn tensors(&mut self, count: u64) -> Result<Weights, Error> {
        let mut weights = Weights::default();
        for _ in 0..count {
            let name = self.text(NAME_MAX)?;
            let fault = |what: &str| Error(format!("its tensor '{}' {what}", cut(&name)));
            let dimensions = self.u32()?;
            if dimensions == 0 || dimensions > DIMENSIONS_MAX {
                return Err(fault(&format!("has {dimensions} dimensions")));
            }
            let mut elements: u64 = 1;
            let mut row = 0;
            for index in 0..dimensions {
                let size = self.u64()?;
                row = if index == 0 { size } else { row };
                elements = elements.checked_mul(size).ok_or_else(|| fault("is too large"))?;
            }
            let kind = self.u32()?;
            let offset = self.u64()?;
            let Some((name_of_type, block, block_bytes)) = tensor_type(kind) else {
                return Err(fault(&format!("has the unknown type {kind}")));
            };
            if name.ends_with("norm.weight") && name_of_type != "F32" {
                return Err(fault(&format!(
                    "is of the type {name_of_type}, but norms must be F32"
                )));
            }
            if name.ends_with(".weight") && matches!(name_of_type, "I8" | "I16" | "I32" | "I64") {
                return Err(fault(&format!(
                    "is of the type {name_of_type}, but weights must not be integers"
                )));
            }
            if elements == 0 || row % block != 0 {
                return Err(fault("has dimensions that its type cannot have"));
            }
            let bytes = (elements / block).checked_mul(block_bytes);
            let end = bytes.and_then(|bytes| offset.checked_add(bytes));
            let (Some(bytes), Some(end)) = (bytes, end) else { return Err(fault("is too large")) };
            weights.end = weights.end.max(end);
            weights.parameters = weights.parameters.saturating_add(elements);
            let of_type = weights.by_type.entry(name_of_type).or_default();
            *of_type = of_type.saturating_add(bytes);
        }
        Ok(weights)
    }
}

fn cut(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_control()).take(64).collect()
}

#[cfg(test)]
#[path = "gguf_tests.rs"]
mod tests;
