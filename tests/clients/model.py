"""Writes a language model of half a megabyte with random weights, as a GGUF file: `model.py FILE`. Its vocabulary is
that of `tests/support/gguf.rs`: single characters, so that only a grammar determines its text."""

import sys

import gguf
import numpy

EMBEDDING, LAYERS, HEADS, KV_HEADS, FEED_FORWARD, CONTEXT = 64, 2, 4, 2, 128, 8192
TEMPLATE = """{{ bos_token }}{% if tools %}{{ tools | tojson }}
{% endif %}{% for message in messages %}{{ message.role }}: {{ message.content }}
{% if message.tool_calls %}{{ message.tool_calls | tojson }}
{% endif %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""

kind = gguf.TokenType
vocabulary = [("<unk>", kind.UNKNOWN), ("<s>", kind.CONTROL), ("</s>", kind.CONTROL)]
vocabulary += [(f"<0x{byte:02X}>", kind.BYTE) for byte in range(256)]
vocabulary += [(text, kind.NORMAL) for text in ["\u2581", *map(chr, range(ord("!"), ord("~") + 1))]]

model = gguf.GGUFWriter(sys.argv[1], "llama")
model.add_name("tiny")
model.add_context_length(CONTEXT)
model.add_embedding_length(EMBEDDING)
model.add_block_count(LAYERS)
model.add_feed_forward_length(FEED_FORWARD)
model.add_head_count(HEADS)
model.add_head_count_kv(KV_HEADS)
model.add_layer_norm_rms_eps(1e-5)
model.add_rope_dimension_count(EMBEDDING // HEADS)
model.add_tokenizer_model("llama")
model.add_token_list([text for text, _ in vocabulary])
model.add_token_scores([0.0] * len(vocabulary))
model.add_token_types([kind for _, kind in vocabulary])
model.add_unk_token_id(0)
model.add_bos_token_id(1)
model.add_eos_token_id(2)
model.add_chat_template(TEMPLATE)

random = numpy.random.default_rng(7)


def matrix(name, columns, rows):
    scale = (3 / columns) ** 0.5
    model.add_tensor(f"{name}.weight", random.uniform(-scale, scale, (rows, columns)).astype(numpy.float32))


def norm(name):
    model.add_tensor(f"{name}.weight", numpy.ones(EMBEDDING, numpy.float32))


matrix("token_embd", EMBEDDING, len(vocabulary))
norm("output_norm")
matrix("output", EMBEDDING, len(vocabulary))
for layer in range(LAYERS):
    block = f"blk.{layer}."
    norm(block + "attn_norm")
    matrix(block + "attn_q", EMBEDDING, EMBEDDING)
    matrix(block + "attn_k", EMBEDDING, EMBEDDING // HEADS * KV_HEADS)
    matrix(block + "attn_v", EMBEDDING, EMBEDDING // HEADS * KV_HEADS)
    matrix(block + "attn_output", EMBEDDING, EMBEDDING)
    norm(block + "ffn_norm")
    matrix(block + "ffn_gate", EMBEDDING, FEED_FORWARD)
    matrix(block + "ffn_up", EMBEDDING, FEED_FORWARD)
    matrix(block + "ffn_down", FEED_FORWARD, EMBEDDING)
model.write_header_to_file()
model.write_kv_data_to_file()
model.write_tensors_to_file()
model.close()
