"""An engine from a model folder: weights, cache and scheduler, sized for the device they are on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from baton.core.errors import InvalidConfig
from baton.core.kv_layout import KvLayout
from baton.engine.checkpoint.info import ModelInfo
from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.grammar import GrammarCompiler
from baton.engine.kv_cache import KvCache, num_blocks_in
from baton.engine.runner import ModelRunner
from baton.engine.static_batch import PassLimits
from baton.engine.structured_output import LlGuidanceCompiler

CPU_CACHE_BYTES = 1 << 30
KV_DTYPES = {"auto": "auto", "int8": "int8", "fp8": "float8_e4m3fn"}
"""By the name in the configuration."""


def assemble_engine(  # noqa: PLR0913  # what the configuration says of a model
    folder: Path,
    config: EngineConfig,
    *,
    dtype: str = "auto",
    device: str = "auto",
    load_format: str = "auto",
    quantize: str = "none",
    progress: Callable[[int, int], None] | None = None,
) -> Engine:
    """Raises CheckpointError for a folder that cannot be served, InvalidConfig for a tiny cache."""
    device = find_device(device)
    loaded = load_model(
        folder,
        dtype=dtype,
        device=device,
        load_format=load_format,
        quantize=quantize,
        max_model_len=config.scheduler.max_model_len,
        progress=progress,
    )
    grammars = LlGuidanceCompiler.from_folder(folder, loaded.info)
    return engine_around(loaded, config, device, grammars)


def find_device(device: str) -> str:
    """What `auto` means here."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def engine_around(
    loaded: LoadedModel,
    config: EngineConfig,
    device: str,
    grammars: GrammarCompiler | None = None,
) -> Engine:
    """A model may be in several engines: nothing is written to it. Raises InvalidConfig."""
    layout = loaded.info.layout(config.cache.block_size, KV_DTYPES[config.cache.kv_dtype])
    cache = KvCache(layout, cache_blocks(config.cache, layout, device), device)
    limits = pass_limits(config.scheduler, loaded.info, cache)
    return Engine(ModelRunner(loaded, cache, limits), config, grammars=grammars)


def pass_limits(config: SchedulerConfig, info: ModelInfo, cache: KvCache) -> PassLimits:
    """The largest pass that the scheduler may ask for, or a small one that is recorded."""
    max_model_len = min(info.max_model_len, config.max_model_len or info.max_model_len)
    num_blocks = min(cache.num_blocks, cache.layout.num_blocks_for(max_model_len))
    return PassLimits(
        max_tokens=max(config.max_batch_tokens, 8),
        max_requests=max(config.max_running, 8),
        max_blocks=max(num_blocks, cache.layout.num_blocks_for(8)),
    )


def cache_blocks(config: CacheConfig, layout: KvLayout, device: str) -> int:
    """How many blocks the pool gets. Raises InvalidConfig if not one block fits."""
    if config.num_blocks is not None:
        return config.num_blocks
    if config.memory_gib is not None:
        memory_bytes = int(config.memory_gib * (1 << 30))
    elif device == "cpu":
        memory_bytes = CPU_CACHE_BYTES
    else:
        free_bytes, _ = torch.cuda.mem_get_info(torch.device(device))
        memory_bytes = int(free_bytes * config.memory_fraction)
    num_blocks = num_blocks_in(memory_bytes, layout)
    if num_blocks < 1:
        raise InvalidConfig(
            f"{memory_bytes} bytes of cache do not hold one block of {layout.block_bytes} bytes; "
            "raise cache.memory_gib"
        )
    return num_blocks
