//! Parses and validates the header of a Whisper model in ggml's format before whisper.cpp reads the
//! file, because whisper.cpp does not validate enough for untrusted files.
//!
//! Counts and lengths are limited, and the file must be as long as its tensors require. The weights
//! are never read, and no allocation depends on a length stated in the file.

use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::ops::RangeInclusive;
use std::path::Path;

use crate::llm::gguf_types::tensor_type;
use orrery_runtime::regular_file;

/// `ggml` as a little-endian number.
const MAGIC: u32 = 0x6767_6d6c;
/// Vocabulary sizes of Whisper models: English only, multilingual, and multilingual with Cantonese.
/// whisper.cpp derives the ids of special tokens from the size.
const VOCABULARIES: RangeInclusive<i32> = 51_864..=51_866;
/// Number of frequencies of a window of audio, which whisper.cpp assumes.
const FREQUENCIES: i32 = 201;
/// Maximum length of a token, in bytes.
const TOKEN_MAX: u32 = 4096;
/// Maximum number of tensors; the largest known model has 1,259.
const TENSORS_MAX: usize = 16_384;
const DIMENSIONS: RangeInclusive<i32> = 1..=4;
/// Maximum length of a tensor's name, in bytes.
const NAME_MAX: i32 = 256;
/// Minimum number of bytes to skip with a seek.
const SEEK_MIN: u64 = 64 * 1024;
/// Types of weights that whisper.cpp can load, by the number in the header.
const TYPES: [(i32, &str); 12] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
];
/// The type number of quantized weights contains the version of the format, multiplied by this.
const TYPE_VERSION: i32 = 1000;

/// The error for a rejected file, as a phrase that follows the file's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Self("is cut off: is it still being copied?".to_owned());
        }
        Self(format!("cannot be read: {error}"))
    }
}

/// Properties of a model, from its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Size of the file, in bytes.
    pub file_bytes: u64,
    /// The data type of the weights, such as `Q5_0`.
    pub quantization: &'static str,
    /// Whether the model knows languages other than English.
    pub is_multilingual: bool,
}

impl Header {
    /// Reads and validates a file.
    ///
    /// # Errors
    /// The fault in the file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file = match regular_file::open(path) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(Error("is not a file".to_owned()));
            }
            file => file?,
        };
        let length = file.metadata()?.len();
        Self::parse(BufReader::with_capacity(256 * 1024, file), length)
    }

    /// Reads a file like [`Header::read`], from a source with `length` bytes.
    fn parse(source: impl BufRead + Seek, length: u64) -> Result<Self, Error> {
        let mut reader = Reader { source, at: 0, length };
        // Shorter files are not models either.
        if length < 4 || reader.number()?.cast_unsigned() != MAGIC {
            return Err(Error("is not a Whisper model: it does not begin with 'ggml'".to_owned()));
        }
        let vocabulary = reader.within("tokens", VOCABULARIES)?;
        let _frames = reader.within("audio positions", 1..=1500)?;
        let state = reader.within("audio features", 1..=8192)?;
        let heads = reader.within("audio heads", 1..=256)?;
        reader.within("audio layers", 1..=128)?;
        // whisper.cpp builds a prompt of half of these positions, and generates as many tokens.
        reader.within("text positions", 64..=4096)?;
        let text_state = reader.within("text features", 1..=8192)?;
        let text_heads = reader.within("text heads", 1..=256)?;
        reader.within("text layers", 1..=128)?;
        let mels = reader.within("frequency bands", 1..=256)?;
        let kind = reader.number()?;
        if state != text_state || state % heads != 0 || state % text_heads != 0 {
            let sizes =
                format!("{state} and {text_state} features, {heads} and {text_heads} heads");
            return Err(Error(format!("claims sizes that contradict each other: {sizes}")));
        }
        let found = TYPES.iter().find(|(number, _)| *number == kind % TYPE_VERSION);
        let Some((_, quantization)) = found.filter(|_| kind >= 0) else {
            return Err(Error(format!("has weights of the unknown type {kind}")));
        };
        if (reader.number()?, reader.number()?) != (mels, FREQUENCIES) {
            return Err(Error("has filters of an unknown size".to_owned()));
        }
        reader
            .skip(u64::from(mels.cast_unsigned()) * u64::from(FREQUENCIES.cast_unsigned()) * 4)?;
        reader.vocabulary(vocabulary)?;
        if reader.tensors()? == 0 {
            return Err(Error("contains no weights".to_owned()));
        }
        Ok(Self {
            file_bytes: length,
            quantization,
            is_multilingual: vocabulary > *VOCABULARIES.start(),
        })
    }
}

