"""Measures the GPU memory of passes, besides weights and KV, before the KV cache is allocated.

    free               after the weights are loaded
      - activations    of the largest passes, with sampling: as many tokens as a pass may have, of
                       many requests, of one, or of drafts, each at the longest context
      - graphs         of the sizes that fit their budget (`baton.engine.passes.graph_sizes`)
      = left           of which `cache.memory_fraction` becomes KV

Both are measured over a scratch cache, which is freed before the real one is allocated. `Device`
wraps the CUDA calls, so that the rest can be tested without a GPU. Tensor ranks measure together,
each on its own device, and capture what fits on all of them. In addition passes of all kinds are
run once, because kernels are compiled and libraries make plans on first use, and requests would
wait for that (`baton.engine.passes.warm_up`). Where the communication in a pass depends on more
than its shape (`Mesh.has_steady_passes`), activations are estimated instead, and there are no
graphs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from baton.core.errors import InvalidConfig
from baton.core.kv_layout import KvLayout
from baton.core.sampling import SamplingParams
from baton.engine.batch.batch import Chunk, ignore_layer, make_batch
from baton.engine.batch.static_batch import GraphSize, PassLimits, StaticBatch
from baton.engine.checkpoint.load import LoadedModel
from baton.engine.layers.linear import Linear
from baton.engine.layers.moe import MoeFeedForward
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh.attempt import collective_attempt, gather_numbers
from baton.engine.mesh.ranks import Ranks
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.captured_model import CapturedModel
from baton.engine.passes.graph_capture import Capture, CudaCapture, free_bytes
from baton.engine.passes.graph_sizes import (
    MAX_GRAPH_BYTES,
    GraphCosts,
    mixed_sizes_within,
    sizes_within,
)
from baton.engine.passes.graph_start import MIXED_ARE_SLOW, TriedCosts, try_graphs
from baton.engine.passes.warm_up import warm_up_passes
from baton.engine.sampling.sampler import draw
from baton.engine.sampling.sampling_plan import SamplingPlan
from baton.engine.sampling.sampling_row import SamplingRow
from baton.kernels.paging.sequences import MAX_RUN

DRAWN = SamplingParams(temperature=1.0, top_p=0.9)
"""Sampling parameters that need the most memory, as scores are filtered."""
COPIES_OF_LOGITS = 4
"""In the estimate: float32 copies of the logits that exist at once while sampling."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassMemory:
    """GPU memory of passes, and the graphs that it allows for."""

    activation_bytes: int = 0
    graph_bytes: int = 0
    graph_sizes: tuple[GraphSize, ...] = ()
    """The decode passes to capture."""
    mixed_sizes: tuple[int, ...] = ()
    """The passes with prompts to capture, by number of tokens."""

    @property
    def num_bytes(self) -> int:
        return self.activation_bytes + self.graph_bytes


class Device(Protocol):
    """The device calls that measuring needs."""

    def free_bytes(self) -> int:
        """The free bytes of the device, with nothing cached by the allocator."""

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """How many more bytes than before are allocated at most while `run` runs."""

    def scratch(
        self, layout: KvLayout, num_blocks: int, dtype: str, *, is_deterministic: bool
    ) -> KvCache:
        """A temporary cache with a spare block."""

    def capture(self) -> Capture: ...


class CudaDevice:
    """A `Device` on CUDA."""

    def __init__(self, name: str) -> None:
        self._device = torch.device(name)

    def free_bytes(self) -> int:
        return free_bytes(self._device)

    def peak_bytes(self, run: Callable[[], None]) -> int:
        self.free_bytes()
        before = torch.cuda.memory_reserved(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device) - before

    def scratch(
        self, layout: KvLayout, num_blocks: int, dtype: str, *, is_deterministic: bool
    ) -> KvCache:
        return KvCache(
            layout, num_blocks, self._device, dtype=dtype, is_deterministic=is_deterministic
        )

    def capture(self) -> Capture:
        return CudaCapture(self._device)


