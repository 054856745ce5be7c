"""Decides the number of replicas of each role, with reasons.

    observation --> forecast --> need of each role --> limits --> steady --> flips --> counts
                                 + what waits, if it would still wait after a cold start
                                 + who decodes: all that are open have a place

A pool grows at once, and shrinks only to a number that was enough for `steady_s`, so that it does
not follow every fluctuation. A replica that one role can spare and the other lacks is flipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from baton.core.replicas import Role
from baton.core.wording import count_of
from baton.platform.planner.capacity import (
    Load,
    Need,
    ReplicaModel,
    decode_need,
    decode_with,
    prefill_need,
    prefill_with,
)
from baton.platform.planner.config import PlannerConfig
from baton.platform.planner.forecast import Forecast, forecast
from baton.platform.planner.mixed import mixed_need, mixed_with
from baton.platform.planner.observation import Memory, Observation, Wanted
from baton.platform.planner.waiting import for_what_waits, holding, promise_of

KEPT_OBSERVATIONS = 4096
DEADBAND = 0.05
"""A pool grows when the load exceeds its capacity by more than this share."""
COMFORT = 0.15
"""A pool shrinks to a number that would be enough for this much more load."""


Cause = Literal[
    "load", "waiting", "open", "least", "most", "idle", "unmeasured", "unheard", "steady"
]
"""What determined a number: arrivals, waiting requests, open requests, `planner.min_*` and `max_*`,
no traffic, missing reports, or fewer not having been enough for long.
"""


@dataclass(frozen=True, slots=True)
class RoleNeed:
    """The need of one role."""

    needed: int
    comfortable: int
    """Replicas that would be enough for somewhat more load."""
    why: str
    cause: Cause
    demanded: int = 0
    """Replicas that meet the SLO, regardless of limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    at_s: float
    prefill: int
    decode: int
    flips: int = 0
    """Prefill replicas that become decode replicas; negative: the other way. `prefill` and
    `decode` are what there is afterwards."""
    seen: Forecast | None = None
    reasons: tuple[str, ...] = ()
    found: Mapping[Role, RoleNeed] = field(default_factory=dict)

    def count(self, role: Role) -> int:
        return self.prefill if role is Role.PREFILL else self.decode


def plan(
    observation: Observation,
    models: Mapping[Role, ReplicaModel],
    rules: PlannerConfig,
    memory: Memory,
) -> tuple[Decision, Memory]:
    """The decision, and the new memory. `models` may lack a role without recent measurements: its
    number stays while there is work."""
    memory = _remembering(memory, observation, rules)
    window = [one for one in memory.observations if one.at_s > observation.at_s - rules.window_s]
    seen = forecast(window, rules.cold_start_s + rules.period_s)
    if seen.now.rate > 0:
        memory = replace(memory, load=seen.now)
    elif memory.load is not None:  # open requests are as long as those that came
        seen = replace(seen, now=_times(memory.load, 0.0), ahead=_times(memory.load, 0.0))
    found = {role: _find(role, seen, observation, models, rules) for role in Role}
    if _is_idle(observation, rules, memory):
        quiet_s = observation.at_s - (memory.last_busy_s or 0.0)
        found = dict.fromkeys(Role, RoleNeed(0, 0, f"no request for {quiet_s:.0f} s", "idle"))
    if not observation.is_complete:
        found = {role: _at_least(observation.pool(role).num_kept, found[role]) for role in Role}
    prefill, decode = (found[role].comfortable for role in (Role.PREFILL, Role.DECODE))
    enough = Wanted(observation.at_s, prefill, decode)
    memory = replace(memory, wanted=(*memory.wanted, enough))
    counts = {role: _steady(role, found[role], observation, rules, memory) for role in Role}
    flips = _flips(counts, observation, rules, memory)
    for role, num_given in ((Role.PREFILL, flips), (Role.DECODE, -flips)):
        if num_given > 0:
            counts[role] = min(counts[role], observation.pool(role).num_kept - num_given)
    reasons = tuple(_reason(role, found[role], counts[role], observation) for role in Role)
    decision = Decision(
        at_s=observation.at_s,
        prefill=counts[Role.PREFILL],
        decode=counts[Role.DECODE],
        flips=flips,
        seen=seen,
        reasons=reasons,
        found={role: _settled(found[role], counts[role]) for role in Role},
    )
    return decision, memory


