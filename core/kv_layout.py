"""The layout of a replica's KV: enough to locate every byte of every block.

    arena of one layer:  [blocks][KV heads][2][block size][head dim]        K, then V
    or, for latents:     [blocks][1]       [1][block size][latent width]    both at once

K and V of one (block, head) are contiguous: the *unit*, which a checksum covers, and which a
tensor-parallel rank stores as a whole. If items are quantized, their scales follow within the unit:

    items [2][block size][head dim], scales [2][block size] float32, zeros up to 64 bytes
    of int4:  items, scales of K [head dim], zeros of K [head dim], scales of V [block size],
              zeros of V [block size] float16, zeros up to 64 bytes

Latent attention (DeepSeek) stores one vector per token, from which all heads derive their keys and
values: the compressed part, followed by the rotated part. It cannot be split into heads, so each
tensor-parallel rank stores all of it, and any sender serves any receiver.

Some layers may store more per token: keys of an index, say (DeepSeek V3.2). Each kind of such data
is a *side cache*. A block has bytes in each *plane*: the KV of a layer, and its side caches after
it,

    planes   KV of layer 0 | its side cache | KV of layer 1 | KV of layer 2 | its side cache ...

and a plane has the layout of the KV of a model with one layer, with its own vectors. Code that
moves blocks iterates over planes, and need not know what they are.

The last plane may hold the *features* of each token, which a draft head reads. They are optional.
Between two layouts that differ in them only, KV can be handed over, but features cannot: a row of
zeros means that there are none for this token.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1}
QUANTIZED = frozenset(("int8", "fp8"))
"""One scale for each token and head, of K and of V: item * scale is what was stored. `fp8` is e4m3,
torch.float8_e4m3fn."""
INT4 = "int4"
"""A block is quantized to 4 bits once it is full: keys have a scale and a zero for each dimension
of the head, values for each token, in float16 (kernels/paging/int4_block.py). Tokens after the last
full block are stored only by the replica that computes them."""
INT4_STEP_BYTES = 2
WIDE = tuple(dtype for dtype in ITEM_BYTES if dtype not in QUANTIZED)
"""Dtypes in which models compute, and which are stored unquantized."""
SCALE_BYTES = 4
UNIT_ALIGNMENT = 64
"""Bytes; of units with scales. Others are as long as their items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideCache:
    """One vector per token that some layers store in addition to their KV.

    All heads share it, so each tensor-parallel rank stores all of it.
    """

    name: str
    layers: tuple[int, ...]
    """Ascending."""
    width: int
    """Items of a vector."""
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in WIDE:
            raise ValueError(f"vectors of side cache {self.name!r} of dtype {self.dtype!r}")
        is_ascending = list(self.layers) == sorted({*self.layers})
        if not self.layers or min(self.layers) < 0 or not is_ascending:
            raise ValueError(f"layers of side cache {self.name!r}: {self.layers}")
        if self.width < 1:
            raise ValueError(f"vectors of side cache {self.name!r} of width {self.width}")


