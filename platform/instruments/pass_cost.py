"""What a forward pass has to compute and to move at least, part by part, by its shape alone.

    product      2 T K N FLOPs;  the weight once, x and y once
    attention    4 N H FLOPs for each pair of a token and one it sees;  their K and V once a request
    norms        each reads x and the residual, and writes both

T = tokens of the pass, S = those whose outputs are wanted. What caches save is saved: everything is
read once. So these are the least that a perfect kernel needs, and time over them is a share of the
limit and never more than one, but for what a cache holds from one pass to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.platform.instruments.ceilings import Ceilings
from baton.platform.instruments.model_shape import AttentionShape, ModelShape, Part, Product

LOGIT_BYTES = 4
NORM_FLOPS = 5
"""A number: the sum, its square and their sum, two factors."""
ROTATION_FLOPS = 3
"""A number: two products and a sum."""
ACTIVATION_FLOPS = 6
"""A number that comes out gated: the order of magnitude of an exponential, a division, a factor."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one request, the last of which is wanted."""

    num_tokens: int
    context: int
    """Tokens in the cache after the pass."""

    def num_pairs(self, window: int | None) -> int:
        """Of a new token and one that it sees, itself included."""
        first = self.context - self.num_tokens + 1  # what the first of them sees
        if window is None or self.context <= window:
            return (first + self.context) * self.num_tokens // 2
        if first >= window:
            return window * self.num_tokens
        num_short = window - first  # see less than a window
        return (first + window - 1) * num_short // 2 + window * (self.num_tokens - num_short)

    def num_seen(self, window: int | None) -> int:
        """Tokens whose K and V are read."""
        if window is None:
            return self.context
        return min(self.context, window + self.num_tokens - 1)


@dataclass(frozen=True, slots=True)
class Work:
    flops: float = 0.0
    num_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.num_bytes + other.num_bytes)

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.num_bytes if self.num_bytes else 0.0


WorkByPart = Mapping[Part, Work]


def pass_work(shape: ModelShape, chunks: Sequence[Chunk]) -> WorkByPart:
    """In the order of `Part`; a part that the model has not is left out."""
    num_tokens, num_outputs = sum(chunk.num_tokens for chunk in chunks), len(chunks)
    work: dict[Part, Work] = {part: Work() for part in Part}
    for product in shape.products:
        rows = num_outputs if product.part is Part.HEAD else num_tokens
        work[product.part] += _product_work(product, rows, shape.item_bytes)
    for attention in shape.attentions:
        work[Part.ROPE] += _rope_work(attention, num_tokens, shape.item_bytes)
        work[Part.ATTENTION] += _attention_work(attention, chunks, shape.item_bytes)
    items = num_tokens * shape.width
    work[Part.EMBEDDING] = Work(0.0, 2 * items * shape.item_bytes)
    work[Part.NORMS] = Work(
        NORM_FLOPS * items * shape.num_norms, 4 * items * shape.item_bytes * shape.num_norms
    )
    num_logits = num_outputs * shape.vocab_size
    work[Part.SAMPLING] = Work(num_logits, num_logits * LOGIT_BYTES)
    return {part: one for part, one in work.items() if one.num_bytes}


def total(work: WorkByPart) -> Work:
    return sum(work.values(), start=Work())


def floor_s(work: WorkByPart, ceilings: Ceilings) -> float:
    """The least time of a pass: parts follow each other, so each has its own bound."""
    return sum(ceilings.floor_s(one.flops, one.num_bytes) for one in work.values())


def _product_work(product: Product, rows: int, item_bytes: int) -> Work:
    flops = 2.0 * rows * product.width * product.num_rows
    if product.is_gated:
        flops += ACTIVATION_FLOPS * rows * product.num_written
    out_bytes = LOGIT_BYTES if product.part is Part.HEAD else item_bytes
    moved = rows * (product.width * item_bytes + product.num_written * out_bytes)
    return Work(flops, product.num_bytes + moved)


def _rope_work(attention: AttentionShape, num_tokens: int, item_bytes: int) -> Work:
    """Reads q, k and v, rotates two of them, writes q; k and v become KV."""
    num_query = attention.num_heads * attention.head_dim
    num_kv = attention.num_kv_heads * attention.head_dim
    moved = item_bytes * (2 * num_query + 2 * num_kv) + attention.kv_token_bytes
    return Work(num_tokens * ROTATION_FLOPS * float(num_query + num_kv), num_tokens * float(moved))


def _attention_work(attention: AttentionShape, chunks: Sequence[Chunk], item_bytes: int) -> Work:
    num_query = attention.num_heads * attention.head_dim
    pairs = sum(chunk.num_pairs(attention.window) for chunk in chunks)
    seen = sum(chunk.num_seen(attention.window) for chunk in chunks)
    num_tokens = sum(chunk.num_tokens for chunk in chunks)
    moved = seen * attention.kv_token_bytes + 2 * num_tokens * num_query * item_bytes
    return Work(4.0 * pairs * num_query, float(moved))
