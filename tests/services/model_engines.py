"""Engines of a small model, for the replicas of either role."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from baton.core.replicas import Role
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine


def engines(
    folder: Path, *, prefill_chunk: int | None = None, decode_blocks: int = 512
) -> Callable[[Role], Engine]:
    def make(role: Role) -> Engine:
        num_blocks = decode_blocks if role is Role.DECODE else 512
        config = EngineConfig(
            cache=CacheConfig(block_size=4, num_blocks=num_blocks),
            scheduler=SchedulerConfig(prefill_chunk=prefill_chunk),
        )
        return assemble_engine(folder, config, device="cpu")

    return make
