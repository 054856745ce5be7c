"""Replicas needed for waiting and running requests, regardless of arrivals.

for a prefill replica     prompts: as many as compute them in a cold start's time
for room to decode        answers: as many as give them in that time, or have a place for each
open                      enough places for all of them
"""

from __future__ import annotations

from math import ceil

from baton.core.replicas import Role
from baton.platform.planner.capacity import Load, Promise, ReplicaModel, max_batch, most_held
from baton.platform.planner.config import PlannerConfig
from baton.platform.planner.observation import Observation

MOST_COLD_STARTS = 2.0
"""Longest wait at the head of a queue, in cold starts, up to which the forecast is still believed.
"""


def promise_of(rules: PlannerConfig) -> Promise:
    return Promise(ttft_s=rules.ttft_s, itl_s=rules.itl_s, share=rules.share)


def for_what_waits(
    role: Role, load: Load, observation: Observation, model: ReplicaModel, rules: PlannerConfig
) -> tuple[int, int]:
    """(Requests that wait for this role, replicas that would work the queue off within one cold
    start); (0, 0) while nobody waits for long, or if the replicas that are there are faster."""
    for_decode = observation.num_for_decode if role is Role.DECODE else 0
    for_prompts = observation.num_waiting - observation.num_for_decode
    if not rules.max_prefill:
        for_prompts = observation.num_waiting
    elif role is Role.DECODE:
        for_prompts = 0
    number = max(for_prompts, for_decode)
    if observation.oldest_wait_s <= rules.ttft_s or not number:
        return 0, 0
    asked = work_s = 0.0
    if for_prompts:
        asked += load.rate * model.mean_prefill_s(load)
        work_s += for_prompts * _waiting_prompt_s(load, observation, model)
    if for_decode:
        places = _places(load, model, rules)
        answer_s = load.output_tokens * model.step_s(places, load.context) / places
        asked += load.rate * answer_s
        work_s += for_decode * answer_s
    kept, least_s = observation.pool(role).num_kept, rules.cold_start_s
    spare = kept - asked
    if spare > 0 and work_s / spare < least_s:
        return number, _all_that_serve(observation, rules) if for_decode else 0
    extra = ceil(asked + work_s / max(least_s, rules.ttft_s))
    if for_decode and not for_prompts:  # with a place for each of them, none waits
        extra = min(extra, holding(observation.num_open + for_decode, load, model, rules))
    return number, max(extra, kept) if for_decode else extra


def _waiting_prompt_s(load: Load, observation: Observation, model: ReplicaModel) -> float:
    """Prefill seconds of a mean waiting prompt, of which as much is cached as of those that were
    placed."""
    mean = observation.waiting_tokens / observation.num_waiting
    cached = mean * load.cached_tokens / load.whole_prompt_tokens
    return model.prefill_s(mean - cached, cached)


def _all_that_serve(observation: Observation, rules: PlannerConfig) -> int:
    """Keep all serving replicas while requests wait for room to decode; one more if a request has
    waited long despite the forecast and no replica is starting."""
    pool = observation.decode
    is_late = observation.oldest_wait_s > MOST_COLD_STARTS * rules.cold_start_s
    return pool.num_kept + (is_late and not pool.starting)


def holding(num_open: float, load: Load, model: ReplicaModel, rules: PlannerConfig) -> int:
    """Replicas that so many requests may decode on at once."""
    return ceil(num_open / _places(load, model, rules))


def _places(load: Load, model: ReplicaModel, rules: PlannerConfig) -> int:
    """Requests that a decode replica takes: as many as keep ITL; if not even one does, as many as
    it holds."""
    limit = max_batch(load, model, promise_of(rules)) or most_held(load, model)
    return max(limit, 1)
