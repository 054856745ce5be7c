"""The least FLOPs and bytes of a forward pass, by part, from its shape.

    product      2 T K N FLOPs;  the weight once, x and y once
                 of experts: for every choice;  the weights of those chosen, if evenly
    attention    4 N H FLOPs for each pair of a token and one it sees;  their K and V once a request
                 of latents (latent_attention/latent_attention.py): they and what expands them once
    norms        each reads x and the residual, and writes both

T = tokens of the pass, S = those whose outputs are wanted. Everything is read once, as by a perfect
kernel. So a measured share of the limit is at most 1, except for data that a CPU cache holds from
one pass to the next, and for the head on a CPU, which is seldom read as a whole
(kernels/products/vocabulary_screen.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.kernels.latent_attention.latent_attention import multiplications
from baton.kernels.latent_attention.latent_heads import LatentShape
from baton.kernels.paging.window import Chunks, Streaming, Window, first_seen
from baton.platform.instruments.ceilings import Ceilings
from baton.platform.models.model_shape import AttentionShape, ModelShape, Part, Product

LOGIT_BYTES = 4
NORM_FLOPS = 5
"""A number: the sum, its square and their sum, two factors."""
ROTATION_FLOPS = 3
"""A number: two products and a sum."""
ACTIVATION_FLOPS = 6
"""A number that comes out gated: the order of magnitude of an exponential, a division, a factor."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one request, of which the last one's output is wanted."""

    num_tokens: int
    context: int
    """Tokens in the cache after the pass."""

    def num_pairs(self, window: Window) -> int:
        """Pairs of a new token and a token that it attends to, itself included."""
        if isinstance(window, Chunks):
            return self._pairs_within(window.size)
        if isinstance(window, Streaming):  # as many as if the first were of the window
            return self.num_pairs(window.size + window.num_first)
        first = self.context - self.num_tokens + 1  # what the first of them sees
        if window is None or self.context <= window:
            return (first + self.context) * self.num_tokens // 2
        if first >= window:
            return window * self.num_tokens
        num_short = window - first  # attend to less than a window
        return (first + window - 1) * num_short // 2 + window * (self.num_tokens - num_short)

    def _pairs_within(self, size: int) -> int:
        """Pairs within the first `size` tokens: all up to the context, less all before the
        chunk."""

        def up_to(end: int) -> int:
            whole, rest = divmod(end, size)
            return (whole * size * (size + 1) + rest * (rest + 1)) // 2

        return up_to(self.context) - up_to(self.context - self.num_tokens)

    def num_seen(self, window: Window) -> int:
        """Tokens whose K and V are read, within the window."""
        if isinstance(window, Streaming):
            return min(self.context, window.num_first + self.num_seen(window.size))
        if window is None or isinstance(window, Chunks):
            return self.context - first_seen(window, self.context - self.num_tokens)
        return min(self.context, window + self.num_tokens - 1)


@dataclass(frozen=True, slots=True)
class Work:
    flops: float = 0.0
    num_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.num_bytes + other.num_bytes)

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.num_bytes if self.num_bytes else 0.0


WorkByPart = Mapping[Part, Work]


def pass_work(shape: ModelShape, chunks: Sequence[Chunk]) -> WorkByPart:
    """Work of a pass by part, in the order of `Part`; a part that the model lacks is left out."""
    num_tokens, num_outputs = sum(chunk.num_tokens for chunk in chunks), len(chunks)
    work: dict[Part, Work] = {part: Work() for part in Part}
    for product in shape.products:
        is_of_outputs = product.is_of_outputs or product.part is Part.HEAD
        rows = num_outputs if is_of_outputs else num_tokens
        work[product.part] += product_work(product, rows, shape.item_bytes)
    for attention in shape.attentions:
        work[Part.ROPE] += rope_work(attention, num_tokens, shape.item_bytes)
        work[Part.ATTENTION] += attention_work(attention, chunks, shape.item_bytes)
    items = num_tokens * shape.width
    work[Part.EMBEDDING] = Work(0.0, 2 * items * shape.item_bytes)
    work[Part.NORMS] = norm_work(items * shape.num_norms, shape.item_bytes)
    num_logits = num_outputs * shape.vocab_size
    work[Part.SAMPLING] = Work(num_logits, num_logits * LOGIT_BYTES)
    return {part: one for part, one in work.items() if one.num_bytes}


def total(work: WorkByPart) -> Work:
    return sum(work.values(), start=Work())


def floor_s(work: WorkByPart, ceilings: Ceilings) -> float:
    """The least seconds of a pass: parts run one after the other, each with its own bound."""
    return sum(ceilings.floor_s(part, one.flops, one.num_bytes) for part, one in work.items())


def arithmetic_s(work: WorkByPart, ceilings: Ceilings) -> float:
    """Seconds of the pass's arithmetic alone."""
    return sum(one.flops / ceilings.rate(part) for part, one in work.items())


