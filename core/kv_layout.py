"""How a replica stores KV: enough to place every byte of every block.

    arena of one layer:  [blocks][KV heads][2][block size][head dim]        K, then V
    or, of latents:      [blocks][1]       [1][block size][latent width]    both at once

K and V of one (block, head) are contiguous: the *unit*, which a checksum covers and which a
tensor-parallel slice takes whole. Where items are quantized, their scales follow within the unit:

    items [2][block size][head dim], scales [2][block size] float32, zeros up to 64 bytes

Latent attention (DeepSeek) keeps one vector a token, which all heads make their keys and values of:
the compressed part, and behind it the part that turns. It cannot be split into heads, so each
tensor-parallel rank holds all of it, and any sender serves any receiver.
"""

from __future__ import annotations

from dataclasses import dataclass

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3fn": 1}
QUANTIZED = frozenset(("int8", "float8_e4m3fn"))
"""One scale for each token and head, of K and of V: item * scale is what was stored."""
WIDE = tuple(dtype for dtype in ITEM_BYTES if dtype not in QUANTIZED)
"""What models compute in, and keep as it is."""
SCALE_BYTES = 4
UNIT_ALIGNMENT = 64
"""Bytes; of units with scales. Others are as long as their items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    model_fingerprint: bytes
    """Equal only for equal architecture and weights."""
    dtype: str
    num_layers: int
    num_kv_heads: int
    """1 of latents: all heads read the same."""
    head_dim: int
    """Items of a vector; of a latent, with the part that turns."""
    block_size: int
    """Tokens per block."""
    first_kv_head: int = 0
    """The model's number of the first head held here: a tensor-parallel rank holds some of them."""
    num_vectors: int = 2
    """Of a token and head: a key and a value, or 1, a latent that is both."""

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"KV of dtype {self.dtype!r}; known are {', '.join(ITEM_BYTES)}")
        sizes = (self.num_layers, self.num_kv_heads, self.head_dim, self.block_size)
        if min(sizes) < 1 or self.first_kv_head < 0 or self.num_vectors not in (1, 2):
            raise ValueError(f"impossible sizes of KV: {self}")
        if self.is_latent and (self.stop_kv_head != 1 or self.has_scales):
            raise ValueError(f"latents are of one head, and kept as wide as they are: {self}")

    @property
    def is_latent(self) -> bool:
        return self.num_vectors == 1

    @property
    def has_scales(self) -> bool:
        return self.dtype in QUANTIZED

    @property
    def stop_kv_head(self) -> int:
        """The model's number of the first head after those held here."""
        return self.first_kv_head + self.num_kv_heads

    @property
    def token_bytes(self) -> int:
        """The items of one vector: of one token, of K or of V, of one head in one layer."""
        return self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def items_bytes(self) -> int:
        """All items of a unit; its scales, if there are any, begin behind them."""
        return self.num_vectors * self.block_size * self.token_bytes

    @property
    def unit_bytes(self) -> int:
        """All vectors of one block and one head in one layer."""
        if not self.has_scales:
            return self.items_bytes
        num_bytes = self.items_bytes + self.num_vectors * self.block_size * SCALE_BYTES
        return -(-num_bytes // UNIT_ALIGNMENT) * UNIT_ALIGNMENT

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
