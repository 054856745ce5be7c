"""Writes a checkpoint of bench/peers/models.py as GGUF, with the package `gguf` alone.

    python gguf_writer.py CHECKPOINT_FOLDER OUT.gguf

Runs in llama.cpp's environment, so it does not import Baton. Matrices stay bfloat16, norms
become float32, as llama.cpp's own converter has it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

NORMAL, CONTROL = 1, 3
"""GGUF's kinds of tokens."""
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def main(folder: Path, out: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(out, config["model_type"])
    write_shape(writer, config)
    write_tokens(writer, folder)
    for name, raw, shape in read_tensors(folder / "model.safetensors"):
        if len(shape) == 1:
            wide = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            writer.add_tensor(name_of(name), wide)
        else:
            rows = raw.reshape(shape[0], 2 * shape[1])
            writer.add_tensor(name_of(name), rows, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_shape(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def write_tokens(writer: Any, folder: Path) -> None:
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token[0] == "<" else NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)


def read_tensors(file: Path) -> list[tuple[str, Any, list[int]]]:
    """Names, bytes and shapes of tensors, since numpy has no bfloat16."""
    data = np.memmap(file, dtype=np.uint8, mode="r")
    header_len = int.from_bytes(bytes(data[:8]), "little")
    header = json.loads(bytes(data[8 : 8 + header_len]))
    header.pop("__metadata__", None)
    start = 8 + header_len
    return [
        (name, data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
         entry["shape"])
        for name, entry in header.items()
    ]  # fmt: skip


def name_of(name: str) -> str:
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.weight"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