OUTPUTS = "outputs of the model"
"""The kind of features that heads take as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFeatures:
    """One vector per token that a draft head reads (MTP, EAGLE), in addition to the KV of all
    layers."""

    kind: str
    """Equal only for equal vectors, of one model."""
    width: int
    """Items of a vector."""
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in WIDE or self.width < 1 or not self.kind:
            raise ValueError(f"impossible features: {self}")

    @property
    def token_bytes(self) -> int:
        return self.width * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True)
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
    """Vectors of a token and head: a key and a value, or 1, a latent that is both."""
    side_caches: tuple[SideCache, ...] = ()
    """Data that layers store in addition. The sizes above, and below up to a block, do not include
    it."""
    features: DraftFeatures | None = None
    """The last plane; None: there is none."""

    def __post_init__(self) -> None:
        if self.dtype not in (*ITEM_BYTES, INT4):
            known = ", ".join((*ITEM_BYTES, INT4))
            raise ValueError(f"KV of dtype {self.dtype!r}; known are {known}")
        sizes = (self.num_layers, self.num_kv_heads, self.head_dim, self.block_size)
        if min(sizes) < 1 or self.first_kv_head < 0 or self.num_vectors not in (1, 2):
            raise ValueError(f"impossible sizes of KV: {self}")
        if self.is_latent and (self.stop_kv_head != 1 or self.has_scales or self.is_int4):
            raise ValueError(f"latents are of one head, and kept as wide as they are: {self}")
        if self.is_int4 and self.head_dim % 2:
            raise ValueError(f"4 bits an item, two a byte, of heads of odd width: {self}")
        for side in self.side_caches:
            if side.layers[-1] >= self.num_layers:
                raise ValueError(f"{side} does not fit {self.num_layers} layers")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Layouts are looked up for each transfer, and never change."""
        return hash(tuple(getattr(self, each.name) for each in fields(self)))

    def __getstate__(self) -> dict[str, object]:
        """Cached properties are not pickled, as strings have other hashes in other processes."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def is_latent(self) -> bool:
        return self.num_vectors == 1

    @property
    def has_scales(self) -> bool:
        """One for each vector."""
        return self.dtype in QUANTIZED

    @property
    def is_int4(self) -> bool:
        """Whether a block is written when it is full, and then as a whole."""
        return self.dtype == INT4

    @property
    def stop_kv_head(self) -> int:
        """The model's number of the first head after those held here."""
        return self.first_kv_head + self.num_kv_heads

    @property
    def token_bytes(self) -> int:
        """The items of one vector: of one token, of K or of V, of one head in one layer."""
        return self.head_dim // 2 if self.is_int4 else self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def items_bytes(self) -> int:
        """All items of a unit; its scales, if there are any, begin behind them."""
        return self.num_vectors * self.block_size * self.token_bytes

    @cached_property
    def unit_bytes(self) -> int:
        """All vectors of one block and one head in one layer."""
        if self.is_int4:
            steps = 2 * (self.head_dim + self.block_size)  # scales and zeros, of K and of V
            num_bytes = self.items_bytes + steps * INT4_STEP_BYTES
        elif self.has_scales:
            num_bytes = self.items_bytes + self.num_vectors * self.block_size * SCALE_BYTES
        else:
            return self.items_bytes
        return -(-num_bytes // UNIT_ALIGNMENT) * UNIT_ALIGNMENT

    @cached_property
    def layer_block_bytes(self) -> int:
        """One block in one layer, all heads."""
        return self.num_kv_heads * self.unit_bytes

    @cached_property
    def planes(self) -> tuple[KvLayout, ...]:
        """Each as if there were nothing else."""
        own = replace(self, num_layers=1, side_caches=(), features=None)
        of_layers = tuple(
            own if side is None else _plane_of(side, self)
            for layer in range(self.num_layers)
            for side in (None, *self.side_caches_of(layer))
        )
        return of_layers if self.features is None else (*of_layers, _plane_of(self.features, self))

    @property
    def num_planes(self) -> int:
        num_of_sides = sum(len(side.layers) for side in self.side_caches)
        return self.num_layers + num_of_sides + (self.features is not None)

    def planes_of(self, layer: int) -> range:
        """The numbers of a layer's planes: of its KV first, then of its side caches.

        What is behind the last layer, `num_layers`, are the features, where there are any.
        """
        if layer == self.num_layers:
            return range(self.num_planes - (self.features is not None), self.num_planes)
        first = layer + sum(sum(each < layer for each in side.layers) for side in self.side_caches)
        return range(first, first + 1 + len(self.side_caches_of(layer)))

    def side_caches_of(self, layer: int) -> tuple[SideCache, ...]:
        return tuple(side for side in self.side_caches if layer in side.layers)

    @cached_property
    def block_bytes(self) -> int:
        """One block, all planes and heads."""
        return sum(plane.layer_block_bytes for plane in self.planes)

    @property
    def feature_bytes(self) -> int:
        """The bytes of `block_bytes` that are features, per block."""
        return 0 if self.features is None else self.features.token_bytes * self.block_size

    def num_lasting(self, num_tokens: int) -> int:
        """How many of a request's first tokens, all computed, others find in its blocks."""
        return num_tokens - num_tokens % self.block_size if self.is_int4 else num_tokens

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def carries_features_of(self, other: KvLayout) -> bool:
        """Whether both have features, and the same, if perhaps in another dtype."""
        ours, theirs = self.features, other.features
        if ours is None or theirs is None:
            return False
        return (ours.kind, ours.width) == (theirs.kind, theirs.width)


def _plane_of(side: SideCache | DraftFeatures, layout: KvLayout) -> KvLayout:
    return KvLayout(
        model_fingerprint=layout.model_fingerprint,
        dtype=side.dtype,
        num_layers=1,
        num_kv_heads=1,
        head_dim=side.width,
        block_size=layout.block_size,
        num_vectors=1,
    )