@torch.inference_mode()
def measure(
    loaded: LoadedModel,
    layout: KvLayout,
    limits: PassLimits,
    device: Device,
    taps: AuxHiddenStates | None = None,
) -> PassMemory:
    """The memory of this rank's passes over KV of `layout`. `taps` are the hidden states that
    graphs copy out. A collective over the ranks of an engine. Raises InvalidConfig on all ranks if
    the largest pass does not fit."""
    mesh, ranks = loaded.groups.mesh, loaded.groups.engine
    if not mesh.has_steady_passes:
        return PassMemory(activation_bytes=estimated_bytes(loaded, limits))
    passes = largest_passes(limits, layout.block_size, loaded.info.max_model_len)
    small_passes = warm_up_passes(limits, layout.block_size, loaded.info.max_model_len)
    every = [*passes, *small_passes]
    blocks = {block for chunks in every for chunk in chunks for block in chunk.blocks}
    cache = device.scratch(
        layout, max(blocks) + 1, loaded.info.dtype, is_deterministic=loaded.is_deterministic
    )

    def compute(chunks: Sequence[Chunk]) -> Tensor:
        with collective_attempt(ranks):
            batch = make_batch(chunks, layout.block_size, cache.device)
            logits: Tensor = loaded.model.logits(loaded.model(batch, cache.layers, ignore_layer))
        return logits

    def run(chunks: Sequence[Chunk]) -> None:
        logits = compute(chunks)
        if loaded.info.num_labels is not None:
            return  # nothing is drawn
        rows = [SamplingRow(DRAWN, (0,), ()) for _ in range(len(logits))]
        # Drafts are verified by the published rule, which needs the most memory.
        drafted = [0] * (len(logits) - 1) if limits.max_drafted else ()
        with collective_attempt(ranks):
            draw(logits, SamplingPlan(rows, cache.device, drafted), loaded.info.eos_token_ids)

    try:
        for chunks in small_passes:
            compute(chunks)
        activation_bytes = max(device.peak_bytes(partial(run, chunks)) for chunks in passes)
    except torch.OutOfMemoryError as error:
        raise InvalidConfig(
            f"a pass of {limits.max_tokens} tokens of {limits.max_requests} requests does not fit "
            f"beside the weights ({error}); lower scheduler.max_batch_tokens or "
            "scheduler.max_running"
        ) from error
    if not loaded.model.is_capturable or cache.spare_block is None:
        return PassMemory(activation_bytes=activation_bytes)
    has_adapters = loaded.model.adapters.exist
    batch = StaticBatch(limits, layout.block_size, cache.device, has_adapters=has_adapters)
    captured = CapturedModel(loaded.model, cache, cache.spare_block, device.capture(), taps, ranks)
    tried = try_graphs(captured, batch, device.free_bytes)
    return _with_graphs(PassMemory(activation_bytes=activation_bytes), limits, tried, ranks)


def _with_graphs(
    passes: PassMemory, limits: PassLimits, tried: TriedCosts | None, ranks: Ranks
) -> PassMemory:
    """`passes` with as many graphs as fit into memory on all ranks: decode passes first, then
    passes with prompts in what they leave."""
    decode = _largest_of(None if tried is None else tried.decode, ranks)
    if decode is None:
        return passes
    sizes = sizes_within(limits, decode)
    if not sizes:
        logger.warning(
            "decode passes run without graphs, which is slower: one would take %d bytes, and all "
            "may take %d",
            decode.of((GraphSize(1),)),
            MAX_GRAPH_BYTES,
        )
        return passes
    num_bytes = decode.of(sizes)
    passes = replace(passes, graph_bytes=num_bytes, graph_sizes=sizes)
    mixed = _largest_of(None if tried is None else tried.mixed, ranks)
    if mixed is None:
        return passes
    left = MAX_GRAPH_BYTES - num_bytes
    mixed_sizes = mixed_sizes_within(limits, mixed, left)
    if not mixed_sizes:
        logger.warning(MIXED_ARE_SLOW, f"all are larger than the {left} bytes that are left")
    num_bytes += mixed.of([GraphSize(size) for size in mixed_sizes])
    return replace(passes, graph_bytes=num_bytes, mixed_sizes=mixed_sizes)