def norm_work(num_items: int, item_bytes: int) -> Work:
    return Work(NORM_FLOPS * num_items, 4 * num_items * item_bytes)


def product_work(product: Product, rows: int, item_bytes: int) -> Work:
    num_products = rows * product.num_choices
    flops = 2.0 * num_products * product.width * product.num_rows
    if product.is_gated:
        flops += ACTIVATION_FLOPS * num_products * product.num_written
    out_bytes = LOGIT_BYTES if product.part in (Part.HEAD, Part.ROUTER) else item_bytes
    moved = num_products * (product.width * item_bytes + product.num_written * out_bytes)
    return Work(flops, product.bytes_read(rows) + moved)


def rope_work(attention: AttentionShape, num_tokens: int, item_bytes: int) -> Work:
    """Reads q, k and v, rotates two of them, writes q; k and v become KV."""
    if attention.latent is not None:
        return _latent_write_work(attention, attention.latent, num_tokens, item_bytes)
    num_query = attention.num_heads * attention.head_dim
    num_kv = attention.num_kv_heads * attention.head_dim
    moved = item_bytes * (2 * num_query + 2 * num_kv) + attention.kv_token_bytes
    return Work(num_tokens * ROTATION_FLOPS * float(num_query + num_kv), num_tokens * float(moved))


def attention_work(attention: AttentionShape, chunks: Sequence[Chunk], item_bytes: int) -> Work:
    if attention.latent is not None and attention.num_chosen is not None:
        work = _chosen_work(attention, attention.latent, attention.num_chosen, chunks, item_bytes)
        return work + _index_work(attention, chunks, item_bytes)
    if attention.latent is not None:
        return _latent_work(attention, attention.latent, chunks, item_bytes)
    num_query = attention.num_heads * attention.head_dim
    pairs = sum(chunk.num_pairs(attention.window) for chunk in chunks)
    seen = sum(chunk.num_seen(attention.window) for chunk in chunks)
    num_tokens = sum(chunk.num_tokens for chunk in chunks)
    moved = seen * attention.kv_token_bytes + 2 * num_tokens * num_query * item_bytes
    return Work(4.0 * pairs * num_query, float(moved))


def _latent_write_work(
    attention: AttentionShape, latent: LatentShape, num_tokens: int, item_bytes: int
) -> Work:
    """Rotates a part of the queries, which is written anew, and of the latent; norms the rest."""
    turned = latent.rope_dim * (latent.num_heads + 1)
    flops = ROTATION_FLOPS * turned + NORM_FLOPS * latent.latent_dim
    moved = item_bytes * (2 * latent.rope_dim * latent.num_heads + latent.cached_dim)
    return Work(float(num_tokens * flops), float(num_tokens * (moved + attention.kv_token_bytes)))


def _latent_work(
    attention: AttentionShape, latent: LatentShape, chunks: Sequence[Chunk], item_bytes: int
) -> Work:
    """Work of latent attention (MLA), in the form with fewer multiplications, including the
    products between heads and latents."""
    flops = sum(
        2 * latent.num_heads * min(multiplications(latent, chunk.num_tokens, chunk.context))
        for chunk in chunks
    )
    read = sum(chunk.context for chunk in chunks) * attention.kv_token_bytes
    numbers = latent.num_heads * (latent.query_dim + latent.value_dim)
    moved = sum(chunk.num_tokens for chunk in chunks) * numbers * item_bytes
    return Work(float(flops), float(read + moved + attention.weight_bytes))


def _chosen_work(
    attention: AttentionShape,
    latent: LatentShape,
    num_chosen: int,
    chunks: Sequence[Chunk],
    item_bytes: int,
) -> Work:
    """Work in the absorbed form, in which each token reads the tokens chosen for it."""
    num_tokens = sum(chunk.num_tokens for chunk in chunks)
    pairs = sum(chunk.num_pairs(num_chosen) for chunk in chunks)
    making = latent.latent_dim * (latent.nope_dim + latent.value_dim)
    of_head = pairs * (latent.latent_dim + latent.cached_dim) + num_tokens * making
    moved = num_tokens * latent.num_heads * (latent.query_dim + latent.value_dim) * item_bytes
    num_bytes = pairs * attention.kv_token_bytes + moved + attention.weight_bytes
    return Work(2.0 * latent.num_heads * of_head, float(num_bytes))


def _index_work(attention: AttentionShape, chunks: Sequence[Chunk], item_bytes: int) -> Work:
    """Work of the index: scores of all visible tokens, where more are visible than chosen."""
    index = attention.index
    if index is None:
        return Work()
    scored = [chunk for chunk in chunks if chunk.context > index.num_chosen]
    pairs = sum(chunk.num_pairs(None) for chunk in scored)
    keys = sum(chunk.context for chunk in scored) * index.head_dim * item_bytes
    return Work(2.0 * pairs * index.num_heads * index.head_dim, float(keys))
