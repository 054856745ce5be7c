"""Plans an engine's KV cache: its layout, how many blocks fit on the device, and how large a pass
may be."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from baton.core.errors import InvalidConfig
from baton.core.kv_layout import DraftFeatures, KvLayout
from baton.engine.batch.static_batch import GraphSize, PassLimits
from baton.engine.checkpoint.load import LoadedModel
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.memory.kv_cache import num_blocks_in
from baton.engine.memory.open_blocks import open_bytes
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.pass_memory import CudaDevice, Device, measure

CPU_CACHE_BYTES = 1 << 30
MAX_DRAFTED = 128
"""Draft tokens per pass whose logits get a preallocated buffer on a CPU. Passes with more are
computed, too, but not as fast. On a GPU the buffer has room for all draft tokens."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    layout: KvLayout
    """The layout of the whole model's KV, even if each rank stores only a part of it."""
    num_blocks: int
    device: str
    scheduler: SchedulerConfig
    max_model_len: int
    """Most tokens of a request, prompt and output together."""
    max_drafted: int = 0
    """See `PassLimits`, as for the three fields below."""
    max_run: int = 1
    graph_sizes: tuple[GraphSize, ...] | None = None
    mixed_sizes: tuple[int, ...] | None = None

    @property
    def limits(self) -> PassLimits:
        """The largest pass that the scheduler may ask for; at least that of 8 requests and 8 tokens
        that is recorded at the start."""
        longest = min(self.max_model_len, self.scheduler.max_model_len or self.max_model_len)
        return PassLimits(
            max_tokens=max(self.scheduler.max_batch_tokens, 8),
            max_requests=max(self.scheduler.max_running, 8),
            max_blocks=max(
                min(self.num_blocks, self.layout.num_blocks_for(longest)),
                self.layout.num_blocks_for(8),
            ),
            max_drafted=self.max_drafted,
            max_run=min(self.max_run, longest),
            micro_batch_tokens=self.scheduler.micro_batch_tokens,
            graph_sizes=self.graph_sizes,
            mixed_sizes=self.mixed_sizes,
        )

    @property
    def widest_limits(self) -> PassLimits:
        """Pass limits with enough blocks for the longest request that the model serves."""
        return self.with_blocks(self.layout.num_blocks_for(self.max_model_len)).limits

    def with_blocks(self, num_blocks: int) -> CachePlan:
        return replace(self, num_blocks=num_blocks)


def plan_cache(
    loaded: LoadedModel,
    config: EngineConfig,
    name: str,
    gpu: Device | None = None,
    *,
    features: DraftFeatures | None = None,
    taps: AuxHiddenStates | None = None,
) -> CachePlan:
    """The plan with as many blocks as this rank has room for on the device `name`.

    `features` are stored in each block beside the KV; `taps` are the hidden states that a drafter
    reads of each pass. On a GPU the memory of the largest pass is measured first, and
    `config.buffer_bytes` are left free. Raises InvalidConfig if there is no room for a block or for
    a pass, and for int4 KV where it is not supported.
    """
    of_model = loaded.info.layout(config.cache.block_size, config.cache.kv_dtype)
    layout = replace(of_model, features=features)
    if layout.is_int4 and name != "cpu":
        raise InvalidConfig(
            "cache.kv_dtype int4 is supported on CPUs only; on a GPU set fp8 or int8"
        )
    if layout.is_int4 and loaded.groups.mesh.context > 1:
        raise InvalidConfig(
            "cache.kv_dtype int4 is not supported with context parallelism (parallel.context), "
            "whose ranks do not exchange blocks that are partly filled; set int8"
        )
    plan = CachePlan(
        layout=layout,
        num_blocks=1,
        device=name,
        scheduler=config.scheduler,
        max_model_len=loaded.info.max_model_len,
        max_drafted=_max_drafted(config, name),
        max_run=1 if config.speculation.method == "off" else 1 + config.speculation.max_tokens,
    )
    own = loaded.own(layout)
    if name == "cpu":
        other_bytes = open_bytes(own, loaded.info.dtype, plan.limits) if layout.is_int4 else 0
        return plan.with_blocks(_num_blocks(config.cache, own, CPU_CACHE_BYTES, other_bytes))
    gpu = CudaDevice(name) if gpu is None else gpu
    passes = measure(loaded, own, plan.widest_limits, gpu, taps)
    draft_bytes = _draft_bytes(config, plan.max_drafted, loaded.info.num_logits)
    taken_bytes = passes.num_bytes + draft_bytes + config.buffer_bytes
    left_bytes = gpu.free_bytes() - taken_bytes
    logger.info(
        "memory on the GPU: activations take %d bytes, CUDA graphs %d, draft distributions %d and "
        "buffers for received KV %d; %d bytes are left for the KV cache",
        passes.activation_bytes,
        passes.graph_bytes,
        draft_bytes,
        config.buffer_bytes,
        left_bytes,
    )
    memory_bytes = int(left_bytes * config.cache.memory_fraction)
    plan = replace(plan, graph_sizes=passes.graph_sizes, mixed_sizes=passes.mixed_sizes)
    return plan.with_blocks(_num_blocks(config.cache, own, memory_bytes))


def _max_drafted(config: EngineConfig, device: str) -> int:
    if config.speculation.method == "off":
        return 0
    num_drafted = config.scheduler.max_running * config.speculation.max_tokens
    return min(num_drafted, MAX_DRAFTED) if device == "cpu" else num_drafted


def _draft_bytes(config: EngineConfig, max_drafted: int, num_logits: int) -> int:
    """Bytes of the float32 distributions that draft tokens are drawn from. The published acceptance
    rule needs them until the pass that verifies the drafts is over."""
    speculation = config.speculation
    if speculation.acceptance != "published" or speculation.looks_up:
        return 0
    return 4 * max_drafted * num_logits


def _num_blocks(
    config: CacheConfig, layout: KvLayout, memory_bytes: int, other_bytes: int = 0
) -> int:
    """Number of blocks of the cache. `memory_bytes` is used if the configuration gives neither a
    number nor a size; `other_bytes` of it are left for the unquantized copies of open blocks."""
    if config.num_blocks is not None:
        return config.num_blocks
    if config.memory_gib is not None:
        memory_bytes = int(config.memory_gib * (1 << 30))
    num_blocks = num_blocks_in(memory_bytes - other_bytes, layout)
    if num_blocks < 1:
        open_blocks = f" and {other_bytes} bytes of open blocks" if other_bytes else ""
        raise InvalidConfig(
            f"{memory_bytes} bytes of cache do not hold one block of {layout.block_bytes} bytes"
            f"{open_blocks}; raise cache.memory_gib or, on a GPU, lower scheduler.max_batch_tokens"
        )
    return num_blocks
