//! Valid, truncated and hostile headers.

use std::io::Cursor;

use super::*;

/// The parts of a file under test.
struct Parts {
    version: u32,
    entries: Vec<(String, Vec<u8>)>,
    /// Name, dimensions, type and offset of each tensor.
    tensors: Vec<(String, Vec<u64>, u32, u64)>,
    data: usize,
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

fn string(value: &str) -> Vec<u8> {
    [&8_u32.to_le_bytes()[..], &text(value)].concat()
}

fn number(value: u32) -> Vec<u8> {
    [4_u32.to_le_bytes(), value.to_le_bytes()].concat()
}

fn list(kind: u32, count: u64, bytes: &[u8]) -> Vec<u8> {
    [&9_u32.to_le_bytes()[..], &kind.to_le_bytes(), &count.to_le_bytes(), bytes].concat()
}

fn good() -> Parts {
    let entries = [
        ("general.architecture", string("llama")),
        ("general.name", string("Small")),
        ("llama.block_count", number(2)),
        ("llama.context_length", number(2048)),
        ("llama.embedding_length", number(64)),
        ("llama.attention.head_count", number(4)),
        ("llama.attention.head_count_kv", list(4, 2, &[1, 0, 0, 0, 2, 0, 0, 0])),
        ("tokenizer.ggml.tokens", list(8, 2, &[text("a"), text("bc")].concat())),
    ];
    Parts {
        version: 3,
        entries: entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        tensors: vec![("a".to_owned(), vec![64, 4], 8, 0), ("b".to_owned(), vec![64], 0, 288)],
        data: 544,
    }
}

impl Parts {
    fn with(mut self, key: &str, value: Vec<u8>) -> Self {
        self.entries.retain(|(name, _)| name != key);
        self.entries.push((key.to_owned(), value));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            bytes.extend(text(key));
            bytes.extend(value);
        }
        for (name, dimensions, kind, offset) in &self.tensors {
            bytes.extend(text(name));
            bytes.extend(u32::try_from(dimensions.len()).unwrap().to_le_bytes());
            dimensions.iter().for_each(|size| bytes.extend(size.to_le_bytes()));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(32) + self.data, 0);
        bytes
    }
}

fn parse(bytes: &[u8]) -> Result<Header, String> {
    let length = bytes.len() as u64;
    // The buffer is small, so that skipping lists also seeks.
    let source = BufReader::with_capacity(16, Cursor::new(bytes));
    Header::parse(source, length).map_err(|error| error.to_string())
}

#[test]
fn gguf_header_describes_the_model() {
    let bytes = good().bytes();
    let header = parse(&bytes).unwrap();
    assert_eq!(
        header,
        Header {
            architecture: "llama".to_owned(),
            name: Some("Small".to_owned()),
            context_length: Some(2048),
            file_bytes: bytes.len() as u64,
            parameters: 64 * 4 + 64,
            quantization: "Q8_0",
            is_embedding: false,
            is_reranker: false,
            has_pooling: false,
            // 16 numbers per key and 16 per value, 2 heads, 2 layers, 2 bytes each.
            token_bytes: (16 + 16) * 2 * 2 * 2,
        }
    );
    assert!(parse(&good().with("llama.pooling_type", number(1)).bytes()).unwrap().is_embedding);
    let reranker = parse(&good().with("llama.pooling_type", number(4)).bytes()).unwrap();
    assert!(reranker.is_reranker && !reranker.is_embedding);
}

#[test]
fn gguf_file_truncated_anywhere_is_rejected() {
    let bytes = good().bytes();
    for length in 0..bytes.len() {
        let said = parse(&bytes[..length]).unwrap_err();
        assert!(said.starts_with("is cut off"), "{length}: {said}");
    }
}