def _remembering(memory: Memory, observation: Observation, rules: PlannerConfig) -> Memory:
    since_s = observation.at_s - max(rules.window_s, rules.steady_s, rules.cold_start_s)
    is_busy = observation.num_arrived or observation.num_waiting or observation.num_open
    starts = observation.prefill.starting or observation.decode.starting  # there was demand
    is_first = memory.last_busy_s is None
    return Memory(
        observations=(
            *(one for one in memory.observations if one.at_s > since_s),
            observation,
        ),
        wanted=tuple(one for one in memory.wanted if one.at_s > since_s),
        last_busy_s=observation.at_s if is_busy or starts or is_first else memory.last_busy_s,
        load=memory.load,
    )


def _settled(found: RoleNeed, count: int) -> RoleNeed:
    return replace(found, cause="steady") if found.needed < count else found


def _at_least(kept: int, found: RoleNeed) -> RoleNeed:
    """At least the present number, while not all gateways have reported."""
    if min(found.needed, found.comfortable) >= kept:
        return found
    return replace(
        found,
        needed=max(found.needed, kept),
        comfortable=max(found.comfortable, kept),
        why=f"{found.why}; not all gateways have reported theirs, so none goes",
        cause="unheard",
    )


def _find(
    role: Role,
    seen: Forecast,
    observation: Observation,
    models: Mapping[Role, ReplicaModel],
    rules: PlannerConfig,
) -> RoleNeed:
    least, most = rules.least(role), rules.most(role)
    kept, model = observation.pool(role).num_kept, models.get(role)
    least = max(least, int(observation.num_waiting > 0))
    if rules.idle_s and not kept and not observation.num_waiting and not seen.now.rate:
        least = 0  # removed replicas stay removed
    if most == 0:
        return RoleNeed(0, 0, "decode replicas compute prompts", "most")
    is_idle = seen.now.rate <= 0 and not observation.num_waiting and not observation.num_open
    if model is None:
        stays = min(max(0 if is_idle else kept, least), most)
        why = "nothing arrives" if is_idle else "its replicas have not measured their steps lately"
        return RoleNeed(stays, stays, why, "idle" if is_idle else "unmeasured", stays)
    needs = {
        share: _need(role, _times(seen.ahead, 1 + share), model, rules)
        for share in (0.0, -DEADBAND, COMFORT)
    }
    need = needs[-DEADBAND] if needs[0.0].num_replicas > kept > 0 else needs[0.0]
    why = _told(role, need, seen, rules)
    cause: Cause = "load" if need.num_replicas else "idle"
    num_waiting, extra = for_what_waits(role, seen.now, observation, model, rules)
    if extra > need.num_replicas:
        why += (
            f"; {num_waiting} wait, the oldest for {observation.oldest_wait_s:.1f} s: "
            f"{extra} work that off"
        )
        cause = "waiting"
    holds = dict.fromkeys(needs, 0)
    if role is Role.DECODE:
        holds = {
            share: holding(seen.num_open * (1 + share), seen.now, model, rules) for share in needs
        }
    held = holds[-DEADBAND] if holds[0.0] > kept > 0 else holds[0.0]
    if held > max(need.num_replicas, extra):
        why += f"; {observation.num_open} are open: {held} hold {seen.num_open:.0f}"
        cause = "open"
    needed = max(need.num_replicas, extra, held)
    if needed > most:
        why += f"; {most} are the most that planner.max_{role.value} allows"
        cause = "most"
    elif needed < least:
        cause = "least"
    return RoleNeed(
        min(max(needed, least), most),
        min(max(needs[COMFORT].num_replicas, extra, holds[COMFORT], least), most),
        why,
        cause,
        needed,
    )


