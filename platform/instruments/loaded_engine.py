"""An engine in this process for measurements: loaded like a replica's, with its cache written once.

Unwritten memory is one shared page of zeros, which stays in the CPU's caches; so the KV cache is
filled first, for attention to read real memory.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from baton.core.kv_pool import Holder, HolderKind
from baton.core.sampling import SamplingParams
from baton.engine.assemble import engine_around, find_device, load_draft
from baton.engine.cache_plan import CPU_CACHE_BYTES
from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.memory.kv_cache import KvCache
from baton.engine.request.request import Request
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.instruments.source_prompts import SourcePrompts
from baton.platform.machine.core_share import limit_threads
from baton.platform.models.adapter_folders import folders_here
from baton.platform.models.model_shape import ModelShape, shape_of

FILLING = 0x3C
"""A byte that gives small normal numbers in every KV dtype."""
CACHE_FRACTION = 0.5
"""The share of the free memory that KV gets, unless the configuration sizes it."""
MEMORY_INFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEngine:
    engine: Engine
    loaded: LoadedModel
    shape: ModelShape
    device: str
    ready_s: float
    """Seconds from the folder to an engine that takes requests: weights, cache, tape."""
    source: SourcePrompts | None = None
    """Set with speculation: prompts in which tokens are predictable."""

    @property
    def max_tokens(self) -> int:
        """The tokens that the cache holds, of all requests together."""
        return self.engine.pool.num_blocks * self.engine.pool.layout.block_size

    def prompt(self, num_tokens: int, seed: str) -> list[int]:
        """A prompt; different for each seed, so that no prefix is cached."""
        if self.source is not None:
            return self.source.prompt(num_tokens, seed)
        return random.Random(seed).choices(range(self.engine.info.vocab_size), k=num_tokens)

    def add(self, num_tokens: int, seed: str, max_tokens: int) -> Request:
        """Add a request whose prompt has to be computed."""
        request = self._request(num_tokens, seed, max_tokens)
        self.engine.add(request)
        return request

    def add_decoding(self, context: int, seed: str, max_tokens: int) -> Request:
        """Add a request with KV, as after a handoff; its next step decodes."""
        request = self._request(context, seed, max_tokens)
        lease = Holder(HolderKind.LEASE, request.request_id)
        reserved = self.engine.pool.reserve(lease, request.tokens, b"", is_matching=False)
        if reserved is None:
            raise ValueError(f"the cache has no room for {context} tokens more")
        self.engine.adopt(request, lease)
        return request

    def drop(self, requests: list[Request]) -> None:
        for request in requests:
            self.engine.abort(request.request_id)

    def _request(self, num_tokens: int, seed: str, max_tokens: int) -> Request:
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        tokens, names = self.prompt(num_tokens, seed), self.engine.info.adapters
        adapter = names[self.engine.num_running % len(names)] if names else ""  # in turn
        return Request(seed, tokens, sampling=sampling, adapter=adapter)


def load_measured(
    folder: Path, config: DeploymentConfig, *, sizes: Sequence[int], max_running: int
) -> LoadedEngine:
    """Load an engine with KV cache for the largest of `sizes`, in tokens of all requests together,
    that memory allows.

    Raises CheckpointError or InvalidConfig.
    """
    limit_threads()
    device = find_device(config.device)
    started = time.perf_counter()
    loaded = load_model(
        folder,
        dtype=config.dtype,
        device=device,
        load_format=config.load_format,
        quantize=config.quantize,
        deterministic=config.deterministic,
        streaming=config.streaming,
        adapters=folders_here(config),
        max_model_len=config.decode.scheduler.max_model_len,
    )
    engine_config = _sized(config.decode.engine, loaded, device, sizes, max_running)
    draft = load_draft(config.decode.speculation, folder, loaded, device)
    engine = engine_around(loaded, engine_config, device, draft=draft)
    ready_s = time.perf_counter() - started
    cache = engine.runner.cache
    assert isinstance(cache, KvCache), "one rank is measured"
    for layer in cache.planes:
        layer.view(torch.uint8).fill_(FILLING)
    return LoadedEngine(
        engine=engine,
        loaded=loaded,
        shape=shape_of(loaded.model, engine.runner.cache.layout, loaded.info.dtype),
        device=device,
        ready_s=ready_s,
        source=None
        if engine.speculation is None
        else SourcePrompts(folder, loaded.info.vocab_size),
    )


def _sized(
    config: EngineConfig, loaded: LoadedModel, device: str, sizes: Sequence[int], max_running: int
) -> EngineConfig:
    cache, scheduler = config.cache, config.scheduler
    if cache.num_blocks is None and cache.memory_gib is None:
        layout = loaded.info.layout(cache.block_size, cache.kv_dtype)
        fitting = int(_free_bytes(device) * CACHE_FRACTION) // layout.block_bytes
        wanted = [layout.num_blocks_for(size) + max_running for size in sizes]
        num_blocks = max((each for each in wanted if each <= fitting), default=fitting)
        cache = replace(cache, num_blocks=max(1, num_blocks))
    return replace(
        config,
        cache=cache,
        scheduler=replace(
            scheduler,
            max_running=max(max_running, scheduler.max_running),
            max_batch_tokens=max(max_running, scheduler.max_batch_tokens),
        ),
    )


def _free_bytes(device: str) -> int:
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(torch.device(device))[0]
    for line in MEMORY_INFO.read_text().splitlines() if MEMORY_INFO.is_file() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return CPU_CACHE_BYTES
