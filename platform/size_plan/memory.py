"""Divides the memory of a device: weights, the largest pass, and KV with the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from baton.core.kv_layout import ITEM_BYTES
from baton.engine.cache_plan import CPU_CACHE_BYTES
from baton.engine.checkpoint.install import HEADS
from baton.engine.checkpoint.prepared_bytes import prepared_bytes, screen_bytes
from baton.engine.config import CacheConfig, SchedulerConfig
from baton.platform.instruments.pass_cost import LOGIT_BYTES
from baton.platform.layout_plan.pass_transfers import RankModel
from baton.platform.machine.accelerators import Accelerator
from baton.platform.size_plan.pass_time import BITS

GIB = 1 << 30
RUNTIME_BYTES = GIB
"""Bytes of a GPU's context, libraries and graphs. Assumed; `baton doctor` measures it on the
machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Bytes of the rank that has least room for KV."""

    device_bytes: int
    runtime_bytes: int
    weight_bytes: int
    pass_bytes: int
    """Activations and logits of the largest pass."""
    kv_bytes: int
    """Bytes for blocks: `cache.memory_fraction` of what is left."""
    kv_token_bytes: int
    """KV bytes of one token on that rank, over the layers that it has."""
    block_size: int

    @property
    def left_bytes(self) -> int:
        taken = self.runtime_bytes + self.weight_bytes + self.pass_bytes
        return self.device_bytes - taken

    @property
    def num_blocks(self) -> int:
        return self.kv_bytes // (self.kv_token_bytes * self.block_size)

    @property
    def num_tokens(self) -> int:
        """Tokens of KV cache of one engine: each data place has as many."""
        return self.num_blocks * self.block_size


def budget_of(
    models: Sequence[RankModel],
    accelerator: Accelerator,
    precision: str,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    *,
    is_deterministic: bool,
) -> MemoryBudget:
    """The memory budget of the stage with least room."""
    budgets = []
    for model in models:
        taken = MemoryBudget(
            device_bytes=int(accelerator.memory_gib * GIB),
            runtime_bytes=0 if accelerator.is_cpu else RUNTIME_BYTES,
            weight_bytes=_weight_bytes(model, precision, is_deterministic=is_deterministic),
            pass_bytes=_pass_bytes(model, scheduler),
            kv_bytes=0,
            kv_token_bytes=model.kv.block_bytes // model.kv.block_size,
            block_size=model.kv.block_size,
        )
        left_bytes = max(taken.left_bytes, 0)
        kv_bytes = int(left_bytes * cache.memory_fraction)
        if cache.memory_gib is not None:
            kv_bytes = min(int(cache.memory_gib * GIB), left_bytes)
        elif accelerator.is_cpu:
            kv_bytes = min(CPU_CACHE_BYTES, left_bytes)
        budgets.append(replace(taken, kv_bytes=kv_bytes))
    return min(budgets, key=lambda one: one.num_tokens)


def _weight_bytes(model: RankModel, precision: str, *, is_deterministic: bool) -> int:
    """The table of tokens and the head stay as wide as the dtype, as checkpoints in few bits have
    them; so the head has its screen."""
    item_bytes = ITEM_BYTES[model.dtype]
    tables = [each for name, each in model.own.named_parameters() if name in HEADS]
    wide = sum(table.numel() for table in tables) * item_bytes
    served = prepared_bytes(
        model.own, model.dtype, device=model.device, is_deterministic=is_deterministic
    )
    screen = screen_bytes(model.own, model.dtype) if model.has_screen else 0
    return wide + screen + (served - wide) * BITS[precision] // (8 * item_bytes)


def _pass_bytes(model: RankModel, scheduler: SchedulerConfig) -> int:
    """x, the residual and what is made of them; what the widest feed-forward makes; logits."""
    whole, tensor = model.whole, model.mesh.tensor
    widest = max(
        whole.intermediate_size,
        *(
            layer.moe.expert_width * layer.moe.routing.num_choices + layer.moe.shared_width
            for layer in whole.layers
            if layer.moe is not None
        ),
        0,
    )
    row = 4 * whole.hidden_size + 3 * widest // tensor
    activations = scheduler.max_batch_tokens * row * ITEM_BYTES[model.dtype]
    return activations + scheduler.max_running * whole.vocab_size * LOGIT_BYTES
