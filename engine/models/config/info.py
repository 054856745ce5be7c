"""Facts about a loaded model for the engine and others."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.errors import InvalidConfig
from baton.core.kv_layout import INT4, QUANTIZED, KvLayout, SideCache


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    architecture: str
    """The architecture as `config.json` names it."""
    vocab_size: int
    max_model_len: int
    """Tokens of prompt and output together that are served; some rotary positions depend on it."""
    eos_token_ids: tuple[int, ...]
    """End-of-sequence tokens; may be empty."""
    dtype: str
    """The dtype of weights, and of KV unless the cache is told otherwise, while serving."""
    num_labels: int | None = None
    """The labels of a classifier; None: the model generates."""
    quantize: str = "none"
    """Quantisation of matrices: none, int8 or int4."""
    fingerprint: bytes
    """Equal only for equal architecture, weights, dtype and bits."""
    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_vectors: int = 2
    """The vectors of a token and KV head: a key and a value, or a latent that is both."""
    side_caches: tuple[SideCache, ...] = ()
    """Side caches of the layers."""
    adapters: tuple[str, ...] = ()
    """Names of the adapters (LoRA) that requests may ask for."""

    @property
    def num_logits(self) -> int:
        """Logits of a position: one for each label, or each token of the vocabulary."""
        return self.num_labels or self.vocab_size

    def layout(self, block_size: int, kv_dtype: str = "auto") -> KvLayout:
        """The KV layout. `auto`: KV in the compute dtype. Raises InvalidConfig for an unsupported
        KV dtype.
        """
        check_kv_dtype(kv_dtype, self.num_vectors)
        return KvLayout(
            model_fingerprint=self.fingerprint,
            dtype=self.dtype if kv_dtype == "auto" else kv_dtype,
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size=block_size,
            num_vectors=self.num_vectors,
            side_caches=self.side_caches,
        )


def check_kv_dtype(kv_dtype: str, num_vectors: int) -> None:
    """Raise InvalidConfig for quantised latents, whose error would affect all heads."""
    if num_vectors == 1 and kv_dtype in (*QUANTIZED, INT4):
        raise InvalidConfig(
            f"cache.kv_dtype {kv_dtype}: the latents of multi-head latent attention are not "
            "quantised; set it to auto"
        )
