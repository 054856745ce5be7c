"""What the engine and its surroundings need to know about a loaded model."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.kv_layout import KvLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    architecture: str
    """As `config.json` names it."""
    vocab_size: int
    max_model_len: int
    """Tokens of prompt and output together that are served; some rotary positions depend on it."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end an output; may be empty."""
    dtype: str
    """Of weights, and of KV unless the cache is told otherwise, while serving."""
    quantize: str = "none"
    """What matrices are multiplied in instead: none, int8 or int4."""
    fingerprint: bytes
    """Equal only for equal architecture, weights, dtype and bits."""
    num_layers: int
    num_kv_heads: int
    head_dim: int

    def layout(self, block_size: int, kv_dtype: str = "auto") -> KvLayout:
        """`auto`: KV of the dtype that the model computes in."""
        return KvLayout(
            model_fingerprint=self.fingerprint,
            dtype=self.dtype if kv_dtype == "auto" else kv_dtype,
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size=block_size,
        )
