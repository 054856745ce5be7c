"""Engines with a runner that has no model, so that every wrong KV byte shows in the output."""

from __future__ import annotations

from collections.abc import Sequence

from baton.core.kv_layout import DraftFeatures
from baton.core.sampling import SamplingParams
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.engine.request.request import Request
from baton.engine.request.step_report import StepReport
from baton.engine.step_hooks import ALONE, StepHooks

VOCAB = 512
BLOCK_SIZE = 4


def make_engine(
    *,
    num_blocks: int = 256,
    scheduler: SchedulerConfig | None = None,
    eos_token_ids: tuple[int, ...] = (),
    prefix_caching: bool = True,
    features: DraftFeatures | None = None,
) -> Engine:
    info = echo_info(vocab_size=VOCAB, eos_token_ids=eos_token_ids, num_layers=2)
    config = EngineConfig(
        cache=CacheConfig(block_size=BLOCK_SIZE, prefix_caching=prefix_caching),
        scheduler=scheduler or SchedulerConfig(),
    )
    runner = EchoRunner(info, num_blocks=num_blocks, block_size=BLOCK_SIZE, features=features)
    return Engine(runner, config)


def make_request(
    name: str = "r",
    prompt: Sequence[int] = range(11),
    *,
    output: Sequence[int] = (),
    max_new_tokens: int | None = None,
    **sampling: object,
) -> Request:
    params = SamplingParams(**({"temperature": 0.0, "max_tokens": 8} | sampling))  # type: ignore[arg-type]
    return Request(name, prompt, output=output, sampling=params, max_new_tokens=max_new_tokens)


def run(engine: Engine, hooks: StepHooks = ALONE) -> list[StepReport]:
    """Step until there is nothing left to do."""
    reports = []
    while engine.has_work:
        reports.append(engine.step(hooks))
        assert not reports[-1].is_stalled
        assert engine.stats.num_steps < 5000
    return reports