#[test]
fn gguf_rejects_excessive_claims() {
    let tensor = |dimensions: Vec<u64>, kind: u32, offset: u64| {
        let mut parts = good();
        parts.tensors[0] = ("a".to_owned(), dimensions, kind, offset);
        parts
    };
    let many = |kind: u32, count: u64| good().with("x", list(kind, count, &[]));
    for (parts, said) in [
        (Parts { version: 1, ..good() }, "is GGUF of version 1"),
        (Parts { version: 0x0300_0000, ..good() }, "is GGUF of version"),
        (good().with("llama.block_count", number(0)), "claims 0 layers"),
        (good().with("llama.block_count", number(513)), "claims 513 layers"),
        (good().with("general.architecture", number(1)), "does not name its architecture"),
        (good().with("split.count", number(2)), "is one part of several"),
        (good().with("general.architecture", string("t5")), "is an encoder-decoder model"),
        (good().with("general.alignment", number(0)), "has no valid alignment"),
        (good().with("general.alignment", number(24)), "has no valid alignment"),
        (good().with("x", vec![99, 0, 0, 0]), "has metadata of the unknown type 99"),
        (many(9, 3), "has a list of the unknown type 9"),
        (many(4, u64::MAX), "has a list of 18446744073709551615 elements"),
        (many(8, 16 * 1024 * 1024), "has a text of"),
        (tensor(vec![u64::MAX, 2], 0, 0), "its tensor 'a' is too large"),
        (tensor(vec![64], 0, u64::MAX - 256), "claims tensors of impossible size"),
        (tensor(vec![64], 0, u64::MAX), "its tensor 'a' is too large"),
        (tensor(vec![63], 8, 0), "its tensor 'a' has dimensions that its type cannot have"),
        (tensor(vec![0], 0, 0), "its tensor 'a' has dimensions that its type cannot have"),
        (tensor(vec![], 0, 0), "its tensor 'a' has 0 dimensions"),
        (tensor(vec![1; 5], 0, 0), "its tensor 'a' has 5 dimensions"),
        (tensor(vec![64], 77, 0), "its tensor 'a' has the unknown type 77"),
        (tensor(vec![1 << 20], 0, 0), "is cut off: its tensors end at byte"),
        (Parts { tensors: Vec::new(), ..good() }, "claims 0 tensors"),
    ] {
        let error = parse(&parts.bytes()).unwrap_err();
        assert!(error.contains(said), "{error}, not {said}");
    }
    assert_eq!(parse(b"GGML1234"), Err("is not a GGUF file".to_owned()));
    let mut counts = good().bytes();
    counts[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(parse(&counts).unwrap_err().contains("entries of metadata"));
}

fn with_weight(name: &str, kind: u32) -> Parts {
    let mut parts = good();
    parts.tensors[1].0 = name.to_owned();
    parts.tensors[1].2 = kind;
    parts
}

/// Each of these headers crashed the model's process with a signal.
#[test]
fn gguf_rejects_headers_that_crash_llama_cpp() {
    const EPSILON: &str = "llama.attention.layer_norm_rms_epsilon";
    let real = |value: f32| [&6_u32.to_le_bytes()[..], &value.to_le_bytes()].concat();
    let long = |value: f64| [&12_u32.to_le_bytes()[..], &value.to_le_bytes()].concat();
    let of_kind = |kind: &str| good().with("tokenizer.ggml.model", string(kind));
    let tokens = |all: &[&str]| {
        let bytes: Vec<u8> = all.iter().flat_map(|token| text(token)).collect();
        list(8, all.len() as u64, &bytes)
    };
    let norm = |kind: u32| with_weight("blk.0.attn_norm.weight", kind);
    for (parts, said) in [
        (good().with("llama.context_length", number(1)), "declares a context of 1 tokens"),
        (good().with(EPSILON, real(f32::NAN)), "layer_norm_rms_epsilon = NaN"),
        (good().with(EPSILON, real(-1.0)), "layer_norm_rms_epsilon = -1"),
        (good().with(EPSILON, real(f32::INFINITY)), "layer_norm_rms_epsilon = inf"),
        (good().with("bert.attention.layer_norm_epsilon", long(-0.5)), "layer_norm_epsilon = -0.5"),
        (
            good().with(VOCABULARY, tokens(&["a", "b", "a"])),
            "lists a token of its vocabulary twice",
        ),
        (good().with(VOCABULARY, list(8, 1 << 40, &[])), "claims a vocabulary of"),
        (of_kind("none"), "has no vocabulary"),
        (of_kind("no_vocab"), "has no vocabulary"),
        (of_kind("llama"), "has a vocabulary of a different kind than it declares"),
        (good().with("general.alignment", number(1)), "has no valid alignment"),
        (good().with("general.alignment", number(8)), "has no valid alignment"),
        (norm(26), "its tensor 'blk.0.attn_norm.weight' is of the type I32"),
        (norm(1), "its tensor 'blk.0.attn_norm.weight' is of the type F16"),
    ] {
        let error = parse(&parts.bytes()).unwrap_err();
        assert!(error.contains(said), "{error}, not {said}");
    }
    for parts in [
        good().with(EPSILON, real(1e-5)),
        good().with(VOCABULARY, tokens(&["a", "", ""])),
        of_kind("gpt2"),
        of_kind("llama").with(VOCABULARY, tokens(&["a", "<0x0A>"])),
        good().with("general.alignment", number(64)),
        norm(0),
    ] {
        assert_eq!(parse(&parts.bytes()).err(), None);
    }
}

/// Each of the refused headers failed an assertion of llama.cpp.
#[test]
fn gguf_rejects_impossible_experts_and_types() {
    let types = |all: &[u32]| {
        let bytes: Vec<u8> = all.iter().flat_map(|kind| kind.to_le_bytes()).collect();
        good()
            .with("tokenizer.ggml.model", string("bert"))
            .with(TOKEN_TYPES, list(5, all.len() as u64, &bytes))
    };
    let experts = |numbers: [u32; 4]| {
        let keys =
            ["expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count"];
        let with = |parts: Parts, (key, count)| parts.with(&format!("llama.{key}"), number(count));
        keys.into_iter().zip(numbers).fold(good(), with)
    };
    for (parts, said) in [
        (
            with_weight("token_embd.weight", 26),
            "'token_embd.weight' is of the type I32, but weights",
        ),
        (
            with_weight("blk.0.attn_q.weight", 24),
            "'blk.0.attn_q.weight' is of the type I8, but weights",
        ),
        (with_weight("output.weight", 27), "'output.weight' is of the type I64, but weights"),
        (types(&[1, 6]), "has a vocabulary of a different kind than it declares"),
        (types(&[6; 2000]), "has a vocabulary of a different kind than it declares"),
        (experts([2, 5, 0, 0]), "claims 2 experts, 5 of which are used"),
        (experts([2, 0, 0, 0]), "claims 2 experts, 0 of which are used"),
        (experts([0, 1, 0, 0]), "claims 0 experts, 1 of which are used"),
        (experts([1025, 1, 0, 0]), "claims 1025 experts"),
        (experts([8, 2, 3, 1]), "in 3 groups"),
        (experts([8, 2, 4, 4]), "in 4 groups, 4 of which"),
        (experts([0, 0, 1, 0]), "in 1 groups"),
        (
            good().with("llama.expert_used_count", list(4, 2, &[5, 0, 0, 0, 1, 0, 0, 0])),
            "claims 0 experts, 5 of which are used",
        ),
        (good().with("llama.nextn_predict_layers", number(3)), "claims 3 of its 2 layers"),
    ] {
        let error = parse(&parts.bytes()).unwrap_err();
        assert!(error.contains(said), "{error}, not {said}");
    }
    for parts in [
        with_weight("output.weight", 1),
        types(&[1, 3]),
        experts([8, 8, 0, 0]),
        experts([8, 2, 4, 2]),
        experts([1024, 1, 1, 0]),
        experts([0; 4]),
    ] {
        assert_eq!(parse(&parts.bytes()).err(), None);
    }
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn gguf_header_of_random_bytes_never_panics(
            at in 0_usize..600,
            bytes in proptest::collection::vec(any::<u8>(), 1..16),
        ) {
            let mut file = good().bytes();
            let at = at.min(file.len() - bytes.len());
            file[at..at + bytes.len()].copy_from_slice(&bytes);
            let _either = parse(&file);
        }
    }
}