def _largest_of(costs: GraphCosts | None, ranks: Ranks) -> GraphCosts | None:
    """The largest costs of all ranks; None if one of them has no graphs. A collective."""
    known = GraphCosts(0, 1, 0, 0) if costs is None else costs
    if not all(gather_numbers(ranks, costs is not None)):
        return None
    return replace(  # all of them tried the same graphs
        known,
        largest=max(gather_numbers(ranks, known.largest)),
        each_more=max(gather_numbers(ranks, known.each_more)),
        each_row=max(gather_numbers(ranks, known.each_row)),
    )


def largest_passes(limits: PassLimits, block_size: int, max_model_len: int) -> list[list[Chunk]]:
    """The passes that need the most memory: one with as many requests and tokens as allowed, some
    decoding and the rest prompts, with logits of as many draft tokens; one of a single prompt, for
    which attention may use another kernel; and one of drafts only, which may use a third.

    Each request ends at the longest context, so that attention has as many splits as it ever has.
    The content of the context does not matter, so all of it is block 0.
    """
    longest = min(limits.max_blocks * block_size, max_model_len)
    lengths = [1] * limits.max_decodes
    left = limits.max_tokens - len(lengths)
    for row in reversed(range(len(lengths))):
        more = min(left, longest - 1)
        lengths[row] += more
        left -= more
    crowd, first_own, num_drafted = [], 1, limits.max_drafted
    for length in lengths:
        num_outputs = 1 + min(num_drafted, length - 1)
        num_drafted -= num_outputs - 1
        crowd.append(_last_tokens(length, longest, block_size, first_own, num_outputs))
        first_own = crowd[-1].blocks[-1] + 1
    alone = [_last_tokens(min(limits.max_tokens, longest), longest, block_size, 1)]
    runs = _runs(limits, longest, block_size)
    return [crowd, alone, runs] if runs else [crowd, alone]


def _runs(limits: PassLimits, longest: int, block_size: int) -> list[Chunk]:
    """A pass that verifies drafts of as many requests as allowed; empty if nothing is drafted."""
    num_drafted = -(-limits.max_drafted // limits.max_decodes)
    num_tokens = min(1 + num_drafted, MAX_RUN, limits.max_tokens, longest)
    if num_tokens < 2:
        return []
    num_requests = min(
        limits.max_decodes,
        limits.max_tokens // num_tokens,
        limits.max_drafted // (num_tokens - 1),
    )
    runs, first_own = [], 1
    for _ in range(num_requests):
        runs.append(_last_tokens(num_tokens, longest, block_size, first_own, num_tokens))
        first_own = runs[-1].blocks[-1] + 1
    return runs


def _last_tokens(
    num_tokens: int, context_len: int, block_size: int, first_own: int, num_outputs: int = 1
) -> Chunk:
    """The last tokens of a request of `context_len` tokens, in blocks of its own from `first_own`
    on; the rest of its context is block 0."""
    start = context_len - num_tokens
    num_shared, num_blocks = start // block_size, -(-context_len // block_size)
    own = range(first_own, first_own + num_blocks - num_shared)
    return Chunk([0] * num_tokens, start, [0] * num_shared + [*own], num_outputs)


def estimated_bytes(loaded: LoadedModel, limits: PassLimits) -> int:
    """An estimate of the activation bytes of the largest pass: the residual and the hidden states
    twice each, input and output of the widest layer, the outputs of all chosen experts of a token,
    and sampling."""
    linears = [part for part in loaded.model.modules() if isinstance(part, Linear)]
    head = loaded.model.head
    widest = max(sum(linear.rows) for linear in linears if linear is not head)
    width = loaded.model.width
    pairs = max(
        (
            part.router.routing.num_choices * (2 * part.experts.hidden_width + width)
            for part in loaded.model.modules()
            if isinstance(part, MoeFeedForward)
        ),
        default=0,
    )
    item_bytes = torch.empty(0, dtype=getattr(torch, loaded.info.dtype)).element_size()
    of_tokens = limits.max_tokens * item_bytes * (4 * width + 2 * widest + pairs)
    return of_tokens + limits.max_logits * 4 * COPIES_OF_LOGITS * loaded.info.num_logits
