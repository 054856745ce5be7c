"""The kernels that are timed: their inputs, and the bytes and FLOPs they need at least.

The shapes are those of one layer of Qwen3-0.6B; weights and KV of cases with few rows are larger
than the CPU's caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from baton.core.kv_layout import KvLayout
from baton.engine.batch.static_batch import PassLimits
from baton.engine.memory.kv_cache import KvCache
from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.cpu import tape as tapes
from baton.kernels.cpu.operators import Pass
from baton.kernels.paging.sequences import Sequences
from baton.kernels.products import int4_weight, int8_weight, packed_weight
from baton.kernels.products.linear import linear
from baton.kernels.products.low_rank import LowRank, add_low_rank_
from baton.kernels.products.vocabulary_screen import VocabularyScreen
from baton.kernels.products.weight import PreparedWeight

WIDTH, NUM_OUTPUTS, LARGE_OUTPUTS = 1024, 6144, 16 * 6144
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK = 16, 8, 128, 16
ROWS = (1, 4, 8, 16, 32, 512)
GREEDY_ROWS = (1, 4, 16, 32)
QKV, RANK = (2048, 1024, 1024), 16
UPDATES = ((1, 1), (32, 1), (32, 32), (512, 1))
"""Rows with low-rank updates, and adapters of them."""
FEW_ROWS = 32
"""With up to so many rows a product is bound by reading its weight from memory."""
WRITE_TOKENS = 1024
PACKERS: dict[str, Callable[..., PreparedWeight]] = {
    "bf16": packed_weight.pack,
    "int8": int8_weight.quantize,
    "int4": int4_weight.quantize,
}
KV_DTYPES = {"bf16": "auto", "int8": "int8", "fp8": "fp8", "int4": "int4"}
CONTEXTS = ((8, 4096, 1), (1, 32768, 1), (1, 32768, 32), (1, 512, 512), (1, 2048, 2048))
"""Requests, context of each, and new tokens of each."""
LONG = 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    arithmetic: str
    """The dtype that is multiplied: bf16 or int8."""
    num_bytes: float
    flops: float
    make: Callable[[], Callable[[], object]]
    """Prepares the inputs, and returns the function that is timed."""
    num_threads: int = 1


def cases() -> Iterator[Case]:
    for kind in PACKERS:
        for rows in ROWS:
            yield _product(kind, rows)
    for rows in GREEDY_ROWS:
        yield _greedy(rows)
    for rows, adapters in UPDATES:
        yield _low_rank(rows, adapters)
        if adapters == 1:
            yield _base_product(rows)
    for kind in KV_DTYPES:
        for requests, context, new in CONTEXTS:
            yield _attention(kind, requests, context, new)
    for kind in KV_DTYPES:
        yield _attention(kind, 1, LONG, 1, num_threads=2)


def _product(kind: str, rows: int) -> Case:
    outputs = LARGE_OUTPUTS if rows <= FEW_ROWS else NUM_OUTPUTS

    def make() -> Callable[[], object]:
        weight, x = _weight(kind, outputs), torch.randn(rows, WIDTH).bfloat16()
        return lambda: linear(x, weight)

    bits = {"bf16": 16, "int8": 8, "int4": 4.5}[kind]
    return Case(
        name=f"product {kind}, {rows} rows",
        arithmetic="bf16" if kind == "bf16" else "int8",
        num_bytes=outputs * WIDTH * bits / 8,
        flops=2.0 * rows * outputs * WIDTH,
        make=make,
    )


def _greedy(rows: int) -> Case:
    """The best token of each row, beside the bounds of computing all logits for it."""

    def make() -> Callable[[], object]:
        head = packed_weight.pack(torch.randn(LARGE_OUTPUTS, WIDTH).bfloat16())
        screen, x = VocabularyScreen(head), torch.randn(rows, WIDTH).bfloat16()
        return lambda: screen.tokens(x)

    return Case(
        name=f"greedy token bf16, {rows} rows",
        arithmetic="bf16",
        num_bytes=LARGE_OUTPUTS * WIDTH * 2,
        flops=2.0 * rows * LARGE_OUTPUTS * WIDTH,
        make=make,
    )


def _low_rank(rows: int, adapters: int) -> Case:
    """Updates of as many weights as `_base_product` multiplies by, larger together than the CPU's
    caches. They are on a tape, since Python would take as long as an update of one row."""
    count = _num_weights(rows)

    def make() -> Callable[[], object]:
        num_tensors = count // adapters if rows <= FEW_ROWS else 1
        updates = [
            LowRank(
                torch.randn(adapters, len(QKV), RANK, WIDTH).bfloat16(),
                torch.randn(adapters, RANK, sum(QKV)).bfloat16() / 1024,
                QKV,
            )
            for _ in range(num_tensors)
        ]
        num_tokens = tapes.NUM_TOKENS
        x = torch.randn(max(rows, num_tokens), WIDTH).bfloat16()
        y = torch.zeros(num_tokens, sum(QKV)).bfloat16()
        numbers = torch.arange(len(x)) % adapters + 1
        with tapes.Recorder() as recorder:
            for i in range(count):
                add_low_rank_(y, x[:num_tokens], updates[i % num_tensors], numbers)
        tape = recorder.tape(y, max_tokens=len(x), max_outputs=1)
        return lambda: tape.play(Pass(num_tokens=rows))

    items = RANK * (len(QKV) * WIDTH + sum(QKV))
    return Case(
        name=f"low_rank bf16, {rows} rows, {adapters} adapters, {count} weights",
        arithmetic="bf16",
        num_bytes=2.0 * count * adapters * items,
        flops=2.0 * count * rows * items,
        make=make,
    )


def _base_product(rows: int) -> Case:
    count = _num_weights(rows)

    def make() -> Callable[[], object]:
        packed = [
            packed_weight.pack(torch.randn(sum(QKV), WIDTH).bfloat16())
            for _ in range(min(count, 8))
        ]
        x = torch.randn(rows, WIDTH).bfloat16()
        return lambda: [linear(x, packed[i % len(packed)]) for i in range(count)]

    return Case(
        name=f"low_rank base product, {rows} rows, {count} weights",
        arithmetic="bf16",
        num_bytes=2.0 * count * sum(QKV) * WIDTH,
        flops=2.0 * count * rows * sum(QKV) * WIDTH,
        make=make,
    )


def _num_weights(rows: int) -> int:
    return 256 if rows <= FEW_ROWS else 4


@cache
def _weight(kind: str, outputs: int) -> PreparedWeight:
    """A large weight made of copies of one small one, since only its size matters."""
    return PACKERS[kind](
        torch.randn(NUM_OUTPUTS, WIDTH).bfloat16().repeat(outputs // NUM_OUTPUTS, 1)
    )


def _attention(kind: str, requests: int, context: int, new: int, *, num_threads: int = 1) -> Case:
    layout = KvLayout(
        model_fingerprint=b"bench",
        dtype="bfloat16" if kind == "bf16" else KV_DTYPES[kind],
        num_layers=1,
        num_kv_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        block_size=BLOCK,
    )

    def make() -> Callable[[], object]:
        layer = _layer(layout)
        q = torch.randn(requests * new, NUM_HEADS, HEAD_DIM).bfloat16()
        sequences = _sequences(requests, context, new)
        return lambda: layer.attend(q, sequences)

    seen = requests * sum(range(context - new + 1, context + 1))
    what = "decode" if new == 1 else "prefill" if new == context else f"{new} new"
    threads = "" if num_threads == 1 else f", {num_threads} threads"
    return Case(
        name=f"attention {kind}, {what}, {requests} x {context}{threads}",
        arithmetic="bf16",
        num_bytes=requests * context * layout.layer_block_bytes / BLOCK,
        flops=4.0 * seen * NUM_HEADS * HEAD_DIM,
        make=make,
        num_threads=num_threads,
    )


@cache
def _layer(layout: KvLayout) -> LayerKv:
    """A layer's cache with random KV in all blocks."""
    limits = PassLimits(max_tokens=LONG, max_requests=8)
    cache = KvCache(layout, LONG // BLOCK, dtype="bfloat16", limits=limits)
    [layer] = cache.layers
    assert isinstance(layer, LayerKv)
    for end in range(WRITE_TOKENS, LONG + 1, WRITE_TOKENS):
        qkv = torch.randn(WRITE_TOKENS, NUM_HEADS + 2 * NUM_KV_HEADS, HEAD_DIM)
        layer.write(qkv.bfloat16(), _sequences(1, end, WRITE_TOKENS))
    return layer


def _sequences(requests: int, context: int, new: int) -> Sequences:
    """Requests whose blocks follow each other in the cache."""
    blocks = torch.arange(requests * context // BLOCK)
    return Sequences(
        num_requests=requests,
        positions=torch.arange(context - new, context).repeat(requests),
        query_starts=torch.arange(requests + 1) * new,
        context_lens=torch.full((requests,), context),
        block_tables=blocks.view(requests, -1),
        block_size=BLOCK,
        max_query_len=new,
        max_context_len=context,
        open_slots=torch.arange(requests),
    )


def limits() -> dict[str, Callable[[], object]]:
    """Torch's product by dtype, which bounds FLOPs; see `MM`."""
    x = torch.randn(MM[0], MM[1]).bfloat16()
    weight = torch.randn(MM[2], MM[1]).bfloat16()
    eight = [torch.randint(-127, 128, tensor.shape, dtype=torch.int8) for tensor in (x, weight)]
    return {
        "bf16": lambda: torch.mm(x, weight.t()),
        "int8": lambda: torch._int_mm(eight[0], eight[1].t()),
    }


MM = (512, 1024, 4096)
"""Rows, K and N."""


def probe() -> Tensor:
    return torch.ones((256 << 20) // 8, dtype=torch.int64)
