"""Runs the cases: on one engine, then over every transport."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from baton.core.sampling import SamplingParams
from baton.engine.models.config.info import ModelInfo
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.verify.cases import CASES, GREEDY, NUM_OUTPUT, Case, Prompt, make_prompts
from baton.platform.verify.fleets import Answer, Fleet, MakeEngine, running_fleet
from baton.platform.verify.verdict import Evidence, Verdict, judge


@dataclass(frozen=True, slots=True)
class Bench:
    """The shared setup of all cases."""

    make_engine: MakeEngine
    config: DeploymentConfig
    prompts: Sequence[Prompt]
    expected_by_sampling: Mapping[SamplingParams, Sequence[Answer]]
    tolerance: float

    @property
    def is_drafting(self) -> bool:
        return self.config.decode.speculation.method != "off"


async def verify(
    make_engine: MakeEngine,
    info: ModelInfo,
    config: DeploymentConfig,
    transports: Sequence[str],
    cases: Sequence[Case] = CASES,
    *,
    tolerance: float = 0.0,
) -> AsyncIterator[Verdict]:
    """One verdict for each transport and case. The sizes of `config`'s caches are replaced."""
    block_size = config.decode.cache.block_size
    prompts = make_prompts(info.vocab_size, block_size, info.max_model_len)
    config = _sized(config, 2 * sum(_num_blocks(prompt, block_size) for prompt in prompts))
    plain = override(config, {"prefill.replicas": 0, "decode.speculation": {}})
    config = override(config, {"decode.speculation.adaptive": False})
    expected: dict[SamplingParams, Sequence[Answer]] = {}
    for sampling in dict.fromkeys(case.sampling for case in cases):
        async with running_fleet(make_engine, plain) as fleet:
            expected[sampling] = await fleet.ask_all(prompts, sampling, at_once=False)
    bench = Bench(make_engine, config, prompts, expected, tolerance)
    for transport in transports:
        for case in cases:
            yield await _try(bench, transport, case)


async def _try(bench: Bench, transport: str, case: Case) -> Verdict:
    changes = {**case.changes, "transfer.transport": transport}
    if case.is_crowded:
        block_size = bench.config.decode.cache.block_size
        longest = max(_num_blocks(prompt, block_size) for prompt in bench.prompts)
        changes["decode.cache.num_blocks"] = longest + longest // 2 + 1
    async with running_fleet(bench.make_engine, override(bench.config, changes)) as fleet:
        if case.is_repeated:
            await fleet.ask_all(bench.prompts, GREEDY, at_once=False)
        started = time.monotonic()
        found = await fleet.ask_all(bench.prompts, case.sampling, at_once=case.is_crowded)
        ms = (time.monotonic() - started) * 1e3
        evidence = await _evidence(bench, fleet, case, found, ms)
        return judge(case, transport, evidence, tolerance=bench.tolerance)


async def _evidence(
    bench: Bench, fleet: Fleet, case: Case, found: Sequence[Answer], ms: float
) -> Evidence:
    metrics = fleet.decode.metrics()
    squeezed = ("transfers_refused_total", "transfers_aborted_total")
    return Evidence(
        expected=bench.expected_by_sampling[case.sampling],
        found=found,
        leaks=await fleet.leaks(),
        num_corrupt=int(metrics["pieces_corrupt_total"]),
        num_squeezed=fleet.decode.core.engine.stats.num_preempted
        + int(sum(value for name, value in metrics.items() if name.startswith(squeezed))),
        is_drafting=bench.is_drafting,
        ms=ms,
    )


def _num_blocks(prompt: Prompt, block_size: int) -> int:
    return -(-(len(prompt) + NUM_OUTPUT) // block_size)


def _sized(config: DeploymentConfig, num_blocks: int) -> DeploymentConfig:
    sizes = {"cache.num_blocks": num_blocks, "cache.memory_gib": None}
    pools = ("prefill", "decode")
    return override(
        config, {f"{pool}.{key}": size for pool in pools for key, size in sizes.items()}
    )
