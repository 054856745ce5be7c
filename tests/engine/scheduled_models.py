"""Real models under schedules: who comes, goes and draws how, and what each would draw alone.

alone       one request, its prompt in one pass, no prefix cache, operators called one by one
scheduled   whoever comes and goes beside it, in chunks, preempted, from a prefix that another
            request computed, played from a tape, over an arena that holds garbage at first
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tests.guessing_drafter import guessing
from tests.tiny_checkpoints import (
    VOCAB_SIZE,
    make_deepseek_v4,
    make_gemma2,
    make_gemma3,
    make_glm_moe_dsa,
    make_gpt2,
    make_llama,
    make_mistral,
    make_qwen3,
)
from tests.torch_threads import threads

from baton.core.sampling import SamplingParams
from baton.engine.assemble import engine_around
from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.config import (
    CacheConfig,
    EngineConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from baton.engine.engine import Engine
from baton.engine.memory.kv_cache import KvCache
from baton.engine.request.request import Request
from baton.engine.speculation.speculation import Speculation
from baton.kernels.attention.layer_kv import LayerKv
from baton.kernels.paging.int4_arena import Int4Arena
from baton.kernels.paging.window import Streaming

MAX_LEN = 100
GARBAGE = 0xFF
"""Of these bytes are NaN in all dtypes of KV: whoever reads what nobody wrote is found out."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A model, and how its weights and its KV are kept."""

    make: Callable[..., Path]
    dtype: str
    quantize: str = "none"
    kv_dtype: Any = "auto"
    block_size: int
    streaming: Streaming | None = None
    options: dict[str, Any] = field(default_factory=dict)


WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
WAYS = {
    "float32, blocks of 1": Kept(make=make_llama, dtype="float32", block_size=1),
    "bfloat16, blocks of 3": Kept(make=make_llama, dtype="bfloat16", block_size=3),
    "windows, float32": Kept(make=make_gemma3, dtype="float32", block_size=16),
    "windows, bfloat16": Kept(make=make_mistral, dtype="bfloat16", block_size=3),
    "caps, blocks of 64": Kept(make=make_gemma2, dtype="bfloat16", block_size=64),
    "biases, places": Kept(make=make_gpt2, dtype="bfloat16", block_size=1),
    "int8": Kept(make=make_qwen3, dtype="bfloat16", quantize="int8", block_size=16),
    "int8 of float32": Kept(make=make_gemma3, dtype="float32", quantize="int8", block_size=3),
    "int4": Kept(make=make_llama, dtype="bfloat16", quantize="int4", block_size=64, options=WIDE),
    "int4 of float32": Kept(make=make_qwen3, dtype="float32", quantize="int4", block_size=16),
    "KV in int8": Kept(make=make_llama, dtype="bfloat16", kv_dtype="int8", block_size=3),
    "KV in int4": Kept(make=make_llama, dtype="float32", kv_dtype="int4", block_size=5),
    "KV in int4, windows": Kept(make=make_gemma3, dtype="bfloat16", kv_dtype="int4", block_size=4),
    "first tokens": Kept(
        make=make_llama, dtype="bfloat16", block_size=3, streaming=Streaming(11, 4)
    ),
    "first tokens, KV in int4": Kept(
        make=make_qwen3,
        dtype="float32",
        kv_dtype="int4",
        block_size=8,
        streaming=Streaming(5, 2),
    ),
    "chosen tokens": Kept(make=make_glm_moe_dsa, dtype="bfloat16", block_size=5),
    "compressed entries": Kept(make=make_deepseek_v4, dtype="float32", block_size=4),
    "KV in fp8": Kept(make=make_gemma3, dtype="float32", kv_dtype="fp8", block_size=16),
}


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A request, and when it comes and goes."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    comes_at: int = 0
    leaves_after: int | None = None
    """Steps; None: it stays until it is answered."""
    priority: int = 0

    def request(self, name: str) -> Request:
        return Request(name, self.prompt, sampling=self.sampling, priority=self.priority)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    wishes: Sequence[Wish]
    spare_tokens: int
    """What the pool holds beyond the longest request there may be."""
    scheduler: SchedulerConfig
    num_threads: int = 1
    max_drafted: int = 0
    """Tokens that are drafted behind each decode, if any."""


