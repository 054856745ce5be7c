"""The chosen pools as a configuration that `baton serve` takes, and as devices to simulate."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.core.step_times import StepTimes, StepWork, prompt_work
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.layout_plan.layout import AXES
from baton.platform.simulator.fleet.devices import Devices, fitted
from baton.platform.simulator.fleet.setup import Device, Links
from baton.platform.size_plan.pools import Pool
from baton.platform.size_plan.question import FRONT_S, Question
from baton.platform.size_plan.size import Option

NUM_FITTED = 6
"""Passes of each kind that step times are fitted to."""


def deployment_of(question: Question, option: Option) -> dict[str, Any]:
    """The configuration of the option, without defaults; checked. Raises InvalidConfig if it could
    not be served."""
    changes: dict[str, Any] = {"model": question.config.model}
    for name, pool in (("prefill", option.prefill), ("decode", option.decode)):
        if pool is None:
            changes["prefill.replicas"] = 0
            continue
        changes.update({f"{name}.{path}": value for path, value in _pool(question, pool).items()})
    if option.prefill is not None:
        longest = round(question.load.whole_prompt_tokens * 4)
        changes["prefill.max_queued_tokens"] = max(longest, 4 * _chunk(option.prefill))
    changes["decode.max_open"] = max(2 * option.decode.scheduler.max_running, 1)
    served = override(question.config, changes)
    defaults = msgspec.to_builtins(DeploymentConfig())
    return {"model": served.model, **_differences(msgspec.to_builtins(served), defaults)}


def _pool(question: Question, pool: Pool) -> dict[str, Any]:
    mesh = pool.layout.mesh
    is_on_gpu = not question.accelerator.is_cpu
    return {
        "replicas": pool.num_units,
        "resources.num_gpus": 1.0 if is_on_gpu else 0.0,
        **{f"parallel.{axis}": getattr(mesh, axis) for axis in AXES},
        "scheduler.max_batch_tokens": pool.scheduler.max_batch_tokens,
        "scheduler.max_running": pool.scheduler.max_running,
        "scheduler.prefill_chunk": pool.scheduler.prefill_chunk,
    }


def _differences(raw: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in raw.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict):
            if inner := _differences(value, default):
                found[key] = inner
        elif value != default:
            found[key] = value
    return found


def devices_of(question: Question, option: Option) -> Devices:
    """Devices for `baton simulate --device`, with step times fitted to the predicted passes."""
    prefill = option.prefill or option.decode
    return Devices(
        prefill=_device(question, prefill),
        decode=_device(question, option.decode),
        links=Links(
            front_s=FRONT_S,
            bytes_per_s=_network_bytes_s(question, option.decode),
        ),
    )


def _network_bytes_s(question: Question, pool: Pool) -> float:
    return question.accelerator.network_gb_s * 1e9 * pool.layout.mesh.tensor


def _device(question: Question, pool: Pool) -> Device:
    budget, scheduler = pool.layout.budget, pool.scheduler
    return Device(
        step_times=_step_times(question, pool),
        num_blocks=max(budget.num_blocks, 1),
        block_size=budget.block_size,
        token_bytes=float(budget.kv_token_bytes * pool.layout.mesh.tensor),
        max_batch_tokens=scheduler.max_batch_tokens,
        max_running=scheduler.max_running,
        prefill_chunk=scheduler.prefill_chunk,
        max_open=max(2 * scheduler.max_running, 1),
        max_queued_tokens=max(4 * round(question.load.whole_prompt_tokens), 4 * _chunk(pool)),
    )


def _chunk(pool: Pool) -> int:
    return pool.scheduler.max_chunk


def _step_times(question: Question, pool: Pool) -> StepTimes:
    """Step times of what the pool does: prefill, decode, or both."""
    passes, load = pool.layout.passes, question.load
    steps: list[tuple[StepWork, float]] = []
    if pool.is_prefill or pool.first is not None:
        for number in range(1, NUM_FITTED + 1):
            num_tokens = max(_chunk(pool) * number // NUM_FITTED, 2)
            for before in (0, round(load.whole_prompt_tokens)):
                work = prompt_work(num_tokens, before)
                steps.append((work, passes.prompt_s(num_tokens, before)))
    if not pool.is_prefill:
        most = min(2 * pool.need.typical_batch, pool.scheduler.max_running)
        for number in range(1, NUM_FITTED + 1):
            num_requests = max(most * number // NUM_FITTED, 1)
            for context in (load.whole_prompt_tokens, load.held_tokens):
                held = round(num_requests * context)
                work = StepWork(num_requests, 0, held, num_requests)
                steps.append((work, passes.step_s(num_requests, context)))
    return fitted(steps)
