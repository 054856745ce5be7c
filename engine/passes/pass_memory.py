"""What passes take of a GPU beside weights and KV: known before KV is given the rest.

    free               once the weights are there
      - activations    of the largest passes: all tokens, of as many as may run or of one, or
                       drafts alone, each behind as much as a request may have, and a draw for all
      - graphs         of the sizes that fit their budget (`baton.engine.passes.graph_sizes`)
      = left           of which `cache.memory_fraction` becomes KV

Both are tried over a scratch cache, which is gone before the real one is made. `Device` is what
CUDA does, so that the rest is tested without it. Tensor ranks try both together, each on its own
device, and capture what fits on all of them. Passes of all kinds are run besides: kernels are
compiled, and libraries make their plans, when they are first met, and requests would wait for that
(`baton.engine.passes.warm_up`). Where ranks share more than matrices a pass follows from what the
host says meanwhile: activations are then estimated, and there are no graphs.
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
from baton.engine.mesh.attempt import said_by_all, tried_by_all
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
"""Needs as much as any: its scores are filtered."""
COPIES_OF_LOGITS = 4
"""Copies of the logits that a draw has at once, in float32, where it is estimated."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassMemory:
    activation_bytes: int = 0
    graph_bytes: int = 0
    graph_sizes: tuple[GraphSize, ...] = ()
    """The passes that are to be captured."""
    mixed_sizes: tuple[int, ...] = ()
    """Tokens of those with prompts that are."""

    @property
    def num_bytes(self) -> int:
        return self.activation_bytes + self.graph_bytes


class Device(Protocol):
    def free_bytes(self) -> int:
        """The free bytes of the device, with nothing kept for later use."""

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """How much more than before is taken while it runs."""

    def scratch(
        self, layout: KvLayout, num_blocks: int, dtype: str, *, is_deterministic: bool
    ) -> KvCache:
        """A cache with a spare block."""

    def capture(self) -> Capture: ...


class CudaDevice:
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
    """Memory of this rank's passes, which `taps` read; its KV has this layout. Raises InvalidConfig
    on all of them if none fits. All ranks of an engine call it at once."""
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
        with tried_by_all(ranks):
            batch = make_batch(chunks, layout.block_size, cache.device)
            logits: Tensor = loaded.model.logits(loaded.model(batch, cache.layers, ignore_layer))
        return logits

    def run(chunks: Sequence[Chunk]) -> None:
        logits = compute(chunks)
        if loaded.info.num_labels is not None:
            return  # nothing is drawn
        rows = [SamplingRow(DRAWN, (0,), ()) for _ in range(len(logits))]
        drafted = [0] * (len(logits) - 1) if limits.max_drafted else ()  # judged by the rule, too
        with tried_by_all(ranks):
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
    batch = StaticBatch(limits, layout.block_size, cache.device)
    captured = CapturedModel(loaded.model, cache, cache.spare_block, device.capture(), taps, ranks)
    tried = try_graphs(captured, batch, device.free_bytes)
    return _with_graphs(PassMemory(activation_bytes=activation_bytes), limits, tried, ranks)


def _with_graphs(
    passes: PassMemory, limits: PassLimits, tried: TriedCosts | None, ranks: Ranks
) -> PassMemory:
    """With as many graphs as their memory allows on all ranks; those with prompts in what the
    others leave."""
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
    """On whichever rank graphs cost most; None if one of them has none."""
    known = GraphCosts(0, 1, 0, 0) if costs is None else costs
    if not all(said_by_all(ranks, costs is not None)):
        return None
    return replace(  # all of them tried the same graphs
        known,
        largest=max(said_by_all(ranks, known.largest)),
        each_more=max(said_by_all(ranks, known.each_more)),
        each_row=max(said_by_all(ranks, known.each_row)),
    )


def largest_passes(limits: PassLimits, block_size: int, max_model_len: int) -> list[list[Chunk]]:
    """As many requests and tokens as may be, some with one token and the rest prompts, and logits
    of as many drafted tokens; as many tokens of one prompt, for which attention may be another; and
    drafts of as many requests, for which it is yet another where nobody has more tokens.

    Each ends where a request may end: behind so much past that attention is cut into as many pieces
    as it ever is. What the past holds does not matter, so all of it is block 0, over and over.
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
    """Drafts, of as many requests as may be; none if nothing is drafted."""
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
    """The last tokens of a request, in blocks of its own from `first_own` on."""
    start = context_len - num_tokens
    num_shared, num_blocks = start // block_size, -(-context_len // block_size)
    own = range(first_own, first_own + num_blocks - num_shared)
    return Chunk([0] * num_tokens, start, [0] * num_shared + [*own], num_outputs)


def estimated_bytes(loaded: LoadedModel, limits: PassLimits) -> int:
    """The residual stream and x twice each, the widest layer with what it makes of it, what all
    chosen experts make of a token, a draw."""
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