class Served:
    """A model with the answers that it gives alone."""

    def __init__(self, kept: Kept, folder: Path) -> None:
        self.kept = kept
        kept.make(folder, **kept.options)
        self.loaded: LoadedModel = load_model(
            folder, dtype=kept.dtype, quantize=kept.quantize, streaming=kept.streaming
        )
        self._answers: dict[tuple[tuple[int, ...], SamplingParams], list[int]] = {}
        self._alone = self.engine(MAX_LEN, SchedulerConfig(), prefix_caching=False)
        self._alone.runner.taped = None  # type: ignore[attr-defined]

    def engine(
        self,
        num_tokens: int,
        scheduler: SchedulerConfig,
        *,
        prefix_caching: bool = True,
        speculation: Speculation | None = None,
    ) -> Engine:
        """With blocks for so many tokens, or a few more."""
        block_size = self.kept.block_size
        cache = CacheConfig(
            block_size=block_size,
            num_blocks=-(-num_tokens // block_size),
            kv_dtype=self.kept.kv_dtype,
            prefix_caching=prefix_caching,
        )
        config = EngineConfig(cache=cache, scheduler=scheduler)
        if speculation is not None:  # there is room for it, whatever drafts
            config = replace(config, speculation=SpeculationConfig(method="ngram"))
        engine = engine_around(self.loaded, config, "cpu")
        engine.speculation = speculation
        engine.max_model_len = min(engine.max_model_len, MAX_LEN)
        assert isinstance(engine.runner.cache, KvCache)
        for plane in engine.runner.cache.planes:
            plane.view(torch.uint8).fill_(GARBAGE)
        for layer in engine.runner.cache.layers:
            if isinstance(layer, LayerKv) and isinstance(layer.arena, Int4Arena):
                layer.arena.open_rows.fill_(torch.nan)
                layer.arena.pass_rows.fill_(torch.nan)
        return engine

    def alone(self, wish: Wish) -> list[int]:
        key = wish.prompt, wish.sampling
        if key not in self._answers:
            request = wish.request("alone")
            self._alone.add(request)
            run(self._alone)
            self._answers[key] = request.output
        return self._answers[key]


def step(engine: Engine) -> None:
    report = engine.step()
    assert not report.is_stalled
    for output in report.outputs:
        assert output.error is None, output.error


def run(engine: Engine) -> None:
    """Until there is nothing left to do, and nothing held."""
    while engine.has_work:
        step(engine)
        assert engine.stats.num_steps < 20_000
    assert engine.pool.num_in_use == 0


def outcome(served: Served, schedule: Schedule) -> tuple[Engine, list[Request]]:
    """Let requests come and go as they wish."""
    requests = [wish.request(str(i)) for i, wish in enumerate(schedule.wishes)]
    speculation = None
    if schedule.max_drafted:
        answers = {str(i): served.alone(wish) for i, wish in enumerate(schedule.wishes)}
        speculation = guessing(answers, schedule.max_drafted)
    engine = served.engine(
        MAX_LEN + schedule.spare_tokens, schedule.scheduler, speculation=speculation
    )
    last = max(wish.comes_at + (wish.leaves_after or 0) for wish in schedule.wishes)
    with threads(schedule.num_threads):
        for now in range(last + 1):
            for wish, request in zip(schedule.wishes, requests, strict=True):
                if wish.comes_at == now:
                    engine.add(request)
                if wish.leaves_after is not None and wish.comes_at + wish.leaves_after == now:
                    engine.abort(request.request_id)
            if engine.has_work:
                step(engine)
        run(engine)
    return engine, requests


def check(served: Served, schedule: Schedule) -> Engine:
    engine, requests = outcome(served, schedule)
    for wish, request in zip(schedule.wishes, requests, strict=True):
        expected = served.alone(wish)
        if wish.leaves_after is not None:
            expected = expected[: len(request.output)]
        assert request.output == expected, request
    return engine


def tokens_of(start: int, count: int) -> list[int]:
    """Some that differ from place to place; not the first two, which are special."""
    return [2 + (start * 31 + 7 * i * i + i) % (VOCAB_SIZE - 2) for i in range(count)]


def greedy(max_tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **more)