struct Reader<R> {
    source: R,
    at: u64,
    length: u64,
}

impl<R: BufRead + Seek> Reader<R> {
    fn number(&mut self) -> Result<i32, Error> {
        let mut bytes = [0; 4];
        self.source.read_exact(&mut bytes)?;
        self.at = self.at.saturating_add(4);
        Ok(i32::from_le_bytes(bytes))
    }

    /// Reads a number that must be within limits.
    fn within(&mut self, what: &str, limits: RangeInclusive<i32>) -> Result<i32, Error> {
        let number = self.number()?;
        if limits.contains(&number) {
            return Ok(number);
        }
        let (least, most) = limits.into_inner();
        Err(Error(format!("claims {number} {what}; a Whisper model has {least} to {most}")))
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Error> {
        self.at = self.at.saturating_add(bytes);
        if self.at > self.length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        // Only long parts are worth a seek, which empties the buffer.
        if bytes > SEEK_MIN {
            self.source.seek(SeekFrom::Start(self.at))?;
            return Ok(());
        }
        let mut left = usize::try_from(bytes).unwrap_or(0);
        while left > 0 {
            let taken = self.source.fill_buf()?.len().min(left);
            if taken == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.source.consume(taken);
            left -= taken;
        }
        Ok(())
    }

    fn vocabulary(&mut self, most: i32) -> Result<(), Error> {
        let count = self.within("tokens with a text", 1..=most)?;
        let mut has_space = false;
        for _ in 0..count {
            let bytes = self.number()?.cast_unsigned();
            if bytes > TOKEN_MAX {
                return Err(Error(format!("has a token of {bytes} bytes")));
            }
            has_space |= bytes == 1 && self.source.fill_buf()?.first() == Some(&b' ');
            self.skip(bytes.into())?;
        }
        // whisper.cpp crashes without this token.
        if has_space { Ok(()) } else { Err(Error("has no token for a space".to_owned())) }
    }

    /// Reads the descriptions of all tensors, and returns their number.
    fn tensors(&mut self) -> Result<usize, Error> {
        let mut count = 0;
        while self.at < self.length {
            count += 1;
            if count > TENSORS_MAX {
                return Err(Error(format!("has more than {TENSORS_MAX} tensors")));
            }
            let dimensions = self.within("dimensions of a tensor", DIMENSIONS)?;
            let name = self.within("bytes in the name of a tensor", 1..=NAME_MAX)?;
            let kind = self.number()?;
            let mut elements: u64 = 1;
            for _ in 0..dimensions {
                let size = self.within("elements in a row of a tensor", 1..=i32::MAX)?;
                elements = elements.saturating_mul(size.cast_unsigned().into());
            }
            let known = u32::try_from(kind).ok().and_then(tensor_type);
            let Some((_, block, bytes)) =
                known.filter(|(_, block, _)| elements.is_multiple_of(*block))
            else {
                return Err(Error(format!("has a tensor of the unknown type {kind}")));
            };
            self.skip(name.cast_unsigned().into())?;
            self.skip((elements / block).saturating_mul(bytes))?;
        }
        Ok(count)
    }
}

#[cfg(test)]
#[path = "header_tests.rs"]
mod tests;
