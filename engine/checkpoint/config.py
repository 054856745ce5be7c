"""`config.json` of a decoder of the Llama kind, checked and frozen.

Whatever would change the mathematics and is not implemented is refused by its key: a model that
loads is computed as its authors meant it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton.core.errors import CheckpointError
from baton.core.kv_layout import ITEM_BYTES
from baton.engine.checkpoint.rope_config import parse_rope
from baton.engine.layers.attention import HeadShape
from baton.engine.layers.rope import Rope

MUST_BE: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "quantization_config": (None,),
    "partial_rotary_factor": (1, None),
    "is_encoder_decoder": (False,),
}
"""Keys that change the mathematics, and the values that are implemented. Absent is fine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    heads: HeadShape
    rms_norm_eps: float
    rope: Rope
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype: str | None
    """Of the weights, as the authors declare it; None if they do not."""
    eos_token_ids: tuple[int, ...]


def read_json(path: Path) -> dict[str, object]:
    """Raises CheckpointError if there is no such file or it holds no JSON object."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} does not exist; a model is a folder in Hugging Face's layout"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return value


def architecture_of(raw: Mapping[str, object]) -> str:
    match raw.get("architectures"):
        case [str(architecture)]:
            return architecture
        case other:
            raise CheckpointError(
                f"config.json: `architectures` must name one architecture, not {other!r}"
            )


def parse_config(raw: Mapping[str, object]) -> ModelConfig:
    """Raises CheckpointError, naming the key, on values that are missing, odd or unsupported."""
    _refuse_unsupported(raw)
    hidden_size = _count(raw, "hidden_size")
    num_heads = _count(raw, "num_attention_heads")
    heads = HeadShape(
        num_heads=num_heads,
        num_kv_heads=_count(raw, "num_key_value_heads", num_heads),
        head_dim=_count(raw, "head_dim", hidden_size // num_heads),
    )
    if heads.num_heads % heads.num_kv_heads:
        raise CheckpointError(
            f"config.json: `num_attention_heads` {heads.num_heads} is no multiple of "
            f"`num_key_value_heads` {heads.num_kv_heads}"
        )
    if heads.head_dim % 2:
        raise CheckpointError(f"config.json: `head_dim` {heads.head_dim} is odd; RoPE needs pairs")
    return ModelConfig(
        architecture=architecture_of(raw),
        vocab_size=_count(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_count(raw, "intermediate_size"),
        num_layers=_count(raw, "num_hidden_layers"),
        heads=heads,
        rms_norm_eps=_positive(raw, "rms_norm_eps", 1e-6),
        rope=parse_rope(raw, heads.head_dim),
        max_position_embeddings=_count(raw, "max_position_embeddings", 2048),
        tie_word_embeddings=_flag(raw, "tie_word_embeddings", False),
        dtype=_dtype(raw),
        eos_token_ids=parse_eos(raw.get("eos_token_id")),
    )


def parse_eos(value: object) -> tuple[int, ...]:
    """Token ids from `eos_token_id`, which is null, a number or a list."""
    match value:
        case None:
            return ()
        case int():
            return (value,)
        case list() if all(isinstance(token, int) for token in value):
            return tuple(value)
        case _:
            raise CheckpointError(f"`eos_token_id` must be a token id or a list, not {value!r}")


def _refuse_unsupported(raw: Mapping[str, object]) -> None:
    for key, supported in MUST_BE.items():
        if key in raw and raw[key] not in supported:
            raise CheckpointError(
                f"config.json: `{key}` is {raw[key]!r}; supported is {supported[0]!r}"
            )
    layer_types = raw.get("layer_types") or []
    if not isinstance(layer_types, list) or set(layer_types) - {"full_attention"}:
        raise CheckpointError(
            f"config.json: `layer_types` is {layer_types!r}; supported is 'full_attention' alone"
        )


def _count(raw: Mapping[str, object], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None:
        value = default
    if value is None:
        raise CheckpointError(f"config.json: `{key}` is missing")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"config.json: `{key}` must be a positive integer, not {value!r}")
    return value


def _positive(raw: Mapping[str, object], key: str, default: float) -> float:
    value = raw.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise CheckpointError(f"config.json: `{key}` must be a positive number, not {value!r}")
    return float(value)


def _flag(raw: Mapping[str, object], key: str, default: bool) -> bool:
    value = raw.get(key, default)
    if not isinstance(value, bool):
        raise CheckpointError(f"config.json: `{key}` must be true or false, not {value!r}")
    return value


def _dtype(raw: Mapping[str, object]) -> str | None:
    value = raw.get("dtype") or raw.get("torch_dtype")  # the old and new names of one key
    if value is None or (isinstance(value, str) and value in ITEM_BYTES):
        return value
    raise CheckpointError(
        f"config.json: `dtype` is {value!r}; supported are {', '.join(ITEM_BYTES)}"
    )
