"""How a replica stores KV: enough to place every byte of every block.

    arena of one layer:  [blocks][KV heads][2][block size][head dim]
                                           ^ K, then V

K and V of one (block, head) are contiguous: the *unit*, which a checksum covers and which a
tensor-parallel slice takes whole.
"""

from __future__ import annotations

from dataclasses import dataclass

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    model_fingerprint: bytes
    """Equal only for equal architecture and weights."""
    dtype: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    """Tokens per block."""

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"KV of dtype {self.dtype!r}; known are {', '.join(ITEM_BYTES)}")

    @property
    def unit_bytes(self) -> int:
        """K and V of one block and one head in one layer."""
        return 2 * self.block_size * self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def layer_block_bytes(self) -> int:
        """One block in one layer, all heads."""
        return self.num_kv_heads * self.unit_bytes

    @property
    def block_bytes(self) -> int:
        """One block, all layers and heads."""
        return self.num_layers * self.layer_block_bytes

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
