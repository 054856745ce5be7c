"""What one replica of each role can do, by the replicas' own fits of their steps.

Of replicas that measured enough lately the median one stands for its role: one whose machine is
shared, or that has just come, does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from baton.core.ids import Epoch
from baton.core.replicas import ReplicaInfo, Role
from baton.core.step_times import StepTimes, StepWork, prompt_work
from baton.gateway.fleet.traffic import ReplicaSpeed
from baton.platform.planner.capacity import FittedPasses, ReplicaModel

ENOUGH_STEPS = 16
"""A fit over fewer of a kind is a guess."""
TYPICAL_BATCH, TYPICAL_CONTEXT = 8, 1024
"""Requests of a step, and tokens of each, that decode replicas are compared by."""


def measured_models(
    replicas: Iterable[ReplicaInfo],
    speeds: Mapping[Epoch, ReplicaSpeed],
    max_running: Mapping[Role, int],
    max_age_s: float,
) -> dict[Role, ReplicaModel]:
    """Roles without a replica that measured its steps in the last `max_age_s` are left out."""
    found: dict[Role, list[tuple[float, ReplicaModel]]] = {role: [] for role in Role}
    for info in replicas:
        speed = speeds.get(info.epoch)
        if speed is not None and speed.age_s <= max_age_s and _is_fitted(info.role, speed.times):
            model = _model(info, speed.times, max_running[info.role])
            found[info.role].append((_typical_s(info, speed.times), model))
    return {
        role: sorted(models, key=lambda one: one[0])[len(models) // 2][1]
        for role, models in found.items()
        if models
    }


def _is_fitted(role: Role, times: StepTimes) -> bool:
    steps = times.num_prompt_steps if role is Role.PREFILL else times.num_decode_steps
    return steps >= ENOUGH_STEPS


def _typical_s(info: ReplicaInfo, times: StepTimes) -> float:
    if info.role is Role.PREFILL:
        return times.predict_s(prompt_work(info.max_chunk, 0))
    context = TYPICAL_BATCH * TYPICAL_CONTEXT
    return times.predict_s(StepWork(TYPICAL_BATCH, 0, context, TYPICAL_BATCH))


def _model(info: ReplicaInfo, times: StepTimes, max_running: int) -> ReplicaModel:
    return ReplicaModel(
        passes=FittedPasses(times),
        max_chunk=info.max_chunk,
        num_kv_tokens=info.num_blocks * info.layout.block_size,
        max_requests=min(max_running, info.max_open or max_running),
    )
