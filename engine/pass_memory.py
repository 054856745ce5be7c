"""What passes take of a GPU beside weights and KV: known before KV is given the rest.

    free               once the weights are there
      - activations    of the largest pass: all its tokens, and a draw for all that may run
      - graphs         of the sizes that fit their budget (`baton.engine.cuda_graphs`)
      = left           of which `cache.memory_fraction` becomes KV

Both are tried over a scratch cache, which is gone before the real one is made. `Device` is what
CUDA does, so that the rest is tested without it. Where ranks compute a pass together none of them
can try it alone: activations are then estimated, and there are no graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from baton.core.errors import InvalidConfig
from baton.core.kv_layout import KvLayout
from baton.core.messages import SamplingParams
from baton.engine.batch import Chunk, ignore_layer, make_batch
from baton.engine.checkpoint.load import LoadedModel
from baton.engine.cuda_graphs import Capture, CudaCapture, sizes_within, try_graphs
from baton.engine.kv_cache import KvCache
from baton.engine.layers.linear import Linear
from baton.engine.sampler import draw
from baton.engine.sampling_plan import SamplingPlan
from baton.engine.sampling_row import SamplingRow
from baton.engine.static_batch import PassLimits, StaticBatch

DRAWN = SamplingParams(temperature=1.0, top_p=0.9)
"""Needs as much as any: its scores are filtered."""
COPIES_OF_LOGITS = 4
"""That a draw has at once, in float32, where it is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassMemory:
    activation_bytes: int = 0
    graph_bytes: int = 0
    graph_sizes: tuple[int, ...] = ()
    """Numbers of requests that decode passes are to be captured for."""

    @property
    def num_bytes(self) -> int:
        return self.activation_bytes + self.graph_bytes


class Device(Protocol):
    def free_bytes(self) -> int:
        """Of the device, with nothing kept for later use."""

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """How much more than before is taken while it runs."""

    def scratch(self, layout: KvLayout, num_blocks: int) -> KvCache:
        """A cache with a spare block."""

    def capture(self) -> Capture: ...


class CudaDevice:
    def __init__(self, name: str) -> None:
        self._device = torch.device(name)

    def free_bytes(self) -> int:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free_bytes, _ = torch.cuda.mem_get_info(self._device)
        return free_bytes

    def peak_bytes(self, run: Callable[[], None]) -> int:
        self.free_bytes()
        before = torch.cuda.memory_reserved(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device) - before

    def scratch(self, layout: KvLayout, num_blocks: int) -> KvCache:
        return KvCache(layout, num_blocks, self._device)

    def capture(self) -> Capture:
        return CudaCapture(self._device)


@torch.inference_mode()
def measure(
    loaded: LoadedModel, layout: KvLayout, limits: PassLimits, device: Device
) -> PassMemory:
    """Of this rank, whose KV has this layout. Raises InvalidConfig if no pass fits."""
    if not loaded.groups.mesh.has_whole_models:
        return PassMemory(activation_bytes=estimated_bytes(loaded, limits))
    chunks = largest_pass(limits, layout.block_size)
    cache = device.scratch(layout, max(max(chunk.blocks) for chunk in chunks) + 1)

    def run() -> None:
        batch = make_batch(chunks, layout.block_size, cache.device)
        logits = loaded.model.logits(loaded.model(batch, cache.arenas, ignore_layer))
        rows = [SamplingRow(DRAWN, (0,), ()) for _ in chunks]
        draw(logits, SamplingPlan(rows, cache.device), loaded.info.eos_token_ids)

    try:
        activation_bytes = device.peak_bytes(run)
    except torch.OutOfMemoryError as error:
        raise InvalidConfig(
            f"a pass of {limits.max_tokens} tokens of {limits.max_requests} requests does not fit "
            "beside the weights; lower scheduler.max_batch_tokens or scheduler.max_running"
        ) from error
    if not loaded.model.is_capturable or cache.spare_block is None:
        return PassMemory(activation_bytes=activation_bytes)
    batch = StaticBatch(limits, layout.block_size, cache.device)
    costs = try_graphs(loaded.model, cache, batch, cache.spare_block, device.capture())
    sizes = () if costs is None else sizes_within(limits.max_decodes, costs)
    return PassMemory(
        activation_bytes=activation_bytes,
        graph_bytes=0 if costs is None else costs.of(sizes, limits.max_decodes),
        graph_sizes=sizes,
    )


def largest_pass(limits: PassLimits, block_size: int) -> list[Chunk]:
    """As many requests and tokens as may be: some that have one token, the rest long prompts."""
    longest = limits.max_blocks * block_size
    lengths = [1] * limits.max_decodes
    left = limits.max_tokens - len(lengths)
    for row in reversed(range(len(lengths))):
        more = min(left, longest - 1)
        lengths[row] += more
        left -= more
    chunks, first = [], 0
    for length in lengths:
        num_blocks = -(-length // block_size)
        chunks.append(Chunk([0] * length, 0, range(first, first + num_blocks), 1))
        first += num_blocks
    return chunks


def estimated_bytes(loaded: LoadedModel, limits: PassLimits) -> int:
    """The residual stream and x twice each, the widest layer with what it makes of it, a draw."""
    linears = [part for part in loaded.model.modules() if isinstance(part, Linear)]
    head = loaded.model.head
    widest = max(sum(linear.rows) for linear in linears if linear is not head)
    item_bytes = torch.empty(0, dtype=getattr(torch, loaded.info.dtype)).element_size()
    of_tokens = limits.max_tokens * item_bytes * (4 * loaded.model.width + 2 * widest)
    return of_tokens + limits.max_decodes * 4 * COPIES_OF_LOGITS * loaded.info.vocab_size
