"""A Llama of four layers with random weights, large enough for a second rank to pay.

Hidden size 1024, 16 heads, 4 KV heads, intermediate size 4096; prompts without a cached prefix.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from baton.engine.assemble import ModelOptions
from baton.engine.batch.batch import Chunk

BLOCK_SIZE = 16
VOCAB_SIZE = 8_000
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 1,
}
OPTIONS: ModelOptions = {"device": "cpu", "load_format": "dummy"}


@contextmanager
def model_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(MODEL))
        yield folder


def prompt_of(num_tokens: int) -> list[Chunk]:
    tokens = [7 * place % VOCAB_SIZE for place in range(num_tokens)]
    return [Chunk(tokens, 0, range(-(-num_tokens // BLOCK_SIZE)), 1)]
