"""How the KV of a model lies on a device, how much there is of it, and how large a pass may be."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from baton.core.errors import InvalidConfig
from baton.core.kv_layout import KvLayout
from baton.engine.checkpoint.load import LoadedModel
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.kv_cache import num_blocks_in
from baton.engine.open_blocks import open_bytes
from baton.engine.static_batch import PassLimits

CPU_CACHE_BYTES = 1 << 30
KV_DTYPES = {"auto": "auto", "int8": "int8", "fp8": "float8_e4m3fn", "int4": "int4"}
"""By the name in the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    layout: KvLayout
    """Of the whole model, whoever keeps a share of it."""
    num_blocks: int
    device: str
    scheduler: SchedulerConfig
    max_model_len: int
    """That the model serves."""

    @property
    def limits(self) -> PassLimits:
        """The largest pass that the scheduler may ask for, or a small one that is recorded."""
        longest = min(self.max_model_len, self.scheduler.max_model_len or self.max_model_len)
        return PassLimits(
            max_tokens=max(self.scheduler.max_batch_tokens, 8),
            max_requests=max(self.scheduler.max_running, 8),
            max_blocks=max(
                min(self.num_blocks, self.layout.num_blocks_for(longest)),
                self.layout.num_blocks_for(8),
            ),
            micro_batch_tokens=self.scheduler.micro_batch_tokens,
        )

    def with_blocks(self, num_blocks: int) -> CachePlan:
        return replace(self, num_blocks=num_blocks)


def plan_cache(loaded: LoadedModel, config: EngineConfig, device: str) -> CachePlan:
    """As many blocks as this rank has room for. Raises InvalidConfig if that is none."""
    layout = loaded.info.layout(config.cache.block_size, KV_DTYPES[config.cache.kv_dtype])
    if layout.is_sealed and device != "cpu":
        raise InvalidConfig("cache.kv_dtype int4 is for CPUs so far; on a GPU take fp8 or int8")
    if layout.is_sealed and loaded.groups.mesh.context > 1:
        raise InvalidConfig(
            "cache.kv_dtype int4: ranks that share prompts (parallel.context) do not exchange "
            "blocks that are open; take int8"
        )
    plan = CachePlan(
        layout=layout,
        num_blocks=1,
        device=device,
        scheduler=config.scheduler,
        max_model_len=loaded.info.max_model_len,
    )
    own = loaded.own(layout)
    beside = open_bytes(own, loaded.info.dtype, plan.limits) if layout.is_sealed else 0
    return plan.with_blocks(_num_blocks(config.cache, own, device, beside))


def _num_blocks(config: CacheConfig, layout: KvLayout, device: str, beside: int) -> int:
    """`beside`: bytes that the blocks leave free, for those that are open."""
    if config.num_blocks is not None:
        return config.num_blocks
    if config.memory_gib is not None:
        memory_bytes = int(config.memory_gib * (1 << 30))
    elif device == "cpu":
        memory_bytes = CPU_CACHE_BYTES
    else:
        free_bytes, _ = torch.cuda.mem_get_info(torch.device(device))
        memory_bytes = int(free_bytes * config.memory_fraction)
    num_blocks = num_blocks_in(memory_bytes - beside, layout)
    if num_blocks < 1:
        open_blocks = f" beside the open ones, {beside} bytes" if beside else ""
        raise InvalidConfig(
            f"{memory_bytes} bytes of cache do not hold one block of {layout.block_bytes} bytes"
            f"{open_blocks}; raise cache.memory_gib"
        )
    return num_blocks