def foreseen(
    decision: Decision,
    observation: Observation,
    models: Mapping[Role, ReplicaModel],
    rules: PlannerConfig,
) -> dict[Role, Need]:
    """The forecast for the present load and replicas: TTFT under prefill, ITL under decode. Roles
    without measurements or load are left out."""
    load, promise = decision.seen.now if decision.seen else None, promise_of(rules)
    found: dict[Role, Need] = {}
    for role, model in models.items():
        number = observation.pool(role).serving
        if load is None or load.rate <= 0 or not number:
            continue
        if role is Role.PREFILL:
            found[role] = prefill_with(load, model, promise, number)
        elif rules.max_prefill:
            found[role] = decode_with(load, model, promise, number)
        else:
            first, later = mixed_with(load, model, promise, number)
            found |= {Role.PREFILL: first, Role.DECODE: later}
    return found


def _times(load: Load, times: float) -> Load:
    return replace(load, rate=load.rate * times)


def _need(role: Role, load: Load, model: ReplicaModel, rules: PlannerConfig) -> Need:
    if load.rate <= 0:
        return Need(num_replicas=0, busy=0.0, seconds=0.0)
    if role is Role.PREFILL:
        return prefill_need(load, model, promise_of(rules))
    if not rules.max_prefill:
        first, later = mixed_need(load, model, promise_of(rules))
        return first if first.seconds / rules.ttft_s > later.seconds / rules.itl_s else later
    return decode_need(load, model, promise_of(rules))


def _is_idle(observation: Observation, rules: PlannerConfig, memory: Memory) -> bool:
    if not rules.idle_s or memory.last_busy_s is None:
        return False
    return observation.at_s - memory.last_busy_s >= rules.idle_s


def _steady(
    role: Role, found: RoleNeed, observation: Observation, rules: PlannerConfig, memory: Memory
) -> int:
    """The new number: more at once; fewer only as far as all observations of `steady_s` allow."""
    kept = observation.pool(role).num_kept
    if found.needed >= kept or _is_idle(observation, rules, memory):
        return found.needed
    if not _is_watched(memory, observation.at_s - rules.steady_s):
        return kept
    return min(max(one.count(role) for one in memory.wanted), kept)


def _is_watched(memory: Memory, since_s: float) -> bool:
    """Whether observations reach back that far."""
    first = memory.observations[0]
    return first.at_s - first.lasted_s <= since_s


def _flips(
    counts: Mapping[Role, int], observation: Observation, rules: PlannerConfig, memory: Memory
) -> int:
    """Replicas that one role lacks and the other has been able to spare for the time of a cold
    start."""
    since_s = observation.at_s - rules.cold_start_s
    if not _is_watched(memory, since_s):
        return 0
    lately = [one for one in memory.wanted if one.at_s > since_s]

    def spare(role: Role) -> int:
        return observation.pool(role).serving - max(one.count(role) for one in lately)

    def lack(role: Role) -> int:
        return counts[role] - observation.pool(role).num_kept

    to_decode = min(lack(Role.DECODE), spare(Role.PREFILL))
    to_prefill = min(lack(Role.PREFILL), spare(Role.DECODE))
    return max(to_decode, 0) - max(to_prefill, 0)


def _told(role: Role, need: Need, seen: Forecast, rules: PlannerConfig) -> str:
    now, ahead = seen.now.rate, seen.ahead.rate
    rising = f", {ahead:.2f} by then (rising {seen.per_minute:.2f} a minute)"
    load = f"{now:.2f} requests a second{rising if seen.per_minute > 0 else ''}"
    if not need.num_replicas:
        return "nothing arrives"
    promised = rules.ttft_s if role is Role.PREFILL else rules.itl_s
    what = "a first token" if role is Role.PREFILL else "the next token"
    kept = f"within the {promised:g} s promised" if need.is_kept else f"not within {promised:g} s"
    busy = (
        f"{need.busy:.0%} busy"
        if role is Role.PREFILL
        else f"{count_of(round(need.batch), 'request')} each"
    )
    return (
        f"{load}: {need.num_replicas} would be {busy} and give {rules.share:.0%} {what} in "
        f"{need.seconds:.2f} s, {kept}"
    )


def _reason(role: Role, found: RoleNeed, count: int, observation: Observation) -> str:
    kept = observation.pool(role).num_kept
    held = f", {count} kept until fewer were enough for longer" if found.needed < count else ""
    return f"{role.value}: {kept} -> {count}; {found.why}{held}"
